//! The numbered objects of a process: which numbers are taken, and what has them.
#![forbid(unsafe_code)]

use std::sync::Arc;

/// Objects of one kind by index. An index is reserved first, so that an object can be made that knows it.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Option<Arc<T>>>,
    reserved: Vec<bool>,
    /// Where the search for a free index begins: numbers come back as late as possible.
    cursor: usize,
}

impl<T> Table<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { slots: vec![], reserved: vec![false; capacity], cursor: 0 }
    }

    /// An index that nothing else has, or `None` when all are taken.
    pub(crate) fn reserve(&mut self) -> Option<usize> {
        let capacity = self.reserved.len();
        let index = (self.cursor..self.cursor + capacity)
            .map(|i| i % capacity)
            .find(|i| !self.reserved[*i])?;
        self.reserved[index] = true;
        self.cursor = (index + 1) % capacity;
        Some(index)
    }

    /// Puts an object where it reserved a place.
    pub(crate) fn place(&mut self, index: usize, object: &Arc<T>) {
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        self.slots[index] = Some(Arc::clone(object));
    }

    /// Takes an object out; its index is free.
    pub(crate) fn free(&mut self, index: usize) -> Option<Arc<T>> {
        if let Some(reserved) = self.reserved.get_mut(index) {
            *reserved = false;
        }
        self.slots.get_mut(index).and_then(Option::take)
    }

    pub(crate) fn get(&self, index: usize) -> Option<Arc<T>> {
        self.slots.get(index)?.clone()
    }

    /// Whether an index of `count` or more has ever been used.
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
        let mut table = Table::new(3);
        let first = table.reserve().expect("room");
        table.place(first, &Arc::new('a'));
        assert_eq!(table.free(first).as_deref(), Some(&'a'));
        assert_eq!((table.reserve(), table.reserve()), (Some(1), Some(2)));
        assert_eq!(table.reserve(), Some(first));
        assert_eq!(table.reserve(), None);
        assert!(table.get(first).is_none(), "reserved, not placed");
    }
}
