//! Tests on loopback, for both families, with and without the kernel's offloads. They need no
//! interface but `lo`.
//!
//! Map of this file: header fields of packets, merging and segmentation, scattered payloads,
//! refused packets and errors, runs, and shortcuts.

#[path = "common/ends.rs"]
mod ends;
#[path = "common/packets.rs"]
mod packets;
#[path = "common/wait_for.rs"]
mod wait_for;
#[path = "common/waiting.rs"]
mod waiting;

use ends::*;
use ferroverbs_net::*;
use ferroverbs_roce::wire::{Addresses, Check, CoveredHeaders, IcrcResult};
use packets::*;
use std::net::IpAddr;
use std::time::Duration;
use wait_for::wait_for;
use waiting::wait_readable;

const FAMILIES: [&str; 2] = ["127.0.0.1", "::1"];

#[test]
fn packets_arrive_unchanged_with_the_correct_icrc_in_each_segment() {
    for (address, segment, merge) in FAMILIES
        .into_iter()
        .flat_map(|a| [(false, false), (false, true), (true, false), (true, true)].map(|o| (a, o)))
        .map(|(a, (segment, merge))| (a, segment, merge))
    {
        let mut ends = Ends::new(address, segment, merge);
        let wanted: Vec<Vec<u8>> =
            (0..70).map(|i| body(i, if i == 69 { 36 } else { 1024 })).collect();
        let mut batch = ends.sender.batch();
        for bytes in &wanted {
            put(&mut batch, &ends.path, Ecn::Capable, bytes);
        }
        assert_eq!(batch.len(), 70);
        let sent = batch.send();
        assert_eq!((sent.packets, sent.refused, sent.is_blocked), (70, 0, false), "{sent:?}");
        drop(batch);
        let came = ends.receive(70);
        let name = format!("{address} segment {segment} merge {merge}");
        for (index, (came, wanted)) in came.iter().zip(&wanted).enumerate() {
            assert_eq!(came.from.ip(), ends.address, "{name}");
            assert_eq!(
                (came.to, came.from.port()),
                (ends.address, ends.path.source_port()),
                "{name}"
            );
            assert_eq!((came.hop_limit, came.traffic_class), (HOPS, CLASS | 2), "{name}");
            let number =
                if segment && ends.address.is_ipv4() { index % SEGMENTS_MAX.min(62) } else { 0 };
            let (packet, verdict) =
                came.envelope(number as u16).open(&came.bytes, Check::Full).expect("long enough");
            assert_eq!(verdict, IcrcResult::Intact, "{name}, packet {index}");
            assert_eq!(packet[12..], wanted[..], "{name}, packet {index}");
        }
        let merged = came.iter().any(|packet| packet.merged);
        assert_eq!(merged, segment && merge, "{name}");
    }
}

#[test]
fn a_mark_of_congestion_is_seen() {
    for address in FAMILIES {
        let mut ends = Ends::new(address, true, true);
        for ecn in [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable, Ecn::Congested] {
            let bytes = body(1, 8);
            let mut batch = ends.sender.batch();
            put(&mut batch, &ends.path, ecn, &bytes);
            assert_eq!(batch.send().packets, 1);
            drop(batch);
            assert_eq!(Ecn::of(ends.receive(1)[0].traffic_class), ecn);
        }
    }
}

#[test]
fn hop_limit_and_class_of_a_path_are_not_those_of_its_lane() {
    for address in FAMILIES {
        let mut ends = Ends::new(address, true, true);
        let lane = ends.sender.select_lane(ends.address, 0x1234).expect("a lane");
        // The first and the last case equal the lane's settings.
        for (traffic_class, hop_limit, ecn) in [
            (0, 0, Ecn::Capable),
            (0, 7, Ecn::Capable),
            (0, 64, Ecn::NotCapable),
            (0x40, 64, Ecn::Capable),
            (0, 64, Ecn::Capable),
        ] {
            let target = Target { traffic_class, hop_limit, ..ends.target };
            let path = Path::new(&target, lane).expect("a path").to_port(ends.port);
            let bytes = body(1, 8);
            let mut batch = ends.sender.batch();
            put(&mut batch, &path, ecn, &bytes);
            assert_eq!(batch.send().packets, 1);
            drop(batch);
            let hops = if hop_limit == 0 { 64 } else { hop_limit };
            let class = traffic_class | ecn as u8;
            let came = ends.receive(1).remove(0);
            assert_eq!((came.hop_limit, came.traffic_class), (hops, class), "{address}");
            // A single packet arrives with the same fields.
            ends.sender.send_one(&path, ecn, &came.bytes).expect("it goes");
            let again = ends.receive(1).remove(0);
            assert_eq!((again.hop_limit, again.traffic_class), (hops, class), "{address}");
            assert_eq!((again.bytes, again.from, again.to), (came.bytes, came.from, came.to));
        }
    }
}

