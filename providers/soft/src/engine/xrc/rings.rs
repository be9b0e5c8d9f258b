//! Rings of an XRC connection: chooses the ring of the process that owns the named SRQ.
//! `issue_waiting` of an XRC send QP enters here; chosen requests continue in `issue`.
//!
//! The remote receive QP belongs to a process, its *home*. The shared receive queue named by a
//! request may belong to another process. Each process with such a queue has a receive ring: at
//! home the ring of the QP, elsewhere the ring of a stand-in. The sender asks for a stand-in at the
//! first need (`xrc`).
//!
//! A responder executes requests in order, across all queues. A request for another ring therefore
//! waits until all requests in the active ring are acknowledged, and all rings but the active ring
//! are idle.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::{Issued, Requester, Wire};
use crate::engine::ring::Link;
use crate::engine::ring::holder::PeerState;
use crate::engine::ring::issue::SlotHead;
use crate::engine::xrc::{DomainId, domain_of_srq};
use crate::engine::xrc::{XrcRing, XrcRings};
use soft_local::shm::layout::split_qpn;
use soft_local::shm::slot::{FIRST, LAST, Op, PayloadLocation};
use std::time::{Duration, Instant};

/// Time after which a request for a stand-in is sent again.
const STAND_IN_RETRY: Duration = Duration::from_millis(10);

/// Result of an attempt to switch to the ring that a request needs.
enum RingChoice {
    Active,
    /// Wait until the active ring is acknowledged; its acknowledgement ends the wait.
    Draining,
    /// Wait for the other process, at most until the retries are exhausted.
    Waiting,
}

impl XrcRings {
    /// The link to the remote QP itself, while the ring of a stand-in is active.
    pub(in crate::engine) fn home(&self) -> Option<&Link> {
        self.inactive.iter().map(|lane| &*lane.link).find(|link| link.qpn == self.home_qpn)
    }
}

/// XRC: into one of several rings on this host.
#[derive(Debug)]
pub(in crate::engine) struct XrcWire;

impl Wire for XrcWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        requester.issue_xrc(qp);
        Issued::SoFar
    }

    fn is_timed(&self) -> bool {
        true
    }
}

impl Requester {
    /// Issues waiting requests of an XRC QP, in order, until a request must wait.
    fn issue_xrc(&mut self, qp: &Qp) {
        while self.sends.has_issuable() {
            let n = self.sends.queue.issued;
            let number = self.sends.queue.entry(n).request.srqn;
            match self.choose_ring(qp, number) {
                RingChoice::Active => {}
                RingChoice::Draining => break,
                RingChoice::Waiting => {
                    self.start_timeout(qp);
                    break;
                }
            }
            let Some(link) = self.ring.link.take() else { break };
            let went =
                if self.peer_state(qp, &link) == PeerState::Silent || !self.is_served(qp, &link) {
                    self.start_timeout(qp);
                    false
                } else {
                    self.name_srq(qp, &link, number) && self.issue(qp, &link, n)
                };
            self.ring.link = Some(link);
            if !went {
                break;
            }
            self.sends.queue.issued += 1;
        }
    }

    /// Puts the number of the queue into the ring, if the ring named another queue last.
    fn name_srq(&mut self, qp: &Qp, link: &Link, number: u32) -> bool {
        if self.ring.named_srq == number {
            return true;
        }
        if self.room(qp, link) == 0 {
            return false;
        }
        let flags = FIRST | LAST;
        let head =
            SlotHead { op: Op::Address, flags, carrier: PayloadLocation::Inline, count: 0, imm: 0 };
        self.put_piece(qp, link, &head, &[u64::from(number)]);
        self.ring.named_srq = number;
        true
    }

