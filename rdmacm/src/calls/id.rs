//! `rdma_create_id(3)`, `rdma_destroy_id(3)`, `rdma_migrate_id(3)`.
//! Entry points that create, move and end ids.

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
///
/// # Safety
/// `channel` is NULL or live.
pub(crate) unsafe fn make(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<Arc<Id>, Errno> {
    crate::core::device::present()?;
    let synchronous = channel.is_null();
    let channel = if synchronous {
        kernel::channel::new()?
    } else {
        // SAFETY: the channel is not NULL, and live by the contract above.
        unsafe { Channel::of(channel) }
    };
    channel.refuse_inherited()?;
    let backend = channel.backend();
    let id = Id::on(kernel::backend(backend), channel, synchronous, context, ps, qp_type);
    if backend != Backend::Soft {
        kernel::id::create(&id)?;
    }
    Ok(id)
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
            let made = make(channel, context, ps, type_of(ps)?)?;
            *id = Arc::into_raw(made).cast_mut().cast();
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
        // SAFETY: by the contract above; the kept event belongs to the id.
        unsafe {
            let object = Id::of(id)?;
            let synchronous = channel.is_null();
            let (backend, was) = (object.backend(), object.lock().synchronous);
            if backend != Backend::Soft && synchronous && was {
                return Err(Errno::EINVAL);
            }
            let to = if synchronous { kernel::channel::new()? } else { Channel::of(channel) };
            to.refuse_inherited()?;
            let kernel_count = if kernel::event::is_there(&object) { kernel::id::migrate(&object, &to)? } else { 0 };
            super::channel::free_kept_event(id);
            move_to(&object, to, synchronous, ("rdma_migrate_id", kernel_count));
        }
        Ok(MinusOne(0))
    }
}

/// Destroys an id for the program's call `call`.
///
/// # Errors
/// `EINVAL` NULL; else the errno of the kernel.
///
/// # Safety
/// As `rdma_destroy_id(3)`.
pub(crate) unsafe fn destroy_for(id: *mut rdma_cm_id, call: &str) -> Result<MinusOne, Errno> {
    // SAFETY: by the contract above; the kept event belongs to the id.
    unsafe {
        let object = Id::of(id)?;
        let kernel_count =
            if kernel::event::is_there(&object) { kernel::id::destroy(&object)? } else { 0 };
        kernel::multicast::forget_all(&object);
        super::multicast::leave_all(&object);
        object.shut_down();
        super::channel::free_kept_event(id);
        object.wait_for_acknowledgements(call, kernel_count);
        // The count of the program.
        drop(Arc::from_raw(id.cast::<Id>().cast_const()));
    }
    Ok(MinusOne(0))
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
        // SAFETY: the program does not read the member during this call.
        unsafe { (*id.as_c()).channel = channel.as_c() };
        for event in state.channel.remove_events(|event| Arc::ptr_eq(&event.awaits_ack, id)) {
            channel.push(event);
        }
        state.channel = channel;
    }
    id.wait_for_acknowledgements(call, kernel_count);
}
