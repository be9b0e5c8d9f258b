//! `ferroverbs trace`: runs a command under the flight recorder, or reads what one left; as text, JSON lines or a timeline.

mod chrome;
mod json;

use crate::run;
use layer_records::text;
use layer_records::trace::Trace;
use std::fs::{self, DirBuilder, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

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
    run: Option<run::Args>,
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

#[cfg(test)]
impl Args {
    pub(crate) fn runs(&self, command: &str) -> bool {
        self.run.as_ref().is_some_and(|run| run.command.first().is_some_and(|word| word == command))
    }
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
        for file in files_of(one)? {
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
    let folder = Folder::make()?;
    let path = folder.0.to_str().filter(|path| !path.contains(':'));
    let path = path.ok_or("the folder for temporary files (TMPDIR) has a strange name")?;
    let settings = format!("dir={path}:keep=1:records={}", args.records);
    let variables = [run::layers("trace"), ("FERROVERBS_TRACE", settings)];
    let mut command = run::prepare(run, &variables)?;
    // What a terminal sends goes to both of us; the command decides what comes of it.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|e| format!("cannot handle signals: {e}"))?;
    }
    let status = match command.spawn() {
        Ok(mut child) => child.wait().map_err(|e| format!("cannot wait for it: {e}"))?,
        Err(error) => return Ok(run::cannot_run(&command, &error)),
    };
    let traces: Vec<Trace> =
        files_of(&folder.0)?.iter().map(|file| read(file)).collect::<crate::Result<_>>()?;
    if traces.is_empty() {
        eprintln!("ferroverbs: no device was opened: nothing was recorded");
    }
    let written = match &args.output {
        Some(path) => File::create(path)
            .and_then(|file| write(&mut BufWriter::new(file), &traces, args.format, args.failed)),
        None => write(&mut BufWriter::new(std::io::stderr()), &traces, args.format, args.failed),
    };
    written.map_err(|e| format!("cannot write what was recorded: {e}"))?;
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// A folder of our own, for as long as the command runs.
struct Folder(PathBuf);

impl Folder {
    fn make() -> crate::Result<Self> {
        let base = std::env::temp_dir();
        let pid = std::process::id();
        for turn in 0..1000 {
            let path = base.join(format!("ferroverbs-trace-{pid}-{turn}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(format!("cannot make {}: {e}", path.display())),
            }
        }
        Err(format!("cannot make a folder in {}", base.display()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The files that a word of the command line means.
fn files_of(what: &Path) -> crate::Result<Vec<PathBuf>> {
    let (folder, begin) = match what.to_str() {
        Some(pid) if !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()) => {
            (own_folder(), format!("{pid}-"))
        }
        _ if what.is_dir() => (what.to_owned(), String::new()),
        _ => return Ok(vec![what.to_owned()]),
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&begin) && name.ends_with(".fvtrace") {
            found.push(entry.path());
        }
    }
    found.sort();
    if !begin.is_empty() {
        // A process that was replaced by another has left an older one.
        found = found.pop().into_iter().collect();
        if found.is_empty() {
            return Err(format!(
                "nothing is recorded of process {} in {}",
                what.display(),
                folder.display()
            ));
        }
    }
    Ok(found)
}

/// Where recorders are that nobody gave another place (docs/trace.md).
fn own_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_absolute()) {
        Some(dir) => Path::new(&dir).join("ferroverbs-trace"),
        None => format!("/tmp/ferroverbs-trace-{}", rustix::process::getuid().as_raw()).into(),
    }
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
