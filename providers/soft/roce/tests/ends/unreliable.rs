//! Tests of unreliable connections and datagrams: a message arrives correctly or is dropped as a
//! whole.

use crate::*;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::*;

/// IBTA 1.7 9.8.
#[test]
fn messages_of_an_unreliable_connection_arrive_whole_or_not_at_all() {
    for seed in 0..8 {
        let mut world = World::new(Service::Uc, seed, |_, _| {});
        world.faults = Faults { lose: 20, damage: 10, reorder: 20, ..Faults::default() };
        let messages = 300;
        for id in 0..messages {
            let len = world.random.below(3000) as u32;
            let immediate = Immediate::new((id as u32).to_be_bytes());
            world.ends[0].post(Work::new(id, Op::Send(Tail::Immediate(immediate)), len));
            world.step();
        }
        assert!(world.run());
        let wanted: Vec<_> = (0..messages).map(|id| (id, Status::Success)).collect();
        assert_eq!(world.ends[0].completions, wanted);
        let mut last = None;
        for received in &world.ends[1].inbox {
            let Tail::Immediate(id) = received.tail else { panic!("{received:?}") };
            let id = u64::from(u32::from_be_bytes(id.bytes()));
            assert!(last < Some(id) || world.faults.reorder != 0);
            last = Some(id);
            assert!(received.data == pattern(id, 0, received.data.len()), "message {id}");
        }
        let arrived = world.ends[1].inbox.len();
        assert!(arrived > 100 && arrived < messages as usize, "{arrived}");
    }
}

#[test]
fn after_a_gap_the_next_message_is_taken() {
    let mut world = World::new(Service::Uc, 1, |_, _| {});
    world.lose = Some(|_, count, _| count == 3);
    world.ends[0].post(Work::new(0, Op::Send(Tail::Plain), 1000));
    world.ends[0].post(Work::new(1, Op::Send(Tail::Plain), 1000));
    assert!(world.run());
    assert_eq!(world.ends[1].inbox.len(), 1);
    assert_eq!(world.ends[1].inbox[0].data, pattern(1, 0, 1000));
    assert_eq!(world.ends[1].qp.counters().out_of_sequence, 1);
}

#[test]
fn unreliable_writes_need_the_right_and_take_receives_for_immediate_data() {
    let immediate = Some(Immediate::new([1, 2, 3, 4]));
    for (access, receives, arrived) in [(true, 1, true), (false, 1, false), (true, 0, false)] {
        let mut world = World::new(Service::Uc, 1, |config, _| config.access.write = access);
        world.ends[1].receives = receives;
        world.ends[0].post(Work::new(5, Op::Write { va: 64, rkey: RKEY, immediate }, 100));
        assert!(world.run());
        assert_eq!(world.ends[0].completions, [(5, Status::Success)]);
        assert_eq!(world.ends[1].inbox.len(), usize::from(arrived));
        assert_eq!(world.ends[1].memory[64..164] == pattern(5, 0, 100), arrived);
        assert!(!world.ends[1].qp.is_in_error());
    }
}

fn datagram(id: u64, qkey: u32, len: u32) -> Work {
    let immediate = Some(Immediate::new([9; 4]));
    Work::new(id, Op::Datagram { qpn: Qpn::new(0x12), qkey, immediate }, len)
}

/// IBTA 1.7 3.5.3, 9.8.3: a work request with a controlled Q_Key sends the Q_Key of the QP.
#[test]
fn datagrams_need_the_key_and_a_receive() {
    let mut world = World::new(Service::Ud, 1, |_, _| {});
    world.ends[1].receives = 2;
    world.ends[0].post(datagram(0, 0x1234, 256));
    world.ends[0].post(datagram(1, 0x4321, 10));
    world.ends[0].post(datagram(2, 0x8000_0000, 0));
    world.ends[0].post(datagram(3, 0x1234, 10));
    assert!(world.run());
    let lens: Vec<_> = world.ends[1].inbox.iter().map(|received| received.data.len()).collect();
    assert_eq!(lens, [256, 0], "another key is dropped; bit 31 sends our own; no third receive");
    assert_eq!(world.ends[1].drops, [DropReason::Qkey]);
    assert_eq!(world.ends[1].qp.counters().out_of_buffer, 1);
    assert_eq!(world.ends[0].completions.len(), 4);
}

#[test]
fn a_datagram_longer_than_the_path_mtu_is_an_error_of_the_sender() {
    let mut world = World::new(Service::Ud, 1, |_, _| {});
    world.ends[0].post(datagram(0, 0x1234, 257));
    world.ends[0].post(datagram(1, 0x1234, 1));
    assert!(world.run());
    assert_eq!(world.ends[0].completions, [(0, Status::LocalLength), (1, Status::Flushed)]);
}

/// IBTA 1.7 10.5.
#[test]
fn multicast_datagrams_are_for_everybody() {
    let mut world = World::new(Service::Ud, 1, |_, _| {});
    let op = Op::Datagram { qpn: Qpn::MULTICAST, qkey: 0x1234, immediate: None };
    world.ends[0].post(Work::new(0, op, 20));
    assert!(world.run());
    assert_eq!(world.ends[1].inbox.len(), 1);
}

/// IBTA 1.7 3.5.10, 13.4.5.
#[test]
fn datagrams_between_managers_have_their_number_at_both_ends() {
    let mut world = World::new(Service::Ud, 1, |_, _| {});
    let op = Op::Datagram { qpn: Qpn::GSI, qkey: 0x1234, immediate: None };
    world.ends[0].post(Work::new(0, op, 20));
    assert!(world.run());
    let sources: Vec<_> = world.ends[1].inbox.iter().map(|received| received.source).collect();
    assert_eq!(sources, [Some(Qpn::GSI)]);
}

/// IBTA 1.7 9.8.2.2.
#[test]
fn a_packet_that_only_ends_a_message_has_a_byte_or_more() {
    for (last, arrived) in [(0, 0), (1, 1)] {
        let mut world = World::new(Service::Uc, 1, |_, _| {});
        let end = &mut world.ends[1];
        let config = end.qp.config();
        let (pmtu, qpn, psn) = (config.pmtu.bytes() as usize, config.qpn, config.expected_psn);
        for (n, part, len) in [(0, Send::First, pmtu), (1, Send::Last(None), last)] {
            let message = Message::Uc(OneWay::Send(part));
            let packet = Packet { bth: Bth::new(qpn, psn.add(n)), message };
            let padding = len.next_multiple_of(4) - len;
            let bytes = [&packet.emit(len)[..], &vec![7; len], &vec![0; padding]].concat();
            let icrc = end.envelope_of_peer().icrc(&bytes, &[]);
            end.receive(world.now, &[&bytes[..], &icrc].concat(), false);
        }
        assert_eq!(end.inbox.len(), arrived, "a last packet of {last} bytes");
        assert!(end.qp.poll_transmit(world.now).is_none(), "nobody is told");
    }
}
