//! `cargo xtask bench layers`: the cost of each layer, in turns with no layer. Only between two
//! processes of this host: where messages take longer, the cost of a layer is negligible.

use super::metrics::Unit;
use super::page::with_section;
use super::report::{Sample, digits};
use std::fs;
use std::process::ExitCode;
use std::time::Duration;
use xtask::launch::LaunchSettings;
use xtask::pair::Pair;
use xtask::paths::Paths;
use xtask::perftest::{self, PerftestRow};
use xtask::progress::Progress;
use xtask::scratch::Scratch;
use xtask::stage::LAYERS;
use xtask::table::{Align, Table};

const LIMIT: Duration = Duration::from_secs(120);
const CPUS: [&str; 2] = ["0", "1"];
/// The name of a run without layers.
const NONE: &str = "none";

/// A measurement of a layer's cost.
struct Question {
    what: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    /// The figure of the program's output that is compared.
    number: fn(&PerftestRow) -> Option<f64>,
    /// Which way is better.
    unit: Unit,
    /// The unit of the figure.
    name: &'static str,
}

const QUESTIONS: &[Question] = &[
    Question {
        what: "SEND latency, 8 bytes",
        program: "ib_send_lat",
        // perftest prints hundredths of microseconds, some per cent of this value. A processor's
        // counter may have steps of that size, so a median would be one of few values.
        args: &["-s", "8", "-n", "100000", "-C"],
        number: |row| row.value("t_avg"),
        unit: Unit::Us,
        name: "cycles",
    },
    Question {
        what: "SEND rate, 8 bytes",
        program: "ib_send_bw",
        args: &["-s", "8", "-n", "500000"],
        number: |row| Unit::Millions.of(row),
        unit: Unit::Millions,
        name: Unit::Millions.name(),
    },
];

/// The greatest permitted slowdown of a message, by question number; further costs have no goal.
const GOALS: &[(usize, &str, f64)] = &[(0, "trace", 1.3), (0, "validate", 2.0)];

/// The section of docs/reference/benchmarks.md.
pub(super) const SECTION: &str = "## Layers\n";

/// Measures and prints; with `write` also into docs/reference/benchmarks.md.
pub(super) fn main(
    paths: &Paths,
    rounds: usize,
    write: bool,
    progress: &Progress,
) -> crate::Result<ExitCode> {
    let names: Vec<&str> = std::iter::once(NONE).chain(LAYERS.iter().copied()).collect();
    let mut values: Vec<Vec<Vec<f64>>> = vec![vec![Vec::new(); names.len()]; QUESTIONS.len()];
    let mut loads = Vec::new();
    for round in 1..=rounds {
        for (question, values) in QUESTIONS.iter().zip(&mut values) {
            // The layers take turns in being measured first.
            for step in 0..names.len() {
                let index = if round % 2 == 0 { names.len() - 1 - step } else { step };
                let what = question.what;
                progress.step(&format!("round {round} of {rounds}: {what}, {}", names[index]));
                loads.push(load());
                values[index].push(measure(paths, names[index], question)?);
            }
        }
    }
    progress.clear();
    let text = report(&names, values, rounds, Sample::of(loads));
    print!("{text}");
    if write {
        let page = paths.root.join("docs/reference/benchmarks.md");
        let fail = |e: std::io::Error| format!("cannot write {}: {e}", page.display());
        let old = fs::read_to_string(&page).map_err(fail)?;
        fs::write(&page, with_section(&old, SECTION, &text)).map_err(fail)?;
        println!("\nwritten: docs/reference/benchmarks.md");
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures two processes under a layer, each on a CPU of its own.
fn measure(paths: &Paths, layer: &str, question: &Question) -> crate::Result<f64> {
    let scratch = Scratch::new()?;
    let fabric = scratch.folder("fabric", 0o700)?;
    let folder = scratch.folder("layer", 0o700)?;
    let over = LaunchSettings::new(&paths.stage(), &paths.target).fabric(&fabric);
    let side = |cpu: &str| {
        let job = over.job("taskset").args(["-c", cpu, question.program, "-F"]);
        let job = job.args(question.args);
        if layer == NONE {
            return job;
        }
        let job = job.env("FERROVERBS_LAYERS", layer);
        let setting = format!("dir={}", folder.display());
        match layer {
            "validate" => job,
            _ => job.env(format!("FERROVERBS_{}", layer.to_uppercase()), setting),
        }
    };
    let [server, client] = CPUS.map(side);
    let pair = || Pair::between(server.clone(), client.clone(), LIMIT)?.run(&scratch);
    perftest::measure(pair, 8, question.number)
}

/// Of the last minute (proc_loadavg(5)).
fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

fn report(names: &[&str], values: Vec<Vec<Vec<f64>>>, rounds: usize, load: Sample) -> String {
    let mut table = Table::new(&[
        ("layer", Align::Left),
        ("what", Align::Left),
        ("median", Align::Right),
        ("spread", Align::Right),
        ("best to best of none", Align::Right),
        ("to none of the round", Align::Right),
        ("goal", Align::Right),
    ]);
    for (index, (question, values)) in QUESTIONS.iter().zip(values).enumerate() {
        let unit = question.unit;
        let Some(none) = values.first().cloned() else { continue };
        let best = |sample: Sample| if unit.less_is_better() { sample.least } else { sample.most };
        let best_of_none = best(Sample::of(none.clone()));
        for (name, values) in names.iter().zip(values) {
            // The slowdown. Machines have phases at half speed, so a round is short.
            let of_rounds = values.iter().zip(&none).map(|(value, none)| unit.ratio(*none, *value));
            let times_as_long = Sample::of(of_rounds.collect()).median;
            let sample = Sample::of(values);
            let goal = GOALS.iter().find(|(of, layer, _)| (of, layer) == (&index, name));
            table.row([
                (*name).to_owned(),
                question.what.to_owned(),
                format!("{} {}", digits(sample.median), question.name),
                format!("{}..{}", digits(sample.least), digits(sample.most)),
                format!("{:.2}", unit.ratio(best_of_none, best(sample))),
                format!("{times_as_long:.2}"),
                goal.map_or_else(String::new, |(_, _, most)| {
                    let met = if times_as_long <= *most { "met" } else { "missed" };
                    format!("at most {most:.2}: {met}")
                }),
            ]);
        }
    }
    format!(
        "What each layer costs, in turns with none, {rounds} rounds (`cargo xtask bench layers`); how many times as long a message takes (latencies are means of a run). \
         The machine's load was {:.1} to {:.1} meanwhile, of which two are the programs themselves: on a busy machine the best of the rounds say more than medians.\n\n```\n{}```\n",
        load.least,
        load.most,
        table.render()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_how_many_times_as_long_it_takes() {
        let values =
            vec![vec![vec![0.2, 0.3], vec![0.3, 0.45]], vec![vec![10.0, 8.0], vec![5.0, 4.0]]];
        let text = report(&["none", "trace"], values, 2, Sample::of(vec![2.0]));
        assert_eq!(text.matches("1.50").count(), 2, "{text}");
        assert_eq!(text.matches("2.00").count(), 2, "{text}");
        assert_eq!(text.matches("at most 1.30: missed").count(), 1, "{text}");
    }

    #[test]
    fn what_is_within_its_goal_has_met_it() {
        let values = vec![vec![vec![0.2], vec![0.25]], vec![vec![10.0], vec![5.0]]];
        let text = report(&["none", "validate"], values, 1, Sample::of(vec![2.0]));
        assert_eq!(text.matches(": met").count(), 1, "{text}");
        assert_eq!(text.matches("at most 2.00").count(), 1, "{text}");
    }
}
