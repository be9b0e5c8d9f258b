//! The helper thread of a target: copies pieces of long operations of other processes while a
//! processor is free. `helping` (the initiator) opens jobs in its tables; this thread claims pieces
//! and moves their bytes.

use crate::engine::adapter::Adapter;
use crate::engine::keys::access::{Direction, admit};
use crate::engine::keys::regions::{IMPORTED, REMOTE_READ, REMOTE_WRITE};
use crate::engine::ring::helping_state::{LEAVING, RESTING};
use soft_local::shm::layout::{JOB_PIECES, Job, Life, split_qpn};
use soft_local::shm::protocol;
use soft_local::shm::view::{PeerView, View};
use soft_memory::Range;
use soft_memory::cma::IoVec;
use soft_semantics::request::RemoteAddress;
use soft_sys::thread::yield_to_others;
use soft_sys::{clock, futex};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time and number of looks for more work before the helper sleeps: about the cost of another call.
const LOOK_TIME: Duration = Duration::from_micros(50);
const MIN_LOOKS: u32 = 500;
/// Interval after which the helper checks whether it had a processor for itself: it must have run
/// most of the time.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Length of a rest if it had not: the first and the maximal one.
const MIN_REST: Duration = Duration::from_millis(500);
const MAX_REST: Duration = Duration::from_secs(10);

