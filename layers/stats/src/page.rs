//! The entries of the layer `stats`, in a mapped file (`layer_records::stats`). Counting is one
//! atomic addition to a word. Only creation and destruction of objects take a lock.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::collections::VecDeque;

use cface::shared::StaticMutex;
use layer_records::calls::Call;
use layer_records::file::{HEAD, pack_text};
use layer_records::histogram::bucket;
use layer_records::stats::{
    AT_ABOUT, AT_BORN, AT_COUNTERS, AT_DEVICE, AT_ENDED, AT_GONE, AT_ID, AT_KIND, AT_LATENCY,
    AT_MOST, AT_NAME, AT_SUM, AT_UNLISTED, AT_USED, Counter, ENTRY, EntryKind, MAGIC, OF_A_CQ,
    WORDS, word_of,
};
use layer_tap::file;

use crate::settings::settings;

/// The mapping. NULL before the first entry, or if no file can be made.
static BASE: AtomicPtr<u64> = AtomicPtr::new(core::ptr::null_mut());
/// The number of forks, plus 1. A reference into the parent's file is invalid in the child.
static GENERATION: AtomicU32 = AtomicU32::new(1);
/// The entries in use. Lock order: a leaf; only system calls run under the lock.
static ENTRIES: StaticMutex<Entries> = StaticMutex::new(Entries::new());

struct Entries {
    /// Whether making the file was tried, successfully or not.
    tried: bool,
    used: usize,
    capacity: usize,
    /// The use number of the entry that was taken last.
    last_use_number: u64,
    /// Entries of destroyed objects, the oldest first.
    destroyed: VecDeque<usize>,
    /// Entries of devices, by name.
    devices: Vec<(String, usize)>,
}

impl Entries {
    const fn new() -> Self {
        Self {
            tried: false,
            used: 0,
            capacity: 0,
            last_use_number: 0,
            destroyed: VecDeque::new(),
            devices: Vec::new(),
        }
    }
}

/// A reference to the entry in which an object is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRef {
    generation: u32,
    index: u32,
    /// Whether the entry is the object's own, not its device's.
    pub(crate) has_own_entry: bool,
}

impl EntryRef {
    /// No entry.
    pub(crate) const NONE: Self = Self { generation: 0, index: 0, has_own_entry: false };
    /// The entry of the process, once the file exists.
    fn process() -> Self {
        Self { generation: GENERATION.load(Ordering::Relaxed), index: 0, has_own_entry: true }
    }

