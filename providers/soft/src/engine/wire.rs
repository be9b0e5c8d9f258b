//! Wires: the paths of a send queue's requests (`Wire`). Posts and polls call
//! `Requester::issue_waiting`, which calls the wire of the send queue.
//!
//! A QP has the wire of its kind, or the wire to another host while it is connected there.
//! `FaultyWire` and `PortDownWire` wrap that wire while needed, in this order from the inside: a
//! port that is down also stops requests with a fault.
#![forbid(unsafe_code)]

use super::objects::connection::{Issued, Link, Requester, Wire};
use super::objects::plan::FaultSchedule;
use super::objects::qp::Qp;
use super::state::Kind;
use crate::host::HostConnection;
use soft_semantics::Time;

/// Into the ring of the remote QP on this host.
#[derive(Debug)]
struct RingWire;

impl Wire for RingWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        requester.issue_by_ring(qp);
        Issued::SoFar
    }

    fn is_timed(&self) -> bool {
        true
    }
}

/// XRC: into one of several rings on this host.
#[derive(Debug)]
struct XrcWire;

impl Wire for XrcWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        requester.issue_xrc(qp);
        Issued::SoFar
    }

    fn is_timed(&self) -> bool {
        true
    }
}

/// UD: into datagram rings, and to other hosts.
#[derive(Debug)]
struct DatagramWire;

impl Wire for DatagramWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        super::ud::issue_waiting(requester, qp);
        Issued::SoFar
    }
}

/// RAW_PACKET: into datagram rings.
#[derive(Debug)]
struct FrameWire;

impl Wire for FrameWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        super::ethernet::issue_waiting(requester, qp);
        Issued::SoFar
    }
}

/// To a QP on another host.
#[derive(Debug)]
struct RemoteWire;

impl Wire for RemoteWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        requester.issue_to_host(qp);
        Issued::SoFar
    }

    fn gathers(&self) -> bool {
        true
    }
}

/// A placeholder while the wire is issuing.
#[derive(Debug)]
struct NoWire;

impl Wire for NoWire {
    fn issue(&mut self, _: &mut Requester, _: &Qp) -> Issued {
        Issued::SoFar
    }
}

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
        if !qp.kind.is_connected() {
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

/// The plain wire for QPs of `kind`; `remote` says that the remote QP is on another host.
pub(super) fn plain_wire(kind: Kind, remote: bool) -> Box<dyn Wire> {
    match kind {
        Kind::Ud => Box::new(DatagramWire),
        Kind::Raw => Box::new(FrameWire),
        Kind::Rc | Kind::Uc | Kind::XrcRecv | Kind::XrcSend if remote => Box::new(RemoteWire),
        Kind::Rc | Kind::Uc | Kind::XrcRecv => Box::new(RingWire),
        Kind::XrcSend => Box::new(XrcWire),
    }
}

/// Calls `change` for the innermost wire.
pub(super) fn change_innermost(wire: &mut Box<dyn Wire>, change: impl FnOnce(&mut Box<dyn Wire>)) {
    match wire.inner() {
        Some(inner) => change_innermost(inner, change),
        None => change(wire),
    }
}

/// Wraps `wire`.
pub(super) fn wrap<W: Wire + 'static>(
    wire: &mut Box<dyn Wire>,
    outer: impl FnOnce(Box<dyn Wire>) -> W,
) {
    let inner = std::mem::replace(wire, Box::new(NoWire));
    *wire = Box::new(outer(inner));
}

/// Removes wrappers that are no longer needed.
pub(super) fn remove_unneeded(wire: &mut Box<dyn Wire>) {
    let is_needed = wire.is_needed();
    let Some(inner) = wire.inner() else { return };
    remove_unneeded(inner);
    if !is_needed {
        *wire = std::mem::replace(inner, Box::new(NoWire));
    }
}

impl Requester {
    /// Issues waiting requests as far as possible.
    pub(super) fn issue_waiting(&mut self, qp: &Qp) {
        let mut wire = std::mem::replace(&mut self.wire, Box::new(NoWire));
        let issued = wire.issue(self, qp);
        self.wire = wire;
        if issued == Issued::PortDown {
            self.port_down();
            self.issue_waiting(qp);
        }
    }

    /// Sends requests to another host from now on (RTR), or (None) no longer. Returns the previous
    /// transport.
    pub(crate) fn set_host_connection(
        &mut self,
        remote: Option<Box<HostConnection>>,
        kind: Kind,
    ) -> Option<Box<HostConnection>> {
        let before = std::mem::replace(&mut self.host_connection, remote);
        let is_remote = self.host_connection.is_some();
        change_innermost(&mut self.wire, |wire| *wire = plain_wire(kind, is_remote));
        before
    }

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
