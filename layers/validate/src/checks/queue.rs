//! WR-03, WR-04, WR-05, WR-09, WR-11, WR-13, CQ-01, OB-05, WR-10: full queues, lists of requests,
//! and receives.

use abi::{IBV_QPS_RESET, IBV_QPT_DRIVER};

use super::Id;
use super::finding::{Finding, Origin, Stack};

/// WR-03: a full send queue with `all` requests in flight, `signaled` of them signaled.
pub(crate) fn send_queue_is_full(all: usize, signaled: u32) -> Finding {
    let (why, remedy) = if signaled == 0 {
        (
            "none of them signaled",
            "set IBV_SEND_SIGNALED on every n-th request and poll its completion",
        )
    } else {
        (
            "their completions not polled",
            "poll the send CQ before posting more, or raise cap.max_send_wr",
        )
    };
    let text =
        format!("the send queue is full: {all} requests outstanding ({signaled} signaled), {why}");
    Finding::new(Id::Wr03, text, remedy)
}

/// WR-04: a send queue of `length` entries that holds only unsignaled requests.
pub(crate) fn only_unsignaled(length: u32) -> Finding {
    Finding::new(
        Id::Wr04,
        format!("all {length} entries of the send queue hold unsignaled requests"),
        "set IBV_SEND_SIGNALED on every n-th, n below max_send_wr: only its completion frees them",
    )
}

/// WR-05: a full receive queue.
pub(crate) fn receive_queue_is_full(all: usize) -> Finding {
    Finding::new(
        Id::Wr05,
        format!("the receive queue is full: all {all} receives are posted"),
        "poll the receive CQ before posting more, or raise cap.max_recv_wr",
    )
}

/// WR-05: a full shared receive queue.
pub(crate) fn shared_queue_is_full(posted: u64) -> Finding {
    Finding::new(
        Id::Wr05,
        format!("the shared receive queue is full: {posted} receives are posted"),
        "poll the receive CQs before posting more, or raise max_wr",
    )
}

/// QP-01, OB-05: a receive for a QP that takes none. `srq` is the address of the QP's shared
/// receive queue.
#[inline]
pub(crate) fn receive_state(kind: u32, state: u32, srq: Option<usize>) -> Option<Finding> {
    if let Some(srq) = srq {
        let text = format!("the QP receives from srq {srq:#x}");
        return Some(Finding::new(Id::Ob05, text, "ibv_post_srq_recv"));
    }
    (state == IBV_QPS_RESET && kind != IBV_QPT_DRIVER).then(|| {
        Finding::new(
            Id::Qp01,
            "the QP is in RESET, receives can be posted from INIT on",
            "ibv_modify_qp to INIT first",
        )
    })
}

/// WR-01: the number of elements of a receive. `list` is the address of its list.
pub(crate) fn receive_elements(count: i32, list: usize, most: u32) -> Finding {
    Finding::new(
        Id::Wr01,
        format!("num_sge {count} (sg_list {list:#x}), the queue was made for {most}"),
        "raise max_recv_sge (max_sge of an SRQ), or use fewer elements",
    )
}

/// WR-10: a receive of a UD QP that is too short for the GRH.
#[inline]
pub(crate) fn datagram_receive(bytes: u64) -> Option<Finding> {
    (bytes < 41).then(|| {
        Finding::new(
            Id::Wr10,
            format!("a receive of {bytes} bytes: the first 40 of a datagram are its GRH"),
            "make it 40 bytes longer than what is expected",
        )
    })
}

/// WR-09: a destroyed address handle that a request in flight uses.
pub(crate) fn handle_in_flight(qp: &str, wr_id: u64, posted: Option<Stack>) -> Finding {
    Finding::new(
        Id::Wr09,
        format!("a send of {qp} with wr_id {wr_id:#x} uses it and has not completed"),
        "poll the send's completion first",
    )
    .from(posted.map(|stack| ("which was posted", stack)))
}

/// WR-11: a list that returns to one of its requests.
pub(crate) fn ring() -> Finding {
    Finding::new(
        Id::Wr11,
        "the list of requests returns to where it was",
        "set next = NULL on the last one",
    )
}

/// CQ-01: more signaled requests than the CQ at `cq` has entries.
pub(crate) fn too_many_signaled(due: u32, cq: usize, room: u32, origin: Origin) -> Finding {
    Finding::new(
        Id::Cq01,
        format!("{due} signaled sends have not been polled, cq {cq:#x} has room for {room}"),
        "poll more often, or make the CQ as large as the send queues that complete there",
    )
    .from(Some(origin))
}

/// The properties by which requests are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) remote: u64,
    pub(crate) count: usize,
    /// The first element: address, length, lkey.
    pub(crate) first: (u64, u32, u32),
}

/// A list that was refused in its middle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusedList {
    pub(crate) first: RequestKey,
    /// The `wr_id` of `*bad_wr`.
    pub(crate) refused_wr_id: u64,
    /// Number of posted requests.
    pub(crate) posted: usize,
    /// Number of all requests.
    pub(crate) length: usize,
    pub(crate) error: i32,
}

