//! Completion queues: `ibv_create_cq(3)`, `ibv_create_cq_ex(3)`, `ibv_resize_cq(3)`,
//! `ibv_modify_cq(3)`; object `UVERBS_OBJECT_CQ` of `<rdma/ib_user_ioctl_cmds.h>` and the CQ
//! commands of `<rdma/ib_user_verbs.h>`.
//!
//! Map of this file: the exported functions; `CqRequest`, the checked attributes; `create`, which
//! sends the ioctl or the write command; tests.

use core::ffi::c_int;

use abi::{
    CREATE_CQ_CMD_FLAGS_TS_IGNORED_EX, CREATE_CQ_CMD_FLAGS_WITH_MEM_DMABUF,
    CREATE_CQ_CMD_FLAGS_WITH_MEM_VA, IB_USER_VERBS_CMD_CREATE_CQ, IB_USER_VERBS_CMD_DESTROY_CQ,
    IB_USER_VERBS_CMD_RESIZE_CQ, IB_USER_VERBS_EX_CMD_CREATE_CQ, IB_USER_VERBS_EX_CMD_MODIFY_CQ,
    IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN, IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION,
    IBV_CQ_ATTR_RESERVED, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD,
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, UVERBS_ATTR_CREATE_CQ_BUFFER_FD,
    UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH, UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET,
    UVERBS_ATTR_CREATE_CQ_BUFFER_VA, UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL,
    UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, UVERBS_ATTR_CREATE_CQ_CQE, UVERBS_ATTR_CREATE_CQ_EVENT_FD,
    UVERBS_ATTR_CREATE_CQ_FLAGS, UVERBS_ATTR_CREATE_CQ_HANDLE, UVERBS_ATTR_CREATE_CQ_RESP_CQE,
    UVERBS_ATTR_CREATE_CQ_USER_HANDLE, UVERBS_ATTR_DESTROY_CQ_HANDLE, UVERBS_ATTR_DESTROY_CQ_RESP,
    UVERBS_METHOD_CQ_CREATE, UVERBS_METHOD_CQ_DESTROY, UVERBS_OBJECT_CQ, Zeroed,
    ib_uverbs_create_cq, ib_uverbs_create_cq_resp, ib_uverbs_destroy_cq, ib_uverbs_destroy_cq_resp,
    ib_uverbs_ex_create_cq, ib_uverbs_ex_create_cq_resp, ib_uverbs_ex_modify_cq,
    ib_uverbs_resize_cq, ib_uverbs_resize_cq_resp, ibv_command_buffer, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_cq_init_attr_ex, ibv_create_cq, ibv_create_cq_ex, ibv_modify_cq,
    ibv_modify_cq_attr, ibv_resize_cq, verbs_cq, verbs_create_cq_prov_attr,
};

use super::destroy::{DestroyResult, destroy_result, wait_for_acknowledgements};
use super::status::Status;
use crate::front::command::buffer::{Chain, Command};
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::{self, Driver, Frame};
use crate::front::command::write::{Number, Write};
use crate::front::command::{IoctlOutcome, async_fd, is_imported};
use crate::front::op::Op;
use cface::{Errno, verb};

plain_data! {
    ib_uverbs_create_cq ib_uverbs_create_cq_resp ib_uverbs_destroy_cq ib_uverbs_destroy_cq_resp
    ib_uverbs_ex_create_cq ib_uverbs_ex_create_cq_resp ib_uverbs_ex_modify_cq ib_uverbs_resize_cq
    ib_uverbs_resize_cq_resp
}

