//! Strict mode: refuses requests that the strictest adapter refuses and `soft` otherwise executes.
//!
//! Two processes of one host share memory, so path MTU and READ depth do not affect how bytes
//! travel. Between hosts the packet protocol has rules for both (IBTA 1.7 9.7.4.1). A strict queue
//! pair applies these rules on one host too. A place in its send queue is free only after the
//! program has polled the completion of the request, or of a later request.

use crate::inbound::Nak;
use crate::request::RequestOperation;
use abi::{IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_QP_OP_ERR};
use std::collections::VecDeque;

/// The attributes of both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// `path_mtu` of the requester, an `ibv_mtu`; 0: not known.
    pub own_mtu: u8,
    /// `path_mtu` of the responder, an `ibv_mtu`; 0: not known.
    pub remote_mtu: u8,
    /// `max_rd_atomic` of the requester.
    pub depth: u8,
    /// `max_dest_rd_atomic` of the responder.
    pub remote_depth: u8,
}

/// The result for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrictVerdict {
    /// The request is executed.
    Goes,
    /// The responder refuses the request, and enters ERR.
    Refused(Nak),
    /// The requester fails the request with this `ibv_wc_status`.
    Fails(u32),
    /// The transport is unreliable: the responder drops the message, and the requester never learns
    /// of it.
    Lost,
}

/// Whether a request takes one of the responder's resources for READs and atomics
/// (IBTA 1.7 9.7.4.1.9).
#[must_use]
pub const fn takes_resource(operation: &RequestOperation) -> bool {
    matches!(
        operation,
        RequestOperation::Read(_)
            | RequestOperation::Fetch(..)
            | RequestOperation::FetchAdd { .. }
            | RequestOperation::CompareSwap { .. }
            | RequestOperation::Store { .. }
            | RequestOperation::Flush { .. }
    )
}

/// The result for a request of `len` bytes between `ends`. `under_way`: number of incomplete
/// requests that take a resource, including this one.
#[must_use]
pub fn verdict(
    operation: &RequestOperation,
    len: u32,
    reliable: bool,
    under_way: usize,
    ends: &ConnectionLimits,
) -> StrictVerdict {
    if takes_resource(operation) {
        if ends.depth == 0 {
            return StrictVerdict::Fails(IBV_WC_LOC_QP_OP_ERR);
        }
        // A requester has at most `depth` such requests in flight.
        if under_way.min(usize::from(ends.depth)) > usize::from(ends.remote_depth) {
            return StrictVerdict::Refused(Nak::Invalid);
        }
    }
    if fits(len, ends.own_mtu, ends.remote_mtu) {
        return StrictVerdict::Goes;
    }
    match operation {
        // The responder accepts the single packet of a READ request, but splits the response by
        // another MTU than the requester expects.
        RequestOperation::Read(_) | RequestOperation::Fetch(..) => {
            StrictVerdict::Fails(IBV_WC_BAD_RESP_ERR)
        }
        RequestOperation::Send
        | RequestOperation::Segments(_)
        | RequestOperation::Write(_)
        | RequestOperation::Finish(_)
            if reliable =>
        {
            StrictVerdict::Refused(Nak::Invalid)
        }
        RequestOperation::Send
        | RequestOperation::Segments(_)
        | RequestOperation::Write(_)
        | RequestOperation::Finish(_) => StrictVerdict::Lost,
        _ => StrictVerdict::Goes,
    }
}

/// Whether both ends split a message of `len` bytes equally: every packet except the last is as
/// long as the MTU.
const fn fits(len: u32, own: u8, remote: u8) -> bool {
    let least = if own < remote { own } else { remote };
    own == remote || least == 0 || len <= 128 << least
}

/// Complete requests whose places in the send queue are not free: the program has polled neither
/// their completion nor a later one.
#[derive(Debug, Default)]
pub struct UnpolledRequests {
    /// Completions that the program has not polled, oldest first: position in the completion queue,
    /// and the count of complete requests up to there.
    completions: VecDeque<(u64, Count)>,
    /// All complete requests.
    complete: Count,
    /// Requests that the program knows to be complete.
    known_complete: Count,
}

/// A count of requests since the queue's creation.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    requests: u64,
    /// Number of those that take a responder's resource.
    resources: u64,
}

impl UnpolledRequests {
    /// Counts a complete request of the program. `position`: the position of its completion in the
    /// completion queue, if the request is signaled.
    pub fn completed(&mut self, takes_resource: bool, position: Option<u64>) {
        self.complete.requests += 1;
        self.complete.resources += u64::from(takes_resource);
        if let Some(position) = position {
            self.completions.push_back((position, self.complete));
        }
    }

    /// Records that the program polled all completions before `position`.
    pub fn polled(&mut self, position: u64) {
        while let Some((at, count)) = self.completions.front().copied()
            && at < position
        {
            self.known_complete = count;
            self.completions.pop_front();
        }
    }

    /// Number of places of complete requests that are not free.
    #[must_use]
    pub const fn occupied_places(&self) -> usize {
        (self.complete.requests - self.known_complete.requests) as usize
    }

