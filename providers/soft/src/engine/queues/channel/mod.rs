//! Event channels, and the alarms by which peers wake the readers of a channel. CQs and QPs send
//! records to a channel; `ibv_get_cq_event` and `ibv_get_async_event` read them. This file has the
//! fields, `records` and `alarm` the methods.

pub(crate) mod alarm;
pub(crate) mod records;

use crate::engine::adapter::Adapter;
use cface::sync::Mutex;
use soft_local::shm::layout::CHANNELS;
use soft_sys::loop_socket::LoopSocket;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Free alarm numbers.
#[derive(Debug)]
pub(crate) struct AlarmNumbers(Mutex<Vec<u16>>);

impl Default for AlarmNumbers {
    fn default() -> Self {
        Self(Mutex::new((1..CHANNELS as u16).rev().collect()))
    }
}

impl AlarmNumbers {
    /// Takes a free number; None if all are in use.
    pub(in crate::engine) fn take(&self) -> Option<u16> {
        self.0.lock().pop()
    }

    pub(in crate::engine) fn give_back(&self, number: u16) {
        self.0.lock().push(number);
    }
}

/// The alarm of an event channel.
#[derive(Debug)]
pub(in crate::engine) struct Alarm {
    adapter: Arc<Adapter>,
    number: u16,
}

/// A queue of event records: 8 bytes each on a completion channel, 16 bytes for asynchronous
/// events.
#[derive(Debug)]
pub(crate) struct Channel {
    /// The application reads the descriptor of the socket. Calls of this library never block,
    /// whatever flags the application set.
    socket: LoopSocket,
    /// Records that found the socket full. No event is lost.
    backlog: Mutex<VecDeque<[u64; 2]>>,
    /// The adapter whose service thread sends the backlog.
    adapter: Weak<Adapter>,
    words: usize,
    /// CQs that were armed while they had completions: see `note_leftover`.
    armed_with_completions: Mutex<Vec<usize>>,
    /// The alarm by which peers wake sleepers in `await_comp_event`; None if all numbers are in
    /// use.
    alarm: Option<Alarm>,
}

/// The events of an object on a channel. Both fields change under the lock of the channel only. The
/// destruction of the object therefore knows the number of sent events, and no event follows.
#[derive(Debug, Default)]
pub(crate) struct Events {
    sent_count: AtomicU32,
    ended: AtomicBool,
}

impl Events {
    /// Number of events sent.
    pub(crate) fn sent_count(&self) -> u32 {
        self.sent_count.load(Ordering::Acquire)
    }
}

/// The channel for asynchronous events of a context.
#[derive(Clone, Debug)]
pub(crate) struct Reporter(pub(crate) Arc<Channel>);
