//! A send queue in trouble: faults on purpose (`faults`) strike its requests, or its port is down.
//!
//! Such a queue takes another path when it issues (`IssuePath::Troubled`), so that one without trouble pays nothing. Faults strike when
//! their request's turn comes; what is before it goes on, and what is behind it waits, as on a wire that keeps the order.
#![forbid(unsafe_code)]

use super::clock::{Machine, instant};
use super::inbound::Nak;
use super::objects::connection::{Link, Requester};
use super::objects::issue_path::{IssuePath, Plan};
use super::objects::qp::Qp;
use super::request::{Phase, What};
use super::state::Kind;
use crate::remote::Connection;
use soft_semantics::faults::{Blow, Fault, Order, Retries};
use soft_semantics::{Clock, Time};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Requester {
    /// Takes up the rules of a plan for QP number `ordinal`, or those that are new in it.
    pub(crate) fn take_plan(&mut self, plan: &Plan, ordinal: u32, kind: Kind) {
        let mut trouble = self.trouble.take().unwrap_or_default();
        let concerned = trouble.strikes.take_plan(plan, ordinal, kind);
        if concerned {
            self.queue.set_careful(true);
            self.issue_path = IssuePath::Troubled;
        }
        if concerned || trouble.unplugged {
            self.trouble = Some(trouble);
        }
    }

    /// Forgets all rules, and the faults of what was posted.
    pub(crate) fn drop_plan(&mut self, kind: Kind) {
        if let Some(trouble) = &mut self.trouble {
            trouble.strikes.forget();
            self.queue.set_careful(false);
        }
        self.calm_down(kind);
    }

    /// How requests are issued when there is no trouble.
    fn usual_issue_path(&self, kind: Kind) -> IssuePath {
        let remote = self.remote.is_some() && kind.is_connected();
        if remote { IssuePath::Remote } else { IssuePath::of(kind) }
    }

    /// From now on (RTR) requests go to another host, or (`None`) not any more. Returns the transport that they went by.
    pub(crate) fn set_remote(
        &mut self,
        remote: Option<Box<Connection>>,
        kind: Kind,
    ) -> Option<Box<Connection>> {
        let before = std::mem::replace(&mut self.remote, remote);
        if self.issue_path != IssuePath::Troubled {
            self.issue_path = self.usual_issue_path(kind);
        }
        before
    }

    /// Takes the usual path again if nothing is left of the trouble.
    fn calm_down(&mut self, kind: Kind) {
        if self.trouble.as_ref().is_some_and(|t| t.strikes.is_empty() && !t.unplugged) {
            self.trouble = None;
            self.issue_path = self.usual_issue_path(kind);
        }
    }

    /// The port went down: nothing leaves, and nothing is heard of the remote QP.
    pub(crate) fn unplug(&mut self) {
        self.issue_path = IssuePath::Troubled;
        self.trouble.get_or_insert_default().unplugged = true;
        self.unplug_again();
    }

    /// The port is up.
    pub(crate) fn plug(&mut self, kind: Kind) {
        if let Some(link) = self.take_unplugged() {
            self.link = Some(link);
        }
        if let Some(trouble) = &mut self.trouble {
            trouble.unplugged = false;
        }
        self.calm_down(kind);
    }

    /// A new link is as useless as the one before it was.
    pub(super) fn unplug_again(&mut self) {
        if let Some(trouble) = self.trouble.as_mut().filter(|trouble| trouble.unplugged) {
            trouble.link = self.link.take().or(trouble.link.take());
        }
    }

    pub(super) fn take_unplugged(&mut self) -> Option<Box<Link>> {
        self.trouble.as_mut()?.link.take()
    }

    /// Before a request is queued: whether a fault will strike it.
    pub(super) fn note_fault(&mut self, opcode: u32) {
        let n = self.queue.posted;
        if let Some(trouble) = &mut self.trouble {
            trouble.strikes.note(n, opcode);
        }
    }

    /// Whether the request that is issued next is held back for a time.
    #[cold]
    #[inline(never)]
    pub(super) fn is_held_by_fault(&self) -> bool {
        self.held_until().is_some()
    }

    /// Until when it is.
    pub(crate) fn fault_due(&self) -> Option<Instant> {
        self.held_until().and_then(instant)
    }

    fn held_until(&self) -> Option<Time> {
        let n = self.queue.issued;
        let trouble = self.trouble.as_ref().filter(|_| n != self.queue.posted)?;
        trouble.strikes.held_until(n)
    }

    /// Issues what waits, as far as faults and the port allow.
    #[cold]
    pub(super) fn issue_troubled(&mut self, qp: &Qp) {
        while self.queue.issued != self.queue.posted && self.fate.is_going() {
            let (n, posted) = (self.queue.issued, self.queue.posted);
            let Some(trouble) = &mut self.trouble else { return self.issue_usual(qp, posted) };
            if trouble.unplugged && !qp.kind.is_connected() {
                // As with a cable that leads nowhere.
                self.lose(n);
                continue;
            }
            match trouble.strikes.next_struck(n) {
                Some((at, fault)) if at == n => {
                    if !self.strike(qp, n, fault, Machine.now()) {
                        return;
                    }
                }
                Some((at, _)) if at < posted => {
                    self.issue_usual(qp, at);
                    if self.queue.issued < at {
                        return;
                    }
                }
                _ => return self.issue_usual(qp, posted),
            }
        }
    }

    /// Issues what waits before request `end`, as a QP without trouble does.
    fn issue_usual(&mut self, qp: &Qp, end: u64) {
        let usual = self.usual_issue_path(qp.kind);
        let issue_path = std::mem::replace(&mut self.issue_path, usual);
        let posted = std::mem::replace(&mut self.queue.posted, end);
        self.issue_waiting(qp);
        self.queue.posted = posted;
        self.issue_path = issue_path;
    }

    /// Nobody will ever see request `n`, and nobody will say so.
    fn lose(&mut self, n: u64) {
        self.queue.entry(n).phase = Phase::Done;
        self.queue.issued = n + 1;
    }

    /// The turn of request `n` has come, which `fault` strikes. Returns whether to go on.
    fn strike(&mut self, qp: &Qp, n: u64, fault: Fault, now: Time) -> bool {
        let asked = self.link.as_ref().map(|link| &link.entry().min_rnr_timer);
        let by = Retries {
            reliable: qp.kind.is_reliable(),
            timeout: self.patience.timeout,
            retry_cnt: self.patience.retry_cnt,
            rnr_retry: qp.entry().rnr_retry.load(Ordering::Relaxed),
            min_rnr_timer: asked.map_or(0, |timer| timer.load(Ordering::Relaxed)),
        };
        let ordeal = match fault.strikes(&by) {
            Blow::Lost => {
                self.spend_fault();
                self.lose(n);
                return true;
            }
            Blow::Wait(ordeal) => ordeal,
            Blow::Refused(nak) => return self.have_refused(qp, n, nak),
            Blow::Fails(status) => {
                self.spend_fault();
                self.fail(n, status);
                return false;
            }
            Blow::Breaks => return self.strike_qp(qp, n, fault),
        };
        let Some(trouble) = &mut self.trouble else { return true };
        if !trouble.strikes.hold(n, &ordeal, now) {
            if trouble.strikes.held_until(n).is_some() {
                qp.adapter.watch(qp);
            }
            return false;
        }
        self.spend_fault();
        if let Some(status) = ordeal.status {
            self.fail(n, status);
        }
        ordeal.status.is_none()
    }

    fn spend_fault(&mut self) {
        if let Some(trouble) = &mut self.trouble {
            trouble.strikes.spend();
        }
    }

    /// Has the remote QP refuse request `n`: it goes the way of any other, to do something else.
    fn have_refused(&mut self, qp: &Qp, n: u64, nak: Nak) -> bool {
        let request = &mut self.queue.entry(n).request;
        let kept = std::mem::replace(&mut request.what, What::Refused(nak));
        self.issue_usual(qp, n + 1);
        self.queue.entry(n).request.what = kept;
        // Until it is issued it waits as any other.
        if self.queue.issued > n {
            self.spend_fault();
        }
        false
    }

    /// Issues request `n`, which the remote QP is to refuse. `false`: later.
    #[cold]
    pub(super) fn issue_refused(&mut self, qp: &Qp, link: &Link, n: u64, nak: Nak) -> bool {
        if self.room(qp, link) == 0 {
            return false;
        }
        self.ask_refusal(qp, link, n, nak, false);
        true
    }

    /// Something breaks when all before request `n` is complete: so the outcome does not depend on how fast that is.
    fn strike_qp(&mut self, qp: &Qp, n: u64, fault: Fault) -> bool {
        self.reap(qp);
        if self.queue.completed < n || self.fate.is_broken() {
            return false;
        }
        self.spend_fault();
        match fault {
            Fault::PortDown(span) => {
                // This QP is the first to feel it; the service thread tells the others.
                qp.adapter.port.set_down(true);
                self.unplug();
                qp.adapter.order(Order::PortDown(span));
                true
            }
            Fault::DeviceFatal => {
                self.fate.fail();
                qp.adapter.order(Order::DeviceFatal);
                false
            }
            _ => {
                self.fate.fail();
                self.break_off(qp, true);
                false
            }
        }
    }
}
