//! Memory regions: keys, and the checks that stand between a request and memory (IBTA vol 1, 10.6).
//!
//! The table lies in the *tables* segment, so the same entry serves our own local and remote checks and
//! those of an initiator in another process.

use super::imported::Imported;
use crate::table::Places;
use abi::{IBV_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT, ibv_sge};
use cface::sync::{Mutex, RwLock};
use soft_local::shm::layout::{MRS, MWS, MrEntry};
use soft_local::shm::protocol;
use soft_local::shm::view::View;
use soft_memory::pages::{ZeroMemory, populate};
use soft_memory::{Range, Ranges};
use soft_semantics::keys::{self, Access};
use soft_sys::Errno;
use soft_sys::unguessable::Orders;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) const LOCAL_WRITE: u32 = 1;
pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
pub(crate) const REMOTE_READ: u32 = 1 << 2;
pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
pub(crate) const FLUSH_GLOBAL: u32 = 1 << 8;
/// No region has it: a flush to persistent memory is refused by the responder.
const FLUSH_PERSISTENT: u32 = 1 << 9;
/// Pages come and go: they are brought in for each use.
pub(crate) const ON_DEMAND: u32 = 1 << 6;
/// Ours alone, in the upper half of no flag: there is no memory behind the region.
pub(crate) const VOID: u32 = 1 << 31;

/// Ours alone, too: the memory is another process's (`engine::imported`), whose addresses `va` counts.
pub(crate) const IMPORTED: u32 = 1 << 30;
/// Marks of regions whose memory is not simply where `va` says.
const UNUSUAL: u32 = ON_DEMAND | VOID | IMPORTED;

/// Bit of a key that tells an lkey from an rkey where the two differ (`FERROVERBS_SOFT_KEYS=distinct`): then one never passes for
/// the other. Otherwise it is clear in both.
const LOCAL_KEY: u32 = 1;
/// Key = table index, generation, local bit. A window's: table index, generation, eight bits that its user counts.
pub(super) const INDEX_SHIFT: u32 = 14;
/// Where the windows begin in the table.
pub(super) const FIRST_WINDOW: usize = MRS - MWS;
const GENERATION_BITS: u32 = INDEX_SHIFT - 1;

/// A region's table index and its two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) index: usize,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// What a region covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Protection domain number.
    pub(crate) pd: u32,
    /// Address in this process.
    pub(crate) va: u64,
    /// First address that work requests name.
    pub(crate) iova: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// `IBV_ACCESS_*` flags.
    pub(crate) access: u32,
}

/// What a local key covers, for a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Covered {
    lkey: u32,
    iova: u64,
    len: u64,
    va: u64,
}

impl Covered {
    /// Where the bytes of `sge` are, if it is of this region and not empty.
    #[inline]
    pub(crate) fn find(&self, sge: &ibv_sge) -> Option<Range> {
        let (at, len) = (sge.addr.wrapping_sub(self.iova), u64::from(sge.length));
        let within = at < self.len && len <= self.len - at && len > 0;
        // SAFETY: within a region whose key was checked; deregistration waits for whoever has looked it up (`Adapter::quiesce`).
        (sge.lkey == self.lkey && within)
            .then(|| unsafe { Range::at(self.va.wrapping_add(at), sge.length as usize) })
    }
}

/// The regions of this process. What each message looks at comes first, in one cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Regions {
    view: View,
    /// What lkeys have and rkeys have not: `LOCAL_KEY`, or 0 where the two are equal.
    local: u32,
    free: Mutex<Free>,
    /// Registrations so far.
    births: AtomicU64,
    /// For regions without memory.
    void: OnceLock<ZeroMemory>,
    /// For regions of others, by table index.
    imported: RwLock<HashMap<usize, Arc<Imported>>>,
}

#[derive(Debug)]
struct Free {
    /// Freed entries, used again first in first out, so that a stale key stays stale for long.
    returned: VecDeque<usize>,
    /// Which entries come first. Entry 0 is never given out, and has no place.
    places: Places,
    /// The generations of each entry, by index: who has one key, or had it, knows neither those beside it nor the next one.
    generations: Orders<GENERATION_BITS>,
    /// How often each entry was taken, by place: those used so far.
    uses: Vec<u32>,
}

impl Free {
    /// No entry is used.
    fn new(places: Places) -> Self {
        Self { returned: VecDeque::new(), places, generations: Orders::new(), uses: vec![] }
    }

