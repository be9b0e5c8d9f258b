//! The requester's packets between the oldest unanswered PSN and the next new PSN, with the state
//! of each.
//!
//! The requester records sends here; the completer records responses and learns which packets are
//! lost.
//!
//! Map of this file: [`PacketState`] of a PSN, [`PacketsInFlight`] with sends, responses, inference
//! of losses and repeats, and [`AckProgress`], the effect of one response.

use crate::Time;
use crate::wire::{HELD_BITS, HeldPackets, Psn};
use std::collections::VecDeque;
use std::time::Duration;

/// The largest number of outstanding PSNs: as many as a [`HeldPackets`] covers, and less than any
/// peer's window.
pub(super) const OUTSTANDING: u32 = HELD_BITS;

/// Packets that may overtake another before the latter counts as lost.
const REORDERING: u32 = 3;

/// The state of a PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketState {
    /// In flight.
    Flying,
    /// Held by the peer behind a gap: arrived, but not executed.
    HeldPackets,
    /// To be sent again.
    Lost,
    /// Answered.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: PacketState,
    /// Number of the send operation, including repeats. All PSNs of one READ request share a
    /// number.
    serial: u32,
    sent_at: Time,
    bytes: u32,
    /// Only a response of its own completes the packet.
    wants_answer: bool,
    /// The packet was sent again, and either copy may be answered.
    was_resent: bool,
    /// The peer refused the packet, so a response belongs to the next copy.
    refused: bool,
}

/// The outstanding packets of a requester.
#[derive(Clone, Debug)]
pub(super) struct PacketsInFlight {
    base: Psn,
    slots: VecDeque<Slot>,
    flying_bytes: u64,
    /// Bytes that probes sent again since the oldest packet was answered. The first copies may be
    /// in flight too.
    copied_bytes: u64,
    lost_count: u32,
    serial: u32,
    /// The packet sent last among those that arrived.
    newest: Option<NewestArrival>,
}

/// A packet that arrived.
#[derive(Clone, Copy, Debug)]
struct NewestArrival {
    serial: u32,
    psn: Psn,
    /// When the packet was sent.
    sent_at: Time,
}

/// The effect of one response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AckProgress {
    /// Bytes that arrived.
    pub(super) bytes: u64,
    /// Packets that arrived.
    pub(super) packets: u32,
    /// Time from sending to response, of a packet that was sent once.
    pub(super) round_trip: Option<Duration>,
    /// One of the packets was sent again. Which copy was answered is unknown, and later packets
    /// waited for it.
    was_resent: bool,
}

impl AckProgress {
    /// Combines the effects of two parts of one response.
    pub(super) fn merged_with(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            packets: self.packets + other.packets,
            round_trip: other.round_trip.or(self.round_trip),
            was_resent: self.was_resent || other.was_resent,
        }
    }

    /// The round-trip time, if this response measures one (Karn's rule).
    pub(super) fn sample(&self) -> Option<Duration> {
        self.round_trip.filter(|_| !self.was_resent)
    }
}

impl PacketsInFlight {
    pub(super) fn new(base: Psn) -> Self {
        let slots = VecDeque::new();
        Self {
            base,
            slots,
            flying_bytes: 0,
            copied_bytes: 0,
            lost_count: 0,
            serial: 0,
            newest: None,
        }
    }

    /// The oldest unanswered PSN.
    pub(super) fn base(&self) -> Psn {
        self.base
    }

    /// The PSN of the next new packet.
    pub(super) fn next(&self) -> Psn {
        self.base.add(self.len())
    }

    /// Number of outstanding PSNs.
    pub(super) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Bytes in flight.
    pub(super) fn bytes(&self) -> u64 {
        self.flying_bytes
    }

    /// The largest possible number of bytes in flight: both copies of a probed packet may be.
    pub(super) fn bytes_at_most(&self) -> u64 {
        self.flying_bytes + self.copied_bytes
    }

    /// Number of PSNs that may be added.
    pub(super) fn room(&self) -> u32 {
        OUTSTANDING.saturating_sub(self.len())
    }

    /// Records that `count` PSNs of `bytes` each were sent.
    pub(super) fn record_sent(&mut self, now: Time, count: u32, bytes: u32, wants_answer: bool) {
        self.serial = self.serial.wrapping_add(1);
        let (serial, state) = (self.serial, PacketState::Flying);
        let (again, refused) = (false, false);
        let slot =
            Slot { state, serial, sent_at: now, bytes, wants_answer, was_resent: again, refused };
        self.slots.extend((0..count).map(|_| slot));
        self.flying_bytes += u64::from(count) * u64::from(bytes);
    }

    /// Whether a PSN must be sent again.
    pub(super) fn has_lost(&self) -> bool {
        self.lost_count != 0
    }

