//! Lets checks begin when the machine has room for them. A check that only waits needs none.

use super::Load;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Checks that only wait have processes and memory all the same.
const WAITING: usize = 8;

/// The places of a machine.
#[derive(Debug)]
pub(super) struct Gate {
    processors: usize,
    taken: Mutex<Taken>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    processors: usize,
    waiting: usize,
    /// The next number to give to a check that arrives, for each kind of place.
    arrivals: [u64; 2],
    /// The number of the check that goes in next.
    turns: [u64; 2],
}

/// A check's place, given back when dropped.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    gate: &'a Gate,
    processors: usize,
    waiting: usize,
}

impl Gate {
    /// As many places as there are processors.
    pub(super) fn new() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn of(processors: usize) -> Self {
        Self { processors, taken: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for a check's turn and for free processors. Checks of the same kind enter in order of
    /// arrival, so checks with two processors are not overtaken for ever.
    pub(super) fn enter(&self, load: Load) -> Permit<'_> {
        let (kind, processors) = match load {
            Load::Waits => (0, 0),
            Load::One => (1, 1),
            Load::Pair => (1, 2.min(self.processors)),
            Load::Alone => (1, self.processors),
        };
        let waiting = usize::from(kind == 0);
        let mut taken = self.lock();
        let ticket = taken.arrivals[kind];
        taken.arrivals[kind] += 1;
        while taken.turns[kind] != ticket
            || taken.processors + processors > self.processors
            || taken.waiting + waiting > WAITING
        {
            taken = self.changed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        taken.turns[kind] += 1;
        taken.processors += processors;
        taken.waiting += waiting;
        drop(taken);
        self.changed.notify_all();
        Permit { gate: self, processors, waiting }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut taken = self.gate.lock();
        taken.processors -= self.processors;
        taken.waiting -= self.waiting;
        drop(taken);
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn checks_that_wait_enter_beside_a_pair_that_polls() {
        let gate = Gate::of(2);
        let _pair = gate.enter(Load::Pair);
        let permits: Vec<_> = (0..WAITING).map(|_| gate.enter(Load::Waits)).collect();
        assert_eq!(gate.lock().waiting, permits.len());
    }

    #[test]
    fn a_pair_is_not_overtaken_by_checks_that_take_less() {
        let gate = Gate::of(2);
        let (sender, order) = channel();
        std::thread::scope(|scope| {
            let first = gate.enter(Load::One);
            for (number, load) in [(1, Load::Pair), (2, Load::One)] {
                let (gate, sender) = (&gate, sender.clone());
                scope.spawn(move || {
                    let _permit = gate.enter(load);
                    sender.send(number).unwrap();
                });
                // The first check has its ticket before the second one arrives.
                while gate.lock().arrivals[1] != number + 1 {
                    std::thread::yield_now();
                }
            }
            assert!(order.try_recv().is_err(), "there is no room for a pair");
            drop(first);
            assert_eq!([order.recv().unwrap(), order.recv().unwrap()], [1, 2]);
        });
    }

    #[test]
    fn a_machine_with_one_processor_runs_pairs_too() {
        let gate = Gate::of(1);
        drop(gate.enter(Load::Pair));
        drop(gate.enter(Load::Alone));
        assert_eq!(gate.lock().processors, 0);
    }
}
