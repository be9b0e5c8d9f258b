//! QP-02 to QP-15, OB-03: checks of the creation, change and destruction of QPs.
//!
//! Map of this file: helpers, which record a QP and explain a refusal; `modified`, which copies
//! changed attributes; `explain_group`; the calls of the tap. Locks: `attr` of a
//! QP; the list of QPs of a CQ; the queues. The provider is called without a lock.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use abi::{
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPS_RESET, IBV_QPT_DRIVER, IBV_QPT_RC, IBV_QPT_UD,
    IBV_QPT_XRC_RECV, QpAttrMask as M, Zeroed, ibv_context, ibv_gid, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use layer_tap::spin::Spin;
use layer_tap::{Arg, Device, Next, QueuePairCalls, Returned};

use crate::checks::change::QpChange;
use crate::watcher::Validate;

use crate::acknowledgements;
use crate::advice;
use crate::arguments::{check as check_argument, live_pd};
use crate::building::Builder;
use crate::changes;
use crate::checks::events::Unacknowledged;
use crate::checks::pairs::{self, WantedQp};
use crate::checks::{Id, objects};
use crate::refusal::{Subject, WatchedCall};
use crate::report::report;
use crate::stack;
use crate::state::{
    CQS, Ctx, PDS, QPS, Qp, Queue, SRQS, context, record_destruction, root_of, shared,
};

/// OB-01: checks the objects in the attributes.
fn check_parts(call: &str, ctx: usize, attr: &ibv_qp_init_attr) {
    for cq in [attr.send_cq as usize, attr.recv_cq as usize] {
        check_argument(call, ctx, "cq", cq, CQS.get(cq).map(|cq| cq.ctx.address));
    }
    let srq = attr.srq as usize;
    check_argument(call, ctx, "srq", srq, SRQS.get(srq).map(|srq| srq.ctx.address));
}

/// QP-15: explains a refused creation. `probe` tries a creation with another `max_inline_data`.
fn explain_refusal(watch: &WatchedCall, ctx: &Ctx, asked: &WantedQp, probe: impl Fn(u32) -> bool) {
    let about = Subject::without_object(Id::Qp15);
    watch.failed(ctx, &about, |facts, errno| {
        let mut given = pairs::create_qp(facts, asked, errno);
        let wanted = asked.cap.max_inline_data;
        // A creation without inline data tells whether `max_inline_data` is the cause.
        if given.wrong_arguments.is_empty() && wanted > 0 && probe(0) {
            let (mut works, mut fails) = (0, wanted);
            while fails - works > 1 {
                let middle = works + (fails - works) / 2;
                if probe(middle) { works = middle } else { fails = middle }
            }
            given.add_wrong(
                format!("cap.max_inline_data {wanted} is more than goes with the rest"),
                format!("ask for cap.max_inline_data {works}, which works"),
            );
        }
        given
    });
}

