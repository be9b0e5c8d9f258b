//! Fault injection: which requests of which queue pairs fail, and how. Pure: no clock and no other
//! thread.
//!
//! A [`Plan`] holds the rules of the adapter. Each queue pair has its own [`Stream`] of the rules,
//! which is queried once for each posted request, in the order of posting. The result depends only
//! on that order.
//!
//! Map of this file: [`Fault`], [`RuleHits`], [`Rule`] and [`Statement`]; [`Plan`] and [`Stream`];
//! matching of rules; [`RequestDelay`], the delay of a request.

mod parse;
mod queue_faults;

pub use parse::parse;
pub use queue_faults::{FaultEffect, Retries, SendQueueFaults};

use crate::inbound::Nak;
use crate::state::{QpType, give_up_us, rnr_timer_us};
use abi::*;
use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Value of `times`: until the sender gives up.
pub const ALL: u32 = u32::MAX;

/// The effect on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is lost this many times in a row.
    Drop {
        /// A count, or [`ALL`].
        times: u32,
    },
    /// The request leaves later, and so do all later requests.
    Delay(Duration),
    /// The receiver reports this many times in a row that it has no receive.
    Rnr {
        /// A count, or [`ALL`].
        times: u32,
    },
    /// The remote queue pair refuses the request.
    Refuse(Nak),
    /// The request's own memory list is invalid (`IBV_WC_LOC_PROT_ERR`).
    Local,
    /// The queue pair fails (`IBV_EVENT_QP_FATAL`).
    QpError,
    /// The port goes down before the request leaves; for ever, or for the given time.
    PortDown(Option<Duration>),
    /// The device fails before the request leaves.
    DeviceFatal,
}

/// Which of the counted operations a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleHits {
    /// The operation with this number; the first is 1.
    Nth(u64),
    /// Every operation whose number is divisible by this.
    Every(u64),
    /// `hits` in `of` operations, drawn from pseudo-random numbers.
    Rate {
        /// Number of operations hit.
        hits: u32,
        /// Number of operations in total.
        total: u32,
        /// The seed of the pseudo-random numbers.
        seed: u64,
    },
}

/// Classes of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// SENDs of all kinds.
    Send,
    /// RDMA WRITEs and atomic writes.
    Write,
    /// RDMA READs.
    Read,
    /// Compare-and-swap and fetch-and-add.
    Atomic,
    /// Flushes.
    Flush,
}

/// Kinds of queue pairs in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Datagrams.
    Ud,
    /// Ethernet frames.
    Raw,
    /// The sending end of an XRC connection.
    Xrc,
}

/// One rule: effect, time, and the requests concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The effect.
    pub fault: Fault,
    /// Which operations are hit.
    pub hits: RuleHits,
    /// Only this queue pair of the process, numbered from 1 in the order of creation.
    pub qp: Option<u32>,
    /// Only requests of this class.
    pub class: Option<Class>,
    /// Only queue pairs of this kind.
    pub transport: Option<Transport>,
    /// Whether operations of all queue pairs are counted together.
    pub per_device: bool,
}

/// A planned overrun of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// The completion that finds no room; the first is 1.
    pub nth: u64,
    /// Only this completion queue of the process, numbered from 1.
    pub cq: Option<u32>,
}

/// An action that happens at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImmediateFault {
    /// The port goes down; for ever, or for the given time.
    PortDown(Option<Duration>),
    /// The port comes up.
    PortUp,
    /// Report an `ibv_event_type` of the port. For GID events the host's addresses are read again;
    /// otherwise no state changes.
    PortEvent(u32),
    /// The device fails (`IBV_EVENT_DEVICE_FATAL`).
    DeviceFatal,
}

/// One statement of the fault language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statement {
    /// A rule that holds from now on.
    Rule(Rule),
    /// A single overrun of a completion queue.
    Overrun(Overrun),
    /// An action that happens at once.
    ImmediateFault(ImmediateFault),
    /// Removes all rules.
    Clear,
}

/// A rule with its device-wide count.
#[derive(Debug)]
struct CountedRule<C> {
    rule: Rule,
    /// Index of the rule: each rule draws its own random numbers.
    index: u64,
    counted: C,
}

/// A count that the streams of one device share. Callers with several threads provide a thread-safe
/// count.
pub trait Count: Debug + Default {
    /// Increments the count and returns it; the first result is 1.
    fn count(&self) -> u64;
}

impl Count for Cell<u64> {
    fn count(&self) -> u64 {
        self.set(self.get() + 1);
        self.get()
    }
}

/// All rules of an adapter, in the order of addition.
#[derive(Debug)]
pub struct Plan<C = Cell<u64>> {
    rules: Vec<Arc<CountedRule<C>>>,
    overruns: Vec<Overrun>,
}

