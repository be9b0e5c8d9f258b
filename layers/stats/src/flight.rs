//! Signaled requests of a queue pair that have no completion yet: when they were posted.

use std::collections::VecDeque;

use crate::page::Place;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// The program's.
    pub(crate) wr_id: u64,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub(crate) since: u64,
    /// The region that its first element lies in.
    pub(crate) region: Place,
}

/// Those of a queue pair, in the order of posting, which is that of their completions.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    all: VecDeque<Flight>,
    most: usize,
}

/// More than that are not kept.
const MOST: usize = 1 << 15;
/// Further than that the request of a completion is not looked for.
const FAR: usize = 64;

impl Flights {
    /// None, of a queue that takes so many.
    pub(crate) fn reset(&mut self, most: usize) {
        self.all.clear();
        self.most = most.clamp(1, MOST);
        self.all.reserve(self.most);
    }

    /// A request is about to be posted.
    #[inline]
    pub(crate) fn push(&mut self, flight: Flight) {
        if self.all.len() >= self.most {
            // It does not take so many: completions were missed.
            self.all.clear();
        }
        self.all.push_back(flight);
    }

    /// The last one was refused.
    pub(crate) fn refuse(&mut self, wr_id: u64) {
        // Of a list those behind the first that was refused were, too; they are told of in their order.
        if let Some(at) = self.all.iter().rposition(|flight| flight.wr_id == wr_id) {
            self.all.remove(at);
        }
    }

    /// A request is done. Those before it must be done, too: their completions were lost, or polled by a thread that is not here yet.
    #[inline]
    pub(crate) fn done(&mut self, wr_id: u64, ok: bool) -> Option<Flight> {
        match self.all.front() {
            Some(first) if first.wr_id == wr_id => self.all.pop_front(),
            // One that was not signaled completes with an error: it is not here.
            Some(_) if ok => {
                let at = self.all.iter().take(FAR).position(|flight| flight.wr_id == wr_id)?;
                self.all.remove(at)
            }
            _ => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(ids: &[u64], most: usize) -> Flights {
        let mut flights = Flights::default();
        flights.reset(most);
        for (since, wr_id) in (1..).zip(ids) {
            flights.push(Flight { wr_id: *wr_id, since, region: Place::NONE });
        }
        flights
    }

    fn since(flight: Option<Flight>) -> Option<u64> {
        flight.map(|flight| flight.since)
    }

    #[test]
    fn each_completion_finds_its_request() {
        let mut flights = with(&[7, 7, 8, 9], 8);
        assert_eq!(since(flights.done(7, true)), Some(1));
        assert_eq!(since(flights.done(7, true)), Some(2));
        // Two threads poll, and the second one comes first.
        assert_eq!(since(flights.done(9, true)), Some(4));
        assert_eq!(since(flights.done(8, true)), Some(3));
        assert_eq!((since(flights.done(8, true)), flights.len()), (None, 0));
    }

    #[test]
    fn what_was_refused_or_never_signaled_does_not_confuse() {
        let mut flights = with(&[7, 7, 8], 8);
        flights.refuse(7);
        assert_eq!(since(flights.done(5, false)), None);
        assert_eq!(since(flights.done(7, true)), Some(1));
        assert_eq!(since(flights.done(8, true)), Some(3));
    }

    #[test]
    fn there_are_never_more_than_the_queue_takes() {
        let flights = with(&[1, 2, 3, 4, 5, 6, 7], 3);
        assert!(flights.len() <= 3 && flights.len() > 0);
    }
}
