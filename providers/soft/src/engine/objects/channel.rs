//! Event channels, and the alarms by which peers wake those who sleep on them.

use super::adapter::Adapter;
use cface::sync::Mutex;
use soft_local::shm::layout::CHANNELS;
use soft_sys::loop_socket::LoopSocket;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Which numbers are free.
#[derive(Debug)]
pub(crate) struct Numbers(pub(in crate::engine) Mutex<Vec<u16>>);

impl Default for Numbers {
    fn default() -> Self {
        Self(Mutex::new((1..CHANNELS as u16).rev().collect()))
    }
}

/// The alarm of one event channel.
#[derive(Debug)]
pub(in crate::engine) struct Alarm {
    pub(in crate::engine) adapter: Arc<Adapter>,
    pub(in crate::engine) number: u16,
}

/// One queue of records. Records have 8 bytes (completion channel) or 16 (asynchronous events).
#[derive(Debug)]
pub(crate) struct Channel {
    /// The application reads its descriptor. Our calls never block, whatever the application made of the descriptor.
    pub(in crate::engine) socket: LoopSocket,
    /// Records that found the socket full: events are never lost.
    pub(in crate::engine) backlog: Mutex<VecDeque<[u64; 2]>>,
    /// Its service thread sends the backlog.
    pub(in crate::engine) adapter: Weak<Adapter>,
    pub(in crate::engine) words: usize,
    /// Completion queues that were armed with completions in them: see `note_left`.
    pub(in crate::engine) left: Mutex<Vec<usize>>,
    /// By which peers wake those who sleep in `await_event`, while there are numbers left.
    pub(in crate::engine) alarm: Option<Alarm>,
}

/// The events of one object on one channel. It changes under that channel's lock only: what destroys the object knows by it how many events
/// were sent, and none is sent afterwards.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(in crate::engine) sent: AtomicU32,
    pub(in crate::engine) over: AtomicBool,
}

impl Events {
    /// How many were sent so far.
    pub(crate) fn sent(&self) -> u32 {
        self.sent.load(Ordering::Acquire)
    }
}

/// Where asynchronous events of a context go.
#[derive(Clone, Debug)]
pub(crate) struct Reporter(pub(crate) Arc<Channel>);
