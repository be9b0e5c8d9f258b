//! The faults of one send queue: which requests they hit, and how long each request is delayed.
//!
//! The send queue asks before it issues a request.

use super::{Count, Fault, Plan, RequestDelay, Stream};
use crate::Time;
use crate::inbound::Nak;
use crate::state::QpType;
use abi::IBV_WC_LOC_PROT_ERR;
use std::cell::Cell;
use std::collections::VecDeque;

/// The faults of one send queue. Requests are counted when posted and hit when issued. Earlier
/// requests proceed, and later ones wait, as on a link that keeps the order.
#[derive(Debug)]
pub struct SendQueueFaults<C = Cell<u64>> {
    stream: Option<Stream<C>>,
    /// Posted requests that a fault will hit.
    faulted: VecDeque<(u64, Fault)>,
    delayed: Option<DelayedRequest>,
}

/// A delayed request, and until when; `None`: for ever.
#[derive(Clone, Copy, Debug)]
struct DelayedRequest {
    n: u64,
    deadline: Option<Time>,
}

/// The effect of a fault on the request to be issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEffect {
    /// The request is lost, and neither end reports the loss.
    Lost,
    /// The request waits, and then leaves or fails.
    Wait(RequestDelay),
    /// The remote queue pair refuses the request.
    Refused(Nak),
    /// The request fails with this `ibv_wc_status`.
    Fails(u32),
    /// The QP, port or device fails, once all earlier requests are complete.
    Breaks,
}

/// The retry attributes of the sender, and the timer of its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retries {
    /// Whether requests are acknowledged.
    pub reliable: bool,
    /// `timeout` of ibv_qp_attr.
    pub timeout: u8,
    /// `retry_cnt` of ibv_qp_attr.
    pub retry_cnt: u8,
    /// `rnr_retry` of ibv_qp_attr.
    pub rnr_retry: u8,
    /// `min_rnr_timer` of the receiver.
    pub min_rnr_timer: u8,
}

impl Fault {
    /// The effect on a request of a queue pair with these attributes.
    #[must_use]
    pub fn effect_on(self, by: &Retries) -> FaultEffect {
        match self {
            Self::Drop { .. } | Self::Rnr { .. } | Self::Refuse(_) if !by.reliable => {
                FaultEffect::Lost
            }
            Self::Delay(span) => FaultEffect::Wait(RequestDelay::delay(span)),
            Self::Drop { times } => {
                FaultEffect::Wait(RequestDelay::for_losses(times, by.timeout, by.retry_cnt))
            }
            Self::Rnr { times } => {
                FaultEffect::Wait(RequestDelay::not_ready(times, by.min_rnr_timer, by.rnr_retry))
            }
            Self::Refuse(nak) => FaultEffect::Refused(nak),
            Self::Local => FaultEffect::Fails(IBV_WC_LOC_PROT_ERR),
            Self::QpError | Self::PortDown(_) | Self::DeviceFatal => FaultEffect::Breaks,
        }
    }
}

impl<C> Default for SendQueueFaults<C> {
    fn default() -> Self {
        Self { stream: None, faulted: VecDeque::new(), delayed: None }
    }
}

impl<C: Count> SendQueueFaults<C> {
    /// Adopts the rules of a plan for queue pair `qp`, or the rules that are new in it. Returns
    /// whether any rule applies.
    pub fn take_plan(&mut self, plan: &Plan<C>, qp: u32, kind: QpType) -> bool {
        match &mut self.stream {
            Some(stream) => stream.extend(plan),
            None => self.stream = plan.stream(qp, kind),
        }
        self.stream.is_some()
    }

    /// Drops all rules and the faults of posted requests.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether no rule concerns the queue pair.
    pub const fn is_empty(&self) -> bool {
        self.stream.is_none()
    }

    /// Counts the posted request `n`, and decides whether a fault will hit it.
    pub fn record_posted(&mut self, n: u64, opcode: u32) {
        if let Some(fault) = self.stream.as_mut().and_then(|stream| stream.next(opcode)) {
            self.faulted.push_back((n, fault));
        }
    }

    /// The first request from `n` on that a fault will hit.
    pub fn next_faulted(&mut self, n: u64) -> Option<(u64, Fault)> {
        // Earlier requests were flushed.
        while self.faulted.front().is_some_and(|(at, _)| *at < n) {
            self.faulted.pop_front();
        }
        self.faulted.front().copied()
    }

    /// Ends the fault of the first request to be hit.
    pub fn spend(&mut self) {
        self.faulted.pop_front();
        self.delayed = None;
    }

    /// Delays request `n` as `delay` says, from the first call on. Returns whether the delay is
    /// over by `now`.
    pub fn delay_is_over(&mut self, n: u64, delay: &RequestDelay, now: Time) -> bool {
        let held = match &mut self.delayed {
            Some(held) if held.n == n => *held,
            other => *other
                .insert(DelayedRequest { n, deadline: delay.span.map(|span| now.after(span)) }),
        };
        held.deadline.is_some_and(|until| now >= until)
    }

