//! Contexts: opening, closing and importing the device; event channels of a context; forks.
//! `libibverbs` calls these functions through `device::OPS`; the first open joins the fabric, the
//! last close leaves it.
//!
//! Map of the file:
//!
//! - Threads: application threads. `before_fork`, `in_parent` and `in_child` run in a thread that
//!   forks, `leave_at_exit` at the end of the process.
//! - Locks: `ADAPTER` > the registry of the fabric > `CONTEXTS`. `Context::channels` and
//!   `Service::channels` are leaves.
//! - Mirrors: `Context::orphaned` is set in a forked child and makes every call return early.
//! - `await_comp_event` is the only function in which a thread may be cancelled.

use super::context_identity::ContextIdentity;
use super::frontend::{_verbs_init_and_alloc_context, verbs_set_ops, verbs_uninit_context};
use super::state::{Context, SoftContext};
use super::{
    ah, buf, cq, cq_ex, dm, dmah, domain, emulated, mcast, mr, mr_import, mw, object, orphaned, pd,
    post, qp, query, srq, tags, xrcd,
};
use crate::engine::adapter::Adapter;
use crate::engine::adapter::port::Interfaces;
use crate::engine::queues::channel::alarm;
use crate::engine::queues::channel::{Channel, Reporter};
use crate::engine::ring::helping_state::Helping;
use crate::net::GidTable;
use crate::{config, control};
use abi::*;
use cface::cancel::Uncancelled;
use cface::sync::{Mutex, MutexGuard};
use soft_local::fabric::{RegistryHold, hold_registry};
use soft_sys::notice;
use soft_sys::{Errno, futex, unshared};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once};

/// The number of open devices, and the adapter of the process while any is open.
static ADAPTER: Mutex<OpenDevices> = Mutex::new((0, None));

type OpenDevices = (usize, Option<Arc<Adapter>>);

/// Addresses of the open contexts of this process. A leaf lock.
static CONTEXTS: Mutex<Vec<usize>> = Mutex::new(vec![]);

/// Registers handlers for forks. A fork waits until no other thread opens or closes a device: the
/// child would inherit locked locks, here and in the fabric, which no thread of the child could
/// release. The registry of the fabric is only used below `ADAPTER`, or for a short time.
fn outlive_forks() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: functions of this library, which stays loaded after a device was opened. If the
        // library is unloaded, glibc forgets the handlers.
        let result = unsafe {
            libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child))
        };
        if result != 0 {
            // ENOMEM: without the handlers only a fork at a bad moment is at risk.
            notice!(
                "pthread_atfork failed (error {result}): do not fork while other threads open or close devices"
            );
        }
    });
}

/// The locks that a forking thread holds.
struct ForkLocks {
    // Released in this order.
    _emulated: emulated::listing::Hold,
    contexts: MutexGuard<'static, Vec<usize>>,
    _registry: RegistryHold,
    adapter: MutexGuard<'static, OpenDevices>,
}

thread_local! {
    static HELD: RefCell<Option<ForkLocks>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    let adapter = ADAPTER.lock();
    let registry = hold_registry();
    let held = ForkLocks {
        _emulated: emulated::listing::hold(),
        contexts: CONTEXTS.lock(),
        _registry: registry,
        adapter,
    };
    let _ = HELD.try_with(|place| place.replace(Some(held)));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(RefCell::take);
}

/// The memory of a child belongs to the parent's adapter, and locks may be held by threads of the
/// parent. The child uses none of it, whatever function is called.
extern "C" fn in_child() {
    unshared::give_up_in_child();
    let Ok(Some(mut held)) = HELD.try_with(RefCell::take) else { return };
    for context in held.contexts.drain(..) {
        let soft: *mut SoftContext = std::ptr::with_exposed_provenance_mut(context);
        // SAFETY: the context was open when the process forked, and the child has a single thread.
        unsafe {
            (*(*soft).inner).orphaned.store(true, Ordering::Relaxed);
            verbs_set_ops(&raw mut (*soft).vctx, &raw const orphaned::OPS);
        }
    }
    // The contexts hold references of their own, so the adapter is not dropped here.
    *held.adapter = (0, None);
}

