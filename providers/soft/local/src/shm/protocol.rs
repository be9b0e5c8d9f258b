//! The steps by which processes and threads pass things to each other, each beside the one it pairs with.
//!
//! Only what depends on memory order is here, over plain atomics, so that the models in `providers/soft/loom` run this very
//! code under loom, and again with one kind of order weakened, to see them fail.
#![forbid(unsafe_code)]

use super::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, fence};

/// Producer of a ring: fills a slot; whoever finds its sequence number (`head[0]`, lower half) finds the rest.
#[inline]
pub fn publish(words: &[AtomicU64; 8], head: [u64; 2], body: &[u64]) {
    // Relaxed: the consumer was done with the slot's last lap (`acknowledge` and `acknowledged`), and does not read
    // these words again before it sees the store below.
    for (to, from) in words[2..].iter().zip(body) {
        to.store(*from, Ordering::Relaxed);
    }
    words[1].store(head[1], Ordering::Relaxed);
    show(words, head[0]);
}

/// Producer: shows a slot that was filled but for its first word.
#[inline]
pub fn show(words: &[AtomicU64; 8], first: u64) {
    // Pairs with the Acquire in `is_published` and `head`.
    words[0].store(first, Ordering::Release);
}

/// Consumer of a ring: whether slot `seq` was published. Pairs with `publish`.
#[inline]
pub fn is_published(words: &[AtomicU64; 8], seq: u32) -> bool {
    words[0].load(Ordering::Acquire) as u32 == seq
}

/// Consumer of a ring: the head of slot `seq`, if it was published; its body may be read then.
#[inline]
pub fn head(words: &[AtomicU64; 8], seq: u32) -> Option<[u64; 2]> {
    // Pairs with the Release in `show`, for the Relaxed loads behind it.
    let first = words[0].load(Ordering::Acquire);
    (first as u32 == seq).then(|| [first, words[1].load(Ordering::Relaxed)])
}

/// Consumer of a ring: head and body of slot `seq`, if it was published.
#[inline]
pub fn consume(words: &[AtomicU64; 8], seq: u32) -> Option<([u64; 2], [u64; 6])> {
    let head = head(words, seq)?;
    let mut body = [0; 6];
    for (to, from) in body.iter_mut().zip(&words[2..]) {
        *to = from.load(Ordering::Relaxed);
    }
    Some((head, body))
}

/// Consumer of a ring: all before `next` are done with, their slots and chunks the producer's again.
#[inline]
pub fn acknowledge(acked: &AtomicU32, next: u32) {
    // Pairs with `acknowledged`: our reads of slots and chunks come before the producer's next use of them, and our
    // answers in chunks before its look at them.
    acked.store(next, Ordering::Release);
}

/// How often pollers looked at a ring in vain since its consumer expects a certain slot: an acknowledgement that waited for
/// more is due after so many looks. Both numbers are in one word, so that no order among pollers matters: a count that is for
/// another slot is none.
#[derive(Debug)]
pub struct Quiet(AtomicU64);

impl Default for Quiet {
    fn default() -> Self {
        Self::new()
    }
}

impl Quiet {
    /// No look yet.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// A poller looked and found nothing, when the consumer expected slot `next`. Returns whether it was the last of `most` looks: it
    /// acknowledges.
    #[inline]
    pub fn look(&self, next: u32, most: u32) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        let looks = if (word >> 32) as u32 == next { word as u32 + 1 } else { 1 };
        if looks <= most {
            self.0.store(u64::from(next) << 32 | u64::from(looks), Ordering::Relaxed);
        }
        looks == most
    }

    /// Whether pollers looked for slot `next` as often as that.
    #[inline]
    pub fn lasts(&self, next: u32, most: u32) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        (word >> 32) as u32 == next && word as u32 >= most
    }
}

/// Producer of a ring: how far the consumer got. Pairs with `acknowledge`.
#[inline]
pub fn acknowledged(acked: &AtomicU32) -> u32 {
    acked.load(Ordering::Acquire)
}

