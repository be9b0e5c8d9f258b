//! Steering: which process gets which datagram, among the processes that share a port.
//!
//! The kernel runs a classic BPF program that returns the index of a socket in the group
//! (SO_ATTACH_REUSEPORT_CBPF, socket(7); unprivileged). Indices follow the order of binding. When a
//! socket closes, the last socket takes its index, without notification. So the result is a hint,
//! and processes must ask for their index: a process that receives a [`probe`] has the index that
//! the probe names. For an index that does not exist the kernel chooses a socket, so a process that
//! probes must know the number of sockets.

use libc::sock_filter;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Number of high bits of a QPN that name a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits(pub u8);

/// A manufacturer opcode of no transport, as used by the engine's extension.
const PROBE: u8 = 0xc1;
const PROGRAM_NAME: [u8; 4] = *b"fvrb";
/// Offset of the index in a probe.
const PLACE_AT: u32 = 8;
/// Offset of the QPN in a base header, including the byte before it.
const QPN_AT: u32 = 4;
/// The largest number of instructions of a program (BPF_MAXINSNS).
const MOST: usize = 4096;
/// An index that no group has.
const NOWHERE: u32 = u32::MAX;

/// A datagram for the socket with index `place`, to be sent to the shared address.
#[must_use]
pub fn probe(place: u16) -> [u8; 12] {
    let ([m0, m1, m2, m3], [p1, p0]) = (PROGRAM_NAME, place.to_be_bytes());
    [PROBE, 0, m0, m1, m2, m3, 0, 0, p1, p0, 0, 0]
}

/// The index that a probe names; `None`: no probe.
#[must_use]
pub fn probed(datagram: &[u8]) -> Option<u16> {
    match *datagram {
        [PROBE, 0, m0, m1, m2, m3, 0, 0, p1, p0, 0, 0] if [m0, m1, m2, m3] == PROGRAM_NAME => {
            Some(u16::from_be_bytes([p1, p0]))
        }
        _ => None,
    }
}

/// Sends a probe to each of the first `count` sockets that share `port` on all addresses of a
/// family (that of `of`).
///
/// # Errors
/// The error of the sending socket; or the local host is unreachable.
pub fn send_probes(of: IpAddr, port: u16, count: u16) -> io::Result<()> {
    let to: IpAddr = match of {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let socket = UdpSocket::bind((to, 0))?;
    socket.set_nonblocking(true)?;
    (0..count).try_for_each(|place| socket.send_to(&probe(place), (to, port)).map(drop))
}

/// Number of sockets that share `port` on all addresses of a family (that of `of`) in this network
/// namespace. It may change at any time.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn sharers(of: IpAddr, port: u16) -> io::Result<usize> {
    let list = match of {
        IpAddr::V4(_) => "/proc/thread-self/net/udp",
        IpAddr::V6(_) => "/proc/thread-self/net/udp6",
    };
    Ok(listed(&std::fs::read_to_string(list)?, port))
}

/// Number of sockets on all addresses with this port in a list of the kernel (proc(5),
/// `/proc/net/udp`).
fn listed(list: &str, port: u16) -> usize {
    let port = format!("{port:04X}");
    let is_one = |line: &&str| {
        let local = line.split_whitespace().nth(1).and_then(|local| local.rsplit_once(':'));
        local.is_some_and(|(address, of)| of == port && address.bytes().all(|digit| digit == b'0'))
    };
    list.lines().filter(is_one).count()
}

/// A program that maps the high bits of QPNs to indices. `table` has the bits of each process and
/// its index.
///
/// # Errors
/// Two rows have equal bits, a row has invalid bits, or the rows exceed a program's length.
pub(crate) fn program(bits: Bits, table: &mut [(u32, u16)]) -> io::Result<Vec<sock_filter>> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
    let mask = match bits.0 {
        1..=24 => (1_u32 << bits.0) - 1,
        _ => return Err(invalid("a QPN has 24 bits, of which at least one names a process")),
    };
    table.sort_unstable();
    if table.iter().any(|&(value, _)| value & !mask != 0) {
        return Err(invalid("a process is named by more bits than are looked at"));
    }
    if table.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(invalid("two processes have the same bits"));
    }
    let mut code = Vec::new();
    let op = |code, k| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    code.push(op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0));
    code.push(sock_filter { jf: 2, ..op(libc::BPF_JMP | libc::BPF_JEQ, PROBE.into()) });
    code.push(op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, PLACE_AT));
    code.push(op(libc::BPF_RET | RET_A, 0));
    code.push(op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, QPN_AT));
    code.push(op(libc::BPF_ALU | libc::BPF_RSH, 24 - u32::from(bits.0)));
    code.push(op(libc::BPF_ALU | libc::BPF_AND, mask));
    search(table, table.len() <= TOLD_APART, &mut code);
    match code.len() <= MOST {
        true => Ok(code),
        false => Err(invalid("more processes than a program of the kernel has room for")),
    }
}

/// `BPF_A`: the accumulator is the program's result.
const RET_A: u32 = 0x10;

