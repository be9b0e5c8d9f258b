//! Segmentation of one datagram by the kernel: packets of equal length, of which the last may be
//! shorter.

use crate::{DATAGRAM, SEGMENTS_MAX};

/// The packets of one datagram so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct CombinedPackets {
    /// Length of each packet except the last, in bytes.
    size: usize,
    /// Total length in bytes.
    bytes: usize,
    packets: usize,
    /// Whether the last packet is shorter, so that no packet can follow.
    is_closed: bool,
}

impl CombinedPackets {
    /// A datagram of one packet.
    #[must_use]
    pub const fn of(len: usize) -> Self {
        Self { size: len, bytes: len, packets: 1, is_closed: false }
    }

    /// Whether a packet of `len` bytes can follow.
    #[inline]
    #[must_use]
    pub const fn takes(&self, len: usize) -> bool {
        self.packets < SEGMENTS_MAX
            && !self.is_closed
            && len <= self.size
            && self.bytes + len <= DATAGRAM
    }

    /// Appends a packet of `len` bytes.
    #[inline]
    pub const fn push(&mut self, len: usize) {
        self.is_closed = len < self.size;
        self.bytes += len;
        self.packets += 1;
    }

    /// Length of each packet except the last, in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Number of packets.
    #[must_use]
    pub const fn packets(&self) -> usize {
        self.packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_packet_is_the_last_and_a_longer_one_begins_the_next() {
        let mut cut = CombinedPackets::of(4116);
        assert!(cut.takes(4116) && cut.takes(1) && !cut.takes(4117));
        cut.push(4116);
        cut.push(4112);
        assert!(!cut.takes(4112) && !cut.takes(1));
        assert_eq!((cut.size(), cut.packets()), (4116, 3));
    }

    #[test]
    fn a_datagram_takes_packets_up_to_the_length_and_number_that_the_kernel_allows() {
        let mut cut = CombinedPackets::of(4112);
        while cut.takes(4112) {
            cut.push(4112);
        }
        assert_eq!(cut.packets(), DATAGRAM / 4112);
        let mut cut = CombinedPackets::of(40);
        while cut.takes(40) {
            cut.push(40);
        }
        assert_eq!(cut.packets(), SEGMENTS_MAX);
    }
}
