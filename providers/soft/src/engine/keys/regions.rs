//! Memory regions: keys, and the checks between a request and memory (IBTA 1.7 10.6). `ops/mr`
//! registers; every request resolves its lkeys here, and peers check rkeys by the same table.
//!
//! The table lies in the *tables* segment. The same entry serves checks in this process and checks
//! by initiators in other processes.
//!
//! Map of the file:
//!
//! - Threads: registration by application threads. `resolve_into`, `check_lkey` and `look_up` by
//!   every thread that moves bytes, under the lock of a half of a QP.
//! - Locks: `free` and `imported` are leaves. Readers of an entry take no lock: the key word is the
//!   last store of a registration and the first store of a revocation.
//! - End of a region: `revoke`, then a wait for holders of QP locks (`Adapter::quiesce`) and for
//!   announcements (`await_in_flight`), then `release`.
//! - Fields: at the types below; `MrEntry` in `soft_local::shm::layout`.

use crate::engine::keys::imported::Imported;
use crate::table::NumberRotation;
use abi::{IBV_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT, ibv_sge};
use cface::sync::{Mutex, RwLock};
use soft_local::shm::layout::{MRS, MWS, MrEntry};
use soft_local::shm::protocol;
use soft_local::shm::view::View;
use soft_memory::pages::ZeroMemory;
use soft_memory::populate::populate;
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
/// No region has this right, so a flush to persistent memory is refused.
const FLUSH_PERSISTENT: u32 = 1 << 9;
/// On-demand paging: pages are brought in for each use.
pub(crate) const ON_DEMAND: u32 = 1 << 6;
/// A mark of soft, outside of the flags of verbs: the region has no memory.
pub(crate) const VOID: u32 = 1 << 31;

/// A mark of soft: the memory belongs to another process (`engine::keys::imported`), and `va` is an
/// address of that process.
pub(crate) const IMPORTED: u32 = 1 << 30;
/// Marks of regions whose memory is not directly at `va`.
const SPECIAL: u32 = ON_DEMAND | VOID | IMPORTED;

/// The bit that distinguishes an lkey from an rkey if both differ
/// (`FERROVERBS_SOFT_KEYS=distinct`). Otherwise the bit is clear in both.
const LOCAL_KEY: u32 = 1;
/// A key is table index, generation and local bit; of a window: table index, generation and eight
/// bits chosen by its user.
pub(in crate::engine) const INDEX_SHIFT: u32 = 14;
/// First table index of windows.
pub(in crate::engine) const FIRST_WINDOW: usize = MRS - MWS;
const GENERATION_BITS: u32 = INDEX_SHIFT - 1;

/// Table index and keys of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) index: usize,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// The range and rights of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Protection domain number.
    pub(crate) pd: u32,
    /// Address in this process.
    pub(crate) va: u64,
    /// First address in work requests.
    pub(crate) iova: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    /// `IBV_ACCESS_*` flags.
    pub(crate) access: u32,
}

/// A checked lkey and its range, valid for a short time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CheckedLkey {
    lkey: u32,
    iova: u64,
    len: u64,
    va: u64,
}

impl CheckedLkey {
    /// The bytes of `sge`, if it is nonempty and lies in this region.
    #[inline]
    pub(crate) fn find(&self, sge: &ibv_sge) -> Option<Range<'static>> {
        let (at, len) = (sge.addr.wrapping_sub(self.iova), u64::from(sge.length));
        let within = at < self.len && len <= self.len - at && len > 0;
        // SAFETY: within a region whose key was checked; deregistration waits for all threads that
        // looked the key up (`Adapter::quiesce`).
        (sge.lkey == self.lkey && within)
            .then(|| unsafe { Range::at(self.va.wrapping_add(at), sge.length as usize) })
    }
}

