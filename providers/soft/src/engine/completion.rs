//! A completion queue's ring of entries and its arming (ibv_poll_cq(3), ibv_req_notify_cq(3)).
#![forbid(unsafe_code)]

/// One completion, as all ways of polling need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cqe {
    pub(crate) wr_id: u64,
    /// `ibv_wc_status`.
    pub(crate) status: u32,
    /// `ibv_wc_opcode`.
    pub(crate) opcode: u32,
    pub(crate) byte_len: u32,
    /// Immediate data as the sender gave it (network order), or the rkey that was invalidated.
    pub(crate) imm: u32,
    pub(crate) qp_num: u32,
    /// UD: the sender's QP number.
    pub(crate) src_qp: u32,
    /// `ibv_wc_flags`.
    pub(crate) wc_flags: u32,
}

/// What the next event waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    /// A solicited completion or an error.
    Solicited,
    Any,
}

/// What became of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Quiet,
    /// The queue was armed and is no longer: send an event.
    Event,
    /// The queue is full; the completion is lost and the queue is in error.
    Overrun,
}

#[derive(Debug)]
pub(crate) struct CompletionRing {
    entries: Box<[Cqe]>,
    pushed: u64,
    popped: u64,
    armed: Armed,
}

impl CompletionRing {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            entries: vec![Cqe::default(); capacity].into_boxed_slice(),
            pushed: 0,
            popped: 0,
            armed: Armed::No,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        (self.pushed - self.popped) as usize
    }

    /// Adds a completion. Errors count as solicited (ibv_req_notify_cq(3)).
    #[inline]
    pub(crate) fn push(&mut self, cqe: &Cqe, solicited: bool) -> Pushed {
        let capacity = self.entries.len() as u64;
        if self.pushed - self.popped == capacity {
            return Pushed::Overrun;
        }
        self.entries[(self.pushed % capacity) as usize] = *cqe;
        self.pushed += 1;
        let wanted = match self.armed {
            Armed::No => return Pushed::Quiet,
            Armed::Any => true,
            Armed::Solicited => solicited || cqe.status != 0,
        };
        if wanted {
            self.armed = Armed::No;
            Pushed::Event
        } else {
            Pushed::Quiet
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Cqe> {
        if self.pushed == self.popped {
            return None;
        }
        let cqe = self.entries[(self.popped % self.entries.len() as u64) as usize];
        self.popped += 1;
        Some(cqe)
    }

    /// Arms the queue; `Any` is stronger than `Solicited` and is kept. Returns whether it was not armed before.
    pub(crate) fn arm(&mut self, how: Armed) -> bool {
        let fresh = self.armed == Armed::No;
        if self.armed != Armed::Any {
            self.armed = how;
        }
        fresh
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed != Armed::No
    }

    /// Changes the capacity, keeping what is queued; `false` when that does not fit.
    pub(crate) fn resize(&mut self, capacity: usize) -> bool {
        let queued = self.len();
        if queued > capacity || capacity == 0 {
            return false;
        }
        let mut entries = Vec::with_capacity(capacity);
        while let Some(cqe) = self.pop() {
            entries.push(cqe);
        }
        entries.resize(capacity, Cqe::default());
        self.entries = entries.into_boxed_slice();
        self.popped = 0;
        self.pushed = queued as u64;
        true
    }

    /// Drops the completions of a QP that is destroyed or reset, keeping the order of the rest.
    pub(crate) fn forget(&mut self, qp_num: u32) {
        for _ in 0..self.len() {
            if let Some(cqe) = self.pop()
                && cqe.qp_num != qp_num
            {
                let at = (self.pushed % self.entries.len() as u64) as usize;
                self.entries[at] = cqe;
                self.pushed += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cqe(wr_id: u64) -> Cqe {
        Cqe { wr_id, qp_num: wr_id as u32 % 2, ..Cqe::default() }
    }

    #[test]
    fn an_armed_queue_gives_one_event() {
        let mut ring = CompletionRing::new(8);
        assert_eq!(ring.push(&cqe(0), true), Pushed::Quiet);
        assert!(ring.arm(Armed::Any));
        assert_eq!(ring.push(&cqe(1), false), Pushed::Event);
        assert_eq!(ring.push(&cqe(2), true), Pushed::Quiet);
    }

    #[test]
    fn a_solicited_only_queue_waits_for_solicited_or_failed() {
        let mut ring = CompletionRing::new(8);
        ring.arm(Armed::Solicited);
        assert_eq!(ring.push(&cqe(0), false), Pushed::Quiet);
        assert_eq!(ring.push(&cqe(1), true), Pushed::Event);
        ring.arm(Armed::Solicited);
        assert_eq!(ring.push(&Cqe { status: 5, ..cqe(2) }, false), Pushed::Event);
        ring.arm(Armed::Any);
        ring.arm(Armed::Solicited);
        assert_eq!(ring.push(&cqe(3), false), Pushed::Event, "Any is not weakened");
    }

    #[test]
    fn a_full_queue_overruns_and_keeps_what_it_had() {
        let mut ring = CompletionRing::new(2);
        ring.push(&cqe(0), false);
        ring.push(&cqe(1), false);
        assert_eq!(ring.push(&cqe(2), false), Pushed::Overrun);
        assert_eq!(ring.pop().map(|c| c.wr_id), Some(0));
        assert_eq!(ring.pop().map(|c| c.wr_id), Some(1));
        assert_eq!(ring.pop(), None);
    }

    #[test]
    fn resizing_keeps_order_and_refuses_to_lose() {
        let mut ring = CompletionRing::new(3);
        for i in 0..5 {
            ring.push(&cqe(i), false);
            if i < 2 {
                ring.pop();
            }
        }
        assert!(!ring.resize(2));
        assert!(ring.resize(5));
        ring.push(&cqe(5), false);
        let ids: Vec<u64> = std::iter::from_fn(|| ring.pop()).map(|c| c.wr_id).collect();
        assert_eq!(ids, [2, 3, 4, 5]);
    }

    #[test]
    fn completions_of_a_destroyed_qp_are_forgotten() {
        let mut ring = CompletionRing::new(4);
        for i in 0..4 {
            ring.push(&cqe(i), false);
        }
        ring.forget(1);
        let ids: Vec<u64> = std::iter::from_fn(|| ring.pop()).map(|c| c.wr_id).collect();
        assert_eq!(ids, [0, 2]);
    }
}
