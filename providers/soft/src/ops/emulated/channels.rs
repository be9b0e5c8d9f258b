//! Event channels of an emulated context: what `ibv_get_cq_event` and `ibv_get_async_event` read.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::queues::channel::{Channel, Events};
use soft_sys::Errno;
use std::collections::BTreeMap;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::Arc;

/// A channel, and the events of objects by the provider's object.
#[derive(Debug)]
struct Reports {
    channel: Arc<Channel>,
    events: BTreeMap<u64, Events>,
}

impl Reports {
    fn new(adapter: &Adapter, channel: Channel) -> Self {
        let channel = Arc::new(channel);
        adapter.service.add_channel(&channel);
        Self { channel, events: BTreeMap::new() }
    }

    fn send(&mut self, object: u64, event: u32) {
        let events = self.events.entry(object).or_default();
        self.channel.send_of(events, [object, event.into()]);
    }

    /// Removes the unread events of an object; how many were read.
    fn remove_unread(&mut self, object: u64) -> u32 {
        let events = self.events.remove(&object);
        events.map_or(0, |events| self.channel.end_events(&events, object))
    }
}

/// The channels of a context. Programs get duplicates of the descriptors, and close them.
#[derive(Debug, Default)]
pub(super) struct Channels {
    completions: BTreeMap<RawFd, Reports>,
    asynchronous: Option<Reports>,
}

impl Channels {
    /// A new completion channel; its descriptor.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: the system has no more resources.
    pub(super) fn open(&mut self, adapter: &Arc<Adapter>) -> Result<RawFd, Errno> {
        let reports = Reports::new(adapter, Channel::of_completions(adapter)?);
        let fd = reports.channel.duplicate()?.into_raw_fd();
        self.completions.insert(fd, reports);
        Ok(fd)
    }

    /// The program closes a completion channel.
    pub(super) fn close(&mut self, fd: RawFd) {
        self.completions.remove(&fd);
    }

    /// The channel for asynchronous events; its descriptor.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn open_asynchronous(&mut self, adapter: &Arc<Adapter>) -> Result<RawFd, Errno> {
        let reports = Reports::new(adapter, Channel::of_events(adapter)?);
        let fd = reports.channel.duplicate()?.into_raw_fd();
        self.asynchronous = Some(reports);
        Ok(fd)
    }

    /// Whether a descriptor is a completion channel of the context.
    pub(super) fn contains(&self, fd: RawFd) -> bool {
        self.completions.contains_key(&fd)
    }

    /// Sends the event of a CQ.
    pub(super) fn notify(&mut self, fd: RawFd, cq: u64) {
        if let Some(reports) = self.completions.get_mut(&fd) {
            reports.send(cq, 0);
        }
    }

    /// Removes the unread events of a CQ; how many were read.
    pub(super) fn forget_notifications(&mut self, fd: RawFd, cq: u64) -> u32 {
        self.completions.get_mut(&fd).map_or(0, |reports| reports.remove_unread(cq))
    }

    /// Sends an asynchronous event.
    pub(super) fn report(&mut self, object: u64, event: u32) {
        if let Some(reports) = &mut self.asynchronous {
            reports.send(object, event);
        }
    }

    /// Removes the unread asynchronous events of an object; how many were read.
    pub(super) fn forget_reports(&mut self, object: u64) -> u32 {
        self.asynchronous.as_mut().map_or(0, |reports| reports.remove_unread(object))
    }
}
