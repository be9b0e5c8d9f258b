//! Memory windows: keys to parts of a region, bound and invalidated by requests (ibv_bind_mw(3);
//! IBTA 1.7 10.6.7, 11.2.9). `issue` and `inbound` bind and invalidate here; peers check the key
//! in the table of regions.
//!
//! A window is an entry of the region table whose key changes. This file keeps the data that peers
//! do not need. Windows of type 2 are of kind 2B: they serve a single QP, in their protection
//! domain only.
//!
//! Map of the file:
//!
//! - Threads: allocation by application threads; `bind` and `invalidate` by every thread that
//!   issues or serves requests.
//! - Locks: `state`, under which only the table of peers is read. No function waits: a busy window
//!   returns [`BindResult::Later`], and the caller tries again.
//! - Mirrors: `single_qp` counts the windows with a QP, for a check without the lock. The key word
//!   of a table entry mirrors the binding for peers; it is stored last and revoked first.
#![forbid(unsafe_code)]

use crate::engine::keys::regions::{FIRST_WINDOW, INDEX_SHIFT, ON_DEMAND, load_entry};
use crate::table::NumberRotation;
use cface::sync::Mutex;
use soft_local::shm::layout::{MRS, MWS};
use soft_local::shm::protocol;
use soft_local::shm::view::View;
use soft_semantics::keys::AccessibleRange;
use soft_semantics::windows::Bind;
use soft_semantics::windows::{self, USER_BITS};
use soft_sys::unguessable::{Orders, Unguessable};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bits of the generation in a key.
const GENERATION_BITS: u32 = INDEX_SHIFT - USER_BITS;
/// Freed entries that must wait before one of them is reused.
const MIN_QUEUED: usize = 64;

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindResult {
    Yes,
    /// Operations by the old key are in flight: try again.
    Later,
    /// The rules forbid the operation.
    Refused,
}

/// The windows of this process.
#[derive(Debug)]
pub(crate) struct Windows {
    view: View,
    state: Mutex<WindowTable>,
    /// Number of windows that serve a single QP.
    single_qp: AtomicUsize,
}

#[derive(Debug)]
struct WindowTable {
    /// The order in which entries are first used, counted from `FIRST_WINDOW`.
    rotation: NumberRotation,
    /// Generations of each entry, by index, as for regions.
    generations: Orders<GENERATION_BITS>,
    /// First values of the bits that users count.
    first_tags: Unguessable,
    /// In the order of `rotation`.
    entries: Vec<WindowEntry>,
    returned: VecDeque<usize>,
    /// Number of windows bound to each region, by table index.
    on_region: HashMap<usize, usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct WindowEntry {
    /// Number of uses.
    uses: u32,
    /// None: the entry is free.
    window: Option<Window>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    rules: windows::Window,
    /// Table index of the region to which the window is bound.
    region: usize,
}

impl WindowTable {
    fn window(&mut self, index: usize) -> Option<&mut Window> {
        let position = self.rotation.position(index.checked_sub(FIRST_WINDOW)?);
        self.entries.get_mut(position)?.window.as_mut()
    }
}

const fn index_of(rkey: u32) -> usize {
    (rkey >> INDEX_SHIFT) as usize
}

impl Windows {
    pub(crate) fn new(view: View) -> Self {
        let state = WindowTable {
            rotation: NumberRotation::anywhere(MWS),
            generations: Orders::new(),
            first_tags: Unguessable::new(),
            entries: vec![],
            returned: VecDeque::new(),
            on_region: HashMap::new(),
        };
        Self { view, state: Mutex::new(state), single_qp: AtomicUsize::new(0) }
    }

    /// Allocates a window, of type 2 if `tied`. Returns its table index and its first key, which
    /// opens no memory; None if the table is full.
    pub(crate) fn allocate(&self, pd: u32, tied: bool) -> Option<(usize, u32)> {
        let mut state = self.state.lock();
        let full = state.entries.len() == MWS;
        let at = match state.returned.len() {
            n if n > MIN_QUEUED || (full && n > 0) => state.returned.pop_front()?,
            _ if full => return None,
            _ => {
                state.entries.push(WindowEntry::default());
                state.entries.len() - 1
            }
        };
        let index = FIRST_WINDOW + state.rotation.number(at);
        let tag = u32::from(state.first_tags.next_number()) % (1 << USER_BITS);
        let uses = state.entries.get(at)?.uses;
        let generation = state.generations.number(index as u32, uses);
        let rkey = (index as u32) << INDEX_SHIFT | generation << USER_BITS | tag;
        let entry = state.entries.get_mut(at)?;
        entry.uses = uses.wrapping_add(1);
        let rules = windows::Window { tied, pd, rkey, bound: None };
        entry.window = Some(Window { rules, region: 0 });
        Some((index, rkey))
    }

