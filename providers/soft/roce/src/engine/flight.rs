//! The packets between the oldest unanswered PSN and the next new one: what is known of each.

use crate::Time;
use crate::wire::{HELD_BITS, Held, Psn};
use std::collections::VecDeque;
use std::time::Duration;

/// PSNs that may be outstanding; what a [`Held`] can speak of, and less than any peer's window.
pub(super) const OUTSTANDING: u32 = HELD_BITS;

/// Packets that may overtake another before that is taken for lost.
const REORDERING: u32 = 3;

/// What is known of a PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Under way.
    Flying,
    /// Kept by the peer behind a gap: arrived, but not executed.
    Held,
    /// To be sent again.
    Lost,
    /// Answered.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    /// Counts what was sent, again included. The PSNs of one READ request have the same.
    serial: u32,
    at: Time,
    bytes: u32,
    /// Only an answer of its own will do.
    wants_answer: bool,
    /// It was sent again, and either copy may be answered.
    again: bool,
    /// The peer said that it did not take it: an answer will be to the next copy.
    refused: bool,
}

/// The outstanding packets of a requester.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    base: Psn,
    slots: VecDeque<Slot>,
    flying_bytes: u64,
    /// Bytes that a probe sent once more since the oldest packet was answered last: the first copies may be under way, too.
    copied_bytes: u64,
    lost: u32,
    serial: u32,
    /// The last sent of those that are known to have arrived.
    newest: Option<Newest>,
}

/// A packet that arrived.
#[derive(Clone, Copy, Debug)]
struct Newest {
    serial: u32,
    psn: Psn,
    /// When it was sent.
    at: Time,
}

/// What an answer brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gain {
    /// Bytes that arrived.
    pub(super) bytes: u64,
    /// Packets that arrived.
    pub(super) packets: u32,
    /// Time from sending to answer, if a packet was sent once.
    pub(super) round_trip: Option<Duration>,
    /// One of them was sent again: which of its copies was answered is unknown, and what came behind it waited for it.
    again: bool,
}

impl Gain {
    /// Of two parts of one answer.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            packets: self.packets + other.packets,
            round_trip: other.round_trip.or(self.round_trip),
            again: self.again || other.again,
        }
    }

    /// How long the way there and back takes, if this answer tells (Karn's rule).
    pub(super) fn sample(&self) -> Option<Duration> {
        self.round_trip.filter(|_| !self.again)
    }
}

impl Flight {
    pub(super) fn new(base: Psn) -> Self {
        let slots = VecDeque::new();
        Self { base, slots, flying_bytes: 0, copied_bytes: 0, lost: 0, serial: 0, newest: None }
    }

    /// The oldest PSN without an answer.
    pub(super) fn base(&self) -> Psn {
        self.base
    }

    /// The PSN of the next new packet.
    pub(super) fn next(&self) -> Psn {
        self.base.add(self.len())
    }

    /// PSNs outstanding.
    pub(super) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes under way.
    pub(super) fn bytes(&self) -> u64 {
        self.flying_bytes
    }

    /// Bytes under way at most: who was asked about a packet early may have both copies of it in front of it.
    pub(super) fn bytes_at_most(&self) -> u64 {
        self.flying_bytes + self.copied_bytes
    }

    /// PSNs that may be added.
    pub(super) fn room(&self) -> u32 {
        OUTSTANDING.saturating_sub(self.len())
    }

    /// `count` PSNs go, of `bytes` each.
    pub(super) fn sent(&mut self, now: Time, count: u32, bytes: u32, wants_answer: bool) {
        self.serial = self.serial.wrapping_add(1);
        let (serial, state) = (self.serial, State::Flying);
        let (again, refused) = (false, false);
        let slot = Slot { state, serial, at: now, bytes, wants_answer, again, refused };
        self.slots.extend((0..count).map(|_| slot));
        self.flying_bytes += u64::from(count) * u64::from(bytes);
    }

    /// Whether any PSN is to go again.
    pub(super) fn has_lost(&self) -> bool {
        self.lost != 0
    }

    /// The first PSN that is to go again.
    pub(super) fn first_lost(&self) -> Option<Psn> {
        if !self.has_lost() {
            return None;
        }
        let index = self.slots.iter().position(|slot| slot.state == State::Lost)?;
        Some(self.base.add(index as u32))
    }

    /// The first PSN from `psn` on without an answer.
    pub(super) fn unanswered_from(&self, psn: Psn) -> Psn {
        let skip = psn.after(self.base).unwrap_or(0);
        let slots = self.slots.iter().skip(skip as usize);
        self.base.add(skip + slots.take_while(|slot| slot.state == State::Done).count() as u32)
    }

