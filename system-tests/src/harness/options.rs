//! The command line: options of the harness, and options of `cargo test`.

use super::{Check, Tier};
use libtest_mimic::Arguments;
use std::path::PathBuf;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    /// Print the table of groups, and run nothing.
    pub(super) groups: bool,
    /// Where JUnit XML is written.
    pub(super) junit: Option<PathBuf>,
    /// Run programs under the layer `validate`.
    pub(super) under: bool,
    /// How many checks may be under way.
    pub(super) threads: Option<usize>,
    /// What `cargo test` knows.
    pub(super) harness: Arguments,
    tier: Tier,
    only: Vec<String>,
}

impl Options {
    /// Parses the words behind the program's name.
    ///
    /// # Errors
    /// An invalid value of a harness option. Errors in options of `cargo test` end the program.
    pub(super) fn parse(words: Vec<String>) -> crate::Result<Self> {
        let mut options = Self {
            groups: false,
            junit: None,
            under: false,
            threads: None,
            harness: Arguments::default(),
            tier: Tier::Short,
            only: Vec::new(),
        };
        let mut rest = vec!["system-tests".to_owned()];
        for word in words {
            if let Some(tier) = word.strip_prefix("--tier=") {
                let all = [Tier::Short, Tier::Full, Tier::Long];
                let found = all.into_iter().find(|known| known.name() == tier);
                options.tier =
                    found.ok_or_else(|| format!("--tier={tier}: short, full or long"))?;
            } else if let Some(file) = word.strip_prefix("--junit=") {
                options.junit = Some(file.into());
            } else if let Some(layer) = word.strip_prefix("--under=") {
                if layer != "validate" {
                    return Err(format!("--under={layer}: there is validate"));
                }
                options.under = true;
            } else if let Some(name) = word.strip_prefix("--only=") {
                options.only.push(name.to_owned());
            } else if word == "--groups" {
                options.groups = true;
            } else {
                rest.push(word);
            }
        }
        options.harness = Arguments::from_iter(rest);
        options.threads = options.harness.test_threads;
        Ok(options)
    }

    /// Whether a check belongs to what is named; everything does where nothing is.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| begins(name, only))
    }

    /// A word that no check's name begins with.
    pub(super) fn unmatched(&self, checks: &[Check]) -> Option<&str> {
        let found = |only: &&String| !checks.iter().any(|check| begins(&check.name, only));
        self.only.iter().find(found).map(String::as_str)
    }

    /// Whether a check runs without `--include-ignored`: checks of the tier, and named checks.
    pub(super) fn selects(&self, check: &Check) -> bool {
        check.tier <= self.tier || self.only.iter().any(|only| begins(&check.name, only))
    }

    /// Whether any check is likely to run programs over the staged tree.
    pub(super) fn needs_stage(&self) -> bool {
        const SOURCES: &[&str] = &["fmt", "licences", "clippy", "doc", "unit", "loom", "matrix"];
        self.only.is_empty() || !self.only.iter().all(|only| SOURCES.contains(&only.as_str()))
    }
}

/// Whether `name` is of the group `only`, or begins with it.
fn begins(name: &str, only: &str) -> bool {
    match name.strip_prefix(only) {
        Some(rest) => only.contains("::") || rest.starts_with("::"),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Checks;

    fn parse(line: &str) -> Options {
        Options::parse(line.split_whitespace().map(str::to_owned).collect()).unwrap()
    }

    #[test]
    fn a_group_is_named_whole_and_a_check_by_its_beginning() {
        let options = parse("--only=c --only=hosts::loss");
        assert!(options.wants("c::qp/data one (default)"));
        assert!(!options.wants("capture::wire"));
        assert!(options.wants("hosts::losses"));
        assert!(!options.wants("hosts::marks"));
        assert!(parse("").wants("anything::at all"));
    }

    #[test]
    fn what_is_named_runs_whatever_its_tier() {
        let mut list = Checks::new("rxe");
        list.tier(Tier::Long).one("all", |_| Ok(()));
        let checks = list.into_list();
        assert!(!parse("").selects(&checks[0]));
        assert!(!parse("--tier=full").selects(&checks[0]));
        assert!(parse("--tier=long").selects(&checks[0]));
        assert!(parse("--only=rxe").selects(&checks[0]));
        assert_eq!(parse("--only=rx").unmatched(&checks), Some("rx"));
    }

    #[test]
    fn values_that_an_option_does_not_have_are_refused() {
        for word in ["--tier=shrt", "--under=trace"] {
            assert!(Options::parse(vec![word.into()]).is_err(), "{word}");
        }
    }
}
