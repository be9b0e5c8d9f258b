//! Memory windows: `ibv_alloc_mw(3)`; `ib_uverbs_alloc_mw` of `<rdma/ib_user_verbs.h>`. The
//! commands allocate and free a window; they do not bind it.

use abi::{
    IB_USER_VERBS_CMD_ALLOC_MW, IB_USER_VERBS_CMD_DEALLOC_MW, UVERBS_ATTR_DESTROY_MW_HANDLE,
    UVERBS_METHOD_MW_DESTROY, UVERBS_OBJECT_MW, ib_uverbs_alloc_mw, ib_uverbs_alloc_mw_resp,
    ibv_alloc_mw, ibv_mw, ibv_mw_type, ibv_pd,
};

use super::destroy::Destroy;
use super::status::Status;
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::Frame;
use crate::front::command::write::{Number, Write};
use crate::front::op::Op;
use cface::verb;

plain_data! { ib_uverbs_alloc_mw ib_uverbs_alloc_mw_resp }

verb! {
    /// `ibv_cmd_alloc_mw`: a new window; sets all its members.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `pd` is live, `mw` is the provider's to fill, `cmd` and `resp` are as long as the sizes say.
    pub(crate) fn alloc_mw(
        pd: *mut ibv_pd,
        kind: ibv_mw_type,
        mw: *mut ibv_mw,
        cmd: *mut ibv_alloc_mw,
        cmd_size: usize,
        resp: *mut ib_uverbs_alloc_mw_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the caller's PD is live, so its context and handle can be read.
        let (raw_context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
        // SAFETY: the context of a live PD is live; `cmd` and `resp` are as long as their sizes,
        // checked inside.
        let (context, frame) =
            unsafe { (super::context_of(raw_context)?, Frame::new(cmd, cmd_size, resp, resp_size)?) };
        let core = &mut frame.cmd.core_payload;
        core.pd_handle = pd_handle;
        // Types are 1 and 2.
        core.mw_type = kind as u8;
        core.reserved = [0; 3];
        Write::new(Number::Plain(IB_USER_VERBS_CMD_ALLOC_MW), InputBytes::of(core))
            .response(OutputBytes::of(&mut *frame.resp))
            .driver(frame.driver)
            .run(context)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*mw).context = raw_context;
            (*mw).pd = pd;
            (*mw).rkey = frame.resp.rkey;
            (*mw).handle = frame.resp.mw_handle;
            (*mw).type_ = kind;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_dealloc_mw`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `mw` is live.
    pub(crate) fn dealloc_mw(mw: *mut ibv_mw) -> Status {
        // SAFETY: the caller's window is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*mw).context)?, (*mw).handle) };
        let destroy = Destroy {
            op: Op::dealloc_mw,
            object: UVERBS_OBJECT_MW,
            method: UVERBS_METHOD_MW_DESTROY,
            handle: UVERBS_ATTR_DESTROY_MW_HANDLE,
        };
        destroy.run(context, handle, Number::Plain(IB_USER_VERBS_CMD_DEALLOC_MW), &handle)
    }
}