/// The largest table whose program detects unknown bits: three instructions per row, and two per
/// bisection.
const TOLD_APART: usize = (MOST - 8) / 5;

/// Bisects the table down to one row. Unknown bits get the kernel's choice; in a very large table
/// they get a neighbour's index, which a hint may.
fn search(table: &[(u32, u16)], tells_apart: bool, code: &mut Vec<sock_filter>) {
    let op = |code, k| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    match *table {
        [] => code.push(op(libc::BPF_RET, NOWHERE)),
        [(value, place)] => {
            if tells_apart {
                let is_it = op(libc::BPF_JMP | libc::BPF_JEQ, value);
                code.extend([sock_filter { jt: 1, ..is_it }, op(libc::BPF_RET, NOWHERE)]);
            }
            code.push(op(libc::BPF_RET, place.into()));
        }
        _ => {
            let (low, high) = table.split_at(table.len() / 2);
            // A conditional jump reaches 255 instructions, an unconditional one any.
            let pivot = high.first().map_or(0, |row| row.0);
            code.push(sock_filter { jf: 1, ..op(libc::BPF_JMP | libc::BPF_JGE, pivot) });
            let jump = code.len();
            code.push(op(libc::BPF_JMP | libc::BPF_JA, 0));
            search(low, tells_apart, code);
            let distance = code.len() - jump - 1;
            if let Some(jump) = code.get_mut(jump) {
                jump.k = distance as u32;
            }
            search(high, tells_apart, code);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets a program as the kernel does.
    fn run(code: &[sock_filter], packet: &[u8]) -> u32 {
        let (mut at, mut a) = (0_usize, 0_u32);
        loop {
            let sock_filter { code: op, jt, jf, k } = code[at];
            at += 1;
            let from = k as usize;
            match u32::from(op) {
                0x30 => a = packet[from].into(),
                0x28 => a = u16::from_be_bytes([packet[from], packet[from + 1]]).into(),
                0x20 => a = u32::from_be_bytes(packet[from..from + 4].try_into().expect("4")),
                0x54 => a &= k,
                0x74 => a >>= k,
                0x05 => at += from,
                0x15 => at += usize::from(if a == k { jt } else { jf }),
                0x35 => at += usize::from(if a >= k { jt } else { jf }),
                0x06 => return k,
                0x16 => return a,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn packet(qpn: u32) -> [u8; 12] {
        let [_, q2, q1, q0] = qpn.to_be_bytes();
        [4, 0x40, 0xff, 0xff, 0xff, q2, q1, q0, 0, 0, 0, 0]
    }

    #[test]
    fn each_process_receives_the_packets_of_its_qpns() {
        let mut table: Vec<_> = (0..1024).map(|value| (value, 1023 - value as u16)).collect();
        let code = program(Bits(10), &mut table).expect("it fits");
        for qpn in (0..1 << 24).step_by(4099) {
            assert_eq!(run(&code, &packet(qpn)), 1023 - (qpn >> 14), "{qpn:#x}");
        }
        assert_eq!(run(&code, &probe(77)), 77);
        assert_eq!(probed(&probe(77)), Some(77));
        assert_eq!(probed(&packet(77)), None);
    }

    #[test]
    fn packets_of_unowned_qpns_are_dropped_unless_the_table_is_very_long() {
        let mut table: Vec<_> =
            (0..TOLD_APART as u32).map(|row| (row + 1, row as u16 + 7)).collect();
        let code = program(Bits(10), &mut table).expect("it fits");
        let to = |code: &[_], bits: u32| run(code, &packet(bits << 14 | 5));
        for bits in 0..1024 {
            let place = if (1..=TOLD_APART as u32).contains(&bits) { bits + 6 } else { NOWHERE };
            assert_eq!(to(&code, bits), place, "{bits}");
        }
        table.push((1000, 3));
        let code = program(Bits(10), &mut table).expect("it fits");
        assert_eq!((to(&code, 0), to(&code, 1000), to(&code, 1023)), (7, 3, 3));
    }

    #[test]
    fn sockets_of_the_port_are_counted_and_no_others() {
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
            77: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0\n\
            78: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0\n\
            79: 00000000:12B8 00000000:12B7 07 00000000:00000000 00:00000000 00000000     0\n\
            80: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000\n";
        assert_eq!(listed(list, 4791), 2);
        assert_eq!(listed("", 4791), 0);
    }

    #[test]
    fn an_empty_table_names_no_place_and_a_wrong_one_is_refused() {
        let code = program(Bits(10), &mut []).expect("it fits");
        assert_eq!(run(&code, &packet(5)), NOWHERE);
        for (bits, mut table) in [
            (10, vec![(1, 0), (1, 1)]),
            (10, vec![(1024, 0)]),
            (0, vec![(0, 0)]),
            (25, vec![]),
            (24, (0..2000).map(|value| (value, 0)).collect()),
        ] {
            let refused = program(Bits(bits), &mut table).expect_err("it cannot be");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
