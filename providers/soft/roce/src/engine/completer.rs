//! The requester's handling of responses (IBTA 1.7 9.7.5): acknowledgements, data, NAKs.
//!
//! `requester` decides what to send; this file completes requests by what the peer sends back.

use super::requester::Requester;
use super::shared::QpShared;
use super::{DropReason, Op, Status, Step};
use crate::Time;
use crate::wire::{Aeth, HeldPackets, Nak, Psn, ReadResponse, Response, Syndrome};
use std::ops::Range;

impl Requester {
    /// Handles a response for `psn`, whose data are in `payload`.
    pub(super) fn receive(
        &mut self,
        now: Time,
        psn: Psn,
        response: Response,
        payload: Range<usize>,
        shared: &mut QpShared,
    ) -> Step {
        // An acknowledgement may repeat the newest PSN. Any other response must concern an
        // outstanding PSN.
        let newest =
            matches!(response, Response::Acknowledge(_)) && psn.add(1) == self.flight.base();
        let outstanding = psn.after(self.flight.base()).is_some_and(|n| n < self.flight.len());
        if !newest && !outstanding {
            return Step::Dropped(DropReason::Psn);
        }
        match response {
            Response::Acknowledge(aeth) => self.acknowledge(now, psn, aeth, shared),
            Response::Atomic(aeth, value) => {
                let Some(op) = self.find(psn).map(|wqe| wqe.work.op) else {
                    return Step::Dropped(DropReason::Psn);
                };
                if !matches!(op, Op::Atomic { .. }) {
                    return self.bad_response(now, psn, shared);
                }
                self.data(now, psn, Some(aeth), shared, |work| Step::Original { work, value })
            }
            Response::Read(part) => self.read_response(now, psn, part, payload, shared),
        }
    }

    fn read_response(
        &mut self,
        now: Time,
        psn: Psn,
        part: ReadResponse,
        payload: Range<usize>,
        shared: &mut QpShared,
    ) -> Step {
        let Some(wqe) = self.find(psn) else { return Step::Dropped(DropReason::Psn) };
        let index = psn.after(wqe.first).unwrap_or(0);
        let offset = index * shared.config.pmtu.bytes();
        // The PSN alone determines the offset, whichever part of the READ the requester repeated.
        let wanted = match wqe.work.op {
            Op::Read { .. } => (wqe.work.len - offset).min(shared.config.pmtu.bytes()),
            Op::Flush { .. } | Op::AtomicWrite { .. } => 0,
            _ => return self.bad_response(now, psn, shared),
        };
        if payload.len() != wanted as usize {
            return self.bad_response(now, psn, shared);
        }
        let aeth = match part {
            ReadResponse::First(aeth) | ReadResponse::Last(aeth) | ReadResponse::Only(aeth) => {
                Some(aeth)
            }
            ReadResponse::Middle => None,
        };
        self.data(now, psn, aeth, shared, |work| match wanted {
            0 => Step::Done,
            _ => Step::PlaceResponse { work, offset, payload },
        })
    }

