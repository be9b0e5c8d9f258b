//! A completion queue's ring of entries and its arming (ibv_poll_cq(3), ibv_req_notify_cq(3)).

use crate::storage::filled;
use crate::{Clock, Time};
use abi::*;
use std::time::Duration;

/// One completion, as all ways of polling need it: what every completion has. Forty bytes, since each is copied twice.
///
/// There is no SLID: the port is an Ethernet port, and `slid` reads as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// The application's name for the request.
    pub wr_id: u64,
    /// `ibv_wc_status`.
    pub status: u32,
    /// `ibv_wc_opcode`.
    pub opcode: u32,
    /// Bytes of the message.
    pub byte_len: u32,
    /// `IBV_WC_WITH_IMM`: immediate data as the sender gave it (network order). `IBV_WC_WITH_INV`: the rkey that was invalidated.
    pub imm: u32,
    /// The QP that it is of.
    pub qp_num: u32,
    /// UD, and what an XRC shared receive queue received: the sender's QP number.
    pub src_qp: u32,
    /// `ibv_wc_flags`.
    pub wc_flags: u32,
    /// Service level that the message came with.
    pub sl: u8,
    /// On Ethernet, 0.
    pub dlid_path_bits: u8,
    /// Of a failed completion: which check failed, where `status` leaves that open.
    pub vendor_err: u8,
}
const _: () = assert!(size_of::<Cqe>() == 40);

/// `vendor_err` of a failed completion: who found it.
pub mod found_by {
    /// This QP, by its own lists, keys and rights.
    pub const OWN: u8 = 1;
    /// The remote QP, which refused the request.
    pub const REMOTE: u8 = 2;
    /// Nobody: there was no answer in time.
    pub const TIME: u8 = 3;
    /// The end of the remote process.
    pub const DEATH: u8 = 4;
    /// An earlier failure: the request was flushed.
    pub const FLUSH: u8 = 5;
}

/// The usual `vendor_err` of a completion with this status.
#[inline]
pub const fn vendor_err(status: u32) -> u8 {
    match status {
        IBV_WC_SUCCESS => 0,
        IBV_WC_WR_FLUSH_ERR => found_by::FLUSH,
        IBV_WC_RETRY_EXC_ERR => found_by::TIME,
        IBV_WC_REM_INV_REQ_ERR
        | IBV_WC_REM_ACCESS_ERR
        | IBV_WC_REM_OP_ERR
        | IBV_WC_RNR_RETRY_EXC_ERR
        | IBV_WC_REM_INV_RD_REQ_ERR => found_by::REMOTE,
        _ => found_by::OWN,
    }
}

/// What few completions have. A queue keeps it only if it was created to read it (`Reads::any`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rare {
    /// Tag matching: what ibv_wc_read_tm_info(3) gives.
    pub tag: u64,
    /// As `tag`.
    pub tag_priv: u32,
    /// The flow that matched a packet says it.
    pub flow_tag: u32,
    /// VLAN tag taken off a packet (16 bits: priority, DEI, number).
    pub cvlan: u16,
}

/// A [`Rare`] with what the queue adds itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamped {
    /// What the queue was given.
    pub rare: Rare,
    /// Device clock in nanoseconds, if [`Reads`] asks for it.
    pub device_ns: u64,
    /// Nanoseconds since the epoch, if [`Reads`] asks for them.
    pub wallclock_ns: u64,
}

/// What the readers of a queue ask for beyond [`Cqe`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// [`Rare`].
    pub rare: bool,
    /// When it came, by the device's clock.
    pub device_clock: bool,
    /// When it came, by the wall's.
    pub wallclock: bool,
}

impl Reads {
    const fn any(self) -> bool {
        self.rare || self.device_clock || self.wallclock
    }
}

/// What the next event waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Nothing.
    No,
    /// A solicited completion or an error.
    Solicited,
    /// Any completion.
    Any,
}

/// What became of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It is queued, and nobody waits for it.
    Quiet,
    /// The queue was armed and is no longer: send an event.
    Event,
    /// The queue is armed, and moderation holds its event back until time is up or more completions came.
    Later,
    /// The queue is full; the completion is lost and the queue is in error.
    Overrun,
}

