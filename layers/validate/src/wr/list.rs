//! Lists of requests: WR-11, and what of one was refused.

use crate::checks::Id;
use crate::report::{Message, tell};
use crate::state::Qp;
use core::sync::atomic::Ordering;

/// How long a list may be before it is looked at for a loop.
pub(super) const LONG: usize = 64;

/// WR-11: follows a list that is suspiciously long; whether it comes back to where it was.
///
/// # Safety
/// `first` starts a list of live requests, or a ring of them.
pub(super) unsafe fn is_ring<T>(first: *mut T, next: impl Fn(*mut T) -> *mut T) -> bool {
    // Brent: the tortoise jumps to the hare at powers of two.
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
        // Nobody knows how many of them the provider will take.
        qp.failed.store(true, Ordering::Relaxed);
    }
    let message = Message {
        id: Id::Wr11,
        call,
        object,
        text: "the list of requests returns to where it was".into(),
        remedy: "set next = NULL on the last one".into(),
        also: None,
    };
    tell(&message, qp);
}

/// The request that a refused call names: `bad` if it is one of the list's first `count`, else the list's first. A plugin may
/// leave `bad` as it was, as soft does in a child of fork(2), and the program need not have given it a value.
///
/// # Safety
/// NULL, or a live list of `count` at least.
pub(super) unsafe fn named<T>(
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

/// The ids of those requests of a list that were not posted: from `bad` on.
///
/// # Safety
/// A live list, of `count` at least, and `bad` is in it.
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
        // SAFETY: both are live, and nothing else is read.
        let named = |bad, count| unsafe { super::named(first, bad, count, |item| (*item).0) };
        assert_eq!(named(second, 2), second);
        assert_eq!(named(std::ptr::without_provenance_mut(16), 2), first);
        assert_eq!(named(std::ptr::null_mut(), 2), first);
    }
}
