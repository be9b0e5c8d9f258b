//! The memory-order steps by which processes and threads pass slots, arrival flags, keys, jobs and
//! locks.
//!
//! Each step stands beside the step that it pairs with. The module contains only code that depends
//! on memory order, over plain atomics. The models in `providers/soft/loom` run this code under
//! loom. They run it again with one ordering weakened, and must then fail.
//!
//! Map of this file:
//!
//! - Rings: [`publish`] pairs with [`head`] and [`consume`]; [`acknowledge`] with [`acknowledged`].
//! - Arrival flags and wake-ups: [`set_arrival_flag`] pairs with [`take_bits`]; [`notify_owner`]
//!   with [`mark_cold`] and [`Alert::raise`].
//! - Keys: [`announce`], [`key`] and [`withdraw`] pair with [`revoke`] and [`is_announced`].
//! - Jobs: [`advance_job`] pairs with [`claim_piece`]; [`release_piece`] with [`load_hand`].
//! - Locks: [`try_lock`], [`unlock`], [`break_lock`].
#![forbid(unsafe_code)]

use super::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, fence};

/// Producer of a ring: fills a slot. A consumer that reads the slot's sequence number (lower half
/// of `head[0]`) also reads the rest.
#[inline]
pub fn publish(words: &[AtomicU64; 8], head: [u64; 2], body: &[u64]) {
    // Relaxed: `acknowledge` and `acknowledged` ordered the consumer's reads of the previous lap
    // before these stores. The consumer reads these words again only after it sees the store in
    // `publish_first_word`.
    for (to, from) in words[2..].iter().zip(body) {
        to.store(*from, Ordering::Relaxed);
    }
    words[1].store(head[1], Ordering::Relaxed);
    publish_first_word(words, head[0]);
}

/// Producer of a ring: stores the first word of a slot that is filled otherwise.
#[inline]
pub fn publish_first_word(words: &[AtomicU64; 8], first: u64) {
    // Release: pairs with the Acquire loads in `is_published` and `head`, which make the slot's
    // other words visible.
    words[0].store(first, Ordering::Release);
}

/// Consumer of a ring: whether slot `seq` was published. Pairs with `publish`.
#[inline]
pub fn is_published(words: &[AtomicU64; 8], seq: u32) -> bool {
    words[0].load(Ordering::Acquire) as u32 == seq
}

/// Consumer of a ring: the head of slot `seq` if it was published. The body may be read afterwards.
#[inline]
pub fn head(words: &[AtomicU64; 8], seq: u32) -> Option<[u64; 2]> {
    // Acquire: pairs with the Release in `publish_first_word`, so that the following Relaxed loads
    // read the published words.
    let first = words[0].load(Ordering::Acquire);
    (first as u32 == seq).then(|| [first, words[1].load(Ordering::Relaxed)])
}

/// Consumer of a ring: head and body of slot `seq` if it was published.
#[inline]
pub fn consume(words: &[AtomicU64; 8], seq: u32) -> Option<([u64; 2], [u64; 6])> {
    let head = head(words, seq)?;
    let mut body = [0; 6];
    for (to, from) in body.iter_mut().zip(&words[2..]) {
        *to = from.load(Ordering::Relaxed);
    }
    Some((head, body))
}

/// Consumer of a ring: returns all slots before `next`, and their chunks, to the producer.
#[inline]
pub fn acknowledge(acked: &AtomicU32, next: u32) {
    // Release: pairs with `acknowledged`. The consumer's reads of slots and chunks come before the
    // producer's next writes to them, and responses in chunks come before the producer reads them.
    acked.store(next, Ordering::Release);
}

/// Counts how often pollers found nothing in a ring while its consumer expected a certain slot. A
/// postponed acknowledgement is due after enough looks. Count and slot share one word, so no order
/// among pollers matters: a count for another slot is ignored.
#[derive(Debug)]
pub struct EmptyPolls(AtomicU64);

impl Default for EmptyPolls {
    fn default() -> Self {
        Self::new()
    }
}

impl EmptyPolls {
    /// No look yet.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Records that a poller found nothing while the consumer expected slot `next`. Returns true
    /// for the last of `most` looks, whose poller acknowledges.
    #[inline]
    pub fn record_empty(&self, next: u32, most: u32) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        let looks = if (word >> 32) as u32 == next { word as u32 + 1 } else { 1 };
        if looks <= most {
            self.0.store(u64::from(next) << 32 | u64::from(looks), Ordering::Relaxed);
        }
        looks == most
    }

    /// Whether pollers have looked for slot `next` at least `most` times.
    #[inline]
    pub fn lasts(&self, next: u32, most: u32) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        (word >> 32) as u32 == next && word as u32 >= most
    }
}

