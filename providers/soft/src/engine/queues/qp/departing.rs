//! Reset and end of a QP: posted requests are returned or forgotten, and its number and memory are
//! freed. `ibv_modify_qp` and `ibv_destroy_qp` enter here; `failing` completes requests after an
//! error.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::Qp;
use crate::engine::queues::served_by::ServedBy;
use crate::engine::ring::rendezvous::drop_fetches;
use soft_local::shm::layout::Life;
use soft_semantics::receive::Receive;
use soft_semantics::state::{QpState, QpType};
use std::sync::atomic::Ordering;

impl Qp {
    /// As `enter_error`, by ibv_modify_qp(3). A hardware adapter acknowledges and completes without
    /// polls. So messages that the remote application has seen complete must complete here, before
    /// the flush.
    #[cold]
    pub(crate) fn enter_error_by_modify(&self) {
        self.take_arrivals();
        let mut requester = self.requester.lock();
        requester.complete_acknowledged(self);
        self.release_requester(requester);
        self.enter_error();
    }

    /// Serves the arrivals that find a receive, and acknowledges them. A hardware adapter would
    /// have done so earlier.
    fn take_arrivals(&self) {
        // The application may have unmapped the memory before it ends the QP.
        self.advance_receive(ServedBy::Library);
        self.responder.lock().acknowledge_arrivals(self);
        if self.requester.lock().host_connection.is_some() {
            self.adapter().drive_wire(ServedBy::Library);
        }
    }

    /// Forgets all posted requests (RESET), including completions not polled.
    pub(crate) fn reset(&self) {
        self.take_arrivals();
        self.set_state(QpState::Reset);
        self.stop_polling();
        if self.qp_type() == QpType::XrcSend {
            self.adapter().xrc.senders.remove(self);
            self.adapter().xrc.forget_questions(self.qpn());
        }
        self.adapter().helping.wait_for_stuck_piece();
        let lent = {
            let mut requester = self.requester.lock();
            requester.forget_fetches(self);
            requester.send_last_ack(self);
            requester.reset();
            if let Some(mut connection) = requester.set_host_connection(None, self.qp_type()) {
                self.adapter().wire.forget_connection(self.index(), &mut connection);
                self.count_wire_user(false);
            }
            self.sends_outstanding(false);
            requester.take_lent()
        };
        if let Some((link, lent)) = lent {
            self.adapter().service.release_later(self.qpn(), link, lent);
        }
        let mut responder = self.responder.lock();
        let unfinished = responder.take_unfinished(self);
        if let (Some(srq), Some(receive)) = (self.srq(), unfinished) {
            srq.give_back(&receive);
        }
        responder.link = None;
        let mut receive = Receive::default();
        while self.srq().is_none() && self.take_receive(&mut receive) {}
        drop(responder);
        let Some(pair) = self.pair() else { return };
        if let Some((tm, own)) = self.tagging() {
            // Receives of tag matching belong to all QPs of the shared queue. They still complete,
            // and reports to software remain.
            drop_fetches(self, tm, own);
            pair.send_cq.drop_completions(self.qpn(), true);
            return;
        }
        pair.send_cq.drop_completions(self.qpn(), false);
        pair.recv_cq.drop_completions(self.qpn(), false);
    }

    /// Removes the QP from all lists, and frees its number.
    pub(crate) fn retire(&self) {
        self.reset();
        self.adapter().unbind_all(self.qpn());
        let next = self.responder.lock().position();
        self.publish_life(&self.life.incarnation.lock(), Life::NONE);
        self.entry().ring_base.store(next, Ordering::Relaxed);
        self.role.release(self.qp_type());
        self.release_memory();
        self.adapter().free_qp(self.index());
    }
}
