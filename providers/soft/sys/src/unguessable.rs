//! Random numbers in batches, because a system call for each would cost as much as the operation
//! that needs it.

use super::process::random;
use std::hash::{DefaultHasher, Hasher};

/// A source of random 16-bit numbers.
#[derive(Debug, Default)]
pub struct Unguessable {
    /// Numbers in reserve, the next one lowest; used numbers are erased.
    bits: u64,
    left: u32,
}

impl Unguessable {
    /// An empty source.
    #[must_use]
    pub const fn new() -> Self {
        Self { bits: 0, left: 0 }
    }

    /// The next number; 0 if the kernel provides none.
    pub fn next_number(&mut self) -> u16 {
        if self.left == 0 {
            (self.bits, self.left) = (random().unwrap_or(0), u64::BITS / u16::BITS);
        }
        let next = self.bits as u16;
        (self.bits, self.left) = (self.bits >> u16::BITS, self.left - 1);
        next
    }
}

/// Permutations of the numbers below `1 << BITS`: any number of lists, each of which contains every
/// number once. A part of a list and other lists do not reveal the next number. A user only stores
/// its position in a list.
#[derive(Clone, Debug)]
pub struct Orders<const BITS: u32> {
    /// A hasher that has consumed a secret.
    keyed: DefaultHasher,
}

impl<const BITS: u32> Orders<BITS> {
    /// New permutations. If the kernel provides no secret, they are the same each time.
    #[must_use]
    pub fn new() -> Self {
        const { assert!(BITS >= 2 && BITS <= 32) };
        let mut keyed = DefaultHasher::new();
        keyed.write_u64(random().unwrap_or(0));
        keyed.write_u64(random().unwrap_or(0));
        Self { keyed }
    }

    /// The number at position `at` of a list; positions wrap around.
    #[must_use]
    pub fn number(&self, list: u32, at: u32) -> u32 {
        // A Feistel network: each half in turn is changed by the other. That is invertible, so no
        // number repeats.
        let low_bits = BITS / 2;
        let (low_mask, high_mask) = ((1 << low_bits) - 1, (1 << (BITS - low_bits)) - 1);
        let (mut low, mut high) = (at & low_mask, at >> low_bits & high_mask);
        for round in 0..ROUNDS {
            low ^= self.hash(list, round, high) & low_mask;
            high ^= self.hash(list, round + ROUNDS, low) & high_mask;
        }
        high << low_bits | low
    }

    fn hash(&self, list: u32, round: u32, half: u32) -> u32 {
        let mut hasher = self.keyed.clone();
        hasher.write_u64(u64::from(list) << 32 | u64::from(round << 16 | half));
        hasher.finish() as u32
    }
}

/// Number of changes of each half.
const ROUNDS: u32 = 2;

impl<const BITS: u32> Default for Orders<BITS> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_rarely_repeat_and_used_ones_are_erased() {
        let mut numbers = Unguessable::new();
        let seen: BTreeSet<u16> = (0..1000).map(|_| numbers.next_number()).collect();
        assert!(seen.len() > 900, "{} of 1000 differ", seen.len());
        numbers.next_number();
        assert_eq!(numbers.bits >> (numbers.left * u16::BITS), 0);
    }

    #[test]
    fn a_list_has_each_number_once_and_goes_round() {
        let orders = Orders::<13>::new();
        for list in [0, 1, 77] {
            let all: BTreeSet<u32> = (0..1 << 13).map(|at| orders.number(list, at)).collect();
            assert!(all.into_iter().eq(0..1 << 13));
            assert_eq!(orders.number(list, 5), orders.number(list, 5 + (1 << 13)));
        }
        let few: BTreeSet<u32> = (0..64).map(|at| Orders::<6>::new().number(3, at)).collect();
        assert!(few.len() > 20, "each has orders of its own: {few:?}");
    }

    #[test]
    fn numbers_of_one_list_of_several_lists_and_of_several_keys_have_no_constant_step() {
        let orders = Orders::<13>::new();
        let steps = |numbers: Vec<u32>| -> usize {
            let pairs = numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
            pairs.collect::<BTreeSet<u32>>().len()
        };
        assert!(steps((0..100).map(|at| orders.number(9, at)).collect()) > 80);
        assert!(steps((0..100).map(|list| orders.number(list, 0)).collect()) > 80);
        assert!(steps((0..100).map(|_| Orders::<13>::new().number(0, 0)).collect()) > 80);
    }
}
