//! The numbered objects of a process: which numbers are taken, and what has them.
#![forbid(unsafe_code)]

use soft_sys::process;
use soft_sys::unguessable::Unguessable;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where numbers begin: `count` places in a row, the first of which has any of the numbers. Numbers of another process are then
/// most likely nobody's here, rather than those of whoever came first in both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    first: usize,
    count: usize,
}

impl Places {
    /// The first place has the number `first`.
    pub(crate) const fn from(first: usize, count: usize) -> Self {
        Self { first: first % count, count }
    }

    /// The first place has a number that nobody can guess.
    pub(crate) fn anywhere(count: usize) -> Self {
        Self::from(process::random_below(count), count)
    }

    /// The number of a place.
    pub(crate) const fn number(self, place: usize) -> usize {
        (self.first + place) % self.count
    }

    /// The place with a number; any number has one.
    pub(crate) const fn place(self, number: usize) -> usize {
        (number % self.count + self.count - self.first) % self.count
    }
}

/// Objects of one kind by index. An index is reserved first, so that an object can be made that knows it.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// In no order: as many as there are objects, whatever their indices.
    objects: Vec<(u16, Arc<T>)>,
    /// By index: where in `objects` it is, and one more; [`FREE`], [`RESERVED`].
    at: Vec<u16>,
    free: Numbers,
}

/// Nothing has the index.
const FREE: u16 = 0;
/// The index is taken, and its object is not there.
const RESERVED: u16 = u16::MAX;

impl<T> Table<T> {
    /// With indices below `count`, which is less than 65 535.
    pub(crate) fn new(count: u16) -> Self {
        Self { objects: vec![], at: vec![FREE; count.into()], free: Numbers::below(count) }
    }

    /// An index that nothing else has, or `None` when all are taken. Who knows all that are taken, and were, cannot guess it.
    pub(crate) fn reserve(&mut self) -> Option<usize> {
        let index = usize::from(self.free.take(Instant::now())?);
        *self.at.get_mut(index)? = RESERVED;
        Some(index)
    }

    /// Puts an object where it reserved an index.
    pub(crate) fn place(&mut self, index: usize, object: &Arc<T>) {
        if let Some(at) = self.at.get_mut(index).filter(|at| **at == RESERVED) {
            self.objects.push((index as u16, Arc::clone(object)));
            *at = self.objects.len() as u16;
        }
    }