    /// The key of window `index` with the user bits of `rkey`.
    pub(crate) fn key(&self, index: usize, rkey: u32) -> Option<u32> {
        Some(self.state.lock().window(index)?.rules.key(rkey))
    }

    /// Binds a window as QP `qpn` of domain `pd` requests, or unbinds it (type 1, length 0).
    /// `moved` returns whether an operation by a key is in flight.
    pub(crate) fn bind(
        &self,
        qpn: u32,
        pd: u32,
        bind: &Bind,
        moved: impl Fn(u32) -> bool,
    ) -> BindResult {
        let mut state = self.state.lock();
        let index = index_of(bind.rkey);
        let Some(window) = state.window(index).map(|window| window.rules) else {
            return BindResult::Refused;
        };
        if window.may_bind(pd, bind).is_err() {
            return BindResult::Refused;
        }
        let range = match bind.len {
            0 => None,
            _ => match self.find_part(pd, bind) {
                None => return BindResult::Refused,
                range => range,
            },
        };
        let entry = self.view.mr(index);
        if window.bound.is_some() {
            protocol::revoke(&entry.key);
            if moved(window.rkey) {
                return BindResult::Later;
            }
            self.end_binding(&mut state, index);
        }
        if let Some(window) = state.window(index) {
            window.rules.rkey = bind.rkey;
        }
        let Some(AccessibleRange { va, access }) = range else { return BindResult::Yes };
        let (tied_to, region) = (window.serves(qpn), index_of(bind.region));
        if let Some(window) = state.window(index) {
            window.rules.bound = Some(tied_to);
            window.region = region;
        }
        *state.on_region.entry(region).or_default() += 1;
        if tied_to != 0 {
            self.single_qp.fetch_add(1, Ordering::Relaxed);
        }
        entry.iova.store(bind.iova(), Ordering::Relaxed);
        entry.len.store(bind.len, Ordering::Relaxed);
        entry.va.store(va, Ordering::Relaxed);
        entry.pd.store(u64::from(pd), Ordering::Relaxed);
        entry.qpn.store(tied_to, Ordering::Relaxed);
        let access = bind.access | access & ON_DEMAND;
        protocol::validate(&entry.key, u64::from(bind.rkey) | u64::from(access) << 32);
        BindResult::Yes
    }

    /// The beginning of the part of a region named by `bind`, if the region permits it.
    fn find_part(&self, pd: u32, bind: &Bind) -> Option<AccessibleRange> {
        let region = index_of(bind.region);
        if region == 0 || region >= FIRST_WINDOW {
            return None;
        }
        bind.part_of(&load_entry(self.view.mr(region)), pd).ok()
    }

