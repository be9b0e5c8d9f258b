//! A provider for the tests of this folder, which records all calls and fails on demand. A test
//! calls a verb of 1.0 on a context of this provider, and compares the recorded calls.
//!
//! Map of this file: the record and the failures, the operations, their table, the device and
//! driver, and helpers of the tests.

use core::cell::{Cell, RefCell};
use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr::NonNull;
use std::sync::LazyLock;

use abi::{
    Zeroed, ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_context_1_0, ibv_cq,
    ibv_device, ibv_device_1_0, ibv_device_attr_ex, ibv_gid, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_query_device_ex_input, ibv_recv_wr, ibv_send_wr, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_wc, verbs_context, verbs_context_ops, verbs_device,
    verbs_device_ops, verbs_mr,
};

use super::device;
use crate::front::testing;
use crate::kabi;
use cface::{Errno, mem};

thread_local! {
    static ASKED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static FAIL: Cell<Option<Errno>> = const { Cell::new(None) };
}

/// The calls since the previous query.
pub(super) fn queried() -> Vec<String> {
    ASKED.take()
}

/// The next operation fails.
pub(super) fn fail(error: Errno) {
    FAIL.set(Some(error));
}

macro_rules! note {
    ($($text:tt)*) => { ASKED.with_borrow_mut(|queried| queried.push(format!($($text)*))) };
}

/// A new object with a handle, unless told to fail.
fn create<T: Zeroed>(set: impl FnOnce(&mut T)) -> *mut T {
    if let Some(error) = FAIL.take() {
        error.set();
        return core::ptr::null_mut();
    }
    let mut object = T::zeroed();
    set(&mut object);
    let memory = mem::calloc::<T>().expect("memory");
    // SAFETY: fresh memory of the right size.
    unsafe { memory.write(object) };
    memory.as_ptr()
}

fn result() -> c_int {
    FAIL.take().map_or(0, Errno::raw)
}

fn destroy<T>(object: *mut T) -> c_int {
    let result = result();
    if result == 0 {
        // SAFETY: a fake object from calloc, destroyed once.
        unsafe { mem::free(object.cast()) };
    }
    result
}

pub(super) const HANDLE: u32 = 0x101;

unsafe extern "C" fn alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
    create(|pd: &mut ibv_pd| pd.handle = HANDLE)
}
unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    destroy(pd)
}
unsafe extern "C" fn reg_mr(
    _: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    note!("reg_mr {length} {access} {}", iova == addr.addr() as u64);
    create(|mr: &mut verbs_mr| {
        mr.ibv_mr.handle = HANDLE;
        mr.ibv_mr.lkey = 0x11;
        mr.ibv_mr.rkey = 0x22;
    })
    .cast()
}
unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    destroy(mr)
}
unsafe extern "C" fn create_cq(
    _: *mut ibv_context,
    cqe: c_int,
    _: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    note!("create_cq {cqe} {vector}");
    create(|cq: &mut ibv_cq| {
        cq.handle = HANDLE;
        cq.cqe = cqe + 1;
    })
}
unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let result = result();
    if result == 0 {
        // SAFETY: a live CQ.
        unsafe { (*cq).cqe = cqe + 1 };
    }
    result
}
unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    destroy(cq)
}
unsafe extern "C" fn cq_event(_: *mut ibv_cq) {
    note!("cq_event");
}
unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a live CQ, and room for one completion.
    unsafe {
        note!("poll_cq {:#x} {count}", (*cq).handle);
        (*wc).wr_id = 0x77;
    }
    1
}
unsafe extern "C" fn req_notify_cq(_: *mut ibv_cq, solicited: c_int) -> c_int {
    note!("req_notify_cq {solicited}");
    0
}
unsafe extern "C" fn create_srq(_: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: readable and writable.
    unsafe {
        note!("create_srq {}", (*attr).attr.max_wr);
        (*attr).attr.max_wr += 1;
    }
    create(|srq: &mut ibv_srq| srq.handle = HANDLE)
}
unsafe extern "C" fn modify_srq(_: *mut ibv_srq, _: *mut ibv_srq_attr, mask: c_int) -> c_int {
    note!("modify_srq {mask}");
    result()
}
unsafe extern "C" fn query_srq(_: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: writable.
    unsafe { (*attr).max_wr = 99 };
    result()
}
unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    destroy(srq)
}
unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: readable and writable.
    let attr = unsafe { &mut *attr };
    note!("create_qp type {} signal all {}", attr.qp_type, attr.sq_sig_all);
    attr.cap.max_send_wr += 1;
    create(|qp: &mut ibv_qp| {
        // SAFETY: a live PD.
        qp.context = unsafe { (*pd).context };
        qp.handle = HANDLE;
        qp.qp_num = 0x33;
        qp.qp_type = attr.qp_type;
        qp.send_cq = attr.send_cq;
        qp.recv_cq = attr.recv_cq;
        qp.srq = attr.srq;
    })
}
unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    let result = result();
    if result == 0 {
        // SAFETY: a live QP, and two structures of today, which a provider may write as a whole.
        unsafe {
            attr.write(ibv_qp_attr { qp_state: 2, rate_limit: 0xffff, ..ibv_qp_attr::zeroed() });
            init_attr.write(ibv_qp_init_attr {
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                qp_type: (*qp).qp_type,
                sq_sig_all: 1,
                ..ibv_qp_init_attr::zeroed()
            });
        }
    }
    result
}
unsafe extern "C" fn modify_qp(_: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: readable as a whole.
    let attr = unsafe { attr.read() };
    note!("modify_qp {mask} state {} rate {}", attr.qp_state, attr.rate_limit);
    result()
}
unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    destroy(qp)
}
unsafe extern "C" fn create_ah(_: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: readable.
    note!("create_ah {}", unsafe { (*attr).dlid });
    create(|ah: &mut ibv_ah| ah.handle = HANDLE)
}
unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    destroy(ah)
}
unsafe extern "C" fn attach_mcast(_: *mut ibv_qp, _: *const ibv_gid, lid: u16) -> c_int {
    note!("attach_mcast {lid}");
    result()
}
unsafe extern "C" fn detach_mcast(_: *mut ibv_qp, _: *const ibv_gid, lid: u16) -> c_int {
    note!("detach_mcast {lid}");
    result()
}