/// The adapter of the process; the first open device joins the fabric. A forked child is a new
/// process and joins again.
fn open_adapter() -> Result<Arc<Adapter>, Errno> {
    outlive_forks();
    let mut current = ADAPTER.lock();
    if let (count, Some(adapter)) = &mut *current
        && !adapter.fabric.is_foreign()
    {
        *count += 1;
        return Ok(Arc::clone(adapter));
    }
    let adapter = config::fabric().and_then(Adapter::join).map_err(|error| {
        notice!("{error}");
        error.errno()
    })?;
    adapter.obey_first(&config::faults());
    control::start(&adapter);
    *current = (1, Some(Arc::clone(&adapter)));
    Ok(adapter)
}

/// Closes a device. With the last device the process leaves the fabric before the function returns.
fn close_adapter(adapter: &Arc<Adapter>) {
    let mut current = ADAPTER.lock();
    let (count, held) = &mut *current;
    // A device opened before a fork belongs to the parent's adapter.
    if !held.as_ref().is_some_and(|held| Arc::ptr_eq(held, adapter)) {
        return;
    }
    *count -= 1;
    if *count == 0 {
        *held = None;
        leave_fabric(adapter);
    }
}

/// Ends the threads of the adapter, then leaves the fabric.
fn leave_fabric(adapter: &Adapter) {
    // Received messages are acknowledged, as by a hardware adapter.
    adapter.send_deferred_acks();
    control::stop(adapter);
    Helping::stop(adapter);
    adapter.leave_wire();
    adapter.fabric.leave();
}

