//! The sending half of a connection: from the transport's packets to the outbox.
//! Stands between the send queue of a QP ([`RequestQueue`]) and the outbox.
#![forbid(unsafe_code)]

use super::{HostConnection, PeerRoute, ReadOwner};
use crate::host::outbox::LazyOutbox;
use crate::host::sockets::Sockets;
use crate::host::wire::HostWire;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{Event, Payload, Refusal, Status, Transmit, Work};
use soft_local::fabric::Fabric;
use soft_memory::careful::MappedRange;
use std::sync::Arc;

/// The send queue of a QP, as its connection sees the queue. Requests have numbers in their order.
pub(crate) trait RequestQueue {
    /// Table index of the QP.
    fn index(&self) -> usize;

    /// The wire of the process.
    fn wire(&self) -> &HostWire;

    fn fabric(&self) -> &Fabric;

    /// A port that is down sends nothing.
    fn is_port_down(&self) -> bool;

    /// The transport has finished request `n`.
    fn complete(&mut self, n: u64, status: Status);

    /// Executes bind or invalidate request `n`.
    fn perform(&mut self, n: u64) -> LocalWork;

    /// Fills `to` from `offset` of request `n`. Returns false if the memory is no longer mapped.
    fn gather(&mut self, n: u64, offset: usize, to: &mut [u8]) -> bool;

    /// Fills `to` with bytes that the peer reads. `owner` names the owner of the region, if the
    /// QP's own protection domain is not the owner. `seen` holds results of checks whether memory
    /// is mapped.
    ///
    /// # Errors
    /// The region does not permit the READ, or is no longer mapped.
    fn read_region(
        &mut self,
        owner: Option<ReadOwner>,
        seen: &mut MappedRange,
        va: u64,
        rkey: u32,
        to: &mut [u8],
    ) -> Result<(), Refusal>;
}

/// The result of a bind or invalidate request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalWork {
    Done(Status),
    /// The memory window is busy.
    Busy,
    /// The request was flushed.
    Flushed,
}

/// Results of a call of the transport that the caller has to handle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PumpOutcome {
    /// The status with which the QP has failed.
    pub(crate) failed: Option<Status>,
    /// The message in progress from the peer was aborted.
    pub(crate) message_aborted: bool,
}

impl PumpOutcome {
    /// Combines two results in their order.
    pub(crate) fn followed_by(self, later: Self) -> Self {
        Self {
            failed: self.failed.or(later.failed),
            message_aborted: self.message_aborted || later.message_aborted,
        }
    }
}

/// What happens to an acknowledgement that no packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckPolicy {
    SendNow,
    /// Wait: the application may post a request that carries the acknowledgement.
    Defer,
}

impl HostConnection {
    /// Gives a request to the transport. Returns false if the transport refuses the request.
    pub(crate) fn post(&mut self, work: Work) -> bool {
        self.transport.post(work).is_ok()
    }

    /// Sends the packets of new requests.
    pub(crate) fn send_posted<Q: RequestQueue>(&mut self, queue: &mut Q, sockets: &Sockets) {
        let mut outbox = sockets.outbox().lazy();
        let now = sockets.now();
        // No packet has arrived, so a failure belongs to a request.
        let _ = self.pump(queue, &mut outbox, now, AckPolicy::SendNow);
        outbox.flush();
        drop(outbox);
        sockets.counters.add_connection(self);
        self.schedule_timeout(queue);
    }

    /// Queues the deferred acknowledgement, unless a request has carried the acknowledgement. The
    /// next `flush` sends the packet.
    pub(crate) fn send_deferred_ack<Q: RequestQueue>(
        &mut self,
        queue: &mut Q,
        sockets: &Sockets,
        now: Time,
    ) {
        self.ack_is_deferred = false;
        if self.transport.owes_acknowledgement() {
            let mut outbox = sockets.outbox().lazy();
            let _ = self.pump(queue, &mut outbox, now, AckPolicy::SendNow);
            drop(outbox);
            self.schedule_timeout(queue);
        }
        // `end_round` leaves the counters to this function after a deferral.
        sockets.counters.add_connection(self);
    }

    /// Sends the packets that waited for send window.
    pub(crate) fn resume_sending<Q: RequestQueue>(
        &mut self,
        queue: &mut Q,
        sockets: &Sockets,
        now: Time,
    ) {
        // The QP may have a new connection since the wait began.
        let Some(share) = self.window_share.as_mut().filter(|share| share.is_waiting()) else {
            return;
        };
        share.stop_waiting();
        let mut outbox = sockets.outbox().lazy();
        let _ = self.pump(queue, &mut outbox, now, AckPolicy::Defer);
        drop(outbox);
        sockets.counters.add_connection(self);
        self.schedule_timeout(queue);
    }

    /// Whether the QP waits for send window.
    pub(crate) fn waits_for_send_window(&self) -> bool {
        self.window_share.as_ref().is_some_and(|share| share.is_waiting())
    }

    /// Whether a bind or invalidate request waits for a busy memory window. No packet announces the
    /// end of the wait.
    pub(crate) const fn waits_for_memory_window(&self) -> bool {
        self.waiting_local_work.is_some()
    }

