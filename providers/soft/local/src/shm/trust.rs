//! Types for words in shared segments, by who may write them
//! (docs/reference/threat-model-words.md).
//!
//! The types cost no instruction: each is the word itself, and the compiler checks how its value is
//! used.
#![forbid(unsafe_code)]

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word of *tables*, which peers map read-only, so only its owner writes it. The value may govern
/// the owner's own memory and connections. An index or a sum made of it is checked as any other.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Owned<T>(T);

impl<T> Deref for Owned<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A word of *rings* that says where or when to look, or excludes others for a while. Any process
/// may write it, and a wrong value only costs time.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Hint<T>(T);

impl<T> Deref for Hint<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// A word of *rings* with information. One peer, or the owner, should write it, but any process
/// can.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct FromPeer<T>(T);

impl<T> FromPeer<T> {
    /// The bare word, for its writer and for the steps of `protocol`.
    #[inline(always)]
    pub const fn word(&self) -> &T {
        &self.0
    }
}

impl FromPeer<AtomicU32> {
    /// The unchecked value.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> Unchecked<u32> {
        Unchecked(self.0.load(order))
    }

    /// Stores a value.
    #[inline(always)]
    pub fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }
}

impl FromPeer<AtomicU64> {
    /// The unchecked value.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> Unchecked<u64> {
        Unchecked(self.0.load(order))
    }

    /// Stores a value.
    #[inline(always)]
    pub fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
}

/// An unchecked value that any process may have written. It must be checked before use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unchecked<T>(T);

impl<T> Unchecked<T> {
    /// Wraps a value that came from outside.
    #[inline(always)]
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T: Copy + PartialEq> Unchecked<T> {
    /// The value that `rule` derives; `None`: the rule refuses the value.
    #[inline(always)]
    pub fn check<R>(self, rule: impl FnOnce(T) -> Option<R>) -> Option<R> {
        rule(self.0)
    }

    /// Whether the claim equals `value`.
    #[inline(always)]
    pub fn equals(self, value: T) -> bool {
        self.0 == value
    }

    /// The value without a check. For values that concern only a message or connection of the peer
    /// that claims them, and for values that the next function checks (`admit`, a table, the
    /// kernel). Never for an address, a length or an event of ours.
    #[inline(always)]
    pub const fn unchecked(self) -> T {
        self.0
    }
}

impl Unchecked<u32> {
    /// The claim as a count, if it is at most `most`.
    #[inline(always)]
    pub const fn at_most(self, most: usize) -> Option<usize> {
        if self.0 as usize <= most { Some(self.0 as usize) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_above_its_maximum_is_refused() {
        assert_eq!(Unchecked::new(5).at_most(5), Some(5));
        assert_eq!(Unchecked::new(6).at_most(5), None);
        assert_eq!(Unchecked::new(u32::MAX).at_most(5), None);
        assert_eq!(Unchecked::new(3).check(|n| (n % 2 == 0).then_some(n)), None);
        assert!(Unchecked::new(3).equals(3) && !Unchecked::new(3).equals(4));
    }
}
