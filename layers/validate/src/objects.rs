//! OB-02, MR-13: domains, address handles and shared receive queues, and the objects that are left
//! when a device is closed.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use abi::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, IBV_SRQT_TM, ibv_ah, ibv_ah_attr,
    ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};

use crate::acknowledgements;
use crate::arguments::{live_pd, still_used};
use crate::checks::events::Unacknowledged;
use crate::checks::finding::Origin;
use crate::checks::pairs::{self, Address};
use crate::checks::queues::{self, WantedSrq, WantedSrqEx};
use crate::checks::{Id, element, objects, others};
use crate::flights;
use crate::provider::AcknowledgedEvents;
use crate::refusal::{Subject, WatchedCall};
use crate::regions;
use crate::report::report;
use crate::stack;
use crate::state::{
    AHS, Ah, CONTEXTS, CQS, Ctx, PDS, Pd, QPS, SRQS, Srq, context, gone, root_of, shared,
};
use layer_tap::beneath;
use layer_tap::spin::Spin;

pub(crate) unsafe extern "C" fn alloc_pd(at: *mut ibv_context) -> *mut ibv_pd {
    let Some(ctx) = context(at) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_alloc_pd");
    // SAFETY: the caller's argument, passed on.
    let pd = unsafe { beneath!(ctx.next(), alloc_pd)(at) };
    if pd.is_null() {
        watch.failed(ctx, &Subject::none(Id::Ob09), others::alloc_pd);
    } else {
        let at = pd as usize;
        let made = stack::here();
        PDS.insert(at, Arc::new(Pd { at, ctx: ctx.at, root: at, single: false, made }));
    }
    pd
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    at: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let Some(ctx) = context(at) else { return core::ptr::null_mut() };
    // SAFETY: the caller's attributes are readable.
    let given = unsafe { attr.as_ref() }.map(|attr| (attr.pd as usize, !attr.td.is_null()));
    // SAFETY: the caller's arguments, passed on.
    let watch = WatchedCall::begin("ibv_alloc_parent_domain");
    // SAFETY: as above.
    let pd = unsafe { beneath!(ctx.next(), alloc_parent_domain)(at, attr) };
    if pd.is_null() {
        // SAFETY: the caller's attributes are readable.
        let mask = unsafe { attr.as_ref() }.map_or(0, |attr| attr.comp_mask);
        let has_pd = given.is_some_and(|(parent, _)| parent != 0);
        watch.failed(ctx, &Subject::none(Id::Ob09), |_, _| {
            others::alloc_parent_domain(mask, has_pd)
        });
    }
    if let (false, Some((parent, single))) = (pd.is_null(), given) {
        let at = pd as usize;
        let made = stack::here();
        PDS.insert(at, Arc::new(Pd { at, ctx: ctx.at, root: root_of(parent), single, made }));
    }
    pd
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = context(unsafe { (*pd).context }) else { return libc::EINVAL };
    let at = pd as usize;
    let known = PDS.share(at);
    // The record is removed before the call, because another thread may get the address at once.
    PDS.remove(at);
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next(), dealloc_pd)(pd) };
    if result == 0 {
        gone("pd", at);
        return result;
    }
    if let Some(known) = known {
        PDS.insert(at, known);
    }
    let (users, origin) = users_of_pd(at);
    let found = objects::used_pd(&users, origin);
    report("ibv_dealloc_pd", || format!("pd {at:#x}"), found, None);
    result
}