    /// Sends READ responses with the present content of memory, before the next packet changes the
    /// content.
    #[inline]
    pub(super) fn pump_responses<Q: RequestQueue>(
        &mut self,
        queue: &mut Q,
        sockets: &Sockets,
        now: Time,
    ) -> PumpOutcome {
        if self.transport.owes_answer() {
            self.pump(queue, &mut sockets.outbox().lazy(), now, AckPolicy::Defer)
        } else {
            PumpOutcome::default()
        }
    }

    /// Handles the events of the transport, and queues the packets that may leave.
    pub(crate) fn pump<Q: RequestQueue>(
        &mut self,
        queue: &mut Q,
        outbox: &mut LazyOutbox<'_>,
        now: Time,
        ack_policy: AckPolicy,
    ) -> PumpOutcome {
        // Taken out for the duration of the call: a clone would write the reference count twice.
        let Some(peer_route) = self.route.take() else { return PumpOutcome::default() };
        let outcome = self.pump_to(&peer_route, queue, outbox, now, ack_policy);
        if let Some(share) = &mut self.window_share {
            share.update(self.transport.flying());
        }
        self.route = Some(peer_route);
        outcome
    }

    fn pump_to<Q: RequestQueue>(
        &mut self,
        peer_route: &Arc<PeerRoute>,
        queue: &mut Q,
        outbox: &mut LazyOutbox<'_>,
        now: Time,
        ack_policy: AckPolicy,
    ) -> PumpOutcome {
        let mut outcome = PumpOutcome::default();
        // Once for each call: `update` reports the packets in flight at the end.
        let mut allowed = false;
        self.checked_range = MappedRange::default();
        if self.transport.is_greeted() {
            peer_route.shortcut.confirm_peer();
        }
        self.retry_local_work(queue);
        loop {
            while let Some(event) = self.transport.poll_event() {
                self.handle_event(queue, event, &mut outcome);
            }
            let transport = &mut self.transport;
            if transport.has_nothing_to_send(ack_policy == AckPolicy::Defer) {
                return outcome;
            }
            if !std::mem::replace(&mut allowed, true)
                && let Some(share) = &mut self.window_share
            {
                let bytes = share.allowance(transport.flying());
                transport.allow(bytes);
                if bytes == 0 && share.start_waiting() {
                    queue.wire().wait_for_send_window(queue.index());
                }
            }
            let transmit = match ack_policy {
                AckPolicy::SendNow => transport.poll_transmit(now),
                AckPolicy::Defer => transport.poll_transmit_before_acknowledgement(now),
            };
            let Some(transmit) = transmit else {
                match self.transport.poll_event() {
                    Some(event) => self.handle_event(queue, event, &mut outcome),
                    None => return outcome,
                }
                continue;
            };
            self.queue_packet(peer_route, queue, outbox, &transmit);
        }
    }

    fn handle_event<Q: RequestQueue>(
        &mut self,
        queue: &mut Q,
        event: Event,
        outcome: &mut PumpOutcome,
    ) {
        match event {
            Event::Completed { work, status } => queue.complete(work, status),
            Event::Perform { work } => {
                self.waiting_local_work = Some(work);
                self.retry_local_work(queue);
            }
            Event::Failed(status) => outcome.failed = Some(status),
            Event::Cut => outcome.message_aborted = true,
            // The send queue knows which requests are in progress.
            Event::Drained => {}
        }
    }

    /// Retries a bind or invalidate request that is next in order.
    fn retry_local_work<Q: RequestQueue>(&mut self, queue: &mut Q) {
        let Some(n) = self.waiting_local_work else { return };
        match queue.perform(n) {
            LocalWork::Busy => {}
            LocalWork::Flushed => self.waiting_local_work = None,
            LocalWork::Done(status) => {
                self.waiting_local_work = None;
                self.transport.performed(n, status);
            }
        }
    }

    /// Queues one packet. Memory that is no longer mapped fails the request, or the peer's READ.
    fn queue_packet<Q: RequestQueue>(
        &mut self,
        peer_route: &Arc<PeerRoute>,
        queue: &mut Q,
        outbox: &mut LazyOutbox<'_>,
        transmit: &Transmit,
    ) {
        if queue.is_port_down() {
            return;
        }
        let Transmit { head, payload, padding, ecn_capable } = transmit;
        let mut put = |len: usize, fill: &mut dyn FnMut(&mut [u8]) -> bool| {
            outbox.open().put_packet(peer_route, head, len, *padding, *ecn_capable, fill)
        };
        match *payload {
            Payload::None => {
                put(0, &mut |_| true);
            }
            Payload::Work { id, offset, len } => {
                let len = len as usize;
                if !put(len, &mut |to| queue.gather(id, offset as usize, to)) {
                    self.transport.fail_work(id, Status::LocalProtection);
                }
            }
            Payload::Region { read, part } => {
                let len = part.len as usize;
                let owner = self.read_owner(read);
                let mut outcome = Ok(());
                let seen = &mut self.checked_range;
                put(len, &mut |to| {
                    outcome = queue.read_region(owner, seen, part.va, part.rkey, to);
                    outcome.is_ok()
                });
                if let Err(refusal) = outcome {
                    self.transport.read_failed(read, refusal);
                }
            }
        }
    }

    pub(super) fn schedule_timeout<Q: RequestQueue>(&mut self, queue: &Q) {
        queue.wire().schedule_timeout(queue.fabric(), queue.index(), self);
    }
}
