//! PacketSteering: a kernel program gives each packet on port 4791 to the process of its QP.
//! Saves the forwarding of packets (`forward`); stands between the kernel and the sockets.
//!
//! All processes of a user share port 4791. Without a program the kernel selects a process by
//! addresses and ports. A program of classic BPF (`ferroverbs_net::steering`) selects by QP number
//! instead, and needs the *position* of each process's socket among the sockets of the port. A new
//! socket has the last position. When a socket is closed, the kernel moves the last socket to its
//! position and notifies no process. A process that closes a socket, or receives packets of other
//! processes, therefore sends probes, by which each socket learns its position. Each process
//! publishes its positions (`socket_positions`). A process that opens the port installs a program
//! with all published positions. So does, a moment later, a process that was moved or has sent
//! probes. A wrong position costs a copy and a wake-up, and loses no packet.

use super::counters::ProcessCounter;
use super::socket_positions::is_complete;
use super::sockets::{Inbox, Sockets, V4, V6};
use super::steering_plan::SteeringPlan;
use super::unavailable::{errno_of, is_temporary};
use crate::config;
use cface::sync::Mutex;
use ferroverbs_net::{Datagram, PORT, Receiver, steering};
use soft_local::shm::layout::QP_INDEX_BITS;
use soft_sys::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The highest bits of a QP number are the slot of its process.
const NAMING: steering::Bits = steering::Bits((24 - QP_INDEX_BITS) as u8);
const FAMILIES: [(u8, IpAddr); 2] =
    [(V4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)), (V6, IpAddr::V6(Ipv6Addr::UNSPECIFIED))];

/// Counts misdirected packets, and notes whether an update of the program is due.
#[derive(Debug, Default)]
pub(crate) struct PacketSteering {
    /// Packets of different processes since the last decision.
    misdirected: AtomicU32,
    /// An update is due. Written under the lock of `plan`.
    due: AtomicBool,
    plan: Mutex<SteeringPlan>,
}

/// Misdirected packets before an attempt begins. Connections with fewer packets gain less than a
/// program costs.
const MISDIRECTED_LIMIT: u32 = 16;
/// Time for probes to reach all processes.
pub(super) const PROBE_WAIT: Duration = Duration::from_millis(10);

impl PacketSteering {
    /// Whether an update is due.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    /// Makes an update due without regard to earlier attempts.
    pub(super) fn schedule_update(&self) {
        let _plan = self.plan.lock();
        self.due.store(true, Ordering::Relaxed);
    }

    /// Counts a packet that belongs to another process.
    pub(super) fn count_misdirected(&self) {
        if self.misdirected.fetch_add(1, Ordering::Relaxed) + 1 < MISDIRECTED_LIMIT {
            return;
        }
        self.misdirected.store(0, Ordering::Relaxed);
        self.suspect_steering();
    }

    /// Starts an attempt if the time has come. The kernel may have a wrong position of a socket:
    /// packets reach a wrong process, or none arrive because a stopped process holds them.
    pub(crate) fn suspect_steering(&self) {
        let mut plan = self.plan.lock();
        if plan.starts_attempt(Instant::now()) {
            self.due.store(true, Ordering::Relaxed);
        }
    }

    /// Publishes the positions of the new sockets, and installs the program. The caller holds the
    /// opening lock, so no process has opened a socket since, and no packet has arrived.
    pub(super) fn start(&self, sockets: &Sockets) {
        let inbox = sockets.inbox.lock();
        let counts = open_receivers(&inbox).map(|(family, any, receiver)| {
            let count = steering::sharers(any, PORT).unwrap_or(0);
            if let Some(last) = count.checked_sub(1).and_then(|last| u16::try_from(last).ok()) {
                sockets.positions.set_position(family, last);
            }
            (family, receiver, count)
        });
        let counts: Vec<_> = counts.collect();
        sockets.positions.publish();
        let mut plan = self.plan.lock();
        for (family, receiver, count) in counts {
            if count < 2 || plan.is_refused || !config::steers() {
                continue;
            }
            match install_program(sockets, receiver, family) {
                Ok(rows) if is_complete(&rows, count) => {}
                Err(why) if !is_temporary(why) => plan.is_refused = true,
                // A killed process has left a gap, or the system lacks memory for now: probes
                // follow.
                Ok(_) | Err(_) => self.due.store(true, Ordering::Relaxed),
            }
        }
    }

