//! Models of rings and their chunks: `Ring`, `Requester`, `Responder`, `Outlet` and `Inlets` of
//! soft, which add only single-threaded steps to these protocols.

use crate::chunks::Chunks;
use crate::protocol::*;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, Weakened, weakened};
use crate::{layout::CHUNKS, model};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::collections::VecDeque;

/// Slots of a ring: two, because three pieces must wrap around.
const SLOTS: u32 = 2;

pub(crate) struct Slot([AtomicU64; 8]);

impl Slot {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    pub(crate) fn put(&self, seq: u32, word: u64) {
        publish(&self.0, [u64::from(seq) | 7 << 32, word ^ 1], &[word]);
    }

    /// As `put`, but as a list of short messages: the first slot is shown last.
    fn put_both(&self, other: &Self, seq: u32) {
        for (slot, seq) in [(self, seq), (other, seq + 1)] {
            slot.0[1].store(u64::from(seq) ^ 1, Ordering::Relaxed);
            slot.0[2].store(u64::from(seq), Ordering::Relaxed);
        }
        publish_first_word(&other.0, u64::from(seq + 1) | 7 << 32);
        publish_first_word(&self.0, u64::from(seq) | 7 << 32);
    }

    /// As `take`, but for a short message.
    fn take_short(&self, seq: u32) -> Option<u64> {
        let [first, second] = head(&self.0, seq)?;
        let word = self.0[2].load(Ordering::Relaxed);
        assert_eq!(first >> 32, 7, "half a slot");
        assert_eq!(second, word ^ 1, "half a slot");
        Some(word)
    }

    pub(crate) fn is_ready(&self, seq: u32) -> bool {
        is_published(&self.0, seq)
    }

    /// The word of piece `seq`, which must be complete.
    fn take(&self, seq: u32) -> Option<u64> {
        consume(&self.0, seq).map(|(head, body)| {
            assert_eq!(head[0] >> 32, 7, "half a slot");
            assert_eq!(head[1], body[0] ^ 1, "half a slot");
            body[0]
        })
    }
}

struct Ring {
    slots: [Slot; SLOTS as usize],
    acked: AtomicU32,
}

impl Ring {
    fn new() -> Arc<Self> {
        // One lap ahead of zeroed slots, as Responder::connect does.
        Arc::new(Self { slots: [Slot::new(), Slot::new()], acked: AtomicU32::new(SLOTS) })
    }

    fn slot(&self, seq: u32) -> &Slot {
        &self.slots[(seq % SLOTS) as usize]
    }

    /// Producer: waits for room for `seq`; returns the acknowledged number. Weakened otherwise:
    /// does not wait.
    fn room(&self, seq: u32) -> u32 {
        loop {
            let acked = acknowledged(&self.acked);
            if seq - acked < SLOTS || weakened().otherwise {
                return acked;
            }
            thread::yield_now();
        }
    }

    /// Consumer: waits for piece `seq`.
    fn wait_for(&self, seq: u32) -> u64 {
        loop {
            if let Some(word) = self.slot(seq).take(seq) {
                return word;
            }
            thread::yield_now();
        }
    }
}

/// Puts three pieces, each with its number as content.
fn producer(ring: &Arc<Ring>) -> thread::JoinHandle<()> {
    let ring = Arc::clone(ring);
    thread::spawn(move || {
        for seq in SLOTS..SLOTS + 3 {
            ring.room(seq);
            ring.slot(seq).put(seq, u64::from(seq));
        }
    })
}

model!(every_piece_arrives_whole_in_order_and_once, 2, why: "half a slot",
    fails: {
        a_slot_is_half_written_without_release: Weakened::RELEASE,
        a_slot_is_half_written_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let ring = Ring::new();
        let producer = producer(&ring);
        for seq in SLOTS..SLOTS + 3 {
            assert_eq!(ring.wait_for(seq), u64::from(seq), "half a slot");
            acknowledge(&ring.acked, seq + 1);
        }
        producer.join().expect("the producer ends");
        for seq in SLOTS + 3..SLOTS + 5 {
            assert!(ring.slot(seq).take(seq).is_none(), "a piece came twice");
        }
    }
);

