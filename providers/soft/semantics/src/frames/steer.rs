//! Steering rules (ibv_create_flow(3)): a pattern over a frame's fields, and a rank among all rules
//! of the segment.
//!
//! [`check`] turns an application's rule into a pattern; [`StoppingRule`] decides which rules get a
//! frame. Map of this file: [`Pattern`], [`Rank`], [`StoppingRule`], [`FlowRule`]; then parsing of
//! specifications.

use super::headers::{
    ESP, GRE, IPV4, IPV6, KEY_WORDS, Key, LAYER_ESP, LAYER_IPV4, LAYER_IPV6, LAYER_TCP, LAYER_UDP,
    LAYER_VLAN, TCP, TUNNEL_GRE, TUNNEL_MPLS, TUNNEL_VXLAN, UDP, at,
};
use crate::Refused;
use abi::*;

/// The required values of a key's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The values; 0 outside of `mask`.
    pub value: [u64; KEY_WORDS],
    /// The bits to compare.
    pub mask: [u64; KEY_WORDS],
}

impl Pattern {
    /// Whether the pattern matches a frame with this key.
    pub fn matches(&self, key: &[u64; KEY_WORDS]) -> bool {
        key.iter().zip(&self.mask).zip(&self.value).all(|((k, m), v)| k & m == *v)
    }

    /// A hash of the pattern; equal patterns have equal hashes.
    pub fn pattern_hash(&self) -> u64 {
        hash_words(self.value.iter().chain(&self.mask).copied())
    }
}

/// FNV-1a over words.
pub fn hash_words(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x100_0000_01b3))
}

/// The kind of a rule: `ibv_flow_attr_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Frames that match the pattern.
    Normal = 0,
    /// Frames that no other rule took.
    AllDefault = 1,
    /// Multicast frames that no other rule took.
    MulticastDefault = 2,
    /// A copy of every frame, independent of other rules.
    Sniffer = 3,
}

/// The position of a rule among all rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// The kind of the rule.
    pub class: Class,
    /// Whether the frame continues to later rules.
    pub dont_trap: bool,
    /// The priority; 0 is first.
    pub priority: u16,
}

impl Rank {
    /// Encodes the rank into a non-zero word.
    pub const fn pack(self) -> u64 {
        1 << 63 | (self.dont_trap as u64) << 24 | (self.class as u64) << 16 | self.priority as u64
    }

    /// Decodes a word; `None`: no rule.
    pub const fn unpack(word: u64) -> Option<Self> {
        if word >> 63 == 0 {
            return None;
        }
        let class = match (word >> 16) as u8 {
            0 => Class::Normal,
            1 => Class::AllDefault,
            2 => Class::MulticastDefault,
            3 => Class::Sniffer,
            _ => return None,
        };
        Some(Self { class, dont_trap: word >> 24 & 1 == 1, priority: word as u16 })
    }

    /// The order of evaluation: normal rules by priority, then all default rules.
    pub const fn precedence(self) -> u32 {
        match self.class {
            Class::Normal => self.priority as u32,
            _ => 1 << 16,
        }
    }
}

/// The rule at which a frame stops. The frame goes to all rules of this precedence and pattern, and
/// to no later rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppingRule {
    /// The precedence of the rule's rank.
    pub precedence: u32,
    /// The hash of the rule's pattern; 0 for default rules, which do not compete.
    pub pattern_hash: u64,
    /// The time of the rule's creation, in the order of all rules.
    pub created_ns: u64,
}

impl StoppingRule {
    /// No rule stops the frame.
    pub const NOBODY: Self = Self { precedence: u32::MAX, pattern_hash: 0, created_ns: u64::MAX };

    /// Offers a matching rule. Among rules of one priority the oldest wins.
    pub fn challenge(&mut self, rank: Rank, created_ns: u64, hash: impl FnOnce() -> u64) {
        if rank.class == Class::Sniffer || rank.dont_trap {
            return;
        }
        let precedence = rank.precedence();
        if (precedence, created_ns) < (self.precedence, self.created_ns) {
            let pattern_hash = if rank.class == Class::Normal { hash() } else { 0 };
            *self = Self { precedence, pattern_hash, created_ns };
        }
    }

