//! Numbered objects of a process: reservation of numbers, and the objects by number. The QP and SRQ
//! tables of the adapter and the keys of regions use them.
#![forbid(unsafe_code)]

use soft_sys::process;
use soft_sys::unguessable::Unguessable;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A rotation of `count` numbers with an arbitrary start. Numbers of different processes then
/// rarely coincide, and a number of a foreign process is most likely unused here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberRotation {
    first: usize,
    count: usize,
}

impl NumberRotation {
    /// Starts with the number `first`.
    pub(crate) const fn from(first: usize, count: usize) -> Self {
        Self { first: first % count, count }
    }

    /// Starts with an unpredictable number.
    pub(crate) fn anywhere(count: usize) -> Self {
        Self::from(process::random_below(count), count)
    }

    /// The number at a position.
    pub(crate) const fn number(self, position: usize) -> usize {
        (self.first + position) % self.count
    }

    /// The position of a number; every number has one.
    pub(crate) const fn position(self, number: usize) -> usize {
        (number % self.count + self.count - self.first) % self.count
    }
}

/// Objects of one kind by index. An index is reserved first, so an object can be created with its
/// index.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Unordered; the length is the number of objects, independent of their indices.
    objects: Vec<(u16, Arc<T>)>,
    /// By index: the position in `objects` plus 1, or [`FREE`] or [`RESERVED`].
    positions: Vec<u16>,
    free: FreeNumbers,
    /// The free indices below `low`.
    free_low: FreeNumbers,
    low: u16,
}

/// The index is free.
const FREE: u16 = 0;
/// The index is reserved; its object is not in the table yet.
const RESERVED: u16 = u16::MAX;

impl<T> Table<T> {
    /// A table with indices below `count`, which is less than 65,535.
    pub(crate) fn new(count: u16) -> Self {
        Self::with_low(count, 0)
    }

    /// As `new`, with the indices below `low` for [`Table::reserve_low`] alone.
    pub(crate) fn with_low(count: u16, low: u16) -> Self {
        Self {
            objects: vec![],
            positions: vec![FREE; count.into()],
            free: FreeNumbers::of(low..count),
            free_low: FreeNumbers::of(0..low),
            low,
        }
    }

    /// Reserves a free index; None if all are taken. The index cannot be predicted from present and
    /// past indices.
    pub(crate) fn reserve(&mut self) -> Option<usize> {
        let index = self.free.take(Instant::now())?;
        self.mark_reserved(index)
    }

    /// Reserves a free index of the low ones; None if all are taken.
    pub(crate) fn reserve_low(&mut self) -> Option<usize> {
        let index = self.free_low.take(Instant::now())?;
        self.mark_reserved(index)
    }

    fn mark_reserved(&mut self, index: u16) -> Option<usize> {
        let index = usize::from(index);
        *self.positions.get_mut(index)? = RESERVED;
        Some(index)
    }

    /// Stores an object at its reserved index.
    pub(crate) fn store_at(&mut self, index: usize, object: &Arc<T>) {
        if let Some(at) = self.positions.get_mut(index).filter(|at| **at == RESERVED) {
            self.objects.push((index as u16, Arc::clone(object)));
            *at = self.objects.len() as u16;
        }
    }

