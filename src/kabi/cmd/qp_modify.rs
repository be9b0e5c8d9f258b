//! Changing and reading queue pairs: `ibv_modify_qp(3)`, `ibv_query_qp(3)`; `ib_uverbs_modify_qp`
//! and relatives of `<rdma/ib_user_verbs.h>`.

use core::ffi::c_int;
use core::mem::offset_of;

use abi::{
    IB_USER_VERBS_CMD_MODIFY_QP, IB_USER_VERBS_CMD_QUERY_QP, IB_USER_VERBS_EX_CMD_MODIFY_QP,
    QpAttrMask, Zeroed, ib_uverbs_ex_modify_qp, ib_uverbs_ex_modify_qp_resp, ib_uverbs_modify_qp,
    ib_uverbs_query_qp, ib_uverbs_query_qp_resp, ibv_modify_qp, ibv_modify_qp_ex, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_query_qp,
};

use super::qp_attr;
use super::status::{Status, set};
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::{self, Frame};
use crate::front::command::write::{Number, Write};
use cface::{Errno, verb};

plain_data! {
    ib_uverbs_modify_qp ib_uverbs_ex_modify_qp ib_uverbs_ex_modify_qp_resp ib_uverbs_query_qp
    ib_uverbs_query_qp_resp
}

/// The first member that only the extended command has.
const RATE_LIMIT: u32 = QpAttrMask::RATE_LIMIT.bits();

verb! {
    /// `ibv_cmd_modify_qp`. Members of the command that `attr_mask` does not select are sent as the
    /// provider left them; the kernel ignores them.
    ///
    /// # Errors
    /// `EOPNOTSUPP` members beyond the plain command; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `qp` is live, `attr` is readable, `cmd` is as long as its size says.
    pub(crate) fn modify_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        cmd: *mut ibv_modify_qp,
        cmd_size: usize,
    ) -> Status {
        let mask = attr_mask.cast_unsigned();
        if mask >= RATE_LIMIT {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: the caller's QP is live and `attr` readable as far as its release has it; `cmd`
        // is as long as its size, which `request` checks.
        let (context, handle, attr, (cmd, driver)) = unsafe {
            let attr = qp_attr::read(attr, QpAttrMask::from_bits_retain(mask));
            (super::context_of((*qp).context)?, (*qp).handle, attr, frame::request(cmd, cmd_size)?)
        };
        let core = &mut cmd.core_payload;
        fill(core, handle, &attr, mask);
        Write::new(Number::Plain(IB_USER_VERBS_CMD_MODIFY_QP), InputBytes::of(core)).driver(driver).run(context)?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_modify_qp_ex`: with the rate limit, for which the command must be long enough.
    ///
    /// # Errors
    /// `EINVAL` a command too short for the rate limit, or, with errno set, for the structure; what
    /// the kernel says.
    ///
    /// # Safety
    /// `qp` is live, `attr` is readable, `cmd` and `resp` are as long as the sizes say.
    pub(crate) fn modify_qp_ex(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        cmd: *mut ibv_modify_qp_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_modify_qp_resp,
        resp_size: usize,
    ) -> Status {
        let mask = attr_mask.cast_unsigned();
        let rate_limit_end = offset_of!(ibv_modify_qp_ex, core_payload)
            + offset_of!(ib_uverbs_ex_modify_qp, reserved);
        if mask & RATE_LIMIT != 0 && cmd_size < rate_limit_end {
            return Err(Errno::EINVAL);
        }
        if cmd_size < size_of::<ibv_modify_qp_ex>() {
            return Err(set(Errno::EINVAL));
        }
        // SAFETY: the caller's QP is live, `attr` readable as far as its release has it, with the
        // rate limit if the mask selects that, and `cmd` and `resp` are as long as their sizes
        // (checked).
        let (context, handle, attr, frame) = unsafe {
            let frame = Frame::new(cmd, cmd_size, resp, resp_size)?;
            let attr = qp_attr::read(attr, QpAttrMask::from_bits_retain(mask));
            (super::context_of((*qp).context)?, (*qp).handle, attr, frame)
        };
        let core = &mut frame.cmd.core_payload;
        fill(&mut core.base, handle, &attr, mask);
        if mask & RATE_LIMIT != 0 {
            core.rate_limit = attr.rate_limit;
        }
        Write::new(Number::Extended(IB_USER_VERBS_EX_CMD_MODIFY_QP), InputBytes::of(core))
            .response(OutputBytes::of(&mut *frame.resp))
            .driver(frame.driver)
            .run(context)?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_query_qp`: fills both structures, whatever `attr_mask` selects.
    ///
    /// # Errors
    /// `EOPNOTSUPP` members beyond the plain command; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `qp` is live, `attr` and `init_attr` can be written, `cmd` is as long as its size says.
    pub(crate) fn query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
        cmd: *mut ibv_query_qp,
        cmd_size: usize,
    ) -> Status {
        let mask = attr_mask.cast_unsigned();
        if mask >= RATE_LIMIT {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: the caller's QP is live; `cmd` is as long as its size, which `request` checks.
        let (context, handle, (cmd, driver)) =
            unsafe { (super::context_of((*qp).context)?, (*qp).handle, frame::request(cmd, cmd_size)?) };
        let mut response = ib_uverbs_query_qp_resp::zeroed();
        let core = &mut cmd.core_payload;
        core.qp_handle = handle;
        core.attr_mask = mask;
        Write::new(Number::Plain(IB_USER_VERBS_CMD_QUERY_QP), InputBytes::of(core))
            .response(OutputBytes::of(&mut response))
            .driver(driver)
            .run(context)?;
        // SAFETY: the QP is live, and both structures are the caller's to be written.
        unsafe {
            qp_attr::from_kernel(&response, attr);
            (*init_attr).qp_context = (*qp).qp_context;
            (*init_attr).send_cq = (*qp).send_cq;
            (*init_attr).recv_cq = (*qp).recv_cq;
            (*init_attr).srq = (*qp).srq;
            (*init_attr).qp_type = (*qp).qp_type;
            (*init_attr).cap = qp_attr::capacities(&response);
            (*init_attr).sq_sig_all = response.sq_sig_all.into();
        }
        Ok(Status::DONE)
    }
}

fn fill(core: &mut ib_uverbs_modify_qp, handle: u32, attr: &ibv_qp_attr, mask: u32) {
    core.qp_handle = handle;
    core.attr_mask = mask;
    qp_attr::to_kernel(attr, QpAttrMask::from_bits_retain(mask), core);
    core.reserved = [0; 2];
}
