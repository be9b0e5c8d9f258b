//! Event channels: `rdma_create_event_channel(3)`, `rdma_get_cm_event(3)`.
//!
//! The descriptor is an eventfd that counts the events of the queue. So poll, epoll and `O_NONBLOCK` do with it what programs expect.

use crate::id::{Held, Id};
use abi::*;
use cface::Errno;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

/// An event channel. The C object comes first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Channel {
    verbs: rdma_event_channel,
    queue: Mutex<VecDeque<Box<Event>>>,
}

impl Channel {
    /// Without events.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        // SAFETY: eventfd has no requirements.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(Errno::last());
        }
        Ok(Arc::new(Self { verbs: rdma_event_channel { fd }, queue: Mutex::default() }))
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
    /// # Safety
    /// `channel` is from `into_c`, and given back once.
    pub(crate) unsafe fn drop_c(channel: *mut rdma_event_channel) {
        // SAFETY: by the contract above.
        drop(unsafe { Arc::from_raw(channel.cast::<Self>().cast_const()) });
    }

    /// The address that C code knows.
    pub(crate) fn as_c(&self) -> *mut rdma_event_channel {
        (&raw const self.verbs).cast_mut()
    }

    pub(crate) const fn fd(&self) -> i32 {
        self.verbs.fd
    }

    /// An event happened.
    pub(crate) fn push(&self, event: Box<Event>) {
        self.queue.lock().push_back(event);
        let one = 1_u64;
        // SAFETY: eight bytes of `one` are read. The count does not come near its limit, so this does not wait.
        unsafe { libc::write(self.verbs.fd, (&raw const one).cast(), 8) };
    }

    /// The next event, if it was not taken back meanwhile.
    pub(crate) fn pop(&self) -> Option<Box<Event>> {
        self.queue.lock().pop_front()
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
            let mut count = 0_u64;
            let mut into = libc::iovec { iov_base: (&raw mut count).cast::<c_void>(), iov_len: 8 };
            // Somebody may have read the number already, and finds no event then.
            // SAFETY: `into` names the eight bytes of `count`.
            unsafe { libc::preadv2(self.verbs.fd, &raw mut into, 1, -1, libc::RWF_NOWAIT) };
        }
        taken
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody else closes it.
        unsafe { libc::close(self.verbs.fd) };
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
        Box::new(Self { verbs, counts_for, brings: None, deed: Deed::None, data: vec![] })
    }

    /// With parameters of a connection.
    pub(crate) fn connected(mut self: Box<Self>, conn: rdma_conn_param, data: &[u8]) -> Box<Self> {
        self.data = data.to_vec();
        let private_data = self.data.as_ptr().cast();
        let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        self.verbs.param.conn = rdma_conn_param { private_data, private_data_len, ..conn };
        self
    }

    /// With parameters of datagrams.
    pub(crate) fn datagram(mut self: Box<Self>, ud: rdma_ud_param, data: &[u8]) -> Box<Self> {
        self.data = data.to_vec();
        let private_data = self.data.as_ptr().cast();
        let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
        self.verbs.param.ud = rdma_ud_param { private_data, private_data_len, ..ud };
        self
    }
}
