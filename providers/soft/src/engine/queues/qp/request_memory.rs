//! The requests of a send queue, as far as they concern their QP: the memory that they name, and
//! work on memory windows. All wires use these functions; `engine/queues/qp/send_requests.rs` has
//! the rest.
#![forbid(unsafe_code)]

use crate::engine::keys::windows::BindResult;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::send_requests::SendRequests;
use abi::*;
use soft_memory::Ranges;
use soft_semantics::request::{RequestOperation, RequestPhase};

impl SendRequests {
    /// Executes work on local windows; no slot travels.
    #[cold]
    pub(crate) fn issue_local(&mut self, qp: &Qp, n: u64) -> bool {
        let done = match self.queue.entry(n).request.operation {
            RequestOperation::Bind(bind) => qp.adapter().bind(qp, &bind),
            RequestOperation::Invalidate { rkey } => qp.adapter().invalidate(qp, rkey),
            _ => BindResult::Refused,
        };
        match done {
            BindResult::Yes => {
                self.queue.entry(n).phase = RequestPhase::Done;
                true
            }
            BindResult::Later => {
                self.watch_blocked(qp, n);
                false
            }
            BindResult::Refused => {
                self.fail(n, IBV_WC_MW_BIND_ERR);
                true
            }
        }
    }

    /// Request `n` waits for an event without notification. The service thread tries again if no
    /// thread polls.
    #[cold]
    pub(in crate::engine) fn watch_blocked(&mut self, qp: &Qp, n: u64) {
        if self.blocked_request.replace(n) != Some(n) {
            qp.adapter().service.watch_qp(qp);
        }
    }

    /// The local memory of request `n`; None if an lkey is wrong. Code that is sensitive to time
    /// uses [`SendRequests::ranges_into`]: moving the large list costs more than filling it.
    pub(crate) fn ranges(&mut self, qp: &Qp, n: u64, need: u32) -> Option<Ranges<'static>> {
        // Built in place, because the list is large.
        let mut found = Some(Ranges::new());
        if let Some(ranges) = &mut found
            && !self.ranges_into(ranges, qp, n, need)
        {
            return None;
        }
        found
    }

    /// As [`SendRequests::ranges`], into an empty list; false instead of None.
    #[inline]
    pub(crate) fn ranges_into(&mut self, ranges: &mut Ranges, qp: &Qp, n: u64, need: u32) -> bool {
        let entry = self.queue.entry(n);
        let kept = entry.inline_is_copied;
        if !entry.has_flag(IBV_SEND_INLINE) {
            let pd = if entry.is_tag_operation { qp.receive_pd() } else { qp.pd() };
            return qp.adapter().regions.resolve_into(ranges, pd, self.queue.list(n), need);
        }
        if kept {
            ranges.push(self.kept_inline(n));
        } else {
            *ranges = self.raw_ranges(n);
        }
        true
    }
}
