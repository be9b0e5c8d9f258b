//! Faults on purpose: which operations of which queue pairs are to fail, and how. Pure: nothing here knows the time or another thread.
//!
//! A [`Plan`] has the rules of the whole adapter. Each queue pair goes through them with a [`Stream`] of its own, which is asked
//! once for each request that is posted, in the order of posting: the answer depends on that order and on nothing else.

mod parse;
mod strikes;

pub use parse::parse;
pub use strikes::{Blow, Retries, Strikes};

use crate::inbound::Nak;
use crate::state::{Kind, give_up_us, rnr_timer_us};
use abi::*;
use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Of `times`: until the sender gives up.
pub const ALL: u32 = u32::MAX;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is lost this many times in a row.
    Drop {
        /// Or [`ALL`].
        times: u32,
    },
    /// It leaves later, and with it what is behind it.
    Delay(Duration),
    /// The receiver says this many times in a row that it has no receive for it.
    Rnr {
        /// Or [`ALL`].
        times: u32,
    },
    /// The remote queue pair refuses it.
    Refuse(Nak),
    /// Its own list of memory is found wrong (`IBV_WC_LOC_PROT_ERR`).
    Local,
    /// The queue pair breaks (`IBV_EVENT_QP_FATAL`).
    QpError,
    /// The port goes down before it leaves; for ever, or for so long.
    PortDown(Option<Duration>),
    /// The device breaks before it leaves.
    DeviceFatal,
}

/// To which of the operations that a rule counts it applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// To this one; the first is 1.
    Nth(u64),
    /// To each whose number this divides.
    Every(u64),
    /// To `hits` in `of`, by a stream of pseudo-random numbers.
    Rate {
        /// So many are struck,
        hits: u32,
        /// of so many.
        of: u32,
        /// What the numbers come from.
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

/// Kinds of queue pairs as a rule names them.
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

/// One rule: what, when, and for which requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What happens.
    pub fault: Fault,
    /// When.
    pub when: When,
    /// Only queue pair number so-and-so of this process in the order of creation; the first is 1.
    pub qp: Option<u32>,
    /// Only requests of this class.
    pub class: Option<Class>,
    /// Only queue pairs of this kind.
    pub transport: Option<Transport>,
    /// Operations of all queue pairs are counted together.
    pub per_device: bool,
}

/// A completion queue that is to overrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// The completion that finds no room; the first is 1.
    pub nth: u64,
    /// Only completion queue number so-and-so of this process; the first is 1.
    pub cq: Option<u32>,
}

/// What is done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The port goes down; for ever, or for so long.
    PortDown(Option<Duration>),
    /// The port comes up.
    PortUp,
    /// An `ibv_event_type` of the port is reported. Where it is of GIDs, the host's addresses are looked for again; nothing else
    /// changes.
    PortEvent(u32),
    /// The device breaks (`IBV_EVENT_DEVICE_FATAL`).
    DeviceFatal,
}

/// What a person can say in one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statement {
    /// From now on.
    Rule(Rule),
    /// Of a completion queue, once.
    Overrun(Overrun),
    /// At once.
    Order(Order),
    /// All rules are forgotten.
    Clear,
}

/// A rule with its count for the whole device.
#[derive(Debug)]
struct Live<C> {
    rule: Rule,
    /// Its place among the rules: each draws random numbers of its own.
    index: u64,
    counted: C,
}

/// A count that the streams of one device share. Who goes through them in several threads brings one that threads can share.
pub trait Count: Debug + Default {
    /// Counts one more, and says the how manieth that is; the first is 1.
    fn count(&self) -> u64;
}

impl Count for Cell<u64> {
    fn count(&self) -> u64 {
        self.set(self.get() + 1);
        self.get()
    }
}

/// All rules of an adapter, in the order in which they were given.
#[derive(Debug)]
pub struct Plan<C = Cell<u64>> {
    rules: Vec<Arc<Live<C>>>,
    overruns: Vec<Overrun>,
}

impl<C> Default for Plan<C> {
    fn default() -> Self {
        Self { rules: vec![], overruns: vec![] }
    }
}

impl<C: Count> Plan<C> {
    /// Adds a rule behind all others.
    pub fn add(&mut self, rule: Rule) {
        let index = self.rules.len() as u64;
        self.rules.push(Arc::new(Live { rule, index, counted: C::default() }));
    }

