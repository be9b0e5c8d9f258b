//! The tag list of a tag matching shared receive queue (ibv_post_srq_ops(3)): which entry a message
//! matches, and whether software is in step.
//!
//! **Matching.** An entry matches a message if `tag & mask` of the message equals the entry's tag.
//! Of several matches the oldest wins. Entries with equal mask and tag form a queue, and one hash
//! table holds the heads of these queues. A message needs one lookup for each mask in use, and the
//! oldest result wins. The cost depends on the number of different masks, one to four in practice,
//! and not on the number of entries.
//!
//! **Phases.** Software learns of an unexpected message when it polls its completion. Until then it
//! may add an entry that the message should have matched. Such an entry must not match a later
//! message. Hence entries wait in a separate list while software has unreported unexpected
//! messages. Later they enter the table in order.
//!
//! The list allocates at creation, and later only for more entries in use at the same time.
//!
//! Map of this file: the entries and results; the public operations of [`TagList`]; then its
//! private ones, first on the list of waiting entries and then on the hash table.

pub mod wire;

use crate::receive::Receive;
use crate::storage::{filled, room};
use abi::ibv_sge;

#[cfg(test)]
mod tests;

/// The largest number of entries: as many as a handle has indices.
pub const MAX_TAGS: usize = 1 << 16;

/// The largest number of ranges of an entry. With one range for the header, it stays within the
/// engine's lists.
pub const MAX_TAG_SGE: usize = 16;

/// The null link: a link is an index plus one.
const NONE: u32 = 0;

/// A tag list.
#[derive(Debug)]
pub struct TagList {
    capacity: usize,
    max_sge: usize,
    /// All entries that were ever in use.
    entries: Vec<TagEntry>,
    /// `max_sge` ranges for each entry.
    sges: Vec<ibv_sge>,
    /// Unused entries, linked by `next`. The entry unused for longest is used next, so that handles
    /// repeat late.
    free: EntryQueue,
    /// Entries that wait until software is in step, linked by `next` and `prev`.
    waiting: EntryQueue,
    /// The hash table: heads of the queues of equal entries, linked by `chain_next` and
    /// `chain_prev`.
    buckets: Box<[u32]>,
    /// The different masks in the table, with the number of entries of each.
    masks: Vec<(u64, u32)>,
    seed: u64,
    /// Number of entries added so far.
    added: u64,
    phase: SyncState,
}

/// How far software is behind the messages.
#[derive(Clone, Copy, Debug, Default)]
struct SyncState {
    /// Number of unexpected messages, modulo 2^16.
    unexpected: u16,
    /// Number of those that software has not reported; 0: in step. Software reports modulo 2^16,
    /// but this count does not wrap, so a list without reports does not come into step by overflow.
    unreported: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct EntryQueue {
    head: u32,
    tail: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    Free,
    /// Not to be matched yet.
    Waiting,
    /// In the table.
    Listed,
    /// Matched by a message.
    Taken {
        refused_removal: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct TagEntry {
    tag: u64,
    mask: u64,
    wr_id: u64,
    /// The entry's position in the order of additions.
    order: u64,
    /// In the table: next and previous entry of the ring of equal entries. Waiting or unused: links
    /// of that list.
    next: u32,
    prev: u32,
    /// Heads of queues of equal entries: links of the bucket's chain.
    chain_next: u32,
    chain_prev: u32,
    /// Number of uses of this index, which detects old handles.
    generation: u16,
    sges: u8,
    is_head: bool,
    state: EntryState,
}

/// The result of removing an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The entry is removed; no message will match it.
    Removed,
    /// A message has matched the entry, or it was removed before.
    TooLate,
    /// The handle was never issued.
    Unknown,
}

/// The result for an entry whose message was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// The entry is in the list as before.
    Listed,
    /// The entry's removal was refused because its receive would complete. Hence it must complete;
    /// the value is its `recv_wr_id`.
    MustComplete(u64),
}

impl TagList {
    /// A list of up to `capacity` entries of up to `max_sge` ranges each. `seed` prevents senders
    /// from provoking hash collisions. `None`: out of memory.
    pub fn new(capacity: usize, max_sge: usize, seed: u64) -> Option<Self> {
        let capacity = capacity.min(MAX_TAGS);
        Some(Self {
            capacity,
            max_sge,
            entries: room(capacity)?,
            sges: room(capacity * max_sge)?,
            free: EntryQueue::default(),
            waiting: EntryQueue::default(),
            buckets: filled(NONE, (capacity * 2).next_power_of_two())?,
            masks: room(capacity)?,
            seed,
            added: 0,
            phase: SyncState::default(),
        })
    }