    /// Handles the response to `psn`, which also acknowledges all earlier packets.
    fn data(
        &mut self,
        now: Time,
        psn: Psn,
        aeth: Option<Aeth>,
        shared: &mut QpShared,
        step: impl FnOnce(u64) -> Step,
    ) -> Step {
        if aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack(_))) {
            return self.bad_response(now, psn, shared);
        }
        let Some(work) = self.find(psn).map(|wqe| wqe.work.id) else {
            return Step::Dropped(DropReason::Psn);
        };
        let mut gain = self.flight.acknowledged(now, psn);
        let Some(answered) = self.flight.answered(now, psn) else {
            self.progress(now, gain, shared);
            return Step::Dropped(DropReason::Psn);
        };
        gain = gain.merged_with(answered);
        if let Some(aeth) = aeth {
            self.grant(aeth);
        }
        self.progress(now, gain, shared);
        step(work)
    }

    fn acknowledge(&mut self, now: Time, psn: Psn, aeth: Aeth, shared: &mut QpShared) -> Step {
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                self.grant(aeth);
                let gain = self.flight.acknowledged(now, psn.add(1));
                self.progress(now, gain, shared);
            }
            Syndrome::Rnr(timer) => {
                if !self.reached(now, psn, shared) {
                    return Step::Dropped(DropReason::Psn);
                }
                shared.counters.rcvd_rnr_err += 1;
                if self.sending.rnr_retry != 7 {
                    let Some(left) = self.rnr_retries.checked_sub(1) else {
                        shared.counters.rnr_nak_retry_err += 1;
                        self.fail(Status::RnrRetryExceeded, shared);
                        return Step::Done;
                    };
                    self.rnr_retries = left;
                }
                self.flight.refused_from(psn);
                self.timers.wait(now, timer.duration());
            }
            Syndrome::Nak(Nak::Sequence) => {
                if self.timers.is_waiting() {
                    // The peer dropped packets behind the request that waits for a receive.
                    return Step::Dropped(DropReason::Psn);
                }
                if !self.reached(now, psn, shared) {
                    return Step::Dropped(DropReason::Psn);
                }
                shared.counters.packet_seq_err += 1;
                if self.last_nak.replace(psn) == Some(psn) && !self.retry(shared) {
                    return Step::Done;
                }
                self.flight.refused_from(psn);
                shared.congestion.on_new_losses(1);
                self.handle_losses(now, false, shared);
                self.plainly_refused();
            }
            Syndrome::Nak(nak) => {
                if !self.reached(now, psn, shared) {
                    return Step::Dropped(DropReason::Psn);
                }
                if self.flight.base() != psn {
                    // Responses before this PSN are missing. Request them first, because requests
                    // complete in order.
                    self.flight.lose_from(self.flight.base());
                    return Step::Done;
                }
                let status = match nak {
                    Nak::InvalidRequest => {
                        shared.counters.req_remote_invalid_request += 1;
                        Status::RemoteInvalidRequest
                    }
                    Nak::RemoteAccess => {
                        shared.counters.req_remote_access_errors += 1;
                        Status::RemoteAccess
                    }
                    Nak::RemoteOperation | Nak::InvalidRd | Nak::Sequence => {
                        Status::RemoteOperation
                    }
                };
                self.fail(status, shared);
            }
        }
        Step::Done
    }

    /// Handles a selective acknowledgement: the peer holds packets behind a gap at `psn`.
    pub(super) fn selective(
        &mut self,
        now: Time,
        psn: Psn,
        held: &HeldPackets,
        shared: &mut QpShared,
    ) -> Step {
        let outstanding = psn.after(self.flight.base()).is_some_and(|n| n < self.flight.len());
        if self.timers.is_waiting() || !outstanding {
            return Step::Dropped(DropReason::Psn);
        }
        shared.counters.packet_seq_err += 1;
        // Evaluate both sets before inferring losses. A held packet may have been sent before an
        // acknowledged packet, if the latter was sent again.
        let before = self.flight.acknowledged(now, psn);
        let held = self.flight.mark_held(now, psn, held);
        self.selects = true;
        self.timers.response_arrived();
        self.progress(now, before.merged_with(held), shared);
        Step::Done
    }

    /// Completes all packets before `psn`. Returns whether `psn` itself is still outstanding.
    fn reached(&mut self, now: Time, psn: Psn, shared: &mut QpShared) -> bool {
        self.timers.response_arrived();
        let gain = self.flight.acknowledged(now, psn);
        self.progress(now, gain, shared);
        !shared.error && psn.after(self.flight.base()).is_some_and(|n| n < self.flight.len())
    }

    /// Applies the peer's credits, which count from the messages that the peer has completed.
    fn grant(&mut self, aeth: Aeth) {
        let Syndrome::Ack(credits) = aeth.syndrome else { return };
        self.credit = credits.messages().map(|messages| {
            // The MSN holds the low 24 bits of this requester's message count.
            let behind = self.messages.wrapping_sub(aeth.msn.get()) & 0xff_ffff;
            self.messages.wrapping_sub(behind).wrapping_add(messages)
        });
    }

    fn bad_response(&mut self, now: Time, psn: Psn, shared: &mut QpShared) -> Step {
        let gain = self.flight.acknowledged(now, psn);
        self.progress(now, gain, shared);
        if !shared.error {
            self.fail(Status::BadResponse, shared);
        }
        Step::Dropped(DropReason::Message)
    }
}
