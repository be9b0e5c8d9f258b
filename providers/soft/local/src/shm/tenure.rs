//! The steps by which processes and threads agree on who has what until further notice: a ring, an opened QP, a place in a list.
//!
//! As in `protocol`, only what depends on memory order is here, so that the models in `providers/soft/loom` run this very code.
#![forbid(unsafe_code)]

use super::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Sender: takes a ring that nobody sent in for the incarnation `me` of its QP; `false`: another one sent in it before.
pub fn take_ring(holder: &AtomicU64, me: u64) -> bool {
    // One step, so that of two incarnations one is first. Pairs with the Acquire in `holder_of`.
    let taken = holder.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire);
    taken.is_ok() || taken == Err(me)
}

/// Sender: takes a ring from whoever holds it, and begins at slot `at`.
pub fn take_ring_over(holder: &AtomicU64, me: u64, begun: &AtomicU32, at: u32) {
    begun.store(at, Ordering::Relaxed);
    // Pairs with the Acquire in `holder_of`: who finds the new holder finds where it began.
    holder.store(me, Ordering::Release);
}

/// Receiver: who sends in a ring; 0: nobody does. Where it began may be read after this.
pub fn holder_of(holder: &AtomicU64) -> u64 {
    // Pairs with the Release in `take_ring_over`.
    holder.load(Ordering::Acquire)
}

/// Opener of a QP of another process: says so in its own word of the owner's memory. The look whether the QP is being destroyed comes after.
pub fn note_opener(noted: &AtomicU32, identity: u32) {
    noted.store(identity, Ordering::SeqCst);
    // Pairs with the fence in `begin_to_destroy`: the owner finds us, or we find that it destroys the QP.
    fence(Ordering::SeqCst);
}

/// Opener: has the QP open no more. Does nothing where another process has the word by now.
pub fn withdraw_opener(noted: &AtomicU32, identity: u32) {
    // Pairs with the Acquire in `opener`: what we did with the QP comes before its end.
    let _ = noted.compare_exchange(identity, 0, Ordering::SeqCst, Ordering::Relaxed);
}

/// Owner: who has the QP open by this word; 0: nobody has.
pub fn opener(noted: &AtomicU32) -> u32 {
    noted.load(Ordering::Acquire)
}

/// Owner: will destroy a QP unless somebody has it open. The look at its openers comes after.
pub fn begin_to_destroy(closing: &AtomicU8, destroyed: u8) {
    closing.store(destroyed, Ordering::SeqCst);
    // Pairs with the fence in `note_opener`.
    fence(Ordering::SeqCst);
}

/// Opener, after `note_opener`: what the owner says of its QP.
pub fn closing(closing: &AtomicU8) -> u8 {
    closing.load(Ordering::SeqCst)
}

/// Maker of an object in a domain of this process: the domain has one more; `false`: it is over.
pub fn hold_domain(users: &AtomicUsize) -> bool {
    // One step with the look, so that either the end finds the object, or this finds the end.
    let more = |users: usize| users.checked_add(1);
    users.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
}

/// The object is gone.
pub fn release_domain(users: &AtomicUsize) {
    // Pairs with the Acquire in `end_domain`: what was done with the object comes before the domain's end.
    users.fetch_sub(1, Ordering::Release);
}

/// Owner of a domain: ends it unless it has objects of this process; `false`: it has.
pub fn end_domain(users: &AtomicUsize) -> bool {
    users.compare_exchange(0, OVER, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Owner: the domain is not over after all.
pub fn resume_domain(users: &AtomicUsize) {
    users.store(0, Ordering::Release);
}

/// Instead of a number of objects: the domain is over. There is no number behind it.
const OVER: usize = usize::MAX;

/// Maker of an object in a domain of another process: says so where that process looks. The look whether the domain is there comes after.
pub fn note_borrowed(noted: &AtomicU64, number: u64) {
    noted.store(number, Ordering::SeqCst);
    // Pairs with the fence in `begin_to_end`: the owner finds us, or we find that the domain is over.
    fence(Ordering::SeqCst);
}

/// Maker, after `note_borrowed`: which domain there is at the place of the one that it means.
pub fn domain_there(entry: &AtomicU64) -> u64 {
    entry.load(Ordering::SeqCst)
}

/// Maker: the last of its objects in the domain is gone.
pub fn withdraw_borrowed(noted: &AtomicU64) {
    // Pairs with the Acquire in `borrowed`: what we did with the objects comes before the domain's end.
    noted.store(0, Ordering::Release);
}

/// Owner of a domain: will end it unless another process has objects in it. The look at what they noted comes after.
pub fn begin_to_end(entry: &AtomicU64) {
    entry.store(0, Ordering::SeqCst);
    // Pairs with the fence in `note_borrowed`.
    fence(Ordering::SeqCst);
}

/// Owner: the domain that another process has objects in by this word; 0: none.
pub fn borrowed(noted: &AtomicU64) -> u64 {
    noted.load(Ordering::Acquire)
}

/// A QP got something outstanding. `true`: nobody lists it, and the caller does.
#[inline]
pub fn list_outstanding(outstanding: &AtomicBool, listed: &AtomicBool) -> bool {
    outstanding.store(true, Ordering::Relaxed);
    lists(listed)
}

/// Whether the caller is the one who lists what has something outstanding.
#[inline]
pub fn lists(listed: &AtomicBool) -> bool {
    !listed.swap(true, Ordering::AcqRel)
}

/// Whoever has the list: whether a QP stays on it. If not, whoever gives it something outstanding lists it anew.
pub fn stays_listed(outstanding: &AtomicBool, listed: &AtomicBool) -> bool {
    if outstanding.load(Ordering::Relaxed) {
        return true;
    }
    // Against `list_outstanding`, which stores and then swaps. If its swap came before ours, ours acquires what it stored, and the
    // load sees it. If it came after, it found the flag down, and its caller lists the QP anew.
    listed.swap(false, Ordering::AcqRel);
    outstanding.load(Ordering::Relaxed) && lists(listed)
}
