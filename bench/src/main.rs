//! `cargo xtask bench`: the speed of soft, beside other ways of communication between two processes
//! and the limits of the machine, in one run.
//!
//! The contenders take turns, so disturbances of the machine affect all alike; the median of all
//! rounds counts. Instruction counts of the fast paths are listed too, because they do not depend
//! on noise.

mod against;
mod connections;
mod fabric;
mod instructions;
mod layers;
mod metrics;
mod page;
mod plot;
mod report;
mod run;
mod scale;
mod start_up;
mod wire;

use clap::Parser;
use metrics::{Contender, METRICS, Metric, SIZES, Unit};
use report::{Report, ReportRow, Sample};
use run::Runner;
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::launch::LaunchSettings;
use xtask::limits::{self, Limit};
use xtask::packages;
use xtask::paths::Paths;
use xtask::progress::Progress;
use xtask::scratch::Scratch;
use xtask::stage;

type Result<T> = std::result::Result<T, String>;

/// Measure the software adapter beside its peers and the machine's limits
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    /// How often each contender is asked
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: NonZeroUsize,
    /// Write docs/reference/benchmarks.md and docs/reference/benchmarks.svg
    #[arg(long)]
    write: bool,
    #[command(subcommand)]
    only: Option<BenchCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    /// What grows with the number of QPs, CQs, regions and processes; what events cost
    Scale,
    /// Messages within a process whose threads wait at one CQ or at two
    Queues,
    /// The cost of each layer, in turns with no layer
    Layers {
        /// How often each is asked
        #[arg(long, value_name = "N", default_value = "5")]
        rounds: NonZeroUsize,
        /// Write the section of docs/reference/benchmarks.md
        #[arg(long)]
        write: bool,
    },
    /// Connections by librdmacm and by TCP: in sequence, and ten thousand at once
    Connections {
        /// Only the part in a virtual machine, beside the kernel's connection manager
        #[arg(long)]
        guest: bool,
        /// Number of simultaneous connections there; ten thousand take three minutes, on a busy
        /// machine fifteen
        #[arg(long, value_name = "N", default_value = "100")]
        at_once: NonZeroUsize,
    },
    /// Between two hosts (network namespaces, made by root) and on loopback, beside plain UDP and
    /// TCP, UCX and libfabric
    Wire {
        /// How often each contender is asked
        #[arg(long, value_name = "N", default_value = "3")]
        rounds: NonZeroUsize,
        /// Write docs/reference/benchmarks-wire.md and docs/reference/benchmarks-wire.svg
        #[arg(long)]
        write: bool,
        /// Only what is measured in a virtual machine, beside the kernel's rxe
        #[arg(long)]
        guest: bool,
        /// Only what is left where the cable loses packets of all
        #[arg(long, conflicts_with = "guest")]
        losses: bool,
    },
    /// The wire between 256 hosts on a virtual clock: congestion and losses
    Fabric {
        /// Write the table of docs/reference/wire-simulation.md, and
        /// docs/reference/wire-simulation.svg
        #[arg(long)]
        write: bool,
    },
    /// From a program's start to its device, upstream's library beside ours
    StartUp,
    /// This build beside another build, in turns: lists metrics that got worse by more than noise
    Against {
        /// The other build, as `cargo xtask stage` laid it out: .../target/stage
        stage: PathBuf,
        /// Rounds for each build; with fewer than three rounds the noise is unknown
        #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u16).range(3..))]
        rounds: u16,
    },
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let result = if words.next().is_some_and(|word| word == start_up::INSIDE) {
        start_up::inside(&words.collect::<Vec<_>>())
    } else {
        run(&Args::parse())
    };
    result.unwrap_or_else(|message| {
        eprintln!("bench: {}", message.trim_end());
        ExitCode::from(2)
    })
}

