//! The GID table follows the interfaces: when an address of this host came or went, applications are told (IBV_EVENT_GID_CHANGE). They are
//! also told when the last cable to other hosts went (IBV_EVENT_PORT_ERR) and when there is one again (IBV_EVENT_PORT_ACTIVE); the port
//! itself stays up, as it leads to this host as well.
#![forbid(unsafe_code)]

use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::port::Interfaces;
use crate::net::{Gids, has_cable};
use abi::{IBV_EVENT_GID_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR};
use soft_semantics::faults::Order;
use soft_sys::Errno;
use soft_sys::addresses::AddressNews;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

impl Adapter {
    /// Listens to the kernel from here on. Where it may not, each table is what the host has when a device is opened or a person says that
    /// it changed.
    pub(crate) fn follow_interfaces(&self) {
        self.follow_by(|news| self.fabric.watch(news));
    }

    fn follow_by(&self, watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>) {
        let Ok(news) = AddressNews::open() else { return };
        // Before the table is kept: if nobody hears of changes it would be the one of this moment for ever.
        if watch(news.as_fd()).is_err() {
            return;
        }
        // After the beginning of the news, so that nothing is missed in between.
        *self.interfaces.told.lock() = Some(Gids::of_this_host(self.identity, 0));
        self.interfaces.cabled.store(has_cable(), Ordering::Relaxed);
        let _ = self.interfaces.news.set(news);
    }

    /// For the service thread: looks whether addresses changed. Most news are not about those that are GIDs.
    pub(crate) fn look_at_interfaces(&self) {
        if !self.interfaces.news.get().is_some_and(AddressNews::take) {
            return;
        }
        self.look_at_cables();
        let now = Gids::of_this_host(self.identity, 0);
        let mut told = self.interfaces.told.lock();
        if told.as_ref() == Some(&now) {
            return;
        }
        *told = Some(now);
        drop(told);
        self.order(Order::PortEvent(IBV_EVENT_GID_CHANGE));
    }

    /// What will be told is how things are now, whoever says that they changed.
    pub(crate) fn read_interfaces(&self) {
        let now = Gids::of_this_host(self.identity, 0);
        if let Some(told) = &mut *self.interfaces.told.lock() {
            *told = now;
        }
    }

    /// Looks whether other hosts can still be reached, or again.
    fn look_at_cables(&self) {
        let Interfaces { cabled, cut, .. } = &self.interfaces;
        let now = has_cable();
        let before = cabled.swap(now, Ordering::Relaxed);
        if before && !now {
            cut.store(true, Ordering::Relaxed);
            self.order(Order::PortEvent(IBV_EVENT_PORT_ERR));
        } else if now && cut.swap(false, Ordering::Relaxed) {
            self.order(Order::PortEvent(IBV_EVENT_PORT_ACTIVE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Adapter;
    use soft_local::fabric::FabricConfig;
    use soft_sys::Errno;

    #[test]
    fn a_table_that_nobody_follows_is_not_kept() {
        let name = format!("ferroverbs-interfaces-{}", std::process::id());
        let mut config = FabricConfig::new(std::env::temp_dir().join(name));
        config.dir_is_ours = true;
        let adapter = Adapter::join(config).expect("a fabric in the temporary directory");
        *adapter.interfaces.told.lock() = None;
        adapter.follow_by(|_| Err(Errno::ENOSPC));
        assert!(adapter.interfaces.told.lock().is_none(), "each table is read from the host");
        adapter.follow_by(|_| Ok(()));
        assert!(adapter.interfaces.told.lock().is_some());
    }
}
