//! Tests over a device, with properties that loopback lacks: path MTU, segments as separate
//! packets, link-local addresses.

#[path = "common/namespace.rs"]
mod namespace;
#[path = "common/packets.rs"]
mod packets;
#[path = "common/wait_for.rs"]
mod wait_for;
#[path = "common/waiting.rs"]
mod waiting;

use ferroverbs_net::*;
use ferroverbs_roce::wire::{Check, IcrcResult};
use namespace::{configure, meet, pair, run, try_run};
use packets::*;
use std::net::IpAddr;
use wait_for::wait_for;

const NEAR: [&str; 3] = ["10.9.0.1/24", "fd09::1/64", "fe80::91/64"];
const FAR: [&str; 3] = ["10.9.0.2/24", "fd09::2/64", "fe80::92/64"];

fn ip(text: &str) -> IpAddr {
    text.split('/').next().and_then(|text| text.parse().ok()).expect("an address")
}

/// The index of an interface.
fn index(interface: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/self/net/dev_snmp6/{interface}"))
        .expect("an interface");
    let line = text.lines().next().and_then(|line| line.split_whitespace().nth(1));
    line.and_then(|index| index.parse().ok()).expect("its index")
}

/// Waits until the near process has finished.
fn stay() {
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|read| read > 0) {}
}

fn path(sender: &mut Sender, from: &str, to: &str, interface: u32) -> Path {
    let target = Target {
        source: ip(from),
        destination: ip(to),
        interface,
        traffic_class: CLASS,
        hop_limit: HOPS,
    };
    let lane = sender.select_lane(target.destination, 7).expect("a lane");
    Path::new(&target, lane).expect("a path")
}

#[test]
fn the_path_mtu_is_the_one_of_the_route() {
    pair(
        "the_path_mtu_is_the_one_of_the_route",
        |mut far| {
            far.wait_for("configured");
            for (mtu, roce) in [(1500, 1024), (9000, 4096)] {
                configure("veth0", if mtu == 1500 { &NEAR } else { &[] }, mtu);
                for to in &FAR[..2] {
                    // A route may vanish for a moment while its interface changes.
                    let of_the_route = wait_for(|| route_mtu(ip(to), 0).ok());
                    assert_eq!(of_the_route, mtu);
                    assert_eq!(roce_mtu(of_the_route), Some(roce));
                }
            }
            run("ip link set veth0 mtu 1500");
            let mut sender = Sender::new(true);
            for (from, to) in NEAR.into_iter().zip(FAR).take(2) {
                let path = path(&mut sender, from, to, 0);
                let (long, short) = (body(1, 1500), body(2, 1024));
                let mut batch = sender.batch();
                put(&mut batch, &path, Ecn::Capable, &long);
                put(&mut batch, &path, Ecn::NotCapable, &short);
                let sent = batch.send();
                assert_eq!((sent.packets, sent.refused), (1, 1), "{sent:?}");
                let error = sent.error.and_then(|error| error.raw_os_error());
                assert_eq!(error, Some(libc::EMSGSIZE));
                drop(batch);
                let hint = wait_for(|| {
                    sender.next_report().filter(|hint| matches!(hint.reason, Reason::TooLong(_)))
                });
                assert_eq!(
                    (hint.destination.ip(), hint.reason),
                    (path.target().destination, Reason::TooLong(1500))
                );
            }
            assert!(sender.segments(), "that a packet was too long says nothing of segmentation");
            far.finish();
        },
        || {
            configure("veth1", &FAR, 9000);
            println!("configured");
            // The end of this process would remove its end of the cable.
            stay();
        },
    );
}

const COUNT: usize = 130;

fn bodies() -> Vec<Vec<u8>> {
    (0..COUNT).map(|i| body(i, if i == COUNT - 1 { 4 } else { 1024 })).collect()
}

/// Number of IPv4 packets in one datagram, by length.
const TOGETHER: usize = (0xffff - 48) / (12 + 1024 + 4);

