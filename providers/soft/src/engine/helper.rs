//! The target's side of long operations that two processes do (`helping`): a thread that takes pieces of them while it has a processor
//! for itself.

use super::access::{Direction, admit};
use super::objects::adapter::Adapter;
use super::objects::helping::{LEAVING, RESTING};
use super::regions::{IMPORTED, REMOTE_READ, REMOTE_WRITE};
use super::request::RemoteAddress;
use soft_local::fabric::Peer;
use soft_local::shm::layout::{JOB_PIECES, Job, Life, split_qpn};
use soft_local::shm::protocol;
use soft_local::shm::view::View;
use soft_memory::Range;
use soft_memory::cma::IoVec;
use soft_sys::thread::yield_to_others;
use soft_sys::{clock, futex};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a helper looks for more work: what it costs to be called again.
const LOOK: Duration = Duration::from_micros(50);
const LOOKS: u32 = 500;
/// After so long a helper looks whether it had a processor for itself: it must have run for most of the time.
const CHECK: Duration = Duration::from_millis(10);
/// How long it rests if not, the first time and at most.
const REST: Duration = Duration::from_millis(500);
const REST_MOST: Duration = Duration::from_secs(10);

/// The helper's thread: sleeps until somebody calls, until the process leaves.
pub(super) fn help_all(adapter: &Adapter) {
    yield_to_others();
    let wanted = &adapter.view.rings_head().help_wanted.0;
    let mut leisure = Leisure::default();
    // Anybody may write the word: it says where to look, and no more.
    while !adapter.helping.is_leaving() {
        let who = wanted.load(Ordering::Acquire);
        match who {
            0 => drop(futex::wait(wanted, 0)),
            // Said by `stop`, which makes us leave, or by anybody.
            LEAVING => {
                let _ = wanted.compare_exchange(LEAVING, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
            // Callers see it and go on alone. Until the time is over, or `stop` wakes us.
            RESTING => {
                std::thread::park_timeout(leisure.rest);
                let _ = wanted.compare_exchange(RESTING, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
            _ => {
                let over = || wanted.load(Ordering::Relaxed) != who || adapter.helping.is_leaving();
                let next = match help(adapter, (who - 1) as u16, &mut leisure, over) {
                    Left::Work => continue,
                    Left::Nothing => 0,
                    Left::OtherWork => RESTING,
                };
                // Who called meanwhile found us here, and goes on alone. LEAVING stays.
                let _ = wanted.compare_exchange(who, next, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

/// What a helper leaves.
enum Left {
    /// There may be more: it only had a look at the clock.
    Work,
    Nothing,
    /// What others have for this processor.
    OtherWork,
}

/// Takes pieces of process `slot` for a while, until there were none for a moment, or it is `over`.
fn help(adapter: &Adapter, slot: u16, leisure: &mut Leisure, over: impl Fn() -> bool) -> Left {
    let Some(peer) = adapter.fabric.known_peer(slot).filter(|peer| peer.can_attach()) else {
        return Left::Nothing;
    };
    // SAFETY: fabric segments have the lengths of shm::layout, and live as long as the Arc.
    let view = unsafe { View::of(&peer) };
    let mut hand = Hand::new(adapter.view, view, slot);
    let begun = Begun::now();
    let (mut last, mut looks, mut left) = (begun.0, 0, Left::Work);
    while begun.0.elapsed() < CHECK {
        if let Some((asked, n)) = hand.take(adapter.fabric.slot()) {
            hand.put_down(asked.fulfil(adapter, &peer, &view, n).is_some());
            (last, looks) = (Instant::now(), 0);
            continue;
        }
        looks += 1;
        // A processor that was away in between has not looked.
        if looks > LOOKS && last.elapsed() > LOOK || over() || peer.is_dead() {
            left = Left::Nothing;
            break;
        }
        std::hint::spin_loop();
    }
    if leisure.lasts(begun.since()) { left } else { Left::OtherWork }
}

/// Whether the helper has a processor for itself. Where it has not, its work is at the cost of the application.
#[derive(Debug, Default)]
struct Leisure {
    /// Of this trial: time that the helper was at it, and time that it ran.
    took: Duration,
    ran: Duration,
    /// How long to rest after this one.
    rest: Duration,
}

/// When something was begun, and the thread's time by then.
struct Begun(Instant, u64);

impl Begun {
    fn now() -> Self {
        Self(Instant::now(), clock::thread_ns())
    }

    /// How long ago that is, and how much of it this thread ran.
    fn since(&self) -> (Duration, Duration) {
        (self.0.elapsed(), Duration::from_nanos(clock::thread_ns().saturating_sub(self.1)))
    }
}

impl Leisure {
    /// The helper was at it for some time, of which it `ran` some. `false`: that was not its processor alone, and there is a rest now.
    fn lasts(&mut self, (took, ran): (Duration, Duration)) -> bool {
        self.took += took;
        self.ran += ran;
        if self.took < CHECK {
            return true;
        }
        let lasts = self.ran >= self.took * 3 / 4;
        self.rest = if lasts { self.rest / 2 } else { (self.rest * 2).clamp(REST, REST_MOST) };
        (self.took, self.ran) = Default::default();
        lasts
    }
}

/// What a helper has of the job of another process, and says of it in its own tables: the job's number (32 bits), the process slot (12),
/// whether a piece is in hand (1), and the first piece that it took, from the last one down (16).
#[derive(Debug)]
pub(super) struct Hand {
    own: View,
    initiator: View,
    slot: u16,
    number: u32,
    /// All pieces from here on are done, or in hand.
    back: u16,
}

/// What a word of [`Hand`] says of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) back: u16,
    pub(super) is_busy: bool,
}

const BUSY: u64 = 1 << 16;

const fn hand_word(number: u32, slot: u16, held: Held) -> u64 {
    let busy = if held.is_busy { BUSY } else { 0 };
    (number as u64) << 32 | (slot as u64 & 0xfff) << 20 | busy | held.back as u64
}

/// What the owner of `target` has of job `number` of process `slot`; `None`: nothing, and it takes nothing.
pub(super) fn held(target: &View, slot: u16, number: u32) -> Option<Held> {
    let word = protocol::load_hand(&target.tables_head().hand.0);
    let held = Held { back: word as u16, is_busy: word & BUSY != 0 };
    (word == hand_word(number, slot, held)).then_some(held)
}

impl Hand {
    pub(super) const fn new(own: View, initiator: View, slot: u16) -> Self {
        Self { own, initiator, slot, number: 0, back: 0 }
    }

    fn say(&self, back: u16, is_busy: bool) -> u64 {
        hand_word(self.number, self.slot, Held { back, is_busy })
    }

    /// Takes the last piece that is left, if there is one that is for us, in slot `own_slot`.
    pub(super) fn take(&mut self, own_slot: u16) -> Option<(Asked, u16)> {
        let job = self.initiator.job();
        let now = protocol::job(&job.state);
        if now.number != self.number {
            (self.number, self.back) = (now.number, now.count.min(JOB_PIECES as u16));
        }
        let n = self.back.checked_sub(1).filter(|n| *n >= now.front)?;
        let asked = Asked::of(job);
        if asked.target != u32::from(own_slot) {
            return None;
        }
        let hand = &self.own.tables_head().hand.0;
        if !protocol::claim_piece(hand, self.say(n, true), &job.state, self.number, n) {
            protocol::release_piece(hand, self.say(self.back, false));
            return None;
        }
        self.back = n;
        Some((asked, n))
    }

    /// The piece is done, or not; then this is none of our jobs.
    pub(super) fn put_down(&mut self, is_done: bool) {
        let back = if is_done { self.back } else { self.back + 1 };
        protocol::release_piece(&self.own.tables_head().hand.0, self.say(back, false));
        if !is_done {
            self.back = 0;
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        protocol::release_piece(&self.own.tables_head().hand.0, 0);
    }
}

/// What an initiator asks for.
#[derive(Debug)]
pub(super) struct Asked {
    target: u32,
    qpn: u32,
    remote: RemoteAddress,
    len: u64,
    piece: u64,
    way: Direction,
}

impl Asked {
    /// In its own words: they count for its own memory, and for ours what it may by the rights of its connection.
    fn of(job: &Job) -> Self {
        // Relaxed: of this job, if a piece of it is taken after this.
        Self {
            target: job.target.load(Ordering::Relaxed),
            qpn: job.qpn.load(Ordering::Relaxed),
            remote: RemoteAddress {
                addr: job.addr.load(Ordering::Relaxed),
                rkey: job.rkey.load(Ordering::Relaxed),
            },
            len: job.len.load(Ordering::Relaxed),
            piece: job.piece.load(Ordering::Relaxed),
            way: if job.is_read.load(Ordering::Relaxed) == 1 {
                Direction::Read
            } else {
                Direction::Write
            },
        }
    }

    /// Does piece `n`, if all of it is what the initiator may do; `None`: it is not, or cannot be done.
    pub(super) fn fulfil(&self, adapter: &Adapter, peer: &Peer, view: &View, n: u16) -> Option<()> {
        let offset = u64::from(n).checked_mul(self.piece)?;
        let len = self.len.checked_sub(offset)?.min(self.piece) as usize;
        let (slot, index) = split_qpn(self.qpn);
        if slot != adapter.fabric.slot() {
            return None;
        }
        // The rights are those of the QP's peer, and of nobody else.
        let life = Life::unpack(adapter.view.qp(index).life.load(Ordering::Acquire));
        if split_qpn(life.dest_qpn).0 != peer.slot || !life.serves(life.dest_qpn) {
            return None;
        }
        let memory = peer.memory()?;
        let need = if self.way == Direction::Write { REMOTE_WRITE } else { REMOTE_READ };
        // As the initiator is, announced before the key is looked at.
        let _in_flight = adapter.in_flight.announce(slot, self.remote.rkey);
        let rights = adapter.view.qp(index).rights.load(Ordering::Relaxed);
        let found = admit(&adapter.view, self.qpn, rights, self.remote, self.len, need).ok()?;
        if found.access & IMPORTED != 0 {
            return None;
        }
        // SAFETY: registered memory of the application, which the initiator may read or write, and the announcement holds off its
        // deregistration. That it is still mapped is left to the kernel to find out.
        let here = [unsafe { Range::at(found.va + offset, len) }];
        let there = std::ptr::from_ref(view.job().parts.get(usize::from(n))?).cast::<[IoVec; 2]>();
        // SAFETY: `there` is in the initiator's tables, mapped as long as the peer is known; it says where the initiator's own memory is, as
        // long as that is to be touched.
        let moved = unsafe {
            match self.way {
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
    fn a_helper_rests_where_others_have_work() {
        let mut leisure = Leisure::default();
        assert!(leisure.lasts((CHECK / 2, Duration::ZERO)), "too short to tell");
        assert!(!leisure.lasts((CHECK / 2, CHECK / 2)), "it ran for half of the time");
        assert_eq!(leisure.rest, REST);
        assert!(!leisure.lasts((CHECK, CHECK * 7 / 10)));
        assert_eq!(leisure.rest, 2 * REST);
        assert!(leisure.lasts((CHECK, CHECK * 8 / 10)), "somebody looked in");
        assert_eq!(leisure.rest, REST);
        for _ in 0..20 {
            assert!(!leisure.lasts((CHECK, Duration::ZERO)));
        }
        assert_eq!(leisure.rest, REST_MOST);
    }
}
