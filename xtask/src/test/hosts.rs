//! Unmodified programs of two hosts, by RoCE v2: two network namespaces with a cable between them, and processes that share nothing else.

mod cluster;

use super::meeting::Place;
use super::{Bench, Tally};
use crate::namespaces::Namespaces;

/// A cable: bytes of its packets, what it does to them, and whether only the programs that are marked so run over it.
struct Cable {
    name: &'static str,
    mtu: u32,
    netem: &'static str,
    all: bool,
}

const CABLES: &[Cable] = &[
    Cable { name: "MTU 1500", mtu: 1500, netem: "", all: true },
    Cable { name: "MTU 9000", mtu: 9000, netem: "", all: false },
    Cable { name: "1 % lost", mtu: 1500, netem: "loss 1%", all: false },
    Cable {
        name: "lost, doubled, reordered",
        mtu: 9000,
        netem: "delay 200us 100us loss 2% duplicate 1% reorder 5%",
        all: false,
    },
];

/// Programs, and whether they run over every cable. The client gets the server's address as its last argument.
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
    ("ib_write_bw", &["-n", "50", "-s", "1048576"], true),
    ("ib_read_bw", &["-n", "50", "-s", "1048576"], true),
    ("ib_atomic_lat", &["-n", "200"], true),
];

/// Pairs that share the port.
const CROWD: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &["-g", "1", "-n", "2000"]),
    ("ibv_rc_pingpong", &["-g", "1", "-n", "2000", "-e"]),
    ("ib_read_bw", &["-n", "50", "-s", "65536"]),
    ("ib_write_bw", &["-n", "50", "-s", "1048576"]),
];

pub(super) fn run(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    let hosts = match Namespaces::new() {
        Ok(hosts) => hosts,
        Err(reason) => {
            tally.skip("two hosts", &reason);
            return cluster::run(bench, tally);
        }
    };
    for cable in CABLES {
        if let Err(reason) = hosts.set_cable(cable.mtu, cable.netem) {
            tally.skip(cable.name, &reason);
            continue;
        }
        for (program, args, _) in PROGRAMS.iter().filter(|(_, _, always)| cable.all || *always) {
            let name = format!("{program} {}, {}", args.join(" "), cable.name);
            bench.step(&format!("hosts: {name}"));
            let mut place = Place::new(bench, [None, None])?;
            (place.namespaces, place.wired) = (Some(&hosts), true);
            tally.record(&name, place.together(bench, program, args));
        }
    }
    hosts.set_cable(1500, "")?;
    bench.step("hosts: four pairs at once");
    let mut place = Place::new(bench, [None, None])?;
    (place.namespaces, place.wired) = (Some(&hosts), true);
    tally.record("four pairs of the same two hosts at once", place.crowd(bench, CROWD));
    cluster::run(bench, tally)
}