verb! {
    /// `ibv_cmd_create_cq`: a new CQ; sets `context`, `handle` and `cqe`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `context` and `channel` (or NULL) are live, `cq` is the provider's to fill, `cmd` and `resp`
    /// are as long as the sizes say.
    pub(crate) fn create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
        cq: *mut ibv_cq,
        cmd: *mut ibv_create_cq,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_cq_resp,
        resp_size: usize,
    ) -> Status {
        let wish = CqRequest {
            cqe: cqe.cast_unsigned(),
            channel,
            comp_vector: comp_vector.cast_unsigned(),
            flags: 0,
            cmd_flags: 0,
        };
        // SAFETY: context and channel are live or NULL, `cq` is there to be filled, `cmd` and
        // `resp` have their sizes.
        unsafe {
            let driver = Driver::after_core(cmd, cmd_size, resp, resp_size);
            create(context, wish, None, cq, driver, Chain::NONE)
        }
    }

    /// `ibv_cmd_create_cq_ex` of private ABI 34 and 57: with time stamps and other extended
    /// attributes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` members we do not know; otherwise the kernel's errno.
    ///
    /// # Safety
    /// As for [`create_cq`]; `cq_attr` is readable.
    pub(crate) fn create_cq_ex_34(
        context: *mut ibv_context,
        cq_attr: *const ibv_cq_init_attr_ex,
        cq: *mut verbs_cq,
        cmd: *mut ibv_create_cq_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_cq_resp,
        resp_size: usize,
        cmd_flags: u32,
    ) -> Status {
        // SAFETY: as for `create_cq`: live objects, a CQ to fill, sizes that are true; `cq_attr` is
        // readable.
        unsafe {
            let driver = Driver::after_core(cmd, cmd_size, resp, resp_size);
            create(context, CqRequest::new(cq_attr, cmd_flags)?, None, cq.cast(), driver, Chain::NONE)
        }
    }

    /// `ibv_cmd_create_cq_ex` since private ABI 59: the provider may bring the memory of the queue
    /// (`prov_attr`, which `cmd_flags` call for).
    ///
    /// # Errors
    /// `EOPNOTSUPP` members we do not know; `EINVAL` memory called for but not given; what the
    /// kernel says.
    ///
    /// # Safety
    /// As for [`create_cq_ex_34`]; `prov_attr` is NULL or readable.
    pub(crate) fn create_cq_ex(
        context: *mut ibv_context,
        cq_attr: *const ibv_cq_init_attr_ex,
        prov_attr: *mut verbs_create_cq_prov_attr,
        cq: *mut verbs_cq,
        cmd: *mut ibv_create_cq_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_cq_resp,
        resp_size: usize,
        cmd_flags: u32,
    ) -> Status {
        // SAFETY: as for `create_cq_ex_34`; `prov_attr` is NULL or the provider's, which leaves it
        // alone meanwhile.
        unsafe {
            let driver = Driver::after_core(cmd, cmd_size, resp, resp_size);
            let wish = CqRequest::new(cq_attr, cmd_flags)?;
            create(context, wish, prov_attr.as_ref(), cq.cast(), driver, Chain::NONE)
        }
    }

    /// `ibv_cmd_create_cq_ex2` of private ABI 34 and 57 (rdma-core 53): [`create_cq_ex_34`] with
    /// attributes of the provider.
    ///
    /// # Errors
    /// As for [`create_cq_ex_34`].
    ///
    /// # Safety
    /// As for [`create_cq_ex_34`]; `driver` is NULL or a chain of command buffers.
    pub(crate) fn create_cq_ex2_34(
        context: *mut ibv_context,
        cq_attr: *const ibv_cq_init_attr_ex,
        cq: *mut verbs_cq,
        cmd: *mut ibv_create_cq_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_cq_resp,
        resp_size: usize,
        cmd_flags: u32,
        driver: *mut ibv_command_buffer,
    ) -> Status {
        // SAFETY: as for `create_cq_ex_34`; `driver` is NULL or the provider's chain of command
        // buffers.
        unsafe {
            let uhw = Driver::after_core(cmd, cmd_size, resp, resp_size);
            let wish = CqRequest::new(cq_attr, cmd_flags)?;
            create(context, wish, None, cq.cast(), uhw, Chain::new(driver))
        }
    }

    /// `ibv_cmd_create_cq_ex2` since private ABI 59: [`create_cq_ex`] with attributes of the
    /// provider.
    ///
    /// # Errors
    /// As for [`create_cq_ex`].
    ///
    /// # Safety
    /// As for [`create_cq_ex`]; `driver` is NULL or a chain of command buffers.
    pub(crate) fn create_cq_ex2(
        context: *mut ibv_context,
        cq_attr: *const ibv_cq_init_attr_ex,
        prov_attr: *mut verbs_create_cq_prov_attr,
        cq: *mut verbs_cq,
        cmd: *mut ibv_create_cq_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_cq_resp,
        resp_size: usize,
        cmd_flags: u32,
        driver: *mut ibv_command_buffer,
    ) -> Status {
        // SAFETY: as for `create_cq_ex`; `driver` is NULL or the provider's chain of command
        // buffers.
        unsafe {
            let uhw = Driver::after_core(cmd, cmd_size, resp, resp_size);
            let wish = CqRequest::new(cq_attr, cmd_flags)?;
            create(context, wish, prov_attr.as_ref(), cq.cast(), uhw, Chain::new(driver))
        }
    }

    /// `ibv_cmd_destroy_cq`: returns when the application has acknowledged all events of the queue.
    ///
    /// # Errors
    /// The kernel's errno; `EBUSY` while QPs use the queue.
    ///
    /// # Safety
    /// `cq` is live and initialised by `verbs_init_cq`.
    pub(crate) fn destroy_cq(cq: *mut ibv_cq) -> Status {
        // SAFETY: the caller's CQ is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*cq).context)?, (*cq).handle) };
        let mut reported = ib_uverbs_destroy_cq_resp::zeroed();
        let mut response = ib_uverbs_destroy_cq_resp::zeroed();
        let mut command = Command::new(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY);
        command.output(UVERBS_ATTR_DESTROY_CQ_RESP, OutputBytes::of(&mut reported));
        command.object_in(UVERBS_ATTR_DESTROY_CQ_HANDLE, handle);
        let result = match command.run_or_fall_back(context, Op::destroy_cq) {
            Ok(IoctlOutcome::Done) => {
                response = reported;
                Ok(())
            }
            Ok(IoctlOutcome::Write | IoctlOutcome::WriteEx) => {
                let mut request = ib_uverbs_destroy_cq::zeroed();
                request.cq_handle = handle;
                command.write_resp(context, Number::Plain(IB_USER_VERBS_CMD_DESTROY_CQ), &request, &mut response)
            }
            Err(error) => Err(error),
        };
        if destroy_result(result)? == DestroyResult::Destroyed {
            // SAFETY: one live object, per the contract above.
            unsafe {
                wait_for_acknowledgements(&raw mut (*cq).mutex, &raw mut (*cq).cond, [
                    (&raw const (*cq).comp_events_completed, response.comp_events_reported),
                    (&raw const (*cq).async_events_completed, response.async_events_reported),
                ]);
            }
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_resize_cq`: updates `cqe`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `cq` is live, `cmd` and `resp` are as long as the sizes say.
    pub(crate) fn resize_cq(
        cq: *mut ibv_cq,
        cqe: c_int,
        cmd: *mut ibv_resize_cq,
        cmd_size: usize,
        resp: *mut ib_uverbs_resize_cq_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the caller's CQ is live; `cmd` and `resp` are as long as their sizes, which
        // `Frame::new` checks.
        let (context, handle, frame) = unsafe {
            (super::context_of((*cq).context)?, (*cq).handle, Frame::new(cmd, cmd_size, resp, resp_size)?)
        };
        let core = &mut frame.cmd.core_payload;
        core.cq_handle = handle;
        core.cqe = cqe.cast_unsigned();
        Write::new(Number::Plain(IB_USER_VERBS_CMD_RESIZE_CQ), InputBytes::of(core))
            .response(OutputBytes::of(&mut *frame.resp))
            .driver(frame.driver)
            .run(context)?;
        // SAFETY: the CQ is still live: the provider gave it for the whole call.
        unsafe { (*cq).cqe = frame.resp.cqe.cast_signed() };
        Ok(Status::DONE)
    }

    /// `ibv_cmd_modify_cq`: event moderation.
    ///
    /// # Errors
    /// `EINVAL` members we do not know; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `cq` is live, `attr` is readable, `cmd` is as long as its size says.
    pub(crate) fn modify_cq(
        cq: *mut ibv_cq,
        attr: *mut ibv_modify_cq_attr,
        cmd: *mut ibv_modify_cq,
        cmd_size: usize,
    ) -> Status {
        // SAFETY: the caller's CQ is live, and its attributes are readable; they are copied.
        let (context, handle, attr) = unsafe { (super::context_of((*cq).context)?, (*cq).handle, *attr) };
        if attr.attr_mask >= IBV_CQ_ATTR_RESERVED {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the provider's `cmd` is as long as `cmd_size`, which `request` compares with the
        // structure.
        let (cmd, driver) = unsafe { frame::request(cmd, cmd_size)? };
        let core = &mut cmd.core_payload;
        core.cq_handle = handle;
        core.attr_mask = attr.attr_mask;
        core.attr.cq_count = attr.moderate.cq_count;
        core.attr.cq_period = attr.moderate.cq_period;
        core.reserved = 0;
        Write::new(Number::Extended(IB_USER_VERBS_EX_CMD_MODIFY_CQ), InputBytes::of(core)).driver(driver).run(context)?;
        Ok(Status::DONE)
    }
}

/// The requested attributes of a new CQ.
#[derive(Clone, Copy, Debug)]
struct CqRequest {
    cqe: u32,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    /// `IB_UVERBS_CQ_FLAGS_*`
    flags: u32,
    /// `CREATE_CQ_CMD_FLAGS_*`
    cmd_flags: u32,
}

impl CqRequest {
    /// # Errors
    /// `EOPNOTSUPP` members we do not know.
    ///
    /// # Safety
    /// `attr` is readable.
    unsafe fn new(attr: *const ibv_cq_init_attr_ex, cmd_flags: u32) -> Result<Self, Errno> {
        // SAFETY: the caller's structure is readable, and these members are in every release's.
        let (mask, wc_flags) = unsafe { ((*attr).comp_mask, (*attr).wc_flags) };
        if mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let time_stamps = u64::from(
            IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
        );
        let mut flags = 0;
        if wc_flags & time_stamps != 0 {
            flags |= IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION;
        }
        let wished = match mask & IBV_CQ_INIT_ATTR_MASK_FLAGS {
            0 => 0,
            // SAFETY: a caller that sets this bit has the member; the structure of an older one
            // ends before it.
            _ => unsafe { (*attr).flags },
        };
        if wished & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0 {
            flags |= IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN;
        }
        // SAFETY: readable as the mask is, and in every release's structure.
        let (cqe, channel, comp_vector) =
            unsafe { ((*attr).cqe, (*attr).channel, (*attr).comp_vector) };
        Ok(Self { cqe, channel, comp_vector, flags, cmd_flags })
    }

    /// Whether a kernel without extended commands would miss something: it may ignore a wish for
    /// time stamps if the provider says so.
    fn needs_extended(&self) -> bool {
        let ignorable = self.cmd_flags & CREATE_CQ_CMD_FLAGS_TS_IGNORED_EX != 0;
        self.flags != 0 && !(ignorable && self.flags == IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION)
    }
}

/// # Safety
/// `context` and the channel are live, `cq` is the provider's to fill.
unsafe fn create(
    raw_context: *mut ibv_context,
    wish: CqRequest,
    memory: Option<&verbs_create_cq_prov_attr>,
    cq: *mut ibv_cq,
    driver: Driver<'_>,
    chain: Chain<'_>,
) -> Result<Status, Errno> {
    // SAFETY: each caller got the context from its provider: NULL, which is refused, or live.
    let context = unsafe { super::context_of(raw_context)? };
    let channel = wish.channel;
    // SAFETY: not NULL (checked), so live by the contract. No reference: other threads change its
    // count of users.
    let channel = (!channel.is_null()).then(|| unsafe { (*channel).fd });
    // SAFETY: the provider's to fill, by the contract.
    unsafe { (*cq).context = raw_context };

    let user_handle = cq.expose_provenance() as u64;
    let mut cqe = 0_u32;
    let mut command = Command::new(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE)
        .with_driver(driver)
        .with_chain(chain);
    let handle = command.object_out(UVERBS_ATTR_CREATE_CQ_HANDLE);
    command.output(UVERBS_ATTR_CREATE_CQ_RESP_CQE, OutputBytes::of(&mut cqe));
    command.u32_in(UVERBS_ATTR_CREATE_CQ_CQE, wish.cqe);
    command.u64_in(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, user_handle);
    if let Some(channel) = channel {
        command.fd_in(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, channel);
    }
    command.u32_in(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, wish.comp_vector);
    let event_fd = command.fd_in(UVERBS_ATTR_CREATE_CQ_EVENT_FD, async_fd(context));
    if is_imported(context) {
        command.require_ioctl();
    } else if let Some(event_fd) = event_fd {
        // Kernels before the attribute deliver to the context's own descriptor.
        command.optional(event_fd);
    }
    add_memory(&mut command, wish.cmd_flags, memory)?;
    if wish.flags != 0 {
        command.u32_in(UVERBS_ATTR_CREATE_CQ_FLAGS, wish.flags);
        if wish.needs_extended() {
            command.require_ex();
        }
    }

    let handle = match command.run_or_fall_back(context, Op::create_cq)? {
        IoctlOutcome::Done => command.handle(handle),
        IoctlOutcome::Write => {
            let mut request = ib_uverbs_create_cq::zeroed();
            request.user_handle = user_handle;
            request.cqe = wish.cqe;
            request.comp_vector = wish.comp_vector;
            request.comp_channel = channel.unwrap_or(-1);
            let mut response = ib_uverbs_create_cq_resp::zeroed();
            command.write_resp(
                context,
                Number::Plain(IB_USER_VERBS_CMD_CREATE_CQ),
                &request,
                &mut response,
            )?;
            cqe = response.cqe;
            response.cq_handle
        }
        IoctlOutcome::WriteEx => {
            let mut request = ib_uverbs_ex_create_cq::zeroed();
            request.user_handle = user_handle;
            request.cqe = wish.cqe;
            request.comp_vector = wish.comp_vector;
            request.comp_channel = channel.unwrap_or(-1);
            request.flags = wish.flags;
            let mut response = ib_uverbs_ex_create_cq_resp::zeroed();
            let number = Number::Extended(IB_USER_VERBS_EX_CMD_CREATE_CQ);
            command.write_resp(context, number, &request, &mut response)?;
            cqe = response.base.cqe;
            response.base.cq_handle
        }
    };
    // SAFETY: the provider's to fill, by the contract.
    unsafe {
        (*cq).handle = handle;
        (*cq).cqe = cqe.cast_signed();
    }
    Ok(Status::DONE)
}

/// Names the memory that the provider brings for the queue.
fn add_memory(
    command: &mut Command<'_>,
    cmd_flags: u32,
    memory: Option<&verbs_create_cq_prov_attr>,
) -> Result<(), Errno> {
    if cmd_flags & (CREATE_CQ_CMD_FLAGS_WITH_MEM_VA | CREATE_CQ_CMD_FLAGS_WITH_MEM_DMABUF) == 0 {
        return Ok(());
    }
    let buffer = &memory.ok_or(Errno::EINVAL)?.buffer;
    command.require_ioctl();
    if cmd_flags & CREATE_CQ_CMD_FLAGS_WITH_MEM_VA != 0 {
        // SAFETY: both views start with 8 plain bytes; the flags say which one counts.
        let address = unsafe { buffer.place.ptr };
        command.u64_in(UVERBS_ATTR_CREATE_CQ_BUFFER_VA, address.expose_provenance() as u64);
    } else {
        // SAFETY: the provider filled this view, as its flags say.
        let dmabuf = unsafe { buffer.place.dmabuf };
        command.fd_in(UVERBS_ATTR_CREATE_CQ_BUFFER_FD, dmabuf.fd);
        command.u64_in(UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET, dmabuf.offset);
    }
    command.u64_in(UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH, buffer.length);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(wc_flags: u32, flags: u32, cmd_flags: u32) -> Result<(u32, bool), Errno> {
        let mut attr = ibv_cq_init_attr_ex::zeroed();
        attr.wc_flags = wc_flags.into();
        attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
        attr.flags = flags;
        // SAFETY: a live structure.
        unsafe { CqRequest::new(&raw const attr, cmd_flags) }
            .map(|wish| (wish.flags, wish.needs_extended()))
    }

    #[test]
    fn time_stamps_need_the_extended_command_unless_the_provider_can_do_without() {
        assert_eq!(wish(0, 1, 0), Ok((0, false)));
        assert_eq!(wish(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, 0, 0), Ok((1, true)));
        assert_eq!(wish(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, 0, 1), Ok((1, false)));
        assert_eq!(wish(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, 2, 1), Ok((3, true)));
    }

    #[test]
    fn an_unknown_member_is_refused() {
        let mut attr = ibv_cq_init_attr_ex::zeroed();
        attr.comp_mask = 4;
        // SAFETY: a live structure.
        let request = unsafe { CqRequest::new(&raw const attr, 0) };
        assert_eq!(request.map(|_| ()), Err(Errno::EOPNOTSUPP));
    }
}