    /// The first PSN that must be sent again.
    pub(super) fn first_lost(&self) -> Option<Psn> {
        if !self.has_lost() {
            return None;
        }
        let index = self.slots.iter().position(|slot| slot.state == PacketState::Lost)?;
        Some(self.base.add(index as u32))
    }

    /// The first unanswered PSN from `psn` on.
    pub(super) fn unanswered_from(&self, psn: Psn) -> Psn {
        let skip = psn.after(self.base).unwrap_or(0);
        let slots = self.slots.iter().skip(skip as usize);
        self.base
            .add(skip + slots.take_while(|slot| slot.state == PacketState::Done).count() as u32)
    }

    /// The number of PSNs from `psn` up to the last lost one, among the first `most`.
    pub(super) fn last_lost(&self, psn: Psn, most: u32) -> Option<u32> {
        let slots = self.slots.iter().skip(psn.after(self.base)? as usize).take(most as usize);
        (1..).zip(slots).filter(|(_, slot)| slot.state == PacketState::Lost).map(|(n, _)| n).last()
    }

    /// Records that `count` PSNs from `psn` were sent again. Answered and held PSNs keep their
    /// state.
    pub(super) fn resent(&mut self, now: Time, psn: Psn, count: u32) {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let Some(skip) = psn.after(self.base) else { return };
        for slot in self.slots.iter_mut().skip(skip as usize).take(count as usize) {
            if matches!(slot.state, PacketState::Done | PacketState::HeldPackets) {
                continue;
            }
            if slot.state == PacketState::Lost {
                self.lost_count -= 1;
                self.flying_bytes += u64::from(slot.bytes);
            }
            let again = !slot.refused;
            let state = PacketState::Flying;
            *slot =
                Slot { state, serial, sent_at: now, was_resent: again, refused: false, ..*slot };
        }
    }

    /// Completes all packets before `psn` that need no response of their own.
    pub(super) fn acknowledged(&mut self, now: Time, psn: Psn) -> AckProgress {
        let mut gain = AckProgress::default();
        let count = psn.after(self.base).unwrap_or(0).min(self.len());
        for index in 0..count {
            if self.slots.get(index as usize).is_some_and(|slot| !slot.wants_answer) {
                self.mark_acknowledged(now, index, &mut gain);
            }
        }
        gain
    }

    /// Completes `psn` by its response. Returns `None` if `psn` is not outstanding or expects no
    /// response.
    pub(super) fn answered(&mut self, now: Time, psn: Psn) -> Option<AckProgress> {
        let index = psn.after(self.base)?;
        let slot = self.slots.get(index as usize)?;
        if !slot.wants_answer || slot.state == PacketState::Done {
            return None;
        }
        let mut gain = AckProgress::default();
        self.mark_acknowledged(now, index, &mut gain);
        Some(gain)
    }

