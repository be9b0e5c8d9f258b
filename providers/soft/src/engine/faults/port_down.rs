//! A port that is down: the wire of a send queue without a link, and the state that peers read.
//! `port.rs` takes the port of all QPs down and up; a new QP finds the port as it is.

use super::plan::FaultSchedule;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::wire::{remove_unneeded, wrap};
use crate::engine::queues::qp::{Issued, Requester, Wire};
use crate::engine::ring::Link;
use soft_semantics::Time;

/// A port that is down: no request leaves, and the remote QP counts as silent.
#[derive(Debug)]
struct PortDownWire {
    inner: Box<dyn Wire>,
    /// The removed link.
    link: Option<Box<Link>>,
    is_over: bool,
}

impl Wire for PortDownWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        if !qp.qp_type().is_connected() {
            // Unconnected QPs lose their requests, as on an unplugged cable.
            while requester.sends.has_issuable() {
                requester.sends.lose_request(requester.sends.queue.issued);
            }
            return Issued::SoFar;
        }
        while self.inner.issue(requester, qp) == Issued::PortDown {
            // The link returned by the inner wire is removed again.
            self.detach_link(&mut requester.ring.link);
        }
        Issued::SoFar
    }

    fn is_timed(&self) -> bool {
        self.inner.is_timed()
    }

    fn inner(&mut self) -> Option<&mut Box<dyn Wire>> {
        Some(&mut self.inner)
    }

    fn is_needed(&self) -> bool {
        !self.is_over
    }

    fn fault_schedule(&mut self) -> Option<&mut FaultSchedule> {
        self.inner.fault_schedule()
    }

    fn held_until(&self, n: u64) -> Option<Time> {
        self.inner.held_until(n)
    }

    fn detach_link(&mut self, link: &mut Option<Box<Link>>) -> bool {
        // A new link replaces the removed link.
        self.link = link.take().or(self.link.take());
        true
    }

    fn attach_link(&mut self) -> Option<Box<Link>> {
        self.link.take()
    }

    fn port_up(&mut self) {
        self.is_over = true;
    }
}

impl Requester {
    /// Called when the port goes down.
    #[cold]
    pub(crate) fn port_down(&mut self) {
        if !self.wire.detach_link(&mut self.ring.link) {
            let link = self.ring.link.take();
            wrap(&mut self.wire, |inner| PortDownWire { inner, link, is_over: false });
        }
    }

    /// Called when the port comes up.
    pub(crate) fn port_up(&mut self) {
        if let Some(link) = self.wire.attach_link() {
            self.ring.link = Some(link);
        }
        self.wire.port_up();
        remove_unneeded(&mut self.wire);
    }
}
