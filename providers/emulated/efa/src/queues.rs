//! Rings of EFA's queues: producer counters in doorbell words, and the phase of completion queues.

use emulated_commands::vendor::{Location, QueueMemory};

/// A send or receive ring. The provider's doorbell is a counter of 16 bits that runs freely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    base: u64,
    entry: u64,
    entries: u16,
    doorbell: u64,
    consumed: u16,
}

impl Ring {
    /// A ring of `entries` (a power of two up to 2^15, or 0: no queue) with `entry` bytes each.
    #[must_use]
    pub const fn new(base: u64, entry: usize, entries: u16, doorbell: u64) -> Self {
        Self { base, entry: entry as u64, entries, doorbell, consumed: 0 }
    }

    /// Begins anew, as the provider does at RESET.
    pub fn reset(&mut self, memory: &mut dyn QueueMemory) {
        self.consumed = 0;
        // The provider's first doorbell may have the value of its last one before RESET.
        let _ = memory.write(Location::File(self.doorbell), &[0; 4]);
    }

    /// The place of the next entry that the doorbell tells of, which becomes consumed.
    ///
    /// A doorbell further ahead than the ring has entries is a mistake of the program: the oldest
    /// entries are overwritten and left out.
    pub fn next(&mut self, memory: &dyn QueueMemory) -> Option<Location> {
        if self.entries == 0 {
            return None;
        }
        let produced = memory.load(Location::File(self.doorbell)).ok()? as u16;
        let waiting = produced.wrapping_sub(self.consumed);
        if waiting == 0 {
            return None;
        }
        if waiting > self.entries {
            self.consumed = produced.wrapping_sub(self.entries);
        }
        let index = u64::from(self.consumed & (self.entries - 1));
        self.consumed = self.consumed.wrapping_add(1);
        Some(Location::File(self.base + index * self.entry))
    }
}

/// A completion ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionRing {
    base: u64,
    entry: u64,
    entries: u32,
    doorbell: u64,
    /// Entries written, modulo 2^32.
    produced: u32,
    arming: Arming,
}

/// What the provider's arming doorbell told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arming {
    /// No event is wanted.
    Idle,
    /// An event is wanted, by this sequence number, as soon as an entry beyond the index exists.
    Armed { sequence: u8, index: u16 },
    /// The event of this sequence number was delivered.
    Delivered { sequence: u8 },
}

impl CompletionRing {
    /// A ring of `entries` (a power of two up to 2^15) with `entry` bytes each.
    #[must_use]
    pub const fn new(base: u64, entry: usize, entries: u32, doorbell: u64) -> Self {
        let entry = entry as u64;
        Self { base, entry, entries, doorbell, produced: 0, arming: Arming::Idle }
    }

    /// Bytes of an entry.
    #[must_use]
    pub const fn entry_size(&self) -> u64 {
        self.entry
    }

    /// The place and phase of the next entry; `None`: the provider has not consumed the entry of
    /// the round before.
    #[must_use]
    pub fn room(&self, memory: &dyn QueueMemory) -> Option<(Location, bool)> {
        let consumed = memory.load(Location::File(self.doorbell)).ok()? as u16;
        let waiting = (self.produced as u16).wrapping_sub(consumed);
        if u32::from(waiting) >= self.entries {
            return None;
        }
        let index = self.produced & (self.entries - 1);
        let phase = (self.produced / self.entries).is_multiple_of(2);
        Some((Location::File(self.base + u64::from(index) * self.entry), phase))
    }

    /// The entry of [`CompletionRing::room`] is written.
    pub const fn advance(&mut self) {
        self.produced = self.produced.wrapping_add(1);
    }

