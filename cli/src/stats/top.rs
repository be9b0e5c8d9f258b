//! `ferroverbs top`: what processes do now, again and again.

use super::rows::{By, Order, Row, rows, table};
use super::screen::Screen;
use super::{print, read_all, runs};
use layer_records::stats::Stats;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What the command line says.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a table of what was counted so far, and end
    #[arg(long)]
    once: bool,
    /// What has a row each
    #[arg(long, value_enum, default_value_t = By::Process)]
    by: By,
    /// What comes first
    #[arg(long, value_enum, default_value_t = Order::First)]
    sort: Order,
    /// Processes that are gone and objects that were destroyed, too
    #[arg(long)]
    gone: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    delay: f64,
    /// Process ids, files or folders; all processes of this user under the layer, if there are none
    #[arg(value_name = "WHAT")]
    what: Vec<PathBuf>,
}

fn seconds(value: &str) -> Result<f64, &'static str> {
    let seconds = value.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or("it takes seconds, from 0.1 to 3600")
}

/// What is shown, and how.
struct View {
    by: By,
    order: Order,
    gone: bool,
}

/// Does what the command line says.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let mut view = View { by: args.by, order: args.sort, gone: args.gone };
    if args.once {
        let all = look(args, &view)?;
        let rows = rows(&all, &[], view.by, view.gone, view.order);
        return print(&(table(view.by, &rows, false).join("\n") + "\n"));
    }
    let screen = Screen::take()?;
    let delay = Duration::from_secs_f64(args.delay);
    let mut before = look(args, &view)?;
    let mut taken = Instant::now();
    let mut now = before.clone();
    let mut between = Duration::ZERO;
    loop {
        screen.draw(&picture(&view, &before, &now, between), HEAD)?;
        let left = delay.saturating_sub(taken.elapsed());
        match screen.key(left)? {
            Some(b'q' | 3) => return Ok(ExitCode::SUCCESS),
            Some(key) => view.key(key),
            None => {}
        }
        if taken.elapsed() >= delay {
            before = now;
            now = look(args, &view)?;
            between = taken.elapsed();
            taken = Instant::now();
        }
    }
}

/// What there is. Of processes that are gone only those that are wanted.
fn look(args: &Args, view: &View) -> crate::Result<Vec<Stats>> {
    let mut all = read_all(&args.what)?;
    if !view.gone && args.what.is_empty() {
        all.retain(|stats| stats.ended.is_none() && runs(stats.pid));
    }
    Ok(all)
}

impl View {
    fn key(&mut self, key: u8) {
        match key {
            b'p' => self.by = By::Process,
            b'd' => self.by = By::Device,
            b'u' => self.by = By::Qp,
            b'c' => self.by = By::Cq,
            b'm' => self.by = By::Mr,
            b's' => {
                self.order = match self.order {
                    Order::First => Order::Requests,
                    Order::Requests => Order::Bytes,
                    Order::Bytes => Order::Errors,
                    Order::Errors => Order::Latency,
                    Order::Latency => Order::First,
                }
            }
            b'g' => self.gone = !self.gone,
            _ => {}
        }
    }

    fn title(&self) -> String {
        let order = match self.order {
            Order::First => "as they came",
            Order::Requests => "by requests",
            Order::Bytes => "by bytes",
            Order::Errors => "by errors",
            Order::Latency => "by latency",
        };
        let gone = if self.gone { ", with those that are gone" } else { "" };
        format!("ferroverbs top: {order}{gone}")
    }
}

/// Which line is the head of the table.
const HEAD: usize = 2;

/// What is on the screen.
fn picture(view: &View, before: &[Stats], now: &[Stats], between: Duration) -> Vec<String> {
    let nanoseconds = u64::try_from(between.as_nanos()).unwrap_or(u64::MAX);
    let rows: Vec<Row> = rows(now, before, view.by, view.gone, view.order)
        .into_iter()
        .map(|row| row.per_second(nanoseconds))
        .collect();
    let mut lines = vec![
        view.title(),
        "p processes  d devices  u queue pairs  c completion queues  m regions  s sort  g gone  q quit"
            .into(),
    ];
    lines.extend(table(view.by, &rows, true));
    if now.is_empty() {
        lines.push(String::new());
        lines.push("No process is counted: start one with FERROVERBS_LAYERS=stats.".into());
    }
    lines
}
