//! Protection domains: `ibv_alloc_pd(3)`, `ib_uverbs_alloc_pd` of `<rdma/ib_user_verbs.h>`. The
//! functions fill the provider's object with the handle that the kernel returns.

use abi::{
    IB_USER_VERBS_CMD_ALLOC_PD, IB_USER_VERBS_CMD_DEALLOC_PD, UVERBS_ATTR_DESTROY_PD_HANDLE,
    UVERBS_METHOD_PD_DESTROY, UVERBS_OBJECT_PD, ib_uverbs_alloc_pd, ib_uverbs_alloc_pd_resp,
    ibv_alloc_pd, ibv_context, ibv_pd,
};

use super::destroy::Destroy;
use super::status::Status;
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::Frame;
use crate::front::command::write::{Number, Write};
use crate::front::op::Op;
use cface::verb;

plain_data! { ib_uverbs_alloc_pd ib_uverbs_alloc_pd_resp }

verb! {
    /// `ibv_cmd_alloc_pd`: a new PD; sets `handle` and `context`.
    ///
    /// # Errors
    /// `EINVAL` sizes below those of the structures; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `context` is live, `pd` is the provider's to fill, `cmd` and `resp` are as long as the sizes
    /// say.
    pub(crate) fn alloc_pd(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        cmd: *mut ibv_alloc_pd,
        cmd_size: usize,
        resp: *mut ib_uverbs_alloc_pd_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the context is live; `cmd` and `resp` are as long as their sizes, which
        // `Frame::new` checks.
        let (live, frame) = unsafe { (super::context_of(context)?, Frame::new(cmd, cmd_size, resp, resp_size)?) };
        Write::new(Number::Plain(IB_USER_VERBS_CMD_ALLOC_PD), InputBytes::of(&frame.cmd.core_payload))
            .response(OutputBytes::of(&mut *frame.resp))
            .driver(frame.driver)
            .run(live)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*pd).handle = frame.resp.pd_handle;
            (*pd).context = context;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_dealloc_pd`.
    ///
    /// # Errors
    /// The kernel's errno; `EBUSY` while objects use the PD.
    ///
    /// # Safety
    /// `pd` is live.
    pub(crate) fn dealloc_pd(pd: *mut ibv_pd) -> Status {
        // SAFETY: the caller's PD is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*pd).context)?, (*pd).handle) };
        let destroy = Destroy {
            op: Op::dealloc_pd,
            object: UVERBS_OBJECT_PD,
            method: UVERBS_METHOD_PD_DESTROY,
            handle: UVERBS_ATTR_DESTROY_PD_HANDLE,
        };
        destroy.run(context, handle, Number::Plain(IB_USER_VERBS_CMD_DEALLOC_PD), &handle)
    }
}
