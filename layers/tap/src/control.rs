//! Calls of the control path. The tap gives each call to the watcher, which calls the function
//! beneath. A watcher that records calls gets the words of the call afterwards.
//!
//! Map of this file: `Outcome`; `report_call`; the macros `calls!` and `entry!`; the traits of
//! calls, by object, with their entry points; entry points that do more; `fill`.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use abi::{
    IBV_CQ_ATTR_MODERATE, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD,
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA,
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TM, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_WQ_ATTR_FLAGS, IBV_WQ_INIT_ATTR_FLAGS,
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_advise_mr_advice, ibv_ah, ibv_ah_attr,
    ibv_alloc_dm_attr, ibv_async_event, ibv_comp_channel, ibv_comp_cntr, ibv_comp_cntr_caps,
    ibv_comp_cntr_init_attr, ibv_context, ibv_counter_attach_attr, ibv_counters,
    ibv_counters_init_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_dm,
    ibv_ece, ibv_flow, ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr, ibv_gid,
    ibv_modify_cq_attr, ibv_mr, ibv_mr_init_attr, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_ops_wr,
    ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attach_comp_cntr_attr,
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_qp_rate_limit_attr,
    ibv_query_device_ex_input, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_sge, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_values_ex,
    ibv_wq, ibv_wq_attr, ibv_wq_init_attr, ibv_xrcd, ibv_xrcd_init_attr, verbs_context_ops,
    verbs_mr,
};

use crate::argument::{Argument, Next, Returned};
use crate::{CONTEXTS, CQS, Call, Device, Times, Watcher, beneath, now};

/// The result of a call, which has a word for the record and an errno.
pub(crate) trait Outcome: Copy {
    /// The result for a context that the tap does not know.
    const UNKNOWN: Self;
    fn word(self) -> u64;
    fn failed(self) -> bool;
    /// The errno of a failed call.
    fn error(self) -> i32;
}

impl Outcome for c_int {
    const UNKNOWN: Self = libc::EINVAL;

    fn word(self) -> u64 {
        i64::from(self).cast_unsigned()
    }

    fn failed(self) -> bool {
        self != 0
    }

    fn error(self) -> i32 {
        if self < 0 { errno() } else { self }
    }
}

impl<T> Outcome for *mut T {
    const UNKNOWN: Self = core::ptr::null_mut();

    fn word(self) -> u64 {
        self as u64
    }

    fn failed(self) -> bool {
        self.is_null()
    }

    fn error(self) -> i32 {
        errno()
    }
}

impl Outcome for () {
    const UNKNOWN: Self = ();

    fn word(self) -> u64 {
        0
    }

    fn failed(self) -> bool {
        false
    }

    fn error(self) -> i32 {
        0
    }
}

/// The calling thread's errno.
pub(crate) fn errno() -> i32 {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// Reports a call that returned just now. The calling thread's errno is preserved.
pub(crate) fn report_call<W: Watcher>(call: Call, start: u64, result: impl Outcome, args: &[u64]) {
    let saved = errno();
    let error = if result.failed() { result.error() } else { 0 };
    W::called(call, Times { start, end: now() }, result.word(), error, args);
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = saved };
}

/// The context at this address. The chain passes only contexts that were attached.
#[inline]
pub(crate) fn context(at: *mut ibv_context) -> Option<&'static Device> {
    CONTEXTS.get(at as usize)
}

/// As [`context`], with shared ownership.
pub(crate) fn shared(at: *mut ibv_context) -> Option<Arc<Device>> {
    CONTEXTS.share(at as usize)
}

/// A member that the mask names (`comp_mask`, if no other mask is given), otherwise 0: an older
/// program's structure may end before the member.
macro_rules! named {
    ($attr:ident, $bit:ident, $($member:ident).+) => {
        named!($attr, comp_mask, $bit, $($member).+)
    };
    ($attr:ident, $mask:ident, $bit:ident, $($member:ident).+) => {
        if u64::from((*$attr).$mask) & u64::from($bit) != 0 { (*$attr).$($member).+ as u64 } else { 0 }
    };
}

