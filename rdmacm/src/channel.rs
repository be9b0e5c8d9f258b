//! Event channels: `rdma_create_event_channel(3)`, `rdma_get_cm_event(3)`.
//!
//! The descriptor is an eventfd that counts the events of the queue. So poll, epoll and `O_NONBLOCK` do with it what programs expect. Where all devices
//! are the kernel's it is the one of the kernel's connection manager; with both kinds of devices, an epoll(7) over the two.

use crate::id::{Held, Id, Side};
use crate::kernel::multicast::Group;
use crate::{device, kernel};
use abi::*;
use cface::Errno;
use cface::sync::Mutex;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// An event channel. The C object comes first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Channel {
    verbs: rdma_event_channel,
    ends: Ends,
    /// Who made it.
    process: i32,
    queue: Mutex<VecDeque<Box<Event>>>,
    /// Who acknowledged an event of it last, and when.
    acknowledged: Mutex<Option<(ThreadId, Instant)>>,
}

/// What a thread needs at most from the end of `rdma_ack_cm_event(3)` to the next `rdma_get_cm_event(3)`.
const WAY_BACK: Duration = Duration::from_millis(1);

/// Where events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Our own queue, by its bell.
    Own(i32),
    /// The kernel's connection manager.
    Kernel(i32),
    /// Both, neither of which sleeps; first the bell.
    Both(i32, i32),
}

/// An eventfd.
fn bell(flags: i32) -> Result<i32, Errno> {
    // SAFETY: eventfd has no requirements.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE | flags) };
    if fd < 0 { Err(Errno::last()) } else { Ok(fd) }
}

/// One descriptor that is readable when either is.
fn watch(bell: i32, kernel: i32) -> Result<i32, Errno> {
    // SAFETY: epoll_create1 and fcntl have no requirements; `event` is readable.
    unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        if epoll < 0 {
            return Err(Errno::last());
        }
        let flags = libc::fcntl(kernel, libc::F_GETFL);
        libc::fcntl(kernel, libc::F_SETFL, flags | libc::O_NONBLOCK);
        for fd in [bell, kernel] {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            if libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) != 0 {
                let why = Errno::last();
                libc::close(epoll);
                return Err(why);
            }
        }
        Ok(epoll)
    }
}

