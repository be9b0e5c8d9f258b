//! Decides what the rules of a packet filter do to a new packet from another machine to the RoCE v2
//! port.
//!
//! Four attributes of the packet are known: its protocol, its port, its connection state (`new`),
//! and that it does not come by loopback. A condition on anything else (address, mark) counts as
//! `RuleMatch::Perhaps`, and can make the decision unknown.

use std::collections::BTreeMap;

/// Whether the conditions of a rule hold for the packet. The variants are in ascending order, so
/// that the minimum of two values is their logical AND.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleMatch {
    No,
    Perhaps,
    Yes,
}

impl RuleMatch {
    pub(super) const fn of(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }

    /// The opposite, if the rule negates the condition.
    pub(super) const fn negated(self, is: bool) -> Self {
        match self {
            Self::Yes if is => Self::No,
            Self::No if is => Self::Yes,
            other => other,
        }
    }
}

/// The action of a rule for a matching packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The packet goes on to the next rule.
    Nothing,
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
    /// An action that this command does not know.
    Anything,
}

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) fit: RuleMatch,
    pub(super) verdict: Verdict,
}

/// A chain of rules. A chain with a policy is a base chain for incoming packets; each base chain
/// sees the packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    pub(super) policy: Option<Policy>,
    pub(super) rules: Vec<Rule>,
}

/// The action at the end of a chain, and the command that inserts a rule for the port.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) drops: bool,
    pub(super) remedy: String,
}

/// The decision about the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FilterDecision {
    Accepted,
    /// The packet is dropped. The text is a command that lets the packet in.
    Dropped(String),
    Unknown,
}

/// The chains of a table by name.
pub(super) type Chains = BTreeMap<String, Chain>;

/// The possible outcomes of a chain.
#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    accept: bool,
    drop: bool,
    /// The packet reaches the end of the chain, or a rule returns.
    end: bool,
}

impl Outcomes {
    const ANYTHING: Self = Self { accept: true, drop: true, end: true };
}

/// The depth of nested chains at which the walk stops. The kernel allows 16.
const DEPTH: usize = 17;

/// The decision of a table.
pub(super) fn decide_table(chains: &Chains) -> FilterDecision {
    let mut decision = FilterDecision::Accepted;
    for chain in chains.values() {
        let Some(policy) = &chain.policy else { continue };
        let mut can = walk(chains, chain, DEPTH);
        can.drop |= can.end && policy.drops;
        can.accept |= can.end && !policy.drops;
        match can {
            Outcomes { drop: false, .. } => {}
            Outcomes { accept: false, .. } => {
                return FilterDecision::Dropped(policy.remedy.clone());
            }
            Outcomes { .. } => decision = FilterDecision::Unknown,
        }
    }
    decision
}

fn walk(chains: &Chains, chain: &Chain, depth: usize) -> Outcomes {
    let mut can = Outcomes::default();
    for rule in chain.rules.iter().filter(|rule| rule.fit != RuleMatch::No) {
        let inner = |name: &String| match (chains.get(name), depth.checked_sub(1)) {
            (Some(chain), Some(depth)) => walk(chains, chain, depth),
            _ => Outcomes::ANYTHING,
        };
        // The outcomes of the rule, and whether the packet can go on to the next rule.
        let (then, goes_on) = match &rule.verdict {
            Verdict::Nothing => continue,
            Verdict::Accept => (Outcomes { accept: true, ..Outcomes::default() }, false),
            Verdict::Drop => (Outcomes { drop: true, ..Outcomes::default() }, false),
            Verdict::Return => (Outcomes { end: true, ..Outcomes::default() }, false),
            Verdict::Goto(name) => (inner(name), false),
            Verdict::Jump(name) => {
                let then = inner(name);
                (Outcomes { end: false, ..then }, then.end)
            }
            Verdict::Anything => (Outcomes::ANYTHING, true),
        };
        can.accept |= then.accept;
        can.drop |= then.drop;
        can.end |= then.end;
        if rule.fit == RuleMatch::Yes && !goes_on {
            return can;
        }
    }
    can.end = true;
    can
}