    /// Whether no entry can be added.
    pub fn is_full(&self) -> bool {
        self.free.head == NONE && self.entries.len() == self.capacity
    }

    /// Adds an entry and returns its handle; `None`: the list is full.
    pub fn add(&mut self, tag: u64, mask: u64, wr_id: u64, list: &[ibv_sge]) -> Option<u32> {
        debug_assert!(list.len() <= self.max_sge, "checked where operations are posted");
        let place = self.unused()?;
        let at = index(place);
        self.added += 1;
        self.sges[at * self.max_sge..][..list.len()].copy_from_slice(list);
        let entry = &mut self.entries[at];
        *entry = TagEntry {
            tag,
            mask,
            wr_id,
            order: self.added,
            sges: list.len() as u8,
            generation: entry.generation,
            ..UNUSED
        };
        let handle = handle(place, entry.generation);
        if self.in_step() {
            self.enlist(place);
        } else {
            self.entries[at].state = EntryState::Waiting;
            self.push_waiting(place);
        }
        Some(handle)
    }

    /// An unused index.
    fn unused(&mut self) -> Option<u32> {
        let place = self.free.head;
        if place != NONE {
            self.free.head = self.entries[index(place)].next;
            if self.free.head == NONE {
                self.free.tail = NONE;
            }
            return Some(place);
        }
        if self.entries.len() == self.capacity {
            return None;
        }
        self.entries.push(UNUSED);
        let none = ibv_sge { addr: 0, length: 0, lkey: 0 };
        self.sges.resize(self.entries.len() * self.max_sge, none);
        Some(self.entries.len() as u32)
    }

    /// Removes the entry of `handle`, unless a message has matched it.
    pub fn remove(&mut self, handle: u32) -> Removal {
        let place = (handle & 0xffff) + 1;
        let Some(entry) = self.entries.get_mut(index(place)) else { return Removal::Unknown };
        let generation = (handle >> 16) as u16;
        if entry.generation != generation {
            // Modulo 2^16: half of the numbers count as past.
            let age = entry.generation.wrapping_sub(generation) as i16;
            return if age > 0 { Removal::TooLate } else { Removal::Unknown };
        }
        match &mut entry.state {
            // The handle belongs to a future use of the index.
            EntryState::Free => return Removal::Unknown,
            EntryState::Taken { refused_removal } => {
                *refused_removal = true;
                return Removal::TooLate;
            }
            EntryState::Waiting => self.unlink_waiting(place),
            EntryState::Listed => self.delist(place),
        }
        self.release(place);
        Removal::Removed
    }

    /// Finds and takes the entry for a message with `tag`; returns its handle.
    pub fn match_message(&mut self, tag: u64) -> Option<u32> {
        let mut found = NONE;
        let mut order = u64::MAX;
        for (mask, _) in &self.masks {
            let place = self.find(*mask, tag & mask);
            if place != NONE && self.entries[index(place)].order < order {
                found = place;
                order = self.entries[index(place)].order;
            }
        }
        if found == NONE {
            return None;
        }
        self.delist(found);
        let entry = &mut self.entries[index(found)];
        entry.state = EntryState::Taken { refused_removal: false };
        Some(handle(found, entry.generation))
    }

    /// Copies the receive of a taken entry to `to`; `false`: no such entry.
    pub fn describe(&self, handle: u32, to: &mut Receive) -> bool {
        let Some(place) = self.taken_entry(handle) else { return false };
        let entry = &self.entries[index(place)];
        let list = &self.sges[index(place) * self.max_sge..][..usize::from(entry.sges)];
        to.wr_id = entry.wr_id;
        to.sges.clear();
        to.sges.try_extend_from_slice(list).is_ok()
    }

