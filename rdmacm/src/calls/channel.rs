//! `rdma_create_event_channel(3)`, `rdma_get_cm_event(3)`, `rdma_ack_cm_event(3)`.
//! Entry points that take events from channels and perform the actions that events require.

use crate::calls::qp;
use crate::channel::{Channel, Deed, Ends, Event};
use crate::id::{Id, Side, Stage};
use crate::kernel;
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
        Ok(Channel::new()?.into_c())
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
        unsafe { give_back(event) };
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
        if id.side() == Side::Kernel {
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
    let (ends, fd) = unsafe { Channel::ends_of(channel) };
    loop {
        let came = match wait(ends, fd) {
            Ok(came) => came,
            Err(why) => return MinusOne::fail(why),
        };
        let got = boundary(|| {
            // SAFETY: the channel is live; `event` is writable.
            unsafe {
                let Some(taken) = take(&Channel::of(channel), &came) else {
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
enum Came {
    /// The count of one event in the library's queue.
    Own,
    /// An event of the kernel.
    Kernels(Box<rdma_ucm_event_resp>),
}

/// Waits for an event, unless the descriptor `fd` is non-blocking.
fn wait(ends: Ends, fd: c_int) -> Result<Came, Errno> {
    match ends {
        Ends::Own(bell) => number(bell),
        Ends::Kernel(kernel) => {
            kernel::next_event(kernel).map(|said| Came::Kernels(Box::new(said)))
        }
        Ends::Both(bell, kernel) => loop {
            let either = number(bell).or_else(|why| match why {
                Errno::EAGAIN => {
                    kernel::next_event(kernel).map(|said| Came::Kernels(Box::new(said)))
                }
                why => Err(why),
            });
            // SAFETY: fcntl has no memory requirements here.
            let sleeps = || unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_NONBLOCK == 0;
            match either {
                Err(Errno::EAGAIN) if sleeps() => {
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
fn number(bell: c_int) -> Result<Came, Errno> {
    let mut count = 0_u64;
    // SAFETY: the eight bytes of `count` are writable.
    let got = unsafe { read(bell, (&raw mut count).cast(), 8) };
    if got == 8 { Ok(Came::Own) } else { Err(Errno::last()) }
}

/// The next event of the own channel of a synchronous id.
///
/// # Errors
/// The errno of the descriptor.
pub(crate) fn next(channel: &Arc<Channel>) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: the channel is live while it is borrowed.
    let (ends, fd) = unsafe { Channel::ends_of(channel.as_c()) };
    loop {
        let came = match wait(ends, fd) {
            Ok(came) => came,
            // For a kernel channel, the caller gets EINTR, as from upstream's library.
            Err(Errno::EINTR) if !matches!(ends, Ends::Kernel(_)) => continue,
            Err(why) => return Err(why),
        };
        if let Some(event) = take(channel, &came) {
            return Ok(event);
        }
    }
}

/// The next event of a non-blocking channel that only this library reads; `None` without one.
pub(crate) fn next_now(channel: &Arc<Channel>) -> Option<*mut rdma_cm_event> {
    // SAFETY: the channel is live while it is borrowed.
    let (ends, _) = unsafe { Channel::ends_of(channel.as_c()) };
    loop {
        let came = match ends {
            Ends::Own(_) | Ends::Both(..) if !channel.is_empty() => {
                channel.discount();
                Came::Own
            }
            Ends::Own(_) => return None,
            Ends::Both(_, fd) | Ends::Kernel(fd) => {
                Came::Kernels(Box::new(kernel::next_event(fd).ok()?))
            }
        };
        if let Some(event) = take(channel, &came) {
            return Some(event);
        }
    }
}

/// Frees an event that the program has acknowledged.
///
/// # Safety
/// `event` is from this library, and is freed once.
pub(crate) unsafe fn give_back(event: *mut rdma_cm_event) {
    // SAFETY: `take` made the pointer from a box.
    let event = unsafe { Box::from_raw(event.cast::<Event>()) };
    if let Some(group) = &event.group {
        group.acknowledge();
    }
    let channel = Arc::clone(&event.counts_for.lock().channel);
    channel.note_acknowledged();
    event.counts_for.acknowledge((&raw const event.verbs).addr());
}

/// Takes an event for the program, and performs its pending action.
fn take(channel: &Arc<Channel>, came: &Came) -> Option<*mut rdma_cm_event> {
    if let Came::Kernels(said) = came {
        return kernel::event::take(said).map(|event| {
            event.counts_for.hand_out(&raw const event.verbs, event.verbs.event);
            Box::into_raw(event).cast()
        });
    }
    let mut event = channel.pop()?;
    let id = Arc::clone(&event.counts_for);
    match std::mem::take(&mut event.deed) {
        Deed::None => {}
        Deed::Ready => ready(&id, &mut event),
        Deed::Taken => {
            if let Some(new) = event.brings.take().and_then(crate::id::Held::give) {
                let state = new.lock();
                let (place, connection) = (state.place, state.connection);
                drop(state);
                // If the device has no agent, the connection does not exist any more.
                let _gone = Id::carried(place, |_, carried| {
                    if let Some(connection) = connection {
                        carried.manager.taken(connection);
                    }
                    Ok(())
                });
            }
        }
        Deed::Joined => super::multicast::attach(&id, &mut event),
    }
    if event.verbs.event == RDMA_CM_EVENT_REJECTED {
        qp::fail(&id);
    }
    id.lock().reported += 1;
    id.hand_out(&raw const event.verbs, event.verbs.event);
    Some(Box::into_raw(event).cast())
}

/// Handles an accepted connection: sets the queue pair up and sends RTU, if the id has a queue
/// pair. The work is done here, not when the REP arrives: rdma_get_cm_event(3) reports ESTABLISHED
/// for an id with a queue pair, and upstream's library changes the queue pair at the same point.
fn ready(id: &Arc<Id>, event: &mut Event) {
    // SAFETY: the program changes the member only by calls that it does not make concurrently.
    if unsafe { (*id.as_c()).qp.is_null() } {
        return;
    }
    let done = qp::set_up(id).and_then(|()| super::connect::say_ready(id));
    match done {
        Ok(()) => {
            event.verbs.event = RDMA_CM_EVENT_ESTABLISHED;
            id.lock().stage = Stage::Connected;
        }
        Err(why) => {
            event.verbs.event = RDMA_CM_EVENT_CONNECT_ERROR;
            event.verbs.status = -why.raw();
            super::connect::turn_down(id);
            qp::fail(id);
        }
    }
}

/// Frees the last event, which a synchronous id keeps.
///
/// # Safety
/// `id` is live, and no other thread uses it now.
pub(crate) unsafe fn give_back_kept(id: *mut rdma_cm_id) {
    // SAFETY: by the contract above; `event` is NULL or an event of this library that was not
    // freed.
    unsafe {
        if !(*id).event.is_null() {
            give_back((*id).event);
            (*id).event = null_mut();
        }
    }
}
