//! Event channels: `rdma_create_event_channel(3)`, `rdma_get_cm_event(3)`.
//! Ids push events here; `calls::channel` takes events out.
//!
//! The descriptor is an eventfd that counts the events of the queue, so poll, epoll and
//! `O_NONBLOCK` work as programs expect. With kernel devices only, the descriptor is the kernel's
//! connection manager. With both kinds of devices, the descriptor is an epoll(7) set of the two.

use crate::core::c_objects::CEvent;
use crate::core::device;
use crate::core::id::{Backend, Id, UndeliveredId};
use crate::sys::{descriptors, process};
use abi::*;
use cface::Errno;
use cface::sync::Mutex;
use cface::thread;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An event channel. The C object is the first field.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Channel {
    verbs: rdma_event_channel,
    source: EventSource,
    /// The descriptors of both fields above, closed with the channel.
    _descriptors: Vec<OwnedFd>,
    /// The process that created the channel.
    process: i32,
    queue: Mutex<VecDeque<Box<Event>>>,
    /// The thread that last acknowledged an event of the channel, and the time.
    acknowledged: Mutex<Option<(thread::Id, Instant)>>,
}

/// The time that a thread takes at most from the end of `rdma_ack_cm_event(3)` to the next
/// `rdma_get_cm_event(3)`.
const RETURN_TIME: Duration = Duration::from_millis(1);

/// The sources of a channel's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventSource {
    /// The queue of this library, with its eventfd.
    Queue(i32),
    /// The kernel's connection manager.
    Kernel(i32),
    /// Both sources: the eventfd of the queue, then the kernel's descriptor. Both are non-blocking.
    Both(i32, i32),
}

impl Channel {
    /// A channel for ids on devices without a kernel driver.
    ///
    /// # Errors
    /// The errno of the system.
    pub(crate) fn soft() -> Result<Arc<Self>, Errno> {
        let eventfd = descriptors::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE)?;
        let fd = eventfd.as_raw_fd();
        Ok(Self::with_descriptors(fd, EventSource::Queue(fd), vec![eventfd]))
    }

    /// A channel for ids on kernel devices only, with the kernel's descriptor.
    pub(crate) fn of_kernel(kernel: OwnedFd) -> Arc<Self> {
        let fd = kernel.as_raw_fd();
        Self::with_descriptors(fd, EventSource::Kernel(fd), vec![kernel])
    }

    /// A channel for ids on both kinds of devices, with the kernel's descriptor.
    ///
    /// # Errors
    /// The errno of the system.
    pub(crate) fn with_kernel(kernel: OwnedFd) -> Result<Arc<Self>, Errno> {
        let flags = libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE | libc::EFD_NONBLOCK;
        let eventfd = descriptors::eventfd(0, flags)?;
        let set = descriptors::epoll()?;
        // The kernel's descriptor is of a character device, whose flags can be set.
        let _set = descriptors::set_nonblocking(kernel.as_raw_fd());
        for fd in [&eventfd, &kernel] {
            descriptors::epoll_add(set.as_raw_fd(), fd.as_raw_fd(), libc::EPOLLIN, 0)?;
        }
        let source = EventSource::Both(eventfd.as_raw_fd(), kernel.as_raw_fd());
        Ok(Self::with_descriptors(set.as_raw_fd(), source, vec![set, kernel, eventfd]))
    }

    fn with_descriptors(fd: i32, source: EventSource, descriptors: Vec<OwnedFd>) -> Arc<Self> {
        Arc::new(Self {
            verbs: rdma_event_channel { fd },
            source,
            _descriptors: descriptors,
            process: process::process(),
            queue: Mutex::default(),
            acknowledged: Mutex::default(),
        })
    }

    /// Refuses the channel of a parent in a child of fork(2): the child shares only the descriptor.
    /// A kernel-only channel consists of the descriptor alone, and is allowed.
    ///
    /// # Errors
    /// `ENODEV` the channel belongs to a parent process.
    pub(crate) fn refuse_inherited(&self) -> Result<(), Errno> {
        match self.source {
            EventSource::Kernel(_) => Ok(()),
            _ => device::refuse_inherited(self.process),
        }
    }

    /// The device owner of a new id of this channel.
    pub(crate) const fn backend(&self) -> Backend {
        match self.source {
            EventSource::Queue(_) => Backend::Soft,
            EventSource::Kernel(_) => Backend::Kernel,
            EventSource::Both(..) => Backend::Undecided,
        }
    }

    /// The kernel's descriptor; -1 without kernel devices.
    pub(crate) const fn kernel_fd(&self) -> i32 {
        match self.source {
            EventSource::Queue(_) => -1,
            EventSource::Kernel(fd) | EventSource::Both(_, fd) => fd,
        }
    }

    /// The eventfd of the queue.
    pub(crate) const fn eventfd(&self) -> i32 {
        match self.source {
            EventSource::Queue(fd) | EventSource::Both(fd, _) => fd,
            EventSource::Kernel(_) => -1,
        }
    }

    /// The descriptor that is readable while events wait.
    pub(crate) const fn fd(&self) -> i32 {
        self.verbs.fd
    }

    /// Makes rdma_get_cm_event(3) non-blocking for a kernel-only channel.
    pub(crate) fn make_nonblocking(&self) {
        if let EventSource::Kernel(fd) = self.source {
            // The kernel's descriptor is of a character device, whose flags can be set.
            let _set = descriptors::set_nonblocking(fd);
        }
    }

    /// The event sources, and the descriptor that C code has.
    pub(crate) const fn source(&self) -> (EventSource, i32) {
        (self.source, self.verbs.fd)
    }

    /// Ends the use of a channel by the program.
    ///
    /// Programs such as rping have a thread that takes events until the process exits. The last
    /// acknowledgement releases the main thread, which destroys the channel while the other thread
    /// is still on its way to `rdma_get_cm_event(3)`. With the slower kernel channel, that thread
    /// is already asleep in the call. The sleep gives the thread the same time.
    pub(crate) fn end(&self) {
        let last = *self.acknowledged.lock();
        if last.is_some_and(|(acknowledger, when)| {
            acknowledger != thread::Id::own() && when.elapsed() < RETURN_TIME
        }) {
            std::thread::sleep(RETURN_TIME);
        }
    }

    /// Records that this thread acknowledged an event.
    pub(crate) fn note_acknowledged(&self) {
        *self.acknowledged.lock() = Some((thread::Id::own(), Instant::now()));
    }

    /// The address that C code has.
    pub(crate) fn as_c(&self) -> *mut rdma_event_channel {
        (&raw const self.verbs).cast_mut()
    }

    /// Appends an event and increments the eventfd.
    pub(crate) fn push(&self, event: Box<Event>) {
        self.queue.lock().push_back(event);
        descriptors::add_count(self.eventfd(), 1);
    }

    /// The next event, unless the event was discarded meanwhile.
    pub(crate) fn pop(&self) -> Option<Box<Event>> {
        self.queue.lock().pop_front()
    }

    /// Whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Decrements the eventfd, if its count is not zero.
    pub(crate) fn take_count(&self) {
        // Another thread may have read the count already; that thread then finds the queue empty.
        descriptors::try_take_count(self.eventfd());
    }

    /// Removes and returns the events for which `wanted` is true.
    pub(crate) fn remove_events(&self, wanted: impl Fn(&Event) -> bool) -> VecDeque<Box<Event>> {
        let mut queue = self.queue.lock();
        let (mut taken, mut left) = (VecDeque::new(), VecDeque::new());
        for event in queue.drain(..) {
            let to = if wanted(&event) { &mut taken } else { &mut left };
            to.push_back(event);
        }
        *queue = left;
        for _ in &taken {
            self.take_count();
        }
        taken
    }
}