    /// How many from `psn` on, up to `most`, the last one that is to go again ends.
    pub(super) fn last_lost(&self, psn: Psn, most: u32) -> Option<u32> {
        let slots = self.slots.iter().skip(psn.after(self.base)? as usize).take(most as usize);
        (1..).zip(slots).filter(|(_, slot)| slot.state == State::Lost).map(|(n, _)| n).last()
    }

    /// `count` PSNs from `psn` on go again. Those among them that are answered, or held, stay so.
    pub(super) fn resent(&mut self, now: Time, psn: Psn, count: u32) {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let Some(skip) = psn.after(self.base) else { return };
        for slot in self.slots.iter_mut().skip(skip as usize).take(count as usize) {
            if matches!(slot.state, State::Done | State::Held) {
                continue;
            }
            if slot.state == State::Lost {
                self.lost -= 1;
                self.flying_bytes += u64::from(slot.bytes);
            }
            let again = !slot.refused;
            let state = State::Flying;
            *slot = Slot { state, serial, at: now, again, refused: false, ..*slot };
        }
    }

    /// All before `psn` that need no answer of their own arrived.
    pub(super) fn acknowledged(&mut self, now: Time, psn: Psn) -> Gain {
        let mut gain = Gain::default();
        let count = psn.after(self.base).unwrap_or(0).min(self.len());
        for index in 0..count {
            if self.slots.get(index as usize).is_some_and(|slot| !slot.wants_answer) {
                self.done(now, index, &mut gain);
            }
        }
        gain
    }

    /// The answer to `psn` came. `None` if it is not outstanding, or not one that has an answer.
    pub(super) fn answered(&mut self, now: Time, psn: Psn) -> Option<Gain> {
        let index = psn.after(self.base)?;
        let slot = self.slots.get(index as usize)?;
        if !slot.wants_answer || slot.state == State::Done {
            return None;
        }
        let mut gain = Gain::default();
        self.done(now, index, &mut gain);
        Some(gain)
    }

    fn done(&mut self, now: Time, index: u32, gain: &mut Gain) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let before = std::mem::replace(&mut slot.state, State::Done);
        if before != State::Done && before != State::Held {
            self.arrived(now, index, before, gain);
        }
    }

    /// The packet at `index` is now known to have arrived; it was thought to be in this state.
    fn arrived(&mut self, now: Time, index: u32, before: State, gain: &mut Gain) {
        let psn = self.base.add(index);
        let Some(&Slot { serial, at, bytes, again, .. }) = self.slots.get(index as usize) else {
            return;
        };
        match before {
            State::Flying => self.flying_bytes -= u64::from(bytes),
            State::Lost => self.lost -= 1,
            State::Done | State::Held => {}
        }
        gain.bytes += u64::from(bytes);
        gain.packets += 1;
        gain.again |= again;
        if !again {
            gain.round_trip = Some(now.since(at));
        }
        let newer = |other: Newest| {
            let ahead = serial.wrapping_sub(other.serial).cast_signed();
            ahead > 0 || (ahead == 0 && psn.since(other.psn) > 0)
        };
        if self.newest.is_none_or(newer) {
            self.newest = Some(Newest { serial, psn, at });
        }
    }

    /// The peer keeps these behind the gap at `gap`.
    pub(super) fn held(&mut self, now: Time, gap: Psn, held: &Held) -> Gain {
        let mut gain = Gain::default();
        let Some(skip) = gap.after(self.base) else { return gain };
        let index_of = |bit| skip.saturating_add(1).saturating_add(bit);
        for index in (0..HELD_BITS).filter(|&bit| held.contains(bit)).map(index_of) {
            let Some(slot) = self.slots.get_mut(index as usize) else { break };
            if matches!(slot.state, State::Done | State::Held) {
                continue;
            }
            let before = std::mem::replace(&mut slot.state, State::Held);
            self.arrived(now, index, before, &mut gain);
        }
        gain
    }

    /// What was sent well before something that arrived, and did not arrive, is lost: by three packets, or by `patience`,
    /// of which only the order of sending is left when few packets go. Says how many are newly so.
    pub(super) fn infer_lost(&mut self, patience: Duration) -> Missed {
        let mut missed = Missed::default();
        let Some(newest) = self.newest else { return missed };
        for (index, slot) in (0..).zip(&mut self.slots) {
            if slot.state != State::Flying {
                continue;
            }
            let behind = newest.behind(slot, patience);
            let before = newest.psn.since(self.base.add(index));
            let reordering = REORDERING.cast_signed();
            if behind || (newest.serial == slot.serial && before >= reordering) {
                slot.state = State::Lost;
                self.flying_bytes -= u64::from(slot.bytes);
                missed.packets += 1;
                missed.answers += u32::from(slot.wants_answer);
            }
        }
        self.lost += missed.packets;
        missed
    }

    /// All from `psn` on that is not answered goes again.
    pub(super) fn lose_from(&mut self, psn: Psn) {
        // By the time that this is known all that was sent before is gone.
        self.copied_bytes = 0;
        let skip = psn.after(self.base).unwrap_or(0);
        for index in skip..self.len() {
            self.lose(index);
        }
    }

    /// The peer took nothing from `psn` on, and said so: all of that goes again.
    pub(super) fn refused_from(&mut self, psn: Psn) {
        self.lose_from(psn);
        let skip = psn.after(self.base).unwrap_or(0) as usize;
        for slot in self.slots.iter_mut().skip(skip) {
            slot.refused = true;
        }
    }

    /// The oldest packet goes again, with those that its request asked for together.
    pub(super) fn lose_oldest(&mut self) {
        let unanswered = self.slots.iter().position(|slot| slot.state != State::Done);
        let Some(first) = unanswered else { return };
        let Some(serial) = self.slots.get(first).map(|slot| slot.serial) else { return };
        let same = self.slots.iter().skip(first);
        let count =
            same.take_while(|slot| slot.serial == serial && slot.state != State::Done).count();
        for index in first..first + count {
            self.repeat(index as u32);
        }
    }

    /// The oldest packet goes again, without others that its request asked for.
    pub(super) fn lose_first(&mut self) {
        self.repeat(0);
    }

    /// A packet goes again that may have arrived, or may do so yet.
    fn repeat(&mut self, index: u32) {
        let flying = self.slots.get(index as usize).filter(|slot| slot.state == State::Flying);
        self.copied_bytes += flying.map_or(0, |slot| u64::from(slot.bytes));
        self.lose(index);
    }

    fn lose(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        match slot.state {
            State::Done | State::Lost => return,
            State::Flying => self.flying_bytes -= u64::from(slot.bytes),
            State::Held => {}
        }
        slot.state = State::Lost;
        self.lost += 1;
    }

    /// Forgets what is answered at the base. Says whether anything was.
    pub(super) fn advance(&mut self) -> bool {
        let before = self.base;
        while self.slots.front().is_some_and(|slot| slot.state == State::Done) {
            self.slots.pop_front();
            self.base = self.base.add(1);
        }
        let advanced = self.base != before;
        if advanced {
            self.copied_bytes = 0;
        }
        advanced
    }

    /// Whether something arrived that went later than what is not answered: [`infer_lost`](Self::infer_lost) may find
    /// something. The oldest is looked at by the order of sending, because a probe is itself the oldest PSN.
    pub(super) fn has_suspects(&self, patience: Duration) -> bool {
        let Some(newest) = self.newest else { return false };
        let oldest = self.slots.front();
        newest.psn.since(self.base) > 0 || oldest.is_some_and(|slot| newest.behind(slot, patience))
    }
}