    /// Ends the binding of a window whose key was revoked.
    fn end_binding(&self, state: &mut WindowTable, index: usize) {
        let Some(window) = state.window(index) else { return };
        let region = window.region;
        let Some(qpn) = window.rules.bound.take() else { return };
        if let Some(count) = state.on_region.get_mut(&region) {
            *count -= 1;
            if *count == 0 {
                state.on_region.remove(&region);
            }
        }
        if qpn != 0 {
            self.single_qp.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Revokes the key of a window of type 2 bound to QP `qpn` of domain `pd`.
    pub(crate) fn invalidate(
        &self,
        qpn: u32,
        pd: u32,
        rkey: u32,
        moved: impl Fn(u32) -> bool,
    ) -> BindResult {
        let mut state = self.state.lock();
        let index = index_of(rkey);
        let window = state.window(index);
        if window.is_none_or(|window| window.rules.may_invalidate(qpn, pd, rkey).is_err()) {
            return BindResult::Refused;
        }
        // Revoke first, then look for operations, as in `bind`.
        protocol::revoke(&self.view.mr(index).key);
        if moved(rkey) {
            return BindResult::Later;
        }
        self.end_binding(&mut state, index);
        BindResult::Yes
    }

    /// Revokes the key of window `index`, and returns the key. Operations by it may still be in
    /// flight.
    pub(crate) fn revoke(&self, index: usize) -> u32 {
        let mut state = self.state.lock();
        // As in `bind`.
        protocol::revoke(&self.view.mr(index.min(MRS - 1)).key);
        state.window(index).map_or(0, |window| window.rules.rkey)
    }

    /// Ends the binding of a window, after all operations since `revoke` ended.
    pub(crate) fn unbind(&self, index: usize) {
        self.end_binding(&mut self.state.lock(), index);
    }

    /// Frees a window, after all operations since `revoke` ended.
    pub(crate) fn release(&self, index: usize) {
        let mut state = self.state.lock();
        self.end_binding(&mut state, index);
        if let Some(at) =
            index.checked_sub(FIRST_WINDOW).map(|number| state.rotation.position(number))
            && let Some(entry) = state.entries.get_mut(at)
            && entry.window.take().is_some()
        {
            state.returned.push_back(at);
        }
    }

    /// The windows bound to QP `qpn`.
    pub(crate) fn bound_to(&self, qpn: u32) -> Vec<usize> {
        if self.single_qp.load(Ordering::Relaxed) == 0 {
            return vec![];
        }
        let state = self.state.lock();
        let tied = |entry: &WindowEntry| entry.window.is_some_and(|w| w.rules.bound == Some(qpn));
        (0..state.entries.len())
            .filter(|at| state.entries.get(*at).is_some_and(tied))
            .map(|at| state.rotation.number(at) + FIRST_WINDOW)
            .collect()
    }

    /// Calls `revoke` unless windows are bound to region `index`. No window can be bound during the
    /// call. Returns whether `revoke` was called.
    pub(crate) fn unless_bound(&self, index: usize, revoke: impl FnOnce()) -> bool {
        let state = self.state.lock();
        let free = !state.on_region.contains_key(&index);
        if free {
            revoke();
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::keys::regions::{
        Extent, Keys, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, Regions, look_up,
    };
    use abi::IBV_ACCESS_MW_BIND;
    use soft_local::shm::view::mock;
    use std::collections::HashSet;

    const ALL: u32 = LOCAL_WRITE | IBV_ACCESS_MW_BIND;

    fn ground(access: u32) -> (View, Windows, Keys) {
        let view = mock::view();
        let extent = Extent { pd: 1, va: 0x5000, iova: 0x1000, len: 0x100, access };
        let keys = Regions::new(view, true).register(&extent).expect("room");
        (view, Windows::new(view), keys)
    }

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

    /// The key after `steps` increments by the user (ibv_inc_rkey(3)).
    fn counted(rkey: u32, steps: u32) -> u32 {
        rkey & !0xff | rkey.wrapping_add(steps) & 0xff
    }

    fn still(_: u32) -> bool {
        false
    }

    #[test]
    fn a_window_gives_its_qp_access_to_its_range_only() {
        let (view, windows, region) = ground(ALL);
        let (_, rkey) = windows.allocate(1, true).expect("room");
        let bind = Bind {
            rkey: counted(rkey, 1),
            region: region.rkey,
            addr: 0x1010,
            len: 0x10,
            access: REMOTE_READ,
        };
        assert_eq!(check(&view, bind.rkey, 7, 1, 0x1010, 1, 0), None, "not bound");
        assert_eq!(windows.bind(7, 1, &bind, still), BindResult::Yes);
        assert_eq!(check(&view, bind.rkey, 7, 1, 0x1010, 0x10, REMOTE_READ), Some(0x5010));
        assert_eq!(check(&view, bind.rkey, 7, 1, 0x100f, 1, REMOTE_READ), None);
        assert_eq!(check(&view, bind.rkey, 7, 1, 0x1010, 0x11, REMOTE_READ), None);
        assert_eq!(check(&view, bind.rkey, 7, 1, 0x1010, 1, REMOTE_WRITE), None);
        assert_eq!(check(&view, bind.rkey, 8, 1, 0x1010, 1, REMOTE_READ), None, "another QP");
        assert_eq!(check(&view, bind.rkey, 7, 2, 0x1010, 1, REMOTE_READ), None, "another PD");
        assert_eq!(check(&view, rkey, 7, 1, 0x1010, 1, REMOTE_READ), None, "the old key");
        assert_eq!(windows.bound_to(7).len(), 1);
        assert!(!windows.unless_bound(region.index, || panic!("a window is bound")));
        assert_eq!(windows.invalidate(8, 1, bind.rkey, still), BindResult::Refused);
        assert_eq!(windows.bind(7, 1, &bind, still), BindResult::Refused, "bound already");
        assert_eq!(windows.invalidate(7, 1, bind.rkey, |_| true), BindResult::Later);
        assert_eq!(check(&view, bind.rkey, 7, 1, 0x1010, 1, REMOTE_READ), None);
        assert_eq!(windows.invalidate(7, 1, bind.rkey, still), BindResult::Yes);
        assert_eq!(windows.invalidate(7, 1, bind.rkey, still), BindResult::Refused);
        assert!(windows.unless_bound(region.index, || {}));
    }

    /// IBTA 1.7 10.6.7.
    #[test]
    fn a_window_of_type_1_is_bound_anew_and_unbound_by_length_0() {
        let (view, windows, region) = ground(ALL);
        let (index, rkey) = windows.allocate(1, false).expect("room");
        let first = Bind {
            rkey: counted(rkey, 1),
            region: region.rkey,
            addr: 0x1000,
            len: 8,
            access: REMOTE_READ,
        };
        let second = Bind { rkey: counted(rkey, 2), addr: 0x1020, ..first };
        assert_eq!(windows.bind(7, 1, &first, still), BindResult::Yes);
        assert_eq!(windows.bind(8, 1, &second, |key| key == first.rkey), BindResult::Later);
        assert_eq!(windows.bind(8, 1, &second, still), BindResult::Yes);
        assert_eq!(check(&view, first.rkey, 7, 1, 0x1000, 1, REMOTE_READ), None);
        assert_eq!(check(&view, second.rkey, 9, 1, 0x1020, 1, REMOTE_READ), Some(0x5020));
        assert_eq!(windows.invalidate(8, 1, second.rkey, still), BindResult::Refused, "type 1");
        let unbind = Bind { rkey: counted(rkey, 3), len: 0, ..first };
        assert_eq!(windows.bind(7, 1, &unbind, still), BindResult::Yes);
        assert_eq!(check(&view, unbind.rkey, 7, 1, 0x1000, 0, 0), None);
        assert!(windows.unless_bound(region.index, || {}));
        windows.revoke(index);
        windows.release(index);
        assert_eq!(windows.bind(7, 1, &second, still), BindResult::Refused, "freed");
    }

    #[test]
    fn a_region_limits_the_windows_that_may_be_bound_to_it() {
        let bind = |access, change: fn(&mut Bind)| {
            let (_, windows, region) = ground(access);
            let (_, rkey) = windows.allocate(1, false).expect("room");
            let mut bind =
                Bind { rkey, region: region.rkey, addr: 0x1000, len: 8, access: REMOTE_WRITE };
            change(&mut bind);
            windows.bind(7, 1, &bind, still)
        };
        assert_eq!(bind(ALL, |_| {}), BindResult::Yes);
        assert_eq!(bind(LOCAL_WRITE, |_| {}), BindResult::Refused, "no MW_BIND");
        assert_eq!(bind(IBV_ACCESS_MW_BIND, |_| {}), BindResult::Refused, "no LOCAL_WRITE");
        assert_eq!(bind(IBV_ACCESS_MW_BIND, |b| b.access = REMOTE_READ), BindResult::Yes);
        assert_eq!(bind(ALL, |b| b.len = 0x101), BindResult::Refused);
        assert_eq!(bind(ALL, |b| b.addr = 0xfff), BindResult::Refused);
        assert_eq!(bind(ALL, |b| b.region += 2), BindResult::Refused, "stale region key");
        assert_eq!(bind(ALL, |b| b.rkey += 256), BindResult::Refused, "another generation");
    }

    #[test]
    fn a_key_is_named_by_its_last_eight_bits() {
        let (_, windows, _) = ground(ALL);
        let (index, rkey) = windows.allocate(1, true).expect("room");
        let expected = Some(rkey & !0xff | 12);
        for named in [12_u32, rkey & !0xff | 12, 0xffff_ff0c] {
            assert_eq!(windows.key(index, named), expected);
        }
        windows.revoke(index);
        windows.release(index);
        assert_eq!(windows.key(index, rkey), None);
    }

    #[test]
    fn reused_windows_have_new_unpredictable_keys() {
        let (_, windows, _) = ground(ALL);
        let (mut seen, mut of_entries) = (HashSet::new(), HashMap::<_, Vec<u32>>::new());
        for _ in 0..2000 {
            let (index, rkey) = windows.allocate(1, true).expect("room");
            assert!(seen.insert(rkey >> USER_BITS), "whatever its user counts");
            of_entries.entry(index).or_default().push(rkey);
            windows.revoke(index);
            windows.release(index);
        }
        let tags: HashSet<u32> = of_entries.values().flatten().map(|rkey| rkey & 0xff).collect();
        assert!(tags.len() > 200, "users count from {} places", tags.len());
        let pairs = of_entries.values().flat_map(|keys| keys.windows(2));
        let steps = pairs.map(|pair| (pair[1] >> USER_BITS).wrapping_sub(pair[0] >> USER_BITS));
        let steps: HashSet<u32> = steps.collect();
        assert!(steps.len() > 100, "from one key of an entry to the next: {steps:?}");
    }
}
