//! QP-02 to QP-15, OB-03: checks of the creation, change and destruction of QPs.
//!
//! Map of this file: helpers, which record a QP and explain a refusal; the creating calls;
//! `modified`, which copies changed attributes; `explain_group`; destruction. Locks: `attr` of a
//! QP; the list of QPs of a CQ; the queues. The provider is called without a lock.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPS_RESET, IBV_QPT_DRIVER,
    IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_XRC_RECV, QpAttrMask as M, Zeroed, ibv_context, ibv_gid,
    ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use layer_tap::beneath;
use layer_tap::spin::Spin;

use crate::acknowledgements;
use crate::advice;
use crate::arguments::{check as check_argument, live_pd};
use crate::builder;
use crate::building::Builder;
use crate::changes;
use crate::checks::events::Unacknowledged;
use crate::checks::pairs::{self, WantedQp};
use crate::checks::{Id, objects};
use crate::provider::{self, AcknowledgedEvents};
use crate::refusal::{Subject, WatchedCall};
use crate::report::report;
use crate::stack;
use crate::state::{CQS, Ctx, PDS, QPS, Qp, Queue, SRQS, context, gone, root_of, shared};

/// OB-01: checks the objects in the attributes.
fn check_parts(call: &str, ctx: usize, attr: &ibv_qp_init_attr) {
    for cq in [attr.send_cq as usize, attr.recv_cq as usize] {
        check_argument(call, ctx, "cq", cq, CQS.get(cq).map(|cq| cq.ctx.at));
    }
    let srq = attr.srq as usize;
    check_argument(call, ctx, "srq", srq, SRQS.get(srq).map(|srq| srq.ctx.at));
}

/// QP-15: explains a refused creation. `probe` tries a creation with another `max_inline_data`.
fn explain_refusal(watch: &WatchedCall, ctx: &Ctx, asked: &WantedQp, probe: impl Fn(u32) -> bool) {
    let about = Subject::none(Id::Qp15);
    watch.failed(ctx, &about, |facts, errno| {
        let mut given = pairs::create_qp(facts, asked, errno);
        let wanted = asked.cap.max_inline_data;
        // A creation without inline data tells whether `max_inline_data` is the cause.
        if given.wrong.is_empty() && wanted > 0 && probe(0) {
            let (mut works, mut fails) = (0, wanted);
            while fails - works > 1 {
                let middle = works + (fails - works) / 2;
                if probe(middle) { works = middle } else { fails = middle }
            }
            given.wrong(
                format!("cap.max_inline_data {wanted} is more than goes with the rest"),
                format!("ask for cap.max_inline_data {works}, which works"),
            );
        }
        given
    });
}

/// The arguments of a QP's creation.
fn wanted(attr: &ibv_qp_init_attr, pd: usize) -> WantedQp {
    let srq = SRQS.get(attr.srq as usize);
    WantedQp {
        kind: attr.qp_type,
        cap: attr.cap,
        has_pd: pd != 0,
        has_send_cq: !attr.send_cq.is_null(),
        has_recv_cq: !attr.recv_cq.is_null(),
        has_srq: !attr.srq.is_null(),
        has_xrcd: false,
        spreads: false,
        special_srq: srq.is_some_and(|srq| !srq.basic && attr.qp_type != IBV_QPT_RC),
    }
}