#[test]
fn packets_of_another_length_or_mark_begin_another_datagram() {
    let mut ends = Ends::new("127.0.0.1", true, true);
    let (long, short) = (body(0, 512), body(1, 64));
    let mut batch = ends.sender.batch();
    // A shorter packet ends a datagram. A longer packet, or another mark, begins another.
    for (bytes, ecn) in [
        (&long, Ecn::Capable),
        (&short, Ecn::Capable),
        (&short, Ecn::Capable),
        (&long, Ecn::Capable),
        (&long, Ecn::NotCapable),
    ] {
        put(&mut batch, &ends.path, ecn, bytes);
    }
    assert_eq!(batch.send().packets, 5);
    drop(batch);
    let came = ends.receive(5);
    let lens: Vec<_> = came.iter().map(|packet| packet.bytes.len() - 16).collect();
    assert_eq!(lens, [512, 64, 64, 512, 512]);
    let merged: Vec<_> = came.iter().map(|packet| packet.merged).collect();
    assert_eq!(merged, [true, true, false, false, false]);
}

#[test]
fn after_many_single_datagrams_merging_resumes_with_the_second_burst() {
    for address in FAMILIES {
        let mut ends = Ends::new(address, true, true);
        let bytes = body(3, 200);
        let mut exchange = |count| {
            let mut batch = ends.sender.batch();
            (0..count).for_each(|_| put(&mut batch, &ends.path, Ecn::Capable, &bytes));
            assert_eq!(batch.send().packets, count);
            drop(batch);
            let came = ends.receive(count);
            assert!(came.iter().all(|came| came.bytes[12..212] == bytes));
            came.iter().any(|came| came.merged)
        };
        assert!(exchange(8), "{address}: at first");
        for _ in 0..100 {
            assert!(!exchange(1));
        }
        assert!(!exchange(8), "{address}: nobody looks for it");
        assert!(exchange(8), "{address}: but then");
    }
}

#[test]
fn a_payload_may_be_scattered() {
    let mut ends = Ends::new("::1", true, true);
    let bytes = body(7, 1000);
    // Adjacent parts become one part for the kernel.
    let adjacent: Vec<&[u8]> = bytes.chunks(37).collect();
    let apart: Vec<&[u8]> = bytes.chunks(37).rev().collect();
    for parts in [adjacent, apart] {
        let wanted = parts.concat();
        let parts: Vec<Bytes<'_>> = parts.into_iter().map(Bytes::from).collect();
        let mut batch = ends.sender.batch();
        let place = batch.reserve(&ends.path, Ecn::Capable, 12 + 1000 + 4).expect("room");
        place.fill(&[4; 12], &parts, &[0; 4]).expect("as long as said");
        assert_eq!(batch.send().packets, 1);
        drop(batch);
        assert_eq!(ends.receive(1)[0].bytes[12..1012], wanted);
    }
}

#[test]
fn packets_of_payload_only_are_sent_together_too() {
    let mut ends = Ends::new("127.0.0.1", true, true);
    let wanted: Vec<Vec<u8>> = (0..70).map(|i| body(i, 512)).collect();
    let all = wanted.concat();
    let mut batch = ends.sender.batch();
    for bytes in all.chunks(512) {
        let place = batch.reserve(&ends.path, Ecn::Capable, 512).expect("room");
        place.fill(&[], &[Bytes::from(bytes)], &[]).expect("as long as said");
    }
    assert_eq!(batch.send().packets, 70);
    drop(batch);
    let came: Vec<_> = ends.receive(70).into_iter().map(|came| came.bytes).collect();
    assert_eq!(came, wanted);
}

