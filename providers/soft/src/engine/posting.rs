//! Posting of send requests: what is refused at once, what is issued, and what has to wait (ibv_post_send(3)).

use super::objects::connection::Requester;
use super::objects::qp::Qp;
use super::request::{Request, Taken, taken};
use super::requester::MAX_MESSAGE;
use super::runs::is_small_move;
use super::state::{Kind, State};
use abi::*;
use soft_memory::{Range, Ranges};
use soft_sys::errno::Errno;

impl Requester {
    /// Queues one request and issues it if nothing is before it.
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

    /// As `post`; `more` requests follow at once, and `post_rest` after them.
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
        if matches!(state, State::Reset | State::Init | State::Rtr) {
            return Err(Errno::EINVAL);
        }
        if self.queue.wants_care() {
            self.take_care(qp, request, list)?;
        }
        let len = self.check(qp.kind, request, list)?;
        let n = self.queue.push(request, list, len);
        if matches!(state, State::Err | State::Sqe) {
            self.flush(qp);
            return Ok(());
        }
        if state != State::Sqd && self.queue.issued == n && self.fate.is_going() {
            if more && (is_small_move(request, len) || self.goes_far(request)) {
                self.held_back = true;
            } else {
                self.issue_waiting(qp);
            }
        }
        if self.queue.issued <= n {
            self.keep_waiting(qp, request, n);
        }
        self.reap(qp);
        qp.sends_outstanding(self.is_busy(qp));
        Ok(())
    }

    /// Whether a request goes to another host, so that one system call should do for it and those behind it.
    fn goes_far(&self, request: &Request) -> bool {
        self.wire.gathers() || request.to.elsewhere
    }

    /// Before a request is queued that finds the queue full, or that a fault may strike.
    ///
    /// # Errors
    /// As `post`.
    #[cold]
    fn take_care(&mut self, qp: &Qp, request: &Request, list: &[ibv_sge]) -> Result<(), Errno> {
        if self.queue.is_full() {
            self.advance(qp);
            if self.queue.is_full() {
                return Err(Errno::ENOMEM);
            }
        }
        if self.places(qp) == 0 {
            return Err(Errno::ENOMEM);
        }
        if self.wire.strikes().is_some() {
            // What is refused does not count. What is flushed does: when a QP goes to error is a matter of time.
            self.check(qp.kind, request, list)?;
            self.note_fault(request.opcode);
        }
        Ok(())
    }

    /// Issues what `post_one_of` held back because it may be done together with what follows.
    #[inline]
    pub(crate) fn post_rest(&mut self, qp: &Qp) {
        if std::mem::replace(&mut self.held_back, false)
            && qp.state() == State::Rts
            && self.fate.is_going()
        {
            self.issue_waiting(qp);
            if qp.kind == Kind::Ud {
                // Their buffers were still ours when they were posted, and are not when the list is.
                for n in self.queue.issued..self.queue.posted {
                    if !self.queue.entry(n).has(IBV_SEND_INLINE) {
                        super::ud::keep(self, qp, n);
                    }
                }
            }
            self.reap(qp);
            qp.sends_outstanding(self.is_busy(qp));
        }
    }

    /// Whether a request can be posted on a QP of `kind`; its length in bytes.
    ///
    /// # Errors
    /// `EINVAL` wrong opcode, list or inline length.
    pub(crate) fn check(
        &self,
        kind: Kind,
        request: &Request,
        list: &[ibv_sge],
    ) -> Result<u32, Errno> {
        let inlines = match taken(kind, request.opcode) {
            Some(Taken::Bytes) => true,
            Some(Taken::NoInline) => false,
            Some(Taken::Segments) => return self.check_segmented(request, list),
            None => return Err(Errno::EINVAL),
        };
        if list.len() > self.queue.max_sge {
            return Err(Errno::EINVAL);
        }
        let len: u64 = list.iter().map(|s| u64::from(s.length)).sum();
        // A datagram longer than the MTU fails when its turn comes.
        if len > u64::from(MAX_MESSAGE) {
            return Err(Errno::EINVAL);
        }
        if kind == Kind::Raw {
            super::ethernet::check(request.opcode, len)?;
        }
        let inline = request.flags & IBV_SEND_INLINE != 0;
        if inline && (!inlines || len > self.queue.max_inline as u64) {
            return Err(Errno::EINVAL);
        }
        Ok(len as u32)
    }

    /// Request `n` was posted and cannot be issued yet.
    #[cold]
    fn keep_waiting(&mut self, qp: &Qp, request: &Request, n: u64) {
        if request.flags & IBV_SEND_INLINE != 0 {
            self.keep_inline(n);
        } else if qp.kind == Kind::Ud && !self.held_back {
            super::ud::keep(self, qp, n);
        }
        if request.opcode == IBV_WR_TSO {
            self.keep_tso_header(n);
        }
        if !self.held_back {
            self.wait_for_acks(qp);
        }
    }

    /// Requests wait to be issued: an acknowledgement shall wake us if nobody polls or, where none is due, time.
    #[cold]
    pub(super) fn wait_for_acks(&mut self, qp: &Qp) {
        if qp.kind.is_connected() && qp.state() == State::Rts && self.fate.is_going() {
            qp.await_acks();
            if self.acked == self.next {
                self.hold_up(qp, self.queue.issued);
            }
        }
    }

    /// Copies inline data of a request that has to wait: the application's buffer is its own again after the post.
    pub(crate) fn keep_inline(&mut self, n: u64) {
        let ranges = self.raw_ranges(n);
        let len = ranges.total();
        let to = self.queue.inline_mut(n);
        debug_assert!(len <= to.len());
        let _own = ranges.gather_bytes(0, to.get_mut(..len).unwrap_or_default());
        self.queue.entry(n).kept = true;
    }

    /// The list as bare addresses: inline data needs no registration.
    pub(super) fn raw_ranges(&self, n: u64) -> Ranges {
        let mut ranges = Ranges::new();
        for sge in self.queue.list(n) {
            // SAFETY: what a caller of ibv_post_send(3) gives as inline data it may read, until the post returns; it is only read.
            ranges.push(unsafe { Range::at(sge.addr, sge.length as usize) });
        }
        ranges
    }
}
