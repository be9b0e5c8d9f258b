//! Queue pairs: ibv_create_qp(3), ibv_modify_qp(3), ibv_query_qp(3), ibv_destroy_qp(3). The C entry
//! points of `engine/queues/qp/receiving`; `connect` finds the remote QP at the change to RTR.
//!
//! Map of the file:
//!
//! - Threads: application threads only.
//! - Locks: `modify` holds `Qp::attributes` against concurrent changes. Below it are taken: the
//!   list of a CQ, responder, requester, incarnation. While connecting to a process, only
//!   `attributes` is held, for seconds.
//! - State changes by errors do not take `attributes`; they only lead to ERR or SQE.
//! - Order: `create` > `create_in_domain` or `create_receiver` > `finish` (fills in the C object).

use super::cq::wait_for_acks;
use super::pd::Pd;
use super::query::{MAX_INLINE, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE};
use super::state::Context;
use super::xrcd::Xrcd;
use super::{ah, builder, failed, object, status};
use crate::config::Wiring;
use crate::engine::adapter::Adapter;
use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::creating::QpParameters;
use crate::engine::queues::qp::life::from_shared;
use crate::engine::queues::qp::{Opened, Pair, Qp, Role};
use crate::engine::queues::srq::Srq;
use crate::engine::queues::wq::Rss;
use crate::engine::refused::errno;
use crate::host::active_mtu;
use crate::host::unavailable::is_temporary;
use crate::net::{Gids, is_multicast};
use abi::*;
use soft_local::shm::layout::Life;
use soft_semantics::frames::segmenter::MAX_TSO_HEADER;
use soft_semantics::modify::{self, Limits, Step};
use soft_semantics::request::Route;
use soft_semantics::state::{QpState, QpType};
use soft_sys::Errno;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// ibv_create_qp(3).
///
/// # Safety
/// `pd` is a live protection domain of this provider; `init` is readable and writable, and the
/// objects named by it are live objects of this provider.
pub(super) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    object(|| {
        // SAFETY: `init` belongs to the caller, is readable and writable, and no other thread uses
        // it during the call.
        let init = unsafe { &mut *init };
        let full = ibv_qp_init_attr_ex {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd,
            ..Zeroed::zeroed()
        };
        // SAFETY: `full` names `pd` and the objects of the caller's `init`, live objects of this
        // provider during the call.
        let qp = unsafe { create(&full)? };
        init.cap = qp.attributes().lock().cap;
        Ok(Arc::into_raw(qp).cast_mut().cast())
    })
}

/// ibv_create_qp_ex(3), with the `ibv_wr_*` functions if `send_ops_flags` asks for them.
///
/// # Safety
/// `init` is readable and writable, and the objects named by it (domain, queues, XRC domain, table)
/// are live objects of this provider.
pub(super) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    object(|| {
        // SAFETY: `init` belongs to the caller, is readable and writable, and no other thread uses
        // it during the call.
        let init = unsafe { &mut *init };
        // SAFETY: the objects named by the caller's `init` are live objects of this provider during
        // the call.
        let qp = unsafe { create(init)? };
        init.cap = qp.attributes().lock().cap;
        Ok(Arc::into_raw(qp).cast_mut().cast())
    })
}

/// The bits of `create_flags` supported for this kind of QP.
const fn create_flags_of(kind: QpType) -> u32 {
    match kind {
        QpType::Ud => IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
        QpType::Raw => {
            IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
                | IBV_QP_CREATE_CVLAN_STRIPPING
                | IBV_QP_CREATE_SCATTER_FCS
        }
        _ => 0,
    }
}

