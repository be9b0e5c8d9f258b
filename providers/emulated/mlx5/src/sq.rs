//! A send queue: a ring of 64-byte blocks. An entry begins on a block, covers one block or more,
//! and wraps at the end of the ring.

use crate::QueueBytes;
use crate::segment::{Control, UNIT, Unit};
use crate::syndrome::Malformed;
use crate::wqe::{self, MAX_BYTES, Request};
use soft_semantics::state::QpType;

/// Bytes of a block.
pub const BLOCK: usize = 64;

const UNITS_OF_BLOCK: u16 = (BLOCK / UNIT) as u16;

/// The largest number of blocks, because the counters have 16 bits.
pub const MAX_BLOCKS: u32 = 1 << 15;

/// Position and size of a send queue in the buffer of its QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Offset of the first block in the buffer, in bytes.
    pub offset: usize,
    /// Number of blocks: a power of two, at most [`MAX_BLOCKS`].
    pub blocks: u32,
}

impl Geometry {
    /// Bytes of the queue.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.blocks as usize * BLOCK
    }

    /// Whether the QP has no send queue.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// The parts of the buffer, as offset and length, that hold `len` bytes at `offset` of the
    /// entry whose first block has this index. The second part is not empty if the entry wraps.
    #[must_use]
    pub fn parts(&self, index: u16, offset: usize, len: usize) -> [(usize, usize); 2] {
        if self.is_empty() {
            return [(0, 0); 2];
        }
        let begin = (usize::from(index) * BLOCK + offset) % self.len();
        let first = len.min(self.len() - begin);
        [(self.offset + begin, first), (self.offset, len - first)]
    }
}

/// A copy of one entry.
#[derive(Debug)]
pub struct EntryCopy {
    bytes: [u8; MAX_BYTES],
    len: usize,
}

impl Default for EntryCopy {
    fn default() -> Self {
        Self { bytes: [0; MAX_BYTES], len: 0 }
    }
}

/// An entry that cannot be executed. The request fails, and the QP enters the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Index of the entry's first block.
    pub index: u16,
    /// Opcode of the entry.
    pub opcode: u8,
    /// The reason.
    pub reason: Malformed,
}

/// The send queue of a QP, from the adapter's side.
#[derive(Clone, Copy, Debug)]
pub struct SendQueue {
    geometry: Geometry,
    qp_type: QpType,
    qpn: u32,
    /// Index of the first block that was not taken yet; runs freely.
    next: u16,
}

impl SendQueue {
    /// A queue from which nothing was taken. None if the number of blocks is neither zero nor a
    /// power of two up to [`MAX_BLOCKS`].
    #[must_use]
    pub const fn new(geometry: Geometry, kind: QpType, qpn: u32) -> Option<Self> {
        let Geometry { blocks, .. } = geometry;
        if blocks != 0 && (!blocks.is_power_of_two() || blocks > MAX_BLOCKS) {
            return None;
        }
        Some(Self { geometry, qp_type: kind, qpn, next: 0 })
    }

    /// Position and size.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Index of the first block that was not taken yet.
    #[must_use]
    pub const fn next(&self) -> u16 {
        self.next
    }

    /// Begins again with block 0: the QP was reset, and libmlx5 clears the doorbell record.
    pub const fn reset(&mut self) {
        self.next = 0;
    }

