//! Layout of a process's two shared segments: structures, offsets and sizes.
//!
//! *tables*: only the owner writes it; peers map it read-only. Peers read there
//! whether to wake the owner, and the owner's QPs, memory regions and one-sided operations in
//! flight (whose targets wait for their end).
//!
//! *rings*: peers write it too. It holds the receive ring of each QP, one datagram ring per peer
//! process, doorbells, the lock of atomics, and the bounce buffers ("chunks") of outgoing messages.
//!
//! Both segments are sparse: a page exists once it is touched. All offsets are constants, so the
//! address of a peer's QP, region or ring is a sum.
//!
//! At the first meeting only the front of a peer's *rings* is mapped, which holds all small
//! structures. Windows of equal size follow. Each window is mapped at its first use, and no element
//! crosses two windows.
//!
//! Map of this file: limits and sizes; the head of *tables*; entries of *tables* ([`QpEntry`],
//! [`SrqEntry`], [`MrEntry`], [`PdEntry`], [`GroupEntry`], [`RuleEntry`], [`OperationInFlight`],
//! [`Job`]); parts of *rings* ([`RingControl`], [`Slot`], [`RingsHead`]); offsets; numbers of QPs
//! and handles.

use super::trust::{FromPeer, Hint, Owned};
use crate::fabric::FRONT;
use soft_sys::map::WINDOW;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Processes of one fabric. Slot 0 is never given out, so that QP numbers 0 and 1 stay special.
pub const SLOTS: usize = 1024;
/// Bits of a QP number (24) that index the owner's QP table; the upper ten name the process slot.
pub const QP_INDEX_BITS: u32 = 14;
/// QPs of one process.
pub const QPS: usize = 1 << QP_INDEX_BITS;
/// Shared receive queues of one process. Their numbers have the form of QP numbers.
pub const SRQS: usize = QPS;
/// Protection domains of one process.
pub const PDS: usize = 1 << 16;
/// Protection domains of other processes in which one process can have objects.
pub const BORROWED: usize = 512;
/// Memory regions and windows of one process; entry 0 is never used, so that no key is 0.
pub const MRS: usize = 1 << 18;
/// Memory windows among `MRS`: the last entries.
pub const MWS: usize = 1 << 16;
/// Slots of a ring: enough to keep two CPUs apart, few enough to stay in the second-level cache.
pub const RING_SLOTS: u32 = 256;
/// Bytes of a bounce buffer: the largest piece that is copied twice.
pub const CHUNK_BYTES: usize = 16 * 1024;
/// Bounce buffers of one process.
pub const CHUNKS: usize = 1 << 14;
/// Multicast groups that QPs of one process can be attached to.
pub const GROUPS: usize = 1024;
/// Steering rules of one process.
pub const RULES: usize = 1 << 15;
/// Words of a frame's key that a steering rule compares.
pub const RULE_WORDS: usize = 18;
/// Event channels of one process whose readers peers can wake directly. Number 0 means no channel.
pub const CHANNELS: usize = 1024;
/// The largest number of pieces of a long operation.
pub const JOB_PIECES: usize = 1024;
/// One-sided operations that a process can have in flight at once.
pub const OPERATIONS_IN_FLIGHT: usize = 64;

/// The first word of both segments. Change it with every change of this file.
pub const MAGIC: u64 = u64::from_be_bytes(*b"fv-softM");

/// A value on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line<T>(pub T);

/// The largest number of counters of one process.
pub const COUNTERS: usize = 48;
/// Bytes of a counter's name.
pub const COUNTER_NAME: usize = 40;
/// Offset of the counters in *tables*, where the command `ferroverbs counters` reads them.
pub const COUNTERS_AT: usize = 64;

/// A named counter. The name makes the counter readable without further knowledge.
#[repr(C)]
#[derive(Debug)]
pub struct Counter {
    /// The name, padded with zeros; written before the first count. An empty name means no counter.
    pub name: [AtomicU8; COUNTER_NAME],
    /// The count, which only grows.
    pub value: AtomicU64,
}

