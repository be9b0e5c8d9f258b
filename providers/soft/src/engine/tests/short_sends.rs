//! Tests of SENDs of one range up to the size of a chunk, which take the fast path. An application
//! must not be able to tell which path a SEND took.

use super::*;
use crate::engine::ring::fast_send::ShortSend;

fn short(request: &Request) -> ShortSend {
    let Request { wr_id, opcode, flags, imm, .. } = *request;
    ShortSend { wr_id, opcode, flags, imm }
}

/// Posts a list as ibv_post_send does. Each request has its range, or two halves of it.
fn post(side: &Side, list: &[(Request, ibv_sge, bool)]) {
    let mut requester = side.qp.requester().lock();
    if let [(request, sge, false)] = list
        && requester.post_single(&side.qp, short(request), sge)
    {
        requester.publish();
        return;
    }
    let mut list = list.iter().peekable();
    while list.peek().is_some() {
        if let Some(mut quick) = requester.fast_send(&side.qp) {
            let mut post = |(request, sge, split): &(Request, ibv_sge, bool)| {
                !split && quick.post(short(request), sge, true)
            };
            while list.next_if(|one| post(one)).is_some() {}
        }
        let Some((request, sge, split)) = list.next() else { break };
        let (request, half) = (*request, sge.length / 2);
        let first = ibv_sge { length: half, ..*sge };
        let rest = ibv_sge { addr: sge.addr + u64::from(half), length: sge.length - half, ..*sge };
        let sges = if *split { vec![first, rest] } else { vec![*sge] };
        let more = list.peek().is_some();
        requester.post_one_of(&side.qp, &request, &sges, more).expect("a good request");
    }
    requester.post_rest(&side.qp);
    requester.publish();
}

#[test]
fn messages_of_all_kinds_arrive_in_order_whichever_path_each_takes() {
    const LENGTHS: [usize; 12] = [0, 1, 7, 8, 13, 47, 48, 49, 200, 4096, 8192, 8193];
    const PLACE: usize = 9000;
    for kind in [QpType::Rc, QpType::Uc] {
        let (mut a, b) = pair(kind, true, 41 * PLACE);
        let mut random = 12345u32;
        let mut below = |n: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % n
        };
        for round in 0..100 {
            fill(&mut a, round);
            // One is a path of its own.
            let count = if below(4) == 0 { 1 } else { 1 + below(40) as usize };
            let mut list = vec![];
            for n in 0..count {
                let len = LENGTHS[below(12) as usize];
                let with_imm = below(3) == 0;
                let opcode = if with_imm { IBV_WR_SEND_WITH_IMM } else { IBV_WR_SEND };
                let inline = if below(3) == 0 && len <= 256 { IBV_SEND_INLINE } else { 0 };
                let fence = if below(8) == 0 { IBV_SEND_FENCE } else { 0 };
                let flags = IBV_SEND_SIGNALED | inline | fence;
                let imm = n as u32 + 7;
                let request = Request { wr_id: n as u64, opcode, flags, imm, ..Request::default() };
                list.push((request, a.sge(n * PLACE, len), below(6) == 0));
                let (first, second) = (b.sge(n * PLACE, 30), b.sge(n * PLACE + 30, PLACE - 30));
                match below(4) {
                    0 => b.receive(n as u64, &[first, second]),
                    _ => b.receive(n as u64, &[b.sge(n * PLACE, PLACE)]),
                }
            }
            post(&a, &list);
            for (n, (request, sge, _)) in list.iter().enumerate() {
                let got = b.wait(&a);
                assert_eq!((got.status, got.opcode), (IBV_WC_SUCCESS, IBV_WC_RECV));
                assert_eq!((got.wr_id, got.byte_len), (n as u64, sge.length), "{list:?}");
                let imm = (request.opcode == IBV_WR_SEND_WITH_IMM).then_some(request.imm);
                assert_eq!(got.imm, imm.unwrap_or(0));
                assert_eq!(got.wc_flags & IBV_WC_WITH_IMM != 0, imm.is_some());
                assert_eq!((got.qp_num, got.src_qp), (b.qp.qpn(), a.qp.qpn()));
                let at = n * PLACE..n * PLACE + sge.length as usize;
                assert_eq!(a.memory[at.clone()], b.memory[at]);
            }
            for n in 0..count as u64 {
                let sent = a.wait(&b);
                assert_eq!((sent.status, sent.wr_id), (IBV_WC_SUCCESS, n));
            }
            assert!(a.poll().is_none() && b.poll().is_none());
        }
    }
}

