//! Follows the addresses and cables of the network interfaces, and reports changes as events of the
//! port.
//! Stands between the kernel's notifications and the GID table.
//!
//! A changed address causes IBV_EVENT_GID_CHANGE, the loss of the last cable IBV_EVENT_PORT_ERR,
//! and a new cable IBV_EVENT_PORT_ACTIVE. The port stays up, because the port also reaches this
//! host.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::adapter::port::Interfaces;
use crate::net::{Gids, gids_and_cable};
use abi::{IBV_EVENT_GID_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR};
use netlink::changes::AddressChanges;
use soft_semantics::faults::ImmediateFault;
use soft_sys::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

impl Adapter {
    /// Starts to watch the kernel's notifications. Without them each table shows the host at the
    /// time when a device is opened or a user reports a change.
    pub(crate) fn follow_interfaces(&self) {
        self.follow_by(|news| self.fabric.watch(news));
    }

    fn follow_by(&self, watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>) {
        let Ok(news) = AddressChanges::open() else { return };
        // Before the table is kept: without notifications the table would never change.
        if watch(news.as_fd()).is_err() {
            return;
        }
        // After the start of the notifications, so that no change is missed.
        let (gids, cabled) = gids_and_cable(self.identity.guid());
        *self.interfaces.reported.lock() = Some(gids);
        self.interfaces.cabled.store(cabled, Ordering::Relaxed);
        let _ = self.interfaces.news.set(news);
    }

    /// Called by the service thread: reads the notifications and reports changed GIDs. Most
    /// notifications concern no GID.
    pub(crate) fn look_at_interfaces(&self) {
        if !self.interfaces.news.get().is_some_and(AddressChanges::discard_all) {
            return;
        }
        let (now, cabled) = gids_and_cable(self.identity.guid());
        self.note_cables(cabled);
        let mut reported = self.interfaces.reported.lock();
        if reported.as_ref() == Some(&now) {
            return;
        }
        *reported = Some(now);
        drop(reported);
        self.port.order(ImmediateFault::PortEvent(IBV_EVENT_GID_CHANGE), &self.fabric);
    }

    /// Reads the addresses after a user has reported a change.
    pub(crate) fn read_interfaces(&self) {
        let now = Gids::of_this_host(self.identity.guid(), 0);
        if let Some(reported) = &mut *self.interfaces.reported.lock() {
            *reported = now;
        }
    }

    /// Reports the loss of the last cable, and a new cable.
    fn note_cables(&self, now: bool) {
        let Interfaces { cabled, cut, .. } = &self.interfaces;
        let before = cabled.swap(now, Ordering::Relaxed);
        if before && !now {
            cut.store(true, Ordering::Relaxed);
            self.port.order(ImmediateFault::PortEvent(IBV_EVENT_PORT_ERR), &self.fabric);
        } else if now && cut.swap(false, Ordering::Relaxed) {
            self.port.order(ImmediateFault::PortEvent(IBV_EVENT_PORT_ACTIVE), &self.fabric);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Adapter;
    use soft_local::fabric::FabricConfig;
    use soft_sys::Errno;

    #[test]
    fn a_table_without_notifications_is_not_kept() {
        let name = format!("ferroverbs-interfaces-{}", std::process::id());
        let mut config = FabricConfig::new(std::env::temp_dir().join(name));
        config.dir_is_ours = true;
        let adapter = Adapter::join(config).expect("a fabric in the temporary directory");
        *adapter.interfaces.reported.lock() = None;
        adapter.follow_by(|_| Err(Errno::ENOSPC));
        assert!(adapter.interfaces.reported.lock().is_none(), "each table is read from the host");
        adapter.follow_by(|_| Ok(()));
        assert!(adapter.interfaces.reported.lock().is_some());
    }
}
