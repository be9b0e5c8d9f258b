//! Shares the send window to one destination host among all connections of this process.
//! Asked by `send` before packets leave.
//!
//! Each connection has a window of its own, but the destination has one socket for all of them, and
//! drops what its buffer cannot hold. The buffer is assumed to be as large as the buffer of this
//! process. A connection may have in flight what the remaining connections leave of the capacity. A
//! connection without room waits for its turn, and meanwhile no connection has more than an equal
//! share. Traffic of further hosts to the same destination is unknown here; losses and congestion
//! marks limit that traffic.
#![forbid(unsafe_code)]

use cface::sync::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Destination hosts by address.
#[derive(Debug, Default)]
pub(crate) struct DestinationHosts(Mutex<HashMap<IpAddr, Weak<DestinationHost>>>);

/// A destination host of at least one connection.
#[derive(Debug, Default)]
struct DestinationHost {
    /// Bytes in flight to the host.
    in_flight: AtomicU64,
    /// Number of connections with bytes in flight.
    active: AtomicU32,
    /// Number of connections that wait for room.
    waiting: AtomicU32,
}

/// The share of one connection.
#[derive(Debug)]
pub(crate) struct WindowShare {
    host: Arc<DestinationHost>,
    capacity: u64,
    /// Bytes of the longest packet, as the transport counts.
    packet_bytes: u64,
    /// Bytes in flight that `host.in_flight` includes for this connection.
    reported: u64,
    is_waiting: bool,
    /// The connection has waited, and its turn has come.
    was_resumed: bool,
}

/// Receive buffer of an unprivileged process by default, as the kernel counts (twice
/// `net.core.rmem_default`).
const DEFAULT_BUFFER: usize = 425_984;

/// Bytes of headers that the transport counts for each packet.
const HEADERS: u64 = 64;
/// Up to this many bytes in flight are not added to the host: short messages never wait for room,
/// and save 0.02 us of a round trip.
const UNREPORTED_BYTES: u64 = 512;

/// Up to this many packets a connection probably sends datagrams of one packet each.
const SHORT_PACKETS: u64 = 3;
/// Packets that a socket counts in addition for such a connection. The kernel allocates memory for
/// two packets when one arrives alone, and counts read packets until they fill a quarter of the
/// buffer (`udp_rmem_release` in Linux's net/ipv4/udp.c).
const OVERHEAD_PACKETS: u64 = 2;

/// Bytes that a socket with a buffer of `buffer` bytes holds, in packets of `packet` bytes of
/// payload. A `buffer` of 0 is unknown. The kernel counts allocated memory: up to three times the
/// bytes of short packets, and hardly more than the bytes of long packets that were merged. Half of
/// this value prevents no further losses, but halves the bandwidth of sixteen QPs
/// (docs/guide/hosts.md).
pub(super) fn socket_capacity(buffer: usize, packet: u32) -> u64 {
    let buffer = if buffer == 0 { DEFAULT_BUFFER } else { buffer } as u64;
    match packet {
        0..=512 => buffer / 2,
        _ => buffer / 5 * 4,
    }
}

/// Bytes that a socket counts in addition to `bytes` in flight, in packets of `packet` bytes.
const fn socket_overhead(bytes: u64, packet: u64) -> u64 {
    if bytes > SHORT_PACKETS * packet { 0 } else { OVERHEAD_PACKETS * packet }
}

impl DestinationHosts {
    /// The share of a new connection to `to`. Its packets have `packet` bytes of payload; the
    /// destination's buffer has `buffer` bytes.
    pub(super) fn join(&self, to: IpAddr, buffer: usize, packet: u32) -> WindowShare {
        let mut hosts = self.0.lock();
        let known = hosts.get(&to).and_then(Weak::upgrade);
        let host = known.unwrap_or_else(|| {
            hosts.retain(|_, host| host.strong_count() > 0);
            let host = Arc::default();
            hosts.insert(to, Arc::downgrade(&host));
            host
        });
        let (data, packet) = (packet, u64::from(packet) + HEADERS);
        WindowShare {
            host,
            // A single connection never waits, however small the buffer is: no packet would end the
            // wait.
            capacity: socket_capacity(buffer, data).max(packet + socket_overhead(packet, packet)),
            packet_bytes: packet,
            reported: 0,
            is_waiting: false,
            was_resumed: false,
        }
    }
}