    /// Takes an object out; its index is free.
    pub(crate) fn free(&mut self, index: usize) -> Option<Arc<T>> {
        let at = std::mem::replace(self.at.get_mut(index)?, FREE);
        if at != FREE {
            self.free.give_back(index as u16, Instant::now());
        }
        let at = self.position(at)?;
        let (_, object) = self.objects.swap_remove(at);
        if let Some((moved, _)) = self.objects.get(at) {
            self.at[usize::from(*moved)] = at as u16 + 1;
        }
        Some(object)
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<Arc<T>> {
        self.peek(index).cloned()
    }

    /// As `get`, without another owner.
    pub(crate) fn peek(&self, index: usize) -> Option<&Arc<T>> {
        let at = self.position(*self.at.get(index)?)?;
        self.objects.get(at).map(|(_, object)| object)
    }

    /// How many objects there are.
    pub(crate) fn count(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.objects.iter().map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Where in `objects` the object is of whose index `at` is said.
    #[inline]
    fn position(&self, at: u16) -> Option<usize> {
        // Beyond the end for RESERVED: there are fewer indices.
        usize::from(at).checked_sub(1).filter(|at| *at < self.objects.len())
    }
}

/// How long a number rests before another object may have it: longer than the time-wait of connection managers, which lasts 2.1 s unless a program asks for
/// more (IBTA vol 1, 12.9.8.4; `cm_enter_timewait` in Linux' `cm.c`). The kernel's manager rejects a request for a QP number in time-wait.
const REST: Duration = Duration::from_secs(3);
/// The least share of the free numbers that do not rest, so that a number cannot be guessed: one in so many.
const LEAST_READY: usize = 4;

/// Numbers that are free.
#[derive(Debug)]
struct Numbers {
    /// The next number is any of these.
    ready: Vec<u16>,
    /// Numbers that were given back less than [`REST`] ago, and when; the latest is last.
    resting: VecDeque<(u16, Instant)>,
    random: Unguessable,
}

impl Numbers {
    fn below(count: u16) -> Self {
        let ready = (0..count).collect();
        Self { ready, resting: VecDeque::new(), random: Unguessable::new() }
    }

    fn take(&mut self, now: Instant) -> Option<u16> {
        self.end_rests(now);
        if self.ready.is_empty() {
            return None;
        }
        let any = usize::from(self.random.draw()) % self.ready.len();
        let number = self.ready.swap_remove(any);
        self.end_rests(now);
        Some(number)
    }

    fn give_back(&mut self, number: u16, now: Instant) {
        self.resting.push_back((number, now));
        self.end_rests(now);
    }

    /// Moves the numbers to `ready` that have rested long enough, and more where too few are ready.
    fn end_rests(&mut self, now: Instant) {
        while let Some(&(number, since)) = self.resting.front()
            && (now.saturating_duration_since(since) >= REST
                || self.ready.len() * (LEAST_READY - 1) < self.resting.len())
        {
            self.resting.pop_front();
            self.ready.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_indices_are_given_out_once_and_a_full_table_has_none() {
        let mut table = Table::new(100);
        let all: BTreeSet<usize> = std::iter::from_fn(|| table.reserve()).collect();
        assert!(all.into_iter().eq(0..100));
        assert!(table.get(7).is_none(), "reserved, not placed");
        table.place(7, &Arc::new('b'));
        assert_eq!(table.get(7).as_deref(), Some(&'b'));
        assert_eq!(table.count(), 1);
        assert_eq!(table.free(7).as_deref(), Some(&'b'));
        assert!(table.free(7).is_none() && table.free(100).is_none(), "there is nothing");
        assert_eq!((table.reserve(), table.reserve()), (Some(7), None));
        // What was reserved and never placed comes back, too.
        assert!(table.free(8).is_none());
        assert_eq!((table.reserve(), table.reserve()), (Some(8), None));
    }

    #[test]
    fn an_index_comes_back_late() {
        let mut table = Table::new(3);
        let first = table.reserve().expect("room");
        table.place(first, &Arc::new('a'));
        assert_eq!(table.free(first).as_deref(), Some(&'a'));
        let others = [table.reserve(), table.reserve()];
        assert!(!others.contains(&Some(first)) && !others.contains(&None), "{others:?}");
        assert_eq!(table.reserve(), Some(first));
        // One after the other, of 100: each rests while three quarters of the others come.
        let mut table = Table::<()>::new(100);
        let mut came: Vec<usize> = vec![];
        for _ in 0..10_000 {
            let index = table.reserve().expect("room");
            assert!(!came.iter().rev().take(73).any(|before| *before == index), "{index}");
            came.push(index);
            table.free(index);
        }
    }

    #[test]
    fn a_number_rests_for_longer_than_a_time_wait() {
        let begin = Instant::now();
        let at = |tenths: u32| begin + Duration::from_millis(100) * tenths;
        let mut numbers = Numbers::below(1000);
        // 200 numbers are given back in each second.
        let mut given = std::collections::BTreeMap::new();
        for tenths in 0..300 {
            for _ in 0..20 {
                let number = numbers.take(at(tenths)).expect("most are free");
                let before = given.insert(number, tenths);
                assert!(before.is_none_or(|before| tenths - before >= 30), "{number}");
                numbers.give_back(number, at(tenths));
            }
        }
        // After that all are ready.
        numbers.end_rests(at(400));
        assert_eq!((numbers.ready.len(), numbers.resting.len()), (1000, 0));
    }

    #[test]
    fn who_knows_some_indices_does_not_know_the_next_one() {
        let mut table = Table::<()>::new(1 << 14);
        let indices: Vec<usize> = (0..100).filter_map(|_| table.reserve()).collect();
        let steps: BTreeSet<usize> =
            indices.windows(2).map(|pair| pair[1].abs_diff(pair[0])).collect();
        assert!(steps.len() > 80, "{} steps", steps.len());
        // Nor once each was somebody's, in turn: the second time they come in another order.
        let mut table = Table::<()>::new(64);
        let mut lap = || -> Vec<usize> {
            let take = |_| table.reserve().inspect(|index| drop(table.free(*index)));
            (0..64).filter_map(take).collect()
        };
        assert_ne!(lap(), lap());
    }

    #[test]
    fn each_object_is_found_whatever_went_before_it() {
        let mut table = Table::new(512);
        let mut model = std::collections::BTreeMap::new();
        let mut random = Unguessable::new();
        for n in 0..20_000_u32 {
            if random.draw().is_multiple_of(2)
                && let Some(index) = table.reserve()
            {
                assert!(model.insert(index, n).is_none(), "{index} was taken");
                table.place(index, &Arc::new(n));
            } else {
                let index = usize::from(random.draw()) % 512;
                assert_eq!(table.free(index).as_deref().copied(), model.remove(&index));
            }
            let index = usize::from(random.draw()) % 512;
            assert_eq!(table.get(index).as_deref(), model.get(&index));
        }
        let mut all: Vec<u32> = table.all().iter().map(|n| **n).collect();
        all.sort_unstable();
        let mut expected: Vec<u32> = model.into_values().collect();
        expected.sort_unstable();
        assert_eq!(all, expected);
        assert_eq!(table.count(), all.len());
    }

    #[test]
    fn tables_of_two_processes_begin_at_different_places() {
        let begins = || Table::<()>::new(1 << 14).reserve();
        let first = begins();
        assert!((0..100).any(|_| begins() != first));
    }
}