/// When an armed queue's event comes (ibv_modify_cq(3)): after `count` completions, or `period_us` after the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions.
    pub count: u16,
    /// Microseconds.
    pub period_us: u16,
}

impl Moderation {
    /// Either number being 0 turns it off, and one completion is no crowd.
    const fn is_on(self) -> bool {
        self.count > 1 && self.period_us > 0
    }
}

/// The completions that nobody has polled yet, and what the next event waits for.
#[derive(Debug)]
pub struct CompletionRing {
    entries: Box<[Cqe]>,
    /// Completions that it takes: what `entries` has room for, none after an overrun, and none without a closer look while
    /// one is planned.
    limit: usize,
    /// At which completion from now on, the next one being 1, the ring is to overrun whatever it has room for.
    planned: Option<u64>,
    /// A full ring loses its oldest completion and goes on (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    overwrites: bool,
    moderation: Moderation,
    /// Completions that moderation holds an event back for, and until when.
    held: u16,
    due: Option<Time>,
    /// One for each entry if somebody reads them, else none.
    stamped: Box<[Stamped]>,
    reads: Reads,
    /// Where the oldest completion is, and how many there are.
    first: usize,
    len: usize,
    /// Completions ever taken out: the position of the oldest one.
    popped: u64,
    armed: Armed,
    /// The position of the completion that an event was sent for which nobody has got yet.
    told: Option<u64>,
    /// Where the queue was (`positions`) when it reminded last.
    reminded: Option<(u64, u64)>,
}

impl CompletionRing {
    /// Room for `capacity` completions; `overwrites` as ibv_create_cq_ex(3) has it (IGNORE_OVERRUN). `None`: there is no memory.
    pub fn new(capacity: usize, reads: Reads, overwrites: bool) -> Option<Self> {
        let stamped = if reads.any() { capacity } else { 0 };
        Some(Self {
            entries: filled(Cqe::default(), capacity)?,
            limit: capacity,
            planned: None,
            overwrites,
            moderation: Moderation::default(),
            held: 0,
            due: None,
            stamped: filled(Stamped::default(), stamped)?,
            reads,
            first: 0,
            len: 0,
            popped: 0,
            armed: Armed::No,
            told: None,
            reminded: None,
        })
    }

    /// Completions in it.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether everything was polled.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The position of the oldest completion, and the one that the next completion gets: it is polled once the former is beyond.
    #[inline]
    pub const fn positions(&self) -> (u64, u64) {
        (self.popped, self.popped + self.len as u64)
    }

    /// Where the completion `n` places behind the oldest one is; `n` is at most the capacity.
    #[inline]
    fn place(&self, n: usize) -> usize {
        let at = self.first + n;
        if at >= self.entries.len() { at - self.entries.len() } else { at }
    }

    /// Adds a completion. Errors count as solicited (ibv_req_notify_cq(3)). `clock` is asked only if the completion is stamped, or its
    /// event held back.
    #[inline]
    pub fn push(
        &mut self,
        cqe: &Cqe,
        rare: Option<&Rare>,
        solicited: bool,
        clock: &impl Clock,
    ) -> Pushed {
        if self.len >= self.limit && !self.make_room() {
            return Pushed::Overrun;
        }
        let at = self.place(self.len);
        self.entries[at] = *cqe;
        if !self.stamped.is_empty() {
            self.stamp(at, rare, clock);
        }
        self.len += 1;
        let wanted = match self.armed {
            Armed::No => return Pushed::Quiet,
            Armed::Any => true,
            Armed::Solicited => solicited || cqe.status != 0,
        };
        if !wanted {
            return Pushed::Quiet;
        }
        if self.moderation.is_on() {
            return self.moderate(clock);
        }
        self.armed = Armed::No;
        self.told = Some(self.popped + self.len as u64 - 1);
        Pushed::Event
    }