#[test]
fn an_unsendable_packet_is_refused_and_the_others_are_sent() {
    let mut ends = Ends::new("127.0.0.1", true, true);
    let bytes = body(1, 100);
    let mut other = Sender::new(true);
    let foreign = other.select_lane(ends.address, 3).expect("a lane");
    let target = ends.target;
    let wrong_source = Path::new(&target, foreign).expect("it looks well").to_port(ends.port);
    let mut batch = ends.sender.batch();
    put(&mut batch, &wrong_source, Ecn::Capable, &bytes);
    put(&mut batch, &ends.path, Ecn::Capable, &bytes);
    let place = batch.reserve(&ends.path, Ecn::Capable, 50).expect("room");
    let misfit =
        place.fill(&[1; 12], &[Bytes::from(&bytes[..])], &[]).expect_err("longer than said");
    assert_eq!((misfit.announced, misfit.actual), (50, 112));
    let place = batch.reserve(&ends.path, Ecn::Capable, 200).expect("room");
    assert!(place.fill(&[1; 200], &[], &[]).is_err(), "too much around it");
    assert!(batch.reserve(&ends.path, Ecn::Capable, 0).is_none(), "an empty one");
    assert!(batch.reserve(&ends.path, Ecn::Capable, 70_000).is_none(), "longer than any");
    let sent = batch.send();
    assert_eq!((sent.packets, sent.refused), (1, 1), "{sent:?}");
    assert!(batch.is_empty());
    drop(batch);
    assert_eq!(ends.receive(1).len(), 1);
    let why = ends.sender.send_one(&wrong_source, Ecn::Capable, &bytes).expect_err("not its lane");
    assert_eq!(why.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn a_full_batch_refuses_packets_and_is_empty_after_sending() {
    let mut ends = Ends::new("127.0.0.1", true, true);
    let bytes = body(1, 4);
    for _ in 0..2 {
        let mut batch = ends.sender.batch();
        let mut count = 0;
        while batch.reserve(&ends.path, Ecn::Capable, 20).is_some() {
            put(&mut batch, &ends.path, Ecn::Capable, &bytes);
            count += 1;
            assert!(count < 100_000, "it is never full");
        }
        let sent = batch.send();
        assert_eq!((sent.packets, sent.refused), (count, 0), "{sent:?}");
        assert!(batch.reserve(&ends.path, Ecn::Capable, 20).is_some());
        drop(batch);
        assert_eq!(ends.receive(count).len(), count);
    }
}

#[test]
fn paths_to_unusable_destinations_are_refused() {
    let mut sender = Sender::new(true);
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let (v4, v6) = (
        sender.select_lane(ip("::ffff:10.0.0.1"), 1).expect("a lane"),
        sender.select_lane(ip("::1"), 1).expect("a lane"),
    );
    let target = |from, to| Target {
        source: ip(from),
        destination: ip(to),
        interface: 0,
        traffic_class: 0,
        hop_limit: 0,
    };
    let refused = |from, to, lane| Path::new(&target(from, to), lane).expect_err("nowhere");
    assert_eq!(refused("127.0.0.1", "::1", v6), PathError::Families);
    assert_eq!(refused("127.0.0.1", "127.0.0.2", v6), PathError::Families);
    assert_eq!(refused("0.0.0.0", "127.0.0.2", v4), PathError::Address(ip("0.0.0.0")));
    assert_eq!(refused("127.0.0.2", "0.0.0.0", v4), PathError::Address(ip("0.0.0.0")));
    assert_eq!(refused("ff02::1", "::1", v6), PathError::Address(ip("ff02::1")));
    assert_eq!(refused("fe80::1", "fe80::2", v6), PathError::Interface(ip("fe80::1")));
    Path::new(&target("::ffff:127.0.0.1", "::ffff:127.0.0.2"), v4).expect("GIDs of IPv4");
}

#[test]
fn an_address_that_is_not_ours_is_not_sent_from() {
    let mut ends = Ends::new("127.0.0.1", true, true);
    let target = Target { source: "192.0.2.1".parse().expect("an address"), ..ends.target };
    let lane = ends.sender.select_lane(ends.address, 0).expect("a lane");
    let path = Path::new(&target, lane).expect("it looks well").to_port(ends.port);
    let bytes = body(1, 8);
    let mut batch = ends.sender.batch();
    put(&mut batch, &path, Ecn::Capable, &bytes);
    let sent = batch.send();
    assert_eq!((sent.packets, sent.refused), (0, 1), "{sent:?}");
}

#[test]
fn a_closed_port_at_the_destination_is_a_hint_and_stops_nothing() {
    for address in FAMILIES {
        let mut ends = Ends::new(address, true, true);
        let closed = { Ends::new(address, true, true).port };
        let nowhere = ends.path.clone().to_port(closed);
        let bytes = body(1, 8);
        for _ in 0..5 {
            let mut batch = ends.sender.batch();
            put(&mut batch, &nowhere, Ecn::Capable, &bytes);
            put(&mut batch, &ends.path, Ecn::Capable, &bytes);
            let sent = batch.send();
            assert_eq!((sent.packets, sent.refused), (2, 0), "{sent:?}");
        }
        assert_eq!(ends.receive(5).len(), 5);
        let hint = wait_for(|| ends.sender.next_report());
        assert_eq!(
            (hint.destination.ip(), hint.destination.port(), hint.reason),
            (ends.address, closed, Reason::Refused)
        );
    }
}

#[test]
fn a_port_that_is_taken_is_an_error_and_a_shared_one_is_not() {
    let address = "127.0.0.1".parse().expect("an address");
    let bind = Bind { port: 0, ..Bind::new(address) };
    let first = Receiver::bind(bind).expect("a port");
    let port = first.port().expect("bound");
    let again = Receiver::bind(Bind { port, ..bind }).expect_err("taken");
    assert_eq!(again.kind(), std::io::ErrorKind::AddrInUse);
    let again = Receiver::bind(Bind { port, share: true, ..bind }).expect_err("not shared");
    assert_eq!(again.kind(), std::io::ErrorKind::AddrInUse);
    drop(first);
    let bind = Bind { port, share: true, ..bind };
    let both = [bind, bind].map(|bind| Receiver::bind(bind).expect("shared"));
    assert!(both[0].buffer().expect("a size") > 0);
    let elsewhere = Bind::new("192.0.2.1".parse().expect("an address"));
    assert!(Receiver::bind(elsewhere).is_err(), "not our address");
}

#[test]
fn receiving_without_datagrams_is_no_error() {
    let mut ends = Ends::new("::1", true, true);
    assert!(ends.receiver.receive().expect("a socket").is_empty());
    assert!(!wait_readable(&ends.receiver, Duration::ZERO));
}

#[test]
fn datagrams_with_equal_headers_are_one_run_up_to_the_length_that_a_kernel_merges() {
    for address in FAMILIES {
        let mut ends = Ends::new(address, false, false);
        let lane = ends.sender.select_lane(ends.address, 0x4321).expect("a lane");
        let other = Path::new(&ends.target, lane).expect("a path").to_port(ends.port);
        assert_ne!(other.source_port(), ends.path.source_port());
        let runs_of = |ends: &mut Ends, packets: &[(bool, usize)]| {
            // A call requests more datagrams after each full call, so send single datagrams first.
            let before = (0..15).map(|_| (false, 8));
            for (is_other, len) in before.chain(packets.iter().copied()) {
                let bytes = body(0, len);
                let mut batch = ends.sender.batch();
                put(&mut batch, if is_other { &other } else { &ends.path }, Ecn::Capable, &bytes);
                assert_eq!(batch.send().packets, 1);
            }
            ends.receive(15);
            let mut datagrams = ends.receiver.receive().expect("a socket");
            let mut runs = Vec::new();
            while let Some(mut run) = datagrams.next_run() {
                let lens: Vec<usize> = run.by_ref().map(<[u8]>::len).collect();
                assert_eq!(run.consumed_bytes(), lens.iter().sum::<usize>());
                runs.push(lens.len());
            }
            runs
        };
        let (own, others) = ((false, 64), (true, 64));
        assert_eq!(runs_of(&mut ends, &[own, own, own, others, own]), [3, 1, 1], "{address}");
        assert_eq!(runs_of(&mut ends, &[(false, 9000); 10]), [7, 3], "{address}");
    }
}

#[test]
fn packets_sent_by_a_shortcut_arrive_as_by_the_lane() {
    for address in FAMILIES {
        let mut ends = Ends::new(address, true, true);
        let mut shortcut = Shortcut::open(&ends.path).expect("a shortcut");
        assert!(shortcut.takes(Ecn::Capable) && !shortcut.takes(Ecn::NotCapable));
        // The datagrams that reported the numbering.
        let empty = ends.receiver.receive().expect("a socket").count();
        assert_eq!(empty > 0, ends.address.is_ipv4(), "{address}");
        while ends.receiver.receive().expect("a socket").next().is_some() {}
        let addresses = Addresses::new(ends.address, ends.address).expect("one family");
        let mut numbers = Vec::new();
        for index in 0..20 {
            let identification = shortcut.identification();
            let source_port = ends.path.source_port();
            let envelope = CoveredHeaders { addresses, source_port, identification };
            let bytes = body(index, 60);
            shortcut.send(&[&bytes[..], &envelope.icrc(&bytes, &[])].concat()).expect("room");
            numbers.push(identification);
        }
        for (index, (came, number)) in ends.receive(20).iter().zip(numbers).enumerate() {
            assert_eq!((came.to, came.from.port()), (ends.address, ends.path.source_port()));
            assert_eq!((came.hop_limit, came.traffic_class), (HOPS, CLASS | 2), "{address}");
            let opened = came.envelope(number).open(&came.bytes, Check::Full);
            assert_eq!(
                opened,
                Some((&body(index, 60)[..], IcrcResult::Intact)),
                "{address} {index}"
            );
        }
    }
}

#[test]
fn there_is_no_shortcut_to_a_multicast_group_or_from_a_foreign_address() {
    let mut ends = Ends::new("127.0.0.1", true, true);
    let target = |from: &str, to: &str| Target {
        source: from.parse().expect("an address"),
        destination: to.parse().expect("an address"),
        ..ends.target
    };
    let targets = [target("127.0.0.1", "224.0.0.77"), target("192.0.2.77", "127.0.0.1")];
    for target in targets {
        let lane = ends.sender.select_lane(target.destination, 1).expect("a lane");
        let path = Path::new(&target, lane).expect("a path");
        assert!(Shortcut::open(&path).is_err(), "{target:?}");
    }
}