/// Records a new QP with the capacities that the provider granted.
fn remember(
    call: &str,
    asked: &ibv_qp_init_attr,
    ctx: Arc<Ctx>,
    qp: *mut ibv_qp,
    pd: usize,
    attr: &ibv_qp_init_attr,
    send_ops: Option<u64>,
) {
    // SAFETY: the provider has just created the QP.
    let made = unsafe { &*qp };
    let (send_cq, recv_cq) = (CQS.share(attr.send_cq as usize), CQS.share(attr.recv_cq as usize));
    let cap = attr.cap;
    let at = qp.expose_provenance();
    let known = Arc::new(Qp {
        at,
        number: made.qp_num,
        kind: attr.qp_type,
        ctx,
        pd,
        root: if attr.qp_type == IBV_QPT_XRC_RECV { 0 } else { root_of(pd) },
        single: PDS.get(pd).is_some_and(|pd| pd.single),
        user: AtomicU32::new(0),
        cap,
        sig_all: attr.sq_sig_all != 0,
        send_cq,
        recv_cq,
        srq: SRQS.share(attr.srq as usize),
        state: AtomicU32::new(IBV_QPS_RESET),
        attr: Spin::new(ibv_qp_attr::zeroed()),
        max_rd_atomic: AtomicU32::new(u32::MAX),
        mtu: AtomicU32::new(0),
        qkey: AtomicU32::new(0),
        send: Spin::new(Queue::new(cap.max_send_wr)),
        recv: Spin::new(Queue::new(cap.max_recv_wr)),
        digests: Spin::new(crate::digest::Digests::default()),
        failed: AtomicBool::new(false),
        explained: AtomicBool::new(false),
        was_reset: AtomicBool::new(false),
        first_message: AtomicU32::new(0),
        groups: AtomicU32::new(0),
        async_got: AtomicU32::new(0),
        builder: send_ops.map(|_| Box::new(Builder::new())),
        made: stack::here(),
    });
    known.cqs().for_each(|cq| cq.add(&known));
    QPS.insert(at, known.clone());
    advice::created(call, &known, asked);
    if let (Some(ops), Some(builder)) = (send_ops, &known.builder) {
        // SAFETY: the QP was created with these operations, so the QP is extended.
        unsafe { builder::replace(builder, known.extended(), ops) };
    }
}

pub(crate) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = shared(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    let watch = WatchedCall::begin("ibv_create_qp");
    live_pd("ibv_create_qp", pd);
    // SAFETY: the caller's attributes are readable.
    let given = unsafe { *attr };
    check_parts("ibv_create_qp", ctx.at, &given);
    // SAFETY: the caller's arguments, passed on.
    let qp = unsafe { beneath!(ctx.next(), create_qp)(pd, attr) };
    if qp.is_null() {
        explain_refusal(&watch, &ctx, &wanted(&given, pd as usize), |inline| {
            let mut again = given;
            again.cap.max_inline_data = inline;
            // SAFETY: the domain is the caller's, and the attributes are a copy.
            let made = unsafe { beneath!(ctx.next(), create_qp)(pd, &raw mut again) };
            // SAFETY: the QP was just created, and no other thread uses the QP.
            !made.is_null() && unsafe { beneath!(ctx.next(), destroy_qp)(made) } == 0
        });
    } else {
        // SAFETY: the provider has filled in the capacities.
        remember("ibv_create_qp", &given, ctx, qp, pd as usize, unsafe { &*attr }, None);
    }
    qp
}

/// The members of the extended attributes that the plain attributes have too.
fn plain(attr: &ibv_qp_init_attr_ex) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    }
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    at: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let Some(ctx) = shared(at) else { return core::ptr::null_mut() };
    // SAFETY: these members are in each version of the structure. A program built with an older
    // header has a shorter structure, so other members are read only if the mask names them.
    let (mask, first) = unsafe { ((*attr).comp_mask, plain(&*attr)) };
    let watch = WatchedCall::begin("ibv_create_qp_ex");
    check_parts("ibv_create_qp_ex", ctx.at, &first);
    // SAFETY: the caller's arguments, passed on.
    let qp = unsafe { beneath!(ctx.next(), create_qp_ex)(at, attr) };
    if qp.is_null() {
        // SAFETY: members that the mask names are readable.
        let asked = unsafe { wanted_ex(attr, mask, &first) };
        explain_refusal(&watch, &ctx, &asked, |inline| {
            // SAFETY: the structure is writable during the call, and is restored below.
            let made = unsafe {
                let cap = &raw mut (*attr).cap;
                let before = *cap;
                *cap = first.cap;
                (*cap).max_inline_data = inline;
                let made = beneath!(ctx.next(), create_qp_ex)(at, attr);
                *cap = before;
                made
            };
            // SAFETY: the QP was just created, and no other thread uses the QP.
            !made.is_null() && unsafe { beneath!(ctx.next(), destroy_qp)(made) } == 0
        });
    } else {
        // SAFETY: members that the mask names are readable.
        let (pd, ops, now) = unsafe {
            let pd = if mask & IBV_QP_INIT_ATTR_PD != 0 { (*attr).pd as usize } else { 0 };
            let ops = (mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then(|| (*attr).send_ops_flags);
            (pd, ops, plain(&*attr))
        };
        remember("ibv_create_qp_ex", &first, ctx, qp, pd, &now, ops);
    }
    qp
}