    fn mark_acknowledged(&mut self, now: Time, index: u32, gain: &mut AckProgress) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let before = std::mem::replace(&mut slot.state, PacketState::Done);
        if before != PacketState::Done && before != PacketState::HeldPackets {
            self.arrived(now, index, before, gain);
        }
    }

    /// Records the arrival of the packet at `index`, whose state was `before`.
    fn arrived(&mut self, now: Time, index: u32, before: PacketState, gain: &mut AckProgress) {
        let psn = self.base.add(index);
        let Some(&Slot { serial, sent_at: at, bytes, was_resent: again, .. }) =
            self.slots.get(index as usize)
        else {
            return;
        };
        match before {
            PacketState::Flying => self.flying_bytes -= u64::from(bytes),
            PacketState::Lost => self.lost_count -= 1,
            PacketState::Done | PacketState::HeldPackets => {}
        }
        gain.bytes += u64::from(bytes);
        gain.packets += 1;
        gain.was_resent |= again;
        if !again {
            gain.round_trip = Some(now.since(at));
        }
        let newer = |other: NewestArrival| {
            let ahead = serial.wrapping_sub(other.serial).cast_signed();
            ahead > 0 || (ahead == 0 && psn.since(other.psn) > 0)
        };
        if self.newest.is_none_or(newer) {
            self.newest = Some(NewestArrival { serial, psn, sent_at: at });
        }
    }

    /// Marks the packets that the peer holds behind `gap`.
    pub(super) fn mark_held(&mut self, now: Time, gap: Psn, held: &HeldPackets) -> AckProgress {
        let mut gain = AckProgress::default();
        let Some(skip) = gap.after(self.base) else { return gain };
        let index_of = |bit| skip.saturating_add(1).saturating_add(bit);
        for index in (0..HELD_BITS).filter(|&bit| held.contains(bit)).map(index_of) {
            let Some(slot) = self.slots.get_mut(index as usize) else { break };
            if matches!(slot.state, PacketState::Done | PacketState::HeldPackets) {
                continue;
            }
            let before = std::mem::replace(&mut slot.state, PacketState::HeldPackets);
            self.arrived(now, index, before, &mut gain);
        }
        gain
    }

    /// Marks packets as lost that were sent well before a packet that arrived: three packets
    /// before, or `patience` before. Few packets in flight leave only the time. Returns the number
    /// of new losses.
    pub(super) fn infer_lost(&mut self, patience: Duration) -> DetectedLosses {
        let mut missed = DetectedLosses::default();
        let Some(newest) = self.newest else { return missed };
        for (index, slot) in (0..).zip(&mut self.slots) {
            if slot.state != PacketState::Flying {
                continue;
            }
            let behind = newest.proves_loss_of(slot, patience);
            let before = newest.psn.since(self.base.add(index));
            let reordering = REORDERING.cast_signed();
            if behind || (newest.serial == slot.serial && before >= reordering) {
                slot.state = PacketState::Lost;
                self.flying_bytes -= u64::from(slot.bytes);
                missed.packets += 1;
                missed.answers += u32::from(slot.wants_answer);
            }
        }
        self.lost_count += missed.packets;
        missed
    }

    /// Marks all unanswered packets from `psn` on as lost.
    pub(super) fn lose_from(&mut self, psn: Psn) {
        // All earlier copies have left the network by now.
        self.copied_bytes = 0;
        let skip = psn.after(self.base).unwrap_or(0);
        for index in skip..self.len() {
            self.mark_lost(index);
        }
    }

    /// Marks all packets from `psn` on as lost, because the peer reported that it dropped them.
    pub(super) fn refused_from(&mut self, psn: Psn) {
        self.lose_from(psn);
        let skip = psn.after(self.base).unwrap_or(0) as usize;
        for slot in self.slots.iter_mut().skip(skip) {
            slot.refused = true;
        }
    }

    /// Marks the oldest packet as lost, with all packets of the same READ request.
    pub(super) fn lose_oldest(&mut self) {
        let unanswered = self.slots.iter().position(|slot| slot.state != PacketState::Done);
        let Some(first) = unanswered else { return };
        let Some(serial) = self.slots.get(first).map(|slot| slot.serial) else { return };
        let same = self.slots.iter().skip(first);
        let count = same
            .take_while(|slot| slot.serial == serial && slot.state != PacketState::Done)
            .count();
        for index in first..first + count {
            self.repeat(index as u32);
        }
    }

    /// Marks only the oldest packet as lost.
    pub(super) fn lose_first(&mut self) {
        self.repeat(0);
    }

    /// Marks a packet as lost that may have arrived, or may still arrive.
    fn repeat(&mut self, index: u32) {
        let flying =
            self.slots.get(index as usize).filter(|slot| slot.state == PacketState::Flying);
        self.copied_bytes += flying.map_or(0, |slot| u64::from(slot.bytes));
        self.mark_lost(index);
    }

    fn mark_lost(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        match slot.state {
            PacketState::Done | PacketState::Lost => return,
            PacketState::Flying => self.flying_bytes -= u64::from(slot.bytes),
            PacketState::HeldPackets => {}
        }
        slot.state = PacketState::Lost;
        self.lost_count += 1;
    }

    /// Removes answered packets at the base. Returns whether any was removed.
    pub(super) fn advance(&mut self) -> bool {
        let before = self.base;
        while self.slots.front().is_some_and(|slot| slot.state == PacketState::Done) {
            self.slots.pop_front();
            self.base = self.base.add(1);
        }
        let advanced = self.base != before;
        if advanced {
            self.copied_bytes = 0;
        }
        advanced
    }

    /// Whether a packet arrived that was sent later than an unanswered one, so that
    /// [`infer_lost`](Self::infer_lost) may find losses. The order of sending decides, because a
    /// probe is itself the oldest PSN.
    pub(super) fn has_suspects(&self, patience: Duration) -> bool {
        let Some(newest) = self.newest else { return false };
        let oldest = self.slots.front();
        newest.psn.since(self.base) > 0
            || oldest.is_some_and(|slot| newest.proves_loss_of(slot, patience))
    }
}

/// Newly detected losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DetectedLosses {
    pub(super) packets: u32,
    /// Lost packets that only a response of their own completes.
    pub(super) answers: u32,
}

