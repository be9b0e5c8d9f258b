//! WR-15, and the checks of requests that a program builds with `ibv_wr_*`. The layer stores its
//! own functions in the QP's `wr_*` pointers at creation. After ibv_modify_qp it replaces pointers
//! that the provider has changed.
//!
//! Map of this file: replacing the pointers of a QP; `take` and `known`; the checks of
//! `ibv_wr_start` and at the end of a list; the replaced functions last. Locks: `builder`, then the
//! send queue of the QP. The provider's function is called without either.

use core::ffi::{c_int, c_void};

use abi::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW,
    IBV_WR_FLUSH, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    IBV_WR_TSO, Zeroed, be32, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge,
};
use layer_tap::each_builder_pointer as each;
use layer_tap::thread;

use crate::building::{Builder, Building, OpenRequest, SGES};
use crate::checks::protocol;
use crate::digest;
use crate::flights::{check_send, check_send_state, check_window, not_posted, push};
use crate::report::report;
use crate::stack;
use crate::state::{QPS, Qp};

/// Replaces the provider's pointers by the layer's.
///
/// # Safety
/// `qp` is a live extended QP that was created with these operations.
pub(crate) unsafe fn replace(builder: &Builder, qp: *mut ibv_qp_ex, ops: u64) {
    let mut building = builder.lock();
    building.ops = ops;
    // SAFETY: per the caller. The lock keeps other threads from the pointers.
    unsafe { take(&mut building, qp, None) };
}

/// Replaces the pointers that a call changed, compared with those that `look` returned before the
/// call. An unchanged pointer is the layer's, or belongs to a layer above.
///
/// # Safety
/// As for [`replace`].
pub(crate) unsafe fn replace_again(builder: &Builder, qp: *mut ibv_qp_ex, before: &ibv_qp_ex) {
    let mut building = builder.lock();
    // SAFETY: per the caller. The lock keeps other threads from the pointers.
    unsafe { take(&mut building, qp, Some(before)) };
}

/// Copies the pointers that the QP has now.
///
/// # Safety
/// As for [`replace`].
pub(crate) unsafe fn look(builder: &Builder, qp: *mut ibv_qp_ex) -> ibv_qp_ex {
    let ops = builder.lock().ops;
    let mut seen = ibv_qp_ex::zeroed();
    macro_rules! copy {
        ($($field:ident)+) => {$(
            // SAFETY: each extended QP has the pointer, or the program asked for the pointer.
            seen.$field = unsafe { (*qp).$field };
        )+};
    }
    each!(ops, copy);
    seen
}

/// Replaces pointers that differ from `before`, and keeps the provider's.
///
/// # Safety
/// `qp` is a live extended QP that was created with the operations in `building`.
unsafe fn take(building: &mut Building, qp: *mut ibv_qp_ex, before: Option<&ibv_qp_ex>) {
    macro_rules! hook {
        ($($field:ident)+) => {$(
            // SAFETY: each extended QP has the pointer, or the program asked for the pointer.
            let now = unsafe { (*qp).$field };
            let address = |function: Option<_>| function.map_or(0, |function| function as usize);
            let old = before.map_or(0, |before| address(before.$field));
            if now.is_some() && address(now) != old {
                building.old.get_mut().$field = now;
                // SAFETY: the caller's `qp` is live, and every change of the pointers takes the
                // builder's lock.
                unsafe { (*qp).$field = Some($field) };
            }
        )+};
    }
    each!(building.ops, hook);
}

fn known(qp: *mut ibv_qp_ex) -> Option<(&'static Qp, &'static Builder)> {
    let known = QPS.get(qp as usize)?;
    Some((known, known.builder.as_deref()?))
}

