//! Completion queues: a ring of completions, and its arming (ibv_poll_cq(3), ibv_req_notify_cq(3)).
//!
//! Send and receive queues push completions; the application polls them. Map of this file: [`Cqe`]
//! and its rare parts, [`Reads`], [`Armed`], [`PushOutcome`] and [`Moderation`], then
//! [`CompletionRing`] with push, overrun, moderation, polling, arming and resizing. The owner locks
//! the ring.

use crate::storage::filled;
use crate::{Clock, Time};
use abi::*;
use std::time::Duration;

/// The fields that every completion has, for all ways of polling. Forty bytes, because each
/// completion is copied twice.
///
/// A SLID is missing: the port is an Ethernet port, and `slid` reads as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// The application's id of the request.
    pub wr_id: u64,
    /// `ibv_wc_status`.
    pub status: u32,
    /// `ibv_wc_opcode`.
    pub opcode: u32,
    /// Bytes of the message.
    pub byte_len: u32,
    /// `IBV_WC_WITH_IMM`: immediate data in network order. `IBV_WC_WITH_INV`: the invalidated rkey.
    pub imm: u32,
    /// The number of the local QP.
    pub qp_num: u32,
    /// The sender's QP number, of a UD QP and of an XRC shared receive queue.
    pub src_qp: u32,
    /// `ibv_wc_flags`.
    pub wc_flags: u32,
    /// Service level of the message.
    pub sl: u8,
    /// 0 on Ethernet.
    pub dlid_path_bits: u8,
    /// Of a failed completion: which check failed, where `status` leaves that open.
    pub vendor_err: u8,
}
const _: () = assert!(size_of::<Cqe>() == 40);

/// The `vendor_err` of a failed completion: the origin of the error.
pub mod found_by {
    /// This QP: its lists, keys or rights.
    pub const OWN: u8 = 1;
    /// The remote QP refused the request.
    pub const REMOTE: u8 = 2;
    /// No response arrived in time.
    pub const TIME: u8 = 3;
    /// The remote process died.
    pub const DEATH: u8 = 4;
    /// An earlier failure flushed the request.
    pub const FLUSH: u8 = 5;
}

/// The default `vendor_err` of a completion with this status.
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

/// Fields that few completions have. A queue only stores them if it was created to read them
/// (`Reads::any_field`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RareFields {
    /// Tag matching: the tag of ibv_wc_read_tm_info(3).
    pub tag: u64,
    /// Tag matching: the private data of ibv_wc_read_tm_info(3).
    pub tag_priv: u32,
    /// The tag of the flow that matched a frame.
    pub flow_tag: u32,
    /// The VLAN tag removed from a frame (16 bits: priority, DEI, number).
    pub cvlan: u16,
}

/// A [`RareFields`] with the timestamps of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamped {
    /// The fields that the sender of the completion passed.
    pub rare_fields: RareFields,
    /// Device clock in nanoseconds, if [`Reads`] requests it.
    pub device_ns: u64,
    /// Nanoseconds since the epoch, if [`Reads`] requests them.
    pub wallclock_ns: u64,
}

/// Fields that a queue's readers request in addition to [`Cqe`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// The fields of [`RareFields`].
    pub rare_fields: bool,
    /// The time of arrival by the device clock.
    pub device_clock: bool,
    /// The time of arrival by the wall clock.
    pub wallclock: bool,
}

impl Reads {
    const fn any_field(self) -> bool {
        self.rare_fields || self.device_clock || self.wallclock
    }
}

/// Which completion causes the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// None: the queue is not armed.
    No,
    /// A solicited completion or an error.
    Solicited,
    /// Any completion.
    Any,
}

/// The result of adding a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// The completion is queued, and the queue is not armed.
    Quiet,
    /// The queue was armed and no longer is: the caller sends an event.
    Event,
    /// The queue is armed, and moderation delays its event for time or for more completions.
    Later,
    /// The queue was full: the completion is lost, and the queue is in error.
    Overrun,
}

/// When an armed queue raises its event (ibv_modify_cq(3)): after `count` completions, or
/// `period_us` after the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions.
    pub count: u16,
    /// Microseconds.
    pub period_us: u16,
}

