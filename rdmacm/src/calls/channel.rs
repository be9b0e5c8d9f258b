//! `rdma_create_event_channel(3)`, `rdma_get_cm_event(3)`, `rdma_ack_cm_event(3)`.
//! Entry points that take events from channels and perform the actions that events require.

use crate::core::channel::{Channel, Event, EventSource, PendingAction};
use crate::core::id::{Backend, Id};
use crate::kernel;
use crate::sys::descriptors;
use abi::*;
use cface::{Errno, MinusOne, Ret, boundary, verb};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

verb! {
    /// `rdma_create_event_channel(3)`.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn create() -> *mut rdma_event_channel {
        Ok(kernel::channel::new()?.into_c())
    }

    /// `rdma_destroy_event_channel(3)`.
    ///
    /// # Safety
    /// `channel` is NULL or live, without ids, and not used afterwards.
    pub(crate) fn destroy(channel: *mut rdma_event_channel) {
        if !channel.is_null() {
            // SAFETY: by the contract above.
            unsafe { Channel::drop_c(channel) };
        }
        Ok(())
    }

    /// `rdma_ack_cm_event(3)`.
    ///
    /// # Safety
    /// `event` is NULL or from `rdma_get_cm_event(3)`, and is acknowledged once.
    pub(crate) fn ack(event: *mut rdma_cm_event) -> MinusOne {
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: by the contract above.
        unsafe { free_event(event) };
        Ok(MinusOne(0))
    }

    /// `rdma_write_cm_event(3)`: appends an event of the program.
    ///
    /// # Safety
    /// `id` is NULL or live.
    pub(crate) fn write(
        id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        arg: u64,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        let id = unsafe { Id::of(id)? };
        if event != RDMA_CM_EVENT_USER {
            return Err(Errno::EINVAL);
        }
        if id.backend() == Backend::Kernel {
            kernel::id::write_event(&id, event, status, arg)?;
            return Ok(MinusOne(0));
        }
        let mut said = Event::new(&id, event, status);
        said.verbs.param.arg = arg;
        id.push(said);
        Ok(MinusOne(0))
    }
}

unsafe extern "C-unwind" {
    /// `read(2)`, from which a cancelled thread unwinds.
    fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize;
    /// `poll(2)`, from which a cancelled thread unwinds.
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// `rdma_get_cm_event(3)`: `EAGAIN` on a non-blocking descriptor without events.
///
/// No `verb!`: a thread that sleeps here may be cancelled, and then unwinds as from read(2).
///
/// # Safety
/// `channel` is NULL or live; `event` is NULL or writable.
pub(crate) unsafe extern "C-unwind" fn get(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> MinusOne {
    if channel.is_null() || event.is_null() {
        return MinusOne::fail(Errno::EINVAL);
    }
    // SAFETY: the channel is live.
    let (source, fd) = unsafe { Channel::source_of(channel) };
    loop {
        let arrival = match wait(source, fd) {
            Ok(arrival) => arrival,
            Err(why) => return MinusOne::fail(why),
        };
        let got = boundary(|| {
            // SAFETY: the channel is live; `event` is writable.
            unsafe {
                let Some(taken) = take(&Channel::of(channel), &arrival) else {
                    return Ok(MinusOne(1));
                };
                *event = taken;
            }
            Ok(MinusOne(0))
        });
        // The event was discarded between the two calls, or belongs to no id.
        if got != MinusOne(1) {
            return got;
        }
    }
}

/// An arrival from one of the event sources.
enum Arrival {
    /// The count of one event in the library's queue.
    Queue,
    /// An event of the kernel.
    Kernel(Box<rdma_ucm_event_resp>),
}

/// Waits for an event, unless the descriptor `fd` is non-blocking.
fn wait(source: EventSource, fd: c_int) -> Result<Arrival, Errno> {
    match source {
        EventSource::Queue(eventfd) => take_count(eventfd),
        EventSource::Kernel(kernel) => {
            kernel::next_event(kernel).map(|said| Arrival::Kernel(Box::new(said)))
        }
        EventSource::Both(eventfd, kernel) => loop {
            let either = take_count(eventfd).or_else(|why| match why {
                Errno::EAGAIN => {
                    kernel::next_event(kernel).map(|said| Arrival::Kernel(Box::new(said)))
                }
                why => Err(why),
            });
            match either {
                // A channel that another thread destroyed meanwhile has a closed descriptor: EBADF.
                Err(Errno::EAGAIN) if !descriptors::is_nonblocking(fd)? => {
                    let mut watched = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    // SAFETY: `watched` is one entry.
                    if unsafe { poll(&raw mut watched, 1, -1) } < 0 {
                        return Err(Errno::last());
                    }
                }
                done => return done,
            }
        },
    }
}

/// Takes the count of one event from the eventfd.
fn take_count(eventfd: c_int) -> Result<Arrival, Errno> {
    let mut count = 0_u64;
    // SAFETY: the eight bytes of `count` are writable.
    let got = unsafe { read(eventfd, (&raw mut count).cast(), 8) };
    if got == 8 { Ok(Arrival::Queue) } else { Err(Errno::last()) }
}

/// The next event of the own channel of a synchronous id.
///
/// # Errors
/// The errno of the descriptor.
pub(crate) fn next(channel: &Arc<Channel>) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: the channel is live while it is borrowed.
    let (source, fd) = unsafe { Channel::source_of(channel.as_c()) };
    loop {
        let arrival = match wait(source, fd) {
            Ok(arrival) => arrival,
            // For a kernel channel, the caller gets EINTR, as from upstream's library.
            Err(Errno::EINTR) if !matches!(source, EventSource::Kernel(_)) => continue,
            Err(why) => return Err(why),
        };
        if let Some(event) = take(channel, &arrival) {
            return Ok(event);
        }
    }
}

/// The next event of a non-blocking channel that only this library reads; `None` without one.
pub(crate) fn try_next(channel: &Arc<Channel>) -> Option<*mut rdma_cm_event> {
    // SAFETY: the channel is live while it is borrowed.
    let (source, _) = unsafe { Channel::source_of(channel.as_c()) };
    loop {
        let arrival = match source {
            EventSource::Queue(_) | EventSource::Both(..) if !channel.is_empty() => {
                channel.take_count();
                Arrival::Queue
            }
            EventSource::Queue(_) => return None,
            EventSource::Both(_, fd) | EventSource::Kernel(fd) => {
                Arrival::Kernel(Box::new(kernel::next_event(fd).ok()?))
            }
        };
        if let Some(event) = take(channel, &arrival) {
            return Some(event);
        }
    }
}

/// Frees an event that the program has acknowledged.
///
/// # Safety
/// `event` is from this library, and is freed once.
pub(crate) unsafe fn free_event(event: *mut rdma_cm_event) {
    // SAFETY: `take` made the pointer from a box.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    if let Some(group) = &event.group {
        group.acknowledge();
    }
    let channel = Arc::clone(&event.awaits_ack.lock().channel);
    channel.note_acknowledged();
    event.awaits_ack.acknowledge((&raw const event.verbs).addr());
}

