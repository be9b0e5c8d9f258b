//! Tests of the engine over sockets, between two namespaces: data are correct even if the kernel
//! drops datagrams.

#[path = "common/host.rs"]
mod host;
#[path = "common/namespace.rs"]
mod namespace;
#[path = "common/waiting.rs"]
mod waiting;

use ferroverbs_net::{roce_mtu, route_mtu};
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::*;
use host::*;
use namespace::{configure, meet, pair};
use std::net::IpAddr;

const NEAR: [&str; 2] = ["10.9.0.1", "fd09::1"];
const FAR: [&str; 2] = ["10.9.0.2", "fd09::2"];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn with_prefix(addresses: [&str; 2]) -> [String; 2] {
    addresses.map(|ip| format!("{ip}/{}", if ip.contains(':') { 64 } else { 24 }))
}

fn up(interface: &str, addresses: [&str; 2], mtu: u32) {
    let addresses = with_prefix(addresses);
    configure(interface, &[&addresses[0], &addresses[1]], mtu);
}

/// Family, MTU, offloads, and how many of ten thousand datagrams each end drops.
const CASES: [(usize, u32, bool, u32); 8] = [
    (0, 1500, true, 0),
    (1, 1500, true, 0),
    (0, 9000, false, 0),
    (1, 9000, true, 0),
    (0, 1500, true, 100),
    (1, 1500, false, 100),
    (0, 9000, true, 500),
    (1, 1500, false, 500),
];

fn host(is_near: bool, (family, mtu, offloads, lose): (usize, u32, bool, u32)) -> Host {
    let (near, far) = (ip(NEAR[family]), ip(FAR[family]));
    let (from, to) = if is_near { (near, far) } else { (far, near) };
    let interface = if is_near { "veth0" } else { "veth1" };
    namespace::run(&format!("ip link set {interface} mtu {mtu}"));
    let pmtu = match roce_mtu(route_mtu(to, 0).expect("a route")) {
        Some(1024) => Pmtu::B1024,
        Some(4096) => Pmtu::B4096,
        other => panic!("path MTU {other:?}"),
    };
    Host::new(HostConfig { from, to, pmtu, is_near, offloads, lose })
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed * 31 + i * 7 + i / 251) as u8).collect()
}

const STOP: Tail = Tail::Immediate(Immediate::new(*b"stop"));
const ROUNDS: usize = 12;

#[test]
fn all_data_arrive_correctly_over_sockets_that_lose_packets() {
    pair(
        "all_data_arrive_correctly_over_sockets_that_lose_packets",
        |mut far| {
            up("veth0", NEAR, 1500);
            let mut again = 0;
            for case in CASES {
                far.wait_for("made");
                let mut host = host(true, case);
                far.tell("begin");
                drive(&mut host);
                let counters = host.qp.counters();
                println!(
                    "{case:?}: {} packets, {} again, damaged {}",
                    counters.sent_pkts, counters.resent_pkts, host.damaged
                );
                assert_eq!(host.damaged, 0, "each ICRC is right");
                assert_eq!(host.refused, 0);
                again += if case.3 == 0 { 0 } else { counters.resent_pkts };
                far.tell("done");
            }
            assert_ne!(again, 0, "nothing was lost");
            far.finish();
        },
        || {
            up("veth1", FAR, 1500);
            for case in CASES {
                let mut host = host(false, case);
                meet("made");
                let mut echoed = 0;
                host.until(|host| {
                    let (len, tail) = host.inbox.pop_front()?;
                    if tail == STOP {
                        return Some(());
                    }
                    // Copy the message back to the source for the echo.
                    let (place, bytes) = (OURS, host.memory[INBOX..INBOX + len].to_vec());
                    host.memory[place..place + len].copy_from_slice(&bytes);
                    host.post(Op::Send(tail), place, len);
                    echoed += 1;
                    None
                });
                assert_eq!(echoed, ROUNDS);
                // The last acknowledgement may be lost.
                host.linger();
                assert_eq!((host.damaged, host.refused), (0, 0));
                namespace::wait_for_line();
            }
        },
    );
}

/// A SEND with its echo, a WRITE, a READ and an atomic, all checked.
fn drive(host: &mut Host) {
    for round in 0..ROUNDS {
        let len = [0, 8, 1024, 4096, 5000, 300_000][round % 6] + round;
        let sent = pattern(round, len);
        host.memory[OURS..OURS + len].copy_from_slice(&sent);
        let va = (round * 4096) as u64;
        host.post(Op::Write { va, rkey: RKEY, immediate: None }, OURS, len);
        let there = OURS + (1 << 20);
        host.post(Op::Read { va, rkey: RKEY }, there, len);
        let word = (OURS - 64) as u64;
        let op = AtomicOp::FetchAdd { add: 3 };
        host.post(Op::Atomic { va: word, rkey: RKEY, op }, OURS, 8);
        let tail = Tail::Immediate(Immediate::new((round as u32).to_be_bytes()));
        host.post(Op::Send(tail), OURS, len);
        let came = host.until(|host| {
            let complete = host.completions.len() == 4 && !host.inbox.is_empty();
            complete.then(|| host.inbox.pop_front()).flatten()
        });
        assert!(host.completions.drain(..).all(|(_, status)| status == Status::Success));
        assert_eq!(came, (len, tail), "round {round}");
        assert!(host.memory[INBOX..INBOX + len] == sent[..], "what came back, round {round}");
        assert!(host.memory[there..there + len] == sent[..], "what was read, round {round}");
        assert_eq!(host.originals.drain(..).collect::<Vec<_>>(), [3 * round as u64]);
    }
    host.post(Op::Send(STOP), OURS, 0);
    host.until(|host| host.completions.pop_front());
}