    /// Plans an overrun at completion `nth` from now on, the next one being 1; `None`: none.
    pub fn plan_overrun(&mut self, nth: Option<u64>) {
        let broken = self.limit == 0 && self.planned.is_none();
        if !broken {
            self.planned = nth.filter(|n| *n > 0);
            self.limit = if self.planned.is_some() { 0 } else { self.entries.len() };
        }
    }

    /// The ring is full. Returns whether there is room now; if not, it takes nothing any more.
    #[cold]
    fn make_room(&mut self) -> bool {
        if let Some(left) = &mut self.planned {
            *left -= 1;
            if *left > 0 && self.len < self.entries.len() {
                return true;
            }
            self.planned = None;
            if self.overwrites {
                // It loses one, as if it were full, and goes on.
                self.limit = self.entries.len();
                return self.len == 0 || self.pop().is_some();
            }
        }
        if self.overwrites {
            return self.pop().is_some();
        }
        self.limit = 0;
        false
    }

    #[cold]
    fn moderate(&mut self, clock: &impl Clock) -> Pushed {
        self.held += 1;
        if self.held >= self.moderation.count {
            self.disarm();
            return Pushed::Event;
        }
        if self.due.is_some() {
            return Pushed::Quiet;
        }
        let period = Duration::from_micros(u64::from(self.moderation.period_us));
        self.due = Some(clock.now().after(period));
        Pushed::Later
    }

    /// Waits for no event any more.
    pub fn disarm(&mut self) {
        self.armed = Armed::No;
        self.held = 0;
        self.due = None;
    }

    /// When an event that is held back is due.
    pub const fn due(&self) -> Option<Time> {
        self.due
    }

    /// Whether an event that was held back is due by `now`: send it.
    pub fn release(&mut self, now: Time) -> bool {
        let due = self.due.is_some_and(|due| due <= now);
        if due {
            self.disarm();
        }
        due
    }

    /// Changes the moderation; an event held back is due at once, so that none is lost by it.
    pub fn set_moderation(&mut self, moderation: Moderation) {
        self.moderation = moderation;
        // The beginning of time is over.
        self.due = self.due.map(|_| Time::default());
    }

    #[cold]
    fn stamp(&mut self, at: usize, rare: Option<&Rare>, clock: &impl Clock) {
        self.stamped[at] = Stamped {
            rare: rare.copied().unwrap_or_default(),
            device_ns: if self.reads.device_clock { clock.device_ns() } else { 0 },
            wallclock_ns: if self.reads.wallclock { clock.wallclock_ns() } else { 0 },
        };
    }

    /// Takes the oldest completion out.
    #[inline]
    pub fn pop(&mut self) -> Option<Cqe> {
        if self.is_empty() {
            return None;
        }
        let cqe = self.entries[self.first];
        self.first = self.place(1);
        self.len -= 1;
        self.popped += 1;
        Some(cqe)
    }

    /// Up to `n` of the oldest completions, as many as lie beside each other.
    #[inline]
    pub fn oldest(&self, n: usize) -> &[Cqe] {
        let len = self.len.min(n).min(self.entries.len() - self.first);
        self.entries.get(self.first..self.first + len).unwrap_or_default()
    }

    /// Takes `n` completions out, no more than `oldest` gave.
    #[inline]
    pub fn drop_oldest(&mut self, n: usize) {
        let n = n.min(self.len);
        self.first = self.place(n);
        self.len -= n;
        self.popped += n as u64;
    }

    /// As `pop`, with everything that the queue's readers asked for.
    pub fn pop_stamped(&mut self) -> Option<(Cqe, Stamped)> {
        let stamped = self.stamped.get(self.first).copied().unwrap_or_default();
        Some((self.pop()?, stamped))
    }

    /// As `pop_stamped`, but once not what an event was sent for that nobody has got yet: it will be looked for when that comes.
    pub fn pop_untold(&mut self) -> Option<(Cqe, Stamped)> {
        if self.told == Some(self.popped) {
            self.told = None;
            return None;
        }
        self.pop_stamped()
    }