impl WindowShare {
    /// Bytes that this connection may have in flight; `in_flight` bytes are in flight now. 0: the
    /// connection has to wait for packets of its competitors to arrive.
    #[inline]
    pub(super) fn allowance(&mut self, in_flight: u64) -> u64 {
        let was_resumed = std::mem::take(&mut self.was_resumed);
        let all = self.host.in_flight.load(Ordering::Relaxed);
        let left = self.capacity.saturating_sub(all.saturating_sub(self.reported));
        let waiting = self.host.waiting.load(Ordering::Relaxed);
        // Connections that wait have precedence.
        if in_flight == 0
            && (left < self.packet_bytes + socket_overhead(self.packet_bytes, self.packet_bytes)
                || waiting > 0 && !was_resumed)
        {
            return 0;
        }
        let mine = match waiting {
            0 => left,
            _ => {
                let active = self.host.active.load(Ordering::Relaxed);
                left.min(self.capacity / u64::from(active + waiting))
            }
        };
        mine.saturating_sub(socket_overhead(mine, self.packet_bytes)).max(self.packet_bytes)
    }

    /// Reports that `in_flight` bytes are in flight now.
    #[inline]
    pub(super) fn update(&mut self, in_flight: u64) {
        // Fewer bytes than the kernel counts for each packet do not matter.
        let in_flight = if in_flight > UNREPORTED_BYTES {
            in_flight + socket_overhead(in_flight, self.packet_bytes)
        } else {
            0
        };
        if in_flight != self.reported {
            self.report(in_flight);
        }
    }

