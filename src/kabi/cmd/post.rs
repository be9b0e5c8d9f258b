//! Posting work requests through the kernel: `ibv_post_send(3)`, `ibv_post_recv(3)`,
//! `ibv_post_srq_recv(3)`; `ib_uverbs_post_send` and relatives of `<rdma/ib_user_verbs.h>`. For
//! adapters that user space cannot reach directly.

use core::ffi::c_int;

use abi::{
    IB_USER_VERBS_CMD_POST_RECV, IB_USER_VERBS_CMD_POST_SEND, IB_USER_VERBS_CMD_POST_SRQ_RECV,
    IBV_QPT_UD, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, Zeroed, ib_uverbs_post_send, ib_uverbs_recv_wr,
    ib_uverbs_send_wr, ib_uverbs_send_wr_atomic, ib_uverbs_send_wr_rdma, ib_uverbs_send_wr_ud,
    ib_uverbs_sge, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
};

use super::status::Status;
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::write::{Number, Write};
use crate::front::context::Context;
use cface::{Errno, verb};

plain_data! { ib_uverbs_post_send ib_uverbs_recv_wr ib_uverbs_send_wr ib_uverbs_sge }

verb! {
    /// `ibv_cmd_post_send`: posts the list `wr`. On failure `bad_wr` is the first request that was
    /// not posted.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `qp`, the list and the address handles in it are live; `bad_wr` can be written.
    pub(crate) fn post_send(
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad_wr: *mut *mut ibv_send_wr,
    ) -> Status {
        // SAFETY: the caller's QP is live, so its context, handle and type can be read.
        let (context, handle, is_ud) =
            unsafe { (super::context_of((*qp).context)?, (*qp).handle, (*qp).qp_type == IBV_QPT_UD) };
        let mut list = List::new(size_of::<ib_uverbs_send_wr>());
        let mut next = wr;
        // SAFETY: a list, per the contract above.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: its elements and address handle are live, per the contract above.
            unsafe { list.push(&send_request(request, is_ud), request.sg_list, request.num_sge) };
            next = request.next;
        }
        let (result, bad) = list.post(context, IB_USER_VERBS_CMD_POST_SEND, handle);
        // SAFETY: a list, per the contract above.
        unsafe { blame(wr, bad, result, bad_wr, |request| (*request).next) }
    }

    /// `ibv_cmd_post_recv`: posts the list `wr` to a QP. On failure `bad_wr` is the first request
    /// that was not posted.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `qp` and the list are live; `bad_wr` can be written.
    pub(crate) fn post_recv(
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad_wr: *mut *mut ibv_recv_wr,
    ) -> Status {
        // SAFETY: the caller's QP is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*qp).context)?, (*qp).handle) };
        // SAFETY: the caller's list ends with NULL and lives until we return; `bad_wr` is the
        // caller's to be written.
        unsafe { post_receives(context, IB_USER_VERBS_CMD_POST_RECV, handle, wr, bad_wr) }
    }

    /// `ibv_cmd_post_srq_recv`: the same for an SRQ.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `srq` and the list are live; `bad_wr` can be written.
    pub(crate) fn post_srq_recv(
        srq: *mut ibv_srq,
        wr: *mut ibv_recv_wr,
        bad_wr: *mut *mut ibv_recv_wr,
    ) -> Status {
        // SAFETY: the caller's SRQ is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*srq).context)?, (*srq).handle) };
        // SAFETY: the caller's list ends with NULL and lives until we return; `bad_wr` is the
        // caller's to be written.
        unsafe { post_receives(context, IB_USER_VERBS_CMD_POST_SRQ_RECV, handle, wr, bad_wr) }
    }
}

