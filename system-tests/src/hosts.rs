//! Unmodified programs of two hosts, over RoCE v2: two network namespaces with a cable between
//! them, and processes that share nothing else.

mod cables;
mod cluster;
mod documented;
mod ecn;
mod failures;
mod forged_packets;
mod ip_identification;
mod link_local;
mod losses;
mod offloads;
mod permitted_peers;
mod port_ownership;
mod steering;
mod stopped;
mod unsteered;

use super::isolation::PairSetup;
use crate::{Bench, Checks, Tally, Tier};
use std::time::Duration;
use xtask::namespaces::Namespaces;
use xtask::process::Job;

/// Packet size of each cable, and whether only programs marked for every cable run over it.
const CABLES: &[(u32, bool)] = &[(1500, true), (9000, false)];

/// Programs, and whether they run over every cable. The last argument of the client is the server's
/// address.
const PROGRAMS: &[(&str, &[&str], bool)] = &[
    ("ibv_rc_pingpong", &["-g", "1", "-n", "500"], true),
    ("ibv_rc_pingpong", &["-g", "1", "-n", "500", "-e"], false),
    ("ibv_uc_pingpong", &["-g", "1", "-n", "200"], false),
    ("ibv_ud_pingpong", &["-g", "1", "-n", "200", "-s", "512"], false),
    ("ibv_srq_pingpong", &["-g", "1", "-n", "200"], false),
    // IPv6.
    ("ibv_rc_pingpong", &["-g", "2", "-n", "200"], false),
    ("ibv_ud_pingpong", &["-g", "2", "-n", "200", "-s", "512"], false),
    ("ib_send_lat", &["-n", "200", "-s", "8"], false),
    ("ib_send_lat", &["-n", "200", "-c", "UD"], false),
    ("ib_write_lat", &["-n", "200", "-s", "8"], false),
    ("ib_send_bw", &["-n", "100", "-s", "65536"], false),
    ("ib_send_bw", &["-n", "100", "-s", "65536", "-b", "-e"], false),
    ("ib_send_bw", &["-n", "100", "-s", "65536", "--use-srq", "-q", "4"], true),
    ("ib_send_bw", &["-n", "1024", "-s", "512", "-c", "UD", "--post_list", "16"], false),
    ("ib_write_bw", &["-n", "50", "-s", "1048576"], true),
    ("ib_read_bw", &["-n", "50", "-s", "1048576"], true),
    ("ib_atomic_lat", &["-n", "200"], true),
    ("ib_atomic_lat", &["-n", "200", "-A", "CMP_AND_SWAP"], false),
    ("ib_atomic_bw", &["-n", "200"], false),
    ("ib_atomic_bw", &["-n", "200", "-A", "CMP_AND_SWAP"], false),
    ("ib_read_lat", &["-n", "200", "-s", "8"], false),
    // More QPs than lazily allocated resources, with more packets in flight than a socket buffer
    // holds. The timeout is four seconds.
    (
        "ib_send_bw",
        &["-n", "20", "-s", "4096", "-q", "1000", "-t", "4", "-r", "8", "-u", "20"],
        false,
    ),
    // What is lost is lost: no more than a socket has room for.
    ("ib_send_bw", &["-n", "100", "-s", "2048", "-c", "UC"], false),
    ("ib_send_lat", &["-n", "200", "-s", "64", "-c", "UC"], false),
    ("ib_write_bw", &["-n", "100", "-s", "65536", "-c", "UC"], false),
    ("ib_write_lat", &["-n", "200", "-s", "64", "-c", "UC"], false),
    // The shortest, and eight thousand packets.
    ("ib_send_bw", &["-n", "200", "-s", "1"], false),
    ("ib_write_bw", &["-n", "200", "-s", "1"], false),
    ("ib_read_bw", &["-n", "200", "-s", "1"], false),
    ("ib_send_bw", &["-n", "8", "-s", "8388608"], false),
    ("ib_write_bw", &["-n", "8", "-s", "8388608"], false),
    ("ib_read_bw", &["-n", "8", "-s", "8388608"], false),
];

/// More messages at once than there are receives for.
const UNRECEIVED: (&str, &[&str]) =
    ("ib_send_bw", &["-D", "2", "-s", "4096", "-r", "1", "-t", "8"]);