/// The names of the objects of a PD, and the place where the first was made.
fn users_of_pd(at: usize) -> (Vec<String>, Option<Origin>) {
    let (regions, windows) = regions::of_pd(at);
    let mut origin = regions.first().map(|mr| ("that region was registered", mr.made));
    let mut names: Vec<String> =
        regions.iter().map(|mr| format!("mr {:#x} (lkey {:#x})", mr.at, mr.lkey)).collect();
    for qp in QPS.all().iter().filter(|qp| qp.pd == at) {
        names.push(qp.name());
        origin = origin.or(Some(("that QP was created", qp.made)));
    }
    for srq in SRQS.all().iter().filter(|srq| srq.pd == at) {
        names.push(srq.name());
        origin = origin.or(Some(("that SRQ was created", srq.made)));
    }
    for ah in AHS.all().iter().filter(|ah| ah.pd == at) {
        names.push(format!("ah {:#x}", ah.at));
    }
    for pd in PDS.all().iter().filter(|pd| pd.root == at && pd.at != at) {
        names.push(format!("parent domain {:#x}", pd.at));
        origin = origin.or(Some(("that domain was made", pd.made)));
    }
    if windows > 0 {
        names.push(format!("{windows} memory windows"));
    }
    (names, origin)
}

/// The last call of a context. Reports the objects that are left.
pub(crate) unsafe extern "C" fn free_context(at: *mut ibv_context) {
    let Some(ctx) = shared(at) else { return };
    crate::advice::unread("ibv_close_device", format!("context {:#x}", ctx.at), &ctx);
    left(&ctx, "ibv_close_device");
    CONTEXTS.remove(ctx.at);
    // SAFETY: the caller's argument, passed on. The chain's table is not read afterwards.
    unsafe { beneath!(ctx.next(), free_context)(at) };
}

/// Reports at exit the objects of contexts that are not closed, if the settings ask for the
/// report.
pub(crate) fn left_at_exit() {
    for ctx in CONTEXTS.all() {
        left(&ctx, "exit");
    }
}

/// MR-13 and OB-02: reports the objects that are left in a context, and removes their records.
fn left(ctx: &Ctx, call: &str) {
    let (regions, windows) = regions::of_context(ctx.at, true);
    let object = || format!("context {:#x}", ctx.at);
    report(call, object, element::left(&regions), None);
    let mut names: Vec<String> = Vec::new();
    let mut origin = None;
    for qp in QPS.all().iter().filter(|qp| qp.ctx.at == ctx.at) {
        names.push(qp.name());
        origin = origin.or(Some(("that QP was created", qp.made)));
        QPS.remove(qp.at);
    }
    for cq in CQS.all().iter().filter(|cq| cq.ctx.at == ctx.at) {
        names.push(cq.name());
        origin = origin.or(Some(("that CQ was created", cq.made)));
        CQS.remove(cq.at);
        cq.leave_channel();
    }
    for srq in SRQS.all().iter().filter(|srq| srq.ctx.at == ctx.at) {
        names.push(srq.name());
        SRQS.remove(srq.at);
    }
    for ah in AHS.all().iter().filter(|ah| ah.ctx == ctx.at) {
        names.push(format!("ah {:#x}", ah.at));
        AHS.remove(ah.at);
    }
    for pd in PDS.all().iter().filter(|pd| pd.ctx == ctx.at) {
        // A PD with regions cannot be deallocated before them.
        if regions.iter().all(|mr| mr.pd != pd.root) {
            names.push(format!("pd {:#x}", pd.at));
        }
        PDS.remove(pd.at);
    }
    if windows > 0 {
        names.push(format!("{windows} memory windows"));
    }
    report(call, object, objects::left(&names, origin), None);
}

pub(crate) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = context(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_create_ah");
    // SAFETY: the caller's attributes are readable.
    let asked = unsafe { attr.as_ref() };
    if let Some(attr) = asked {
        crate::gid::check("ibv_create_ah", "", ctx, attr.port_num, attr, None);
    }
    // SAFETY: the caller's arguments, passed on.
    let ah = unsafe { beneath!(ctx.next(), create_ah)(pd, attr) };
    if ah.is_null() {
        if let Some(attr) = asked {
            watch.failed(ctx, &Subject::none(Id::Ob08), |facts, errno| {
                pairs::create_ah(facts, &address(ctx, attr), errno)
            });
        }
    } else {
        let at = ah as usize;
        AHS.insert(at, Arc::new(Ah { at, ctx: ctx.at, pd: pd as usize }));
    }
    ah
}