/// The first pages of *tables*.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct TablesHead {
    /// [`MAGIC`].
    pub magic: Owned<AtomicU64>,
    /// The owner's counters of the path between hosts.
    pub counters: Line<Owned<[Counter; COUNTERS]>>,
    /// `ATTENTION_*` bits: which arrivals need a wake-up. Every sender reads them after it
    /// publishes.
    pub attention: Owned<AtomicU32>,
    /// Number of the owner's polls, so that peers can tell whether it still polls. Written at every
    /// poll, hence on its own line.
    pub polls: Line<Owned<AtomicU32>>,
    /// 1: the owner cannot use membarrier(2), so every process that publishes to it must fence.
    pub needs_fence: Owned<AtomicU32>,
    /// The owner's multicast groups are in entries below this index.
    pub groups: Owned<AtomicU32>,
    /// The owner's steering rules are in entries below this index.
    pub rules: Owned<AtomicU32>,
    /// 1: a datagram of the owner found a full ring, so acknowledgements of datagrams wake the
    /// owner.
    pub datagrams_wait: Owned<AtomicU32>,
    /// The piece of another process's [`Job`] that the owner's helper holds
    /// (`engine::helper::HelperClaim`).
    pub hand: Line<Owned<AtomicU64>>,
}

const _: () = assert!(std::mem::offset_of!(TablesHead, counters) == COUNTERS_AT);
const _: () = assert!(size_of::<Counter>() == 48);

/// Wake this process when a request is put into one of its rings.
pub const ATTENTION_REQUESTS: u32 = 1;
/// Wake this process when an acknowledgement for it is published.
pub const ATTENTION_ACKS: u32 = 2;

/// The state of one QP that peers may read.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct QpEntry {
    /// The packed [`Life`] of the QP: one word, which peers read in one load.
    pub packed_life: Owned<AtomicU64>,
    /// Protection domain number (upper half) and `IBV_ACCESS_*` flags (lower half).
    pub rights: Owned<AtomicU64>,
    /// Sequence number of the first slot of the present connection.
    pub ring_base: Owned<AtomicU32>,
    /// `rnr_retry` of ibv_qp_attr: how often a responder may lack a receive; 7: without limit.
    pub rnr_retry: Owned<AtomicU8>,
    /// `min_rnr_timer` of an XRC receive QP, for the QPs that stand in for it.
    pub min_rnr_timer: Owned<AtomicU8>,
    /// `path_mtu` of ibv_qp_attr, an `ibv_mtu`; 0: not set.
    pub path_mtu: Owned<AtomicU8>,
    /// `max_dest_rd_atomic` of ibv_qp_attr.
    pub max_dest_rd_atomic: Owned<AtomicU8>,
    /// The XRC domain of an XRC receive QP (`engine::xrc::DomainId`).
    pub domain: Owned<[AtomicU64; 2]>,
    /// `rq_psn` of ibv_qp_attr: the PSN of the first request of the present connection.
    pub rq_psn: Owned<AtomicU32>,
    /// The end of an XRC receive QP: the owner is destroying the QP ([`CLOSING`]), or has
    /// destroyed the QP while other processes have it open ([`ORPHANED`]).
    pub closing: Owned<AtomicU8>,
    /// The number of the XRC receive QP: this QP's own number, or the number of the QP behind a
    /// stand-in.
    pub stands_for: Owned<AtomicU32>,
    /// The event channel of the queue that receives complete on ([`CHANNELS`]); 0: none.
    pub recv_channel: Owned<AtomicU16>,
    /// The event channel of the queue that sends complete on; 0: none.
    pub send_channel: Owned<AtomicU16>,
    /// 1: acknowledgements to the QP wake its process, if attention asks for it. Otherwise polling
    /// finds them.
    pub awaits_acks: Owned<AtomicU8>,
    /// Nanoseconds that a sender may spend on filling a chunk before a direct copy by the QP's
    /// process would be faster; 0: not known.
    pub chunk_worth: Owned<AtomicU32>,
}

/// `QpEntry::closing`: the owner is destroying the QP.
pub const CLOSING: u8 = 1;
/// `QpEntry::closing`: the owner has destroyed the QP, and other processes have it open.
pub const ORPHANED: u8 = 2;

/// The state of one XRC shared receive queue that peers may read.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SrqEntry {
    /// Protection domain number (lower half), 1 in the upper half; 0: no XRC queue. Written last,
    /// cleared first.
    pub packed_life: Owned<AtomicU64>,
    /// The XRC domain, as in [`QpEntry`].
    pub domain: Owned<[AtomicU64; 2]>,
}

/// State, kind, incarnation and destination of a QP in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// One of the constants below: the QP state, combined with the port state where that matters.
    pub state: u8,
    /// `ibv_qp_type` value.
    pub qp_type: u8,
    /// Counts the connections of this table entry.
    pub generation: u16,
    /// QP number of the other end, 24 bits; 0 before RTR.
    pub dest_qpn: u32,
}

