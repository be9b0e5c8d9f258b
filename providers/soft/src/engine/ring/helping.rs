//! Long WRITEs and READs shared between the initiator and a helper thread of the target. `onesided`
//! calls `transfer` for long operations; `helper` is the other side.
//!
//! The kernel copies between processes with one processor, at a third of the memory's speed. The
//! initiator cuts a long operation into pieces (`shm::layout::Job`), and a thread of the target
//! copies some. The initiator calls the helper when long operations follow each other; the helper
//! looks for more work for a moment after the last, then sleeps. The initiator copies every piece
//! that the helper does not claim. If help does not come, or costs more than it gains, the
//! initiator works alone for a while.
//!
//! The last bytes of a WRITE arrive last, as programs that poll them expect: the initiator writes
//! them after all pieces.
//!
//! Each side describes its part of a job in its own tables, writable by that side only: the
//! initiator its memory, the helper its claims. The helper's system call names the initiator's
//! memory by the initiator's tables, so the kernel reads them when the copy begins.
//!
//! A helper that holds a piece for long was stopped. The initiator takes the piece back: a system
//! call that begins later finds no bytes to move. A call that had begun ends in time, because no
//! signal stops it half-way. Until then the request waits (`AccessError::Busy`), and a flush of its
//! QP waits, too.
//!
//! Map of the file:
//!
//! - Threads: initiators enter by `transfer` under their requester lock. The service thread enters
//!   by `start_helper_if_called`, the end of the process by `stop`, flushes by
//!   `wait_for_stuck_piece`.
//! - Locks: `work` (tried by operations, waited for by a flush), then moving bytes and a bounded
//!   wait. `helper` is a leaf.
//! - Mirrors: `is_stuck` mirrors `work.stuck`. `help_wanted` of the rings says whether the helper
//!   sleeps (0), works (slot + 1), rests or leaves.
//! - Fields: `engine/ring/helping_state.rs`.

use crate::engine::adapter::Adapter;
use crate::engine::keys::access::{AccessError, Direction, attach_all};
use crate::engine::ring::Link;
use crate::engine::ring::helper::{ClaimedPieces, claimed_pieces, run_helper};
use crate::engine::ring::helping_state::{
    HelpHistory, HelpedOperations, Helping, LEAVING, RESTING, StuckPiece,
};
use cface::sync::Mutex;
use soft_local::fabric::{Fabric, Peer};
use soft_local::shm::layout::{JOB_PIECES, Job};
use soft_local::shm::protocol::{self, JobProgress};
use soft_local::shm::view::View;
use soft_memory::{Range, Ranges};
use soft_semantics::request::RemoteAddress;
use soft_sys::futex;
use soft_sys::thread::{end_called, spawn_quiet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Least length of a shared operation in bytes. A WRITE costs a further system call for its last
/// bytes.
const MIN_SHARED_READ: usize = 64 << 10;
const MIN_SHARED_WRITE: usize = 128 << 10;
/// Bytes that arrive last: a cache line.
const TAIL: usize = 64;
/// Size of a piece: long compared with a system call, short enough to wait for the last one.
const PIECES_PER_JOB: usize = 8;
const MIN_PIECE: usize = 64 << 10;
const MAX_PIECE: usize = 256 << 10;
/// Bytes of consecutive operations after which the helper is called.
const CALL_AFTER_BYTES: u64 = 512 << 10;
/// Largest gap between consecutive operations.
const MAX_GAP: Duration = Duration::from_micros(100);
/// How long an initiator waits for claimed pieces before it continues.
const HELPER_WAIT: Duration = Duration::from_millis(4);
/// Time after which a system call, begun before its piece was taken back, has ended.
const MAX_SYSTEM_CALL: Duration = Duration::from_secs(1);
/// Time after which the benefit of help is evaluated.
const TRIAL_TIME: Duration = Duration::from_millis(5);
/// Bytes moved alone after help brought no benefit: the first and the maximal number.
const MIN_ALONE: u64 = 64 << 20;
const MAX_ALONE: u64 = 4 << 30;
const STACK: usize = 256 << 10;
impl StuckPiece {
    /// Whether no system call can still move the piece, even if the claim remains.
    fn is_harmless(&self) -> bool {
        self.noticed_at.elapsed() > MAX_SYSTEM_CALL
    }
}

/// A long operation on a single local range.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct LongOperation<'a> {
    pub(in crate::engine) link: &'a Link,
    pub(in crate::engine) remote: RemoteAddress,
    /// Address of `remote` in the target process.
    pub(in crate::engine) va: u64,
    pub(in crate::engine) local: Range<'a>,
    pub(in crate::engine) direction: Direction,
}