/// Pairs that share the port.
const PAIRS_AT_ONCE: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &["-g", "1", "-n", "2000"]),
    ("ibv_rc_pingpong", &["-g", "1", "-n", "2000", "-e"]),
    ("ib_read_bw", &["-n", "50", "-s", "65536"]),
    ("ib_write_bw", &["-n", "50", "-s", "1048576"]),
];

/// Programs of ours, whose two processes are of both hosts.
const OWN: &[(&str, &[&str])] = &[
    ("random_ops", &["two"]),
    ("builders_xrc", &[]),
    ("srq", &["two"]),
    ("tm", &["eager", "two"]),
    ("tm", &["rendezvous", "two"]),
    ("tm", &["unexpected", "two"]),
    ("tm", &["sync", "two"]),
    ("tm", &["events", "two"]),
    ("tm", &["errors", "two"]),
    ("tm_random", &["races", "two"]),
    ("tm_random", &["threads", "two"]),
    ("tm_random", &["history", "two"]),
];

/// More of them, to which the length of packets is nothing.
const MORE: &[(&str, &[&str])] = &[
    ("atomics", &["two"]),
    ("flags", &["two"]),
    ("newer", &["two"]),
    ("dm", &["two"]),
    ("mr", &["two"]),
    ("runs", &["two"]),
    ("idle", &[]),
    ("xrc", &["three"]),
    ("data", &["two"]),
    ("builders", &["two"]),
    ("mw", &["two"]),
    ("mapped", &["two"]),
    ("lossy", &["two"]),
    ("tm_random", &["thousands", "two"]),
];

/// More of them, in which lengths are made for the largest packets.
const LONG_PACKETS: &[(&str, &[&str])] = &[
    ("import", &["two"]),
    ("cq_ex", &["two"]),
    ("cq_limits", &["two"]),
    ("qp_events", &["two"]),
    ("errors", &["two"]),
    ("faults", &["two"]),
    ("ports", &["two"]),
    ("refusals", &["two"]),
    ("ud", &["two"]),
    ("matrix", &["two"]),
];

/// Time limit of one program.
const LIMIT: Duration = Duration::from_secs(120);

/// The programs of the short tier, over packets of 1500 bytes.
const SHORT: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &["-g", "1", "-n", "200"]),
    ("ibv_rc_pingpong", &["-g", "2", "-n", "100", "-e"]),
    ("ibv_ud_pingpong", &["-g", "1", "-n", "100", "-s", "512"]),
    ("ib_send_bw", &["-n", "100", "-s", "65536", "--use-srq", "-q", "4"]),
    ("ib_write_bw", &["-n", "50", "-s", "1048576"]),
    ("ib_read_bw", &["-n", "50", "-s", "1048576"]),
    ("ib_atomic_lat", &["-n", "200"]),
    ("ib_write_bw", &["-n", "100", "-s", "65536", "-c", "UC"]),
];

/// Programs of ours in the short tier, over packets of 1500 bytes.
const OWN_SHORT: &[(&str, &[&str])] = &[
    ("data", &["two"]),
    ("atomics", &["two"]),
    ("random_ops", &["two"]),
    ("mw", &["two"]),
    ("srq", &["two"]),
    ("lossy", &["two"]),
    ("xrc", &["three"]),
    ("tm", &["eager", "two"]),
    ("matrix", &["two"]),
];