impl<C> Default for Plan<C> {
    fn default() -> Self {
        Self { rules: vec![], overruns: vec![] }
    }
}

impl<C: Count> Plan<C> {
    /// Appends a rule.
    pub fn add(&mut self, rule: Rule) {
        let index = self.rules.len() as u64;
        self.rules.push(Arc::new(CountedRule { rule, index, counted: C::default() }));
    }

    /// Whether the plan has neither rules nor overruns.
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.overruns.is_empty()
    }

    /// Adds a planned overrun of a completion queue.
    pub fn add_overrun(&mut self, overrun: Overrun) {
        self.overruns.push(overrun);
    }

    /// The number of the completion at which queue `cq` overruns, if any.
    pub fn overrun_of(&self, cq: u32) -> Option<u64> {
        let meant = self.overruns.iter().filter(|o| o.cq.is_none_or(|only| only == cq));
        meant.map(|o| o.nth).min()
    }

    /// The stream of the rules that concern queue pair `qp`; `None`: none does.
    pub fn stream(&self, qp: u32, kind: QpType) -> Option<Stream<C>> {
        let mut stream = Stream { qp, qp_type: kind, rules: vec![], examined_rules: 0 };
        stream.extend(self);
        (!stream.rules.is_empty()).then_some(stream)
    }
}

/// The progress of one queue pair through the rules.
#[derive(Debug)]
pub struct Stream<C = Cell<u64>> {
    qp: u32,
    qp_type: QpType,
    /// Each rule with the number of this queue pair's operations that it counted.
    rules: Vec<(Arc<CountedRule<C>>, u64)>,
    /// Number of the plan's rules that were examined.
    examined_rules: usize,
}

impl<C: Count> Stream<C> {
    /// Adds the rules that are new in `plan`; they start counting now.
    pub fn extend(&mut self, plan: &Plan<C>) {
        for live in plan.rules.iter().skip(self.examined_rules) {
            if live.rule.concerns(self.qp, self.qp_type) {
                self.rules.push((Arc::clone(live), 0));
            }
        }
        self.examined_rules = self.examined_rules.max(plan.rules.len());
    }

    /// The fault of the next posted request. All rules count the request; the first that applies
    /// decides.
    pub fn next(&mut self, opcode: u32) -> Option<Fault> {
        let class = Class::of(opcode)?;
        let mut faulted = None;
        for (live, own) in &mut self.rules {
            let Rule { fault, hits: when, per_device, .. } = live.rule;
            if !live.rule.counts(class, opcode) {
                continue;
            }
            let (number, whose) = if per_device {
                (live.counted.count(), 0)
            } else {
                *own += 1;
                (*own, self.qp)
            };
            if when.applies(number, live.index, whose) {
                faulted = faulted.or(Some(fault));
            }
        }
        faulted
    }
}

impl Rule {
    fn concerns(&self, qp: u32, kind: QpType) -> bool {
        self.qp.is_none_or(|only| only == qp)
            && self.transport.is_none_or(|only| Some(only) == Transport::of(kind))
    }

    fn counts(&self, class: Class, opcode: u32) -> bool {
        let takes_receive = class == Class::Send || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
        self.class.is_none_or(|only| only == class)
            && (takes_receive || !matches!(self.fault, Fault::Rnr { .. }))
    }
}

impl RuleHits {
    /// Whether a rule applies to operation `number`, counted from 1. `index` and `qp` select the
    /// random numbers.
    fn applies(self, number: u64, index: u64, qp: u32) -> bool {
        match self {
            Self::Nth(nth) => number == nth,
            Self::Every(every) => number.is_multiple_of(every),
            Self::Rate { hits, total: of, seed } => {
                let drawn = mix(mix(mix(seed ^ index) ^ u64::from(qp)) ^ number);
                // A uniform number below `of`.
                ((u128::from(drawn) * u128::from(of)) >> 64) < u128::from(hits)
            }
        }
    }
}

impl Class {
    /// The class of a request with this `ibv_wr_opcode`; `None`: a request that stays local.
    pub const fn of(opcode: u32) -> Option<Self> {
        Some(match opcode {
            IBV_WR_BIND_MW | IBV_WR_LOCAL_INV => return None,
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_ATOMIC_WRITE => Self::Write,
            IBV_WR_RDMA_READ => Self::Read,
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => Self::Atomic,
            IBV_WR_FLUSH => Self::Flush,
            _ => Self::Send,
        })
    }
}