/// Creates a QP for both functions.
///
/// # Safety
/// The objects named by `init` are live objects of this provider.
unsafe fn create(init: &ibv_qp_init_attr_ex) -> Result<Arc<Qp>, Errno> {
    let has = |bit| init.comp_mask & bit != 0;
    let mut known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    let kind = QpType::from_raw(init.qp_type).ok_or(Errno::EOPNOTSUPP)?;
    match kind {
        QpType::Raw => {
            known |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER
                | IBV_QP_INIT_ATTR_IND_TABLE
                | IBV_QP_INIT_ATTR_RX_HASH;
        }
        QpType::Ud => known |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
        _ => {}
    }
    if init.comp_mask & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: the table named by `init` is live during creation, and its key readable, by contract
    // of `create`.
    let rss = unsafe { super::wq::spreading(init)? };
    let max_tso_header = if has(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) { init.max_tso_header } else { 0 };
    if max_tso_header > MAX_TSO_HEADER {
        return Err(Errno::EINVAL);
    }
    let create_flags = if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { init.create_flags } else { 0 };
    if create_flags & !create_flags_of(kind) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let send_ops = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(init.send_ops_flags);
    if send_ops.is_some_and(|ops| ops & !builder::offered(kind) != 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    // SAFETY: the domain, queues and XRC domain named by `init` are live during creation, as both
    // functions require; they refuse NULL themselves.
    let made = unsafe {
        match kind {
            QpType::XrcRecv if has(IBV_QP_INIT_ATTR_XRCD) => create_receiver(init)?,
            QpType::XrcRecv => return Err(Errno::EINVAL),
            _ if has(IBV_QP_INIT_ATTR_PD) => {
                create_in_domain(kind, init, max_tso_header, rss, false)?
            }
            _ => return Err(Errno::EINVAL),
        }
    };
    // SAFETY: `made` names objects of `init`, live during creation, and its QP was made just above:
    // no other thread has its handle.
    Ok(unsafe { finish(made, init.qp_context, init.qp_type, send_ops.is_some()) })
}

/// Creates a QP of an emulated device. With `has_low_number` the QP has a number of the range that
/// maps to the numbers of the device.
///
/// # Errors
/// As ibv_create_qp(3).
///
/// # Safety
/// The objects named by `init` are live objects of this provider.
pub(super) unsafe fn create_for_emulation(
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    has_low_number: bool,
) -> Result<*mut ibv_qp, Errno> {
    let kind = QpType::from_raw(init.qp_type).ok_or(Errno::EOPNOTSUPP)?;
    let full = ibv_qp_init_attr_ex {
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd,
        ..Zeroed::zeroed()
    };
    // SAFETY: the objects of `full` are live, per the caller; nobody else knows the new QP.
    let qp = unsafe {
        let made = create_in_domain(kind, &full, 0, None, has_low_number)?;
        finish(made, std::ptr::null_mut(), init.qp_type, false)
    };
    Ok(Arc::into_raw(qp).cast_mut().cast())
}

/// Fills in the C object of a QP that no other thread knows yet.
///
/// # Safety
/// `made` names live objects.
unsafe fn finish(
    made: NewQp,
    qp_context: *mut c_void,
    qp_type: ibv_qp_type,
    wants_ops: bool,
) -> Arc<Qp> {
    let NewQp { qp, context, pd, send_cq, recv_cq, srq, xrcd } = made;
    // SAFETY: no other thread has the handle of the QP yet; mutex and condition are initialised in
    // place and stay there.
    unsafe {
        let verbs = qp.handle();
        (*verbs).context = context;
        (*verbs).qp_context = qp_context;
        (*verbs).pd = pd;
        (*verbs).send_cq = send_cq;
        (*verbs).recv_cq = recv_cq;
        (*verbs).srq = srq;
        (*verbs).handle = qp.index() as u32;
        (*verbs).qp_num = qp.qpn();
        (*verbs).state = IBV_QPS_RESET;
        (*verbs).qp_type = qp_type;
        if !xrcd.is_null() {
            (*qp.verbs().get()).xrcd = xrcd.cast();
            (*qp.verbs().get()).comp_mask |= VERBS_QP_XRCD;
        }
        libc::pthread_mutex_init(&raw mut (*verbs).mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut (*verbs).cond, std::ptr::null());
        if wants_ops {
            builder::install(qp.verbs().get());
        }
    }
    qp
}

/// A new QP, and the objects of its C object.
struct NewQp {
    qp: Arc<Qp>,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    xrcd: *mut ibv_xrcd,
}

/// Creates a QP of any type except XRC_RECV.
///
/// # Safety
/// The objects named by `init` are live objects of this provider, or NULL.
unsafe fn create_in_domain(
    kind: QpType,
    init: &ibv_qp_init_attr_ex,
    max_tso_header: u16,
    rss: Option<Rss>,
    has_low_number: bool,
) -> Result<NewQp, Errno> {
    let mut cap = init.cap;
    let too_much = cap.max_send_wr > MAX_QP_WR
        || cap.max_recv_wr > MAX_QP_WR
        || cap.max_send_sge > MAX_SGE
        || cap.max_recv_sge > MAX_SGE
        || cap.max_inline_data > MAX_INLINE;
    let sends_only = kind == QpType::XrcSend;
    // A QP that spreads frames has no queues of its own.
    let spreads = rss.is_some();
    if init.pd.is_null() || (init.send_cq.is_null() && !spreads) || too_much {
        return Err(Errno::EINVAL);
    }
    // The receive fields of an XRC send QP are ignored.
    let none = (std::ptr::null_mut(), std::ptr::null_mut());
    let (recv_cq, srq) = if sends_only { none } else { (init.recv_cq, init.srq) };
    if recv_cq.is_null() && !sends_only && !spreads {
        return Err(Errno::EINVAL);
    }
    if sends_only || !srq.is_null() {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    // A request of any adapter has room for a list range or as many bytes of data. Programs that
    // ask for no inline data send some (rdma_xclient).
    if cap.max_send_wr > 0 && cap.max_send_sge > 0 && !spreads {
        cap.max_inline_data = cap.max_inline_data.max(size_of::<ibv_sge>() as u32);
    }
    // SAFETY: the front-end passes live objects of the context's own provider, this one.
    let (domain, context, shared) = unsafe {
        let shared = if srq.is_null() { None } else { Some(Srq::share(srq)) };
        (Pd::of(init.pd), (*init.pd).context, shared)
    };
    let unfit = |srq: &Arc<Srq>| srq.domain.is_some() || srq.tm.is_some() && kind != QpType::Rc;
    if shared.as_ref().is_some_and(unfit) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the context of a live domain is open.
    let report = unsafe { Context::of(context).report.clone() };
    let wanted = if let Some(rss) = rss {
        QpParameters::spreader(domain.number, rss, cap, report)
    } else {
        // SAFETY: not NULL (checked above), except the receive queue of a QP that only sends, which
        // uses its send queue instead; live objects of this provider, by contract.
        let (send_queue, recv_queue) = unsafe {
            (Cq::share(init.send_cq), Cq::share(if sends_only { init.send_cq } else { recv_cq }))
        };
        let mut pair = Pair::new(send_queue, recv_queue, shared);
        pair.signals_all = init.sq_sig_all != 0;
        if init.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 {
            pair.create_flags = init.create_flags;
        }
        QpParameters::pair(kind, domain.number, pair, cap, report)
            .with_tso_header(max_tso_header)
            .with_low_number(has_low_number)
    };
    let held = domain.hold_for_object()?;
    let qp = Qp::new(&domain.adapter, wanted)?;
    held.keep_for_object();
    let xrcd = std::ptr::null_mut();
    Ok(NewQp { qp, context, pd: init.pd, send_cq: init.send_cq, recv_cq, srq, xrcd })
}

/// Creates an XRC receive QP: it has an XRC domain, and neither queues nor CQs.
///
/// # Safety
/// The XRC domain named by `init` is NULL or a live domain of this provider.
unsafe fn create_receiver(init: &ibv_qp_init_attr_ex) -> Result<NewQp, Errno> {
    if init.xrcd.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: a live domain of this provider, whose context is open.
    let (xrcd, context, report) = unsafe {
        let context = (*init.xrcd).context;
        (Xrcd::of(init.xrcd), context, Context::of(context).report.clone())
    };
    let qp = Qp::new(&xrcd.adapter, QpParameters::receiver(Role::receiver(xrcd.id), report))?;
    xrcd.count_object();
    let (cq, srq) = (std::ptr::null_mut(), std::ptr::null_mut());
    let pd = std::ptr::null_mut();
    Ok(NewQp { qp, context, pd, send_cq: cq, recv_cq: cq, srq, xrcd: init.xrcd })
}

/// ibv_open_qp(3): a further handle of an XRC receive QP of a domain, possibly of another process.
///
/// EINVAL: an attribute is missing, the type is not XRC_RECV, or the domain has no such QP.
///
/// # Safety
/// `context` is open; `attr` is readable, and the domain named by it is a live domain of this
/// provider.
pub(super) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    object(|| {
        // SAFETY: the caller's context is open and `attr` is readable for the whole call; both are
        // only read.
        let (owner, attr) = unsafe { (Context::of(context), &*attr) };
        if attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        if attr.comp_mask & needed != needed
            || attr.qp_type != IBV_QPT_XRC_RECV
            || attr.xrcd.is_null()
        {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `attr.xrcd` is not NULL (checked above), and the caller states that it is a live
        // domain of this provider; it outlives the QP that holds it.
        let xrcd = unsafe { Xrcd::of(attr.xrcd) };
        let adapter = &xrcd.adapter;
        let opened = adapter.xrc.open_qp(adapter, attr.qp_num, xrcd.id).ok_or(Errno::EINVAL)?;
        let wanted = QpParameters::receiver(Role::Opened(opened), owner.report.clone());
        let qp = Qp::new(adapter, wanted)?;
        adapter.xrc.opened(&qp);
        xrcd.count_object();
        let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
        let qp_context = if has_context { attr.qp_context } else { std::ptr::null_mut() };
        let (cq, srq, pd) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let made = NewQp { qp, context, pd, send_cq: cq, recv_cq: cq, srq, xrcd: attr.xrcd };
        // SAFETY: no other thread knows the QP yet.
        let qp = unsafe { finish(made, qp_context, IBV_QPT_XRC_RECV, false) };
        // SAFETY: the QP was made above and its handle is first given out below: no other thread
        // uses the C object yet.
        unsafe { (*qp.handle()).state = attributes_of(&qp).0.qp_state };
        Ok(Arc::into_raw(qp).cast_mut().cast())
    })
}

/// ibv_destroy_qp(3): EBUSY while it is attached to a multicast group or named by a steering rule.
/// Waits until all events read by the application are acknowledged.
///
/// # Safety
/// `qp` is a live QP of this provider and is not used any more.
pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    status(|| {
        // SAFETY: `qp` is live until its handle is returned at the end of the function; the
        // reference is not used afterwards.
        let queue = unsafe { Qp::of(qp) };
        let grouped = queue.qp_type() == QpType::Ud && queue.adapter().groups.is_attached(queue);
        if grouped || queue.unconnected().flows.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        if queue.opened().is_some() {
            queue.adapter().xrc.close_qp(queue.adapter(), queue);
        }
        let goes_on = queue.openings().is_some()
            && queue.me().upgrade().is_some_and(|qp| queue.adapter().xrc.orphan_qp(&qp));
        if !goes_on {
            queue.retire();
        }
        let got = queue.reports().report.0.end_events(&queue.reports().events, qp as u64);
        // SAFETY: the QP was created with mutex and condition; the front-end counts
        // acknowledgements under the mutex; a QP holds its domain; the handle is the Arc that
        // creation turned into a pointer.
        unsafe {
            wait_for_acks(&raw mut (*qp).mutex, &raw mut (*qp).cond, || {
                (*qp).events_completed == got
            });
            if !(*qp).pd.is_null() {
                Pd::of((*qp).pd).release();
            }
            let xrcd = (*queue.verbs().get()).xrcd;
            if !xrcd.is_null() {
                Xrcd::of(xrcd.cast()).release();
            }
            drop(Arc::from_raw(qp.cast::<Qp>().cast_const()));
        }
        Ok(())
    })
}

/// ibv_modify_qp(3).
///
/// # Safety
/// `qp` is a live QP of this provider; `attr` is readable.
pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    status(|| {
        // SAFETY: `qp` is a live QP of this provider and `attr` is readable during the call; a
        // context outlives its QPs.
        let (queue, attr, context) = unsafe { (Qp::of(qp), &*attr, Context::of((*qp).context)) };
        let queue = match queue.role() {
            // Only the process of a QP can change it.
            Role::Opened(Opened { local: None, .. }) => return Err(Errno::EOPNOTSUPP),
            Role::Opened(Opened { local: Some(local), .. }) => local,
            _ => queue,
        };
        modify(queue, &context.gids(), attr, attr_mask as u32)
    })
}