    /// An entry and its next generation; `None` when all are taken.
    fn take(&mut self) -> Option<(usize, u32)> {
        let full = self.uses.len() == FIRST_WINDOW - 1;
        let place = match self.returned.len() {
            n if n > REST || (full && n > 0) => self.places.place(self.returned.pop_front()? - 1),
            _ if full => return None,
            _ => {
                self.uses.push(0);
                self.uses.len() - 1
            }
        };
        let (uses, index) = (self.uses.get_mut(place)?, self.places.number(place) + 1);
        let generation = self.generations.number(index as u32, *uses);
        *uses = uses.wrapping_add(1);
        Some((index, generation))
    }
}

/// Freed entries wait until so many are queued before one is used again.
const REST: usize = 64;

impl Regions {
    /// With keys that are `distinct`, or with one key for both uses, as every adapter has it.
    pub(crate) fn new(view: View, distinct: bool) -> Self {
        let free = Free::new(Places::anywhere(FIRST_WINDOW - 1));
        Self {
            view,
            local: if distinct { LOCAL_KEY } else { 0 },
            free: Mutex::new(free),
            births: AtomicU64::new(0),
            void: OnceLock::new(),
            imported: RwLock::default(),
        }
    }

    /// The keys of the region with this index and rkey.
    pub(crate) const fn keys(&self, index: usize, rkey: u32) -> Keys {
        Keys { index, lkey: rkey | self.local, rkey }
    }

    /// What the rkey of the region with this lkey must be. No region has it if this was no lkey, as the local bit is set in it.
    #[inline]
    const fn rkey_of(&self, lkey: u32) -> u32 {
        lkey ^ self.local
    }

    /// Publishes a region; `None` when the table is full.
    pub(crate) fn register(&self, extent: &Extent) -> Option<Keys> {
        let (index, generation) = self.free.lock().take()?;
        let rkey = (index as u32) << INDEX_SHIFT | generation << 1;
        self.publish(index, rkey, extent);
        Some(self.keys(index, rkey))
    }