    /// Reads the arming doorbell; whether an event is due now, which then counts as delivered.
    ///
    /// The provider arms with a sequence number, and raises the number for each acknowledged event.
    /// At most one event is delivered for a sequence number. Polling overwrites the doorbell
    /// without the bit, so the caller looks after each arming.
    pub fn take_event(&mut self, memory: &dyn QueueMemory) -> bool {
        const ARM: u32 = 1 << 31;
        if let Ok(word) = memory.load(Location::File(self.doorbell))
            && word & ARM != 0
        {
            let sequence = (word >> 29 & 3) as u8;
            let is_new = match self.arming {
                Arming::Idle => true,
                Arming::Armed { .. } => false,
                Arming::Delivered { sequence: last } => last != sequence,
            };
            if is_new {
                self.arming = Arming::Armed { sequence, index: word as u16 };
            }
        }
        match self.arming {
            Arming::Armed { sequence, index } if index != self.produced as u16 => {
                self.arming = Arming::Delivered { sequence };
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use emulated_commands::refusal::Refusal;
    use emulated_commands::vendor::Outside;

    /// One word: a doorbell at 0.
    struct Word(u32);

    impl QueueMemory for Word {
        fn allocate(&mut self, _: u64) -> Result<u64, Refusal> {
            Err(Refusal::NoMemory)
        }
        fn release(&mut self, _: u64, _: u64) {}
        fn read(&self, _: Location, _: &mut [u8]) -> Result<(), Outside> {
            Err(Outside)
        }
        fn load(&self, _: Location) -> Result<u32, Outside> {
            Ok(self.0)
        }
        fn write(&mut self, _: Location, bytes: &[u8]) -> Result<(), Outside> {
            self.0 = u32::from_le_bytes(bytes.try_into().map_err(|_| Outside)?);
            Ok(())
        }
        fn publish(&mut self, _: Location, _: [u8; 8]) -> Result<(), Outside> {
            Err(Outside)
        }
    }

    fn places(ring: &mut Ring, doorbell: u32) -> Vec<u64> {
        let memory = Word(doorbell);
        core::iter::from_fn(|| ring.next(&memory))
            .map(|at| if let Location::File(offset) = at { offset } else { u64::MAX })
            .collect()
    }

    #[test]
    fn a_ring_follows_a_counter_that_wraps() {
        let mut ring = Ring::new(4096, 64, 4, 0);
        assert_eq!(places(&mut ring, 0), []);
        assert_eq!(places(&mut ring, 3), [4096, 4160, 4224]);
        assert_eq!(places(&mut ring, 5), [4288, 4096]);
        ring.consumed = 65_535;
        assert_eq!(places(&mut ring, 0x1_0001), [4288, 4096]);
        ring.reset(&mut Word(0));
        assert_eq!(places(&mut ring, 0), []);
        assert_eq!(places(&mut Ring::new(0, 64, 0, 0), 9), []);
    }

    #[test]
    fn a_doorbell_beyond_the_ring_gives_each_entry_once() {
        let mut ring = Ring::new(0, 16, 4, 0);
        assert_eq!(places(&mut ring, 0x8001), [16, 32, 48, 0]);
        assert_eq!(places(&mut ring, 0x8001), []);
    }

    #[test]
    fn phases_toggle_and_a_full_ring_has_no_room() {
        let mut ring = CompletionRing::new(0, 16, 2, 0);
        let mut phases = Vec::new();
        for consumed in [0, 0, 1, 2, 3] {
            let (at, phase) = ring.room(&Word(consumed)).expect("room");
            phases.push((at, phase));
            ring.advance();
        }
        let [first, second] = [Location::File(0), Location::File(16)];
        let expected =
            [(first, true), (second, true), (first, false), (second, false), (first, true)];
        assert_eq!(phases, expected);
        assert_eq!(ring.room(&Word(3)), None);
        assert!(ring.room(&Word(4)).is_some());
    }

    #[test]
    fn one_arming_has_one_event_also_for_entries_that_are_there() {
        const ARM: u32 = 1 << 31;
        let mut ring = CompletionRing::new(0, 16, 8, 0);
        assert!(!ring.take_event(&Word(ARM)));
        // Polling overwrites the doorbell.
        assert!(!ring.take_event(&Word(0)));
        ring.advance();
        assert!(ring.take_event(&Word(0)));
        ring.advance();
        assert!(!ring.take_event(&Word(ARM)), "the same sequence number");
        assert!(ring.take_event(&Word(ARM | 1 << 29)), "entries beyond the index 0");
        assert!(!ring.take_event(&Word(ARM | 2 << 29 | 2)));
        ring.advance();
        assert!(ring.take_event(&Word(2)));
    }
}