    /// Whether it says nothing.
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.overruns.is_empty()
    }

    /// Adds a completion queue that is to overrun.
    pub fn add_overrun(&mut self, overrun: Overrun) {
        self.overruns.push(overrun);
    }

    /// At which of its completions queue number `cq` overruns, if at any.
    pub fn overrun_of(&self, cq: u32) -> Option<u64> {
        let meant = self.overruns.iter().filter(|o| o.cq.is_none_or(|only| only == cq));
        meant.map(|o| o.nth).min()
    }

    /// The way of queue pair number `qp` through the rules that concern it; `None`: none does.
    pub fn stream(&self, qp: u32, kind: Kind) -> Option<Stream<C>> {
        let mut stream = Stream { qp, kind, rules: vec![], seen: 0 };
        stream.extend(self);
        (!stream.rules.is_empty()).then_some(stream)
    }
}

/// Where one queue pair is with the rules.
#[derive(Debug)]
pub struct Stream<C = Cell<u64>> {
    qp: u32,
    kind: Kind,
    /// With how many operations of this queue pair each has counted.
    rules: Vec<(Arc<Live<C>>, u64)>,
    /// Rules of the plan that were looked at.
    seen: usize,
}

impl<C: Count> Stream<C> {
    /// Takes up rules that were added since; they begin to count now.
    pub fn extend(&mut self, plan: &Plan<C>) {
        for live in plan.rules.iter().skip(self.seen) {
            if live.rule.concerns(self.qp, self.kind) {
                self.rules.push((Arc::clone(live), 0));
            }
        }
        self.seen = self.seen.max(plan.rules.len());
    }

    /// What happens to the request that is posted next. All rules count it, and the first that applies is carried out.
    pub fn next(&mut self, opcode: u32) -> Option<Fault> {
        let class = Class::of(opcode)?;
        let mut struck = None;
        for (live, own) in &mut self.rules {
            let Rule { fault, when, per_device, .. } = live.rule;
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
                struck = struck.or(Some(fault));
            }
        }
        struck
    }
}

impl Rule {
    fn concerns(&self, qp: u32, kind: Kind) -> bool {
        self.qp.is_none_or(|only| only == qp)
            && self.transport.is_none_or(|only| Some(only) == Transport::of(kind))
    }

    fn counts(&self, class: Class, opcode: u32) -> bool {
        let takes_receive = class == Class::Send || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
        self.class.is_none_or(|only| only == class)
            && (takes_receive || !matches!(self.fault, Fault::Rnr { .. }))
    }
}

impl When {
    /// Whether a rule applies to operation `number`, counting from 1. `index` and `qp` are whose random numbers are drawn.
    fn applies(self, number: u64, index: u64, qp: u32) -> bool {
        match self {
            Self::Nth(nth) => number == nth,
            Self::Every(every) => number.is_multiple_of(every),
            Self::Rate { hits, of, seed } => {
                let drawn = mix(mix(mix(seed ^ index) ^ u64::from(qp)) ^ number);
                // A number below `of`, each as likely as any.
                ((u128::from(drawn) * u128::from(of)) >> 64) < u128::from(hits)
            }
        }
    }
}

impl Class {
    /// The class of a request with this `ibv_wr_opcode`; `None` for what never leaves the queue pair's own adapter.
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
    const fn of(kind: Kind) -> Option<Self> {
        Some(match kind {
            Kind::Rc => Self::Rc,
            Kind::Uc => Self::Uc,
            Kind::Ud => Self::Ud,
            Kind::Raw => Self::Raw,
            Kind::XrcSend => Self::Xrc,
            // It sends nothing.
            Kind::XrcRecv => return None,
        })
    }
}

/// How long a request is held up by failures of the wire, and how that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordeal {
    /// `None`: for ever.
    pub span: Option<Duration>,
    /// The status that it fails with; `None`: then it leaves after all.
    pub status: Option<u32>,
}

impl Ordeal {
    /// A request that is lost `times` in a row: each costs the time-out of `ibv_qp_attr` (0: for ever), and it is sent again
    /// up to `retry_cnt` times.
    pub fn lost(times: u32, timeout: u8, retry_cnt: u8) -> Self {
        let survives = times <= u32::from(retry_cnt);
        let waits = if survives { times as u8 } else { retry_cnt.saturating_add(1) };
        let span = give_up_us(timeout, waits.saturating_sub(1)).map(Duration::from_micros);
        Self { span, status: (!survives).then_some(IBV_WC_RETRY_EXC_ERR) }
    }

    /// A request that finds no receive `times` in a row: each costs the receiver's `min_rnr_timer`, and it is sent again up to
    /// `rnr_retry` times (7: for ever).
    pub fn not_ready(times: u32, min_rnr_timer: u8, rnr_retry: u8) -> Self {
        let survives = rnr_retry >= 7 || times <= u32::from(rnr_retry);
        let waits = if survives { times } else { u32::from(rnr_retry) };
        let us = u64::from(rnr_timer_us(min_rnr_timer)) * u64::from(waits);
        let span = (waits != ALL).then(|| Duration::from_micros(us));
        Self { span, status: (!survives).then_some(IBV_WC_RNR_RETRY_EXC_ERR) }
    }

