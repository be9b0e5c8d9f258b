//! Protection domains of this process: their numbers, unique in the fabric, and their users.
//! Created by `ops/pd`; keys and QPs are checked against the numbers.
#![forbid(unsafe_code)]

use cface::sync::Mutex;
use soft_local::shm::layout::{BORROWED, PD_SLOT_SHIFT, PDS, split_pd};
use soft_local::shm::tenure;
use soft_local::shm::view::View;
use soft_sys::Errno;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of objects in a domain, made through any handle in this process; counted by
/// `shm::tenure`.
pub(crate) type Users = Arc<AtomicUsize>;

/// The protection domains of this process.
#[derive(Debug)]
pub(crate) struct Domains {
    view: View,
    slot: u16,
    state: Mutex<DomainTable>,
}

#[derive(Debug, Default)]
struct DomainTable {
    /// Number of uses of each entry.
    uses: Vec<u32>,
    /// Freed entries, reused in the order of their release.
    returned: VecDeque<usize>,
    users: HashMap<u32, Users>,
    /// Domains of other processes: the number of local objects in each, and the table entry that
    /// records the domain.
    borrowed: HashMap<u32, (usize, usize)>,
}

impl Domains {
    pub(crate) fn new(view: View, slot: u16) -> Self {
        Self { view, slot, state: Mutex::default() }
    }

    /// Creates a domain of context `origin`. Its number is not reused for long after its end.
    /// Returns None if [`PDS`] domains exist.
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
        // Release pairs with the Acquire in `origin_of`: the origin is visible with the number.
        entry.number.store(u64::from(number), Ordering::Release);
        Some((number, users))
    }

    /// The users of the domain with this number, if it belongs to this process.
    pub(crate) fn users(&self, number: u32) -> Option<Users> {
        self.state.lock().users.get(&number).cloned()
    }

    /// Removes a domain. Returns false if the domain has objects of this process, or if
    /// `is_borrowed` returns true.
    pub(crate) fn remove(&self, number: u32, is_borrowed: impl FnOnce() -> bool) -> bool {
        let mut state = self.state.lock();
        let Some(users) = state.users.get(&number) else { return true };
        // After the first step no thread of this process can make an object in the domain; after
        // the second step no other process can.
        if !tenure::end_domain(users) {
            return false;
        }
        let (_, index) = split_pd(number);
        let entry = self.view.pd(index);
        tenure::begin_to_end(&entry.number);
        if is_borrowed() {
            entry.number.store(u64::from(number), Ordering::SeqCst);
            tenure::resume_domain(users);
            return false;
        }
        state.users.remove(&number);
        state.returned.push_back(index);
        true
    }

    /// Records that an object in a domain of another process will be made. The `owner` can read the
    /// record from now on.
    ///
    /// # Errors
    /// `EINVAL` the domain has ended or is ending; `ENOMEM` objects in [`BORROWED`] domains exist
    /// already.
    pub(crate) fn borrow(&self, number: u32, owner: &View) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if let Some((count, _)) = state.borrowed.get_mut(&number) {
            *count += 1;
            return Ok(());
        }
        let free = |at: &usize| self.view.borrowed(*at).load(Ordering::Relaxed) == 0;
        let place = (0..BORROWED).find(free).ok_or(Errno::ENOMEM)?;
        let noted = self.view.borrowed(place);
        tenure::note_borrowed(noted, u64::from(number));
        let there = tenure::current_domain(&owner.pd(split_pd(number).1).number);
        if there != u64::from(number) {
            tenure::withdraw_borrowed(noted);
            return Err(Errno::EINVAL);
        }
        state.borrowed.insert(number, (1, place));
        Ok(())
    }

    /// Removes the record of an object in a domain of another process.
    pub(crate) fn return_borrowed(&self, number: u32) {
        let mut state = self.state.lock();
        let Some((count, place)) = state.borrowed.get_mut(&number) else { return };
        *count -= 1;
        if *count == 0 {
            tenure::withdraw_borrowed(self.view.borrowed(*place));
            state.borrowed.remove(&number);
        }
    }
}

/// Whether the owner of `view` has objects in the domain `number` of another process.
pub(crate) fn has_borrowed(view: &View, number: u32) -> bool {
    (0..BORROWED).any(|at| tenure::borrowed(view.borrowed(at)) == u64::from(number))
}

/// The context to which the domain `number` of `view`'s owner belongs, if the domain exists.
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
        for _ in 0..2 {
            borrower.borrow(number, &view).expect("it is there");
        }
        borrower.return_borrowed(number);
        assert!(!domains.remove(number, || has_borrowed(&other, number)));
        assert_eq!(origin_of(&view, number), Some(9));
        borrower.return_borrowed(number);
        assert!(domains.remove(number, || has_borrowed(&other, number)));
        assert_eq!(origin_of(&view, number), None);
    }

    #[test]
    fn a_closing_domain_gets_no_object_and_a_domain_with_an_object_stays() {
        let (view, other) = (mock::view(), mock::view());
        let (domains, borrower) = (Domains::new(view, 5), Domains::new(other, 6));
        let (number, users) = domains.create(9).expect("room");
        // While the owner searches for borrowers, neither a process nor the owner can make an
        // object.
        assert!(domains.remove(number, || {
            assert_eq!(borrower.borrow(number, &view), Err(Errno::EINVAL));
            assert!(!tenure::hold_domain(&users));
            has_borrowed(&other, number)
        }));
        assert_eq!(borrower.borrow(number, &view), Err(Errno::EINVAL));
        assert!(!has_borrowed(&other, number), "nothing is left of the attempt");

        let (number, users) = domains.create(9).expect("room");
        assert!(tenure::hold_domain(&users));
        assert!(!domains.remove(number, || false));
        tenure::release_domain(&users);
        // A domain that was not removed is usable as before.
        assert!(!domains.remove(number, || true));
        assert!(tenure::hold_domain(&users) && borrower.borrow(number, &view).is_ok());
        tenure::release_domain(&users);
        borrower.return_borrowed(number);
        assert!(domains.remove(number, || has_borrowed(&other, number)));
    }

    #[test]
    fn objects_in_more_domains_than_can_be_recorded_are_refused() {
        let (view, other) = (mock::view(), mock::view());
        let (domains, borrower) = (Domains::new(view, 5), Domains::new(other, 6));
        let numbers: Vec<u32> =
            (0..=BORROWED).map(|_| domains.create(9).expect("room").0).collect();
        let (last, others) = numbers.split_last().expect("some");
        for number in others {
            borrower.borrow(*number, &view).expect("room to note it");
        }
        assert_eq!(borrower.borrow(*last, &view), Err(Errno::ENOMEM));
        borrower.return_borrowed(others[7]);
        assert_eq!(borrower.borrow(*last, &view), Ok(()));
    }

    #[test]
    fn as_many_domains_exist_as_the_device_reports_and_no_more() {
        let domains = Domains::new(mock::view(), 1);
        let numbers: Vec<u32> = (0..PDS).map(|_| domains.create(1).expect("room").0).collect();
        assert!(domains.create(1).is_none());
        assert!(domains.remove(numbers[7], || false) && domains.remove(numbers[7], || false));
        assert!(domains.create(1).is_some() && domains.create(1).is_none());
    }
}
