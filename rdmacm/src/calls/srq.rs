//! Shared receive queues of ids: `rdma_create_srq(3)`, `rdma_destroy_srq(3)`.

use crate::id::Id;
use crate::verbs;
use abi::*;
use cface::{Errno, MinusOne, verb};
use std::ptr::null_mut;

verb! {
    /// `rdma_create_srq(3)`.
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
            let at = Id::of(id)?.as_c();
            if init.is_null() || (*at).verbs.is_null() || !(*at).srq.is_null() {
                return Err(Errno::EINVAL);
            }
            let pd = if pd.is_null() { (*at).pd } else { pd };
            let srq = verbs::ibv_create_srq(pd, init);
            if srq.is_null() {
                return Err(Errno::last());
            }
            ((*at).srq, (*at).pd) = (srq, pd);
        }
        Ok(MinusOne(0))
    }

    /// `rdma_create_srq_ex(3)`: one of XRC or of tags gets the id's receive completion queue unless it brings one.
    ///
    /// # Safety
    /// `id` is NULL or live; `init` is NULL, or readable and writable, and what it names is live.
    pub(crate) fn create_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            let at = Id::of(id)?.as_c();
            let init = init.as_mut().ok_or(Errno::EINVAL)?;
            if (*at).verbs.is_null() || !(*at).srq.is_null() {
                return Err(Errno::EINVAL);
            }
            if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
                init.pd = (*at).pd;
                init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            }
            let srq = verbs::create_srq_ex((*at).verbs, init);
            if srq.is_null() {
                return Err(Errno::last());
            }
            ((*at).srq, (*at).pd) = (srq, init.pd);
        }
        Ok(MinusOne(0))
    }

    /// `rdma_destroy_srq(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live, and its shared receive queue used no more.
    pub(crate) fn destroy(id: *mut rdma_cm_id) {
        // SAFETY: by the contract above.
        unsafe {
            let at = Id::of(id)?.as_c();
            if !(*at).srq.is_null() {
                verbs::ibv_destroy_srq((*at).srq);
                (*at).srq = null_mut();
            }
        }
        Ok(())
    }
}
