//! Strict mode (`soft_semantics::strict`): a wire that refuses on one host what adapters refuse
//! between hosts. `Requester::issue_waiting` of a strict QP passes here; the send queue also counts
//! completions that were not polled.
//!
//! Strict mode is fixed when a QP is created. A strict send queue does not use the fast path, and
//! each request is checked before it is queued. Other QPs do not have this wire.
#![forbid(unsafe_code)]

use crate::engine::faults::plan::FaultSchedule;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::wire::wrap;
use crate::engine::queues::qp::{Issued, Requester, RetryAttributes, Wire};
use crate::engine::ring::Link;
use crate::engine::ring::holder::PeerState;
use abi::ibv_qp_attr;
use soft_semantics::Time;
use soft_semantics::request::{QueuedRequest, RequestPhase};
use soft_semantics::state::QpType;
use soft_semantics::strict::{ConnectionLimits, StrictVerdict, takes_resource, verdict};
use std::sync::atomic::Ordering;

/// The wire of strict mode.
#[derive(Debug)]
struct StrictWire {
    inner: Box<dyn Wire>,
}

impl Wire for StrictWire {
    #[cold]
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        let inner = &mut self.inner;
        while requester.sends.has_issuable() {
            let n = requester.sends.queue.issued;
            let verdict = match requester.check_request(qp, n) {
                Some(verdict) => verdict,
                None if qp.qp_type() == QpType::Uc => StrictVerdict::Lost,
                None => {
                    requester.start_timeout(qp);
                    break;
                }
            };
            let issued = match verdict {
                StrictVerdict::Goes => requester.issue_before(n + 1, |of| inner.issue(of, qp)),
                StrictVerdict::Refused(nak) => {
                    requester.issue_with_refusal(n, nak, |of| inner.issue(of, qp))
                }
                StrictVerdict::Fails(status) => {
                    requester.sends.fail(n, status);
                    Issued::SoFar
                }
                StrictVerdict::Lost => {
                    requester.sends.lose_request(n);
                    Issued::SoFar
                }
            };
            if issued == Issued::PortDown || requester.sends.queue.issued == n {
                return issued;
            }
        }
        Issued::SoFar
    }

    fn is_timed(&self) -> bool {
        self.inner.is_timed()
    }

    fn gathers(&self) -> bool {
        self.inner.gathers()
    }

    fn inner(&mut self) -> Option<&mut Box<dyn Wire>> {
        Some(&mut self.inner)
    }

    fn fault_schedule(&mut self) -> Option<&mut FaultSchedule> {
        self.inner.fault_schedule()
    }

    fn held_until(&self, n: u64) -> Option<Time> {
        self.inner.held_until(n)
    }

    fn detach_link(&mut self, link: &mut Option<Box<Link>>) -> bool {
        self.inner.detach_link(link)
    }

    fn attach_link(&mut self) -> Option<Box<Link>> {
        self.inner.attach_link()
    }

    fn port_up(&mut self) {
        self.inner.port_up();
    }
}

impl RetryAttributes {
    /// The retry attributes in `attr`.
    pub(crate) const fn of(attr: &ibv_qp_attr) -> Self {
        Self { timeout: attr.timeout, retry_cnt: attr.retry_cnt, max_rd_atomic: attr.max_rd_atomic }
    }
}

impl Requester {
    /// Turns strict mode on.
    pub(in crate::engine) fn become_strict(&mut self, kind: QpType) {
        self.sends.queue.set_strict();
        self.sends.unpolled = Some(Box::default());
        // Unconnected QPs have no remote attributes to check.
        if kind.is_connected() {
            wrap(&mut self.wire, |inner| StrictWire { inner });
        }
    }

    /// Number of requests that the application can post now.
    pub(crate) fn postable_requests(&mut self, qp: &Qp) -> usize {
        match &mut self.sends.unpolled {
            None => self.sends.queue.room(),
            Some(unpolled) => {
                if let Some(pair) = qp.pair() {
                    unpolled.polled(pair.send_cq.polled_to());
                }
                self.sends.queue.room().saturating_sub(unpolled.occupied_places())
            }
        }
    }

    /// Records a completed request, and the position of its completion, if any.
    #[cold]
    pub(in crate::engine) fn note_unpolled(
        &mut self,
        entry: &QueuedRequest,
        position: Option<u64>,
    ) {
        if let Some(unpolled) = self.sends.unpolled.as_mut().filter(|_| !entry.is_tag_operation) {
            unpolled.completed(takes_resource(&entry.request.operation), position);
        }
    }

    /// The verdict for request `n` under the present attributes of both ends; None if the remote QP
    /// does not serve yet.
    fn check_request(&mut self, qp: &Qp, n: u64) -> Option<StrictVerdict> {
        let QueuedRequest { request, len, offset, .. } = *self.sends.queue.entry(n);
        if offset > 0 || self.host_connection.is_some() || request.operation.is_local() {
            // The request was judged when it began, or the transport to another host judges it, or
            // it needs no remote QP.
            return Some(StrictVerdict::Goes);
        }
        // Without a link the inner wire measures the timeout.
        let Some(link) = self.ring.link.take() else { return Some(StrictVerdict::Goes) };
        if qp.qp_type() != QpType::XrcSend && !self.is_served(qp, &link) {
            self.ring.link = Some(link);
            return None;
        }
        let home = self.xrc_rings.home().unwrap_or(&link);
        // A stand-in may serve for an XRC QP whose process ended; the attributes of that QP are
        // unknown.
        let is_known = matches!(home.peer_state(qp.qpn()), PeerState::Serving(_));
        let responder = home.entry();
        let ends = ConnectionLimits {
            own_mtu: qp.entry().path_mtu.load(Ordering::Relaxed),
            remote_mtu: responder.path_mtu.load(Ordering::Relaxed),
            depth: self.retry.max_rd_atomic,
            remote_depth: responder.max_dest_rd_atomic.load(Ordering::Relaxed),
        };
        self.ring.link = Some(link);
        if !is_known {
            return Some(StrictVerdict::Goes);
        }
        let under_way =
            if takes_resource(&request.operation) { self.resources_in_use(qp, n) } else { 0 };
        Some(verdict(&request.operation, len, qp.qp_type().is_reliable(), under_way, &ends))
    }

    /// Requests up to `n` that use a responder resource and whose end the application has not
    /// polled.
    fn resources_in_use(&mut self, qp: &Qp, n: u64) -> usize {
        if let (Some(unpolled), Some(pair)) = (&mut self.sends.unpolled, qp.pair()) {
            unpolled.polled(pair.send_cq.polled_to());
        }
        let unpolled = self.sends.unpolled.as_ref().map_or(0, |unpolled| unpolled.resources());
        let is_going = |entry: &QueuedRequest| {
            takes_resource(&entry.request.operation)
                && !matches!(entry.phase, RequestPhase::Failed(_))
        };
        let going = (self.sends.queue.completed..=n)
            .filter(|n| is_going(self.sends.queue.entry(*n)))
            .count();
        unpolled + going
    }
}
