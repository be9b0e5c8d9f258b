//! What the connections of this process to one host have under way together.
//!
//! Each has a window of its own, and the other end has one socket for all of them, whose buffer drops what it cannot hold. How large it is nobody says; it is
//! taken to be as ours. So a connection may have under way what the others leave of that room. Who finds none waits for its turn, and while somebody waits nobody
//! has more than an equal share. What other hosts send there is not known here: that is for switches and losses to tell.
#![forbid(unsafe_code)]

use cface::sync::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The hosts that connections lead to.
#[derive(Debug, Default)]
pub(crate) struct Hosts(Mutex<HashMap<IpAddr, Weak<Host>>>);

/// A host that connections of this process lead to.
#[derive(Debug, Default)]
struct Host {
    /// Bytes under way to it.
    flying: AtomicU64,
    /// How many connections have some there.
    active: AtomicU32,
    /// How many wait for room.
    waiting: AtomicU32,
}

/// A connection's part.
#[derive(Debug)]
pub(super) struct Share {
    host: Arc<Host>,
    room: u64,
    /// Bytes of the longest packet, as the transport counts it.
    packet: u64,
    /// Its bytes under way, as the host's were told of them.
    told: u64,
    waits: bool,
    /// It waited, and its turn has come.
    is_its_turn: bool,
}

/// What a process without privileges gets for its socket by default, as the kernel counts it (`net.core.rmem_default`, twice).
const DEFAULT_BUFFER: usize = 425_984;

/// What the transport counts for a packet besides its data.
const HEADERS: u64 = 64;
/// Bytes of short messages that need not be told: none of them waits for room, which is 0.02 us of a round trip.
const LITTLE: u64 = 512;

/// Packets that probably come one by one: whose share is larger sends longer datagrams.
const SHORT: u64 = 3;
/// Packets that such a connection is taken to have under way besides. The kernel has memory for two where one comes alone, and what was read counts until it is a
/// quarter of the buffer (`udp_rmem_release` in Linux's net/ipv4/udp.c).
const BESIDES: u64 = 2;

/// Bytes of packets with `packet` bytes of data each that a socket with a buffer of `buffer` bytes is taken to hold; 0: it is not known how large that is. The kernel
/// counts what it has allocated: up to three times as much as short packets have, and hardly more than long ones that it merged. With half of this nothing is lost
/// either, but sixteen queue pairs have half of the bandwidth (docs/guide/hosts.md).
pub(super) fn room(buffer: usize, packet: u32) -> u64 {
    let buffer = if buffer == 0 { DEFAULT_BUFFER } else { buffer } as u64;
    match packet {
        0..=512 => buffer / 2,
        _ => buffer / 5 * 4,
    }
}

/// What a socket is taken to count besides `bytes` under way, in packets of `packet` bytes.
const fn besides(bytes: u64, packet: u64) -> u64 {
    if bytes > SHORT * packet { 0 } else { BESIDES * packet }
}

impl Hosts {
    /// The part of a connection to `to`, whose packets have `packet` bytes and go to a socket with a buffer of `buffer` bytes.
    pub(super) fn join(&self, to: IpAddr, buffer: usize, packet: u32) -> Share {
        let mut hosts = self.0.lock();
        let known = hosts.get(&to).and_then(Weak::upgrade);
        let host = known.unwrap_or_else(|| {
            hosts.retain(|_, host| host.strong_count() > 0);
            let host = Arc::default();
            hosts.insert(to, Arc::downgrade(&host));
            host
        });
        let (data, packet) = (packet, u64::from(packet) + HEADERS);
        Share {
            host,
            // Who is alone never waits, however small the socket is: nothing would come that ends it.
            room: room(buffer, data).max(packet + besides(packet, packet)),
            packet,
            told: 0,
            waits: false,
            is_its_turn: false,
        }
    }
}

impl Share {
    /// Bytes that this connection may have under way, which has `flying` now; 0: none before others of it have come.
    #[inline]
    pub(super) fn allowance(&mut self, flying: u64) -> u64 {
        let is_its_turn = std::mem::take(&mut self.is_its_turn);
        let all = self.host.flying.load(Ordering::Relaxed);
        let left = self.room.saturating_sub(all.saturating_sub(self.told));
        let waiting = self.host.waiting.load(Ordering::Relaxed);
        // Not before those who wait already.
        if flying == 0
            && (left < self.packet + besides(self.packet, self.packet)
                || waiting > 0 && !is_its_turn)
        {
            return 0;
        }
        let mine = match waiting {
            0 => left,
            _ => {
                let active = self.host.active.load(Ordering::Relaxed);
                left.min(self.room / u64::from(active + waiting))
            }
        };
        mine.saturating_sub(besides(mine, self.packet)).max(self.packet)
    }

    /// `flying` bytes are under way now.
    #[inline]
    pub(super) fn tell(&mut self, flying: u64) {
        // Who has less under way than the kernel counts for any packet costs nobody anything.
        let flying = if flying > LITTLE { flying + besides(flying, self.packet) } else { 0 };
        if flying != self.told {
            self.change(flying);
        }
    }

