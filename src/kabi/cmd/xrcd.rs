//! XRC domains: `ibv_open_xrcd(3)`; `ib_uverbs_open_xrcd` of `<rdma/ib_user_verbs.h>`. The
//! application's descriptor and flags say which domain is opened.

use core::ffi::c_int;
use core::mem::offset_of;

use abi::{
    IB_USER_VERBS_CMD_CLOSE_XRCD, IB_USER_VERBS_CMD_OPEN_XRCD, IBV_XRCD_INIT_ATTR_FD,
    IBV_XRCD_INIT_ATTR_OFLAGS, IBV_XRCD_INIT_ATTR_RESERVED, UVERBS_ATTR_DESTROY_XRCD_HANDLE,
    UVERBS_METHOD_XRCD_DESTROY, UVERBS_OBJECT_XRCD, VERBS_XRCD_HANDLE, ib_uverbs_open_xrcd,
    ib_uverbs_open_xrcd_resp, ibv_context, ibv_open_xrcd, ibv_xrcd_init_attr, verbs_xrcd,
};

use super::destroy::Destroy;
use super::status::Status;
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::Frame;
use crate::front::command::write::{Number, Write};
use crate::front::op::Op;
use cface::{Errno, verb};

plain_data! { ib_uverbs_open_xrcd ib_uverbs_open_xrcd_resp }

verb! {
    /// `ibv_cmd_open_xrcd`: opens or creates a domain. `vxrcd_size` says how much of `verbs_xrcd`
    /// the provider has; the handle is stored if there is room for it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` unknown members; `EINVAL` descriptor or flags missing; otherwise the kernel's
    /// errno.
    ///
    /// # Safety
    /// `context` is live, `xrcd` is the provider's to fill, `attr` is readable, `cmd` and `resp`
    /// are as long as the sizes say.
    pub(crate) fn open_xrcd(
        context: *mut ibv_context,
        xrcd: *mut verbs_xrcd,
        vxrcd_size: c_int,
        attr: *mut ibv_xrcd_init_attr,
        cmd: *mut ibv_open_xrcd,
        cmd_size: usize,
        resp: *mut ib_uverbs_open_xrcd_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the application's attributes are readable; they are copied.
        let attr = unsafe { *attr };
        if attr.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if attr.comp_mask & needed != needed {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the context is live; `cmd` and `resp` are as long as their sizes, which
        // `Frame::new` checks.
        let (live, frame) =
            unsafe { (super::context_of(context)?, Frame::new(cmd, cmd_size, resp, resp_size)?) };
        let core = &mut frame.cmd.core_payload;
        core.fd = attr.fd.cast_unsigned();
        core.oflags = attr.oflags.cast_unsigned();
        Write::new(Number::Plain(IB_USER_VERBS_CMD_OPEN_XRCD), InputBytes::of(core))
            .response(OutputBytes::of(&mut *frame.resp))
            .driver(frame.driver)
            .run(live)?;
        // SAFETY: the provider's to fill, per the contract above, as far as the size says.
        unsafe {
            (*xrcd).xrcd.context = context;
            (*xrcd).comp_mask = 0;
            let end = offset_of!(verbs_xrcd, handle) + size_of::<u32>();
            if usize::try_from(vxrcd_size).is_ok_and(|size| size >= end) {
                (*xrcd).comp_mask = VERBS_XRCD_HANDLE;
                (*xrcd).handle = frame.resp.xrcd_handle;
            }
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_close_xrcd`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `xrcd` is live.
    pub(crate) fn close_xrcd(xrcd: *mut verbs_xrcd) -> Status {
        // SAFETY: the provider's domain is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*xrcd).xrcd.context)?, (*xrcd).handle) };
        let destroy = Destroy {
            op: Op::close_xrcd,
            object: UVERBS_OBJECT_XRCD,
            method: UVERBS_METHOD_XRCD_DESTROY,
            handle: UVERBS_ATTR_DESTROY_XRCD_HANDLE,
        };
        destroy.run(context, handle, Number::Plain(IB_USER_VERBS_CMD_CLOSE_XRCD), &handle)
    }
}
