//! `rdma_create_event_channel(3)`, `rdma_get_cm_event(3)`, `rdma_ack_cm_event(3)`.
//! Entry points that take events from channels and perform the actions that events require.

use crate::core::c_objects::{
    channel_of, give_channel, give_event, id_of, source_of, take_channel_back, take_event_back,
};
use crate::core::channel::{Channel, Event, EventSource, PendingAction};
use crate::core::id::{Backend, Id};
use crate::kernel;
use crate::sys::descriptors;
use abi::*;
use cface::{Errno, MinusOne, Ret, boundary, verb};
use probe::probe;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

verb! {
    /// `rdma_create_event_channel(3)`.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn create() -> *mut rdma_event_channel {
        Ok(give_channel(kernel::channel::new()?))
    }

    /// `rdma_destroy_event_channel(3)`.
    ///
    /// # Safety
    /// `channel` is NULL or live, without ids, and not used afterwards.
    pub(crate) fn destroy(channel: *mut rdma_event_channel) {
        if !channel.is_null() {
            // SAFETY: by the contract above.
            unsafe { take_channel_back(channel) }.end();
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
        let event = unsafe { take_event_back(event) };
        acknowledge(&event);
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
        let id = unsafe { id_of(id)? };
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
    let (source, fd) = unsafe { source_of(channel) };
    loop {
        let arrival = match wait(source, fd) {
            Ok(arrival) => arrival,
            Err(why) => return MinusOne::fail(why),
        };
        let got = boundary(|| {
            // SAFETY: the channel is live; `event` is writable.
            unsafe {
                let Some(taken) = deliver_event(&channel_of(channel), &arrival) else {
                    return Ok(MinusOne(1));
                };
                *event = give_event(taken);
                let taken = &**event;
                probe!(librdmacm, event, taken.id, taken.event, taken.status);
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
pub(crate) fn next(channel: &Arc<Channel>) -> Result<Box<Event>, Errno> {
    let (source, fd) = channel.source();
    loop {
        let arrival = match wait(source, fd) {
            Ok(arrival) => arrival,
            // For a kernel channel, the caller gets EINTR, as from upstream's library.
            Err(Errno::EINTR) if !matches!(source, EventSource::Kernel(_)) => continue,
            Err(why) => return Err(why),
        };
        if let Some(event) = deliver_event(channel, &arrival) {
            return Ok(event);
        }
    }
}

/// The next event of a non-blocking channel that only this library reads; `None` without one.
pub(crate) fn try_next(channel: &Arc<Channel>) -> Option<Box<Event>> {
    let (source, _) = channel.source();
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
        if let Some(event) = deliver_event(channel, &arrival) {
            return Some(event);
        }
    }
}

/// Counts the acknowledgement of an event, which the caller drops.
pub(crate) fn acknowledge(event: &Event) {
    if let Some(group) = &event.group {
        group.acknowledge();
    }
    let channel = Arc::clone(&event.awaits_ack.lock().channel);
    channel.note_acknowledged();
    event.awaits_ack.acknowledge(std::ptr::from_ref(&*event.verbs).addr());
}

/// Takes an event for the program, and performs its pending action.
fn deliver_event(channel: &Arc<Channel>, arrival: &Arrival) -> Option<Box<Event>> {
    if let Arrival::Kernel(said) = arrival {
        return kernel::event::convert_event(said).inspect(|event| {
            event.awaits_ack.record_delivery(&event.verbs, event.verbs.event);
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
                        agent_state.manager.remove_from_backlog(connection);
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
    id.record_delivery(&event.verbs, event.verbs.event);
    Some(event)
}

/// Handles an accepted connection: sets the queue pair up and sends RTU, if the id has a queue
/// pair. The work is done here, not when the REP arrives: rdma_get_cm_event(3) reports ESTABLISHED
/// for an id with a queue pair, and upstream's library changes the queue pair at the same point.
fn complete_connection(id: &Arc<Id>, event: &mut Event) {
    if !id.c().has_qp() {
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

/// Frees the last event, which a synchronous id keeps. One thread at a time uses such an id.
pub(crate) fn free_kept_event(id: &Id) {
    if let Some(event) = id.c().replace_event(None) {
        acknowledge(&event);
    }
}

/// For a synchronous id, waits for the event of the call, and keeps the event until the next call.
///
/// # Errors
/// The errno of the event or of waiting.
pub(crate) fn complete(id: &Arc<Id>) -> Result<MinusOne, Errno> {
    let state = id.lock();
    let (synchronous, channel) = (state.synchronous, Arc::clone(&state.channel));
    drop(state);
    if !synchronous {
        return Ok(MinusOne(0));
    }
    free_kept_event(id);
    let event = next(&channel)?;
    let (kind, status) = (event.verbs.event, event.verbs.status);
    id.c().replace_event(Some(event));
    match status {
        0 => Ok(MinusOne(0)),
        _ if kind == RDMA_CM_EVENT_REJECTED => Err(Errno::ECONNREFUSED),
        1.. => Err(Errno::EIO),
        _ => Err(Errno::from_raw(status.saturating_neg())),
    }
}