    /// Whether a matching rule gets the frame.
    pub fn permits(&self, rank: Rank, hash: impl FnOnce() -> u64) -> bool {
        match rank.class {
            Class::Sniffer => true,
            _ if rank.dont_trap => rank.precedence() <= self.precedence,
            Class::Normal => rank.precedence() == self.precedence && hash() == self.pattern_hash,
            _ => rank.precedence() == self.precedence,
        }
    }
}

/// A checked rule of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// The rule's rank.
    pub rank: Rank,
    /// The rule's pattern.
    pub pattern: Pattern,
    /// The tag in completions of matching frames.
    pub tag: Option<u32>,
    /// Whether matching frames are dropped.
    pub drop: bool,
}

/// One specification of ibv_create_flow(3): its type, and its bytes behind type and size (six
/// bytes).
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    /// `ibv_flow_spec_type`.
    pub spec_type: u32,
    /// The bytes behind type and size.
    pub body: &'a [u8],
}

/// Size of a specification of this type with its head; `None`: unknown type. Types that grew over
/// time may be longer.
pub const fn spec_size(kind: u32) -> Option<usize> {
    Some(match kind & !IBV_FLOW_SPEC_INNER {
        IBV_FLOW_SPEC_ETH => size_of::<ibv_flow_spec_eth>(),
        IBV_FLOW_SPEC_IPV4 => size_of::<ibv_flow_spec_ipv4>(),
        IBV_FLOW_SPEC_IPV6 => size_of::<ibv_flow_spec_ipv6>(),
        IBV_FLOW_SPEC_IPV4_EXT => size_of::<ibv_flow_spec_ipv4_ext>(),
        IBV_FLOW_SPEC_ESP => size_of::<ibv_flow_spec_esp>(),
        IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => size_of::<ibv_flow_spec_tcp_udp>(),
        IBV_FLOW_SPEC_VXLAN_TUNNEL => size_of::<ibv_flow_spec_tunnel>(),
        IBV_FLOW_SPEC_GRE => size_of::<ibv_flow_spec_gre>(),
        IBV_FLOW_SPEC_MPLS => size_of::<ibv_flow_spec_mpls>(),
        _ => match kind {
            IBV_FLOW_SPEC_ACTION_TAG => size_of::<ibv_flow_spec_action_tag>(),
            IBV_FLOW_SPEC_ACTION_DROP => size_of::<ibv_flow_spec_action_drop>(),
            IBV_FLOW_SPEC_ACTION_HANDLE => size_of::<ibv_flow_spec_action_handle>(),
            IBV_FLOW_SPEC_ACTION_COUNT => size_of::<ibv_flow_spec_counter_action>(),
            _ => return None,
        },
    })
}

/// A pattern under construction.
struct PatternBuilder {
    value: Key,
    mask: Key,
}

impl PatternBuilder {
    /// Requires `value` in the bits of `mask`.
    ///
    /// # Errors
    /// `Invalid`: an earlier requirement contradicts.
    fn demand(&mut self, at: usize, value: &[u8], mask: &[u8]) -> Result<(), Refused> {
        for (i, (value, mask)) in value.iter().zip(mask).enumerate() {
            let (Some(v), Some(m)) = (self.value.0.get_mut(at + i), self.mask.0.get_mut(at + i))
            else {
                return Err(Refused::Invalid);
            };
            if (*v ^ value) & *m & mask != 0 {
                return Err(Refused::Invalid);
            }
            *v |= value & mask;
            *m |= mask;
        }
        Ok(())
    }

    /// Requires exactly `value`.
    fn exactly(&mut self, at: usize, value: &[u8]) -> Result<(), Refused> {
        value.iter().enumerate().try_for_each(|(i, byte)| self.demand(at + i, &[*byte], &[0xff]))
    }

    /// Requires the bits of `bit`.
    fn bit(&mut self, at: usize, bit: u8) -> Result<(), Refused> {
        self.demand(at, &[bit], &[bit])
    }

    /// Requires a field of a specification. Value and mask have the same field layout.
    fn field(
        &mut self,
        at: usize,
        filter: &Filter<'_>,
        from: usize,
        len: usize,
    ) -> Result<(), Refused> {
        let value = filter.value.get(from..from + len).ok_or(Refused::Invalid)?;
        let mask = filter.mask.get(from..from + len).ok_or(Refused::Invalid)?;
        self.demand(at, value, mask)
    }