impl Transport {
    const fn of(kind: QpType) -> Option<Self> {
        Some(match kind {
            QpType::Rc => Self::Rc,
            QpType::Uc => Self::Uc,
            QpType::Ud => Self::Ud,
            QpType::Raw => Self::Raw,
            QpType::XrcSend => Self::Xrc,
            // An XRC receive QP sends no requests.
            QpType::XrcRecv => return None,
        })
    }
}

/// How long transport failures delay a request, and the final result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDelay {
    /// The delay; `None`: for ever.
    pub span: Option<Duration>,
    /// The status of the failed request; `None`: the request is sent after the delay.
    pub status: Option<u32>,
}

impl RequestDelay {
    /// A request that is lost `times` in a row. Each loss costs the timeout of `ibv_qp_attr` (0:
    /// for ever), and the request is repeated up to `retry_cnt` times.
    pub fn for_losses(times: u32, timeout: u8, retry_cnt: u8) -> Self {
        let survives = times <= u32::from(retry_cnt);
        let waits = if survives { times as u8 } else { retry_cnt.saturating_add(1) };
        let span = give_up_us(timeout, waits.saturating_sub(1)).map(Duration::from_micros);
        Self { span, status: (!survives).then_some(IBV_WC_RETRY_EXC_ERR) }
    }

    /// A request that finds no receive `times` in a row. Each attempt costs the receiver's
    /// `min_rnr_timer`, and the request is repeated up to `rnr_retry` times (7: without limit).
    pub fn not_ready(times: u32, min_rnr_timer: u8, rnr_retry: u8) -> Self {
        let survives = rnr_retry >= 7 || times <= u32::from(rnr_retry);
        let waits = if survives { times } else { u32::from(rnr_retry) };
        let us = u64::from(rnr_timer_us(min_rnr_timer)) * u64::from(waits);
        let span = (waits != ALL).then(|| Duration::from_micros(us));
        Self { span, status: (!survives).then_some(IBV_WC_RNR_RETRY_EXC_ERR) }
    }

    /// A request that is delayed by `span`.
    pub const fn delay(span: Duration) -> Self {
        Self { span: Some(span), status: None }
    }
}

