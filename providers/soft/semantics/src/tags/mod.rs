//! The tag list of a tag matching shared receive queue (ibv_post_srq_ops(3)): which posted entry a message belongs to, and
//! whether software has seen what came before it.
//!
//! **Matching.** An entry matches when `tag & mask` of the message is the entry's tag; of several, the one that was added first. Entries
//! with the same mask and tag form a queue, and the heads of these queues are in one hash table. A message is looked up
//! once for each mask that any entry has, and the earliest of what is found wins: the cost depends on how many different masks are
//! in use, one to four in practice, and never on how many entries there are.
//!
//! **Phases.** Software learns of an unexpected message when it polls its completion, and until then may add an entry that the message
//! should have had. Such an entry must not match a later message. So entries added while software has not reported all
//! unexpected messages wait aside; once it has, they go into the table, in order.
//!
//! Nothing is allocated after creation but up to as many entries as are in use at the same time.

pub mod wire;

use crate::receive::Receive;
use crate::storage::{filled, room};
use abi::ibv_sge;

#[cfg(test)]
mod tests;

/// Entries that a list can have: as many as a handle has indices.
pub const MAX_TAGS: usize = 1 << 16;

/// Ranges that a tag list's entry may name: with the place that a header takes up, no more than the engine's lists have.
pub const MAX_TAG_SGE: usize = 16;

/// No entry: links are an index plus one.
const NONE: u32 = 0;

/// A tag list.
#[derive(Debug)]
pub struct TagList {
    capacity: usize,
    max_sge: usize,
    /// All entries that were ever in use.
    entries: Vec<Entry>,
    /// `max_sge` for each entry.
    sges: Vec<ibv_sge>,
    /// Entries that are not in use, through `next`: the longest unused one is used next, so that handles come back late.
    free: Line,
    /// Entries that wait for software to be in step, through `next` and `prev`.
    waiting: Line,
    /// Hash table: heads of the queues of equal entries, chained through `chain_next` and `chain_prev`.
    buckets: Box<[u32]>,
    /// Different masks in the table, with the number of entries that have each.
    masks: Vec<(u64, u32)>,
    seed: u64,
    /// Entries added so far.
    added: u64,
    phase: Phase,
}

/// How far software is behind the messages.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    /// Unexpected messages, modulo 2^16.
    unexpected: u16,
    /// Those that software has not reported: 0 means in step. What software reports is modulo 2^16; this is not, so a list
    /// that is left alone does not come into step by going round.
    unreported: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    head: u32,
    tail: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Not to be matched yet.
    Waiting,
    /// In the table.
    Listed,
    /// A message has it.
    Taken {
        refused_removal: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u64,
    mask: u64,
    wr_id: u64,
    /// Its place in the order of additions.
    order: u64,
    /// Listed: the next and the previous of the queue of equal entries, a ring. Waiting, free: the line's.
    next: u32,
    prev: u32,
    /// Heads of queues of equal entries: the bucket's chain.
    chain_next: u32,
    chain_prev: u32,
    /// Counts the uses of this place, so that an old handle is known as such.
    generation: u16,
    sges: u8,
    is_head: bool,
    state: State,
}

/// What became of an attempt to remove an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone: no message will have it.
    Removed,
    /// A message had it, or it was removed before.
    TooLate,
    /// No such handle was ever given out.
    Unknown,
}

/// What becomes of an entry whose message was not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It is in the list as before.
    Listed,
    /// Its removal was refused on the ground that its receive would complete: so it must, and this is its `recv_wr_id`.
    MustComplete(u64),
}

impl TagList {
    /// A list of up to `capacity` entries of up to `max_sge` ranges each. `seed` keeps those who choose tags from choosing
    /// where they meet in the table. `None`: there is no memory.
    pub fn new(capacity: usize, max_sge: usize, seed: u64) -> Option<Self> {
        let capacity = capacity.min(MAX_TAGS);
        Some(Self {
            capacity,
            max_sge,
            entries: room(capacity)?,
            sges: room(capacity * max_sge)?,
            free: Line::default(),
            waiting: Line::default(),
            buckets: filled(NONE, (capacity * 2).next_power_of_two())?,
            masks: room(capacity)?,
            seed,
            added: 0,
            phase: Phase::default(),
        })
    }

    /// Whether no entry can be added.
    pub fn is_full(&self) -> bool {
        self.free.head == NONE && self.entries.len() == self.capacity
    }

    /// Adds an entry and returns its handle; `None` when the list is full.
    pub fn add(&mut self, tag: u64, mask: u64, wr_id: u64, list: &[ibv_sge]) -> Option<u32> {
        debug_assert!(list.len() <= self.max_sge, "checked where operations are posted");
        let place = self.unused()?;
        let at = index(place);
        self.added += 1;
        self.sges[at * self.max_sge..][..list.len()].copy_from_slice(list);
        let entry = &mut self.entries[at];
        *entry = Entry {
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
            self.entries[at].state = State::Waiting;
            self.push_waiting(place);
        }
        Some(handle)
    }

    /// A place that is not in use.
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

    /// Takes the entry of `handle` away, unless a message has it.
    pub fn remove(&mut self, handle: u32) -> Removal {
        let place = (handle & 0xffff) + 1;
        let Some(entry) = self.entries.get_mut(index(place)) else { return Removal::Unknown };
        let generation = (handle >> 16) as u16;
        if entry.generation != generation {
            // Modulo 2^16: half of the numbers are in the past.
            let age = entry.generation.wrapping_sub(generation) as i16;
            return if age > 0 { Removal::TooLate } else { Removal::Unknown };
        }
        match &mut entry.state {
            // This use of the place is still to come.
            State::Free => return Removal::Unknown,
            State::Taken { refused_removal } => {
                *refused_removal = true;
                return Removal::TooLate;
            }
            State::Waiting => self.unlink_waiting(place),
            State::Listed => self.delist(place),
        }
        self.release(place);
        Removal::Removed
    }