    /// Number of those places whose requests took a responder's resource.
    #[must_use]
    pub const fn resources(&self) -> usize {
        (self.complete.resources - self.known_complete.resources) as usize
    }

    /// Frees all places, after a reset of the queue.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::RemoteAddress;
    use abi::{IBV_MTU_1024, IBV_MTU_4096};

    const READ: RequestOperation = RequestOperation::Read(RemoteAddress { addr: 0, rkey: 1 });
    const WRITE: RequestOperation = RequestOperation::Write(RemoteAddress { addr: 0, rkey: 1 });
    const ADD: RequestOperation =
        RequestOperation::FetchAdd { remote: RemoteAddress { addr: 0, rkey: 1 }, add: 1 };

    const fn ends(own: u32, remote: u32) -> ConnectionLimits {
        ConnectionLimits {
            own_mtu: own as u8,
            remote_mtu: remote as u8,
            depth: 16,
            remote_depth: 16,
        }
    }

    #[test]
    fn ends_of_one_mtu_pass_every_length() {
        for len in [0, 1024, 1025, 20_000, 1 << 31] {
            for operation in [RequestOperation::Send, READ, WRITE] {
                let both = ends(IBV_MTU_1024, IBV_MTU_1024);
                assert_eq!(verdict(&operation, len, true, 1, &both), StrictVerdict::Goes);
            }
        }
    }

    /// IBTA 1.7 9.7.4.1.
    #[test]
    fn with_two_mtus_only_single_packets_pass() {
        for (own, remote) in [(IBV_MTU_4096, IBV_MTU_1024), (IBV_MTU_1024, IBV_MTU_4096)] {
            let both = ends(own, remote);
            for operation in [RequestOperation::Send, READ, WRITE] {
                assert_eq!(
                    verdict(&operation, 1024, true, 1, &both),
                    StrictVerdict::Goes,
                    "{operation:?}"
                );
            }
            for len in [1025, 4096, 20_000] {
                let refused = StrictVerdict::Refused(Nak::Invalid);
                assert_eq!(verdict(&RequestOperation::Send, len, true, 1, &both), refused);
                assert_eq!(verdict(&WRITE, len, true, 1, &both), refused);
                assert_eq!(verdict(&WRITE, len, false, 1, &both), StrictVerdict::Lost);
                let fails = StrictVerdict::Fails(IBV_WC_BAD_RESP_ERR);
                assert_eq!(verdict(&READ, len, true, 1, &both), fails);
            }
            assert_eq!(verdict(&ADD, 8, true, 1, &both), StrictVerdict::Goes);
        }
    }

    #[test]
    fn an_unknown_mtu_agrees_with_every_other() {
        assert_eq!(verdict(&WRITE, 20_000, true, 1, &ends(0, IBV_MTU_1024)), StrictVerdict::Goes);
        assert_eq!(verdict(&WRITE, 20_000, true, 1, &ends(IBV_MTU_1024, 0)), StrictVerdict::Goes);
    }

    /// IBTA 1.7 9.7.4.1.9.
    #[test]
    fn more_reads_than_the_responder_has_resources_for_are_refused() {
        let deep = |depth, remote_depth| ConnectionLimits { depth, remote_depth, ..ends(1, 1) };
        for operation in [READ, ADD] {
            assert_eq!(verdict(&operation, 8, true, 1, &deep(16, 1)), StrictVerdict::Goes);
            let refused = StrictVerdict::Refused(Nak::Invalid);
            assert_eq!(verdict(&operation, 8, true, 2, &deep(16, 1)), refused);
            assert_eq!(verdict(&operation, 8, true, 1, &deep(16, 0)), refused);
            // The requester has one request in flight at a time.
            assert_eq!(verdict(&operation, 8, true, 9, &deep(1, 1)), StrictVerdict::Goes);
            let fails = StrictVerdict::Fails(IBV_WC_LOC_QP_OP_ERR);
            assert_eq!(verdict(&operation, 8, true, 1, &deep(0, 16)), fails);
        }
        assert_eq!(verdict(&WRITE, 8, true, 9, &deep(0, 0)), StrictVerdict::Goes);
    }

    #[test]
    fn a_place_is_free_when_its_completion_or_a_later_one_was_polled() {
        let mut unpolled = UnpolledRequests::default();
        unpolled.completed(false, None);
        unpolled.completed(true, Some(10));
        unpolled.completed(false, None);
        unpolled.completed(true, Some(12));
        unpolled.completed(false, None);
        assert_eq!((unpolled.occupied_places(), unpolled.resources()), (5, 2));
        unpolled.polled(10);
        assert_eq!(unpolled.occupied_places(), 5, "position 10 is not before 10");
        unpolled.polled(11);
        assert_eq!((unpolled.occupied_places(), unpolled.resources()), (3, 1));
        unpolled.polled(100);
        assert_eq!(unpolled.occupied_places(), 1, "the last one is not signaled");
        unpolled.clear();
        assert_eq!((unpolled.occupied_places(), unpolled.resources()), (0, 0));
    }
}
