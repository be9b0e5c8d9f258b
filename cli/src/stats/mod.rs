//! `ferroverbs stats` prints the counters of the layer `stats` as tables or as Prometheus text.
//! `ferroverbs top` shows the counters on a terminal and updates them.

mod prometheus;
mod reading;
mod rows;
mod screen;
mod top;

pub(crate) use top::{Args as TopArgs, main as top};

use crate::recorded::{self, LayerFolder};
use crate::{output, run, settings};
use layer_records::stats::Stats;
use reading::{NO_PROCESS, read_all};
use rows::{RowKind, RowOrder};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The arguments of `ferroverbs stats`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(mut_arg("command", |command| command.required(false)))]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) action: Option<Action>,
    /// Print the text format of Prometheus; with a command, this needs -o
    #[arg(long)]
    prometheus: bool,
    /// The file to write, instead of the standard error
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The number of objects of each process that have counters of their own
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = parse_objects)]
    objects: u64,
    #[command(flatten)]
    pub(crate) run: Option<run::Args>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// Print counters: of a running or ended process, a file or a folder; without a source, of all
    /// processes of the user
    Show(ShowArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// Print the text format of Prometheus
    #[arg(long)]
    prometheus: bool,
    /// Process ids, files or folders
    #[arg(value_name = "SOURCE")]
    sources: Vec<PathBuf>,
}

fn parse_objects(value: &str) -> Result<u64, String> {
    settings::parse_layer_number("stats", "objects", value)
}

/// Runs `ferroverbs stats`.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    match (&args.action, &args.run) {
        (Some(Action::Show(show)), _) => print_counters(&show.sources, show.prometheus),
        (None, Some(run)) => run_and_count(args, run),
        // `ferroverbs stats --prometheus` without a command serves a scraper.
        (None, None) => print_counters(&[], args.prometheus),
    }
}

fn print_counters(sources: &[PathBuf], is_for_prometheus: bool) -> crate::Result<ExitCode> {
    let all = read_all(sources)?;
    if all.is_empty() && !is_for_prometheus {
        eprintln!("ferroverbs: {NO_PROCESS}");
        return Ok(ExitCode::SUCCESS);
    }
    output::print_text(&text(&all, is_for_prometheus))
}

/// Runs the command, and then prints the counters of its processes.
fn run_and_count(args: &Args, run: &run::Args) -> crate::Result<ExitCode> {
    match &args.output {
        Some(path) => output::check_writable(path)?,
        // The program writes to the standard error, too, so its lines would be among the metrics.
        None if args.prometheus => return Err("--prometheus needs a file: add -o FILE".into()),
        None => {}
    }
    let folder = LayerFolder::make("stats")?;
    let settings = format!("dir={}:objects={}", folder.as_setting()?, args.objects);
    let variables = [run::add_layer("stats"), ("FERROVERBS_STATS", settings)];
    let status = match recorded::run_and_wait(run, &variables)? {
        Ok(status) => status,
        Err(code) => return Ok(code),
    };
    let all = read_all(std::slice::from_ref(&folder.0))?;
    if all.is_empty() {
        eprintln!("ferroverbs: nothing was counted, because {}", recorded::NO_DEVICE);
    }
    let text = text(&all, args.prometheus);
    let written = match &args.output {
        Some(path) => std::fs::write(path, text),
        None => std::io::stderr().lock().write_all(text.as_bytes()),
    };
    written.map_err(|e| format!("cannot write the counters: {e}"))?;
    Ok(recorded::shell_status(status))
}

/// Tables of processes, files and folders without memory regions, which are named by their keys.
pub(crate) fn tables_without_keys(sources: &[PathBuf]) -> crate::Result<String> {
    Ok(tables(&read_all(sources)?, &[RowKind::Process, RowKind::Device, RowKind::Qp, RowKind::Cq]))
}

/// All tables, or the text format of Prometheus.
fn text(all: &[Stats], is_for_prometheus: bool) -> String {
    if is_for_prometheus {
        return prometheus::metrics(all);
    }
    tables(all, &[RowKind::Process, RowKind::Device, RowKind::Qp, RowKind::Cq, RowKind::Mr])
}

fn tables(all: &[Stats], which: &[RowKind]) -> String {
    let mut text = String::new();
    for &by in which {
        let rows = rows::select_rows(all, &[], by, true, RowOrder::First);
        if !rows.is_empty() {
            text.push_str(&rows::format_table(by, &rows, false).join("\n"));
            text.push_str("\n\n");
        }
    }
    text.push_str(&rows::call_table(all).join("\n"));
    text.push('\n');
    for stats in all.iter().filter(|stats| stats.unlisted > 0) {
        text.push_str(&format!(
            "process {}: {} objects had no counters of their own and are counted with their devices (raise --objects N)\n",
            stats.pid, stats.unlisted
        ));
    }
    text
}