impl Life {
    /// `state` of an entry without a QP; zeroed memory reads as this value.
    pub const NONE: u8 = 0;

    /// Encodes into the word of a [`QpEntry`].
    #[inline]
    pub const fn pack(self) -> u64 {
        (self.state as u64) << 56
            | (self.qp_type as u64) << 48
            | (self.generation as u64) << 32
            | self.dest_qpn as u64
    }

    /// Decodes the word of a [`QpEntry`].
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self {
            state: (word >> 56) as u8,
            qp_type: (word >> 48) as u8,
            generation: (word >> 32) as u16,
            dest_qpn: word as u32,
        }
    }

    /// Whether the QP serves requests of `qpn`: it is connected to `qpn` and can receive.
    #[inline]
    pub const fn serves(self, qpn: u32) -> bool {
        matches!(self.state, Self::RTR | Self::RTS | Self::SQD | Self::SQE) && self.dest_qpn == qpn
    }

    /// Whether the QP is connected to `qpn`, whether its port is up or down.
    #[inline]
    pub const fn is_connected_to(self, qpn: u32) -> bool {
        self.serves(qpn)
            || matches!(
                self.state,
                Self::RTR_DOWN | Self::RTS_DOWN | Self::SQD_DOWN | Self::SQE_DOWN
            ) && self.dest_qpn == qpn
    }

    /// Whether the QP may have sent the slots that `qpn` has received from it.
    #[inline]
    pub const fn may_send(self, qpn: u32) -> bool {
        matches!(self.state, Self::RTS | Self::SQD | Self::RTS_DOWN | Self::SQD_DOWN)
            && self.dest_qpn == qpn
    }

    // Keep this order: the serving states are a range, and so are the states that may send.
    /// The QP state RESET.
    pub const RESET: u8 = 1;
    /// The QP state INIT.
    pub const INIT: u8 = 2;
    /// The QP state RTR.
    pub const RTR: u8 = 3;
    /// The QP state SQE: its sends failed.
    pub const SQE: u8 = 4;
    /// The QP state RTS.
    pub const RTS: u8 = 5;
    /// The QP state SQD: its sends are drained.
    pub const SQD: u8 = 6;
    /// RTS, and the port is down.
    pub const RTS_DOWN: u8 = 7;
    /// SQD, and the port is down.
    pub const SQD_DOWN: u8 = 8;
    /// The QP state ERR.
    pub const ERR: u8 = 9;
    /// RTR, and the port is down.
    pub const RTR_DOWN: u8 = 10;
    /// SQE, and the port is down.
    pub const SQE_DOWN: u8 = 11;
}

/// The state of one memory region or window that peers may read. `key` is written last and cleared
/// first.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct MrEntry {
    /// rkey (lower half; 0: no region) and `IBV_ACCESS_*` flags (upper half).
    pub key: Owned<AtomicU64>,
    /// First address that a work request names.
    pub iova: Owned<AtomicU64>,
    /// Length in bytes.
    pub len: Owned<AtomicU64>,
    /// The address of `iova` in the owner's address space.
    pub va: Owned<AtomicU64>,
    /// Protection domain number.
    pub pd: Owned<AtomicU64>,
    /// The owner's QP to which a window of type 2 is bound; 0: any QP of the domain.
    pub qpn: Owned<AtomicU32>,
    /// Number of the owner's registration. A key may be reused; this number is not.
    pub registration: Owned<AtomicU64>,
    /// The context whose importers may use the region ([`PdEntry::origin`]); 0: none may.
    pub origin: Owned<AtomicU64>,
}

/// The state of one protection domain, for ibv_import_pd(3).
#[repr(C, align(16))]
#[derive(Debug)]
pub struct PdEntry {
    /// The domain's number; 0: no domain. Written last, cleared first.
    pub number: Owned<AtomicU64>,
    /// The context that the domain belongs to: its `origin` (`ops::context_identity`).
    pub origin: Owned<AtomicU64>,
}

/// A multicast group to which QPs of the owner are attached. Senders may read an entry while it
/// changes, so an entry is a hint. The owner checks every datagram that it receives.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct GroupEntry {
    /// The group's GID as two native words; `members` is 0 while they change.
    pub gid: Owned<[AtomicU64; 2]>,
    /// The number of attached QPs; 0: a free entry.
    pub members: Owned<AtomicU64>,
    _pad: u64,
}

