//! QP-02 to QP-15, OB-03: checks of the creation, change and destruction of QPs.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use abi::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPS_RESET, IBV_QPS_RTR,
    IBV_QPT_DRIVER, IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_XRC_RECV, QpAttrMask as M, Zeroed, ibv_context,
    ibv_gid, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};

use crate::advice::{self, QpChange};
use crate::builder::Builder;
use crate::checks::Id;
use crate::checks::pairs::{self, WantedQp};
use crate::gid;
use crate::objects::{check_argument, context, list, live_pd, root_of, shared};
use crate::refusal::{Subject, WatchedCall};
use crate::refused;
use crate::report::{Message, emit};
use crate::spin::Spin;
use crate::stack;
use crate::state::{CQS, Ctx, PDS, QPS, Qp, Queue, SRQS, beneath, gone};
use crate::transitions;

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
        digests: Spin::new(crate::digest::Digests::new()),
        failed: AtomicBool::new(false),
        explained: AtomicBool::new(false),
        was_reset: AtomicBool::new(false),
        first_message: AtomicU32::new(0),
        groups: AtomicU32::new(0),
        async_got: AtomicU32::new(0),
        builder: send_ops.map(|_| Box::new(Builder::new())),
        made: stack::here(),
    });
    for cq in [&known.send_cq, &known.recv_cq].into_iter().flatten() {
        let mut qps = cq.qps.lock();
        // A CQ for both queues lists the QP once.
        if let Err(place) = qps.binary_search_by_key(&known.number, |qp| qp.number) {
            qps.insert(place, known.clone());
        }
    }
    QPS.insert(at, known.clone());
    advice::made(call, &known, asked);
    if let (Some(ops), Some(builder)) = (send_ops, &known.builder) {
        // SAFETY: the QP was created with these operations, so the QP is extended.
        unsafe { builder.replace(known.extended(), ops) };
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
    let qp = unsafe { beneath!(ctx.next, create_qp)(pd, attr) };
    if qp.is_null() {
        explain_refusal(&watch, &ctx, &wanted(&given, pd as usize), |inline| {
            let mut again = given;
            again.cap.max_inline_data = inline;
            // SAFETY: the domain is the caller's, and the attributes are a copy.
            let made = unsafe { beneath!(ctx.next, create_qp)(pd, &raw mut again) };
            // SAFETY: the QP was just created, and no other thread uses the QP.
            !made.is_null() && unsafe { beneath!(ctx.next, destroy_qp)(made) } == 0
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
    let qp = unsafe { beneath!(ctx.next, create_qp_ex)(at, attr) };
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
                let made = beneath!(ctx.next, create_qp_ex)(at, attr);
                *cap = before;
                made
            };
            // SAFETY: the QP was just created, and no other thread uses the QP.
            !made.is_null() && unsafe { beneath!(ctx.next, destroy_qp)(made) } == 0
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

/// QP-13: reports the QPs that still use an object.
pub(crate) fn still_used(call: &str, kind: &str, at: usize, users: &[&Arc<Qp>]) {
    let Some(first) = users.first() else { return };
    let names: Vec<String> = users.iter().map(|qp| qp.name()).collect();
    emit(
        &Message {
            id: Id::Qp13,
            call,
            object: format!("{kind} {at:#x}"),
            text: format!("it is still used by {}", list(&names)),
            remedy: "destroy the QPs first".into(),
            also: Some(("that QP was created", first.made)),
        },
        None,
    );
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's QP is live.
    let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
    let at = qp as usize;
    let Some(known) = QPS.share(at) else {
        // SAFETY: the caller's argument, passed on.
        return unsafe { beneath!(ctx.next, destroy_qp)(qp) };
    };
    let groups = known.groups.load(Ordering::Relaxed);
    if groups > 0 {
        emit(
            &Message {
                id: Id::Ob03,
                call: "ibv_destroy_qp",
                object: known.name(),
                text: format!("it is attached to {groups} multicast groups"),
                remedy: "ibv_detach_mcast first".into(),
                also: Some(("the QP was created", known.made)),
            },
            Some(&known),
        );
    }
    // SAFETY: the QP is live, and has the count.
    unsafe {
        let acked = &raw const (*qp).events_completed;
        crate::cq::check_async("ibv_destroy_qp", &known.name(), &known.async_got, acked);
    }
    advice::destroyed(&known);
    // SAFETY: the context of a live QP is open.
    unsafe { advice::unread("ibv_destroy_qp", known.name(), (*qp).context) };
    for cq in [&known.send_cq, &known.recv_cq].into_iter().flatten() {
        cq.qps.lock().retain(|qp| qp.at != at);
    }
    QPS.remove(at);
    let watch = WatchedCall::begin("ibv_destroy_qp");
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { beneath!(ctx.next, destroy_qp)(qp) };
    if result == 0 {
        for queue in [&known.send, &known.recv] {
            crate::overlap::clear(&mut queue.lock());
        }
        gone("qp", at);
    } else {
        for cq in [&known.send_cq, &known.recv_cq].into_iter().flatten() {
            let mut qps = cq.qps.lock();
            if let Err(place) = qps.binary_search_by_key(&known.number, |qp| qp.number) {
                qps.insert(place, known.clone());
            }
        }
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
    let mut explained = false;
    if let Some(known) = known.filter(|known| known.kind != IBV_QPT_DRIVER) {
        // SAFETY: members that the mask names are readable, and only they are read.
        explained = unsafe { check_modify(known, attr, mask) };
    }
    let builder = known.and_then(|known| Some((known, known.builder.as_ref()?)));
    // SAFETY: the QP is extended and live.
    let before = builder.map(|(known, builder)| unsafe { builder.look(known.extended()) });
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(ctx.next, modify_qp)(qp, attr, mask.bits().cast_signed()) };
    if let (0, Some(known)) = (result, known) {
        // SAFETY: a successful call has read the caller's attributes.
        unsafe { modified(known, attr, mask) };
        if let (Some((_, builder)), Some(before)) = (builder, &before) {
            // SAFETY: the QP is extended and live.
            unsafe { builder.replace_again(known.extended(), before) };
        }
    }
    if let (libc::EINVAL, false, Some(known)) = (result, explained, known)
        // SAFETY: members that the mask names are readable.
        && unsafe { needs_route(known, attr, mask) }
    {
        explained = true;
    }
    if let (0, _, _) | (_, true, _) | (_, _, None) = (result, explained, known) {
        return result;
    }
    if let Some(known) = known {
        // SAFETY: members that the mask names are readable, and the QP is live.
        unsafe { refused::explain(known, qp, attr, mask, result) };
    }
    result
}

/// QP-05: reports a refused address without a GRH. Returns whether the address is the cause.
///
/// # Safety
/// `attr` is readable where `mask` names a member.
#[cold]
unsafe fn needs_route(qp: &Qp, attr: *const ibv_qp_attr, mask: M) -> bool {
    if !mask.contains(M::AV) {
        return false;
    }
    // SAFETY: the mask names the member.
    let (address, port) = unsafe {
        let port = if mask.contains(M::PORT) { (*attr).port_num } else { qp.attr.lock().port_num };
        ((*attr).ah_attr, port)
    };
    let ctx = &qp.ctx;
    let member = "ah_attr.is_global";
    let Some(text) = pairs::local_address(&ctx.ports, port, address.is_global != 0, member) else {
        return false;
    };
    let message = Message {
        id: Id::Qp05,
        call: "ibv_modify_qp",
        object: qp.name(),
        text: format!("EINVAL: {text}"),
        remedy: pairs::NEEDS_GLOBAL.into(),
        also: None,
    };
    emit(&message, Some(qp));
    true
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

/// QP-02 to QP-08: checks a change before the call. Returns whether a check found a reason for a
/// refusal.
///
/// # Safety
/// `attr` is readable where `mask` names a member.
unsafe fn check_modify(qp: &Qp, attr: *const ibv_qp_attr, mask: M) -> bool {
    let mask = mask & !transitions::ignored(qp.kind);
    let found = Cell::new(false);
    let say = |id, text: String, remedy: &str| {
        found.set(true);
        let message = Message {
            id,
            call: "ibv_modify_qp",
            object: qp.name(),
            text,
            remedy: remedy.into(),
            also: None,
        };
        emit(&message, Some(qp));
    };
    macro_rules! member {
        ($bit:ident, $($field:tt)+) => {
            // SAFETY: the mask names the member.
            mask.contains(M::$bit).then(|| unsafe { (*attr).$($field)+ })
        };
    }
    let from = member!(CUR_STATE, cur_qp_state).unwrap_or(qp.state());
    let to = member!(STATE, qp_state).unwrap_or(from);
    let kind = transitions::kind_name(qp.kind);
    let change = format!("{} -> {} of {kind}", transitions::name(from), transitions::name(to));
    // The state is uncertain for a QP that other processes have open, and for a failed QP.
    let sure = qp.kind != IBV_QPT_XRC_RECV && !qp.failed.load(Ordering::Relaxed);
    match transitions::allowed(qp.kind, from, to) {
        _ if !sure => {}
        None => say(
            Id::Qp02,
            format!("there is no change {change}"),
            "go RESET, INIT, RTR, RTS; from ERR only to RESET",
        ),
        Some((needs, allows)) => {
            let given = mask & !(M::STATE | M::RATE_LIMIT);
            let (missing, extra) = (needs & !given, given & !(needs | allows));
            let mut parts = Vec::new();
            if !missing.is_empty() {
                parts.push(format!("{change} needs {} in attr_mask", transitions::bits(missing)));
            }
            if !extra.is_empty() {
                parts.push(format!("{change} does not take {}", transitions::bits(extra)));
            }
            if !parts.is_empty() {
                say(
                    Id::Qp02,
                    parts.join("; "),
                    "set the attributes and their bits as ibv_modify_qp(3) lists them",
                );
            }
        }
    }
    let ctx = &qp.ctx;
    let port = member!(PORT, port_num).unwrap_or_else(|| qp.attr.lock().port_num);
    let asked = QpChange {
        address: member!(AV, ah_attr),
        timeout: member!(TIMEOUT, timeout),
        retries: member!(RETRY_CNT, retry_cnt),
        rnr_retries: member!(RNR_RETRY, rnr_retry),
        rnr_timer: member!(MIN_RNR_TIMER, min_rnr_timer),
        to_rtr: to == IBV_QPS_RTR && from != to,
    };
    advice::modified(qp, &asked);
    if let Some(address) = &asked.address
        && gid::check("ibv_modify_qp", &qp.name(), ctx, port, address, Some(qp))
    {
        found.set(true);
    }
    let range = |name: &str, value: u32, most: u32, why: &str| {
        if value > most {
            say(
                Id::Qp03,
                format!("{name} {value:#x} is not in 0..={most:#x}{why}"),
                "correct the value",
            );
        }
    };
    for (name, value, most, why) in [
        ("timeout", member!(TIMEOUT, timeout), 31, " (4.096 us * 2^timeout)"),
        ("retry_cnt", member!(RETRY_CNT, retry_cnt), 7, ""),
        ("rnr_retry", member!(RNR_RETRY, rnr_retry), 7, " (7 is for ever)"),
        ("min_rnr_timer", member!(MIN_RNR_TIMER, min_rnr_timer), 31, ""),
    ] {
        if let Some(value) = value {
            range(name, u32::from(value), most, why);
        }
    }
    for (name, value) in [
        ("rq_psn", member!(RQ_PSN, rq_psn)),
        ("sq_psn", member!(SQ_PSN, sq_psn)),
        ("dest_qp_num", member!(DEST_QPN, dest_qp_num)),
    ] {
        if let Some(value) = value {
            range(name, value, 0xff_ffff, " (24 bits)");
        }
    }
    if mask.contains(M::PORT) && ctx.port(port).is_none() && !ctx.ports.is_empty() {
        let ports = ctx.ports.len();
        say(
            Id::Qp03,
            format!("port_num {port}: the device has ports 1..={ports}"),
            "correct the value",
        );
    }
    let Some(known) = ctx.port(port) else { return found.get() };
    if let Some(index) = member!(PKEY_INDEX, pkey_index)
        && index >= known.pkey_tbl_len
    {
        let most = known.pkey_tbl_len;
        say(
            Id::Qp03,
            format!("pkey_index {index}: the table of port {port} has {most} entries"),
            "0 is what most want",
        );
    }
    if let Some(ah) = member!(AV, ah_attr)
        && ah.is_global != 0
        && i32::from(ah.grh.sgid_index) >= known.gid_tbl_len
    {
        say(
            Id::Qp03,
            format!(
                "ah_attr.grh.sgid_index {}: the table of port {port} has {} entries",
                ah.grh.sgid_index, known.gid_tbl_len
            ),
            "ibv_query_gid_table shows which entries there are",
        );
    }
    if let Some(mtu) = member!(PATH_MTU, path_mtu)
        && mtu > known.active_mtu
    {
        let bytes = |code: u32| 128_u32.checked_shl(code).unwrap_or(0);
        say(
            Id::Qp04,
            format!(
                "path_mtu {} > active_mtu {} of port {port}",
                bytes(mtu),
                bytes(known.active_mtu)
            ),
            "use ibv_port_attr.active_mtu, or raise the MTU of the network device",
        );
    }
    let Some(device) = &ctx.device else { return found.get() };
    for (name, value, most) in [
        ("max_rd_atomic", member!(MAX_QP_RD_ATOMIC, max_rd_atomic), device.max_qp_init_rd_atom),
        (
            "max_dest_rd_atomic",
            member!(MAX_DEST_RD_ATOMIC, max_dest_rd_atomic),
            device.max_qp_rd_atom,
        ),
    ] {
        if let Some(value) = value
            && i32::from(value) > most
        {
            say(
                Id::Qp08,
                format!("{name} {value} > {most}, what the device can"),
                "ask ibv_query_device",
            );
        }
    }
    found.get()
}

pub(crate) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    lid: u16,
) -> c_int {
    // SAFETY: the caller's QP is live.
    let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
    let known = QPS.get(qp as usize);
    if let Some(known) = known.filter(|known| known.kind != IBV_QPT_UD) {
        emit(
            &Message {
                id: Id::Ob03,
                call: "ibv_attach_mcast",
                object: known.name(),
                text: format!(
                    "it is {}: only UD takes part in multicast",
                    transitions::kind_name(known.kind)
                ),
                remedy: "use a QP of type IBV_QPT_UD".into(),
                also: Some(("the QP was created", known.made)),
            },
            Some(known),
        );
    }
    // SAFETY: the caller's arguments, passed on.
    let watch = WatchedCall::begin("ibv_attach_mcast");
    // SAFETY: as above.
    let result = unsafe { beneath!(ctx.next, attach_mcast)(qp, gid, lid) };
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
    let result = unsafe { beneath!(ctx.next, detach_mcast)(qp, gid, lid) };
    // SAFETY: the pointer is NULL or the caller's GID, which is readable.
    unsafe { explain_group(&watch, ctx, known, gid, true, result) };
    if let (0, Some(known)) = (result, known) {
        let less = |count: u32| Some(count.saturating_sub(1));
        let _ = known.groups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    result
}
