//! The implementation of operations that no provider implements (`rdma-core`'s default table).
//!
//! Functions that return a pointer give NULL with errno `EOPNOTSUPP`; functions that return an
//! `int` return `EOPNOTSUPP`; functions that return nothing do nothing. Six deviate, see below.

use core::ffi::{c_int, c_void};

use abi::{
    IBV_REREG_MR_ERR_INPUT, MrInitMask, ibv_buf, ibv_dm, ibv_mr, ibv_mr_init_attr, ibv_pd, ibv_qp,
    ibv_wr_opcode, verbs_context_ops, verbs_mr,
};

use super::context::{Context, op};
use cface::{Errno, boundary, mem};

/// The result of an unsupported operation.
trait Unsupported {
    fn unsupported() -> Self;
}

impl Unsupported for c_int {
    fn unsupported() -> Self {
        Errno::EOPNOTSUPP.raw()
    }
}

impl<T> Unsupported for *mut T {
    fn unsupported() -> Self {
        Errno::EOPNOTSUPP.set();
        core::ptr::null_mut()
    }
}

impl Unsupported for () {
    fn unsupported() -> Self {}
}

/// A function pointer type with an "unsupported" function of the same signature.
trait Dummy {
    const DUMMY: Self;
}

macro_rules! dummy_for {
    ($($arg:ident)*) => {
        impl<R: Unsupported, $($arg),*> Dummy for unsafe extern "C" fn($($arg),*) -> R {
            const DUMMY: Self = {
                unsafe extern "C" fn dummy<R: Unsupported, $($arg),*>($(_: $arg),*) -> R {
                    R::unsupported()
                }
                dummy::<R, $($arg),*>
            };
        }
    };
}
dummy_for!(A);
dummy_for!(A B);
dummy_for!(A B C);
dummy_for!(A B C D);
dummy_for!(A B C D E);
dummy_for!(A B C D E F);
dummy_for!(A B C D E F G);

macro_rules! table {
    ($($name:ident)*; $($special:ident = $function:path),* $(,)?) => {
        verbs_context_ops { $($name: Some(Dummy::DUMMY),)* $($special: Some($function),)* }
    };
}

/// The layer below every provider; in canonical order.
pub(crate) static DUMMIES: verbs_context_ops = table! {
    advise_mr alloc_dm alloc_dmah alloc_mw alloc_null_mr alloc_parent_domain alloc_pd alloc_td
    async_event attach_counters_point_flow attach_mcast bind_mw close_xrcd cq_event create_ah
    create_comp_cntr create_counters create_cq create_cq_ex create_flow create_flow_action_esp
    create_qp create_qp_ex create_rwq_ind_table create_srq create_srq_ex create_wq dealloc_dmah
    dealloc_mw dealloc_pd dealloc_td dereg_mr destroy_ah destroy_comp_cntr destroy_counters
    destroy_cq destroy_flow destroy_flow_action destroy_qp destroy_rwq_ind_table destroy_srq
    destroy_wq detach_mcast free_context free_dm get_srq_num import_dm import_mr import_pd
    inc_comp_cntr inc_err_comp_cntr modify_cq modify_flow_action_esp modify_qp
    modify_qp_rate_limit modify_srq modify_wq open_qp open_xrcd poll_cq post_recv post_send
    post_srq_ops post_srq_recv qp_attach_comp_cntr query_comp_cntr_caps query_device_ex
    query_ece query_port query_port_speed query_qp query_rt_values query_srq read_comp_cntr
    read_counters read_err_comp_cntr reg_dm_mr reg_dmabuf_mr reg_mr req_notify_cq resize_cq
    set_comp_cntr set_ece set_err_comp_cntr unimport_dm unimport_mr unimport_pd;
    alloc_buf = alloc_buf,
    free_buf = free_buf,
    rereg_mr = rereg_mr,
    dm_export_dmabuf_fd = dm_export_dmabuf_fd,
    reg_mr_ex = reg_mr_ex,
    query_qp_data_in_order = query_qp_data_in_order,
};

/// Returns 0: the provider guarantees no order.
unsafe extern "C" fn query_qp_data_in_order(_: *mut ibv_qp, _: ibv_wr_opcode, _: u32) -> c_int {
    0
}

/// Its results are codes of `ibv_rereg_mr(3)`, not errno values.
unsafe extern "C" fn rereg_mr(
    _: *mut verbs_mr,
    _: c_int,
    _: *mut ibv_pd,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> c_int {
    Errno::EOPNOTSUPP.set();
    IBV_REREG_MR_ERR_INPUT
}

/// Its result is a descriptor.
unsafe extern "C" fn dm_export_dmabuf_fd(_: *mut ibv_dm) -> c_int {
    Errno::EOPNOTSUPP.set();
    -1
}

/// Without a provider's help a buffer is page-aligned memory of this process.
unsafe extern "C" fn alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    out: *mut *mut ibv_buf,
) -> *mut c_void {
    boundary(|| {
        let addr = mem::alloc_pages(size)?;
        let buf = match mem::calloc::<ibv_buf>() {
            Ok(buf) => buf,
            Err(error) => {
                // SAFETY: allocated a few lines above, and not handed over.
                unsafe { mem::free(addr.as_ptr()) };
                return Err(error);
            }
        };
        // SAFETY: fresh memory of the right size; `out` is the caller's to receive one pointer.
        unsafe {
            buf.as_ptr().write(ibv_buf { addr: addr.as_ptr(), size, pd, dmabuf_fd: -1 });
            out.write(buf.as_ptr());
        }
        Ok(addr.as_ptr())
    })
}