/// # Safety
/// The list is live; `bad_wr` can be written.
unsafe fn post_receives(
    context: Context,
    number: u32,
    handle: u32,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> Result<Status, Errno> {
    let mut list = List::new(size_of::<ib_uverbs_recv_wr>());
    let mut next = wr;
    // SAFETY: a list, per the contract.
    while let Some(request) = unsafe { next.as_ref() } {
        let wire = ib_uverbs_recv_wr {
            wr_id: request.wr_id,
            num_sge: request.num_sge.cast_unsigned(),
            reserved: 0,
        };
        // SAFETY: its elements are live, per the contract.
        unsafe { list.push(&wire, request.sg_list, request.num_sge) };
        next = request.next;
    }
    let (result, bad) = list.post(context, number, handle);
    // SAFETY: a list, per the contract.
    unsafe { blame(wr, bad, result, bad_wr, |request| (*request).next) }
}

/// Requests on their way to the kernel: first all of them, then all their elements.
#[derive(Debug)]
struct List {
    request_size: usize,
    requests: Vec<u8>,
    elements: Vec<u8>,
}

impl List {
    const fn new(request_size: usize) -> Self {
        Self { request_size, requests: Vec::new(), elements: Vec::new() }
    }

    /// # Safety
    /// `sg_list` has `num_sge` elements.
    unsafe fn push<R: PlainData>(&mut self, request: &R, sg_list: *const ibv_sge, num_sge: c_int) {
        InputBytes::of(request).append_to(&mut self.requests);
        let len = usize::try_from(num_sge).unwrap_or(0) * size_of::<ibv_sge>();
        // Both forms of an element are the same 16 bytes.
        const _: () = assert!(size_of::<ibv_sge>() == size_of::<ib_uverbs_sge>());
        // SAFETY: that many elements, by the contract.
        unsafe { InputBytes::raw(sg_list.cast(), len) }.append_to(&mut self.elements);
    }

    /// Posts the list. The number is that of the request that failed, counted from 1, or 0.
    fn post(mut self, context: Context, number: u32, handle: u32) -> (Result<(), Errno>, u32) {
        let count = |bytes: usize, size: usize| u32::try_from(bytes / size).unwrap_or(u32::MAX);
        let head = ib_uverbs_post_send {
            response: 0,
            qp_handle: handle,
            wr_count: count(self.requests.len(), self.request_size),
            sge_count: count(self.elements.len(), size_of::<ib_uverbs_sge>()),
            // 56 at most.
            wqe_size: self.request_size as u32,
        };
        let mut core =
            Vec::with_capacity(size_of_val(&head) + self.requests.len() + self.elements.len());
        InputBytes::of(&head).append_to(&mut core);
        core.append(&mut self.requests);
        core.append(&mut self.elements);
        let mut bad = 0_u32;
        let result = Write::new(Number::Plain(number), InputBytes::slice(&core))
            .response(OutputBytes::of(&mut bad))
            .run(context);
        (result, bad)
    }
}

/// Stores the request that failed. A kernel that fails without naming one means the first.
///
/// # Safety
/// `first` is NULL or starts a list that `next` follows; `bad_wr` can be written.
unsafe fn blame<W>(
    first: *mut W,
    bad: u32,
    result: Result<(), Errno>,
    bad_wr: *mut *mut W,
    next: unsafe fn(*mut W) -> *mut W,
) -> Result<Status, Errno> {
    if bad != 0 || result.is_err() {
        let mut request = first;
        for _ in 1..bad {
            if request.is_null() {
                break;
            }
            // SAFETY: an element of the list.
            request = unsafe { next(request) };
        }
        // SAFETY: both callers pass on the `bad_wr` of their caller, which may be written.
        unsafe { bad_wr.write(request) };
    }
    result.map(|()| Status::DONE)
}

/// # Safety
/// The address handle of a datagram is live.
unsafe fn send_request(from: &ibv_send_wr, is_ud: bool) -> ib_uverbs_send_wr {
    let mut to = ib_uverbs_send_wr::zeroed();
    to.wr_id = from.wr_id;
    to.num_sge = from.num_sge.cast_unsigned();
    to.opcode = from.opcode;
    to.send_flags = from.send_flags;
    // SAFETY: both views are 4 plain bytes.
    to.imm_data = unsafe { from.imm.imm_data };
    if is_ud {
        // SAFETY: requests of such a QP have this view; the handle is live by the contract.
        let (ud, ah) = unsafe { (from.wr.ud, (*from.wr.ud.ah).handle) };
        to.wr.ud = ib_uverbs_send_wr_ud {
            ah,
            remote_qpn: ud.remote_qpn,
            remote_qkey: ud.remote_qkey,
            reserved: 0,
        };
        return to;
    }
    match from.opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
            // SAFETY: requests of these opcodes have this view.
            let rdma = unsafe { from.wr.rdma };
            to.wr.rdma = ib_uverbs_send_wr_rdma {
                remote_addr: rdma.remote_addr,
                rkey: rdma.rkey,
                reserved: 0,
            };
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: requests of these opcodes have this view.
            let atomic = unsafe { from.wr.atomic };
            to.wr.atomic = ib_uverbs_send_wr_atomic {
                remote_addr: atomic.remote_addr,
                compare_add: atomic.compare_add,
                swap: atomic.swap,
                rkey: atomic.rkey,
                reserved: 0,
            };
        }
        _ => {}
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_that_failed_is_counted_from_one() {
        let mut list: [ibv_recv_wr; 3] = core::array::from_fn(|_| ibv_recv_wr::zeroed());
        let first = list.as_mut_ptr();
        for (at, request) in list.iter_mut().take(2).enumerate() {
            request.next = first.wrapping_add(at + 1);
        }
        let check = |bad, result| {
            let mut bad_wr = core::ptr::null_mut();
            // SAFETY: a list of three.
            let status = unsafe { blame(first, bad, result, &raw mut bad_wr, |wr| (*wr).next) };
            let position = (bad_wr.addr().wrapping_sub(first.addr())) / size_of::<ibv_recv_wr>();
            (status, if bad_wr.is_null() { None } else { Some(position) })
        };
        assert_eq!(check(0, Ok(())), (Ok(Status::DONE), None));
        assert_eq!(check(0, Err(Errno::EINVAL)), (Err(Errno::EINVAL), Some(0)));
        assert_eq!(check(1, Err(Errno::EINVAL)), (Err(Errno::EINVAL), Some(0)));
        assert_eq!(check(3, Err(Errno::ENOMEM)), (Err(Errno::ENOMEM), Some(2)));
        assert_eq!(check(9, Err(Errno::ENOMEM)), (Err(Errno::ENOMEM), None));
    }
}
