//! Shared receive queues of ids: `rdma_create_srq(3)`, `rdma_destroy_srq(3)`.
//! Entry points beside those of queue pairs.

use super::qp;
use crate::core::device::xrc_domain;
use crate::core::id::Id;
use crate::sys::verbs;
use abi::*;
use cface::{Errno, MinusOne, verb};
use std::ptr::null_mut;
use std::sync::Arc;

verb! {
    /// `rdma_create_srq(3)`. An earlier queue of the id then belongs to the program, as with
    /// upstream's.
    ///
    /// # Safety
    /// `id` is NULL or live; `pd` is NULL or live; `init` is NULL, or readable and writable.
    pub(crate) fn create(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        init: *mut ibv_srq_init_attr,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            let object = Id::of(id)?;
            let at = object.as_c();
            if init.is_null() || (*at).verbs.is_null() {
                return Err(Errno::EINVAL);
            }
            let pd = if pd.is_null() { (*at).pd } else { pd };
            if object.qp_type() == IBV_QPT_XRC_RECV {
                let mut full = ibv_srq_init_attr_ex {
                    srq_context: (*init).srq_context,
                    attr: (*init).attr,
                    comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
                    srq_type: IBV_SRQT_XRC,
                    pd,
                    ..Zeroed::zeroed()
                };
                create_full(&object, &mut full)?;
                (*init).attr = full.attr;
                return Ok(MinusOne(0));
            }
            let srq = verbs::ibv_create_srq(pd, init);
            if srq.is_null() {
                return Err(Errno::last());
            }
            ((*at).srq, (*at).pd) = (srq, pd);
        }
        Ok(MinusOne(0))
    }

    /// `rdma_create_srq_ex(3)`: an XRC queue without a domain and completion queue gets the XRC
    /// domain of ids and the id's receive completion queue.
    ///
    /// # Safety
    /// `id` is NULL or live; `init` is NULL, or readable and writable, with live objects.
    pub(crate) fn create_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            create_full(&Id::of(id)?, init.as_mut().ok_or(Errno::EINVAL)?)?;
        }
        Ok(MinusOne(0))
    }

    /// `rdma_destroy_srq(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live, and its shared receive queue is not used afterwards.
    pub(crate) fn destroy(id: *mut rdma_cm_id) {
        // SAFETY: by the contract above.
        unsafe {
            let object = Id::of(id)?;
            let at = object.as_c();
            if !(*at).srq.is_null() {
                verbs::ibv_destroy_srq((*at).srq);
                (*at).srq = null_mut();
                qp::destroy_queues(&object);
            }
        }
        Ok(())
    }
}

/// Creates the shared receive queue of an id.
///
/// # Safety
/// `id` is live; the objects of `init` are live.
unsafe fn create_full(id: &Arc<Id>, init: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    let at = id.as_c();
    // SAFETY: by the contract above; the members belong to the id, and no concurrent call of the
    // program uses them.
    unsafe {
        if (*at).verbs.is_null() {
            return Err(Errno::EINVAL);
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
            init.pd = (*at).pd;
            init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && init.srq_type == IBV_SRQT_XRC {
            if init.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || init.xrcd.is_null() {
                init.xrcd = xrc_domain((*at).verbs)?;
            }
            if init.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || init.cq.is_null() {
                qp::ensure_receive_cq(id, init.attr.max_wr)?;
                init.cq = (*at).recv_cq;
            }
            init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        }
        let srq = verbs::create_srq_ex((*at).verbs, init);
        if srq.is_null() {
            return Err(Errno::last());
        }
        ((*at).srq, (*at).pd) = (srq, init.pd);
    }
    Ok(())
}
