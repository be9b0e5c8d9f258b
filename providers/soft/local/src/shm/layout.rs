//! Where everything lies in a process's two shared segments.
//!
//! *tables*: written by its owner only; peers map it read-only. Holds what others
//! must know of us: whether we want to be woken, our QPs, our memory regions, the one-sided
//! operations we have under way (so that their targets can wait for them).
//!
//! *rings*: written by peers too. Holds the receive ring of each of our QPs, one datagram ring per
//! peer process, doorbells, the lock of our atomics, and the bounce buffers ("chunks")
//! of what we send.
//!
//! Both are sparse: a page exists once it is touched. All offsets are constants, so that finding
//! a peer's QP, region or ring is an addition.
//!
//! Of a peer's *rings* only the front is mapped when we meet: all that is small. Behind it lie windows, each of which is mapped when we
//! first get there, and nothing lies across two of them.

use super::trust::{FromPeer, Hint, Owned};
use crate::fabric::FRONT;
use soft_sys::map::WINDOW;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Processes of one fabric; slot 0 is never given out, so that QP numbers 0 and 1 stay special.
pub const SLOTS: usize = 1024;
/// Bits of a QP number (24) that index the owner's QP table; the upper ten name the process slot.
pub const QP_INDEX_BITS: u32 = 14;
/// QPs of one process.
pub const QPS: usize = 1 << QP_INDEX_BITS;
/// Shared receive queues of one process: their numbers are made as those of QPs.
pub const SRQS: usize = QPS;
/// Protection domains of one process.
pub const PDS: usize = 1 << 16;
/// Protection domains of others that one process is known to use.
pub const BORROWED: usize = 512;
/// Memory regions and windows of one process; entry 0 is never used, so that no key is 0.
pub const MRS: usize = 1 << 18;
/// Memory windows among them: the last entries.
pub const MWS: usize = 1 << 16;
/// Slots of a ring: enough to keep two CPUs apart, few enough to stay in the second-level cache.
pub const RING_SLOTS: u32 = 256;
/// Bytes of a bounce buffer: the largest piece that travels by copying twice.
pub const CHUNK_BYTES: usize = 16 * 1024;
/// Bounce buffers of one process.
pub const CHUNKS: usize = 1 << 14;
/// Multicast groups that QPs of one process can be attached to.
pub const GROUPS: usize = 1024;
/// Steering rules of one process.
pub const RULES: usize = 1 << 15;
/// Words that a steering rule compares.
pub const RULE_WORDS: usize = 18;
/// Event channels of one process whose readers peers can wake by themselves; number 0 is nobody's.
pub const CHANNELS: usize = 1024;
/// Pieces of a long operation at most.
pub const JOB_PIECES: usize = 1024;
/// One-sided operations that a process can have under way at once.
pub const OPERATIONS_IN_FLIGHT: usize = 64;

/// Said at the start of both segments; changes with any change of this file.
pub const MAGIC: u64 = u64::from_be_bytes(*b"fv-softM");

/// Something on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line<T>(pub T);

/// Counters that one process can have.
pub const COUNTERS: usize = 48;
/// Bytes of a counter's name.
pub const COUNTER_NAME: usize = 40;
/// Where they begin in *tables*: there the command `ferroverbs counters` reads them.
pub const COUNTERS_AT: usize = 64;

/// Something that a process counts, and what that is called: whoever reads it needs to know nothing else.
#[repr(C)]
#[derive(Debug)]
pub struct Counter {
    /// Letters, and zeros behind them; written before anything is counted. Without a name there is no counter.
    pub name: [AtomicU8; COUNTER_NAME],
    /// How often it happened; only goes up.
    pub value: AtomicU64,
}

/// First pages of *tables*.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct TablesHead {
    /// [`MAGIC`].
    pub magic: Owned<AtomicU64>,
    /// What the owner counts of the wire between hosts.
    pub counters: Line<Owned<[Counter; COUNTERS]>>,
    /// `ATTENTION_*` bits: which arrivals need a wake-up. Read by every sender after it published.
    pub attention: Owned<AtomicU32>,
    /// Counts the owner's polls, so that peers can tell whether it still looks. Written at every poll: on a line of its own.
    pub polls: Line<Owned<AtomicU32>>,
    /// 1: the owner cannot use one-sided barriers, so whoever publishes to it must fence.
    pub needs_fence: Owned<AtomicU32>,
    /// All multicast groups of the owner are in entries before this one.
    pub groups: Owned<AtomicU32>,
    /// All steering rules of the owner are in entries before this one.
    pub rules: Owned<AtomicU32>,
    /// 1: a datagram of the owner found a ring full, so acknowledgements of datagrams wake it.
    pub datagrams_wait: Owned<AtomicU32>,
    /// What the owner's helper has of another process's [`Job`] (`engine::helper::Hand`).
    pub hand: Line<Owned<AtomicU64>>,
}