/// Sets a bell, and in `summary` the bit of the word that it is in.
pub fn ring_bell(bells: &AtomicU64, bell: usize, summary: &AtomicU64, word: usize) {
    // Release, in this order: whoever takes the summary's bit finds the bell, and whoever takes the bell finds the slot that it
    // rang for. Both pair with the swap in `take_bits`.
    bells.fetch_or(1 << bell, Ordering::AcqRel);
    summary.fetch_or(1 << word, Ordering::AcqRel);
}

/// Clears `word` and calls `f` with the number of each bit that was set.
#[inline]
pub fn take_bits(word: &AtomicU64, mut f: impl FnMut(usize)) {
    // Relaxed: nothing follows from a bit seen here, and one not seen yet is seen by the next look. In a word under a
    // summary it is seen, since taking the summary's bit ordered us after the bell.
    if word.load(Ordering::Relaxed) == 0 {
        return;
    }
    // Pairs with `ring_bell`; a bell that rings again after this finds the word clear and sets it anew.
    let mut bits = word.swap(0, Ordering::AcqRel);
    while bits != 0 {
        f(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// Producer of a ring, after `publish`: rings the bell if nobody looks at the ring by himself, and wakes its owner if `bit` of
/// its attention asks for it. `barrier` is half of a full barrier, the other half of which is the owner's: see `cool`
/// and [`Alert::raise`].
#[inline]
pub fn tell(
    hot: &AtomicU32,
    attention: &AtomicU32,
    bit: u32,
    barrier: impl Fn(),
    bell: impl FnOnce(),
    wake: impl FnOnce(),
) {
    // Slots before the loads: we see that the ring is cold or attention up, or who made it so sees the slots.
    barrier();
    // With attention up the bell tells whoever wakes where to look.
    if attention.load(Ordering::Relaxed) & bit != 0 {
        bell();
        wake();
    } else if hot.load(Ordering::Relaxed) == 0 {
        bell();
        // And the bell before the next load: nobody finds a cold ring without it. An AcqRel bell alone may be
        // seen after that load.
        barrier();
        if attention.load(Ordering::Relaxed) & bit != 0 {
            wake();
        }
    }
}

/// As `tell`, of what nobody looks for by a bell of its own: `wake` follows if `bit` of the owner's attention asks for it. The caller
/// has passed the barrier.
#[inline]
pub fn tell_attentive(attention: &AtomicU32, bit: u32, wake: impl FnOnce()) {
    // Relaxed: ordered after what was published by the barrier before, against the store in `Alert::raise`.
    if attention.load(Ordering::Relaxed) & bit != 0 {
        wake();
    }
}

/// After a bell: wakes one of those who sleep on the alarm, or else calls `kick`, which wakes the service thread. `wake` is the
/// system call; it says whether anybody slept.
pub fn wake_one(
    sleepers: &AtomicU32,
    alarm: &AtomicU32,
    wake: impl FnOnce() -> bool,
    kick: impl FnOnce(),
) {
    // Relaxed: a hint. Nobody there: the service thread is always woken for it. Somebody there: only the kernel says so.
    if sleepers.load(Ordering::Relaxed) > 0 {
        // Pairs with the Acquire in `prepare_sleep`: whoever does not fall asleep because of this finds the bell.
        alarm.fetch_add(1, Ordering::Release);
        if wake() {
            return;
        }
    }
    kick();
}

/// What to fall asleep with, before the last look: an alarm that goes off after this lets nobody sleep.
pub fn prepare_sleep(alarm: &AtomicU32) -> u32 {
    alarm.load(Ordering::Acquire)
}

/// Owner of a ring: has its producer ring the bell from now on. The caller looks at the ring afterwards: what was put
/// there by a producer that still saw it hot is visible by then.
pub fn cool(hot: &AtomicU32, barrier: impl FnOnce()) {
    hot.store(0, Ordering::Relaxed);
    // The store before the caller's look; pairs with the barrier in `tell`.
    barrier();
}

/// Whether everybody who publishes must wake this process.
#[derive(Debug)]
pub struct Alert {
    /// Those who wait for an event.
    armed: AtomicUsize,
    /// Attention is up *and* the barrier after raising it is complete.
    complete: AtomicBool,
    /// How often it was raised.
    raises: AtomicU32,
    /// Held to change `complete` and the shared word together.
    change: Mutex<()>,
}

impl Default for Alert {
    fn default() -> Self {
        Self::new()
    }
}

impl Alert {
    /// Attention is up from the start: nobody publishes to a process that has not said where it is.
    pub fn new() -> Self {
        Self {
            armed: AtomicUsize::new(0),
            complete: AtomicBool::new(true),
            raises: AtomicU32::new(1),
            change: Mutex::new(()),
        }
    }

    /// One more waits for an event; attention is not lowered meanwhile.
    pub fn arm(&self) {
        // Relaxed: ordered before the look at `complete` by the fence in `raise`.
        self.armed.fetch_add(1, Ordering::Relaxed);
    }

    /// One less does.
    pub fn disarm(&self) {
        // Relaxed: who lowers attention a moment too late or early for this harms nobody.
        self.armed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether nobody waits: a hint.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.armed.load(Ordering::Relaxed) == 0
    }

    /// Raises `word` to `to`. The caller looks at the rings afterwards: a publisher sees attention up, or the caller sees what it
    /// published. That needs the barrier, even where somebody else raised the word and is yet to pass it. Returns whether it was down.
    pub fn raise(&self, word: &AtomicU32, to: u32, barrier: impl FnOnce()) -> bool {
        // Pairs with the fence in `lower`: we find attention about to go down, or it finds us armed.
        fence(Ordering::SeqCst);
        // Pairs with the Release below: the barrier was passed before we look at the rings.
        if self.complete.load(Ordering::Acquire) {
            return false;
        }
        let _changing = self.change.lock();
        // Relaxed: written under the lock only.
        if !self.complete.load(Ordering::Relaxed) {
            word.store(to, Ordering::Relaxed);
            // The store before the looks of all who wait for `complete`; pairs with the barrier before `tell_attentive`.
            barrier();
            // Pairs with the Acquire in `raised`, as the line below: whoever finds the number has the barrier behind him.
            self.raises.fetch_add(1, Ordering::Release);
            self.complete.store(true, Ordering::Release);
            return true;
        }
        false
    }

    /// Which raise it is that attention is up since, and that everybody who publishes knows of; `None`: it is down. Whoever looks at
    /// all rings after this, and finds the same number later, has missed nothing that no bell rang for.
    pub fn raised(&self) -> Option<u32> {
        // Both pair with the Release stores in `raise`: the barrier was passed.
        self.complete.load(Ordering::Acquire).then(|| self.raises.load(Ordering::Acquire))
    }

    /// Lowers `word` unless somebody waits for an event; returns whether it did.
    pub fn lower(&self, word: &AtomicU32) -> bool {
        let _changing = self.change.lock();
        self.complete.store(false, Ordering::Relaxed);
        // Pairs with the fence in `raise`.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) > 0 {
            // Nothing was lowered, so what the barrier ordered still holds.
            self.complete.store(true, Ordering::Release);
            return false;
        }
        // Relaxed: whoever sees it late wakes us for nothing.
        word.store(0, Ordering::Relaxed);
        true
    }
}

/// Initiator of a one-sided operation: announces it in `cell` if that is free. The look at the key comes after.
#[inline]
pub fn announce(cell: &AtomicU64, word: u64) -> bool {
    // SeqCst against `revoke`: this before `key`, as `revoke` before `is_announced`, in one order of all four.
    cell.load(Ordering::Relaxed) == 0
        && cell.compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Initiator: the operation is over.
#[inline]
pub fn withdraw(cell: &AtomicU64) {
    // Pairs with `is_announced`: our accesses come before whatever becomes of the memory.
    cell.store(0, Ordering::Release);
}

/// Owner of a region, after `revoke`: whether the operation is under way. If not, it is over, or will find the key gone.
pub fn is_announced(cell: &AtomicU64, word: u64) -> bool {
    // SeqCst against `announce`, and therefore an Acquire of `withdraw`, also through later announcements (read-modify-writes).
    cell.load(Ordering::SeqCst) == word
}

/// Owner of a region: what the entry says counts from now on.
pub fn validate(key: &AtomicU64, value: u64) {
    // Pairs with `key`: who sees the key sees the Relaxed stores before it. The fields of the next region
    // come after the wait for all who announced this one, so whoever is announced and saw the key sees no later ones.
    key.store(value, Ordering::Release);
}

/// Owner of a region: takes the key back, before a look at announcements.
pub fn revoke(key: &AtomicU64) {
    key.store(0, Ordering::SeqCst);
}

/// The key of an entry, before the other fields are read. SeqCst for the sake of `announce`; no dearer than Acquire.
#[inline]
pub fn key(key: &AtomicU64) -> u64 {
    key.load(Ordering::SeqCst)
}

/// How a job stands: its number, pieces that it has, and pieces that its initiator took, from the first on. Written by the initiator
/// only; the target says in a word of its own what it has in hand. So neither can be made to believe anything by a third, and no order
/// of them is left to chance: each first writes what it takes, then looks at what the other has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobProgress {
    /// Number of the operation.
    pub number: u32,
    /// Pieces that it has.
    pub count: u16,
    /// Pieces that its initiator took, from the first on.
    pub front: u16,
}

impl JobProgress {
    const fn word(self) -> u64 {
        (self.number as u64) << 32 | (self.count as u64) << 16 | self.front as u64
    }
}

/// Initiator: what was written of the job may be read, and its pieces taken. The one before is over, and nobody has a piece of it in hand.
pub fn open_job(state: &AtomicU64, now: JobProgress) {
    // Pairs with `job`.
    state.store(now.word(), Ordering::Release);
}

/// Initiator: takes the pieces before `front`; all of them, and nobody takes one from now on. A look at the target's hand comes after.
pub fn advance_job(state: &AtomicU64, now: JobProgress) {
    state.store(now.word(), Ordering::Release);
    // Pairs with the fence in `grasp`: the target finds the piece taken, or we find it in its hand.
    fence(Ordering::SeqCst);
}

/// Target: how a job stands; what is read of it after this is of this job if `grasp` succeeds.
#[inline]
pub fn job(state: &AtomicU64) -> JobProgress {
    // Pairs with `open_job`.
    let word = state.load(Ordering::Acquire);
    JobProgress { number: (word >> 32) as u32, count: (word >> 16) as u16, front: word as u16 }
}

/// Target: takes piece `n` of the job in `hand`, by the word `own`; `false`: it is the initiator's, or the job is over, and the hand is to
/// be opened (`open_hand`).
pub fn grasp(hand: &AtomicU64, own: u64, state: &AtomicU64, number: u32, n: u16) -> bool {
    hand.store(own, Ordering::Release);
    // Pairs with the fence in `advance_job`. Our reads of the job come before it, and what the initiator writes of the next job after its
    // own: if the job is not over here, what was read is of it.
    fence(Ordering::SeqCst);
    let now = job(state);
    now.number == number && now.front <= n
}

/// Target: `own` says what was done; nothing is in hand.
pub fn open_hand(hand: &AtomicU64, own: u64) {
    // Pairs with `look_at_hand`: our accesses come before whatever becomes of the memory.
    hand.store(own, Ordering::Release);
}

/// Initiator: what the target has in hand, and did.
#[inline]
pub fn look_at_hand(hand: &AtomicU64) -> u64 {
    hand.load(Ordering::Acquire)
}

/// Takes a free lock.
#[inline]
pub fn try_lock(lock: &AtomicU32, own: u32) -> bool {
    // Acquire: pairs with `unlock` and with `break_lock`, so the last holder's changes are seen.
    lock.compare_exchange_weak(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Gives a lock back.
#[inline]
pub fn unlock(lock: &AtomicU32) {
    lock.store(0, Ordering::Release);
}

/// Frees a lock that `dead` holds. Release, so that who takes it next is ordered after whoever found the holder dead.
pub fn break_lock(lock: &AtomicU32, dead: u32) {
    let _ = lock.compare_exchange(dead, 0, Ordering::AcqRel, Ordering::Relaxed);
}
