//! Long WRITEs and READs are done by two processors: the initiator's, and one of the target's that has nothing to do.
//!
//! The kernel copies from one process to another with one processor, at a third of what the memory can do. So the initiator cuts a
//! long operation into pieces that anybody takes (`shm::layout::Job`), and a thread of the target takes some. It is called when
//! long operations follow each other, looks for more for a moment after the last one, and sleeps then. The initiator does not count on it: what
//! nobody takes he does himself, and where help does not come, or costs more than it brings, he goes on alone for a while.
//!
//! The last bytes of a WRITE arrive last, as programs that watch them expect: the initiator writes them when everything else is there.
//!
//! What each side says of a job is in its own tables, which only it can write: where the initiator's memory is, and what the target has in
//! hand. The target's system call names the initiator's memory by the initiator's tables, so that the kernel looks there when it begins.
//!
//! A target that has a piece in hand for long was stopped. The initiator takes the piece back: the target's system call, whenever it comes,
//! finds no bytes to move. One that had begun is over in time, since no signal stops it half-way. Until then the request waits
//! (`Fault::Busy`), and a QP that is flushed waits, too.

use super::access::{Direction, Fault, attach_all};
use super::helper::{Held, held, help_all};
use super::objects::adapter::Adapter;
use super::objects::connection::Link;
use super::objects::helping::{
    HelpHistory, HelpedOperations, Helping, LEAVING, RESTING, StuckPiece,
};
use super::request::RemoteAddress;
use cface::sync::Mutex;
use soft_local::fabric::{Fabric, Peer};
use soft_local::shm::layout::{JOB_PIECES, Job};
use soft_local::shm::protocol::{self, JobProgress};
use soft_local::shm::view::View;
use soft_memory::{Range, Ranges};
use soft_sys::futex;
use soft_sys::thread::{end_called, spawn_quiet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Operations that are worth sharing. A WRITE costs a system call more, for its last bytes.
const LEAST_READ: usize = 64 << 10;
const LEAST_WRITE: usize = 128 << 10;
/// Bytes that arrive last: a cache line.
const TAIL: usize = 64;
/// A piece: long enough for the system call not to matter, short enough that nobody waits long for the last one.
const PIECES: usize = 8;
const LEAST_PIECE: usize = 64 << 10;
const MOST_PIECE: usize = 256 << 10;
/// So many bytes, one operation after the other, are worth calling for help.
const CALL: u64 = 512 << 10;
/// Operations that follow each other begin so soon after the one before is over.
const PAUSE: Duration = Duration::from_micros(100);
/// How long an initiator waits for pieces that the target has in hand before it does something else.
const HELPER_WAIT: Duration = Duration::from_millis(4);
/// After so long a system call that had begun when a piece was taken back is over.
const CALL_IS_OVER: Duration = Duration::from_secs(1);
/// Time after which it is decided whether help is of use.
const TRIAL: Duration = Duration::from_millis(5);
/// Bytes that are moved alone after it was not, the first time and at most.
const ALONE: u64 = 64 << 20;
const ALONE_MOST: u64 = 4 << 30;
const STACK: usize = 256 << 10;
impl StuckPiece {
    /// Whether nobody is at the piece any more, though the target may still have it in hand.
    fn is_harmless(&self) -> bool {
        self.since.elapsed() > CALL_IS_OVER
    }
}

/// One operation, on one range of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Long<'a> {
    pub(super) link: &'a Link,
    pub(super) remote: RemoteAddress,
    /// Where `remote` is in the target's address space.
    pub(super) va: u64,
    pub(super) local: Range,
    pub(super) way: Direction,
}

impl Long<'_> {
    /// Whether it may be worth it.
    pub(super) const fn is_long(len: usize, way: Direction) -> bool {
        match way {
            Direction::Read => len >= LEAST_READ,
            Direction::Write => len >= LEAST_WRITE,
        }
    }

    /// Moves a part of it, by ourselves.
    fn part(&self, offset: usize, len: usize) -> Result<(), Fault> {
        let ranges = Ranges::of(self.local.part(offset, len));
        attach_all(self.link.peer.memory(), &ranges, self.va + offset as u64, self.way)
    }

    fn alone(&self) -> Result<(), Fault> {
        self.part(0, self.local.len())
    }
}

