//! MR-01 to MR-06, MR-12, MR-13 and MR-15: checks of memory. The layer records registrations, and
//! compares requests with them.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering;

use abi::{
    AccessFlags, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, MrInitMask, ibv_dm, ibv_mr, ibv_mr_init_attr, ibv_mw,
    ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp, ibv_sge, verbs_mr,
};

use cface::Errno;

use crate::checks::Id;
use crate::checks::memory::{self, Binding, BoundTo, Registration};
use crate::checks::others;
use crate::memlock;
use crate::objects::{context, live_pd, root_of};
use crate::refusal::{Subject, WatchedCall, maps};
use crate::report::{Message, emit, wanted};
use crate::stack;
use crate::state::{Cache, Ctx, EPOCH, Mr, Mw, QPS, Qp, REGIONS, REMEMBERED, beneath};
use crate::transitions;

/// MR-05: checks the access of a registration before the call.
fn check_access(call: &str, access: u32) {
    let flags = AccessFlags::from_bits_retain(access);
    let needs = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if flags.intersects(needs) && !flags.contains(AccessFlags::LOCAL_WRITE) {
        emit(
            &Message {
                id: Id::Mr05,
                call,
                object: String::new(),
                text: format!(
                    "access {access:#x} has REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE: EINVAL"
                ),
                remedy: "add IBV_ACCESS_LOCAL_WRITE".into(),
                also: None,
            },
            None,
        );
    }
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
    let mut regions = REGIONS.lock();
    regions.live.insert((ctx.at, made.lkey), region);
    regions.gone.retain(|(c, key, _)| (*c, *key) != (ctx.at, made.lkey));
    EPOCH.fetch_add(1, Ordering::Release);
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
    let mr = unsafe { beneath!(ctx.next, reg_mr)(pd, addr, length, iova, access) };
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
    let mr = unsafe { beneath!(ctx.next, reg_mr_ex)(pd, attr) };
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
    let mr = unsafe { beneath!(ctx.next, reg_dmabuf_mr)(pd, offset, length, iova, fd, access) };
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
    let mr = unsafe { beneath!(ctx.next, reg_dm_mr)(pd, dm, offset, length, access) };
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
    let mr = unsafe { beneath!(ctx.next, alloc_null_mr)(pd) };
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
    let mr = unsafe { beneath!(ctx.next, import_mr)(pd, handle) };
    if mr.is_null() {
        watch.failed(ctx, &Subject::none(Id::Mr19), |_, _| others::import("region", handle));
    } else {
        remember(ctx, pd, mr, None, None, None);
    }
    mr
}

/// MR-06: reports requests in flight that use the key of a region.
fn check_in_flight(call: &str, region: &Mr) {
    if !wanted(Id::Mr06) {
        return;
    }
    for qp in QPS.all() {
        // A connected QP stops after an error, and uses the region no more.
        if qp.ctx.at != region.ctx
            || qp.failed.load(Ordering::Relaxed)
            || qp.state() >= abi::IBV_QPS_SQE
        {
            continue;
        }
        for (queue, what) in [(&qp.send, "send"), (&qp.recv, "receive")] {
            let uses = |flight: &&crate::state::InFlight| {
                flight.due && flight.keys[..usize::from(flight.count)].contains(&region.lkey)
            };
            let (count, first) = {
                let queue = queue.lock();
                (
                    queue.flights.iter().filter(uses).count(),
                    queue.flights.iter().find(uses).copied(),
                )
            };
            let Some(first) = first else { continue };
            emit(
                &Message {
                    id: Id::Mr06,
                    call,
                    object: format!("mr {:#x} (lkey {:#x})", region.at, region.lkey),
                    text: format!(
                        "{count} {what} requests of {} ({}) still use it, the first with wr_id {:#x}",
                        qp.name(),
                        transitions::kind_name(qp.kind),
                        first.wr_id
                    ),
                    remedy: "poll their completions, or destroy the QP, before the region goes"
                        .into(),
                    also: stack::of(first.site).map(|stack| ("which was posted", stack)),
                },
                Some(&qp),
            );
        }
    }
}

fn forget(ctx: &Ctx, lkey: u32) {
    let stack = stack::here();
    let mut regions = REGIONS.lock();
    let region = regions.live.remove(&(ctx.at, lkey));
    regions.gone.push_back((ctx.at, lkey, stack));
    if regions.gone.len() > REMEMBERED {
        regions.gone.pop_front();
    }
    EPOCH.fetch_add(1, Ordering::Release);
    drop(regions);
    if let Some((shift, (start, end))) = region.and_then(|mr| mr.shift.zip(mr.range)) {
        crate::overlap::unregistered(&(start.wrapping_add(shift)..end.wrapping_add(shift)));
    }
}

