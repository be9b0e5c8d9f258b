//! Detection of hosts without any RDMA process, so that a connection attempt fails early.
//! On such a host no socket has UDP port 4791, and the kernel reports that (ICMP, "port
//! unreachable"). An adapter, rxe and every process with soft hold the port, so a slow or stopped
//! process is not taken for absent.
//!
//! Requests themselves leave through soft and get no ICMP error. While a host is silent, a separate
//! socket therefore sends an empty datagram to the port; a receiver drops the datagram.

use crate::agent::Peer;
use ferroverbs_cm::Time;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::time::Duration;

/// The UDP port of RoCE v2.
const PORT: u16 = 4791;
/// The silence after which a host is probed, and the time that each probe waits for an answer.
const STEP: Duration = Duration::from_secs(2);
/// The number of consecutive port-unreachable reports that make a host absent. A process that
/// succeeds an ended process takes the port soon.
const REFUSALS: u32 = 4;
/// The largest number of probed hosts; attempts to further hosts wait for their timeout.
const MOST: usize = 256;

/// Hosts with a request and no answer since then.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    hosts: HashMap<Peer, Silent>,
}

#[derive(Debug)]
struct Silent {
    /// The time of the next probe.
    next: Time,
    /// The probe socket; None before the first probe.
    socket: Option<UdpSocket>,
    refusals: u32,
}

impl Silence {
    /// Records a request to a host.
    pub(crate) fn asked(&mut self, now: Time, peer: Peer) {
        if self.hosts.len() < MOST {
            let next = now.saturating_add(STEP);
            self.hosts.entry(peer).or_insert(Silent { next, socket: None, refusals: 0 });
        }
    }

    /// Records an answer of a host.
    pub(crate) fn heard(&mut self, peer: &Peer) {
        self.hosts.remove(peer);
    }

    /// The time of the next probe.
    pub(crate) fn next(&self) -> Option<Time> {
        self.hosts.values().map(|silent| silent.next).min()
    }

    /// Probes hosts, and returns the hosts that are absent. A host for which `is_awaited` is false
    /// is dropped.
    pub(crate) fn due(&mut self, now: Time, is_awaited: impl Fn(&Peer) -> bool) -> Vec<Peer> {
        let mut absent = vec![];
        self.hosts.retain(|peer, silent| {
            if silent.next > now {
                return true;
            }
            silent.next = now.saturating_add(STEP);
            if !is_awaited(peer) {
                return false;
            }
            match silent.look(*peer) {
                Some(true) => silent.refusals += 1,
                Some(false) => silent.refusals = 0,
                // The host cannot be probed.
                None => return false,
            }
            if silent.refusals >= REFUSALS {
                absent.push(*peer);
            }
            silent.refusals < REFUSALS
        });
        absent
    }
}

impl Silent {
    /// Sends a probe, and returns whether the last probe was refused. `None`: no probe can be sent.
    fn look(&mut self, peer: Peer) -> Option<bool> {
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
    fn looked(silence: &mut Silence, is_awaited: bool) -> (Vec<Peer>, u32) {
        for step in 1..=2 * REFUSALS {
            let now = STEP * step;
            let absent = silence.due(now, |_| is_awaited);
            if !absent.is_empty() || silence.next().is_none() {
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
        let mut silence = Silence::default();
        silence.asked(Time::ZERO, peer(2));
        silence.asked(Time::ZERO, peer(2));
        assert_eq!((silence.next(), silence.due(STEP / 2, |_| true)), (Some(STEP), vec![]));
        // The first probe only sends.
        assert_eq!(looked(&mut silence, true), (vec![peer(2)], 1 + REFUSALS));
        assert_eq!(silence.next(), None);

        silence.asked(Time::ZERO, peer(3));
        assert_eq!(looked(&mut silence, true), (vec![], 0), "somebody has its port");
        drop(held);
        silence.heard(&peer(3));
        assert_eq!(silence.next(), None);

        silence.asked(Time::ZERO, peer(2));
        assert_eq!(looked(&mut silence, false), (vec![], 1), "nobody waits for it");
    }
}