    fn report(&mut self, in_flight: u64) {
        let before = std::mem::replace(&mut self.reported, in_flight);
        // Wrapping sums are correct.
        self.host.in_flight.fetch_add(in_flight.wrapping_sub(before), Ordering::Relaxed);
        match (before, in_flight) {
            (0, _) => self.host.active.fetch_add(1, Ordering::Relaxed),
            (_, 0) => self.host.active.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Starts to wait for room. Returns false if the connection waits already.
    #[cold]
    pub(super) fn start_waiting(&mut self) -> bool {
        if std::mem::replace(&mut self.is_waiting, true) {
            return false;
        }
        self.host.waiting.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Ends the wait: the turn of the connection has come.
    pub(super) fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.was_resumed = true;
            self.host.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the connection waits for room.
    pub(super) const fn is_waiting(&self) -> bool {
        self.is_waiting
    }
}

impl Drop for WindowShare {
    fn drop(&mut self) {
        self.update(0);
        self.stop_waiting();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const BUFFER: usize = 1 << 20;
    const PACKET: u32 = 4096;

    fn join(hosts: &DestinationHosts, last: u8) -> WindowShare {
        hosts.join(Ipv4Addr::new(10, 0, 0, last).into(), BUFFER, PACKET)
    }

    #[test]
    fn a_single_connection_has_the_whole_capacity_and_returns_it() {
        let hosts = DestinationHosts::default();
        let mut one = join(&hosts, 1);
        let all = socket_capacity(BUFFER, PACKET);
        assert_eq!(one.allowance(0), all);
        one.update(300_000);
        assert_eq!(one.allowance(300_000), all, "its own does not count");
        let mut other = join(&hosts, 1);
        assert_eq!(other.allowance(0), all - 300_000);
        assert_eq!(join(&hosts, 2).allowance(0), all, "another host");
        drop(one);
        assert_eq!(other.allowance(0), all);
    }

    #[test]
    fn connections_that_start_together_never_exceed_the_capacity_and_each_gets_a_turn() {
        let hosts = DestinationHosts::default();
        let mut shares: Vec<WindowShare> = (0..200).map(|_| join(&hosts, 1)).collect();
        let all = socket_capacity(BUFFER, PACKET);
        let (mut in_flight, mut sent) = (vec![0; shares.len()], vec![0; shares.len()]);
        let mut queue = std::collections::VecDeque::new();
        let go = |share: &mut WindowShare,
                  in_flight: &mut u64,
                  sent: &mut u64,
                  queue: &mut std::collections::VecDeque<usize>,
                  index| {
            let allowed = share.allowance(*in_flight);
            if allowed == 0 {
                if share.start_waiting() {
                    queue.push_back(index);
                }
            } else if allowed > *in_flight {
                *sent += allowed - *in_flight;
                *in_flight = allowed;
            }
            share.update(*in_flight);
        };
        for _ in 0..100 {
            for index in 0..shares.len() {
                // The packets in flight have arrived, and the connection has more to send.
                in_flight[index] = 0;
                shares[index].update(0);
                go(&mut shares[index], &mut in_flight[index], &mut sent[index], &mut queue, index);
                for _ in 0..queue.len() {
                    let next = queue.pop_front().expect("not empty");
                    shares[next].stop_waiting();
                    go(&mut shares[next], &mut in_flight[next], &mut sent[next], &mut queue, next);
                }
                assert!(in_flight.iter().sum::<u64>() <= all);
            }
        }
        let (least, most) = (sent.iter().min(), sent.iter().max());
        assert!(sent.iter().all(|sent| *sent > 0), "{least:?} to {most:?}");
        shares.clear();
        let mut one = join(&hosts, 1);
        assert_eq!(one.host.waiting.load(Ordering::Relaxed), 0);
        assert_eq!(one.allowance(0), all);
    }

    #[test]
    fn while_a_connection_waits_none_has_more_than_an_equal_share() {
        let hosts = DestinationHosts::default();
        let (mut hog, mut other) = (join(&hosts, 1), join(&hosts, 1));
        let all = socket_capacity(BUFFER, PACKET);
        hog.update(all);
        assert_eq!((hog.allowance(all), other.allowance(0)), (all, 0));
        assert!(other.start_waiting() && !other.start_waiting());
        assert_eq!(hog.allowance(all), all / 2);
        other.stop_waiting();
        assert!(!other.is_waiting());
        assert_eq!(hog.allowance(all), all);
    }

    #[test]
    fn single_packets_of_many_connections_count_with_socket_overhead() {
        let hosts = DestinationHosts::default();
        let mut shares: Vec<WindowShare> = (0..200).map(|_| join(&hosts, 1)).collect();
        let packet = u64::from(PACKET) + HEADERS;
        let allowed = |share: &mut WindowShare| {
            let allowed = share.allowance(0);
            share.update(allowed.min(packet));
            allowed
        };
        let sending = shares.iter_mut().map(allowed).take_while(|allowed| *allowed > 0).count();
        assert_eq!(
            sending as u64,
            socket_capacity(BUFFER, PACKET) / (packet * (1 + OVERHEAD_PACKETS))
        );
    }

    #[test]
    fn a_single_connection_sends_a_packet_to_the_smallest_socket() {
        let hosts = DestinationHosts::default();
        let mut one = hosts.join(Ipv4Addr::LOCALHOST.into(), 4608, PACKET);
        assert!(one.allowance(0) >= u64::from(PACKET));
        one.update(u64::from(PACKET) + HEADERS);
        let mut other = hosts.join(Ipv4Addr::LOCALHOST.into(), 4608, PACKET);
        assert_eq!(other.allowance(0), 0, "not both");
        drop(one);
        assert!(other.allowance(0) >= u64::from(PACKET));
    }

    #[test]
    fn a_short_message_is_not_reported_to_the_host() {
        let hosts = DestinationHosts::default();
        let mut one = join(&hosts, 1);
        one.update(8 + HEADERS);
        assert_eq!(join(&hosts, 1).allowance(0), socket_capacity(BUFFER, PACKET));
        one.update(u64::from(PACKET));
        assert!(join(&hosts, 1).allowance(0) < socket_capacity(BUFFER, PACKET));
        one.update(0);
        assert_eq!(one.host.active.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn hosts_without_connections_are_removed() {
        let hosts = DestinationHosts::default();
        for last in 0..100 {
            join(&hosts, last);
        }
        assert_eq!(hosts.0.lock().len(), 1);
    }
}