/// Fails at the second request if told to fail.
unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live QP.
    let datagrams = unsafe { (*qp).qp_type } == abi::IBV_QPT_UD;
    let mut position = 0;
    // SAFETY: a list of readable requests, with the views that the QP's type and the opcode tell.
    while let Some(request) = unsafe { wr.as_ref() } {
        let (id, opcode, flags) = (request.wr_id, request.opcode, request.send_flags);
        // SAFETY: QP type and opcode tell the view that the test filled; a handle is NULL or the
        // test's own.
        let rest = unsafe {
            if datagrams {
                let ud = request.wr.ud;
                let ah = ud.ah.as_ref().map_or(0, |ah| ah.handle);
                format!("ah {ah:#x} qpn {} qkey {}", ud.remote_qpn, ud.remote_qkey)
            } else if opcode == abi::IBV_WR_ATOMIC_CMP_AND_SWP {
                let it = request.wr.atomic;
                format!("{} {} {} {}", it.remote_addr, it.compare_add, it.swap, it.rkey)
            } else {
                format!("{} imm {}", request.wr.rdma.rkey, request.imm.imm_data)
            }
        };
        note!("send {id} op {opcode} flags {flags} sge {} {rest}", request.num_sge);
        if position == 1 && FAIL.get().is_some() {
            // SAFETY: writable.
            unsafe { *bad = wr };
            return result();
        }
        position += 1;
        wr = request.next;
    }
    0
}

/// Fails at the second request if told to fail.
unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: passed on.
    unsafe { receive("recv", wr, bad) }
}

unsafe extern "C" fn post_srq_recv(
    _: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: passed on.
    unsafe { receive("srq recv", wr, bad) }
}

/// # Safety
/// As for the operations.
unsafe fn receive(what: &str, mut wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    let mut position = 0;
    // SAFETY: a list of readable requests.
    while let Some(request) = unsafe { wr.as_ref() } {
        note!("{what} {} sge {}", request.wr_id, request.num_sge);
        if position == 1 && FAIL.get().is_some() {
            // SAFETY: writable.
            unsafe { *bad = wr };
            return result();
        }
        position += 1;
        wr = request.next;
    }
    0
}

unsafe extern "C" fn query_device_ex(
    _: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    assert_eq!(size, size_of::<abi::ibv_device_attr>());
    // SAFETY: writable as far as `size` says.
    unsafe { (*attr).orig_attr.max_qp = 4711 };
    result()
}
unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: writable as a whole.
    unsafe {
        attr.write(ibv_port_attr {
            lid: port.into(),
            active_speed_ex: u32::MAX,
            ..ibv_port_attr::zeroed()
        });
    }
    result()
}

