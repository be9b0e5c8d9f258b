//! The receive queue of a QP: entries of `1 << shift` bytes that consist of data segments.

use crate::QueueBytes;
use crate::commands::MAX_RECEIVES;
use crate::segment::{Data, UNIT, Unit};
use abi::ibv_sge;
use arrayvec::ArrayVec;

/// The largest number of data segments of a receive: 512 bytes of an entry (`max_rq_desc_sz`).
pub const MAX_SEGMENTS: usize = 32;

/// The memory of a posted receive.
pub type Segments = ArrayVec<ibv_sge, MAX_SEGMENTS>;

/// The data segments of an entry of `len` bytes at `offset`, up to the end of the list.
///
/// A segment without bytes is left out. A receive with more segments than [`MAX_SEGMENTS`] keeps
/// the first ones, which `max_rq_desc_sz` excludes for libmlx5.
pub(crate) fn segments(buffer: &impl QueueBytes, offset: usize, len: usize) -> Segments {
    let mut found = Segments::new();
    let mut unit = Unit::default();
    for at in (0..len).step_by(UNIT) {
        buffer.read(offset + at, &mut unit.0);
        let data = Data::parse(&unit);
        if data.lkey == Data::END || found.is_full() {
            break;
        }
        if data.count != 0 {
            found.push(ibv_sge { addr: data.addr, length: data.count, lkey: data.lkey });
        }
    }
    found
}

/// Position and size of a receive queue in the buffer of its QP or WQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Offset of the first entry in the buffer, in bytes.
    pub offset: usize,
    /// Number of entries: zero, or a power of two up to 2^15.
    pub entries: u32,
    /// Logarithm of the bytes of an entry, 4 to 10.
    pub shift: u32,
    /// Whether each entry begins with a signature of 16 bytes.
    pub is_signed: bool,
}

impl Geometry {
    /// Bytes of the queue.
    #[must_use]
    pub const fn len(&self) -> usize {
        // An empty queue may have any shift: the program does not use the field.
        if self.is_empty() { 0 } else { (self.entries as usize) << self.shift }
    }

    /// Whether the QP has no receive queue of its own.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries == 0
    }

    const fn is_valid(&self) -> bool {
        let size = self.entries.is_power_of_two() && self.entries <= MAX_RECEIVES;
        self.is_empty() || size && self.shift >= 4 && self.shift <= 10
    }
}

/// A posted receive.
#[derive(Clone, Debug)]
pub struct Receive {
    /// The counter of the receive, which its completion names.
    pub counter: u16,
    /// The memory for the message.
    pub segments: Segments,
}

/// The doorbell record is further ahead than the queue has entries. The QP fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

/// The receive queue of a QP, from the adapter's side.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveQueue {
    geometry: Geometry,
    /// Counter of the first receive that was not taken yet; runs freely.
    next: u16,
}

impl ReceiveQueue {
    /// A queue from which nothing was taken. None if the sizes are invalid.
    #[must_use]
    pub const fn new(geometry: Geometry) -> Option<Self> {
        if geometry.is_valid() { Some(Self { geometry, next: 0 }) } else { None }
    }

    /// Position and size.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Begins again with entry 0: the QP was reset.
    pub const fn reset(&mut self) {
        self.next = 0;
    }