#[test]
fn an_invalid_short_send_fails_in_its_turn() {
    for len in [8, 200] {
        wrong_at(len);
    }
}

fn wrong_at(len: usize) {
    let (a, b) = pair(QpType::Rc, true, 256);
    let send = |wr_id| Request { wr_id, ..request(IBV_WR_SEND, &b) };
    for wr_id in 0..4 {
        b.receive(wr_id, &[b.sge(0, 256)]);
    }
    let stray = ibv_sge { lkey: a.keys.lkey ^ 2, ..a.sge(0, len) };
    post(
        &a,
        &[
            (send(0), a.sge(0, len), false),
            (send(1), stray, false),
            (send(2), a.sge(0, len), false),
        ],
    );
    let statuses: Vec<_> = (0..3).map(|_| a.wait(&b)).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(statuses, [(0, IBV_WC_SUCCESS), (1, IBV_WC_LOC_PROT_ERR), (2, IBV_WC_WR_FLUSH_ERR)]);

    // The second message of the list is longer than its receive. The first message is not.
    let (a, b) = pair(QpType::Rc, true, 256);
    let send = |wr_id| Request { wr_id, ..request(IBV_WR_SEND, &b) };
    b.receive(0, &[b.sge(0, 256)]);
    b.receive(1, &[b.sge(0, len - 1)]);
    post(&a, &[(send(0), a.sge(0, len), false), (send(1), a.sge(0, len), false)]);
    let got: Vec<_> = (0..2).map(|_| b.wait(&a)).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(got, [(0, IBV_WC_SUCCESS), (1, IBV_WC_LOC_LEN_ERR)]);
    let sent: Vec<_> = (0..2).map(|_| a.wait(&b)).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(sent, [(0, IBV_WC_SUCCESS), (1, IBV_WC_REM_INV_REQ_ERR)]);
}

#[test]
fn a_request_whose_memory_was_unmapped_fails_wherever_in_a_list_it_is() {
    for (len, count) in [(8, 1), (8, 3), (4000, 1), (4000, 3)] {
        for at in 0..count {
            let (a, b) = pair(QpType::Rc, true, 4096);
            let gone = soft_memory::testing::remote_pages(1);
            let va = gone as u64;
            let extent = Extent { pd: a.qp.pd(), va, iova: va, len: 4096, access: ALL };
            let keys = a.qp.adapter().regions.register(&extent).expect("room");
            // SAFETY: this test mapped the page, and only the engine knows its address.
            assert_eq!(unsafe { libc::munmap(gone.cast(), 4096) }, 0);
            let gone = ibv_sge { addr: va, length: len, lkey: keys.lkey };
            let list: Vec<_> = (0..count)
                .map(|n| {
                    let flags = IBV_SEND_SIGNALED;
                    let request =
                        Request { wr_id: n, opcode: IBV_WR_SEND, flags, ..Request::default() };
                    (request, if n == at { gone } else { a.sge(0, len as usize) }, false)
                })
                .collect();
            (0..count).for_each(|n| b.receive(n, &[b.sge(0, 4096)]));
            post(&a, &list);
            for n in 0..count {
                let wanted = match n.cmp(&at) {
                    std::cmp::Ordering::Less => IBV_WC_SUCCESS,
                    std::cmp::Ordering::Equal => IBV_WC_LOC_PROT_ERR,
                    std::cmp::Ordering::Greater => IBV_WC_WR_FLUSH_ERR,
                };
                let done = a.wait(&b);
                assert_eq!((done.wr_id, done.status), (n, wanted), "{len} bytes, {at} of {count}");
            }
            assert!(a.qp.requester().lock().ring.lent_chunks.is_empty(), "the chunk came back");
        }
    }
}
