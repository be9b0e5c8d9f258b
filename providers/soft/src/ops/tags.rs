//! Operations on the tag list of a shared receive queue: ibv_post_srq_ops(3).

use super::failed;
use super::post::elements;
use crate::engine::objects::srq::{Srq, TagMatching};
use crate::engine::tagging::{Operation, What};
use abi::*;
use soft_sys::Errno;
use std::ffi::c_int;

/// ibv_post_srq_ops(3): operations before the first bad one are done. EINVAL for a queue that matches no tags, an opcode that is
/// none, too many ranges or an unknown handle; ENOMEM when the list is full, or more operations than `max_ops` are
/// outstanding.
///
/// # Safety
/// `srq` is a live queue of this provider, `op` a list of operations, `bad_op` writable.
pub(super) unsafe extern "C" fn post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: `srq` is a live queue of this provider: the application does not destroy it while it posts to it.
    let queue = unsafe { Srq::of(srq) };
    let mut result = 0;
    let mut at = op;
    // SAFETY: an element of the list, or NULL at its end.
    while let Some(request) = unsafe { at.as_mut() } {
        let tm = queue.tm.as_deref().ok_or(Errno::EINVAL);
        // SAFETY: `request` is an element of the caller's list; what it refers to by its opcode is the caller's until
        // this call returns.
        let posted = tm.and_then(|tm| unsafe { post(tm, request) });
        if let Err(errno) = posted {
            // SAFETY: `bad_op` is the caller's, writable until this call returns; only a pointer is written.
            unsafe { bad_op.write(at) };
            result = failed(errno);
            break;
        }
        at = request.next;
    }
    // A message that waits for a receive may have its entry now.
    queue.posted();
    result
}

/// # Safety
/// What `op` refers to by its opcode is valid.
unsafe fn post(tm: &TagMatching, op: &mut ibv_ops_wr) -> Result<(), Errno> {
    let flags = op.flags as u32;
    let what = match op.opcode {
        IBV_WR_TAG_ADD => {
            let ibv_ops_wr_tm_add { recv_wr_id, sg_list, num_sge, tag, mask } = op.tm.add;
            // SAFETY: the opcode is `IBV_WR_TAG_ADD`, for which the caller says that `sg_list` has `num_sge` elements;
            // they stay until the operation is posted.
            let list = unsafe { elements(sg_list, num_sge) }.ok_or(Errno::EINVAL)?;
            What::Add { recv_wr_id, list, tag, mask }
        }
        IBV_WR_TAG_DEL => What::Remove { handle: op.tm.handle },
        IBV_WR_TAG_SYNC => What::Sync,
        _ => return Err(Errno::EINVAL),
    };
    let operation = Operation {
        wr_id: op.wr_id,
        signaled: flags & IBV_OPS_SIGNALED != 0,
        seen: (flags & IBV_OPS_TM_SYNC != 0).then_some(op.tm.unexpected_cnt),
        what,
    };
    if let Some(handle) = tm.post(&operation)? {
        op.tm.handle = handle;
    }
    Ok(())
}