/// The regions of this process. The fields read for each message share a cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Regions {
    view: View,
    /// `LOCAL_KEY` if lkeys differ from rkeys, otherwise 0.
    local: u32,
    free: Mutex<FreeKeys>,
    /// Number of registrations.
    births: AtomicU64,
    /// Addresses for regions without memory.
    void: OnceLock<ZeroMemory>,
    /// Imported regions by table index.
    imported: RwLock<HashMap<usize, Arc<Imported>>>,
}

#[derive(Debug)]
struct FreeKeys {
    /// Freed entries, reused in order of release, so a stale key stays stale for long.
    returned: VecDeque<usize>,
    /// The order in which entries are first used. Entry 0 is never used.
    rotation: NumberRotation,
    /// Generations of each entry, by index. A holder of a key can guess neither keys of neighbours
    /// nor the next key of the entry.
    generations: Orders<GENERATION_BITS>,
    /// Number of uses of each entry, in the order of `rotation`.
    uses: Vec<u32>,
}

impl FreeKeys {
    /// All entries are unused.
    fn new(rotation: NumberRotation) -> Self {
        Self { returned: VecDeque::new(), rotation, generations: Orders::new(), uses: vec![] }
    }

    /// An entry and its next generation; None if all entries are in use.
    fn take(&mut self) -> Option<(usize, u32)> {
        let full = self.uses.len() == FIRST_WINDOW - 1;
        let position = match self.returned.len() {
            n if n > MIN_QUEUED || (full && n > 0) => {
                self.rotation.position(self.returned.pop_front()? - 1)
            }
            _ if full => return None,
            _ => {
                self.uses.push(0);
                self.uses.len() - 1
            }
        };
        let (uses, index) = (self.uses.get_mut(position)?, self.rotation.number(position) + 1);
        let generation = self.generations.number(index as u32, *uses);
        *uses = uses.wrapping_add(1);
        Some((index, generation))
    }
}

/// Freed entries that must wait before one of them is reused.
const MIN_QUEUED: usize = 64;

