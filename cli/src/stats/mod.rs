//! `ferroverbs stats` and `ferroverbs top`: what the layer `stats` counted, as tables, as Prometheus text, and on a terminal that is drawn again and again.

mod prometheus;
mod rows;
mod screen;
mod top;

pub(crate) use top::{Args as Top, main as top};

use crate::recorded::{self, Folder, files_of, folder_of};
use crate::run;
use layer_records::file::HEAD;
use layer_records::stats::{AT_USED, ENTRY, Stats};
use rows::{By, Order};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What the command line of `stats` says.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(disable_help_subcommand = true, mut_arg("command", |command| command.required(false)))]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) what: Option<What>,
    /// As Prometheus reads it
    #[arg(long)]
    prometheus: bool,
    /// Where to, instead of the standard error
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How many objects of each process have counters of their own
    #[arg(long, value_name = "N", default_value_t = 4096)]
    objects: u64,
    #[command(flatten)]
    pub(crate) run: Option<run::Args>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum What {
    /// Tell what is counted: of a process that runs or is gone, a file, a folder; of all there are, if none is named
    Show(Show),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// As Prometheus reads it
    #[arg(long)]
    prometheus: bool,
    /// Process ids, files or folders
    #[arg(value_name = "WHAT")]
    what: Vec<PathBuf>,
}

/// Does what the command line says.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    match (&args.what, &args.run) {
        (Some(What::Show(show)), _) => {
            let all = read_all(&show.what)?;
            print(&text(&all, show.prometheus))
        }
        (None, Some(run)) => count(args, run),
        // `stats --prometheus` alone: of all that there are, for whoever scrapes.
        (None, None) => print(&text(&read_all(&[])?, args.prometheus)),
    }
}

/// Writes to the standard output. Whoever reads may have enough of it.
fn print(text: &str) -> crate::Result<ExitCode> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(format!("cannot write: {e}")),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Runs the command; when it has ended, what all its processes did is told.
fn count(args: &Args, run: &run::Args) -> crate::Result<ExitCode> {
    let folder = Folder::make("stats")?;
    let settings = format!("dir={}:objects={}", folder.word()?, args.objects);
    let variables = [run::layers("stats"), ("FERROVERBS_STATS", settings)];
    let status = match recorded::run(run, &variables)? {
        Ok(status) => status,
        Err(code) => return Ok(code),
    };
    let all = read_all(std::slice::from_ref(&folder.0))?;
    if all.is_empty() {
        eprintln!("ferroverbs: no device was opened: nothing was counted");
    }
    let text = text(&all, args.prometheus);
    let written = match &args.output {
        Some(path) => std::fs::write(path, text),
        None => std::io::stderr().lock().write_all(text.as_bytes()),
    };
    written.map_err(|e| format!("cannot write what was counted: {e}"))?;
    Ok(recorded::code(status))
}

/// Tables of these processes, files and folders, but for regions, whose names are their keys.
pub(crate) fn tables_without_keys(what: &[PathBuf]) -> crate::Result<String> {
    Ok(tables(&read_all(what)?, &[By::Process, By::Device, By::Qp, By::Cq]))
}

/// A table of all there is, or what Prometheus reads.
fn text(all: &[Stats], is_for_prometheus: bool) -> String {
    if is_for_prometheus {
        return prometheus::text(all);
    }
    tables(all, &[By::Process, By::Device, By::Qp, By::Cq, By::Mr])
}

fn tables(all: &[Stats], which: &[By]) -> String {
    let mut text = String::new();
    for &by in which {
        let rows = rows::rows(all, &[], by, true, Order::First);
        if !rows.is_empty() {
            text.push_str(&rows::table(by, &rows, false).join("\n"));
            text.push_str("\n\n");
        }
    }
    text.push_str(&rows::calls(all).join("\n"));
    text.push('\n');
    for stats in all.iter().filter(|stats| stats.unlisted > 0) {
        text.push_str(&format!(
            "process {}: {} objects had no counters of their own; their devices have them (objects=N)\n",
            stats.pid, stats.unlisted
        ));
    }
    text
}

/// What there is of these processes, files and folders; of all in the user's own folder if there are none.
fn read_all(what: &[PathBuf]) -> crate::Result<Vec<Stats>> {
    let own = [folder_of("stats")];
    let (what, is_own) = if what.is_empty() { (&own[..], true) } else { (what, false) };
    let mut all = Vec::new();
    for one in what {
        if is_own && !one.is_dir() {
            continue;
        }
        for file in files_of("stats", one)? {
            match read(&file) {
                Ok(stats) => all.push(stats),
                // Of those in a folder one may be going, or only coming.
                Err(_) if one.is_dir() => {}
                Err(why) => return Err(why),
            }
        }
    }
    Ok(all)
}

/// Reads what was used of a file: most of it never is.
fn read(path: &Path) -> crate::Result<Stats> {
    let fail = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    let file = File::open(path).map_err(fail)?;
    let mut bytes = Vec::new();
    (&file).take(HEAD as u64).read_to_end(&mut bytes).map_err(fail)?;
    let word = |at: usize| {
        let word = bytes.get(at * 8..).and_then(|bytes| bytes.first_chunk::<8>());
        word.map_or(0, |word| u64::from_ne_bytes(*word))
    };
    let used = word(AT_USED);
    file.take(used.saturating_mul(ENTRY as u64)).read_to_end(&mut bytes).map_err(fail)?;
    Stats::read(&bytes).map_err(|why| format!("{}: {why}", path.display()))
}

/// Whether a process is there.
fn runs(pid: u32) -> bool {
    // The kernel's word, not the file's: who was killed could not write.
    pid != 0 && Path::new("/proc").join(pid.to_string()).is_dir()
}
