//! `cargo xtask vm -- CMD...`: any command in a guest with RDMA devices of a kernel (rdma_rxe).

mod initramfs;
mod kernel;
mod machine;

pub use machine::{Machine, Outcome, Request, Stream};

use crate::launch::LaunchSettings;
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

/// What the command line says.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Runs CMD over Ferroverbs as root of a virtual machine that has Debian's kernel, the RDMA devices rxe0 (10.77.0.1) and rxe1 \
(10.77.0.2) joined by a cable, and this machine's files. What CMD writes is thrown away. Its outputs and its exit status come \
back; 124: it took too long; 125: the machine failed.")]
#[command(arg_required_else_help = true)]
pub struct Args {
    /// Over the system's library, not ours
    #[arg(long)]
    upstream: bool,
    /// Let CMD write to DIR (as often as you like)
    #[arg(long = "share", value_name = "DIR", value_parser = real)]
    shares: Vec<PathBuf>,
    /// How long CMD may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    limit: u64,
    /// Without rxe0 and rxe1
    #[arg(long)]
    no_devices: bool,
    /// The guest's clock counts instructions, one a nanosecond: slow, but times that repeat
    #[arg(long)]
    count: bool,
    /// With the kernel of another release of Debian, such as trixie
    #[arg(long, value_name = "NAME")]
    release: Option<String>,
    /// Keep the kernel's messages
    #[arg(long, value_name = "FILE")]
    console: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn real(dir: &str) -> std::io::Result<PathBuf> {
    Path::new(dir).canonicalize()
}

/// The output of `job` in `dir` of a guest with devices whose clock counts instructions.
///
/// # Errors
/// The report of a failure, or the reason why there is no guest.
pub fn measured(
    paths: &Paths,
    progress: &Progress,
    scratch: &Scratch,
    job: Job,
    dir: &Path,
    limit: Duration,
) -> crate::Result<String> {
    let machine = Machine::prepare(paths, progress)?;
    progress.step("measuring in a virtual machine");
    let request = Request {
        job,
        dir: dir.into(),
        shares: Vec::new(),
        limit,
        devices: true,
        counted: true,
        console: None,
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = machine.run(&request, scratch, &mut |stream, bytes| {
        if stream == Stream::Out { &mut out } else { &mut err }.extend_from_slice(bytes);
    })?;
    if outcome.status != 0 {
        return Err(String::from_utf8_lossy(&err).into_owned());
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Boots, runs, and becomes the command's exit status.
pub fn main(args: &Args) -> crate::Result<ExitCode> {
    let outcome = run(args).map_err(|error| {
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

fn run(args: &Args) -> crate::Result<Outcome> {
    let paths = Paths::find()?;
    let progress = Progress::silent();
    let job = match args.command.split_first() {
        None => return Err("no command".into()),
        Some((program, rest)) if args.upstream => Job::new(program).args(rest),
        Some((program, rest)) => {
            stage::ensure(&paths, &progress)?;
            LaunchSettings::new(&paths.stage(), &paths.target).job(program).args(rest)
        }
    };
    let machine = match &args.release {
        None => Machine::prepare(&paths, &progress)?,
        Some(suite) => Machine::with_kernel_of(suite, &paths, &progress)?,
    };
    let request = Request {
        job,
        dir: std::env::current_dir().map_err(|e| e.to_string())?,
        shares: args.shares.clone(),
        limit: Duration::from_secs(args.limit),
        devices: !args.no_devices,
        counted: args.count,
        console: args.console.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        let words = std::iter::once("vm").chain(line.split_whitespace());
        <Cli as clap::Parser>::try_parse_from(words).map(|cli| cli.args)
    }

    #[test]
    fn options_end_where_the_command_begins() {
        let args = parse("--upstream --limit 7 --share / -- ls --share x").unwrap();
        assert!(args.upstream && !args.no_devices);
        assert_eq!(args.shares, [Path::new("/")]);
        assert_eq!(args.limit, 7);
        assert_eq!(args.command, ["ls", "--share", "x"]);
        for wrong in ["--", "--limit x -- ls", "--share /no/such -- ls", "ls", "--what -- ls"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
