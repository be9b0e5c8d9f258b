//! Wires: the paths of a send queue's requests (`Wire`). Posts and polls call
//! `Requester::issue_waiting`, which calls the wire of the send queue.
//!
//! A QP has the wire of its kind (`qp::plain_wire`), or the wire to another host while it
//! is connected there. The wires of `faults` wrap that wire while needed, in this order from the
//! inside: a port that is down also stops requests with a fault.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::{Issued, Requester, Wire};
use soft_semantics::inbound::Nak;
use soft_semantics::request::RequestOperation;

/// A placeholder while the wire is issuing.
#[derive(Debug)]
struct NoWire;

impl Wire for NoWire {
    fn issue(&mut self, _: &mut Requester, _: &Qp) -> Issued {
        Issued::SoFar
    }
}

/// Calls `change` for the innermost wire.
pub(in crate::engine) fn change_innermost(
    wire: &mut Box<dyn Wire>,
    change: impl FnOnce(&mut Box<dyn Wire>),
) {
    match wire.inner() {
        Some(inner) => change_innermost(inner, change),
        None => change(wire),
    }
}

/// Wraps `wire`.
pub(in crate::engine) fn wrap<W: Wire + 'static>(
    wire: &mut Box<dyn Wire>,
    outer: impl FnOnce(Box<dyn Wire>) -> W,
) {
    let inner = std::mem::replace(wire, Box::new(NoWire));
    *wire = Box::new(outer(inner));
}

/// Removes wrappers that are no longer needed.
pub(in crate::engine) fn remove_unneeded(wire: &mut Box<dyn Wire>) {
    let is_needed = wire.is_needed();
    let Some(inner) = wire.inner() else { return };
    remove_unneeded(inner);
    if !is_needed {
        *wire = std::mem::replace(inner, Box::new(NoWire));
    }
}

/// Puts the wire of the QP's kind back in the place of a wire that replaced it.
pub(in crate::engine) fn restore_replaced(wire: &mut Box<dyn Wire>) {
    let Some(replaced) = wire.replaced() else { return };
    *wire = std::mem::replace(replaced, Box::new(NoWire));
}

impl Requester {
    /// Calls `issue` for the requests before `end` only, as if no later request were posted.
    pub(in crate::engine) fn issue_before<T>(
        &mut self,
        end: u64,
        issue: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let posted = std::mem::replace(&mut self.sends.queue.posted, end);
        let issued = issue(self);
        self.sends.queue.posted = posted;
        issued
    }

    /// Makes the remote QP refuse request `n`, in place of the requested operation. `issue` issues
    /// the request.
    pub(in crate::engine) fn issue_with_refusal<T>(
        &mut self,
        n: u64,
        nak: Nak,
        issue: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let operation = &mut self.sends.queue.entry(n).request.operation;
        let kept = std::mem::replace(operation, RequestOperation::Refused(nak));
        let issued = self.issue_before(n + 1, issue);
        self.sends.queue.entry(n).request.operation = kept;
        issued
    }

    /// Issues waiting requests as far as possible.
    pub(in crate::engine) fn issue_waiting(&mut self, qp: &Qp) {
        let mut wire = std::mem::replace(&mut self.wire, Box::new(NoWire));
        let issued = wire.issue(self, qp);
        self.wire = wire;
        if issued == Issued::PortDown {
            self.port_down();
            self.issue_waiting(qp);
        }
    }
}
