//! Packets on the cable: well formed to tshark, each with the correct ICRC, computed independently
//! of the code that emits packets.

use super::LIMIT;
use crate::Bench;
use crate::capture::icrc;
use std::path::Path;
use xtask::process::Job;

/// All packets are RoCE packets, and none is malformed. Payload that resembles another protocol is
/// not dissected. Empty datagrams do not count: librdmacm probes a silent host with them.
pub(super) fn dissect(bench: &Bench, capture: &Path) -> Result<(), String> {
    let job = Job::new("tshark").args(["--disable-protocol", "rpcordma"]);
    let job = job.args(["--disable-heuristic", "eth_over_ib", "-n", "-r"]).arg(capture);
    let malformed = "_ws.malformed or (udp.dstport == 4791 and udp.length > 8 and not infiniband)";
    let job = job.args(["-Y", malformed]);
    let done = job.run(&bench.scratch, LIMIT)?;
    match done.stdout.lines().next() {
        _ if !done.ok() => Err(done.report("tshark")),
        Some(first) => {
            Err(format!("{} malformed packets; the first: {first}", done.stdout.lines().count()))
        }
        None => Ok(()),
    }
}

/// The checked packets of one IP version.
#[derive(Debug, Default, PartialEq, Eq)]
struct Checked {
    /// Those of soft, and those of rxe.
    from: [usize; 2],
    /// Packets that the kernel numbered when it segmented a datagram of soft; only IPv4 has such
    /// numbers.
    cut: usize,
    /// Packets in unsegmented datagrams.
    uncut: usize,
}

/// The ICRCs of all packets are correct: of both sides, over IPv4 and IPv6, of packets that the
/// kernel segmented (UDP_SEGMENT), and in unsegmented datagrams that veth passed on. There are
/// enough packets of each kind.
pub(super) fn icrcs(capture: &Path) -> Result<String, String> {
    let bytes = std::fs::read(capture).map_err(|e| format!("{}: {e}", capture.display()))?;
    let (mut ipv4, mut ipv6) = (Checked::default(), Checked::default());
    for (frame, _) in icrc::frames(&bytes) {
        let Some(packet) = Packet::of(frame) else { continue };
        let checked = if packet.head == IPV4 { &mut ipv4 } else { &mut ipv6 };
        if !packet.check(checked) {
            return Err(format!("a wrong ICRC in a packet of {} bytes: {frame:02x?}", frame.len()));
        }
    }
    let all = format!("{ipv4:?}, {ipv6:?}");
    let few = [ipv4.from, ipv6.from].concat().into_iter().chain([ipv4.cut, ipv4.uncut, ipv6.uncut]);
    if few.min().is_none_or(|least| least < ENOUGH) {
        Err(format!("too few: {all}"))
    } else {
        Ok(all)
    }
}

/// Packets of both sides came marked (ECN), and soft told rxe so.
pub(super) fn marks(capture: &Path) -> Result<String, String> {
    let bytes = std::fs::read(capture).map_err(|e| format!("{}: {e}", capture.display()))?;
    let packets: Vec<_> =
        icrc::frames(&bytes).into_iter().filter_map(|(frame, _)| Packet::of(frame)).collect();
    let count = |wanted: &dyn Fn(&&Packet<'_>) -> bool| packets.iter().filter(wanted).count();
    let marked = [true, false].map(|soft| count(&|p| p.is_marked() && p.is_soft() == soft));
    let reported = count(&|p| p.is_soft() && p.is_notification());
    let all = format!("{marked:?} marked, {reported} notifications");
    if marked.contains(&0) || reported == 0 { Err(format!("too few: {all}")) } else { Ok(all) }
}

/// What a kind of packets has to be captured of at least.
const ENOUGH: usize = 1000;

const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
/// Base header and ICRC: an acknowledgement has 4 more. 1024 bytes of data and the longest headers.
const SEGMENTS: std::ops::RangeInclusive<usize> = 16..=1024 + 60;

/// A datagram of RoCE, which may be several packets yet.
struct Packet<'a> {
    ip: &'a [u8],
    /// Bytes of the IP header.
    head: usize,
}

impl<'a> Packet<'a> {
    fn of(frame: &'a [u8]) -> Option<Self> {
        let ip = frame.get(14..)?;
        let word =
            |at: usize| ip.get(at..)?.first_chunk().map(|b| usize::from(u16::from_be_bytes(*b)));
        let (head, protocol, length) = match frame.get(12..14)? {
            [8, 0] => (IPV4, ip.get(9)?, word(2)?),
            [0x86, 0xdd] => (IPV6, ip.get(6)?, IPV6 + word(4)?),
            _ => return None,
        };
        let is_roce = *protocol == 17 && word(head + 2)? == 4791 && length > head + UDP;
        is_roce.then_some(Self { ip: ip.get(..length)?, head })
    }

    /// rxe has the first address, soft the second.
    fn is_soft(&self) -> bool {
        self.ip.get(if self.head == IPV4 { 15 } else { 23 }) == Some(&2)
    }

