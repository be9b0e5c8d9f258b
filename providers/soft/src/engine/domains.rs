//! The protection domains of this process: their numbers, which the whole fabric knows them by, and who uses them.
#![forbid(unsafe_code)]

use parking_lot::Mutex;
use soft_local::shm::layout::{BORROWED, PD_SLOT_SHIFT, PDS, split_pd};
use soft_local::shm::view::View;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Objects that hold on to a domain, made through whichever of its handles in this process.
pub(crate) type Users = Arc<AtomicUsize>;

/// The domains of this process.
#[derive(Debug)]
pub(crate) struct Domains {
    view: View,
    slot: u16,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Uses of each entry so far.
    uses: Vec<u32>,
    /// Freed entries, used again first in first out.
    returned: VecDeque<usize>,
    users: HashMap<u32, Users>,
    /// Domains of other processes: our objects in each, and where that is noted.
    borrowed: HashMap<u32, (usize, Option<usize>)>,
}

impl Domains {
    pub(crate) fn new(view: View, slot: u16) -> Self {
        Self { view, slot, state: Mutex::default() }
    }

    /// A new domain of context `origin`: its number, which stays unused for long after it is gone. `None`: there are
    /// [`PDS`] domains.
    pub(crate) fn create(&self, origin: u64) -> Option<(u32, Users)> {
        let mut state = self.state.lock();
        let index = if state.uses.len() < PDS {
            state.uses.push(0);
            state.uses.len() - 1
        } else {
            state.returned.pop_front()?
        };
        let uses = state.uses.get_mut(index)?;
        *uses = uses.wrapping_add(1);
        let generation = *uses << PDS.trailing_zeros() & ((1 << PD_SLOT_SHIFT) - 1);
        let number = u32::from(self.slot) << PD_SLOT_SHIFT | generation | index as u32;
        let users = Users::default();
        state.users.insert(number, Arc::clone(&users));
        let entry = self.view.pd(index);
        entry.origin.store(origin, Ordering::Relaxed);
        // Pairs with the load in `origin_of`.
        entry.number.store(u64::from(number), Ordering::Release);
        Some((number, users))
    }

    /// Whoever uses the domain of this process with this number.
    pub(crate) fn users(&self, number: u32) -> Option<Users> {
        self.state.lock().users.get(&number).cloned()
    }

    /// The domain is gone, unless `is_borrowed`: then this is `false`.
    pub(crate) fn remove(&self, number: u32, is_borrowed: impl FnOnce() -> bool) -> bool {
        let mut state = self.state.lock();
        if !state.users.contains_key(&number) {
            return true;
        }
        let (_, index) = split_pd(number);
        let entry = self.view.pd(index);
        // Nobody imports it from here on.
        entry.number.store(0, Ordering::SeqCst);
        if is_borrowed() {
            entry.number.store(u64::from(number), Ordering::SeqCst);
            return false;
        }
        state.users.remove(&number);
        state.returned.push_back(index);
        true
    }

    /// An object of ours was made in a domain of another process, which sees that. (More domains than there is room to note
    /// are not seen.)
    pub(crate) fn borrow(&self, number: u32) {
        let mut state = self.state.lock();
        let (count, _) = state.borrowed.entry(number).or_insert_with(|| {
            let free = |at: &usize| self.view.borrowed(*at).load(Ordering::Relaxed) == 0;
            let place = (0..BORROWED).find(free);
            if let Some(place) = place {
                self.view.borrowed(place).store(u64::from(number), Ordering::SeqCst);
            }
            (0, place)
        });
        *count += 1;
    }

    /// It is gone.
    pub(crate) fn give_back(&self, number: u32) {
        let mut state = self.state.lock();
        let Some((count, place)) = state.borrowed.get_mut(&number) else { return };
        *count -= 1;
        if *count == 0 {
            if let Some(place) = *place {
                self.view.borrowed(place).store(0, Ordering::SeqCst);
            }
            state.borrowed.remove(&number);
        }
    }
}

/// Whether the owner of `view` has objects in the domain `number` of another process.
pub(crate) fn has_borrowed(view: &View, number: u32) -> bool {
    (0..BORROWED).any(|at| view.borrowed(at).load(Ordering::SeqCst) == u64::from(number))
}

/// The context that the domain `number` of `view`'s owner belongs to, if there is such a domain.
pub(crate) fn origin_of(view: &View, number: u32) -> Option<u64> {
    let entry = view.pd(split_pd(number).1);
    let there = number != 0 && entry.number.load(Ordering::Acquire) == u64::from(number);
    there.then(|| entry.origin.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_local::shm::view::mock;

    #[test]
    fn a_domain_is_found_while_it_is_there_and_its_number_stays_unused_for_long() {
        let view = mock::view();
        let domains = Domains::new(view, 5);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..2 * PDS {
            let (number, _) = domains.create(9).expect("room");
            assert_eq!(split_pd(number).0, 5);
            assert!(seen.insert(number), "number {number:#x} came twice");
            assert_eq!(origin_of(&view, number), Some(9));
            assert!(domains.remove(number, || false));
            assert_eq!(origin_of(&view, number), None);
        }
    }

    #[test]
    fn a_domain_in_which_another_process_has_objects_stays() {
        let (view, other) = (mock::view(), mock::view());
        let (domains, borrower) = (Domains::new(view, 5), Domains::new(other, 6));
        let (number, _) = domains.create(9).expect("room");
        borrower.borrow(number);
        borrower.borrow(number);
        borrower.give_back(number);
        assert!(!domains.remove(number, || has_borrowed(&other, number)));
        assert_eq!(origin_of(&view, number), Some(9));
        borrower.give_back(number);
        assert!(domains.remove(number, || has_borrowed(&other, number)));
        assert_eq!(origin_of(&view, number), None);
    }

    #[test]
    fn there_are_as_many_as_the_device_says_and_no_more() {
        let domains = Domains::new(mock::view(), 1);
        let numbers: Vec<u32> = (0..PDS).map(|_| domains.create(1).expect("room").0).collect();
        assert!(domains.create(1).is_none());
        assert!(domains.remove(numbers[7], || false) && domains.remove(numbers[7], || false));
        assert!(domains.create(1).is_some() && domains.create(1).is_none());
    }
}
