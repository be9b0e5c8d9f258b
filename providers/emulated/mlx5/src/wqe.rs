//! One entry of a send queue: decoding to a [`Request`], and encoding of a request.
//!
//! Map of this file: [`Request`] and [`Operation`], the data of a request, [`decode`], [`encode`].

use crate::segment::{AddressVector, Control, Data, UMR_UNITS, UNIT, Unit, WindowChange, opcode};
use crate::syndrome::Malformed;
use soft_semantics::request::RemoteAddress;
use soft_semantics::state::QpType;

/// The largest number of 16-byte units of an entry, because a control segment counts in six bits.
pub const MAX_UNITS: usize = 63;

/// Bytes of the largest entry.
pub const MAX_BYTES: usize = MAX_UNITS * UNIT;

/// A decoded entry of a send queue. The data refers to the copy of the entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// The control segment.
    pub control: Control,
    /// The operation with its arguments.
    pub operation: Operation,
    /// The destination of a datagram.
    pub destination: Option<AddressVector>,
    /// XRC: the shared receive queue at the remote end.
    pub srqn: Option<u32>,
    /// The data segments.
    pub data: Pieces<'a>,
}

/// The operation of a request, besides its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// No operation.
    Nop,
    /// A SEND of any kind; the opcode tells which.
    Send,
    /// An RDMA WRITE, with or without immediate data.
    Write(RemoteAddress),
    /// An RDMA READ.
    Read(RemoteAddress),
    /// A compare and swap of eight bytes.
    CompareSwap {
        /// The remote word.
        remote: RemoteAddress,
        /// The new value.
        swap: u64,
        /// The expected value.
        compare: u64,
    },
    /// A fetch and add of eight bytes.
    FetchAdd {
        /// The remote word.
        remote: RemoteAddress,
        /// The addend.
        add: u64,
    },
    /// A compare and swap in which masks select the compared and the replaced bits.
    MaskedCompareSwap {
        /// The remote word.
        remote: RemoteAddress,
        /// The new value.
        swap: u64,
        /// The expected value.
        compare: u64,
        /// Replaced bits.
        swap_mask: u64,
        /// Compared bits.
        compare_mask: u64,
    },
    /// A fetch and add that carries no bit across the boundaries of fields.
    MaskedFetchAdd {
        /// The remote word.
        remote: RemoteAddress,
        /// The addends.
        add: u64,
        /// The highest bit of each field.
        boundaries: u64,
    },
    /// An operation on the memory window whose key the control segment names.
    Window(WindowChange),
}

/// One piece of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Memory of the program.
    Memory(Data),
    /// Bytes in the entry itself.
    Inline {
        /// Offset of the first byte in the entry.
        offset: usize,
        /// Number of bytes.
        len: usize,
    },
}

/// The data of a request. [`decode`] has checked all segments.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a> {
    entry: &'a [u8],
    offset: usize,
}

impl PartialEq for Pieces<'_> {
    fn eq(&self, other: &Self) -> bool {
        let bytes = |all: &Self, piece| match piece {
            Piece::Inline { offset, len } => {
                all.entry.get(offset..offset + len).map(<[u8]>::to_vec)
            }
            Piece::Memory(data) => Some(data.emit().0.to_vec()),
        };
        let (left, right) = (self.map(|p| bytes(self, p)), other.map(|p| bytes(other, p)));
        left.eq(right)
    }
}

impl Pieces<'_> {
    /// The bytes of a request without data.
    pub const NONE: Self = Pieces { entry: &[], offset: 0 };

    fn next_checked(&mut self) -> Option<Result<Piece, Malformed>> {
        let rest = self.entry.get(self.offset..).filter(|rest| !rest.is_empty())?;
        let data = Data::parse(&Unit::prefix(rest));
        if data.count & Data::INLINE == 0 {
            self.offset += UNIT;
            return Some(Ok(Piece::Memory(data)));
        }
        let len = (data.count & !Data::INLINE) as usize;
        let units = len.checked_add(4).map(|bytes| bytes.div_ceil(UNIT) * UNIT);
        match units.filter(|bytes| *bytes <= rest.len()) {
            Some(bytes) => {
                let offset = self.offset + 4;
                self.offset += bytes;
                Some(Ok(Piece::Inline { offset, len }))
            }
            None => Some(Err(Malformed::Inline)),
        }
    }

    /// Whether the data consists of inline bytes alone, and has at least one piece.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        let mut pieces = *self;
        let all = pieces.all(|piece| matches!(piece, Piece::Inline { .. }));
        all && self.offset < self.entry.len()
    }

    /// The inline bytes of a piece.
    #[must_use]
    pub fn inline(&self, offset: usize, len: usize) -> &[u8] {
        self.entry.get(offset..offset + len).unwrap_or_default()
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        self.next_checked()?.ok()
    }
}