/// Defines a trait of calls, the entry points of these calls, and the function that installs them.
///
/// `recorded` calls have words, as `Call::args` describes them. The tap does not install
/// `unrecorded` calls for a watcher that only records. The entry points of the calls `by hand` are
/// elsewhere.
macro_rules! calls {
    (
        $(#[$doc:meta])* trait $trait:ident, $fill:ident:
        $($kind:ident $name:ident($($arg:ident: $ty:ty),+) -> $ret:ty, of $ctx:expr $(, [$($word:expr),*])?;)*
        + by hand:
        $($special:ident($($special_arg:ident: $special_ty:ty),+) -> $special_ret:ty;)*
    ) => {
        $(#[$doc])*
        #[allow(unused_variables, reason = "a call that is only passed on uses no argument")]
        #[allow(clippy::too_many_arguments, reason = "the calls have so many")]
        pub trait $trait: 'static {
            $(
                #[doc = concat!("`", stringify!($name), "` of `verbs_context_ops`.")]
                #[inline]
                fn $name<F: FnOnce() -> $ret>(device: &'static Device, $($arg: <$ty as Argument>::Safe<'_>),+, next: Next<F>) -> Returned<$ret> {
                    next.call()
                }
            )*
            $(
                #[doc = concat!("`", stringify!($special), "` of `verbs_context_ops`.")]
                #[inline]
                fn $special<F: FnOnce() -> $special_ret>(device: &'static Device, $($special_arg: <$special_ty as Argument>::Safe<'_>),+, next: Next<F>) -> Returned<$special_ret> {
                    next.call()
                }
            )*
        }

        $(entry! { $kind $name($($arg: $ty),+) -> $ret, of $ctx $(, [$($word),*])? })*

        #[allow(unused_variables, reason = "one object has calls by hand only")]
        fn $fill<W: Watcher>(mine: &mut verbs_context_ops) {
            $(install!(W, mine, $kind $name);)*
        }
    };
}

macro_rules! entry {
    (recorded $name:ident($($arg:ident: $ty:ty),+) -> $ret:ty, of $ctx:expr, [$($word:expr),*]) => {
        unsafe extern "C" fn $name<W: Watcher>($($arg: $ty),+) -> $ret {
            // SAFETY: the objects are live, as for the provider.
            #[allow(unused_unsafe, reason = "not all of them read an object")]
            let Some(device) = context(unsafe { $ctx }) else { return Outcome::UNKNOWN };
            #[allow(unused_unsafe, reason = "not all of them read an object")]
            // SAFETY: the objects are live and the structures readable, as for the provider.
            let args = W::RECORDS.then(|| unsafe { [$($word as u64),*] });
            let start = start_time::<W>();
            // SAFETY: the caller's arguments, passed on.
            let next = Next::new(|| unsafe { beneath!(device.next, $name)($($arg),+) });
            // SAFETY: the caller's arguments are valid until this call returns.
            let result = unsafe { W::$name(device, $($arg.safe()),+, next) }.get();
            if let Some(args) = args {
                report_call::<W>(Call::$name, start, result, &args);
            }
            result
        }
    };
    (unrecorded $name:ident($($arg:ident: $ty:ty),+) -> $ret:ty, of $ctx:expr) => {
        unsafe extern "C" fn $name<W: Watcher>($($arg: $ty),+) -> $ret {
            // SAFETY: the objects are live, as for the provider.
            #[allow(unused_unsafe, reason = "not all of them read an object")]
            let Some(device) = context(unsafe { $ctx }) else { return Outcome::UNKNOWN };
            // SAFETY: the caller's arguments, passed on.
            let next = Next::new(|| unsafe { beneath!(device.next, $name)($($arg),+) });
            // SAFETY: the caller's arguments are valid until this call returns.
            unsafe { W::$name(device, $($arg.safe()),+, next) }.get()
        }
    };
}