impl NewestArrival {
    /// Whether `slot` was sent so long before this packet that it should have arrived.
    fn proves_loss_of(&self, slot: &Slot, patience: Duration) -> bool {
        let packets = self.serial.wrapping_sub(slot.serial).cast_signed();
        packets >= REORDERING.cast_signed()
            || (packets > 0 && self.sent_at.since(slot.sent_at) >= patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_ns(1000);
    const ROUND_TRIP: Duration = Duration::from_micros(100);

    fn flight(packets: u32) -> PacketsInFlight {
        let mut flight = PacketsInFlight::new(Psn::new(0xff_fff0));
        (0..packets).for_each(|_| flight.record_sent(Time::default(), 1, 100, false));
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
        assert_eq!(
            flight.acknowledged(NOW, psn(10)),
            AckProgress::default(),
            "old ones say nothing"
        );
    }

    #[test]
    fn held_packets_are_not_repeated_and_not_complete() {
        let mut flight = flight(8);
        let mut held = HeldPackets::NONE;
        [2, 3, 4, 5].into_iter().for_each(|index| held.insert(index));
        flight.acknowledged(NOW, psn(1));
        flight.advance();
        flight.mark_held(NOW, flight.base(), &held);
        assert_eq!(flight.infer_lost(ROUND_TRIP).packets, 3, "1, 2 and 3 are missing");
        assert_eq!((flight.first_lost(), flight.last_lost(psn(1), 9)), (Some(psn(1)), Some(3)));
        for index in 1..4 {
            flight.resent(NOW, psn(index), 1);
        }
        assert_eq!(flight.infer_lost(ROUND_TRIP).packets, 0, "they are in flight again");
        flight.acknowledged(NOW, psn(8));
        flight.advance();
        assert!(flight.is_empty() && flight.bytes() == 0);
    }

    #[test]
    fn one_overtaking_packet_marks_no_loss() {
        let mut flight = flight(4);
        let mut held = HeldPackets::NONE;
        held.insert(0);
        flight.mark_held(NOW, flight.base(), &held);
        assert_eq!(flight.infer_lost(ROUND_TRIP).packets, 0);
    }

    #[test]
    fn a_packet_sent_much_later_that_arrived_marks_earlier_ones_lost() {
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
    fn a_held_packet_gives_a_round_trip_sample_at_its_report_and_not_at_completion() {
        let mut flight = flight(3);
        let mut held = HeldPackets::NONE;
        held.insert(0);
        let gain = flight.mark_held(NOW, psn(0), &held);
        assert_eq!((gain.sample(), gain.packets), (Some(Duration::from_micros(1)), 1));
        flight.lose_oldest();
        let second = Time::from_ns(1_000_000_000);
        flight.resent(second, psn(0), 1);
        let gain = flight.acknowledged(second, psn(3));
        assert_eq!((gain.sample(), gain.packets), (None, 2));
    }

    #[test]
    fn a_response_to_a_repeat_after_a_refusal_gives_a_round_trip_sample() {
        let mut flight = flight(3);
        flight.refused_from(psn(1));
        flight.resent(NOW, psn(1), 2);
        let later = NOW.after(ROUND_TRIP);
        assert_eq!(flight.acknowledged(later, psn(3)).sample(), Some(ROUND_TRIP));
    }

    #[test]
    fn later_responses_reveal_lost_read_responses() {
        let mut flight = PacketsInFlight::new(psn(0));
        flight.record_sent(Time::default(), 10, 1024, true);
        assert_eq!(flight.acknowledged(NOW, psn(10)).bytes, 0, "only data will do");
        assert_eq!(flight.answered(NOW, psn(5)).map(|gain| gain.bytes), Some(1024));
        assert_eq!(flight.answered(NOW, psn(5)), None, "once");
        assert_eq!(flight.infer_lost(ROUND_TRIP).packets, 3, "0, 1 and 2; 3 and 4 may come");
        assert_eq!(flight.last_lost(psn(0), 10), Some(3));
        assert!(!flight.advance() && flight.has_suspects(ROUND_TRIP));
    }

    #[test]
    fn after_a_timeout_all_packets_are_sent_again() {
        let mut flight = flight(5);
        let mut held = HeldPackets::NONE;
        held.insert(1);
        flight.mark_held(NOW, flight.base(), &held);
        flight.lose_from(psn(0));
        assert_eq!((flight.last_lost(psn(0), 9), flight.bytes()), (Some(5), 0));
        flight.resent(NOW, psn(0), 5);
        assert_eq!((flight.first_lost(), flight.bytes()), (None, 500));
    }

    #[test]
    fn both_copies_of_a_probed_packet_are_in_flight_until_one_is_answered() {
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
    fn the_oldest_read_is_requested_again_as_a_whole() {
        let mut flight = flight(1);
        flight.record_sent(Time::default(), 4, 10, true);
        flight.lose_oldest();
        assert_eq!(flight.last_lost(psn(0), 9), Some(1));
        flight.acknowledged(NOW, psn(1));
        flight.advance();
        flight.lose_oldest();
        assert_eq!(flight.last_lost(psn(1), 9), Some(4));
    }
}