impl Regions {
    /// `distinct` gives lkeys and rkeys different values; hardware adapters use one value.
    pub(crate) fn new(view: View, distinct: bool) -> Self {
        let free = FreeKeys::new(NumberRotation::anywhere(FIRST_WINDOW - 1));
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

    /// The rkey that belongs to this lkey. A value that is no lkey gives a key that no region has,
    /// with the local bit set.
    #[inline]
    const fn rkey_of(&self, lkey: u32) -> u32 {
        lkey ^ self.local
    }

    /// Publishes a region. Returns None if the table is full.
    pub(crate) fn register(&self, extent: &Extent) -> Option<Keys> {
        let (index, generation) = self.free.lock().take()?;
        let rkey = (index as u32) << INDEX_SHIFT | generation << 1;
        self.publish(index, rkey, extent);
        Some(self.keys(index, rkey))
    }

    /// Binds `rkey`, the key of entry `index`, to `extent`. The entry is new, or was revoked and
    /// has no operation in flight.
    pub(crate) fn publish(&self, index: usize, rkey: u32, extent: &Extent) {
        let entry = self.view.mr(index);
        entry.origin.store(0, Ordering::Relaxed);
        entry.iova.store(extent.iova, Ordering::Relaxed);
        entry.len.store(extent.len, Ordering::Relaxed);
        entry.va.store(extent.va, Ordering::Relaxed);
        entry.pd.store(u64::from(extent.pd), Ordering::Relaxed);
        entry
            .registration
            .store(self.births.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        protocol::validate(&entry.key, u64::from(rkey) | u64::from(extent.access) << 32);
    }

    /// Permits importers of context `origin`.
    pub(crate) fn belongs_to(&self, index: usize, origin: u64) {
        self.view.mr(index).origin.store(origin, Ordering::Release);
    }

    /// Publishes a region of another process's memory. Returns None if the table is full.
    pub(crate) fn import(&self, extent: &Extent, imported: &Arc<Imported>) -> Option<Keys> {
        // No thread knows the key before this function returns.
        let keys = self.register(&Extent { access: extent.access | IMPORTED, ..*extent })?;
        self.imported.write().insert(keys.index, Arc::clone(imported));
        Some(keys)
    }

    /// The imported region with this key.
    pub(crate) fn imported(&self, rkey: u32) -> Option<Arc<Imported>> {
        self.imported.read().get(&((rkey >> INDEX_SHIFT) as usize)).cloned()
    }

    /// Forgets the imported region `index` after its keys were revoked.
    pub(crate) fn forget_import(&self, index: usize) {
        self.imported.write().remove(&index);
    }

    /// Revokes the keys of entry `index`. Operations in flight may still use the memory: wait for
    /// them, then call [`Regions::release`].
    pub(crate) fn revoke(&self, index: usize) {
        protocol::revoke(&self.view.mr(index).key);
    }

    /// Makes entry `index` available again.
    pub(crate) fn release(&self, index: usize) {
        self.free.lock().returned.push_back(index);
    }

    /// Resolves the scatter/gather list of a work request. `need` is `LOCAL_WRITE` if the memory
    /// will be written, 0 if it is read. Returns None (local protection error) if a key is wrong,
    /// out of range, of another PD, or lacks the right.
    pub(crate) fn resolve(&self, pd: u32, list: &[ibv_sge], need: u32) -> Option<Ranges<'static>> {
        let mut ranges = Ranges::new();
        self.resolve_into(&mut ranges, pd, list, need).then_some(ranges)
    }

    /// As [`Regions::resolve`], appending to `ranges`; false instead of None. Moving the large list
    /// costs more than filling it.
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

    /// As [`Regions::resolve_into`], for the first `len` bytes of a list that is at least as long.
    /// Entries behind them are not checked.
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

    /// The range of `lkey`, if it is the key of an ordinary region of `pd` with the right `need`;
    /// otherwise None, and [`Regions::resolve`] decides. The result is valid until the QP lock is
    /// released, which deregistration waits for.
    #[inline(always)]
    pub(crate) fn check_lkey(&self, pd: u32, lkey: u32, need: u32) -> Option<CheckedLkey> {
        let rkey = self.rkey_of(lkey);
        let index = (rkey >> INDEX_SHIFT) as usize;
        if index == 0 || index >= FIRST_WINDOW {
            return None;
        }
        let entry = self.view.mr(index);
        // Sequentially consistent, as in `look_up`.
        let key = entry.key.load(Ordering::SeqCst);
        let access = (key >> 32) as u32;
        let ordinary = access & (need | SPECIAL) == need;
        if key as u32 != rkey || entry.pd.load(Ordering::Relaxed) != u64::from(pd) || !ordinary {
            return None;
        }
        let [iova, len, va] =
            [&entry.iova, &entry.len, &entry.va].map(|n| n.load(Ordering::Relaxed));
        // A region that wraps around the address space covers nothing.
        iova.checked_add(len)?;
        Some(CheckedLkey { lkey, iova, len, va })
    }

    #[inline]
    fn resolve_one(&self, ranges: &mut Ranges, pd: u32, sge: &ibv_sge, need: u32) -> Option<()> {
        if sge.length == 0 {
            return Some(());
        }
        let rkey = self.rkey_of(sge.lkey);
        // The rkey of a region never has the local bit; the rkey of a window may.
        if is_window(rkey) {
            return None;
        }
        let len = sge.length as usize;
        let found = look_up(&self.view, rkey, 0, pd, sge.addr, len as u64, need)?;
        let va = if found.access & SPECIAL == 0 {
            found.va
        } else if found.access & IMPORTED != 0 {
            let imported = self.imported(rkey).filter(|imported| imported.is_there())?;
            return ranges.push_imported(found.va, len, imported).then_some(());
        } else {
            self.special_address(found, len, need & LOCAL_WRITE != 0)?
        };
        // SAFETY: the key was just checked for the bytes and rights; deregistration waits for all
        // threads that looked the key up (`Adapter::quiesce`).
        ranges.push(unsafe { Range::at(va, len) }).then_some(())
    }

    /// The address of the bytes of an unusual region, if they exist.
    #[cold]
    fn special_address(&self, found: KeyTarget, len: usize, write: bool) -> Option<u64> {
        if found.access & VOID != 0 {
            let void = self.void.get()?;
            return Some(if write { void.sink(len) } else { void.zeros() });
        }
        populate(found.va, len, write).ok()?;
        Some(found.va)
    }

    /// Prepares for regions without memory.
    ///
    /// # Errors
    /// `ENOMEM` no address space.
    pub(crate) fn prepare_void(&self) -> Result<(), Errno> {
        if self.void.get().is_none() {
            // A second thread drops its addresses again.
            let _ = self.void.set(ZeroMemory::new()?);
        }
        Ok(())
    }

    /// The extent of the region with this lkey.
    pub(crate) fn extent_of(&self, lkey: u32) -> Option<Extent> {
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

/// The rights needed by a flush with this placement (`IBV_FLUSH_*`).
pub(crate) const fn right_to_flush(placement: u32) -> u32 {
    let global = if placement & IBV_FLUSH_GLOBAL != 0 { FLUSH_GLOBAL } else { 0 };
    let persistent = if placement & IBV_FLUSH_PERSISTENT != 0 { FLUSH_PERSISTENT } else { 0 };
    global | persistent
}

/// Whether `rkey` belongs to a memory window.
#[inline]
pub(crate) const fn is_window(rkey: u32) -> bool {
    (rkey >> INDEX_SHIFT) as usize >= FIRST_WINDOW
}

/// The memory behind a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyTarget {
    /// Address in the owner's process.
    pub(crate) va: u64,
    /// The flags of the region.
    pub(crate) access: u32,
}

impl KeyTarget {
    /// Brings the bytes in, in the owner's process. Returns false if they are not mapped.
    #[inline]
    pub(crate) fn is_there(&self, len: u64, write: bool) -> bool {
        self.access & ON_DEMAND == 0 || populate(self.va, len as usize, write).is_ok()
    }
}

/// Checks a key of `view`'s owner, and translates `addr` to an address of the owner. Returns None
/// if the key is unknown, of another PD, out of range or without a right of `need`, or if the
/// window is bound to a QP other than `qpn`.
#[inline]
pub(crate) fn look_up(
    view: &View,
    rkey: u32,
    qpn: u32,
    pd: u32,
    addr: u64,
    len: u64,
    need: u32,
) -> Option<KeyTarget> {
    let index = (rkey >> INDEX_SHIFT) as usize;
    if index == 0 || index >= MRS {
        return None;
    }
    let entry = view.mr(index);
    let asked = Access { rkey, qpn, pd, addr, len, required: need };
    let keys::AccessibleRange { va, access } = load_entry(entry).admit(&asked).ok()?;
    Some(KeyTarget { va, access })
}

/// A table entry at this moment. Each field is loaded once, after the key. The fields change only
/// after all users of the old key are gone: those that announced an operation, and those that hold
/// a lock which `Adapter::quiesce` takes.
#[inline]
pub(in crate::engine) fn load_entry(entry: &MrEntry) -> keys::KeyEntry {
    let key = protocol::key(&entry.key);
    let rkey = key as u32;
    keys::KeyEntry {
        rkey,
        access: (key >> 32) as u32,
        pd: entry.pd.load(Ordering::Relaxed),
        // A region is open to all QPs.
        qpn: if is_window(rkey) { entry.qpn.load(Ordering::Relaxed) } else { 0 },
        iova: entry.iova.load(Ordering::Relaxed),
        len: entry.len.load(Ordering::Relaxed),
        va: entry.va.load(Ordering::Relaxed),
    }
}

/// The meaning of a key in a table, for a diagnosis (`ops::other_end`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyMeaning {
    /// A key that the QP may use.
    Good,
    /// An unknown or revoked key.
    Nothing,
    /// An lkey.
    Local,
    /// A key of another protection domain.
    Domain,
    /// The key of a window bound to another QP.
    Qp,
}

/// The meaning of `rkey` in the table of `view` for its owner's QP `qpn` of domain `pd`, and its
/// entry without the marks of soft. The owner may change the entry meanwhile: the result is only
/// reported, never used for access.
pub(crate) fn key_meaning(
    view: &View,
    rkey: u32,
    qpn: u32,
    pd: u32,
) -> (KeyMeaning, keys::KeyEntry) {
    let index = (rkey >> INDEX_SHIFT) as usize % MRS;
    let mut entry = load_entry(view.mr(index));
    entry.access &= !SPECIAL | ON_DEMAND;
    let is_key = index != 0 && entry.rkey == rkey;
    let seen = match () {
        () if is_key && entry.pd != u64::from(pd) => KeyMeaning::Domain,
        () if is_key && entry.qpn != 0 && entry.qpn != qpn => KeyMeaning::Qp,
        () if is_key => KeyMeaning::Good,
        // Only distinct keys have the bit.
        () if index != 0 && !is_window(rkey) && entry.rkey | LOCAL_KEY == rkey => KeyMeaning::Local,
        () => KeyMeaning::Nothing,
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
        assert!(regions.check_lkey(1, keys.rkey, 0).is_some());
        assert!(regions.extent_of(keys.rkey).is_some());
        assert_eq!(check(&regions.view, keys.lkey, 0, 1, 0x1000, 1, 0), Some(0x1000));
        for wrong in [keys.lkey ^ 1, keys.lkey ^ 2] {
            assert!(regions.resolve(1, &[sge(0x1000, 16, wrong)], 0).is_none());
            assert!(regions.check_lkey(1, wrong, 0).is_none());
            assert!(regions.extent_of(wrong).is_none());
            assert!(check(&regions.view, wrong, 0, 1, 0x1000, 1, 0).is_none());
        }
    }

    /// IBTA 1.7 10.6.
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
        let mut free = FreeKeys::new(NumberRotation::from(FIRST_WINDOW - 3, FIRST_WINDOW - 1));
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
    fn a_key_does_not_predict_the_next_key() {
        let mut free = FreeKeys::new(NumberRotation::anywhere(FIRST_WINDOW - 1));
        let generations: Vec<u32> = (0..100).filter_map(|_| Some(free.take()?.1)).collect();
        assert!(steps(&generations) > 80);
    }

    #[test]
    fn a_revoked_key_does_not_predict_the_next_key_of_its_entry() {
        let mut free = FreeKeys::new(NumberRotation::anywhere(FIRST_WINDOW - 1));
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

    /// Number of different steps between consecutive generations.
    fn steps(generations: &[u32]) -> usize {
        let steps = generations.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
        steps.collect::<std::collections::BTreeSet<_>>().len()
    }

    #[test]
    fn keys_of_two_processes_begin_at_different_numbers() {
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
            let covered = regions.check_lkey(pd, keys.lkey, need)?;
            covered.find(&sge(addr, length, keys.lkey)).map(Range::address)
        };
        let extent = |access| Extent { pd: 1, va: 0x5000, iova: 0x100, len: 16, access };
        let plain = regions.register(&extent(LOCAL_WRITE)).expect("room");
        assert_eq!(find(plain, 1, LOCAL_WRITE, 0x104, 12), Some(0x5004));
        assert_eq!(find(plain, 1, LOCAL_WRITE, 0x104, 13), None);
        assert_eq!(find(plain, 1, LOCAL_WRITE, 0xff, 1), None);
        assert_eq!(find(plain, 1, LOCAL_WRITE, 0x104, 0), None);
        assert_eq!(find(plain, 2, LOCAL_WRITE, 0x104, 12), None);
        assert!(regions.check_lkey(1, plain.rkey, 0).is_none());
        let read_only = regions.register(&extent(0)).expect("room");
        assert_eq!(find(read_only, 1, 0, 0x104, 12), Some(0x5004));
        assert_eq!(find(read_only, 1, LOCAL_WRITE, 0x104, 12), None);
        let other = sge(0x104, 12, read_only.lkey);
        let covered = regions.check_lkey(1, plain.lkey, 0).expect("its own");
        assert!(covered.find(&other).is_none(), "another key");
        for mark in [ON_DEMAND, VOID, IMPORTED] {
            let unusual = regions.register(&extent(LOCAL_WRITE | mark)).expect("room");
            assert!(regions.check_lkey(1, unusual.lkey, 0).is_none(), "{mark:#x}");
        }
        regions.revoke(plain.index);
        assert!(regions.check_lkey(1, plain.lkey, 0).is_none());
        let round = Extent { iova: u64::MAX - 3, ..extent(LOCAL_WRITE) };
        let round = regions.register(&round).expect("room");
        assert!(regions.check_lkey(1, round.lkey, 0).is_none(), "round the end");
    }

    #[test]
    fn memory_behind_the_bytes_that_are_used_does_not_matter() {
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
        assert_eq!(first(109), None, "a key of no region");
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
    fn pages_of_an_on_demand_region_are_checked_when_they_are_used() {
        let regions = Regions::new(mock::view(), true);
        let page = [7u8; 64];
        let whole =
            Extent { pd: 1, va: 0, iova: 0, len: u64::MAX, access: LOCAL_WRITE | ON_DEMAND };
        let keys = regions.register(&whole).expect("room");
        let here = page.as_ptr() as u64;
        assert!(regions.resolve(1, &[sge(here, 64, keys.lkey)], LOCAL_WRITE).is_some());
        assert!(regions.resolve(1, &[sge(0, 8, keys.lkey)], 0).is_none(), "nothing is at 0");
        assert_eq!(regions.extent_of(keys.lkey).map(|e| e.len), Some(u64::MAX));
        assert!(regions.extent_of(keys.rkey).is_none());
    }

    #[test]
    fn a_lookup_tells_what_kind_of_object_a_key_names() {
        let view = mock::view();
        let regions = Regions::new(view, true);
        let keys = regions.register(&extent(0x1000, 64, LOCAL_WRITE)).expect("room");
        assert_ne!(keys.lkey, keys.rkey);
        let (kind, entry) = key_meaning(&view, keys.rkey, 5, 1);
        assert_eq!((kind, entry.iova, entry.len), (KeyMeaning::Good, 0x1000, 64));
        assert_eq!(key_meaning(&view, keys.lkey, 5, 1).0, KeyMeaning::Local);
        assert_eq!(key_meaning(&view, keys.rkey, 5, 2).0, KeyMeaning::Domain);
        assert_eq!(
            key_meaning(&view, keys.rkey + 2, 5, 1).0,
            KeyMeaning::Nothing,
            "another generation"
        );
        assert_eq!(
            key_meaning(&view, 0, 5, 1).0,
            KeyMeaning::Nothing,
            "entry 0 is never given out"
        );
        let window = (FIRST_WINDOW as u32) << INDEX_SHIFT | 3;
        let entry = view.mr(FIRST_WINDOW);
        entry.pd.store(1, Ordering::Relaxed);
        entry.qpn.store(9, Ordering::Relaxed);
        protocol::validate(&entry.key, u64::from(window));
        assert_eq!(key_meaning(&view, window, 9, 1).0, KeyMeaning::Good);
        assert_eq!(key_meaning(&view, window, 5, 1).0, KeyMeaning::Qp);
    }
}