    /// Frees a taken entry whose message is complete. Returns its `recv_wr_id`.
    pub fn finish(&mut self, handle: u32) -> Option<u64> {
        let place = self.taken_entry(handle)?;
        self.release(place);
        Some(self.entries[index(place)].wr_id)
    }

    /// Restores a taken entry whose message was abandoned.
    pub fn restore(&mut self, handle: u32) -> Option<Restored> {
        let place = self.taken_entry(handle)?;
        let TagEntry { wr_id, state, .. } = self.entries[index(place)];
        if state == (EntryState::Taken { refused_removal: true }) {
            self.release(place);
            return Some(Restored::MustComplete(wr_id));
        }
        self.enlist(place);
        Some(Restored::Listed)
    }

    fn taken_entry(&self, handle: u32) -> Option<u32> {
        let place = (handle & 0xffff) + 1;
        let entry = self.entries.get(index(place))?;
        let taken = matches!(entry.state, EntryState::Taken { .. });
        (taken && u32::from(entry.generation) == handle >> 16).then_some(place)
    }

    /// Counts a tagged message that matched no entry.
    pub fn count_unexpected(&mut self) {
        self.phase.unexpected = self.phase.unexpected.wrapping_add(1);
        self.phase.unreported += 1;
    }

    /// Uncounts an unexpected message that was abandoned and will not be reported.
    pub fn discount_unexpected(&mut self) {
        self.phase.unexpected = self.phase.unexpected.wrapping_sub(1);
        // The message was unreported, unless software counts wrongly.
        let unreported = self.phase.unreported;
        self.phase.unreported = unreported.checked_sub(1).unwrap_or(u64::from(u16::MAX));
        self.enter_waiting();
    }

    /// Records that software has seen `seen` unexpected messages, modulo 2^16.
    pub fn sync(&mut self, seen: u32) {
        self.phase.unreported = u64::from(self.phase.unexpected.wrapping_sub(seen as u16));
        self.enter_waiting();
    }

    /// Whether software has reported every unexpected message.
    pub const fn in_step(&self) -> bool {
        self.phase.unreported == 0
    }

    /// Moves waiting entries to the table once software is in step.
    fn enter_waiting(&mut self) {
        while self.in_step() && self.waiting.head != NONE {
            let place = self.waiting.head;
            self.unlink_waiting(place);
            self.enlist(place);
        }
    }

    fn release(&mut self, place: u32) {
        let entry = &mut self.entries[index(place)];
        entry.state = EntryState::Free;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = NONE;
        match self.free.tail {
            NONE => self.free.head = place,
            tail => self.entries[index(tail)].next = place,
        }
        self.free.tail = place;
    }

    fn push_waiting(&mut self, place: u32) {
        let tail = self.waiting.tail;
        let entry = &mut self.entries[index(place)];
        (entry.prev, entry.next) = (tail, NONE);
        match tail {
            NONE => self.waiting.head = place,
            tail => self.entries[index(tail)].next = place,
        }
        self.waiting.tail = place;
    }

    fn unlink_waiting(&mut self, place: u32) {
        let TagEntry { next, prev, .. } = self.entries[index(place)];
        match prev {
            NONE => self.waiting.head = next,
            prev => self.entries[index(prev)].next = next,
        }
        match next {
            NONE => self.waiting.tail = prev,
            next => self.entries[index(next)].prev = prev,
        }
    }