/// The action that `rdma_get_cm_event(3)` performs before it delivers an event.
#[derive(Debug, Default)]
pub(crate) enum PendingAction {
    /// No action.
    #[default]
    None,
    /// The peer accepted: set up the queue pair, then send RTU.
    SetUpQp,
    /// A connection request: the request leaves the backlog.
    LeaveBacklog,
    /// A multicast group was joined: attach the queue pair.
    AttachGroup,
}

/// A second counter of acknowledgements beside the id's: a multicast group of a kernel device.
pub(crate) trait CountAcknowledgement: std::fmt::Debug + Send + Sync {
    /// Counts the acknowledgement of an event.
    fn acknowledge(&self);
}

/// An event, as `rdma_get_cm_event(3)` delivers it. The C object is the first field.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) verbs: CEvent,
    /// The id whose destruction waits for the acknowledgement of this event.
    pub(crate) awaits_ack: Arc<Id>,
    /// The new id of a connection request, until the program takes the event.
    pub(crate) undelivered: Option<UndeliveredId>,
    pub(crate) action: PendingAction,
    /// The kernel's multicast group of this event; leaving the group also waits for the
    /// acknowledgement.
    pub(crate) group: Option<Arc<dyn CountAcknowledgement>>,
    /// The bytes that `private_data` points to.
    pub(crate) data: Vec<u8>,
}

impl Event {
    /// An event of `id` without parameters.
    pub(crate) fn new(id: &Arc<Id>, kind: rdma_cm_event_type, status: i32) -> Box<Self> {
        let verbs = rdma_cm_event {
            id: id.as_c(),
            listen_id: std::ptr::null_mut(),
            event: kind,
            status,
            param: rdma_cm_event_param { ud: Zeroed::zeroed() },
        };
        let verbs = CEvent::new(verbs);
        let awaits_ack = Arc::clone(id);
        let (undelivered, action, group) = (None, PendingAction::None, None);
        Box::new(Self { verbs, awaits_ack, undelivered, action, group, data: vec![] })
    }

    /// Stores private data and returns their address; NULL for none.
    fn store_private_data(&mut self, data: &[u8]) -> *const c_void {
        self.data = data.to_vec();
        if data.is_empty() { std::ptr::null() } else { self.data.as_ptr().cast() }
    }

    /// Adds parameters of a connection.
    pub(crate) fn connected(mut self: Box<Self>, conn: rdma_conn_param, data: &[u8]) -> Box<Self> {
        let private_data = self.store_private_data(data);
        let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        self.verbs.param.conn = rdma_conn_param { private_data, private_data_len, ..conn };
        self
    }

    /// Adds parameters of datagrams.
    pub(crate) fn datagram(mut self: Box<Self>, ud: rdma_ud_param, data: &[u8]) -> Box<Self> {
        let private_data = self.store_private_data(data);
        let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        self.verbs.param.ud = rdma_ud_param { private_data, private_data_len, ..ud };
        self
    }
}
