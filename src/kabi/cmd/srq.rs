//! Shared receive queues: `ibv_create_srq(3)`, `ibv_create_srq_ex(3)`, `ibv_modify_srq(3)`; object
//! `UVERBS_OBJECT_SRQ` of `<rdma/ib_user_ioctl_cmds.h>` and the SRQ commands of
//! `<rdma/ib_user_verbs.h>`.
//!
//! Map of this file: the exported functions; `SrqObjects`, the checked handles; `create` with the
//! ioctl and the write commands; tests.

use core::ffi::c_int;

use abi::{
    IB_USER_VERBS_CMD_CREATE_SRQ, IB_USER_VERBS_CMD_CREATE_XSRQ, IB_USER_VERBS_CMD_DESTROY_SRQ,
    IB_USER_VERBS_CMD_MODIFY_SRQ, IB_USER_VERBS_CMD_QUERY_SRQ, IBV_SRQ_INIT_ATTR_CQ,
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_RESERVED, IBV_SRQ_INIT_ATTR_TM, IBV_SRQ_INIT_ATTR_TYPE,
    IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_SRQT_TM, IBV_SRQT_XRC,
    UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, UVERBS_ATTR_CREATE_SRQ_EVENT_FD,
    UVERBS_ATTR_CREATE_SRQ_HANDLE, UVERBS_ATTR_CREATE_SRQ_LIMIT,
    UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS, UVERBS_ATTR_CREATE_SRQ_MAX_SGE,
    UVERBS_ATTR_CREATE_SRQ_MAX_WR, UVERBS_ATTR_CREATE_SRQ_PD_HANDLE,
    UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR,
    UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, UVERBS_ATTR_CREATE_SRQ_TYPE,
    UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE,
    UVERBS_ATTR_DESTROY_SRQ_HANDLE, UVERBS_ATTR_DESTROY_SRQ_RESP, UVERBS_METHOD_SRQ_CREATE,
    UVERBS_METHOD_SRQ_DESTROY, UVERBS_OBJECT_SRQ, Zeroed, ib_uverbs_create_srq,
    ib_uverbs_create_srq_resp, ib_uverbs_create_xsrq, ib_uverbs_destroy_srq,
    ib_uverbs_destroy_srq_resp, ib_uverbs_modify_srq, ib_uverbs_modify_srq_v3, ib_uverbs_query_srq,
    ib_uverbs_query_srq_resp, ibv_context, ibv_cq, ibv_create_srq, ibv_create_srq_resp_v5,
    ibv_create_xsrq, ibv_modify_srq, ibv_pd, ibv_query_srq, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, verbs_srq, verbs_xrcd,
};

use super::destroy::{DestroyResult, destroy_result, wait_for_acknowledgements};
use super::status::{Status, set};
use crate::front::command::buffer::Command;
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::{self, Driver};
use crate::front::command::write::{Number, Write};
use crate::front::command::{IoctlOutcome, async_fd, is_imported};
use crate::front::context::Context;
use crate::front::op::Op;
use cface::{Errno, lock, verb};

plain_data! {
    ib_uverbs_create_srq ib_uverbs_create_srq_resp ib_uverbs_create_xsrq ib_uverbs_destroy_srq
    ib_uverbs_destroy_srq_resp ib_uverbs_modify_srq ib_uverbs_modify_srq_v3 ib_uverbs_query_srq
    ib_uverbs_query_srq_resp ibv_create_srq_resp_v5
}

