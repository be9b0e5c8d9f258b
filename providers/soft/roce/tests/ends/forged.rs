//! Tests of a forger who knows a connection's addresses and numbers, cannot see its packets, and
//! sends packets in the name of either end.

use crate::*;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::*;
use std::time::Duration;

/// The first PSN of each end in [`World::new`].
const FIRST: [u32; 2] = [0xff_fff0, 0x7f_fff8];

fn send(id: u64, len: u32) -> Work {
    Work::new(id, Op::Send(Tail::Plain), len)
}

/// Two ends that have completed the greeting.
fn acquainted() -> World {
    let mut world = World::new(Service::Rc, 5, |_, _| {});
    for from in [0, 1] {
        world.ends[from].post(send(0, 8));
        assert!(world.run());
    }
    assert!(world.ends.iter().all(|end| end.qp.is_greeted()), "they know each other");
    world
}

/// An end with the extension and a peer without it, as rxe and adapters.
fn with_a_stranger() -> World {
    World::new(Service::Rc, 6, |config, _| {
        if config.qpn == Qpn::new(0x12) {
            config.nonce = None;
            config.tuning.max_held_packets = 0;
        }
    })
}

fn forged(random: u64) -> Nonce {
    Nonce::new(random).expect("not 0")
}

/// Delivers a packet in the peer's name, whose reserved bits are `proof`.
fn forge(world: &mut World, to: usize, psn: u32, message: Message, proof: u16, payload: &[u8]) {
    let bth = Bth { proof, ..Bth::new(Qpn::new(0x11 + to as u32), Psn::new(psn)) };
    let mut bytes = Packet { bth, message }.emit(payload.len()).to_vec();
    bytes.extend(payload);
    bytes.resize(bytes.len() + Packet::padding(payload.len()), 0);
    let now = world.now;
    world.ends[to].forged(now, &bytes);
}

fn only() -> Message {
    Message::Rc(Request::Send(Send::Only(Tail::Plain)))
}

fn ours(ours: ExtensionMessage) -> Message {
    Message::ExtensionMessage(ours)
}

/// Every packet of the extension, with nonces that are guesses.
fn extension(random: u64) -> Vec<Message> {
    let (receiver_nonce, sender_nonce) = (forged(random), forged(random ^ 0x5555));
    let mut held_packets = HeldPackets::NONE;
    (0..HELD_BITS).for_each(|bit| held_packets.insert(bit));
    let psn = Psn::new(FIRST[1]);
    let ack = PiggybackedAck { psn, credits: Credits::UNLIMITED, msn: Number::new(1) };
    let request = OneWay::Send(Send::Only(None));
    vec![
        ours(ExtensionMessage::Hello { sender_nonce }),
        ours(ExtensionMessage::Welcome { receiver_nonce, sender_nonce }),
        ours(ExtensionMessage::Confirm { receiver_nonce, sender_nonce }),
        ours(ExtensionMessage::Selective { receiver_nonce, held_packets }),
        ours(ExtensionMessage::PiggybackedAck { receiver_nonce, ack, request }),
    ]
}

/// A message has at most 2^31 bytes (IBTA 1.7 9.7.4.1.7). A longer request is invalid before its
/// key is checked; a request of 2^31 bytes is checked, and the memory of the test is shorter.
#[test]
fn a_request_above_two_gib_is_invalid_before_its_key_is_checked() {
    let limit = 1_u32 << 31;
    for (len, expected) in [(limit + 1, Nak::InvalidRequest), (limit, Nak::RemoteAccess)] {
        let range = Reth { va: 0, rkey: RKEY, len };
        let requests =
            [(Request::Read(range), &[][..]), (Request::Write(Write::First(range)), &[7; 256][..])];
        for (request, payload) in requests {
            let mut world = with_a_stranger();
            forge(&mut world, 1, FIRST[0], Message::Rc(request), 0, payload);
            let now = world.now;
            let replies = std::iter::from_fn(|| world.ends[1].transmit(now)).any(|datagram| {
                let packet = Packet::parse(&datagram[..datagram.len() - ICRC_LEN]).expect("ours").0;
                matches!(packet.message, Message::RcResponse(Response::Acknowledge(aeth))
                    if aeth.syndrome == Syndrome::Nak(expected))
            });
            assert!(replies, "{request:?} needs {expected:?}");
            assert!(world.ends[1].qp.is_in_error());
        }
    }
}

#[test]
fn no_forged_greeting_proves_the_extension() {
    let mut world = with_a_stranger();
    for random in 1..2000 {
        for message in extension(random) {
            forge(&mut world, 0, random as u32, message, random as u16, &[]);
        }
        assert!(!world.ends[0].qp.is_greeted());
    }
    assert!(!world.ends[0].qp.is_in_error());
}

