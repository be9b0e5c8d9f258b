//! Calls of the control path: the tap passes each call on and reports it to the watcher.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use abi::{
    IBV_CQ_ATTR_MODERATE, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD,
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA,
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TM, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_WQ_INIT_ATTR_FLAGS, IBV_XRCD_INIT_ATTR_FD,
    IBV_XRCD_INIT_ATTR_OFLAGS, ibv_advise_mr_advice, ibv_ah, ibv_ah_attr, ibv_alloc_dm_attr,
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_device_attr_ex, ibv_dm, ibv_flow, ibv_flow_attr, ibv_gid, ibv_modify_cq_attr, ibv_mr,
    ibv_mr_init_attr, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_ops_wr, ibv_parent_domain_init_attr,
    ibv_pd, ibv_port_attr, ibv_qp, ibv_query_device_ex_input, ibv_sge, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_values_ex, ibv_wq,
    ibv_wq_attr, ibv_wq_init_attr, ibv_xrcd, ibv_xrcd_init_attr, verbs_context_ops, verbs_mr,
};

use crate::{CONTEXTS, CQS, Call, Ctx, Times, Watcher, beneath, now};

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
pub(crate) fn context(at: *mut ibv_context) -> Option<&'static Ctx> {
    CONTEXTS.get(at as usize)
}

/// As [`context`], with shared ownership.
pub(crate) fn shared(at: *mut ibv_context) -> Option<Arc<Ctx>> {
    CONTEXTS.share(at as usize)
}

/// A member that `comp_mask` names, otherwise 0.
macro_rules! named {
    ($attr:ident, $bit:ident, $($member:ident).+) => {
        if u64::from((*$attr).comp_mask) & u64::from($bit) != 0 { (*$attr).$($member).+ as u64 } else { 0 }
    };
}

macro_rules! control {
    ($($name:ident($($arg:ident: $ty:ty),+) $(-> $ret:ty)?, of $ctx:expr, [$($word:expr),*];)+) => {
        $(
            unsafe extern "C" fn $name<W: Watcher>($($arg: $ty),+) $(-> $ret)? {
                // SAFETY: the objects are live and the structures readable, as for the provider.
                #[allow(unused_unsafe, reason = "not all of them read an object")]
                let (at, args) = unsafe { ($ctx, [$($word as u64),*]) };
                let Some(ctx) = context(at) else { return Outcome::UNKNOWN };
                let start = now();
                // SAFETY: the caller's arguments, passed on.
                let result = unsafe { beneath!(ctx.next, $name)($($arg),+) };
                report_call::<W>(Call::$name, start, result, &args);
                result
            }
        )+

        fn fill_plain<W: Watcher>(mine: &mut verbs_context_ops) {
            $(mine.$name = Some($name::<W>);)+
        }
    };
}