/// Takes an event for the program, and performs its pending action.
fn take(channel: &Arc<Channel>, arrival: &Arrival) -> Option<*mut rdma_cm_event> {
    if let Arrival::Kernel(said) = arrival {
        return kernel::event::take(said).map(|event| {
            event.awaits_ack.record_delivery(&raw const event.verbs, event.verbs.event);
            Box::into_raw(event).cast()
        });
    }
    let mut event = channel.pop()?;
    let id = Arc::clone(&event.awaits_ack);
    match std::mem::take(&mut event.action) {
        PendingAction::None => {}
        PendingAction::SetUpQp => complete_connection(&id, &mut event),
        PendingAction::LeaveBacklog => {
            if let Some(new) =
                event.undelivered.take().and_then(crate::core::id::UndeliveredId::release)
            {
                let state = new.lock();
                let (local, connection) = (state.local, state.stage.connection());
                drop(state);
                // If the device has no agent, the connection does not exist any more.
                let _gone = Id::with_agent(local, |_, agent_state| {
                    if let Some(connection) = connection {
                        agent_state.manager.taken(connection);
                    }
                    Ok(())
                });
            }
        }
        PendingAction::AttachGroup => super::multicast::attach(&id, &mut event),
    }
    if event.verbs.event == RDMA_CM_EVENT_REJECTED {
        kernel::qp::fail(&id);
    }
    id.lock().delivered_count += 1;
    id.record_delivery(&raw const event.verbs, event.verbs.event);
    Some(Box::into_raw(event).cast())
}

/// Handles an accepted connection: sets the queue pair up and sends RTU, if the id has a queue
/// pair. The work is done here, not when the REP arrives: rdma_get_cm_event(3) reports ESTABLISHED
/// for an id with a queue pair, and upstream's library changes the queue pair at the same point.
fn complete_connection(id: &Arc<Id>, event: &mut Event) {
    // SAFETY: the program changes the member only by calls that it does not make concurrently.
    if unsafe { (*id.as_c()).qp.is_null() } {
        return;
    }
    let done = kernel::qp::set_up(id).and_then(|()| super::connect::send_ready(id));
    match done {
        Ok(()) => {
            event.verbs.event = RDMA_CM_EVENT_ESTABLISHED;
            id.lock().set_connected();
        }
        Err(why) => {
            event.verbs.event = RDMA_CM_EVENT_CONNECT_ERROR;
            event.verbs.status = -why.raw();
            super::connect::reject_after_failure(id);
            kernel::qp::fail(id);
        }
    }
}

/// Frees the last event, which a synchronous id keeps.
///
/// # Safety
/// `id` is live, and no other thread uses it now.
pub(crate) unsafe fn free_kept_event(id: *mut rdma_cm_id) {
    // SAFETY: by the contract above; `event` is NULL or an event of this library that was not
    // freed.
    unsafe {
        if !(*id).event.is_null() {
            free_event((*id).event);
            (*id).event = null_mut();
        }
    }
}