    /// Activates the ring that leads to queue `number`.
    fn choose_ring(&mut self, qp: &Qp, number: u32) -> RingChoice {
        let Some(link) = &self.ring.link else { return RingChoice::Waiting };
        let (slot, _) = split_qpn(number);
        let at = link.peer().slot;
        let home = split_qpn(self.xrc_rings.home_qpn).0;
        if at == slot && (at == home || !link.peer().is_dead()) {
            return RingChoice::Active;
        }
        // An unknown number goes to the remote QP, which refuses the request.
        let to = if self.srq_exists(qp, number) { slot } else { home };
        if at == to {
            return RingChoice::Active;
        }
        if self.ring.acked != self.ring.next {
            self.absorb_here(qp);
            if self.ring.acked != self.ring.next {
                return RingChoice::Draining;
            }
            self.reap(qp);
        }
        self.publish();
        if let Some(at) =
            self.xrc_rings.inactive.iter().position(|lane| lane.link.peer().slot == to)
        {
            let lane = self.xrc_rings.inactive.swap_remove(at);
            // A stand-in that was given up is asked for again.
            if to == home || lane.link.peer_state(qp.qpn()) == state_if_unchanged(lane.latched) {
                self.activate_ring(lane);
                return RingChoice::Active;
            }
        }
        match qp.adapter().xrc.stand_in(qp.adapter(), to, self.xrc_rings.home_qpn, qp.qpn()) {
            Some(link) => {
                qp.adapter().xrc.senders.add(to, qp);
                self.activate_ring(XrcRing {
                    link,
                    latched: None,
                    next: 0,
                    named_srq: 0,
                    attach_refused: false,
                });
                RingChoice::Active
            }
            None => {
                let recently = |(s, at): &(u16, Instant)| *s == to && at.elapsed() < STAND_IN_RETRY;
                if !self.xrc_rings.last_stand_in_request.as_ref().is_some_and(recently) {
                    self.xrc_rings.last_stand_in_request = Some((to, Instant::now()));
                    qp.adapter().xrc.ask_for_stand_in(
                        qp.adapter(),
                        to,
                        self.xrc_rings.home_qpn,
                        qp.qpn(),
                    );
                }
                RingChoice::Waiting
            }
        }
    }

    /// Whether queue `number` belongs to the XRC domain of the remote QP.
    fn srq_exists(&self, qp: &Qp, number: u32) -> bool {
        let Some(home) = self.xrc_rings.home().or(self.ring.link.as_deref()) else { return false };
        let domain = DomainId::load(&home.entry().domain);
        let (slot, index) = split_qpn(number);
        if slot == 0 {
            return false;
        }
        let known = self.xrc_rings.inactive.iter().map(|lane| &*lane.link);
        if let Some(lane) = known.into_iter().find(|l| l.peer().slot == slot && !l.peer().is_dead())
        {
            return domain_of_srq(lane.view.srq(index), domain).is_some();
        }
        // Only the tables of the process are read, so any of its QP numbers serves.
        let link = qp.adapter().link(number);
        link.is_some_and(|(there, _)| domain_of_srq(there.view.srq(index), domain).is_some())
    }

    fn activate_ring(&mut self, lane: XrcRing) {
        let before = self.ring.link.replace(lane.link).map(|link| XrcRing {
            link,
            latched: self.ring.latched,
            next: self.ring.next,
            named_srq: self.ring.named_srq,
            attach_refused: self.ring.attach_refused,
        });
        self.xrc_rings.inactive.extend(before);
        self.ring.latched = lane.latched;
        // Requests were posted since this ring was connected, so the connection does not count as
        // untouched.
        self.ring.connected_at.1 = u64::MAX;
        (self.ring.next, self.ring.acked) = (lane.next, lane.next);
        self.ring.named_srq = lane.named_srq;
        self.ring.attach_refused = lane.attach_refused;
    }

    /// Begins a connection to the QP `home`.
    pub(in crate::engine) fn reset_xrc_rings(&mut self, home: u32) {
        self.xrc_rings = XrcRings { home_qpn: home, ..XrcRings::default() };
    }

    /// The peer state of the active ring. A stand-in serves only as long as its home QP serves.
    /// Exception: if the home QP died with its process, the stand-in serves on for processes that
    /// hold the QP open.
    pub(in crate::engine) fn peer_state(&mut self, qp: &Qp, link: &Link) -> PeerState {
        let here = link.peer_state(qp.qpn());
        let Some(home) = self.xrc_rings.home() else { return here };
        match home.peer_state(qp.qpn()) {
            PeerState::Dead => here,
            PeerState::Serving(now) if *self.xrc_rings.latched.get_or_insert(now) == now => here,
            PeerState::Serving(_) | PeerState::Silent => PeerState::Silent,
        }
    }
}

/// The state that a peer has while the ring leads to the recorded incarnation.
fn state_if_unchanged(latched: Option<u16>) -> PeerState {
    latched.map_or(PeerState::Silent, PeerState::Serving)
}
