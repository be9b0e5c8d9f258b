//! A shared receive queue: entries in a linked list. The head of each entry names the entry that
//! follows. The adapter begins with entry 0, and a completion names the entry.

use crate::QueueBytes;
use crate::rq::{Segments, segments};
use crate::segment::{UNIT, Unit};

/// Size of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of entries: a power of two up to 2^16.
    pub entries: u32,
    /// Logarithm of the bytes of an entry, 5 to 10.
    pub shift: u32,
}

impl Geometry {
    /// The size that the creation of an SRQ with these attributes implies: room for a head and
    /// `max_sge` data segments in a power of two of at least 32 bytes. One entry separates head and
    /// tail of the list. None if a limit is exceeded.
    #[must_use]
    pub const fn of(max_wr: u32, max_sge: u32) -> Option<Self> {
        if max_wr == 0 || max_wr >= 1 << 16 || max_sge as usize > (1024 - UNIT) / UNIT {
            return None;
        }
        let bytes = (UNIT + max_sge as usize * UNIT).next_power_of_two();
        let shift = if bytes < 32 { 5 } else { bytes.trailing_zeros() };
        Some(Self { entries: (max_wr + 1).next_power_of_two(), shift })
    }

    /// Bytes of the queue.
    #[must_use]
    pub const fn len(&self) -> usize {
        (self.entries as usize) << self.shift
    }

    /// Never: each queue has at least two entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// A posted receive.
#[derive(Clone, Debug)]
pub struct Receive {
    /// Number of the entry, which its completion names.
    pub entry: u16,
    /// The memory for the message.
    pub segments: Segments,
}

/// A defect of the queue: the SRQ raises `IBV_EVENT_SRQ_ERR` and takes nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The doorbell record is further ahead than the queue has entries.
    Doorbell,
    /// The list leads to an entry beyond the queue.
    Link,
}

/// A shared receive queue, from the adapter's side.
#[derive(Clone, Copy, Debug)]
pub struct SharedReceiveQueue {
    geometry: Geometry,
    /// Number of receives taken so far; runs freely.
    receives_taken: u16,
    /// The entry that is taken next.
    next: u16,
    /// Whether a defect was found, after which nothing is taken.
    is_broken: bool,
}

impl SharedReceiveQueue {
    /// A queue from which nothing was taken.
    #[must_use]
    pub const fn new(geometry: Geometry) -> Self {
        Self { geometry, receives_taken: 0, next: 0, is_broken: false }
    }

    /// Size of the queue.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Takes the next receive, if `posted` (the doorbell record) says that more are posted. A
    /// defect is reported once.
    ///
    /// The link is read when the entry is taken: libmlx5 extends the list before it posts the last
    /// entry of the list.
    #[inline]
    pub fn take(
        &mut self,
        posted: u16,
        buffer: &impl QueueBytes,
    ) -> Option<Result<Receive, Broken>> {
        let available = posted.wrapping_sub(self.receives_taken);
        if available == 0 || self.is_broken {
            return None;
        }
        if u32::from(available) > self.geometry.entries {
            return Some(Err(self.fail(Broken::Doorbell)));
        }
        let entry = self.next;
        if u32::from(entry) >= self.geometry.entries {
            return Some(Err(self.fail(Broken::Link)));
        }
        let at = usize::from(entry) << self.geometry.shift;
        let mut head = Unit::default();
        buffer.read(at, &mut head.0);
        self.receives_taken = self.receives_taken.wrapping_add(1);
        self.next = head.be16::<2>();
        let len = (1usize << self.geometry.shift) - UNIT;
        Some(Ok(Receive { entry, segments: segments(buffer, at + UNIT, len) }))
    }

    const fn fail(&mut self, broken: Broken) -> Broken {
        self.is_broken = true;
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Data;

    fn queue(links: &[u16]) -> (SharedReceiveQueue, Vec<u8>) {
        let geometry = Geometry { entries: links.len() as u32, shift: 5 };
        let mut bytes = vec![0; geometry.len()];
        for (n, link) in links.iter().enumerate() {
            bytes[n * 32 + 2..n * 32 + 4].copy_from_slice(&link.to_be_bytes());
            let data = Data { count: n as u32 + 1, lkey: 7, addr: 0x1000 };
            bytes[n * 32 + 16..n * 32 + 32].copy_from_slice(&data.emit().0);
        }
        (SharedReceiveQueue::new(geometry), bytes)
    }

    #[test]
    fn receives_follow_the_links_of_the_list() {
        let (mut queue, mut bytes) = queue(&[2, 0, 3, 1]);
        let mut entries = Vec::new();
        while let Some(taken) = queue.take(3, &bytes) {
            let taken = taken.expect("a link in the queue");
            assert_eq!(taken.segments[0].length, u32::from(taken.entry) + 1);
            entries.push(taken.entry);
        }
        assert_eq!(entries, [0, 2, 3]);
        // A link that changes before its entry is posted counts.
        bytes[32 + 2..32 + 4].copy_from_slice(&2u16.to_be_bytes());
        assert_eq!(queue.take(5, &bytes).expect("posted").expect("a link").entry, 1);
        assert_eq!(queue.take(5, &bytes).expect("posted").expect("a link").entry, 2);
    }

    #[test]
    fn a_link_beyond_the_queue_breaks_the_queue_once() {
        let (mut queue, bytes) = queue(&[4, 0, 0, 0]);
        assert!(queue.take(2, &bytes).expect("posted").is_ok());
        assert_eq!(queue.take(2, &bytes).expect("posted").err(), Some(Broken::Link));
        assert!(queue.take(2, &bytes).is_none());
    }

    #[test]
    fn a_doorbell_beyond_the_queue_breaks_the_queue() {
        let (mut queue, bytes) = queue(&[1, 0]);
        assert_eq!(queue.take(3, &bytes).expect("posted").err(), Some(Broken::Doorbell));
        assert!(queue.take(1, &bytes).is_none());
    }

    #[test]
    fn the_size_follows_from_the_attributes_of_creation() {
        assert_eq!(Geometry::of(255, 1), Some(Geometry { entries: 256, shift: 5 }));
        assert_eq!(Geometry::of(256, 2), Some(Geometry { entries: 512, shift: 6 }));
        assert_eq!(Geometry::of(1, 0), Some(Geometry { entries: 2, shift: 5 }));
        assert_eq!(Geometry::of(1, 31), Some(Geometry { entries: 2, shift: 9 }));
        assert_eq!((Geometry::of(0, 1), Geometry::of(1 << 16, 1)), (None, None));
        assert_eq!(Geometry::of(1, 64), None);
    }
}