/// The route of an address vector to another host; None if it leads to this host.
///
/// # Errors
/// `EINVAL` not possible for a connection; `EHOSTUNREACH` the address cannot be reached.
fn route_to_host(
    adapter: &Adapter,
    kind: QpType,
    gids: &Gids,
    vector: &ibv_ah_attr,
) -> Result<Option<Route>, Errno> {
    match ah::resolve(adapter, gids, vector)? {
        (Some(route), _) if is_multicast(&route.dgid) => Err(Errno::EINVAL),
        // Refused now instead of a timeout later.
        (Some(route), true) if !has_wire(kind) => Err(unreachable(adapter, &route)),
        (route, elsewhere) => Ok(route.filter(|_| elsewhere)),
    }
}

/// The limits of the device for the given attributes. Strict mode refuses a path MTU above the
/// active MTU of the port, like kernel drivers and firmware.
fn limits(adapter: &Adapter, gids: &Gids, given: u32) -> Limits {
    let is_asked = adapter.identity.is_strict() && given & IBV_QP_PATH_MTU != 0;
    let max_mtu = if is_asked { active_mtu(gids) } else { IBV_MTU_4096 };
    Limits { max_rd_atomic: MAX_RD_ATOMIC, max_mtu }
}

/// Whether QPs of this kind reach other hosts.
fn has_wire(kind: QpType) -> bool {
    kind != QpType::Raw && crate::config::wire() != Wiring::Off
}