/// Mixes the bits of a number (the finaliser of splitmix64, public domain).
const fn mix(word: u64) -> u64 {
    let x = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Plan {
        let mut plan: Plan = Plan::default();
        for statement in parse(text).unwrap() {
            match statement {
                Statement::Rule(rule) => plan.add(rule),
                Statement::Overrun(overrun) => plan.add_overrun(overrun),
                other => panic!("{other:?} is no rule"),
            }
        }
        plan
    }

    /// The numbers of the operations among the first `count` that a rule hits, from 1.
    fn faulted(stream: &mut Stream, opcode: u32, count: u64) -> Vec<u64> {
        (1..=count).filter(|_| stream.next(opcode).is_some()).collect()
    }

    fn rc(plan: &Plan, qp: u32) -> Stream {
        plan.stream(qp, QpType::Rc).expect("a rule for it")
    }

    #[test]
    fn the_nth_and_every_nth_are_counted_for_each_queue_pair() {
        let plan = plan("drop nth=3; delay for=1ms every=4");
        for qp in [1, 2] {
            assert_eq!(faulted(&mut rc(&plan, qp), IBV_WR_SEND, 12), [3, 4, 8, 12]);
        }
    }

    #[test]
    fn the_first_rule_that_applies_wins_and_the_others_count_all_the_same() {
        let plan = plan("drop nth=2; access-error every=2");
        let mut stream = rc(&plan, 1);
        let access = Some(Fault::Refuse(Nak::Access));
        let all: Vec<_> = (0..4).map(|_| stream.next(IBV_WR_SEND)).collect();
        assert_eq!(all, [None, Some(Fault::Drop { times: 1 }), None, access]);
    }

    #[test]
    fn a_rule_for_the_device_counts_all_queue_pairs_together() {
        let plan = plan("drop nth=3 per=device");
        let (mut one, mut two) = (rc(&plan, 1), rc(&plan, 2));
        assert_eq!(one.next(IBV_WR_SEND), None);
        assert_eq!(two.next(IBV_WR_SEND), None);
        assert_eq!(one.next(IBV_WR_SEND), Some(Fault::Drop { times: 1 }));
        assert_eq!(two.next(IBV_WR_SEND), None);
    }

    #[test]
    fn rules_count_what_they_name_and_nothing_else() {
        let plan = plan("drop qp=2 type=rc op=write nth=1");
        assert!(plan.stream(1, QpType::Rc).is_none());
        assert!(plan.stream(2, QpType::Ud).is_none());
        let mut stream = rc(&plan, 2);
        for other in [IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW] {
            assert_eq!(stream.next(other), None);
        }
        assert!(stream.next(IBV_WR_RDMA_WRITE).is_some());
    }

    #[test]
    fn rnr_faults_hit_only_requests_that_need_a_receive() {
        let plan = plan("rnr every=1");
        let mut stream = rc(&plan, 1);
        assert_eq!(stream.next(IBV_WR_RDMA_WRITE), None);
        assert_eq!(stream.next(IBV_WR_RDMA_READ), None);
        assert!(stream.next(IBV_WR_SEND).is_some());
        assert!(stream.next(IBV_WR_RDMA_WRITE_WITH_IMM).is_some());
    }

    #[test]
    fn a_seed_gives_the_same_stream_every_time_and_about_the_rate() {
        let text = "drop rate=1/10 seed=42";
        let first = faulted(&mut rc(&plan(text), 1), IBV_WR_SEND, 10_000);
        assert_eq!(faulted(&mut rc(&plan(text), 1), IBV_WR_SEND, 10_000), first);
        assert!((900..1100).contains(&first.len()), "{}", first.len());
        let other_qp = faulted(&mut rc(&plan(text), 2), IBV_WR_SEND, 10_000);
        let other_seed = faulted(&mut rc(&plan("drop rate=1/10 seed=43"), 1), IBV_WR_SEND, 10_000);
        assert!(first != other_qp && first != other_seed);
        // The expected values come from a program in another language: the stream must not change
        // between versions.
        assert_eq!(first[..6], [8, 12, 14, 31, 38, 52]);
    }

    #[test]
    fn a_rate_of_one_strikes_all_requests_and_a_rate_of_zero_none() {
        assert_eq!(faulted(&mut rc(&plan("drop rate=3/3"), 1), IBV_WR_SEND, 100).len(), 100);
        assert_eq!(faulted(&mut rc(&plan("drop rate=0/3"), 1), IBV_WR_SEND, 100).len(), 0);
    }

    #[test]
    fn rules_that_are_added_later_count_from_then_on() {
        let mut plan = plan("drop nth=1");
        let mut stream = rc(&plan, 1);
        assert_eq!(faulted(&mut stream, IBV_WR_SEND, 5), [1]);
        for statement in parse("drop nth=2").unwrap() {
            let Statement::Rule(rule) = statement else { panic!() };
            plan.add(rule);
        }
        stream.extend(&plan);
        assert_eq!(faulted(&mut stream, IBV_WR_SEND, 5), [2]);
    }

    #[test]
    fn a_completion_queue_overruns_at_the_first_of_its_numbers() {
        let plan = plan("cq-overrun nth=100; cq-overrun cq=2 nth=7");
        assert_eq!((plan.overrun_of(1), plan.overrun_of(2)), (Some(100), Some(7)));
        assert_eq!(Plan::<Cell<u64>>::default().overrun_of(1), None);
    }

    #[test]
    fn a_lost_request_costs_time_outs_until_the_retries_are_used_up() {
        let us = |n| Some(Duration::from_micros(n));
        let survives = |span| RequestDelay { span, status: None };
        assert_eq!(RequestDelay::for_losses(1, 14, 7), survives(us(67_108)));
        assert_eq!(RequestDelay::for_losses(7, 14, 7), survives(us(7 * 67_108)));
        let fails = RequestDelay { span: us(8 * 67_108), status: Some(IBV_WC_RETRY_EXC_ERR) };
        assert_eq!(RequestDelay::for_losses(8, 14, 7), fails);
        assert_eq!(RequestDelay::for_losses(ALL, 14, 7), fails);
        let at_once = RequestDelay { span: us(67_108), status: Some(IBV_WC_RETRY_EXC_ERR) };
        assert_eq!(RequestDelay::for_losses(1, 14, 0), at_once);
        assert_eq!(
            RequestDelay::for_losses(1, 0, 7),
            survives(None),
            "no time-out: never sent again"
        );
    }

    #[test]
    fn a_missing_receive_costs_timers_until_the_retries_are_used_up() {
        let us = |n| Some(Duration::from_micros(n));
        assert_eq!(
            RequestDelay::not_ready(2, 12, 3),
            RequestDelay { span: us(1280), status: None }
        );
        let fails = RequestDelay { span: us(1920), status: Some(IBV_WC_RNR_RETRY_EXC_ERR) };
        assert_eq!(RequestDelay::not_ready(4, 12, 3), fails);
        assert_eq!(RequestDelay::not_ready(ALL, 12, 3), fails);
        assert_eq!(RequestDelay::not_ready(1, 12, 0), RequestDelay { span: us(0), ..fails });
        assert_eq!(
            RequestDelay::not_ready(100, 12, 7),
            RequestDelay { span: us(64_000), status: None }
        );
        assert_eq!(RequestDelay::not_ready(ALL, 12, 7), RequestDelay { span: None, status: None });
    }
}
