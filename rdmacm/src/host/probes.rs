//! Detection of hosts without any RDMA process, so that a connection attempt fails early.
//! On such a host no socket has UDP port 4791, and the kernel reports that (ICMP, "port
//! unreachable"). An adapter, rxe and every process with soft hold the port, so a slow or stopped
//! process is not taken for absent.
//!
//! Requests themselves leave through soft and get no ICMP error. While a host is silent, the system
//! therefore sends an empty datagram to the port ([`HostSystem::probe`]); a receiver drops the
//! datagram.

use super::HostSystem;
use crate::host::peer::Peer;
use ferroverbs_cm::Time;
use std::collections::HashMap;
use std::time::Duration;

/// The silence after which a host is probed, and the time that each probe waits for an answer.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// The number of consecutive port-unreachable reports that make a host absent. A process that
/// succeeds an ended process takes the port soon.
pub(super) const REFUSALS: u32 = 4;
/// The largest number of probed hosts; attempts to further hosts wait for their timeout.
const MOST: usize = 256;

/// Hosts with a request and no answer since then.
#[derive(Debug, Default)]
pub(super) struct HostProbes {
    hosts: HashMap<Peer, HostProbe>,
}

#[derive(Debug)]
struct HostProbe {
    /// The time of the next probe.
    next: Time,
    refusals: u32,
}

impl HostProbes {
    /// Records a request to a host.
    pub(super) fn request_sent(&mut self, now: Time, peer: Peer) {
        if self.hosts.len() < MOST {
            let next = now.saturating_add(PROBE_INTERVAL);
            self.hosts.entry(peer).or_insert(HostProbe { next, refusals: 0 });
        }
    }

    /// Records an answer of a host.
    pub(super) fn answer_received(&mut self, system: &mut impl HostSystem, peer: Peer) {
        if self.hosts.remove(&peer).is_some() {
            system.end_probes(peer);
        }
    }

    /// The time of the next probe.
    pub(super) fn next(&self) -> Option<Time> {
        self.hosts.values().map(|probe| probe.next).min()
    }

    /// Probes hosts, and returns the hosts that are absent. A host for which `is_awaited` is false
    /// is dropped.
    pub(super) fn due(
        &mut self,
        now: Time,
        system: &mut impl HostSystem,
        is_awaited: impl Fn(&Peer) -> bool,
    ) -> Vec<Peer> {
        let mut absent = vec![];
        self.hosts.retain(|peer, probe| {
            if probe.next > now {
                return true;
            }
            probe.next = now.saturating_add(PROBE_INTERVAL);
            let was_refused = if is_awaited(peer) { system.probe(*peer) } else { None };
            match was_refused {
                Some(true) => probe.refusals += 1,
                Some(false) => probe.refusals = 0,
                // Nobody waits for the host, or the host cannot be probed.
                None => {
                    system.end_probes(*peer);
                    return false;
                }
            }
            if probe.refusals >= REFUSALS {
                absent.push(*peer);
                system.end_probes(*peer);
            }
            probe.refusals < REFUSALS
        });
        absent
    }
}