/// What became of a shared operation.
struct Outcome {
    result: Result<(), Fault>,
    helped: bool,
    waited: Duration,
}

impl Helping {
    /// That of this process, whose segments are `view`. Its jobs have other numbers than those of the process that had its slot before.
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
            #[cfg(test)]
            helped: AtomicU32::new(0),
        }
    }

    /// Nobody shall call a thread of this process: others see somebody who rests, for good.
    pub(crate) fn refuse(&self) {
        self.leaving.store(true, Ordering::Release);
        self.view.rings_head().help_wanted.0.store(RESTING, Ordering::Relaxed);
    }

    /// Whether our helper is to end.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Does a long operation, with help if there is any.
    ///
    /// # Errors
    /// Those of `Target::transfer`; `Busy` while the target has a piece in hand.
    pub(super) fn transfer(&self, long: &Long<'_>) -> Result<(), Fault> {
        let Some(mut work) = self.work.try_lock() else { return long.alone() };
        let slot = long.link.peer.slot;
        match &work.stuck {
            Some(stuck) if !self.is_over(stuck, work.number) => {
                // It may be this very operation that it is a piece of.
                let waits = stuck.peer.slot == slot && !stuck.is_harmless();
                drop(work);
                return if waits { Err(Fault::Busy) } else { long.alone() };
            }
            Some(_) => self.unstick(&mut work),
            None => {}
        }
        let began = Instant::now();
        let wanted = &long.link.view.rings_head().help_wanted.0;
        let own = u32::from(self.own_slot) + 1;
        let helper = wanted.load(Ordering::Relaxed);
        let partner = work.by_process.entry(slot).or_default();
        let worth = partner.is_worth_it(long.local.len() as u64, began, helper == own);
        if !worth || matches!(helper, RESTING | LEAVING) {
            drop(work);
            return long.alone();
        }
        let outcome = self.share(&mut work, long, || {
            // It may have gone to sleep when there was no piece.
            if wanted.load(Ordering::Relaxed) != own {
                call(wanted, own, &long.link.peer);
            }
        });
        let partner = work.by_process.entry(slot).or_default();
        partner.judge(began.elapsed(), &outcome);
        outcome.result
    }

    /// Opens a job, does what nobody else does of it, and waits for the rest.
    fn share(&self, work: &mut HelpedOperations, long: &Long<'_>, call: impl Fn()) -> Outcome {
        let tail = if long.way == Direction::Write { TAIL } else { 0 };
        let shared = long.local.len() - tail;
        let piece = (shared / PIECES).clamp(LEAST_PIECE, MOST_PIECE).min(shared.div_ceil(2));
        let piece = piece.max(shared.div_ceil(JOB_PIECES));
        let count = shared.div_ceil(piece);
        let job = self.view.job();
        work.number = work.number.wrapping_add(1);
        describe(job, long, piece, shared, self.witness);
        let mut now = JobProgress { number: work.number, count: count as u16, front: 0 };
        protocol::open_job(&job.state, now);
        let target = &long.link.view;
        let number = work.number;
        let theirs = || held(target, self.own_slot, number);
        // What the target has not taken. A number that makes no sense is the target's loss, whose memory it is about.
        let left =
            |theirs: Option<Held>| theirs.map_or(count, |held| usize::from(held.back).min(count));
        let (mut result, mut own, mut complete) = (Ok(()), 0, false);
        while result.is_ok() && own < left(theirs()) {
            now.front = own as u16 + 1;
            protocol::advance_job(&job.state, now);
            let seen = theirs();
            if left(seen) <= own {
                // Both took it: it is the target's, or given back.
                break;
            }
            call();
            let offset = own * piece;
            own += 1;
            // The last piece, and nobody has another one: the last bytes go with it.
            complete = own == count && !seen.is_some_and(|held| held.is_busy);
            let end = if complete { long.local.len() } else { shared.min(offset + piece) };
            result = long.part(offset, end - offset);
        }
        now.front = now.count;
        protocol::advance_job(&job.state, now);
        let began = Instant::now();
        let busy = || theirs().is_some_and(|held| held.is_busy);
        if !wait(busy, &long.link.peer, HELPER_WAIT) {
            take_back(job, count);
            self.is_stuck.store(true, Ordering::Relaxed);
            let (peer, view, since) = (Arc::clone(&long.link.peer), *target, Instant::now());
            work.stuck = Some(StuckPiece { peer, view, since });
            return Outcome { result: Err(Fault::Busy), helped: true, waited: HELPER_WAIT };
        }
        let waited = began.elapsed();
        let undone = left(theirs());
        #[cfg(test)]
        self.helped.fetch_add((count - undone) as u32, Ordering::Relaxed);
        if busy() {
            result = Err(Fault::Dead);
        } else if result.is_ok() && own < undone {
            // What it took and could not do: we find out why, or do it.
            let (from, to) = (own * piece, shared.min(undone * piece));
            result = long.part(from, to - from);
        }
        if result.is_ok() && !complete && tail > 0 {
            result = long.part(shared, tail);
        }
        Outcome { result, helped: undone < count, waited }
    }

    /// Whether the target has nothing of job `number` in hand any more.
    fn is_over(&self, stuck: &StuckPiece, number: u32) -> bool {
        stuck.peer.is_dead()
            || !held(&stuck.view, self.own_slot, number).is_some_and(|held| held.is_busy)
    }

    fn unstick(&self, work: &mut HelpedOperations) {
        work.stuck = None;
        self.is_stuck.store(false, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn was_called(&self) -> bool {
        self.helper.lock().is_some()
    }

    /// As if nobody had been asked for help before.
    #[cfg(test)]
    pub(crate) fn forget_partners(&self) {
        self.work.lock().by_process.clear();
    }

    /// Requests are flushed, and their memory is the application's again: waits until nobody is at a piece of them.
    pub(super) fn settle(&self) {
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
        // Otherwise nothing is shared until it is: the target may yet look at the job.
        if over(&work) {
            self.unstick(&mut work);
        }
    }

    /// Somebody called; starts the helper, the first time. For the service thread.
    pub(crate) fn answer(adapter: &Arc<Adapter>) {
        let own = &adapter.helping;
        let wanted = &own.view.rings_head().help_wanted.0;
        let is_called = || !matches!(wanted.load(Ordering::Relaxed), 0 | RESTING | LEAVING);
        if !is_called() {
            return;
        }
        let mut helper = own.helper.lock();
        // Not after `stop`, which says that we leave under the lock.
        if helper.is_none() && is_called() && !own.is_leaving() {
            let adapter = Arc::clone(adapter);
            *helper = spawn_quiet("fv-helper", STACK, move || help_all(&adapter)).ok();
        }
    }

    /// Before the fabric is left.
    pub(crate) fn stop(adapter: &Adapter) {
        let own = &adapter.helping;
        if adapter.fabric.is_foreign() {
            // A fork of the process: there is no such thread here, and the word is the parent's. So may the lock be.
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
        let thread = helper.thread().clone();
        // Any member may write the word, and sleep on it.
        end_called(helper, || {
            wanted.store(LEAVING, Ordering::Release);
            futex::wake(wanted);
            thread.unpark();
        });
    }
}

/// Says in our tables what is to be done.
fn describe(job: &Job, long: &Long<'_>, piece: usize, len: usize, witness: u64) {
    // Relaxed: `open_job` comes after.
    job.target.store(long.link.peer.slot.into(), Ordering::Relaxed);
    job.qpn.store(long.link.qpn, Ordering::Relaxed);
    job.rkey.store(long.remote.rkey, Ordering::Relaxed);
    job.piece.store(piece as u64, Ordering::Relaxed);
    job.len.store(len as u64, Ordering::Relaxed);
    job.addr.store(long.remote.addr, Ordering::Relaxed);
    job.is_read.store(u32::from(long.way == Direction::Read), Ordering::Relaxed);
    for (at, part) in (0..len).step_by(piece).zip(&job.parts) {
        part.witness.store(witness, Ordering::Relaxed);
        part.witness_len.store(size_of::<u64>() as u64, Ordering::Relaxed);
        part.addr.store(long.local.address().wrapping_add(at as u64), Ordering::Relaxed);
        part.len.store((len - at).min(piece) as u64, Ordering::Relaxed);
    }
}

/// Whoever begins with one of the first `count` pieces after this moves nothing.
fn take_back(job: &Job, count: usize) {
    for part in job.parts.iter().take(count) {
        part.len.store(0, Ordering::SeqCst);
    }
}

/// Calls the helper of `peer`; who is with another one stays there.
#[cold]
fn call(wanted: &AtomicU32, own: u32, peer: &Peer) {
    // A hint: a call that is lost is made again.
    if wanted.compare_exchange(0, own, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        && !futex::wake(wanted)
    {
        peer.kick();
    }
}

/// Whether the target has nothing in hand, or never will do it.
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
        // Where there is one processor for both, the helper needs it.
        if looks.is_multiple_of(4096) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    true
}

impl HelpHistory {
    /// Whether to share an operation of `len` bytes; the helper is `there`, or must be called.
    fn is_worth_it(&mut self, len: u64, now: Instant, there: bool) -> bool {
        let follows = self.due.is_some_and(|due| now < due + PAUSE);
        self.burst = if follows { self.burst + len } else { len };
        // A guess, and a generous one: 4 GB/s.
        self.due = Some(now + Duration::from_nanos(len / 4));
        if self.alone > 0 {
            self.alone = self.alone.saturating_sub(len);
            return false;
        }
        there || self.burst >= CALL
    }

    /// A shared operation took so long.
    fn judge(&mut self, took: Duration, outcome: &Outcome) {
        self.shared_time += took;
        self.helped_time += if outcome.helped { took } else { Duration::ZERO };
        self.waiting_time += outcome.waited;
        let stuck = outcome.result == Err(Fault::Busy);
        if self.shared_time < TRIAL && !stuck {
            return;
        }
        if stuck
            || self.helped_time < self.shared_time / 2
            || self.waiting_time > self.shared_time / 3
        {
            self.backoff = (self.backoff * 2).clamp(ALONE, ALONE_MOST);
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
        partner.judge(took, &Outcome { result: Ok(()), helped, waited });
    }

    #[test]
    fn help_is_called_when_long_operations_follow_each_other() {
        let mut partner = HelpHistory::default();
        let mut now = Instant::now();
        for _ in 0..20 {
            assert!(!partner.is_worth_it(CALL / 4, now, false), "once in a while");
            now += Duration::from_millis(5);
        }
        for n in 2..6 {
            assert_eq!(
                partner.is_worth_it(CALL / 4, now, false),
                n > 4,
                "operation {n} of a burst"
            );
            now += Duration::from_micros(10);
        }
        now += Duration::from_secs(1);
        assert!(partner.is_worth_it(CALL, now, false), "a very long one");
        now += Duration::from_secs(1);
        assert!(partner.is_worth_it(CALL / 4, now, true), "the helper is there anyway");
    }

    #[test]
    fn who_is_not_helped_goes_on_alone_for_longer_and_longer() {
        let mut partner = HelpHistory::default();
        let mut now = Instant::now();
        let mut alone = |partner: &mut HelpHistory| {
            let mut bytes = 0;
            while !partner.is_worth_it(MIB, now, false) {
                now += Duration::from_micros(100);
                bytes += MIB;
            }
            bytes
        };
        judged(&mut partner, 4999, false, 0);
        assert_eq!(alone(&mut partner), 0, "that was not long enough to tell");
        judged(&mut partner, 1, false, 0);
        assert_eq!(alone(&mut partner), ALONE);
        judged(&mut partner, 6000, true, 2500);
        assert_eq!(alone(&mut partner), 2 * ALONE, "waited for too long");
        for _ in 0..20 {
            judged(&mut partner, 6000, true, 100);
        }
        assert_eq!(alone(&mut partner), 0);
        let stuck = Outcome { result: Err(Fault::Busy), helped: true, waited: HELPER_WAIT };
        partner.judge(HELPER_WAIT, &stuck);
        assert_eq!(alone(&mut partner), ALONE, "at once, and as if for the first time");
        for _ in 0..20 {
            judged(&mut partner, 6000, false, 0);
        }
        assert_eq!(alone(&mut partner), ALONE_MOST);
    }
}
