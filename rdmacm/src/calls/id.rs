//! `rdma_create_id(3)`, `rdma_destroy_id(3)`, `rdma_migrate_id(3)`.
//! Entry points that create, move and end ids.

use crate::core::c_objects::{channel_of, give_id, id_of, take_id_back};
use crate::core::channel::Channel;
use crate::core::id::{Backend, Id};
use crate::kernel;
use abi::*;
use cface::{Errno, MinusOne, verb};
use std::ffi::c_void;
use std::sync::Arc;

/// The queue pair type of a port space.
///
/// # Errors
/// `EPROTONOSUPPORT` the port space is unknown.
pub(crate) const fn type_of(ps: rdma_port_space) -> Result<ibv_qp_type, Errno> {
    match ps {
        RDMA_PS_TCP | RDMA_PS_IB => Ok(IBV_QPT_RC),
        RDMA_PS_UDP | RDMA_PS_IPOIB => Ok(IBV_QPT_UD),
        _ => Err(Errno::EPROTONOSUPPORT),
    }
}

/// A new id. Without a channel, the id gets its own and is synchronous.
///
/// # Errors
/// `ENODEV` no device is present; else the errno of the system.
pub(crate) fn create_id(
    channel: Option<Arc<Channel>>,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<Arc<Id>, Errno> {
    crate::core::device::present()?;
    let synchronous = channel.is_none();
    let channel = match channel {
        Some(channel) => channel,
        None => kernel::channel::new()?,
    };
    channel.refuse_inherited()?;
    let backend = channel.backend();
    let id = Id::with_backend(kernel::backend(backend), channel, synchronous, context, ps, qp_type);
    if backend != Backend::Soft {
        kernel::id::create(&id)?;
    }
    Ok(id)
}

/// The channel of a program; `None` for NULL.
///
/// # Safety
/// `channel` is NULL or live.
unsafe fn program_channel(channel: *mut rdma_event_channel) -> Option<Arc<Channel>> {
    // SAFETY: by the contract above.
    (!channel.is_null()).then(|| unsafe { channel_of(channel) })
}

verb! {
    /// `rdma_create_id(3)`.
    ///
    /// # Safety
    /// `channel` is NULL or live; `id` is NULL or writable.
    pub(crate) fn create(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> MinusOne {
        if id.is_null() {
            return Err(Errno::EINVAL);
        }
        cface::reserve::admit()?;
        // SAFETY: by the contract above.
        unsafe {
            *id = give_id(create_id(program_channel(channel), context, ps, type_of(ps)?)?);
        }
        Ok(MinusOne(0))
    }

    /// `rdma_destroy_id(3)`: waits until the program has acknowledged all events of the id that it
    /// took.
    ///
    /// # Safety
    /// `id` is NULL or live, and not used afterwards.
    pub(crate) fn destroy(id: *mut rdma_cm_id) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe { destroy_for(id, "rdma_destroy_id") }
    }

    /// `rdma_migrate_id(3)`: pending events move too; without a channel the id becomes synchronous.
    ///
    /// # Safety
    /// `id` is NULL or live; `channel` is NULL or live.
    pub(crate) fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> MinusOne {
        // SAFETY: by the contract above.
        let (id, channel) = unsafe { (id_of(id)?, program_channel(channel)) };
        migrate_to(&id, channel)?;
        Ok(MinusOne(0))
    }
}

/// Moves an id to a channel; `None`: the id becomes synchronous, with a channel of its own.
///
/// # Errors
/// As `rdma_migrate_id(3)`.
pub(crate) fn migrate_to(id: &Arc<Id>, channel: Option<Arc<Channel>>) -> Result<(), Errno> {
    let synchronous = channel.is_none();
    let (backend, was) = (id.backend(), id.lock().synchronous);
    if backend != Backend::Soft && synchronous && was {
        return Err(Errno::EINVAL);
    }
    let to = match channel {
        Some(channel) => channel,
        None => kernel::channel::new()?,
    };
    to.refuse_inherited()?;
    let kernel_count = if kernel::event::is_there(id) { kernel::id::migrate(id, &to)? } else { 0 };
    super::channel::free_kept_event(id);
    move_to(id, to, synchronous, ("rdma_migrate_id", kernel_count));
    Ok(())
}

/// Destroys an id for the program's call `call`.
///
/// # Errors
/// `EINVAL` NULL; else the errno of the kernel.
///
/// # Safety
/// As `rdma_destroy_id(3)`.
pub(crate) unsafe fn destroy_for(id: *mut rdma_cm_id, call: &str) -> Result<MinusOne, Errno> {
    // SAFETY: by the contract above.
    end(&unsafe { id_of(id)? }, call)?;
    // SAFETY: the count of the program.
    drop(unsafe { take_id_back(id) });
    Ok(MinusOne(0))
}

/// Ends an id that no call uses any more; the caller drops the count of the program.
///
/// # Errors
/// The errno of the kernel.
pub(crate) fn end(id: &Arc<Id>, call: &str) -> Result<(), Errno> {
    let kernel_count = if kernel::event::is_there(id) { kernel::id::destroy(id)? } else { 0 };
    kernel::multicast::forget_all(id);
    super::multicast::leave_all(id);
    id.shut_down();
    super::channel::free_kept_event(id);
    id.wait_for_acknowledgements(call, kernel_count);
    Ok(())
}

/// Moves an id and its pending events to `channel`, for a call of the program; `kernel_count` is
/// the number of events that the kernel has delivered.
pub(crate) fn move_to(
    id: &Arc<Id>,
    channel: Arc<Channel>,
    synchronous: bool,
    (call, kernel_count): (&str, u64),
) {
    {
        let mut state = id.lock();
        state.synchronous = synchronous;
        id.c().set_channel(&channel);
        for event in state.channel.remove_events(|event| Arc::ptr_eq(&event.awaits_ack, id)) {
            channel.push(event);
        }
        state.channel = channel;
    }
    id.wait_for_acknowledgements(call, kernel_count);
}
