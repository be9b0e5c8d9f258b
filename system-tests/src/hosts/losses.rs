//! Lost, duplicated and reordered packets between two hosts: by netem where the kernel has it, and
//! by soft itself with the seed in the test's name. C programs with ends on both hosts verify the
//! data.

use super::super::isolation::PairSetup;
use crate::{Bench, Tally};
use xtask::namespaces::Namespaces;

/// What happens to packets: for netem and for soft, and how many batches of `random_ops` suffer it.
struct Cable {
    name: &'static str,
    mtu: u32,
    netem: &'static str,
    impairment: &'static str,
    batches: u32,
}

const CABLES: &[Cable] = &[
    Cable {
        name: "0.1 % lost",
        mtu: 1500,
        netem: "loss 0.1%",
        impairment: "loss=0.1%",
        batches: 100,
    },
    Cable { name: "1 % lost", mtu: 1500, netem: "loss 1%", impairment: "loss=1%", batches: 60 },
    Cable { name: "5 % lost", mtu: 1500, netem: "loss 5%", impairment: "loss=5%", batches: 30 },
    Cable { name: "20 % lost", mtu: 9000, netem: "loss 20%", impairment: "loss=20%", batches: 30 },
    Cable {
        name: "lost, doubled, reordered",
        mtu: 9000,
        netem: "delay 200us 100us loss 2% duplicate 1% reorder 5%",
        impairment: "loss=2% duplicate=1% reorder=5%",
        batches: 30,
    },
];

/// Programs with a timeout of four seconds: a program that waited for the timeout at every loss
/// would exceed the time limit. All meet by TCP before their end. `ibv_rc_pingpong` does not: if
/// its last acknowledgement is lost, the peer has ended before the retransmission.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("ib_send_lat", &["-n", "100", "-u", "20"]),
    ("ib_send_bw", &["-n", "20", "-s", "262144", "-u", "20"]),
    ("ib_write_bw", &["-n", "20", "-s", "262144", "-u", "20"]),
    ("ib_read_bw", &["-n", "20", "-s", "262144", "-u", "20"]),
    ("ib_atomic_lat", &["-n", "50", "-u", "20"]),
];

/// Checked C programs; all draw their work from a seed of their own or `TEST_SEED`.
const OWN: &[(&str, &[&str])] =
    &[("random_ops", &["two"]), ("srq", &["two"]), ("tm_random", &["history", "two"])];

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    let seed = u64::from(std::process::id());
    for cable in CABLES {
        let by_netem = hosts.set_cable(cable.mtu, cable.netem);
        if let Err(reason) = &by_netem {
            tally.skip(&format!("{} by netem", cable.name), reason);
        }
        over(bench, tally, hosts, cable, by_netem.is_ok().then_some(""), seed)?;
    }
    kinds(bench, tally, hosts, seed)?;
    hosts.set_cable(1500, "")
}

/// Unreliable transports and IPv6 (GID 2), with 5 % losses. `lossy` runs without duplicates and
/// reordering, because UC may accept an old packet as new.
fn kinds(bench: &Bench, tally: &mut Tally, hosts: &Namespaces, seed: u64) -> crate::Result<()> {
    let own = format!("loss=5% seed={seed}");
    let impairment = if hosts.set_cable(1500, "loss 5%").is_ok() { "" } else { &own };
    if !impairment.is_empty() {
        hosts.set_cable(1500, "")?;
    }
    let place = PairSetup::wired(bench, hosts, impairment)?;
    for (program, gid) in [("lossy", "1"), ("lossy", "2"), ("random_ops", "2")] {
        let name = format!("{program} by GID {gid}, 5 % lost, TEST_SEED={seed} ({impairment})");
        bench.step(&format!("hosts: {name}"));
        let job = super::own(bench, &place, hosts, program, &["two"])?
            .env("TEST_GID", gid)
            .env("TEST_LOSSES", "1")
            .env("TEST_BATCHES", "30")
            .env("TEST_SEED", seed.to_string());
        tally.record(&name, super::checked(bench, &job));
    }
    Ok(())
}

/// Runs the programs over one cable. `impairment`: `Some("")` if netem impairs the packets, `None`
/// if soft does so itself.
fn over(
    bench: &Bench,
    tally: &mut Tally,
    hosts: &Namespaces,
    cable: &Cable,
    impairment: Option<&str>,
    seed: u64,
) -> crate::Result<()> {
    let own = format!("{} seed={seed}", cable.impairment);
    let impairment = impairment.unwrap_or(&own);
    if !impairment.is_empty() {
        hosts.set_cable(cable.mtu, "")?;
    }
    let place = PairSetup::wired(bench, hosts, impairment)?;
    for (program, args) in PROGRAMS {
        let name = format!("{program} {}, {} ({impairment})", args.join(" "), cable.name);
        bench.step(&format!("hosts: {name}"));
        tally.record(&name, place.together(bench, program, args));
    }
    for (program, args) in OWN {
        let name = format!("{program}, {}, TEST_SEED={seed} ({impairment})", cable.name);
        bench.step(&format!("hosts: {name}"));
        let job = super::own(bench, &place, hosts, program, args)?
            .env("TEST_BATCHES", cable.batches.to_string())
            .env("TEST_SEED", seed.to_string());
        tally.record(&name, super::checked(bench, &job));
    }
    Ok(())
}