#[test]
fn segments_are_packets_with_numbers_and_may_be_merged_again() {
    pair(
        "segments_are_packets_with_numbers_and_may_be_merged_again",
        |mut far| {
            configure("veth0", &NEAR, 1500);
            // The device then gets single packets, as a card would send them, and the peer may
            // merge them (veth merges only for devices without TSO).
            let cut = try_run("ethtool -K veth0 tx-udp-segmentation off tso off");
            if !cut {
                println!("without ethtool: segments are not cut before the peer has them");
            }
            let mut sender = Sender::new(true);
            let scope = index("veth0");
            let bodies = bodies();
            for _merge in [false, true] {
                for (from, to) in NEAR.into_iter().zip(FAR) {
                    far.wait_for("bound");
                    let interface = if from.starts_with("fe80") { scope } else { 0 };
                    let path = path(&mut sender, from, to, interface);
                    let mut batch = sender.batch();
                    bodies.iter().for_each(|body| put(&mut batch, &path, Ecn::Capable, body));
                    let sent = batch.send();
                    assert_eq!((sent.packets, sent.refused), (COUNT, 0), "{sent:?}");
                    drop(batch);
                    far.tell("sent");
                    far.wait_for("checked");
                }
            }
            far.finish();
        },
        || {
            configure("veth1", &FAR, 1500);
            if !try_run("ethtool -K veth1 gro on") {
                println!("without ethtool: nothing is merged again");
            }
            for merge in [false, true] {
                for (from, to) in NEAR.into_iter().zip(FAR) {
                    let interface = if to.starts_with("fe80") { index("veth1") } else { 0 };
                    let bind = Bind { interface, merge, ..Bind::new(ip(to)) };
                    let mut receiver = Receiver::bind(bind).expect("our address");
                    let raw = ip(to).is_ipv4().then(raw_socket);
                    meet("bound");
                    let came = receive(&mut receiver, COUNT);
                    for (index, (came, body)) in came.iter().zip(bodies()).enumerate() {
                        assert_eq!((came.from.ip(), came.to), (ip(from), ip(to)));
                        assert_eq!((came.traffic_class, came.hop_limit), (CLASS | 2, HOPS));
                        let number = if came.to.is_ipv4() { index % TOGETHER } else { 0 };
                        let envelope = came.envelope(number as u16);
                        let (packet, verdict) =
                            envelope.open(&came.bytes, Check::Full).expect("long enough");
                        assert_eq!(verdict, IcrcResult::Intact, "packet {index} to {to}");
                        assert_eq!(packet[12..], body[..]);
                    }
                    let merged = came.iter().any(|came| came.merged);
                    assert_eq!(merged, merge, "to {to}");
                    raw.inspect(check_headers);
                    println!("checked");
                }
            }
        },
    );
}

/// A socket that receives the IP headers of UDP datagrams.
fn raw_socket() -> socket2::Socket {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).expect("our namespace");
    socket.set_nonblocking(true).expect("a socket");
    socket.set_recv_buffer_size(4 << 20).expect("a socket");
    socket
}

/// Checks that each IPv4 header has DF and the identification for which its ICRC was computed.
/// Merged packets have the first identification.
fn check_headers(raw: &socket2::Socket) {
    use std::io::Read;
    let (mut raw, mut next, mut seen) = (raw, 0, 0);
    let mut bytes = vec![0; 1 << 16];
    while let Ok(len) = raw.read(&mut bytes) {
        let ip = &bytes[..len];
        let identification = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
        assert_eq!(ip[6..8], [0x40, 0], "DF and no fragment");
        let packets = (len - 28).div_ceil(1040);
        assert_eq!(identification, next % TOGETHER, "after {next} packets");
        next += packets;
        seen += 1;
    }
    assert_eq!(next, COUNT, "in {seen} datagrams");
    println!("{COUNT} packets in {seen} datagrams");
}
