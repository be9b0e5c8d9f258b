//! The GID table follows the interfaces: when an address of this host came or went, applications are told (IBV_EVENT_GID_CHANGE).
#![forbid(unsafe_code)]

use crate::engine::objects::adapter::Adapter;
use crate::net::Gids;
use abi::IBV_EVENT_GID_CHANGE;
use soft_semantics::faults::Order;
use soft_sys::addresses::AddressNews;
use std::os::fd::AsFd;

impl Adapter {
    /// Listens to the kernel from here on. Where it may not, the table stays as it is when a device is opened.
    pub(crate) fn follow_interfaces(&self) {
        let Ok(news) = AddressNews::open() else { return };
        // After the beginning of the news, so that nothing is missed in between.
        *self.interfaces.told.lock() = Some(Gids::of_this_host(self.identity, 0));
        if self.fabric.watch(news.as_fd()).is_ok() {
            let _ = self.interfaces.news.set(news);
        }
    }

    /// For the service thread: looks whether addresses changed. Most news are not about those that are GIDs.
    pub(crate) fn look_at_interfaces(&self) {
        if !self.interfaces.news.get().is_some_and(AddressNews::take) {
            return;
        }
        let now = Gids::of_this_host(self.identity, 0);
        let mut told = self.interfaces.told.lock();
        if told.as_ref() == Some(&now) {
            return;
        }
        *told = Some(now);
        drop(told);
        self.order(Order::PortEvent(IBV_EVENT_GID_CHANGE));
    }
}
