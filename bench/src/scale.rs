//! `cargo xtask bench scale`: costs that grow with the number of QPs, CQs, memory regions and
//! processes, and the cost of an event. Times depend on the load of the machine; instructions do
//! not.

use super::instructions;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use xtask::launch::LaunchSettings;
use xtask::packages;
use xtask::paths::Paths;
use xtask::process::Job;
use xtask::progress::Progress;
use xtask::scratch::Scratch;
use xtask::stage;
use xtask::table::{Align, Table};

const LIMIT: Duration = Duration::from_secs(300);
/// Operations of which instructions are counted. The number is divisible by each QP count (1, 100,
/// 1000), so that every QP gets equally many.
const OPERATIONS: usize = 1000;
/// Messages that are timed.
const MESSAGES: &str = "20000";

/// Function of `c-tests/bench/scale.c`, and its operation.
const COUNTED: [(&str, &str); 5] = [
    ("measured_alternating", "a message and its completions, one QP after the other"),
    ("measured_together", "a message and its completions, all QPs at once"),
    ("measured_empty", "`ibv_poll_cq` that finds nothing"),
    ("measured_region", "`ibv_reg_mr` and `ibv_dereg_mr`"),
    ("measured_qp", "`ibv_create_qp` and `ibv_destroy_qp`"),
];

pub(super) fn main() -> crate::Result<ExitCode> {
    let paths = Paths::find()?;
    let progress = Progress::new();
    packages::ensure(&[packages::DEMO, packages::BENCH], &progress)?;
    stage::ensure(&paths, &progress)?;
    let scratch = Scratch::new()?;
    let fabric = scratch.folder("fabric", 0o700)?;
    let over = LaunchSettings::new(&paths.stage(), &paths.target).fabric(&fabric);
    let program = compile(&paths, &scratch)?;
    let bench = Bench { over, scratch, program, progress };
    let tables = [
        ("Instructions of one operation, in one process", bench.instructions()?),
        ("Two processes", bench.pairs()?),
        ("Many processes", bench.processes()?),
        (
            "Sleeping receivers, one way; and the kernel's own ways to wake a process",
            bench.events()?,
        ),
    ];
    bench.progress.clear();
    for (title, table) in tables {
        println!("{title}:\n\n{}", table.render());
    }
    Ok(ExitCode::SUCCESS)
}

fn compile(paths: &Paths, scratch: &Scratch) -> crate::Result<PathBuf> {
    let program = scratch.path().join("scale");
    let done = Job::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-o"])
        .arg(&program)
        .arg(paths.root.join("c-tests/bench/scale.c"))
        .args(["-libverbs", "-lpthread"])
        .run(scratch, LIMIT)?;
    if done.ok() { Ok(program) } else { Err(done.report("cc")) }
}

struct Bench {
    over: LaunchSettings,
    scratch: Scratch,
    program: PathBuf,
    progress: Progress,
}

impl Bench {
    /// The output of the program with these arguments.
    fn measure(&self, args: &[&str]) -> crate::Result<ScaleOutput> {
        self.progress.step(&format!("scale {}", args.join(" ")));
        let done = self.over.job(&self.program).args(args).run(&self.scratch, LIMIT)?;
        if done.ok() { Ok(ScaleOutput(done.stdout)) } else { Err(done.report("scale")) }
    }

    fn instructions(&self) -> crate::Result<Table> {
        let mut table = Table::new(&[
            ("operation", Align::Left),
            ("queues", Align::Left),
            ("1 connection", Align::Right),
            ("100", Align::Right),
            ("1000", Align::Right),
        ]);
        for (function, what) in COUNTED {
            for (own, queues) in [("0", "shared"), ("1", "each its own")] {
                let cells = ["1", "100", "1000"].map(|n| self.count(function, n, own));
                let [one, hundred, thousand] = cells;
                table.row([what.into(), queues.into(), one?, hundred?, thousand?]);
            }
        }
        Ok(table)
    }

    fn count(&self, function: &str, connections: &str, own: &str) -> crate::Result<String> {
        self.progress.step(&format!("instructions of {function}, {connections} connections"));
        let count = OPERATIONS.to_string();
        // The positional arguments of scale.c: PAIRS ACTIVE OWN_CQS COUNT.
        let args = ["count", connections, connections, own, &count];
        let sum = instructions::of(&self.over, &self.scratch, &self.program, &args, function)?;
        Ok(format!("{:.0}", sum as f64 / OPERATIONS as f64))
    }