fn known(ctx: &Ctx, lkey: u32) -> Option<Mr> {
    REGIONS.lock().live.get(&(ctx.at, lkey)).copied()
}

pub(crate) unsafe extern "C" fn dereg_mr(vmr: *mut verbs_mr) -> c_int {
    // SAFETY: the caller's region is live.
    let mr = unsafe { (*vmr).ibv_mr };
    let Some(ctx) = context(mr.context) else { return libc::EINVAL };
    let region = known(ctx, mr.lkey);
    if let Some(region) = &region {
        check_in_flight("ibv_dereg_mr", region);
    }
    let watch = WatchedCall::begin("ibv_dereg_mr");
    crate::advice::mapped(&mr, region.map(|region| region.made));
    // The record is removed before the call, because another thread may get the key at once.
    forget(ctx, mr.lkey);
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next, dereg_mr)(vmr) };
    if result != 0 {
        if let Some(region) = region {
            REGIONS.lock().live.insert((ctx.at, mr.lkey), region);
            EPOCH.fetch_add(1, Ordering::Release);
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
    unsafe { beneath!(ctx.next, unimport_mr)(mr) };
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
    let region = known(ctx, before.lkey);
    let wants = flags.cast_unsigned();
    let watch = WatchedCall::begin("ibv_rereg_mr");
    if wants & IBV_REREG_MR_CHANGE_ACCESS != 0 {
        check_access("ibv_rereg_mr", access.cast_unsigned());
    }
    if let Some(region) = &region {
        check_in_flight("ibv_rereg_mr", region);
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(ctx.next, rereg_mr)(vmr, flags, pd, addr, length, access) };
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

/// The memory that a request uses, and how.
pub(crate) struct MemoryUse<'a> {
    pub(crate) call: &'a str,
    pub(crate) object: &'a dyn Fn() -> String,
    pub(crate) qp: Option<&'a Qp>,
    /// The PD to which regions must belong; 0 if unknown.
    pub(crate) pd: usize,
    /// The data that the device writes to the memory; `None` if the device only reads.
    pub(crate) written: Option<&'a str>,
}

/// MR-01 to MR-04: checks one element of a request.
#[inline]
pub(crate) fn check_sge(
    ctx: &Ctx,
    cache: &mut Cache,
    index: usize,
    sge: &ibv_sge,
    what: &MemoryUse<'_>,
) {
    if sge.length == 0 {
        return;
    }
    let Some(mr) = cache.find(ctx.at, sge.lkey) else {
        unknown_key(ctx, index, sge, what);
        return;
    };
    let inside = mr.range.is_none_or(|(start, end)| {
        sge.addr >= start
            && end.checked_sub(sge.addr).is_some_and(|room| room >= u64::from(sge.length))
    });
    let writable = what.written.is_none()
        || mr.access.is_none_or(|access| access & AccessFlags::LOCAL_WRITE.bits() != 0);
    if inside && writable && (mr.pd == what.pd || what.pd == 0) {
        return;
    }
    let mr = *mr;
    wrong_region(index, sge, &mr, what, inside, writable);
}

#[cold]
fn wrong_region(
    index: usize,
    sge: &ibv_sge,
    mr: &Mr,
    what: &MemoryUse<'_>,
    inside: bool,
    writable: bool,
) {
    let object = (what.object)();
    let say = |id, text: String, remedy: &str| {
        let also = Some(("the region was registered", mr.made));
        let (object, remedy) = (object.clone(), remedy.to_owned());
        emit(&Message { id, call: what.call, object, text, remedy, also }, what.qp);
    };
    if mr.pd != what.pd && what.pd != 0 {
        say(
            Id::Mr03,
            format!(
                "sge {index}: lkey {:#x} is of mr {:#x} in PD {:#x}, the queue is in PD {:#x}",
                sge.lkey, mr.at, mr.pd, what.pd
            ),
            "register the memory in the queue's PD",
        );
    }
    if let (false, Some((start, end))) = (inside, mr.range) {
        let (first, last) = (sge.addr, sge.addr.wrapping_add(u64::from(sge.length)));
        let beyond = if first < start { start - first } else { last.saturating_sub(end) };
        say(
            Id::Mr02,
            format!(
                "sge {index}: bytes [{first:#x}, {last:#x}) leave mr {:#x}, which is [{start:#x}, {end:#x}), by {beyond}",
                mr.at
            ),
            "correct address or length, or register more",
        );
    }
    if let (false, Some(role)) = (writable, what.written) {
        say(
            Id::Mr04,
            format!(
                "sge {index}: {role} is written to mr {:#x}, whose access {:#x} lacks IBV_ACCESS_LOCAL_WRITE",
                mr.at,
                mr.access.unwrap_or(0)
            ),
            "add IBV_ACCESS_LOCAL_WRITE to ibv_reg_mr",
        );
    }
}

#[cold]
fn unknown_key(ctx: &Ctx, index: usize, sge: &ibv_sge, what: &MemoryUse<'_>) {
    let (text, remedy, also) = {
        let regions = REGIONS.lock();
        let of_rkey = regions.live.values().find(|mr| mr.ctx == ctx.at && mr.rkey == sge.lkey);
        let gone = regions.gone.iter().rev().find(|(c, key, _)| (*c, *key) == (ctx.at, sge.lkey));
        let elsewhere = regions.live.values().find(|mr| mr.ctx != ctx.at && mr.lkey == sge.lkey);
        if let Some(mr) = of_rkey {
            let text = format!("it is the rkey of mr {:#x}", mr.at);
            (
                text,
                format!("use mr->lkey, {:#x}", mr.lkey),
                Some(("the region was registered", mr.made)),
            )
        } else if let Some((.., stack)) = gone {
            let remedy =
                "deregister after the last completion, or register again and use the new key";
            (
                "its region was deregistered".into(),
                remedy.into(),
                Some(("the region was deregistered", *stack)),
            )
        } else if let Some(mr) = elsewhere {
            let text = format!("it is the lkey of mr {:#x} of another context", mr.at);
            (
                text,
                "register the memory with this device as well".into(),
                Some(("the region was registered", mr.made)),
            )
        } else {
            let remedy = "set lkey to mr->lkey of the region that holds the buffer";
            ("no region that this layer saw has it".to_owned(), remedy.to_owned(), None)
        }
    };
    emit(
        &Message {
            id: Id::Mr01,
            call: what.call,
            object: (what.object)(),
            text: format!("sge {index}: lkey {:#x} is not registered: {text}", sge.lkey),
            remedy,
            also,
        },
        what.qp,
    );
}

/// MR-04: checks a window that permits remote writes.
///
/// # Safety
/// `info.mr` is NULL or live.
pub(crate) unsafe fn check_window(qp: &Qp, call: &str, wr_id: u64, info: &ibv_mw_bind_info) {
    let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if info.mw_access_flags & writes.bits() == 0 || info.length == 0 {
        return;
    }
    // SAFETY: per the caller.
    let Some(mr) = (unsafe { info.mr.as_ref() }) else { return };
    let Some(mr) = known(&qp.ctx, mr.lkey) else { return };
    let Some(access) = mr.access else { return };
    if access & AccessFlags::LOCAL_WRITE.bits() != 0 {
        return;
    }
    let text = format!(
        "the window is for writing to mr {:#x}, whose access {access:#x} lacks IBV_ACCESS_LOCAL_WRITE",
        mr.at
    );
    let object = format!("{} wr_id {wr_id:#x}", qp.name());
    let remedy = "add IBV_ACCESS_LOCAL_WRITE to ibv_reg_mr".into();
    let also = Some(("the region was registered", mr.made));
    emit(&Message { id: Id::Mr04, call, object, text, remedy, also }, Some(qp));
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = context(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_alloc_mw");
    // SAFETY: the caller's arguments, passed on.
    let mw = unsafe { beneath!(ctx.next, alloc_mw)(pd, kind) };
    if mw.is_null() {
        watch.failed(ctx, &Subject::none(Id::Mr19), |facts, errno| {
            memory::allocate_window(facts, kind, errno)
        });
    } else {
        // SAFETY: the provider has just created the window.
        let rkey = unsafe { (*mw).rkey };
        let mut regions = REGIONS.lock();
        regions.windows.insert(mw as usize, Mw { ctx: ctx.at, pd: pd as usize, rkey });
    }
    mw
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's window is live.
    let (context_of, rkey) = unsafe { ((*mw).context, (*mw).rkey) };
    let Some(ctx) = context(context_of) else { return libc::EINVAL };
    let window = {
        let mut regions = REGIONS.lock();
        regions.stale.retain(|(c, _, now)| (*c, *now) != (ctx.at, rkey));
        regions.windows.remove(&(mw as usize))
    };
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next, dealloc_mw)(mw) };
    if let (true, Some(window)) = (result != 0, window) {
        REGIONS.lock().windows.insert(mw as usize, window);
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
    // SAFETY: the caller's QP is live, and the arguments are readable. A bind uses an entry of the
    // send queue, and completes there if signaled.
    let watch = WatchedCall::begin("ibv_bind_mw");
    // SAFETY: as above.
    let wr_id = unsafe {
        if let Some(known) = QPS.get(qp as usize) {
            check_window(known, "ibv_bind_mw", (*bind).wr_id, &(*bind).bind_info);
        }
        crate::wr::bind_starts(qp, &*bind);
        (*bind).wr_id
    };
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(ctx.next, bind_mw)(qp, mw, bind) };
    if result != 0 {
        crate::wr::bind_failed(qp, wr_id);
        // SAFETY: the arguments are readable, and the region is NULL or live.
        let asked = unsafe { binding(ctx, &(*bind).bind_info) };
        let about = Subject::object(Id::Mr19, format!("wr_id {wr_id:#x}"));
        watch.refused(ctx, result, &about, |_| memory::bind_window(&asked, result));
    } else {
        // SAFETY: the window is live, and has its new key.
        replaced(ctx, mw as usize, unsafe { (*mw).rkey });
    }
    result
}

