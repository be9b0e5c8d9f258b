//! `ferroverbs top`: shows the counters of processes and updates them.

use super::reading::{NO_PROCESS, is_running, read_all};
use super::rows::{RowKind, RowOrder, StatsRow, format_table, select_rows};
use super::screen::Screen;
use crate::output;
use layer_records::stats::Stats;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The arguments of `ferroverbs top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one table and exit
    #[arg(long)]
    once: bool,
    /// The kind of object that has a row
    #[arg(long, value_enum, default_value_t = RowKind::Process)]
    by: RowKind,
    /// The order of the rows
    #[arg(long, value_enum, default_value_t = RowOrder::First)]
    sort: RowOrder,
    /// Show ended processes and destroyed objects, too
    #[arg(long)]
    gone: bool,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    delay: f64,
    /// Process ids, files or folders; without a source, all processes of the user
    #[arg(value_name = "SOURCE")]
    sources: Vec<PathBuf>,
}

fn seconds(value: &str) -> Result<f64, &'static str> {
    let seconds = value.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or("must be a number of seconds from 0.1 to 3600")
}

/// The rows to show, and their order.
struct View {
    by: RowKind,
    order: RowOrder,
    gone: bool,
}

/// Runs `ferroverbs top`.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let mut view = View { by: args.by, order: args.sort, gone: args.gone };
    if args.once {
        let all = read_visible(args, &view)?;
        if all.is_empty() {
            eprintln!("ferroverbs: {NO_PROCESS}");
        }
        let rows = select_rows(&all, &[], view.by, view.gone, view.order);
        return output::print_text(&(format_table(view.by, &rows, false).join("\n") + "\n"));
    }
    let screen = Screen::open()?;
    let delay = Duration::from_secs_f64(args.delay);
    let mut before = read_visible(args, &view)?;
    let mut taken = Instant::now();
    let mut now = before.clone();
    let mut between = Duration::ZERO;
    loop {
        screen.draw(&frame_lines(&view, &before, &now, between), HEAD)?;
        let left = delay.saturating_sub(taken.elapsed());
        match screen.key(left)? {
            Some(b'q' | 3) => return Ok(ExitCode::SUCCESS),
            Some(key) => view.key(key),
            None => {}
        }
        if taken.elapsed() >= delay {
            before = now;
            now = read_visible(args, &view)?;
            between = taken.elapsed();
            taken = Instant::now();
        }
    }
}

/// The counters to show. Ended processes are left out unless the user asks for them.
fn read_visible(args: &Args, view: &View) -> crate::Result<Vec<Stats>> {
    let mut all = read_all(&args.sources)?;
    if !view.gone && args.sources.is_empty() {
        all.retain(|stats| stats.ended.is_none() && is_running(stats.pid));
    }
    Ok(all)
}

impl View {
    fn key(&mut self, key: u8) {
        match key {
            b'p' => self.by = RowKind::Process,
            b'd' => self.by = RowKind::Device,
            b'u' => self.by = RowKind::Qp,
            b'c' => self.by = RowKind::Cq,
            b'm' => self.by = RowKind::Mr,
            b's' => {
                self.order = match self.order {
                    RowOrder::First => RowOrder::Requests,
                    RowOrder::Requests => RowOrder::Bytes,
                    RowOrder::Bytes => RowOrder::Errors,
                    RowOrder::Errors => RowOrder::Latency,
                    RowOrder::Latency => RowOrder::First,
                }
            }
            b'g' => self.gone = !self.gone,
            _ => {}
        }
    }

    fn title(&self) -> String {
        let order = match self.order {
            RowOrder::First => "by creation",
            RowOrder::Requests => "by requests",
            RowOrder::Bytes => "by bytes",
            RowOrder::Errors => "by errors",
            RowOrder::Latency => "by latency",
        };
        let gone = if self.gone { ", with ended processes and destroyed objects" } else { "" };
        format!("ferroverbs top: {order}{gone}")
    }
}

/// The index of the line with the column names.
const HEAD: usize = 2;

/// The lines of the screen.
fn frame_lines(view: &View, before: &[Stats], now: &[Stats], between: Duration) -> Vec<String> {
    let nanoseconds = u64::try_from(between.as_nanos()).unwrap_or(u64::MAX);
    let rows: Vec<StatsRow> = select_rows(now, before, view.by, view.gone, view.order)
        .into_iter()
        .map(|row| row.per_second(nanoseconds))
        .collect();
    let mut lines = vec![
        view.title(),
        "p processes  d devices  u queue pairs  c completion queues  m regions  s sort  g gone  q quit"
            .into(),
    ];
    lines.extend(format_table(view.by, &rows, true));
    if now.is_empty() {
        lines.push(String::new());
        lines.push(NO_PROCESS.into());
    }
    lines
}
