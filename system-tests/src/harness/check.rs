//! A check: a name, a tier, a load, a limit, and a function.

use super::{LIMIT, Tally};
use crate::bench::Bench;
use std::time::Duration;

/// How often a check runs. The option `--all` of `cargo xtask test` adds the later tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// The basic check of a documented guarantee; it runs on every change.
    Short,
    /// Repetition, sweeps over sizes, all data paths; it runs with `--all`.
    Full,
    /// Interoperation with other RoCE stacks, kernel RDMA devices, long-running load; it runs with
    /// `--all=long`.
    Long,
}

impl Tier {
    /// The name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Full => "full",
            Self::Long => "long",
        }
    }
}

/// The processors that a check needs while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Waits for timers, files or a few packets: any number of such checks run together.
    Waits,
    /// One processor.
    One,
    /// Two processes that poll: a pair of processors.
    Pair,
    /// No further check may run, because this check counts events of the machine or changes shared
    /// state.
    Alone,
}

/// The body of a check. Results go into the tally; an error means that the check could not run.
pub(crate) type Run = Box<dyn FnOnce(&Bench, &mut Tally) -> crate::Result<()> + Send>;

/// A registered check; the runner's `--list` prints its name.
pub(crate) struct Check {
    /// `group::name`.
    pub(crate) name: String,
    pub(crate) group: &'static str,
    pub(crate) tier: Tier,
    pub(crate) load: Load,
    /// The check fails after this time.
    pub(crate) limit: Duration,
    pub(crate) run: Run,
}

/// The checks that a group registers.
pub(crate) struct Checks {
    group: &'static str,
    tier: Tier,
    load: Load,
    list: Vec<Check>,
}

impl Checks {
    /// An empty list. By default a check is of the short tier and takes two processors.
    pub(crate) fn new(group: &'static str) -> Self {
        Self { group, tier: Tier::Short, load: Load::Pair, list: Vec::new() }
    }

    /// The tier of the checks that follow.
    pub(crate) fn tier(&mut self, tier: Tier) -> &mut Self {
        self.tier = tier;
        self
    }

    /// The load of the checks that follow.
    pub(crate) fn load(&mut self, load: Load) -> &mut Self {
        self.load = load;
        self
    }

    /// Adds a check that may have any number of results.
    pub(crate) fn many(
        &mut self,
        name: impl AsRef<str>,
        run: impl FnOnce(&Bench, &mut Tally) -> crate::Result<()> + Send + 'static,
    ) -> &mut Self {
        self.list.push(Check {
            name: format!("{}::{}", self.group, name.as_ref()),
            group: self.group,
            tier: self.tier,
            load: self.load,
            limit: LIMIT,
            run: Box::new(run),
        });
        self
    }

    /// Adds a check with one result.
    pub(crate) fn one(
        &mut self,
        name: impl AsRef<str>,
        run: impl FnOnce(&Bench) -> Result<(), String> + Send + 'static,
    ) -> &mut Self {
        let short = name.as_ref().to_owned();
        self.many(name, move |bench, tally| {
            tally.record(&short, run(bench));
            Ok(())
        })
    }

    /// Gives the check that was added last another limit.
    pub(crate) fn limit(&mut self, limit: Duration) -> &mut Self {
        if let Some(check) = self.list.last_mut() {
            check.limit = limit;
        }
        self
    }

    /// What was added.
    pub(crate) fn into_list(self) -> Vec<Check> {
        self.list
    }
}
