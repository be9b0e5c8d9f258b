//! Requests that wait for room: in their service's backlog, or among half-open connections.
//! The module `room` puts requests here and admits them later.
//!
//! Requests take turns by source, so that a source with many requests delays no other source. A
//! waiting request holds no resources of the application.

use super::{Kind, Time};
use crate::wire::{CommId, DatagramRequest, Guid, Request, ServiceId};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// The time after which a request without a repetition is dropped: senders repeat at least every
/// 6.4 s.
const EXPIRES_AFTER: Duration = Duration::from_secs(15);

/// The contents of a waiting request.
#[derive(Clone, Debug)]
pub(super) enum ParkedKind {
    Connection(Box<Request>),
    Datagrams(Box<DatagramRequest>),
}

/// A waiting request.
#[derive(Clone, Debug)]
pub(super) struct ParkedRequest {
    pub(super) transaction: u64,
    pub(super) request_kind: ParkedKind,
    /// The random number from which the local communication id is made on admission.
    pub(super) random: u64,
    /// The sender's GUID and communication id, which identify repeats. A SIDR request has no GUID.
    name: (Option<Guid>, CommId),
    arrived_at: Time,
}

/// All waiting requests. `A` is the address of a sender.
#[derive(Clone, Debug)]
pub(super) struct ParkedRequests<A> {
    /// Requests by source, and within a source by arrival number.
    waiting: BTreeMap<(A, u64), ParkedRequest>,
    /// Arrival numbers by source and by the name that `ParkedRequest` has.
    by_name: BTreeMap<(A, Option<Guid>, CommId), u64>,
    of_source: BTreeMap<A, usize>,
    /// The source whose turn was last.
    last: Option<A>,
    arrivals: u64,
}

impl ParkedKind {
    fn name(&self) -> (Option<Guid>, CommId) {
        match self {
            Self::Connection(request) => (Some(request.guid), request.local_id),
            Self::Datagrams(request) => (None, request.id),
        }
    }

    /// The requested service.
    pub(super) fn target(&self) -> (Kind, ServiceId) {
        match self {
            Self::Connection(request) => (Kind::Connections, request.service),
            Self::Datagrams(request) => (Kind::Datagrams, request.service),
        }
    }
}

impl<A: Clone + Ord> ParkedRequests<A> {
    pub(super) const fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            by_name: BTreeMap::new(),
            of_source: BTreeMap::new(),
            last: None,
            arrivals: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of sources with waiting requests.
    pub(super) fn sources(&self) -> usize {
        self.of_source.len()
    }

    /// Whether the request of this source, GUID and communication id waits here. If so, `now` is
    /// recorded as the time of its last repetition.
    pub(super) fn repeats(&mut self, now: Time, from: &A, guid: Option<Guid>, id: CommId) -> bool {
        // `at` is an arrival number, not a time.
        let Some(&at) = self.by_name.get(&(from.clone(), guid, id)) else { return false };
        if let Some(waiting) = self.waiting.get_mut(&(from.clone(), at)) {
            waiting.arrived_at = now;
        }
        true
    }

    /// Adds a request; at most `most` wait together. At the limit, the source with the most
    /// requests loses its newest request, which may be this one. Returns `false` if this request is
    /// dropped.
    pub(super) fn park(
        &mut self,
        now: Time,
        (from, transaction): (&A, u64),
        asking: ParkedKind,
        random: u64,
        most: usize,
    ) -> bool {
        if self.waiting.len() >= most {
            let own = self.of_source.get(from).copied().unwrap_or(0);
            let largest = self.of_source.iter().max_by_key(|(_, count)| **count);
            // Another source must have more requests than this source has with the new request.
            let Some((source, _)) = largest.filter(|(_, count)| **count > own + 1) else {
                return false;
            };
            let source = source.clone();
            let newest = self.range_of(&source).next_back();
            if let Some(newest) = newest {
                self.remove(&source, newest);
            }
        }
        self.arrivals += 1;
        let name = asking.name();
        let waiting =
            ParkedRequest { transaction, request_kind: asking, random, name, arrived_at: now };
        self.waiting.insert((from.clone(), self.arrivals), waiting);
        self.by_name.insert((from.clone(), name.0, name.1), self.arrivals);
        *self.of_source.entry(from.clone()).or_default() += 1;
        true
    }

    /// The source whose turn is next.
    pub(super) fn next_source(&mut self) -> Option<A> {
        let after = self.last.as_ref().and_then(|last| {
            let behind = (Bound::Excluded(last), Bound::Unbounded);
            self.of_source.range::<A, _>(behind).next()
        });
        let next = after.or_else(|| self.of_source.first_key_value())?.0.clone();
        self.last = Some(next.clone());
        Some(next)
    }

