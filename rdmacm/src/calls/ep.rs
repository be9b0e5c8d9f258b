//! Synchronous ids in one step: `rdma_create_ep(3)`, `rdma_destroy_ep(3)`, `rdma_get_request(3)`.
//! Entry points that combine those of the sibling modules.

use super::channel::complete;
use super::{channel, id as ids, options, qp, resolve};
use crate::core::c_objects::{QpTemplate, give_event, give_id, id_of};
use crate::core::id::Backend;
use crate::kernel;
use abi::*;
use cface::{Errno, MinusOne, verb};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

/// The time limit of address resolution, in milliseconds.
const RESOLVE_MS: c_int = 2000;

/// Binds or resolves an id as `info` states, and creates its queue pair.
///
/// # Safety
/// As `create`.
unsafe fn set_up_endpoint(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the id is live; addresses are readable; `pd` and `init` are the caller's.
    unsafe {
        let object = id_of(id)?;
        if info.ai_flags & RAI_PASSIVE != 0 {
            check_result(resolve::bind_addr(id, info.ai_src_addr))?;
            let template = init.as_ref().map(|init| QpTemplate { pd, init: *init });
            object.lock().template = template;
            return Ok(());
        }
        check_result(resolve::resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, RESOLVE_MS))?;
        // For soft, paths follow from the addresses.
        if info.ai_route_len > 0 && object.backend() == Backend::Kernel {
            let (at, len) = (info.ai_route, info.ai_route_len);
            check_result(options::set(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, at, len))?;
            complete(&object)?;
        } else {
            check_result(resolve::resolve_route(id, RESOLVE_MS))?;
        }
        if let Some(init) = init.as_mut() {
            init.qp_type = (*id).qp_type;
            check_result(qp::create_c(id, pd, init))?;
        }
        if !info.ai_connect.is_null() {
            let bytes =
                std::slice::from_raw_parts(info.ai_connect.cast::<u8>(), info.ai_connect_len);
            object.lock().private_prefix = bytes.to_vec();
        }
        Ok(())
    }
}

/// The result of an own entry point.
fn check_result(returned: MinusOne) -> Result<(), Errno> {
    if returned == MinusOne(0) { Ok(()) } else { Err(Errno::last()) }
}

verb! {
    /// `rdma_create_ep(3)`.
    ///
    /// # Safety
    /// `id` is NULL or writable; `info` is NULL or readable, with its objects; `pd` is NULL or
    /// live; `init` is NULL, or readable and writable.
    pub(crate) fn create(
        id: *mut *mut rdma_cm_id,
        info: *mut rdma_addrinfo,
        pd: *mut ibv_pd,
        init: *mut ibv_qp_init_attr,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            let info = info.as_ref().ok_or(Errno::EINVAL)?;
            if id.is_null() {
                return Err(Errno::EINVAL);
            }
            cface::reserve::admit()?;
            let (space, kind) = (info.ai_port_space.cast_unsigned(), info.ai_qp_type.cast_unsigned());
            let new = give_id(ids::create_id(None, null_mut(), space, kind)?);
            if let Err(why) = set_up_endpoint(new, info, pd, init) {
                destroy(new);
                return Err(why);
            }
            *id = new;
        }
        Ok(MinusOne(0))
    }

    /// `rdma_destroy_ep(3)`: destroys the id with its queue pair and shared receive queue.
    ///
    /// # Safety
    /// `id` is NULL or live, and not used afterwards.
    pub(crate) fn destroy(id: *mut rdma_cm_id) {
        // SAFETY: by the contract above.
        unsafe {
            qp::destroy(&id_of(id)?);
            qp::destroy_srq(id);
            ids::destroy_for(id, "rdma_destroy_ep")?;
        }
        Ok(())
    }

    /// `rdma_get_request(3)`: waits for a request. The new id has a channel of its own.
    ///
    /// # Safety
    /// `listen` is NULL or live; `id` is NULL or writable.
    pub(crate) fn get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> MinusOne {
        // SAFETY: by the contract above; one thread at a time uses a synchronous id.
        unsafe {
            let owner = id_of(listen)?;
            if id.is_null() || !owner.lock().synchronous {
                return Err(Errno::EINVAL);
            }
            channel::free_kept_event(&owner);
            let own = Arc::clone(&owner.lock().channel);
            let event = channel::next(&own)?;
            let (kind, status, new) = (event.verbs.event, event.verbs.status, event.verbs.id);
            if kind != RDMA_CM_EVENT_CONNECT_REQUEST {
                channel::acknowledge(&event);
                return Err(Errno::from_raw(status.saturating_neg()));
            }
            let object = id_of(new)?;
            // The kernel's id moved to a new channel when its event arrived.
            if object.backend() != Backend::Kernel {
                ids::move_to(&object, kernel::channel::new()?, true, ("rdma_get_request", 0));
            }
            let template = owner.lock().template;
            if let Some(QpTemplate { pd, mut init }) = template {
                init.qp_type = object.qp_type();
                if let Err(why) = qp::create(&object, &mut qp::extended(&init, pd)) {
                    channel::acknowledge(&event);
                    ids::destroy(new);
                    return Err(why);
                }
            }
            (*new).event = give_event(event);
            *id = new;
        }
        Ok(MinusOne(0))
    }
}
