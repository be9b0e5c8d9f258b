//! The signaled requests of a QP without a completion, and their times of posting. The layer
//! `stats` measures latencies from them.

use std::collections::VecDeque;

use crate::page::EntryRef;

/// A signaled request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    /// The program's `wr_id`.
    pub(crate) wr_id: u64,
    /// Time of posting, in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) posted_ns: u64,
    /// The counters of the region of its first element.
    pub(crate) region: EntryRef,
}

/// The requests of a QP in the order of posting, which is the order of their completions.
#[derive(Debug, Default)]
pub(crate) struct RequestsInFlight {
    requests: VecDeque<InFlight>,
    capacity: usize,
}

/// Most requests that are kept.
const MOST: usize = 1 << 15;
/// Most requests among which the request of a completion is searched.
const MAX_SEARCH: usize = 64;

impl RequestsInFlight {
    /// Forgets all requests of a QP whose send queue takes `most` requests.
    pub(crate) fn reset(&mut self, most: usize) {
        self.requests.clear();
        self.capacity = most.clamp(1, MOST);
        self.requests.reserve(self.capacity);
    }

    /// Adds a request that is about to be posted.
    #[inline]
    pub(crate) fn push(&mut self, flight: InFlight) {
        if self.requests.len() >= self.capacity {
            // The send queue takes fewer requests, so completions were missed.
            self.requests.clear();
        }
        self.requests.push_back(flight);
    }

    /// Removes a refused request.
    pub(crate) fn refuse(&mut self, wr_id: u64) {
        // The requests after the first refused request of a list are refused as well, in their
        // order.
        if let Some(at) = self.requests.iter().rposition(|flight| flight.wr_id == wr_id) {
            self.requests.remove(at);
        }
    }

    /// Removes and returns the request of a completion. Earlier requests have completed too:
    /// another thread has polled their completions, or they are lost.
    #[inline]
    pub(crate) fn complete(&mut self, wr_id: u64, ok: bool) -> Option<InFlight> {
        match self.requests.front() {
            Some(first) if first.wr_id == wr_id => self.requests.pop_front(),
            // An unsignaled request may complete with an error, and is not in the list.
            Some(_) if ok => {
                let at = self
                    .requests
                    .iter()
                    .take(MAX_SEARCH)
                    .position(|flight| flight.wr_id == wr_id)?;
                self.requests.remove(at)
            }
            _ => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(ids: &[u64], most: usize) -> RequestsInFlight {
        let mut flights = RequestsInFlight::default();
        flights.reset(most);
        for (since, wr_id) in (1..).zip(ids) {
            flights.push(InFlight { wr_id: *wr_id, posted_ns: since, region: EntryRef::NONE });
        }
        flights
    }

    fn since(flight: Option<InFlight>) -> Option<u64> {
        flight.map(|flight| flight.posted_ns)
    }

    #[test]
    fn each_completion_finds_its_request() {
        let mut flights = with(&[7, 7, 8, 9], 8);
        assert_eq!(since(flights.complete(7, true)), Some(1));
        assert_eq!(since(flights.complete(7, true)), Some(2));
        // Two threads poll, and the second thread reports first.
        assert_eq!(since(flights.complete(9, true)), Some(4));
        assert_eq!(since(flights.complete(8, true)), Some(3));
        assert_eq!((since(flights.complete(8, true)), flights.len()), (None, 0));
    }

    #[test]
    fn what_was_refused_or_never_signaled_does_not_confuse() {
        let mut flights = with(&[7, 7, 8], 8);
        flights.refuse(7);
        assert_eq!(since(flights.complete(5, false)), None);
        assert_eq!(since(flights.complete(7, true)), Some(1));
        assert_eq!(since(flights.complete(8, true)), Some(3));
    }

    #[test]
    fn there_are_never_more_than_the_queue_takes() {
        let flights = with(&[1, 2, 3, 4, 5, 6, 7], 3);
        assert!(flights.len() <= 3 && flights.len() > 0);
    }
}
