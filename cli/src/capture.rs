//! `ferroverbs capture` runs a command under the layer `capture` and merges the packets of its
//! processes. `ferroverbs capture merge` merges packets that processes wrote earlier.

use crate::recorded::{self, LayerFolder, all_files_of};
use crate::{output, run, settings};
use layer_records::{file, pcapng, rest};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The arguments of `ferroverbs capture`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) action: Option<Action>,
    /// The file to write
    #[arg(short = 'o', long, value_name = "FILE", default_value = "capture.pcapng")]
    output: PathBuf,
    /// Bytes to keep of each packet; 0 keeps all
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = parse_snap)]
    snap: u64,
    /// More settings as in FERROVERBS_CAPTURE, such as 'qp=0x11:op=send,read:size=1G'
    #[arg(long, value_name = "SETTINGS", value_parser = parse_settings)]
    settings: Option<String>,
    #[command(flatten)]
    pub(crate) run: Option<run::Args>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// Merge the packets of several files by time
    #[command(arg_required_else_help = true)]
    Merge(Merge),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Merge {
    /// The file to write, instead of the standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Process ids, files or folders
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
}

fn parse_snap(value: &str) -> Result<u64, String> {
    settings::parse_layer_number(LAYER, "snap", value)
}

fn parse_settings(value: &str) -> Result<String, String> {
    settings::parse_layer_settings(LAYER, value)
}

const LAYER: &str = "capture";
const ENDING: &str = ".pcapng";
const PROGRAM: &str = concat!("ferroverbs capture ", env!("CARGO_PKG_VERSION"));

/// Runs `ferroverbs capture`.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    match (&args.action, &args.run) {
        (Some(Action::Merge(merge)), _) => {
            let merged = merge_packets(&merge.sources)?;
            match &merge.output {
                Some(path) => write_packets(path, &merged).map(|()| ExitCode::SUCCESS),
                None => output::print_bytes(&merged),
            }
        }
        (None, Some(run)) => run_and_capture(args, run),
        (None, None) => Err("no command".into()),
    }
}

/// Runs the command, and then writes the packets of its processes into one file.
fn run_and_capture(args: &Args, run: &run::Args) -> crate::Result<ExitCode> {
    output::check_writable(&args.output)?;
    let folder = LayerFolder::make(LAYER)?;
    let more = args.settings.iter().map(|more| format!(":{more}")).collect::<String>();
    let settings = format!("snap={}{more}:dir={}", args.snap, folder.as_setting()?);
    let variables = [run::add_layer(LAYER), ("FERROVERBS_CAPTURE", settings)];
    let status = match recorded::run_and_wait(run, &variables)? {
        Ok(status) => status,
        Err(code) => return Ok(code),
    };
    let (files, _) = all_files_of(LAYER, ENDING, &folder.0)?;
    if files.is_empty() {
        eprintln!(
            "ferroverbs: nothing was sent or received, so {} was not written; {}",
            args.output.display(),
            recorded::NO_DEVICE
        );
    } else {
        write_packets(&args.output, &merge_packets(&files)?)?;
    }
    Ok(recorded::shell_status(status))
}

fn write_packets(path: &Path, bytes: &[u8]) -> crate::Result<()> {
    fs::write(path, bytes).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// The content of a capture file, with the packets that its process holds in memory or left when it
/// was killed.
fn complete_file(name: &Path) -> crate::Result<Vec<u8>> {
    // The file PID-TIME.fvcapture holds the rest of the packets of PID-TIME-NUMBER.pcapng.
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

/// The packets of processes, files and folders as one file, sorted by time.
fn merge_packets(sources: &[PathBuf]) -> crate::Result<Vec<u8>> {
    let mut names = Vec::new();
    for source in sources {
        names.extend(all_files_of(LAYER, ENDING, source)?.0);
    }
    if names.is_empty() {
        return Err(format!(
            "no file in the folder ends with {ENDING}; `ferroverbs capture -- PROGRAM` writes capture files"
        ));
    }
    let mut found = Vec::new();
    for name in names {
        let file = complete_file(&name)?;
        // A process that was killed at once left an empty file.
        if !file.is_empty() {
            found.push((name, file));
        }
    }
    let (names, files): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let comment = "Packets of several processes. The description of an interface says whether its packets were synthesised from verbs calls or seen on the wire.";
    pcapng::merge(&files, PROGRAM, comment).map_err(|index| {
        let name = names.get(index).map_or(String::new(), |name| name.display().to_string());
        format!("{name} is no capture file, or is from a machine with another byte order")
    })
}