/// Runs everything and prints the table.
fn run(args: &Args) -> Result<ExitCode> {
    match args.only {
        Some(BenchCommand::StartUp) => return start_up::main(),
        Some(BenchCommand::Scale) => return scale::main(),
        Some(
            BenchCommand::Queues
            | BenchCommand::Against { .. }
            | BenchCommand::Layers { .. }
            | BenchCommand::Connections { .. }
            | BenchCommand::Fabric { .. }
            | BenchCommand::Wire { .. },
        )
        | None => {}
    }
    let paths = Paths::find()?;
    let progress = Progress::new();
    if let Some(BenchCommand::Fabric { write }) = args.only {
        return fabric::main(&paths, write, &progress);
    }
    if let Some(BenchCommand::Layers { rounds, write }) = &args.only {
        packages::ensure(&[packages::DEMO], &progress)?;
        stage::ensure(&paths, &progress)?;
        return layers::main(&paths, rounds.get(), *write, &progress);
    }
    if let Some(BenchCommand::Connections { guest, at_once }) = args.only {
        packages::ensure(&[packages::DEMO, packages::RDMACM], &progress)?;
        stage::ensure(&paths, &progress)?;
        return connections::main(&paths, &progress, guest, at_once);
    }
    if let Some(BenchCommand::Wire { rounds, write, guest, losses }) = &args.only {
        packages::ensure(&[packages::DEMO, packages::HOSTS, packages::BENCH_WIRE], &progress)?;
        stage::ensure(&paths, &progress)?;
        if *guest {
            return wire::beside_rxe(&paths, *write, &progress);
        }
        if *losses {
            return wire::losses(&paths, rounds.get(), *write, &progress);
        }
        return wire::main(&paths, rounds.get(), *write, &progress);
    }
    packages::ensure(&[packages::DEMO, packages::BENCH], &progress)?;
    stage::ensure(&paths, &progress)?;
    let fabric = Scratch::new()?;
    let folder = fabric.folder("fabric", 0o700)?;
    let over = LaunchSettings::new(&paths.stage(), &paths.target).fabric(&folder);
    let runner = Runner::new(over, &paths.root.join("c-tests/bench"))?;
    if let Some(BenchCommand::Against { stage, rounds }) = &args.only {
        return against::main(&paths, runner, stage, usize::from(*rounds), &progress);
    }
    let bench = Bench { runner, progress, rounds: args.rounds.get() };
    if matches!(args.only, Some(BenchCommand::Queues)) {
        let report = bench.queues();
        bench.progress.clear();
        print!("{}{}", report.metrics(), report.busy());
        return Ok(ended(&report));
    }
    let report = bench.run(&paths)?;
    bench.progress.clear();
    print!("{}", report.text());
    if args.write {
        let page = paths.root.join("docs/reference/benchmarks.md");
        let picture = paths.root.join("docs/reference/benchmarks.svg");
        let fail = |e: std::io::Error| format!("cannot write {}: {e}", page.display());
        let old = fs::read_to_string(&page).unwrap_or_default();
        fs::write(&page, page::carried(&old, &report.markdown())).map_err(fail)?;
        fs::write(&picture, plot::svg(&report.curves)?).map_err(fail)?;
        println!("\nwritten: docs/reference/benchmarks.md, docs/reference/benchmarks.svg");
    }
    Ok(ended(&report))
}

/// The closing line of the command.
fn ended(report: &Report) -> ExitCode {
    match report.failures() {
        0 => ExitCode::SUCCESS,
        failures => {
            eprintln!("\nxtask: {failures} measurements of Ferroverbs failed, see above");
            ExitCode::FAILURE
        }
    }
}

struct Bench {
    runner: Runner,
    progress: Progress,
    rounds: usize,
}

impl Bench {
    fn run(&self, paths: &Paths) -> Result<Report> {
        let mut limits: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let mut rows: Vec<ReportRow> = METRICS.iter().map(ReportRow::new).collect();
        for round in 1..=self.rounds {
            self.progress.step(&format!("round {round} of {}: limits", self.rounds));
            for (name, value) in self.runner.limits(&[])? {
                limits.entry(name).or_default().push(value);
            }
            let mut known = BTreeMap::new();
            for (metric, row) in METRICS.iter().zip(&mut rows) {
                let before = self.limit_now(metric);
                self.ask_all(round, metric, row, &mut known);
                let after = self.limit_now(metric);
                if let Some(limit) = Limit::around(before, after, metric.unit.less_is_better()) {
                    row.add_limit(limit);
                }
            }
        }
        let limits = limits.into_iter().map(|(name, all)| (name, Sample::of(all))).collect();
        self.progress.step("curves over message size");
        let curves = self.curves();
        self.progress.step("instruction counts");
        let instructions = instructions::count(&self.runner, paths)?;
        Ok(Report { rounds: self.rounds, rows, limits, curves, instructions })
    }

    /// Measures the limit of a metric now; `None` if the metric has no limit.
    fn limit_now(&self, metric: &Metric) -> Option<f64> {
        if metric.limit.is_empty() {
            return None;
        }
        match self.runner.limits(metric.limit) {
            Ok(found) => limits::sum(&found, metric.limit),
            Err(error) => {
                self.progress.note(&format!("{}: {error}", metric.what));
                None
            }
        }
    }