/// The error for an unreachable route; reported to the user.
fn unreachable(adapter: &Adapter, route: &Route) -> Errno {
    adapter.unreachable.note_address(adapter, &route.dgid);
    Errno::from_raw(libc::EHOSTUNREACH)
}

pub(crate) fn modify(qp: &Qp, gids: &Gids, attr: &ibv_qp_attr, given: u32) -> Result<(), Errno> {
    if matches!(qp.role(), Role::Rss(_)) {
        // The QP has no state: frames arrive as soon as a rule names it.
        return Err(Errno::EOPNOTSUPP);
    }
    // Held against concurrent changes by the application. An error of the QP meanwhile only leads
    // to ERR.
    let mut known = qp.attributes().lock();
    let limits = limits(qp.adapter(), gids, given);
    let changes = modify::modify(qp.qp_type(), qp.state(), attr, given, &limits).map_err(errno)?;
    if changes.has(IBV_QP_AV) || changes.has(IBV_QP_DEST_QPN) {
        // Checked first, because a change of state must not fail for lack of memory.
        cface::reserve::admit()?;
    }
    let elsewhere = if changes.has(IBV_QP_AV) {
        route_to_host(qp.adapter(), qp.qp_type(), gids, &attr.ah_attr)?
    } else {
        None
    };
    changes.copy_effective(&mut known.attr, attr);
    publish(qp, &known.attr, changes.has(IBV_QP_MIN_RNR_TIMER));
    if changes.has(IBV_QP_QKEY) {
        qp.requester().lock().set_host_qkey(known.attr.qkey);
    }
    match changes.step {
        Step::Reset => {
            known.attr = Zeroed::zeroed();
            qp.reset();
        }
        Step::Fail { used: false } => qp.set_state(QpState::Err),
        Step::Fail { used: true } => qp.enter_error_by_modify(),
        Step::Init => qp.set_state(QpState::Init),
        Step::Connect => connect(qp, gids, &known.attr, elsewhere)?,
        Step::Send { resumes, undrains } => {
            let mut requester = qp.requester().lock();
            requester.begin_sending(&known.attr);
            if resumes {
                // The thread that found the failure may not have flushed yet.
                requester.flush(qp);
                requester.resume();
            }
            drop(requester);
            qp.set_state(QpState::Rts);
            if undrains {
                qp.advance_send();
            }
        }
        Step::Drain { notify } => {
            qp.set_state(QpState::Sqd);
            if notify {
                qp.await_acks();
            }
            qp.requester().lock().await_drain(notify);
            qp.advance_send();
        }
        Step::Drained => qp.set_state(QpState::Sqd),
    }
    Ok(())
}

