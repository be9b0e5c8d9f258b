//! Posting of send requests (ibv_post_send(3)): refuses, issues or queues each request. Entered by
//! `post_send` under the requester lock; leads to `issue` or to a wait in the send queue.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::Requester;
use crate::engine::ring::requester::MAX_MESSAGE;
use crate::engine::ring::runs::is_small_move;
use crate::probes;
use abi::*;
use soft_semantics::request::{PayloadRule, Request, payload_rule};
use soft_semantics::state::{QpState, QpType};
use soft_sys::errno::Errno;

impl Requester {
    /// Queues a request, and issues it if no earlier request waits.
    ///
    /// # Errors
    /// `EINVAL` wrong state, opcode, list or inline length; `ENOMEM` the queue is full.
    #[inline]
    pub(crate) fn post(
        &mut self,
        qp: &Qp,
        request: &Request,
        list: &[ibv_sge],
    ) -> Result<(), Errno> {
        self.post_one_of(qp, request, list, false)
    }

    /// As `post`. If `more` requests follow, the caller calls `post_rest` after the last of them.
    ///
    /// # Errors
    /// As `post`.
    #[inline]
    pub(crate) fn post_one_of(
        &mut self,
        qp: &Qp,
        request: &Request,
        list: &[ibv_sge],
        more: bool,
    ) -> Result<(), Errno> {
        let state = qp.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(Errno::EINVAL);
        }
        if self.sends.queue.wants_care() {
            self.check_capacity_and_faults(qp, request, list)?;
        }
        let len = self.check(qp.qp_type(), request, list)?;
        let n = self.sends.queue.push(request, list, len);
        probes::post_send(request.wr_id, request.opcode, len, qp);
        if matches!(state, QpState::Err | QpState::Sqe) {
            self.flush(qp);
            return Ok(());
        }
        if state != QpState::Sqd && self.sends.queue.issued == n && self.sends.failure.is_working()
        {
            if more && (is_small_move(request, len) || self.goes_to_other_host(request)) {
                self.sends.gathering = true;
            } else {
                self.issue_waiting(qp);
            }
        }
        if self.sends.queue.issued <= n {
            self.prepare_to_wait(qp, request, n);
        }
        self.reap(qp);
        qp.sends_outstanding(self.is_busy(qp));
        Ok(())
    }

    /// Whether a request goes to another host. A system call should then carry the whole list.
    fn goes_to_other_host(&self, request: &Request) -> bool {
        self.wire.gathers() || request.destination.elsewhere
    }

    /// Checks before a request is queued into a full queue, or into a queue with fault rules.
    ///
    /// # Errors
    /// As `post`.
    #[cold]
    fn check_capacity_and_faults(
        &mut self,
        qp: &Qp,
        request: &Request,
        list: &[ibv_sge],
    ) -> Result<(), Errno> {
        if self.sends.queue.is_full() {
            self.advance(qp);
            if self.sends.queue.is_full() {
                return Err(Errno::ENOMEM);
            }
        }
        if self.postable_requests(qp) == 0 {
            return Err(Errno::ENOMEM);
        }
        if self.wire.fault_schedule().is_some() {
            // Fault rules do not count refused requests. They count flushed requests, because the
            // time of a change to ERR is not deterministic.
            self.check(qp.qp_type(), request, list)?;
            self.count_for_faults(request.opcode);
        }
        Ok(())
    }

    /// Issues the requests that `post_one_of` gathered to issue them together.
    #[inline(always)]
    pub(crate) fn post_rest(&mut self, qp: &Qp) {
        if self.sends.gathering {
            self.sends.gathering = false;
            self.issue_gathered(qp);
        }
    }

    #[inline(never)]
    fn issue_gathered(&mut self, qp: &Qp) {
        if qp.state() == QpState::Rts && self.sends.failure.is_working() {
            self.issue_waiting(qp);
            if qp.qp_type() == QpType::Ud {
                // The application may reuse its buffers after the post of the list, so datagrams
                // that still wait are copied now.
                for n in self.sends.queue.issued..self.sends.queue.posted {
                    if !self.sends.queue.entry(n).has_flag(IBV_SEND_INLINE) {
                        crate::engine::datagram::ud::copy_waiting(self, qp, n);
                    }
                }
            }
            self.reap(qp);
            qp.sends_outstanding(self.is_busy(qp));
        }
    }

    /// Returns the length in bytes of a request that may be posted on a QP of `kind`.
    ///
    /// # Errors
    /// `EINVAL` wrong opcode, list or inline length.
    pub(crate) fn check(
        &self,
        kind: QpType,
        request: &Request,
        list: &[ibv_sge],
    ) -> Result<u32, Errno> {
        let inlines = match payload_rule(kind, request.opcode) {
            Some(PayloadRule::Bytes) => true,
            Some(PayloadRule::NoInline) => false,
            Some(PayloadRule::Segments) => return self.check_segmented(request, list),
            None => return Err(Errno::EINVAL),
        };
        if list.len() > self.sends.queue.max_sge {
            return Err(Errno::EINVAL);
        }
        let len: u64 = list.iter().map(|s| u64::from(s.length)).sum();
        // A datagram longer than the MTU is accepted here and fails when it is issued.
        if len > u64::from(MAX_MESSAGE) {
            return Err(Errno::EINVAL);
        }
        if kind == QpType::Raw {
            crate::engine::frames::check(request.opcode, len)?;
        }
        let inline = request.flags & IBV_SEND_INLINE != 0;
        if inline && (!inlines || len > self.sends.queue.max_inline as u64) {
            return Err(Errno::EINVAL);
        }
        Ok(len as u32)
    }

    /// Prepares request `n`, which cannot be issued yet: copies data that the application may
    /// change.
    #[cold]
    fn prepare_to_wait(&mut self, qp: &Qp, request: &Request, n: u64) {
        if request.flags & IBV_SEND_INLINE != 0 {
            self.sends.keep_inline(n);
        } else if qp.qp_type() == QpType::Ud && !self.sends.gathering {
            crate::engine::datagram::ud::copy_waiting(self, qp, n);
        }
        if request.opcode == IBV_WR_TSO {
            self.keep_tso_header(n);
        }
        if !self.sends.gathering {
            self.wait_for_acks(qp);
        }
    }

    /// Makes sure that waiting requests are issued even if no thread polls: an acknowledgement
    /// wakes the process or, if none is due, the service thread looks again.
    #[cold]
    pub(in crate::engine) fn wait_for_acks(&mut self, qp: &Qp) {
        if qp.qp_type().is_connected()
            && qp.state() == QpState::Rts
            && self.sends.failure.is_working()
        {
            qp.await_acks();
            if self.ring.acked == self.ring.next {
                self.sends.watch_blocked(qp, self.sends.queue.issued);
            }
        }
    }
}
