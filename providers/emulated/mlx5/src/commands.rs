//! Vendor data of commands: requests of libmlx5, and answers of the adapter's kernel driver
//! (`<rdma/mlx5-abi.h>`, `<rdma/mlx5_user_ioctl_cmds.h>`, Linux 6.1). Integers have the order of
//! the host.
//!
//! A request that is shorter than its structure lacks fields, which read as zero. An answer may be
//! cut to the length that the caller offers; the caller fills the rest with zeros.
//!
//! Map of this file: one structure for each command, with `parse` for the request and a function
//! for the answer: context, CQ, QP, SRQ, WQ, address handle, device; tests. No state, no lock.

use crate::device::Model;
use crate::{Fields, cq, rq, sq};

/// Numbers of the driver's own objects, methods and attributes.
pub mod ioctl {
    /// First number of the driver's objects, and of the methods and attributes of each.
    pub const DRIVER: u16 = 1 << 12;
    /// The object of a UAR page.
    pub const OBJECT_UAR: u16 = DRIVER + 8;
    /// Allocates a UAR page.
    pub const METHOD_UAR_ALLOC: u16 = DRIVER;
    /// Gives a UAR page back.
    pub const METHOD_UAR_FREE: u16 = DRIVER + 1;
    /// Attributes of the allocation: the new object.
    pub const UAR_HANDLE: u16 = DRIVER;
    /// The offset of the page in the provider's file, 64 bits.
    pub const UAR_MMAP_OFFSET: u16 = DRIVER + 2;
    /// The bytes of the page, 32 bits.
    pub const UAR_MMAP_LENGTH: u16 = DRIVER + 3;
    /// The number of the page, 32 bits.
    pub const UAR_PAGE_ID: u16 = DRIVER + 4;
}

/// Commands of the offsets that libmlx5 computes for `mmap` (`mlx5_ib_mmap_cmd`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmapCommand {
    /// The page with the free running clock.
    CoreClock,
    /// The page with the relation of clock and time.
    ClockInfo,
    /// Any other page.
    Unknown(u8),
}

impl MmapCommand {
    /// Command and index of an offset: eight bits each, above the bits of a page. The upper part of
    /// a larger index lies above the command.
    #[must_use]
    pub const fn of(offset: u64, page_size: u64) -> Option<(Self, u32)> {
        let Some(number) = offset.checked_div(page_size) else { return None };
        let command = match (number >> 8) as u8 {
            5 => Self::CoreClock,
            7 => Self::ClockInfo,
            other => Self::Unknown(other),
        };
        let index = (number & 0xff) | (number >> 16 & 0xff_ffff) << 8;
        Some((command, index as u32))
    }

    /// The offset with index 0.
    #[must_use]
    pub const fn offset(self, page_size: u64) -> u64 {
        let command = match self {
            Self::CoreClock => 5,
            Self::ClockInfo => 7,
            Self::Unknown(command) => command,
        };
        ((command as u64) << 8) * page_size
    }
}

/// The request of GET_CONTEXT (`mlx5_ib_alloc_ucontext_req_v2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocContext {
    /// Bit 0: the caller wants to send commands of the firmware (DEVX).
    pub flags: u32,
    /// Largest version of completion entries that the caller knows.
    pub max_cqe_version: u8,
    /// Bit 0: UAR pages of 4 KiB; bit 1: UAR pages on demand.
    pub lib_caps: u64,
}

impl AllocContext {
    /// Flag: DEVX.
    pub const DEVX: u32 = 1;
    /// Capability: UAR pages on demand.
    pub const DYNAMIC_UAR: u64 = 2;

    /// Decodes a request.
    #[must_use]
    pub fn parse(given: &[u8]) -> Self {
        let fields = Fields::<32>::prefix(given);
        Self {
            flags: fields.host32::<8>(),
            max_cqe_version: fields.byte::<16>(),
            lib_caps: fields.host64::<24>(),
        }
    }

    /// Whether the emulated adapter serves the caller: no DEVX, and UAR pages on demand. libmlx5
    /// tries again without DEVX after `EPERM`.
    #[must_use]
    pub const fn is_served(&self) -> bool {
        self.flags & Self::DEVX == 0 && self.lib_caps & Self::DYNAMIC_UAR != 0
    }