/// The arguments of a QP's creation.
fn requested_qp(attr: &ibv_qp_init_attr, pd: usize) -> WantedQp {
    let srq = SRQS.get(attr.srq as usize);
    WantedQp {
        qp_type: attr.qp_type,
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
fn record_qp(
    call: &str,
    asked: &ibv_qp_init_attr,
    ctx: Arc<Ctx>,
    qp: Arg<'_, ibv_qp>,
    pd: usize,
    attr: &ibv_qp_init_attr,
    is_extended: bool,
) {
    let (send_cq, recv_cq) = (CQS.share(attr.send_cq as usize), CQS.share(attr.recv_cq as usize));
    let cap = attr.cap;
    let at = qp.at();
    let known = Arc::new(Qp {
        address: at,
        number: qp.number(),
        qp_type: attr.qp_type,
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
        builder: is_extended.then(|| Box::new(Builder::new())),
        created_by: stack::current_stack(),
    });
    known.cqs().for_each(|cq| cq.add(&known));
    QPS.insert(at, known.clone());
    advice::created(call, &known, asked);
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

/// As [`requested_qp`], for ibv_create_qp_ex(3). Members that the mask does not name are zero.
fn wanted_ex(attr: &ibv_qp_init_attr_ex) -> WantedQp {
    let spreads = attr.comp_mask & abi::IBV_QP_INIT_ATTR_IND_TABLE != 0;
    WantedQp {
        has_xrcd: !attr.xrcd.is_null(),
        spreads,
        ..requested_qp(&plain(attr), attr.pd as usize)
    }
}

/// Records the changed attributes.
fn modified(qp: &Qp, attr: &ibv_qp_attr, mask: M) {
    let mut kept = qp.attr.lock();
    macro_rules! keep {
        ($($bit:ident $($field:ident)+;)*) => {$(
            if mask.contains(M::$bit) {
                $(kept.$field = attr.$field;)+
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
        qp.qkey.store(attr.qkey, Ordering::Relaxed);
    }
    if let Some(port) = qp.ctx.port(kept.port_num) {
        qp.mtu.store(128 << port.active_mtu.min(5), Ordering::Relaxed);
    }
    drop(kept);
    if mask.contains(M::STATE) {
        let to = attr.qp_state;
        qp.state.store(to, Ordering::Relaxed);
        if to == IBV_QPS_RESET {
            qp.was_reset.store(true, Ordering::Relaxed);
            qp.clear();
            qp.first_message.store(0, Ordering::Relaxed);
            qp.max_rd_atomic.store(u32::MAX, Ordering::Relaxed);
        }
    }
}

/// Explains a refused group.
fn explain_group(
    watch: &WatchedCall,
    device: &Device,
    known: &Qp,
    gid: Arg<'_, ibv_gid>,
    detaches: bool,
    result: c_int,
) {
    if result == 0 {
        return;
    }
    let (Some(ctx), Some(gid)) = (context(device.at), gid.bytes()) else { return };
    let groups = known.groups.load(Ordering::Relaxed);
    watch.refused(ctx, result, &Subject::qp(Id::Qp21, known), |facts| {
        pairs::multicast(facts, known.qp_type, gid.into(), detaches, groups, result)
    });
}

impl QueuePairCalls for Validate {
    fn create_qp<F: FnOnce() -> *mut ibv_qp>(
        device: &'static Device,
        pd: Arg<'_, ibv_pd>,
        attr: Arg<'_, ibv_qp_init_attr>,
        next: Next<F>,
    ) -> Returned<*mut ibv_qp> {
        const CALL: &str = "ibv_create_qp";
        let (Some(ctx), Some(given)) = (shared(device.at), attr.read()) else {
            return next.call();
        };
        let watch = WatchedCall::begin(CALL);
        live_pd(CALL, pd);
        check_parts(CALL, ctx.address, &given);
        let made = next.call();
        match (made.object(), attr.read()) {
            (Some(qp), Some(granted)) => record_qp(CALL, &given, ctx, qp, pd.at(), &granted, false),
            _ => explain_refusal(&watch, &ctx, &requested_qp(&given, pd.at()), |inline| {
                let mut again = given;
                again.cap.max_inline_data = inline;
                ctx.provider.can_create_qp(pd, again)
            }),
        }
        made
    }

    fn create_qp_ex<F: FnOnce() -> *mut ibv_qp>(
        device: &'static Device,
        at: Arg<'_, ibv_context>,
        attr: Arg<'_, ibv_qp_init_attr_ex>,
        next: Next<F>,
    ) -> Returned<*mut ibv_qp> {
        const CALL: &str = "ibv_create_qp_ex";
        let (Some(ctx), Some(given)) = (shared(device.at), attr.read_named()) else {
            return next.call();
        };
        let watch = WatchedCall::begin(CALL);
        check_parts(CALL, ctx.address, &plain(&given));
        let made = next.call();
        match (made.object(), attr.read_named()) {
            (Some(qp), Some(granted)) => {
                let has_ops = granted.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
                let pd = granted.pd as usize;
                record_qp(CALL, &plain(&given), ctx, qp, pd, &plain(&granted), has_ops);
            }
            _ => explain_refusal(&watch, &ctx, &wanted_ex(&given), |inline| {
                let mut cap = given.cap;
                cap.max_inline_data = inline;
                ctx.provider.can_create_qp_ex(at, attr, cap)
            }),
        }
        made
    }

    fn destroy_qp<F: FnOnce() -> c_int>(
        device: &'static Device,
        qp: Arg<'_, ibv_qp>,
        next: Next<F>,
    ) -> Returned<c_int> {
        const CALL: &str = "ibv_destroy_qp";
        let at = qp.at();
        let (Some(ctx), Some(known)) = (context(device.at), QPS.share(at)) else {
            return next.call();
        };
        let groups = known.groups.load(Ordering::Relaxed);
        let found = objects::attached(groups, known.created_by);
        report(CALL, || known.name(), found, known.message_subject());
        let acked = qp.acknowledged_asynchronous();
        let (events, got) = (Unacknowledged::Asynchronous, &known.async_got);
        acknowledgements::waits(events, CALL, &known.name(), got, acked);
        advice::destroyed(&known);
        advice::unread(CALL, known.name(), ctx);
        for cq in known.cqs() {
            cq.qps.lock().retain(|qp| qp.address != at);
        }
        QPS.remove(at);
        let watch = WatchedCall::begin(CALL);
        let result = next.call();
        if result.get() == 0 {
            for queue in [&known.send, &known.recv] {
                queue.lock().clear();
            }
            record_destruction("qp", at);
        } else {
            known.cqs().for_each(|cq| cq.add(&known));
            if groups == 0 {
                let about = Subject::qp(Id::Qp21, &known);
                watch.refused(ctx, result.get(), &about, |_| pairs::destroy_qp());
            }
            QPS.insert(at, known);
        }
        result
    }

    fn modify_qp<F: FnOnce() -> c_int>(
        _device: &'static Device,
        qp: Arg<'_, ibv_qp>,
        attr: Arg<'_, ibv_qp_attr>,
        mask: c_int,
        next: Next<F>,
    ) -> Returned<c_int> {
        let mask = M::from_bits_retain(mask.cast_unsigned());
        let (Some(known), Some(given)) = (QPS.get(qp.at()), attr.read_named(mask)) else {
            return next.call();
        };
        let change = QpChange::new(&given, mask);
        let is_watched = known.qp_type != IBV_QPT_DRIVER;
        let is_explained = is_watched && changes::check(known, &change);
        let result = next.call();
        if result.get() == 0 {
            modified(known, &given, mask);
        } else if is_watched && !is_explained {
            // The QP may have gone to ERR by itself.
            let actual = || known.ctx.provider.state_of(known.address);
            changes::refused(known, &change, result.get(), actual);
        }
        result
    }

    fn attach_mcast<F: FnOnce() -> c_int>(
        device: &'static Device,
        qp: Arg<'_, ibv_qp>,
        gid: Arg<'_, ibv_gid>,
        _lid: u16,
        next: Next<F>,
    ) -> Returned<c_int> {
        const CALL: &str = "ibv_attach_mcast";
        let known = QPS.get(qp.at());
        if let Some(known) = known {
            let found = objects::no_multicast(known.qp_type, known.created_by);
            report(CALL, || known.name(), found, known.message_subject());
        }
        let watch = WatchedCall::begin(CALL);
        let result = next.call();
        if let Some(known) = known {
            if known.qp_type == IBV_QPT_UD {
                explain_group(&watch, device, known, gid, false, result.get());
            }
            if result.get() == 0 {
                known.groups.fetch_add(1, Ordering::Relaxed);
            }
        }
        result
    }

    fn detach_mcast<F: FnOnce() -> c_int>(
        device: &'static Device,
        qp: Arg<'_, ibv_qp>,
        gid: Arg<'_, ibv_gid>,
        _lid: u16,
        next: Next<F>,
    ) -> Returned<c_int> {
        let watch = WatchedCall::begin("ibv_detach_mcast");
        let known = QPS.get(qp.at());
        let result = next.call();
        if let Some(known) = known {
            explain_group(&watch, device, known, gid, true, result.get());
            if result.get() == 0 {
                let less = |count: u32| Some(count.saturating_sub(1));
                let _ = known.groups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
        }
        result
    }
}