/// A steering rule of the owner (`engine::ethernet::steer`). A hint to senders, as [`GroupEntry`].
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RuleEntry {
    /// Precedence and kind; 0: no rule. Written last and cleared first.
    pub rank: Owned<AtomicU64>,
    /// Time of creation in nanoseconds of CLOCK_MONOTONIC.
    pub created_ns: Owned<AtomicU64>,
    /// The required words of a frame's key, in the bits of `mask`.
    pub value: Owned<[AtomicU64; RULE_WORDS]>,
    /// The bits of a frame's key that are compared.
    pub mask: Owned<[AtomicU64; RULE_WORDS]>,
    _pad: [u64; 2],
}

/// Announces a one-sided operation in flight.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct OperationInFlight {
    /// Target slot + 1 (upper half) and rkey (lower half); 0: free.
    pub target: Owned<AtomicU64>,
}

/// The control words of a ring; its slots lie elsewhere.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RingControl {
    /// Sequence number of the first slot that the receiver has not processed. Written by the
    /// receiver, and acknowledges all earlier slots.
    pub acked: FromPeer<AtomicU32>,
    /// Why the receiver refused slot `acked` (`Nak` code); 0: not refused. The receiver writes it
    /// before it stops. In a datagram ring: the identity of the process for which the ring was
    /// prepared.
    pub nak: FromPeer<AtomicU32>,
    /// The incarnation of the remote QP that sends in this ring (`engine::link::Holder`); 0: none
    /// yet. The first incarnation that sends on the connection takes the ring. Only the receiver
    /// clears the word, for a new connection.
    pub holder: FromPeer<AtomicU64>,
    /// Unreliable connections: the first slot of a holder that took over the ring. Written before
    /// `holder`.
    pub begun: FromPeer<AtomicU32>,
    _pad: [u32; 11],
    /// 1 while the receiver polls this ring; otherwise senders must ring a doorbell. Rarely
    /// written, so senders keep the line cached.
    pub hot: Hint<AtomicU32>,
}

/// One 64-byte entry of a ring: words 0 and 1 are the head, the rest is payload. Word 0 is stored
/// last.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// All eight words.
    pub words: FromPeer<[AtomicU64; 8]>,
}

/// The first page of *rings*.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RingsHead {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    _pad: [u64; 7],
    /// Slot number + 1 of the process that executes an atomic on the owner's memory; 0: free.
    pub atomic_lock: Hint<AtomicU32>,
    _pad2: [u32; 15],
    /// One bit for each word of `qp_arrivals` that may be non-zero.
    pub qp_arrival_summary: Hint<[AtomicU64; QPS / 64 / 64]>,
    /// One bit for each word of `peer_arrivals` that may be non-zero.
    pub peer_arrival_summary: Hint<AtomicU64>,
    _pad3: [u64; 3],
    /// One bit for each QP whose ring has arrivals or acknowledgements and is not polled.
    pub qp_arrivals: Hint<[AtomicU64; QPS / 64]>,
    /// One bit for each datagram ring that has arrivals and is not polled.
    pub peer_arrivals: Hint<[AtomicU64; SLOTS / 64]>,
    /// Slot number + 1 of the process that calls the owner's helper ([`Job`]); 0: none. Any peer
    /// may write the word, so the helper checks whether a job exists.
    pub help_wanted: Line<Hint<AtomicU32>>,
}

/// A long one-sided operation of the owner, divided into pieces, of which the target executes some
/// (`engine::helping`).
///
/// The job lies in *tables*: a helper reads and writes the owner's memory at the addresses given
/// here, so only the owner may write them. The helper reports its progress in its own tables
/// ([`TablesHead::hand`]).
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Job {
    /// Number of the operation (32 bits), number of pieces (16), and number of leading pieces that
    /// the owner took (16). If the last two are equal, the operation is over.
    pub state: Owned<AtomicU64>,
    /// Process slot of the target.
    pub target: Owned<AtomicU32>,
    /// The target's QP, which grants the owner's rights.
    pub qpn: Owned<AtomicU32>,
    /// The rkey of the owner's request.
    pub rkey: Owned<AtomicU32>,
    /// 1: an RDMA READ, from the target to the owner.
    pub is_read: Owned<AtomicU32>,
    /// Bytes of each piece except the last.
    pub piece: Owned<AtomicU64>,
    /// Bytes of all pieces.
    pub len: Owned<AtomicU64>,
    /// The first address of the operation at the target, as named by the request.
    pub addr: Owned<AtomicU64>,
    /// The range of each piece in the owner's memory.
    pub parts: [CopyRange; JOB_PIECES],
}

