//! Lists of work requests of libibverbs 1.0, as lists of today: `ibv_post_send(3)`,
//! `ibv_post_recv(3)`. Nothing here panics: a panic would end the application.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use abi::{
    Zeroed, ibv_recv_wr, ibv_recv_wr_1_0, ibv_send_wr, ibv_send_wr_1_0, ibv_send_wr_imm,
    ibv_send_wr_ud, ibv_send_wr_wr,
};

use super::real;
use cface::Errno;

/// A list of up to so many requests needs no memory but the stack.
const ON_STACK: usize = 16;

/// A work request of 1.0.
pub(super) trait Request {
    type CurrentRequest;

    fn next(&self) -> *mut Self;

    /// The current form of the request, without its link. `datagram`: the request names an address
    /// handle.
    ///
    /// # Safety
    /// The address handle of a datagram is NULL or live.
    unsafe fn translate(&self, datagram: bool) -> Self::CurrentRequest;

    fn link(todays: &mut Self::CurrentRequest, next: *mut Self::CurrentRequest);
}

impl Request for ibv_send_wr_1_0 {
    type CurrentRequest = ibv_send_wr;

    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn translate(&self, datagram: bool) -> ibv_send_wr {
        let wr = if datagram {
            // SAFETY: the view of a datagram, whose handle is NULL or live by the contract.
            let (ud, ah) = unsafe { (self.wr.ud, real(self.wr.ud.ah)) };
            let (remote_qpn, remote_qkey) = (ud.remote_qpn, ud.remote_qkey);
            ibv_send_wr_wr { ud: ibv_send_wr_ud { ah, remote_qpn, remote_qkey } }
        } else {
            // SAFETY: two unions of equal size, equal except for datagrams; both may be
            // uninitialised.
            unsafe { (&raw const self.wr).cast::<ibv_send_wr_wr>().read() }
        };
        ibv_send_wr {
            wr_id: self.wr_id,
            sg_list: self.sg_list,
            num_sge: self.num_sge,
            opcode: self.opcode,
            send_flags: self.send_flags,
            imm: ibv_send_wr_imm { imm_data: self.imm_data },
            wr,
            ..ibv_send_wr::zeroed()
        }
    }

    fn link(todays: &mut ibv_send_wr, next: *mut ibv_send_wr) {
        todays.next = next;
    }
}

impl Request for ibv_recv_wr_1_0 {
    type CurrentRequest = ibv_recv_wr;

    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn translate(&self, _datagram: bool) -> ibv_recv_wr {
        let (wr_id, sg_list, num_sge) = (self.wr_id, self.sg_list, self.num_sge);
        ibv_recv_wr { wr_id, next: core::ptr::null_mut(), sg_list, num_sge }
    }

    fn link(todays: &mut ibv_recv_wr, next: *mut ibv_recv_wr) {
        todays.next = next;
    }
}

/// Posts a list of 1.0 with a current operation, and reports the first request that failed. Returns
/// the operation's result, or `ENOMEM` for a list that is too long.
///
/// # Safety
/// `first` starts a list of readable requests; address handles of `datagrams` are NULL or live;
/// `bad` is NULL or writable.
pub(super) unsafe fn list<T: Request>(
    first: *mut T,
    bad: *mut *mut T,
    datagrams: bool,
    operation: impl FnOnce(*mut T::CurrentRequest, *mut *mut T::CurrentRequest) -> c_int,
) -> c_int {
    // SAFETY: NULL, an empty list, or the caller's list, which is unchanged until the return.
    let count = unsafe { requests(first) }.count();
    let mut on_stack = [const { MaybeUninit::<T::CurrentRequest>::uninit() }; ON_STACK];
    let mut on_heap = Vec::new();
    let room = match on_stack.get_mut(..count) {
        Some(room) => room,
        None if on_heap.try_reserve_exact(count).is_ok() => on_heap.spare_capacity_mut(),
        None => {
            if !bad.is_null() {
                // SAFETY: not NULL (checked), so the caller's to be written.
                unsafe { *bad = first };
            }
            return Errno::ENOMEM.raw();
        }
    };
    let start: *mut T::CurrentRequest =
        if count == 0 { core::ptr::null_mut() } else { room.as_mut_ptr().cast() };
    // SAFETY: the caller's list again, unchanged since it was counted.
    for (index, (request, todays)) in unsafe { requests(first) }.zip(room).enumerate() {
        // SAFETY: readable, and its address handle live, by the contract above.
        let mut translated = unsafe { (*request).translate(datagrams) };
        if index + 1 < count {
            T::link(&mut translated, start.wrapping_add(index + 1));
        }
        todays.write(translated);
    }
    let mut failed = core::ptr::null_mut();
    let result = operation(start, &raw mut failed);
    if result != 0 && !bad.is_null() {
        // Requests of both lists have the same positions; without a report the first request is
        // reported. SAFETY: the caller's list, unchanged: the operation got our translation.
        let mut old = unsafe { requests(first) };
        let position = (0..count).find(|&index| start.wrapping_add(index) == failed);
        // SAFETY: not NULL (checked above), so the caller's to be written.
        unsafe { *bad = position.and_then(|position| old.nth(position)).unwrap_or(first) };
    }
    result
}

/// The requests of a list.
///
/// # Safety
/// `first` starts a list of requests that are readable as long as the iterator is used.
unsafe fn requests<T: Request>(first: *mut T) -> impl Iterator<Item = *mut T> {
    let mut next = first;
    core::iter::from_fn(move || {
        let request = next;
        // SAFETY: NULL or readable by the contract above.
        next = unsafe { request.as_ref()? }.next();
        Some(request)
    })
}