/// Packets that are newly known to be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missed {
    pub(super) packets: u32,
    /// Those that only an answer of their own will do for.
    pub(super) answers: u32,
}

impl Newest {
    /// Whether a packet was sent so long before this one that it should have arrived.
    fn behind(&self, slot: &Slot, patience: Duration) -> bool {
        let packets = self.serial.wrapping_sub(slot.serial).cast_signed();
        packets >= REORDERING.cast_signed() || (packets > 0 && self.at.since(slot.at) >= patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_ns(1000);
    const ROUND_TRIP: Duration = Duration::from_micros(100);

    fn flight(packets: u32) -> Flight {
        let mut flight = Flight::new(Psn::new(0xff_fff0));
        (0..packets).for_each(|_| flight.sent(Time::default(), 1, 100, false));
        flight
    }

    fn psn(index: u32) -> Psn {
        Psn::new(0xff_fff0).add(index)
    }

    #[test]
    fn an_acknowledgement_is_for_all_before_it() {
        let mut flight = flight(20);
        let gain = flight.acknowledged(NOW, psn(18));
        assert_eq!(gain.bytes, 1800);
        assert_eq!(gain.round_trip, Some(Duration::from_nanos(1000)));
        assert!(flight.advance());
        assert_eq!((flight.base(), flight.len(), flight.bytes()), (psn(18), 2, 200));
        assert_eq!(flight.next(), psn(20));
        assert_eq!(flight.acknowledged(NOW, psn(10)), Gain::default(), "old ones say nothing");
    }

    #[test]
    fn what_is_held_is_not_sent_again_and_not_done() {
        let mut flight = flight(8);
        let mut held = Held::NONE;
        [2, 3, 4, 5].into_iter().for_each(|index| held.insert(index));
        flight.acknowledged(NOW, psn(1));
        flight.advance();
        flight.held(NOW, flight.base(), &held);
        assert_eq!(flight.infer_lost(ROUND_TRIP).packets, 3, "1, 2 and 3 are missing");
        assert_eq!((flight.first_lost(), flight.last_lost(psn(1), 9)), (Some(psn(1)), Some(3)));
        for index in 1..4 {
            flight.resent(NOW, psn(index), 1);
        }
        assert_eq!(flight.infer_lost(ROUND_TRIP).packets, 0, "they are under way again");
        flight.acknowledged(NOW, psn(8));
        flight.advance();
        assert!(flight.is_empty() && flight.bytes() == 0);
    }

    #[test]
    fn one_packet_that_overtakes_does_not_make_others_lost() {
        let mut flight = flight(4);
        let mut held = Held::NONE;
        held.insert(0);
        flight.held(NOW, flight.base(), &held);
        assert_eq!(flight.infer_lost(ROUND_TRIP).packets, 0);
    }

    #[test]
    fn a_packet_that_went_much_later_and_arrived_makes_others_lost() {
        let mut flight = flight(3);
        let later = Time::default().after(ROUND_TRIP);
        flight.lose_oldest();
        flight.resent(later, psn(0), 1);
        let gain = flight.acknowledged(later.after(ROUND_TRIP), psn(1));
        assert_eq!(gain.sample(), None, "which of its copies was answered?");
        flight.advance();
        assert!(flight.has_suspects(ROUND_TRIP));
        assert!(!flight.has_suspects(ROUND_TRIP * 2), "not when that may be its turn");
        assert_eq!(flight.infer_lost(ROUND_TRIP).packets, 2);
    }

    #[test]
    fn what_is_held_tells_the_round_trip_when_it_is_heard_of_and_not_when_it_is_done() {
        let mut flight = flight(3);
        let mut held = Held::NONE;
        held.insert(0);
        let gain = flight.held(NOW, psn(0), &held);
        assert_eq!((gain.sample(), gain.packets), (Some(Duration::from_micros(1)), 1));
        flight.lose_oldest();
        let second = Time::from_ns(1_000_000_000);
        flight.resent(second, psn(0), 1);
        let gain = flight.acknowledged(second, psn(3));
        assert_eq!((gain.sample(), gain.packets), (None, 2));
    }

    #[test]
    fn an_answer_to_what_was_refused_before_tells_the_round_trip() {
        let mut flight = flight(3);
        flight.refused_from(psn(1));
        flight.resent(NOW, psn(1), 2);
        let later = NOW.after(ROUND_TRIP);
        assert_eq!(flight.acknowledged(later, psn(3)).sample(), Some(ROUND_TRIP));
    }

    #[test]
    fn the_answers_to_a_read_are_missed_by_later_ones() {
        let mut flight = Flight::new(psn(0));
        flight.sent(Time::default(), 10, 1024, true);
        assert_eq!(flight.acknowledged(NOW, psn(10)).bytes, 0, "only data will do");
        assert_eq!(flight.answered(NOW, psn(5)).map(|gain| gain.bytes), Some(1024));
        assert_eq!(flight.answered(NOW, psn(5)), None, "once");
        assert_eq!(flight.infer_lost(ROUND_TRIP).packets, 3, "0, 1 and 2; 3 and 4 may come");
        assert_eq!(flight.last_lost(psn(0), 10), Some(3));
        assert!(!flight.advance() && flight.has_suspects(ROUND_TRIP));
    }

    #[test]
    fn after_a_timeout_everything_goes_again() {
        let mut flight = flight(5);
        let mut held = Held::NONE;
        held.insert(1);
        flight.held(NOW, flight.base(), &held);
        flight.lose_from(psn(0));
        assert_eq!((flight.last_lost(psn(0), 9), flight.bytes()), (Some(5), 0));
        flight.resent(NOW, psn(0), 5);
        assert_eq!((flight.first_lost(), flight.bytes()), (None, 500));
    }

    #[test]
    fn both_copies_of_what_was_asked_about_early_are_under_way_until_one_is_answered() {
        let mut flight = flight(2);
        for copies in 1..4 {
            assert_eq!((flight.bytes(), flight.bytes_at_most()), (200, 100 + copies * 100));
            flight.lose_oldest();
            flight.resent(NOW, psn(0), 1);
        }
        flight.acknowledged(NOW, psn(1));
        flight.advance();
        assert_eq!((flight.bytes(), flight.bytes_at_most()), (100, 100));
        flight.lose_oldest();
        flight.lose_from(psn(1));
        assert_eq!(flight.bytes_at_most(), 0, "all of it goes again");
    }

    #[test]
    fn the_oldest_request_is_asked_for_again_as_a_whole() {
        let mut flight = flight(1);
        flight.sent(Time::default(), 4, 10, true);
        flight.lose_oldest();
        assert_eq!(flight.last_lost(psn(0), 9), Some(1));
        flight.acknowledged(NOW, psn(1));
        flight.advance();
        flight.lose_oldest();
        assert_eq!(flight.last_lost(psn(1), 9), Some(4));
    }
}