    /// Takes the next receive, if `posted` (the doorbell record) says that more are posted.
    #[inline]
    pub fn take(
        &mut self,
        posted: u16,
        buffer: &impl QueueBytes,
    ) -> Option<Result<Receive, Overflow>> {
        let available = posted.wrapping_sub(self.next);
        if available == 0 {
            return None;
        }
        let Geometry { offset, entries, shift, is_signed } = self.geometry;
        if u32::from(available) > entries {
            self.next = posted;
            return Some(Err(Overflow));
        }
        let counter = self.next;
        self.next = counter.wrapping_add(1);
        let entry = (u32::from(counter) & (entries - 1)) as usize;
        let skipped = if is_signed { UNIT } else { 0 };
        let at = offset + (entry << shift) + skipped;
        Some(Ok(Receive { counter, segments: segments(buffer, at, (1 << shift) - skipped) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_without_entries_has_no_bytes_whatever_its_shift() {
        for shift in [0, 10, 63, 64, u32::MAX] {
            let geometry = Geometry { offset: 0, entries: 0, shift, is_signed: false };
            assert_eq!(geometry.len(), 0);
            assert!(ReceiveQueue::new(geometry).is_some());
        }
    }

    fn store(bytes: &mut [u8], at: usize, count: u32, lkey: u32, addr: u64) {
        bytes[at..at + UNIT].copy_from_slice(&Data { count, lkey, addr }.emit().0);
    }

    #[test]
    fn receives_are_taken_in_order_and_end_at_the_marker() {
        let geometry = Geometry { offset: 64, entries: 2, shift: 6, is_signed: false };
        let mut bytes = vec![0; 64 + geometry.len()];
        store(&mut bytes, 64, 10, 7, 0x1000);
        store(&mut bytes, 80, 0, 7, 0x2000);
        store(&mut bytes, 96, 30, 7, 0x3000);
        store(&mut bytes, 112, 0, Data::END, 0);
        store(&mut bytes, 128, 0, Data::END, 0);
        let mut queue = ReceiveQueue::new(geometry).expect("valid");
        assert!(queue.take(0, &bytes).is_none());
        for counter in [0, 2, 4] {
            let first = queue.take(counter + 2, &bytes).expect("posted").expect("room");
            assert_eq!(first.counter, counter);
            let lens: Vec<_> = first.segments.iter().map(|sge| (sge.addr, sge.length)).collect();
            assert_eq!(lens, [(0x1000, 10), (0x3000, 30)]);
            let second = queue.take(counter + 2, &bytes).expect("posted").expect("room");
            assert!(second.segments.is_empty());
            assert!(queue.take(counter + 2, &bytes).is_none());
        }
        assert_eq!(queue.take(9, &bytes).expect("posted").err(), Some(Overflow));
        queue.reset();
        assert_eq!(queue.take(1, &bytes).expect("posted").expect("room").counter, 0);
    }

    #[test]
    fn signatures_in_front_of_entries_are_skipped() {
        let geometry = Geometry { offset: 0, entries: 1, shift: 5, is_signed: true };
        let mut bytes = vec![0xff; geometry.len()];
        store(&mut bytes, 16, 10, 7, 0x1000);
        let mut queue = ReceiveQueue::new(geometry).expect("valid");
        let taken = queue.take(1, &bytes).expect("posted").expect("room");
        assert_eq!(taken.segments.len(), 1);
        assert_eq!(taken.segments[0].addr, 0x1000);
    }

    #[test]
    fn the_largest_entry_is_not_read_beyond_its_end() {
        let geometry = Geometry { offset: 0, entries: 1, shift: 10, is_signed: false };
        let bytes = vec![1; geometry.len()];
        let mut queue = ReceiveQueue::new(geometry).expect("valid");
        let taken = queue.take(1, &bytes).expect("posted").expect("room");
        assert_eq!(taken.segments.len(), MAX_SEGMENTS);
    }

    #[test]
    fn invalid_sizes_make_no_queue() {
        for (entries, shift) in [(3, 4), (1, 3), (1, 11), (1 << 16, 4)] {
            let geometry = Geometry { offset: 0, entries, shift, is_signed: false };
            assert!(ReceiveQueue::new(geometry).is_none(), "{geometry:?}");
        }
        let none = Geometry { offset: 0, entries: 0, shift: 0, is_signed: false };
        let mut queue = ReceiveQueue::new(none).expect("no receive queue");
        assert_eq!(queue.take(1, &Vec::new()).expect("posted").err(), Some(Overflow));
    }
}
