//! The records of memory regions and windows, by key. Registrations write them; requests look them
//! up in the small cache of their queue first.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};

use cface::shared::StaticMutex;

use crate::checks::element::{KeyFault, Mr};
use crate::checks::finding::Stack;

/// Most entries of each list of past objects and keys.
pub(crate) const MAX_HISTORY: usize = 512;

/// The record of a memory window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mw {
    pub(crate) ctx: usize,
    pub(crate) pd: usize,
    pub(crate) rkey: u32,
}

/// The regions and windows of the process.
struct Regions {
    /// Regions by context and lkey.
    registered: BTreeMap<(usize, u32), Mr>,
    windows: BTreeMap<usize, Mw>,
    /// The last deregistered regions: context, lkey, stack of the deregistration.
    deregistered: VecDeque<(usize, u32, Stack)>,
    /// Replaced keys of windows: context, old key, new key.
    stale: VecDeque<(usize, u32, u32)>,
}

/// Increases with each change of a region.
static EPOCH: AtomicU64 = AtomicU64::new(1);
static REGIONS: StaticMutex<Regions> = StaticMutex::new(Regions {
    registered: BTreeMap::new(),
    windows: BTreeMap::new(),
    deregistered: VecDeque::new(),
    stale: VecDeque::new(),
});

/// For a fork: no thread changes the records until the result is dropped.
pub(crate) fn hold() -> cface::lock::Guard {
    REGIONS.hold()
}

/// The last two regions that a queue used, found without a lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cache {
    epoch: u64,
    entries: [Option<Mr>; 2],
    next_slot: usize,
}

impl Cache {
    /// The region of a key.
    #[inline]
    pub(crate) fn find(&mut self, ctx: usize, lkey: u32) -> Option<&Mr> {
        let epoch = EPOCH.load(Ordering::Acquire);
        if epoch != self.epoch {
            (self.epoch, self.entries) = (epoch, [None; 2]);
        }
        let known = self.entries.iter().position(|e| e.as_ref().is_some_and(|mr| mr.lkey == lkey));
        let at = match known {
            Some(at) => at,
            None => {
                let found = *REGIONS.lock().registered.get(&(ctx, lkey))?;
                self.next_slot ^= 1;
                self.entries[self.next_slot] = Some(found);
                self.next_slot
            }
        };
        self.entries[at].as_ref()
    }
}

/// Records a region.
pub(crate) fn insert(mr: Mr) {
    let mut regions = REGIONS.lock();
    regions.registered.insert((mr.ctx, mr.lkey), mr);
    regions.deregistered.retain(|(c, key, _)| (*c, *key) != (mr.ctx, mr.lkey));
    EPOCH.fetch_add(1, Ordering::Release);
}

/// Puts a region back whose deregistration failed.
pub(crate) fn restore(mr: Mr) {
    REGIONS.lock().registered.insert((mr.ctx, mr.lkey), mr);
    EPOCH.fetch_add(1, Ordering::Release);
}

/// Removes the record of a region that is deregistered at this place.
pub(crate) fn remove(ctx: usize, lkey: u32, stack: Stack) -> Option<Mr> {
    let mut regions = REGIONS.lock();
    let region = regions.registered.remove(&(ctx, lkey));
    regions.deregistered.push_back((ctx, lkey, stack));
    if regions.deregistered.len() > MAX_HISTORY {
        regions.deregistered.pop_front();
    }
    EPOCH.fetch_add(1, Ordering::Release);
    region
}

/// The region with this lkey.
pub(crate) fn find_region(ctx: usize, lkey: u32) -> Option<Mr> {
    REGIONS.lock().registered.get(&(ctx, lkey)).copied()
}

/// The reason why no region of a context has this lkey.
pub(crate) fn key_fault(ctx: usize, lkey: u32) -> KeyFault {
    let regions = REGIONS.lock();
    let of_rkey = regions.registered.values().find(|mr| mr.ctx == ctx && mr.rkey == lkey);
    if let Some(mr) = of_rkey {
        return KeyFault::Rkey(*mr);
    }
    let gone = regions.deregistered.iter().rev().find(|(c, key, _)| (*c, *key) == (ctx, lkey));
    if let Some((.., stack)) = gone {
        return KeyFault::Deregistered(*stack);
    }
    let elsewhere = regions.registered.values().find(|mr| mr.ctx != ctx && mr.lkey == lkey);
    elsewhere.map_or(KeyFault::Unknown, |mr| KeyFault::OtherContext(*mr))
}

/// The sum of the lengths of all regions in bytes.
pub(crate) fn registered_bytes() -> u64 {
    let regions = REGIONS.lock();
    let sizes = regions.registered.values().filter_map(|mr| mr.range);
    sizes.fold(0, |sum, (start, end)| sum.saturating_add(end - start))
}

/// The place where any live region was registered.
pub(crate) fn any_registration() -> Option<Stack> {
    REGIONS.lock().registered.values().next().map(|mr| mr.registered_by)
}

/// Records a window.
pub(crate) fn insert_window(mw: usize, window: Mw) {
    REGIONS.lock().windows.insert(mw, window);
}

/// Removes the record of a window with this present key.
pub(crate) fn remove_window(ctx: usize, mw: usize, rkey: u32) -> Option<Mw> {
    let mut regions = REGIONS.lock();
    regions.stale.retain(|(c, _, now)| (*c, *now) != (ctx, rkey));
    regions.windows.remove(&mw)
}

