//! Typed access to a pair of segments, our own or a peer's.
//!
//! Only atomics are handed out as references: the other side may write at any time, which no other
//! reference permits. Bulk bytes are copied through raw pointers.

use super::layout::*;
use super::protocol::{self, take_bits};
use super::ring::Ring;
use super::trust::{FromPeer, Hint, Owned};
use crate::fabric::{FRONT, Peer};
use soft_memory::Range;
use soft_sys::map::{LazyMapping, WINDOW};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Base addresses of one process's segments. The creator keeps the mappings alive.
#[derive(Clone, Copy, Debug)]
pub struct View {
    tables: *const u8,
    /// The front of *rings*.
    rings: *mut u8,
    /// The lazy mapping of the windows behind the front; NULL: all of *rings* is mapped.
    lazy: *const LazyMapping,
}

// SAFETY: a View holds addresses that any thread may use; all access is by atomics or raw copies.
unsafe impl Send for View {}
// SAFETY: a shared View only exposes its addresses, which never change; the memory behind them is
// accessed by atomics or raw copies.
unsafe impl Sync for View {}

impl View {
    /// A view of mapped segments.
    ///
    /// # Safety
    /// `tables` is mapped readable (writable if the owner uses the view) for `TABLES_LEN` bytes.
    /// `rings` is mapped readable and writable for `RINGS_LEN` bytes. Both are page-aligned, and
    /// outlive every copy of the view and every reference or address from it.
    #[inline]
    pub const unsafe fn new(tables: *const u8, rings: *mut u8) -> Self {
        Self { tables, rings, lazy: std::ptr::null() }
    }

    /// A view of the segments of `peer`, which may be this process itself.
    ///
    /// # Safety
    /// The fabric's segments have the lengths of `shm::layout`. `peer` outlives every copy of the
    /// view and every reference or address from it.
    #[inline]
    unsafe fn of(peer: &Peer) -> Self {
        let lazy = peer.lazy_rings().map_or(std::ptr::null(), std::ptr::from_ref);
        Self { tables: peer.tables().base(), rings: peer.rings().base(), lazy }
    }

    /// Element `index` of the array at `offset` of *tables*, which has `count` elements.
    #[inline]
    fn table<T>(&self, offset: usize, index: usize, count: usize) -> &T {
        assert!(index < count);
        // SAFETY: in the mapped segment (layout constants, index checked); T consists of atomics,
        // for which any bits are valid; offsets are multiples of the page, and the size of T is a
        // multiple of its alignment (repr(C)).
        unsafe { &*self.tables.add(offset + index * size_of::<T>()).cast::<T>() }
    }

    /// Element `index` of the array at `offset` of the front of *rings*, which has `count`
    /// elements.
    #[inline]
    fn ring<T>(&self, offset: usize, index: usize, count: usize) -> &T {
        assert!(index < count);
        debug_assert!(offset + count * size_of::<T>() <= FRONT);
        // SAFETY: in the mapped front (layout constants, index checked); T consists of atomics, for
        // which any bits are valid; offsets and the size of T are multiples of its alignment
        // (repr(C)).
        unsafe { &*self.rings.add(offset + index * size_of::<T>()).cast::<T>() }
    }

    /// As `ring`, for an array in windows behind the front; `None`: the window cannot be mapped.
    #[inline]
    fn windowed<T>(&self, offset: usize, index: usize, count: usize) -> Option<&T> {
        assert!(index < count);
        let at = self.behind_front(offset - FRONT + index * size_of::<T>())?;
        // SAFETY: `behind_front` found the element's first byte in the mapped segment, and no
        // element crosses two windows (shm::layout); T consists of atomics, for which any bits are
        // valid, and lies at a multiple of its alignment.
        Some(unsafe { &*at.cast::<T>() })
    }

    /// The address of the byte `at` bytes behind the front of *rings*, valid up to the end of its
    /// window; `None`: out of range, or the window cannot be mapped.
    #[inline]
    pub fn behind_front(&self, at: usize) -> Option<*mut u8> {
        if self.lazy.is_null() {
            // SAFETY: in the segment, all of which is mapped.
            return (at < RINGS_LEN - FRONT).then(|| unsafe { self.rings.add(FRONT + at) });
        }
        // SAFETY: of a peer that outlives the view (contract of `of`).
        let window = unsafe { (*self.lazy).window(at / WINDOW) }?;
        // SAFETY: a window has that many bytes.
        Some(unsafe { window.add(at % WINDOW) })
    }

    /// Whether the window of the bounce buffers that the owner takes first can be mapped.
    pub fn maps_chunks(&self) -> bool {
        self.behind_front(RINGS_CHUNKS - FRONT).is_some()
    }

    /// The head of *tables*.
    #[inline]
    pub fn tables_head(&self) -> &TablesHead {
        self.table(0, 0, 1)
    }

    /// The head of *rings*.
    #[inline]
    pub fn rings_head(&self) -> &RingsHead {
        self.ring(0, 0, 1)
    }