/// Publishes the attributes that peers and the engine use.
fn publish(qp: &Qp, attr: &ibv_qp_attr, has_rnr_timer: bool) {
    let rights = u64::from(qp.pd()) << 32 | u64::from(attr.qp_access_flags);
    qp.entry().rights.store(rights, Ordering::Relaxed);
    qp.entry().rnr_retry.store(attr.rnr_retry, Ordering::Relaxed);
    qp.entry().rq_psn.store(attr.rq_psn, Ordering::Relaxed);
    qp.entry().path_mtu.store(attr.path_mtu as u8, Ordering::Relaxed);
    qp.entry().max_dest_rd_atomic.store(attr.max_dest_rd_atomic, Ordering::Relaxed);
    qp.unconnected().qkey.store(attr.qkey, Ordering::Relaxed);
    qp.entry().min_rnr_timer.store(attr.min_rnr_timer, Ordering::Relaxed);
    if has_rnr_timer {
        qp.responder().lock().min_rnr_timer = attr.min_rnr_timer;
    }
}

/// INIT to RTR: finds the remote QP (on another host by the route `elsewhere`), and opens the ring
/// for it.
fn connect(
    qp: &Qp,
    gids: &Gids,
    attr: &ibv_qp_attr,
    elsewhere: Option<Route>,
) -> Result<(), Errno> {
    if !qp.qp_type().is_connected() {
        // A UD QP also receives from other hosts, unless the wire is unavailable.
        if has_wire(qp.qp_type()) {
            match qp.adapter().ensure_wire_open() {
                Ok(()) => qp.connect_by_wire(gids, attr, None),
                // Otherwise the QP would never receive from other hosts, without any notice.
                Err(why) if is_temporary(why) => return Err(why),
                Err(_) => {}
            }
        }
        qp.set_connected(0);
        return Ok(());
    }
    if let Some(route) = elsewhere {
        let way = qp.adapter().open_wire_route(&route, qp.qpn());
        let far = way.map_err(|why| {
            if qp.adapter().ensure_wire_open().is_err() {
                qp.adapter().unreachable.note_wire(qp.adapter(), why);
                return Errno::from_raw(libc::EHOSTUNREACH);
            }
            unreachable(qp.adapter(), &route)
        })?;
        qp.requester().lock().connect(None);
        qp.connect_by_wire(gids, attr, Some(far));
        // No QP of this host may send to it.
        qp.set_connected(0);
        return Ok(());
    }
    let (mut sending, mut receiving) = (None, None);
    // If no process has the slot, requests time out, as on an unplugged cable.
    if let Some((a, b)) = qp.adapter().link_with_retries(attr.dest_qp_num)? {
        sending = (qp.qp_type() != QpType::XrcRecv).then_some(a);
        receiving = (qp.qp_type() != QpType::XrcSend).then_some(b);
    }
    if qp.qp_type() == QpType::XrcSend
        && let Some(link) = &sending
    {
        qp.adapter().xrc.add_sender(qp, link.peer().slot);
    }
    qp.requester().lock().connect(sending);
    qp.connect_receiver(receiving, attr.dest_qp_num);
    Ok(())
}