    fn protocol(&mut self, base: usize, proto: u8, layer: u8) -> Result<(), Refused> {
        self.exactly(base + at::PROTO, &[proto])?;
        if layer == 0 { Ok(()) } else { self.bit(base + at::LAYERS, layer) }
    }

    fn version(&mut self, base: usize, ether_type: u16, layer: u8) -> Result<(), Refused> {
        if base == 0 {
            self.exactly(at::ETHER_TYPE, &ether_type.to_be_bytes())?;
        }
        self.bit(base + at::LAYERS, layer)
    }

    fn finish(self) -> Pattern {
        Pattern { value: self.value.words(), mask: self.mask.words() }
    }
}

/// Value and mask of a specification.
struct Filter<'a> {
    value: &'a [u8],
    mask: &'a [u8],
}

impl Filter<'_> {
    fn asks_for(&self, from: usize, len: usize) -> bool {
        self.mask.get(from..from + len).is_some_and(|mask| mask.iter().any(|byte| *byte != 0))
    }
}

/// Checks a rule.
///
/// # Errors
/// `Invalid`: unknown type, contradicting specifications, or a default rule with specifications.
/// `Unsupported`: ESP sequence numbers, labels within tunnels, actions with handles, and egress
/// rules.
pub fn check(
    kind: u32,
    flags: u32,
    priority: u16,
    specs: &[Spec<'_>],
) -> Result<FlowRule, Refused> {
    let class = match kind {
        IBV_FLOW_ATTR_NORMAL => Class::Normal,
        IBV_FLOW_ATTR_ALL_DEFAULT => Class::AllDefault,
        IBV_FLOW_ATTR_MC_DEFAULT => Class::MulticastDefault,
        IBV_FLOW_ATTR_SNIFFER => Class::Sniffer,
        _ => return Err(Refused::Invalid),
    };
    if flags & !(IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS) != 0 {
        return Err(Refused::Invalid);
    }
    if flags & IBV_FLOW_ATTR_FLAGS_EGRESS != 0 {
        return Err(Refused::Unsupported);
    }
    let dont_trap = flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
    if dont_trap && class != Class::Normal {
        return Err(Refused::Invalid);
    }
    let mut draft = PatternBuilder { value: Key::EMPTY, mask: Key::EMPTY };
    if class == Class::MulticastDefault {
        draft.bit(at::DST_MAC, 1)?;
    }
    let (mut tag, mut drop) = (None, false);
    for spec in specs {
        match spec.spec_type {
            IBV_FLOW_SPEC_ACTION_TAG => {
                let bytes: &[u8; 4] =
                    spec.body.get(2..6).and_then(|b| b.try_into().ok()).ok_or(Refused::Invalid)?;
                // 24 bits, as much as an adapter's completion has room for.
                tag = Some(u32::from_ne_bytes(*bytes)).filter(|tag| *tag < 1 << 24);
                if tag.is_none() {
                    return Err(Refused::Invalid);
                }
            }
            IBV_FLOW_SPEC_ACTION_DROP => drop = true,
            IBV_FLOW_SPEC_ACTION_COUNT => {}
            IBV_FLOW_SPEC_ACTION_HANDLE => return Err(Refused::Unsupported),
            _ if class != Class::Normal => return Err(Refused::Invalid),
            _ => demand(&mut draft, spec)?,
        }
    }
    if drop && dont_trap {
        return Err(Refused::Invalid);
    }
    Ok(FlowRule { rank: Rank { class, dont_trap, priority }, pattern: draft.finish(), tag, drop })
}

/// Adds the requirements of one specification.
fn demand(draft: &mut PatternBuilder, spec: &Spec<'_>) -> Result<(), Refused> {
    let base = if spec.spec_type & IBV_FLOW_SPEC_INNER != 0 { at::INNER } else { 0 };
    let kind = spec.spec_type & !IBV_FLOW_SPEC_INNER;
    // Filters of bytes and 16-bit fields begin right behind the size, others at the next multiple
    // of four.
    let (from, len) = match kind {
        IBV_FLOW_SPEC_ETH => (0, size_of::<ibv_flow_eth_filter>()),
        IBV_FLOW_SPEC_IPV4 => (2, size_of::<ibv_flow_ipv4_filter>()),
        IBV_FLOW_SPEC_IPV4_EXT => (2, size_of::<ibv_flow_ipv4_ext_filter>()),
        IBV_FLOW_SPEC_IPV6 => (2, size_of::<ibv_flow_ipv6_filter>()),
        IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => (0, size_of::<ibv_flow_tcp_udp_filter>()),
        IBV_FLOW_SPEC_ESP => (2, size_of::<ibv_flow_esp_filter>()),
        IBV_FLOW_SPEC_VXLAN_TUNNEL => (2, size_of::<ibv_flow_tunnel_filter>()),
        IBV_FLOW_SPEC_GRE => (2, size_of::<ibv_flow_gre_filter>()),
        IBV_FLOW_SPEC_MPLS => (2, size_of::<ibv_flow_mpls_filter>()),
        _ => return Err(Refused::Invalid),
    };
    let filter = Filter {
        value: spec.body.get(from..from + len).ok_or(Refused::Invalid)?,
        mask: spec.body.get(from + len..from + 2 * len).ok_or(Refused::Invalid)?,
    };
    let filter = &filter;
    match kind {
        IBV_FLOW_SPEC_ETH => {
            draft.field(base + at::DST_MAC, filter, 0, 6)?;
            draft.field(base + at::SRC_MAC, filter, 6, 6)?;
            draft.field(base + at::ETHER_TYPE, filter, 12, 2)?;
            if filter.asks_for(14, 2) {
                draft.bit(base + at::LAYERS, LAYER_VLAN)?;
            }
            draft.field(base + at::VLAN_TAG, filter, 14, 2)
        }
        IBV_FLOW_SPEC_IPV4 | IBV_FLOW_SPEC_IPV4_EXT => {
            draft.version(base, IPV4, LAYER_IPV4)?;
            draft.field(base + at::SRC_IP + 12, filter, 0, 4)?;
            draft.field(base + at::DST_IP + 12, filter, 4, 4)?;
            if kind == IBV_FLOW_SPEC_IPV4 {
                return Ok(());
            }
            draft.field(base + at::PROTO, filter, 8, 1)?;
            draft.field(base + at::TOS, filter, 9, 1)?;
            draft.field(base + at::TTL, filter, 10, 1)?;
            draft.field(base + at::FLAGS, filter, 11, 1)
        }
        IBV_FLOW_SPEC_IPV6 => {
            draft.version(base, IPV6, LAYER_IPV6)?;
            draft.field(base + at::SRC_IP, filter, 0, 16)?;
            draft.field(base + at::DST_IP, filter, 16, 16)?;
            draft.field(base + at::FLOW_LABEL, filter, 32, 4)?;
            draft.field(base + at::PROTO, filter, 36, 1)?;
            draft.field(base + at::TOS, filter, 37, 1)?;
            draft.field(base + at::TTL, filter, 38, 1)
        }
        IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => {
            let tcp = kind == IBV_FLOW_SPEC_TCP;
            let (proto, layer) = if tcp { (TCP, LAYER_TCP) } else { (UDP, LAYER_UDP) };
            draft.protocol(base, proto, layer)?;
            draft.field(base + at::DST_PORT, filter, 0, 2)?;
            draft.field(base + at::SRC_PORT, filter, 2, 2)
        }
        IBV_FLOW_SPEC_ESP => {
            if filter.asks_for(4, 4) {
                return Err(Refused::Unsupported);
            }
            draft.protocol(base, ESP, LAYER_ESP)?;
            draft.field(base + at::DST_PORT, filter, 0, 4)
        }
        _ if base != 0 => Err(Refused::Unsupported),
        IBV_FLOW_SPEC_VXLAN_TUNNEL => {
            draft.protocol(0, UDP, LAYER_UDP)?;
            draft.bit(at::TUNNELS, TUNNEL_VXLAN)?;
            draft.field(at::TUNNEL_ID, filter, 0, 4)
        }
        IBV_FLOW_SPEC_GRE => {
            draft.protocol(0, GRE, 0)?;
            draft.bit(at::TUNNELS, TUNNEL_GRE)?;
            draft.field(at::GRE_FLAGS, filter, 0, 2)?;
            draft.field(at::GRE_PROTOCOL, filter, 2, 2)?;
            draft.field(at::TUNNEL_ID, filter, 4, 4)
        }
        _ => {
            draft.bit(at::TUNNELS, TUNNEL_MPLS)?;
            draft.field(at::MPLS, filter, 0, 4)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::headers::{dissect, golden};
    use super::*;

    /// A specification from its fields: value, then mask, as byte lists.
    fn spec(skip: usize, value: &[u8], mask: &[u8]) -> Vec<u8> {
        [&vec![0; skip][..], value, mask].concat()
    }

    fn normal(specs: &[(u32, Vec<u8>)]) -> Result<FlowRule, Refused> {
        let specs: Vec<Spec<'_>> =
            specs.iter().map(|(kind, body)| Spec { spec_type: *kind, body }).collect();
        check(IBV_FLOW_ATTR_NORMAL, 0, 0, &specs)
    }

    fn matches(wanted: &FlowRule, frame: &[u8]) -> bool {
        wanted.pattern.matches(&dissect(frame).expect("a frame").0.words())
    }

    fn eth(dst_last: u8, vlan: [u8; 2]) -> (u32, Vec<u8>) {
        let value = [&[2, 0, 0, 0, 0, dst_last, 0, 0, 0, 0, 0, 0, 0, 0][..], &vlan].concat();
        let vlan_mask = if vlan == [0, 0] { [0, 0] } else { [0x0f, 0xff] };
        let mask = [&[0xff; 6][..], &[0; 8], &vlan_mask].concat();
        (IBV_FLOW_SPEC_ETH, spec(0, &value, &mask))
    }

    fn udp(dst: u16) -> (u32, Vec<u8>) {
        let [a, b] = dst.to_be_bytes();
        (IBV_FLOW_SPEC_UDP, spec(0, &[a, b, 9, 9], &[0xff, 0xff, 0, 0]))
    }

    #[test]
    fn a_rule_matches_what_it_says_and_nothing_else() {
        assert!(matches(&normal(&[eth(1, [0x01, 0x23])]).expect("good"), golden::UDP4));
        assert!(!matches(&normal(&[eth(1, [0x01, 0x24])]).expect("good"), golden::UDP4));
        assert!(!matches(&normal(&[eth(2, [0, 0])]).expect("good"), golden::UDP4));
        assert!(matches(&normal(&[udp(2222)]).expect("good"), golden::UDP4));
        assert!(!matches(&normal(&[udp(2223)]).expect("good"), golden::UDP4));
        assert!(matches(&normal(&[]).expect("good"), golden::UDP4));
        let ext = (
            IBV_FLOW_SPEC_IPV4_EXT,
            spec(
                2,
                &[10, 0, 0, 2, 0, 0, 0, 0, 17, 0x10, 64, 2],
                &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
            ),
        );
        assert!(matches(
            &normal(&[ext.clone(), udp(2222), eth(1, [0, 0])]).expect("good"),
            golden::UDP4
        ));
        assert!(!matches(&normal(&[ext]).expect("good"), &golden::tcp6()));
    }

    #[test]
    fn ipv6_and_its_flow_label_are_matched() {
        let mut value = [0; 40];
        value[16] = 0xff;
        value[17] = 2;
        value[31] = 1;
        value[33..36].copy_from_slice(&[3, 0x45, 0x67]);
        let mut mask = [0; 40];
        mask[16..36].fill(0xff);
        let good = (IBV_FLOW_SPEC_IPV6, spec(2, &value, &mask));
        assert!(matches(&normal(&[good]).expect("good"), &golden::tcp6()));
        value[35] = 0;
        let other = (IBV_FLOW_SPEC_IPV6, spec(2, &value, &mask));
        assert!(!matches(&normal(&[other]).expect("good"), &golden::tcp6()));
    }

    #[test]
    fn tunnels_are_matched_outside_and_inside() {
        let vni = |n| (IBV_FLOW_SPEC_VXLAN_TUNNEL, spec(2, &[0, 0x12, 0x34, n], &[0xff; 4]));
        let (_, inner) = udp(2222);
        let rule = [vni(0x56), (IBV_FLOW_SPEC_UDP | IBV_FLOW_SPEC_INNER, inner)];
        let frame = golden::vxlan(golden::UDP4);
        assert!(matches(&normal(&rule).expect("good"), &frame));
        assert!(!matches(&normal(&[vni(0x57)]).expect("good"), &frame));
        assert!(!matches(&normal(&rule).expect("good"), golden::UDP4));
        let gre = (IBV_FLOW_SPEC_GRE, spec(2, &[0x20, 0, 8, 0, 0, 0, 0, 7], &[0xff; 8]));
        assert!(matches(&normal(&[gre]).expect("good"), &golden::gre()));
    }

    #[test]
    fn contradicting_and_unknown_specifications_are_refused() {
        let mut ip6_type = eth(1, [0, 0]);
        ip6_type.1[12..14].copy_from_slice(&[0x86, 0xdd]);
        ip6_type.1[28..30].fill(0xff);
        let v4 = (IBV_FLOW_SPEC_IPV4, spec(2, &[0; 8], &[0; 8]));
        assert_eq!(normal(&[ip6_type, v4.clone()]).err(), Some(Refused::Invalid));
        let tcp = (IBV_FLOW_SPEC_TCP, spec(0, &[0; 4], &[0; 4]));
        assert_eq!(normal(&[tcp, udp(1)]).err(), Some(Refused::Invalid));
        assert_eq!(normal(&[(7, vec![0; 90])]).err(), Some(Refused::Invalid));
        assert_eq!(normal(&[(IBV_FLOW_SPEC_IPV4, vec![0; 3])]).err(), Some(Refused::Invalid));
        let seq = (IBV_FLOW_SPEC_ESP, spec(2, &[0; 8], &[0xff; 8]));
        assert_eq!(normal(&[seq]).err(), Some(Refused::Unsupported));
        assert_eq!(
            normal(&[(IBV_FLOW_SPEC_ACTION_HANDLE, vec![0; 12])]).err(),
            Some(Refused::Unsupported)
        );
        let of = |kind, flags, specs: &[Spec<'_>]| check(kind, flags, 0, specs).err();
        assert_eq!(of(4, 0, &[]), Some(Refused::Invalid));
        assert_eq!(of(0, 1, &[]), Some(Refused::Invalid));
        assert_eq!(of(0, IBV_FLOW_ATTR_FLAGS_EGRESS, &[]), Some(Refused::Unsupported));
        assert_eq!(
            of(IBV_FLOW_ATTR_SNIFFER, IBV_FLOW_ATTR_FLAGS_DONT_TRAP, &[]),
            Some(Refused::Invalid)
        );
        let (kind, body) = v4;
        assert_eq!(
            of(IBV_FLOW_ATTR_ALL_DEFAULT, 0, &[Spec { spec_type: kind, body: &body }]),
            Some(Refused::Invalid)
        );
    }

    #[test]
    fn a_rank_survives_its_word() {
        for class in [Class::Normal, Class::AllDefault, Class::MulticastDefault, Class::Sniffer] {
            for dont_trap in [false, true] {
                let rank = Rank { class, dont_trap, priority: 0xbeef };
                assert_eq!(Rank::unpack(rank.pack()), Some(rank));
            }
        }
        assert_eq!(Rank::unpack(0), None);
    }

    #[test]
    fn the_first_priority_wins_then_the_oldest_and_equal_rules_share() {
        let rank = |class, dont_trap, priority| Rank { class, dont_trap, priority };
        let low = rank(Class::Normal, false, 5);
        let high = rank(Class::Normal, false, 1);
        let copy = rank(Class::Normal, true, 0);
        let all = rank(Class::AllDefault, false, 0);
        let multi = rank(Class::MulticastDefault, false, 9);
        let sniffer = rank(Class::Sniffer, false, 0);
        let mut winner = StoppingRule::NOBODY;
        assert!(
            !winner.permits(all, || 1)
                && winner.permits(sniffer, || 1)
                && winner.permits(copy, || 1)
        );
        winner.challenge(all, 1, || 10);
        assert!(
            winner.permits(all, || 3) && winner.permits(multi, || 4),
            "defaults do not compete"
        );
        winner.challenge(low, 2, || 20);
        winner.challenge(high, 9, || 30);
        winner.challenge(high, 8, || 40);
        winner.challenge(copy, 0, || 50);
        winner.challenge(sniffer, 0, || 60);
        assert_eq!(winner, StoppingRule { precedence: 1, pattern_hash: 40, created_ns: 8 });
        assert!(
            winner.permits(high, || 40)
                && !winner.permits(high, || 30)
                && !winner.permits(low, || 40)
        );
        assert!(
            winner.permits(copy, || 0)
                && winner.permits(sniffer, || 0)
                && !winner.permits(all, || 0)
        );
        assert!(
            !winner.permits(rank(Class::Normal, true, 2), || 0),
            "behind the one that stops it"
        );
    }
}
