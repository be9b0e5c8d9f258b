//! `cargo xtask vm -- CMD...`: any command in a guest that has RDMA devices of the kernel's own (rdma_rxe).

mod initramfs;
mod kernel;
mod machine;

pub(crate) use machine::{Machine, Outcome, Request, Stream};

use crate::over::Over;
use crate::paths::Paths;
use crate::process::Job;
use crate::progress::Progress;
use crate::scratch::Scratch;
use crate::stage;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
usage: cargo xtask vm [OPTION...] -- CMD...

Runs CMD over Ferroverbs as root of a virtual machine that has Debian's kernel, the RDMA devices rxe0
(10.77.0.1) and rxe1 (10.77.0.2) joined by a cable, and this machine's files. What CMD writes is thrown
away. Its outputs and its exit status come back; 124: it took too long; 125: the machine failed.

  --upstream       over the system's library, not ours
  --share DIR      let CMD write to DIR (as often as you like)
  --limit SECONDS  how long CMD may take (300)
  --no-devices     without rxe0 and rxe1
  --count          the guest's clock counts instructions, one a nanosecond: slow, but times that repeat
  --console FILE   keep the kernel's messages
";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    upstream: bool,
    shares: Vec<PathBuf>,
    limit: Duration,
    devices: bool,
    counted: bool,
    console: Option<PathBuf>,
    command: Vec<OsString>,
}

/// Boots, runs, and becomes the command's exit status.
pub(crate) fn main(args: &[OsString]) -> crate::Result<ExitCode> {
    if args.is_empty() || args.iter().take_while(|a| *a != "--").any(|a| a == "--help" || a == "-h")
    {
        print!("{HELP}");
        return Ok(if args.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS });
    }
    let options = Options::parse(args)?;
    let outcome = run(&options).map_err(|error| {
        eprintln!("xtask: {}", error.trim_end());
        ExitCode::from(125)
    });
    match outcome {
        Ok(outcome) => {
            for line in &outcome.kernel {
                eprintln!("xtask: the guest's kernel: {line}");
            }
            Ok(ExitCode::from(outcome.status))
        }
        Err(code) => Ok(code),
    }
}

fn run(options: &Options) -> crate::Result<Outcome> {
    let paths = Paths::find()?;
    let progress = Progress::silent();
    let job = match options.command.split_first() {
        None => return Err("no command".into()),
        Some((program, rest)) if options.upstream => Job::new(program).args(rest),
        Some((program, rest)) => {
            stage::ensure(&paths, &progress)?;
            Over::new(&paths.stage(), &paths.target).job(program).args(rest)
        }
    };
    let machine = Machine::prepare(&paths, &progress)?;
    let request = Request {
        job,
        dir: std::env::current_dir().map_err(|e| e.to_string())?,
        shares: options.shares.clone(),
        limit: options.limit,
        devices: options.devices,
        counted: options.counted,
        console: options.console.clone(),
    };
    machine.run(&request, &Scratch::new()?, &mut |stream, bytes| {
        // A reader that went away is no reason to stop.
        let _ = match stream {
            Stream::Out => {
                std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush())
            }
            Stream::Err => std::io::stderr().write_all(bytes),
        };
    })
}

impl Options {
    fn parse(args: &[OsString]) -> crate::Result<Self> {
        let mut options = Self {
            upstream: false,
            shares: Vec::new(),
            limit: Duration::from_secs(300),
            devices: true,
            counted: false,
            console: None,
            command: Vec::new(),
        };
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let arg = arg.to_string_lossy();
            if !arg.starts_with('-') {
                return Err(format!("{arg}: the command goes behind --\n\n{HELP}"));
            }
            let mut value = || rest.next().ok_or_else(|| format!("{arg} needs a value\n\n{HELP}"));
            match arg.as_ref() {
                "--" => break,
                "--upstream" => options.upstream = true,
                "--no-devices" => options.devices = false,
                "--count" => options.counted = true,
                "--share" => {
                    let dir = Path::new(value()?);
                    let real = dir.canonicalize().map_err(|e| format!("{}: {e}", dir.display()))?;
                    options.shares.push(real);
                }
                "--console" => options.console = Some(value()?.into()),
                "--limit" => {
                    let seconds = value()?.to_string_lossy().parse();
                    options.limit = Duration::from_secs(
                        seconds.map_err(|_| "--limit takes a number of seconds".to_string())?,
                    );
                }
                other => return Err(format!("no such option: {other}\n\n{HELP}")),
            }
        }
        options.command = rest.cloned().collect();
        if options.command.is_empty() { Err(HELP.into()) } else { Ok(options) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> crate::Result<Options> {
        Options::parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_end_where_the_command_begins() {
        let options = parse("--upstream --limit 7 --share / -- ls --share x").unwrap();
        assert!(options.upstream && options.devices);
        assert_eq!(options.shares, [Path::new("/")]);
        assert_eq!(options.limit, Duration::from_secs(7));
        assert_eq!(options.command, ["ls", "--share", "x"]);
        for wrong in ["--", "--limit x -- ls", "--share /no/such -- ls", "ls", "--what -- ls"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
