//! What the kernel can cut one datagram into: packets that are equally long, of which the last may be shorter.

use crate::{DATAGRAM, SEGMENTS_MAX};

/// The packets that one datagram has so far, by their lengths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    /// Bytes of each packet but the last.
    size: usize,
    /// Of all together.
    bytes: usize,
    packets: usize,
    /// Nothing can follow a packet that is shorter.
    is_closed: bool,
}

impl Cut {
    /// A datagram of one packet.
    #[must_use]
    pub const fn of(len: usize) -> Self {
        Self { size: len, bytes: len, packets: 1, is_closed: false }
    }

    /// Whether a packet of `len` bytes can be its next one.
    #[inline]
    #[must_use]
    pub const fn takes(&self, len: usize) -> bool {
        self.packets < SEGMENTS_MAX
            && !self.is_closed
            && len <= self.size
            && self.bytes + len <= DATAGRAM
    }

    /// Has a packet of `len` bytes behind the others.
    #[inline]
    pub const fn push(&mut self, len: usize) {
        self.is_closed = len < self.size;
        self.bytes += len;
        self.packets += 1;
    }

    /// Bytes of each packet but the last.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// How many there are.
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
        let mut cut = Cut::of(4116);
        assert!(cut.takes(4116) && cut.takes(1) && !cut.takes(4117));
        cut.push(4116);
        cut.push(4112);
        assert!(!cut.takes(4112) && !cut.takes(1));
        assert_eq!((cut.size(), cut.packets()), (4116, 3));
    }

    #[test]
    fn it_is_as_long_as_a_datagram_may_be() {
        let mut cut = Cut::of(4112);
        while cut.takes(4112) {
            cut.push(4112);
        }
        assert_eq!(cut.packets(), DATAGRAM / 4112);
        let mut cut = Cut::of(40);
        while cut.takes(40) {
            cut.push(40);
        }
        assert_eq!(cut.packets(), SEGMENTS_MAX);
    }
}