    fn change(&mut self, flying: u64) {
        let before = std::mem::replace(&mut self.told, flying);
        // Numbers that wrap add up all the same.
        self.host.flying.fetch_add(flying.wrapping_sub(before), Ordering::Relaxed);
        match (before, flying) {
            (0, _) => self.host.active.fetch_add(1, Ordering::Relaxed),
            (_, 0) => self.host.active.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// It waits for room from now on; `false`: it does already.
    #[cold]
    pub(super) fn begin_to_wait(&mut self) -> bool {
        if std::mem::replace(&mut self.waits, true) {
            return false;
        }
        self.host.waiting.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Its turn has come.
    pub(super) fn end_to_wait(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.is_its_turn = true;
            self.host.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether it waits for room.
    pub(super) const fn waits(&self) -> bool {
        self.waits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.tell(0);
        self.end_to_wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const BUFFER: usize = 1 << 20;
    const PACKET: u32 = 4096;

    fn join(hosts: &Hosts, last: u8) -> Share {
        hosts.join(Ipv4Addr::new(10, 0, 0, last).into(), BUFFER, PACKET)
    }

    #[test]
    fn one_alone_has_all_the_room_and_gives_it_back() {
        let hosts = Hosts::default();
        let mut one = join(&hosts, 1);
        let all = room(BUFFER, PACKET);
        assert_eq!(one.allowance(0), all);
        one.tell(300_000);
        assert_eq!(one.allowance(300_000), all, "its own does not count");
        let mut other = join(&hosts, 1);
        assert_eq!(other.allowance(0), all - 300_000);
        assert_eq!(join(&hosts, 2).allowance(0), all, "another host");
        drop(one);
        assert_eq!(other.allowance(0), all);
    }

    #[test]
    fn many_that_begin_at_once_never_overrun_the_room_and_all_get_their_turn() {
        let hosts = Hosts::default();
        let mut shares: Vec<Share> = (0..200).map(|_| join(&hosts, 1)).collect();
        let all = room(BUFFER, PACKET);
        let (mut flying, mut sent) = (vec![0; shares.len()], vec![0; shares.len()]);
        let mut queue = std::collections::VecDeque::new();
        let go = |share: &mut Share,
                  flying: &mut u64,
                  sent: &mut u64,
                  queue: &mut std::collections::VecDeque<usize>,
                  index| {
            let allowed = share.allowance(*flying);
            if allowed == 0 {
                if share.begin_to_wait() {
                    queue.push_back(index);
                }
            } else if allowed > *flying {
                *sent += allowed - *flying;
                *flying = allowed;
            }
            share.tell(*flying);
        };
        for _ in 0..100 {
            for index in 0..shares.len() {
                // What was under way has come, and it has always more to send.
                flying[index] = 0;
                shares[index].tell(0);
                go(&mut shares[index], &mut flying[index], &mut sent[index], &mut queue, index);
                for _ in 0..queue.len() {
                    let next = queue.pop_front().expect("not empty");
                    shares[next].end_to_wait();
                    go(&mut shares[next], &mut flying[next], &mut sent[next], &mut queue, next);
                }
                assert!(flying.iter().sum::<u64>() <= all);
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
    fn while_somebody_waits_nobody_has_more_than_an_equal_share() {
        let hosts = Hosts::default();
        let (mut hog, mut other) = (join(&hosts, 1), join(&hosts, 1));
        let all = room(BUFFER, PACKET);
        hog.tell(all);
        assert_eq!((hog.allowance(all), other.allowance(0)), (all, 0));
        assert!(other.begin_to_wait() && !other.begin_to_wait());
        assert_eq!(hog.allowance(all), all / 2);
        other.end_to_wait();
        assert!(!other.waits());
        assert_eq!(hog.allowance(all), all);
    }

    #[test]
    fn many_with_a_packet_each_are_taken_to_fill_more_than_their_bytes() {
        let hosts = Hosts::default();
        let mut shares: Vec<Share> = (0..200).map(|_| join(&hosts, 1)).collect();
        let packet = u64::from(PACKET) + HEADERS;
        let allowed = |share: &mut Share| {
            let allowed = share.allowance(0);
            share.tell(allowed.min(packet));
            allowed
        };
        let sending = shares.iter_mut().map(allowed).take_while(|allowed| *allowed > 0).count();
        assert_eq!(sending as u64, room(BUFFER, PACKET) / (packet * (1 + BESIDES)));
    }

    #[test]
    fn one_alone_sends_a_packet_to_the_smallest_socket() {
        let hosts = Hosts::default();
        let mut one = hosts.join(Ipv4Addr::LOCALHOST.into(), 4608, PACKET);
        assert!(one.allowance(0) >= u64::from(PACKET));
        one.tell(u64::from(PACKET) + HEADERS);
        let mut other = hosts.join(Ipv4Addr::LOCALHOST.into(), 4608, PACKET);
        assert_eq!(other.allowance(0), 0, "not both");
        drop(one);
        assert!(other.allowance(0) >= u64::from(PACKET));
    }

    #[test]
    fn a_short_message_is_told_to_nobody() {
        let hosts = Hosts::default();
        let mut one = join(&hosts, 1);
        one.tell(8 + HEADERS);
        assert_eq!(join(&hosts, 1).allowance(0), room(BUFFER, PACKET));
        one.tell(u64::from(PACKET));
        assert!(join(&hosts, 1).allowance(0) < room(BUFFER, PACKET));
        one.tell(0);
        assert_eq!(one.host.active.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn hosts_that_nobody_leads_to_are_forgotten() {
        let hosts = Hosts::default();
        for last in 0..100 {
            join(&hosts, last);
        }
        assert_eq!(hosts.0.lock().len(), 1);
    }
}