verb! {
    /// `ibv_cmd_create_srq`: a new basic SRQ; sets `context`, `pd`, `handle` and the locks, and the
    /// capacities in `attr`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `pd` is live, `srq` is the provider's to fill, `attr` is the caller's, `cmd` and `resp` are
    /// as long as the sizes say.
    pub(crate) fn create_srq(
        pd: *mut ibv_pd,
        srq: *mut ibv_srq,
        attr: *mut ibv_srq_init_attr,
        cmd: *mut ibv_create_srq,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_srq_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: PD and attributes are live, `srq` is there to be filled, `cmd` and `resp` are as
        // long as their sizes.
        unsafe {
            let mut wish = ibv_srq_init_attr_ex::zeroed();
            wish.attr = (*attr).attr;
            wish.comp_mask = IBV_SRQ_INIT_ATTR_PD;
            wish.pd = pd;
            let driver = Driver::after_core(cmd, cmd_size, resp, resp_size);
            create((*pd).context, srq, None, &mut wish, driver)?;
            (*attr).attr = wish.attr;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_create_srq_ex`: a new SRQ of any type; sets the members of `verbs_srq` too.
    ///
    /// # Errors
    /// `EOPNOTSUPP` unknown members; `EINVAL` members that the type needs are missing; what the
    /// kernel says.
    ///
    /// # Safety
    /// `context` and what `attr_ex` names are live, `srq` is the provider's to fill, `cmd` and
    /// `resp` are as long as the sizes say.
    pub(crate) fn create_srq_ex(
        context: *mut ibv_context,
        srq: *mut verbs_srq,
        attr_ex: *mut ibv_srq_init_attr_ex,
        cmd: *mut ibv_create_xsrq,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_srq_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: NULL, which is refused, or attributes that only this call uses now.
        let wish = unsafe { attr_ex.as_mut() }.ok_or(Errno::EINVAL)?;
        if wish.comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED {
            return Err(set(Errno::EOPNOTSUPP));
        }
        if wish.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(set(Errno::EINVAL));
        }
        // SAFETY: what `wish` names is live; `srq` is there to be filled, `cmd` and `resp` are as
        // long as their sizes.
        unsafe {
            let driver = Driver::after_core(cmd, cmd_size, resp, resp_size);
            create(context, &raw mut (*srq).srq, Some(srq), wish, driver)?;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_destroy_srq`: returns when the application has acknowledged all events of the SRQ.
    ///
    /// # Errors
    /// The kernel's errno; `EBUSY` while QPs use it.
    ///
    /// # Safety
    /// `srq` is live.
    pub(crate) fn destroy_srq(srq: *mut ibv_srq) -> Status {
        // SAFETY: the caller's SRQ is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*srq).context)?, (*srq).handle) };
        let mut reported = ib_uverbs_destroy_srq_resp::zeroed();
        let mut response = ib_uverbs_destroy_srq_resp::zeroed();
        let mut command = Command::new(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY);
        command.output(UVERBS_ATTR_DESTROY_SRQ_RESP, OutputBytes::of(&mut reported));
        command.object_in(UVERBS_ATTR_DESTROY_SRQ_HANDLE, handle);
        let result = match command.run_or_fall_back(context, Op::destroy_srq) {
            Ok(IoctlOutcome::Done) => {
                response = reported;
                Ok(())
            }
            Ok(IoctlOutcome::Write | IoctlOutcome::WriteEx) => {
                let mut request = ib_uverbs_destroy_srq::zeroed();
                request.srq_handle = handle;
                command.write_resp(context, Number::Plain(IB_USER_VERBS_CMD_DESTROY_SRQ), &request, &mut response)
            }
            Err(error) => Err(error),
        };
        if destroy_result(result)? == DestroyResult::Destroyed {
            // SAFETY: one live object, per the contract above.
            unsafe {
                wait_for_acknowledgements(&raw mut (*srq).mutex, &raw mut (*srq).cond, [(
                    &raw const (*srq).events_completed,
                    response.events_reported,
                )]);
            }
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_modify_srq`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `srq` is live, `srq_attr` is readable, `cmd` is as long as its size says.
    pub(crate) fn modify_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        srq_attr_mask: c_int,
        cmd: *mut ibv_modify_srq,
        cmd_size: usize,
    ) -> Status {
        // SAFETY: the caller's SRQ is live, `srq_attr` readable, and `cmd` as long as its size,
        // which `request` checks.
        let (context, handle, attr, (cmd, driver)) = unsafe {
            (super::context_of((*srq).context)?, (*srq).handle, *srq_attr, frame::request(cmd, cmd_size)?)
        };
        let number = Number::Plain(IB_USER_VERBS_CMD_MODIFY_SRQ);
        if super::write_abi() == 3 {
            let mut old = ib_uverbs_modify_srq_v3::zeroed();
            old.srq_handle = handle;
            old.attr_mask = srq_attr_mask.cast_unsigned();
            old.max_wr = attr.max_wr;
            old.srq_limit = attr.srq_limit;
            Write::new(number, InputBytes::of(&old)).driver(driver).run(context)?;
            return Ok(Status::DONE);
        }
        let core = &mut cmd.core_payload;
        core.srq_handle = handle;
        core.attr_mask = srq_attr_mask.cast_unsigned();
        core.max_wr = attr.max_wr;
        core.srq_limit = attr.srq_limit;
        Write::new(number, InputBytes::of(core)).driver(driver).run(context)?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_query_srq`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `srq` is live, `srq_attr` can be written, `cmd` is as long as its size says.
    pub(crate) fn query_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        cmd: *mut ibv_query_srq,
        cmd_size: usize,
    ) -> Status {
        // SAFETY: the caller's SRQ is live, and `cmd` is as long as its size, which `request`
        // checks.
        let (context, handle, (cmd, driver)) =
            unsafe { (super::context_of((*srq).context)?, (*srq).handle, frame::request(cmd, cmd_size)?) };
        let mut response = ib_uverbs_query_srq_resp::zeroed();
        let core = &mut cmd.core_payload;
        core.srq_handle = handle;
        core.reserved = 0;
        Write::new(Number::Plain(IB_USER_VERBS_CMD_QUERY_SRQ), InputBytes::of(core))
            .response(OutputBytes::of(&mut response))
            .driver(driver)
            .run(context)?;
        // SAFETY: `srq_attr` is the caller's to be written, and nobody else does meanwhile.
        unsafe {
            (*srq_attr).max_wr = response.max_wr;
            (*srq_attr).max_sge = response.max_sge;
            (*srq_attr).srq_limit = response.srq_limit;
        }
        Ok(Status::DONE)
    }
}

/// Handles that an SRQ is created with.
#[derive(Clone, Copy, Debug)]
struct SrqObjects {
    srq_type: u32,
    pd: u32,
    xrcd: u32,
    cq: u32,
    max_num_tags: u32,
}

impl SrqObjects {
    /// # Errors
    /// `EINVAL` with errno set when the type lacks something.
    ///
    /// # Safety
    /// The objects that `wish` names are live.
    unsafe fn new(wish: &ibv_srq_init_attr_ex) -> Result<Self, Errno> {
        let has = |members: u32| wish.comp_mask & members == members;
        let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) { wish.srq_type } else { IBV_SRQT_BASIC };
        // SAFETY: there is a live PD in each case: `create_srq` sets it, `create_srq_ex` checks the
        // mask for it.
        let pd = unsafe { (*wish.pd).handle };
        let mut parts = Self { srq_type: kind, pd, xrcd: 0, cq: 0, max_num_tags: 0 };
        match kind {
            IBV_SRQT_XRC => {
                if !has(IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ) {
                    return Err(set(Errno::EINVAL));
                }
                // SAFETY: live; providers embed each domain in a verbs_xrcd.
                (parts.xrcd, parts.cq) =
                    unsafe { ((*wish.xrcd.cast::<verbs_xrcd>()).handle, (*wish.cq).handle) };
            }
            IBV_SRQT_TM => {
                if !has(IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM)
                    || wish.tm_cap.max_num_tags == 0
                {
                    return Err(set(Errno::EINVAL));
                }
                // SAFETY: the mask names the CQ (checked above), and what `wish` names is live.
                parts.cq = unsafe { (*wish.cq).handle };
                parts.max_num_tags = wish.tm_cap.max_num_tags;
            }
            _ => {}
        }
        Ok(parts)
    }
}

/// # Safety
/// `raw_context` and what `wish` names are live; `srq` is the provider's to fill, and `extended` is
/// the same object if it is a `verbs_srq`.
unsafe fn create(
    raw_context: *mut ibv_context,
    srq: *mut ibv_srq,
    extended: Option<*mut verbs_srq>,
    wish: &mut ibv_srq_init_attr_ex,
    driver: Driver<'_>,
) -> Result<(), Errno> {
    // SAFETY: the provider's context is NULL, which is refused, or live during this call.
    let context = unsafe { super::context_of(raw_context)? };
    // SAFETY: the provider's to fill, by the contract.
    unsafe {
        (*srq).context = raw_context;
        (*srq).pd = wish.pd;
        lock::init(&raw mut (*srq).mutex, &raw mut (*srq).cond);
    }
    // SAFETY: our caller promises that all objects in `wish` are live, which is what
    // `SrqObjects::new` asks.
    let parts = unsafe { SrqObjects::new(wish)? };
    let created = command(context, srq.expose_provenance() as u64, &parts, wish.attr, driver)?;
    if let Some((max_wr, max_sge)) = created.capacity {
        wish.attr.max_wr = max_wr;
        wish.attr.max_sge = max_sge;
    }
    // SAFETY: the provider's to fill, by the contract.
    unsafe { (*srq).handle = created.handle };
    // The plain write command knows no types, and leaves those members to the provider.
    if let (Some(extended), Some(srq_num)) = (extended, created.srq_num) {
        // SAFETY: the same object as `srq`, which its provider made a `verbs_srq` and lets us fill.
        unsafe {
            (*extended).srq_type = parts.srq_type;
            if parts.srq_type == IBV_SRQT_XRC {
                (*extended).srq_num = srq_num;
                (*extended).xrcd = wish.xrcd.cast();
            }
            if wish.comp_mask & IBV_SRQ_INIT_ATTR_CQ != 0 {
                (*extended).cq = wish.cq.cast::<ibv_cq>();
            }
        }
    }
    Ok(())
}

/// The kernel's values of a new SRQ.
#[derive(Clone, Copy, Debug)]
struct Created {
    handle: u32,
    /// `max_wr` and `max_sge`; kernels of old do not tell.
    capacity: Option<(u32, u32)>,
    /// `None` from the plain write command.
    srq_num: Option<u32>,
}

fn command(
    context: Context,
    user_handle: u64,
    parts: &SrqObjects,
    attr: ibv_srq_attr,
    driver: Driver<'_>,
) -> Result<Created, Errno> {
    let (mut max_wr, mut max_sge, mut srq_num) = (0_u32, 0_u32, 0_u32);
    let mut command = Command::new(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE).with_driver(driver);
    if is_imported(context) {
        command.require_ioctl();
    }
    match parts.srq_type {
        IBV_SRQT_XRC => {
            command.object_in(UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE, parts.xrcd);
            command.object_in(UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, parts.cq);
            command.output(UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, OutputBytes::of(&mut srq_num));
        }
        IBV_SRQT_TM => {
            command.object_in(UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, parts.cq);
            command.u32_in(UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS, parts.max_num_tags);
        }
        _ => {}
    }
    let handle = command.object_out(UVERBS_ATTR_CREATE_SRQ_HANDLE);
    command.u64_in(UVERBS_ATTR_CREATE_SRQ_TYPE, parts.srq_type.into());
    command.u64_in(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, user_handle);
    command.object_in(UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, parts.pd);
    command.u32_in(UVERBS_ATTR_CREATE_SRQ_MAX_WR, attr.max_wr);
    command.u32_in(UVERBS_ATTR_CREATE_SRQ_MAX_SGE, attr.max_sge);
    command.u32_in(UVERBS_ATTR_CREATE_SRQ_LIMIT, attr.srq_limit);
    command.fd_in(UVERBS_ATTR_CREATE_SRQ_EVENT_FD, async_fd(context));
    command.output(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, OutputBytes::of(&mut max_wr));
    command.output(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, OutputBytes::of(&mut max_sge));
    match command.run_or_fall_back(context, Op::create_srq)? {
        IoctlOutcome::Done => {
            let handle = command.handle(handle);
            Ok(Created { handle, capacity: Some((max_wr, max_sge)), srq_num: Some(srq_num) })
        }
        IoctlOutcome::Write | IoctlOutcome::WriteEx if parts.srq_type == IBV_SRQT_BASIC => {
            let mut request = ib_uverbs_create_srq::zeroed();
            request.user_handle = user_handle;
            request.pd_handle = parts.pd;
            request.max_wr = attr.max_wr;
            request.max_sge = attr.max_sge;
            request.srq_limit = attr.srq_limit;
            write(context, &mut command, &request)
        }
        IoctlOutcome::Write | IoctlOutcome::WriteEx => {
            let mut request = ib_uverbs_create_xsrq::zeroed();
            request.user_handle = user_handle;
            request.srq_type = parts.srq_type;
            request.pd_handle = parts.pd;
            request.max_wr = attr.max_wr;
            request.max_sge = attr.max_sge;
            request.srq_limit = attr.srq_limit;
            request.max_num_tags = parts.max_num_tags;
            request.xrcd_handle = parts.xrcd;
            request.cq_handle = parts.cq;
            let mut response = ib_uverbs_create_srq_resp::zeroed();
            let number = Number::Plain(IB_USER_VERBS_CMD_CREATE_XSRQ);
            command.write_resp(context, number, &request, &mut response)?;
            Ok(created(&response))
        }
    }
}

/// The write command of a basic SRQ; kernels up to ABI 5 answer with the handle alone.
fn write(
    context: Context,
    command: &mut Command<'_>,
    request: &ib_uverbs_create_srq,
) -> Result<Created, Errno> {
    let number = Number::Plain(IB_USER_VERBS_CMD_CREATE_SRQ);
    if super::write_abi() > 5 {
        let mut response = ib_uverbs_create_srq_resp::zeroed();
        command.write_resp(context, number, request, &mut response)?;
        return Ok(Created { srq_num: None, ..created(&response) });
    }
    let mut response = ibv_create_srq_resp_v5::zeroed();
    command.write_resp(context, number, request, &mut response)?;
    Ok(Created { handle: response.srq_handle, capacity: None, srq_num: None })
}

fn created(response: &ib_uverbs_create_srq_resp) -> Created {
    Created {
        handle: response.srq_handle,
        capacity: Some((response.max_wr, response.max_sge)),
        srq_num: Some(response.srqn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_needs_its_objects() {
        let mut pd = ibv_pd::zeroed();
        let mut cq = ibv_cq::zeroed();
        let mut xrcd = verbs_xrcd::zeroed();
        (pd.handle, cq.handle, xrcd.handle) = (1, 2, 3);
        let mut wish = ibv_srq_init_attr_ex::zeroed();
        wish.pd = &raw mut pd;
        wish.cq = &raw mut cq;
        wish.xrcd = (&raw mut xrcd).cast();
        let mut check = |kind, members, tags| {
            wish.srq_type = kind;
            wish.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE | members;
            wish.tm_cap.max_num_tags = tags;
            // SAFETY: live objects.
            unsafe { SrqObjects::new(&wish) }
                .map(|parts| (parts.xrcd, parts.cq, parts.max_num_tags))
        };
        assert_eq!(check(IBV_SRQT_BASIC, IBV_SRQ_INIT_ATTR_CQ, 9), Ok((0, 0, 0)));
        assert_eq!(check(IBV_SRQT_XRC, IBV_SRQ_INIT_ATTR_CQ, 0), Err(Errno::EINVAL));
        assert_eq!(
            check(IBV_SRQT_XRC, IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_XRCD, 0),
            Ok((3, 2, 0))
        );
        assert_eq!(
            check(IBV_SRQT_TM, IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM, 0),
            Err(Errno::EINVAL)
        );
        assert_eq!(
            check(IBV_SRQT_TM, IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM, 9),
            Ok((0, 2, 9))
        );
    }
}