/// A range of the owner's memory behind the owner's witness (`soft_memory::witness`), laid out as
/// two `struct iovec`. The kernel reads both when the helper copies the piece, so the owner can
/// withdraw a piece until then.
#[repr(C)]
#[derive(Debug)]
pub struct CopyRange {
    /// Address of the witness.
    pub witness: Owned<AtomicU64>,
    /// Bytes of the witness to copy.
    pub witness_len: Owned<AtomicU64>,
    /// Address of the piece.
    pub addr: Owned<AtomicU64>,
    /// Length of the piece in bytes; 0: withdrawn.
    pub len: Owned<AtomicU64>,
}

/// The identities of the processes that have a QP open, by process slot.
pub type Openers = [FromPeer<AtomicU32>; SLOTS];

const fn pages(bytes: usize) -> usize {
    bytes.div_ceil(4096) * 4096
}

/// Bytes of one ring's slots.
pub const RING_BYTES: usize = RING_SLOTS as usize * size_of::<Slot>();

/// Offset in *tables* of the [`OperationInFlight`]s, directly behind the head.
pub const TABLES_IN_FLIGHT: usize = pages(size_of::<TablesHead>());
/// Offset of the [`QpEntry`]s.
pub const TABLES_QPS: usize =
    TABLES_IN_FLIGHT + pages(OPERATIONS_IN_FLIGHT * size_of::<OperationInFlight>());
/// Offset of the [`SrqEntry`]s.
pub const TABLES_SRQS: usize = TABLES_QPS + pages(QPS * size_of::<QpEntry>());
/// Offset of the [`MrEntry`]s.
pub const TABLES_MRS: usize = TABLES_SRQS + pages(SRQS * size_of::<SrqEntry>());
/// Offset of the [`GroupEntry`]s.
pub const TABLES_GROUPS: usize = TABLES_MRS + pages(MRS * size_of::<MrEntry>());
/// Offset of the number of threads that sleep in ibv_get_cq_event(3), for each event channel.
pub const TABLES_SLEEPERS: usize = TABLES_GROUPS + pages(GROUPS * size_of::<GroupEntry>());
/// Offset of the [`RuleEntry`]s.
pub const TABLES_RULES: usize = TABLES_SLEEPERS + pages(CHANNELS * size_of::<AtomicU32>());
/// Offset of the [`PdEntry`]s.
pub const TABLES_PDS: usize = TABLES_RULES + pages(RULES * size_of::<RuleEntry>());
/// Offset of the numbers of other processes' domains in which the owner has objects.
pub const TABLES_BORROWED: usize = TABLES_PDS + pages(PDS * size_of::<PdEntry>());
/// Offset of the [`Job`].
pub const TABLES_JOB: usize = TABLES_BORROWED + pages(BORROWED * size_of::<AtomicU64>());
/// Length of a *tables* segment.
pub const TABLES_LEN: usize = TABLES_JOB + pages(size_of::<Job>());

/// Offset in *rings* of the [`RingControl`]s of QPs, directly behind the head.
pub const RINGS_QP_CONTROL: usize = pages(size_of::<RingsHead>());
/// Offset of the [`RingControl`]s of datagram rings.
pub const RINGS_PEER_CONTROL: usize = RINGS_QP_CONTROL + pages(QPS * size_of::<RingControl>());
/// Offset of the futex(2) words on which the readers of each event channel sleep.
pub const RINGS_ALARMS: usize = RINGS_PEER_CONTROL + pages(SLOTS * size_of::<RingControl>());
/// Offset of the [`Openers`] of each QP (ibv_open_qp(3)): an identity per process slot, which
/// distinguishes later owners of that slot; 0: not open. The first array that lies in windows.
pub const RINGS_OPENERS: usize = FRONT;
/// Offset of the slots of QPs' rings.
pub const RINGS_QP_SLOTS: usize = RINGS_OPENERS + QPS * size_of::<Openers>();
/// Offset of the slots of datagram rings.
pub const RINGS_PEER_SLOTS: usize = RINGS_QP_SLOTS + QPS * RING_BYTES;
/// Offset of the bounce buffers.
pub const RINGS_CHUNKS: usize = RINGS_PEER_SLOTS + SLOTS * RING_BYTES;
/// Length of a *rings* segment.
pub const RINGS_LEN: usize = RINGS_CHUNKS + CHUNKS * CHUNK_BYTES;