    /// The owner's entry of its QP `index`.
    #[inline]
    pub fn qp(&self, index: usize) -> &QpEntry {
        self.table(TABLES_QPS, index, QPS)
    }

    /// The owner's entry of its shared receive queue `index`.
    #[inline]
    pub fn srq(&self, index: usize) -> &SrqEntry {
        self.table(TABLES_SRQS, index, SRQS)
    }

    /// The owner's entry of its region or window `index`.
    #[inline]
    pub fn mr(&self, index: usize) -> &MrEntry {
        self.table(TABLES_MRS, index, MRS)
    }

    /// Announcement `index` of a one-sided operation of the owner.
    #[inline]
    pub fn operation_in_flight(&self, index: usize) -> &OperationInFlight {
        self.table(TABLES_IN_FLIGHT, index, OPERATIONS_IN_FLIGHT)
    }

    /// Multicast group `index` of the owner.
    #[inline]
    pub fn group(&self, index: usize) -> &GroupEntry {
        self.table(TABLES_GROUPS, index, GROUPS)
    }

    /// Steering rule `index` of the owner.
    #[inline]
    pub fn rule(&self, index: usize) -> &RuleEntry {
        self.table(TABLES_RULES, index, RULES)
    }

    /// The owner's entry of its protection domain `index`.
    #[inline]
    pub fn pd(&self, index: usize) -> &PdEntry {
        self.table(TABLES_PDS, index, PDS)
    }

    /// The long operation that the owner has in flight.
    #[inline]
    pub fn job(&self) -> &Job {
        self.table(TABLES_JOB, 0, 1)
    }

    /// The number of another process's domain in which the owner has objects; 0: none.
    #[inline]
    pub fn borrowed(&self, index: usize) -> &Owned<AtomicU64> {
        self.table(TABLES_BORROWED, index, BORROWED)
    }

    /// The receive ring of the owner's QP `index`; `None`: its window cannot be mapped.
    #[inline]
    pub fn qp_ring(&self, index: usize) -> Option<Ring> {
        let slots = self.windowed::<[Slot; RING_SLOTS as usize]>(RINGS_QP_SLOTS, index, QPS)?;
        let control = self.ring::<RingControl>(RINGS_QP_CONTROL, index, QPS);
        Some(Ring::new(control, slots))
    }

    /// The owner's ring of datagrams from process `slot`; `None`: its window cannot be mapped.
    #[inline]
    pub fn peer_ring(&self, slot: u16) -> Option<Ring> {
        let index = usize::from(slot);
        let slots = self.windowed::<[Slot; RING_SLOTS as usize]>(RINGS_PEER_SLOTS, index, SLOTS)?;
        let control = self.ring::<RingControl>(RINGS_PEER_CONTROL, index, SLOTS);
        Some(Ring::new(control, slots))
    }

    /// The identity of the owner of `slot` for which the datagram ring was prepared
    /// ([`Ring::nak`]).
    #[inline]
    pub fn ready_for(&self, slot: u16) -> &FromPeer<AtomicU32> {
        &self.ring::<RingControl>(RINGS_PEER_CONTROL, usize::from(slot), SLOTS).nak
    }

    /// The processes that have the owner's QP `index` open; `None`: the window cannot be mapped.
    #[inline]
    pub fn openers(&self, index: usize) -> Option<&Openers> {
        self.windowed(RINGS_OPENERS, index, QPS)
    }

    /// How many threads sleep on event channel `number`; `None`: no such channel.
    #[inline]
    pub fn sleepers(&self, number: u16) -> Option<&Owned<AtomicU32>> {
        let known = (1..CHANNELS).contains(&usize::from(number));
        known.then(|| self.table(TABLES_SLEEPERS, usize::from(number), CHANNELS))
    }

    /// The futex word of event channel `number`, on which its readers sleep; `None`: no such
    /// channel.
    #[inline]
    pub fn alarm(&self, number: u16) -> Option<&Hint<AtomicU32>> {
        let known = (1..CHANNELS).contains(&usize::from(number));
        known.then(|| self.ring(RINGS_ALARMS, usize::from(number), CHANNELS))
    }