    fn pairs(&self) -> crate::Result<Table> {
        let mut table = Table::new(&[
            ("connections", Align::Right),
            ("CQs", Align::Left),
            ("regions", Align::Right),
            ("idle peers", Align::Right),
            ("set-up, ms", Align::Right),
            ("round trip on 1 QP, us", Align::Right),
            ("on all in turn, us", Align::Right),
            ("tear-down, ms", Align::Right),
            ("KiB/QP, fresh", Align::Right),
            ("in segments", Align::Right),
            ("used", Align::Right),
            ("in segments", Align::Right),
        ]);
        let cases = [
            ["1", "0", "0", "0"],
            ["100", "0", "0", "0"],
            ["10000", "0", "0", "0"],
            ["100", "1", "0", "0"],
            ["10000", "1", "0", "0"],
            ["1", "0", "1000", "0"],
            ["1", "0", "100000", "0"],
            ["1", "0", "0", "8"],
            ["1", "0", "0", "63"],
        ];
        for case in cases {
            let [connections, own, regions, idle] = case;
            let output = self.measure(&["pair", connections, own, regions, idle, MESSAGES])?;
            let queues = if own == "0" { "one" } else { "each its own" };
            table.row([
                connections.into(),
                queues.into(),
                regions.into(),
                idle.into(),
                output.get("set-up_ms"),
                output.get("one_us"),
                output.get("each_us"),
                output.get("tear-down_ms"),
                output.get("fresh_kib_per_qp"),
                output.get("fresh_segments_kib_per_qp"),
                output.get("used_kib_per_qp"),
                output.get("used_segments_kib_per_qp"),
            ]);
        }
        Ok(table)
    }

    fn processes(&self) -> crate::Result<Table> {
        let mut table = Table::new(&[("what", Align::Left), ("value", Align::Right)]);
        for pairs in ["1", "32"] {
            let output = self.measure(&["many", pairs, MESSAGES])?;
            let name = format!("processor time of a message, {pairs} pairs at ping-pong, us");
            table.row([name, output.get("cpu_us_per_message")]);
        }
        let output = self.measure(&["mesh", "64"])?;
        for (name, what) in [
            ("open_ms", "64 processes open the device, ms"),
            ("create_ms", "each makes 64 QPs, ms"),
            ("connect_ms", "each connects with each, ms"),
            ("close_ms", "all end, ms"),
        ] {
            table.row([what.into(), output.get(name)]);
        }
        let output = self.measure(&["idle"])?;
        for (name, what) in [
            (
                "idle_cpu_us",
                "an idle process that waits for an event: processor time in a second, us",
            ),
            ("idle_switches", "its context switches"),
            (
                "target_cpu_us",
                "a process that 10000 RDMA WRITEs reach and that never polls: processor time, us",
            ),
        ] {
            table.row([what.into(), output.get(name)]);
        }
        Ok(table)
    }

    /// One-way latency to a sleeping receiver, and that of eventfd, pipe and futex for comparison.
    fn events(&self) -> crate::Result<Table> {
        let mut table = Table::new(&[
            ("what wakes", Align::Left),
            ("1 CQ: us", Align::Right),
            ("processor, us", Align::Right),
            ("1000 CQs: us", Align::Right),
            ("processor, us", Align::Right),
        ]);
        let [one, many] = ["1", "1000"].map(|cqs| self.measure(&["events", "2000", cqs]));
        let (one, many) = (one?, many?);
        for (name, what) in [
            ("verbs_event", "ibv_get_cq_event"),
            ("eventfd", "eventfd"),
            ("pipe", "pipe"),
            ("futex", "futex"),
        ] {
            let (wall, cpu) = (format!("{name}_us"), format!("{name}_cpu_us"));
            table.row([
                what.into(),
                one.get(&wall),
                one.get(&cpu),
                many.get(&wall),
                many.get(&cpu),
            ]);
        }
        Ok(table)
    }
}

/// Lines of a name and a number.
struct ScaleOutput(String);

impl ScaleOutput {
    /// The number with this name; a dash if missing.
    fn get(&self, name: &str) -> String {
        let value = self.0.lines().filter_map(|line| line.split_once(' '));
        value
            .filter(|(n, _)| *n == name)
            .map(|(_, v)| v.trim().to_owned())
            .next()
            .unwrap_or("-".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_by_its_whole_name() {
        let output = ScaleOutput("verbs_event_us 3.5\nevent_us 2\n".into());
        assert_eq!(output.get("event_us"), "2");
        assert_eq!(output.get("us"), "-");
    }
}