impl LongOperation<'_> {
    /// Whether sharing may be worth it.
    pub(in crate::engine) const fn is_long(len: usize, way: Direction) -> bool {
        match way {
            Direction::Read => len >= MIN_SHARED_READ,
            Direction::Write => len >= MIN_SHARED_WRITE,
        }
    }

    /// Moves a part in this thread.
    fn move_part(&self, offset: usize, len: usize) -> Result<(), AccessError> {
        let ranges = Ranges::of(self.local.part(offset, len));
        attach_all(self.link.peer().memory(), &ranges, self.va + offset as u64, self.direction)
    }

    fn move_alone(&self) -> Result<(), AccessError> {
        self.move_part(0, self.local.len())
    }
}

/// Result of a shared operation.
struct SharedOutcome {
    result: Result<(), AccessError>,
    helped: bool,
    waited: Duration,
}

impl Helping {
    /// The state of this process, whose segments are `view`. The job numbers differ from those of
    /// the previous owner of the process slot.
    pub(crate) fn new(view: View, fabric: &Fabric) -> Self {
        let work = HelpedOperations {
            number: fabric.identity().wrapping_mul(0x9e37_79b9),
            ..HelpedOperations::default()
        };
        Self {
            view,
            own_slot: fabric.slot(),
            witness: fabric.witness_address(),
            work: Mutex::new(work),
            is_stuck: AtomicBool::new(false),
            helper: Mutex::default(),
            leaving: AtomicBool::new(false),
            called: AtomicU32::new(0),
            #[cfg(test)]
            helped: AtomicU32::new(0),
        }
    }

    /// Disables help for this process: initiators always find a resting helper.
    pub(crate) fn disable(&self) {
        self.leaving.store(true, Ordering::Release);
        self.view.rings_head().help_wanted.0.store(RESTING, Ordering::Relaxed);
    }

    /// Whether the helper must end.
    pub(in crate::engine) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Executes a long operation, with help if available.
    ///
    /// # Errors
    /// Those of `OneSidedTarget::transfer`; `Busy` while the target holds a piece.
    pub(in crate::engine) fn transfer(&self, long: &LongOperation<'_>) -> Result<(), AccessError> {
        let Some(mut work) = self.work.try_lock() else { return long.move_alone() };
        let slot = long.link.peer().slot;
        match &work.stuck {
            Some(stuck) if !self.is_over(stuck, work.number) => {
                // The stuck piece may belong to this very operation.
                let waits = stuck.view.peer().slot == slot && !stuck.is_harmless();
                drop(work);
                return if waits { Err(AccessError::Busy) } else { long.move_alone() };
            }
            Some(_) => self.clear_stuck(&mut work),
            None => {}
        }
        let began = Instant::now();
        let wanted = &long.link.view.rings_head().help_wanted.0;
        let own = u32::from(self.own_slot) + 1;
        let helper = wanted.load(Ordering::Relaxed);
        let partner = work.by_process.entry(slot).or_default();
        let worth = partner.should_share(long.local.len() as u64, began, helper == own);
        if !worth || matches!(helper, RESTING | LEAVING) {
            drop(work);
            return long.move_alone();
        }
        let outcome = self.run_shared(&mut work, long, || {
            // The helper may have gone to sleep for lack of pieces.
            if wanted.load(Ordering::Relaxed) != own {
                call(wanted, own, long.link.peer());
            }
        });
        let partner = work.by_process.entry(slot).or_default();
        partner.record(began.elapsed(), &outcome);
        outcome.result
    }

