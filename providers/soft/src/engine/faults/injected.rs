//! The wire with fault injection, wrapped around the wire of a send queue.
//! `Requester::issue_waiting` calls it for queues with fault rules; other queues do not have this
//! wire.
//!
//! A fault applies when its request is next to be issued. Earlier requests continue, and later
//! requests wait, as on a network that keeps the order.
#![forbid(unsafe_code)]

use super::plan::{FaultPlan, FaultSchedule};
use crate::engine::clock::{MachineClock, instant};
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::wire::{change_innermost, remove_unneeded, wrap};
use crate::engine::queues::qp::{Issued, Requester, Wire};
use crate::engine::ring::Link;
use soft_semantics::faults::{Fault, FaultEffect, ImmediateFault, Retries};
use soft_semantics::inbound::Nak;
use soft_semantics::state::QpType;
use soft_semantics::{Clock, Time};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The wire with fault injection.
#[derive(Debug)]
struct FaultyWire {
    inner: Box<dyn Wire>,
    schedule: FaultSchedule,
}

/// How to continue after a fault.
enum AfterFault {
    /// Issue the requests behind the fault.
    Continue,
    /// Try again later.
    Later,
    PortDown,
}

impl Wire for FaultyWire {
    #[cold]
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        while requester.sends.has_issuable() {
            let (n, posted) = (requester.sends.queue.issued, requester.sends.queue.posted);
            match self.schedule.next_faulted(n) {
                Some((at, fault)) if at == n => {
                    match self.apply_fault(requester, qp, n, fault, MachineClock.now()) {
                        AfterFault::Continue => {}
                        AfterFault::Later => break,
                        AfterFault::PortDown => return Issued::PortDown,
                    }
                }
                Some((at, _)) if at < posted => {
                    requester.issue_before(at, |of| self.inner.issue(of, qp));
                    if requester.sends.queue.issued < at {
                        break;
                    }
                }
                _ => return self.inner.issue(requester, qp),
            }
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
        !self.schedule.is_empty()
    }

    fn fault_schedule(&mut self) -> Option<&mut FaultSchedule> {
        Some(&mut self.schedule)
    }

    fn held_until(&self, n: u64) -> Option<Time> {
        self.schedule.held_until(n)
    }
}

impl FaultyWire {
    /// Applies `fault` to request `n`, which is next to be issued.
    fn apply_fault(
        &mut self,
        requester: &mut Requester,
        qp: &Qp,
        n: u64,
        fault: Fault,
        now: Time,
    ) -> AfterFault {
        let asked = requester.ring.link.as_ref().map(|link| &link.entry().min_rnr_timer);
        let by = Retries {
            reliable: qp.qp_type().is_reliable(),
            timeout: requester.retry.timeout,
            retry_cnt: requester.retry.retry_cnt,
            rnr_retry: qp.entry().rnr_retry.load(Ordering::Relaxed),
            min_rnr_timer: asked.map_or(0, |timer| timer.load(Ordering::Relaxed)),
        };
        let delay = match fault.effect_on(&by) {
            FaultEffect::Lost => {
                self.schedule.spend();
                requester.sends.lose_request(n);
                return AfterFault::Continue;
            }
            FaultEffect::Wait(delay) => delay,
            FaultEffect::Refused(nak) => {
                requester.issue_with_refusal(n, nak, |of| self.inner.issue(of, qp));
                // Until the request is issued, it waits like any request.
                if requester.sends.queue.issued > n {
                    self.schedule.spend();
                }
                return AfterFault::Later;
            }
            FaultEffect::Fails(status) => {
                self.schedule.spend();
                requester.sends.fail(n, status);
                return AfterFault::Later;
            }
            FaultEffect::Breaks => return self.break_qp(requester, qp, n, fault),
        };
        if !self.schedule.delay_is_over(n, &delay, now) {
            if self.schedule.held_until(n).is_some() {
                qp.adapter().service.watch_qp(qp);
            }
            return AfterFault::Later;
        }
        self.schedule.spend();
        match delay.status {
            Some(status) => {
                requester.sends.fail(n, status);
                AfterFault::Later
            }
            None => AfterFault::Continue,
        }
    }

    /// Breaks the QP, the port or the device after all requests before `n` completed. The result is
    /// then independent of timing.
    fn break_qp(&mut self, requester: &mut Requester, qp: &Qp, n: u64, fault: Fault) -> AfterFault {
        requester.reap(qp);
        if requester.sends.queue.completed < n || requester.sends.failure.is_broken() {
            return AfterFault::Later;
        }
        self.schedule.spend();
        match fault {
            Fault::PortDown(span) => {
                // This QP stops at once; the service thread informs all other QPs.
                qp.adapter().port.set_down(true);
                qp.adapter().port.order(ImmediateFault::PortDown(span), &qp.adapter().fabric);
                AfterFault::PortDown
            }
            Fault::DeviceFatal => {
                requester.sends.failure.fail();
                qp.adapter().port.order(ImmediateFault::DeviceFatal, &qp.adapter().fabric);
                AfterFault::Later
            }
            _ => {
                requester.sends.failure.fail();
                requester.stop_queue(qp, true);
                AfterFault::Later
            }
        }
    }
}

impl Requester {
    /// Adopts the fault rules of a plan for QP number `ordinal`, or only the new rules.
    pub(crate) fn add_fault_rules(&mut self, plan: &FaultPlan, ordinal: u32, kind: QpType) {
        if let Some(schedule) = self.wire.fault_schedule() {
            schedule.take_plan(plan, ordinal, kind);
            return;
        }
        let mut schedule = FaultSchedule::default();
        if schedule.take_plan(plan, ordinal, kind) {
            self.sends.queue.set_careful(true);
            change_innermost(&mut self.wire, |wire| {
                wrap(wire, |inner| FaultyWire { inner, schedule })
            });
        }
    }

    /// Forgets all rules, and all faults of posted requests.
    pub(crate) fn drop_fault_rules(&mut self) {
        if let Some(schedule) = self.wire.fault_schedule() {
            schedule.clear();
            self.sends.queue.set_careful(false);
        }
        remove_unneeded(&mut self.wire);
    }

    /// Called before a request is queued: decides whether a fault applies to it.
    pub(in crate::engine) fn count_for_faults(&mut self, opcode: u32) {
        let n = self.sends.queue.posted;
        if let Some(schedule) = self.wire.fault_schedule() {
            schedule.record_posted(n, opcode);
        }
    }

    /// Whether a fault delays the next request.
    #[cold]
    #[inline(never)]
    pub(in crate::engine) fn is_held_by_fault(&self) -> bool {
        self.held_until().is_some()
    }

    /// The time at which the delay ends.
    pub(crate) fn fault_delay_end(&self) -> Option<Instant> {
        self.held_until().and_then(instant)
    }

    fn held_until(&self) -> Option<Time> {
        let n = self.sends.queue.issued;
        if n == self.sends.queue.posted { None } else { self.wire.held_until(n) }
    }

    /// Issues request `n`, which the remote QP will refuse. Returns false to try later.
    #[cold]
    pub(in crate::engine) fn issue_refused(
        &mut self,
        qp: &Qp,
        link: &Link,
        n: u64,
        nak: Nak,
    ) -> bool {
        if self.room(qp, link) == 0 {
            return false;
        }
        self.put_refusal_request(qp, link, n, nak, false);
        true
    }
}
