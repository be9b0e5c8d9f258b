//! The functions of libibverbs.so.1 that this library uses, from this project or upstream: exported
//! names, and operations behind inline functions of `<infiniband/verbs.h>`.
//! `build.rs` reads the names and their version nodes for the linker.

use abi::*;
use std::ffi::{c_char, c_int, c_void};

unsafe extern "C" {
    // IBVERBS_1.0
    pub(crate) fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(crate) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub(crate) fn ibv_get_sysfs_path() -> *const c_char;
    pub(crate) fn ibv_read_sysfs_file(
        dir: *const c_char,
        file: *const c_char,
        buf: *mut c_char,
        size: usize,
    ) -> c_int;
    // IBVERBS_1.1
    pub(crate) fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    pub(crate) fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub(crate) fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub(crate) fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
    pub(crate) fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    pub(crate) fn ibv_query_port(
        context: *mut ibv_context,
        port: u8,
        attr: *mut compat_ibv_port_attr,
    ) -> c_int;
    pub(crate) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(crate) fn ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr;
    pub(crate) fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    pub(crate) fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;
    pub(crate) fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub(crate) fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32);
    pub(crate) fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub(crate) fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub(crate) fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub(crate) fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub(crate) fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub(crate) fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub(crate) fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    pub(crate) fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(crate) fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    // IBVERBS_1.5
    pub(crate) fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int;
    // IBVERBS_1.9
    pub(crate) fn ibv_get_device_index(device: *mut ibv_device) -> c_int;
    // IBVERBS_1.10
    pub(crate) fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    pub(crate) fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    // IBVERBS_1.11
    pub(crate) fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        most: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
}

/// The extended operations before a context; `None` for the oldest layout.
///
/// # Safety
/// `context` is open.
unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the context is open; all ones mark an embedded context (`<infiniband/verbs.h>`).
    unsafe {
        if (*context).abi_compat as usize != usize::MAX {
            return None;
        }
        Some(context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast())
    }
}

/// An extended operation of an open context, if the context has the operation.
macro_rules! member {
    ($context:expr, $name:ident) => {
        // The distance to the end is the same in all sizes of this structure that have the member.
        extended($context)
            .filter(|at| {
                (**at).sz >= size_of::<verbs_context>() - std::mem::offset_of!(verbs_context, $name)
            })
            .and_then(|at| (*at).$name)
    };
}

/// The result of an operation that a context lacks: NULL with `EOPNOTSUPP`.
fn absent<T>() -> *mut T {
    cface::Errno::EOPNOTSUPP.set();
    std::ptr::null_mut()
}

/// `ibv_create_qp_ex`, which is inline in C.
///
/// # Safety
/// `context` is open; `attr` is valid for ibv_create_qp_ex(3).
pub(crate) unsafe fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the context is open, and the function is from its own table; `attr` is valid by
    // contract.
    unsafe { member!(context, create_qp_ex).map_or_else(absent, |create| create(context, attr)) }
}

/// `ibv_create_srq_ex`, which is inline in C.
///
/// # Safety
/// `context` is open; `attr` is valid for ibv_create_srq_ex(3).
pub(crate) unsafe fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: as in `create_qp_ex`.
    unsafe { member!(context, create_srq_ex).map_or_else(absent, |create| create(context, attr)) }
}

/// `ibv_open_xrcd`, which is inline in C: a new domain for this process alone.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn open_xrcd(context: *mut ibv_context) -> *mut ibv_xrcd {
    let mut attr = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: as in `create_qp_ex`; `attr` is readable.
    unsafe { member!(context, open_xrcd).map_or_else(absent, |open| open(context, &raw mut attr)) }
}