    /// Finds the entry for a message with `tag` and takes it; its handle.
    pub fn take(&mut self, tag: u64) -> Option<u32> {
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
        entry.state = State::Taken { refused_removal: false };
        Some(handle(found, entry.generation))
    }

    /// Copies the receive of a taken entry to `to`; `false` when there is no such entry.
    pub fn describe(&self, handle: u32, to: &mut Receive) -> bool {
        let Some(place) = self.taken(handle) else { return false };
        let entry = &self.entries[index(place)];
        let list = &self.sges[index(place) * self.max_sge..][..usize::from(entry.sges)];
        to.wr_id = entry.wr_id;
        to.sges.clear();
        to.sges.try_extend_from_slice(list).is_ok()
    }

    /// A taken entry's message is complete: its place is free. Returns its `recv_wr_id`.
    pub fn finish(&mut self, handle: u32) -> Option<u64> {
        let place = self.taken(handle)?;
        self.release(place);
        Some(self.entries[index(place)].wr_id)
    }

    /// A taken entry's message will not be finished.
    pub fn restore(&mut self, handle: u32) -> Option<Restored> {
        let place = self.taken(handle)?;
        let Entry { wr_id, state, .. } = self.entries[index(place)];
        if state == (State::Taken { refused_removal: true }) {
            self.release(place);
            return Some(Restored::MustComplete(wr_id));
        }
        self.enlist(place);
        Some(Restored::Listed)
    }

    fn taken(&self, handle: u32) -> Option<u32> {
        let place = (handle & 0xffff) + 1;
        let entry = self.entries.get(index(place))?;
        let taken = matches!(entry.state, State::Taken { .. });
        (taken && u32::from(entry.generation) == handle >> 16).then_some(place)
    }

    /// A tagged message found no entry.
    pub fn count_unexpected(&mut self) {
        self.phase.unexpected = self.phase.unexpected.wrapping_add(1);
        self.phase.unreported += 1;
    }

    /// An unexpected message was not finished: nobody will hear of it.
    pub fn discount_unexpected(&mut self) {
        self.phase.unexpected = self.phase.unexpected.wrapping_sub(1);
        // It was not reported yet, unless software counts wrongly.
        let unreported = self.phase.unreported;
        self.phase.unreported = unreported.checked_sub(1).unwrap_or(u64::from(u16::MAX));
        self.settle();
    }

    /// Software says how many unexpected messages it has seen, modulo 2^16.
    pub fn sync(&mut self, seen: u32) {
        self.phase.unreported = u64::from(self.phase.unexpected.wrapping_sub(seen as u16));
        self.settle();
    }

    /// Whether software has reported every unexpected message.
    pub const fn in_step(&self) -> bool {
        self.phase.unreported == 0
    }

    /// In step, entries that waited can be matched.
    fn settle(&mut self) {
        while self.in_step() && self.waiting.head != NONE {
            let place = self.waiting.head;
            self.unlink_waiting(place);
            self.enlist(place);
        }
    }

    fn release(&mut self, place: u32) {
        let entry = &mut self.entries[index(place)];
        entry.state = State::Free;
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
        let Entry { next, prev, .. } = self.entries[index(place)];
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
        // Two multiplications that spread every bit of both into the upper half.
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

    /// Puts an entry into the table, at its place in the order of additions.
    fn enlist(&mut self, place: u32) {
        let Entry { mask, tag, order, .. } = self.entries[index(place)];
        self.entries[index(place)].state = State::Listed;
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
        // Behind all others, but for one that comes back.
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

    /// Takes an entry out of the table.
    fn delist(&mut self, place: u32) {
        let Entry { mask, next, prev, is_head, .. } = self.entries[index(place)];
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

    /// Begins a chain link for a new queue of equal entries.
    fn make_head(&mut self, place: u32) {
        let Entry { mask, tag, .. } = self.entries[index(place)];
        let bucket = self.bucket(mask, tag);
        let first = std::mem::replace(&mut self.buckets[bucket], place);
        let entry = &mut self.entries[index(place)];
        (entry.chain_prev, entry.chain_next, entry.is_head) = (NONE, first, true);
        if first != NONE {
            self.entries[index(first)].chain_prev = place;
        }
    }

    /// `new` stands in the chain where `old` stood, which has the same mask and tag.
    fn replace_head(&mut self, old: u32, new: u32) {
        let Entry { mask, tag, chain_next, chain_prev, .. } = self.entries[index(old)];
        self.entries[index(old)].is_head = false;
        let entry = &mut self.entries[index(new)];
        (entry.chain_prev, entry.chain_next, entry.is_head) = (chain_prev, chain_next, true);
        self.relink(mask, tag, chain_prev, chain_next, new, new);
    }

    /// Takes the last of a queue of equal entries out of its chain.
    fn unchain(&mut self, place: u32) {
        let Entry { mask, tag, chain_next, chain_prev, .. } = self.entries[index(place)];
        self.entries[index(place)].is_head = false;
        self.relink(mask, tag, chain_prev, chain_next, chain_next, chain_prev);
    }

    /// Points the neighbours `prev` and `next` in a chain at what is between them now.
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

const UNUSED: Entry = Entry {
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
    state: State::Free,
};

const fn index(place: u32) -> usize {
    place.wrapping_sub(1) as usize
}

const fn handle(place: u32, generation: u16) -> u32 {
    (place - 1) | (generation as u32) << 16
}
