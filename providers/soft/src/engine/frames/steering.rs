//! Steering rules: the rules of each process, published in its tables, and the selection of rules
//! for a frame. Senders select the receiving processes; receivers select their own rules again.
#![forbid(unsafe_code)]

use crate::engine::adapter::{Adapter, Steering, SteeringRule};
use crate::engine::datagram::Receivers;
use crate::engine::frames::counters::Counters;
use crate::engine::queues::qp::Qp;
use arrayvec::ArrayVec;
use cface::sync::RwLock;
use soft_local::shm::layout::{RULE_WORDS, RULES, RuleEntry};
use soft_local::shm::view::View;
use soft_semantics::frames::KEY_WORDS;
use soft_semantics::frames::steer::{FlowRule, Rank, StoppingRule, hash_words};
use soft_sys::{Errno, clock};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A table entry holds a whole key.
const _: () = assert!(RULE_WORDS == KEY_WORDS);

/// Maximal number of rules of a process for one frame.
const MAX_MATCHING_RULES: usize = 256;

/// The rules that get a frame.
pub(super) type MatchingRules = ArrayVec<Arc<SteeringRule>, MAX_MATCHING_RULES>;

/// The rank and age of a published rule, if it matches.
fn matching(entry: &RuleEntry, key: &[u64; RULE_WORDS]) -> Option<(Rank, u64)> {
    let rank = Rank::unpack(entry.rank.load(Ordering::Acquire))?;
    let matches =
        key.iter().zip(entry.mask.iter()).zip(entry.value.iter()).all(|((key, mask), value)| {
            key & mask.load(Ordering::Relaxed) == value.load(Ordering::Relaxed)
        });
    matches.then(|| (rank, entry.created_ns.load(Ordering::Relaxed)))
}

fn shape_of(entry: &RuleEntry) -> u64 {
    hash_words(entry.value.iter().chain(entry.mask.iter()).map(|word| word.load(Ordering::Relaxed)))
}

/// The published rules of a process.
fn published(view: &View) -> impl Iterator<Item = &RuleEntry> {
    let used = (view.tables_head().rules.load(Ordering::Acquire) as usize).min(RULES);
    (0..used).map(|index| view.rule(index))
}

/// The rule that stops a frame, and the processes that get the frame.
pub(super) fn select_receivers<'a>(
    adapter: &'a Adapter,
    key: &[u64; RULE_WORDS],
) -> (StoppingRule, Receivers<'a>) {
    let mut winner = StoppingRule::NOBODY;
    let mut any = false;
    adapter.datagrams.for_each_process(|view| {
        for entry in published(view) {
            if let Some((rank, born)) = matching(entry, key) {
                winner.challenge(rank, born, || shape_of(entry));
                any = true;
            }
        }
    });
    if !any {
        return (winner, adapter.datagrams.no_receivers());
    }
    let receivers = adapter.datagrams.receivers(adapter, |view| {
        published(view).any(|entry| {
            matching(entry, key).is_some_and(|(rank, _)| winner.permits(rank, || shape_of(entry)))
        })
    });
    (winner, receivers)
}

impl Steering {
    pub(crate) fn new(view: View) -> Self {
        Self { view, rules: RwLock::default() }
    }

    /// Adds a rule that steers frames to `qp`.
    ///
    /// # Errors
    /// `ENOMEM` the table of rules is full.
    pub(crate) fn add(
        &self,
        qp: &Qp,
        wanted: &FlowRule,
        counters: Vec<Arc<Counters>>,
    ) -> Result<Arc<SteeringRule>, Errno> {
        let mut rules = self.rules.write();
        let index = match rules.free.pop() {
            Some(index) => index,
            None if rules.slots.len() < RULES => {
                rules.slots.push(None);
                rules.slots.len() - 1
            }
            None => return Err(Errno::ENOMEM),
        };
        let rule = Arc::new(SteeringRule {
            index,
            rank: wanted.rank,
            pattern_hash: wanted.pattern.pattern_hash(),
            pattern: wanted.pattern,
            tag: wanted.tag.unwrap_or(0),
            drop: wanted.drop,
            counters,
            qp: qp.me(),
        });
        if let Some(slot) = rules.slots.get_mut(index) {
            *slot = Some(Arc::clone(&rule));
        }
        let entry = self.view.rule(index);
        for (to, from) in entry.value.iter().zip(&rule.pattern.value) {
            to.store(*from, Ordering::Relaxed);
        }
        for (to, from) in entry.mask.iter().zip(&rule.pattern.mask) {
            to.store(*from, Ordering::Relaxed);
        }
        entry.created_ns.store(clock::device_ns(), Ordering::Relaxed);
        // Release pairs with the Acquire in `matching`: a rule with a rank has its whole pattern.
        entry.rank.store(rule.rank.pack(), Ordering::Release);
        self.view.tables_head().rules.store(rules.slots.len() as u32, Ordering::Release);
        Ok(rule)
    }

    /// Removes a rule.
    pub(crate) fn remove(&self, rule: &SteeringRule) {
        let mut rules = self.rules.write();
        self.view.rule(rule.index).rank.store(0, Ordering::Release);
        if let Some(slot) = rules.slots.get_mut(rule.index) {
            *slot = None;
        }
        rules.free.push(rule.index);
        // Shortens the table, so that senders read as few entries as possible.
        while rules.slots.last().is_some_and(Option::is_none) {
            rules.slots.pop();
        }
        let used = rules.slots.len();
        rules.free.retain(|index| *index < used);
        self.view.tables_head().rules.store(used as u32, Ordering::Release);
    }

    /// The rules of this process that get a frame stopped by `winner`.
    pub(super) fn matching_rules(
        &self,
        key: &[u64; RULE_WORDS],
        winner: &StoppingRule,
    ) -> MatchingRules {
        let rules = self.rules.read();
        rules
            .slots
            .iter()
            .flatten()
            .filter(|rule| {
                rule.pattern.matches(key) && winner.permits(rule.rank, || rule.pattern_hash)
            })
            .take(MAX_MATCHING_RULES)
            .cloned()
            .collect()
    }
}