    /// Makes `rkey`, the key of entry `index`, stand for `extent`: of a new entry, or of one that was revoked and that no
    /// operation in flight uses any more.
    pub(crate) fn publish(&self, index: usize, rkey: u32, extent: &Extent) {
        let entry = self.view.mr(index);
        entry.origin.store(0, Ordering::Relaxed);
        entry.iova.store(extent.iova, Ordering::Relaxed);
        entry.len.store(extent.len, Ordering::Relaxed);
        entry.va.store(extent.va, Ordering::Relaxed);
        entry.pd.store(u64::from(extent.pd), Ordering::Relaxed);
        entry.born.store(self.births.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        protocol::validate(&entry.key, u64::from(rkey) | u64::from(extent.access) << 32);
    }

    /// Lets importers of context `origin` have the region.
    pub(crate) fn belongs_to(&self, index: usize, origin: u64) {
        self.view.mr(index).origin.store(origin, Ordering::Release);
    }

    /// Publishes a region over memory of another process; `None` when the table is full.
    pub(crate) fn import(&self, extent: &Extent, imported: &Arc<Imported>) -> Option<Keys> {
        // Nobody can have its key before we return.
        let keys = self.register(&Extent { access: extent.access | IMPORTED, ..*extent })?;
        self.imported.write().insert(keys.index, Arc::clone(imported));
        Some(keys)
    }

    /// How the memory of the imported region with this key is reached.
    pub(crate) fn imported(&self, rkey: u32) -> Option<Arc<Imported>> {
        self.imported.read().get(&((rkey >> INDEX_SHIFT) as usize)).cloned()
    }

    /// The imported region `index`, whose keys were taken back, is not used any more.
    pub(crate) fn forget_import(&self, index: usize) {
        self.imported.write().remove(&index);
    }

    /// Takes the keys of entry `index` back. Operations in flight that saw them may still be at work: wait for them, then
    /// [`Regions::release`].
    pub(crate) fn revoke(&self, index: usize) {
        protocol::revoke(&self.view.mr(index).key);
    }

    /// Lets entry `index` be used again.
    pub(crate) fn release(&self, index: usize) {
        self.free.lock().returned.push_back(index);
    }

    /// Resolves the scatter/gather list of a work request. `need` is `LOCAL_WRITE` where data arrives, 0 where it is
    /// read. `None`: a key is wrong, out of range, of another PD or lacks the right (local protection error).
    pub(crate) fn resolve(&self, pd: u32, list: &[ibv_sge], need: u32) -> Option<Ranges> {
        let mut ranges = Ranges::new();
        self.resolve_into(&mut ranges, pd, list, need).then_some(ranges)
    }

    /// As [`Regions::resolve`], appending to `ranges`; `false` for `None`. A list has room for so many ranges that moving it
    /// about costs more than filling it.
    #[inline]
    pub(crate) fn resolve_into(
        &self,
        ranges: &mut Ranges,
        pd: u32,
        list: &[ibv_sge],
        need: u32,
    ) -> bool {
        list.iter().all(|sge| self.resolve_one(ranges, pd, sge, need).is_some())
    }

    /// As [`Regions::resolve_into`], of the first `len` bytes of a list that has as many. What is behind them does not matter.
    pub(crate) fn resolve_first(
        &self,
        ranges: &mut Ranges,
        pd: u32,
        list: &[ibv_sge],
        need: u32,
        len: usize,
    ) -> bool {
        let mut left = len;
        list.iter().all(|sge| {
            let used = left.min(sge.length as usize);
            left -= used;
            let used = ibv_sge { length: used as u32, ..*sge };
            self.resolve_one(ranges, pd, &used, need).is_some()
        })
    }

    /// What `lkey` covers, if it is a key of an ordinary region of `pd` with the right `need`; `None`: [`Regions::resolve`] knows more.
    /// It stays so until the QP's lock is let go, which deregistration waits for.
    #[inline]
    pub(crate) fn covered(&self, pd: u32, lkey: u32, need: u32) -> Option<Covered> {
        let rkey = self.rkey_of(lkey);
        let index = (rkey >> INDEX_SHIFT) as usize;
        if index == 0 || index >= FIRST_WINDOW {
            return None;
        }
        let entry = self.view.mr(index);
        // As in `look_up`.
        let key = entry.key.load(Ordering::SeqCst);
        let access = (key >> 32) as u32;
        let ordinary = access & (need | UNUSUAL) == need;
        if key as u32 != rkey || entry.pd.load(Ordering::Relaxed) != u64::from(pd) || !ordinary {
            return None;
        }
        let [iova, len, va] =
            [&entry.iova, &entry.len, &entry.va].map(|n| n.load(Ordering::Relaxed));
        // One that goes round the end of the address space covers nothing.
        iova.checked_add(len)?;
        Some(Covered { lkey, iova, len, va })
    }

    #[inline]
    fn resolve_one(&self, ranges: &mut Ranges, pd: u32, sge: &ibv_sge, need: u32) -> Option<()> {
        if sge.length == 0 {
            return Some(());
        }
        let rkey = self.rkey_of(sge.lkey);
        // No region's rkey has the local bit, but a window's may.
        if is_window(rkey) {
            return None;
        }
        let len = sge.length as usize;
        let found = look_up(&self.view, rkey, 0, pd, sge.addr, len as u64, need)?;
        let va = if found.access & UNUSUAL == 0 {
            found.va
        } else if found.access & IMPORTED != 0 {
            let imported = self.imported(rkey).filter(|imported| imported.is_there())?;
            return ranges.push_imported(found.va, len, imported).then_some(());
        } else {
            self.bring_in(found, len, need & LOCAL_WRITE != 0)?
        };
        // SAFETY: the key was just checked to cover the bytes, with the rights that are needed; deregistration waits for whoever has looked it
        // up (`Adapter::quiesce`).
        ranges.push(unsafe { Range::at(va, len) }).then_some(())
    }

    /// Where the bytes of an unusual region are, if they are anywhere.
    #[cold]
    fn bring_in(&self, found: Found, len: usize, write: bool) -> Option<u64> {
        if found.access & VOID != 0 {
            let void = self.void.get()?;
            return Some(if write { void.sink(len) } else { void.zeros() });
        }
        populate(found.va, len, write).ok()?;
        Some(found.va)
    }

    /// Makes ready for regions without memory.
    ///
    /// # Errors
    /// `ENOMEM` no room in the address space.
    pub(crate) fn prepare_void(&self) -> Result<(), Errno> {
        if self.void.get().is_none() {
            // Whoever comes second loses his addresses, once.
            let _ = self.void.set(ZeroMemory::new()?);
        }
        Ok(())
    }

    /// What the region with this lkey covers.
    pub(crate) fn described(&self, lkey: u32) -> Option<Extent> {
        let (index, rkey) = ((lkey >> INDEX_SHIFT) as usize, self.rkey_of(lkey));
        if index == 0 || index >= FIRST_WINDOW {
            return None;
        }
        let entry = self.view.mr(index);
        let key = protocol::key(&entry.key);
        (key as u32 == rkey).then(|| Extent {
            pd: entry.pd.load(Ordering::Relaxed) as u32,
            va: entry.va.load(Ordering::Relaxed),
            iova: entry.iova.load(Ordering::Relaxed),
            len: entry.len.load(Ordering::Relaxed),
            access: (key >> 32) as u32,
        })
    }
}

/// The rights that a flush of this placement (`IBV_FLUSH_*`) needs.
pub(crate) const fn right_to_flush(placement: u32) -> u32 {
    let global = if placement & IBV_FLUSH_GLOBAL != 0 { FLUSH_GLOBAL } else { 0 };
    let persistent = if placement & IBV_FLUSH_PERSISTENT != 0 { FLUSH_PERSISTENT } else { 0 };
    global | persistent
}

/// Whether `rkey` is one of a memory window.
#[inline]
pub(crate) const fn is_window(rkey: u32) -> bool {
    (rkey >> INDEX_SHIFT) as usize >= FIRST_WINDOW
}

/// What a key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Address in the owner's process.
    pub(crate) va: u64,
    /// The region's flags.
    pub(crate) access: u32,
}

