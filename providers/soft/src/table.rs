//! The numbered objects of a process: which numbers are taken, and what has them.
#![forbid(unsafe_code)]

use soft_sys::process;
use std::sync::Arc;

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
    /// By place, as is `reserved`: both stay short where there are few objects, wherever their indices begin.
    slots: Vec<Option<Arc<T>>>,
    places: Places,
    reserved: Vec<bool>,
    /// Where the search for a free index begins: numbers come back as late as possible.
    cursor: usize,
}

impl<T> Table<T> {
    pub(crate) fn new(places: Places) -> Self {
        Self { slots: vec![], places, reserved: vec![false; places.count], cursor: 0 }
    }

    /// An index that nothing else has, or `None` when all are taken.
    pub(crate) fn reserve(&mut self) -> Option<usize> {
        let capacity = self.reserved.len();
        let place = (self.cursor..self.cursor + capacity)
            .map(|i| i % capacity)
            .find(|i| !self.reserved[*i])?;
        self.reserved[place] = true;
        self.cursor = (place + 1) % capacity;
        Some(self.places.number(place))
    }

    /// Puts an object where it reserved a place.
    pub(crate) fn place(&mut self, index: usize, object: &Arc<T>) {
        let place = self.places.place(index);
        if self.slots.len() <= place {
            self.slots.resize(place + 1, None);
        }
        self.slots[place] = Some(Arc::clone(object));
    }

    /// Takes an object out; its index is free.
    pub(crate) fn free(&mut self, index: usize) -> Option<Arc<T>> {
        let place = self.places.place(index);
        if let Some(reserved) = self.reserved.get_mut(place) {
            *reserved = false;
        }
        self.slots.get_mut(place).and_then(Option::take)
    }

    pub(crate) fn get(&self, index: usize) -> Option<Arc<T>> {
        self.slots.get(self.places.place(index))?.clone()
    }

    /// Whether more than `count` indices have ever been used.
    pub(crate) fn reaches(&self, count: usize) -> bool {
        self.slots.len() > count
    }

    /// Those that `wanted` says.
    pub(crate) fn some(&self, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.slots.iter().flatten().filter(|object| wanted(object)).cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.slots.iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_comes_back_as_late_as_possible_and_a_full_table_has_none() {
        let mut table = Table::new(Places::from(0, 3));
        let first = table.reserve().expect("room");
        table.place(first, &Arc::new('a'));
        assert_eq!(table.free(first).as_deref(), Some(&'a'));
        assert_eq!((table.reserve(), table.reserve()), (Some(1), Some(2)));
        assert_eq!(table.reserve(), Some(first));
        assert_eq!(table.reserve(), None);
        assert!(table.get(first).is_none(), "reserved, not placed");
    }

    #[test]
    fn wherever_indices_begin_all_of_them_are_given_out_once() {
        let mut table = Table::new(Places::from(5, 7));
        let all: Vec<usize> = std::iter::from_fn(|| table.reserve()).collect();
        assert_eq!(all, [5, 6, 0, 1, 2, 3, 4]);
        table.place(1, &Arc::new('b'));
        assert_eq!(table.get(1).as_deref(), Some(&'b'));
        assert!(table.reaches(3) && !table.reaches(4), "counted, not by index");
        assert_eq!(table.free(1).as_deref(), Some(&'b'));
        assert_eq!((table.reserve(), table.reserve()), (Some(1), None));
    }

    #[test]
    fn tables_of_two_processes_begin_at_different_places() {
        let begins = || Table::<()>::new(Places::anywhere(1 << 14)).reserve();
        let first = begins();
        assert!((0..100).any(|_| begins() != first));
    }
}
