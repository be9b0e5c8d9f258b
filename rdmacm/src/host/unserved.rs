//! Requests of this process for services of this host that have no listener yet.
//! A server may be between two listeners (perftest's listens anew for each connection), so such a
//! request waits for a listener for a while. The agent's thread waits, so that `rdma_connect(3)`
//! returns at once.

use crate::host::peer::Peer;
use crate::host::unclaimed::BETWEEN_LISTENERS;
use cface::Errno;
use ferroverbs_cm::Time;
use ferroverbs_cm::wire::{DatagramRequest, Request, ServiceId};
use std::net::IpAddr;
use std::time::Duration;

/// The interval between two checks for a listener.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The request of a client to a service.
#[derive(Clone, Debug)]
pub(crate) enum OutgoingRequest {
    /// A connection (REQ).
    Connection(Box<Request>),
    /// The queue pair of a datagram service (SIDR_REQ).
    Datagrams(Box<DatagramRequest>),
}

impl OutgoingRequest {
    /// The requested service.
    const fn service(&self) -> ServiceId {
        match self {
            Self::Connection(request) => request.service,
            Self::Datagrams(request) => request.service,
        }
    }
}

/// A request that is not sent yet.
#[derive(Debug)]
pub(crate) struct UnservedRequest<I> {
    pub(crate) id: I,
    pub(crate) peer: Peer,
    pub(crate) request: OutgoingRequest,
    /// The requested address, to which a listener may be bound.
    destination: IpAddr,
    /// The time at which the request is refused.
    deadline: Time,
}

/// A request whose wait is over.
#[derive(Debug)]
pub(super) enum Verdict<I> {
    /// A listener exists, or the state cannot be determined: send the request.
    Send(UnservedRequest<I>),
    /// No listener exists: refuse the request.
    Refuse(UnservedRequest<I>),
}

/// All requests of one device that wait for a listener. `I` names the id of a request.
#[derive(Debug)]
pub(super) struct UnservedRequests<I> {
    waiting: Vec<UnservedRequest<I>>,
    /// The next time at which listeners are looked for.
    next: Time,
}

impl<I> Default for UnservedRequests<I> {
    fn default() -> Self {
        Self { waiting: vec![], next: Time::ZERO }
    }
}

impl<I> UnservedRequests<I> {
    /// Adds a request to `peer` for a service without a listener at `to`.
    pub(super) fn push(
        &mut self,
        now: Time,
        id: I,
        peer: Peer,
        to: IpAddr,
        request: OutgoingRequest,
    ) {
        let until = now.saturating_add(BETWEEN_LISTENERS);
        self.waiting.push(UnservedRequest { id, peer, request, destination: to, deadline: until });
    }

    /// Removes the requests of the id for which `is_it` is true.
    pub(super) fn remove_where(&mut self, is_it: impl Fn(&I) -> bool) {
        self.waiting.retain(|request| !is_it(&request.id));
    }

    /// The next time to call [`UnservedRequests::due`].
    pub(super) fn next(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then_some(self.next)
    }

    /// The requests whose wait is over at `now`. `is_listened_to` is called once for each service
    /// and address.
    pub(super) fn due(
        &mut self,
        now: Time,
        is_listened_to: impl Fn(ServiceId, IpAddr) -> Result<bool, Errno>,
    ) -> Vec<Verdict<I>> {
        if self.next().is_none_or(|next| next > now) {
            return vec![];
        }
        self.next = now.saturating_add(CHECK_INTERVAL);
        let mut seen: Vec<((ServiceId, IpAddr), Result<bool, Errno>)> = vec![];
        let mut look = |target: (ServiceId, IpAddr)| {
            let known = seen.iter().find(|(of, _)| *of == target).map(|(_, is)| *is);
            known.unwrap_or_else(|| {
                let is = is_listened_to(target.0, target.1);
                seen.push((target, is));
                is
            })
        };
        let mut verdicts = vec![];
        for one in std::mem::take(&mut self.waiting) {
            let is_over = one.deadline <= now;
            match look((one.request.service(), one.destination)) {
                Ok(true) => verdicts.push(Verdict::Send(one)),
                Ok(false) if is_over => verdicts.push(Verdict::Refuse(one)),
                // Descriptors may be missing, for example. If no process listens, the host's
                // answering process rejects the request.
                Err(_) if is_over => verdicts.push(Verdict::Send(one)),
                Ok(false) | Err(_) => self.waiting.push(one),
            }
        }
        verdicts
    }
}
