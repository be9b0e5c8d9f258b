//! Detection of hosts without any RDMA process, so that a connection attempt fails early.
//! On such a host no socket has UDP port 4791, and the kernel reports that (ICMP, "port
//! unreachable"). An adapter, rxe and every process with soft hold the port, so a slow or stopped
//! process is not taken for absent.
//!
//! Requests themselves leave through soft and get no ICMP error. While a host is silent, a separate
//! socket therefore sends an empty datagram to the port; a receiver drops the datagram.

use crate::host::peer::Peer;
use ferroverbs_cm::Time;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::time::Duration;

/// The UDP port of RoCE v2.
const PORT: u16 = 4791;
/// The silence after which a host is probed, and the time that each probe waits for an answer.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// The number of consecutive port-unreachable reports that make a host absent. A process that
/// succeeds an ended process takes the port soon.
const REFUSALS: u32 = 4;
/// The largest number of probed hosts; attempts to further hosts wait for their timeout.
const MOST: usize = 256;

/// Hosts with a request and no answer since then.
#[derive(Debug, Default)]
pub(crate) struct HostProbes {
    hosts: HashMap<Peer, HostProbe>,
}

#[derive(Debug)]
struct HostProbe {
    /// The time of the next probe.
    next: Time,
    /// The probe socket; None before the first probe.
    socket: Option<UdpSocket>,
    refusals: u32,
}

impl HostProbes {
    /// Records a request to a host.
    pub(crate) fn request_sent(&mut self, now: Time, peer: Peer) {
        if self.hosts.len() < MOST {
            let next = now.saturating_add(PROBE_INTERVAL);
            self.hosts.entry(peer).or_insert(HostProbe { next, socket: None, refusals: 0 });
        }
    }

    /// Records an answer of a host.
    pub(crate) fn answer_received(&mut self, peer: &Peer) {
        self.hosts.remove(peer);
    }

    /// The time of the next probe.
    pub(crate) fn next(&self) -> Option<Time> {
        self.hosts.values().map(|probe| probe.next).min()
    }

    /// Probes hosts, and returns the hosts that are absent. A host for which `is_awaited` is false
    /// is dropped.
    pub(crate) fn due(&mut self, now: Time, is_awaited: impl Fn(&Peer) -> bool) -> Vec<Peer> {
        let mut absent = vec![];
        self.hosts.retain(|peer, probe| {
            if probe.next > now {
                return true;
            }
            probe.next = now.saturating_add(PROBE_INTERVAL);
            if !is_awaited(peer) {
                return false;
            }
            match probe.probe(*peer) {
                Some(true) => probe.refusals += 1,
                Some(false) => probe.refusals = 0,
                // The host cannot be probed.
                None => return false,
            }
            if probe.refusals >= REFUSALS {
                absent.push(*peer);
            }
            probe.refusals < REFUSALS
        });
        absent
    }
}

impl HostProbe {
    /// Sends a probe, and returns whether the last probe was refused. `None`: no probe can be sent.
    fn probe(&mut self, peer: Peer) -> Option<bool> {
        let was_refused = match &self.socket {
            None => {
                self.socket = Some(open(peer).ok()?);
                false
            }
            Some(socket) => is_refused(socket.recv(&mut [0; 1])),
        };
        // The first of the two calls after an ICMP report returns the error.
        let is_refused = is_refused(self.socket.as_ref()?.send(&[]));
        Some(was_refused || is_refused)
    }
}

fn is_refused(done: std::io::Result<usize>) -> bool {
    done.is_err_and(|why| why.kind() == ErrorKind::ConnectionRefused)
}

/// A socket for datagrams to that port of a host, from the local address that the host knows.
fn open(peer: Peer) -> std::io::Result<UdpSocket> {
    let address = |gid| Ipv6Addr::from(gid).to_canonical();
    let (own, its): (IpAddr, IpAddr) = (address(peer.local), address(peer.remote));
    let socket = UdpSocket::bind((own, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect((its, PORT))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn peer(last: u8) -> Peer {
        let gid = |last| Ipv4Addr::new(127, 47, 91, last).to_ipv6_mapped().octets();
        Peer { remote: gid(last), local: gid(1) }
    }

    /// Probes until the result is known, for a few steps at most.
    fn probe_until_known(probes: &mut HostProbes, is_awaited: bool) -> (Vec<Peer>, u32) {
        for step in 1..=2 * REFUSALS {
            let now = PROBE_INTERVAL * step;
            let absent = probes.due(now, |_| is_awaited);
            if !absent.is_empty() || probes.next().is_none() {
                return (absent, step);
            }
            // Over loopback, the kernel answers at once.
            std::thread::sleep(Duration::from_millis(20));
        }
        (vec![], 0)
    }

    #[test]
    fn a_host_whose_port_is_nobodys_is_absent_and_one_that_has_it_or_speaks_is_not() {
        // A process of this machine that has the port at all addresses would also have it at this
        // address.
        let Ok(held) = UdpSocket::bind((Ipv4Addr::new(127, 47, 91, 3), PORT)) else {
            eprintln!("skipped: UDP port 4791 is somebody's on this machine");
            return;
        };
        let mut probes = HostProbes::default();
        probes.request_sent(Time::ZERO, peer(2));
        probes.request_sent(Time::ZERO, peer(2));
        assert_eq!(
            (probes.next(), probes.due(PROBE_INTERVAL / 2, |_| true)),
            (Some(PROBE_INTERVAL), vec![])
        );
        // The first probe only sends.
        assert_eq!(probe_until_known(&mut probes, true), (vec![peer(2)], 1 + REFUSALS));
        assert_eq!(probes.next(), None);

        probes.request_sent(Time::ZERO, peer(3));
        assert_eq!(probe_until_known(&mut probes, true), (vec![], 0), "somebody has its port");
        drop(held);
        probes.answer_received(&peer(3));
        assert_eq!(probes.next(), None);

        probes.request_sent(Time::ZERO, peer(2));
        assert_eq!(probe_until_known(&mut probes, false), (vec![], 1), "nobody waits for it");
    }
}