/// The arguments of a bind.
///
/// # Safety
/// `info.mr` is NULL or live.
unsafe fn binding(ctx: &Ctx, info: &ibv_mw_bind_info) -> Binding {
    // SAFETY: per the caller.
    let region = unsafe { info.mr.as_ref() }.map(|mr| {
        let region = known(ctx, mr.lkey);
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
    let result = unsafe { beneath!(ctx.next, advise_mr)(pd, advice, flags, list, count) };
    if result != 0 {
        let about = Subject::none(Id::Mr19);
        watch.refused(ctx, result, &about, |_| {
            memory::advise(advice, flags, !list.is_null(), count)
        });
    }
    result
}

/// Records the new key of a window.
pub(crate) fn replaced(ctx: &Ctx, mw: usize, now: u32) {
    let mut regions = REGIONS.lock();
    let Some(window) = regions.windows.get_mut(&mw) else { return };
    let before = core::mem::replace(&mut window.rkey, now);
    if before == now {
        return;
    }
    regions.stale.retain(|(c, key, _)| (*c, *key) != (ctx.at, now));
    regions.stale.push_back((ctx.at, before, now));
    if regions.stale.len() > REMEMBERED {
        regions.stale.pop_front();
    }
}

/// MR-15: the present key of a window, if `rkey` is its former key. Asked when a peer refused a
/// request.
pub(crate) fn stale(rkey: u32) -> Option<u32> {
    let regions = REGIONS.lock();
    let taken = regions.live.values().any(|mr| mr.rkey == rkey)
        || regions.windows.values().any(|mw| mw.rkey == rkey);
    if taken {
        return None;
    }
    regions.stale.iter().rev().find(|(_, before, _)| *before == rkey).map(|(.., now)| *now)
}

/// MR-11: the region with this lkey, if no region has the key as its rkey.
pub(crate) fn by_lkey(key: u32) -> Option<Mr> {
    let regions = REGIONS.lock();
    if regions.live.values().any(|mr| mr.rkey == key) {
        return None;
    }
    regions.live.values().find(|mr| mr.lkey == key).copied()
}

/// OB-02: the regions and the number of windows of a PD.
pub(crate) fn of_pd(pd: usize) -> (Vec<Mr>, usize) {
    let regions = REGIONS.lock();
    let of = regions.live.values().filter(|mr| mr.pd == pd).copied().collect();
    (of, regions.windows.values().filter(|mw| mw.pd == pd).count())
}

/// The regions and the number of windows of a context; with `forget`, their records are removed.
pub(crate) fn of_context(ctx: usize, forget: bool) -> (Vec<Mr>, usize) {
    let mut regions = REGIONS.lock();
    let of = regions.live.values().filter(|mr| mr.ctx == ctx).copied().collect();
    let windows = regions.windows.values().filter(|mw| mw.ctx == ctx).count();
    if forget {
        regions.live.retain(|_, mr| mr.ctx != ctx);
        regions.windows.retain(|_, mw| mw.ctx != ctx);
        regions.gone.retain(|(c, ..)| *c != ctx);
        regions.stale.retain(|(c, ..)| *c != ctx);
        EPOCH.fetch_add(1, Ordering::Release);
    }
    (of, windows)
}

/// MR-13: reports regions that are left when their device is closed.
pub(crate) fn left(call: &str, ctx: &Ctx, regions: &[Mr]) {
    let Some(first) = regions.first() else { return };
    let bytes: u64 = regions.iter().filter_map(|mr| mr.range).map(|(start, end)| end - start).sum();
    let mut places: Vec<_> = regions.iter().map(|mr| mr.made).collect();
    places.sort_unstable();
    places.dedup();
    let places = match places.len() {
        1 => String::new(),
        more => format!(", registered at {more} places"),
    };
    let message = Message {
        id: Id::Mr13,
        call,
        object: format!("context {:#x}", ctx.at),
        text: format!(
            "{} regions of {bytes} bytes were never deregistered{places}; the first has lkey {:#x}",
            regions.len(),
            first.lkey
        ),
        remedy: "ibv_dereg_mr each of them, and then ibv_dealloc_pd".into(),
        also: Some(("that region was registered", first.made)),
    };
    emit(&message, None);
}