    /// Until when request `n` is delayed; `None`: not delayed, or for ever.
    pub fn held_until(&self, n: u64) -> Option<Time> {
        self.delayed.filter(|held| held.n == n)?.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ALL, Rule, RuleHits};
    use super::*;
    use abi::*;
    use std::time::Duration;

    fn at(ms: u64) -> Time {
        Time::default().after(Duration::from_millis(ms))
    }

    #[test]
    fn a_request_is_delayed_from_its_issue_for_the_given_time() {
        let mut faults = SendQueueFaults::<Cell<u64>>::default();
        let delay = RequestDelay::delay(Duration::from_millis(5));
        assert!(!faults.delay_is_over(7, &delay, at(0)));
        assert_eq!((faults.held_until(7), faults.held_until(8)), (Some(at(5)), None));
        assert!(!faults.delay_is_over(7, &delay, at(4)));
        assert!(faults.delay_is_over(7, &delay, at(5)));
        faults.spend();
        assert_eq!(faults.held_until(7), None);
        // The next request has a delay of its own.
        assert!(!faults.delay_is_over(8, &delay, at(6)));
        assert!(!faults.delay_is_over(8, &delay, at(10)));
        assert!(faults.delay_is_over(8, &delay, at(11)));
    }

    #[test]
    fn a_request_delayed_for_ever_is_never_released() {
        let mut faults = SendQueueFaults::<Cell<u64>>::default();
        let delay = RequestDelay::for_losses(1, 0, 7);
        assert!(!faults.delay_is_over(1, &delay, at(0)));
        assert!(!faults.delay_is_over(1, &delay, at(1_000_000_000)));
        assert_eq!(faults.held_until(1), None);
    }

    #[test]
    fn faults_of_requests_that_were_flushed_strike_nothing() {
        let mut faults = SendQueueFaults::<Cell<u64>>::default();
        for n in [3, 5, 9] {
            faults.faulted.push_back((n, Fault::Local));
        }
        assert_eq!(faults.next_faulted(0), Some((3, Fault::Local)));
        assert_eq!(faults.next_faulted(4), Some((5, Fault::Local)));
        assert_eq!(faults.next_faulted(9), Some((9, Fault::Local)));
        faults.spend();
        assert_eq!(faults.next_faulted(9), None);
    }

    #[test]
    fn requests_are_struck_by_the_order_in_which_they_are_posted() {
        let mut plan = Plan::<Cell<u64>>::default();
        let rule = Rule {
            fault: Fault::Local,
            hits: RuleHits::Every(2),
            qp: None,
            class: None,
            transport: None,
            per_device: false,
        };
        let mut faults = SendQueueFaults::default();
        assert!(!faults.take_plan(&plan, 1, QpType::Rc) && faults.is_empty());
        plan.add(rule);
        assert!(faults.take_plan(&plan, 1, QpType::Rc) && !faults.is_empty());
        for n in 10..14 {
            faults.record_posted(n, IBV_WR_SEND);
        }
        assert_eq!(faults.next_faulted(10), Some((11, Fault::Local)));
        faults.spend();
        assert_eq!(faults.next_faulted(11), Some((13, Fault::Local)));
        faults.clear();
        assert_eq!(faults.next_faulted(11), None);
        faults.record_posted(14, IBV_WR_SEND);
        assert_eq!(faults.next_faulted(11), None);
    }

    #[test]
    fn each_fault_does_what_it_says_and_unreliable_ones_lose() {
        let by =
            Retries { reliable: true, timeout: 14, retry_cnt: 7, rnr_retry: 3, min_rnr_timer: 12 };
        let unreliable = Retries { reliable: false, ..by };
        let span = Duration::from_millis(1);
        let drop = Fault::Drop { times: ALL };
        let rnr = Fault::Rnr { times: 2 };
        let refuse = Fault::Refuse(Nak::Access);
        assert_eq!(drop.effect_on(&by), FaultEffect::Wait(RequestDelay::for_losses(ALL, 14, 7)));
        assert_eq!(rnr.effect_on(&by), FaultEffect::Wait(RequestDelay::not_ready(2, 12, 3)));
        assert_eq!(refuse.effect_on(&by), FaultEffect::Refused(Nak::Access));
        for fault in [drop, rnr, refuse] {
            assert_eq!(fault.effect_on(&unreliable), FaultEffect::Lost);
        }
        for by in [by, unreliable] {
            assert_eq!(
                Fault::Delay(span).effect_on(&by),
                FaultEffect::Wait(RequestDelay::delay(span))
            );
            assert_eq!(Fault::Local.effect_on(&by), FaultEffect::Fails(IBV_WC_LOC_PROT_ERR));
            for fault in [Fault::QpError, Fault::PortDown(None), Fault::DeviceFatal] {
                assert_eq!(fault.effect_on(&by), FaultEffect::Breaks);
            }
        }
    }
}