impl Found {
    /// Makes sure, in the owner's process, that the bytes can be touched. `false`: they are not there.
    #[inline]
    pub(crate) fn is_there(&self, len: u64, write: bool) -> bool {
        self.access & ON_DEMAND == 0 || populate(self.va, len as usize, write).is_ok()
    }
}

/// Checks a key of `view`'s owner and translates `addr` to an address of the owner. `None`: no such region or window, another
/// PD, out of range, a right of `need` is missing, or the window is bound to another QP than the owner's `qpn`.
#[inline]
pub(crate) fn look_up(
    view: &View,
    rkey: u32,
    qpn: u32,
    pd: u32,
    addr: u64,
    len: u64,
    need: u32,
) -> Option<Found> {
    let index = (rkey >> INDEX_SHIFT) as usize;
    if index == 0 || index >= MRS {
        return None;
    }
    let entry = view.mr(index);
    let asked = Access { rkey, qpn, pd, addr, len, need };
    let keys::Found { va, access } = entry_of(entry).admit(&asked).ok()?;
    Some(Found { va, access })
}

/// An entry of a table as it is now. The fields are not looked at twice: with the key comes what it covers, and they change only after whoever
/// announced himself (or holds the lock that `Adapter::quiesce` takes) has gone.
#[inline]
pub(super) fn entry_of(entry: &MrEntry) -> keys::Entry {
    let key = protocol::key(&entry.key);
    let rkey = key as u32;
    keys::Entry {
        rkey,
        access: (key >> 32) as u32,
        pd: entry.pd.load(Ordering::Relaxed),
        // A region's is for all.
        qpn: if is_window(rkey) { entry.qpn.load(Ordering::Relaxed) } else { 0 },
        iova: entry.iova.load(Ordering::Relaxed),
        len: entry.len.load(Ordering::Relaxed),
        va: entry.va.load(Ordering::Relaxed),
    }
}

/// What a key is in a table, to somebody who looks (`ops::other_end`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// That of something which the QP may use.
    Good,
    /// Of nothing, or of nothing any more.
    Nothing,
    /// An lkey.
    Local,
    /// Of another protection domain.
    Domain,
    /// Of a window that is bound to another QP.
    Qp,
}

