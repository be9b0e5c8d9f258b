//! Sockets that ask whether a host has UDP port 4791 of RoCE v2.
//! A host without the port answers a datagram by ICMP, "port unreachable".

use std::collections::HashMap;
use std::hash::Hash;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};

/// The UDP port of RoCE v2.
const PORT: u16 = 4791;

/// One socket for each probed host, which `K` identifies.
#[derive(Debug)]
pub(crate) struct ProbeSockets<K>(HashMap<K, UdpSocket>);

impl<K> Default for ProbeSockets<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Copy + Eq + Hash> ProbeSockets<K> {
    /// Sends an empty datagram from `own` to `to`, and returns whether the previous datagram was
    /// refused. `None`: no datagram can be sent.
    pub(crate) fn probe(&mut self, host: K, own: IpAddr, to: IpAddr) -> Option<bool> {
        let was_refused = match self.0.get(&host) {
            Some(socket) => is_refused(socket.recv(&mut [0; 1])),
            None => {
                self.0.insert(host, open(own, to).ok()?);
                false
            }
        };
        // The first of the two calls after an ICMP report returns the error.
        let is_refused = is_refused(self.0.get(&host)?.send(&[]));
        Some(was_refused || is_refused)
    }

    /// Closes the socket of a host.
    pub(crate) fn close(&mut self, host: K) {
        self.0.remove(&host);
    }
}

fn is_refused(done: std::io::Result<usize>) -> bool {
    done.is_err_and(|why| why.kind() == ErrorKind::ConnectionRefused)
}

fn open(own: IpAddr, to: IpAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind((own, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect((to, PORT))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_host_refuses_unless_a_socket_has_the_port() {
        let address = |last| Ipv4Addr::new(127, 47, 91, last);
        // A process of this machine that has the port at all addresses would also have it at this
        // address.
        let Ok(_held) = UdpSocket::bind((address(3), PORT)) else {
            eprintln!("skipped: UDP port 4791 is taken on this machine");
            return;
        };
        let mut sockets = ProbeSockets::default();
        for (last, is_refused) in [(2, true), (3, false)] {
            let to = address(last).into();
            assert_eq!(sockets.probe(last, address(1).into(), to), Some(false), "no report yet");
            // Over loopback, the kernel reports before send(2) returns.
            assert_eq!(sockets.probe(last, address(1).into(), to), Some(is_refused));
            sockets.close(last);
        }
    }
}