    /// Opens a job, copies the pieces that the helper does not claim, and waits for the rest.
    fn run_shared(
        &self,
        work: &mut HelpedOperations,
        long: &LongOperation<'_>,
        call: impl Fn(),
    ) -> SharedOutcome {
        let tail = if long.direction == Direction::Write { TAIL } else { 0 };
        let shared = long.local.len() - tail;
        let piece = (shared / PIECES_PER_JOB).clamp(MIN_PIECE, MAX_PIECE).min(shared.div_ceil(2));
        let piece = piece.max(shared.div_ceil(JOB_PIECES));
        let count = shared.div_ceil(piece);
        let job = self.view.job();
        work.number = work.number.wrapping_add(1);
        write_job(job, long, piece, shared, self.witness);
        let mut now = JobProgress { number: work.number, count: count as u16, front: 0 };
        protocol::open_job(&job.state, now);
        let target = &long.link.view;
        let number = work.number;
        let theirs = || claimed_pieces(target, self.own_slot, number);
        // Number of pieces that the helper did not claim. An invalid number only harms the target's
        // own memory.
        let left = |theirs: Option<ClaimedPieces>| {
            theirs.map_or(count, |held| usize::from(held.back).min(count))
        };
        let (mut result, mut own, mut complete) = (Ok(()), 0, false);
        while result.is_ok() && own < left(theirs()) {
            now.front = own as u16 + 1;
            protocol::advance_job(&job.state, now);
            let seen = theirs();
            if left(seen) <= own {
                // Both sides chose the piece: it belongs to the helper, or the helper gives it
                // back.
                break;
            }
            call();
            let offset = own * piece;
            own += 1;
            // The last piece, with no claim in work: the last bytes go with the same call.
            complete = own == count && !seen.is_some_and(|held| held.is_busy);
            let end = if complete { long.local.len() } else { shared.min(offset + piece) };
            result = long.move_part(offset, end - offset);
        }
        now.front = now.count;
        protocol::advance_job(&job.state, now);
        let began = Instant::now();
        let busy = || theirs().is_some_and(|held| held.is_busy);
        if !wait(busy, long.link.peer(), HELPER_WAIT) {
            take_back(job, count);
            self.is_stuck.store(true, Ordering::Relaxed);
            work.stuck = Some(StuckPiece { view: target.clone(), noticed_at: Instant::now() });
            return SharedOutcome {
                result: Err(AccessError::Busy),
                helped: true,
                waited: HELPER_WAIT,
            };
        }
        let waited = began.elapsed();
        let undone = left(theirs());
        #[cfg(test)]
        self.helped.fetch_add((count - undone) as u32, Ordering::Relaxed);
        if busy() {
            result = Err(AccessError::PeerDied);
        } else if result.is_ok() && own < undone {
            // Pieces that the helper claimed and could not move: the copy here succeeds or returns
            // the reason.
            let (from, to) = (own * piece, shared.min(undone * piece));
            result = long.move_part(from, to - from);
        }
        if result.is_ok() && !complete && tail > 0 {
            result = long.move_part(shared, tail);
        }
        SharedOutcome { result, helped: undone < count, waited }
    }

    /// Whether the target holds no piece of job `number` any more.
    fn is_over(&self, stuck: &StuckPiece, number: u32) -> bool {
        stuck.view.peer().is_dead()
            || !claimed_pieces(&stuck.view, self.own_slot, number).is_some_and(|held| held.is_busy)
    }

