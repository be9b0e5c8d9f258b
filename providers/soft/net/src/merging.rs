//! The decision whether the kernel should merge received datagrams (UDP_GRO).
//!
//! Merging makes many datagrams cheap. It costs each single datagram 0.2 microseconds, because the
//! kernel reads a cache line that the sender's processor wrote last.

/// Whether datagrams are merged, and recent arrivals.
#[derive(Debug)]
pub(crate) struct Merging {
    /// Whether the kernel supports merging, and the settings permit it.
    pub(crate) is_allowed: bool,
    is_on: bool,
    /// Number of datagrams that arrived alone in a row.
    alone: u32,
}

/// Number of single datagrams after which merging stops. The cost of a change is small in
/// comparison.
const ENOUGH: u32 = 64;

impl Merging {
    /// Merging is on if permitted.
    pub(crate) const fn new(may: bool) -> Self {
        Self { is_allowed: may, is_on: may, alone: 0 }
    }

    /// Records a call that received `count` datagrams; `is_merged` tells whether one of them has
    /// several packets. Returns whether to switch merging on or off.
    pub(crate) fn record(
        &mut self,
        count: usize,
        is_merged: impl FnOnce() -> bool,
    ) -> Option<bool> {
        let is_alone = match (self.is_allowed, self.is_on, count) {
            (false, ..) | (_, _, 0) => return None,
            (_, true, 1) => !is_merged(),
            (_, false, 1) => return None,
            _ => false,
        };
        self.alone = if is_alone { self.alone + 1 } else { 0 };
        let on = self.alone < ENOUGH;
        let changes = on != self.is_on;
        if changes {
            (self.is_on, self.alone) = (on, 0);
        }
        changes.then_some(on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_ends_after_many_single_datagrams_and_begins_again_after_two_merged_ones() {
        let mut merging = Merging::new(true);
        let alone = |merging: &mut Merging| merging.record(1, || false);
        for _ in 0..3 {
            assert!((1..ENOUGH).all(|_| alone(&mut merging).is_none()));
            assert_eq!(merging.record(1, || true), None, "it is counted anew");
        }
        assert!((1..ENOUGH).all(|_| alone(&mut merging).is_none()));
        assert_eq!(merging.record(0, || false), None, "nothing came");
        assert_eq!(alone(&mut merging), Some(false));
        assert!((0..1000).all(|_| alone(&mut merging).is_none()));
        assert_eq!(merging.record(2, || false), Some(true));
        assert_eq!(merging.record(2, || false), None);
        let mut never = Merging::new(false);
        assert!((0..1000).all(|n| never.record(n % 3, || false).is_none()));
    }
}
