//! `cargo xtask bench against DIR`: this build beside another build, staged in DIR, in turns.
//!
//! Each round measures every metric with both builds, in alternating order. A metric got worse or
//! better if the range of its values with one build does not overlap the range with the other
//! build; a smaller difference is noise.

use super::instructions;
use super::metrics::{METRICS, Metric, Unit};
use super::report::{Sample, digits, size};
use super::run::Runner;
use std::path::Path;
use std::process::ExitCode;
use xtask::launch::LaunchSettings;
use xtask::paths::Paths;
use xtask::progress::Progress;
use xtask::scratch::Scratch;
use xtask::table::{Align, Table};

/// The two builds.
const BEFORE: usize = 0;
const NOW: usize = 1;

/// The comparison of two samples of one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Worse,
    Same,
    Better,
}

impl Comparison {
    /// By whether the ranges of the two overlap.
    fn between(before: Sample, now: Sample, unit: Unit) -> Self {
        let (more, less) = (now.least > before.most, now.most < before.least);
        match (more, less, unit.less_is_better()) {
            (true, _, true) | (_, true, false) => Self::Worse,
            (_, true, true) | (true, _, false) => Self::Better,
            _ => Self::Same,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Worse => "WORSE",
            Self::Same => "within noise",
            Self::Better => "better",
        }
    }
}

/// Measures and prints; fails where a metric got worse.
pub(super) fn main(
    paths: &Paths,
    now: Runner,
    other: &Path,
    rounds: usize,
    progress: &Progress,
) -> crate::Result<ExitCode> {
    let other = match other.canonicalize() {
        Ok(path) if path.join("lib/libibverbs.so.1").is_file() => path,
        _ => {
            return Err(format!(
                "{} is no staged tree: `cargo xtask stage` in a clone at another commit lays one under target/stage",
                other.display()
            ));
        }
    };
    let fabric = Scratch::new()?;
    let folder = fabric.folder("fabric", 0o700)?;
    let over = LaunchSettings::new(&other, &paths.target).fabric(&folder);
    let before = Runner::new(over, &paths.root.join("c-tests/bench"))?;
    let runners = [before, now];

    let mut values: Vec<[Vec<f64>; 2]> = METRICS.iter().map(|_| Default::default()).collect();
    let mut failures = 0;
    for round in 1..=rounds {
        for (metric, values) in METRICS.iter().zip(&mut values) {
            progress.step(&format!("round {round} of {rounds}: {}", metric.what));
            let order = if round % 2 == 0 { [BEFORE, NOW] } else { [NOW, BEFORE] };
            for which in order {
                match runners[which].measure(metric.ours, metric.bytes, metric.unit) {
                    Ok(value) => values[which].push(value),
                    Err(error) => {
                        failures += 1;
                        progress.note(&format!("{}: {error}", metric.what));
                    }
                }
            }
        }
    }
    progress.step("instruction counts");
    let counts =
        [instructions::count(&runners[BEFORE], paths)?, instructions::count(&runners[NOW], paths)?];
    progress.clear();

    let (table, worse) = table(&values);
    print!("{table}");
    let mut table = Table::new(&[
        ("instructions of one", Align::Left),
        ("before", Align::Right),
        ("now", Align::Right),
    ]);
    for (before, now) in counts[BEFORE].iter().zip(&counts[NOW]) {
        let [what, before, ..] = before.cells();
        let [_, now, ..] = now.cells();
        table.row([what, before, now]);
    }
    println!("\n{}", table.render());
    if worse > 0 || failures > 0 {
        eprintln!(
            "xtask: {worse} metrics worse beyond their noise, {failures} measurements failed"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The table of metrics, and how many of them got worse.
fn table(values: &[[Vec<f64>; 2]]) -> (String, usize) {
    let mut table = Table::new(&[
        ("what", Align::Left),
        ("bytes", Align::Right),
        ("before", Align::Right),
        ("spread", Align::Right),
        ("now", Align::Right),
        ("spread", Align::Right),
        ("ratio", Align::Right),
        ("", Align::Left),
    ]);
    let mut worse = 0;
    for (Metric { what, bytes, unit, .. }, values) in METRICS.iter().zip(values) {
        if values.iter().any(Vec::is_empty) {
            continue;
        }
        let [before, now] = values.clone().map(Sample::of);
        let change = Comparison::between(before, now, *unit);
        worse += usize::from(change == Comparison::Worse);
        let spread = |s: Sample| format!("{}..{}", digits(s.least), digits(s.most));
        table.row([
            (*what).to_owned(),
            size(*bytes),
            format!("{} {}", digits(before.median), unit.name()),
            spread(before),
            format!("{} {}", digits(now.median), unit.name()),
            spread(now),
            format!("{:.2}", unit.ratio(now.median, before.median)),
            change.name().to_owned(),
        ]);
    }
    (table.render(), worse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_noise() {
        let sample = |values: &[f64]| Sample::of(values.to_vec());
        let (low, high, both) = (sample(&[1.0, 1.2]), sample(&[1.3, 1.5]), sample(&[1.1, 1.4]));
        assert_eq!(Comparison::between(low, high, Unit::Us), Comparison::Worse);
        assert_eq!(Comparison::between(low, high, Unit::GBs), Comparison::Better);
        assert_eq!(Comparison::between(high, low, Unit::Us), Comparison::Better);
        assert_eq!(Comparison::between(high, low, Unit::Millions), Comparison::Worse);
        assert_eq!(Comparison::between(low, both, Unit::Us), Comparison::Same);
    }

    #[test]
    fn a_metric_that_got_worse_is_counted_and_named() {
        let mut values: Vec<[Vec<f64>; 2]> =
            METRICS.iter().map(|_| [vec![1.0], vec![1.0]]).collect();
        values[0] = [vec![0.2, 0.21], vec![0.3, 0.31]];
        let (text, worse) = table(&values);
        assert_eq!(worse, 1);
        assert_eq!(text.matches("WORSE").count(), 1);
    }
}