/// The attributes of a QP. Of a QP in another process only the published attributes: state,
/// destination, access flags and timer.
fn attributes_of(qp: &Qp) -> (ibv_qp_attr, ibv_qp_cap) {
    let qp = match qp.role() {
        Role::Opened(Opened { local: None, home, .. }) => {
            let life = Life::unpack(home.entry().packed_life.load(Ordering::Acquire));
            let state = from_shared(life.state).unwrap_or(QpState::Reset) as u32;
            let attr = ibv_qp_attr {
                qp_state: state,
                cur_qp_state: state,
                dest_qp_num: life.dest_qpn,
                qp_access_flags: home.entry().rights.load(Ordering::Relaxed) as u32,
                min_rnr_timer: home.entry().min_rnr_timer.load(Ordering::Relaxed),
                port_num: 1,
                ..Zeroed::zeroed()
            };
            return (attr, attr.cap);
        }
        Role::Opened(Opened { local: Some(local), .. }) => local,
        _ => qp,
    };
    let known = *qp.attributes().lock();
    let state = qp.state();
    let draining = state == QpState::Sqd && !qp.requester().lock().is_drained();
    (modify::reported_attributes(&known.attr, known.cap, state, draining), known.cap)
}

/// ibv_query_qp(3): returns all attributes, independent of the mask.
///
/// # Safety
/// `qp` is a live QP of this provider; `attr` and `init` are writable.
pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `qp` is a live QP of this provider, whose C object is only read; `attr` and `init`
    // belong to the caller and are writable during the call; the written values have no destructor.
    unsafe {
        let queue = Qp::of(qp);
        if matches!(queue.role(), Role::Rss(_)) {
            return failed(Errno::EOPNOTSUPP);
        }
        let (known, cap) = attributes_of(queue);
        *attr = known;
        *init = ibv_qp_init_attr {
            qp_context: (*qp).qp_context,
            send_cq: (*qp).send_cq,
            recv_cq: (*qp).recv_cq,
            srq: (*qp).srq,
            cap,
            qp_type: (*qp).qp_type,
            sq_sig_all: c_int::from(queue.pair().is_some_and(|pair| pair.signals_all)),
        };
    }
    0
}
