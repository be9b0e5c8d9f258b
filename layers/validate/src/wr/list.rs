//! WR-11: lists of requests that form a ring. Also finds the refused part of a list.

use core::sync::atomic::Ordering;

use crate::checks::queue;
use crate::report::report;
use crate::state::Qp;

/// Requests of a list before it is checked for a ring.
pub(super) const LONG: usize = 64;

/// WR-11: whether a long list returns to one of its requests.
///
/// # Safety
/// `first` starts a list of live requests, or a ring of them.
pub(super) unsafe fn is_ring<T>(first: *mut T, next: impl Fn(*mut T) -> *mut T) -> bool {
    // Brent's algorithm: the tortoise jumps to the hare at powers of two.
    let (mut tortoise, mut hare, mut power, mut length) = (first, next(first), 1_u64, 1_u64);
    while !hare.is_null() && hare != tortoise {
        if power == length {
            (tortoise, power, length) = (hare, power * 2, 0);
        }
        hare = next(hare);
        length += 1;
    }
    !hare.is_null()
}

#[cold]
pub(super) fn ring(call: &'static str, qp: Option<&Qp>, object: String) {
    if let Some(qp) = qp {
        // The number of requests that the provider takes is unknown.
        qp.failed.store(true, Ordering::Relaxed);
    }
    report(call, || object.clone(), [queue::ring()], qp.and_then(Qp::about));
}

/// The request that a refused call names: `bad` if `bad` is among the first `count` requests, else
/// the first request. A plugin may leave `bad` unset, as soft does in a child of fork(2).
///
/// # Safety
/// `first` is NULL or a live list of at least `count` requests.
pub(crate) unsafe fn named<T>(
    first: *mut T,
    bad: *mut T,
    count: usize,
    next: impl Fn(*mut T) -> *mut T,
) -> *mut T {
    let mut at = first;
    for _ in 0..count {
        if at.is_null() || at == bad {
            break;
        }
        at = next(at);
    }
    if !bad.is_null() && at == bad { bad } else { first }
}

/// The wr_ids of the requests that were not posted: from `bad` on.
///
/// # Safety
/// `first` is a live list of at least `count` requests.
pub(super) unsafe fn refused<T>(
    first: *mut T,
    bad: *mut T,
    count: usize,
    next: impl Fn(*mut T) -> *mut T,
    id: impl Fn(*mut T) -> u64,
) -> Vec<u64> {
    let mut at = first;
    let mut ids = Vec::new();
    let mut is_refused = false;
    for _ in 0..count {
        if at.is_null() {
            break;
        }
        is_refused |= at == bad;
        if is_refused {
            ids.push(id(at));
        }
        at = next(at);
    }
    ids
}

#[cfg(test)]
mod tests {
    struct Item(*mut Item);

    #[test]
    fn a_request_that_is_not_in_the_list_is_not_looked_at() {
        let mut second = Item(std::ptr::null_mut());
        let mut first = Item(&raw mut second);
        let (first, second) = (&raw mut first, &raw mut second);
        // SAFETY: both items are live, and only their links are read.
        let named = |bad, count| unsafe { super::named(first, bad, count, |item| (*item).0) };
        assert_eq!(named(second, 2), second);
        assert_eq!(named(std::ptr::without_provenance_mut(16), 2), first);
        assert_eq!(named(std::ptr::null_mut(), 2), first);
    }
}