control! {
    alloc_pd(at: *mut ibv_context) -> *mut ibv_pd, of at, [at];
    alloc_parent_domain(at: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd, of at, [at, (*attr).pd, (*attr).td, (*attr).comp_mask];
    dealloc_pd(pd: *mut ibv_pd) -> c_int, of (*pd).context, [pd];
    alloc_td(at: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td, of at, [at, (*attr).comp_mask];
    dealloc_td(td: *mut ibv_td) -> c_int, of (*td).context, [td];
    reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr, of (*pd).context, [
        pd, (*attr).comp_mask, named!(attr, IBV_REG_MR_MASK_ADDR, addr), (*attr).length, named!(attr, IBV_REG_MR_MASK_IOVA, iova), (*attr).access,
        named!(attr, IBV_REG_MR_MASK_FD, fd), named!(attr, IBV_REG_MR_MASK_FD_OFFSET, fd_offset)
    ];
    reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr, of (*pd).context, [pd, offset, length, iova, fd, access];
    reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, length: usize, access: c_uint) -> *mut ibv_mr, of (*pd).context, [pd, dm, offset, length, access];
    rereg_mr(mr: *mut verbs_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int, of (*mr).ibv_mr.context, [mr, flags, pd, addr, length, access];
    dereg_mr(mr: *mut verbs_mr) -> c_int, of (*mr).ibv_mr.context, [mr, (*mr).ibv_mr.lkey, (*mr).ibv_mr.addr, (*mr).ibv_mr.length];
    advise_mr(pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, list: *mut ibv_sge, count: u32) -> c_int, of (*pd).context, [pd, advice, flags, list, count];
    alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw, of (*pd).context, [pd, kind];
    bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int, of (*qp).context, [
        (*qp).qp_num, mw, (*bind).wr_id, (*bind).send_flags, (*bind).bind_info.mr, (*bind).bind_info.addr, (*bind).bind_info.length,
        (*bind).bind_info.mw_access_flags
    ];
    dealloc_mw(mw: *mut ibv_mw) -> c_int, of (*mw).context, [mw];
    create_cq(at: *mut ibv_context, cqe: c_int, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq, of at, [at, cqe, channel, vector];
    resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int, of (*cq).context, [cq, cqe];
    modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int, of (*cq).context, [
        cq, (*attr).attr_mask, if (*attr).attr_mask & IBV_CQ_ATTR_MODERATE != 0 { (*attr).moderate.cq_count } else { 0 },
        if (*attr).attr_mask & IBV_CQ_ATTR_MODERATE != 0 { (*attr).moderate.cq_period } else { 0 }
    ];
    req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int, of (*cq).context, [cq, solicited];
    cq_event(cq: *mut ibv_cq), of (*cq).context, [cq];
    async_event(at: *mut ibv_context, event: *mut ibv_async_event), of at, [at, (*event).event_type, (*event).element.cq];
    destroy_ah(ah: *mut ibv_ah) -> c_int, of (*ah).context, [ah];
    create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq, of (*pd).context, [pd, (*attr).attr.max_wr, (*attr).attr.max_sge, (*attr).attr.srq_limit];
    create_srq_ex(at: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq, of at, [
        at, (*attr).attr.max_wr, (*attr).attr.max_sge, if (*attr).comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 { (*attr).srq_type } else { IBV_SRQT_BASIC },
        named!(attr, IBV_SRQ_INIT_ATTR_CQ, cq), (*attr).comp_mask, named!(attr, IBV_SRQ_INIT_ATTR_PD, pd), named!(attr, IBV_SRQ_INIT_ATTR_XRCD, xrcd),
        (*attr).attr.srq_limit, named!(attr, IBV_SRQ_INIT_ATTR_TM, tm_cap.max_num_tags), named!(attr, IBV_SRQ_INIT_ATTR_TM, tm_cap.max_ops)
    ];
    modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int, of (*srq).context, [srq, mask, (*attr).max_wr, (*attr).srq_limit];
    query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int, of (*srq).context, [srq];
    destroy_srq(srq: *mut ibv_srq) -> c_int, of (*srq).context, [srq];
    post_srq_ops(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad: *mut *mut ibv_ops_wr) -> c_int, of (*srq).context, [
        srq, op.as_ref().map_or(0, |op| op.wr_id), op.as_ref().map_or(0, |op| op.opcode), op.as_ref().map_or(0, |op| op.flags)
    ];
    query_device_ex(at: *mut ibv_context, input: *const ibv_query_device_ex_input, attr: *mut ibv_device_attr_ex, size: usize) -> c_int, of at, [at];
    query_port(at: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int, of at, [at, port];
    query_rt_values(at: *mut ibv_context, values: *mut ibv_values_ex) -> c_int, of at, [at, (*values).comp_mask];
    open_xrcd(at: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd, of at, [at, (*attr).comp_mask, named!(attr, IBV_XRCD_INIT_ATTR_FD, fd), named!(attr, IBV_XRCD_INIT_ATTR_OFLAGS, oflags)];
    close_xrcd(xrcd: *mut ibv_xrcd) -> c_int, of (*xrcd).context, [xrcd];
    create_wq(at: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq, of at, [
        at, (*attr).wq_type, (*attr).max_wr, (*attr).max_sge, (*attr).pd, (*attr).cq, (*attr).comp_mask, named!(attr, IBV_WQ_INIT_ATTR_FLAGS, create_flags)
    ];
    modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int, of (*wq).context, [
        wq, (*attr).attr_mask, (*attr).wq_state, (*attr).curr_wq_state, (*attr).flags, (*attr).flags_mask
    ];
    destroy_wq(wq: *mut ibv_wq) -> c_int, of (*wq).context, [wq];
    create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow, of (*qp).context, [
        (*qp).qp_num, (*attr).comp_mask, (*attr).type_, (*attr).priority, (*attr).num_of_specs, (*attr).port, (*attr).flags
    ];
    destroy_flow(flow: *mut ibv_flow) -> c_int, of (*flow).context, [flow];
    alloc_dm(at: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm, of at, [at, (*attr).length, (*attr).log_align_req, (*attr).comp_mask];
    free_dm(dm: *mut ibv_dm) -> c_int, of (*dm).context, [dm];
    import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr, of (*pd).context, [pd, handle];
    import_pd(at: *mut ibv_context, handle: u32) -> *mut ibv_pd, of at, [at, handle];
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
            // SAFETY: the caller's QP is live and its GID readable.
            let (at, number, group) = unsafe { ((*qp).context, (*qp).qp_num, gid_words(&*gid)) };
            let Some(ctx) = context(at) else { return libc::EINVAL };
            let start = now();
            // SAFETY: the caller's arguments, passed on.
            let result = unsafe { beneath!(ctx.next, $name)(qp, gid, lid) };
            report_call::<W>(Call::$name, start, result, &[number.into(), group[0], group[1], lid.into()]);
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
    let start = now();
    // SAFETY: the caller's arguments, passed on.
    let mr = unsafe { beneath!(ctx.next, reg_mr)(pd, addr, length, iova, access) };
    // The tap fills these members as the front-end does later. A kernel device's plugin leaves
    // them to the front-end, and layers above read them.
    // SAFETY: the provider just created the region, and no other thread has its address.
    if let Some(mr) = unsafe { mr.as_mut() } {
        (mr.context, mr.pd, mr.addr, mr.length) = (at, pd, addr, length);
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
    // SAFETY: the caller's PD is live and its attributes readable.
    let (at, given) = unsafe { ((*pd).context, *attr) };
    let Some(ctx) = context(at) else { return core::ptr::null_mut() };
    let start = now();
    // SAFETY: the caller's arguments, passed on.
    let ah = unsafe { beneath!(ctx.next, create_ah)(pd, attr) };
    // The tap fills these members, as for `reg_mr`.
    // SAFETY: the provider just created the handle, and no other thread has its address.
    if let Some(ah) = unsafe { ah.as_mut() } {
        (ah.context, ah.pd) = (at, pd);
    }
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
    let start = now();
    // SAFETY: the caller's arguments, passed on.
    let cq = unsafe { beneath!(ctx.next, create_cq_ex)(at, attr) };
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
    let start = now();
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next, destroy_cq)(cq) };
    if let (true, Some(known)) = (result != 0, known) {
        CQS.insert(at, known);
    }
    report_call::<W>(Call::destroy_cq, start, result, &[at as u64]);
    result
}

/// The last call of a context.
unsafe extern "C" fn free_context<W: Watcher>(at: *mut ibv_context) {
    let Some(ctx) = shared(at) else { return };
    for qp in crate::all_qps().iter().filter(|qp| qp.ctx.at == ctx.at) {
        crate::qp::forget::<W>(qp);
    }
    CONTEXTS.remove(ctx.at);
    let start = now();
    // SAFETY: the caller's argument, passed on. The chain's table is not read afterwards.
    unsafe { beneath!(ctx.next, free_context)(at) };
    report_call::<W>(Call::free_context, start, (), &[ctx.at as u64]);
}

pub(crate) use named;

pub(crate) fn fill<W: Watcher>(mine: &mut verbs_context_ops) {
    fill_plain::<W>(mine);
    mine.attach_mcast = Some(attach_mcast::<W>);
    mine.detach_mcast = Some(detach_mcast::<W>);
    mine.reg_mr = Some(reg_mr::<W>);
    mine.create_ah = Some(create_ah::<W>);
    mine.create_cq_ex = Some(create_cq_ex::<W>);
    mine.destroy_cq = Some(destroy_cq::<W>);
    mine.free_context = Some(free_context::<W>);
}