impl Moderation {
    /// A number of 0 turns moderation off, and so does a count of 1.
    const fn is_on(self) -> bool {
        self.count > 1 && self.period_us > 0
    }
}

/// The completions of a queue that were not polled, and its arming.
#[derive(Debug)]
pub struct CompletionRing {
    /// A power of two of entries, so that an index needs no division.
    entries: Box<[Cqe]>,
    /// The number of completions that the ring may hold.
    capacity: usize,
    /// Number of completions after which `push` calls `make_room`: the capacity, or 0 after an
    /// overrun and while an overrun is planned.
    limit: usize,
    /// Number of completions from which on `push` calls `push_checked`: `limit`, or 0 while the
    /// ring is armed or takes timestamps. `update_plain_limit` sets it.
    plain_limit: u64,
    /// The planned overrun: the number of the completion from now on (the next is 1) at which the
    /// ring overruns.
    planned: Option<u64>,
    /// Whether a full ring drops its oldest completion (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    overwrites: bool,
    moderation: Moderation,
    /// Number of completions for which moderation delays an event, and the event's deadline.
    moderated: u16,
    due: Option<Time>,
    /// One for each entry if readers request them, otherwise empty.
    stamped: Box<[Stamped]>,
    reads: Reads,
    /// Number of completions added so far: the position of the next one.
    pushed: u64,
    /// Number of completions removed so far: the position of the oldest one.
    popped: u64,
    armed: Armed,
    /// Position of the completion whose event no thread has received yet.
    reported: Option<u64>,
    /// The result of `positions` at the last reminder.
    reminded: Option<(u64, u64)>,
}

impl CompletionRing {
    /// A ring for `capacity` completions. `overwrites`: ignore overruns, as ibv_create_cq_ex(3).
    /// `None`: out of memory.
    pub fn new(capacity: usize, reads: Reads, overwrites: bool) -> Option<Self> {
        let places = capacity.next_power_of_two();
        let stamped = if reads.any_field() { places } else { 0 };
        let mut ring = Self {
            entries: filled(Cqe::default(), places)?,
            capacity,
            limit: capacity,
            plain_limit: 0,
            planned: None,
            overwrites,
            moderation: Moderation::default(),
            moderated: 0,
            due: None,
            stamped: filled(Stamped::default(), stamped)?,
            reads,
            pushed: 0,
            popped: 0,
            armed: Armed::No,
            reported: None,
            reminded: None,
        };
        ring.update_plain_limit();
        Some(ring)
    }

    /// Called after each change of `limit` or `armed`.
    const fn update_plain_limit(&mut self) {
        let plain = matches!(self.armed, Armed::No) && self.stamped.is_empty();
        self.plain_limit = if plain { self.limit as u64 } else { 0 };
    }

    /// Number of completions in the ring.
    #[inline]
    pub const fn len(&self) -> usize {
        (self.pushed - self.popped) as usize
    }

