//! Failure of a QP: its state, its events, and the flush of posted requests (IBTA 1.7 10.3.1).
//! Requesters and responders enter here after an error, `departing` after a change to ERR.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::{Pair, Qp, Role};
use abi::*;
use soft_local::shm::layout::qpn;
use soft_semantics::completion::{Cqe, found_by};
use soft_semantics::failure_state::FailureEffects;
use soft_semantics::receive::Receive;
use soft_semantics::state::{QpState, QpType};

impl Qp {
    /// Handles a failed send request: a reliable QP goes to ERR, any other QP to SQE
    /// (IBTA 1.7 10.3.1). Returns whether the state changed; the caller then owes a call of
    /// `handle_broken_sends`.
    #[cold]
    pub(in crate::engine) fn stop_sending(&self, fatally: bool) -> bool {
        if fatally || self.qp_type().is_reliable() {
            return self.fail();
        }
        let stops = |now| matches!(now, QpState::Rts | QpState::Sqd);
        self.change_state(|now, _| stops(now).then_some(QpState::Sqe))
    }

    /// Handles the consequences of a failed send request. The state may have changed again: the
    /// application may have read the completion and reset the QP.
    #[cold]
    pub(crate) fn handle_broken_sends(&self) {
        let mut requester = self.requester.lock();
        let FailureEffects { stopped, fatal } = requester.sends.failure.take_effects();
        drop(requester);
        if fatal {
            self.event(IBV_EVENT_QP_FATAL);
        }
        match self.state() {
            QpState::Err if stopped => self.flush_all(),
            QpState::Sqe if stopped => self.flush_sends(),
            _ => {}
        }
    }

    /// Changes the QP to ERR, and completes all posted requests with a flush error.
    #[cold]
    pub(crate) fn enter_error(&self) {
        if self.fail() {
            self.flush_all();
        }
    }

    /// Changes the QP to ERR. Returns false if the QP was in ERR or RESET. After true, the caller
    /// flushes.
    pub(crate) fn fail(&self) -> bool {
        self.fail_after(|| ())
    }

    /// As `fail`. On success, `first` is called before peers can read the new state.
    pub(in crate::engine) fn fail_after(&self, first: impl FnOnce()) -> bool {
        let rule =
            |now: QpState| (!matches!(now, QpState::Reset | QpState::Err)).then_some(QpState::Err);
        self.change_state_after(|now, _| rule(now), first)
    }

    /// Completes all posted requests with a flush error, in ERR.
    pub(crate) fn flush_all(&self) {
        self.flush_sends();
        self.flush_receives();
        if self.srq().is_some() || self.qp_type() == QpType::XrcRecv {
            self.event(IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }

    /// Flushes the send queue. The state is checked under the lock: the application may have reset
    /// the QP, and requests of its next connection must not be flushed.
    fn flush_sends(&self) {
        let mut requester = self.requester.lock();
        if matches!(self.state(), QpState::Err | QpState::Sqe) {
            requester.flush(self);
        }
    }

    pub(in crate::engine) fn flush_receives(&self) {
        let mut responder = self.responder.lock();
        // Checked under the lock, as in `flush_sends`.
        if self.state() != QpState::Err {
            return;
        }
        let unfinished = responder.take_unfinished(self);
        // A receive that XRC took from a shared queue was returned.
        let Some(pair) = self.pair() else { return };
        match (&pair.srq, unfinished) {
            (Some(srq), Some(receive)) => srq.give_back(&receive),
            (None, Some(receive)) => self.flush_receive(pair, &receive),
            (_, None) => {}
        }
        let mut receive = Receive::default();
        while pair.srq.is_none() && self.take_receive(&mut receive) {
            self.flush_receive(pair, &receive);
        }
    }

    fn flush_receive(&self, pair: &Pair, receive: &Receive) {
        let cqe = Cqe {
            wr_id: receive.wr_id,
            status: IBV_WC_WR_FLUSH_ERR,
            opcode: IBV_WC_RECV,
            qp_num: self.qpn(),
            vendor_err: found_by::FLUSH,
            ..Cqe::default()
        };
        pair.recv_cq.push_failed(&cqe, false);
    }

    /// Reports an asynchronous event of this QP.
    pub(crate) fn event(&self, event: u32) {
        match &self.role {
            // The owner of the home QP reports the event to its application.
            Role::StandIn(_) if event == IBV_EVENT_QP_LAST_WQE_REACHED => {}
            Role::StandIn(_) => {
                let own = qpn(self.adapter().fabric.slot(), self.index());
                self.adapter().xrc.refused(self.adapter(), own, self.qpn(), event);
            }
            Role::Receiver(receiver) => {
                self.adapter().xrc.report_to_openers(self.adapter(), self, event);
                if !receiver.openings.is_orphan() {
                    self.report_own(event);
                }
            }
            Role::Pair(_) | Role::Opened(_) | Role::Rss(_) => self.report_own(event),
        }
    }

    /// Reports an event to the application that owns this handle.
    pub(crate) fn report_own(&self, event: u32) {
        self.reports.report.report(&self.reports.events, self.handle(), event);
    }
}
