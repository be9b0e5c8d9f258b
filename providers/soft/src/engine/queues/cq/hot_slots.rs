//! Hot rings: the rings that a poll reads without an arrival flag, and the rule that selects them.
//! Used for the receive rings of QPs (`queues::cq`) and for datagram rings (`datagram`).
#![forbid(unsafe_code)]

/// Maximal number of hot rings; senders to all further rings set an arrival flag.
pub(crate) const MAX_HOT: usize = 16;

/// Arrival flags after which a cold ring replaces a hot ring. Cooling a ring is a system call that
/// interrupts other processors. With many QPs in use nearly every message sets an arrival flag, and
/// most messages must not pay for the call.
pub(in crate::engine) const FLAGS_PER_REPLACEMENT: u32 = 64;

/// The hot rings, and the rule by which another ring becomes hot.
#[derive(Debug)]
pub(in crate::engine) struct HotSlots<T> {
    rings: Vec<T>,
    /// Index of the next ring to replace.
    oldest: usize,
    /// Arrival flags of cold rings since the last replacement.
    flags: u32,
}

/// Result for a ring whose arrival flag is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum HotSlot<T> {
    /// The ring became hot; a slot was free.
    New,
    /// The ring became hot in place of the contained ring, which the caller must cool.
    Replaced(T),
    /// The ring stays cold.
    Refused,
}

impl<T> Default for HotSlots<T> {
    fn default() -> Self {
        Self { rings: vec![], oldest: 0, flags: 0 }
    }
}

impl<T> HotSlots<T> {
    pub(in crate::engine) fn rings(&self) -> &[T] {
        &self.rings
    }

    pub(in crate::engine) fn has_room(&self) -> bool {
        self.rings.len() < MAX_HOT
    }

    /// Handles the arrival flag of the cold ring `ring`. If all slots are taken, one flag in
    /// [`FLAGS_PER_REPLACEMENT`] replaces the oldest hot ring. Flags do not count unless a thread
    /// polls (`polled`): without polls each message wakes a thread anyway, and the flag is cheap
    /// beside that.
    pub(in crate::engine) fn handle_arrival(&mut self, ring: T, polled: bool) -> HotSlot<T> {
        if self.has_room() {
            self.rings.push(ring);
            return HotSlot::New;
        }
        self.flags += u32::from(polled);
        if self.flags <= FLAGS_PER_REPLACEMENT {
            return HotSlot::Refused;
        }
        self.flags = 0;
        let at = self.oldest % MAX_HOT;
        self.oldest += 1;
        match self.rings.get_mut(at) {
            Some(place) => HotSlot::Replaced(std::mem::replace(place, ring)),
            None => HotSlot::Refused,
        }
    }

    /// Keeps only the hot rings selected by `keeps`.
    pub(in crate::engine) fn retain_hot(&mut self, keeps: impl FnMut(&T) -> bool) {
        self.rings.retain(keeps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_gets_the_oldest_slot_after_many_flags_and_none_if_no_thread_polls() {
        let mut places = HotSlots::default();
        for ring in 0..MAX_HOT {
            assert_eq!(places.handle_arrival(ring, ring % 2 == 0), HotSlot::New);
        }
        for _ in 0..2 * FLAGS_PER_REPLACEMENT {
            assert_eq!(places.handle_arrival(99, false), HotSlot::Refused);
        }
        for oldest in [0, 1] {
            for _ in 0..FLAGS_PER_REPLACEMENT {
                assert_eq!(places.handle_arrival(100 + oldest, true), HotSlot::Refused);
            }
            assert_eq!(places.handle_arrival(100 + oldest, true), HotSlot::Replaced(oldest));
        }
        assert_eq!(places.rings()[..3], [100, 101, 2]);
        places.retain_hot(|ring| *ring != 2);
        assert_eq!(places.handle_arrival(7, false), HotSlot::New);
    }
}