    fn bucket(&self, mask: u64, tag: u64) -> usize {
        // Two multiplications spread every bit of tag and mask into the upper half.
        let mixed = (tag ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed =
            (mixed ^ mixed >> 32 ^ mask.rotate_left(17)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed ^ mixed >> 32) as usize & (self.buckets.len() - 1)
    }

    /// The head of the queue of entries with this mask and tag.
    fn find(&self, mask: u64, tag: u64) -> u32 {
        let mut place = self.buckets[self.bucket(mask, tag)];
        while place != NONE {
            let entry = &self.entries[index(place)];
            if entry.mask == mask && entry.tag == tag {
                break;
            }
            place = entry.chain_next;
        }
        place
    }

    /// Inserts an entry into the table, at its position in the order of additions.
    fn enlist(&mut self, place: u32) {
        let TagEntry { mask, tag, order, .. } = self.entries[index(place)];
        self.entries[index(place)].state = EntryState::Listed;
        match self.masks.iter_mut().find(|(m, _)| *m == mask) {
            Some((_, count)) => *count += 1,
            None => self.masks.push((mask, 1)),
        }
        let head = self.find(mask, tag);
        if head == NONE {
            let entry = &mut self.entries[index(place)];
            (entry.next, entry.prev) = (place, place);
            return self.make_head(place);
        }
        let tail = self.entries[index(head)].prev;
        // At the end, unless the entry is restored.
        let mut behind = tail;
        if self.entries[index(tail)].order > order {
            let mut next = head;
            while self.entries[index(next)].order < order {
                next = self.entries[index(next)].next;
            }
            behind = self.entries[index(next)].prev;
            if next == head {
                self.replace_head(head, place);
            }
        }
        let ahead = self.entries[index(behind)].next;
        let entry = &mut self.entries[index(place)];
        (entry.prev, entry.next) = (behind, ahead);
        self.entries[index(behind)].next = place;
        self.entries[index(ahead)].prev = place;
    }

    /// Removes an entry from the table.
    fn delist(&mut self, place: u32) {
        let TagEntry { mask, next, prev, is_head, .. } = self.entries[index(place)];
        if let Some(at) = self.masks.iter().position(|(m, _)| *m == mask) {
            self.masks[at].1 -= 1;
            if self.masks[at].1 == 0 {
                self.masks.swap_remove(at);
            }
        }
        if next == place {
            return self.unchain(place);
        }
        self.entries[index(prev)].next = next;
        self.entries[index(next)].prev = prev;
        if is_head {
            self.replace_head(place, next);
        }
    }

    /// Inserts the head of a new queue of equal entries into its chain.
    fn make_head(&mut self, place: u32) {
        let TagEntry { mask, tag, .. } = self.entries[index(place)];
        let bucket = self.bucket(mask, tag);
        let first = std::mem::replace(&mut self.buckets[bucket], place);
        let entry = &mut self.entries[index(place)];
        (entry.chain_prev, entry.chain_next, entry.is_head) = (NONE, first, true);
        if first != NONE {
            self.entries[index(first)].chain_prev = place;
        }
    }

    /// Replaces `old` in its chain by `new`, which has the same mask and tag.
    fn replace_head(&mut self, old: u32, new: u32) {
        let TagEntry { mask, tag, chain_next, chain_prev, .. } = self.entries[index(old)];
        self.entries[index(old)].is_head = false;
        let entry = &mut self.entries[index(new)];
        (entry.chain_prev, entry.chain_next, entry.is_head) = (chain_prev, chain_next, true);
        self.relink(mask, tag, chain_prev, chain_next, new, new);
    }

    /// Removes the last entry of a queue of equal entries from its chain.
    fn unchain(&mut self, place: u32) {
        let TagEntry { mask, tag, chain_next, chain_prev, .. } = self.entries[index(place)];
        self.entries[index(place)].is_head = false;
        self.relink(mask, tag, chain_prev, chain_next, chain_next, chain_prev);
    }

    /// Sets the links of the neighbours `prev` and `next` in a chain.
    fn relink(&mut self, mask: u64, tag: u64, prev: u32, next: u32, after: u32, before: u32) {
        match prev {
            NONE => {
                let bucket = self.bucket(mask, tag);
                self.buckets[bucket] = after;
            }
            prev => self.entries[index(prev)].chain_next = after,
        }
        if next != NONE {
            self.entries[index(next)].chain_prev = before;
        }
    }
}

const UNUSED: TagEntry = TagEntry {
    tag: 0,
    mask: 0,
    wr_id: 0,
    order: 0,
    next: NONE,
    prev: NONE,
    chain_next: NONE,
    chain_prev: NONE,
    generation: 0,
    sges: 0,
    is_head: false,
    state: EntryState::Free,
};

const fn index(place: u32) -> usize {
    place.wrapping_sub(1) as usize
}

const fn handle(place: u32, generation: u16) -> u32 {
    (place - 1) | (generation as u32) << 16
}