pub(super) fn register(checks: &mut Checks) {
    between(checks, "programs of others", |bench, tally, hosts| {
        hosts.set_cable(1500, "")?;
        for (program, args) in SHORT {
            let name = format!("{program} {}", args.join(" "));
            tally.record(&name, PairSetup::wired(bench, hosts, "")?.together(bench, program, args));
        }
        Ok(())
    });
    between(checks, "programs of ours", |bench, tally, hosts| {
        hosts.set_cable(1500, "")?;
        own_programs(bench, tally, hosts, 1500, OWN_SHORT)
    });
    between(checks, "errors, MTU 9000", |bench, tally, hosts| {
        hosts.set_cable(9000, "")?;
        own_programs(bench, tally, hosts, 9000, &[("errors", &["two"]), ("refusals", &["two"])])
    });
    between(checks, "losses of our own", |bench, tally, hosts| {
        let impairment = "loss=2% duplicate=1% reorder=5% seed=5";
        let place = PairSetup::wired(bench, hosts, impairment)?;
        let job = own(bench, &place, hosts, "random_ops", &["two"])?.env("TEST_BATCHES", "30");
        tally.record(impairment, checked(bench, &job.env("FERROVERBS_QUIET", "1")));
        Ok(())
    });
    between(checks, "ECN marks", |bench, tally, hosts| {
        ecn::run(bench, tally, hosts);
        Ok(())
    });
    between(checks, "forged packets", |bench, tally, hosts| {
        forged_packets::run(bench, tally, hosts);
        Ok(())
    });
    between(checks, "permitted peers", |bench, tally, hosts| {
        hosts.set_cable(1500, "")?;
        permitted_peers::run(bench, tally, hosts);
        Ok(())
    });
    between(checks, "unplugged cables and kills", failures::run);
    checks.tier(Tier::Full);
    for &(mtu, all) in CABLES {
        let name = format!("all programs of others, MTU {mtu}");
        between(checks, &name, move |bench, tally, hosts| others(bench, tally, hosts, mtu, all));
    }
    for (mtu, programs) in [(9000, [OWN, LONG_PACKETS]), (1500, [OWN, MORE])] {
        let name = format!("all programs of ours, MTU {mtu}");
        between(checks, &name, move |bench, tally, hosts| {
            hosts.set_cable(mtu, "")?;
            own_programs(bench, tally, hosts, mtu, &programs.concat())
        });
    }
    between(checks, "more messages than receives", |bench, tally, hosts| {
        let (program, args) = UNRECEIVED;
        tally.record(&format!("{program} {}", args.join(" ")), unreceived(bench, hosts));
        Ok(())
    });
    between(checks, "pyverbs", |bench, tally, hosts| {
        let place = PairSetup::wired(bench, hosts, "")?;
        tally.record("pyverbs of two hosts", pyverbs(bench, &place, hosts));
        Ok(())
    });
    between(checks, "random_all", random_all);
    between(checks, "losses", losses::run);
    between(checks, "offloads", offloads::run);
    between(checks, "IP identification", |bench, tally, hosts| {
        hosts.set_cable(1500, "")?;
        ip_identification::run(bench, tally, hosts);
        Ok(())
    });
    between(checks, "four pairs at once", |bench, tally, hosts| {
        hosts.set_cable(1500, "")?;
        let place = PairSetup::wired(bench, hosts, "")?;
        tally.record(
            "four pairs of the same two hosts at once",
            place.run_pairs(bench, PAIRS_AT_ONCE),
        );
        Ok(())
    });
    let sharing: [(&str, GroupPart); 4] = [
        ("steering", steering::run),
        ("misdirected packets", unsteered::run),
        ("stopped processes", stopped::run),
        ("a shared port", port_ownership::run),
    ];
    for (name, part) in sharing {
        between(checks, name, move |bench, tally, hosts| {
            hosts.set_cable(1500, "")?;
            part(bench, tally, hosts);
            Ok(())
        });
    }
    between(checks, "link-local addresses", link_local::run);
    checks.many("ferroverbs cluster", cluster::run);
}

type GroupPart = fn(&Bench, &mut Tally, &Namespaces);

/// A check with its own two hosts, which only root can make.
pub(super) fn between(
    checks: &mut Checks,
    name: &str,
    part: impl Fn(&Bench, &mut Tally, &Namespaces) -> crate::Result<()> + Send + 'static,
) {
    checks.many(name, move |bench, tally| match Namespaces::new() {
        Ok(hosts) => part(bench, tally, &hosts),
        Err(reason) => {
            tally.skip("two hosts", &reason);
            Ok(())
        }
    });
}

/// Foreign programs over a cable: all, or those that run over every cable.
fn others(
    bench: &Bench,
    tally: &mut Tally,
    hosts: &Namespaces,
    mtu: u32,
    all: bool,
) -> crate::Result<()> {
    hosts.set_cable(mtu, "")?;
    for (program, args, _) in PROGRAMS.iter().filter(|(_, _, always)| all || *always) {
        let name = format!("{program} {}, MTU {mtu}", args.join(" "));
        bench.step(&format!("hosts: {name}"));
        tally.record(&name, PairSetup::wired(bench, hosts, "")?.together(bench, program, args));
    }
    Ok(())
}

