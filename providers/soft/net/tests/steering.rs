//! Tests of steering: several sockets share a port, and each gets the packets of its QPNs, even
//! after others closed.

use ferroverbs_net::steering::{Bits, probed, send_probes, sharers};
use ferroverbs_net::*;
use std::net::{IpAddr, Ipv4Addr};

/// Sockets that share one port.
fn group(count: usize) -> Vec<Receiver> {
    let any = Ipv4Addr::UNSPECIFIED.into();
    let mut bind = Bind { port: 0, share: true, ..Bind::new(any) };
    let mut all = Vec::new();
    for _ in 0..count {
        let receiver = Receiver::bind(bind).expect("a shared port");
        bind.port = receiver.port().expect("bound");
        all.push(receiver);
    }
    all
}

fn send(port: u16, datagrams: &[Vec<u8>]) {
    let address: IpAddr = "127.0.0.1".parse().expect("an address");
    let mut sender = Sender::new(false);
    let target = Target {
        source: address,
        destination: address,
        interface: 0,
        traffic_class: 0,
        hop_limit: 1,
    };
    let lane = sender.select_lane(address, 0x1234).expect("a lane");
    let path = Path::new(&target, lane).expect("a path").to_port(port);
    let mut batch = sender.batch();
    for bytes in datagrams {
        let place = batch.reserve(&path, Ecn::Capable, bytes.len()).expect("room");
        place.fill(bytes, &[], &[]).expect("as long as said");
    }
    assert_eq!(batch.send().packets, datagrams.len());
}

fn packet(qpn: u32) -> Vec<u8> {
    let [_, q2, q1, q0] = qpn.to_be_bytes();
    vec![4, 0x40, 0xff, 0xff, 0, q2, q1, q0, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// The datagrams of each socket. Loopback delivers within the send.
fn came(group: &mut [Receiver]) -> Vec<Vec<Vec<u8>>> {
    let all = group.iter_mut().map(|receiver| {
        let mut all = Vec::new();
        loop {
            let datagrams = receiver.receive().expect("a socket");
            if datagrams.is_empty() {
                return all;
            }
            all.extend(datagrams.map(|datagram| datagram.bytes.to_vec()));
        }
    });
    all.collect()
}

/// The index of each socket, as a probe reports it.
fn places(group: &mut [Receiver]) -> Vec<u16> {
    let port = group[0].port().expect("bound");
    let any: IpAddr = Ipv4Addr::UNSPECIFIED.into();
    // The kernel writes its list in pieces, and may omit a socket while other tests open and close
    // sockets.
    let listed = || sharers(any, port).expect("a list") == group.len();
    assert!((0..1000).any(|_| listed()), "{} sockets", group.len());
    send_probes(any, port, group.len() as u16).expect("probes");
    let places = came(group).into_iter().map(|came| {
        assert_eq!(came.len(), 1, "one probe each");
        probed(&came[0]).expect("a probe")
    });
    places.collect()
}

#[test]
fn each_process_still_receives_its_packets_after_others_have_ended() {
    let mut group = group(5);
    let port = group[0].port().expect("bound");
    // The high bits of each process's QPNs, unrelated to the index.
    let mut names = vec![900_u32, 3, 512, 77, 4];
    group[0].steer(Bits(10), &mut []).expect("probes only");
    loop {
        let places = places(&mut group);
        let mut sorted = places.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..group.len() as u16), "{places:?}");
        let mut table: Vec<_> = names.iter().copied().zip(places).collect();
        group[0].steer(Bits(10), &mut table).expect("a program");
        let qpn = |name: u32, i: u32| name << 14 | (i * 7919) & 0x3fff;
        let packets: Vec<_> =
            (0..20).flat_map(|i| names.iter().map(move |&name| packet(qpn(name, i)))).collect();
        send(port, &packets);
        for (came, &name) in came(&mut group).iter().zip(&names) {
            let wanted: Vec<_> = (0..20).map(|i| packet(qpn(name, i))).collect();
            assert_eq!(*came, wanted, "QPNs of {name}");
        }
        if group.len() == 2 {
            break;
        }
        // The last socket takes the index of the closed one.
        group.remove(1);
        names.remove(1);
    }
}

#[test]
fn a_wrong_table_only_misdirects() {
    let mut group = group(3);
    let port = group[0].port().expect("bound");
    group[1].steer(Bits(10), &mut [(1, 200), (2, 7)]).expect("places that do not exist");
    let packets: Vec<_> = (0..30).map(|i| packet(i | (i % 4) << 14)).collect();
    send(port, &packets);
    let mut all: Vec<_> = came(&mut group).concat();
    all.sort();
    let mut wanted = packets;
    wanted.sort();
    assert_eq!(all, wanted, "nothing is lost");
}

#[test]
fn a_socket_that_does_not_share_its_port_cannot_be_steered() {
    let alone = Bind { port: 0, ..Bind::new("127.0.0.1".parse().expect("an address")) };
    let alone = Receiver::bind(alone).expect("a port");
    assert!(alone.steer(Bits(10), &mut [(1, 1), (1, 2)]).is_err(), "one name, two places");
}
