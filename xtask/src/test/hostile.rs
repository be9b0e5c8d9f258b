//! A hostile member of the fabric beside programs that should not mind, for some seconds on each data path. `cargo xtask soak --hostile` does
//! the same for as long as wanted.

use super::{Bench, ENOUGH, Tally};
use crate::hostile::{Attack, Camp, Reach, Victim};
use crate::over::DataPath;
use crate::process::User;
use ferroverbs_c_tests::PROGRAMS;

/// What each attack is given.
const SECONDS: u64 = 5;

/// C programs that run beside an attacker which keeps to its own words, on one data path each.
const BYSTANDERS: &[(&str, &str)] = &[
    ("data", "two"),
    ("atomics", "two"),
    ("mr", "two"),
    ("mw", "two"),
    ("srq", "two"),
    ("xrc", "three"),
    ("ud", "two"),
    ("multicast", ""),
    ("reconnect", ""),
    ("tm_random", "thousands two"),
];

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    bench.step("hostile: building the attacker");
    let camp = Camp::new(&bench.paths, bench.prefix()?, &bench.scratch)?;
    // Another one each time: what fails names it.
    let mut seed = u64::from(std::process::id());
    let storm = program("storm")?;
    let stranger = bench.user.map(|user| User { uid: user.uid - 1, ..user });
    let mut attacks = Vec::new();
    let drawn = format!("{seed} {SECONDS}");
    for path in DataPath::ALL {
        attacks.push((Victim::Besieged, Reach::Own, path, None));
        attacks.push((Victim::Besieged, Reach::All, path, None));
        attacks.push((Victim::Program(storm, &drawn), Reach::Own, path, None));
    }
    for (&(name, args), path) in BYSTANDERS.iter().zip(DataPath::ALL.iter().cycle()) {
        attacks.push((Victim::Program(program(name)?, args), Reach::Own, *path, None));
    }
    if stranger.is_some() {
        attacks.push((Victim::Besieged, Reach::Own, DataPath::Default, stranger));
        attacks.push((Victim::Besieged, Reach::All, DataPath::Default, stranger));
    } else {
        tally.skip("attacks by another user of the group", "only root can be several users");
    }
    for (victim, reach, path, stranger) in attacks {
        let users = (bench.user, stranger);
        let attack = Attack { victim, reach, path, seed, users, seconds: SECONDS };
        seed += 1;
        if tally.failures.len() >= ENOUGH {
            tally.skip(&attack.name(), "too many failures before it");
            continue;
        }
        bench.step(&format!("hostile: {}", attack.name()));
        let stood = camp.run(&attack);
        if stood.as_ref().is_ok_and(|stood| stood.hung) {
            let told = format!("{}: the attacker hung, and was killed", attack.name());
            bench.progress.note(&told);
        }
        tally.record(&attack.name(), stood.map(drop));
    }
    Ok(())
}

fn program(name: &str) -> crate::Result<&'static ferroverbs_c_tests::Program> {
    let found = PROGRAMS.iter().find(|p| p.name == name);
    found.ok_or_else(|| format!("{name} is not in the list of C programs"))
}
