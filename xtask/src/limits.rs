//! The limits of this machine, by `c-tests/bench/limits.c`, and the share of a limit that a
//! measurement reaches.
//!
//! Each limit is measured just before and just after the measurement that is compared with the
//! limit. If other programs use the processors meanwhile, the limits differ, or the measurement
//! exceeds the limit.

use std::collections::BTreeMap;

/// The largest difference between two measurements of a limit on an idle machine.
const STEADY: f64 = 1.25;
/// The largest share of a limit that noise alone explains.
const MOST_REACHED: f64 = 1.1;

/// A limit, measured before and after a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// The better of the two values: other programs can only make a limit worse.
    pub value: f64,
    /// False if the two values differ too much.
    pub is_steady: bool,
}

impl Limit {
    /// The limit by the values before and after a measurement; `None` if a value is missing.
    pub fn around(before: Option<f64>, after: Option<f64>, less_is_better: bool) -> Option<Self> {
        let (before, after) = (before?, after?);
        let (least, most) = (before.min(after), before.max(after));
        let value = if less_is_better { least } else { most };
        Some(Self { value, is_steady: most <= least * STEADY })
    }

    /// True if further programs disturbed the limits or the measurement, which reached `ratio` of
    /// the limit.
    pub fn is_disturbed(self, ratio: f64) -> bool {
        !self.is_steady || ratio > MOST_REACHED
    }

    /// The table cell: the share of the limit. A share above the limit is noise.
    pub fn show_reached(self, ratio: f64) -> String {
        match self.is_disturbed(ratio) {
            _ if ratio > MOST_REACHED => "busy".to_owned(),
            true => format!("{:.0} %, busy", 100.0 * ratio),
            false => format!("{:.0} %", 100.0 * ratio),
        }
    }
}

/// The limits in the output of the program: lines of a name and a number.
pub fn parse(text: &str) -> BTreeMap<String, f64> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// The sum of some limits; `None` if the list is empty, or a limit is missing.
pub fn sum(limits: &BTreeMap<String, f64>, names: &[&str]) -> Option<f64> {
    let values: Option<Vec<f64>> = names.iter().map(|name| limits.get(*name).copied()).collect();
    values.filter(|values| !values.is_empty()).map(|values| values.iter().sum())
}

/// The number of threads of other programs at this moment (proc(5), `/proc/loadavg`).
pub fn other_threads() -> u32 {
    running_threads(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default()).saturating_sub(1)
}

fn running_threads(text: &str) -> u32 {
    let field = text.split_whitespace().nth(3).and_then(|field| field.split_once('/'));
    field.and_then(|(running, _)| running.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_not_known_is_not_shown() {
        let limits = parse("hop 0.25\nattach_read_8 0.5\nnonsense\n");
        assert_eq!(sum(&limits, &["hop", "attach_read_8"]), Some(0.75));
        assert_eq!(sum(&limits, &["hop", "other"]), None);
        assert_eq!(sum(&limits, &[]), None);
        assert_eq!(Limit::around(Some(1.0), None, true), None);
    }

    #[test]
    fn the_better_value_is_the_limit() {
        let latency = Limit::around(Some(0.25), Some(0.26), true).expect("two values");
        assert_eq!(latency, Limit { value: 0.25, is_steady: true });
        let bandwidth = Limit::around(Some(8.0), Some(1.0), false).expect("two values");
        assert_eq!(bandwidth, Limit { value: 8.0, is_steady: false });
    }

    #[test]
    fn more_than_the_limit_is_a_busy_machine_and_no_figure() {
        let steady = Limit { value: 8.0, is_steady: true };
        assert_eq!(steady.show_reached(0.84), "84 %");
        assert_eq!(steady.show_reached(1.04), "104 %");
        assert_eq!(steady.show_reached(11.48), "busy");
        let unsteady = Limit { value: 8.0, is_steady: false };
        assert_eq!(unsteady.show_reached(0.5), "50 %, busy");
        assert_eq!(unsteady.show_reached(11.48), "busy");
        assert!(unsteady.is_disturbed(0.5) && !steady.is_disturbed(0.5));
    }

    #[test]
    fn threads_of_other_programs_are_those_besides_this_one() {
        assert_eq!(running_threads("5.28 5.16 3.36 4/512 28170\n"), 4);
        assert_eq!(running_threads(""), 0);
    }
}
