//! MR-05, MR-06, MR-12, MR-19: calls that register memory, and bind windows. The layer records
//! registrations in `regions`, and compares requests with them.
//!
//! Map of this file: helpers, which record a registration and explain a refusal; then the layer's
//! versions of the registration calls; windows and `binding` last. Threads: application threads. No
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
use crate::state::{Ctx, QPS, context, root_of};
use layer_tap::beneath;

/// MR-05, before the call.
fn check_access(call: &str, access: u32) {
    report(call, String::new, element::access(access), None);
}

/// Records a region that was just created in `pd`; the front-end sets the member later, and few
/// providers do. `memory` is the address of the region's first byte in the process.
fn remember(
    ctx: &Ctx,
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
    range: Option<(u64, u64)>,
    access: Option<u32>,
    memory: Option<u64>,
) {
    // SAFETY: the provider has just created the region.
    let made = unsafe { &*mr };
    let region = Mr {
        at: mr as usize,
        ctx: ctx.at,
        pd: root_of(pd as usize),
        lkey: made.lkey,
        rkey: made.rkey,
        range,
        access,
        shift: memory.zip(range).map(|(memory, (start, _))| memory.wrapping_sub(start)),
        made: stack::here(),
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

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = context(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_reg_mr");
    live_pd("ibv_reg_mr", pd);
    check_access("ibv_reg_mr", access.cast_unsigned());
    // SAFETY: the caller's arguments, passed on.
    let mr = unsafe { beneath!(ctx.next(), reg_mr)(pd, addr, length, iova, access) };
    if !mr.is_null() {
        // A NULL address with the largest length makes an implicit region.
        let range = range_of(iova, length, access.cast_unsigned());
        remember(ctx, pd, mr, range, Some(access.cast_unsigned()), Some(addr as u64));
    } else {
        let asked = registration(addr as u64, length, iova, access);
        failed(ctx, &watch, "ibv_reg_mr", &asked);
    }
    mr
}

const fn registration(addr: u64, length: usize, iova: u64, access: c_int) -> Registration {
    Registration { addr, length: length as u64, iova, access: access.cast_unsigned() }
}

/// MR-12 and MR-19: explains a refused registration. `errno` keeps the provider's value.
#[cold]
fn failed(ctx: &Ctx, watch: &WatchedCall, call: &str, asked: &Registration) {
    let errno = Errno::last();
    memlock::check(call, usize::try_from(asked.length).unwrap_or(usize::MAX), errno.raw());
    errno.set();
    watch.failed(ctx, &Subject::none(Id::Mr19), |facts, errno| {
        memory::register(facts, asked, errno, &maps(errno))
    });
}

pub(crate) unsafe extern "C" fn reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    // SAFETY: the caller's PD is live, and the attributes are readable.
    let (context_of, given) = unsafe { ((*pd).context, *attr) };
    let Some(ctx) = context(context_of) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_reg_mr_ex");
    check_access("ibv_reg_mr_ex", given.access.cast_unsigned());
    // SAFETY: the caller's arguments, passed on.
    let mr = unsafe { beneath!(ctx.next(), reg_mr_ex)(pd, attr) };
    if !mr.is_null() {
        let mask = MrInitMask::from_bits_retain(given.comp_mask);
        let start = if mask.contains(MrInitMask::IOVA) {
            Some(given.iova)
        } else {
            mask.contains(MrInitMask::ADDR).then_some(given.addr as u64)
        };
        let access = given.access.cast_unsigned();
        let range = start.and_then(|start| range_of(start, given.length, access));
        let memory = mask.contains(MrInitMask::ADDR).then_some(given.addr as u64);
        remember(ctx, pd, mr, range, Some(access), memory);
    } else {
        let addr = given.addr as u64;
        let has_iova = MrInitMask::from_bits_retain(given.comp_mask).contains(MrInitMask::IOVA);
        let iova = if has_iova { given.iova } else { addr };
        let asked = registration(addr, given.length, iova, given.access);
        failed(ctx, &watch, "ibv_reg_mr_ex", &asked);
    }
    mr
}

pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = context(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_reg_dmabuf_mr");
    check_access("ibv_reg_dmabuf_mr", access.cast_unsigned());
    // SAFETY: the caller's arguments, passed on.
    let mr = unsafe { beneath!(ctx.next(), reg_dmabuf_mr)(pd, offset, length, iova, fd, access) };
    if !mr.is_null() {
        let access = access.cast_unsigned();
        remember(ctx, pd, mr, range_of(iova, length, access), Some(access), None);
    } else {
        let asked = registration(offset, length, iova, access);
        watch.failed(ctx, &Subject::none(Id::Mr19), |facts, errno| {
            memory::register(facts, &asked, errno, "")
        });
    }
    mr
}

pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = context(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_reg_dm_mr");
    // SAFETY: the caller's arguments, passed on.
    let mr = unsafe { beneath!(ctx.next(), reg_dm_mr)(pd, dm, offset, length, access) };
    if mr.is_null() {
        watch.failed(ctx, &Subject::none(Id::Mr19), |facts, errno| {
            memory::register_device_memory(facts, offset, length as u64, access, errno)
        });
    } else {
        remember(ctx, pd, mr, None, Some(access), None);
    }
    mr
}

pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = context(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    // SAFETY: the caller's argument, passed on.
    let mr = unsafe { beneath!(ctx.next(), alloc_null_mr)(pd) };
    if !mr.is_null() {
        remember(ctx, pd, mr, None, None, None);
    }
    mr
}

pub(crate) unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = context(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_import_mr");
    // SAFETY: the caller's arguments, passed on.
    let mr = unsafe { beneath!(ctx.next(), import_mr)(pd, handle) };
    if mr.is_null() {
        watch.failed(ctx, &Subject::none(Id::Mr19), |_, _| others::import("region", handle));
    } else {
        remember(ctx, pd, mr, None, None, None);
    }
    mr
}

fn forget(ctx: &Ctx, lkey: u32) {
    let region = regions::remove(ctx.at, lkey, stack::here());
    if let Some((shift, (start, end))) = region.and_then(|mr| mr.shift.zip(mr.range)) {
        crate::overlap::unregistered(&(start.wrapping_add(shift)..end.wrapping_add(shift)));
    }
}

pub(crate) unsafe extern "C" fn dereg_mr(vmr: *mut verbs_mr) -> c_int {
    // SAFETY: the caller's region is live.
    let mr = unsafe { (*vmr).ibv_mr };
    let Some(ctx) = context(mr.context) else { return libc::EINVAL };
    let region = regions::known(ctx.at, mr.lkey);
    if let Some(region) = &region {
        check_region_in_flight("ibv_dereg_mr", region);
    }
    let watch = WatchedCall::begin("ibv_dereg_mr");
    crate::advice::mapped(&mr, region.map(|region| region.made));
    // The record is removed before the call, because another thread may get the key at once.
    forget(ctx, mr.lkey);
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next(), dereg_mr)(vmr) };
    if result != 0 {
        if let Some(region) = region {
            regions::restore(region);
        }
        let object = format!("mr with lkey {:#x}", mr.lkey);
        let about = Subject::object(Id::Mr19, object);
        watch.refused(ctx, result, &about, |_| memory::deregister(result));
    }
    result
}

