//! Ownership of a host's port. The processes of one fabric share the port, for all users of the
//! fabric. Processes of another fabric get a message with the owner's id, and disturb no pair.

use super::super::isolation::{PairSetup, both_end_well};
use super::failures::{BESIDE, Bystanders};
use crate::{Bench, NOBODY, Tally};
use xtask::namespaces::Namespaces;
use xtask::process::{Job, User};
use xtask::scratch;

/// What comes, works, and ends.
const GUEST: (&str, &[&str]) = ("ib_send_bw", &["-n", "200", "-s", "65536"]);

/// The message for the second fabric.
const LINE: &str = "UDP port 4791 is had by process ";

/// Members of a group: Debian's `nobody`, and its `daemon` with the group of `nobody`
/// (/usr/share/base-passwd/passwd.master).
const MEMBERS: [User; 2] = [NOBODY, User { uid: 1, gid: NOBODY.gid }];

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) {
    bench.step("hosts: a second fabric of a host");
    tally.record("the second fabric of a host is told who has the port", second(bench, hosts));
    bench.step("hosts: two users of a group");
    tally.record("two users of a group share the port, and inherit it", group(bench, hosts));
}

/// Two fabrics.
fn second(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let first = PairSetup::wired(bench, hosts, "")?;
    let (program, args) = BESIDE;
    let mut beside = Bystanders::new(first.start(bench, program, args)?);
    beside.go_on(bench)?;
    let other = PairSetup::wired(bench, hosts, "")?;
    let (program, args) = GUEST;
    other.fail(bench, program, args, LINE)?;
    beside.go_on(bench)?;
    beside.end();
    // Nobody has it any more.
    other.together(bench, program, args)
}

/// Users of one group: the second process gets packets that the first one forwards, until the first
/// one ends.
fn group(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    for side in 0..2 {
        let folder = place.folder(side);
        std::os::unix::fs::chown(folder, None, Some(NOBODY.gid))
            .map_err(|e| format!("{}: {e}", folder.display()))?;
        scratch::set_mode(folder, 0o770)?;
    }
    let group = NOBODY.gid.to_string();
    let tell = |job: Job| job.env("FERROVERBS_FABRIC_GROUP", &group);
    let as_user = |user: User, (program, args): (&'static str, &'static [&'static str])| {
        let ids = [format!("--reuid={}", user.uid), format!("--regid={}", user.gid)];
        let words = ids.into_iter().chain(["--clear-groups".into(), program.into()]);
        words.chain(args.iter().map(ToString::to_string)).collect::<Vec<_>>()
    };
    let start = |user, what| {
        let words = as_user(user, what);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        place.start_with(bench, "setpriv", &words, tell)
    };
    let [one, other] = MEMBERS;
    let mut first = Bystanders::new(start(one, BESIDE)?);
    first.go_on(bench)?;
    let mut guests = Bystanders::new(start(other, BESIDE)?);
    guests.go_on(bench)?;
    first.go_on(bench)?;
    first.end();
    // The port is theirs now.
    guests.go_on(bench)?;
    let late = start(one, GUEST)?;
    both_end_well(late)?;
    guests.go_on(bench)?;
    guests.end();
    Ok(())
}
