//! The operations of contexts that a forked child inherited from its parent. `context::in_child`
//! installs the table; no function here touches shared state.
//!
//! The fabric and all objects in it belong to the parent. Functions that end an object report
//! success and do nothing, so destructors without knowledge of the fork run through. All other
//! functions fail with `ENODEV`, explained by one line per process.

use super::context;
use crate::config;
use abi::{ibv_cq, ibv_wc, verbs_context_ops};
use soft_sys::{Errno, notice};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// An operation in the child.
trait ChildOperation: Sized {
    /// Does nothing and reports success.
    const DONE: Self;
    /// Does nothing and reports `ENODEV`.
    const REFUSED: Self;
}

/// The return value of an operation.
trait ReturnValue {
    fn success() -> Self;
    fn refused() -> Self;
}

impl ReturnValue for () {
    fn success() {}
    fn refused() {}
}

impl ReturnValue for c_int {
    fn success() -> Self {
        0
    }

    fn refused() -> Self {
        explain();
        cface::Ret::fail(Errno::ENODEV)
    }
}

impl<T> ReturnValue for *mut T {
    fn success() -> Self {
        std::ptr::null_mut()
    }

    fn refused() -> Self {
        explain();
        cface::Ret::fail(Errno::ENODEV)
    }
}

/// Explains the error, once in each process.
#[cold]
fn explain() {
    static IS_REPORTED: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id();
    if IS_REPORTED.swap(own, Ordering::Relaxed) != own && !config::is_quiet() {
        notice!(
            "process {own} is a fork, and cannot use what its parent made of the device; it may open the device itself"
        );
    }
}

macro_rules! gone {
    ($($($arg:ident)+;)+) => {$(
        impl<R: ReturnValue, $($arg),+> ChildOperation for Option<unsafe extern "C" fn($($arg),+) -> R> {
            const DONE: Self = {
                unsafe extern "C" fn done<R: ReturnValue, $($arg),+>($(_: $arg),+) -> R {
                    R::success()
                }
                Some(done::<R, $($arg),+>)
            };
            const REFUSED: Self = {
                unsafe extern "C" fn refused<R: ReturnValue, $($arg),+>($(_: $arg),+) -> R {
                    R::refused()
                }
                Some(refused::<R, $($arg),+>)
            };
        }
    )+};
}

gone! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

/// ibv_poll_cq(3), whose errors are negative.
unsafe extern "C" fn poll_cq(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    explain();
    Errno::ENODEV.set();
    -1
}

/// The table of operations in a child. Queries of the device still work, and `alloc_dm` and
/// `free_dm` stay: the tests of rdma-core make device memory in children.
pub(super) static OPS: verbs_context_ops = verbs_context_ops {
    advise_mr: ChildOperation::REFUSED,
    alloc_buf: ChildOperation::REFUSED,
    alloc_dmah: ChildOperation::REFUSED,
    alloc_mw: ChildOperation::REFUSED,
    alloc_null_mr: ChildOperation::REFUSED,
    alloc_parent_domain: ChildOperation::REFUSED,
    alloc_pd: ChildOperation::REFUSED,
    alloc_td: ChildOperation::REFUSED,
    attach_counters_point_flow: ChildOperation::REFUSED,
    attach_mcast: ChildOperation::REFUSED,
    bind_mw: ChildOperation::REFUSED,
    close_xrcd: ChildOperation::DONE,
    create_ah: ChildOperation::REFUSED,
    create_counters: ChildOperation::REFUSED,
    create_cq: ChildOperation::REFUSED,
    create_cq_ex: ChildOperation::REFUSED,
    create_flow: ChildOperation::REFUSED,
    create_qp: ChildOperation::REFUSED,
    create_qp_ex: ChildOperation::REFUSED,
    create_rwq_ind_table: ChildOperation::REFUSED,
    create_srq: ChildOperation::REFUSED,
    create_srq_ex: ChildOperation::REFUSED,
    create_wq: ChildOperation::REFUSED,
    dealloc_dmah: ChildOperation::DONE,
    dealloc_mw: ChildOperation::DONE,
    dealloc_pd: ChildOperation::DONE,
    dealloc_td: ChildOperation::DONE,
    dereg_mr: ChildOperation::DONE,
    destroy_ah: ChildOperation::DONE,
    destroy_counters: ChildOperation::DONE,
    destroy_cq: ChildOperation::DONE,
    destroy_flow: ChildOperation::DONE,
    destroy_qp: ChildOperation::DONE,
    destroy_rwq_ind_table: ChildOperation::DONE,
    destroy_srq: ChildOperation::DONE,
    destroy_wq: ChildOperation::DONE,
    detach_mcast: ChildOperation::DONE,
    free_buf: ChildOperation::DONE,
    free_context: Some(context::forget_context),
    import_dm: ChildOperation::REFUSED,
    import_mr: ChildOperation::REFUSED,
    import_pd: ChildOperation::REFUSED,
    modify_cq: ChildOperation::REFUSED,
    get_srq_num: ChildOperation::REFUSED,
    modify_qp: ChildOperation::REFUSED,
    modify_srq: ChildOperation::REFUSED,
    open_qp: ChildOperation::REFUSED,
    open_xrcd: ChildOperation::REFUSED,
    modify_wq: ChildOperation::REFUSED,
    cq_event: ChildOperation::DONE,
    poll_cq: Some(poll_cq),
    post_recv: ChildOperation::REFUSED,
    post_send: ChildOperation::REFUSED,
    post_srq_ops: ChildOperation::REFUSED,
    post_srq_recv: ChildOperation::REFUSED,
    query_ece: ChildOperation::REFUSED,
    query_port: ChildOperation::REFUSED,
    query_port_speed: ChildOperation::REFUSED,
    query_qp: ChildOperation::REFUSED,
    query_rt_values: ChildOperation::REFUSED,
    query_srq: ChildOperation::REFUSED,
    reg_dm_mr: ChildOperation::REFUSED,
    reg_dmabuf_mr: ChildOperation::REFUSED,
    read_counters: ChildOperation::REFUSED,
    reg_mr: ChildOperation::REFUSED,
    reg_mr_ex: ChildOperation::REFUSED,
    req_notify_cq: ChildOperation::REFUSED,
    rereg_mr: ChildOperation::REFUSED,
    resize_cq: ChildOperation::REFUSED,
    set_ece: ChildOperation::REFUSED,
    unimport_dm: ChildOperation::DONE,
    unimport_mr: ChildOperation::DONE,
    unimport_pd: ChildOperation::DONE,
    ..context::NO_OPS
};
