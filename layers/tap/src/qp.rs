//! Queue pairs: the tap records each QP that a program creates, modifies and destroys, and reports
//! these calls.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use abi::{
    IBV_QP_CREATE_SOURCE_QPN, IBV_QP_DEST_QPN, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD,
    IBV_QP_RATE_LIMIT, IBV_QP_STATE, IBV_QPS_RESET, ibv_context, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, verbs_context_ops,
};

use crate::argument::{Argument, Next};
use crate::builder::{self, Builder};
use crate::control::{context, gid_words, named, report_call, shared, start_time};
use crate::{Call, Device, NUMBERS, QPS, Qp, Watcher, beneath, key};

/// Records a new QP. `ops` are the operations with which an extended QP was created.
unsafe fn remember<W: Watcher>(ctx: Arc<Device>, qp: *mut ibv_qp, sig_all: bool, ops: Option<u64>) {
    let at = qp.expose_provenance();
    // SAFETY: `qp` was just created.
    let (number, kind) = unsafe { ((*qp).qp_num, (*qp).qp_type) };
    let known = Arc::new(Qp {
        at,
        number,
        kind,
        ctx,
        sig_all,
        peer: AtomicU32::new(0),
        state: AtomicU32::new(IBV_QPS_RESET),
        mark: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
        builder: ops.map(|_| Box::new(Builder::new())),
    });
    QPS.insert(at, known.clone());
    NUMBERS.insert(key(known.ctx.at, number), known.clone());
    if let Some(ops) = ops {
        // SAFETY: the QP was just created with these operations, and no other thread has its
        // address.
        unsafe { builder::replace::<W>(qp.cast(), ops) };
    }
    W::qp_created(&known);
}

/// Removes a QP whose context is closed.
pub(crate) fn forget<W: Watcher>(qp: &Qp) {
    W::qp_destroyed(qp);
    QPS.remove(qp.at);
    NUMBERS.remove(key(qp.ctx.at, qp.number));
}

/// The words of `Call::create_qp`.
fn made(number: u32, kind: u32, objects: [u64; 4], cap: &ibv_qp_cap, sig_all: bool) -> [u64; 11] {
    let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let [pd, send_cq, recv_cq, srq] = objects;
    [
        two(number, kind),
        pd,
        send_cq,
        recv_cq,
        srq,
        two(cap.max_send_wr, cap.max_recv_wr),
        two(cap.max_send_sge, cap.max_recv_sge),
        u64::from(cap.max_inline_data) | u64::from(sig_all) << 32,
        0,
        0,
        0,
    ]
}

unsafe extern "C" fn create_qp<W: Watcher>(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller's PD is live.
    let Some(ctx) = shared(unsafe { (*pd).context }) else { return core::ptr::null_mut() };
    let Some(device) = context(ctx.at as *mut ibv_context) else { return core::ptr::null_mut() };
    let start = start_time::<W>();
    // SAFETY: the caller's arguments, passed on.
    let next = Next::new(|| unsafe { beneath!(ctx.next, create_qp)(pd, attr) });
    // SAFETY: the caller's arguments are valid until this call returns.
    let qp = unsafe { W::create_qp(device, pd.safe(), attr.safe(), next) }.get();
    if !W::RECORDS {
        return qp;
    }
    // SAFETY: the attributes are the caller's, and the provider filled them in.
    let given = unsafe { &*attr };
    // SAFETY: `qp` is NULL or was just created.
    let number = unsafe { qp.as_ref() }.map_or(0, |qp| qp.qp_num);
    let objects = [pd as u64, given.send_cq as u64, given.recv_cq as u64, given.srq as u64];
    let args = made(number, given.qp_type, objects, &given.cap, given.sq_sig_all != 0);
    report_call::<W>(Call::create_qp, start, qp, &args);
    if !qp.is_null() {
        // SAFETY: `qp` was just created.
        unsafe { remember::<W>(ctx, qp, given.sq_sig_all != 0, None) };
    }
    qp
}