    /// Chunk `index`, which came from a peer; `None`: no such chunk, or its window cannot be
    /// mapped.
    #[inline]
    pub fn chunk(&self, index: u32) -> Option<Range<'static>> {
        let index = index as usize;
        if index >= CHUNKS {
            return None;
        }
        let base = self.behind_front(RINGS_CHUNKS - FRONT + index * CHUNK_BYTES)?;
        // SAFETY: chunks lie within windows (shm::layout), are mapped while the view is used
        // (contracts of `new` and `of`), and are only copied.
        Some(unsafe { Range::new(base, CHUNK_BYTES) })
    }

    /// Sets the arrival flag of QP `index`: its ring has arrivals, and no thread polls it.
    #[inline]
    pub fn set_qp_arrival(&self, index: usize) {
        let head = self.rings_head();
        let word = index / 64;
        if let (Some(flags), Some(summary)) =
            (head.qp_arrivals.get(word), head.qp_arrival_summary.get(word / 64))
        {
            protocol::set_arrival_flag(flags, index % 64, summary, word % 64);
        }
    }

    /// Sets the arrival flag of the datagram ring of process `slot`.
    #[inline]
    pub fn set_peer_arrival(&self, slot: u16) {
        let head = self.rings_head();
        let word = usize::from(slot) / 64;
        if let Some(flags) = head.peer_arrivals.get(word) {
            protocol::set_arrival_flag(
                flags,
                usize::from(slot) % 64,
                &head.peer_arrival_summary,
                word,
            );
        }
    }

    /// Takes all arrival flags of QPs and passes each index to `f`. One load per 4096 QPs if none
    /// is set.
    #[inline]
    pub fn take_qp_arrivals(&self, f: impl FnMut(usize)) {
        let summaries = &self.rings_head().qp_arrival_summary;
        if summaries.iter().fold(0, |all, one| all | one.load(Ordering::Relaxed)) != 0 {
            self.take_set_flags(f);
        }
    }

    #[cold]
    fn take_set_flags(&self, mut f: impl FnMut(usize)) {
        let head = self.rings_head();
        for (s, summary) in head.qp_arrival_summary.iter().enumerate() {
            take_bits(summary, |w| {
                let word = s * 64 + w;
                take_bits(&head.qp_arrivals[word], |bit| f(word * 64 + bit));
            });
        }
    }

    /// Takes all arrival flags of datagram rings and passes each process slot to `f`.
    #[inline]
    pub fn take_peer_arrivals(&self, mut f: impl FnMut(u16)) {
        let head = self.rings_head();
        take_bits(&head.peer_arrival_summary, |word| {
            if let Some(flags) = head.peer_arrivals.get(word) {
                take_bits(flags, |bit| f((word * 64 + bit) as u16));
            }
        });
    }
}

/// The segments of a peer, with the peer, which keeps them mapped. A copy of the [`View`] may not
/// outlive the `PeerView`.
#[derive(Clone, Debug)]
pub struct PeerView {
    view: View,
    peer: Arc<Peer>,
}

impl PeerView {
    /// The segments of `peer`, which may be this process itself.
    ///
    /// # Panics
    /// The segments of the fabric have other lengths than those of `shm::layout`.
    pub fn of(peer: Arc<Peer>) -> Self {
        let view = peer_view(&peer);
        Self { view, peer }
    }

    /// The process that owns the segments.
    #[inline]
    pub const fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }
}

impl Deref for PeerView {
    type Target = View;

    #[inline]
    fn deref(&self) -> &View {
        &self.view
    }
}

/// Calls `look` with the segments of `peer`. A copy of the [`View`] may not outlive the call.
///
/// # Panics
/// As [`PeerView::of`].
pub fn look_at<T>(peer: &Peer, look: impl FnOnce(&View) -> T) -> T {
    look(&peer_view(peer))
}

fn peer_view(peer: &Peer) -> View {
    let rings = if peer.lazy_rings().is_some() { FRONT } else { RINGS_LEN };
    assert!(
        peer.tables().len() >= TABLES_LEN && peer.rings().len() >= rings,
        "segments of this layout"
    );
    // SAFETY: the lengths were checked; the callers keep `peer`.
    unsafe { View::of(peer) }
}

#[cfg(any(test, feature = "testing"))]
pub mod mock {
    //! Segments in ordinary memory, for tests of the layers above.
    use super::*;
    use std::alloc::{Layout, alloc_zeroed};

    const PAGE: usize = 4096;

    /// A view of new zeroed segments, leaked: untouched pages cost nothing.
    pub fn view() -> View {
        // With a larger alignment the allocator would write the zeros itself and touch all pages.
        let make = |len| {
            let layout = Layout::from_size_align(len + PAGE, 16).expect("constant layout");
            // SAFETY: the size is not zero.
            let start = unsafe { alloc_zeroed(layout) };
            assert!(!start.is_null(), "no memory for a segment of {len} bytes");
            // SAFETY: less than the PAGE bytes that were added.
            unsafe { start.add(start.align_offset(PAGE)) }
        };
        // SAFETY: allocated with these sizes, never freed.
        unsafe { View::new(make(TABLES_LEN), make(RINGS_LEN)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_arrival_flag_is_delivered_once() {
        let view = mock::view();
        for i in [0, 63, 64, QPS - 1] {
            view.set_qp_arrival(i);
        }
        view.set_peer_arrival(1023);
        let (mut qps, mut peers) = (vec![], vec![]);
        view.take_qp_arrivals(|i| qps.push(i));
        view.take_peer_arrivals(|s| peers.push(s));
        assert_eq!(qps, [0, 63, 64, QPS - 1]);
        assert_eq!(peers, [1023]);
        view.take_qp_arrivals(|i| panic!("flag {i} twice"));
    }

    #[test]
    fn chunks_end_with_the_segment() {
        let view = mock::view();
        assert!(view.chunk(CHUNKS as u32 - 1).is_some());
        assert!(view.chunk(CHUNKS as u32).is_none());
    }
}