macro_rules! install {
    ($watcher:ident, $mine:ident, recorded $name:ident) => {
        $mine.$name = Some($name::<$watcher>);
    };
    ($watcher:ident, $mine:ident, unrecorded $name:ident) => {
        if !$watcher::RECORDS {
            $mine.$name = Some($name::<$watcher>);
        }
    };
}

/// The result of a call that has none.
type Nothing = ();

/// The time before a call, for a watcher that records calls.
pub(crate) fn start_time<W: Watcher>() -> u64 {
    if W::RECORDS { now() } else { 0 }
}

calls! {
    /// Calls on domains, address handles and shared receive queues, and the end of a context.
    trait ObjectCalls, fill_objects:
    recorded alloc_pd(at: *mut ibv_context) -> *mut ibv_pd, of at, [at];
    recorded alloc_parent_domain(at: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd, of at, [at, (*attr).pd, (*attr).td, (*attr).comp_mask];
    recorded dealloc_pd(pd: *mut ibv_pd) -> c_int, of (*pd).context, [pd];
    recorded destroy_ah(ah: *mut ibv_ah) -> c_int, of (*ah).context, [ah];
    recorded create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq, of (*pd).context, [pd, (*attr).attr.max_wr, (*attr).attr.max_sge, (*attr).attr.srq_limit];
    recorded create_srq_ex(at: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq, of at, [
        at, (*attr).attr.max_wr, (*attr).attr.max_sge, if (*attr).comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 { (*attr).srq_type } else { IBV_SRQT_BASIC },
        named!(attr, IBV_SRQ_INIT_ATTR_CQ, cq), (*attr).comp_mask, named!(attr, IBV_SRQ_INIT_ATTR_PD, pd), named!(attr, IBV_SRQ_INIT_ATTR_XRCD, xrcd),
        (*attr).attr.srq_limit, named!(attr, IBV_SRQ_INIT_ATTR_TM, tm_cap.max_num_tags), named!(attr, IBV_SRQ_INIT_ATTR_TM, tm_cap.max_ops)
    ];
    recorded modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int, of (*srq).context, [srq, mask, (*attr).max_wr, (*attr).srq_limit];
    recorded destroy_srq(srq: *mut ibv_srq) -> c_int, of (*srq).context, [srq];
    + by hand:
    create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    free_context(at: *mut ibv_context) -> Nothing;
}

calls! {
    /// Calls on memory regions and windows.
    trait MemoryCalls, fill_memory:
    recorded reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr, of (*pd).context, [
        pd, (*attr).comp_mask, named!(attr, IBV_REG_MR_MASK_ADDR, addr), (*attr).length, named!(attr, IBV_REG_MR_MASK_IOVA, iova), (*attr).access,
        named!(attr, IBV_REG_MR_MASK_FD, fd), named!(attr, IBV_REG_MR_MASK_FD_OFFSET, fd_offset)
    ];
    recorded reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr, of (*pd).context, [pd, offset, length, iova, fd, access];
    recorded reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, length: usize, access: c_uint) -> *mut ibv_mr, of (*pd).context, [pd, dm, offset, length, access];
    recorded rereg_mr(mr: *mut verbs_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int, of (*mr).ibv_mr.context, [mr, flags, pd, addr, length, access];
    recorded dereg_mr(mr: *mut verbs_mr) -> c_int, of (*mr).ibv_mr.context, [mr, (*mr).ibv_mr.lkey, (*mr).ibv_mr.addr, (*mr).ibv_mr.length];
    recorded advise_mr(pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, list: *mut ibv_sge, count: u32) -> c_int, of (*pd).context, [pd, advice, flags, list, count];
    recorded alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw, of (*pd).context, [pd, kind];
    recorded bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int, of (*qp).context, [
        (*qp).qp_num, mw, (*bind).wr_id, (*bind).send_flags, (*bind).bind_info.mr, (*bind).bind_info.addr, (*bind).bind_info.length,
        (*bind).bind_info.mw_access_flags
    ];
    recorded dealloc_mw(mw: *mut ibv_mw) -> c_int, of (*mw).context, [mw];
    recorded import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr, of (*pd).context, [pd, handle];
    unrecorded alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr, of (*pd).context;
    unrecorded unimport_mr(mr: *mut ibv_mr) -> Nothing, of (*mr).context;
    + by hand:
    reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr;
}

calls! {
    /// Calls on completion queues, and events.
    trait CompletionCalls, fill_completions:
    recorded create_cq(at: *mut ibv_context, cqe: c_int, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq, of at, [at, cqe, channel, vector];
    recorded resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int, of (*cq).context, [cq, cqe];
    recorded req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int, of (*cq).context, [cq, solicited];
    recorded cq_event(cq: *mut ibv_cq) -> Nothing, of (*cq).context, [cq];
    recorded async_event(at: *mut ibv_context, event: *mut ibv_async_event) -> Nothing, of at, [at, (*event).event_type, (*event).element.cq];
    + by hand:
    create_cq_ex(at: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
    destroy_cq(cq: *mut ibv_cq) -> c_int;
}

calls! {
    /// All other calls.
    trait OtherCalls, fill_others:
    recorded alloc_td(at: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td, of at, [at, (*attr).comp_mask];
    recorded dealloc_td(td: *mut ibv_td) -> c_int, of (*td).context, [td];
    recorded modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int, of (*cq).context, [
        cq, (*attr).attr_mask, if (*attr).attr_mask & IBV_CQ_ATTR_MODERATE != 0 { (*attr).moderate.cq_count } else { 0 },
        if (*attr).attr_mask & IBV_CQ_ATTR_MODERATE != 0 { (*attr).moderate.cq_period } else { 0 }
    ];
    recorded query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int, of (*srq).context, [srq];
    recorded post_srq_ops(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad: *mut *mut ibv_ops_wr) -> c_int, of (*srq).context, [
        srq, op.as_ref().map_or(0, |op| op.wr_id), op.as_ref().map_or(0, |op| op.opcode), op.as_ref().map_or(0, |op| op.flags)
    ];
    recorded query_device_ex(at: *mut ibv_context, input: *const ibv_query_device_ex_input, attr: *mut ibv_device_attr_ex, size: usize) -> c_int, of at, [at];
    recorded query_port(at: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int, of at, [at, port];
    recorded query_rt_values(at: *mut ibv_context, values: *mut ibv_values_ex) -> c_int, of at, [at, (*values).comp_mask];
    recorded open_xrcd(at: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd, of at, [at, (*attr).comp_mask, named!(attr, IBV_XRCD_INIT_ATTR_FD, fd), named!(attr, IBV_XRCD_INIT_ATTR_OFLAGS, oflags)];
    recorded close_xrcd(xrcd: *mut ibv_xrcd) -> c_int, of (*xrcd).context, [xrcd];
    recorded create_wq(at: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq, of at, [
        at, (*attr).wq_type, (*attr).max_wr, (*attr).max_sge, (*attr).pd, (*attr).cq, (*attr).comp_mask, named!(attr, IBV_WQ_INIT_ATTR_FLAGS, create_flags)
    ];
    recorded modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int, of (*wq).context, [
        wq, (*attr).attr_mask, (*attr).wq_state, (*attr).curr_wq_state, named!(attr, attr_mask, IBV_WQ_ATTR_FLAGS, flags), named!(attr, attr_mask, IBV_WQ_ATTR_FLAGS, flags_mask)
    ];
    recorded destroy_wq(wq: *mut ibv_wq) -> c_int, of (*wq).context, [wq];
    recorded create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow, of (*qp).context, [
        (*qp).qp_num, (*attr).comp_mask, (*attr).type_, (*attr).priority, (*attr).num_of_specs, (*attr).port, (*attr).flags
    ];
    recorded destroy_flow(flow: *mut ibv_flow) -> c_int, of (*flow).context, [flow];
    recorded alloc_dm(at: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm, of at, [at, (*attr).length, (*attr).log_align_req, (*attr).comp_mask];
    recorded free_dm(dm: *mut ibv_dm) -> c_int, of (*dm).context, [dm];
    recorded import_pd(at: *mut ibv_context, handle: u32) -> *mut ibv_pd, of at, [at, handle];
    unrecorded create_comp_cntr(at: *mut ibv_context, attr: *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr, of at;
    unrecorded create_flow_action_esp(at: *mut ibv_context, attr: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action, of at;
    unrecorded create_counters(at: *mut ibv_context, attr: *mut ibv_counters_init_attr) -> *mut ibv_counters, of at;
    unrecorded create_rwq_ind_table(at: *mut ibv_context, attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table, of at;
    unrecorded import_dm(at: *mut ibv_context, handle: u32) -> *mut ibv_dm, of at;
    unrecorded attach_counters_point_flow(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow) -> c_int, of (*counters).context;
    unrecorded destroy_counters(counters: *mut ibv_counters) -> c_int, of (*counters).context;
    unrecorded destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int, of (*table).context;
    unrecorded read_counters(counters: *mut ibv_counters, values: *mut u64, count: u32, flags: u32) -> c_int, of (*counters).context;
    unrecorded destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int, of (*counter).context;
    unrecorded set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int, of (*counter).context;
    unrecorded set_err_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int, of (*counter).context;
    unrecorded inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int, of (*counter).context;
    unrecorded inc_err_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int, of (*counter).context;
    unrecorded read_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int, of (*counter).context;
    unrecorded read_err_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int, of (*counter).context;
    unrecorded query_comp_cntr_caps(at: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, size: usize) -> c_int, of at;
    unrecorded qp_attach_comp_cntr(qp: *mut ibv_qp, counter: *mut ibv_comp_cntr, attr: *mut ibv_qp_attach_comp_cntr_attr) -> c_int, of (*qp).context;
    unrecorded modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int, of (*qp).context;
    unrecorded set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, of (*qp).context;
    unrecorded query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, of (*qp).context;
    unrecorded query_port_speed(at: *mut ibv_context, port: u32, speed: *mut u64) -> c_int, of at;
    unrecorded modify_flow_action_esp(action: *mut ibv_flow_action, attr: *mut ibv_flow_action_esp_attr) -> c_int, of (*action).context;
    unrecorded destroy_flow_action(action: *mut ibv_flow_action) -> c_int, of (*action).context;
    + by hand:
    open_qp(at: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp;
    query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
}

calls! {
    /// Calls on queue pairs. Their entry points are in `qp`.
    trait QueuePairCalls, fill_queue_pairs:
    + by hand:
    create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    create_qp_ex(at: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    destroy_qp(qp: *mut ibv_qp) -> c_int;
    attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
}

/// The two words of a GID.
pub(crate) fn gid_words(gid: &ibv_gid) -> [u64; 2] {
    // SAFETY: both views of the union are plain bytes.
    let raw = unsafe { gid.raw };
    let word = |at: usize| u64::from_ne_bytes(core::array::from_fn(|i| raw[at + i]));
    [word(0), word(8)]
}

macro_rules! mcast {
    ($($name:ident)+) => {$(
        unsafe extern "C" fn $name<W: Watcher>(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
            // SAFETY: the caller's QP is live.
            let (at, number) = unsafe { ((*qp).context, (*qp).qp_num) };
            let Some(ctx) = context(at) else { return libc::EINVAL };
            let start = start_time::<W>();
            // SAFETY: the caller's arguments, passed on.
            let next = Next::new(|| unsafe { beneath!(ctx.next, $name)(qp, gid, lid) });
            // SAFETY: the caller's arguments are valid until this call returns.
            let result = unsafe { W::$name(ctx, qp.safe(), gid.safe(), lid, next) }.get();
            if W::RECORDS {
                // SAFETY: NULL, or the caller's GID.
                let group = unsafe { gid.as_ref() }.map_or([0; 2], gid_words);
                report_call::<W>(Call::$name, start, result, &[number.into(), group[0], group[1], lid.into()]);
            }
            result
        }
    )+};
}
mcast!(attach_mcast detach_mcast);

unsafe extern "C" fn reg_mr<W: Watcher>(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's PD is live.
    let at = unsafe { (*pd).context };
    let Some(ctx) = context(at) else { return core::ptr::null_mut() };
    let start = start_time::<W>();
    let next = Next::new(|| {
        // SAFETY: the caller's arguments, passed on.
        let mr = unsafe { beneath!(ctx.next, reg_mr)(pd, addr, length, iova, access) };
        // The tap fills these members as the front-end does later. A kernel device's plugin leaves
        // them to the front-end, and layers above read them.
        // SAFETY: the provider just created the region, and no other thread has its address.
        if let Some(mr) = unsafe { mr.as_mut() } {
            (mr.context, mr.pd, mr.addr, mr.length) = (at, pd, addr, length);
        }
        mr
    });
    // SAFETY: the caller's arguments are valid until this call returns.
    let mr = unsafe { W::reg_mr(ctx, pd.safe(), addr.safe(), length, iova, access, next) }.get();
    if !W::RECORDS {
        return mr;
    }
    // SAFETY: `mr` is NULL or was just created.
    let keys = unsafe { mr.as_ref() }.map_or(0, |mr| u64::from(mr.lkey) | u64::from(mr.rkey) << 32);
    let access = u64::from(access.cast_unsigned());
    report_call::<W>(
        Call::reg_mr,
        start,
        mr,
        &[pd as u64, addr as u64, length as u64, iova, access, keys],
    );
    mr
}

unsafe extern "C" fn create_ah<W: Watcher>(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's PD is live.
    let at = unsafe { (*pd).context };
    let Some(ctx) = context(at) else { return core::ptr::null_mut() };
    let start = start_time::<W>();
    let next = Next::new(|| {
        // SAFETY: the caller's arguments, passed on.
        let ah = unsafe { beneath!(ctx.next, create_ah)(pd, attr) };
        // The tap fills these members, as for `reg_mr`.
        // SAFETY: the provider just created the handle, and no other thread has its address.
        if let Some(ah) = unsafe { ah.as_mut() } {
            (ah.context, ah.pd) = (at, pd);
        }
        ah
    });
    // SAFETY: the caller's arguments are valid until this call returns.
    let ah = unsafe { W::create_ah(ctx, pd.safe(), attr.safe(), next) }.get();
    if !W::RECORDS {
        return ah;
    }
    // SAFETY: the caller's attributes are readable.
    let given = unsafe { *attr };
    let gid = gid_words(&given.grh.dgid);
    let small = u64::from(given.is_global)
        | u64::from(given.grh.sgid_index) << 8
        | u64::from(given.port_num) << 16
        | u64::from(given.sl) << 24
        | u64::from(given.dlid) << 32
        | u64::from(given.src_path_bits) << 48
        | u64::from(given.static_rate) << 56;
    let route = u64::from(given.grh.flow_label)
        | u64::from(given.grh.traffic_class) << 32
        | u64::from(given.grh.hop_limit) << 40;
    report_call::<W>(Call::create_ah, start, ah, &[pd as u64, small, gid[0], gid[1], route]);
    ah
}

unsafe extern "C" fn create_cq_ex<W: Watcher>(
    at: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let Some(ctx) = context(at) else { return core::ptr::null_mut() };
    let start = start_time::<W>();
    // SAFETY: the caller's arguments, passed on.
    let next = Next::new(|| unsafe { beneath!(ctx.next, create_cq_ex)(at, attr) });
    // SAFETY: the caller's arguments are valid until this call returns.
    let cq = unsafe { W::create_cq_ex(ctx, at.safe(), attr.safe(), next) }.get();
    if W::RECORDS {
        // SAFETY: the front-end has read these members before.
        let args = unsafe {
            [
                at as u64,
                (*attr).cqe.into(),
                (*attr).channel as u64,
                (*attr).comp_vector.into(),
                (*attr).wc_flags,
                (*attr).comp_mask.into(),
                named!(attr, IBV_CQ_INIT_ATTR_MASK_FLAGS, flags),
                named!(attr, IBV_CQ_INIT_ATTR_MASK_PD, parent_domain),
            ]
        };
        report_call::<W>(Call::create_cq_ex, start, cq, &args);
    }
    if !cq.is_null() {
        // SAFETY: the provider just created the CQ, and no other thread has its address.
        unsafe { crate::cq_ex::replace::<W>(cq) };
    }
    cq
}

unsafe extern "C" fn destroy_cq<W: Watcher>(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's CQ is live.
    let Some(ctx) = context(unsafe { (*cq).context }) else { return libc::EINVAL };
    let at = cq as usize;
    let known = CQS.share(at);
    // The entry is removed before the call, because another thread may get the address at once.
    CQS.remove(at);
    let start = start_time::<W>();
    // SAFETY: the caller's argument, passed on.
    let next = Next::new(|| unsafe { beneath!(ctx.next, destroy_cq)(cq) });
    // SAFETY: the caller's CQ is live until the provider destroys it.
    let result = unsafe { W::destroy_cq(ctx, cq.safe(), next) }.get();
    if let (true, Some(known)) = (result != 0, known) {
        CQS.insert(at, known);
    }
    if W::RECORDS {
        report_call::<W>(Call::destroy_cq, start, result, &[at as u64]);
    }
    result
}

/// The last call of a context.
unsafe extern "C" fn free_context<W: Watcher>(at: *mut ibv_context) {
    let Some(ctx) = shared(at) else { return };
    let Some(device) = context(at) else { return };
    for qp in crate::all_qps().iter().filter(|qp| qp.ctx.at == ctx.at) {
        crate::qp::forget::<W>(qp);
    }
    let start = start_time::<W>();
    let next = Next::new(|| {
        // The record is removed before the call, because another thread may get the address at
        // once. This thread has a share of the record.
        CONTEXTS.remove(ctx.at);
        // SAFETY: the caller's argument, passed on. The chain's table is not read afterwards.
        unsafe { beneath!(ctx.next, free_context)(at) }
    });
    // SAFETY: the context is open until the provider closes it.
    unsafe { W::free_context(device, at.safe(), next) }.get();
    if W::RECORDS {
        report_call::<W>(Call::free_context, start, (), &[ctx.at as u64]);
    }
}

pub(crate) use named;

pub(crate) fn fill<W: Watcher>(mine: &mut verbs_context_ops) {
    fill_objects::<W>(mine);
    fill_memory::<W>(mine);
    fill_completions::<W>(mine);
    fill_queue_pairs::<W>(mine);
    fill_others::<W>(mine);
    mine.attach_mcast = Some(attach_mcast::<W>);
    mine.detach_mcast = Some(detach_mcast::<W>);
    mine.reg_mr = Some(reg_mr::<W>);
    mine.create_ah = Some(create_ah::<W>);
    mine.create_cq_ex = Some(create_cq_ex::<W>);
    mine.destroy_cq = Some(destroy_cq::<W>);
    mine.free_context = Some(free_context::<W>);
}
