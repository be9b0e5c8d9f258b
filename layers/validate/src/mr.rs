//! MR-05, MR-06, MR-12, MR-19: calls that register memory, and bind windows. The layer records
//! registrations in `regions`, and compares requests with them.
//!
//! Map of this file: helpers, which record a registration and explain a refusal; `binding`; then
//! the calls of the tap, registrations before windows. Threads: application threads. No
//! lock is held while the provider is called.

use core::ffi::{c_int, c_uint, c_void};

use abi::{
    AccessFlags, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, MrInitMask, ibv_dm, ibv_mr, ibv_mr_init_attr, ibv_mw,
    ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp, ibv_sge, verbs_mr,
};

use cface::Errno;

use crate::arguments::live_pd;
use crate::checks::element::{self, Mr};
use crate::checks::memory::{self, Binding, BoundTo, Registration};
use crate::checks::{Id, others};
use crate::flights::{self, check_region_in_flight, check_window};
use crate::memlock;
use crate::refusal::{Subject, WatchedCall, maps};
use crate::regions::{self, Mw};
use crate::report::report;
use crate::stack;
use crate::state::{QPS, context, root_of};
use layer_tap::argument::Bind;
use layer_tap::{Arg, Device, MemoryCalls, Next, Returned};

use crate::checks::given::{Facts, Judged};
use crate::watcher::Validate;

/// MR-05, before the call.
fn check_access(call: &str, access: u32) {
    report(call, String::new, element::access(access), None);
}

/// Records a region that was just created in `pd`; the front-end sets the member later, and few
/// providers do. `memory` is the address of the region's first byte in the process.
fn record_region(
    device: &Device,
    pd: usize,
    mr: Arg<'_, ibv_mr>,
    range: Option<(u64, u64)>,
    access: Option<u32>,
    memory: Option<u64>,
) {
    let (lkey, rkey) = mr.keys();
    let region = Mr {
        address_of_mr: mr.at(),
        ctx: device.at,
        pd: root_of(pd),
        lkey,
        rkey,
        range,
        access,
        shift: memory.zip(range).map(|(memory, (start, _))| memory.wrapping_sub(start)),
        registered_by: stack::current_stack(),
    };
    crate::advice::registered();
    regions::insert(region);
}

fn range_of(iova: u64, length: usize, access: u32) -> Option<(u64, u64)> {
    let start = if access & AccessFlags::ZERO_BASED.bits() != 0 { 0 } else { iova };
    // An implicit region covers all memory, by paging on demand.
    if access & AccessFlags::ON_DEMAND.bits() != 0 && length == usize::MAX {
        return None;
    }
    Some((start, start.saturating_add(length as u64)))
}

const fn registration(addr: u64, length: usize, iova: u64, access: c_int) -> Registration {
    Registration { addr, length: length as u64, iova, access: access.cast_unsigned() }
}

/// MR-12 and MR-19: explains a refused registration. `errno` keeps the provider's value.
#[cold]
fn failed(device: &Device, watch: &WatchedCall, call: &str, asked: &Registration) {
    let errno = Errno::last();
    memlock::check(call, usize::try_from(asked.length).unwrap_or(usize::MAX), errno.raw());
    errno.set();
    explain(device, watch, |facts, errno| memory::register(facts, asked, errno, &maps(errno)));
}

