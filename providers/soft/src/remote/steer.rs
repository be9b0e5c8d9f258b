//! Has the kernel give packets to the process that they are for.
//!
//! All processes of a user share port 4791. By itself the kernel chooses one of them by addresses and ports, so that of many processes most get other
//! processes' packets and pass them on (`forward`). A program of classic BPF (`ferroverbs_net::steering`) chooses by the QP number instead; it needs to
//! know the *place* of each process's socket among those of the port, which nobody is told and which changes when one of them is closed. So whoever
//! gets packets that are others' has all sockets hear their places, by probes; each process writes its own into its *tables*; and a moment later the one
//! who asked reads what stands there, of those whom it knows, and tells the kernel. It knows whom it passed packets on to, so that who is missing comes
//! next time. Whatever is wrong or outdated costs a copy and a wake-up, not a packet.

use super::astray::HEARING;
use super::counts::{Counts, Own};
use super::ports::Inbox;
use super::state::{Network, V4, V6};
use crate::engine::objects::adapter::Adapter;
use ferroverbs_net::{Datagram, PORT, Receiver, steering};
use soft_local::shm::layout::{QP_INDEX_BITS, SLOTS};
use soft_local::shm::view::View;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// The highest bits of a QP number are the process's slot.
const NAMING: steering::Bits = steering::Bits((24 - QP_INDEX_BITS) as u8);
const FAMILIES: [(u8, IpAddr); 2] =
    [(V4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)), (V6, IpAddr::V6(Ipv6Addr::UNSPECIFIED))];

impl Network {
    /// Asks where the sockets are, or, a moment later, tells the kernel.
    #[cold]
    pub(super) fn steer(&self, adapter: &Adapter, inbox: &Inbox) {
        let steering = &self.steering;
        let mut plan = steering.plan.lock();
        let now = Instant::now();
        if plan.asked.is_some_and(|at| now - at < HEARING) {
            return;
        }
        let asks = plan.asked.is_none();
        for ((family, any), receiver) in FAMILIES.into_iter().zip([&inbox.v4, &inbox.v6]) {
            let Some(receiver) = receiver else { continue };
            if !tell(adapter, receiver, family) {
                plan.is_refused = true;
            } else if asks && let Ok(count @ 2..) = steering::sharers(any, PORT) {
                // What cannot be asked stays as it is.
                let _ = steering::ask(any, PORT, u16::try_from(count).unwrap_or(u16::MAX));
            }
        }
        plan.asked = (asks && !plan.is_refused).then_some(now);
        steering.due.store(plan.asked.is_some(), Ordering::Relaxed);
    }
}

/// Tells the kernel what is known; `false`: it does not want to know.
fn tell(adapter: &Adapter, receiver: &Receiver, family: u8) -> bool {
    let mut rows = BTreeMap::new();
    let mut look = |slot: u16, view: &View| {
        // Beyond all places it is of no use, and the kernel makes its own choice.
        if let Some(place) = place_in(view, family).load(Ordering::Relaxed).checked_sub(1)
            && let Ok(place) = u16::try_from(place)
        {
            rows.insert(u32::from(slot), place);
        }
    };
    adapter.datagrams.for_known(&mut look);
    look(adapter.fabric.slot(), &adapter.view);
    debug_assert!(rows.len() <= SLOTS);
    let counts = Counts::of(adapter.view);
    let told = receiver.steer(NAMING, &mut rows.into_iter().collect::<Vec<_>>()).is_ok();
    counts.own(if told { Own::Steered } else { Own::Unsteered }).fetch_add(1, Ordering::Relaxed);
    told
}

/// Whether a datagram is a probe of this host, which says where our socket is.
pub(super) fn heard(adapter: &Adapter, datagram: &Datagram<'_>) -> bool {
    let Some(place) = steering::probed(datagram.bytes) else { return false };
    if datagram.from.ip().is_loopback() {
        let family = if datagram.from.is_ipv4() { V4 } else { V6 };
        place_in(&adapter.view, family).store(u32::from(place) + 1, Ordering::Relaxed);
    }
    true
}

/// The place of a process's socket, and one more.
fn place_in(view: &View, family: u8) -> &AtomicU32 {
    &view.tables_head().places[usize::from(family != V4)]
}