/// Undoes [`alloc_buf`]. A buffer of a provider that allocates but does not free is leaked: only
/// the provider knows its origin.
unsafe extern "C" fn free_buf(buf: *mut ibv_buf) {
    // SAFETY: NULL, or a buffer of the caller's, which its PD outlives.
    if buf.is_null() || !unsafe { is_ours((*buf).pd) } {
        return;
    }
    // SAFETY: came from alloc_buf above, which is installed for the buffer's PD.
    unsafe { mem::free((*buf).addr) };
    // SAFETY: alloc_buf took the structure from calloc; the caller gives it back.
    unsafe { mem::free(buf.cast()) };
}

/// Whether buffers of this domain come from [`alloc_buf`].
///
/// # Safety
/// `pd` is NULL or live.
unsafe fn is_ours(pd: *mut ibv_pd) -> bool {
    if pd.is_null() {
        return true;
    }
    // SAFETY: not NULL (checked), hence live, and so is the PD's context.
    let Ok(context) = (unsafe { Context::new((*pd).context) }) else { return false };
    let installed = op!(context, alloc_buf).ok();
    // Compare entries of tables: one function may have several addresses.
    installed.zip(DUMMIES.alloc_buf).is_some_and(|(one, other)| core::ptr::fn_addr_eq(one, other))
}

/// `ibv_reg_mr_ex(3)` for providers that only have the older operations: a DMA-BUF registration or
/// a plain one, chosen by the mask.
unsafe extern "C" fn reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    boundary(|| {
        // SAFETY: the exported ibv_reg_mr_ex passes a live PD and its own copy of the attributes.
        let (pd_ref, attr) =
            unsafe { (pd.as_ref().ok_or(Errno::EINVAL)?, attr.as_ref().ok_or(Errno::EINVAL)?) };
        // SAFETY: the context of a live PD is live.
        let context = unsafe { Context::new(pd_ref.context)? };
        let mask = MrInitMask::from_bits_retain(attr.comp_mask);
        let known = MrInitMask::IOVA | MrInitMask::ADDR | MrInitMask::FD | MrInitMask::FD_OFFSET;
        if !known.contains(mask) {
            return Err(Errno::EOPNOTSUPP);
        }
        if mask.contains(MrInitMask::FD) {
            let needed = MrInitMask::FD_OFFSET | MrInitMask::IOVA;
            if !mask.contains(needed) || mask.contains(MrInitMask::ADDR) {
                return Err(Errno::EINVAL);
            }
            let reg = op!(context, reg_dmabuf_mr)?;
            // SAFETY: a provider's operation with a live PD.
            return Ok(unsafe {
                reg(pd, attr.fd_offset, attr.length, attr.iova, attr.fd, attr.access)
            });
        }
        if !mask.contains(MrInitMask::ADDR) || mask.contains(MrInitMask::FD_OFFSET) {
            return Err(Errno::EINVAL);
        }
        let iova =
            if mask.contains(MrInitMask::IOVA) { attr.iova } else { attr.addr.addr() as u64 };
        let reg = op!(context, reg_mr)?;
        // SAFETY: a provider's operation with a live PD; the memory is the application's.
        Ok(unsafe { reg(pd, attr.addr, attr.length, iova, attr.access) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsupported_operation_says_so_in_its_own_convention() {
        let create = DUMMIES.create_qp.expect("a dummy");
        Errno::EIO.set();
        // SAFETY: dummies look at no argument.
        assert!(unsafe { create(core::ptr::null_mut(), core::ptr::null_mut()) }.is_null());
        assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
        Errno::EIO.set();
        let poll = DUMMIES.poll_cq.expect("a dummy");
        // SAFETY: dummies look at no argument.
        let polled = unsafe { poll(core::ptr::null_mut(), 1, core::ptr::null_mut()) };
        assert_eq!((polled, Errno::last()), (libc::EOPNOTSUPP, Errno::EIO));
    }

    #[test]
    fn every_operation_has_a_dummy() {
        let words: [usize; super::super::op::OP_COUNT] =
            // SAFETY: the table is exactly that many nullable function pointers.
            unsafe { core::mem::transmute(DUMMIES) };
        assert!(words.iter().all(|&word| word != 0));
    }

    #[test]
    fn a_buffer_without_provider_is_page_aligned_memory() {
        let mut buf = core::ptr::null_mut();
        // SAFETY: `buf` receives one pointer; the PD is only stored.
        let addr = unsafe { alloc_buf(core::ptr::null_mut(), 5000, &raw mut buf) };
        assert!(!addr.is_null() && addr.addr() % 4096 == 0);
        // SAFETY: just allocated.
        assert_eq!(unsafe { ((*buf).size, (*buf).dmabuf_fd) }, (5000, -1));
        // SAFETY: allocated above, freed once.
        unsafe { free_buf(buf) };
    }
}