    /// The rows of queues within a process, and nothing else.
    fn queues(&self) -> Report {
        let metrics = METRICS.iter().filter(|metric| metric.is_of_queues());
        let mut rows: Vec<(&Metric, ReportRow)> = metrics.map(|m| (m, ReportRow::new(m))).collect();
        for round in 1..=self.rounds {
            for (metric, row) in &mut rows {
                self.ask_all(round, metric, row, &mut BTreeMap::new());
            }
        }
        Report {
            rounds: self.rounds,
            rows: rows.into_iter().map(|(_, row)| row).collect(),
            limits: BTreeMap::new(),
            curves: Vec::new(),
            instructions: Vec::new(),
        }
    }

    /// Measures all contenders of a row. A peer with the same question in several rows is measured
    /// once a round; `known` holds its result.
    fn ask_all(
        &self,
        round: usize,
        metric: &Metric,
        row: &mut ReportRow,
        known: &mut BTreeMap<String, f64>,
    ) {
        let Metric { what, bytes, unit, .. } = metric;
        for contender in std::iter::once(&metric.ours).chain(metric.peers) {
            let name = contender.name();
            let question = format!("{contender:?} {unit:?}");
            if let Some(value) = known.get(&question) {
                row.add(name, *value);
                continue;
            }
            self.progress
                .step(&format!("round {round} of {}: {what}, {bytes} bytes, {name}", self.rounds));
            // A failed contender is reported and left out of this round. A failure of Ferroverbs is
            // reported again at the end.
            match self.runner.measure(*contender, *bytes, *unit) {
                Ok(value) => {
                    known.insert(question, value);
                    row.add(name, value);
                }
                Err(error) => self.progress.note(&format!("{name}: {what}: {error}")),
            }
        }
    }

    /// Send latency, and send, write and read bandwidth over message size.
    fn curves(&self) -> Vec<plot::Curve> {
        let mut curves = Vec::new();
        for (unit, name, program) in [
            (Unit::Us, "Ferroverbs send", "ib_send_lat"),
            (Unit::GBs, "Ferroverbs send", "ib_send_bw"),
            (Unit::GBs, "Ferroverbs write", "ib_write_bw"),
            (Unit::GBs, "Ferroverbs read", "ib_read_bw"),
        ] {
            let points = SIZES.map(|bytes| {
                self.progress.step(&format!("curves: {program}, {bytes} bytes"));
                let n = iterations(bytes).to_string();
                let size = bytes.to_string();
                let value = self.runner.perftest(program, &["-s", &size, "-n", &n], bytes, unit);
                value.map(|value| (bytes, value)).map_err(|error| {
                    self.progress.note(&format!("{program}: {error}"));
                })
            });
            let points = points.into_iter().flatten().collect();
            curves.push(plot::Curve { unit, name, points });
        }
        for (unit, question, ucx) in [(Unit::Us, "lat", "tag_lat"), (Unit::GBs, "bw", "tag_bw")] {
            for name in ["UCX", "Open MPI", "MPICH"] {
                let mut points = Vec::new();
                for bytes in SIZES {
                    self.progress.step(&format!("curves: {name} {question}, {bytes} bytes"));
                    let n = iterations(bytes);
                    let contender = match name {
                        "UCX" => Contender::Ucx(ucx, bytes, n),
                        "MPICH" => Contender::Mpich(question, bytes, n),
                        _ => Contender::OpenMpi(question, bytes, n),
                    };
                    match self.runner.measure(contender, bytes, unit) {
                        Ok(value) => points.push((bytes, value)),
                        Err(error) => self.progress.note(&format!("{name}: {error}")),
                    }
                }
                curves.push(plot::Curve { unit, name, points });
            }
        }
        curves
    }
}

/// Enough for a tenth of a second or so.
fn iterations(bytes: u64) -> u64 {
    ((1_u64 << 30) / (bytes + 20_000)).max(640)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parses(line: &str) -> bool {
        Args::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).is_ok()
    }

    #[test]
    fn what_people_type_is_understood_and_what_is_wrong_is_refused() {
        Args::command().debug_assert();
        for line in ["", "--rounds 3 --write", "scale", "start-up", "against target/stage"] {
            assert!(parses(line), "{line}");
        }
        for line in ["--rounds 0", "--write scale", "against target/stage --rounds 2", "x"] {
            assert!(!parses(line), "{line}");
        }
    }
}