    /// Whether the ring is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.pushed == self.popped
    }

    /// The position of the oldest completion, and of the next one to add. A completion was polled
    /// once the former exceeds its position.
    #[inline]
    pub const fn positions(&self) -> (u64, u64) {
        (self.popped, self.pushed)
    }

    /// The index of the completion at this position.
    #[inline]
    const fn index_of(&self, position: u64) -> usize {
        position as usize & (self.entries.len() - 1)
    }

    /// Adds a completion. Failed completions count as solicited (ibv_req_notify_cq(3)). `clock` is
    /// only read for timestamps and moderation.
    #[inline(always)]
    pub fn push(
        &mut self,
        cqe: &Cqe,
        rare: Option<&RareFields>,
        solicited: bool,
        clock: &impl Clock,
    ) -> PushOutcome {
        if self.pushed - self.popped >= self.plain_limit {
            return self.push_checked(cqe, rare, solicited, clock);
        }
        let at = self.index_of(self.pushed);
        self.entries[at] = *cqe;
        self.pushed += 1;
        PushOutcome::Quiet
    }

    /// As `push`, for a ring that is full, armed, or takes timestamps.
    #[inline(never)]
    fn push_checked(
        &mut self,
        cqe: &Cqe,
        rare: Option<&RareFields>,
        solicited: bool,
        clock: &impl Clock,
    ) -> PushOutcome {
        if self.len() >= self.limit && !self.make_room() {
            return PushOutcome::Overrun;
        }
        let at = self.index_of(self.pushed);
        self.entries[at] = *cqe;
        if !self.stamped.is_empty() {
            self.stamp(at, rare, clock);
        }
        self.pushed += 1;
        let wanted = match self.armed {
            Armed::No => return PushOutcome::Quiet,
            Armed::Any => true,
            Armed::Solicited => solicited || cqe.status != 0,
        };
        if !wanted {
            return PushOutcome::Quiet;
        }
        if self.moderation.is_on() {
            return self.moderate(clock);
        }
        self.armed = Armed::No;
        self.update_plain_limit();
        self.reported = Some(self.pushed - 1);
        PushOutcome::Event
    }

    /// Plans an overrun at completion `nth` from now on (the next is 1); `None`: cancels the plan.
    pub fn plan_overrun(&mut self, nth: Option<u64>) {
        let broken = self.limit == 0 && self.planned.is_none();
        if !broken {
            self.planned = nth.filter(|n| *n > 0);
            self.limit = if self.planned.is_some() { 0 } else { self.capacity };
            self.update_plain_limit();
        }
    }

    /// Handles a full ring or a planned overrun. Returns whether there is room; otherwise the ring
    /// accepts no further completion.
    #[cold]
    fn make_room(&mut self) -> bool {
        if let Some(left) = &mut self.planned {
            *left -= 1;
            if *left > 0 && self.pushed - self.popped < self.capacity as u64 {
                return true;
            }
            self.planned = None;
            if self.overwrites {
                // A queue that ignores overruns loses one completion, as if it were full.
                self.limit = self.capacity;
                self.update_plain_limit();
                return self.is_empty() || self.pop().is_some();
            }
        }
        if self.overwrites {
            return self.pop().is_some();
        }
        self.limit = 0;
        self.update_plain_limit();
        false
    }

    #[cold]
    fn moderate(&mut self, clock: &impl Clock) -> PushOutcome {
        self.moderated += 1;
        if self.moderated >= self.moderation.count {
            self.disarm();
            return PushOutcome::Event;
        }
        if self.due.is_some() {
            return PushOutcome::Quiet;
        }
        let period = Duration::from_micros(u64::from(self.moderation.period_us));
        self.due = Some(clock.now().after(period));
        PushOutcome::Later
    }

    /// Disarms the queue.
    pub fn disarm(&mut self) {
        self.armed = Armed::No;
        self.update_plain_limit();
        self.moderated = 0;
        self.due = None;
    }

    /// The deadline of a delayed event.
    pub const fn due(&self) -> Option<Time> {
        self.due
    }

    /// Whether a delayed event is due by `now`; the caller sends it.
    pub fn release(&mut self, now: Time) -> bool {
        let due = self.due.is_some_and(|due| due <= now);
        if due {
            self.disarm();
        }
        due
    }

    /// Changes the moderation. A delayed event becomes due at once, so that none is lost.
    pub fn set_moderation(&mut self, moderation: Moderation) {
        self.moderation = moderation;
        // Time zero has passed.
        self.due = self.due.map(|_| Time::default());
    }

    #[cold]
    fn stamp(&mut self, at: usize, rare: Option<&RareFields>, clock: &impl Clock) {
        self.stamped[at] = Stamped {
            rare_fields: rare.copied().unwrap_or_default(),
            device_ns: if self.reads.device_clock { clock.device_ns() } else { 0 },
            wallclock_ns: if self.reads.wallclock { clock.wallclock_ns() } else { 0 },
        };
    }

    /// Removes the oldest completion.
    #[inline]
    pub fn pop(&mut self) -> Option<Cqe> {
        if self.is_empty() {
            return None;
        }
        let cqe = self.entries[self.index_of(self.popped)];
        self.popped += 1;
        Some(cqe)
    }

    /// Removes the oldest completion after `take` read it. Returns false if the ring is empty.
    #[inline(always)]
    pub fn pop_with(&mut self, take: impl FnOnce(&Cqe)) -> bool {
        if self.is_empty() {
            return false;
        }
        take(&self.entries[self.index_of(self.popped)]);
        self.popped += 1;
        true
    }

    /// Up to `n` of the oldest completions, as far as they are contiguous.
    #[inline]
    pub fn oldest(&self, n: usize) -> &[Cqe] {
        let first = self.index_of(self.popped);
        let len = self.len().min(n).min(self.entries.len() - first);
        self.entries.get(first..first + len).unwrap_or_default()
    }

    /// Removes `n` completions, at most as many as `oldest` returned.
    #[inline]
    pub fn drop_oldest(&mut self, n: usize) {
        self.popped += n.min(self.len()) as u64;
    }

    /// As `pop`, with all fields that the queue's readers requested.
    pub fn pop_stamped(&mut self) -> Option<(Cqe, Stamped)> {
        let stamped = self.stamped.get(self.index_of(self.popped)).copied().unwrap_or_default();
        Some((self.pop()?, stamped))
    }

    /// As `pop_stamped`, but hides once a completion whose event no thread has received. The
    /// application finds the completion when the event arrives.
    pub fn pop_without_event(&mut self) -> Option<(Cqe, Stamped)> {
        if self.reported == Some(self.popped) {
            self.reported = None;
            return None;
        }
        self.pop_stamped()
    }

    /// Records that a thread received an event of the queue.
    pub const fn event_taken(&mut self) {
        self.reported = None;
    }

    /// Arms the queue; `Any` is kept over `Solicited`. Returns whether the queue was unarmed
    /// before.
    pub fn arm(&mut self, how: Armed) -> bool {
        let fresh = self.armed == Armed::No;
        if self.armed != Armed::Any {
            self.armed = how;
            self.update_plain_limit();
        }
        fresh
    }

    /// Whether the queue is armed.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.armed != Armed::No
    }

    /// Whether the caller must send an event: the queue is armed for any completion and holds some.
    /// Only once for the same completions, because an application that ignores them must be able to
    /// sleep.
    pub fn needs_event(&mut self) -> bool {
        let now = self.positions();
        let reminds = self.armed == Armed::Any
            && !self.is_empty()
            && !self.moderation.is_on()
            && self.reminded != Some(now);
        if reminds {
            self.disarm();
            self.reported = Some(self.popped);
            self.reminded = Some(now);
        }
        reminds
    }

    /// Changes the capacity and keeps all completions. `Some(false)`: they do not fit. `None`: out
    /// of memory.
    pub fn resize(&mut self, capacity: usize) -> Option<bool> {
        if self.len() > capacity || capacity == 0 {
            return Some(false);
        }
        let mut larger = Self {
            limit: if self.limit == 0 { 0 } else { capacity },
            planned: self.planned,
            armed: self.armed,
            moderation: self.moderation,
            moderated: self.moderated,
            due: self.due,
            popped: self.popped,
            pushed: self.pushed,
            reported: self.reported,
            reminded: self.reminded,
            ..Self::new(capacity, self.reads, self.overwrites)?
        };
        larger.update_plain_limit();
        for position in self.popped..self.pushed {
            let (from, to) = (self.index_of(position), larger.index_of(position));
            larger.entries[to] = self.entries[from];
            if let Some(place) = larger.stamped.get_mut(to) {
                *place = self.stamped[from];
            }
        }
        *self = larger;
        Some(true)
    }

    /// Drops the completions of a QP that is destroyed or reset, or only those of its send side.
    /// The others keep their order. Positions count dropped completions as polled.
    pub fn drop_qp(&mut self, qp_num: u32, sends_only: bool) {
        let mut oldest = self.pushed;
        // From the newest on, because the others move towards the newest position.
        for position in (self.popped..self.pushed).rev() {
            let from = self.index_of(position);
            let cqe = self.entries[from];
            if cqe.qp_num != qp_num || sends_only && cqe.opcode & IBV_WC_RECV != 0 {
                oldest -= 1;
                let to = self.index_of(oldest);
                self.entries[to] = cqe;
                if !self.stamped.is_empty() {
                    self.stamped[to] = self.stamped[from];
                }
            }
        }
        self.popped = oldest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that never advances.
    struct StoppedClock {
        now: Time,
        device_ns: u64,
        wallclock_ns: u64,
    }

    impl Clock for StoppedClock {
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

    const AT_START: StoppedClock =
        StoppedClock { now: Time::from_ns(5000), device_ns: 7, wallclock_ns: 9 };

    fn cqe(wr_id: u64) -> Cqe {
        Cqe { wr_id, qp_num: wr_id as u32 % 2, ..Cqe::default() }
    }

    #[test]
    fn an_armed_queue_gives_one_event() {
        let mut ring = CompletionRing::new(8, Reads::default(), false).expect("memory");
        assert_eq!(ring.push(&cqe(0), None, true, &AT_START), PushOutcome::Quiet);
        assert!(ring.arm(Armed::Any));
        assert_eq!(ring.push(&cqe(1), None, false, &AT_START), PushOutcome::Event);
        assert_eq!(ring.push(&cqe(2), None, true, &AT_START), PushOutcome::Quiet);
    }

    #[test]
    fn an_armed_queue_with_completions_reminds_a_sleeper_once() {
        let mut ring = CompletionRing::new(8, Reads::default(), false).expect("memory");
        ring.arm(Armed::Any);
        assert!(!ring.needs_event(), "empty");
        ring.disarm();
        ring.push(&cqe(0), None, true, &AT_START);
        assert!(!ring.needs_event(), "not armed");
        ring.arm(Armed::Solicited);
        assert!(!ring.needs_event(), "waits for another kind");
        ring.disarm();
        ring.arm(Armed::Any);
        assert!(ring.needs_event());
        assert!(!ring.needs_event(), "told already");
        ring.arm(Armed::Any);
        assert!(!ring.needs_event(), "of the same one, twice");
        ring.disarm();
        assert_eq!(ring.push(&cqe(1), None, true, &AT_START), PushOutcome::Quiet);
        ring.arm(Armed::Any);
        assert!(ring.needs_event(), "there is another one");
        ring.pop();
        ring.arm(Armed::Any);
        assert!(ring.needs_event(), "it went on");
    }

    #[test]
    fn a_completion_with_a_pending_event_is_hidden_once() {
        let mut ring = CompletionRing::new(8, Reads::default(), false).expect("memory");
        let id = |taken: Option<(Cqe, Stamped)>| taken.map(|(cqe, _)| cqe.wr_id);
        ring.push(&cqe(0), None, false, &AT_START);
        ring.arm(Armed::Any);
        assert_eq!(ring.push(&cqe(1), None, false, &AT_START), PushOutcome::Event);
        ring.push(&cqe(2), None, false, &AT_START);
        assert_eq!(id(ring.pop_without_event()), Some(0));
        assert_eq!(id(ring.pop_without_event()), None);
        ring.event_taken();
        assert_eq!(
            (id(ring.pop_without_event()), id(ring.pop_without_event())),
            (Some(1), Some(2))
        );
        // An application that ignores events misses the completion once.
        ring.arm(Armed::Any);
        ring.push(&cqe(3), None, false, &AT_START);
        assert_eq!((id(ring.pop_without_event()), id(ring.pop_without_event())), (None, Some(3)));
        // After the event was received, the completion is found.
        ring.arm(Armed::Any);
        ring.push(&cqe(4), None, false, &AT_START);
        ring.event_taken();
        assert_eq!(id(ring.pop_without_event()), Some(4));
    }

    #[test]
    fn a_solicited_only_queue_waits_for_solicited_or_failed() {
        let mut ring = CompletionRing::new(8, Reads::default(), false).expect("memory");
        ring.arm(Armed::Solicited);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), PushOutcome::Quiet);
        assert_eq!(ring.push(&cqe(1), None, true, &AT_START), PushOutcome::Event);
        ring.arm(Armed::Solicited);
        assert_eq!(
            ring.push(&Cqe { status: 5, ..cqe(2) }, None, false, &AT_START),
            PushOutcome::Event
        );
        ring.arm(Armed::Any);
        ring.arm(Armed::Solicited);
        assert_eq!(
            ring.push(&cqe(3), None, false, &AT_START),
            PushOutcome::Event,
            "Any is not weakened"
        );
    }

    #[test]
    fn a_planned_overrun_comes_at_its_completion_and_leaves_the_rest_alone() {
        let mut ring = CompletionRing::new(2, Reads::default(), false).expect("memory");
        ring.plan_overrun(Some(4));
        for n in 0..3 {
            assert_eq!(ring.push(&cqe(n), None, false, &AT_START), PushOutcome::Quiet);
            assert_eq!(ring.pop().map(|c| c.wr_id), Some(n));
        }
        assert_eq!(ring.push(&cqe(3), None, false, &AT_START), PushOutcome::Overrun);
        assert_eq!(
            ring.push(&cqe(4), None, false, &AT_START),
            PushOutcome::Overrun,
            "it takes nothing any more"
        );
        ring.plan_overrun(None);
        assert_eq!(
            ring.push(&cqe(5), None, false, &AT_START),
            PushOutcome::Overrun,
            "whatever is planned then"
        );
        // A ring that fills up earlier overruns as usual.
        let mut ring = CompletionRing::new(2, Reads::default(), false).expect("memory");
        ring.plan_overrun(Some(4));
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), PushOutcome::Quiet);
        assert_eq!(ring.resize(1), Some(true), "a plan outlives it");
        assert_eq!(ring.push(&cqe(1), None, false, &AT_START), PushOutcome::Overrun);
        // After a cancelled plan the ring does not overrun.
        let mut ring = CompletionRing::new(2, Reads::default(), false).expect("memory");
        ring.plan_overrun(Some(1));
        ring.plan_overrun(None);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), PushOutcome::Quiet);
        // A queue that ignores overruns loses one completion.
        let mut ring = CompletionRing::new(8, Reads::default(), true).expect("memory");
        ring.plan_overrun(Some(3));
        for n in 0..4 {
            assert_eq!(ring.push(&cqe(n), None, false, &AT_START), PushOutcome::Quiet);
        }
        let left: Vec<_> = std::iter::from_fn(|| ring.pop()).map(|c| c.wr_id).collect();
        assert_eq!(left, [1, 2, 3]);
    }

    #[test]
    fn a_full_queue_overruns_and_keeps_what_it_had() {
        let mut ring = CompletionRing::new(2, Reads::default(), false).expect("memory");
        ring.push(&cqe(0), None, false, &AT_START);
        ring.push(&cqe(1), None, false, &AT_START);
        assert_eq!(ring.push(&cqe(2), None, false, &AT_START), PushOutcome::Overrun);
        assert_eq!(ring.pop().map(|c| c.wr_id), Some(0));
        assert_eq!(ring.pop().map(|c| c.wr_id), Some(1));
        assert_eq!(ring.pop(), None);
        assert_eq!(
            ring.push(&cqe(3), None, false, &AT_START),
            PushOutcome::Overrun,
            "it takes nothing any more"
        );
        assert_eq!(ring.resize(8), Some(true));
        assert_eq!(
            ring.push(&cqe(4), None, false, &AT_START),
            PushOutcome::Overrun,
            "nor when it grew"
        );
    }

    #[test]
    fn a_queue_that_ignores_overruns_loses_the_oldest() {
        let mut ring = CompletionRing::new(3, Reads::default(), true).expect("memory");
        for i in 0..8 {
            assert_eq!(ring.push(&cqe(i), None, false, &AT_START), PushOutcome::Quiet);
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
            assert_eq!(ring.push(&cqe(0), None, false, &AT_START), PushOutcome::Later);
            assert_eq!(ring.push(&cqe(1), None, false, &AT_START), PushOutcome::Quiet);
            assert_eq!(ring.push(&cqe(2), None, false, &AT_START), PushOutcome::Event);
            assert_eq!((ring.due(), ring.is_armed()), (None, false));
        }
        ring.arm(Armed::Any);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), PushOutcome::Later);
        let due = ring.due().expect("held back");
        assert_eq!(due, Time::from_ns(1_005_000));
        assert!(!ring.release(Time::from_ns(due.ns() - 1)));
        assert!(ring.release(due));
        assert!(!ring.is_armed() && !ring.release(due));
        ring.arm(Armed::Any);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), PushOutcome::Later);
        ring.set_moderation(Moderation::default());
        assert!(ring.release(AT_START.now), "no event is lost when it is turned off");
        ring.arm(Armed::Any);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), PushOutcome::Event);
    }

    #[test]
    fn moderation_of_a_solicited_only_queue_ignores_other_completions() {
        let mut ring = CompletionRing::new(32, Reads::default(), false).expect("memory");
        ring.set_moderation(Moderation { count: 2, period_us: 1000 });
        ring.arm(Armed::Solicited);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), PushOutcome::Quiet);
        assert_eq!(ring.push(&cqe(0), None, true, &AT_START), PushOutcome::Later);
        assert_eq!(ring.push(&cqe(0), None, false, &AT_START), PushOutcome::Quiet);
        assert_eq!(ring.push(&cqe(0), None, true, &AT_START), PushOutcome::Event);
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
        ring.drop_qp(1, false);
        assert_eq!(ring.positions(), (3, 4), "two of QP 1 count as polled");
        ring.pop();
        assert_eq!(ring.positions(), (4, 4));
    }

    #[test]
    fn receives_can_outlive_their_qp() {
        let mut ring = CompletionRing::new(4, Reads::default(), false).expect("memory");
        ring.push(&cqe(1), None, false, &AT_START);
        ring.push(&Cqe { opcode: IBV_WC_RECV, ..cqe(3) }, None, false, &AT_START);
        ring.drop_qp(1, true);
        assert_eq!(ring.pop().map(|c| c.wr_id), Some(3));
        assert_eq!(ring.pop(), None);
    }

    #[test]
    fn completions_of_a_destroyed_qp_are_forgotten() {
        let mut ring = CompletionRing::new(4, Reads::default(), false).expect("memory");
        for i in 0..4 {
            ring.push(&cqe(i), None, false, &AT_START);
        }
        ring.drop_qp(1, false);
        let ids: Vec<u64> = std::iter::from_fn(|| ring.pop()).map(|c| c.wr_id).collect();
        assert_eq!(ids, [0, 2]);
    }

    #[test]
    fn rare_parts_stay_with_their_completions_through_resizing_and_forgetting() {
        let reads = Reads { rare_fields: true, ..Reads::default() };
        let mut ring = CompletionRing::new(4, reads, false).expect("memory");
        for i in 0..4 {
            let rare = RareFields { tag: i * 10, flow_tag: 7, ..RareFields::default() };
            ring.push(&cqe(i), Some(&rare), false, &AT_START);
        }
        assert_eq!(ring.pop_stamped().map(|(c, s)| (c.wr_id, s.rare_fields.tag)), Some((0, 0)));
        ring.push(&cqe(4), None, false, &AT_START);
        ring.drop_qp(1, false);
        assert_eq!(ring.resize(9), Some(true));
        let all: Vec<_> = std::iter::from_fn(|| ring.pop_stamped())
            .map(|(c, s)| (c.wr_id, s.rare_fields.tag, s.rare_fields.flow_tag, s.device_ns))
            .collect();
        assert_eq!(all, [(2, 20, 7, 0), (4, 0, 0, 0)]);
    }

    #[test]
    fn only_the_clocks_that_are_read_are_taken() {
        for (reads, stamps) in [
            (Reads { device_clock: true, ..Reads::default() }, (7, 0)),
            (Reads { wallclock: true, ..Reads::default() }, (0, 9)),
            (Reads { rare_fields: true, ..Reads::default() }, (0, 0)),
        ] {
            let mut ring = CompletionRing::new(2, reads, false).expect("memory");
            ring.push(&cqe(0), None, false, &AT_START);
            let (_, stamped) = ring.pop_stamped().expect("pushed");
            assert_eq!((stamped.device_ns, stamped.wallclock_ns), stamps);
        }
    }
}