    /// Whether a switch marked congestion (RFC 3168).
    fn is_marked(&self) -> bool {
        let class = |byte: &u8| if self.head == IPV4 { *byte } else { *byte >> 4 };
        self.ip.get(1).map(class).is_some_and(|class| class & 3 == 3)
    }

    /// Whether the packet is a congestion notification (IBTA 1.7 A17.9.3).
    fn is_notification(&self) -> bool {
        self.ip.get(self.head + UDP) == Some(&0x81)
    }

    /// Whether all ICRCs are right.
    fn check(&self, checked: &mut Checked) -> bool {
        let right = |ip: &[u8]| icrc::of(ip).is_some_and(|(wanted, got)| wanted == got);
        if right(self.ip) {
            let is_soft = self.is_soft();
            checked.from[usize::from(!is_soft)] += 1;
            checked.cut += usize::from(is_soft && self.head == IPV4 && self.ip[4..6] != [0, 0]);
            return true;
        }
        // How long the packets in it are a capture does not say.
        let Some(payload) = self.ip.get(self.head + UDP..) else { return false };
        for size in SEGMENTS.filter(|size| *size < payload.len()) {
            let mut packets =
                payload.chunks(size).enumerate().map(|(n, packet)| self.cut(n, packet));
            if packets.next().is_some_and(|first| right(&first)) && packets.all(|next| right(&next))
            {
                checked.uncut += payload.len().div_ceil(size);
                return true;
            }
        }
        false
    }

    /// The `n`-th packet of the datagram, as the kernel cuts it.
    fn cut(&self, n: usize, payload: &[u8]) -> Vec<u8> {
        let mut ip = [&self.ip[..self.head + UDP], payload].concat();
        let mut put = |at: usize, value: usize| {
            ip[at..at + 2].copy_from_slice(&u16::try_from(value).unwrap_or_default().to_be_bytes());
        };
        put(self.head + 4, UDP + payload.len());
        if self.head == IPV4 {
            put(2, IPV4 + UDP + payload.len());
            put(4, n);
        } else {
            put(4, UDP + payload.len());
        }
        ip
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet frame with RoCE packets of one length, as soft hands it to the kernel.
    fn frame(head: usize, packets: usize) -> Vec<u8> {
        let (size, mut ip) = (40, vec![0; head + UDP + packets * 40]);
        if head == IPV4 {
            ip[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
            ip[15] = 2;
        } else {
            ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, 17, 64]);
            ip[23] = 2;
        }
        ip[head + 2..head + 4].copy_from_slice(&4791_u16.to_be_bytes());
        let whole = Packet { ip: &ip.clone(), head };
        for n in 0..packets {
            let at = head + UDP + n * size;
            ip[at..at + size].fill(n as u8);
            let packet = whole.cut(n, &ip[at..at + size]);
            let (wanted, _) = icrc::of(&packet).unwrap();
            ip[at + size - 4..at + size].copy_from_slice(&wanted.to_le_bytes());
        }
        let length = if head == IPV4 { ip.len() } else { ip.len() - head };
        let at = if head == IPV4 { 2 } else { 4 };
        ip[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
        let kind: [u8; 2] = if head == IPV4 { [8, 0] } else { [0x86, 0xdd] };
        [&[0; 12][..], &kind, &ip].concat()
    }

    #[test]
    fn marks_are_the_last_two_bits_of_the_traffic_class() {
        for (head, class, is) in [
            (IPV4, [0x45, 0x03], true),
            (IPV4, [0x45, 0x6b], true),
            (IPV4, [0x45, 0x6a], false),
            (IPV4, [0x45, 0x30], false),
            (IPV6, [0x60, 0x30], true),
            (IPV6, [0x66, 0xb0], true),
            (IPV6, [0x60, 0x2f], false),
            (IPV6, [0x63, 0x03], false),
        ] {
            assert_eq!(Packet { ip: &class, head }.is_marked(), is, "{head} {class:x?}");
        }
    }

    #[test]
    fn each_packet_of_a_datagram_is_checked() {
        for head in [IPV4, IPV6] {
            for packets in [1, 3] {
                let mut frame = frame(head, packets);
                let mut checked = Checked::default();
                // The length of the first UDP header is part of what a single packet's ICRC covers.
                let udp = (14 + head + 4, UDP + packets * 40);
                frame[udp.0..udp.0 + 2].copy_from_slice(&(udp.1 as u16).to_be_bytes());
                assert!(Packet::of(&frame).unwrap().check(&mut checked), "{head} {packets}");
                let wanted = if packets == 1 { ([1, 0], 0) } else { ([0, 0], packets) };
                assert_eq!((checked.from, checked.uncut), wanted);
                for at in [14 + head + UDP + 1, frame.len() - 8] {
                    let mut damaged = frame.clone();
                    damaged[at] ^= 1;
                    assert!(!Packet::of(&damaged).unwrap().check(&mut checked), "{head} {at}");
                }
            }
        }
    }
}