pub(crate) unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the caller's region is live.
    let (context_of, lkey) = unsafe { ((*mr).context, (*mr).lkey) };
    let Some(ctx) = context(context_of) else { return };
    forget(ctx, lkey);
    // SAFETY: the caller's argument, passed on.
    unsafe { beneath!(ctx.next(), unimport_mr)(mr) };
}

pub(crate) unsafe extern "C" fn rereg_mr(
    vmr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: the caller's region is live.
    let before = unsafe { (*vmr).ibv_mr };
    let Some(ctx) = context(before.context) else { return libc::EINVAL };
    let region = regions::known(ctx.at, before.lkey);
    let wants = flags.cast_unsigned();
    let watch = WatchedCall::begin("ibv_rereg_mr");
    if wants & IBV_REREG_MR_CHANGE_ACCESS != 0 {
        check_access("ibv_rereg_mr", access.cast_unsigned());
    }
    if let Some(region) = &region {
        check_region_in_flight("ibv_rereg_mr", region);
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(ctx.next(), rereg_mr)(vmr, flags, pd, addr, length, access) };
    if result != 0 {
        let asked = registration(addr as u64, length, addr as u64, access);
        // SAFETY: if the flags name a PD, the PD is NULL or live.
        let elsewhere = wants & IBV_REREG_MR_CHANGE_PD != 0
            && unsafe { pd.as_ref() }.is_none_or(|pd| pd.context != before.context);
        let about = Subject::object(Id::Mr19, format!("mr with lkey {:#x}", before.lkey));
        watch.refused(ctx, result, &about, |facts| {
            memory::register_again(facts, wants, &asked, elsewhere, result, &maps(result))
        });
    }
    if let (0, Some(old)) = (result, region) {
        forget(ctx, before.lkey);
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
            _ => (range_of(addr as u64, length, access.unwrap_or(0)), Some(addr as u64)),
        };
        let of = if wants & IBV_REREG_MR_CHANGE_PD != 0 { pd } else { before.pd };
        remember(ctx, of, vmr.cast(), range, access, memory);
    }
    result
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = context(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_alloc_mw");
    // SAFETY: the caller's arguments, passed on.
    let mw = unsafe { beneath!(ctx.next(), alloc_mw)(pd, kind) };
    if mw.is_null() {
        watch.failed(ctx, &Subject::none(Id::Mr19), |facts, errno| {
            memory::allocate_window(facts, kind, errno)
        });
    } else {
        // SAFETY: the provider has just created the window.
        let rkey = unsafe { (*mw).rkey };
        regions::insert_window(mw as usize, Mw { ctx: ctx.at, pd: pd as usize, rkey });
    }
    mw
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's window is live.
    let (context_of, rkey) = unsafe { ((*mw).context, (*mw).rkey) };
    let Some(ctx) = context(context_of) else { return libc::EINVAL };
    let window = regions::remove_window(ctx.at, mw as usize, rkey);
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next(), dealloc_mw)(mw) };
    if let (true, Some(window)) = (result != 0, window) {
        regions::insert_window(mw as usize, window);
    }
    result
}

pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the caller's QP is live.
    let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
    let watch = WatchedCall::begin("ibv_bind_mw");
    // SAFETY: the arguments are readable, and the region is NULL or live. A bind uses an entry of
    // the send queue, and completes there if signaled.
    let (wr_id, flags, info, lkey) = unsafe {
        let info = (*bind).bind_info;
        ((*bind).wr_id, (*bind).send_flags, info, info.mr.as_ref().map(|mr| mr.lkey))
    };
    if let Some(known) = QPS.get(qp as usize) {
        check_window(known, "ibv_bind_mw", wr_id, &info, lkey);
    }
    flights::bind_starts(qp as usize, wr_id, flags);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(ctx.next(), bind_mw)(qp, mw, bind) };
    if result != 0 {
        flights::bind_failed(qp as usize, wr_id);
        let asked = binding(ctx, &info, lkey);
        let about = Subject::object(Id::Mr19, format!("wr_id {wr_id:#x}"));
        watch.refused(ctx, result, &about, |_| memory::bind_window(&asked, result));
    } else {
        // SAFETY: the window is live, and has its new key.
        regions::replace_key(ctx.at, mw as usize, unsafe { (*mw).rkey });
    }
    result
}

/// The arguments of a bind. `lkey` is that of its region; `None` for NULL.
fn binding(ctx: &Ctx, info: &ibv_mw_bind_info, lkey: Option<u32>) -> Binding {
    let region = lkey.map(|lkey| {
        let region = regions::known(ctx.at, lkey);
        BoundTo {
            range: region.and_then(|region| region.range),
            access: region.and_then(|region| region.access),
        }
    });
    let ibv_mw_bind_info { addr, length, mw_access_flags: access, .. } = *info;
    Binding { region, addr, length, access }
}

/// ibv_advise_mr(3).
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = context(unsafe { (*pd).context }) else { return libc::EINVAL };
    let watch = WatchedCall::begin("ibv_advise_mr");
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(ctx.next(), advise_mr)(pd, advice, flags, list, count) };
    if result != 0 {
        let about = Subject::none(Id::Mr19);
        watch.refused(ctx, result, &about, |_| {
            memory::advise(advice, flags, !list.is_null(), count)
        });
    }
    result
}