extern "C" fn leave_at_exit() {
    // A process that ends without closing its devices leaves the fabric, too.
    if let Some(current) = ADAPTER.try_lock()
        && let (_, Some(adapter)) = &*current
    {
        leave_fabric(adapter);
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static LEAVE_AT_EXIT: extern "C" fn() = leave_at_exit;

/// ibv_open_device(3).
///
/// # Safety
/// `device` is a device of this provider; called by libibverbs.
pub(super) unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    _cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut verbs_context {
    // SAFETY: libibverbs passes a device of this provider, which outlives its contexts.
    object(|| unsafe { open(device, None) })
}

/// ibv_import_device(3): the new context belongs to the family of the context behind the
/// descriptor. On success the context owns the descriptor.
///
/// # Errors
/// `EINVAL` the descriptor belongs to no context of this device; `ENODEV` to another fabric; the
/// errors of opening.
///
/// # Safety
/// `device` is a device of this provider; called by libibverbs.
pub(super) unsafe extern "C" fn import_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
) -> *mut verbs_context {
    object(|| {
        let identity = ContextIdentity::read(cmd_fd).ok_or(Errno::EINVAL)?;
        // SAFETY: libibverbs passes a device of this provider, which outlives its contexts.
        unsafe { open(device, Some((identity, cmd_fd))) }
    })
}

/// Whether a descriptor is the `cmd_fd` of a context of `device`.
///
/// # Safety
/// `device` is a device of this provider; called by libibverbs.
pub(super) unsafe extern "C" fn is_cmd_fd(device: *mut ibv_device, fd: c_int) -> c_int {
    let identity = std::panic::catch_unwind(|| ContextIdentity::read(fd)).unwrap_or_default();
    // SAFETY: libibverbs passes a device of this provider, which lives during the call.
    let number = unsafe { query::number_of(device) };
    c_int::from(identity.is_some_and(|identity| identity.device == number as u64))
}

/// Opens a context: a new context, or a context of the family of `given`, with its descriptor.
///
/// # Safety
/// `device` is a device of this provider; called by libibverbs.
pub(super) unsafe fn open(
    device: *mut ibv_device,
    given: Option<(ContextIdentity, c_int)>,
) -> Result<*mut verbs_context, Errno> {
    let refused = |errno: &Errno| notice!("cannot open a channel for asynchronous events: {errno}");
    let adapter = open_adapter()?;
    let channel = Channel::of_events(&adapter).and_then(|events| {
        let async_fd = events.duplicate()?;
        Ok((Arc::new(events), async_fd))
    });
    let (events, async_fd) = match channel.inspect_err(refused) {
        Ok(channel) => channel,
        Err(errno) => {
            close_adapter(&adapter);
            return Err(errno);
        }
    };
    // SAFETY: `device` is a device of this provider, which libibverbs keeps during the call.
    let number = unsafe { query::number_of(device) };
    let (identity, cmd_fd) = match identify(&adapter, number, given) {
        Ok(identity) => identity,
        Err(errno) => {
            close_adapter(&adapter);
            return Err(errno);
        }
    };
    adapter.service.add_channel(&events);
    let Interfaces { reported, gid_indices, .. } = &adapter.interfaces;
    let gids = GidTable::new(
        adapter.port.gid_changes(),
        adapter.identity.guid(),
        number,
        reported,
        gid_indices,
    );
    let inner = Context {
        adapter,
        gids,
        report: Reporter(events),
        identity,
        channels: Mutex::default(),
        orphaned: AtomicBool::new(false),
    };
    // SAFETY: `device` belongs to this provider, and the size is the size of a SoftContext, whose
    // first member is the verbs_context that libibverbs fills in. The memory is fresh and owned
    // here until `free_context`.
    let soft: *mut SoftContext = unsafe {
        _verbs_init_and_alloc_context(
            device,
            cmd_fd,
            size_of::<SoftContext>(),
            std::ptr::without_provenance_mut(std::mem::offset_of!(SoftContext, vctx)),
            0,
        )
        .cast()
    };
    if soft.is_null() {
        let errno = Errno::last();
        close_adapter(&inner.adapter);
        return Err(errno);
    }
    // SAFETY: fresh memory of this size, exclusive until the function returns.
    unsafe {
        (*soft).inner = Box::into_raw(Box::new(inner));
        (*soft).vctx.context.async_fd = async_fd.into_raw_fd();
        (*soft).vctx.context.num_comp_vectors = 1;
        verbs_set_ops(&raw mut (*soft).vctx, &raw const OPS);
        CONTEXTS.lock().push(soft.expose_provenance());
        Ok(&raw mut (*soft).vctx)
    }
}

/// The identity of a context, and the descriptor that carries the identity.
fn identify(
    adapter: &Adapter,
    number: usize,
    given: Option<(ContextIdentity, c_int)>,
) -> Result<(ContextIdentity, c_int), Errno> {
    match given {
        Some((identity, _)) if !identity.is_of(&adapter.fabric) => Err(Errno::ENODEV),
        Some(given) => Ok(given),
        None => {
            let identity = ContextIdentity::new(number, &adapter.fabric)?;
            let fd = identity.write_raw().inspect_err(|errno| {
                notice!("a descriptor for the context (memfd_create) was refused: {errno}");
            })?;
            Ok((identity, fd))
        }
    }
}

/// ibv_close_device(3).
///
/// # Safety
/// `context` is an open context of this provider and is not used any more.
pub(super) unsafe extern "C" fn free_context(context: *mut ibv_context) {
    let offset = std::mem::offset_of!(verbs_context, context);
    // SAFETY: `context` lies in the SoftContext made by `open`, whose `inner` comes from a box
    // returned once, here; the application uses neither any more. libibverbs undoes its part of the
    // verbs_context, which closes async_fd, and leaves the calloc memory to this function.
    unsafe {
        let soft: *mut SoftContext = context.byte_sub(offset).cast();
        CONTEXTS.lock().retain(|one| *one != soft.addr());
        let inner = Box::from_raw((*soft).inner);
        close_adapter(&inner.adapter);
        drop(inner);
        verbs_uninit_context(&raw mut (*soft).vctx);
        libc::free(soft.cast());
    }
}

/// ibv_close_device(3) for a context inherited from the parent process.
///
/// # Safety
/// As [`free_context`].
pub(super) unsafe extern "C" fn forget_context(context: *mut ibv_context) {
    let offset = std::mem::offset_of!(verbs_context, context);
    // SAFETY: as in `free_context`, except that `inner`, to which objects refer, stays.
    unsafe {
        let soft: *mut SoftContext = context.byte_sub(offset).cast();
        verbs_uninit_context(&raw mut (*soft).vctx);
        libc::free(soft.cast());
    }
}

/// ibv_create_comp_channel(3): returns the descriptor, or -errno.
///
/// # Safety
/// `context` is an open context of this provider.
pub(super) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller's context is open for the whole call.
    let context = unsafe { Context::of(context) };
    if context.orphaned.load(Ordering::Relaxed) {
        return -Errno::ENODEV.raw();
    }
    match Channel::of_completions(&context.adapter) {
        Ok(channel) => {
            let channel = Arc::new(channel);
            let fd = channel.fd();
            context.adapter.service.add_channel(&channel);
            context.channels.lock().insert(fd, channel);
            fd
        }
        Err(errno) => -errno.raw(),
    }
}

