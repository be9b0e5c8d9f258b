//! The faults that strike one send queue: which of its requests, and how long each holds one back.

use super::{Count, Fault, Ordeal, Plan, Stream};
use crate::Time;
use crate::inbound::Nak;
use crate::state::Kind;
use abi::IBV_WC_LOC_PROT_ERR;
use std::cell::Cell;
use std::collections::VecDeque;

/// The faults of one send queue. Requests are counted as they are posted, and struck when their turn comes; what is before one goes on, and what
/// is behind it waits, as on a wire that keeps the order.
#[derive(Debug)]
pub struct Strikes<C = Cell<u64>> {
    stream: Option<Stream<C>>,
    /// Requests that were posted and that a fault is to strike.
    struck: VecDeque<(u64, Fault)>,
    held: Option<Held>,
}

/// A request that is held back, and until when; `None`: for ever.
#[derive(Clone, Copy, Debug)]
struct Held {
    n: u64,
    until: Option<Time>,
}

/// What a fault does to the request whose turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The request is lost, and no end reports the loss.
    Lost,
    /// It waits, and then leaves or fails.
    Wait(Ordeal),
    /// The remote queue pair refuses it.
    Refused(Nak),
    /// It fails with this `ibv_wc_status`.
    Fails(u32),
    /// Something greater breaks, once all before it is complete.
    Breaks,
}

/// What a sender goes by, and what its receiver asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retries {
    /// Requests are acknowledged.
    pub reliable: bool,
    /// `timeout` and `retry_cnt` of ibv_qp_attr.
    pub timeout: u8,
    /// As `timeout`.
    pub retry_cnt: u8,
    /// `rnr_retry` of ibv_qp_attr.
    pub rnr_retry: u8,
    /// `min_rnr_timer` of the receiver.
    pub min_rnr_timer: u8,
}

impl Fault {
    /// What it does to a request of a queue pair with these attributes.
    #[must_use]
    pub fn strikes(self, by: &Retries) -> Blow {
        match self {
            Self::Drop { .. } | Self::Rnr { .. } | Self::Refuse(_) if !by.reliable => Blow::Lost,
            Self::Delay(span) => Blow::Wait(Ordeal::delay(span)),
            Self::Drop { times } => Blow::Wait(Ordeal::lost(times, by.timeout, by.retry_cnt)),
            Self::Rnr { times } => {
                Blow::Wait(Ordeal::not_ready(times, by.min_rnr_timer, by.rnr_retry))
            }
            Self::Refuse(nak) => Blow::Refused(nak),
            Self::Local => Blow::Fails(IBV_WC_LOC_PROT_ERR),
            Self::QpError | Self::PortDown(_) | Self::DeviceFatal => Blow::Breaks,
        }
    }
}

impl<C> Default for Strikes<C> {
    fn default() -> Self {
        Self { stream: None, struck: VecDeque::new(), held: None }
    }
}

impl<C: Count> Strikes<C> {
    /// Takes up the rules of a plan for queue pair number `qp`, or those that are new in it. Returns whether there are any.
    pub fn take_plan(&mut self, plan: &Plan<C>, qp: u32, kind: Kind) -> bool {
        match &mut self.stream {
            Some(stream) => stream.extend(plan),
            None => self.stream = plan.stream(qp, kind),
        }
        self.stream.is_some()
    }

    /// Forgets all rules, and the faults of what was posted.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether no rule concerns the queue pair.
    pub const fn is_empty(&self) -> bool {
        self.stream.is_none()
    }

    /// Request `n` is posted: counts it, and decides whether a fault will strike it.
    pub fn note(&mut self, n: u64, opcode: u32) {
        if let Some(fault) = self.stream.as_mut().and_then(|stream| stream.next(opcode)) {
            self.struck.push_back((n, fault));
        }
    }

    /// The first request from `n` on that a fault is to strike.
    pub fn next_struck(&mut self, n: u64) -> Option<(u64, Fault)> {
        // Those before it were flushed.
        while self.struck.front().is_some_and(|(at, _)| *at < n) {
            self.struck.pop_front();
        }
        self.struck.front().copied()
    }

    /// The fault of the first request struck is over.
    pub fn spend(&mut self) {
        self.struck.pop_front();
        self.held = None;
    }

