//! Tests of datagrams that wait before they are sent (`waiting`). A waiting datagram keeps its
//! contents, and a flushed one is never sent.

use super::*;
use soft_semantics::state::QpState;
use std::io::Read;

#[test]
fn waiting_datagrams_keep_the_contents_of_their_post() {
    let (mut a, b) = pair(QpType::Ud, true, 5000);
    for round in 0..3 {
        for n in 0..40 {
            b.receive(n, &[b.sge(n as usize * 100, 100)]);
        }
        a.modify(QpState::Sqd as u32, 0, Zeroed::zeroed());
        for n in 0..40u8 {
            a.memory[..60].fill(round * 50 + n);
            a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 20), a.sge(20, 40)]);
        }
        a.memory[..60].fill(0xee);
        assert_eq!((a.poll(), b.poll()), (None, None), "nothing begins in SQD");
        a.modify(QpState::Rts as u32, 0, Zeroed::zeroed());
        for n in 0..40u8 {
            let got = b.wait(&a);
            assert_eq!((got.status, got.wr_id, got.byte_len), (IBV_WC_SUCCESS, n.into(), 100));
            let at = usize::from(n) * 100 + 40;
            assert_eq!(b.memory[at..at + 60], [round * 50 + n; 60]);
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        }
    }
}

#[test]
fn flushed_datagrams_are_not_sent_in_place_of_others() {
    let (mut a, b) = pair(QpType::Ud, true, 5000);
    a.modify(QpState::Sqd as u32, 0, Zeroed::zeroed());
    fill(&mut a, 1);
    for _ in 0..2 {
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 50)]);
    }
    a.modify(QpState::Err as u32, 0, Zeroed::zeroed());
    for _ in 0..2 {
        assert_eq!(a.wait(&b).status, IBV_WC_WR_FLUSH_ERR);
    }
    a.modify(QpState::Reset as u32, 0, Zeroed::zeroed());
    a.connect(b.qp.qpn(), 0);
    fill(&mut a, 2);
    b.receive(1, &[b.sge(0, 90)]);
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 50)]);
    assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS);
    assert_eq!(a.memory[..50], b.memory[40..90]);
}

#[test]
fn events_that_found_a_full_socket_arrive_once_it_has_room() {
    const COUNT: u64 = 5000;
    let adapter = adapter(true);
    let channel = Arc::new(Channel::of_events(&adapter).expect("a channel"));
    adapter.service.add_channel(&channel);
    for n in 0..COUNT {
        channel.send_record([n, 0]);
    }
    let mut file = std::fs::File::from(channel.duplicate().expect("a descriptor"));
    for n in 0..COUNT {
        until("the next event", || channel.is_readable());
        let mut record = [0; 16];
        file.read_exact(&mut record).expect("a record");
        assert_eq!(record[..8], n.to_ne_bytes());
    }
}