/// Producer of a ring: the first slot that the consumer has not acknowledged. Pairs with
/// `acknowledge`.
#[inline]
pub fn acknowledged(acked: &AtomicU32) -> u32 {
    acked.load(Ordering::Acquire)
}

/// Sets bit `bit` of `flags`, then bit `word` of `summary`, which names that word of flags.
pub fn set_arrival_flag(flags: &AtomicU64, bit: usize, summary: &AtomicU64, word: usize) {
    // Release, in this order. A thread that takes the summary's bit finds the flag, and a thread
    // that takes the flag finds the slot that was published before. Both pair with the swap in
    // `take_bits`.
    flags.fetch_or(1 << bit, Ordering::AcqRel);
    summary.fetch_or(1 << word, Ordering::AcqRel);
}

/// Clears `word` and calls `f` with the number of each bit that was set.
#[inline]
pub fn take_bits(word: &AtomicU64, mut f: impl FnMut(usize)) {
    // Relaxed: a missed bit is seen by the next look. A word under a summary is never missed,
    // because the thread that took the summary's bit is ordered after the store to the word.
    if word.load(Ordering::Relaxed) == 0 {
        return;
    }
    // AcqRel: pairs with `set_arrival_flag`. A flag that is set after the swap finds the word clear
    // and sets it again.
    let mut bits = word.swap(0, Ordering::AcqRel);
    while bits != 0 {
        f(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// Producer of a ring, after `publish`: sets the arrival flag if no thread polls the ring, and
/// wakes the owner if `bit` of the owner's attention asks for it. `barrier` is one half of a full
/// barrier; the owner's half is in `mark_cold` and [`Alert::raise`].
#[inline]
pub fn notify_owner(
    hot: &AtomicU32,
    attention: &AtomicU32,
    bit: u32,
    barrier: impl Fn(),
    set_flag: impl FnOnce(),
    wake: impl FnOnce(),
) {
    // The barrier orders the published slot before the loads. Either this producer sees the ring
    // cold or attention up, or the owner that made it so sees the slot.
    barrier();
    // With attention up, the arrival flag tells the woken thread which ring to read.
    if attention.load(Ordering::Relaxed) & bit != 0 {
        set_flag();
        wake();
    } else if hot.load(Ordering::Relaxed) == 0 {
        set_flag();
        // The barrier orders the flag before the next load, so that an owner that raises attention
        // later finds the flag. An AcqRel flag alone may become visible after that load.
        barrier();
        if attention.load(Ordering::Relaxed) & bit != 0 {
            wake();
        }
    }
}

/// As `notify_owner`, for arrivals without an arrival flag: calls `wake` if `bit` of the owner's
/// attention asks for it. The caller has passed the barrier.
#[inline]
pub fn tell_attentive(attention: &AtomicU32, bit: u32, wake: impl FnOnce()) {
    // Relaxed: the caller's barrier orders the published data before this load. It pairs with the
    // barrier in `Alert::raise`.
    if attention.load(Ordering::Relaxed) & bit != 0 {
        wake();
    }
}

/// After an arrival flag: wakes one thread that sleeps on the alarm, or else calls `kick`, which
/// wakes the service thread. `wake` is the system call, and returns whether a thread slept.
pub fn wake_one(
    sleepers: &AtomicU32,
    alarm: &AtomicU32,
    wake: impl FnOnce() -> bool,
    kick: impl FnOnce(),
) {
    // Relaxed: a hint. With a count of 0 the service thread is woken. Otherwise only the kernel
    // knows whether a thread sleeps.
    if sleepers.load(Ordering::Relaxed) > 0 {
        // Release: pairs with the Acquire in `prepare_sleep`. A thread that does not fall asleep
        // because of this increment finds the flag.
        alarm.fetch_add(1, Ordering::Release);
        if wake() {
            return;
        }
    }
    kick();
}

/// The value to pass to futex(2), read before the last look at the rings. An alarm after this load
/// prevents the sleep.
pub fn prepare_sleep(alarm: &AtomicU32) -> u32 {
    alarm.load(Ordering::Acquire)
}

/// Owner of a ring: requires producers to set the arrival flag from now on. The caller looks at the
/// ring afterwards. Slots of a producer that still saw the ring as hot are visible by then.
pub fn mark_cold(hot: &AtomicU32, barrier: impl FnOnce()) {
    hot.store(0, Ordering::Relaxed);
    // The barrier orders the store before the caller's look; pairs with the barrier in
    // `notify_owner`.
    barrier();
}

/// Whether every publisher must wake this process: the local state behind a shared attention word.
#[derive(Debug)]
pub struct Alert {
    /// Number of threads that wait for an event.
    armed: AtomicUsize,
    /// Attention is up *and* the barrier after raising it has been passed.
    complete: AtomicBool,
    /// How many times attention was raised.
    raises: AtomicU32,
    /// Held while `complete` and the shared word change together.
    change: Mutex<()>,
}

impl Default for Alert {
    fn default() -> Self {
        Self::new()
    }
}

impl Alert {
    /// Attention is up from the start: no peer publishes before this process has announced its
    /// segments.
    pub fn new() -> Self {
        Self {
            armed: AtomicUsize::new(0),
            complete: AtomicBool::new(true),
            raises: AtomicU32::new(1),
            change: Mutex::new(()),
        }
    }

    /// Registers a thread that waits for an event. Attention is not lowered meanwhile.
    pub fn arm(&self) {
        // Relaxed: the fence in `raise` orders this store before the load of `complete`.
        self.armed.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the registration of a waiting thread.
    pub fn disarm(&self) {
        // Relaxed: lowering attention slightly too early or late is harmless.
        self.armed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether no thread waits; a hint.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.armed.load(Ordering::Relaxed) == 0
    }

    /// Raises `word` to `to`, and returns whether attention was down. The caller looks at the rings
    /// afterwards: either a publisher sees attention up, or the caller sees the published slot.
    /// That needs the barrier, even if another thread has raised the word and has not passed the
    /// barrier yet.
    pub fn raise(&self, word: &AtomicU32, to: u32, barrier: impl FnOnce()) -> bool {
        // Pairs with the fence in `lower`: either this thread finds `complete` cleared, or `lower`
        // finds this thread armed. Without the fences both could miss each other and this thread
        // would sleep with attention down.
        fence(Ordering::SeqCst);
        // Acquire: pairs with the Release store below, so the barrier was passed before the caller
        // looks at the rings.
        if self.complete.load(Ordering::Acquire) {
            return false;
        }
        let _changing = self.change.lock();
        // Relaxed: only written under the lock.
        if !self.complete.load(Ordering::Relaxed) {
            word.store(to, Ordering::Relaxed);
            // The barrier orders the store before the looks of all threads that wait for
            // `complete`. It pairs with the barrier before `tell_attentive`.
            barrier();
            // Release: both stores pair with the Acquire loads in `raised`, so a thread that reads
            // the number is ordered after the barrier.
            self.raises.fetch_add(1, Ordering::Release);
            self.complete.store(true, Ordering::Release);
            return true;
        }
        false
    }

    /// The number of the raise since which attention is up and every publisher sees it; `None`:
    /// attention is down. A thread that looks at all rings after this call, and later reads the
    /// same number, has missed no arrival without an arrival flag.
    pub fn raised(&self) -> Option<u32> {
        // Acquire: both loads pair with the Release stores in `raise`, so the barrier was passed.
        self.complete.load(Ordering::Acquire).then(|| self.raises.load(Ordering::Acquire))
    }

    /// Lowers `word` unless a thread waits for an event. Returns whether the word was lowered.
    pub fn lower(&self, word: &AtomicU32) -> bool {
        let _changing = self.change.lock();
        self.complete.store(false, Ordering::Relaxed);
        // Pairs with the fence in `raise`.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) > 0 {
            // The word was not lowered, so the order established by the barrier still holds.
            self.complete.store(true, Ordering::Release);
            return false;
        }
        // Relaxed: a publisher that sees the store late causes a spurious wake-up.
        word.store(0, Ordering::Relaxed);
        true
    }
}

/// Initiator of a one-sided operation: announces the operation in `cell` if the cell is free. The
/// load of the key comes afterwards.
#[inline]
pub fn announce(cell: &AtomicU64, word: u64) -> bool {
    // SeqCst, with `key`, `revoke` and `is_announced`: in the single order, `announce` precedes
    // `key` and `revoke` precedes `is_announced`. Otherwise the initiator could use a key while the
    // owner sees no announcement.
    cell.load(Ordering::Relaxed) == 0
        && cell.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Initiator: the operation has ended.
#[inline]
pub fn withdraw(cell: &AtomicU64) {
    // Release: pairs with `is_announced`, so the initiator's accesses precede the owner's reuse of
    // the memory.
    cell.store(0, Ordering::Release);
}

/// Owner of a region, after `revoke`: whether the operation is in flight. If not, the operation has
/// ended or will find the key revoked.
pub fn is_announced(cell: &AtomicU64, word: u64) -> bool {
    // SeqCst against `announce`. Also an Acquire of `withdraw`, even through later announcements,
    // which are read-modify-writes.
    cell.load(Ordering::SeqCst) == word
}

/// Owner of a region: makes the entry valid.
pub fn validate(key: &AtomicU64, value: u64) {
    // Release: pairs with `key`, so a reader of the key also reads the fields stored before. The
    // owner writes fields of the next region only after all announced operations have ended, so an
    // announced initiator that read the key reads no later fields.
    key.store(value, Ordering::Release);
}

/// Owner of a region: revokes the key, before the owner looks for announcements.
pub fn revoke(key: &AtomicU64) {
    key.store(0, Ordering::SeqCst);
}

/// Reads the key of an entry, before the entry's other fields. SeqCst is needed for `announce`, and
/// costs no more than Acquire.
#[inline]
pub fn key(key: &AtomicU64) -> u64 {
    key.load(Ordering::SeqCst)
}

/// The progress of a job: the operation's number, its pieces, and the leading pieces that the
/// initiator took. Only the initiator writes the progress, and only the target writes the word of
/// the piece that it holds. Hence no third process can forge either. Each side first stores its
/// claim and then loads the other side's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobProgress {
    /// Number of the operation.
    pub number: u32,
    /// Pieces of the operation.
    pub count: u16,
    /// Leading pieces that the initiator took.
    pub front: u16,
}

impl JobProgress {
    const fn word(self) -> u64 {
        (self.number as u64) << 32 | (self.count as u64) << 16 | self.front as u64
    }
}

/// Initiator: publishes a job, whose pieces may be taken from now on. The previous job has ended,
/// and the target holds no piece of it.
pub fn open_job(state: &AtomicU64, now: JobProgress) {
    // Release: pairs with the Acquire in `job`.
    state.store(now.word(), Ordering::Release);
}

/// Initiator: takes the pieces before `front`. If that is all pieces, the job ends. The load of the
/// target's hand comes afterwards.
pub fn advance_job(state: &AtomicU64, now: JobProgress) {
    state.store(now.word(), Ordering::Release);
    // Pairs with the fence in `claim_piece`: either the target finds the piece taken, or the
    // initiator finds the piece in the target's hand. Without the fences both could copy it.
    fence(Ordering::SeqCst);
}

/// Target: the progress of a job. What the target reads afterwards belongs to this job if
/// `claim_piece` succeeds.
#[inline]
pub fn job(state: &AtomicU64) -> JobProgress {
    // Acquire: pairs with the Release in `open_job`.
    let word = state.load(Ordering::Acquire);
    JobProgress { number: (word >> 32) as u32, count: (word >> 16) as u16, front: word as u16 }
}

/// Target: claims piece `n` of the job by storing `own` in `hand`. Returns false if the initiator
/// took the piece or the job has ended; the target then calls `release_piece`.
pub fn claim_piece(hand: &AtomicU64, own: u64, state: &AtomicU64, number: u32, n: u16) -> bool {
    hand.store(own, Ordering::Release);
    // Pairs with the fence in `advance_job`. The target's reads of the job precede this fence, and
    // the initiator writes the next job after its own fence. If the job has not ended at the load
    // below, the values that the target read belong to the job.
    fence(Ordering::SeqCst);
    let now = job(state);
    now.number == number && now.front <= n
}

/// Target: stores `own`, which reports the finished work and an empty hand.
pub fn release_piece(hand: &AtomicU64, own: u64) {
    // Release: pairs with `load_hand`, so the target's accesses precede the owner's reuse of the
    // memory.
    hand.store(own, Ordering::Release);
}

/// Initiator: the piece that the target holds, and the target's finished work.
#[inline]
pub fn load_hand(hand: &AtomicU64) -> u64 {
    hand.load(Ordering::Acquire)
}

/// Takes a free lock; may fail spuriously.
#[inline]
pub fn try_lock(lock: &AtomicU32, own: u32) -> bool {
    // Acquire: pairs with `unlock` and `break_lock`, so the previous holder's changes are visible.
    lock.compare_exchange_weak(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Releases a lock.
#[inline]
pub fn unlock(lock: &AtomicU32) {
    lock.store(0, Ordering::Release);
}

/// Releases the lock of the dead process `dead`. Release orders the next holder after the thread
/// that detected the death.
pub fn break_lock(lock: &AtomicU32, dead: u32) {
    let _ = lock.compare_exchange(dead, 0, Ordering::AcqRel, Ordering::Relaxed);
}
