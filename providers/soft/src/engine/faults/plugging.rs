//! Fault rules and the state of the port for a QP: a new QP takes both over, and `port.rs` changes
//! the state of the port.

use crate::engine::queues::qp::Qp;

impl Qp {
    /// Applies the fault rules and the port state to a new QP.
    pub(in crate::engine) fn apply_fault_rules(&self) {
        let port = &self.adapter().port;
        {
            let plan = port.plan.lock();
            self.requester().lock().add_fault_rules(&plan, self.ordinal(), self.qp_type());
            if !plan.is_empty() {
                // Faults must happen even if no thread polls.
                self.await_acks();
            }
        }
        if port.is_down() {
            self.set_plugged(false);
            // The port may have come up before the QP was listed.
            if !port.is_down() {
                self.set_plugged(true);
            }
        }
    }

    /// Changes the port state of the QP.
    pub(crate) fn set_plugged(&self, plugged: bool) {
        {
            let mut requester = self.requester().lock();
            if plugged {
                requester.port_up();
            } else {
                requester.port_down();
            }
        }
        self.responder().lock().set_port(!plugged);
        self.publish_port_state();
    }
}