/// MR-19: explains a call that made no object.
#[cold]
fn explain(device: &Device, watch: &WatchedCall, judge: impl FnOnce(&Facts<'_>, c_int) -> Judged) {
    if let Some(ctx) = context(device.at) {
        watch.failed(ctx, &Subject::without_object(Id::Mr19), judge);
    }
}

/// Explains a call that returned an errno.
#[cold]
fn refused(
    device: &Device,
    watch: &WatchedCall,
    result: &Returned<c_int>,
    about: &Subject<'_>,
    judge: impl FnOnce(&Facts<'_>) -> Judged,
) {
    if let Some(ctx) = context(device.at) {
        watch.refused(ctx, result.get(), about, judge);
    }
}

/// Removes the record of a region.
fn remove_region(device: &Device, lkey: u32) {
    let region = regions::remove(device.at, lkey, stack::current_stack());
    if let Some((shift, (start, end))) = region.and_then(|mr| mr.shift.zip(mr.range)) {
        crate::overlap::unregistered(&(start.wrapping_add(shift)..end.wrapping_add(shift)));
    }
}

/// The arguments of a bind. `lkey` is that of its region; `None` for NULL.
fn binding(device: usize, info: &ibv_mw_bind_info, lkey: Option<u32>) -> Binding {
    let region = lkey.map(|lkey| {
        let region = regions::find_region(device, lkey);
        BoundTo {
            range: region.and_then(|region| region.range),
            access: region.and_then(|region| region.access),
        }
    });
    let ibv_mw_bind_info { addr, length, mw_access_flags: access, .. } = *info;
    Binding { region, addr, length, access }
}

#[allow(clippy::too_many_arguments, reason = "the calls have so many")]
impl MemoryCalls for Validate {
    fn reg_mr<F: FnOnce() -> *mut ibv_mr>(
        device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        addr: Arg<'_, c_void>,
        length: usize,
        iova: u64,
        access: c_int,
        next: Next<F>,
    ) -> Returned<*mut ibv_mr> {
        let watch = WatchedCall::begin("ibv_reg_mr");
        live_pd("ibv_reg_mr", pd);
        check_access("ibv_reg_mr", access.cast_unsigned());
        let made = next.call();
        let addr = addr.at() as u64;
        if let Some(mr) = made.object() {
            // A NULL address with the largest length makes an implicit region.
            let range = range_of(iova, length, access.cast_unsigned());
            record_region(device, pd.at(), mr, range, Some(access.cast_unsigned()), Some(addr));
        } else {
            failed(device, &watch, "ibv_reg_mr", &registration(addr, length, iova, access));
        }
        made
    }

    fn reg_mr_ex<F: FnOnce() -> *mut ibv_mr>(
        device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        attr: Arg<'_, ibv_mr_init_attr>,
        next: Next<F>,
    ) -> Returned<*mut ibv_mr> {
        let Some(given) = attr.read() else { return next.call() };
        let watch = WatchedCall::begin("ibv_reg_mr_ex");
        check_access("ibv_reg_mr_ex", given.access.cast_unsigned());
        let made = next.call();
        let mask = MrInitMask::from_bits_retain(given.comp_mask);
        let addr = given.addr as u64;
        if let Some(mr) = made.object() {
            let memory = mask.contains(MrInitMask::ADDR).then_some(addr);
            let start = if mask.contains(MrInitMask::IOVA) { Some(given.iova) } else { memory };
            let access = given.access.cast_unsigned();
            let range = start.and_then(|start| range_of(start, given.length, access));
            record_region(device, pd.at(), mr, range, Some(access), memory);
        } else {
            let iova = if mask.contains(MrInitMask::IOVA) { given.iova } else { addr };
            let asked = registration(addr, given.length, iova, given.access);
            failed(device, &watch, "ibv_reg_mr_ex", &asked);
        }
        made
    }

    fn reg_dmabuf_mr<F: FnOnce() -> *mut ibv_mr>(
        device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        offset: u64,
        length: usize,
        iova: u64,
        _fd: c_int,
        access: c_int,
        next: Next<F>,
    ) -> Returned<*mut ibv_mr> {
        let watch = WatchedCall::begin("ibv_reg_dmabuf_mr");
        check_access("ibv_reg_dmabuf_mr", access.cast_unsigned());
        let made = next.call();
        if let Some(mr) = made.object() {
            let access = access.cast_unsigned();
            record_region(device, pd.at(), mr, range_of(iova, length, access), Some(access), None);
        } else {
            let asked = registration(offset, length, iova, access);
            explain(device, &watch, |facts, errno| memory::register(facts, &asked, errno, ""));
        }
        made
    }

    fn reg_dm_mr<F: FnOnce() -> *mut ibv_mr>(
        device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        _dm: Arg<'_, ibv_dm>,
        offset: u64,
        length: usize,
        access: c_uint,
        next: Next<F>,
    ) -> Returned<*mut ibv_mr> {
        let watch = WatchedCall::begin("ibv_reg_dm_mr");
        let made = next.call();
        match made.object() {
            Some(mr) => record_region(device, pd.at(), mr, None, Some(access), None),
            None => explain(device, &watch, |facts, errno| {
                memory::register_device_memory(facts, offset, length as u64, access, errno)
            }),
        }
        made
    }

    fn alloc_null_mr<F: FnOnce() -> *mut ibv_mr>(
        device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        next: Next<F>,
    ) -> Returned<*mut ibv_mr> {
        let made = next.call();
        if let Some(mr) = made.object() {
            record_region(device, pd.at(), mr, None, None, None);
        }
        made
    }

    fn import_mr<F: FnOnce() -> *mut ibv_mr>(
        device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        handle: u32,
        next: Next<F>,
    ) -> Returned<*mut ibv_mr> {
        let watch = WatchedCall::begin("ibv_import_mr");
        let made = next.call();
        match made.object() {
            Some(mr) => record_region(device, pd.at(), mr, None, None, None),
            None => explain(device, &watch, |_, _| others::import("region", handle)),
        }
        made
    }

    fn dereg_mr<F: FnOnce() -> c_int>(
        device: &'static Device,
        mr: Arg<'_, verbs_mr>,
        next: Next<F>,
    ) -> Returned<c_int> {
        let Some(mr) = mr.region() else { return next.call() };
        let region = regions::find_region(device.at, mr.lkey);
        if let Some(region) = &region {
            check_region_in_flight("ibv_dereg_mr", region);
        }
        let watch = WatchedCall::begin("ibv_dereg_mr");
        crate::advice::mapped(&mr, region.map(|region| region.registered_by));
        // The record is removed before the call, because another thread may get the key at once.
        remove_region(device, mr.lkey);
        let result = next.call();
        if result.get() != 0 {
            if let Some(region) = region {
                regions::restore(region);
            }
            let about = Subject::object(Id::Mr19, format!("mr with lkey {:#x}", mr.lkey));
            refused(device, &watch, &result, &about, |_| memory::deregister(result.get()));
        }
        result
    }

    fn unimport_mr<F: FnOnce()>(
        device: &'static Device,
        mr: Arg<'_, ibv_mr>,
        next: Next<F>,
    ) -> Returned<()> {
        remove_region(device, mr.keys().0);
        next.call()
    }

    fn rereg_mr<F: FnOnce() -> c_int>(
        device: &'static Device,
        mr: Arg<'_, verbs_mr>,
        flags: c_int,
        pd: Arg<'_, ibv_pd>,
        addr: Arg<'_, c_void>,
        length: usize,
        access: c_int,
        next: Next<F>,
    ) -> Returned<c_int> {
        let Some(before) = mr.region() else { return next.call() };
        let region = regions::find_region(device.at, before.lkey);
        let wants = flags.cast_unsigned();
        let watch = WatchedCall::begin("ibv_rereg_mr");
        if wants & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            check_access("ibv_rereg_mr", access.cast_unsigned());
        }
        if let Some(region) = &region {
            check_region_in_flight("ibv_rereg_mr", region);
        }
        let result = next.call();
        let addr = addr.at() as u64;
        if result.get() != 0 {
            let asked = registration(addr, length, addr, access);
            let elsewhere = wants & IBV_REREG_MR_CHANGE_PD != 0 && pd.context() != device.at;
            let about = Subject::object(Id::Mr19, format!("mr with lkey {:#x}", before.lkey));
            let errno = result.get();
            refused(device, &watch, &result, &about, |facts| {
                memory::register_again(facts, wants, &asked, elsewhere, errno, &maps(errno))
            });
        }
        if let (0, Some(old)) = (result.get(), region) {
            remove_region(device, before.lkey);
            let access = if wants & IBV_REREG_MR_CHANGE_ACCESS != 0 {
                Some(access.cast_unsigned())
            } else {
                old.access
            };
            let (range, memory) = match wants & IBV_REREG_MR_CHANGE_TRANSLATION {
                0 => {
                    let memory = old.shift.zip(old.range);
                    (old.range, memory.map(|(shift, (start, _))| start.wrapping_add(shift)))
                }
                _ => (range_of(addr, length, access.unwrap_or(0)), Some(addr)),
            };
            let of = match wants & IBV_REREG_MR_CHANGE_PD {
                0 => before.pd as usize,
                _ => pd.at(),
            };
            record_region(device, of, mr.public(), range, access, memory);
        }
        result
    }

    fn alloc_mw<F: FnOnce() -> *mut ibv_mw>(
        device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        kind: ibv_mw_type,
        next: Next<F>,
    ) -> Returned<*mut ibv_mw> {
        let watch = WatchedCall::begin("ibv_alloc_mw");
        let made = next.call();
        match made.object() {
            Some(mw) => {
                let window = Mw { ctx: device.at, pd: pd.at(), rkey: mw.rkey() };
                regions::insert_window(mw.at(), window);
            }
            None => {
                explain(device, &watch, |facts, errno| memory::allocate_window(facts, kind, errno))
            }
        }
        made
    }

    fn dealloc_mw<F: FnOnce() -> c_int>(
        device: &'static Device,
        mw: Arg<'_, ibv_mw>,
        next: Next<F>,
    ) -> Returned<c_int> {
        let window = regions::remove_window(device.at, mw.at(), mw.rkey());
        let result = next.call();
        if let (true, Some(window)) = (result.get() != 0, window) {
            regions::insert_window(mw.at(), window);
        }
        result
    }

    fn bind_mw<F: FnOnce() -> c_int>(
        device: &'static Device,
        qp: Arg<'_, ibv_qp>,
        mw: Arg<'_, ibv_mw>,
        bind: Arg<'_, ibv_mw_bind>,
        next: Next<F>,
    ) -> Returned<c_int> {
        let watch = WatchedCall::begin("ibv_bind_mw");
        let Some(Bind { wr_id, flags, info, lkey }) = bind.bind() else { return next.call() };
        if let Some(known) = QPS.get(qp.at()) {
            check_window(known, "ibv_bind_mw", wr_id, &info, lkey);
        }
        // A bind uses an entry of the send queue, and completes there if signaled.
        flights::bind_starts(qp.at(), wr_id, flags);
        let result = next.call();
        if result.get() != 0 {
            flights::bind_failed(qp.at(), wr_id);
            let asked = binding(device.at, &info, lkey);
            let about = Subject::object(Id::Mr19, format!("wr_id {wr_id:#x}"));
            refused(device, &watch, &result, &about, |_| memory::bind_window(&asked, result.get()));
        } else {
            regions::replace_key(device.at, mw.at(), mw.rkey());
        }
        result
    }

    fn advise_mr<F: FnOnce() -> c_int>(
        device: &'static Device,
        _pd: Arg<'_, ibv_pd>,
        advice: u32,
        flags: u32,
        list: Arg<'_, ibv_sge>,
        count: u32,
        next: Next<F>,
    ) -> Returned<c_int> {
        let watch = WatchedCall::begin("ibv_advise_mr");
        let result = next.call();
        if result.get() != 0 {
            refused(device, &watch, &result, &Subject::without_object(Id::Mr19), |_| {
                memory::advise(advice, flags, !list.is_null(), count)
            });
        }
        result
    }
}
