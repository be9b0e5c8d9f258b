//! The memory-order steps by which processes and threads agree on ownership that lasts: of a ring,
//! an opened QP, a protection domain, or a list entry.
//!
//! As `protocol`, the module contains only code that depends on memory order. The models in
//! `providers/soft/loom` run this code.
#![forbid(unsafe_code)]

use super::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Sender: claims an unused ring for incarnation `me` of its QP. Returns false if another
/// incarnation holds the ring.
pub fn claim_ring(holder: &AtomicU64, me: u64) -> bool {
    // A single compare-exchange, so one of two incarnations is first. Release pairs with the
    // Acquire in `holder_of`.
    let taken = holder.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire);
    taken.is_ok() || taken == Err(me)
}

/// Sender: takes a ring over from its holder, and begins at slot `at`.
pub fn take_over_ring(holder: &AtomicU64, me: u64, begun: &AtomicU32, at: u32) {
    begun.store(at, Ordering::Relaxed);
    // Release: pairs with the Acquire in `holder_of`. A receiver that reads the new holder also
    // reads `begun`.
    holder.store(me, Ordering::Release);
}

/// Receiver: the incarnation that sends in a ring; 0: none. `begun` may be read after this call.
pub fn holder_of(holder: &AtomicU64) -> u64 {
    // Acquire: pairs with the Release in `take_over_ring`.
    holder.load(Ordering::Acquire)
}

/// Opener of another process's QP: records itself in its own word of the owner's memory. The load
/// of `closing` comes afterwards.
pub fn note_opener(noted: &AtomicU32, identity: u32) {
    noted.store(identity, Ordering::SeqCst);
    // Pairs with the fence in `begin_to_destroy`: either the owner finds the opener, or the opener
    // finds the QP closing. Without the fences the opener could hold a destroyed QP.
    fence(Ordering::SeqCst);
}

/// Opener: no longer has the QP open. Does nothing if another process has the word by now.
pub fn withdraw_opener(noted: &AtomicU32, identity: u32) {
    // Pairs with the Acquire in `opener`: the opener's use of the QP precedes the QP's end.
    let _ = noted.compare_exchange(identity, 0, Ordering::SeqCst, Ordering::Relaxed);
}

/// Owner: the identity of the process that has the QP open by this word; 0: none.
pub fn opener(noted: &AtomicU32) -> u32 {
    noted.load(Ordering::Acquire)
}

/// Owner: announces the destruction of a QP, which happens unless a process has the QP open. The
/// load of the openers comes afterwards.
pub fn begin_to_destroy(closing: &AtomicU8, destroyed: u8) {
    closing.store(destroyed, Ordering::SeqCst);
    // Pairs with the fence in `note_opener`.
    fence(Ordering::SeqCst);
}

/// Opener, after `note_opener`: the owner's `closing` word.
pub fn closing(closing: &AtomicU8) -> u8 {
    closing.load(Ordering::SeqCst)
}

/// Creator of an object in a domain of this process: increments the domain's users. Returns false
/// if the domain has ended.
pub fn hold_domain(users: &AtomicUsize) -> bool {
    // One read-modify-write: either the end finds the object, or this call finds the end.
    let more = |users: usize| users.checked_add(1);
    users.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
}

/// Decrements the domain's users when an object is gone.
pub fn release_domain(users: &AtomicUsize) {
    // Release: pairs with the Acquire in `end_domain`. The use of the object precedes the domain's
    // end.
    users.fetch_sub(1, Ordering::Release);
}

/// Owner of a domain: ends the domain unless objects of this process use it. Returns whether it
/// ended.
pub fn end_domain(users: &AtomicUsize) -> bool {
    users.compare_exchange(0, ENDED, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Owner: reverts the end of a domain.
pub fn resume_domain(users: &AtomicUsize) {
    users.store(0, Ordering::Release);
}

/// The user count of a domain that has ended. No increment is possible.
const ENDED: usize = usize::MAX;

/// Creator of an object in a domain of another process: records the domain where that process
/// looks. The load of the domain's entry comes afterwards.
pub fn note_borrowed(noted: &AtomicU64, number: u64) {
    noted.store(number, Ordering::SeqCst);
    // Pairs with the fence in `begin_to_end`: either the owner finds the record, or the creator
    // finds that the domain has ended.
    fence(Ordering::SeqCst);
}

/// Creator, after `note_borrowed`: the number of the domain that the entry now holds.
pub fn current_domain(entry: &AtomicU64) -> u64 {
    entry.load(Ordering::SeqCst)
}

/// Creator: its last object in the domain is gone.
pub fn withdraw_borrowed(noted: &AtomicU64) {
    // Release: pairs with the Acquire in `borrowed`. The use of the objects precedes the domain's
    // end.
    noted.store(0, Ordering::Release);
}

/// Owner of a domain: announces that it ends the domain unless another process has objects in it.
/// The load of the records comes afterwards.
pub fn begin_to_end(entry: &AtomicU64) {
    entry.store(0, Ordering::SeqCst);
    // Pairs with the fence in `note_borrowed`.
    fence(Ordering::SeqCst);
}

/// Owner: the domain in which another process has objects by this word; 0: none.
pub fn borrowed(noted: &AtomicU64) -> u64 {
    noted.load(Ordering::Acquire)
}

/// Records that a QP has outstanding work. Returns true if the QP is on no list; the caller then
/// adds it.
#[inline]
pub fn list_outstanding(outstanding: &AtomicBool, listed: &AtomicBool) -> bool {
    outstanding.store(true, Ordering::Relaxed);
    claim_listing(listed)
}

/// Claims the listing of a QP. Returns true if the caller must add the QP to the list.
#[inline]
pub fn claim_listing(listed: &AtomicBool) -> bool {
    !listed.swap(true, Ordering::AcqRel)
}

/// Holder of the list: whether a QP stays on it. If not, the next `list_outstanding` adds the QP
/// again.
pub fn stays_listed(outstanding: &AtomicBool, listed: &AtomicBool) -> bool {
    if outstanding.load(Ordering::Relaxed) {
        return true;
    }
    // Pairs with `list_outstanding`, which stores `outstanding` and then swaps `listed`. If its
    // swap preceded this swap, this thread sees its store in the load below. If its swap came
    // later, it found the flag clear, and its caller adds the QP again.
    listed.swap(false, Ordering::AcqRel);
    outstanding.load(Ordering::Relaxed) && claim_listing(listed)
}