    /// Drops expired requests from the front of a source, and returns the first that is not
    /// expired.
    pub(super) fn oldest(&mut self, now: Time, source: &A) -> Option<&ParkedRequest> {
        loop {
            let at = self.range_of(source).next()?;
            let last_arrival = self.waiting.get(&(source.clone(), at))?.arrived_at;
            if now.saturating_sub(last_arrival) < EXPIRES_AFTER {
                return self.waiting.get(&(source.clone(), at));
            }
            self.remove(source, at);
        }
    }

    /// Removes and returns the oldest request of a source.
    pub(super) fn take(&mut self, source: &A) -> Option<ParkedRequest> {
        let at = self.range_of(source).next()?;
        self.remove(source, at)
    }

    /// Removes a request that its sender has withdrawn.
    pub(super) fn withdraw(&mut self, from: &A, guid: Option<Guid>, id: CommId) -> bool {
        let at = self.by_name.get(&(from.clone(), guid, id)).copied();
        at.is_some_and(|at| self.remove(from, at).is_some())
    }

    /// Removes the requests for which `is_over` is true.
    pub(super) fn remove_where(&mut self, is_over: impl Fn(&ParkedKind) -> bool) {
        let over = self.waiting.iter().filter(|(_, waiting)| is_over(&waiting.request_kind));
        let over: Vec<_> = over.map(|(key, _)| key.clone()).collect();
        for (source, at) in over {
            self.remove(&source, at);
        }
    }

    fn range_of(&self, source: &A) -> impl DoubleEndedIterator<Item = u64> {
        let all = (source.clone(), 0)..=(source.clone(), u64::MAX);
        self.waiting.range(all).map(|((_, at), _)| *at)
    }

    fn remove(&mut self, source: &A, at: u64) -> Option<ParkedRequest> {
        let waiting = self.waiting.remove(&(source.clone(), at))?;
        self.by_name.remove(&(source.clone(), waiting.name.0, waiting.name.1));
        if let Some(count) = self.of_source.get_mut(source) {
            *count -= 1;
            if *count == 0 {
                self.of_source.remove(source);
            }
        }
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(id: u32) -> ParkedKind {
        ParkedKind::Connection(Box::new(Request { local_id: CommId(id), ..Request::default() }))
    }

    fn park(parked: &mut ParkedRequests<u8>, from: u8, id: u32, most: usize) -> bool {
        parked.park(Time::ZERO, (&from, 1), asking(id), 0, most)
    }

    fn next(parked: &mut ParkedRequests<u8>) -> Option<(u8, u32)> {
        let source = parked.next_source()?;
        let taken = parked.take(&source)?;
        Some((source, taken.name.1.0))
    }

    #[test]
    fn sources_take_turns_and_each_has_its_order() {
        let mut parked = ParkedRequests::new();
        for (from, id) in [(1, 9), (1, 8), (1, 7), (3, 5), (2, 6)] {
            assert!(park(&mut parked, from, id, 10));
        }
        let order: Vec<_> = std::iter::from_fn(|| next(&mut parked)).collect();
        assert_eq!(order, [(1, 9), (2, 6), (3, 5), (1, 8), (1, 7)]);
        assert!(parked.is_empty() && parked.sources() == 0 && parked.by_name.is_empty());
    }

    #[test]
    fn who_has_most_makes_room_for_others() {
        let mut parked = ParkedRequests::new();
        (0..10).for_each(|id| assert!(park(&mut parked, 1, id, 10)));
        assert!(!park(&mut parked, 1, 10, 10), "it has most itself");
        (0..5).for_each(|id| assert!(park(&mut parked, 2, id, 10), "{id}"));
        assert!(!park(&mut parked, 2, 5, 10), "both have as many");
        assert_eq!((parked.len(), parked.of_source[&1], parked.of_source[&2]), (10, 5, 5));
    }

    #[test]
    fn what_is_not_repeated_is_forgotten() {
        let mut parked = ParkedRequests::new();
        (0..3).for_each(|id| assert!(park(&mut parked, 1, id, 10)));
        let later = EXPIRES_AFTER - Duration::from_secs(1);
        let guid = Some(Guid::default());
        assert!(parked.repeats(later, &1, guid, CommId(2)));
        assert!(
            !parked.repeats(later, &2, guid, CommId(2))
                && !parked.repeats(later, &1, None, CommId(2))
        );
        let left = parked.oldest(EXPIRES_AFTER, &1).map(|waiting| waiting.name.1);
        assert_eq!((left, parked.len()), (Some(CommId(2)), 1));
        assert!(parked.withdraw(&1, guid, CommId(2)) && !parked.withdraw(&1, guid, CommId(2)));
        assert!(parked.oldest(EXPIRES_AFTER, &1).is_none());
    }
}