unsafe extern "C" fn create_qp_ex<W: Watcher>(
    at: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let Some(ctx) = shared(at) else { return core::ptr::null_mut() };
    let Some(device) = context(at) else { return core::ptr::null_mut() };
    let start = start_time::<W>();
    // SAFETY: the caller's arguments, passed on.
    let next = Next::new(|| unsafe { beneath!(ctx.next, create_qp_ex)(at, attr) });
    // SAFETY: the caller's arguments are valid until this call returns.
    let qp = unsafe { W::create_qp_ex(device, at.safe(), attr.safe(), next) }.get();
    // SAFETY: the caller's attributes, filled in by the provider.
    let granted = unsafe { attr.safe() }.read_named();
    let has_ops =
        |given: &ibv_qp_init_attr_ex| given.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let ops = granted.filter(has_ops).map(|given| given.send_ops_flags);
    if !W::RECORDS {
        if let Some(ops) = ops.filter(|_| !qp.is_null()) {
            // SAFETY: the QP was just created with these operations, and no other thread has its
            // address.
            unsafe { builder::replace::<W>(qp.cast(), ops) };
        }
        return qp;
    }
    // SAFETY: `qp` is NULL or was just created.
    let number = unsafe { qp.as_ref() }.map_or(0, |qp| qp.qp_num);
    // SAFETY: the attributes are the caller's, filled in by the provider. Members are read only if
    // the mask names them.
    let (args, sig_all) = unsafe {
        let mask = (*attr).comp_mask;
        let pd = if mask & IBV_QP_INIT_ATTR_PD != 0 { (*attr).pd as u64 } else { 0 };
        let objects = [pd, (*attr).send_cq as u64, (*attr).recv_cq as u64, (*attr).srq as u64];
        let sig_all = (*attr).sq_sig_all != 0;
        let mut args = made(number, (*attr).qp_type, objects, &(*attr).cap, sig_all);
        let flags = named!(attr, IBV_QP_INIT_ATTR_CREATE_FLAGS, create_flags);
        let source = flags & u64::from(IBV_QP_CREATE_SOURCE_QPN) != 0;
        args[7] |= named!(attr, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, max_tso_header) << 48;
        args[8] = u64::from(mask) | flags << 32;
        let number = if source { u64::from((*attr).source_qpn) } else { 0 };
        args[9] = (ops.unwrap_or(0) & u64::from(u32::MAX)) | number << 32;
        args[10] = named!(attr, IBV_QP_INIT_ATTR_XRCD, xrcd);
        (args, sig_all)
    };
    report_call::<W>(Call::create_qp_ex, start, qp, &args);
    if !qp.is_null() {
        // SAFETY: `qp` was just created.
        unsafe { remember::<W>(ctx, qp, sig_all, ops) };
    }
    qp
}

unsafe extern "C" fn open_qp<W: Watcher>(
    at: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    let Some(ctx) = shared(at) else { return core::ptr::null_mut() };
    let Some(device) = context(at) else { return core::ptr::null_mut() };
    let start = start_time::<W>();
    // SAFETY: the caller's arguments, passed on.
    let next = Next::new(|| unsafe { beneath!(ctx.next, open_qp)(at, attr) });
    // SAFETY: the caller's arguments are valid until this call returns.
    let qp = unsafe { W::open_qp(device, at.safe(), attr.safe(), next) }.get();
    if !W::RECORDS {
        return qp;
    }
    // SAFETY: the attributes are the caller's. Members are read only if the mask names them.
    let args = unsafe {
        [
            at as u64,
            (*attr).comp_mask.into(),
            named!(attr, IBV_QP_OPEN_ATTR_NUM, qp_num),
            named!(attr, IBV_QP_OPEN_ATTR_XRCD, xrcd),
            named!(attr, IBV_QP_OPEN_ATTR_TYPE, qp_type),
        ]
    };
    report_call::<W>(Call::open_qp, start, qp, &args);
    if !qp.is_null() {
        // SAFETY: `qp` was just created.
        unsafe { remember::<W>(ctx, qp, false, None) };
    }
    qp
}

unsafe extern "C" fn modify_qp<W: Watcher>(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's QP is live.
    let (at, number) = unsafe { ((*qp).context, (*qp).qp_num) };
    let Some(ctx) = context(at) else { return libc::EINVAL };
    // SAFETY: the caller's arguments, passed on.
    let next = Next::new(|| unsafe { beneath!(ctx.next, modify_qp)(qp, attr, mask) });
    let bits = mask.cast_unsigned();
    let known = if W::RECORDS { QPS.share(qp as usize) } else { None };
    let recorded = W::RECORDS.then(|| {
        // SAFETY: the caller passes a complete structure, whichever members the mask names.
        let given = unsafe { &*attr };
        if let Some(known) = &known {
            if bits & IBV_QP_STATE != 0 && given.qp_state == IBV_QPS_RESET {
                known.sent.store(0, Ordering::Relaxed);
                known.received.store(0, Ordering::Relaxed);
            }
            if bits & IBV_QP_DEST_QPN != 0 {
                known.peer.store(given.dest_qp_num, Ordering::Relaxed);
            }
        }
        (given.qp_state, changed(number, given, bits))
    });
    // SAFETY: the caller's QP is live.
    let before = unsafe { builder::copy_pointers::<W>(qp.cast()) };
    let start = start_time::<W>();
    // SAFETY: the caller's arguments are valid until this call returns.
    let result = unsafe { W::modify_qp(ctx, qp.safe(), attr.safe(), mask, next) }.get();
    if let (0, Some(before)) = (result, &before) {
        // SAFETY: the QP is live, and has pointers, which the provider may have changed.
        unsafe { builder::replace_again::<W>(qp.cast(), before) };
    }
    if let Some((state, args)) = recorded {
        if let (0, Some(known)) = (result, &known)
            && bits & IBV_QP_STATE != 0
        {
            known.state.store(state, Ordering::Relaxed);
            W::qp_modified(known);
        }
        report_call::<W>(Call::modify_qp, start, result, &args);
    }
    result
}

