//! `ferroverbs capture`: runs a command under the layer `capture` and joins the packets of all its processes into one file, or joins such files.

use crate::recorded::{self, Folder, all_files_of};
use crate::run;
use layer_records::{file, pcapng, rest};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What the command line says.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) what: Option<What>,
    /// Where to
    #[arg(short = 'o', long, value_name = "FILE", default_value = "capture.pcapng")]
    output: PathBuf,
    /// Bytes of a packet that are kept; 0 for all
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    snap: u32,
    /// More of what FERROVERBS_CAPTURE takes, such as 'qp=0x11:op=send,read:size=1G'
    #[arg(long, value_name = "SETTINGS")]
    settings: Option<String>,
    #[command(flatten)]
    pub(crate) run: Option<run::Args>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum What {
    /// Join the packets of several files by their times
    #[command(arg_required_else_help = true)]
    Merge(Merge),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Merge {
    /// Where to, instead of the standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Process ids, files or folders
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<PathBuf>,
}

const LAYER: &str = "capture";
const ENDING: &str = ".pcapng";
const PROGRAM: &str = concat!("ferroverbs capture ", env!("CARGO_PKG_VERSION"));

/// Does what the command line says.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    match (&args.what, &args.run) {
        (Some(What::Merge(merge)), _) => {
            let joined = join(&merge.what)?;
            match &merge.output {
                Some(path) => write(path, &joined)?,
                None => match std::io::stdout().lock().write_all(&joined) {
                    Err(e) if e.kind() != ErrorKind::BrokenPipe => {
                        return Err(format!("cannot write: {e}"));
                    }
                    _ => {}
                },
            }
            Ok(ExitCode::SUCCESS)
        }
        (None, Some(run)) => capture(args, run),
        (None, None) => Err("no command".into()),
    }
}

/// Runs the command; when it has ended, the packets of all its processes are one file.
fn capture(args: &Args, run: &run::Args) -> crate::Result<ExitCode> {
    let folder = Folder::make(LAYER)?;
    let more = args.settings.iter().map(|more| format!(":{more}")).collect::<String>();
    let settings = format!("snap={}{more}:dir={}", args.snap, folder.word()?);
    let variables = [run::layers(LAYER), ("FERROVERBS_CAPTURE", settings)];
    let status = match recorded::run(run, &variables)? {
        Ok(status) => status,
        Err(code) => return Ok(code),
    };
    let (files, _) = all_files_of(LAYER, ENDING, &folder.0)?;
    if files.is_empty() {
        eprintln!(
            "ferroverbs: nothing was sent or received: there is no {}",
            args.output.display()
        );
    } else {
        write(&args.output, &join(&files)?)?;
    }
    Ok(recorded::code(status))
}

fn write(path: &Path, bytes: &[u8]) -> crate::Result<()> {
    fs::write(path, bytes).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// A file, with what its process, which may run still or was killed, has not written into it.
fn whole(name: &Path) -> crate::Result<Vec<u8>> {
    // PID-TIME-NUMBER.pcapng; beside it is PID-TIME.fvcapture.
    let rest = name.to_str().and_then(|name| {
        let (stem, number) = name.strip_suffix(ENDING)?.rsplit_once('-')?;
        let rest = fs::read(format!("{stem}{}", file::ending(LAYER))).ok()?;
        Some((number.parse().ok()?, rest))
    });
    let file = fs::read(name).map_err(|e| format!("cannot read {}: {e}", name.display()))?;
    Ok(match rest {
        Some((number, rest)) => rest::complete(file, number, &rest),
        None => file,
    })
}

/// The packets of these processes, files and folders.
fn join(what: &[PathBuf]) -> crate::Result<Vec<u8>> {
    let mut names = Vec::new();
    for one in what {
        names.extend(all_files_of(LAYER, ENDING, one)?.0);
    }
    let mut found = Vec::new();
    for name in names {
        let file = whole(&name)?;
        // Otherwise its process was killed as soon as it had made it.
        if !file.is_empty() {
            found.push((name, file));
        }
    }
    let (names, files): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let comment = "Packets of several processes. Interfaces say of themselves what they are: synthesised from verbs calls, or of the wire.";
    pcapng::merge(&files, PROGRAM, comment).map_err(|index| {
        let name = names.get(index).map_or(String::new(), |name| name.display().to_string());
        format!("{name} is no capture file of this kind of machine")
    })
}
