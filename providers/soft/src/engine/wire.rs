//! Wires: which way the requests of a send queue take (`Wire`).
//!
//! A queue pair has the wire of its kind, or the one to another host while it is connected to one. `Faulty` and `Unplugged` go around
//! that one for as long as they have something to do there, in this order from the inside: a port that is down is so for requests that a
//! fault would strike, too.
#![forbid(unsafe_code)]

use super::objects::connection::{Issued, Link, Requester, Wire};
use super::objects::plan::FaultSchedule;
use super::objects::qp::Qp;
use super::request::Phase;
use super::state::Kind;
use crate::remote::Connection;
use soft_semantics::Time;

/// Into the ring of the remote QP, on this host.
#[derive(Debug)]
struct Local;

impl Wire for Local {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        requester.issue_by_ring(qp);
        Issued::SoFar
    }

    fn is_timed(&self) -> bool {
        true
    }
}

/// XRC: into one of several rings, on this host.
#[derive(Debug)]
struct Steered;

impl Wire for Steered {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        requester.issue_xrc(qp);
        Issued::SoFar
    }

    fn is_timed(&self) -> bool {
        true
    }
}

/// UD: into the rings for datagrams, and to other hosts.
#[derive(Debug)]
struct Datagrams;

impl Wire for Datagrams {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        super::ud::issue_waiting(requester, qp);
        Issued::SoFar
    }
}

/// RAW_PACKET: into the rings for datagrams.
#[derive(Debug)]
struct Frames;

impl Wire for Frames {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        super::ethernet::issue_waiting(requester, qp);
        Issued::SoFar
    }
}

/// To a QP on another host.
#[derive(Debug)]
struct Remote;

impl Wire for Remote {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        requester.issue_remote(qp);
        Issued::SoFar
    }

    fn gathers(&self) -> bool {
        true
    }
}

/// Nowhere, while the wire itself is issuing.
#[derive(Debug)]
struct Nowhere;

impl Wire for Nowhere {
    fn issue(&mut self, _: &mut Requester, _: &Qp) -> Issued {
        Issued::SoFar
    }
}

/// A port that is down, around a wire: nothing leaves, and nothing is heard of the remote QP.
#[derive(Debug)]
struct Unplugged {
    inner: Box<dyn Wire>,
    /// Where the link is meanwhile.
    link: Option<Box<Link>>,
    is_over: bool,
}

impl Wire for Unplugged {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        if !qp.kind.is_connected() {
            // As with a cable that leads nowhere.
            while requester.queue.issued != requester.queue.posted && requester.fate.is_going() {
                requester.lose(requester.queue.issued);
            }
            return Issued::SoFar;
        }
        while self.inner.issue(requester, qp) == Issued::PortDown {
            // It is.
            self.detach_link(&mut requester.link);
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
        // A new link is as useless as the one before it was.
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

/// The wire of QPs of `kind` without trouble; `remote`: their other end is on another host.
pub(super) fn usual(kind: Kind, remote: bool) -> Box<dyn Wire> {
    match kind {
        Kind::Ud => Box::new(Datagrams),
        Kind::Raw => Box::new(Frames),
        Kind::Rc | Kind::Uc | Kind::XrcRecv | Kind::XrcSend if remote => Box::new(Remote),
        Kind::Rc | Kind::Uc | Kind::XrcRecv => Box::new(Local),
        Kind::XrcSend => Box::new(Steered),
    }
}

/// Has `change` put something else in the place of the innermost of `wire`, which others are around.
pub(super) fn innermost(wire: &mut Box<dyn Wire>, change: impl FnOnce(&mut Box<dyn Wire>)) {
    match wire.inner() {
        Some(inner) => innermost(inner, change),
        None => change(wire),
    }
}

/// Puts a wire around `wire`.
pub(super) fn surround<W: Wire + 'static>(
    wire: &mut Box<dyn Wire>,
    outer: impl FnOnce(Box<dyn Wire>) -> W,
) {
    let inner = std::mem::replace(wire, Box::new(Nowhere));
    *wire = Box::new(outer(inner));
}

/// Takes wires off that have nothing to do any more.
pub(super) fn strip(wire: &mut Box<dyn Wire>) {
    let is_needed = wire.is_needed();
    let Some(inner) = wire.inner() else { return };
    strip(inner);
    if !is_needed {
        *wire = std::mem::replace(inner, Box::new(Nowhere));
    }
}

impl Requester {
    /// Issues what waits, as far as it goes.
    pub(super) fn issue_waiting(&mut self, qp: &Qp) {
        let mut wire = std::mem::replace(&mut self.wire, Box::new(Nowhere));
        let issued = wire.issue(self, qp);
        self.wire = wire;
        if issued == Issued::PortDown {
            self.unplug();
            self.issue_waiting(qp);
        }
    }

    /// From now on (RTR) requests go to another host, or (`None`) not any more. Returns the transport that they went by.
    pub(crate) fn set_remote(
        &mut self,
        remote: Option<Box<Connection>>,
        kind: Kind,
    ) -> Option<Box<Connection>> {
        let before = std::mem::replace(&mut self.remote, remote);
        let is_remote = self.remote.is_some();
        innermost(&mut self.wire, |wire| *wire = usual(kind, is_remote));
        before
    }

    /// The port went down.
    #[cold]
    pub(crate) fn unplug(&mut self) {
        if !self.wire.detach_link(&mut self.link) {
            let link = self.link.take();
            surround(&mut self.wire, |inner| Unplugged { inner, link, is_over: false });
        }
    }

    /// The port is up.
    pub(crate) fn plug(&mut self) {
        if let Some(link) = self.wire.attach_link() {
            self.link = Some(link);
        }
        self.wire.port_up();
        strip(&mut self.wire);
    }

    /// Nobody will ever see request `n`, and nobody will say so.
    pub(super) fn lose(&mut self, n: u64) {
        self.queue.entry(n).phase = Phase::Done;
        self.queue.issued = n + 1;
    }
}
