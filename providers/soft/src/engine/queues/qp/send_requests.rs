//! The requests of a send queue, whichever wire carries them: what was posted, what was issued, and
//! whether the queue still works. `engine/queues/qp/request_memory.rs` has the methods that need
//! the QP.

use abi::ibv_sge;
use soft_memory::{Range, Ranges};
use soft_semantics::failure_state::FailureState;
use soft_semantics::request::{RequestPhase, SendQueue};
use soft_semantics::strict::UnpolledRequests;

/// The requests of a send queue.
#[derive(Debug)]
pub(crate) struct SendRequests {
    pub(crate) queue: SendQueue,
    /// Present in strict mode (`engine::faults::strict`).
    pub(in crate::engine) unpolled: Option<Box<UnpolledRequests>>,
    /// Whether the send queue still works. Reset by RESET, and by the change from SQE to RTS.
    pub(crate) failure: FailureState,
    /// The application waits for the event of a drained queue (SQD).
    pub(in crate::engine) drain_awaited: bool,
    /// The request that waits for operations in flight, or for the atomics lock. No arrival reports
    /// the end of that wait.
    pub(in crate::engine) blocked_request: Option<u64>,
    /// Requests of the current list are gathered and not issued yet.
    pub(in crate::engine) gathering: bool,
}

impl SendRequests {
    pub(in crate::engine) const fn new(queue: SendQueue) -> Self {
        Self {
            queue,
            unpolled: None,
            failure: FailureState::Working,
            drain_awaited: false,
            blocked_request: None,
            gathering: false,
        }
    }

    /// Whether a request waits to be issued, in a queue that works.
    #[inline]
    pub(in crate::engine) const fn has_issuable(&self) -> bool {
        self.queue.issued != self.queue.posted && self.failure.is_working()
    }

    /// Whether request `n` needs no remote QP.
    #[cold]
    pub(in crate::engine) fn is_local(&mut self, n: u64) -> bool {
        self.queue.entry(n).request.operation.is_local()
    }

    /// Fails request `n` with `status`. No later request is issued.
    pub(crate) fn fail(&mut self, n: u64, status: u32) {
        self.end_request(n, RequestPhase::Failed(status));
    }

    /// Ends request `n` in this phase. No later request is issued.
    pub(in crate::engine) fn end_request(&mut self, n: u64, phase: RequestPhase) {
        self.queue.entry(n).phase = phase;
        self.queue.issued = self.queue.issued.max(n + 1);
        self.failure.fail();
    }

    /// Completes request `n` with success although no peer receives it.
    pub(in crate::engine) fn lose_request(&mut self, n: u64) {
        self.queue.entry(n).phase = RequestPhase::Done;
        self.queue.issued = n + 1;
    }

    /// Forgets all posted requests (change to RESET).
    pub(in crate::engine) fn clear(&mut self) {
        self.queue.clear();
        if let Some(unpolled) = &mut self.unpolled {
            unpolled.clear();
        }
        self.failure.resume();
        self.drain_awaited = false;
        self.blocked_request = None;
    }

    /// Copies inline data of a waiting request, because the application may reuse its buffer after
    /// the post.
    pub(crate) fn keep_inline(&mut self, n: u64) {
        let ranges = self.raw_ranges(n);
        let len = ranges.total();
        let to = self.queue.inline_mut(n);
        debug_assert!(len <= to.len());
        let _own = ranges.gather_bytes(0, to.get_mut(..len).unwrap_or_default());
        self.queue.entry(n).inline_is_copied = true;
    }

    /// The kept inline data of request `n`.
    #[inline]
    pub(in crate::engine) fn kept_inline(&mut self, n: u64) -> Range<'static> {
        let len = self.queue.entry(n).len as usize;
        let base = self.queue.inline_mut(n).as_mut_ptr();
        // SAFETY: the queue keeps a copy of at least `len` bytes until the request is over.
        unsafe { Range::new(base, len) }
    }

    /// The ranges of request `n` without a look at keys: inline data needs no registration.
    pub(in crate::engine) fn raw_ranges(&self, n: u64) -> Ranges<'static> {
        let mut ranges = Ranges::new();
        for sge in self.queue.list(n) {
            ranges.push(posted_bytes(sge.addr, sge.length as usize));
        }
        ranges
    }

    /// The bytes of a request with inline data; None: too many.
    #[inline]
    pub(in crate::engine) fn inline_source(&self, sge: &ibv_sge) -> Option<Range<'static>> {
        let len = sge.length as usize;
        (len <= self.queue.max_inline).then(|| posted_bytes(sge.addr, len))
    }
}

/// Bytes that a request names without a key: inline data, or the header of a segmented send. They
/// are only read, and only until the post returns.
#[inline]
pub(in crate::engine) fn posted_bytes(address: u64, len: usize) -> Range<'static> {
    // SAFETY: the caller of ibv_post_send(3) keeps these bytes readable until the post returns.
    unsafe { Range::at(address, len) }
}
