//! Options of ids, event names and ECE: `rdma_set_option(3)`, `rdma_event_str(3)`.
//! Entry points that change settings of an id.

use crate::core::c_objects::id_of;
use crate::core::event_names;
use crate::core::id::{Backend, Id, RdmaIdState, Stage};
use crate::kernel;
use crate::sys::random;
use abi::*;
use cface::{Errno, MinusOne, verb};
use std::ffi::{c_char, c_int, c_void};

/// Reads the value of an option.
///
/// # Errors
/// `EINVAL` NULL, or another length.
fn value<const N: usize>(value: Option<&[u8]>) -> Result<[u8; N], Errno> {
    value.and_then(|value| value.try_into().ok()).ok_or(Errno::EINVAL)
}

/// Sets an option to a value of the program; `None`: NULL with the length `len`.
///
/// # Errors
/// As `rdma_set_option(3)`.
pub(crate) fn set_value(
    id: &Id,
    (level, name): (c_int, c_int),
    given: Option<&[u8]>,
    len: usize,
) -> Result<(), Errno> {
    let backend = id.backend();
    if backend != Backend::Soft {
        kernel::id::set_option(id, (level, name), given, len)?;
    }
    if backend == Backend::Kernel {
        return Ok(());
    }
    let mut state = id.lock();
    match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => [state.type_of_service] = value(given)?,
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
            share_address(&mut state, c_int::from_ne_bytes(value(given)?) != 0)?;
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
            keep_to_own_family(&mut state, c_int::from_ne_bytes(value(given)?) != 0)?;
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            let [timeout] = value(given)?;
            // As the kernel (`rdma_set_ack_timeout`): other transports have no acknowledgement
            // timeout.
            if ![IBV_QPT_RC, IBV_QPT_XRC_SEND].contains(&id.qp_type()) {
                return Err(Errno::EINVAL);
            }
            state.ack_timeout = Some(timeout.min(31));
        }
        _ => return Err(Errno::ENOSYS),
    }
    Ok(())
}

/// Sets whether other ids may have the same binding. A bound id can only allow sharing, and a
/// listener cannot change the setting, as with the kernel (`rdma_set_reuseaddr` in Linux'
/// `drivers/infiniband/core/cma.c`).
///
/// # Errors
/// `EINVAL` the id's stage allows no change; else the errno of the system.
fn share_address(state: &mut RdmaIdState, shares: bool) -> Result<(), Errno> {
    if !matches!(state.stage, Stage::Idle)
        && (!shares || matches!(state.stage, Stage::Listening(_)))
    {
        return Err(Errno::EINVAL);
    }
    if let Some(port) = &mut state.port {
        port.share(random::number())?;
    }
    state.shares_address = shares;
    Ok(())
}

/// Sets whether an IPv6 wildcard excludes IPv4 (`rdma_set_afonly`).
///
/// # Errors
/// `EINVAL` the id's stage allows no change; else the errno of the system.
fn keep_to_own_family(state: &mut RdmaIdState, only: bool) -> Result<(), Errno> {
    if !matches!(state.stage, Stage::Idle | Stage::Bound) {
        return Err(Errno::EINVAL);
    }
    if let Some(port) = &mut state.port {
        port.keep_to_own_family(only, random::number())?;
    }
    state.only_own_family = only;
    Ok(())
}

verb! {
    /// `rdma_set_option(3)`: `ENOSYS` for an unknown option.
    ///
    /// # Safety
    /// `id` is NULL or live; `option` is NULL or has `len` readable bytes.
    pub(crate) fn set(
        id: *mut rdma_cm_id,
        level: c_int,
        name: c_int,
        option: *mut c_void,
        len: usize,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, given) = unsafe {
            let given = std::ptr::NonNull::new(option.cast::<u8>());
            let given = given.map(|at| std::slice::from_raw_parts(at.as_ptr(), len));
            (id_of(id)?, given)
        };
        set_value(&id, (level, name), given, len)?;
        Ok(MinusOne(0))
    }

    /// `rdma_set_local_ece(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `ece` is NULL or readable.
    pub(crate) fn set_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, ece) = unsafe { (id_of(id)?, *ece.as_ref().ok_or(Errno::EINVAL)?) };
        if id.c().has_qp() || ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        id.lock().ece = ece;
        Ok(MinusOne(0))
    }

    /// `rdma_get_remote_ece(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `ece` is NULL or writable.
    pub(crate) fn get_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            let id = id_of(id)?;
            let ece = ece.as_mut().ok_or(Errno::EINVAL)?;
            if id.c().has_qp() {
                return Err(Errno::EINVAL);
            }
            let known = id.lock().peer_ece;
            *ece = ibv_ece { comp_mask: 0, ..known };
        }
        Ok(MinusOne(0))
    }
}

/// `rdma_event_str(3)`.
///
/// # Safety
/// No requirements.
pub(crate) unsafe extern "C" fn event_str(event: rdma_cm_event_type) -> *const c_char {
    event_names::name(event).as_ptr()
}
