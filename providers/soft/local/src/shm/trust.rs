//! Who may write what lies in shared segments, as types (docs/reference/threat-model-words.md).
//!
//! None of them costs an instruction: they are the words themselves, and the compiler's memory of whose they are.
#![forbid(unsafe_code)]

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A word of *tables*, which peers have mapped read-only: what it says, its owner says. It counts for the owner's memory and connections, and
/// an index or a sum made of it is checked as any.
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

/// A word of *rings* that tells where or when to look, or excludes others for a while: anybody may write it, and a wrong one costs time.
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

/// A word of *rings* that says something: one peer, or the owner, is meant to write it, and anybody may have.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct FromPeer<T>(T);

impl<T> FromPeer<T> {
    /// The word, for whoever writes it, and for the steps of `protocol`.
    #[inline(always)]
    pub const fn word(&self) -> &T {
        &self.0
    }
}

impl FromPeer<AtomicU32> {
    /// What somebody said.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> Claim<u32> {
        Claim(self.0.load(order))
    }

    /// Says something.
    #[inline(always)]
    pub fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }
}

impl FromPeer<AtomicU64> {
    /// What somebody said.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> Claim<u64> {
        Claim(self.0.load(order))
    }

    /// Says something.
    #[inline(always)]
    pub fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
}

/// What somebody said who may be anybody: it is nothing before it was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<T>(T);

impl<T> Claim<T> {
    /// Of something that came from elsewhere.
    #[inline(always)]
    pub const fn new(said: T) -> Self {
        Self(said)
    }
}

impl<T: Copy + PartialEq> Claim<T> {
    /// What it is by a rule that refuses all that makes no sense.
    #[inline(always)]
    pub fn check<R>(self, rule: impl FnOnce(T) -> Option<R>) -> Option<R> {
        rule(self.0)
    }

    /// Whether it is this.
    #[inline(always)]
    pub fn is(self, value: T) -> bool {
        self.0 == value
    }

    /// As it was said: where it concerns nothing but a message or a connection, whose peer may say so, or where it goes on to a check that
    /// takes plain numbers (`admit`, a table, the kernel). Never for an address, a length or an event of ours.
    #[inline(always)]
    pub const fn as_said(self) -> T {
        self.0
    }
}

impl Claim<u32> {
    /// As a number of bytes or of things, if there can be so many.
    #[inline(always)]
    pub const fn at_most(self, most: usize) -> Option<usize> {
        if self.0 as usize <= most { Some(self.0 as usize) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_no_more_than_can_be() {
        assert_eq!(Claim::new(5).at_most(5), Some(5));
        assert_eq!(Claim::new(6).at_most(5), None);
        assert_eq!(Claim::new(u32::MAX).at_most(5), None);
        assert_eq!(Claim::new(3).check(|n| (n % 2 == 0).then_some(n)), None);
        assert!(Claim::new(3).is(3) && !Claim::new(3).is(4));
    }
}
