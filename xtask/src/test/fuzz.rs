//! Each fuzz target for a while, from the corpus that is kept. `cargo xtask fuzz` does so for as long as wanted.

use super::{Bench, Tally};
use crate::fuzz::{Fuzz, seconds_from_env};

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let seconds = seconds_from_env()?;
    bench.step("fuzz: building the targets");
    let fuzz = match Fuzz::build(&bench.paths, &bench.scratch) {
        Ok(fuzz) => fuzz,
        Err(why) => {
            tally.failures.push(why);
            return Ok(());
        }
    };
    let targets = fuzz.targets()?;
    bench.step(&format!("fuzz: {} targets, {seconds} s each", targets.len()));
    for outcome in fuzz.run(&targets, seconds, &bench.progress)? {
        tally.record(&outcome.target, outcome.result.map(drop));
    }
    Ok(())
}
