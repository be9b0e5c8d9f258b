//! A completion queue: a ring of entries in the program's memory. An entry is valid if its owner
//! bit is the parity of the lap. Events follow the arm record of the doorbell.

use crate::cqe::{CQE_BYTES, Completion, Outcome};
use crate::doorbell::{Arm, INDEX_MASK};

/// The largest number of entries.
pub const MAX_ENTRIES: u32 = 1 << 22;

/// Number and size of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of entries: a power of two, at most [`MAX_ENTRIES`].
    pub entries: u32,
    /// Bytes of an entry: 64 or 128.
    pub entry_bytes: u32,
}

impl Geometry {
    /// A geometry from the fields of a command: `cqe` is one less than the number of entries.
    #[must_use]
    pub fn of(cqe: u32, entry_bytes: u32) -> Option<Self> {
        let entries = cqe.checked_add(1)?.checked_next_power_of_two()?;
        let is_valid = entries <= MAX_ENTRIES && matches!(entry_bytes, 64 | 128);
        is_valid.then_some(Self { entries, entry_bytes })
    }

    /// Bytes of the queue.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries as usize * self.entry_bytes as usize
    }

    /// Never: each queue has at least one entry.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Offset of the 64 bytes with the fields: the second half of a 128-byte entry.
    const fn offset(&self, index: u32) -> usize {
        let entry = (index & (self.entries - 1)) as usize;
        (entry + 1) * self.entry_bytes as usize - CQE_BYTES
    }

    const fn owner(&self, index: u32) -> bool {
        index & self.entries != 0
    }
}

/// An entry to store. The caller stores [`StoredEntry::body`] first and then, with release order,
/// [`StoredEntry::last`], because the program looks at the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    offset: usize,
    bytes: [u8; CQE_BYTES],
}

impl StoredEntry {
    /// Offset and bytes of the part that is stored first.
    #[must_use]
    pub fn body(&self) -> (usize, &[u8]) {
        (self.offset, self.bytes.split_last().map_or(&[], |(_, body)| body))
    }

    /// The offset, the bytes that are stored first, and the 8 bytes that may be stored last instead
    /// of the last byte alone.
    #[must_use]
    pub fn parts(&self) -> (usize, &[u8], [u8; 8]) {
        let (body, word) = self.bytes.split_last_chunk().unwrap_or((&[], &[0; 8]));
        (self.offset, body, *word)
    }

    /// Offset and value of the byte that is stored last.
    #[must_use]
    pub const fn last(&self) -> (usize, u8) {
        (self.offset + CQE_BYTES - 1, self.bytes[CQE_BYTES - 1])
    }
}

/// The queue is full, or its doorbell record is invalid: the queue enters the error state and takes
/// no further entry (`IBV_EVENT_CQ_ERR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// A completion queue, from the adapter's side.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    geometry: Geometry,
    /// Number of entries stored so far; runs freely. Its low 24 bits are the producer index.
    produced: u32,
    /// Value of `produced` after the latest solicited entry.
    solicited: Option<u32>,
    /// Sequence number of the arming that caused the latest event.
    fired: Option<u8>,
    ignores_overrun: bool,
    is_broken: bool,
}

impl CompletionQueue {
    /// An empty queue. `ignores_overrun`: new entries replace entries that were not consumed
    /// (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    #[must_use]
    pub const fn new(geometry: Geometry, ignores_overrun: bool) -> Self {
        Self {
            geometry,
            produced: 0,
            solicited: None,
            fired: None,
            ignores_overrun,
            is_broken: false,
        }
    }

    /// Number and size of entries.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Number of further entries that the queue takes if the program has consumed `consumed`
    /// entries (doorbell record, 24 bits).
    #[must_use]
    pub const fn room(&self, consumed: u32) -> u32 {
        let waiting = self.produced.wrapping_sub(consumed) & INDEX_MASK;
        self.geometry.entries.saturating_sub(waiting)
    }

    /// The entry to store for `completion`, if the program has consumed `consumed` entries
    /// (doorbell record, 24 bits).
    ///
    /// # Errors
    /// [`Overrun`] for this completion and all that follow.
    #[inline]
    pub fn push(&mut self, completion: &Completion, consumed: u32) -> Result<StoredEntry, Overrun> {
        if self.is_broken || self.room(consumed) == 0 && !self.ignores_overrun {
            self.is_broken = true;
            return Err(Overrun);
        }
        Ok(self.store(completion))
    }

    fn store(&mut self, completion: &Completion) -> StoredEntry {
        let index = self.produced;
        self.produced = index.wrapping_add(1);
        if completion.is_solicited() {
            self.solicited = Some(self.produced);
        }
        let bytes = completion.encode(self.geometry.owner(index));
        StoredEntry { offset: self.geometry.offset(index), bytes }
    }