/// The units of an entry that are not yet decoded.
struct Cursor<'a> {
    entry: &'a [u8],
    offset: usize,
}

impl Cursor<'_> {
    fn unit(&mut self) -> Result<Unit, Malformed> {
        let rest = self.entry.get(self.offset..).and_then(|rest| rest.first_chunk::<UNIT>());
        let unit = rest.ok_or(Malformed::Segment)?;
        self.offset += UNIT;
        Ok(crate::Fields(*unit))
    }

    fn units<const N: usize>(&mut self) -> Result<[Unit; N], Malformed> {
        let mut found = [Unit::default(); N];
        for unit in &mut found {
            *unit = self.unit()?;
        }
        Ok(found)
    }

    fn remote(&mut self) -> Result<RemoteAddress, Malformed> {
        let unit = self.unit()?;
        Ok(RemoteAddress { addr: unit.be64::<0>(), rkey: unit.be32::<8>() })
    }
}

/// Decodes `entry`, which has as many units as its control segment states, for a QP of `kind`.
///
/// # Errors
/// The reason of the error completion. The caller has checked index, QP number and size.
pub fn decode(kind: QpType, entry: &[u8]) -> Result<Request<'_>, Malformed> {
    let mut cursor = Cursor { entry, offset: 0 };
    let control = Control::parse(&cursor.unit()?);
    let is_local = matches!(control.opcode, opcode::UMR | opcode::NOP);
    let srqn = match kind {
        QpType::XrcSend if !is_local => Some(cursor.unit()?.be32::<0>() & 0xff_ffff),
        _ => None,
    };
    let destination = match kind {
        QpType::Ud if !is_local => Some(address_vector(&mut cursor)?),
        _ => None,
    };
    let operation = operation(kind, control.opcode, &mut cursor)?;
    let has_data = !matches!(operation, Operation::Nop | Operation::Window(_));
    let data = if has_data { Pieces { entry, offset: cursor.offset } } else { Pieces::NONE };
    let arrives = !matches!(operation, Operation::Send | Operation::Write(_));
    let mut pieces = data;
    while let Some(piece) = pieces.next_checked() {
        if arrives && matches!(piece?, Piece::Inline { .. }) {
            return Err(Malformed::Inline);
        }
        piece?;
    }
    Ok(Request { control, operation, destination, srqn, data })
}

fn address_vector(cursor: &mut Cursor<'_>) -> Result<AddressVector, Malformed> {
    let first = cursor.unit()?;
    let vector = AddressVector::parse(&first);
    if !AddressVector::is_extended(&first) {
        return Ok(vector);
    }
    let [second, third] = cursor.units()?;
    Ok(vector.extended(&second, &third))
}

fn operation(kind: QpType, code: u8, cursor: &mut Cursor<'_>) -> Result<Operation, Malformed> {
    let is_connected = matches!(kind, QpType::Rc | QpType::Uc | QpType::XrcSend);
    let is_reliable = matches!(kind, QpType::Rc | QpType::XrcSend);
    Ok(match code {
        opcode::NOP => Operation::Nop,
        opcode::SEND | opcode::SEND_IMMEDIATE if is_connected || kind == QpType::Ud => {
            Operation::Send
        }
        opcode::SEND_INVALIDATE if matches!(kind, QpType::Rc | QpType::Uc) => Operation::Send,
        opcode::WRITE | opcode::WRITE_IMMEDIATE if is_connected => {
            Operation::Write(cursor.remote()?)
        }
        opcode::READ if is_reliable => Operation::Read(cursor.remote()?),
        opcode::COMPARE_SWAP if is_reliable => {
            let (remote, values) = (cursor.remote()?, cursor.unit()?);
            let (swap, compare) = (values.be64::<0>(), values.be64::<8>());
            Operation::CompareSwap { remote, swap, compare }
        }
        opcode::FETCH_ADD if is_reliable => {
            let (remote, values) = (cursor.remote()?, cursor.unit()?);
            Operation::FetchAdd { remote, add: values.be64::<0>() }
        }
        opcode::MASKED_COMPARE_SWAP if is_reliable => {
            let (remote, [values, masks]) = (cursor.remote()?, cursor.units()?);
            Operation::MaskedCompareSwap {
                remote,
                swap: values.be64::<0>(),
                compare: values.be64::<8>(),
                swap_mask: masks.be64::<0>(),
                compare_mask: masks.be64::<8>(),
            }
        }
        opcode::MASKED_FETCH_ADD if is_reliable => {
            let (remote, values) = (cursor.remote()?, cursor.unit()?);
            let (add, boundaries) = (values.be64::<0>(), values.be64::<8>());
            Operation::MaskedFetchAdd { remote, add, boundaries }
        }
        opcode::UMR if matches!(kind, QpType::Rc | QpType::Uc) => {
            let (control, context) = (cursor.units::<3>()?, cursor.units::<4>()?);
            let list = cursor.unit().ok();
            let change = WindowChange::parse(&control, &context, list.as_ref());
            Operation::Window(change.ok_or(Malformed::Umr)?)
        }
        _ => return Err(Malformed::Opcode),
    })
}