/// The symptom: one forged greeting replaced every NAK by a packet that rxe drops, so that each
/// loss cost a timeout.
#[test]
fn a_peer_without_the_extension_gets_standard_acknowledgements_despite_forgeries() {
    let mut world = with_a_stranger();
    world.ends[1].post(send(0, 8));
    assert!(world.run());
    for random in [1, 77] {
        extension(random).into_iter().for_each(|message| forge(&mut world, 0, 3, message, 0, &[]));
    }
    world.lose = Some(|from, count, _| from == 1 && count % 21 == 0);
    (1..=200).for_each(|id| world.ends[1].post(send(id, 300)));
    assert!(world.run());
    assert_eq!(world.ends[1].completions.len(), 201);
    assert!(world.ends[1].completions.iter().all(|(_, status)| *status == Status::Success));
    let (ours, stranger) = (world.ends[0].qp.counters(), world.ends[1].qp.counters());
    assert!(stranger.packet_seq_err > 0, "it heard NAKs");
    assert_eq!((ours.held_pkts, stranger.local_ack_timeout_err), (0, 0));
}

/// The symptom: each packet with one of 255 PSNs was kept and delivered in place of the true one,
/// which left 2^16 numbers to guess.
#[test]
fn forged_early_packets_are_never_held() {
    let mut world = acquainted();
    let expected = FIRST[0].wrapping_add(1);
    let kept = world.ends[1].qp.counters().held_pkts;
    for ahead in 1..256 {
        forge(&mut world, 1, expected + ahead, only(), 0, b"forged");
    }
    assert_eq!(world.ends[1].qp.counters().held_pkts, kept);
    (1..300).for_each(|id| world.ends[0].post(send(id, 6)));
    assert!(world.run());
    let inbox = &world.ends[1].inbox;
    assert_eq!(inbox.len(), 300);
    assert!(inbox.iter().all(|received| received.data != b"forged"));
    assert!((1..300).all(|id| inbox[id].data == pattern(id as u64, 0, 6)));
}

/// With the right PSN and each of the 2^13 proofs once, at most one packet is kept: a forger
/// guesses among 2^29 numbers for 256 PSNs.
#[test]
fn a_proof_is_one_of_many_and_the_right_packet_replaces_a_forged_one() {
    let mut world = acquainted();
    let expected = (FIRST[0] + 1) & 0xff_ffff;
    let before = world.ends[1].qp.counters().held_pkts;
    for proof in 0..1 << 13 {
        forge(&mut world, 1, expected + 3, only(), proof, b"forged");
    }
    assert_eq!(world.ends[1].qp.counters().held_pkts, before + 1, "one of them was right");
    // The fourth packet arrives before the first, which is lost. The fourth packet differs from the
    // forged packet that is held.
    world.lose = Some(|from, _, datagram| {
        let psn = u32::from_be_bytes([0, datagram[9], datagram[10], datagram[11]]);
        from == 0 && psn == (FIRST[0] + 1) & 0xff_ffff
    });
    (1..=4).for_each(|id| world.ends[0].post(send(id, 6)));
    let end = world.now.after(Duration::from_micros(100));
    while world.now < end && world.step() {}
    world.lose = None;
    assert!(world.run());
    let inbox = &world.ends[1].inbox;
    assert!(inbox.iter().all(|received| received.data != b"forged"), "{inbox:?}");
    assert_eq!(inbox[4].data, pattern(4, 0, 6));
}

/// A forged selective acknowledgement would delay recovery. A forged piggybacked acknowledgement
/// would complete requests that never arrived.
#[test]
fn extension_packets_with_a_wrong_nonce_are_dropped() {
    let mut world = acquainted();
    let before = world.ends[0].completions.len();
    (1..9).for_each(|id| world.ends[0].post(send(id, 6)));
    let now = world.now;
    while world.ends[0].transmit(now).is_some() {}
    for random in 1..500 {
        for message in extension(random) {
            for ahead in 0..8 {
                let psn = (FIRST[0] + 1 + ahead) & 0xff_ffff;
                forge(&mut world, 0, psn, message, 0, &[]);
            }
        }
    }
    assert_eq!(world.ends[0].completions.len(), before);
    assert!(world.ends[0].drops.contains(&DropReason::Unproved));
    assert_eq!(world.ends[0].inbox.len(), 1);
    assert!(world.run());
    assert_eq!(world.ends[1].inbox.len(), 9, "each once");
}

/// A forged Hello costs one packet to the true peer, no longer than the Hello.
#[test]
fn a_forged_hello_brings_one_packet_that_is_no_longer() {
    let mut world = acquainted();
    let now = world.now;
    let known = world.ends[0].qp.is_greeted();
    (1..100).for_each(|random| {
        forge(
            &mut world,
            0,
            7,
            ours(ExtensionMessage::Hello { sender_nonce: forged(random) }),
            0,
            &[],
        );
    });
    let welcome = world.ends[0].transmit(now).expect("a Welcome");
    assert!(world.ends[0].transmit(now).is_none(), "one answer, to the last");
    let hello = Packet { bth: Bth::new(Qpn::new(1), Psn::new(0)), message: extension(1)[0] };
    assert!(welcome.len() <= hello.emit(0).len() + ICRC_LEN);
    world.ends[1].receive(now, &welcome, false);
    assert_eq!(world.ends[1].drops.last(), Some(&DropReason::Unproved));
    assert!(
        known && world.ends.iter().all(|end| end.qp.is_greeted()),
        "they still know each other"
    );
}