static OPERATIONS: LazyLock<verbs_context_ops> = LazyLock::new(|| verbs_context_ops {
    alloc_pd: Some(alloc_pd),
    dealloc_pd: Some(dealloc_pd),
    reg_mr: Some(reg_mr),
    dereg_mr: Some(dereg_mr),
    create_cq: Some(create_cq),
    resize_cq: Some(resize_cq),
    destroy_cq: Some(destroy_cq),
    cq_event: Some(cq_event),
    poll_cq: Some(poll_cq),
    req_notify_cq: Some(req_notify_cq),
    create_srq: Some(create_srq),
    modify_srq: Some(modify_srq),
    query_srq: Some(query_srq),
    destroy_srq: Some(destroy_srq),
    post_srq_recv: Some(post_srq_recv),
    create_qp: Some(create_qp),
    query_qp: Some(query_qp),
    modify_qp: Some(modify_qp),
    destroy_qp: Some(destroy_qp),
    post_send: Some(post_send),
    post_recv: Some(post_recv),
    create_ah: Some(create_ah),
    destroy_ah: Some(destroy_ah),
    attach_mcast: Some(attach_mcast),
    detach_mcast: Some(detach_mcast),
    query_device_ex: Some(query_device_ex),
    query_port: Some(query_port),
    free_context: Some(free_context),
    ..verbs_context_ops::zeroed()
});

unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _: *mut c_void,
) -> *mut verbs_context {
    if let Some(error) = FAIL.take() {
        error.set();
        return core::ptr::null_mut();
    }
    let size = size_of::<verbs_context>();
    // SAFETY: a live device; the context is all of the structure.
    unsafe {
        let memory =
            kabi::context::init_and_alloc::<65>(device, cmd_fd, size, core::ptr::null_mut(), 0);
        let context: *mut verbs_context = memory.cast();
        kabi::context::set_ops::<65>(context, &raw const *OPERATIONS);
        (*context).context.num_comp_vectors = 3;
        context
    }
}

unsafe extern "C" fn free_context(context: *mut ibv_context) {
    let context = context.wrapping_byte_sub(offset_of!(verbs_context, context));
    // SAFETY: made by alloc_context.
    unsafe { kabi::context::uninit::<65>(context.cast()) };
    // SAFETY: the whole allocation of alloc_context.
    unsafe { mem::free(context.cast()) };
}

unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    note!("device gone");
    // SAFETY: made by calloc when the fake device was announced.
    unsafe { mem::free(device.cast()) };
}

static DEVICE_OPS: verbs_device_ops = verbs_device_ops {
    name: c"fake".as_ptr(),
    match_min_abi_version: 0,
    match_max_abi_version: 0,
    match_table: core::ptr::null(),
    static_providers: core::ptr::null_mut(),
    match_device: None,
    alloc_context: Some(alloc_context),
    import_context: None,
    alloc_device: None,
    uninit_device: Some(uninit_device),
};

/// A device with a name, with one reference.
pub(super) fn device(name: &str) -> *mut ibv_device {
    let device: NonNull<verbs_device> = testing::device(&DEVICE_OPS);
    // SAFETY: fresh and only ours.
    let field = unsafe { &mut (*device.as_ptr()).device.name };
    cface::chars::store(field, name.as_bytes()).expect("fits");
    device.as_ptr().cast()
}

/// An array of devices as the library hands them out.
pub(super) fn real_list(names: &[&str]) -> *mut *mut ibv_device {
    // Earlier tests may have run in this thread.
    queried();
    FAIL.set(None);
    let list = mem::calloc_bytes((names.len() + 1) * size_of::<*mut ibv_device>()).expect("memory");
    let list: *mut *mut ibv_device = list.as_ptr().cast();
    for (index, name) in names.iter().enumerate() {
        // SAFETY: room for one more entry than names.
        unsafe { list.add(index).write(device(name)) };
    }
    list
}

/// An open context of 1.0 on a device of its own. Close it with `device::close_device`.
pub(super) fn open() -> *mut ibv_context_1_0 {
    // SAFETY: a list of one device, which only this test uses.
    unsafe {
        let list: *mut *mut ibv_device_1_0 =
            device::shadow_list(real_list(&["fake0"])).expect("memory");
        let context = device::open_device(*list);
        device::free_device_list(list);
        assert!(!context.is_null());
        context
    }
}

/// Two ends of a pipe, the first not blocking.
pub(super) fn pipe() -> [c_int; 2] {
    let mut ends = [0; 2];
    // SAFETY: pipe2 fills two descriptors.
    let result = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
    assert_eq!(result, 0);
    ends
}

pub(super) fn write(fd: c_int, bytes: &[u8]) {
    // SAFETY: reads exactly the bytes of the slice.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(usize::try_from(written), Ok(bytes.len()));
}