    /// The answer (`mlx5_ib_alloc_ucontext_resp`). No UAR page is mapped at opening.
    #[must_use]
    pub fn answer(&self, model: &Model, clock_offset: Option<u64>) -> [u8; 72] {
        let mut fields = Fields([0; 72]);
        fields.set::<0, 4>(model.qp_table.to_ne_bytes());
        fields.set::<4, 4>(BLUE_FLAME_BYTES.to_ne_bytes());
        fields.set::<12, 4>(64u32.to_ne_bytes());
        fields.set::<16, 2>((MAX_SEND_ENTRY as u16).to_ne_bytes());
        fields.set::<18, 2>((MAX_RECEIVE_ENTRY as u16).to_ne_bytes());
        fields.set::<20, 4>(sq::MAX_BLOCKS.to_ne_bytes());
        fields.set::<24, 4>(MAX_RECEIVES.to_ne_bytes());
        fields.set::<28, 4>(MAX_RECEIVES.to_ne_bytes());
        fields.set::<32, 2>(model.ports.to_ne_bytes());
        let masks = if clock_offset.is_some() { CORE_CLOCK_OFFSET } else { 0 };
        fields.set::<36, 4>(masks.to_ne_bytes());
        fields.set::<40, 4>(72u32.to_ne_bytes());
        fields.set::<44, 1>([self.max_cqe_version.min(1)]);
        fields.set::<45, 1>([QUERY_DEVICE_HAS_DATA | CREATE_AH_HAS_DATA]);
        fields.set::<46, 1>([NO_INLINE_HEADERS]);
        fields.set::<47, 1>([u8::from(clock_offset.is_some())]);
        fields.set::<48, 8>(clock_offset.unwrap_or(0).to_ne_bytes());
        fields.set::<56, 4>(12u32.to_ne_bytes());
        fields.set::<60, 4>(1u32.to_ne_bytes());
        fields.0
    }
}

/// Bytes of a BlueFlame register, of which one half is used at a time. UCX refuses other values.
const BLUE_FLAME_BYTES: u32 = 512;
/// Bytes of the largest send queue entry for libmlx5.
pub const MAX_SEND_ENTRY: u32 = 1008 / 64 * 64;
/// Bytes of the largest receive queue entry.
pub const MAX_RECEIVE_ENTRY: u32 = 512;
/// The largest number of receives of a queue.
pub const MAX_RECEIVES: u32 = 1 << 15;
const CORE_CLOCK_OFFSET: u32 = 1;
const QUERY_DEVICE_HAS_DATA: u8 = 1;
const CREATE_AH_HAS_DATA: u8 = 2;
/// `MLX5_USER_INLINE_MODE_NONE`.
const NO_INLINE_HEADERS: u8 = 1;

/// The reason for which a creation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `EINVAL`: sizes or addresses contradict each other.
    Invalid,
    /// `EOPNOTSUPP`: a feature that is not emulated.
    Unsupported,
}

/// The request of CREATE_CQ (`mlx5_ib_create_cq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateCq {
    /// Address of the entries.
    pub buffer: u64,
    /// Address of the doorbell record.
    pub record: u64,
    /// Number and size of entries.
    pub geometry: cq::Geometry,
}

impl CreateCq {
    /// Decodes a request; `cqe` is the core's number of entries, less one.
    ///
    /// # Errors
    /// `Invalid`: no buffer, a size that the adapter lacks. `Unsupported`: compressed entries,
    /// padding of 128-byte entries, real time stamps.
    pub fn parse(given: &[u8], cqe: u32) -> Result<Self, Refusal> {
        let fields = Fields::<32>::prefix(given);
        let (buffer, record) = (fields.host64::<0>(), fields.host64::<8>());
        // Of the flags, only the index of the UAR page needs nothing.
        if fields.byte::<20>() != 0 || fields.host16::<22>() & !UAR_PAGE_INDEX != 0 {
            return Err(Refusal::Unsupported);
        }
        let geometry = cq::Geometry::of(cqe, fields.host32::<16>()).ok_or(Refusal::Invalid)?;
        addresses(&[(buffer, geometry.len()), (record, 8)])?;
        Ok(Self { buffer, record, geometry })
    }
}

const UAR_PAGE_INDEX: u16 = 2;

