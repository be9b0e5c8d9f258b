//! The queue pair of an endpoint with its completion queue, and when the queue is armed.
//! Both kinds of endpoints send, receive and wait through here.

use crate::calls::qp::OwnQueuePair;
use crate::core::id::Id;
use crate::sys::objects::{CompletionQueue, Context, Memory, Payload, SendRequest};
use abi::*;
use cface::Errno;
use ferroverbs_cm::stream::Settings;
use std::ffi::c_int;
use std::sync::Arc;

/// A queue pair and its completion queue.
#[derive(Debug)]
pub(super) struct Queue {
    queue_pair: OwnQueuePair,
    /// True: the next completion raises an event, or an event waits on the channel.
    armed: bool,
}

impl Queue {
    /// The queue pair of an id with a device; returns it with its inline limit in bytes.
    ///
    /// # Errors
    /// The errno of the device or system.
    pub(super) fn new(
        id: &Arc<Id>,
        context: Context,
        memory: Vec<Memory>,
        (kind, sizes): (ibv_qp_type, &Settings),
    ) -> Result<(Self, u32), Errno> {
        let entries = u32::from(sizes.send_queue) + u32::from(sizes.receive_queue);
        let queue = CompletionQueue::new(context, entries)?;
        let cap = ibv_qp_cap {
            max_send_wr: sizes.send_queue.into(),
            max_recv_wr: sizes.receive_queue.into(),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: sizes.inline,
        };
        let (own, inline) = OwnQueuePair::new(id, queue, memory, (kind, cap))?;
        Ok((Self { queue_pair: own, armed: false }, inline))
    }

    /// The id of the queue pair.
    pub(super) const fn id(&self) -> &Arc<Id> {
        self.queue_pair.id()
    }

    /// The number of the queue pair.
    pub(super) fn number(&self) -> u32 {
        self.queue_pair.pair().number()
    }

    /// Memory by its number, in the order of creation.
    ///
    /// # Errors
    /// `EFAULT` no such memory.
    pub(super) fn memory(&self, number: usize) -> Result<&Memory, Errno> {
        self.queue_pair.pair().memory(number)
    }

    /// The descriptor that is readable after a completion.
    pub(super) fn fd(&self) -> c_int {
        self.queue_pair.queue().fd()
    }

    /// Calls `f` with each of the next completions. Returns `false` without any.
    pub(super) fn poll(&self, f: impl FnMut(&ibv_wc)) -> bool {
        self.queue_pair.queue().poll(f)
    }

    /// Arms the queue, so that the next completion makes the descriptor readable.
    pub(super) fn arm(&mut self) {
        if !self.armed {
            self.queue_pair.queue().arm();
            self.armed = true;
        }
    }

    /// Takes all events off the descriptor.
    pub(super) fn drain_events(&mut self) {
        while self.queue_pair.queue().take_event() {
            self.armed = false;
        }
    }

    /// Posts a receive. Its memory is unused until the receive completes.
    ///
    /// # Errors
    /// The errno of the device.
    pub(super) fn receive(&self, name: u64, into: Payload<'_>) -> Result<(), Errno> {
        self.queue_pair.pair().receive(name, into)
    }

    /// Posts a send request. Its memory is unchanged until the request completes.
    ///
    /// # Errors
    /// The errno of the device.
    pub(super) fn send(&self, request: &SendRequest<'_>, from: Payload<'_>) -> Result<(), Errno> {
        self.queue_pair.pair().send(request, from)
    }
}

/// The largest number of requests in a queue of the device.
pub(super) fn most_requests(context: Context, otherwise: u16) -> u16 {
    let most = context.limits().map(|attr| u16::try_from(attr.max_qp_wr));
    most.unwrap_or(Ok(otherwise)).unwrap_or(otherwise)
}
