//! Operations on the tag list of a shared receive queue: ibv_post_srq_ops(3). The C entry point of
//! `engine/queues/srq/tagging`.

use super::failed;
use super::post::elements;
use crate::engine::queues::srq::tagging::{TagAction, TagOperation};
use crate::engine::queues::srq::{Srq, TagMatching};
use abi::*;
use soft_sys::Errno;
use std::ffi::c_int;

/// ibv_post_srq_ops(3): operations before the first invalid operation are executed. EINVAL for a
/// queue without tag matching, an unknown opcode, too many ranges or an unknown handle; ENOMEM if
/// the list is full, or more than `max_ops` operations are outstanding.
///
/// # Safety
/// `srq` is a live queue of this provider, `op` a list of operations, `bad_op` writable.
pub(super) unsafe extern "C" fn post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: `srq` is a live queue of this provider: the application does not destroy a queue
    // while it posts to the queue.
    let queue = unsafe { Srq::of(srq) };
    let mut result = 0;
    let mut at = op;
    // SAFETY: an element of the list, or NULL at its end.
    while let Some(request) = unsafe { at.as_mut() } {
        let tm = queue.tm.as_deref().ok_or(Errno::EINVAL);
        // SAFETY: `request` is an element of the caller's list; the memory that its opcode refers
        // to is valid until the call returns.
        let posted = tm.and_then(|tm| unsafe { post(tm, request) });
        if let Err(errno) = posted {
            // SAFETY: `bad_op` belongs to the caller and is writable during the call; only a
            // pointer is written.
            unsafe { bad_op.write(at) };
            result = failed(errno);
            break;
        }
        at = request.next;
    }
    // A message that waits for a receive may match a new entry.
    queue.receives_posted();
    result
}

/// # Safety
/// The memory that the opcode of `op` refers to is valid.
unsafe fn post(tm: &TagMatching, op: &mut ibv_ops_wr) -> Result<(), Errno> {
    let flags = op.flags as u32;
    let action = match op.opcode {
        IBV_WR_TAG_ADD => {
            let ibv_ops_wr_tm_add { recv_wr_id, sg_list, num_sge, tag, mask } = op.tm.add;
            // SAFETY: for the opcode `IBV_WR_TAG_ADD` the caller states that `sg_list` has
            // `num_sge` elements; they stay until the operation is posted.
            let list = unsafe { elements(sg_list, num_sge) }.ok_or(Errno::EINVAL)?;
            TagAction::Add { recv_wr_id, list, tag, mask }
        }
        IBV_WR_TAG_DEL => TagAction::Remove { handle: op.tm.handle },
        IBV_WR_TAG_SYNC => TagAction::Sync,
        _ => return Err(Errno::EINVAL),
    };
    let operation = TagOperation {
        wr_id: op.wr_id,
        signaled: flags & IBV_OPS_SIGNALED != 0,
        unexpected_handled: (flags & IBV_OPS_TM_SYNC != 0).then_some(op.tm.unexpected_cnt),
        action,
    };
    if let Some(handle) = tm.post(&operation)? {
        op.tm.handle = handle;
    }
    Ok(())
}
