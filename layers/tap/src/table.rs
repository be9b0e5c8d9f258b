//! Records of objects by their address. The data path looks up without a lock; only creation and
//! destruction of objects take the writer's lock.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use cface::shared::StaticMutex;

/// Records of destroyed objects that are kept. A program may use an object while another thread
/// destroys the object; the layer must not crash then.
const RETIRED: usize = 256;

#[derive(Debug)]
struct Slots<T> {
    /// A power of two of slots.
    slots: Box<[Slot<T>]>,
}

#[derive(Debug)]
struct Slot<T> {
    /// 0 is free. The key stays when its object is destroyed, because addresses are used again.
    key: AtomicUsize,
    value: AtomicPtr<T>,
}

/// Objects of one kind, for a static.
#[derive(Debug)]
pub struct Table<T: 'static> {
    current: AtomicPtr<Slots<T>>,
    writer: StaticMutex<Writer<T>>,
    /// Number of insertions so far. Changed under the writer's lock.
    insertions: AtomicUsize,
}

#[derive(Debug)]
struct Writer<T> {
    used: usize,
    retired: VecDeque<Arc<T>>,
}

// SAFETY: slots are atomics. Values are shared by reference between threads, hence the bound.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

impl<T: Send + Sync> Table<T> {
    /// Makes an empty table.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        let writer = Writer { used: 0, retired: VecDeque::new() };
        Self {
            current: AtomicPtr::new(ptr::null_mut()),
            writer: StaticMutex::new(writer),
            insertions: AtomicUsize::new(0),
        }
    }

    /// The record of an object. A reference stays valid for `RETIRED` destructions after the
    /// object's.
    #[inline]
    pub fn get(&self, key: usize) -> Option<&T> {
        // SAFETY: NULL, or made by `grow` and never freed.
        let slots = unsafe { self.current.load(Ordering::Acquire).as_ref() }?;
        let value = slots.find(key)?.value.load(Ordering::Acquire);
        // SAFETY: NULL, or from an `Arc` that lives until its object and many later objects are
        // destroyed.
        unsafe { value.as_ref() }
    }

    /// As [`get`](Self::get), with shared ownership.
    pub fn share(&'static self, key: usize) -> Option<Arc<T>> {
        // No other thread removes the record while this thread has the writer's lock.
        let _writer = self.writer.lock();
        let value: *const T = self.get(key)?;
        // SAFETY: the pointer is from `Arc::into_raw`, and its record is alive under the writer's
        // lock.
        unsafe {
            Arc::increment_strong_count(value);
            Some(Arc::from_raw(value))
        }
    }

    /// Stores the record of the object at `key`.
    pub fn insert(&'static self, key: usize, value: Arc<T>) {
        let mut writer = self.writer.lock();
        self.insertions.fetch_add(1, Ordering::Relaxed);
        // SAFETY: NULL, or made by `grow` and never freed.
        let slots = unsafe { self.current.load(Ordering::Acquire).as_ref() };
        let slots = match slots {
            Some(slots) if writer.used * 2 < slots.slots.len() => slots,
            _ => self.grow(&mut writer, slots),
        };
        let (slot, is_new) = slots.claim(key);
        writer.used += usize::from(is_new);
        let old = slot.value.swap(Arc::into_raw(value).cast_mut(), Ordering::AcqRel);
        writer.retire(old);
    }

    /// Removes the record of the object at `key`.
    pub fn remove(&'static self, key: usize) {
        let mut writer = self.writer.lock();
        // SAFETY: NULL, or made by `grow` and never freed.
        let Some(slots) = (unsafe { self.current.load(Ordering::Acquire).as_ref() }) else {
            return;
        };
        if let Some(slot) = slots.find(key) {
            let old = slot.value.swap(ptr::null_mut(), Ordering::AcqRel);
            writer.retire(old);
        }
    }

    /// All current records.
    pub fn all(&'static self) -> Vec<Arc<T>> {
        // SAFETY: NULL, or made by `grow` and never freed.
        let Some(slots) = (unsafe { self.current.load(Ordering::Acquire).as_ref() }) else {
            return Vec::new();
        };
        let keys = slots.slots.iter().map(|slot| slot.key.load(Ordering::Acquire));
        keys.filter(|key| *key != 0).filter_map(|key| self.share(key)).collect()
    }

    /// The number of insertions, which is constant while the table is held.
    pub(crate) fn insertions(&'static self) -> &'static AtomicUsize {
        &self.insertions
    }

    /// For a fork: no thread changes the table until the result is dropped.
    pub fn hold(&'static self) -> cface::lock::Guard {
        self.writer.hold()
    }

    fn grow(&self, writer: &mut Writer<T>, old: Option<&Slots<T>>) -> &'static Slots<T> {
        let live = |slot: &&Slot<T>| !slot.value.load(Ordering::Relaxed).is_null();
        let count = old.map_or(0, |old| old.slots.iter().filter(live).count());
        let fresh: Slots<T> = Slots::new((count * 4).next_power_of_two().max(64));
        for slot in old.iter().flat_map(|old| &old.slots).filter(live) {
            let (place, _) = fresh.claim(slot.key.load(Ordering::Relaxed));
            place.value.store(slot.value.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        writer.used = count;
        // A reader may use the old slots for any time, so they are never freed. Each array is at
        // least as often refilled as it is long.
        let fresh: &'static Slots<T> = Box::leak(Box::new(fresh));
        self.current.store(ptr::from_ref(fresh).cast_mut(), Ordering::Release);
        fresh
    }
}

impl<T> Writer<T> {
    fn retire(&mut self, value: *mut T) {
        if value.is_null() {
            return;
        }
        // SAFETY: the pointer is from `Arc::into_raw` in `insert`, and was just taken out of its
        // slot.
        self.retired.push_back(unsafe { Arc::from_raw(value) });
        if self.retired.len() > RETIRED {
            self.retired.pop_front();
        }
    }
}

impl<T> Slots<T> {
    fn new(length: usize) -> Self {
        let free = || Slot { key: AtomicUsize::new(0), value: AtomicPtr::new(ptr::null_mut()) };
        Self { slots: (0..length).map(|_| free()).collect() }
    }

    #[inline]
    fn start(&self, key: usize) -> usize {
        (key >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 & (self.slots.len() - 1)
    }

    #[inline]
    fn find(&self, key: usize) -> Option<&Slot<T>> {
        let mut at = self.start(key);
        // At most half of the slots are taken, so the loop finds a free slot.
        loop {
            let slot = self.slots.get(at)?;
            match slot.key.load(Ordering::Acquire) {
                found if found == key => return Some(slot),
                0 => return None,
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    /// The slot of a key, and whether the slot was free before. Only the writer calls it.
    fn claim(&self, key: usize) -> (&Slot<T>, bool) {
        let mut at = self.start(key);
        loop {
            let slot = &self.slots[at];
            match slot.key.load(Ordering::Relaxed) {
                found if found == key => return (slot, false),
                0 => {
                    slot.key.store(key, Ordering::Release);
                    return (slot, true);
                }
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_and_go_and_come_again() {
        static TABLE: Table<usize> = Table::new();
        assert_eq!(TABLE.get(16), None);
        for key in 1..1000 {
            TABLE.insert(key * 16, Arc::new(key));
        }
        assert!((1..1000).all(|key| TABLE.get(key * 16) == Some(&key)));
        for key in (1..1000).step_by(2) {
            TABLE.remove(key * 16);
        }
        assert!((1..1000).all(|key| TABLE.get(key * 16).is_some() == (key % 2 == 0)));
        TABLE.insert(16, Arc::new(7));
        assert_eq!(TABLE.share(16).as_deref(), Some(&7));
        assert_eq!(TABLE.all().len(), 500);
    }

    #[test]
    fn many_short_lives_leave_no_more_than_the_graves() {
        static TABLE: Table<Vec<u8>> = Table::new();
        let first = Arc::new(vec![1]);
        TABLE.insert(32, first.clone());
        for _ in 0..2 * RETIRED {
            TABLE.insert(48, Arc::new(Vec::new()));
            TABLE.remove(48);
        }
        TABLE.remove(32);
        assert_eq!(Arc::strong_count(&first), 2);
        for _ in 0..=RETIRED {
            TABLE.insert(48, Arc::new(Vec::new()));
        }
        assert_eq!(Arc::strong_count(&first), 1);
    }
}
