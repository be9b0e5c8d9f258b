//! Has the kernel give packets to the process that they are for.
//!
//! All processes of a user share port 4791. By itself the kernel chooses one of them by addresses and ports, so that of many processes most get other
//! processes' packets and pass them on (`forward`). A program of classic BPF (`ferroverbs_net::steering`) chooses by the QP number instead; it needs to
//! know the *place* of each process's socket among those of the port, which nobody is told and which changes when one of them is closed. So whoever
//! gets packets that are others' has all sockets hear their places, by probes; each process writes its own into its *tables*; and a moment later the one
//! who asked reads what stands there, of those whom it knows, and tells the kernel. It knows whom it passed packets on to, so that who is missing comes
//! next time. Whatever is wrong or outdated costs a copy and a wake-up, not a packet.

use super::counts::{Counts, Own};
use super::ports::Inbox;
use super::state::{Network, V4, V6};
use crate::config;
use crate::engine::objects::adapter::Adapter;
use ferroverbs_net::{Datagram, PORT, Receiver, steering};
use parking_lot::Mutex;
use soft_local::shm::layout::{QP_INDEX_BITS, SLOTS};
use soft_local::shm::view::View;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What a process does about packets that come to the wrong one.
#[derive(Debug, Default)]
pub(super) struct Steering {
    /// Packets for others, since it was last thought about.
    astray: AtomicU32,
    /// Something is to be done. Written under the lock of `plan`.
    due: AtomicBool,
    plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    /// When the sockets were asked for their places, if the kernel was not told since.
    asked: Option<Instant>,
    /// When the next time may begin.
    not_before: Option<Instant>,
    /// How long that is after the last time.
    pause: Duration,
    /// The kernel wants no such programs.
    is_refused: bool,
}

/// So many packets come to the wrong process before anything is done: connections that exchange fewer are not worth it.
const ENOUGH: u32 = 16;
/// How long processes have to hear their places.
pub(super) const HEARING: Duration = Duration::from_millis(10);
/// Time from one attempt to the next, which doubles as long as they do not help, and after which it is short again.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);
/// The highest bits of a QP number are the process's slot.
const NAMING: steering::Bits = steering::Bits((24 - QP_INDEX_BITS) as u8);
const FAMILIES: [(u8, IpAddr); 2] =
    [(V4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)), (V6, IpAddr::V6(Ipv6Addr::UNSPECIFIED))];

impl Plan {
    /// Whether an attempt begins now.
    fn begins(&mut self, now: Instant) -> bool {
        let pause = match self.not_before {
            _ if self.is_refused || self.asked.is_some() => return false,
            Some(at) if now < at => return false,
            Some(at) if now - at < LONGEST => (self.pause * 2).min(LONGEST),
            _ => SHORTEST,
        };
        (self.pause, self.not_before) = (pause, Some(now + pause));
        true
    }
}

impl Steering {
    /// Whether [`Network::steer`] is to be called soon.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    /// A packet came that is for another process.
    pub(super) fn went_astray(&self) {
        if self.astray.fetch_add(1, Ordering::Relaxed) + 1 < ENOUGH {
            return;
        }
        self.astray.store(0, Ordering::Relaxed);
        let mut plan = self.plan.lock();
        if config::steers() && plan.begins(Instant::now()) {
            self.due.store(true, Ordering::Relaxed);
        }
    }
}

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
        let used = self.families.load(Ordering::Relaxed);
        for ((family, any), receiver) in FAMILIES.into_iter().zip([&inbox.v4, &inbox.v6]) {
            let Some(receiver) = receiver.as_ref().filter(|_| used & family != 0) else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rare_while_they_do_not_help_and_prompt_again_after_a_quiet_time() {
        let (mut plan, mut now) = (Plan::default(), Instant::now());
        let begun = now;
        let mut count = 0;
        while now - begun < Duration::from_secs(60) {
            count += u32::from(plan.begins(now));
            now += Duration::from_millis(1);
        }
        assert!((15..25).contains(&count), "{count} in a minute");
        now += 3 * LONGEST;
        assert!(plan.begins(now));
        assert!(!plan.begins(now + SHORTEST / 2) && plan.begins(now + SHORTEST * 2));
    }

    #[test]
    fn one_attempt_at_a_time_and_none_where_they_are_refused() {
        let now = Instant::now();
        let mut plan = Plan { asked: Some(now), ..Plan::default() };
        assert!(!plan.begins(now + LONGEST));
        plan = Plan { is_refused: true, ..Plan::default() };
        assert!(!plan.begins(now + LONGEST));
    }
}