impl Channel {
    /// Without events, for ids on all devices that there are.
    ///
    /// # Errors
    /// `ENODEV` there are none; the system's, and the kernel's where it has all of them.
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        let present = device::present()?;
        if present.kernel {
            kernel::takes_any_family();
        }
        match (present.soft.is_empty(), present.kernel) {
            (true, _) => Self::of_kernel(),
            (false, false) => bell(0).map(|fd| Self::with(fd, Ends::Own(fd))),
            (false, true) => {
                // What is wrong was said; there are other devices.
                let Ok(kernel) = kernel::open() else {
                    return bell(0).map(|fd| Self::with(fd, Ends::Own(fd)));
                };
                let close = |fd| {
                    // SAFETY: opened here, and nobody else has it.
                    unsafe { libc::close(fd) };
                };
                let bell = bell(libc::EFD_NONBLOCK).inspect_err(|_| close(kernel))?;
                let both = watch(bell, kernel).inspect_err(|_| {
                    close(bell);
                    close(kernel);
                })?;
                Ok(Self::with(both, Ends::Both(bell, kernel)))
            }
        }
    }

    /// For ids on the kernel's devices only: its own descriptor.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn of_kernel() -> Result<Arc<Self>, Errno> {
        kernel::open().map(|fd| Self::with(fd, Ends::Kernel(fd)))
    }

    fn with(fd: i32, ends: Ends) -> Arc<Self> {
        let (queue, acknowledged) = (Mutex::default(), Mutex::default());
        let verbs = rdma_event_channel { fd };
        Arc::new(Self { verbs, ends, process: crate::anew::process(), queue, acknowledged })
    }

    /// Refuses a parent's in a child of fork(2), since only its descriptor is shared; the kernel's is all there is.
    ///
    /// # Errors
    /// `ENODEV` it is a parent's.
    pub(crate) fn refuse_parents(&self) -> Result<(), Errno> {
        match self.ends {
            Ends::Kernel(_) => Ok(()),
            _ => device::refuse_parents(self.process),
        }
    }

    /// On which side a new id of it is.
    pub(crate) const fn side(&self) -> Side {
        match self.ends {
            Ends::Own(_) => Side::Soft,
            Ends::Kernel(_) => Side::Kernel,
            Ends::Both(..) => Side::Open,
        }
    }

    /// The kernel's descriptor; -1 where there is none.
    pub(crate) const fn kernel_fd(&self) -> i32 {
        match self.ends {
            Ends::Own(_) => -1,
            Ends::Kernel(fd) | Ends::Both(_, fd) => fd,
        }
    }

    /// The bell of the queue.
    pub(crate) const fn bell(&self) -> i32 {
        match self.ends {
            Ends::Own(fd) | Ends::Both(fd, _) => fd,
            Ends::Kernel(_) => -1,
        }
    }

    /// The descriptor that is readable when there are events.
    pub(crate) const fn fd(&self) -> i32 {
        self.verbs.fd
    }

    /// Who asks for events does not wait from now on, whosever they are.
    pub(crate) fn stay_awake(&self) {
        if let Ends::Kernel(fd) = self.ends {
            // SAFETY: fcntl has no requirements here; the descriptor is ours.
            unsafe {
                libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK | libc::fcntl(fd, libc::F_GETFL))
            };
        }
    }

    /// Where events come from, and the descriptor that C code knows; without a count, for a thread that may be cancelled.
    ///
    /// # Safety
    /// `channel` is a live one of this library.
    pub(crate) unsafe fn ends_of(channel: *const rdma_event_channel) -> (Ends, i32) {
        // SAFETY: by the contract above; neither changes.
        unsafe { ((*channel.cast::<Self>()).ends, (*channel).fd) }
    }

    /// The channel of a C pointer.
    ///
    /// # Safety
    /// `channel` is a live one of this library.
    pub(crate) unsafe fn of(channel: *mut rdma_event_channel) -> Arc<Self> {
        // SAFETY: `into_c` made the pointer of an Arc, whose count is the C object's until it is destroyed.
        unsafe {
            let at = channel.cast::<Self>().cast_const();
            Arc::increment_strong_count(at);
            Arc::from_raw(at)
        }
    }

    /// The C object; whoever has it gives it back by `drop_c`.
    pub(crate) fn into_c(self: Arc<Self>) -> *mut rdma_event_channel {
        Arc::into_raw(self).cast_mut().cast()
    }

    /// The C object is used no more.
    ///
    /// Programs such as rping have a thread that takes events until the process ends. Their main thread is let go of by its last acknowledgement, and comes
    /// here while that thread is still on its way to `rdma_get_cm_event(3)`, where it should sleep, as it does with a channel of the kernel, which takes
    /// longer to go. So it is given the time.
    ///
    /// # Safety
    /// `channel` is from `into_c`, and given back once.
    pub(crate) unsafe fn drop_c(channel: *mut rdma_event_channel) {
        // SAFETY: by the contract above.
        let channel = unsafe { Arc::from_raw(channel.cast::<Self>().cast_const()) };
        let last = *channel.acknowledged.lock();
        if last.is_some_and(|(thread, when)| {
            thread != std::thread::current().id() && when.elapsed() < WAY_BACK
        }) {
            std::thread::sleep(WAY_BACK);
        }
    }

    /// This thread acknowledges an event.
    pub(crate) fn note_acknowledged(&self) {
        *self.acknowledged.lock() = Some((std::thread::current().id(), Instant::now()));
    }

    /// The address that C code knows.
    pub(crate) fn as_c(&self) -> *mut rdma_event_channel {
        (&raw const self.verbs).cast_mut()
    }

    /// An event happened.
    pub(crate) fn push(&self, event: Box<Event>) {
        self.queue.lock().push_back(event);
        let one = 1_u64;
        // SAFETY: eight bytes of `one` are read. The count does not come near its limit, so this does not wait.
        unsafe { libc::write(self.bell(), (&raw const one).cast(), 8) };
    }

    /// The next event, if it was not taken back meanwhile.
    pub(crate) fn pop(&self) -> Option<Box<Event>> {
        self.queue.lock().pop_front()
    }

    /// Whether no event waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Takes the number of one event off the descriptor, if there is one.
    pub(crate) fn discount(&self) {
        let mut count = 0_u64;
        let mut into = libc::iovec { iov_base: (&raw mut count).cast::<c_void>(), iov_len: 8 };
        // Somebody may have read the number already, and finds no event then.
        // SAFETY: `into` names the eight bytes of `count`.
        unsafe { libc::preadv2(self.bell(), &raw mut into, 1, -1, libc::RWF_NOWAIT) };
    }

    /// Takes back the events for which `wanted` holds.
    pub(crate) fn take_back(&self, wanted: impl Fn(&Event) -> bool) -> VecDeque<Box<Event>> {
        let mut queue = self.queue.lock();
        let (mut taken, mut left) = (VecDeque::new(), VecDeque::new());
        for event in queue.drain(..) {
            let to = if wanted(&event) { &mut taken } else { &mut left };
            to.push_back(event);
        }
        *queue = left;
        for _ in &taken {
            self.discount();
        }
        taken
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let close = |fd| {
            // SAFETY: ours, and nobody else closes it.
            unsafe { libc::close(fd) };
        };
        if let Ends::Both(bell, kernel) = self.ends {
            close(kernel);
            close(bell);
        }
        close(self.verbs.fd);
    }
}