/// The words of `Call::modify_qp`. Members that the mask does not name have any value.
fn changed(number: u32, attr: &ibv_qp_attr, mask: u32) -> [u64; 11] {
    let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let bytes = |all: [u8; 8]| u64::from_le_bytes(all);
    let gid = gid_words(&attr.ah_attr.grh.dgid);
    let pkey = attr.pkey_index.to_le_bytes();
    let alternate = attr.alt_pkey_index.to_le_bytes();
    let lid = attr.alt_ah_attr.dlid.to_le_bytes();
    [
        two(number, mask),
        bytes([
            attr.qp_state as u8,
            attr.cur_qp_state as u8,
            attr.path_mtu as u8,
            attr.port_num,
            attr.timeout,
            attr.retry_cnt,
            attr.rnr_retry,
            attr.min_rnr_timer,
        ]),
        bytes([
            attr.max_rd_atomic,
            attr.max_dest_rd_atomic,
            attr.ah_attr.grh.sgid_index,
            attr.ah_attr.grh.hop_limit,
            pkey[0],
            pkey[1],
            attr.ah_attr.is_global,
            attr.ah_attr.sl,
        ]),
        two(attr.dest_qp_num, attr.qkey),
        two(attr.rq_psn, attr.sq_psn),
        two(attr.qp_access_flags, attr.ah_attr.dlid.into()),
        gid[0],
        gid[1],
        u64::from(attr.ah_attr.grh.flow_label)
            | bytes([
                0,
                0,
                0,
                0,
                attr.ah_attr.grh.traffic_class,
                attr.ah_attr.src_path_bits,
                attr.ah_attr.static_rate,
                attr.ah_attr.port_num,
            ]),
        bytes([
            attr.path_mig_state as u8,
            attr.en_sqd_async_notify,
            attr.alt_port_num,
            attr.alt_timeout,
            alternate[0],
            alternate[1],
            lid[0],
            lid[1],
        ]),
        // An older caller's structure ends before `rate_limit`, so the mask decides.
        if mask & IBV_QP_RATE_LIMIT != 0 { attr.rate_limit.into() } else { 0 },
    ]
}

unsafe extern "C" fn query_qp<W: Watcher>(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's QP is live.
    let (at, number) = unsafe { ((*qp).context, (*qp).qp_num) };
    let Some(ctx) = context(at) else { return libc::EINVAL };
    let start = start_time::<W>();
    // SAFETY: the caller's arguments, passed on.
    let next = Next::new(|| unsafe { beneath!(ctx.next, query_qp)(qp, attr, mask, init) });
    // SAFETY: the caller's arguments are valid until this call returns.
    let result = unsafe { W::query_qp(ctx, qp.safe(), attr.safe(), mask, init.safe(), next) }.get();
    if W::RECORDS {
        let mask = u64::from(mask.cast_unsigned());
        report_call::<W>(Call::query_qp, start, result, &[number.into(), mask]);
    }
    result
}

unsafe extern "C" fn destroy_qp<W: Watcher>(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's QP is live.
    let (at, number) = unsafe { ((*qp).context, (*qp).qp_num) };
    let Some(ctx) = context(at) else { return libc::EINVAL };
    let known = QPS.share(qp as usize);
    // The entries are removed before the call, because another thread may get the address or the
    // number at once.
    if let Some(known) = &known {
        QPS.remove(known.at);
        NUMBERS.remove(key(known.ctx.at, known.number));
    }
    let start = start_time::<W>();
    // SAFETY: the caller's argument, passed on.
    let next = Next::new(|| unsafe { beneath!(ctx.next, destroy_qp)(qp) });
    // SAFETY: the caller's QP is live until the provider destroys it.
    let result = unsafe { W::destroy_qp(ctx, qp.safe(), next) }.get();
    if let Some(known) = known {
        if result == 0 {
            W::qp_destroyed(&known);
        } else {
            QPS.insert(known.at, known.clone());
            NUMBERS.insert(key(known.ctx.at, known.number), known);
        }
    }
    if W::RECORDS {
        report_call::<W>(Call::destroy_qp, start, result, &[number.into()]);
    }
    result
}

pub(crate) fn fill<W: Watcher>(mine: &mut verbs_context_ops) {
    mine.create_qp = Some(create_qp::<W>);
    mine.create_qp_ex = Some(create_qp_ex::<W>);
    mine.open_qp = Some(open_qp::<W>);
    mine.modify_qp = Some(modify_qp::<W>);
    mine.query_qp = Some(query_qp::<W>);
    mine.destroy_qp = Some(destroy_qp::<W>);
}