const _: () = assert!(std::mem::offset_of!(TablesHead, counters) == COUNTERS_AT);
const _: () = assert!(size_of::<Counter>() == 48);

/// Wake this process when a request was put into one of its rings.
pub const ATTENTION_REQUESTS: u32 = 1;
/// Wake this process when an acknowledgement to it was published.
pub const ATTENTION_ACKS: u32 = 2;

/// What peers may know of one QP.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct QpEntry {
    /// [`Life`] of the QP, one word so that it is seen whole.
    pub life: Owned<AtomicU64>,
    /// Protection domain number (upper half) and `IBV_ACCESS_*` flags (lower half).
    pub rights: Owned<AtomicU64>,
    /// Sequence number that the first slot of the present connection must carry.
    pub ring_base: Owned<AtomicU32>,
    /// `rnr_retry` of ibv_qp_attr: how often a responder may find no receive; 7 is for ever.
    pub rnr_retry: Owned<AtomicU8>,
    /// `min_rnr_timer` of an XRC receive QP, for those who stand for it.
    pub min_rnr_timer: Owned<AtomicU8>,
    /// `path_mtu` of ibv_qp_attr, an `ibv_mtu`; 0: not set.
    pub path_mtu: Owned<AtomicU8>,
    /// `max_dest_rd_atomic` of ibv_qp_attr.
    pub max_dest_rd_atomic: Owned<AtomicU8>,
    /// The XRC domain of an XRC receive QP (`engine::xrc::DomainId`).
    pub domain: Owned<[AtomicU64; 2]>,
    /// `rq_psn` of ibv_qp_attr: the PSN that the first request of the present connection must have.
    pub rq_psn: Owned<AtomicU32>,
    /// An XRC receive QP that is being destroyed ([`CLOSING`]), or that its creator has destroyed while others have it open
    /// ([`ORPHANED`]).
    pub closing: Owned<AtomicU8>,
    /// An XRC receive QP, or one that stands for it in this process: its number.
    pub stands_for: Owned<AtomicU32>,
    /// Event channels of the queues that receives and sends complete on ([`CHANNELS`]); 0: none.
    pub recv_channel: Owned<AtomicU16>,
    /// As `recv_channel`, of sends.
    pub send_channel: Owned<AtomicU16>,
    /// 1: acknowledgements to the QP wake its process, as attention says. Otherwise whoever polls finds them.
    pub awaits_acks: Owned<AtomicU8>,
    /// Nanoseconds that whoever sends to the QP may need to fill a chunk, if that shall be better than letting it fetch long messages
    /// itself; 0: not known.
    pub chunk_worth: Owned<AtomicU32>,
}

/// Of `QpEntry::closing`.
pub const CLOSING: u8 = 1;
/// Of `QpEntry::closing`.
pub const ORPHANED: u8 = 2;

/// What peers may know of one XRC shared receive queue.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SrqEntry {
    /// Protection domain number (lower half), 1 above it; 0: no XRC queue. Written last, cleared first.
    pub life: Owned<AtomicU64>,
    /// As in [`QpEntry`].
    pub domain: Owned<[AtomicU64; 2]>,
}

/// State, kind, incarnation and destination of a QP in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// One of the constants: state of the QP, and of its port where that matters.
    pub state: u8,
    /// `ibv_qp_type` value.
    pub kind: u8,
    /// Counts the connections of this table entry.
    pub generation: u16,
    /// QP number at the other end, 24 bits; 0 before RTR.
    pub dest_qpn: u32,
}

impl Life {
    /// `state` of an entry without a QP: zeroed memory reads as this.
    pub const NONE: u8 = 0;

    /// The word of a QP's entry that says it.
    #[inline]
    pub const fn pack(self) -> u64 {
        (self.state as u64) << 56
            | (self.kind as u64) << 48
            | (self.generation as u64) << 32
            | self.dest_qpn as u64
    }

    /// What such a word says.
    #[inline]
    pub const fn unpack(word: u64) -> Self {
        Self {
            state: (word >> 56) as u8,
            kind: (word >> 48) as u8,
            generation: (word >> 32) as u16,
            dest_qpn: word as u32,
        }
    }

