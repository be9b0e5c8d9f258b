//! Tests of the memory that destroyed objects leave behind. The pages of a ring and of bounce
//! buffers must go back to the kernel with their connection.

use super::*;
use soft_local::shm::layout::{CHUNKS, RINGS_LEN, RINGS_QP_SLOTS};

/// The number of resident pages of the rings segment behind its first part.
fn pages(adapter: &Adapter) -> usize {
    let mut seen = vec![0_u8; (RINGS_LEN - RINGS_QP_SLOTS) / 4096];
    // SAFETY: the range is inside the segment, which is mapped as a whole, and `seen` has a byte
    // for each of its pages.
    let done = unsafe {
        let from = adapter.fabric.rings().base().add(RINGS_QP_SLOTS);
        libc::mincore(from.cast(), RINGS_LEN - RINGS_QP_SLOTS, seen.as_mut_ptr())
    };
    assert_eq!(done, 0, "mincore(2)");
    seen.iter().filter(|page| **page & 1 != 0).count()
}

/// A connection on which `count` messages of `len` bytes were sent.
fn talk(adapter: &Arc<Adapter>, count: usize, len: usize) -> (Side, Side) {
    let (a, b) = (Side::new(adapter, QpType::Rc, len), Side::new(adapter, QpType::Rc, len));
    a.connect(b.qp.qpn(), 0);
    b.connect(a.qp.qpn(), 0);
    for n in 0..count as u64 {
        b.receive(n, &[b.sge(0, len)]);
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, len)]);
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS);
    }
    (a, b)
}

const CONNECTIONS: usize = 100;
/// The service thread may read a ring while its pages are freed, and a page that is read becomes
/// resident again until the slot's next connection. A connection that left its ring would leave
/// four pages, and so a hundred of them 400.
const READ_AGAIN: usize = 8;

#[test]
fn connections_that_are_gone_leave_no_pages_of_their_rings() {
    let adapter = adapter(true);
    let live = talk(&adapter, 300, 8);
    let before = pages(&adapter);
    assert!(before >= 4, "the ring of a live connection is there");
    for _ in 0..CONNECTIONS {
        drop(talk(&adapter, 300, 8));
    }
    let left = pages(&adapter) - before;
    assert!(left <= READ_AGAIN, "{left} pages are left of {CONNECTIONS} connections");
    drop(live);
    let left = pages(&adapter);
    assert!(left <= READ_AGAIN, "{left} pages are left");
}

#[test]
fn a_connection_in_a_reused_slot_begins_with_an_empty_ring() {
    let adapter = adapter(true);
    // Two free slots remain, so that each round gets the slots of the round before it.
    let taken: Vec<_> = std::iter::from_fn(|| adapter.registry.reserve_qp()).collect();
    for (index, _) in &taken[..2] {
        adapter.free_qp(*index);
    }
    for _ in 0..20 {
        drop(talk(&adapter, 40, 8));
    }
}

#[test]
fn destroyed_connections_free_their_bounce_buffers() {
    let adapter = adapter(false);
    let many: Vec<_> = (0..40).map(|_| talk(&adapter, 1, 8)).collect();
    let all: Vec<u32> = (0..CHUNKS / 4).filter_map(|_| adapter.chunks.take()).collect();
    for index in &all {
        let chunk = adapter.view.chunk(*index).expect("it is mapped");
        // SAFETY: this test alone has the chunk.
        unsafe { chunk.base().write_bytes(1, chunk.len()) };
    }
    all.into_iter().for_each(|index| adapter.chunks.give(index));
    let before = pages(&adapter);
    assert!(before >= CHUNKS);
    drop(many);
    let left = pages(&adapter);
    assert!(left < before / 4, "{left} of {before} pages are left");
}