    /// Takes the next entry, if `posted` (the doorbell record) says that more blocks are posted.
    ///
    /// An entry whose size is unknown takes all posted blocks with it, because the next entry
    /// cannot be found.
    #[inline]
    pub fn take<'a>(
        &mut self,
        posted: u16,
        buffer: &impl QueueBytes,
        copy: &'a mut EntryCopy,
    ) -> Option<Result<Request<'a>, Refused>> {
        let available = posted.wrapping_sub(self.next);
        if available == 0 {
            return None;
        }
        let index = self.next;
        if u32::from(available) > self.geometry.blocks {
            self.next = posted;
            return Some(Err(Refused { index, opcode: 0, reason: Malformed::Doorbell }));
        }
        let control = self.copy_entry(index, available, buffer, copy);
        let refused = |reason| Refused { index, opcode: control.opcode, reason };
        if copy.len == 0 {
            self.next = posted;
            return Some(Err(refused(Malformed::Size)));
        }
        self.next = index.wrapping_add(u16::from(control.units).div_ceil(UNITS_OF_BLOCK));
        if control.index != index {
            return Some(Err(refused(Malformed::Index)));
        }
        if control.qpn != self.qpn {
            return Some(Err(refused(Malformed::QueuePair)));
        }
        let entry = copy.bytes.get(..copy.len).unwrap_or_default();
        Some(wqe::decode(self.qp_type, entry).map_err(refused))
    }

    /// Copies the entry at `index` and returns its control segment. The copy is empty if the size
    /// is zero or exceeds the posted blocks. The size comes from the copied control segment, so a
    /// program that changes the entry meanwhile gains nothing.
    fn copy_entry(
        &self,
        index: u16,
        available: u16,
        buffer: &impl QueueBytes,
        copy: &mut EntryCopy,
    ) -> Control {
        copy.len = 0;
        let [(at, _), _] = self.geometry.parts(index, 0, UNIT);
        let Some((head, rest)) = copy.bytes.split_first_chunk_mut::<UNIT>() else {
            return Control::parse(&Unit::default());
        };
        buffer.read(at, head);
        let control = Control::parse(&crate::Fields(*head));
        let blocks = u16::from(control.units).div_ceil(UNITS_OF_BLOCK);
        if blocks == 0 || blocks > available {
            return control;
        }
        let len = usize::from(control.units) * UNIT;
        let [(first, first_len), (second, _)] = self.geometry.parts(index, UNIT, len - UNIT);
        if let Some(into) = rest.get_mut(..len - UNIT) {
            let (into, wrapped) = into.split_at_mut(first_len);
            if !into.is_empty() {
                buffer.read(first, into);
            }
            if !wrapped.is_empty() {
                buffer.read(second, wrapped);
            }
            copy.len = len;
        }
        control
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Data, opcode};
    use crate::wqe::{Operation, Piece};

    /// A ring of `blocks` blocks behind 128 bytes of another queue, with one entry at `index`.
    fn ring(blocks: u32, index: u16, entry: &[u8]) -> (SendQueue, Vec<u8>) {
        let geometry = Geometry { offset: 128, blocks };
        let mut queue = SendQueue::new(geometry, QpType::Rc, 0x77).expect("a power of two");
        queue.next = index;
        let mut bytes = vec![0xee; 128 + geometry.len()];
        for (n, byte) in entry.iter().enumerate() {
            let [(at, _), _] = geometry.parts(index, n, 1);
            bytes[at] = *byte;
        }
        (queue, bytes)
    }

    fn control(index: u16, units: u8) -> Control {
        Control {
            modifier: 0,
            index,
            opcode: opcode::SEND,
            qpn: 0x77,
            units,
            signature: 0,
            flags: 0,
            immediate: [0; 4],
        }
    }

    #[test]
    fn inline_data_wraps_at_every_unit_of_the_last_block() {
        // A WRITE with 200 inline bytes: 16 + 16 + 204 bytes, 15 units, 4 blocks of a ring of 4,
        // so that the ring's end lies at each block in turn.
        for index in 0..8u16 {
            let mut entry = [0; MAX_BYTES];
            let mut text = control(index, 15);
            text.opcode = opcode::WRITE;
            entry[..16].copy_from_slice(&text.emit().0);
            entry[32..36].copy_from_slice(&(Data::INLINE | 200).to_be_bytes());
            for n in 0..200 {
                entry[36 + n] = n as u8;
            }
            let (mut queue, bytes) = ring(4, index, &entry[..240]);
            let mut copy = EntryCopy::default();
            let posted = index.wrapping_add(4);
            let taken = queue.take(posted, &bytes, &mut copy).expect("an entry").expect("valid");
            assert!(matches!(taken.operation, Operation::Write(_)));
            assert!(taken.data.is_inline());
            let mut pieces = taken.data;
            let Some(Piece::Inline { offset, len }) = pieces.next() else { panic!("inline") };
            let expected: Vec<u8> = (0..200).collect();
            assert_eq!(taken.data.inline(offset, len), expected);
            // The place of the bytes in the ring is the place from which they were read.
            let parts = queue.geometry().parts(index, offset, len);
            let found: Vec<u8> =
                parts.iter().flat_map(|(at, len)| bytes[*at..at + len].to_vec()).collect();
            assert_eq!(found, expected);
            assert_eq!(queue.next(), posted);
            assert!(queue.take(posted, &bytes, &mut copy).is_none());
        }
    }

    #[test]
    fn counters_run_over_16_bits() {
        let (mut queue, bytes) = ring(2, 0xffff, &control(0xffff, 1).emit().0);
        let mut copy = EntryCopy::default();
        assert!(queue.take(0xffff, &bytes, &mut copy).is_none());
        assert!(queue.take(0, &bytes, &mut copy).expect("an entry").is_ok());
        assert_eq!(queue.next(), 0);
    }

    #[test]
    fn entries_of_wrong_size_take_all_posted_blocks() {
        let mut copy = EntryCopy::default();
        for units in [0, 9, 63] {
            let (mut queue, bytes) = ring(4, 6, &control(6, units).emit().0);
            let refused = queue.take(8, &bytes, &mut copy).expect("an entry").expect_err("size");
            assert_eq!(refused.reason, Malformed::Size);
            assert_eq!((refused.index, refused.opcode), (6, opcode::SEND));
            assert_eq!(queue.next(), 8);
        }
    }

    #[test]
    fn a_doorbell_beyond_the_ring_is_refused() {
        let (mut queue, bytes) = ring(4, 0, &control(0, 1).emit().0);
        let mut copy = EntryCopy::default();
        let refused = queue.take(5, &bytes, &mut copy).expect("an entry").expect_err("doorbell");
        assert_eq!(refused.reason, Malformed::Doorbell);
        assert!(queue.take(5, &bytes, &mut copy).is_none());
    }

    #[test]
    fn a_wrong_index_or_qp_is_refused_and_the_next_entry_found() {
        let mut copy = EntryCopy::default();
        let (mut queue, bytes) = ring(4, 1, &control(2, 1).emit().0);
        let refused = queue.take(3, &bytes, &mut copy).expect("an entry").expect_err("index");
        assert_eq!((refused.reason, queue.next()), (Malformed::Index, 2));
        let other = Control { qpn: 0x78, ..control(1, 5) };
        let (mut queue, bytes) = ring(4, 1, &other.emit().0);
        let refused = queue.take(3, &bytes, &mut copy).expect("an entry").expect_err("QP");
        assert_eq!((refused.reason, queue.next()), (Malformed::QueuePair, 3));
    }

    #[test]
    fn sizes_that_are_no_power_of_two_or_too_large_make_no_queue() {
        for blocks in [3, 5, MAX_BLOCKS + 1, MAX_BLOCKS * 2] {
            assert!(SendQueue::new(Geometry { offset: 0, blocks }, QpType::Rc, 1).is_none());
        }
        let none = Geometry { offset: 0, blocks: 0 };
        let mut queue = SendQueue::new(none, QpType::XrcRecv, 1).expect("no send queue");
        let mut copy = EntryCopy::default();
        let refused = queue.take(1, &Vec::new(), &mut copy).expect("an entry");
        assert_eq!(refused.expect_err("no queue").reason, Malformed::Doorbell);
        queue.reset();
        assert_eq!(queue.next(), 0);
    }
}