    /// Publishes changed positions. Then sends probes, or installs the program after the wait for
    /// the probes.
    #[cold]
    pub(super) fn update(&self, sockets: &Sockets, inbox: &Inbox) {
        let mut plan = self.plan.lock();
        let now = Instant::now();
        let is_enabled = config::steers() && !plan.is_refused;
        if sockets.positions.publish() {
            // The process whose exit moved a socket of this process installs no program.
            plan.probed_at = plan.probed_at.or(is_enabled.then_some(now));
        } else if is_enabled && plan.probed_at.is_none() {
            plan.probed_at = Some(now);
            for (family, any, receiver) in open_receivers(inbox) {
                match steering::sharers(any, PORT) {
                    Ok(1) => drop(sockets.positions.set_position(family, 0)),
                    // The program delivers one probe to each position.
                    Ok(count @ 2..) => match install_program(sockets, receiver, family) {
                        Ok(_) => send_probes(any, count),
                        Err(why) => plan.is_refused |= !is_temporary(why),
                    },
                    // Without a count no probe is possible.
                    Ok(0) | Err(_) => {}
                }
            }
        } else if plan.probed_at.is_some_and(|at| now - at >= PROBE_WAIT) {
            plan.probed_at = None;
            for (family, _, receiver) in open_receivers(inbox) {
                let installed = install_program(sockets, receiver, family);
                plan.is_refused |= installed.is_err_and(|why| !is_temporary(why));
            }
        }
        if plan.is_refused {
            plan.probed_at = None;
        }
        self.due.store(plan.probed_at.is_some(), Ordering::Relaxed);
    }

    /// Whether a datagram is a probe. A probe from this host carries the position of the socket
    /// that receives the probe.
    pub(super) fn handle_probe(&self, sockets: &Sockets, datagram: &Datagram<'_>) -> bool {
        let Some(position) = steering::probed(datagram.bytes) else { return false };
        if datagram.source.ip().is_loopback() {
            let family = if datagram.source.is_ipv4() { V4 } else { V6 };
            if sockets.positions.set_position(family, position) {
                self.schedule_update();
            }
        }
        true
    }
}

/// Sends probes to all sockets of the port after the sockets of this process are closed, because
/// the kernel has moved sockets.
pub(super) fn probe_other_sockets() {
    for (_, any) in FAMILIES {
        if let Ok(count @ 1..) = steering::sharers(any, PORT) {
            send_probes(any, count);
        }
    }
}

fn send_probes(any: IpAddr, count: usize) {
    // Without probes the positions stay as published.
    let _ = steering::send_probes(any, PORT, u16::try_from(count).unwrap_or(u16::MAX));
}

/// The open sockets with their families.
fn open_receivers(inbox: &Inbox) -> impl Iterator<Item = (u8, IpAddr, &Receiver)> {
    let with_address = |(family, any)| Some((family, any, inbox.receiver_of(family)?));
    FAMILIES.into_iter().filter_map(with_address)
}

/// Installs a program with all published positions. Returns the positions.
///
/// # Errors
/// The kernel refuses the program, names are not available, or memory is lacking for now.
fn install_program(
    sockets: &Sockets,
    receiver: &Receiver,
    family: u8,
) -> Result<Vec<(u32, u16)>, Errno> {
    let rows = sockets.positions.read_all(family).and_then(|mut rows| {
        receiver.steer(NAMING, &mut rows)?;
        Ok(rows)
    });
    let counts =
        if rows.is_ok() { ProcessCounter::Steered } else { ProcessCounter::SteeringErrors };
    sockets.counters.counter(counts).fetch_add(1, Ordering::Relaxed);
    rows.map_err(|why| errno_of(&why))
}
