//! Has the kernel give packets to the process that they are for.
//!
//! All processes of a user share port 4791. By itself the kernel chooses one of them by addresses and ports, so that of many processes most get other
//! processes' packets and pass them on (`forward`). A program of classic BPF (`ferroverbs_net::steering`) chooses by the QP number instead; it needs to
//! know the *place* of each process's socket among those of the port. That is the last one for who opens it; when a socket is closed, the last one takes
//! its place, and nobody is told. So whoever closes one has all sockets hear their places, by probes, as does whoever gets packets that are others'. Each
//! process says its own (`places`), also for those that it has never met. Who opens the port beside others tells the kernel what all say, and so does, a
//! moment later, who was moved, or had asked. Whatever is wrong or outdated costs a copy and a wake-up, not a packet.

use super::connection::errno_of;
use super::counters::Own;
use super::socket_positions::are_all;
use super::sockets::{Inbox, Ports};
use super::state::{Network, V4, V6, is_for_now};
use super::steering_plan::HEARING;
use crate::config;
use ferroverbs_net::{Datagram, PORT, Receiver, steering};
use soft_local::shm::layout::QP_INDEX_BITS;
use soft_sys::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The highest bits of a QP number are the process's slot.
const NAMING: steering::Bits = steering::Bits((24 - QP_INDEX_BITS) as u8);
const FAMILIES: [(u8, IpAddr); 2] =
    [(V4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)), (V6, IpAddr::V6(Ipv6Addr::UNSPECIFIED))];

impl Network {
    /// The sockets were opened just now, nobody opened any since, and nothing has come: the kernel is told of them, and of those of the others.
    pub(super) fn steer_first(&self, ports: &Ports) {
        let inbox = ports.inbox.lock();
        let counts = sockets(&inbox).map(|(family, any, receiver)| {
            let count = steering::sharers(any, PORT).unwrap_or(0);
            if let Some(last) = count.checked_sub(1).and_then(|last| u16::try_from(last).ok()) {
                ports.places.stands(family, last);
            }
            (family, receiver, count)
        });
        let counts: Vec<_> = counts.collect();
        ports.places.say();
        let mut plan = self.steering.plan.lock();
        for (family, receiver, count) in counts {
            if count < 2 || plan.is_refused || !config::steers() {
                continue;
            }
            match tell(ports, receiver, family) {
                Ok(rows) if are_all(&rows, count) => {}
                Err(why) if !is_for_now(why) => plan.is_refused = true,
                // Somebody was killed, and others were moved since; or something is lacking for now.
                Ok(_) | Err(_) => self.steering.due.store(true, Ordering::Relaxed),
            }
        }
    }

    /// Says where our sockets are now; and asks where the others are, or, a moment later, tells the kernel.
    #[cold]
    pub(super) fn steer(&self, ports: &Ports, inbox: &Inbox) {
        let steering = &self.steering;
        let mut plan = steering.plan.lock();
        let now = Instant::now();
        let is_told = config::steers() && !plan.is_refused;
        if ports.places.say() {
            // Who had us moved is gone, and tells nobody.
            plan.asked = plan.asked.or(is_told.then_some(now));
        } else if is_told && plan.asked.is_none() {
            plan.asked = Some(now);
            for (family, any, receiver) in sockets(inbox) {
                match steering::sharers(any, PORT) {
                    Ok(1) => drop(ports.places.stands(family, 0)),
                    // Told the kernel brings the question to each.
                    Ok(count @ 2..) => match tell(ports, receiver, family) {
                        Ok(_) => ask(any, count),
                        Err(why) => plan.is_refused |= !is_for_now(why),
                    },
                    // What cannot be asked stays as it is.
                    Ok(0) | Err(_) => {}
                }
            }
        } else if plan.asked.is_some_and(|at| now - at >= HEARING) {
            plan.asked = None;
            for (family, _, receiver) in sockets(inbox) {
                let told = tell(ports, receiver, family);
                plan.is_refused |= told.is_err_and(|why| !is_for_now(why));
            }
        }
        if plan.is_refused {
            plan.asked = None;
        }
        steering.due.store(plan.asked.is_some(), Ordering::Relaxed);
    }

    /// Whether a datagram is a probe, which says, if it is of this host, where our socket is.
    pub(super) fn is_probe(&self, ports: &Ports, datagram: &Datagram<'_>) -> bool {
        let Some(place) = steering::probed(datagram.bytes) else { return false };
        if datagram.from.ip().is_loopback() {
            let family = if datagram.from.is_ipv4() { V4 } else { V6 };
            if ports.places.stands(family, place) {
                self.steering.begin();
            }
        }
        true
    }
}

/// Has those who share the port hear where their sockets are: ours are closed, and others were moved.
pub(super) fn ask_others() {
    for (_, any) in FAMILIES {
        if let Ok(count @ 1..) = steering::sharers(any, PORT) {
            ask(any, count);
        }
    }
}

fn ask(any: IpAddr, count: usize) {
    // Whoever cannot be asked is where he was, as far as anybody knows.
    let _ = steering::ask(any, PORT, u16::try_from(count).unwrap_or(u16::MAX));
}

/// The sockets that there are, with their families.
fn sockets(inbox: &Inbox) -> impl Iterator<Item = (u8, IpAddr, &Receiver)> {
    let sockets = FAMILIES.into_iter().zip([&inbox.v4, &inbox.v6]);
    sockets.filter_map(|((family, any), receiver)| Some((family, any, receiver.as_ref()?)))
}

/// Tells the kernel what everybody says, and returns that.
///
/// # Errors
/// The kernel does not want to know, or says nothing; or something is lacking for now.
fn tell(ports: &Ports, receiver: &Receiver, family: u8) -> Result<Vec<(u32, u16)>, Errno> {
    let told = ports.places.told(family).and_then(|mut rows| {
        receiver.steer(NAMING, &mut rows)?;
        Ok(rows)
    });
    let counts = if told.is_ok() { Own::Steered } else { Own::Unsteered };
    ports.counts.own(counts).fetch_add(1, Ordering::Relaxed);
    told.map_err(|why| errno_of(&why))
}