/// What `rkey` is in the table of `view` for its owner's QP `qpn`, which is of domain `pd`, and what it names there, without the marks that are ours.
/// The owner may change the entry meanwhile: it is for people, and nothing is accessed by it.
pub(crate) fn seen(view: &View, rkey: u32, qpn: u32, pd: u32) -> (Seen, keys::Entry) {
    let index = (rkey >> INDEX_SHIFT) as usize % MRS;
    let mut entry = entry_of(view.mr(index));
    entry.access &= !UNUSUAL | ON_DEMAND;
    let is_key = index != 0 && entry.rkey == rkey;
    let seen = match () {
        () if is_key && entry.pd != u64::from(pd) => Seen::Domain,
        () if is_key && entry.qpn != 0 && entry.qpn != qpn => Seen::Qp,
        () if is_key => Seen::Good,
        // Only where the two differ has a key that bit.
        () if index != 0 && !is_window(rkey) && entry.rkey | LOCAL_KEY == rkey => Seen::Local,
        () => Seen::Nothing,
    };
    (seen, entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        view: &View,
        rkey: u32,
        qpn: u32,
        pd: u32,
        addr: u64,
        len: u64,
        need: u32,
    ) -> Option<u64> {
        look_up(view, rkey, qpn, pd, addr, len, need).map(|found| found.va)
    }
    use soft_local::shm::view::mock;

    fn extent(va: u64, len: u64, access: u32) -> Extent {
        Extent { pd: 1, va, iova: va, len, access }
    }

    fn sge(addr: u64, length: u32, lkey: u32) -> ibv_sge {
        ibv_sge { addr, length, lkey }
    }

    #[test]
    fn distinct_keys_are_not_confused_and_none_is_zero() {
        let regions = Regions::new(mock::view(), true);
        let keys = regions.register(&extent(0x1000, 16, LOCAL_WRITE)).expect("room");
        assert!(keys.lkey != 0 && keys.rkey != 0 && keys.lkey != keys.rkey);
        assert!(regions.resolve(1, &[sge(0x1000, 16, keys.lkey)], 0).is_some());
        assert!(regions.resolve(1, &[sge(0x1000, 16, keys.rkey)], 0).is_none());
        assert!(check(&regions.view, keys.lkey, 0, 1, 0x1000, 1, 0).is_none());
    }

    #[test]
    fn one_key_serves_both_uses_by_default() {
        let regions = Regions::new(mock::view(), false);
        let keys = regions.register(&extent(0x1000, 16, LOCAL_WRITE)).expect("room");
        assert!(keys.lkey != 0 && keys.lkey == keys.rkey);
        assert_eq!(regions.keys(keys.index, keys.rkey), keys);
        assert!(regions.resolve(1, &[sge(0x1000, 16, keys.rkey)], 0).is_some());
        assert!(regions.covered(1, keys.rkey, 0).is_some());
        assert!(regions.described(keys.rkey).is_some());
        assert_eq!(check(&regions.view, keys.lkey, 0, 1, 0x1000, 1, 0), Some(0x1000));
        for wrong in [keys.lkey ^ 1, keys.lkey ^ 2] {
            assert!(regions.resolve(1, &[sge(0x1000, 16, wrong)], 0).is_none());
            assert!(regions.covered(1, wrong, 0).is_none());
            assert!(regions.described(wrong).is_none());
            assert!(check(&regions.view, wrong, 0, 1, 0x1000, 1, 0).is_none());
        }
    }

    #[test]
    fn range_domain_and_rights_are_checked() {
        let regions = Regions::new(mock::view(), true);
        let keys = regions.register(&extent(0x1000, 16, REMOTE_READ)).expect("room");
        let view = &regions.view;
        assert_eq!(check(view, keys.rkey, 0, 1, 0x1004, 12, REMOTE_READ), Some(0x1004));
        assert_eq!(check(view, keys.rkey, 0, 1, 0x1004, 13, REMOTE_READ), None);
        assert_eq!(check(view, keys.rkey, 0, 1, 0xfff, 1, REMOTE_READ), None);
        assert_eq!(check(view, keys.rkey, 0, 1, u64::MAX, 1, REMOTE_READ), None);
        assert_eq!(check(view, keys.rkey, 0, 2, 0x1004, 1, REMOTE_READ), None);
        assert_eq!(check(view, keys.rkey, 0, 1, 0x1004, 1, REMOTE_WRITE), None);
        assert!(regions.resolve(1, &[sge(0x1000, 1, keys.lkey)], LOCAL_WRITE).is_none());
    }

    #[test]
    fn an_iova_is_translated() {
        let regions = Regions::new(mock::view(), true);
        let extent = Extent { pd: 1, va: 0x5000, iova: 0, len: 0x100, access: 0 };
        let keys = regions.register(&extent).expect("room");
        assert_eq!(check(&regions.view, keys.rkey, 0, 1, 0x10, 4, 0), Some(0x5010));
    }

    #[test]
    fn a_revoked_key_stays_stale_when_its_entry_is_used_again() {
        let regions = Regions::new(mock::view(), true);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let keys = regions.register(&extent(0x1000, 16, 0)).expect("room");
            assert!(seen.insert(keys.rkey), "rkey {:#x} came twice", keys.rkey);
            regions.revoke(keys.index);
            assert_eq!(check(&regions.view, keys.rkey, 0, 1, 0x1000, 1, 0), None);
            regions.release(keys.index);
        }
    }

    #[test]
    fn wherever_keys_begin_all_entries_are_given_out_once() {
        let mut free = Free::new(Places::from(FIRST_WINDOW - 3, FIRST_WINDOW - 1));
        let mut generations = vec![None; FIRST_WINDOW];
        for expected in [FIRST_WINDOW - 2, FIRST_WINDOW - 1, 1]
            .map(Some)
            .into_iter()
            .chain(std::iter::repeat(None))
            .take(FIRST_WINDOW - 1)
        {
            let (index, generation) = free.take().expect("room");
            assert!(expected.is_none_or(|expected| index == expected), "{index}");
            assert!(index > 0 && generations[index].replace(generation).is_none(), "{index}");
        }
        assert_eq!(free.take(), None);
        free.returned.push_back(1);
        let (index, generation) = free.take().expect("room");
        assert!(index == 1 && generations[1] != Some(generation));
    }

    #[test]
    fn who_has_a_key_does_not_know_the_next_one() {
        let mut free = Free::new(Places::anywhere(FIRST_WINDOW - 1));
        let generations: Vec<u32> = (0..100).filter_map(|_| Some(free.take()?.1)).collect();
        assert!(steps(&generations) > 80);
    }

    #[test]
    fn who_had_a_key_does_not_know_the_next_one_of_its_entry() {
        let mut free = Free::new(Places::anywhere(FIRST_WINDOW - 1));
        let mut of_first = vec![];
        let (first, _) = free.take().expect("room");
        free.returned.push_back(first);
        while of_first.len() < 100 {
            let (index, generation) = free.take().expect("room");
            of_first.extend((index == first).then_some(generation));
            free.returned.push_back(index);
        }
        assert!(steps(&of_first) > 80);
        let distinct: std::collections::BTreeSet<_> = of_first.iter().collect();
        assert_eq!(distinct.len(), 100, "a stale key stays stale");
    }

    /// How many different steps lead from each to the next.
    fn steps(generations: &[u32]) -> usize {
        let steps = generations.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
        steps.collect::<std::collections::BTreeSet<_>>().len()
    }

    #[test]
    fn keys_of_two_processes_begin_at_different_places() {
        let view = mock::view();
        let begins =
            || Regions::new(view, false).register(&extent(0x1000, 16, 0)).expect("room").rkey;
        let first = begins();
        assert!((0..100).any(|_| begins() != first));
    }

    #[test]
    fn only_an_ordinary_region_of_the_domain_covers_ranges_by_itself() {
        let regions = Regions::new(mock::view(), true);
        let find = |keys: Keys, pd, need, addr, length| {
            let covered = regions.covered(pd, keys.lkey, need)?;
            covered.find(&sge(addr, length, keys.lkey)).map(Range::address)
        };
        let extent = |access| Extent { pd: 1, va: 0x5000, iova: 0x100, len: 16, access };
        let plain = regions.register(&extent(LOCAL_WRITE)).expect("room");
        assert_eq!(find(plain, 1, LOCAL_WRITE, 0x104, 12), Some(0x5004));
        assert_eq!(find(plain, 1, LOCAL_WRITE, 0x104, 13), None);
        assert_eq!(find(plain, 1, LOCAL_WRITE, 0xff, 1), None);
        assert_eq!(find(plain, 1, LOCAL_WRITE, 0x104, 0), None);
        assert_eq!(find(plain, 2, LOCAL_WRITE, 0x104, 12), None);
        assert!(regions.covered(1, plain.rkey, 0).is_none());
        let read_only = regions.register(&extent(0)).expect("room");
        assert_eq!(find(read_only, 1, 0, 0x104, 12), Some(0x5004));
        assert_eq!(find(read_only, 1, LOCAL_WRITE, 0x104, 12), None);
        let other = sge(0x104, 12, read_only.lkey);
        let covered = regions.covered(1, plain.lkey, 0).expect("its own");
        assert!(covered.find(&other).is_none(), "another key");
        for mark in [ON_DEMAND, VOID, IMPORTED] {
            let unusual = regions.register(&extent(LOCAL_WRITE | mark)).expect("room");
            assert!(regions.covered(1, unusual.lkey, 0).is_none(), "{mark:#x}");
        }
        regions.revoke(plain.index);
        assert!(regions.covered(1, plain.lkey, 0).is_none());
        let round = Extent { iova: u64::MAX - 3, ..extent(LOCAL_WRITE) };
        let round = regions.register(&round).expect("room");
        assert!(regions.covered(1, round.lkey, 0).is_none(), "round the end");
    }

    #[test]
    fn what_is_behind_the_bytes_that_are_used_does_not_matter() {
        let regions = Regions::new(mock::view(), true);
        let keys = regions.register(&extent(0x1000, 16, LOCAL_WRITE)).expect("room");
        let list = [sge(0x1000, 8, keys.lkey), sge(0x1008, 100, keys.lkey), sge(0, 4, 0)];
        let first = |len| {
            let mut ranges = Ranges::new();
            let all = regions.resolve_first(&mut ranges, 1, &list, LOCAL_WRITE, len);
            all.then(|| ranges.total())
        };
        assert!(regions.resolve(1, &list, LOCAL_WRITE).is_none());
        for len in [0, 5, 8, 9, 16] {
            assert_eq!(first(len), Some(len));
        }
        assert_eq!(first(17), None, "beyond the region");
        assert_eq!(first(109), None, "a key that nobody has");
    }

    #[test]
    fn a_region_without_memory_takes_any_address_locally() {
        let regions = Regions::new(mock::view(), true);
        regions.prepare_void().expect("address space");
        let keys = regions
            .register(&Extent { pd: 1, va: 0, iova: 0, len: u64::MAX, access: LOCAL_WRITE | VOID })
            .expect("room");
        for addr in [0, 5, u64::MAX - 9] {
            let zeros = regions.resolve(1, &[sge(addr, 8, keys.lkey)], 0).expect("readable");
            let mut word = [1u8; 8];
            assert!(zeros.gather_bytes(0, &mut word));
            assert_eq!(word, [0; 8]);
            assert!(regions.resolve(1, &[sge(addr, 8, keys.lkey)], LOCAL_WRITE).is_some());
        }
        assert!(check(&regions.view, keys.rkey, 0, 1, 0, 8, REMOTE_READ).is_none());
    }

    #[test]
    fn pages_on_demand_are_looked_for_when_they_are_used() {
        let regions = Regions::new(mock::view(), true);
        let page = [7u8; 64];
        let whole =
            Extent { pd: 1, va: 0, iova: 0, len: u64::MAX, access: LOCAL_WRITE | ON_DEMAND };
        let keys = regions.register(&whole).expect("room");
        let here = page.as_ptr() as u64;
        assert!(regions.resolve(1, &[sge(here, 64, keys.lkey)], LOCAL_WRITE).is_some());
        assert!(regions.resolve(1, &[sge(0, 8, keys.lkey)], 0).is_none(), "nothing is at 0");
        assert_eq!(regions.described(keys.lkey).map(|e| e.len), Some(u64::MAX));
        assert!(regions.described(keys.rkey).is_none());
    }

    #[test]
    fn who_looks_is_told_what_a_key_is() {
        let view = mock::view();
        let regions = Regions::new(view, true);
        let keys = regions.register(&extent(0x1000, 64, LOCAL_WRITE)).expect("room");
        assert_ne!(keys.lkey, keys.rkey);
        let (kind, entry) = seen(&view, keys.rkey, 5, 1);
        assert_eq!((kind, entry.iova, entry.len), (Seen::Good, 0x1000, 64));
        assert_eq!(seen(&view, keys.lkey, 5, 1).0, Seen::Local);
        assert_eq!(seen(&view, keys.rkey, 5, 2).0, Seen::Domain);
        assert_eq!(seen(&view, keys.rkey + 2, 5, 1).0, Seen::Nothing, "another generation");
        assert_eq!(seen(&view, 0, 5, 1).0, Seen::Nothing, "entry 0 is never given out");
        let window = (FIRST_WINDOW as u32) << INDEX_SHIFT | 3;
        let entry = view.mr(FIRST_WINDOW);
        entry.pd.store(1, Ordering::Relaxed);
        entry.qpn.store(9, Ordering::Relaxed);
        protocol::validate(&entry.key, u64::from(window));
        assert_eq!(seen(&view, window, 9, 1).0, Seen::Good);
        assert_eq!(seen(&view, window, 5, 1).0, Seen::Qp);
    }
}
