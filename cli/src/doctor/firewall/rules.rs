//! What the rules of a packet filter do to a first packet from another machine to the UDP port of RoCE v2. What a rule asks apart from protocol, port, state of
//! the connection and loopback (addresses, interfaces, marks) may hold or not: then it may be that the packet is dropped, and that it is not.

use std::collections::BTreeMap;

/// Whether what a rule asks holds for the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    No,
    Perhaps,
    Yes,
}

impl Fit {
    pub(super) const fn of(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }

    /// The contrary, where a rule negates.
    pub(super) const fn negated(self, is: bool) -> Self {
        match self {
            Self::Yes if is => Self::No,
            Self::No if is => Self::Yes,
            other => other,
        }
    }
}

/// What a rule does with a packet that fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Goes on with the next rule.
    Nothing,
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
    /// Not known to us.
    Anything,
}

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) fit: Fit,
    pub(super) verdict: Verdict,
}

/// A chain; packets that come in pass those that have a policy.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    pub(super) policy: Option<Policy>,
    pub(super) rules: Vec<Rule>,
}

/// What becomes of a packet at the end of a chain, and the command that has the port let in there.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) drops: bool,
    pub(super) remedy: String,
}

/// What becomes of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    LetIn,
    /// With the command that has it let in.
    Dropped(String),
    Unknown,
}

/// The chains of one table, by their names.
pub(super) type Chains = BTreeMap<String, Chain>;

/// What can happen in a chain.
#[derive(Clone, Copy, Debug, Default)]
struct Can {
    accept: bool,
    drop: bool,
    /// It comes to the end, or goes back.
    end: bool,
}

impl Can {
    const ANYTHING: Self = Self { accept: true, drop: true, end: true };
}

/// Chains that call each other deeper than the kernel allows (16) are cut.
const DEPTH: usize = 17;

/// The fate in one table.
pub(super) fn fate(chains: &Chains) -> Fate {
    let mut fate = Fate::LetIn;
    for chain in chains.values() {
        let Some(policy) = &chain.policy else { continue };
        let mut can = walk(chains, chain, DEPTH);
        can.drop |= can.end && policy.drops;
        can.accept |= can.end && !policy.drops;
        match can {
            Can { drop: false, .. } => {}
            Can { accept: false, .. } => return Fate::Dropped(policy.remedy.clone()),
            Can { .. } => fate = Fate::Unknown,
        }
    }
    fate
}

fn walk(chains: &Chains, chain: &Chain, depth: usize) -> Can {
    let mut can = Can::default();
    for rule in chain.rules.iter().filter(|rule| rule.fit != Fit::No) {
        let inner = |name: &String| match (chains.get(name), depth.checked_sub(1)) {
            (Some(chain), Some(depth)) => walk(chains, chain, depth),
            _ => Can::ANYTHING,
        };
        // What can happen, and whether the next rule is come to.
        let (then, goes_on) = match &rule.verdict {
            Verdict::Nothing => continue,
            Verdict::Accept => (Can { accept: true, ..Can::default() }, false),
            Verdict::Drop => (Can { drop: true, ..Can::default() }, false),
            Verdict::Return => (Can { end: true, ..Can::default() }, false),
            Verdict::Goto(name) => (inner(name), false),
            Verdict::Jump(name) => {
                let then = inner(name);
                (Can { end: false, ..then }, then.end)
            }
            Verdict::Anything => (Can::ANYTHING, true),
        };
        can.accept |= then.accept;
        can.drop |= then.drop;
        can.end |= then.end;
        if rule.fit == Fit::Yes && !goes_on {
            return can;
        }
    }
    can.end = true;
    can
}