/// Programs of ours over a cable.
fn own_programs(
    bench: &Bench,
    tally: &mut Tally,
    hosts: &Namespaces,
    mtu: u32,
    programs: &[(&str, &[&str])],
) -> crate::Result<()> {
    for (program, args) in programs {
        let name = format!("{program} {}, MTU {mtu}", args.join(" "));
        bench.step(&format!("hosts: {name}"));
        let place = PairSetup::wired(bench, hosts, "")?;
        let job = own(bench, &place, hosts, program, args)?;
        tally.record(&name, checked(bench, &job));
    }
    Ok(())
}

/// Random traffic, and XRC, over packets that are lost, doubled and reordered.
fn random_all(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    hosts.set_cable(9000, "")?;
    for (impairment, seconds) in [("", "4"), ("loss=2% duplicate=1% reorder=5% seed=3", "4")] {
        let seed = std::process::id().to_string();
        let name = format!("random_all {seed} {seconds} {impairment}");
        bench.step(&format!("hosts: {name}"));
        let place = PairSetup::wired(bench, hosts, impairment)?;
        let job = own(bench, &place, hosts, "random_all", &[&seed, seconds])?;
        // The processes report the death of killed peers, as expected.
        tally.record(&name, checked(bench, &job.env("FERROVERBS_QUIET", "1")));
    }
    let impairment = "loss=2% duplicate=1% reorder=5% seed=5";
    let place = PairSetup::wired(bench, hosts, impairment)?;
    let job = own(bench, &place, hosts, "xrc", &["three"])?;
    let result = checked(bench, &job.env("FERROVERBS_QUIET", "1"));
    tally.record(&format!("xrc three {impairment}"), result);
    Ok(())
}

/// Messages for which nothing was posted come again, and in the end all have come.
fn unreceived(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let (program, args) = UNRECEIVED;
    let [server, mut client] = place.start(bench, program, args)?;
    let refused = failures::wait("a refusal", || {
        if client.ended() {
            return Err("it ended, and nothing was refused".into());
        }
        Ok(failures::counted(bench, &client, &["rcvd_rnr_err"])? > 0)
    });
    super::isolation::both_end_well([server, client]).and(refused)
}

/// A program of ours that judges itself, with a process on each host.
fn own(
    bench: &Bench,
    place: &PairSetup<'_>,
    hosts: &Namespaces,
    name: &str,
    args: &[&str],
) -> crate::Result<Job> {
    let program = ferroverbs_c_tests::PROGRAMS.iter().find(|program| program.name == name);
    let program = program.ok_or_else(|| format!("{name} is not in the list of C programs"))?;
    let file = bench.program(program)?;
    // None of ours confuses an lkey and an rkey, and some tell that they differ.
    let job =
        place.job(bench, 0, &file.to_string_lossy(), args)?.env("FERROVERBS_SOFT_KEYS", "distinct");
    Ok(of_both(job, place, hosts))
}

/// Places the job's second process on the second host.
fn of_both(job: Job, place: &PairSetup<'_>, hosts: &Namespaces) -> Job {
    let network = format!("/run/netns/{}", hosts.names[1]);
    job.env("TEST_HOST", network).env("TEST_HOST_FABRIC", place.folder(1))
}

/// A script over Debian's pyverbs.
fn pyverbs(bench: &Bench, place: &PairSetup<'_>, hosts: &Namespaces) -> Result<(), String> {
    let folder = super::pyverbs::scripts(bench)?;
    let script = folder.join("pair.py");
    let job = place.job(bench, 0, super::pyverbs::PYTHON, &[&script.to_string_lossy()])?;
    checked(bench, &of_both(job, place, hosts).env("PYTHONDONTWRITEBYTECODE", "1"))
}

/// It ends well.
fn checked(bench: &Bench, job: &Job) -> Result<(), String> {
    let done = job.run(&bench.scratch, LIMIT)?;
    if done.ok() { Ok(()) } else { super::c_programs::verdict(&done) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_program_of_two_processes_is_run() {
        let run = [OWN, MORE, LONG_PACKETS].into_iter().flatten();
        let listed: Vec<_> = run.map(|(name, _)| *name).collect();
        let of_two = ferroverbs_c_tests::PROGRAMS.iter().filter(|program| {
            program.runs.iter().any(|run| run.split(' ').any(|word| word == "two"))
        });
        let missing: BTreeSet<_> =
            of_two.map(|program| program.name).filter(|name| !listed.contains(name)).collect();
        assert_eq!(missing, BTreeSet::new());
    }
}