/// WR-15: reports a call of a thread that is not between start and complete.
#[inline]
fn check_started(qp: &Qp, builder: &Builder, call: &str) {
    let found = protocol::not_started(builder.owner(), thread());
    report(call, || qp.name(), found, qp.about());
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ferroverbs_validate_wr_start(
    qp: *mut ibv_qp_ex,
    caller: *mut c_void,
    frame: *mut c_void,
) {
    let Some((known, builder)) = known(qp) else { return };
    let me = thread();
    let found = protocol::started_twice(builder.owner(), me);
    report("ibv_wr_start", || known.name(), found, known.about());
    let start = builder.lock().old.get().wr_start;
    if let Some(start) = start {
        // SAFETY: the provider's own function, with its QP.
        unsafe { start(qp) };
    }
    // The provider has admitted this thread.
    builder.set_owner(me);
    check_send_state(known, "ibv_wr_start", 0);
    let mut building = builder.lock();
    building.open = None;
    building.ids.clear();
    building.site = stack::site(caller as usize, frame as usize);
}

unsafe extern "C" {
    fn ferroverbs_validate_entry_wr_start(qp: *mut ibv_qp_ex);
}
use ferroverbs_validate_entry_wr_start as wr_start;

/// Checks and records the request that is complete.
fn close(qp: &Qp, building: &mut Building, call: &'static str) {
    let Some(open) = building.open.take() else { return };
    let request = open.request();
    let mut queue = qp.send.lock();
    check_send(qp, call, &mut queue, &request);
    push(qp, call, &mut queue, &request, building.site);
    building.ids.push(request.wr_id);
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    const CALL: &str = "ibv_wr_complete";
    let Some((known, builder)) = known(qp) else { return libc::EINVAL };
    check_started(known, builder, CALL);
    let (complete, ids) = {
        let mut building = builder.lock();
        close(known, &mut building, CALL);
        // The vector is given back below if all is posted, to keep its capacity.
        (building.old.get().wr_complete, core::mem::take(&mut building.ids))
    };
    builder.set_owner(0);
    let Some(complete) = complete else { return libc::EINVAL };
    // SAFETY: the provider's own function, with its QP.
    let result = unsafe { complete(qp) };
    if result != 0 {
        not_posted(known, CALL, result, &ids);
    } else {
        let mut building = builder.lock();
        // Another thread may have begun meanwhile; then its vector stays.
        if building.ids.capacity() == 0 {
            building.ids = ids;
            building.ids.clear();
        }
    }
    result
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    let Some((known, builder)) = known(qp) else { return };
    check_started(known, builder, "ibv_wr_abort");
    let abort = {
        let mut building = builder.lock();
        building.open = None;
        known.send.lock().take_back(&building.ids);
        if digest::is_on() {
            known.digests.lock().take_back(&building.ids);
        }
        building.ids.clear();
        building.old.get().wr_abort
    };
    builder.set_owner(0);
    if let Some(abort) = abort {
        // SAFETY: the provider's own function, with its QP.
        unsafe { abort(qp) };
    }
}

/// Begins a request; the request before is complete.
unsafe fn begin(
    qp: *mut ibv_qp_ex,
    call: &'static str,
    opcode: u32,
    remote: u64,
    rkey: u32,
) -> Option<ibv_qp_ex> {
    let (known, builder) = known(qp)?;
    check_started(known, builder, call);
    let mut building = builder.lock();
    close(known, &mut building, call);
    // SAFETY: the caller's QP is live, and the program has set both members.
    let wr = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    building.open = Some(OpenRequest::new(wr, opcode, remote, rkey));
    Some(*building.old.get())
}

/// Changes the request that is being built.
fn set(
    qp: *mut ibv_qp_ex,
    call: &'static str,
    change: impl FnOnce(&mut OpenRequest),
) -> Option<ibv_qp_ex> {
    let (known, builder) = known(qp)?;
    check_started(known, builder, call);
    let mut building = builder.lock();
    match &mut building.open {
        Some(open) => change(open),
        None => report(call, || known.name(), [protocol::no_request()], known.about()),
    }
    Some(*building.old.get())
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: the caller's QP is live.
    let old =
        unsafe { begin(qp, "ibv_wr_atomic_cmp_swp", IBV_WR_ATOMIC_CMP_AND_SWP, remote, rkey) };
    if let Some(operation) = old.and_then(|old| old.wr_atomic_cmp_swp) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, rkey, remote, compare, swap) };
    }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote: u64, add: u64) {
    // SAFETY: the caller's QP is live.
    let old =
        unsafe { begin(qp, "ibv_wr_atomic_fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, remote, rkey) };
    if let Some(operation) = old.and_then(|old| old.wr_atomic_fetch_add) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, rkey, remote, add) };
    }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin(qp, "ibv_wr_bind_mw", IBV_WR_BIND_MW, 0, 0) };
    if let Some((known, _)) = known(qp) {
        // SAFETY: the QP is live, `info` is readable, and its region is NULL or live.
        let (wr_id, info, lkey) =
            unsafe { ((*qp).wr_id, &*info, (*info).mr.as_ref().map(|mr| mr.lkey)) };
        check_window(known, "ibv_wr_bind_mw", wr_id, info, lkey);
    }
    if let Some(operation) = old.and_then(|old| old.wr_bind_mw) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, mw, rkey, info) };
    }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin(qp, "ibv_wr_local_inv", IBV_WR_LOCAL_INV, 0, 0) };
    if let Some(operation) = old.and_then(|old| old.wr_local_inv) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, rkey) };
    }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote: u64) {
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin(qp, "ibv_wr_rdma_read", IBV_WR_RDMA_READ, remote, rkey) };
    if let Some(operation) = old.and_then(|old| old.wr_rdma_read) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, rkey, remote) };
    }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote: u64) {
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin(qp, "ibv_wr_rdma_write", IBV_WR_RDMA_WRITE, remote, rkey) };
    if let Some(operation) = old.and_then(|old| old.wr_rdma_write) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, rkey, remote) };
    }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote: u64, imm: be32) {
    // SAFETY: the caller's QP is live.
    let old =
        unsafe { begin(qp, "ibv_wr_rdma_write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, remote, rkey) };
    if let Some(operation) = old.and_then(|old| old.wr_rdma_write_imm) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, rkey, remote, imm) };
    }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin(qp, "ibv_wr_send", IBV_WR_SEND, 0, 0) };
    if let Some(operation) = old.and_then(|old| old.wr_send) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp) };
    }
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: be32) {
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin(qp, "ibv_wr_send_imm", IBV_WR_SEND_WITH_IMM, 0, 0) };
    if let Some(operation) = old.and_then(|old| old.wr_send_imm) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, imm) };
    }
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin(qp, "ibv_wr_send_inv", IBV_WR_SEND_WITH_INV, 0, rkey) };
    if let Some(operation) = old.and_then(|old| old.wr_send_inv) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, rkey) };
    }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, header: *mut c_void, length: u16, mss: u16) {
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin(qp, "ibv_wr_send_tso", IBV_WR_TSO, 0, 0) };
    if let Some(operation) = old.and_then(|old| old.wr_send_tso) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, header, length, mss) };
    }
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote: u64,
    value: *const c_void,
) {
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin(qp, "ibv_wr_atomic_write", IBV_WR_ATOMIC_WRITE, remote, rkey) };
    if let Some(operation) = old.and_then(|old| old.wr_atomic_write) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, rkey, remote, value) };
    }
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote: u64,
    length: usize,
    kind: u8,
    level: u8,
) {
    // SAFETY: the caller's QP is live.
    let old = unsafe { begin(qp, "ibv_wr_flush", IBV_WR_FLUSH, remote, rkey) };
    if let Some(operation) = old.and_then(|old| old.wr_flush) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, rkey, remote, length, kind, level) };
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    let old = set(qp, "ibv_wr_set_ud_addr", |open| {
        (open.ah, open.qkey) = (ah as usize, qkey);
    });
    if let Some(operation) = old.and_then(|old| old.wr_set_ud_addr) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, ah, qpn, qkey) };
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, number: u32) {
    let old = set(qp, "ibv_wr_set_xrc_srqn", |_| ());
    if let Some(operation) = old.and_then(|old| old.wr_set_xrc_srqn) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, number) };
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let old = set(qp, "ibv_wr_set_inline_data", |open| open.inline = Some(length as u64));
    if let Some(operation) = old.and_then(|old| old.wr_set_inline_data) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, addr, length) };
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let old = set(qp, "ibv_wr_set_sge", |open| {
        open.set_elements(1, &[ibv_sge { addr, length, lkey }]);
    });
    if let Some(operation) = old.and_then(|old| old.wr_set_sge) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, lkey, addr, length) };
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let old = set(qp, "ibv_wr_set_sge_list", |open| {
        let given = match list.is_null() {
            true => &[],
            // SAFETY: the program's list has `count` elements.
            false => unsafe { core::slice::from_raw_parts(list, count.min(SGES)) },
        };
        open.set_elements(count, given);
    });
    if let Some(operation) = old.and_then(|old| old.wr_set_sge_list) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, count, list) };
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let old = set(qp, "ibv_wr_set_inline_data_list", |open| {
        if !list.is_null() {
            // SAFETY: the program's list has `count` elements.
            let given = unsafe { core::slice::from_raw_parts(list, count) };
            open.inline = Some(given.iter().map(|buf| buf.length as u64).sum());
        }
    });
    if let Some(operation) = old.and_then(|old| old.wr_set_inline_data_list) {
        // SAFETY: the provider's own pointer, with the caller's arguments.
        unsafe { operation(qp, count, list) };
    }
}
