//! Runs each fuzz target for a short time, from its corpus. `cargo xtask fuzz` runs targets for
//! longer.

use crate::{Bench, Checks, Tally, Tier};
use std::time::Duration;
use xtask::fuzz::{Fuzz, seconds_of_each};

pub(super) fn register(checks: &mut Checks) {
    // The corpora alone are a unit test of the crate `ferroverbs-fuzz`.
    checks.tier(Tier::Full).many("from the corpora", all).limit(Duration::from_secs(2400));
}

fn all(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    bench.step("fuzz: building the targets");
    let fuzz = match Fuzz::build(&bench.paths, &bench.scratch) {
        Ok(fuzz) => fuzz,
        Err(why) => {
            tally.fail(why);
            return Ok(());
        }
    };
    let targets = fuzz.targets()?;
    let seconds = seconds_of_each(targets.len())?;
    bench.step(&format!("fuzz: {} targets, {seconds} s each", targets.len()));
    for outcome in fuzz.run(&targets, seconds, &bench.progress)? {
        tally.record(&outcome.target, outcome.result.map(drop));
    }
    Ok(())
}