    /// A request that leaves so much later.
    pub const fn delay(span: Duration) -> Self {
        Self { span: Some(span), status: None }
    }
}

/// Scatters the bits of a number (the finaliser of splitmix64, public domain).
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

    /// The numbers of the operations, from 1, that something happens to among the first `count`.
    fn struck(stream: &mut Stream, opcode: u32, count: u64) -> Vec<u64> {
        (1..=count).filter(|_| stream.next(opcode).is_some()).collect()
    }

    fn rc(plan: &Plan, qp: u32) -> Stream {
        plan.stream(qp, Kind::Rc).expect("a rule for it")
    }

    #[test]
    fn the_nth_and_every_nth_are_counted_for_each_queue_pair() {
        let plan = plan("drop nth=3; delay for=1ms every=4");
        for qp in [1, 2] {
            assert_eq!(struck(&mut rc(&plan, qp), IBV_WR_SEND, 12), [3, 4, 8, 12]);
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
        assert!(plan.stream(1, Kind::Rc).is_none());
        assert!(plan.stream(2, Kind::Ud).is_none());
        let mut stream = rc(&plan, 2);
        for other in [IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW] {
            assert_eq!(stream.next(other), None);
        }
        assert!(stream.next(IBV_WR_RDMA_WRITE).is_some());
    }

    #[test]
    fn only_what_takes_a_receive_can_find_none() {
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
        let first = struck(&mut rc(&plan(text), 1), IBV_WR_SEND, 10_000);
        assert_eq!(struck(&mut rc(&plan(text), 1), IBV_WR_SEND, 10_000), first);
        assert!((900..1100).contains(&first.len()), "{}", first.len());
        let other_qp = struck(&mut rc(&plan(text), 2), IBV_WR_SEND, 10_000);
        let other_seed = struck(&mut rc(&plan("drop rate=1/10 seed=43"), 1), IBV_WR_SEND, 10_000);
        assert!(first != other_qp && first != other_seed);
        // The same by a program in another language: the stream must not change between versions.
        assert_eq!(first[..6], [8, 12, 14, 31, 38, 52]);
    }

    #[test]
    fn a_rate_of_all_strikes_all_and_of_none_none() {
        assert_eq!(struck(&mut rc(&plan("drop rate=3/3"), 1), IBV_WR_SEND, 100).len(), 100);
        assert_eq!(struck(&mut rc(&plan("drop rate=0/3"), 1), IBV_WR_SEND, 100).len(), 0);
    }

    #[test]
    fn rules_that_are_added_later_count_from_then_on() {
        let mut plan = plan("drop nth=1");
        let mut stream = rc(&plan, 1);
        assert_eq!(struck(&mut stream, IBV_WR_SEND, 5), [1]);
        for statement in parse("drop nth=2").unwrap() {
            let Statement::Rule(rule) = statement else { panic!() };
            plan.add(rule);
        }
        stream.extend(&plan);
        assert_eq!(struck(&mut stream, IBV_WR_SEND, 5), [2]);
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
        let survives = |span| Ordeal { span, status: None };
        assert_eq!(Ordeal::lost(1, 14, 7), survives(us(67_108)));
        assert_eq!(Ordeal::lost(7, 14, 7), survives(us(7 * 67_108)));
        let fails = Ordeal { span: us(8 * 67_108), status: Some(IBV_WC_RETRY_EXC_ERR) };
        assert_eq!(Ordeal::lost(8, 14, 7), fails);
        assert_eq!(Ordeal::lost(ALL, 14, 7), fails);
        let at_once = Ordeal { span: us(67_108), status: Some(IBV_WC_RETRY_EXC_ERR) };
        assert_eq!(Ordeal::lost(1, 14, 0), at_once);
        assert_eq!(Ordeal::lost(1, 0, 7), survives(None), "no time-out: never sent again");
    }

    #[test]
    fn a_missing_receive_costs_timers_until_the_retries_are_used_up() {
        let us = |n| Some(Duration::from_micros(n));
        assert_eq!(Ordeal::not_ready(2, 12, 3), Ordeal { span: us(1280), status: None });
        let fails = Ordeal { span: us(1920), status: Some(IBV_WC_RNR_RETRY_EXC_ERR) };
        assert_eq!(Ordeal::not_ready(4, 12, 3), fails);
        assert_eq!(Ordeal::not_ready(ALL, 12, 3), fails);
        assert_eq!(Ordeal::not_ready(1, 12, 0), Ordeal { span: us(0), ..fails });
        assert_eq!(Ordeal::not_ready(100, 12, 7), Ordeal { span: us(64_000), status: None });
        assert_eq!(Ordeal::not_ready(ALL, 12, 7), Ordeal { span: None, status: None });
    }
}