/// The arguments of an address, and the entry of the GID table.
fn address(ctx: &Ctx, attr: &ibv_ah_attr) -> Address {
    let port = attr.port_num;
    let index = attr.grh.sgid_index;
    let is_global = attr.is_global != 0;
    Address {
        port,
        is_global,
        dgid: attr.grh.dgid.bytes().into(),
        sgid_index: index,
        is_empty: is_global && ctx.port(port).is_some() && crate::gid::is_empty(ctx, port, index),
        sl: attr.sl,
    }
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller's address handle is live.
    let Some(ctx) = context(unsafe { (*ah).context }) else { return libc::EINVAL };
    let at = ah as usize;
    flights::check_ah_in_flight(ctx, at);
    AHS.remove(at);
    gone("ah", at);
    // SAFETY: the caller's argument, passed on.
    unsafe { beneath!(ctx.next(), destroy_ah)(ah) }
}

fn remember_srq(ctx: Arc<Ctx>, srq: *mut ibv_srq, pd: usize, attr: &ibv_srq_attr, basic: bool) {
    let at = srq as usize;
    let srq = Srq {
        at,
        ctx,
        pd,
        max_wr: AtomicU32::new(attr.max_wr),
        max_sge: attr.max_sge,
        basic,
        posted: AtomicU64::new(0),
        taken: AtomicU64::new(0),
        cache: Spin::new(regions::Cache::default()),
        async_got: AtomicU32::new(0),
        limit_passed: AtomicBool::new(false),
        made: stack::here(),
    };
    SRQS.insert(at, Arc::new(srq));
}

pub(crate) unsafe extern "C" fn create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = shared(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_create_srq");
    live_pd("ibv_create_srq", pd);
    // SAFETY: the caller's attributes are readable.
    let asked = WantedSrq { attr: unsafe { (*attr).attr }, extended: None };
    // SAFETY: the caller's arguments, passed on.
    let srq = unsafe { beneath!(ctx.next(), create_srq)(pd, attr) };
    if srq.is_null() {
        watch.failed(&ctx, &Subject::none(Id::Ob07), |facts, errno| {
            queues::create_srq(facts, &asked, errno)
        });
    } else {
        // SAFETY: the provider has filled in the attributes.
        remember_srq(ctx, srq, pd as usize, unsafe { &(*attr).attr }, true);
    }
    srq
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    at: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let Some(ctx) = shared(at) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_create_srq_ex");
    // SAFETY: the attributes are the caller's. Members are read only if the mask names them.
    let asked = unsafe { asked_for(attr) };
    // SAFETY: the caller's arguments, passed on.
    let srq = unsafe { beneath!(ctx.next(), create_srq_ex)(at, attr) };
    if srq.is_null() {
        watch.failed(&ctx, &Subject::none(Id::Ob07), |facts, errno| {
            queues::create_srq(facts, &asked, errno)
        });
    } else {
        // SAFETY: the provider has filled in the attributes. Members are read only if the mask
        // names them.
        let (mut given, pd, kind) = unsafe {
            let mask = (*attr).comp_mask;
            let pd = if mask & IBV_SRQ_INIT_ATTR_PD != 0 { (*attr).pd as usize } else { 0 };
            let kind =
                if mask & IBV_SRQ_INIT_ATTR_TYPE != 0 { (*attr).srq_type } else { IBV_SRQT_BASIC };
            ((*attr).attr, pd, kind)
        };
        if kind == IBV_SRQT_TM {
            // Tag matching also uses buffers of another kind, so free entries cannot be counted.
            given.max_wr = u32::MAX;
        }
        remember_srq(ctx, srq, pd, &given, kind == IBV_SRQT_BASIC);
    }
    srq
}

