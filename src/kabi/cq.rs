//! Completion queues as providers create them. `front::cq` fills the fields, as it does for the
//! verb.

use core::ffi::c_void;

use abi::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::front;
use cface::{Errno, verb};

verb! {
    /// `verbs_init_cq`: fills the front-end's part of a CQ and counts it at its channel.
    ///
    /// # Safety
    /// `cq` is fresh; `context` and `channel` (or NULL) are live.
    pub(crate) fn init(
        cq: *mut ibv_cq,
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
    ) {
        if cq.is_null() || context.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: neither is NULL (checked); the provider made `cq` just now, and `channel` is NULL
        // or live.
        unsafe { front::cq::init(cq, context, channel, cq_context) };
        Ok(())
    }
}