/// The loop of the helper thread: sleeps until an initiator calls, and ends when the process
/// leaves.
pub(in crate::engine) fn run_helper(adapter: &Adapter) {
    yield_to_others();
    let wanted = &adapter.view.rings_head().help_wanted.0;
    let mut leisure = IdleMeasure::default();
    // Any member may write the word. It only selects the process to look at.
    while !adapter.helping.is_leaving() {
        let who = wanted.load(Ordering::Acquire);
        match who {
            0 => drop(futex::wait(wanted, 0)),
            // Stored by `stop`, which ends the thread, or by another member.
            LEAVING => {
                let _ = wanted.compare_exchange(LEAVING, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
            // Initiators read the value and work alone, until the rest is over or `stop` wakes the
            // thread.
            RESTING => {
                adapter.helping.sleep_until_called(leisure.next_sleep);
                let _ = wanted.compare_exchange(RESTING, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
            _ => {
                let over = || wanted.load(Ordering::Relaxed) != who || adapter.helping.is_leaving();
                let next = match help(adapter, (who - 1) as u16, &mut leisure, over) {
                    HelpEnd::MaybeMore => continue,
                    HelpEnd::Nothing => 0,
                    HelpEnd::OtherWork => RESTING,
                };
                // An initiator that called meanwhile found the helper busy and works alone. LEAVING
                // stays.
                let _ = wanted.compare_exchange(who, next, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

/// Why a helper stopped taking pieces.
enum HelpEnd {
    /// More pieces may exist; the helper only checked the clock.
    MaybeMore,
    Nothing,
    /// The processor has other work.
    OtherWork,
}

/// Takes pieces of process `slot` until none appears for a while, or until `over` returns true.
fn help(
    adapter: &Adapter,
    slot: u16,
    leisure: &mut IdleMeasure,
    over: impl Fn() -> bool,
) -> HelpEnd {
    let Some(peer) = adapter.fabric.known_peer(slot).filter(|peer| peer.can_attach()) else {
        return HelpEnd::Nothing;
    };
    let view = PeerView::of(peer);
    let mut hand = HelperClaim::new(adapter.view, *view, slot);
    let begun = Stopwatch::now();
    let (mut last, mut looks, mut left) = (begun.0, 0, HelpEnd::MaybeMore);
    while begun.0.elapsed() < CHECK_INTERVAL {
        if let Some((asked, n)) = hand.claim_piece(adapter.fabric.slot()) {
            hand.release(asked.move_piece(adapter, &view, n).is_some());
            (last, looks) = (Instant::now(), 0);
            continue;
        }
        looks += 1;
        // Both limits count, because the thread may have lost its processor between two looks.
        if looks > MIN_LOOKS && last.elapsed() > LOOK_TIME || over() || view.peer().is_dead() {
            left = HelpEnd::Nothing;
            break;
        }
        std::hint::spin_loop();
    }
    if leisure.keeps_helping(begun.elapsed_and_busy()) { left } else { HelpEnd::OtherWork }
}

/// Whether the helper has a processor for itself. Otherwise its work slows the application down.
#[derive(Debug, Default)]
struct IdleMeasure {
    /// Of this interval: time spent helping, and processor time used.
    busy_time: Duration,
    run_time: Duration,
    /// Length of the next rest.
    next_sleep: Duration,
}

/// A start time, with the thread's processor time at that moment.
struct Stopwatch(Instant, u64);

impl Stopwatch {
    fn now() -> Self {
        Self(Instant::now(), clock::thread_ns())
    }

    /// Elapsed time, and processor time of this thread in it.
    fn elapsed_and_busy(&self) -> (Duration, Duration) {
        (self.0.elapsed(), Duration::from_nanos(clock::thread_ns().saturating_sub(self.1)))
    }
}

impl IdleMeasure {
    /// Records that the helper was busy for `took` and used `ran` of processor time. Returns false
    /// if the processor was shared; the helper rests then.
    fn keeps_helping(&mut self, (took, ran): (Duration, Duration)) -> bool {
        self.busy_time += took;
        self.run_time += ran;
        if self.busy_time < CHECK_INTERVAL {
            return true;
        }
        let lasts = self.run_time >= self.busy_time * 3 / 4;
        self.next_sleep = if lasts {
            self.next_sleep / 2
        } else {
            (self.next_sleep * 2).clamp(MIN_REST, MAX_REST)
        };
        (self.busy_time, self.run_time) = Default::default();
        lasts
    }
}

/// The pieces of a job that a helper claimed. The word in its own tables holds the job number (32
/// bits), the process slot (12), whether a piece is in work (1), and the first claimed piece (16).
/// Pieces are claimed from the last to the first.
#[derive(Debug)]
pub(in crate::engine) struct HelperClaim {
    own_tables: View,
    initiator: View,
    slot: u16,
    number: u32,
    /// All pieces from this number on are done or in work.
    back: u16,
}

/// The part of the word of a [`HelperClaim`] that concerns a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct ClaimedPieces {
    pub(in crate::engine) back: u16,
    pub(in crate::engine) is_busy: bool,
}

const BUSY: u64 = 1 << 16;

const fn claim_word(number: u32, slot: u16, held: ClaimedPieces) -> u64 {
    let busy = if held.is_busy { BUSY } else { 0 };
    (number as u64) << 32 | (slot as u64 & 0xfff) << 20 | busy | held.back as u64
}

/// The pieces of job `number` of process `slot` that the owner of `target` claimed; None if it
/// claimed and will claim none.
pub(in crate::engine) fn claimed_pieces(
    target: &View,
    slot: u16,
    number: u32,
) -> Option<ClaimedPieces> {
    let word = protocol::load_hand(&target.tables_head().hand.0);
    let held = ClaimedPieces { back: word as u16, is_busy: word & BUSY != 0 };
    (word == claim_word(number, slot, held)).then_some(held)
}

impl HelperClaim {
    pub(in crate::engine) const fn new(own: View, initiator: View, slot: u16) -> Self {
        Self { own_tables: own, initiator, slot, number: 0, back: 0 }
    }

    fn word(&self, back: u16, is_busy: bool) -> u64 {
        claim_word(self.number, self.slot, ClaimedPieces { back, is_busy })
    }

    /// Claims the last free piece, if the job addresses this process, `own_slot`.
    pub(in crate::engine) fn claim_piece(&mut self, own_slot: u16) -> Option<(JobRequest, u16)> {
        let job = self.initiator.job();
        let now = protocol::job(&job.state);
        if now.number != self.number {
            (self.number, self.back) = (now.number, now.count.min(JOB_PIECES as u16));
        }
        let n = self.back.checked_sub(1).filter(|n| *n >= now.front)?;
        let asked = JobRequest::of(job);
        if asked.target != u32::from(own_slot) {
            return None;
        }
        let hand = &self.own_tables.tables_head().hand.0;
        if !protocol::claim_piece(hand, self.word(n, true), &job.state, self.number, n) {
            protocol::release_piece(hand, self.word(self.back, false));
            return None;
        }
        self.back = n;
        Some((asked, n))
    }

    /// Ends the work on a piece. After a failure the helper takes no further piece of the job.
    pub(in crate::engine) fn release(&mut self, is_done: bool) {
        let back = if is_done { self.back } else { self.back + 1 };
        protocol::release_piece(&self.own_tables.tables_head().hand.0, self.word(back, false));
        if !is_done {
            self.back = 0;
        }
    }
}

impl Drop for HelperClaim {
    fn drop(&mut self) {
        protocol::release_piece(&self.own_tables.tables_head().hand.0, 0);
    }
}

/// The job as its initiator describes it.
#[derive(Debug)]
pub(in crate::engine) struct JobRequest {
    target: u32,
    qpn: u32,
    remote: RemoteAddress,
    len: u64,
    piece: u64,
    direction: Direction,
}

impl JobRequest {
    /// Reads the job. Its words count only for memory of the initiator, and for local memory within
    /// the rights of its connection.
    fn of(job: &Job) -> Self {
        // Relaxed: the claim of a piece that follows confirms that the words belong to this job.
        Self {
            target: job.target.load(Ordering::Relaxed),
            qpn: job.qpn.load(Ordering::Relaxed),
            remote: RemoteAddress {
                addr: job.addr.load(Ordering::Relaxed),
                rkey: job.rkey.load(Ordering::Relaxed),
            },
            len: job.len.load(Ordering::Relaxed),
            piece: job.piece.load(Ordering::Relaxed),
            direction: if job.is_read.load(Ordering::Relaxed) == 1 {
                Direction::Read
            } else {
                Direction::Write
            },
        }
    }

    /// Moves piece `n`, if the initiator has the right to all its bytes. Returns None if it has
    /// not, or if the copy failed.
    pub(in crate::engine) fn move_piece(
        &self,
        adapter: &Adapter,
        view: &PeerView,
        n: u16,
    ) -> Option<()> {
        let offset = u64::from(n).checked_mul(self.piece)?;
        let len = self.len.checked_sub(offset)?.min(self.piece) as usize;
        let (slot, index) = split_qpn(self.qpn);
        if slot != adapter.fabric.slot() {
            return None;
        }
        // The rights belong to the peer of the QP only.
        let life = Life::unpack(adapter.view.qp(index).packed_life.load(Ordering::Acquire));
        if split_qpn(life.dest_qpn).0 != view.peer().slot || !life.serves(life.dest_qpn) {
            return None;
        }
        let memory = view.peer().memory()?;
        let need = if self.direction == Direction::Write { REMOTE_WRITE } else { REMOTE_READ };
        // Announced before the check of the key, as by the initiator.
        let _in_flight = adapter.in_flight.announce(slot, self.remote.rkey);
        let rights = adapter.view.qp(index).rights.load(Ordering::Relaxed);
        let found = admit(&adapter.view, self.qpn, rights, self.remote, self.len, need).ok()?;
        if found.access & IMPORTED != 0 {
            return None;
        }
        // SAFETY: registered memory of the application that the initiator may read or write, and
        // the announcement delays its deregistration. The kernel detects unmapped memory.
        let here = [unsafe { Range::at(found.va + offset, len) }];
        let there = std::ptr::from_ref(view.job().parts.get(usize::from(n))?).cast::<[IoVec; 2]>();
        // SAFETY: `there` lies in the initiator's tables, mapped as long as the peer is known. It
        // describes memory of the initiator, and the kernel reads it when the copy begins.
        let moved = unsafe {
            match self.direction {
                Direction::Write => memory.read_where(&here, there),
                Direction::Read => memory.write_where(&here, there),
            }
        };
        (moved == Ok(len)).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_pauses_while_other_threads_have_work() {
        let mut leisure = IdleMeasure::default();
        assert!(leisure.keeps_helping((CHECK_INTERVAL / 2, Duration::ZERO)), "too short to tell");
        assert!(
            !leisure.keeps_helping((CHECK_INTERVAL / 2, CHECK_INTERVAL / 2)),
            "it ran for half of the time"
        );
        assert_eq!(leisure.next_sleep, MIN_REST);
        assert!(!leisure.keeps_helping((CHECK_INTERVAL, CHECK_INTERVAL * 7 / 10)));
        assert_eq!(leisure.next_sleep, 2 * MIN_REST);
        assert!(
            leisure.keeps_helping((CHECK_INTERVAL, CHECK_INTERVAL * 8 / 10)),
            "another thread used little of the time"
        );
        assert_eq!(leisure.next_sleep, MIN_REST);
        for _ in 0..20 {
            assert!(!leisure.keeps_helping((CHECK_INTERVAL, Duration::ZERO)));
        }
        assert_eq!(leisure.next_sleep, MAX_REST);
    }
}
