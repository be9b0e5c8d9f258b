//! `ferroverbs trace`: runs a command under the flight recorder, or reads what one left; as text, JSON lines or a timeline.

mod chrome;
mod json;

use crate::recorded::{self, Folder, files_of};
use crate::run;
use layer_records::text;
use layer_records::trace::Trace;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
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
    /// How it is told
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Where to, instead of the standard error
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only those that failed: calls, and completions with an error
    #[arg(long)]
    failed: bool,
    /// How many records of each process are kept, the last ones
    #[arg(long, value_name = "N", default_value_t = 1 << 18)]
    records: u64,
    #[command(flatten)]
    pub(crate) run: Option<run::Args>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum What {
    /// Tell what recorders hold: of a process that runs or is gone, a file, or all files of a folder
    #[command(arg_required_else_help = true)]
    Show(Show),
    /// A timeline of several processes, with arrows from what one sends to what the other receives
    #[command(arg_required_else_help = true)]
    Merge(Merge),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// How it is told
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Only those that failed: calls, and completions with an error
    #[arg(long)]
    failed: bool,
    /// Process ids, files or folders
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Merge {
    /// Process ids, files or folders
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<PathBuf>,
}

/// How a recording is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A line for each call
    Text,
    /// A JSON object for each call, a line each
    Json,
    /// A timeline for ui.perfetto.dev and chrome://tracing
    Chrome,
}

/// Does what the command line says.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    match (&args.what, &args.run) {
        (Some(What::Show(show)), _) => show_to_stdout(&show.what, show.format, show.failed),
        (Some(What::Merge(merge)), _) => show_to_stdout(&merge.what, Format::Chrome, false),
        (None, Some(run)) => record(args, run),
        (None, None) => Err("no command".into()),
    }
}

fn show_to_stdout(what: &[PathBuf], format: Format, failed: bool) -> crate::Result<ExitCode> {
    let mut traces = Vec::new();
    for one in what {
        for file in files_of("trace", one)? {
            traces.push(read(&file)?);
        }
    }
    match write(&mut BufWriter::new(std::io::stdout().lock()), &traces, format, failed) {
        // As of `| head`.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(e) => Err(format!("cannot write: {e}")),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

/// Runs the command; when it has ended, what all its processes recorded is told.
fn record(args: &Args, run: &run::Args) -> crate::Result<ExitCode> {
    let folder = Folder::make("trace")?;
    let settings = format!("dir={}:keep=1:posts=1:records={}", folder.word()?, args.records);
    let variables = [run::layers("trace"), ("FERROVERBS_TRACE", settings)];
    let status = match recorded::run(run, &variables)? {
        Ok(status) => status,
        Err(code) => return Ok(code),
    };
    let traces: Vec<Trace> = files_of("trace", &folder.0)?
        .iter()
        .map(|file| read(file))
        .collect::<crate::Result<_>>()?;
    if traces.is_empty() {
        eprintln!("ferroverbs: no device was opened: nothing was recorded");
    }
    let written = match &args.output {
        Some(path) => File::create(path)
            .and_then(|file| write(&mut BufWriter::new(file), &traces, args.format, args.failed)),
        None => write(&mut BufWriter::new(std::io::stderr()), &traces, args.format, args.failed),
    };
    written.map_err(|e| format!("cannot write what was recorded: {e}"))?;
    Ok(recorded::code(status))
}

/// The last calls that these files hold.
pub(crate) fn last(files: &[PathBuf], count: usize) -> crate::Result<String> {
    let mut lines = Vec::new();
    for file in files {
        let trace = read(file)?;
        lines.push(text::title(&trace));
        let skipped = trace.records.len().saturating_sub(count);
        lines.extend(trace.records.iter().skip(skipped).map(|record| text::line(&trace, record)));
    }
    Ok(lines.join("\n"))
}

fn read(file: &Path) -> crate::Result<Trace> {
    let bytes = fs::read(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    Trace::read(&bytes).map_err(|why| format!("{}: {why}", file.display()))
}

fn write(
    to: &mut dyn Write,
    traces: &[Trace],
    format: Format,
    only_failed: bool,
) -> std::io::Result<()> {
    if format == Format::Chrome {
        return chrome::write(to, traces).and_then(|()| to.flush());
    }
    let mut all: Vec<_> = traces
        .iter()
        .flat_map(|trace| trace.records.iter().map(move |record| (trace, record)))
        .filter(|(_, record)| !only_failed || text::failed(record))
        .collect();
    all.sort_by_key(|(trace, record)| trace.time(record));
    if format == Format::Text {
        for trace in traces {
            writeln!(to, "{}", text::title(trace))?;
        }
    }
    for (trace, record) in all {
        match format {
            Format::Text => writeln!(to, "{}", text::line(trace, record))?,
            _ => writeln!(to, "{}", json::object(trace, record))?,
        }
    }
    to.flush()
}
