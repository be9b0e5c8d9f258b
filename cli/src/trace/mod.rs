//! `ferroverbs trace` runs a command under the layer `trace` (the flight recorder) and prints its
//! calls. `show` and `merge` print recordings of other processes as text, as JSON lines or as a
//! timeline.

mod chrome;
mod json;

use crate::recorded::{self, LayerFolder, files_of};
use crate::{output, run, settings};
use layer_records::text;
use layer_records::trace::Trace;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The arguments of `ferroverbs trace`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) action: Option<Action>,
    /// The output format; json and chrome need -o
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The file to write, instead of the standard error
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print only calls that failed and completions with an error
    #[arg(long)]
    failed: bool,
    /// The number of records to keep for each process; older records are lost
    #[arg(long, value_name = "N", default_value_t = 1 << 18, value_parser = parse_records)]
    records: u64,
    #[command(flatten)]
    pub(crate) run: Option<run::Args>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// Print recordings: of a running or ended process, of a file, or of all files of a folder
    #[command(arg_required_else_help = true)]
    Show(ShowArgs),
    /// Print a timeline of several processes, with arrows from each message to its receiver
    #[command(arg_required_else_help = true)]
    Merge(Merge),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Print only calls that failed and completions with an error
    #[arg(long)]
    failed: bool,
    /// Process ids, files or folders
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Merge {
    /// Process ids, files or folders
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
}

/// The output format of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A line for each call
    Text,
    /// A line with a JSON object for each call
    Json,
    /// A timeline for ui.perfetto.dev and chrome://tracing
    Chrome,
}

fn parse_records(value: &str) -> Result<u64, String> {
    settings::parse_layer_number("trace", "records", value)
}

/// Runs `ferroverbs trace`.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    match (&args.action, &args.run) {
        (Some(Action::Show(show)), _) => print_traces(&show.sources, show.format, show.failed),
        (Some(Action::Merge(merge)), _) => print_traces(&merge.sources, Format::Chrome, false),
        (None, Some(run)) => run_and_record(args, run),
        (None, None) => Err("no command".into()),
    }
}

fn print_traces(sources: &[PathBuf], format: Format, failed: bool) -> crate::Result<ExitCode> {
    let mut traces = Vec::new();
    for source in sources {
        for file in files_of("trace", source)? {
            traces.push(read_trace(&file)?);
        }
    }
    if traces.is_empty() {
        return Err(
            "the folder has no recording; `ferroverbs trace -- PROGRAM` or FERROVERBS_LAYERS=trace makes one"
                .into(),
        );
    }
    output::finish_printing(write_traces(
        &mut BufWriter::new(std::io::stdout().lock()),
        &traces,
        format,
        failed,
    ))
}

/// Runs the command, and then prints the recordings of its processes.
fn run_and_record(args: &Args, run: &run::Args) -> crate::Result<ExitCode> {
    match &args.output {
        Some(path) => output::check_writable(path)?,
        // The program writes to the standard error, too, so its lines would be in the document.
        None if args.format != Format::Text => {
            return Err("this format needs a file: add -o FILE".into());
        }
        None => {}
    }
    let folder = LayerFolder::make("trace")?;
    // The layer must not name files of the folder (dumps=0), because the folder is removed at the
    // end.
    let settings =
        format!("dir={}:keep=1:posts=1:dumps=0:records={}", folder.as_setting()?, args.records);
    let variables = [run::add_layer("trace"), ("FERROVERBS_TRACE", settings)];
    let status = match recorded::run_and_wait(run, &variables)? {
        Ok(status) => status,
        Err(code) => return Ok(code),
    };
    let traces: Vec<Trace> = files_of("trace", &folder.0)?
        .iter()
        .map(|file| read_trace(file))
        .collect::<crate::Result<_>>()?;
    if traces.is_empty() {
        eprintln!("ferroverbs: nothing was recorded, because {}", recorded::NO_DEVICE);
    }
    let written = match &args.output {
        Some(path) => File::create(path).and_then(|file| {
            write_traces(&mut BufWriter::new(file), &traces, args.format, args.failed)
        }),
        None => {
            write_traces(&mut BufWriter::new(std::io::stderr()), &traces, args.format, args.failed)
        }
    };
    written.map_err(|e| format!("cannot write the recording: {e}"))?;
    Ok(recorded::shell_status(status))
}

/// The last `count` calls of each file, as text.
pub(crate) fn last_calls(files: &[PathBuf], count: usize) -> crate::Result<String> {
    let mut lines = Vec::new();
    for file in files {
        let trace = read_trace(file)?;
        lines.push(text::title(&trace));
        let skipped = trace.records.len().saturating_sub(count);
        lines.extend(trace.records.iter().skip(skipped).map(|record| text::line(&trace, record)));
    }
    Ok(lines.join("\n"))
}

fn read_trace(file: &Path) -> crate::Result<Trace> {
    let bytes = fs::read(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    Trace::read(&bytes).map_err(|why| format!("{}: {why}", file.display()))
}

fn write_traces(
    to: &mut dyn Write,
    traces: &[Trace],
    format: Format,
    only_failed: bool,
) -> std::io::Result<()> {
    if format == Format::Chrome {
        return chrome::write_document(to, traces).and_then(|()| to.flush());
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
    if all.is_empty() && only_failed && format == Format::Text {
        writeln!(to, "no call failed, and each completion that was polled has the status SUCCESS")?;
    }
    for (trace, record) in all {
        match format {
            Format::Text => writeln!(to, "{}", text::line(trace, record))?,
            _ => writeln!(to, "{}", json::record_object(trace, record))?,
        }
    }
    to.flush()
}