model!(a_list_that_is_shown_from_its_end_is_there_when_its_first_piece_is, 3, why: "half a slot",
    fails: {
        a_list_is_half_written_without_release: Weakened::RELEASE,
        a_list_is_half_written_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let ring = Ring::new();
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.slot(SLOTS).put_both(ring.slot(SLOTS + 1), SLOTS))
        };
        loop {
            if let Some(word) = ring.slot(SLOTS).take_short(SLOTS) {
                assert_eq!(word, u64::from(SLOTS), "half a slot");
                break;
            }
            thread::yield_now();
        }
        let second = ring.slot(SLOTS + 1).take_short(SLOTS + 1);
        assert_eq!(second, Some(u64::from(SLOTS) + 1), "half a slot: the list is not whole");
        producer.join().expect("the producer ends");
    }
);

model!(a_piece_is_not_overwritten_before_it_is_acknowledged, 2, why: "half a slot",
    fails: { a_producer_that_does_not_wait_loses_a_piece: Weakened::OTHERWISE, },
    || {
        let ring = Ring::new();
        let producer = producer(&ring);
        for seq in SLOTS..SLOTS + 3 {
            while !ring.slot(seq).is_ready(seq) {
                assert!(!ring.slot(seq).is_ready(seq + SLOTS), "a piece was overwritten");
                thread::yield_now();
            }
            assert_eq!(ring.slot(seq).take(seq), Some(u64::from(seq)));
            acknowledge(&ring.acked, seq + 1);
        }
        producer.join().expect("the producer ends");
    }
);

// Models a responder and two pollers: `note_arrival` and `note_fruitless_look` of `RingAcks`, with
// an acknowledgement after the second poll in vain. Weakened otherwise: pollers count without the
// slot's number.
model!(a_postponed_acknowledgement_is_sent, 3, why: "never acknowledged",
    fails: { a_count_for_no_slot_in_particular_ends_too_early: Weakened::OTHERWISE, },
    || {
        const MOST: u32 = 2;
        struct Qp {
            /// The responder's next slot, and the first slot that it has not acknowledged.
            responder: Mutex<(u32, u32)>,
            next: AtomicU32,
            reported: AtomicU32,
            quiet: EmptyPolls,
        }
        impl Qp {
            fn look(&self) {
                let next = self.next.load(Ordering::Acquire);
                let counted = if weakened().otherwise { 5 } else { next };
                if self.quiet.record_empty(counted, MOST)
                    && self.reported.load(Ordering::Relaxed) != self.next.load(Ordering::Acquire)
                {
                    let mut responder = self.responder.lock();
                    responder.1 = responder.0;
                    self.reported.store(responder.0, Ordering::Relaxed);
                }
            }
        }
        let qp = Arc::new(Qp {
            responder: Mutex::new((5, 5)),
            next: AtomicU32::new(5),
            reported: AtomicU32::new(5),
            quiet: EmptyPolls::new(),
        });
        qp.look();
        let (served, looking) = (Arc::clone(&qp), Arc::clone(&qp));
        let responder = thread::spawn(move || {
            let mut responder = served.responder.lock();
            responder.0 = 6;
            served.next.store(6, Ordering::Release);
            // Whether the acknowledgement can wait.
            !served.quiet.lasts(5, MOST)
        });
        let poller = thread::spawn(move || looking.look());
        qp.look();
        let waits = responder.join().expect("the responder ends");
        poller.join().expect("the poller ends");
        qp.look();
        qp.look();
        assert!(!waits || qp.responder.lock().1 == 6, "never acknowledged");
    }
);

