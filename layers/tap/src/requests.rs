//! The requests that a program posts, as a watcher reads them without unsafe code, and the place
//! of the call in the program.
//!
//! Map of this file: `CallSite`; `Requests`, a list, and `Refused`; the two kinds of requests,
//! `SendWr` and `ReceiveWr`; `named` and its test.

use core::ffi::c_int;
use core::marker::PhantomData;

use abi::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV, ibv_mw_bind_info, ibv_ops_wr, ibv_recv_wr, ibv_send_wr, ibv_sge,
};

use crate::argument::Arg;

/// A place in the program that calls: the return address, and the stack pointer there.
#[derive(Clone, Copy, Debug)]
pub struct CallSite {
    /// The return address; 0 where it is unknown.
    pub caller: usize,
    /// The stack pointer at the entry of the call.
    pub frame: usize,
}

/// A request of a list.
///
/// # Safety
/// `next_of` and `id_of` read the link and the `wr_id` of a live request.
pub unsafe trait Request: Sized + 'static {
    /// The next request.
    ///
    /// # Safety
    /// `at` is live.
    unsafe fn next_of(at: *mut Self) -> *mut Self;

    /// The program's `wr_id`.
    ///
    /// # Safety
    /// `at` is live.
    unsafe fn id_of(at: *mut Self) -> u64;
}

macro_rules! request {
    ($($type:ident)+) => {$(
        // SAFETY: both members are in every version of the structure.
        unsafe impl Request for $type {
            #[inline(always)]
            unsafe fn next_of(at: *mut Self) -> *mut Self {
                // SAFETY: per the caller.
                unsafe { (*at).next }
            }

            #[inline(always)]
            unsafe fn id_of(at: *mut Self) -> u64 {
                // SAFETY: per the caller.
                unsafe { (*at).wr_id }
            }
        }
    )+};
}
request!(ibv_send_wr ibv_recv_wr ibv_ops_wr);

/// A list of requests that a program posts. Its requests are live until the call returns.
#[derive(Debug)]
pub struct Requests<'a, T> {
    at: *mut T,
    call: PhantomData<&'a T>,
}

impl<T> Clone for Requests<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Requests<'_, T> {}

impl<'a, T: Request> Requests<'a, T> {
    /// # Safety
    /// `first` is NULL, or starts a list of requests that are live for `'a`.
    #[inline(always)]
    pub(crate) const unsafe fn new(first: *mut T) -> Self {
        Self { at: first, call: PhantomData }
    }

    /// WR-11: whether the list returns to one of its requests.
    #[must_use]
    pub fn is_ring(self) -> bool {
        if self.at.is_null() {
            return false;
        }
        // SAFETY: the requests of the list are live.
        let next = |at| unsafe { T::next_of(at) };
        // Brent's algorithm: the tortoise jumps to the hare at powers of two.
        let (mut tortoise, mut hare, mut power, mut length) =
            (self.at, next(self.at), 1_u64, 1_u64);
        while !hare.is_null() && hare != tortoise {
            if power == length {
                (tortoise, power, length) = (hare, power * 2, 0);
            }
            hare = next(hare);
            length += 1;
        }
        !hare.is_null()
    }

    /// The wr_ids of the requests that were not posted: from the refused request on.
    #[must_use]
    pub fn refused(self, bad: Arg<'_, *mut T>, count: usize) -> Vec<u64> {
        let bad = bad.stored();
        let refused = self.walk(count).skip_while(|at| *at as usize != bad);
        // SAFETY: the requests of the list are live.
        refused.map(|at| unsafe { T::id_of(at) }).collect()
    }

    /// The first `count` requests.
    fn walk(self, count: usize) -> impl Iterator<Item = *mut T> {
        let mut next = self.at;
        (0..count).map_while(move |_| {
            let at = next;
            if at.is_null() {
                return None;
            }
            // SAFETY: the requests of the list are live.
            next = unsafe { T::next_of(at) };
            Some(at)
        })
    }