// All small structures lie in the front. Each array behind the front has whole windows, and each
// window has whole elements.
const _: () = assert!(RINGS_ALARMS + pages(CHANNELS * size_of::<AtomicU32>()) <= FRONT);
const _: () = assert!((QPS * size_of::<Openers>()).is_multiple_of(WINDOW));
const _: () = assert!((QPS * RING_BYTES).is_multiple_of(WINDOW));
const _: () = assert!((SLOTS * RING_BYTES).is_multiple_of(WINDOW));
const _: () = assert!((CHUNKS * CHUNK_BYTES).is_multiple_of(WINDOW));
const _: () = assert!(WINDOW.is_multiple_of(size_of::<Openers>()));
const _: () = assert!(WINDOW.is_multiple_of(RING_BYTES) && WINDOW.is_multiple_of(CHUNK_BYTES));
const _: () = assert!(size_of::<Slot>() == 64);
const _: () = assert!(size_of::<RingControl>() == 128);
const _: () = assert!(size_of::<QpEntry>() == 64 && size_of::<SrqEntry>() == 64);
const _: () = assert!(size_of::<MrEntry>() == 64 && size_of::<PdEntry>() == 16);
const _: () = assert!(size_of::<CopyRange>() == 2 * size_of::<libc::iovec>());
const _: () = assert!(size_of::<GroupEntry>() == 32 && size_of::<RuleEntry>() == 320);
const _: () = assert!(QP_INDEX_BITS + SLOTS.trailing_zeros() == 24);
const _: () = assert!(MRS.trailing_zeros() + SLOTS.trailing_zeros() <= 32);
const _: () = assert!(PD_SLOT_SHIFT + SLOTS.trailing_zeros() == 32);

/// The number of the QP or shared receive queue at `index` in the table of process `slot`.
#[inline]
pub const fn qpn(slot: u16, index: usize) -> u32 {
    (slot as u32) << QP_INDEX_BITS | index as u32
}

/// Process slot and table index of the number of a QP or shared receive queue.
#[inline]
pub const fn split_qpn(qpn: u32) -> (u16, usize) {
    (((qpn & 0xff_ffff) >> QP_INDEX_BITS) as u16, qpn as usize & (QPS - 1))
}

/// Bits of a protection domain's number below the process slot: the table index, and above the
/// index a count of the entry's uses.
pub const PD_SLOT_SHIFT: u32 = 22;

/// Process slot and table index of a protection domain's number, which is also its handle.
#[inline]
pub const fn split_pd(number: u32) -> (u16, usize) {
    ((number >> PD_SLOT_SHIFT) as u16, number as usize & (PDS - 1))
}

/// The handle of the memory region or device memory at `index` in the table of process `slot`.
#[inline]
pub const fn mr_handle(slot: u16, index: usize) -> u32 {
    (slot as u32) << MRS.trailing_zeros() | index as u32
}

/// Process slot and table index of an MR handle.
#[inline]
pub const fn split_mr_handle(handle: u32) -> (u16, usize) {
    ((handle >> MRS.trailing_zeros()) as u16, handle as usize & (MRS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qp_number_carries_slot_and_index() {
        for (slot, index) in [(1, 0), (1023, QPS - 1), (7, 123)] {
            let n = qpn(slot, index);
            assert!(n < 1 << 24);
            assert_eq!(split_qpn(n), (slot, index));
        }
    }

    #[test]
    fn handles_carry_slot_and_index() {
        for (slot, index) in [(1, 0), (1023, MRS - 1), (7, 123)] {
            assert_eq!(split_mr_handle(mr_handle(slot, index)), (slot, index));
        }
        assert_eq!(split_mr_handle(u32::MAX).1, MRS - 1, "any handle names an entry that exists");
        assert_eq!(split_pd(3 << PD_SLOT_SHIFT | 5 << 16 | 77), (3, 77));
    }

    #[test]
    fn a_life_survives_its_word_and_zero_is_no_qp() {
        let life = Life { state: Life::RTS, qp_type: 2, generation: 0xbeef, dest_qpn: 0xab_cdef };
        assert_eq!(Life::unpack(life.pack()), life);
        assert_eq!(Life::unpack(0).state, Life::NONE);
        assert!(life.serves(0xab_cdef) && !life.serves(1));
    }
}
