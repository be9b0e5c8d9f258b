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
trait Gone: Sized {
    /// Does nothing and reports success.
    const DONE: Self;
    /// Does nothing and reports `ENODEV`.
    const REFUSED: Self;
}

/// The return value of an operation.
trait Answer {
    fn done() -> Self;
    fn refused() -> Self;
}

impl Answer for () {
    fn done() {}
    fn refused() {}
}

impl Answer for c_int {
    fn done() -> Self {
        0
    }

    fn refused() -> Self {
        explain();
        cface::Ret::fail(Errno::ENODEV)
    }
}

impl<T> Answer for *mut T {
    fn done() -> Self {
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
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id();
    if TOLD.swap(own, Ordering::Relaxed) != own && !config::is_quiet() {
        notice!(
            "process {own} is a fork, and cannot use what its parent made of the device; it may open the device itself"
        );
    }
}

macro_rules! gone {
    ($($($arg:ident)+;)+) => {$(
        impl<R: Answer, $($arg),+> Gone for Option<unsafe extern "C" fn($($arg),+) -> R> {
            const DONE: Self = {
                unsafe extern "C" fn done<R: Answer, $($arg),+>($(_: $arg),+) -> R {
                    R::done()
                }
                Some(done::<R, $($arg),+>)
            };
            const REFUSED: Self = {
                unsafe extern "C" fn refused<R: Answer, $($arg),+>($(_: $arg),+) -> R {
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
    advise_mr: Gone::REFUSED,
    alloc_buf: Gone::REFUSED,
    alloc_mw: Gone::REFUSED,
    alloc_null_mr: Gone::REFUSED,
    alloc_parent_domain: Gone::REFUSED,
    alloc_pd: Gone::REFUSED,
    alloc_td: Gone::REFUSED,
    attach_counters_point_flow: Gone::REFUSED,
    attach_mcast: Gone::REFUSED,
    bind_mw: Gone::REFUSED,
    close_xrcd: Gone::DONE,
    create_ah: Gone::REFUSED,
    create_counters: Gone::REFUSED,
    create_cq: Gone::REFUSED,
    create_cq_ex: Gone::REFUSED,
    create_flow: Gone::REFUSED,
    create_qp: Gone::REFUSED,
    create_qp_ex: Gone::REFUSED,
    create_rwq_ind_table: Gone::REFUSED,
    create_srq: Gone::REFUSED,
    create_srq_ex: Gone::REFUSED,
    create_wq: Gone::REFUSED,
    dealloc_mw: Gone::DONE,
    dealloc_pd: Gone::DONE,
    dealloc_td: Gone::DONE,
    dereg_mr: Gone::DONE,
    destroy_ah: Gone::DONE,
    destroy_counters: Gone::DONE,
    destroy_cq: Gone::DONE,
    destroy_flow: Gone::DONE,
    destroy_qp: Gone::DONE,
    destroy_rwq_ind_table: Gone::DONE,
    destroy_srq: Gone::DONE,
    destroy_wq: Gone::DONE,
    detach_mcast: Gone::DONE,
    free_buf: Gone::DONE,
    free_context: Some(context::forget_context),
    import_dm: Gone::REFUSED,
    import_mr: Gone::REFUSED,
    import_pd: Gone::REFUSED,
    modify_cq: Gone::REFUSED,
    get_srq_num: Gone::REFUSED,
    modify_qp: Gone::REFUSED,
    modify_srq: Gone::REFUSED,
    open_qp: Gone::REFUSED,
    open_xrcd: Gone::REFUSED,
    modify_wq: Gone::REFUSED,
    cq_event: Gone::DONE,
    poll_cq: Some(poll_cq),
    post_recv: Gone::REFUSED,
    post_send: Gone::REFUSED,
    post_srq_ops: Gone::REFUSED,
    post_srq_recv: Gone::REFUSED,
    query_port: Gone::REFUSED,
    query_port_speed: Gone::REFUSED,
    query_qp: Gone::REFUSED,
    query_rt_values: Gone::REFUSED,
    query_srq: Gone::REFUSED,
    reg_dm_mr: Gone::REFUSED,
    read_counters: Gone::REFUSED,
    reg_mr: Gone::REFUSED,
    req_notify_cq: Gone::REFUSED,
    rereg_mr: Gone::REFUSED,
    resize_cq: Gone::REFUSED,
    unimport_dm: Gone::DONE,
    unimport_mr: Gone::DONE,
    unimport_pd: Gone::DONE,
    ..context::NO_OPS
};