/// The arguments of an extended SRQ.
///
/// # Safety
/// Members that the mask names are readable.
unsafe fn asked_for(attr: *const ibv_srq_init_attr_ex) -> WantedSrq {
    // SAFETY: per the caller; the first members are in every form of the structure.
    unsafe {
        let comp_mask = (*attr).comp_mask;
        let has = |bit| comp_mask & bit != 0;
        let extended = WantedSrqEx {
            comp_mask,
            kind: if has(IBV_SRQ_INIT_ATTR_TYPE) { (*attr).srq_type } else { IBV_SRQT_BASIC },
            has_pd: has(IBV_SRQ_INIT_ATTR_PD) && !(*attr).pd.is_null(),
            has_xrcd: has(abi::IBV_SRQ_INIT_ATTR_XRCD) && !(*attr).xrcd.is_null(),
            has_cq: has(abi::IBV_SRQ_INIT_ATTR_CQ) && !(*attr).cq.is_null(),
            max_num_tags: match has(abi::IBV_SRQ_INIT_ATTR_TM) {
                true => (*attr).tm_cap.max_num_tags,
                false => 0,
            },
        };
        WantedSrq { attr: (*attr).attr, extended: Some(extended) }
    }
}

pub(crate) unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's SRQ is live.
    let Some(ctx) = context(unsafe { (*srq).context }) else { return libc::EINVAL };
    // SAFETY: the caller's arguments, passed on.
    let watch = WatchedCall::begin("ibv_modify_srq");
    // SAFETY: as above.
    let result = unsafe { beneath!(ctx.next(), modify_srq)(srq, attr, mask) };
    if result != 0 {
        let known = SRQS.get(srq as usize);
        let room = known.map(|known| known.max_wr.load(Ordering::Relaxed));
        let posted = known.map(Srq::receives);
        let about = Subject::object(Id::Ob07, format!("srq {:#x}", srq as usize));
        // SAFETY: the caller's attributes are readable.
        let attr = unsafe { *attr };
        watch.refused(ctx, result, &about, |facts| {
            queues::modify_srq(facts, mask.cast_unsigned(), &attr, room, posted)
        });
    }
    if result == 0
        && mask.cast_unsigned() & abi::IBV_SRQ_LIMIT != 0
        && let Some(known) = SRQS.get(srq as usize)
    {
        known.limit_passed.store(false, Ordering::Relaxed);
    }
    if let (0, true, Some(known)) =
        (result, mask.cast_unsigned() & abi::IBV_SRQ_MAX_WR != 0, SRQS.get(srq as usize))
    {
        // SAFETY: the provider has read the attributes.
        known.max_wr.store(unsafe { (*attr).max_wr }, Ordering::Relaxed);
    }
    result
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller's SRQ is live.
    let Some(ctx) = context(unsafe { (*srq).context }) else { return libc::EINVAL };
    let at = srq as usize;
    let known = SRQS.share(at);
    if let Some(known) = &known {
        // SAFETY: the SRQ is live, and has the count.
        let acked = unsafe { AcknowledgedEvents::new(&raw const (*srq).events_completed) };
        let (events, got) = (Unacknowledged::Asynchronous, &known.async_got);
        acknowledgements::waits(events, "ibv_destroy_srq", &known.name(), got, acked);
        crate::advice::limit_is_over(known);
    }
    SRQS.remove(at);
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next(), destroy_srq)(srq) };
    match known {
        Some(known) if result != 0 => {
            let users = QPS.all();
            let users: Vec<_> =
                users.iter().filter(|qp| qp.srq.as_ref().is_some_and(|srq| srq.at == at)).collect();
            still_used("ibv_destroy_srq", "srq", at, &users);
            SRQS.insert(at, known);
        }
        _ => {
            crate::overlap::clear_queue(at);
            gone("srq", at);
        }
    }
    result
}