    fn clear_stuck(&self, work: &mut HelpedOperations) {
        work.stuck = None;
        self.is_stuck.store(false, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn was_called(&self) -> bool {
        self.helper.lock().is_some()
    }

    /// Forgets all measurements.
    #[cfg(test)]
    pub(crate) fn forget_history(&self) {
        self.work.lock().by_process.clear();
    }

    /// Called by a flush, which returns memory to the application: waits until no helper moves a
    /// piece of it.
    pub(in crate::engine) fn wait_for_stuck_piece(&self) {
        if !self.is_stuck.load(Ordering::Relaxed) {
            return;
        }
        let mut work = self.work.lock();
        let over = |work: &HelpedOperations| {
            work.stuck.as_ref().is_none_or(|stuck| self.is_over(stuck, work.number))
        };
        while !over(&work) && !work.stuck.as_ref().is_some_and(StuckPiece::is_harmless) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Otherwise nothing is shared until the claim ends, because the helper may still read the
        // job.
        if over(&work) {
            self.clear_stuck(&mut work);
        }
    }

    /// The helper sleeps for this time, or until `stop` calls it.
    pub(in crate::engine) fn sleep_until_called(&self, most: Duration) {
        // In this order: `stop` changes the word after the flag.
        let called = self.called.load(Ordering::Acquire);
        if !self.is_leaving() {
            let _ = futex::wait_for(&self.called, called, most);
        }
    }

    /// Starts the helper thread at the first call. Called by the service thread.
    pub(crate) fn start_helper_if_called(adapter: &Arc<Adapter>) {
        let own = &adapter.helping;
        let wanted = &own.view.rings_head().help_wanted.0;
        let is_called = || !matches!(wanted.load(Ordering::Relaxed), 0 | RESTING | LEAVING);
        if !is_called() {
            return;
        }
        let mut helper = own.helper.lock();
        // `stop` sets `leaving` under this lock, so no thread starts afterwards.
        if helper.is_none() && is_called() && !own.is_leaving() {
            let adapter = Arc::clone(adapter);
            *helper = spawn_quiet("fv-helper", STACK, move || run_helper(&adapter)).ok();
        }
    }

    /// Ends the helper thread before the process leaves the fabric.
    pub(crate) fn stop(adapter: &Adapter) {
        let own = &adapter.helping;
        if adapter.fabric.is_foreign() {
            // In a forked child the thread does not exist, and the word belongs to the parent. The
            // lock may be held by a thread of the parent.
            std::mem::forget(own.helper.try_lock().and_then(|mut helper| helper.take()));
            return;
        }
        let wanted = &own.view.rings_head().help_wanted.0;
        let helper = {
            let mut place = own.helper.lock();
            own.leaving.store(true, Ordering::Release);
            wanted.store(LEAVING, Ordering::Release);
            place.take()
        };
        let Some(helper) = helper else { return };
        // Repeated, because any member may write the word or sleep on it.
        end_called(helper, || {
            wanted.store(LEAVING, Ordering::Release);
            futex::wake(wanted);
            own.called.fetch_add(1, Ordering::Release);
            futex::wake(&own.called);
        });
    }
}

/// Writes the description of the job to the own tables.
fn write_job(job: &Job, long: &LongOperation<'_>, piece: usize, len: usize, witness: u64) {
    // Relaxed: the release in `open_job` follows.
    job.target.store(long.link.peer().slot.into(), Ordering::Relaxed);
    job.qpn.store(long.link.qpn, Ordering::Relaxed);
    job.rkey.store(long.remote.rkey, Ordering::Relaxed);
    job.piece.store(piece as u64, Ordering::Relaxed);
    job.len.store(len as u64, Ordering::Relaxed);
    job.addr.store(long.remote.addr, Ordering::Relaxed);
    job.is_read.store(u32::from(long.direction == Direction::Read), Ordering::Relaxed);
    for (at, part) in (0..len).step_by(piece).zip(&job.parts) {
        part.witness.store(witness, Ordering::Relaxed);
        part.witness_len.store(size_of::<u64>() as u64, Ordering::Relaxed);
        part.addr.store(long.local.address().wrapping_add(at as u64), Ordering::Relaxed);
        part.len.store((len - at).min(piece) as u64, Ordering::Relaxed);
    }
}

/// Makes copies that begin later move no bytes of the first `count` pieces.
fn take_back(job: &Job, count: usize) {
    for part in job.parts.iter().take(count) {
        part.len.store(0, Ordering::SeqCst);
    }
}

/// Calls the helper of `peer`, unless it is busy for another process.
#[cold]
fn call(wanted: &AtomicU32, own: u32, peer: &Peer) {
    // A hint: a lost call is repeated.
    if wanted.compare_exchange(0, own, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        && !futex::wake(wanted)
    {
        peer.kick();
    }
}

/// Waits until the target holds no piece, or is dead. Returns false after `patience`.
fn wait(is_busy: impl Fn() -> bool, peer: &Peer, patience: Duration) -> bool {
    let began = Instant::now();
    let mut looks = 0u32;
    while is_busy() {
        looks += 1;
        if looks.is_multiple_of(64) {
            if peer.is_dead() {
                return true;
            }
            if began.elapsed() > patience {
                return false;
            }
        }
        // If both threads share a processor, the helper needs it.
        if looks.is_multiple_of(4096) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    true
}

impl HelpHistory {
    /// Whether to share an operation of `len` bytes; `there` says that the helper is awake.
    fn should_share(&mut self, len: u64, now: Instant, there: bool) -> bool {
        let follows = self.due.is_some_and(|due| now < due + MAX_GAP);
        self.burst = if follows { self.burst + len } else { len };
        // An estimate with a margin: 4 GB/s.
        self.due = Some(now + Duration::from_nanos(len / 4));
        if self.alone > 0 {
            self.alone = self.alone.saturating_sub(len);
            return false;
        }
        there || self.burst >= CALL_AFTER_BYTES
    }

    /// Records the time of a shared operation, and evaluates the benefit.
    fn record(&mut self, took: Duration, outcome: &SharedOutcome) {
        self.shared_time += took;
        self.helped_time += if outcome.helped { took } else { Duration::ZERO };
        self.waiting_time += outcome.waited;
        let stuck = outcome.result == Err(AccessError::Busy);
        if self.shared_time < TRIAL_TIME && !stuck {
            return;
        }
        if stuck
            || self.helped_time < self.shared_time / 2
            || self.waiting_time > self.shared_time / 3
        {
            self.backoff = (self.backoff * 2).clamp(MIN_ALONE, MAX_ALONE);
            self.alone = self.backoff;
        } else {
            self.backoff /= 2;
        }
        (self.shared_time, self.helped_time, self.waiting_time) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn judged(partner: &mut HelpHistory, took: u64, helped: bool, waited: u64) {
        let (took, waited) = (Duration::from_micros(took), Duration::from_micros(waited));
        partner.record(took, &SharedOutcome { result: Ok(()), helped, waited });
    }

    #[test]
    fn the_helper_is_called_when_long_operations_follow_each_other() {
        let mut partner = HelpHistory::default();
        let mut now = Instant::now();
        for _ in 0..20 {
            assert!(!partner.should_share(CALL_AFTER_BYTES / 4, now, false), "once in a while");
            now += Duration::from_millis(5);
        }
        for n in 2..6 {
            assert_eq!(
                partner.should_share(CALL_AFTER_BYTES / 4, now, false),
                n > 4,
                "operation {n} of a burst"
            );
            now += Duration::from_micros(10);
        }
        now += Duration::from_secs(1);
        assert!(partner.should_share(CALL_AFTER_BYTES, now, false), "a very long one");
        now += Duration::from_secs(1);
        assert!(
            partner.should_share(CALL_AFTER_BYTES / 4, now, true),
            "the helper is there anyway"
        );
    }

    #[test]
    fn without_help_the_intervals_between_calls_become_longer() {
        let mut partner = HelpHistory::default();
        let mut now = Instant::now();
        let mut alone = |partner: &mut HelpHistory| {
            let mut bytes = 0;
            while !partner.should_share(MIB, now, false) {
                now += Duration::from_micros(100);
                bytes += MIB;
            }
            bytes
        };
        judged(&mut partner, 4999, false, 0);
        assert_eq!(alone(&mut partner), 0, "that was not long enough to tell");
        judged(&mut partner, 1, false, 0);
        assert_eq!(alone(&mut partner), MIN_ALONE);
        judged(&mut partner, 6000, true, 2500);
        assert_eq!(alone(&mut partner), 2 * MIN_ALONE, "waited for too long");
        for _ in 0..20 {
            judged(&mut partner, 6000, true, 100);
        }
        assert_eq!(alone(&mut partner), 0);
        let stuck =
            SharedOutcome { result: Err(AccessError::Busy), helped: true, waited: HELPER_WAIT };
        partner.record(HELPER_WAIT, &stuck);
        assert_eq!(alone(&mut partner), MIN_ALONE, "at once, and as if for the first time");
        for _ in 0..20 {
            judged(&mut partner, 6000, false, 0);
        }
        assert_eq!(alone(&mut partner), MAX_ALONE);
    }
}