    /// Whether requests of `qpn` are served: the QP is connected to it and can receive.
    #[inline]
    pub const fn serves(self, qpn: u32) -> bool {
        matches!(self.state, Self::RTR | Self::RTS | Self::SQD | Self::SQE) && self.dest_qpn == qpn
    }

    /// Whether the QP is connected to `qpn`, be its port up or down.
    #[inline]
    pub const fn is_connected_to(self, qpn: u32) -> bool {
        self.serves(qpn)
            || matches!(
                self.state,
                Self::RTR_DOWN | Self::RTS_DOWN | Self::SQD_DOWN | Self::SQE_DOWN
            ) && self.dest_qpn == qpn
    }

    /// Whether the QP may have sent to `qpn` what lies there from it.
    #[inline]
    pub const fn may_send(self, qpn: u32) -> bool {
        matches!(self.state, Self::RTS | Self::SQD | Self::RTS_DOWN | Self::SQD_DOWN)
            && self.dest_qpn == qpn
    }

    // In this order, those that serve and those that may send are ranges.
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

/// What peers may know of one memory region or window. `key` is written last and cleared first.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct MrEntry {
    /// rkey (lower half; 0: no region) and `IBV_ACCESS_*` flags (upper half).
    pub key: Owned<AtomicU64>,
    /// First address that a work request names.
    pub iova: Owned<AtomicU64>,
    /// Bytes.
    pub len: Owned<AtomicU64>,
    /// Where `iova` lies in the owner's address space.
    pub va: Owned<AtomicU64>,
    /// Protection domain number.
    pub pd: Owned<AtomicU64>,
    /// A window of type 2: the owner's QP that it is bound to; 0: any of the domain.
    pub qpn: Owned<AtomicU32>,
    /// Counts the owner's registrations: a key may come again, this does not.
    pub born: Owned<AtomicU64>,
    /// The context whose importers may have the region ([`PdEntry::origin`]); 0: nobody may.
    pub origin: Owned<AtomicU64>,
}

/// What peers may know of one protection domain: ibv_import_pd(3) asks.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct PdEntry {
    /// Its number; 0: no domain. Written last, cleared first.
    pub number: Owned<AtomicU64>,
    /// The context that it belongs to, by the number in that context's descriptor (`ops::badge`).
    pub origin: Owned<AtomicU64>,
}

/// A multicast group that QPs of the owner are attached to. Senders read it while it changes: what it says is a hint, and the owner,
/// to whom they send then, knows better.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct GroupEntry {
    /// The group's GID, as two native words of its bytes; `members` is 0 while they change.
    pub gid: Owned<[AtomicU64; 2]>,
    /// Attached QPs; 0: a free entry.
    pub members: Owned<AtomicU64>,
    _pad: u64,
}

/// A steering rule of the owner (`engine::ethernet::steer`). A hint to senders, as [`GroupEntry`].
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RuleEntry {
    /// Precedence and kind; 0: no rule. Written last and cleared first.
    pub rank: Owned<AtomicU64>,
    /// When it was made, in nanoseconds of the host's monotonic clock.
    pub born: Owned<AtomicU64>,
    /// What the words of a frame's key must be, where `mask` has a bit.
    pub value: Owned<[AtomicU64; RULE_WORDS]>,
    /// Which bits of a frame's key count.
    pub mask: Owned<[AtomicU64; RULE_WORDS]>,
    _pad: [u64; 2],
}

/// Announces a one-sided operation under way: target slot + 1 (upper half) and rkey; 0: free.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct OperationInFlight {
    /// The one word; see the type.
    pub target: Owned<AtomicU64>,
}

/// The control words of a ring; the slots lie apart.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RingControl {
    /// Sequence number of the first slot not yet processed. Written by the receiver; all before are
    /// acknowledged.
    pub acked: FromPeer<AtomicU32>,
    /// Why slot `acked` was refused (`Nak` code), 0 if it was not. Written by the receiver before
    /// it stops. In a datagram ring: the identity of the process that it was made ready for.
    pub nak: FromPeer<AtomicU32>,
    /// Which incarnation of the remote QP puts pieces here (`engine::link::Holder`); 0: none has yet. Taken by the first one that
    /// sends on the connection, and given back by nobody but the receiver, when it begins another.
    pub holder: FromPeer<AtomicU64>,
    /// Unreliable connections: with which slot a holder began that was not the first. Written before `holder`.
    pub begun: FromPeer<AtomicU32>,
    _pad: [u32; 11],
    /// 1 while the receiver looks at this ring by itself; otherwise a doorbell must be rung.
    /// Rarely written, so senders keep it cached.
    pub hot: Hint<AtomicU32>,
}