    /// The request that a refused call names: the refused one if it is among the first `count`,
    /// else the first.
    pub(crate) fn named(self, bad: Arg<'_, *mut T>, count: usize) -> Option<&'a T> {
        let bad = bad.stored();
        let named = self.walk(count).find(|at| *at as usize == bad).unwrap_or(self.at);
        // SAFETY: NULL, or a request of the list.
        unsafe { named.as_ref() }
    }
}

macro_rules! list {
    ($type:ident $view:ident) => {
        impl<'a> Requests<'a, $type> {
            /// The first request.
            #[must_use]
            #[inline(always)]
            pub fn first(self) -> Option<$view<'a>> {
                // SAFETY: NULL or live.
                unsafe { self.at.as_ref() }.map($view)
            }

            /// The requests in their order. The iterator of a ring does not end.
            #[inline(always)]
            pub fn iter(self) -> impl Iterator<Item = $view<'a>> {
                let mut at = self.at;
                core::iter::from_fn(move || {
                    // SAFETY: NULL or live.
                    let this = unsafe { at.as_ref() }?;
                    at = this.next;
                    Some($view(this))
                })
            }

            /// The request that a refused call names: `bad` if it is among the first `count`, else
            /// the first. A plugin may leave `bad` unset, as soft does in a child of fork(2).
            #[must_use]
            pub fn named_by(self, bad: Arg<'_, *mut $type>, count: usize) -> Option<$view<'a>> {
                self.named(bad, count).map($view)
            }
        }
    };
}
list!(ibv_send_wr SendWr);
list!(ibv_recv_wr ReceiveWr);

/// A send request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a>(&'a ibv_send_wr);

impl<'a> SendWr<'a> {
    /// The program's `wr_id`.
    #[must_use]
    #[inline(always)]
    pub const fn wr_id(self) -> u64 {
        self.0.wr_id
    }

    /// `ibv_wr_opcode`.
    #[must_use]
    #[inline(always)]
    pub const fn opcode(self) -> u32 {
        self.0.opcode
    }

    /// `ibv_send_flags`.
    #[must_use]
    #[inline(always)]
    pub const fn flags(self) -> u32 {
        self.0.send_flags
    }

    /// Number of elements.
    #[must_use]
    #[inline(always)]
    pub const fn count(self) -> c_int {
        self.0.num_sge
    }

    /// The elements, but not more than `most`; `None` for NULL and for a negative number.
    #[must_use]
    #[inline(always)]
    pub fn elements(self, most: u32) -> Option<&'a [ibv_sge]> {
        let count = usize::try_from(self.0.num_sge).ok()?;
        // SAFETY: the program's list has `num_sge` elements.
        (!self.0.sg_list.is_null()).then(|| unsafe {
            core::slice::from_raw_parts(self.0.sg_list, count.min(most as usize))
        })
    }

    /// Remote address and rkey; the invalidated key of a SEND with invalidate.
    #[must_use]
    #[inline(always)]
    pub fn remote(self) -> (u64, u32) {
        let wr = self.0;
        // SAFETY: all views are plain integers.
        unsafe {
            match wr.opcode {
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey)
                }
                IBV_WR_SEND_WITH_INV => (0, wr.imm.invalidate_rkey),
                // A SEND has no remote address; the member may hold any value.
                IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => (0, 0),
                _ => (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey),
            }
        }
    }

    /// Address of the `ibv_ah` and Q_Key of a datagram.
    #[must_use]
    #[inline(always)]
    pub fn datagram(self) -> (usize, u32) {
        // SAFETY: plain integers, and a pointer that is not dereferenced.
        unsafe { (self.0.wr.ud.ah as usize, self.0.wr.ud.remote_qkey) }
    }

    /// Range and access of a bind, and the lkey of its region; `None` for other requests.
    #[must_use]
    pub fn bind(self) -> Option<(ibv_mw_bind_info, Option<u32>)> {
        if self.0.opcode != abi::IBV_WR_BIND_MW {
            return None;
        }
        // SAFETY: a bind has this member, whose region is NULL or live.
        unsafe {
            let info = self.0.tail.bind_mw.bind_info;
            Some((info, info.mr.as_ref().map(|mr| mr.lkey)))
        }
    }
}

/// A receive request.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWr<'a>(&'a ibv_recv_wr);

impl<'a> ReceiveWr<'a> {
    /// The program's `wr_id`.
    #[must_use]
    #[inline(always)]
    pub const fn wr_id(self) -> u64 {
        self.0.wr_id
    }

    /// Number of elements.
    #[must_use]
    #[inline(always)]
    pub const fn count(self) -> c_int {
        self.0.num_sge
    }