/// Whether each range of memory exists: not NULL, no overflow, and aligned to four bytes.
fn addresses(ranges: &[(u64, usize)]) -> Result<(), Refusal> {
    let is_valid = |(addr, len): &(u64, usize)| {
        *addr != 0 && addr % 4 == 0 && addr.checked_add(*len as u64).is_some()
    };
    if ranges.iter().all(is_valid) { Ok(()) } else { Err(Refusal::Invalid) }
}

/// The request of RESIZE_CQ (`mlx5_ib_resize_cq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeCq {
    /// Address of the new entries.
    pub buffer: u64,
    /// Number and size of entries.
    pub geometry: cq::Geometry,
}

impl ResizeCq {
    /// Decodes a request; `cqe` is the core's number of entries, less one.
    ///
    /// # Errors
    /// `Invalid`: no buffer, a size that the adapter lacks.
    pub fn parse(given: &[u8], cqe: u32) -> Result<Self, Refusal> {
        let fields = Fields::<16>::prefix(given);
        let (buffer, bytes) = (fields.host64::<0>(), u32::from(fields.host16::<8>()));
        let geometry = cq::Geometry::of(cqe, bytes).ok_or(Refusal::Invalid)?;
        addresses(&[(buffer, geometry.len())])?;
        Ok(Self { buffer, geometry })
    }
}

/// The request of CREATE_QP (`mlx5_ib_create_qp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateQp {
    /// Address of the buffer: receive queue, then send queue.
    pub buffer: u64,
    /// Address of the doorbell record.
    pub record: u64,
    /// Size of the send queue.
    pub send: sq::Geometry,
    /// Size of the receive queue.
    pub receive: rq::Geometry,
    /// The index that completions of the QP carry, 24 bits.
    pub user_index: u32,
    /// Index of the caller's BlueFlame register, which the answer repeats.
    pub register: u32,
}

impl CreateQp {
    const SIGNATURE: u32 = 1;
    /// Scatter to the completion entry is permitted, and never done.
    const SCATTER: u32 = 1 << 1 | 1 << 8;
    const REGISTER_INDEX: u32 = 1 << 3;
    const UAR_PAGE: u32 = 1 << 10;

    /// Decodes a request.
    ///
    /// # Errors
    /// `Invalid`: no buffer, a size that the adapter lacks. `Unsupported`: DC, tunnels, loopback
    /// rules, credit modes, streams.
    pub fn parse(given: &[u8]) -> Result<Self, Refusal> {
        let fields = Fields::<56>::prefix(given);
        let flags = fields.host32::<28>();
        let known = Self::SIGNATURE | Self::SCATTER | Self::REGISTER_INDEX | Self::UAR_PAGE;
        if flags & !known != 0 {
            return Err(Refusal::Unsupported);
        }
        let (buffer, record) = (fields.host64::<0>(), fields.host64::<8>());
        let receive = rq::Geometry {
            offset: 0,
            entries: fields.host32::<20>(),
            shift: fields.host32::<24>(),
            is_signed: flags & Self::SIGNATURE != 0,
        };
        rq::ReceiveQueue::new(receive).ok_or(Refusal::Invalid)?;
        let blocks = fields.host32::<16>();
        let send = sq::Geometry { offset: receive.len(), blocks };
        let kind = soft_semantics::state::QpType::Rc;
        sq::SendQueue::new(send, kind, 0).ok_or(Refusal::Invalid)?;
        let len = receive.len() + send.len();
        // A QP without queues (an XRC target, or an SRQ and no sends) has no buffer.
        if len > 0 {
            addresses(&[(buffer, len), (record, 8)])?;
        }
        let (user_index, register) = (fields.host32::<32>() & 0xff_ffff, fields.host32::<36>());
        Ok(Self { buffer, record, send, receive, user_index, register })
    }

    /// The answer (`mlx5_ib_create_qp_resp`).
    #[must_use]
    pub const fn answer(&self) -> [u8; 40] {
        let mut fields = Fields([0; 40]);
        fields.set::<0, 4>(self.register.to_ne_bytes());
        fields.0
    }
}

/// The request of CREATE_SRQ and CREATE_XSRQ (`mlx5_ib_create_srq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateSrq {
    /// Address of the entries.
    pub buffer: u64,
    /// Address of the doorbell record.
    pub record: u64,
    /// Size of the queue.
    pub geometry: crate::srq::Geometry,
    /// The index that completions of an XRC SRQ carry, 24 bits.
    pub user_index: u32,
}