/// 64 bytes of a ring: words 0 and 1 are the head, the rest is payload. Word 0 is stored last.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// All of it.
    pub words: FromPeer<[AtomicU64; 8]>,
}

/// First page of *rings*.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RingsHead {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    _pad: [u64; 7],
    /// Slot number + 1 of the process that does an atomic on our memory, 0: free.
    pub atomic_lock: Hint<AtomicU32>,
    _pad2: [u32; 15],
    /// Which words of `qp_bells` may be non-zero.
    pub qp_bell_summary: Hint<[AtomicU64; QPS / 64 / 64]>,
    /// Which words of `peer_bells` may be non-zero, one bit each.
    pub peer_bell_summary: Hint<AtomicU64>,
    _pad3: [u64; 3],
    /// A bit for each QP that has something to serve or to absorb and that nobody looks at by himself.
    pub qp_bells: Hint<[AtomicU64; QPS / 64]>,
    /// A bit for each cold datagram ring that holds something.
    pub peer_bells: Hint<[AtomicU64; SLOTS / 64]>,
    /// Slot number + 1 of the process that calls the owner's helper ([`Job`]), 0: none does. Anybody may write it: who is called looks whether there is a job.
    pub help_wanted: Line<Hint<AtomicU32>>,
}

/// A long one-sided operation of the owner, in pieces, of which its target does some (`engine::helping`).
///
/// In *tables*: whoever helps reads and writes memory of the owner where this says so. What the helper says of it is in its own tables
/// ([`TablesHead::hand`]).
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Job {
    /// Number of the operation (32 bits), pieces that it has (16), pieces that the owner took, from the first on (16). All: it is over.
    pub state: Owned<AtomicU64>,
    /// Process slot of the target.
    pub target: Owned<AtomicU32>,
    /// The target's QP, whose rights the owner has.
    pub qpn: Owned<AtomicU32>,
    /// The key that the owner's request names.
    pub rkey: Owned<AtomicU32>,
    /// 1: from the target to the owner.
    pub is_read: Owned<AtomicU32>,
    /// Bytes of each piece but the last one.
    pub piece: Owned<AtomicU64>,
    /// Bytes of all pieces.
    pub len: Owned<AtomicU64>,
    /// Where they begin: the target's address, as the request names it.
    pub addr: Owned<AtomicU64>,
    /// Where each piece is in the owner's memory.
    pub parts: [Part; JOB_PIECES],
}

/// A piece of the owner's memory behind the owner's witness (`soft_memory::witness`), laid out as two `struct iovec`: the kernel reads both when
/// somebody is at the piece, so that the owner can take it back until then.
#[repr(C)]
#[derive(Debug)]
pub struct Part {
    /// Where the witness is.
    pub witness: Owned<AtomicU64>,
    /// Bytes of it that are copied.
    pub witness_len: Owned<AtomicU64>,
    /// Where it begins.
    pub addr: Owned<AtomicU64>,
    /// 0: taken back.
    pub len: Owned<AtomicU64>,
}

/// Who has a QP open, by process slot.
pub type Openers = [FromPeer<AtomicU32>; SLOTS];

const fn pages(bytes: usize) -> usize {
    bytes.div_ceil(4096) * 4096
}

/// Bytes of one ring's slots.
pub const RING_BYTES: usize = RING_SLOTS as usize * size_of::<Slot>();

/// Where the [`OperationInFlight`]s are in *tables*; the first behind its head.
pub const TABLES_IN_FLIGHT: usize = pages(size_of::<TablesHead>());
/// Where the [`QpEntry`]s are.
pub const TABLES_QPS: usize =
    TABLES_IN_FLIGHT + pages(OPERATIONS_IN_FLIGHT * size_of::<OperationInFlight>());