/// What is left to do for an event when the application takes it.
#[derive(Debug, Default)]
pub(crate) enum Deed {
    /// Nothing.
    #[default]
    None,
    /// A connection was granted: the queue pair is to be set up, and the peer told.
    Ready,
    /// A request: it does not fill the backlog any more.
    Taken,
    /// A multicast group was joined.
    Joined,
}

/// An event, as `rdma_get_cm_event(3)` gives it out. The C object comes first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) verbs: rdma_cm_event,
    /// Whose acknowledgement is waited for.
    pub(crate) counts_for: Arc<Id>,
    /// The new id of a request, until the application has it.
    pub(crate) brings: Option<Held>,
    pub(crate) deed: Deed,
    /// The kernel's group that it is about, whose acknowledgement is waited for, too.
    pub(crate) group: Option<Arc<Group>>,
    /// What `private_data` points to.
    pub(crate) data: Vec<u8>,
}

// SAFETY: the pointers are addresses of objects of the process, and those of no thread.
unsafe impl Send for Event {}

impl Event {
    /// An event of `id` without more to say.
    pub(crate) fn new(id: &Arc<Id>, kind: rdma_cm_event_type, status: i32) -> Box<Self> {
        let verbs = rdma_cm_event {
            id: id.as_c(),
            listen_id: std::ptr::null_mut(),
            event: kind,
            status,
            param: rdma_cm_event_param { ud: Zeroed::zeroed() },
        };
        let counts_for = Arc::clone(id);
        let (brings, deed, group) = (None, Deed::None, None);
        Box::new(Self { verbs, counts_for, brings, deed, group, data: vec![] })
    }

    /// Keeps private data; where they are, NULL for none.
    fn keep(&mut self, data: &[u8]) -> *const c_void {
        self.data = data.to_vec();
        if data.is_empty() { std::ptr::null() } else { self.data.as_ptr().cast() }
    }

    /// With parameters of a connection.
    pub(crate) fn connected(mut self: Box<Self>, conn: rdma_conn_param, data: &[u8]) -> Box<Self> {
        let private_data = self.keep(data);
        let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        self.verbs.param.conn = rdma_conn_param { private_data, private_data_len, ..conn };
        self
    }

    /// With parameters of datagrams.
    pub(crate) fn datagram(mut self: Box<Self>, ud: rdma_ud_param, data: &[u8]) -> Box<Self> {
        let private_data = self.keep(data);
        let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        self.verbs.param.ud = rdma_ud_param { private_data, private_data_len, ..ud };
        self
    }
}