/// ibv_destroy_comp_channel(3).
///
/// # Safety
/// `context` is an open context of this provider; no CQ uses the channel.
pub(super) unsafe extern "C" fn destroy_comp_channel(
    context: *mut ibv_context,
    fd: c_int,
) -> c_int {
    // SAFETY: the caller's context is open for the whole call.
    let context = unsafe { Context::of(context) };
    if !context.orphaned.load(Ordering::Relaxed) {
        let gone = context.channels.lock().remove(&fd);
        drop(gone);
    }
    0
}

/// Sleeps until a completion channel has a record, and serves arrivals meanwhile. Returns 0 or an
/// errno.
///
/// # Safety
/// `context` is an open context of this provider.
pub(super) unsafe extern "C-unwind" fn await_comp_event(
    context: *mut ibv_context,
    fd: c_int,
) -> c_int {
    // SAFETY: the caller's context is open for the whole call: the application does not close it
    // while a thread waits for its events.
    let context = unsafe { Context::of(context) };
    if context.orphaned.load(Ordering::Relaxed) {
        return Errno::ENODEV.raw();
    }
    let mut woken = false;
    loop {
        let (word, expected) = match prepare(context, fd, woken) {
            WaitStep::Return(errno) => return errno,
            WaitStep::Sleep(word, expected) => (word, expected),
        };
        // The only point where the thread may be cancelled. It unwinds through frames without
        // destructors; the values of its sleep are dropped at the end of the thread. SAFETY: the
        // begun sleep keeps the word.
        let result = unsafe { futex::wait_cancellable(word, expected) };
        if let Err(errno) = result {
            alarm::end_sleep_by_signal();
            return errno.raw();
        }
        woken = true;
    }
}

/// Called by ibv_get_async_event(3) after it read an event, which made room for a queued event.
///
/// # Safety
/// `context` is an open context of this provider.
unsafe extern "C" fn async_event(context: *mut ibv_context, _event: *mut ibv_async_event) {
    // SAFETY: the caller's context is open for the whole call.
    let context = unsafe { Context::of(context) };
    if !context.orphaned.load(Ordering::Relaxed) {
        context.report.0.retry();
    }
}

/// The next step of a thread in ibv_get_cq_event(3).
#[derive(Clone, Copy, Debug)]
enum WaitStep {
    Return(c_int),
    Sleep(*const AtomicU32, u32),
}

/// Between sleeps: serves arrivals after a wake-up, looks for a record, and begins the next sleep.
/// A cancellation is delayed.
#[inline(never)]
fn prepare(context: &Context, fd: c_int, woken: bool) -> WaitStep {
    let _whole = Uncancelled::begin();
    if woken && alarm::end_sleep_by_alarm() {
        context.adapter.answer_peers();
    }
    let Some(channel) = context.channel(fd) else { return WaitStep::Return(0) };
    // Each event read by the application makes room for a queued event.
    channel.retry();
    let first = !woken;
    match channel.begin_sleep(|key| {
        first && context.adapter.registry.cq(key).is_some_and(|cq| cq.send_pending_event())
    }) {
        Some((word, expected)) => WaitStep::Sleep(word, expected),
        None => WaitStep::Return(0),
    }
}