    /// Holds request `n` back for as long as `ordeal` says, from the first time that this is said. Returns whether that is over by `now`.
    pub fn hold(&mut self, n: u64, ordeal: &Ordeal, now: Time) -> bool {
        let held = match &mut self.held {
            Some(held) if held.n == n => *held,
            other => *other.insert(Held { n, until: ordeal.span.map(|span| now.after(span)) }),
        };
        held.until.is_some_and(|until| now >= until)
    }

    /// Until when request `n` is held back; `None`: it is not, or for ever.
    pub fn held_until(&self, n: u64) -> Option<Time> {
        self.held.filter(|held| held.n == n)?.until
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ALL, Rule, When};
    use super::*;
    use abi::*;
    use std::time::Duration;

    fn at(ms: u64) -> Time {
        Time::default().after(Duration::from_millis(ms))
    }

    #[test]
    fn a_request_is_held_from_its_turn_on_and_no_longer_than_it_shall_be() {
        let mut strikes = Strikes::<Cell<u64>>::default();
        let ordeal = Ordeal::delay(Duration::from_millis(5));
        assert!(!strikes.hold(7, &ordeal, at(0)));
        assert_eq!((strikes.held_until(7), strikes.held_until(8)), (Some(at(5)), None));
        assert!(!strikes.hold(7, &ordeal, at(4)));
        assert!(strikes.hold(7, &ordeal, at(5)));
        strikes.spend();
        assert_eq!(strikes.held_until(7), None);
        // The next one has a time of its own.
        assert!(!strikes.hold(8, &ordeal, at(6)));
        assert!(!strikes.hold(8, &ordeal, at(10)));
        assert!(strikes.hold(8, &ordeal, at(11)));
    }

    #[test]
    fn what_is_held_for_ever_is_not_let_go() {
        let mut strikes = Strikes::<Cell<u64>>::default();
        let ordeal = Ordeal::lost(1, 0, 7);
        assert!(!strikes.hold(1, &ordeal, at(0)));
        assert!(!strikes.hold(1, &ordeal, at(1_000_000_000)));
        assert_eq!(strikes.held_until(1), None);
    }

    #[test]
    fn faults_of_requests_that_were_flushed_strike_nothing() {
        let mut strikes = Strikes::<Cell<u64>>::default();
        for n in [3, 5, 9] {
            strikes.struck.push_back((n, Fault::Local));
        }
        assert_eq!(strikes.next_struck(0), Some((3, Fault::Local)));
        assert_eq!(strikes.next_struck(4), Some((5, Fault::Local)));
        assert_eq!(strikes.next_struck(9), Some((9, Fault::Local)));
        strikes.spend();
        assert_eq!(strikes.next_struck(9), None);
    }

    #[test]
    fn requests_are_struck_by_the_order_in_which_they_are_posted() {
        let mut plan = Plan::<Cell<u64>>::default();
        let rule = Rule {
            fault: Fault::Local,
            when: When::Every(2),
            qp: None,
            class: None,
            transport: None,
            per_device: false,
        };
        let mut strikes = Strikes::default();
        assert!(!strikes.take_plan(&plan, 1, Kind::Rc) && strikes.is_empty());
        plan.add(rule);
        assert!(strikes.take_plan(&plan, 1, Kind::Rc) && !strikes.is_empty());
        for n in 10..14 {
            strikes.note(n, IBV_WR_SEND);
        }
        assert_eq!(strikes.next_struck(10), Some((11, Fault::Local)));
        strikes.spend();
        assert_eq!(strikes.next_struck(11), Some((13, Fault::Local)));
        strikes.forget();
        assert_eq!(strikes.next_struck(11), None);
        strikes.note(14, IBV_WR_SEND);
        assert_eq!(strikes.next_struck(11), None);
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
        assert_eq!(drop.strikes(&by), Blow::Wait(Ordeal::lost(ALL, 14, 7)));
        assert_eq!(rnr.strikes(&by), Blow::Wait(Ordeal::not_ready(2, 12, 3)));
        assert_eq!(refuse.strikes(&by), Blow::Refused(Nak::Access));
        for fault in [drop, rnr, refuse] {
            assert_eq!(fault.strikes(&unreliable), Blow::Lost);
        }
        for by in [by, unreliable] {
            assert_eq!(Fault::Delay(span).strikes(&by), Blow::Wait(Ordeal::delay(span)));
            assert_eq!(Fault::Local.strikes(&by), Blow::Fails(IBV_WC_LOC_PROT_ERR));
            for fault in [Fault::QpError, Fault::PortDown(None), Fault::DeviceFatal] {
                assert_eq!(fault.strikes(&by), Blow::Breaks);
            }
        }
    }
}
