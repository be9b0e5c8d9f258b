//! A hostile member of the fabric beside unrelated programs, for some seconds on each data path.
//! `cargo xtask soak --hostile` runs the same for any time.

use crate::{Bench, Checks, ENOUGH, Tally, Tier};
use ferroverbs_c_tests::Program;
use xtask::hostile::{Attack, AttackReach, HostileRun, Victim};
use xtask::launch::DataPath;
use xtask::process::User;

/// What each attack is given.
const SECONDS: u64 = 5;

/// C programs beside an attacker that writes only its own segments, on one data path each.
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

/// What the short tier gives each attack.
const SHORT: u64 = 2;

pub(super) fn register(checks: &mut Checks) {
    // The attacker is built by the first of them.
    checks.many("a program beside each attacker", |bench, tally| {
        run(bench, tally, SHORT, |victim, reach, path, other_user| {
            let attacked_pair = matches!(victim, Victim::AttackedPair);
            attacked_pair
                && (path == DataPath::Default
                    || (path == DataPath::Off && reach == AttackReach::All))
                && (!other_user || reach == AttackReach::All)
        })
    });
    checks
        .tier(Tier::Full)
        .many("all attacks", |bench, tally| run(bench, tally, SECONDS, |_, _, _, _| true));
}

/// Runs the attacks that `wanted` takes, `seconds` each.
fn run(
    bench: &Bench,
    tally: &mut Tally,
    seconds: u64,
    wanted: impl Fn(&Victim<'_>, AttackReach, DataPath, bool) -> bool,
) -> crate::Result<()> {
    bench.step("hostile: building the attacker");
    let camp = HostileRun::new(&bench.paths, bench.prefix()?, &bench.scratch)?;
    // Another one each time: what fails names it.
    let mut seed = u64::from(std::process::id());
    let random_all = Program::named("random_all")?;
    let other_user = bench.user.map(|user| User { uid: user.uid - 1, ..user });
    let mut attacks = Vec::new();
    let drawn = format!("{seed} {seconds}");
    for path in DataPath::ALL {
        attacks.push((Victim::AttackedPair, AttackReach::Own, path, None));
        attacks.push((Victim::AttackedPair, AttackReach::All, path, None));
        attacks.push((Victim::Program(random_all, &drawn), AttackReach::Own, path, None));
    }
    for (&(name, args), path) in BYSTANDERS.iter().zip(DataPath::ALL.iter().cycle()) {
        attacks.push((Victim::Program(Program::named(name)?, args), AttackReach::Own, *path, None));
    }
    if other_user.is_some() {
        attacks.push((Victim::AttackedPair, AttackReach::Own, DataPath::Default, other_user));
        attacks.push((Victim::AttackedPair, AttackReach::All, DataPath::Default, other_user));
    } else {
        tally.skip("attacks by another user of the group", "only root can be several users");
    }
    for (victim, reach, path, other_user) in attacks {
        if !wanted(&victim, reach, path, other_user.is_some()) {
            continue;
        }
        let users = (bench.user, other_user);
        let attack = Attack { victim, reach, path, seed, users, seconds };
        seed += 1;
        if tally.failures().len() >= ENOUGH {
            tally.skip(&attack.name(), "too many failures before it");
            continue;
        }
        bench.step(&format!("hostile: {}", attack.name()));
        let stood = camp.run(&attack);
        if stood.as_ref().is_ok_and(|stood| stood.hung) {
            let reported = format!("{}: the attacker hung, and was killed", attack.name());
            bench.progress.note(&reported);
        }
        tally.record(&attack.name(), stood.map(drop));
    }
    Ok(())
}
