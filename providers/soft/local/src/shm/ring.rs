//! A ring of slots: pieces of messages pass from one process to another.
//!
//! Short payloads are copied directly between a slot and the application's memory.

use super::layout::*;
use super::protocol;
use super::slot::{BODY_WORDS, Body, BounceBuffer, Head, SEND_INLINE, ShortHead};
use super::trust::{FromPeer, Hint, Unchecked};
use soft_memory::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A single-producer, single-consumer ring in a process's *rings* segment.
///
/// The producer stores payload and head. Last it stores word 0, with the sequence number, with
/// Release. The consumer loads word 0 with Acquire. Sequence numbers only grow, and a new
/// connection begins a whole lap later. Hence a slot of an earlier connection never looks new.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    control: *const RingControl,
    slots: *const Slot,
}

// SAFETY: addresses of atomics in a mapping that outlives the ring (contract of View::new).
unsafe impl Send for Ring {}
// SAFETY: a shared Ring only exposes its two addresses, which never change; they point to atomics.
unsafe impl Sync for Ring {}

impl Ring {
    /// A ring whose words lie in a mapping that outlives it (contract of `View::new`).
    #[inline]
    pub(super) const fn new(control: &RingControl, slots: &[Slot; RING_SLOTS as usize]) -> Self {
        Self { control, slots: slots.as_ptr() }
    }

    #[inline]
    fn control(&self) -> &RingControl {
        // SAFETY: from View::qp_ring or peer_ring, in a live mapping; consists of atomics.
        unsafe { &*self.control }
    }

    #[inline]
    fn slot(&self, seq: u32) -> &Slot {
        // SAFETY: a ring has RING_SLOTS slots, in a mapping that outlives it (contract of
        // View::new); slots consist of atomics.
        unsafe { &*self.slots.add((seq % RING_SLOTS) as usize) }
    }

    /// The words of slot `seq`, for tests that store invalid slots.
    #[inline]
    pub fn words(&self, seq: u32) -> &[AtomicU64; 8] {
        self.slot(seq).words.word()
    }

    /// [`RingControl::acked`].
    #[inline]
    pub fn acked(&self) -> &FromPeer<AtomicU32> {
        &self.control().acked
    }

    /// Producer: the consumer's claim of how far it has processed the ring.
    #[inline]
    pub fn claimed_progress(&self) -> Unchecked<u32> {
        Unchecked::new(protocol::acknowledged(self.acked().word()))
    }

    /// [`RingControl::nak`].
    #[inline]
    pub fn nak(&self) -> &FromPeer<AtomicU32> {
        &self.control().nak
    }

    /// [`RingControl::holder`].
    #[inline]
    pub fn holder(&self) -> &FromPeer<AtomicU64> {
        &self.control().holder
    }

    /// [`RingControl::begun`].
    #[inline]
    pub fn begun(&self) -> &FromPeer<AtomicU32> {
        &self.control().begun
    }

    /// [`RingControl::hot`].
    #[inline]
    pub fn hot(&self) -> &Hint<AtomicU32> {
        &self.control().hot
    }

    /// Producer: publishes one piece in slot `head.seq`.
    #[inline]
    pub fn publish_piece(&self, head: &Head, body: &[u64]) {
        protocol::publish(self.slot(head.seq).words.word(), head.emit(), body);
    }

    /// Consumer: whether slot `seq` was published.
    #[inline]
    pub fn ready(&self, seq: u32) -> bool {
        protocol::is_published(self.slot(seq).words.word(), seq)
    }

    /// Consumer: head and body words of slot `seq`; `None`: not published yet.
    #[inline]
    pub fn take_piece(&self, seq: u32) -> Option<([u64; 2], Body)> {
        let (head, body) = protocol::consume(self.slot(seq).words.word(), seq)?;
        Some((head, Body::new(body)))
    }

    /// Producer: fills the slot of `head`, except word 0, which [`Ring::publish_filled`] stores.
    /// `from` has at most `SEND_INLINE` bytes. Returns false if the source memory is unmapped; the
    /// slot must not be published then.
    #[inline(always)]
    #[must_use]
    pub fn fill(&self, head: ShortHead, from: Range) -> bool {
        debug_assert!(from.len() <= SEND_INLINE);
        let slot = self.slot(head.seq());
        slot.words.word()[1].store(head.0[1], Ordering::Relaxed);
        from.copy_to(payload(slot))
    }

