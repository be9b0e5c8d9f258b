//! The ICRC of packets in a file, computed independently of the code that emits packets
//! (IBTA 1.7 7.8.1, A17.3.3).

use std::fs;
use std::path::Path;

/// What eight bits of CRC-32 of Ethernet come to.
const TABLE: [u32; 256] = {
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn crc32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let step = |crc: u32, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)];
    !bytes.into_iter().fold(!0, step)
}

/// The correct ICRC of an IP packet, and the ICRC in the packet.
pub(crate) fn of(ip: &[u8]) -> Option<(u32, u32)> {
    let (covered, icrc) = ip.split_last_chunk::<4>()?;
    let mut bytes = covered.to_vec();
    let head = if bytes.first()? >> 4 == 4 { 20 } else { 40 };
    let masked: &[usize] = if head == 20 { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
    for at in masked {
        *bytes.get_mut(*at)? = 0xff;
    }
    if head == 40 {
        *bytes.first_mut()? |= 0x0f;
    }
    // UDP's checksum, and the byte of the base header with the congestion bits.
    for at in [head + 6, head + 7, head + 12] {
        *bytes.get_mut(at)? = 0xff;
    }
    Some((crc32([0xff; 8].into_iter().chain(bytes)), u32::from_le_bytes(*icrc)))
}

/// The Ethernet frames in a file, complete or truncated, with their original lengths.
pub(crate) fn frames(file: &[u8]) -> Vec<(&[u8], usize)> {
    let word = |at: usize| {
        file.get(at..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |word| u32::from_le_bytes(*word))
    };
    let (mut at, mut links, mut found) = (0, Vec::new(), Vec::new());
    while at + 12 <= file.len() {
        let (kind, length) = (word(at), word(at + 4) as usize);
        match kind {
            1 => links.push(word(at + 8) & 0xffff),
            6 if links.get(word(at + 8) as usize) == Some(&1) => {
                let (kept, whole) = (word(at + 20) as usize, word(at + 24) as usize);
                found.push((file.get(at + 28..at + 28 + kept).unwrap_or_default(), whole));
            }
            _ => {}
        }
        at += length.max(12);
    }
    found
}

/// `count` packets of the file are complete and have the correct ICRC.
pub(super) fn check(file: &Path, count: usize) -> Result<(), String> {
    let bytes = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let all = frames(&bytes);
    let whole: Vec<_> = all.iter().filter(|(frame, length)| frame.len() == *length).collect();
    for (frame, _) in &whole {
        let (wanted, got) = frame.get(14..).and_then(of).ok_or("no packet")?;
        if wanted != got {
            return Err(format!("{got:#010x} instead of {wanted:#010x}: {frame:02x?}"));
        }
    }
    (whole.len() == count).then_some(()).ok_or_else(|| format!("{} whole packets", whole.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packet_of_an_adapter_verifies() {
        // A CNP that a ConnectX-4 Lx sent, which scapy's tests have.
        let text = "45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff400001180000000000000000000000000000000000000000\
                    82fd002a";
        let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(digit).collect();
        let (wanted, got) = of(&bytes).expect("a packet");
        assert_eq!(wanted, got);
    }
}
