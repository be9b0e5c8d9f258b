//! Polling and arming CQs through the kernel: `ibv_poll_cq(3)`, `ibv_req_notify_cq(3)`;
//! `ib_uverbs_poll_cq` of `<rdma/ib_user_verbs.h>`. For adapters that user space cannot reach
//! directly.

use core::ffi::c_int;

use abi::{
    IB_USER_VERBS_CMD_POLL_CQ, IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, ib_uverbs_poll_cq,
    ib_uverbs_poll_cq_resp, ib_uverbs_req_notify_cq, ib_uverbs_wc, ibv_cq, ibv_wc, ibv_wc_imm,
};

use super::status::Status;
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, copy_of, plain_data};
use crate::front::command::write::{Number, Write};
use cface::{Errno, MinusOne, verb};

plain_data! { ib_uverbs_poll_cq ib_uverbs_poll_cq_resp ib_uverbs_req_notify_cq ib_uverbs_wc }

verb! {
    /// `ibv_cmd_poll_cq`: takes up to `ne` completions; returns how many.
    ///
    /// # Errors
    /// -1 when the kernel refuses, `ne` is negative, or memory is short.
    ///
    /// # Safety
    /// `cq` is live, `wc` has room for `ne` completions.
    pub(crate) fn poll_cq(cq: *mut ibv_cq, ne: c_int, wc: *mut ibv_wc) -> MinusOne {
        // SAFETY: the caller's CQ is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*cq).context)?, (*cq).handle) };
        let room = usize::try_from(ne).map_err(|_| Errno::EINVAL)?;
        let mut response = Vec::new();
        response.try_reserve_exact(HEAD + WORDS_PER_WC * room).map_err(|_| Errno::ENOMEM)?;
        response.resize(HEAD + WORDS_PER_WC * room, 0_u64);
        let request = ib_uverbs_poll_cq { response: 0, cq_handle: handle, ne: ne.cast_unsigned() };
        Write::new(Number::Plain(IB_USER_VERBS_CMD_POLL_CQ), InputBytes::of(&request))
            .response(OutputBytes::slice(&mut response))
            .run(context)?;
        let head: ib_uverbs_poll_cq_resp = copy_of(&response).ok_or(Errno::EIO)?;
        let count = (head.count as usize).min(room);
        let completions = response.get(HEAD..).unwrap_or_default().chunks_exact(WORDS_PER_WC);
        for (at, from) in completions.take(count).filter_map(copy_of::<ib_uverbs_wc>).enumerate() {
            // SAFETY: less than `ne`, for which there is room.
            unsafe { store(&from, wc.add(at)) };
        }
        Ok(MinusOne(c_int::try_from(count).unwrap_or(ne)))
    }

    /// `ibv_cmd_req_notify_cq`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `cq` is live.
    pub(crate) fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> Status {
        // SAFETY: the caller's CQ is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*cq).context)?, (*cq).handle) };
        let request = ib_uverbs_req_notify_cq {
            cq_handle: handle,
            solicited_only: u32::from(solicited_only != 0),
        };
        Write::new(Number::Plain(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ), InputBytes::of(&request)).run(context)?;
        Ok(Status::DONE)
    }
}

/// Words of the response: a head, then the completions.
const HEAD: usize = size_of::<ib_uverbs_poll_cq_resp>() / size_of::<u64>();
const WORDS_PER_WC: usize = size_of::<ib_uverbs_wc>() / size_of::<u64>();

/// # Safety
/// `to` can be written.
unsafe fn store(from: &ib_uverbs_wc, to: *mut ibv_wc) {
    // SAFETY: `poll_cq` gives places within the caller's array only; padding there stays as it is.
    unsafe {
        (*to).wr_id = from.wr_id;
        (*to).status = from.status;
        (*to).opcode = from.opcode;
        (*to).vendor_err = from.vendor_err;
        (*to).byte_len = from.byte_len;
        (*to).imm = ibv_wc_imm { imm_data: from.imm_data };
        (*to).qp_num = from.qp_num;
        (*to).src_qp = from.src_qp;
        (*to).wc_flags = from.wc_flags;
        (*to).pkey_index = from.pkey_index;
        (*to).slid = from.slid;
        (*to).sl = from.sl;
        (*to).dlid_path_bits = from.dlid_path_bits;
    }
}