    /// A word of the entry. `None` for an entry of the parent's file, which may still be mapped.
    #[inline]
    fn word(self, word: usize) -> Option<&'static AtomicU64> {
        let base = BASE.load(Ordering::Acquire);
        if base.is_null() || self.generation != GENERATION.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: `take_entry` makes only indices within the mapping. The mapping is never removed,
        // and its words are used as atomics only.
        Some(unsafe {
            AtomicU64::from_ptr(base.add(HEAD / 8 + self.index as usize * WORDS + word))
        })
    }

    /// Adds to a counter.
    #[inline]
    pub(crate) fn add(self, counter: Counter, more: u64) {
        self.add_at(word_of(counter), more);
    }

    /// Counts a completion with this status.
    #[inline]
    pub(crate) fn status(self, status: u32) {
        let last = layer_records::stats::STATUSES - 1;
        self.add_at(word_of(Counter::Status) + (status as usize).min(last), 1);
    }

    #[inline]
    fn add_at(self, word: usize, more: u64) {
        if let Some(word) = self.word(word) {
            word.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Stores the number of requests in flight. One thread calls it at a time.
    #[inline]
    pub(crate) fn depth(self, depth: u64) {
        // The depth of a device is a sum, which is not known here.
        if !self.has_own_entry {
            return;
        }
        if let (Some(now), Some(most)) =
            (self.word(word_of(Counter::Depth)), self.word(word_of(Counter::Deepest)))
        {
            now.store(depth, Ordering::Relaxed);
            if most.load(Ordering::Relaxed) < depth {
                most.store(depth, Ordering::Relaxed);
            }
        }
    }

    /// Counts a latency in nanoseconds.
    #[inline]
    pub(crate) fn latency(self, nanoseconds: u64) {
        self.add_at(AT_LATENCY + bucket(nanoseconds), 1);
        self.add_at(AT_SUM, nanoseconds);
        if let Some(most) = self.word(AT_MOST)
            && most.load(Ordering::Relaxed) < nanoseconds
        {
            most.fetch_max(nanoseconds, Ordering::Relaxed);
        }
    }

    /// Stores a property of the object.
    pub(crate) fn set_property(self, which: usize, value: u64) {
        if let (true, Some(word)) = (self.has_own_entry, self.word(AT_ABOUT + which)) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// Counts a call of the control path.
pub(crate) fn called(call: Call, failed: bool, nanoseconds: u64) {
    let process = EntryRef::process();
    let at = AT_LATENCY + call as usize * 3;
    process.add_at(at, 1);
    process.add_at(at + 1, u64::from(failed));
    process.add_at(at + 2, nanoseconds);
}

/// Counts an operation of the process.
pub(crate) fn count(counter: Counter) {
    EntryRef::process().add(counter, 1);
}

/// The entry of a device, which all its contexts share.
pub(crate) fn device(name: &str, now: u64) -> EntryRef {
    let mut state = ENTRIES.lock();
    make_file(&mut state);
    let known = state.devices.iter().find(|(known, _)| known == name).map(|(_, index)| *index);
    if let Some(index) = known {
        return entry_at(index, true);
    }
    let Some(index) = take_entry(&mut state, EntryKind::Device, 0, 0, now) else {
        return EntryRef::NONE;
    };
    for (at, word) in pack_text::<8>(name.as_bytes()).into_iter().enumerate() {
        store(index, AT_NAME + at, word);
    }
    state.devices.push((name.to_owned(), index));
    entry_at(index, true)
}

/// The entry of a new object, or its device's entry if none is free.
pub(crate) fn object(
    kind: EntryKind,
    id: u64,
    device: EntryRef,
    about: [u64; 3],
    now: u64,
) -> EntryRef {
    let mut state = ENTRIES.lock();
    if device.word(0).is_none() {
        return EntryRef::NONE;
    }
    match take_entry(&mut state, kind, id, device.index as usize, now) {
        Some(index) => {
            for (at, word) in about.into_iter().enumerate() {
                store(index, AT_ABOUT + at, word);
            }
            entry_at(index, true)
        }
        None => EntryRef { has_own_entry: false, ..device },
    }
}

/// Marks the entry of a destroyed object. The entry stays until another object needs it.
pub(crate) fn mark_destroyed(place: EntryRef, now: u64) {
    let mut state = ENTRIES.lock();
    if place.has_own_entry && place.word(0).is_some() {
        place.depth(0);
        store(place.index as usize, AT_GONE, now);
        state.destroyed.push_back(place.index as usize);
    }
}

fn entry_at(index: usize, own: bool) -> EntryRef {
    let generation = GENERATION.load(Ordering::Relaxed);
    EntryRef { generation, index: u32::try_from(index).unwrap_or(0), has_own_entry: own }
}

/// A word of the head or of an entry. The caller holds `ENTRIES`, and its index is below the
/// capacity.
fn word(offset: usize) -> &'static AtomicU64 {
    // SAFETY: a caller with an entry has a mapping, and its offset is within the mapping.
    unsafe { AtomicU64::from_ptr(BASE.load(Ordering::Acquire).add(offset)) }
}

fn store(index: usize, at: usize, value: u64) {
    word(HEAD / 8 + index * WORDS + at).store(value, Ordering::Relaxed);
}

fn load(index: usize, at: usize) -> u64 {
    word(HEAD / 8 + index * WORDS + at).load(Ordering::Relaxed)
}

/// Takes an unused entry, or the entry of the object that was destroyed first.
fn take_entry(
    state: &mut Entries,
    kind: EntryKind,
    id: u64,
    device: usize,
    now: u64,
) -> Option<usize> {
    if BASE.load(Ordering::Acquire).is_null() {
        return None;
    }
    let index = if state.used < state.capacity {
        state.used += 1;
        state.used - 1
    } else if let Some(index) = state.destroyed.pop_front() {
        fold(index, state.capacity);
        index
    } else {
        word(AT_UNLISTED).fetch_add(1, Ordering::Relaxed);
        return None;
    };
    store(index, AT_KIND, 0);
    for at in 1..WORDS {
        store(index, at, 0);
    }
    state.last_use_number += 1;
    store(index, AT_ID, id);
    store(index, AT_DEVICE, device as u64);
    store(index, AT_BORN, now);
    word(HEAD / 8 + index * WORDS)
        .store(kind as u64 | state.last_use_number << 8, Ordering::Release);
    word(AT_USED).store(state.used as u64, Ordering::Release);
    Some(index)
}

/// Adds the counters of a destroyed object to its device, before another object gets the entry.
fn fold(index: usize, capacity: usize) {
    // Another process of this user may have changed the file.
    let device = (load(index, AT_DEVICE) as usize).min(capacity - 1);
    let add = |at: usize| {
        let more = load(index, at);
        word(HEAD / 8 + device * WORDS + at).fetch_add(more, Ordering::Relaxed);
    };
    let most = |at: usize| {
        let other = load(index, at);
        word(HEAD / 8 + device * WORDS + at).fetch_max(other, Ordering::Relaxed);
    };
    match load(index, AT_KIND) & 0xff {
        kind if kind == EntryKind::Qp as u64 => {
            let counters = AT_COUNTERS..AT_MOST;
            counters.filter(|word| *word != word_of(Counter::Deepest)).for_each(add);
            most(word_of(Counter::Deepest));
            most(AT_MOST);
        }
        kind if kind == EntryKind::Cq as u64 => OF_A_CQ.into_iter().map(word_of).for_each(add),
        _ => {}
    }
}

/// Makes the file at the first call. A failure is reported once.
fn make_file(state: &mut Entries) {
    if state.tried {
        return;
    }
    state.tried = true;
    let capacity = settings().objects;
    let dir = settings().dir.as_deref();
    let wanted = file::FileRequest { layer: "stats", dir, magic: MAGIC, capacity, record: ENTRY };
    match file::make(&wanted) {
        Ok((_, base)) => {
            BASE.store(base, Ordering::Release);
            state.capacity = capacity as usize;
            // The first entry belongs to the process.
            let _ = take_entry(
                state,
                EntryKind::Process,
                u64::from(std::process::id()),
                0,
                layer_tap::now(),
            );
        }
        Err(why) => cface::say!("ferroverbs stats: nothing is counted: {why}"),
    }
}

/// Stores the time of a regular exit.
pub(crate) extern "C" fn at_exit() {
    let _state = ENTRIES.lock();
    if !BASE.load(Ordering::Acquire).is_null() {
        word(AT_ENDED).store(layer_tap::now(), Ordering::Relaxed);
    }
}

/// For a fork: no thread takes an entry until the result is dropped.
pub(crate) fn hold() -> cface::lock::Guard {
    ENTRIES.hold()
}

/// In the child of a fork, after the locks are released: file and entries belong to the parent.
pub(crate) fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    BASE.store(core::ptr::null_mut(), Ordering::Release);
    *ENTRIES.lock() = Entries::new();
}