model!(a_chunk_belongs_to_one_side_at_a_time, 2, why: "Causality violation",
    fails: {
        a_chunk_is_read_too_early_or_reused_without_release: Weakened::RELEASE,
        a_chunk_is_read_too_early_or_reused_without_acquire: Weakened::ACQUIRE,
    },
    || {
        let ring = Ring::new();
        let memory = Arc::new([UnsafeCell::new(0u32), UnsafeCell::new(0u32)]);
        let producer = {
            let (ring, memory) = (Arc::clone(&ring), Arc::clone(&memory));
            thread::spawn(move || {
                let chunks = Chunks::new();
                let mut lent = VecDeque::new();
                for seq in SLOTS..SLOTS + 3 {
                    let acked = ring.room(seq);
                    while let Some(&(at, chunk)) = lent.front() && at < acked {
                        lent.pop_front();
                        chunks.give(chunk);
                    }
                    let chunk = chunks.take().expect("as many as slots");
                    // SAFETY: loom checks for concurrent access.
                    memory[chunk as usize].with_mut(|bytes| unsafe { *bytes = seq });
                    lent.push_back((seq, chunk));
                    ring.slot(seq).put(seq, u64::from(chunk));
                }
            })
        };
        for seq in SLOTS..SLOTS + 3 {
            let chunk = ring.wait_for(seq) as usize;
            // SAFETY: the chunk belongs to the consumer from its slot's arrival to the
            // acknowledgement below; loom checks for concurrent access.
            memory[chunk].with(|bytes| assert_eq!(unsafe { *bytes }, seq));
            acknowledge(&ring.acked, seq + 1);
        }
        producer.join().expect("the producer ends");
    }
);

// Weakened otherwise: each thread has a list of its own.
model!(a_chunk_is_given_to_one_thread_only, 3, why: "Causality violation",
    fails: { a_chunk_of_two_lists_is_given_twice: Weakened::OTHERWISE, },
    || {
        let chunks = Arc::new(Chunks::new());
        let memory = Arc::new([UnsafeCell::new(0u32), UnsafeCell::new(0u32)]);
        let user = |chunks: Arc<Chunks>, memory: Arc<[UnsafeCell<u32>; CHUNKS]>| {
            for _ in 0..2 {
                let chunk = chunks.take().expect("one for each thread");
                // SAFETY: loom checks for concurrent access.
                memory[chunk as usize].with_mut(|bytes| unsafe { *bytes += 1 });
                chunks.give(chunk);
            }
        };
        let other = if weakened().otherwise { Arc::new(Chunks::new()) } else { chunks.clone() };
        let mine = Arc::clone(&memory);
        let thread = thread::spawn(move || user(other, mine));
        user(chunks, memory);
        thread.join().expect("the user ends");
    }
);

/// Models `Cq`: completions under a lock, and their number beside the lock for polling without it.
/// Weakened otherwise: the number is stored after the lock was released.
struct Completions {
    ring: Mutex<Vec<u32>>,
    queued: AtomicU32,
}

impl Completions {
    fn push(&self, completion: u32) {
        let mut ring = self.ring.lock();
        ring.push(completion);
        let queued = ring.len() as u32;
        if weakened().otherwise {
            drop(ring);
            self.queued.store(queued, Ordering::Relaxed);
        } else {
            self.queued.store(queued, Ordering::Relaxed);
        }
    }

    fn pop(&self) -> Option<u32> {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut ring = self.ring.lock();
        let completion = ring.pop();
        self.queued.store(ring.len() as u32, Ordering::Relaxed);
        completion
    }
}

model!(a_completion_is_polled_or_found_by_whoever_armed_the_queue, 3, why: "is hidden",
    fails: { a_number_stored_outside_the_lock_hides_a_completion: Weakened::OTHERWISE, },
    || {
        let cq = Arc::new(Completions { ring: Mutex::new(vec![]), queued: AtomicU32::new(0) });
        // Whether the queue was armed when the completion arrived; read under the lock, as
        // CompletionRing::push does.
        let armed = Arc::new(Mutex::new(false));
        let pusher = {
            let (cq, armed) = (Arc::clone(&cq), Arc::clone(&armed));
            thread::spawn(move || {
                cq.push(1);
                *armed.lock()
            })
        };
        // Arms under the same lock, then polls.
        {
            let ring = cq.ring.lock();
            let received = !ring.is_empty();
            drop(ring);
            let polled = cq.pop();
            assert!(!received || polled.is_some(), "a completion that came before the arming is hidden");
            *armed.lock() = true;
        }
        pusher.join().expect("the pusher ends");
    }
);
