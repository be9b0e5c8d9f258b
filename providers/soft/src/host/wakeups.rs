//! Which sockets wake the service thread, and who drives the wire: the application or the thread.
//! Asked by the driver (`wire`) and by the timeouts of transports.
#![forbid(unsafe_code)]

use super::sockets::{BOTH_FAMILIES, Inbox};
use ferroverbs_roce::Time;
use soft_local::fabric::Fabric;
use soft_sys::Errno;
use soft_sys::poll::Epoll;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The wake-ups of the service thread by packets.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    /// The epoll set that wakes the service thread when packets arrive. The sockets that polls read
    /// are in the set only while the application does not poll.
    epoll: OnceLock<Epoll>,
    /// Address families whose socket is in `epoll`.
    watched: AtomicU8,
    /// Address families of connected QPs. Polls read no other socket; the service thread forwards
    /// the packets of the other sockets.
    used: AtomicU8,
    /// The application's polls drove the wire since the last check by the service thread. Such an
    /// application may read no socket of another host, although the sockets hold packets for
    /// different processes.
    polled: AtomicBool,
    /// Time of the last received packet in nanoseconds.
    last_arrival_ns: AtomicU64,
}

impl Wakeups {
    /// Makes an epoll set, which the service thread of `fabric` watches.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub(super) fn open(fabric: &Fabric) -> Result<Epoll, Errno> {
        let epoll = Epoll::new()?;
        fabric.watch(epoll.as_fd())?;
        Ok(epoll)
    }

    /// Uses `epoll` from now on.
    pub(super) fn begin(&self, epoll: Epoll) {
        let _ = self.epoll.set(epoll);
    }

    /// Notes that the application drives the wire.
    #[inline]
    pub(super) fn note_poll(&self) {
        if !self.polled.load(Ordering::Relaxed) {
            self.polled.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the application has driven the wire since the last call.
    pub(super) fn take_polled(&self) -> bool {
        self.polled.swap(false, Ordering::Relaxed)
    }

    /// Notes that a packet has arrived.
    pub(super) fn note_arrival(&self, now: Time) {
        self.last_arrival_ns.store(now.ns(), Ordering::Relaxed);
    }

    /// Time of the last packet.
    pub(super) fn last_arrival(&self) -> Time {
        Time::from_ns(self.last_arrival_ns.load(Ordering::Relaxed))
    }

    /// Address families of connected QPs.
    #[inline]
    pub(super) fn used(&self) -> u8 {
        self.used.load(Ordering::Relaxed)
    }

    /// Adds address families of a connected QP. Returns true if one is new.
    pub(super) fn add_used(&self, families: u8) -> bool {
        self.used.fetch_or(families, Ordering::Relaxed) & families != families
    }

    /// Whether packets for QPs of this process wake the service thread.
    pub(super) fn wake_for_used(&self) -> bool {
        self.watched.load(Ordering::Relaxed) & self.used() != 0
    }

    /// Selects the sockets that wake the service thread. With `on`, the sockets of used families
    /// are included, which a polling application would read. `inbox` locks the sockets.
    pub(super) fn watch<I: std::ops::Deref<Target = Inbox>>(
        &self,
        on: bool,
        inbox: impl FnOnce() -> I,
    ) {
        let Some(epoll) = self.epoll.get() else { return };
        let wanted = if on { BOTH_FAMILIES } else { BOTH_FAMILIES & !self.used() };
        let changed = self.watched.swap(wanted, Ordering::Relaxed) ^ wanted;
        if changed == 0 {
            return;
        }
        for (family, receiver) in inbox().by_family() {
            if changed & wanted & family != 0 {
                // After an error the thread receives packets when another event wakes the thread.
                let _ = epoll.add(receiver.as_fd(), 0);
            } else if changed & family != 0 {
                epoll.remove(receiver.as_fd());
            }
        }
    }

    /// Watches new sockets of the families `opened`, if their families are watched.
    pub(super) fn watch_new(&self, inbox: &Inbox, opened: u8) {
        let new = self.watched.load(Ordering::Relaxed) & opened;
        let Some(epoll) = self.epoll.get() else { return };
        for (family, receiver) in inbox.by_family() {
            if new & family != 0 {
                // After an error the thread receives packets when another event wakes the thread.
                let _ = epoll.add(receiver.as_fd(), 0);
            }
        }
    }
}