    /// Ends the present buffer and goes on in a buffer of another geometry. Returns the last entry
    /// for the old buffer.
    ///
    /// The library copies the entries in front of the last one to the places behind their indices
    /// in the new buffer, and counts the last entry as consumed. So the next entry of the new
    /// buffer has the next index.
    ///
    /// # Errors
    /// [`Overrun`] if the old buffer has no room for the last entry, or the new buffer is smaller
    /// than the number of waiting entries; the queue keeps its buffer and does not break.
    pub fn resize(&mut self, geometry: Geometry, consumed: u32) -> Result<StoredEntry, Overrun> {
        let waiting = self.produced.wrapping_sub(consumed) & INDEX_MASK;
        if self.is_broken || self.room(consumed) == 0 || waiting > geometry.entries {
            return Err(Overrun);
        }
        let (qpn, user_index, counter, timestamp) = (0, 0, 0, 0);
        let end = Completion { outcome: Outcome::Resized, qpn, user_index, counter, timestamp };
        let stored = self.store(&end);
        self.geometry = geometry;
        Ok(stored)
    }

    /// Whether an event is due now: the queue is armed, and an entry of the wanted kind has been
    /// stored behind the consumer index of the arming. Each arming causes one event: arming again
    /// with the same sequence number, before the program takes the event, has no effect.
    #[inline]
    pub fn take_event(&mut self, arm: Option<Arm>) -> bool {
        let Some(arm) = arm else { return false };
        if self.fired == Some(arm.sequence) {
            return false;
        }
        let latest = if arm.solicited_only { self.solicited } else { Some(self.produced) };
        let behind = latest.map_or(0, |latest| latest.wrapping_sub(arm.index) & INDEX_MASK);
        // Indices in the upper half of the range lie in front of the arming.
        let is_due = behind != 0 && behind <= INDEX_MASK / 2;
        if is_due {
            self.fired = Some(arm.sequence);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cqe::{Received, Source};

    fn sent(counter: u16) -> Completion {
        let outcome = Outcome::Sent { opcode: 0x0a, byte_count: 0 };
        Completion { outcome, qpn: 1, user_index: 2, counter, timestamp: 3 }
    }

    fn arrived(is_solicited: bool) -> Completion {
        let outcome = Outcome::Arrived {
            received: Received::Send,
            byte_count: 0,
            source: Source::default(),
            is_solicited,
        };
        Completion { outcome, ..sent(0) }
    }

    /// The program's side: memory, doorbell record and consumer index, as libmlx5 uses them.
    struct Program {
        buffer: Vec<u8>,
        geometry: Geometry,
        consumed: u32,
    }

    impl Program {
        fn new(geometry: Geometry) -> Self {
            let mut buffer = vec![0; geometry.len()];
            for entry in buffer.chunks_mut(geometry.entry_bytes as usize) {
                *entry.last_mut().expect("bytes") = crate::cqe::opcode::INVALID << 4;
            }
            Self { buffer, geometry, consumed: 0 }
        }

        fn store(&mut self, entry: &StoredEntry) {
            let (offset, body) = entry.body();
            self.buffer[offset..offset + body.len()].copy_from_slice(body);
            let (offset, last) = entry.last();
            self.buffer[offset] = last;
        }

        fn poll(&mut self) -> Option<Completion> {
            let Geometry { entries, entry_bytes } = self.geometry;
            let at = ((self.consumed & (entries - 1)) + 1) as usize * entry_bytes as usize - 64;
            let entry = self.buffer[at..at + 64].try_into().expect("64 bytes");
            let (completion, owner) = Completion::decode(entry)?;
            (owner == (self.consumed & entries != 0)).then(|| {
                self.consumed += 1;
                completion
            })
        }
    }

    #[test]
    fn a_program_sees_each_entry_once_for_many_laps() {
        for entry_bytes in [64, 128] {
            let geometry = Geometry::of(3, entry_bytes).expect("valid");
            let (mut queue, mut program) =
                (CompletionQueue::new(geometry, false), Program::new(geometry));
            for n in 0..50u16 {
                assert_eq!(program.poll(), None);
                for counter in [2 * n, 2 * n + 1] {
                    let entry = queue.push(&sent(counter), program.consumed).expect("room");
                    program.store(&entry);
                }
                assert_eq!(program.poll(), Some(sent(2 * n)));
                assert_eq!(program.poll(), Some(sent(2 * n + 1)));
            }
        }
    }

    #[test]
    fn a_full_queue_breaks_unless_it_ignores_overruns() {
        let geometry = Geometry::of(1, 64).expect("valid");
        let mut queue = CompletionQueue::new(geometry, false);
        assert_eq!(queue.room(0), 2);
        assert!(queue.push(&sent(0), 0).is_ok() && queue.push(&sent(1), 0).is_ok());
        assert_eq!(queue.push(&sent(2), 0), Err(Overrun));
        // A broken queue stays broken.
        assert_eq!(queue.push(&sent(2), 2), Err(Overrun));
        let mut queue = CompletionQueue::new(geometry, true);
        assert!((0..9).all(|n| queue.push(&sent(n), 0).is_ok()));
    }

    #[test]
    fn a_doorbell_record_ahead_of_the_producer_leaves_no_room() {
        let queue = CompletionQueue::new(Geometry::of(3, 64).expect("valid"), false);
        assert_eq!(queue.room(1), 0);
        assert_eq!(queue.room(0), 4);
    }

    #[test]
    fn after_a_resize_entries_go_on_in_the_new_buffer() {
        // The library's side of ibv_resize_cq: the entries in front of the end are copied.
        for (old, new) in [(3, 15), (15, 7)] {
            for waiting in 0..3u16 {
                let (old, new) =
                    (Geometry::of(old, 64).expect("valid"), Geometry::of(new, 64).expect("valid"));
                let (mut queue, mut program) =
                    (CompletionQueue::new(old, false), Program::new(old));
                for n in 0..5 {
                    program.store(&queue.push(&sent(n), program.consumed).expect("room"));
                    assert!(program.poll().is_some());
                }
                for n in 0..waiting {
                    program.store(&queue.push(&sent(n), program.consumed).expect("room"));
                }
                program.store(&queue.resize(new, program.consumed).expect("room"));
                let mut moved = Program::new(new);
                moved.consumed = program.consumed + 1;
                while let Some(completion) = program.poll() {
                    if completion.outcome == Outcome::Resized {
                        break;
                    }
                    let index = program.consumed;
                    moved.store(&StoredEntry {
                        offset: new.offset(index),
                        bytes: completion.encode(new.owner(index)),
                    });
                }
                for n in waiting..waiting + 4 {
                    moved.store(&queue.push(&sent(n), moved.consumed).expect("room"));
                }
                for n in 0..waiting + 4 {
                    assert_eq!(moved.poll(), Some(sent(n)));
                }
                assert_eq!(moved.poll(), None);
            }
        }
    }

    #[test]
    fn a_resize_without_room_leaves_the_queue_as_it_was() {
        let small = Geometry::of(1, 64).expect("valid");
        let mut queue = CompletionQueue::new(small, false);
        assert!(queue.push(&sent(0), 0).is_ok() && queue.push(&sent(1), 0).is_ok());
        let large = Geometry::of(7, 64).expect("valid");
        assert_eq!(queue.resize(large, 0), Err(Overrun));
        assert!(queue.push(&sent(2), 1).is_ok());
    }

    #[test]
    fn each_arming_causes_one_event() {
        let mut queue = CompletionQueue::new(Geometry::of(7, 64).expect("valid"), false);
        let arm = |sequence, index| Some(Arm { sequence, solicited_only: false, index });
        assert!(!queue.take_event(None));
        assert!(!queue.take_event(arm(0, 0)));
        queue.push(&sent(0), 0).expect("room");
        assert!(queue.take_event(arm(0, 0)));
        queue.push(&sent(1), 0).expect("room");
        assert!(!queue.take_event(arm(0, 0)) && !queue.take_event(arm(0, 1)));
        // The program takes the event, and arms again behind all entries.
        assert!(!queue.take_event(arm(1, 2)));
        queue.push(&sent(2), 2).expect("room");
        assert!(queue.take_event(arm(1, 2)));
        // Entries that arrived before the arming count at once.
        assert!(queue.take_event(arm(2, 2)));
    }

    #[test]
    fn an_arming_for_solicited_entries_waits_for_one() {
        let mut queue = CompletionQueue::new(Geometry::of(7, 64).expect("valid"), false);
        let arm = |sequence, index| Some(Arm { sequence, solicited_only: true, index });
        queue.push(&arrived(false), 0).expect("room");
        assert!(!queue.take_event(arm(0, 0)));
        queue.push(&arrived(true), 0).expect("room");
        queue.push(&arrived(false), 0).expect("room");
        assert!(queue.take_event(arm(0, 0)));
        // The solicited entry lies in front of the next arming.
        assert!(!queue.take_event(arm(1, 2)) && !queue.take_event(arm(1, 3)));
    }

    #[test]
    fn geometries_have_limits() {
        assert_eq!(Geometry::of(5, 64).map(|g| g.entries), Some(8));
        assert_eq!(Geometry::of(0, 128).map(|g| g.len()), Some(128));
        assert_eq!(Geometry::of(MAX_ENTRIES, 64), None);
        assert_eq!(Geometry::of(u32::MAX, 64), None);
        assert_eq!(Geometry::of(1, 96), None);
    }
}