/// As [`wanted`], for ibv_create_qp_ex(3).
///
/// # Safety
/// Members that `mask` names are readable.
unsafe fn wanted_ex(
    attr: *const ibv_qp_init_attr_ex,
    mask: u32,
    first: &ibv_qp_init_attr,
) -> WantedQp {
    // SAFETY: per the caller.
    let (pd, xrcd) = unsafe {
        let pd = if mask & IBV_QP_INIT_ATTR_PD != 0 { (*attr).pd as usize } else { 0 };
        (pd, mask & abi::IBV_QP_INIT_ATTR_XRCD != 0 && !(*attr).xrcd.is_null())
    };
    let spreads = mask & abi::IBV_QP_INIT_ATTR_IND_TABLE != 0;
    WantedQp { has_xrcd: xrcd, spreads, ..wanted(first, pd) }
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's QP is live.
    let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
    let at = qp as usize;
    let Some(known) = QPS.share(at) else {
        // SAFETY: the caller's argument, passed on.
        return unsafe { beneath!(ctx.next(), destroy_qp)(qp) };
    };
    let groups = known.groups.load(Ordering::Relaxed);
    let found = objects::attached(groups, known.made);
    report("ibv_destroy_qp", || known.name(), found, known.about());
    // SAFETY: the QP is live, and has the count.
    let acked = unsafe { AcknowledgedEvents::new(&raw const (*qp).events_completed) };
    let (events, got) = (Unacknowledged::Asynchronous, &known.async_got);
    acknowledgements::waits(events, "ibv_destroy_qp", &known.name(), got, acked);
    advice::destroyed(&known);
    advice::unread("ibv_destroy_qp", known.name(), ctx);
    for cq in known.cqs() {
        cq.qps.lock().retain(|qp| qp.at != at);
    }
    QPS.remove(at);
    let watch = WatchedCall::begin("ibv_destroy_qp");
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next(), destroy_qp)(qp) };
    if result == 0 {
        for queue in [&known.send, &known.recv] {
            queue.lock().clear();
        }
        gone("qp", at);
    } else {
        known.cqs().for_each(|cq| cq.add(&known));
        if groups == 0 {
            let about = Subject::qp(Id::Qp21, &known);
            watch.refused(ctx, result, &about, |_| pairs::destroy_qp(groups));
        }
        QPS.insert(at, known);
    }
    result
}

pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's QP is live.
    let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
    let mask = M::from_bits_retain(mask.cast_unsigned());
    let known = QPS.get(qp as usize);
    let watched = known.filter(|known| known.kind != IBV_QPT_DRIVER);
    // SAFETY: members that the mask names are readable.
    let change = watched.map(|known| (known, unsafe { provider::read_change(attr, mask) }));
    let is_explained = change.as_ref().is_some_and(|(known, change)| changes::check(known, change));
    let builder = known.and_then(|known| Some((known, known.builder.as_deref()?)));
    // SAFETY: the QP is extended and live.
    let before =
        builder.map(|(known, builder)| unsafe { builder::look(builder, known.extended()) });
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(ctx.next(), modify_qp)(qp, attr, mask.bits().cast_signed()) };
    if let (0, Some(known)) = (result, known) {
        // SAFETY: a successful call has read the caller's attributes.
        unsafe { modified(known, attr, mask) };
        if let (Some((_, builder)), Some(before)) = (builder, &before) {
            // SAFETY: the QP is extended and live.
            unsafe { builder::replace_again(builder, known.extended(), before) };
        }
    }
    if let (true, false, Some((known, change))) = (result != 0, is_explained, &change) {
        // The QP may have gone to ERR by itself.
        let actual = || known.ctx.provider.state_of(known.at);
        changes::refused(known, change, result, actual);
    }
    result
}