    /// Address of the list of elements.
    #[must_use]
    pub fn list(self) -> usize {
        self.0.sg_list as usize
    }

    /// The elements; `None` for more than `most`, for a negative number, and for NULL.
    #[must_use]
    #[inline(always)]
    pub fn elements(self, most: u32) -> Option<&'a [ibv_sge]> {
        match usize::try_from(self.0.num_sge).ok()? {
            0 => Some(&[]),
            count if count > most as usize || self.0.sg_list.is_null() => None,
            // SAFETY: the program's list has `count` elements.
            count => Some(unsafe { core::slice::from_raw_parts(self.0.sg_list, count) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use abi::Zeroed;

    use super::*;

    /// A list of two receives, with the wr_ids 1 and 2.
    fn two(act: impl FnOnce(Requests<'_, ibv_recv_wr>, [*mut ibv_recv_wr; 2])) {
        let mut second = ibv_recv_wr::zeroed();
        second.wr_id = 2;
        let mut first = ibv_recv_wr::zeroed();
        (first.wr_id, first.next) = (1, &raw mut second);
        let both = [&raw mut first, &raw mut second];
        // SAFETY: both requests are live.
        act(unsafe { Requests::new(both[0]) }, both);
    }

    #[test]
    fn a_request_that_is_not_in_the_list_is_not_looked_at() {
        two(|list, [first, mut second]| {
            let id = |bad: *mut *mut ibv_recv_wr| {
                // SAFETY: NULL, or a live pointer.
                list.named_by(unsafe { Arg::new(bad) }, 2).map(ReceiveWr::wr_id)
            };
            assert_eq!(id(&raw mut second), Some(2));
            let mut elsewhere = core::ptr::without_provenance_mut(16);
            assert_eq!(id(&raw mut elsewhere), Some(1));
            assert_eq!(id(core::ptr::null_mut()), Some(1));
            // The request behind the first `count` is not named.
            // SAFETY: a live pointer.
            let bad = unsafe { Arg::new(&raw mut second) };
            assert_eq!(list.named_by(bad, 1).map(ReceiveWr::wr_id), Some(1));
            assert_eq!(list.first().map(ReceiveWr::wr_id), Some(1));
            assert!(!first.is_null());
        });
    }

    #[test]
    fn the_requests_from_the_refused_one_on_were_not_posted() {
        two(|list, [mut first, mut second]| {
            // SAFETY: a live pointer.
            let of = |bad: *mut *mut ibv_recv_wr| list.refused(unsafe { Arg::new(bad) }, 2);
            assert_eq!(of(&raw mut first), [1, 2]);
            assert_eq!(of(&raw mut second), [2]);
            assert!(of(core::ptr::null_mut()).is_empty());
        });
    }

    #[test]
    fn a_list_that_returns_to_itself_is_a_ring() {
        two(|list, [first, second]| {
            assert!(!list.is_ring());
            assert_eq!(list.iter().map(ReceiveWr::wr_id).collect::<Vec<_>>(), [1, 2]);
            // SAFETY: the request is live.
            unsafe { (*second).next = first };
            assert!(list.is_ring());
            assert_eq!(
                list.iter().take(5).map(ReceiveWr::wr_id).collect::<Vec<_>>(),
                [1, 2, 1, 2, 1]
            );
        });
    }

    #[test]
    fn elements_beyond_the_limit_and_negative_numbers_are_not_read() {
        let mut sges = [ibv_sge { addr: 1, length: 2, lkey: 3 }; 2];
        let mut wr = ibv_recv_wr::zeroed();
        (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), 2);
        assert_eq!(ReceiveWr(&wr).elements(2).map(<[_]>::len), Some(2));
        assert!(ReceiveWr(&wr).elements(1).is_none());
        wr.num_sge = -1;
        assert!(ReceiveWr(&wr).elements(2).is_none());
        wr.num_sge = 0;
        assert_eq!(ReceiveWr(&wr).elements(2).map(<[_]>::len), Some(0));
        let mut send = ibv_send_wr::zeroed();
        (send.sg_list, send.num_sge) = (sges.as_mut_ptr(), 2);
        assert_eq!(SendWr(&send).elements(1).map(<[_]>::len), Some(1));
        send.sg_list = core::ptr::null_mut();
        assert!(SendWr(&send).elements(1).is_none());
    }
}
