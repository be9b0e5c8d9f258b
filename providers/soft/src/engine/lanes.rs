//! The sending half of an XRC connection: into which process's ring a request goes.
//!
//! The remote receive QP belongs to one process, its *home*, and the shared receive queue that a request names possibly
//! to another. Each process that has such a queue receives in a ring of its own, a *lane* of the connection: the QP's
//! own ring at home, elsewhere that of a stand-in which is asked for when it is first needed (`xrc`).
//!
//! A responder executes requests in order, wherever their queues are. So a request for another lane waits until
//! everything on the present one is acknowledged; all lanes but one are idle at any time.
#![forbid(unsafe_code)]

use super::issue::SlotHead;
use super::objects::connection::{Lane, Lanes, Link, Requester};
use super::objects::holder::PeerState;
use super::objects::qp::Qp;
use super::objects::xrc::{DomainId, names};
use soft_local::shm::layout::split_qpn;
use soft_local::shm::slot::{Carrier, FIRST, LAST, Op};
use std::time::{Duration, Instant};

/// How long an answer may take until the question is put again.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// What became of the attempt to go to the process that a request is for.
enum Steered {
    There,
    /// Later, without an end to the wait other than the one that comes by itself.
    Draining,
    /// Later, and not for ever.
    Waiting,
}

impl Lanes {
    /// The remote QP itself, while the present lane is another's.
    pub(super) fn home(&self) -> Option<&Link> {
        self.parked.iter().map(|lane| &*lane.link).find(|link| link.qpn == self.home)
    }
}

impl Requester {
    /// Issues waiting requests of an XRC QP as far as they go.
    pub(super) fn issue_steered(&mut self, qp: &Qp) {
        while self.queue.issued != self.queue.posted && self.fate.is_going() {
            let n = self.queue.issued;
            let number = self.queue.entry(n).request.srqn;
            match self.steer(qp, number) {
                Steered::There => {}
                Steered::Draining => break,
                Steered::Waiting => {
                    self.stall(qp);
                    break;
                }
            }
            let Some(link) = self.link.take() else { break };
            let went =
                if self.peer_state(qp, &link) == PeerState::Silent || !self.answers(qp, &link) {
                    self.stall(qp);
                    false
                } else {
                    self.name(qp, &link, number) && self.issue(qp, &link, n)
                };
            self.link = Some(link);
            if !went {
                break;
            }
            self.queue.issued += 1;
        }
    }

    /// Says which queue the requests that follow are for, if the ring has another one in mind.
    fn name(&mut self, qp: &Qp, link: &Link, number: u32) -> bool {
        if self.addressed == number {
            return true;
        }
        if self.room(qp, link) == 0 {
            return false;
        }
        let flags = FIRST | LAST;
        let head = SlotHead { op: Op::Address, flags, carrier: Carrier::Inline, count: 0, imm: 0 };
        self.put(qp, link, &head, &[u64::from(number)]);
        self.addressed = number;
        true
    }

    /// Makes the lane that leads to queue `number` the present one.
    fn steer(&mut self, qp: &Qp, number: u32) -> Steered {
        let Some(link) = &self.link else { return Steered::Waiting };
        let (slot, _) = split_qpn(number);
        let at = link.peer.slot;
        let home = split_qpn(self.lanes.home).0;
        if at == slot && (at == home || !link.peer.is_dead()) {
            return Steered::There;
        }
        // A number that means nothing is refused by the remote QP itself.
        let to = if self.exists(qp, number) { slot } else { home };
        if at == to {
            return Steered::There;
        }
        if self.acked != self.next {
            self.absorb_here(qp);
            if self.acked != self.next {
                return Steered::Draining;
            }
            self.reap(qp);
        }
        self.publish();
        if let Some(at) = self.lanes.parked.iter().position(|lane| lane.link.peer.slot == to) {
            let lane = self.lanes.parked.swap_remove(at);
            // A stand-in that was given up is asked for anew.
            if to == home || lane.link.peer_state(qp.qpn) == stays(lane.latched) {
                self.take_lane(lane);
                return Steered::There;
            }
        }
        match qp.adapter.xrc.stand_in(&qp.adapter, to, self.lanes.home, qp.qpn) {
            Some(link) => {
                qp.adapter.xrc.requesters.add(to, qp);
                self.take_lane(Lane {
                    link,
                    latched: None,
                    next: 0,
                    addressed: 0,
                    attach_refused: false,
                });
                Steered::There
            }
            None => {
                let recently = |(s, at): &(u16, Instant)| *s == to && at.elapsed() < ASK_AGAIN;
                if !self.lanes.asked.as_ref().is_some_and(recently) {
                    self.lanes.asked = Some((to, Instant::now()));
                    qp.adapter.xrc.ask(&qp.adapter, to, self.lanes.home, qp.qpn);
                }
                Steered::Waiting
            }
        }
    }

    /// Whether queue `number` is one of the domain that the remote QP receives for.
    fn exists(&self, qp: &Qp, number: u32) -> bool {
        let Some(home) = self.lanes.home().or(self.link.as_deref()) else { return false };
        let domain = DomainId::load(&home.entry().domain);
        let (slot, index) = split_qpn(number);
        if slot == 0 {
            return false;
        }
        let known = self.lanes.parked.iter().map(|lane| &*lane.link);
        if let Some(lane) = known.into_iter().find(|l| l.peer.slot == slot && !l.peer.is_dead()) {
            return names(lane.view.srq(index), domain).is_some();
        }
        // Only to look at its tables; any QP number of the process will do.
        let link = qp.adapter.link(number);
        link.is_some_and(|(there, _)| names(there.view.srq(index), domain).is_some())
    }

    fn take_lane(&mut self, lane: Lane) {
        let before = self.link.replace(lane.link).map(|link| Lane {
            link,
            latched: self.latched,
            next: self.next,
            addressed: self.addressed,
            attach_refused: self.attach_refused,
        });
        self.lanes.parked.extend(before);
        self.latched = lane.latched;
        // Taken up when the requests were others: not untouched.
        self.latched_at.1 = u64::MAX;
        (self.next, self.acked) = (lane.next, lane.next);
        self.addressed = lane.addressed;
        self.attach_refused = lane.attach_refused;
    }

    /// Begins a connection to `home`.
    pub(super) fn forget_lanes(&mut self, home: u32) {
        self.lanes = Lanes { home, ..Lanes::default() };
    }

    /// How things stand with the other end of the present lane: a stand-in serves no longer than what it stands for, unless
    /// that died with its process, which others survive who hold the QP open.
    pub(super) fn peer_state(&mut self, qp: &Qp, link: &Link) -> PeerState {
        let here = link.peer_state(qp.qpn);
        let Some(home) = self.lanes.home() else { return here };
        match home.peer_state(qp.qpn) {
            PeerState::Dead => here,
            PeerState::Serving(now) if *self.lanes.latched.get_or_insert(now) == now => here,
            PeerState::Serving(_) | PeerState::Silent => PeerState::Silent,
        }
    }
}

/// The peer's state while a lane leads to the incarnation that was latched.
fn stays(latched: Option<u16>) -> PeerState {
    latched.map_or(PeerState::Silent, PeerState::Serving)
}