/// The verbs of this provider. For missing functions libibverbs returns EOPNOTSUPP.
static OPS: verbs_context_ops = verbs_context_ops {
    advise_mr: Some(mr::advise_mr),
    alloc_buf: Some(buf::alloc_buf),
    alloc_dm: Some(dm::alloc_dm),
    alloc_dmah: Some(dmah::alloc_dmah),
    alloc_mw: Some(mw::alloc_mw),
    alloc_null_mr: Some(mr::alloc_null_mr),
    alloc_parent_domain: Some(domain::alloc_parent_domain),
    alloc_pd: Some(pd::alloc_pd),
    alloc_td: Some(domain::alloc_td),
    async_event: Some(async_event),
    attach_counters_point_flow: Some(super::counters::attach_counters_point_flow),
    attach_mcast: Some(mcast::attach_mcast),
    bind_mw: Some(mw::bind_mw),
    close_xrcd: Some(xrcd::close_xrcd),
    create_ah: Some(ah::create_ah),
    create_counters: Some(super::counters::create_counters),
    create_cq: Some(cq::create_cq),
    create_cq_ex: Some(cq_ex::create_cq_ex),
    create_flow: Some(super::flow::create_flow),
    create_qp: Some(qp::create_qp),
    create_qp_ex: Some(qp::create_qp_ex),
    create_rwq_ind_table: Some(super::wq::create_rwq_ind_table),
    create_srq: Some(srq::create_srq),
    create_srq_ex: Some(srq::create_srq_ex),
    create_wq: Some(super::wq::create_wq),
    dealloc_dmah: Some(dmah::dealloc_dmah),
    dealloc_mw: Some(mw::dealloc_mw),
    dealloc_pd: Some(pd::dealloc_pd),
    dealloc_td: Some(domain::dealloc_td),
    dereg_mr: Some(mr::dereg_mr),
    destroy_ah: Some(ah::destroy_ah),
    destroy_counters: Some(super::counters::destroy_counters),
    destroy_cq: Some(cq::destroy_cq),
    destroy_flow: Some(super::flow::destroy_flow),
    destroy_qp: Some(qp::destroy_qp),
    destroy_rwq_ind_table: Some(super::wq::destroy_rwq_ind_table),
    destroy_srq: Some(srq::destroy_srq),
    destroy_wq: Some(super::wq::destroy_wq),
    detach_mcast: Some(mcast::detach_mcast),
    free_buf: Some(buf::free_buf),
    free_dm: Some(dm::free_dm),
    free_context: Some(free_context),
    import_dm: Some(dm::import_dm),
    import_mr: Some(mr_import::import_mr),
    import_pd: Some(pd::import_pd),
    modify_cq: Some(cq::modify_cq),
    get_srq_num: Some(srq::get_srq_num),
    modify_qp: Some(qp::modify_qp),
    modify_srq: Some(srq::modify_srq),
    open_qp: Some(qp::open_qp),
    open_xrcd: Some(xrcd::open_xrcd),
    modify_wq: Some(super::wq::modify_wq),
    cq_event: Some(cq::cq_event),
    poll_cq: Some(cq::poll_cq),
    post_recv: Some(post::post_recv),
    post_send: Some(post::post_send),
    post_srq_ops: Some(tags::post_srq_ops),
    post_srq_recv: Some(srq::post_srq_recv),
    query_device_ex: Some(query::query_device_ex),
    query_ece: Some(super::ece::query_ece),
    query_port: Some(query::query_port),
    query_port_speed: Some(query::query_port_speed),
    query_qp: Some(qp::query_qp),
    query_rt_values: Some(query::query_rt_values),
    query_srq: Some(srq::query_srq),
    reg_dm_mr: Some(dm::reg_dm_mr),
    reg_dmabuf_mr: Some(super::dmabuf::reg_dmabuf_mr),
    read_counters: Some(super::counters::read_counters),
    reg_mr: Some(mr::reg_mr),
    reg_mr_ex: Some(dmah::reg_mr_ex),
    req_notify_cq: Some(cq::req_notify_cq),
    rereg_mr: Some(mr::rereg_mr),
    resize_cq: Some(cq::resize_cq),
    set_ece: Some(super::ece::set_ece),
    unimport_dm: Some(dm::unimport_dm),
    unimport_mr: Some(mr_import::unimport_mr),
    unimport_pd: Some(pd::unimport_pd),
    ..NO_OPS
};

// SAFETY: all fields are nullable function pointers; zero is None.
pub(super) const NO_OPS: verbs_context_ops = unsafe { std::mem::zeroed() };