impl RefusedList {
    /// The record of a refused list; `None` if its posted part cannot be told from the rest.
    pub(crate) fn new(
        first: RequestKey,
        bad: u64,
        posted: usize,
        all: usize,
        error: i32,
    ) -> Option<Self> {
        (posted > 0 && bad != first.wr_id).then_some(Self {
            first,
            refused_wr_id: bad,
            posted,
            length: all,
            error,
        })
    }

    /// WR-13: the list is posted again from its start. `is_in_flight` tells whether a request with
    /// the first wr_id is in flight.
    pub(crate) fn posted_again(
        &self,
        next: &RequestKey,
        is_in_flight: bool,
        list: Option<Stack>,
    ) -> Option<Finding> {
        let Self { posted, length: all, refused_wr_id: bad, .. } = *self;
        if *next != self.first || !is_in_flight {
            return None;
        }
        let error = layer_tap::names::errno(self.error);
        let text = format!(
            "it is in flight already: {posted} of the {all} requests of a list were posted when it was refused ({error}); *bad_wr, wr_id {bad:#x}, was the first that was not"
        );
        let remedy = "go on with *bad_wr: what lies before it was posted, and completes";
        Some(
            Finding::new(Id::Wr13, text, remedy)
                .from(list.map(|stack| ("the list was posted", stack))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{IBV_QPS_INIT, IBV_QPT_RC};

    #[test]
    fn a_full_send_queue_tells_why_it_stays_full() {
        let none = send_queue_is_full(128, 0);
        assert!(
            none.text.ends_with("128 requests outstanding (0 signaled), none of them signaled")
        );
        let some = send_queue_is_full(128, 4);
        assert!(some.text.ends_with("(4 signaled), their completions not polled"));
        assert_ne!(none.remedy, some.remedy);
    }

    #[test]
    fn full_queues_are_told_with_their_receives() {
        assert!(receive_queue_is_full(8).text.contains("all 8 receives"));
        assert!(shared_queue_is_full(9).text.contains("9 receives are posted"));
        assert!(only_unsignaled(16).text.starts_with("all 16 entries"));
    }

    #[test]
    fn receives_are_posted_from_init_on() {
        let early = receive_state(IBV_QPT_RC, IBV_QPS_RESET, None).expect("a finding");
        assert_eq!(early.id, Id::Qp01);
        assert_eq!(receive_state(IBV_QPT_RC, IBV_QPS_INIT, None), None);
        assert_eq!(receive_state(IBV_QPT_DRIVER, IBV_QPS_RESET, None), None);
    }

    #[test]
    fn receives_of_a_qp_with_an_srq_go_to_the_srq() {
        let found = receive_state(IBV_QPT_RC, IBV_QPS_RESET, Some(0xa)).expect("a finding");
        assert_eq!((found.id, found.text.as_str()), (Id::Ob05, "the QP receives from srq 0xa"));
    }

    #[test]
    fn the_elements_of_a_receive_are_told_with_the_limit() {
        let found = receive_elements(3, 0x10, 2);
        assert_eq!(found.text, "num_sge 3 (sg_list 0x10), the queue was made for 2");
    }

    #[test]
    fn a_datagram_needs_41_bytes() {
        assert!(datagram_receive(40).is_some());
        assert_eq!(datagram_receive(41), None);
    }

    #[test]
    fn a_handle_in_use_is_told_with_its_request() {
        let found = handle_in_flight("qp 0x5", 7, Some([2; 8]));
        assert_eq!(found.text, "a send of qp 0x5 with wr_id 0x7 uses it and has not completed");
        assert_eq!(found.origin, Some(("which was posted", [2; 8])));
    }

    #[test]
    fn a_ring_and_a_full_cq_have_remedies() {
        assert!(ring().remedy.contains("next = NULL"));
        let found = too_many_signaled(9, 0xc, 8, ("the CQ was created", [1; 8]));
        assert_eq!(found.text, "9 signaled sends have not been polled, cq 0xc has room for 8");
    }

    const FIRST: RequestKey =
        RequestKey { wr_id: 1, opcode: 2, remote: 0, count: 1, first: (0x1000, 8, 3) };

    fn list() -> RefusedList {
        RefusedList::new(FIRST, 4, 3, 8, libc::ENOMEM).expect("a record")
    }

    #[test]
    fn a_list_that_is_posted_again_is_found() {
        let found = list().posted_again(&FIRST, true, None).expect("a finding");
        assert_eq!(found.id, Id::Wr13);
        assert!(found.text.contains("3 of the 8 requests"), "{}", found.text);
        assert!(found.text.contains("(ENOMEM); *bad_wr, wr_id 0x4"), "{}", found.text);
    }

    #[test]
    fn another_request_is_not_the_list_again() {
        let other = RequestKey { remote: 8, ..FIRST };
        assert_eq!(list().posted_again(&other, true, None), None);
    }

    #[test]
    fn a_request_that_completed_may_be_posted_again() {
        assert_eq!(list().posted_again(&FIRST, false, None), None);
    }

    #[test]
    fn a_list_that_was_refused_at_its_start_has_no_posted_part() {
        assert!(RefusedList::new(FIRST, 4, 0, 8, libc::ENOMEM).is_none());
        assert!(RefusedList::new(FIRST, FIRST.wr_id, 3, 8, libc::ENOMEM).is_none());
    }
}