/// Encodes `request` into `into`, and returns the entry. The control segment gets the number of
/// units; reserved bytes are zero. None if the entry does not fit.
pub fn encode<'a>(request: &Request<'_>, into: &'a mut [u8; MAX_BYTES]) -> Option<&'a [u8]> {
    let mut entry = Writer { buffer: into, offset: UNIT };
    if let Some(srqn) = request.srqn {
        let mut unit = Unit::default();
        unit.set::<0, 4>(srqn.to_be_bytes());
        entry.unit(unit)?;
    }
    for unit in request.destination.iter().flat_map(AddressVector::emit) {
        entry.unit(unit)?;
    }
    entry.operation(request)?;
    for piece in request.data {
        match piece {
            Piece::Memory(data) => entry.unit(data.emit())?,
            Piece::Inline { offset, len } => {
                let bytes = request.data.inline(offset, len);
                let end = entry.offset.checked_add((4 + len).next_multiple_of(UNIT))?;
                let room = entry.buffer.get_mut(entry.offset..end)?;
                room.fill(0);
                let (count, rest) = room.split_first_chunk_mut::<4>()?;
                *count = (Data::INLINE | len as u32).to_be_bytes();
                rest.get_mut(..len)?.copy_from_slice(bytes);
                entry.offset = end;
            }
        }
    }
    let units = (entry.offset / UNIT) as u8;
    let Writer { buffer: into, offset: at } = entry;
    into.get_mut(..UNIT)?.copy_from_slice(&Control { units, ..request.control }.emit().0);
    into.get(..at)
}

struct Writer<'a> {
    buffer: &'a mut [u8; MAX_BYTES],
    offset: usize,
}

impl Writer<'_> {
    fn unit(&mut self, unit: Unit) -> Option<()> {
        self.buffer.get_mut(self.offset..self.offset + UNIT)?.copy_from_slice(&unit.0);
        self.offset += UNIT;
        Some(())
    }

    fn pair(&mut self, first: u64, second: u64) -> Option<()> {
        let mut unit = Unit::default();
        unit.set::<0, 8>(first.to_be_bytes());
        unit.set::<8, 8>(second.to_be_bytes());
        self.unit(unit)
    }

    fn operation(&mut self, request: &Request<'_>) -> Option<()> {
        let remote = |at: RemoteAddress| (at.addr, u64::from(at.rkey) << 32);
        let (addr, rkey) = match request.operation {
            Operation::Nop | Operation::Send => return Some(()),
            Operation::Window(change) => {
                return change
                    .emit(request.control.qpn)
                    .try_for_each(|unit| self.unit(unit).ok_or(()))
                    .ok();
            }
            Operation::Write(at) | Operation::Read(at) => remote(at),
            Operation::CompareSwap { remote: at, .. }
            | Operation::FetchAdd { remote: at, .. }
            | Operation::MaskedCompareSwap { remote: at, .. }
            | Operation::MaskedFetchAdd { remote: at, .. } => remote(at),
        };
        self.pair(addr, rkey)?;
        match request.operation {
            Operation::CompareSwap { swap, compare, .. } => self.pair(swap, compare),
            Operation::FetchAdd { add, .. } => self.pair(add, 0),
            Operation::MaskedFetchAdd { add, boundaries, .. } => self.pair(add, boundaries),
            Operation::MaskedCompareSwap { swap, compare, swap_mask, compare_mask, .. } => {
                self.pair(swap, compare)?;
                self.pair(swap_mask, compare_mask)
            }
            _ => Some(()),
        }
    }
}

/// Units of a UMR entry that binds a window, with its control segment.
pub const BIND_UNITS: usize = 1 + UMR_UNITS.0 + UMR_UNITS.1 + UMR_UNITS.2;

#[cfg(test)]
mod tests;