/// Records the new key of a window.
pub(crate) fn replace_key(ctx: usize, mw: usize, now: u32) {
    let mut regions = REGIONS.lock();
    let Some(window) = regions.windows.get_mut(&mw) else { return };
    let before = core::mem::replace(&mut window.rkey, now);
    if before == now {
        return;
    }
    regions.stale.retain(|(c, key, _)| (*c, *key) != (ctx, now));
    regions.stale.push_back((ctx, before, now));
    if regions.stale.len() > MAX_HISTORY {
        regions.stale.pop_front();
    }
}

/// MR-15: the present key of a window, if `rkey` is its former key.
pub(crate) fn stale(rkey: u32) -> Option<u32> {
    let regions = REGIONS.lock();
    let taken = regions.registered.values().any(|mr| mr.rkey == rkey)
        || regions.windows.values().any(|mw| mw.rkey == rkey);
    if taken {
        return None;
    }
    regions.stale.iter().rev().find(|(_, before, _)| *before == rkey).map(|(.., now)| *now)
}

/// MR-11: the region with this lkey, if no region has the key as its rkey.
pub(crate) fn by_lkey(key: u32) -> Option<Mr> {
    let regions = REGIONS.lock();
    if regions.registered.values().any(|mr| mr.rkey == key) {
        return None;
    }
    regions.registered.values().find(|mr| mr.lkey == key).copied()
}

/// The regions and the number of windows of a PD.
pub(crate) fn of_pd(pd: usize) -> (Vec<Mr>, usize) {
    let regions = REGIONS.lock();
    let of = regions.registered.values().filter(|mr| mr.pd == pd).copied().collect();
    (of, regions.windows.values().filter(|mw| mw.pd == pd).count())
}

/// The regions and the number of windows of a context; with `forget`, their records are removed.
pub(crate) fn of_context(ctx: usize, forget: bool) -> (Vec<Mr>, usize) {
    let mut regions = REGIONS.lock();
    let of = regions.registered.values().filter(|mr| mr.ctx == ctx).copied().collect();
    let windows = regions.windows.values().filter(|mw| mw.ctx == ctx).count();
    if forget {
        regions.registered.retain(|_, mr| mr.ctx != ctx);
        regions.windows.retain(|_, mw| mw.ctx != ctx);
        regions.deregistered.retain(|(c, ..)| *c != ctx);
        regions.stale.retain(|(c, ..)| *c != ctx);
        EPOCH.fetch_add(1, Ordering::Release);
    }
    (of, windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests run at once, so each uses a context of its own.
    fn mr(ctx: usize, lkey: u32, rkey: u32) -> Mr {
        Mr {
            address_of_mr: lkey as usize,
            ctx,
            pd: 2,
            lkey,
            rkey,
            range: Some((0, 16)),
            access: None,
            shift: None,
            registered_by: [1; 8],
        }
    }

    #[test]
    fn a_cached_region_is_looked_up_again_after_a_change() {
        let mut cache = Cache::default();
        insert(mr(0x100, 0x1001, 0x1002));
        assert!(cache.find(0x100, 0x1001).is_some());
        remove(0x100, 0x1001, [2; 8]);
        assert!(cache.find(0x100, 0x1001).is_none());
    }

    #[test]
    fn the_fault_of_a_key_is_the_most_likely_one() {
        insert(mr(0x200, 0x2001, 0x2002));
        insert(mr(0x201, 0x2003, 0x2004));
        remove(0x200, 0x2005, [3; 8]);
        assert!(matches!(key_fault(0x200, 0x2002), KeyFault::Rkey(mr) if mr.lkey == 0x2001));
        assert!(
            matches!(key_fault(0x200, 0x2005), KeyFault::Deregistered(stack) if stack == [3; 8])
        );
        assert!(matches!(key_fault(0x200, 0x2003), KeyFault::OtherContext(_)));
        assert!(matches!(key_fault(0x200, 0x2009), KeyFault::Unknown));
    }

    #[test]
    fn the_former_key_of_a_window_leads_to_its_present_key() {
        insert_window(0x3000, Mw { ctx: 0x300, pd: 1, rkey: 0x3001 });
        replace_key(0x300, 0x3000, 0x3002);
        assert_eq!((stale(0x3001), stale(0x3002)), (Some(0x3002), None));
        remove_window(0x300, 0x3000, 0x3002);
        assert_eq!(stale(0x3001), None, "the window is gone");
    }

    #[test]
    fn an_lkey_is_found_unless_it_is_an_rkey_too() {
        insert(mr(0x400, 0x4001, 0x4002));
        assert!(by_lkey(0x4001).is_some());
        insert(mr(0x400, 0x4003, 0x4001));
        assert!(by_lkey(0x4001).is_none());
    }

    #[test]
    fn the_records_of_a_closed_context_are_removed() {
        insert(mr(0x500, 0x5001, 0x5002));
        insert_window(0x5000, Mw { ctx: 0x500, pd: 1, rkey: 0x5003 });
        assert_eq!(of_context(0x500, true).1, 1);
        let (left, windows) = of_context(0x500, false);
        assert!(left.is_empty() && windows == 0);
    }
}