/// Records the changed attributes.
///
/// # Safety
/// `attr` is readable where `mask` names a member.
unsafe fn modified(qp: &Qp, attr: *const ibv_qp_attr, mask: M) {
    let mut kept = qp.attr.lock();
    macro_rules! keep {
        ($($bit:ident $($field:ident)+;)*) => {$(
            if mask.contains(M::$bit) {
                // SAFETY: the mask names the member.
                $(kept.$field = unsafe { (*attr).$field };)+
            }
        )*};
    }
    keep! {
        PORT port_num;
        TIMEOUT timeout;
        RETRY_CNT retry_cnt;
        RNR_RETRY rnr_retry;
        AV ah_attr;
        DEST_QPN dest_qp_num;
        PATH_MTU path_mtu;
        RQ_PSN rq_psn;
        SQ_PSN sq_psn;
        MAX_DEST_RD_ATOMIC max_dest_rd_atomic;
        ACCESS_FLAGS qp_access_flags;
        MAX_QP_RD_ATOMIC max_rd_atomic;
        MIN_RNR_TIMER min_rnr_timer;
    }
    if mask.contains(M::MAX_QP_RD_ATOMIC) {
        qp.max_rd_atomic.store(u32::from(kept.max_rd_atomic), Ordering::Relaxed);
    }
    if mask.contains(M::QKEY) {
        // SAFETY: the mask names the member.
        qp.qkey.store(unsafe { (*attr).qkey }, Ordering::Relaxed);
    }
    if let Some(port) = qp.ctx.port(kept.port_num) {
        qp.mtu.store(128 << port.active_mtu.min(5), Ordering::Relaxed);
    }
    drop(kept);
    if mask.contains(M::STATE) {
        // SAFETY: the mask names the member.
        let to = unsafe { (*attr).qp_state };
        qp.state.store(to, Ordering::Relaxed);
        if to == IBV_QPS_RESET {
            qp.was_reset.store(true, Ordering::Relaxed);
            qp.clear();
            qp.first_message.store(0, Ordering::Relaxed);
            qp.max_rd_atomic.store(u32::MAX, Ordering::Relaxed);
        }
    }
}

pub(crate) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: the caller's QP is live.
    let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
    let known = QPS.get(qp as usize);
    if let Some(known) = known {
        let found = objects::no_multicast(known.kind, known.made);
        report("ibv_attach_mcast", || known.name(), found, known.about());
    }
    // SAFETY: the caller's arguments, passed on.
    let watch = WatchedCall::begin("ibv_attach_mcast");
    // SAFETY: as above.
    let result = unsafe { beneath!(ctx.next(), attach_mcast)(qp, gid, lid) };
    if known.is_none_or(|known| known.kind == IBV_QPT_UD) {
        // SAFETY: the pointer is NULL or the caller's GID, which is readable.
        unsafe { explain_group(&watch, ctx, known, gid, false, result) };
    }
    if let (0, Some(known)) = (result, known) {
        known.groups.fetch_add(1, Ordering::Relaxed);
    }
    result
}

/// Explains a refused group.
///
/// # Safety
/// `gid` is NULL or readable.
unsafe fn explain_group(
    watch: &WatchedCall,
    ctx: &Ctx,
    known: Option<&Qp>,
    gid: *const ibv_gid,
    detaches: bool,
    result: c_int,
) {
    // SAFETY: per the caller.
    let (true, Some(known), Some(gid)) = (result != 0, known, unsafe { gid.as_ref() }) else {
        return;
    };
    let groups = known.groups.load(Ordering::Relaxed);
    watch.refused(ctx, result, &Subject::qp(Id::Qp21, known), |facts| {
        pairs::multicast(facts, known.kind, gid.bytes().into(), detaches, groups, result)
    });
}

pub(crate) unsafe extern "C" fn detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: the caller's QP is live.
    let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
    // SAFETY: the caller's arguments, passed on.
    let watch = WatchedCall::begin("ibv_detach_mcast");
    let known = QPS.get(qp as usize);
    // SAFETY: as above.
    let result = unsafe { beneath!(ctx.next(), detach_mcast)(qp, gid, lid) };
    // SAFETY: the pointer is NULL or the caller's GID, which is readable.
    unsafe { explain_group(&watch, ctx, known, gid, true, result) };
    if let (0, Some(known)) = (result, known) {
        let less = |count: u32| Some(count.saturating_sub(1));
        let _ = known.groups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    result
}