    /// Somebody got an event of the queue.
    pub const fn event_taken(&mut self) {
        self.told = None;
    }

    /// Arms the queue; `Any` is stronger than `Solicited` and is kept. Returns whether it was not armed before.
    pub fn arm(&mut self, how: Armed) -> bool {
        let fresh = self.armed == Armed::No;
        if self.armed != Armed::Any {
            self.armed = how;
        }
        fresh
    }

    /// Whether an event waits for a completion.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.armed != Armed::No
    }

    /// Whether the queue is armed for any completion and holds some: send the event. Once for the same ones, since an application that
    /// lets them lie shall sleep in the end.
    pub fn remind(&mut self) -> bool {
        let now = self.positions();
        let reminds = self.armed == Armed::Any
            && self.len > 0
            && !self.moderation.is_on()
            && self.reminded != Some(now);
        if reminds {
            self.disarm();
            self.told = Some(self.popped);
            self.reminded = Some(now);
        }
        reminds
    }

    /// Changes the capacity, keeping what is queued; `Some(false)` when that does not fit, `None` when there is no memory.
    pub fn resize(&mut self, capacity: usize) -> Option<bool> {
        if self.len > capacity || capacity == 0 {
            return Some(false);
        }
        let mut larger = Self {
            limit: if self.limit == 0 { 0 } else { capacity },
            planned: self.planned,
            armed: self.armed,
            moderation: self.moderation,
            held: self.held,
            due: self.due,
            popped: self.popped,
            told: self.told,
            reminded: self.reminded,
            ..Self::new(capacity, self.reads, self.overwrites)?
        };
        while let Some((cqe, stamped)) = self.pop_stamped() {
            larger.append(&cqe, &stamped);
        }
        *self = larger;
        Some(true)
    }

    /// Drops the completions of a QP that is destroyed or reset, or those of its send side, keeping the order of the rest.
    pub fn forget(&mut self, qp_num: u32, sends_only: bool) {
        let before = self.positions();
        for _ in 0..self.len {
            if let Some((cqe, stamped)) = self.pop_stamped()
                && (cqe.qp_num != qp_num || sends_only && cqe.opcode & IBV_WC_RECV != 0)
            {
                self.append(&cqe, &stamped);
            }
        }
        // As if what was dropped had been polled.
        self.popped = before.1 - self.len as u64;
    }

    /// Puts back what was taken out; there is room for it.
    fn append(&mut self, cqe: &Cqe, stamped: &Stamped) {
        let at = self.place(self.len);
        self.entries[at] = *cqe;
        if let Some(place) = self.stamped.get_mut(at) {
            *place = *stamped;
        }
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that stands still.
    struct Still {
        now: Time,
        device_ns: u64,
        wallclock_ns: u64,
    }

    impl Clock for Still {
        fn now(&self) -> Time {
            self.now
        }

        fn device_ns(&self) -> u64 {
            self.device_ns
        }

        fn wallclock_ns(&self) -> u64 {
            self.wallclock_ns
        }
    }

    const AT_START: Still = Still { now: Time::from_ns(5000), device_ns: 7, wallclock_ns: 9 };

    fn cqe(wr_id: u64) -> Cqe {
        Cqe { wr_id, qp_num: wr_id as u32 % 2, ..Cqe::default() }
    }

    #[test]
    fn an_armed_queue_gives_one_event() {
        let mut ring = CompletionRing::new(8, Reads::default(), false).expect("memory");
        assert_eq!(ring.push(&cqe(0), None, true, &AT_START), Pushed::Quiet);
        assert!(ring.arm(Armed::Any));
        assert_eq!(ring.push(&cqe(1), None, false, &AT_START), Pushed::Event);
        assert_eq!(ring.push(&cqe(2), None, true, &AT_START), Pushed::Quiet);
    }

    #[test]
    fn who_sleeps_on_an_armed_queue_that_holds_completions_is_told_once() {
        let mut ring = CompletionRing::new(8, Reads::default(), false).expect("memory");
        ring.arm(Armed::Any);
        assert!(!ring.remind(), "empty");
        ring.disarm();
        ring.push(&cqe(0), None, true, &AT_START);
        assert!(!ring.remind(), "not armed");
        ring.arm(Armed::Solicited);
        assert!(!ring.remind(), "waits for another kind");
        ring.disarm();
        ring.arm(Armed::Any);
        assert!(ring.remind());
        assert!(!ring.remind(), "told already");
        ring.arm(Armed::Any);
        assert!(!ring.remind(), "of the same one, twice");
        ring.disarm();
        assert_eq!(ring.push(&cqe(1), None, true, &AT_START), Pushed::Quiet);
        ring.arm(Armed::Any);
        assert!(ring.remind(), "there is another one");
        ring.pop();
        ring.arm(Armed::Any);
        assert!(ring.remind(), "it went on");
    }

    #[test]
    fn what_an_event_is_on_its_way_for_is_not_found_by_iterating_before() {
        let mut ring = CompletionRing::new(8, Reads::default(), false).expect("memory");
        let id = |taken: Option<(Cqe, Stamped)>| taken.map(|(cqe, _)| cqe.wr_id);
        ring.push(&cqe(0), None, false, &AT_START);
        ring.arm(Armed::Any);
        assert_eq!(ring.push(&cqe(1), None, false, &AT_START), Pushed::Event);
        ring.push(&cqe(2), None, false, &AT_START);
        assert_eq!(id(ring.pop_untold()), Some(0));
        assert_eq!(id(ring.pop_untold()), None);
        ring.event_taken();
        assert_eq!((id(ring.pop_untold()), id(ring.pop_untold())), (Some(1), Some(2)));
        // An application that does not care for events is stopped once.
        ring.arm(Armed::Any);
        ring.push(&cqe(3), None, false, &AT_START);
        assert_eq!((id(ring.pop_untold()), id(ring.pop_untold())), (None, Some(3)));
        // Nor is what comes after an event that was got.
        ring.arm(Armed::Any);
        ring.push(&cqe(4), None, false, &AT_START);
        ring.event_taken();
        assert_eq!(id(ring.pop_untold()), Some(4));
    }

    #[test]
    fn a_solicited_only_queue_waits_for_solicited_or_failed() {
        let mut ring = CompletionRing::new(8, Reads::default(), false).expect("memory");
        ring.arm(Armed::Solicited);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), Pushed::Quiet);
        assert_eq!(ring.push(&cqe(1), None, true, &AT_START), Pushed::Event);
        ring.arm(Armed::Solicited);
        assert_eq!(ring.push(&Cqe { status: 5, ..cqe(2) }, None, false, &AT_START), Pushed::Event);
        ring.arm(Armed::Any);
        ring.arm(Armed::Solicited);
        assert_eq!(
            ring.push(&cqe(3), None, false, &AT_START),
            Pushed::Event,
            "Any is not weakened"
        );
    }

    #[test]
    fn a_planned_overrun_comes_at_its_completion_and_leaves_the_rest_alone() {
        let mut ring = CompletionRing::new(2, Reads::default(), false).expect("memory");
        ring.plan_overrun(Some(4));
        for n in 0..3 {
            assert_eq!(ring.push(&cqe(n), None, false, &AT_START), Pushed::Quiet);
            assert_eq!(ring.pop().map(|c| c.wr_id), Some(n));
        }
        assert_eq!(ring.push(&cqe(3), None, false, &AT_START), Pushed::Overrun);
        assert_eq!(
            ring.push(&cqe(4), None, false, &AT_START),
            Pushed::Overrun,
            "it takes nothing any more"
        );
        ring.plan_overrun(None);
        assert_eq!(
            ring.push(&cqe(5), None, false, &AT_START),
            Pushed::Overrun,
            "whatever is planned then"
        );
        // One that is full before that overruns as any.
        let mut ring = CompletionRing::new(2, Reads::default(), false).expect("memory");
        ring.plan_overrun(Some(4));
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), Pushed::Quiet);
        assert_eq!(ring.resize(1), Some(true), "a plan outlives it");
        assert_eq!(ring.push(&cqe(1), None, false, &AT_START), Pushed::Overrun);
        // And one whose plan was dropped does not.
        let mut ring = CompletionRing::new(2, Reads::default(), false).expect("memory");
        ring.plan_overrun(Some(1));
        ring.plan_overrun(None);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), Pushed::Quiet);
        // Where overruns are ignored, one completion is lost.
        let mut ring = CompletionRing::new(8, Reads::default(), true).expect("memory");
        ring.plan_overrun(Some(3));
        for n in 0..4 {
            assert_eq!(ring.push(&cqe(n), None, false, &AT_START), Pushed::Quiet);
        }
        let left: Vec<_> = std::iter::from_fn(|| ring.pop()).map(|c| c.wr_id).collect();
        assert_eq!(left, [1, 2, 3]);
    }

    #[test]
    fn a_full_queue_overruns_and_keeps_what_it_had() {
        let mut ring = CompletionRing::new(2, Reads::default(), false).expect("memory");
        ring.push(&cqe(0), None, false, &AT_START);
        ring.push(&cqe(1), None, false, &AT_START);
        assert_eq!(ring.push(&cqe(2), None, false, &AT_START), Pushed::Overrun);
        assert_eq!(ring.pop().map(|c| c.wr_id), Some(0));
        assert_eq!(ring.pop().map(|c| c.wr_id), Some(1));
        assert_eq!(ring.pop(), None);
        assert_eq!(
            ring.push(&cqe(3), None, false, &AT_START),
            Pushed::Overrun,
            "it takes nothing any more"
        );
        assert_eq!(ring.resize(8), Some(true));
        assert_eq!(ring.push(&cqe(4), None, false, &AT_START), Pushed::Overrun, "nor when it grew");
    }

    #[test]
    fn a_queue_that_ignores_overruns_loses_the_oldest() {
        let mut ring = CompletionRing::new(3, Reads::default(), true).expect("memory");
        for i in 0..8 {
            assert_eq!(ring.push(&cqe(i), None, false, &AT_START), Pushed::Quiet);
        }
        let ids: Vec<u64> = std::iter::from_fn(|| ring.pop()).map(|c| c.wr_id).collect();
        assert_eq!(ids, [5, 6, 7]);
    }

    #[test]
    fn moderation_waits_for_enough_completions_or_for_its_time() {
        let mut ring = CompletionRing::new(32, Reads::default(), false).expect("memory");
        ring.set_moderation(Moderation { count: 3, period_us: 1000 });
        for _ in 0..2 {
            ring.arm(Armed::Any);
            assert_eq!(ring.push(&cqe(0), None, false, &AT_START), Pushed::Later);
            assert_eq!(ring.push(&cqe(1), None, false, &AT_START), Pushed::Quiet);
            assert_eq!(ring.push(&cqe(2), None, false, &AT_START), Pushed::Event);
            assert_eq!((ring.due(), ring.is_armed()), (None, false));
        }
        ring.arm(Armed::Any);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), Pushed::Later);
        let due = ring.due().expect("held back");
        assert_eq!(due, Time::from_ns(1_005_000));
        assert!(!ring.release(Time::from_ns(due.ns() - 1)));
        assert!(ring.release(due));
        assert!(!ring.is_armed() && !ring.release(due));
        ring.arm(Armed::Any);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), Pushed::Later);
        ring.set_moderation(Moderation::default());
        assert!(ring.release(AT_START.now), "no event is lost when it is turned off");
        ring.arm(Armed::Any);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), Pushed::Event);
    }

    #[test]
    fn moderation_does_not_count_what_a_solicited_only_queue_does_not_wait_for() {
        let mut ring = CompletionRing::new(32, Reads::default(), false).expect("memory");
        ring.set_moderation(Moderation { count: 2, period_us: 1000 });
        ring.arm(Armed::Solicited);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), Pushed::Quiet);
        assert_eq!(ring.push(&cqe(0), None, true, &AT_START), Pushed::Later);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), Pushed::Quiet);
        assert_eq!(ring.push(&cqe(0), None, true, &AT_START), Pushed::Event);
    }

    #[test]
    fn resizing_keeps_order_and_refuses_to_lose() {
        let mut ring = CompletionRing::new(3, Reads::default(), false).expect("memory");
        for i in 0..5 {
            ring.push(&cqe(i), None, false, &AT_START);
            if i < 2 {
                ring.pop();
            }
        }
        assert_eq!(ring.resize(2), Some(false));
        assert_eq!(ring.resize(5), Some(true));
        ring.push(&cqe(5), None, false, &AT_START);
        let ids: Vec<u64> = std::iter::from_fn(|| ring.pop()).map(|c| c.wr_id).collect();
        assert_eq!(ids, [2, 3, 4, 5]);
    }

    #[test]
    fn positions_go_on_through_polling_resizing_and_forgetting() {
        let mut ring = CompletionRing::new(4, Reads::default(), false).expect("memory");
        for i in 0..4 {
            ring.push(&cqe(i), None, false, &AT_START);
        }
        assert_eq!(ring.positions(), (0, 4));
        ring.pop();
        assert_eq!(ring.resize(8), Some(true));
        assert_eq!(ring.positions(), (1, 4));
        ring.forget(1, false);
        assert_eq!(ring.positions(), (3, 4), "two of QP 1 count as polled");
        ring.pop();
        assert_eq!(ring.positions(), (4, 4));
    }

    #[test]
    fn receives_can_outlive_their_qp() {
        let mut ring = CompletionRing::new(4, Reads::default(), false).expect("memory");
        ring.push(&cqe(1), None, false, &AT_START);
        ring.push(&Cqe { opcode: IBV_WC_RECV, ..cqe(3) }, None, false, &AT_START);
        ring.forget(1, true);
        assert_eq!(ring.pop().map(|c| c.wr_id), Some(3));
        assert_eq!(ring.pop(), None);
    }

    #[test]
    fn completions_of_a_destroyed_qp_are_forgotten() {
        let mut ring = CompletionRing::new(4, Reads::default(), false).expect("memory");
        for i in 0..4 {
            ring.push(&cqe(i), None, false, &AT_START);
        }
        ring.forget(1, false);
        let ids: Vec<u64> = std::iter::from_fn(|| ring.pop()).map(|c| c.wr_id).collect();
        assert_eq!(ids, [0, 2]);
    }

    #[test]
    fn rare_parts_stay_with_their_completions_through_resizing_and_forgetting() {
        let reads = Reads { rare: true, ..Reads::default() };
        let mut ring = CompletionRing::new(4, reads, false).expect("memory");
        for i in 0..4 {
            let rare = Rare { tag: i * 10, flow_tag: 7, ..Rare::default() };
            ring.push(&cqe(i), Some(&rare), false, &AT_START);
        }
        assert_eq!(ring.pop_stamped().map(|(c, s)| (c.wr_id, s.rare.tag)), Some((0, 0)));
        ring.push(&cqe(4), None, false, &AT_START);
        ring.forget(1, false);
        assert_eq!(ring.resize(9), Some(true));
        let all: Vec<_> = std::iter::from_fn(|| ring.pop_stamped())
            .map(|(c, s)| (c.wr_id, s.rare.tag, s.rare.flow_tag, s.device_ns))
            .collect();
        assert_eq!(all, [(2, 20, 7, 0), (4, 0, 0, 0)]);
    }

    #[test]
    fn only_the_clocks_that_are_read_are_taken() {
        for (reads, stamps) in [
            (Reads { device_clock: true, ..Reads::default() }, (7, 0)),
            (Reads { wallclock: true, ..Reads::default() }, (0, 9)),
            (Reads { rare: true, ..Reads::default() }, (0, 0)),
        ] {
            let mut ring = CompletionRing::new(2, reads, false).expect("memory");
            ring.push(&cqe(0), None, false, &AT_START);
            let (_, stamped) = ring.pop_stamped().expect("pushed");
            assert_eq!((stamped.device_ns, stamped.wallclock_ns), stamps);
        }
    }
}