impl CreateSrq {
    /// Decodes a request; `max_wr` and `max_sge` are the core's attributes.
    ///
    /// # Errors
    /// `Invalid`: no buffer, a size that the adapter lacks. `Unsupported`: signatures.
    pub fn parse(given: &[u8], max_wr: u32, max_sge: u32) -> Result<Self, Refusal> {
        let fields = Fields::<32>::prefix(given);
        if fields.host32::<16>() != 0 {
            return Err(Refusal::Unsupported);
        }
        let (buffer, record) = (fields.host64::<0>(), fields.host64::<8>());
        let geometry = crate::srq::Geometry::of(max_wr, max_sge).ok_or(Refusal::Invalid)?;
        addresses(&[(buffer, geometry.len()), (record, 4)])?;
        let user_index = fields.host32::<24>() & 0xff_ffff;
        Ok(Self { buffer, record, geometry, user_index })
    }
}

/// The request of CREATE_WQ (`mlx5_ib_create_wq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateWq {
    /// Address of the entries.
    pub buffer: u64,
    /// Address of the doorbell record.
    pub record: u64,
    /// Size of the queue.
    pub geometry: rq::Geometry,
    /// The index that completions of the queue carry, 24 bits.
    pub user_index: u32,
}

impl CreateWq {
    /// Decodes a request.
    ///
    /// # Errors
    /// `Invalid`: no buffer, a size that the adapter lacks. `Unsupported`: strides.
    pub fn parse(given: &[u8]) -> Result<Self, Refusal> {
        let fields = Fields::<48>::prefix(given);
        if fields.host32::<32>() != 0 {
            return Err(Refusal::Unsupported);
        }
        let (buffer, record) = (fields.host64::<0>(), fields.host64::<8>());
        let geometry = rq::Geometry {
            offset: 0,
            entries: fields.host32::<16>(),
            shift: fields.host32::<20>(),
            is_signed: fields.host32::<28>() & 1 != 0,
        };
        rq::ReceiveQueue::new(geometry).ok_or(Refusal::Invalid)?;
        addresses(&[(buffer, geometry.len()), (record, 8)])?;
        Ok(Self { buffer, record, geometry, user_index: fields.host32::<24>() & 0xff_ffff })
    }
}

/// The answer of ALLOC_PD (`mlx5_ib_alloc_pd_resp`), CREATE_CQ (`mlx5_ib_create_cq_resp`) and
/// CREATE_SRQ (`mlx5_ib_create_srq_resp`): the number of the object, and zeros. ALLOC_PD takes the
/// first four bytes.
#[must_use]
pub const fn number(number: u32) -> [u8; 8] {
    let mut fields = Fields([0; 8]);
    fields.set::<0, 4>(number.to_ne_bytes());
    fields.0
}

/// The answer of CREATE_AH (`mlx5_ib_create_ah_resp`).
#[must_use]
pub const fn create_ah(mac: [u8; 6]) -> [u8; 16] {
    let mut fields = Fields([0; 16]);
    fields.set::<0, 4>(16u32.to_ne_bytes());
    fields.set::<4, 6>(mac);
    fields.0
}

/// The answer of MODIFY_QP (`mlx5_ib_modify_qp_resp`): neither a DC target nor enhanced connection
/// establishment.
#[must_use]
pub const fn modify_qp() -> [u8; 16] {
    let mut fields = Fields([0; 16]);
    fields.set::<0, 4>(16u32.to_ne_bytes());
    fields.0
}

/// The answer of CREATE_WQ and CREATE_RWQ_IND_TBL: its own length.
#[must_use]
pub const fn length_only() -> [u8; 8] {
    number(8)
}

/// The answer of QUERY_DEVICE (`mlx5_ib_query_device_resp`): no offload for frames, no compressed
/// entries, no streams. `available` is the length that the caller offers.
#[must_use]
pub fn query_device(available: usize) -> [u8; 104] {
    let mut fields = Fields([0; 104]);
    fields.set::<4, 4>((available.min(104) as u32).to_ne_bytes());
    fields.0
}

#[cfg(test)]
mod tests;