    /// Removes an object and frees its index.
    pub(crate) fn free(&mut self, index: usize) -> Option<Arc<T>> {
        let at = std::mem::replace(self.positions.get_mut(index)?, FREE);
        if at != FREE {
            let index = index as u16;
            let free = if index < self.low { &mut self.free_low } else { &mut self.free };
            free.give_back(index, Instant::now());
        }
        let at = self.position(at)?;
        let (_, object) = self.objects.swap_remove(at);
        if let Some((moved, _)) = self.objects.get(at) {
            self.positions[usize::from(*moved)] = at as u16 + 1;
        }
        Some(object)
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<Arc<T>> {
        self.peek(index).cloned()
    }

    /// As `get`, without a further owner.
    pub(crate) fn peek(&self, index: usize) -> Option<&Arc<T>> {
        let at = self.position(*self.positions.get(index)?)?;
        self.objects.get(at).map(|(_, object)| object)
    }

    /// Number of objects.
    pub(crate) fn count(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn objects(&self) -> Vec<Arc<T>> {
        self.objects.iter().map(|(_, object)| Arc::clone(object)).collect()
    }

    /// The position in `objects` encoded by `at`.
    #[inline]
    fn position(&self, at: u16) -> Option<usize> {
        // RESERVED lies beyond the end, because there are fewer indices.
        usize::from(at).checked_sub(1).filter(|at| *at < self.objects.len())
    }
}

/// Time for which a freed number rests: longer than the time-wait of connection managers, 2.1 s
/// unless a program asks for more (IBTA 1.7 12.9.8.4; `cm_enter_timewait` in `cm.c` of Linux).
/// The connection manager of the kernel rejects requests for a QP number in time-wait.
const REUSE_DELAY: Duration = Duration::from_secs(3);
/// At least one free number of so many does not rest, so the next number cannot be guessed.
const LEAST_READY: usize = 4;

/// Free numbers.
#[derive(Debug)]
struct FreeNumbers {
    /// FreeNumbers to choose from at random.
    ready: Vec<u16>,
    /// FreeNumbers freed less than [`REUSE_DELAY`] ago, with the time; the latest is last.
    delayed: VecDeque<(u16, Instant)>,
    random: Unguessable,
}

impl FreeNumbers {
    fn of(numbers: Range<u16>) -> Self {
        let ready = numbers.collect();
        Self { ready, delayed: VecDeque::new(), random: Unguessable::new() }
    }

    fn take(&mut self, now: Instant) -> Option<u16> {
        self.end_delays(now);
        if self.ready.is_empty() {
            return None;
        }
        let any = usize::from(self.random.next_number()) % self.ready.len();
        let number = self.ready.swap_remove(any);
        self.end_delays(now);
        Some(number)
    }

    fn give_back(&mut self, number: u16, now: Instant) {
        self.delayed.push_back((number, now));
        self.end_delays(now);
    }

    /// Moves rested numbers to `ready`, and further numbers if too few are ready.
    fn end_delays(&mut self, now: Instant) {
        while let Some(&(number, since)) = self.delayed.front()
            && (now.saturating_duration_since(since) >= REUSE_DELAY
                || self.ready.len() * (LEAST_READY - 1) < self.delayed.len())
        {
            self.delayed.pop_front();
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
        table.store_at(7, &Arc::new('b'));
        assert_eq!(table.get(7).as_deref(), Some(&'b'));
        assert_eq!(table.count(), 1);
        assert_eq!(table.free(7).as_deref(), Some(&'b'));
        assert!(table.free(7).is_none() && table.free(100).is_none(), "there is nothing");
        assert_eq!((table.reserve(), table.reserve()), (Some(7), None));
        // An index reserved without an object can be freed, too.
        assert!(table.free(8).is_none());
        assert_eq!((table.reserve(), table.reserve()), (Some(8), None));
    }

    #[test]
    fn low_indices_are_given_out_by_their_own_function_only() {
        let mut table = Table::<()>::with_low(100, 4);
        let others: BTreeSet<usize> = std::iter::from_fn(|| table.reserve()).collect();
        assert!(others.into_iter().eq(4..100));
        let low: BTreeSet<usize> = std::iter::from_fn(|| table.reserve_low()).collect();
        assert!(low.into_iter().eq(0..4));
        table.free(2);
        assert_eq!((table.reserve(), table.reserve_low()), (None, Some(2)));
    }

    #[test]
    fn an_index_comes_back_late() {
        let mut table = Table::new(3);
        let first = table.reserve().expect("room");
        table.store_at(first, &Arc::new('a'));
        assert_eq!(table.free(first).as_deref(), Some(&'a'));
        let others = [table.reserve(), table.reserve()];
        assert!(!others.contains(&Some(first)) && !others.contains(&None), "{others:?}");
        assert_eq!(table.reserve(), Some(first));
        // Of 100 indices in turn, each rests while three quarters of the others are used.
        let mut table = Table::<()>::new(100);
        let mut came: Vec<usize> = vec![];
        for _ in 0..10_000 {
            let index = table.reserve().expect("room");
            assert!(!came.iter().rev().take(73).any(|before| *before == index), "{index}");
            came.push(index);
            table.free(index);
        }
    }

    /// IBTA 1.7 12.9.8.4.
    #[test]
    fn a_freed_number_is_not_reused_for_longer_than_a_time_wait() {
        let begin = Instant::now();
        let at = |tenths: u32| begin + Duration::from_millis(100) * tenths;
        let mut numbers = FreeNumbers::of(0..1000);
        // 200 numbers are freed in each second.
        let mut given = std::collections::BTreeMap::new();
        for tenths in 0..300 {
            for _ in 0..20 {
                let number = numbers.take(at(tenths)).expect("most are free");
                let before = given.insert(number, tenths);
                assert!(before.is_none_or(|before| tenths - before >= 30), "{number}");
                numbers.give_back(number, at(tenths));
            }
        }
        // Afterwards all numbers are ready.
        numbers.end_delays(at(400));
        assert_eq!((numbers.ready.len(), numbers.delayed.len()), (1000, 0));
    }

    #[test]
    fn known_indices_do_not_predict_the_next_one() {
        let mut table = Table::<()>::new(1 << 14);
        let indices: Vec<usize> = (0..100).filter_map(|_| table.reserve()).collect();
        let steps: BTreeSet<usize> =
            indices.windows(2).map(|pair| pair[1].abs_diff(pair[0])).collect();
        assert!(steps.len() > 80, "{} steps", steps.len());
        // The second lap over all indices has another order.
        let mut table = Table::<()>::new(64);
        let mut lap = || -> Vec<usize> {
            let take = |_| table.reserve().inspect(|index| drop(table.free(*index)));
            (0..64).filter_map(take).collect()
        };
        assert_ne!(lap(), lap());
    }

    #[test]
    fn each_object_is_found_whatever_had_its_index_before() {
        let mut table = Table::new(512);
        let mut model = std::collections::BTreeMap::new();
        let mut random = Unguessable::new();
        for n in 0..20_000_u32 {
            if random.next_number().is_multiple_of(2)
                && let Some(index) = table.reserve()
            {
                assert!(model.insert(index, n).is_none(), "{index} was taken");
                table.store_at(index, &Arc::new(n));
            } else {
                let index = usize::from(random.next_number()) % 512;
                assert_eq!(table.free(index).as_deref().copied(), model.remove(&index));
            }
            let index = usize::from(random.next_number()) % 512;
            assert_eq!(table.get(index).as_deref(), model.get(&index));
        }
        let mut all: Vec<u32> = table.objects().iter().map(|n| **n).collect();
        all.sort_unstable();
        let mut expected: Vec<u32> = model.into_values().collect();
        expected.sort_unstable();
        assert_eq!(all, expected);
        assert_eq!(table.count(), all.len());
    }

    #[test]
    fn tables_of_two_processes_begin_at_different_numbers() {
        let begins = || Table::<()>::new(1 << 14).reserve();
        let first = begins();
        assert!((0..100).any(|_| begins() != first));
    }
}
