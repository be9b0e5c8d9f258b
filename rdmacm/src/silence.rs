//! Hosts that answer no request since nobody is there who could: not one process has its UDP port 4791, and its kernel says so (ICMP, "port unreachable"). An adapter, the kernel's rxe and
//! any process with soft has the port, so that who is only slow, or stopped, is not taken for absent.
//!
//! Requests themselves hear nothing of it, as they leave by soft. So an empty datagram, which everybody throws away, goes to that port while a host is silent, by a socket that hears it.

use crate::agent::Peer;
use ferroverbs_cm::Time;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::time::Duration;

/// RoCE v2's.
const PORT: u16 = 4791;
/// How long a host may be silent before it is looked at, and how long it has to answer each time.
const STEP: Duration = Duration::from_secs(2);
/// How often in a row its kernel has to say that the port is nobody's: who takes the place of a process that has ended is there soon.
const REFUSALS: u32 = 4;
/// Hosts at most; others are waited for to the end.
const MOST: usize = 256;

/// Hosts that were asked, and of which nothing was heard since.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    hosts: HashMap<Peer, Silent>,
}

#[derive(Debug)]
struct Silent {
    /// When it is looked at.
    next: Time,
    /// There is none before that.
    socket: Option<UdpSocket>,
    refusals: u32,
}

impl Silence {
    /// A host is asked for something.
    pub(crate) fn asked(&mut self, now: Time, peer: Peer) {
        if self.hosts.len() < MOST {
            let next = now.saturating_add(STEP);
            self.hosts.entry(peer).or_insert(Silent { next, socket: None, refusals: 0 });
        }
    }

    /// It says something.
    pub(crate) fn heard(&mut self, peer: &Peer) {
        self.hosts.remove(peer);
    }

    /// When one is to be looked at.
    pub(crate) fn next(&self) -> Option<Time> {
        self.hosts.values().map(|silent| silent.next).min()
    }

    /// Hosts at which nobody is; of those for which `is_awaited` does not hold, nobody cares any more.
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
                // It cannot be seen.
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
    /// Whether the last datagram was refused; sends another one. `None`: none can be sent.
    fn look(&mut self, peer: Peer) -> Option<bool> {
        let was_refused = match &self.socket {
            None => {
                self.socket = Some(open(peer).ok()?);
                false
            }
            Some(socket) => is_refused(socket.recv(&mut [0; 1])),
        };
        // What came between the two is told by whichever is called first.
        let is_refused = is_refused(self.socket.as_ref()?.send(&[]));
        Some(was_refused || is_refused)
    }
}

fn is_refused(done: std::io::Result<usize>) -> bool {
    done.is_err_and(|why| why.kind() == ErrorKind::ConnectionRefused)
}

/// A socket for datagrams to that port of a host, from the address that it knows us by.
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

    /// Looks until something comes of it, a few steps at most.
    fn looked(silence: &mut Silence, is_awaited: bool) -> (Vec<Peer>, u32) {
        for step in 1..=2 * REFUSALS {
            let now = STEP * step;
            let absent = silence.due(now, |_| is_awaited);
            if !absent.is_empty() || silence.next().is_none() {
                return (absent, step);
            }
            // The kernel answers at once where no cable is between.
            std::thread::sleep(Duration::from_millis(20));
        }
        (vec![], 0)
    }

    #[test]
    fn a_host_whose_port_is_nobodys_is_absent_and_one_that_has_it_or_speaks_is_not() {
        // Whatever processes of this machine have the port at all addresses is this one's, too.
        let Ok(held) = UdpSocket::bind((Ipv4Addr::new(127, 47, 91, 3), PORT)) else {
            eprintln!("skipped: UDP port 4791 is somebody's on this machine");
            return;
        };
        let mut silence = Silence::default();
        silence.asked(Time::ZERO, peer(2));
        silence.asked(Time::ZERO, peer(2));
        assert_eq!((silence.next(), silence.due(STEP / 2, |_| true)), (Some(STEP), vec![]));
        // The first look sends only.
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