    /// As [`Ring::fill`], with a payload of two words.
    #[inline]
    pub fn fill_words(&self, head: ShortHead, words: [u64; 2]) {
        let slot = self.slot(head.seq());
        slot.words.word()[1].store(head.0[1], Ordering::Relaxed);
        for (to, word) in body(slot).iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Producer: publishes the filled slot of `head`.
    #[inline]
    pub fn publish_filled(&self, head: ShortHead) {
        protocol::publish_first_word(self.slot(head.seq()).words.word(), head.0[0]);
    }

    /// Consumer: the head of slot `seq`; `None`: not published yet.
    #[inline]
    pub fn head(&self, seq: u32) -> Option<ShortHead> {
        protocol::head(self.slot(seq).words.word(), seq).map(ShortHead)
    }

    /// Consumer: the location of the payload of slot `seq`, which was published with a chunk
    /// carrier.
    #[inline]
    pub fn bounce_buffer(&self, seq: u32) -> Option<Unchecked<BounceBuffer>> {
        let [at, total, ..] = body(self.slot(seq)) else { return None };
        let words = [at.load(Ordering::Relaxed), total.load(Ordering::Relaxed)];
        Some(Unchecked::new(BounceBuffer::parse(words)))
    }

    /// Consumer: fills `to`, of at most `SEND_INLINE` bytes, with the first payload bytes of the
    /// published slot `seq`. If `to` is unmapped, the bytes are lost.
    #[inline]
    pub fn copy_payload(&self, seq: u32, to: Range) {
        debug_assert!(to.len() <= SEND_INLINE);
        let is_there = payload(self.slot(seq)).copy_to(to);
        debug_assert!(is_there, "a slot is mapped");
    }
}

/// The payload bytes of a slot.
#[inline]
fn payload(slot: &Slot) -> Range<'_> {
    let words = body(slot);
    // SAFETY: words of a ring that outlives the range (contract of View::new), which any process
    // may change at any time. The consumer copies them after publication, the producer before.
    unsafe { Range::new(words.as_ptr().cast_mut().cast(), size_of_val(words)) }
}

/// The payload words of a slot.
#[inline]
fn body(slot: &Slot) -> &[AtomicU64] {
    slot.words.word().last_chunk::<BODY_WORDS>().map_or(&[], |words| words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::slot::{Op, PayloadLocation};
    use crate::shm::view::mock;

    fn head(seq: u32) -> Head {
        Head {
            seq,
            op: Op::Send,
            flags: 0,
            carrier: PayloadLocation::Inline,
            count: 8,
            imm: 0,
            src_qpn: 5,
            ack: 0,
        }
    }

    #[test]
    fn a_slot_is_seen_once_it_is_whole_and_not_a_lap_later() {
        let ring = mock::view().qp_ring(3).expect("mapped");
        assert!(!ring.ready(RING_SLOTS));
        ring.publish_piece(&head(RING_SLOTS), &[42]);
        let (words, body) = ring.take_piece(RING_SLOTS).expect("published");
        assert_eq!(Head::parse(words), Some(head(RING_SLOTS)));
        assert!(body.word(0).equals(42));
        assert!(!ring.ready(2 * RING_SLOTS), "same slot, next lap");
    }

    #[test]
    fn payloads_of_any_length_and_offset_pass_a_slot_without_touching_other_bytes() {
        let ring = mock::view().qp_ring(1).expect("mapped");
        let source: Vec<u8> = (1..=64).collect();
        for len in 0..=SEND_INLINE {
            for at in 0..8 {
                let seq = RING_SLOTS + (len * 8 + at) as u32;
                let head = Head {
                    seq,
                    op: Op::Send,
                    flags: 0,
                    carrier: PayloadLocation::Inline,
                    count: len as u8,
                    imm: 7,
                    src_qpn: 5,
                    ack: 9,
                };
                let short = ShortHead(head.emit());
                assert!(ring.head(seq).is_none());
                let mut target = [0u8; 64];
                // SAFETY: `at` + `len` is below 64, the length of both; the source is only read.
                let (from, to) = unsafe {
                    let from = Range::new(source.as_ptr().cast_mut(), 64).part(at, len);
                    (from, Range::new(target.as_mut_ptr(), 64).part(at, len))
                };
                assert!(ring.fill(short, from));
                assert!(ring.head(seq).is_none(), "not shown yet");
                ring.publish_filled(short);
                ring.copy_payload(seq, to);
                assert_eq!(ring.head(seq).and_then(|short| Head::parse(short.0)), Some(head));
                let mut wanted = [0u8; 64];
                wanted[at..at + len].copy_from_slice(&source[at..at + len]);
                assert_eq!(target, wanted);
            }
        }
    }

    #[test]
    fn a_slot_filled_piece_by_piece_reads_as_one_put_at_once() {
        let ring = mock::view().qp_ring(2).expect("mapped");
        let text = *b"elevenbytes";
        let head = ShortHead::from(1, 0).for_send(RING_SLOTS, text.len(), None, false);
        // SAFETY: as many bytes as the text has; only read.
        assert!(ring.fill(head, unsafe { Range::new(text.as_ptr().cast_mut(), text.len()) }));
        ring.publish_filled(head);
        let (_, body) = ring.take_piece(RING_SLOTS).expect("shown");
        let words = (0..BODY_WORDS).map(|at| body.word(at).unchecked());
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        assert_eq!(bytes[..11], text);
    }

    #[test]
    fn two_words_are_found_as_they_were_put() {
        let ring = mock::view().qp_ring(2).expect("mapped");
        let bounced = BounceBuffer { chunk: 3, len: 4, total: 5 };
        let head = ShortHead::from(1, 0).for_send(RING_SLOTS, 0, None, false).chunked();
        ring.fill_words(head, bounced.emit());
        ring.publish_filled(head);
        assert!(ring.head(RING_SLOTS).is_some_and(ShortHead::is_chunked));
        assert_eq!(ring.bounce_buffer(RING_SLOTS).map(Unchecked::unchecked), Some(bounced));
    }
}