/// Where the [`SrqEntry`]s are.
pub const TABLES_SRQS: usize = TABLES_QPS + pages(QPS * size_of::<QpEntry>());
/// Where the [`MrEntry`]s are.
pub const TABLES_MRS: usize = TABLES_SRQS + pages(SRQS * size_of::<SrqEntry>());
/// Where the [`GroupEntry`]s are.
pub const TABLES_GROUPS: usize = TABLES_MRS + pages(MRS * size_of::<MrEntry>());
/// For each event channel how many threads sleep in ibv_get_cq_event(3).
pub const TABLES_SLEEPERS: usize = TABLES_GROUPS + pages(GROUPS * size_of::<GroupEntry>());
/// Where the [`RuleEntry`]s are.
pub const TABLES_RULES: usize = TABLES_SLEEPERS + pages(CHANNELS * size_of::<AtomicU32>());
/// Where the [`PdEntry`]s are.
pub const TABLES_PDS: usize = TABLES_RULES + pages(RULES * size_of::<RuleEntry>());
/// Where the domains of others are that the owner has objects in.
pub const TABLES_BORROWED: usize = TABLES_PDS + pages(PDS * size_of::<PdEntry>());
/// Where the [`Job`] is.
pub const TABLES_JOB: usize = TABLES_BORROWED + pages(BORROWED * size_of::<AtomicU64>());
/// Length of a *tables* segment.
pub const TABLES_LEN: usize = TABLES_JOB + pages(size_of::<Job>());

/// Where the [`RingControl`]s of QPs are in *rings*; the first behind its head.
pub const RINGS_QP_CONTROL: usize = pages(size_of::<RingsHead>());
/// Where the [`RingControl`]s of datagram rings are.
pub const RINGS_PEER_CONTROL: usize = RINGS_QP_CONTROL + pages(QPS * size_of::<RingControl>());
/// For each event channel a word that those who sleep there wait on (futex(2)).
pub const RINGS_ALARMS: usize = RINGS_PEER_CONTROL + pages(SLOTS * size_of::<RingControl>());
/// For each QP the processes that have it open (ibv_open_qp(3)): by slot, their identities, which tell later owners of the slot
/// from them; 0: not this one. The first of what lies in windows.
pub const RINGS_OPENERS: usize = FRONT;
/// Where the slots of QPs' rings are.
pub const RINGS_QP_SLOTS: usize = RINGS_OPENERS + QPS * size_of::<Openers>();
/// Where the slots of datagram rings are.
pub const RINGS_PEER_SLOTS: usize = RINGS_QP_SLOTS + QPS * RING_BYTES;
/// Where the bounce buffers are.
pub const RINGS_CHUNKS: usize = RINGS_PEER_SLOTS + SLOTS * RING_BYTES;
/// Length of a *rings* segment.
pub const RINGS_LEN: usize = RINGS_CHUNKS + CHUNKS * CHUNK_BYTES;

// All that is small lies in the front; each array behind it is of whole windows, and each window of whole elements.
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
const _: () = assert!(size_of::<Part>() == 2 * size_of::<libc::iovec>());
const _: () = assert!(size_of::<GroupEntry>() == 32 && size_of::<RuleEntry>() == 320);
const _: () = assert!(QP_INDEX_BITS + SLOTS.trailing_zeros() == 24);
const _: () = assert!(MRS.trailing_zeros() + SLOTS.trailing_zeros() <= 32);
const _: () = assert!(PD_SLOT_SHIFT + SLOTS.trailing_zeros() == 32);

/// Number of the QP, or shared receive queue, that is entry `index` in the table of process `slot`.
#[inline]
pub const fn qpn(slot: u16, index: usize) -> u32 {
    (slot as u32) << QP_INDEX_BITS | index as u32
}

/// Process slot and table index of a QP's or shared receive queue's number.
#[inline]
pub const fn split_qpn(qpn: u32) -> (u16, usize) {
    (((qpn & 0xff_ffff) >> QP_INDEX_BITS) as u16, qpn as usize & (QPS - 1))
}

/// Bits of a protection domain's number below the process slot: table index, and above it uses of that entry.
pub const PD_SLOT_SHIFT: u32 = 22;

/// Process slot and table index of a protection domain's number, which is its handle, too.
#[inline]
pub const fn split_pd(number: u32) -> (u16, usize) {
    ((number >> PD_SLOT_SHIFT) as u16, number as usize & (PDS - 1))
}

/// The handle of the memory region, or device memory, that is entry `index` in the table of process `slot`.
#[inline]
pub const fn mr_handle(slot: u16, index: usize) -> u32 {
    (slot as u32) << MRS.trailing_zeros() | index as u32
}

/// Process slot and table index of such a handle.
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
        let life = Life { state: Life::RTS, kind: 2, generation: 0xbeef, dest_qpn: 0xab_cdef };
        assert_eq!(Life::unpack(life.pack()), life);
        assert_eq!(Life::unpack(0).state, Life::NONE);
        assert!(life.serves(0xab_cdef) && !life.serves(1));
    }
}
