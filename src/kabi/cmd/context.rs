//! Contexts: `ibv_open_device(3)`, `ibv_import_device(3)`; object `UVERBS_OBJECT_DEVICE` of
//! `<rdma/ib_user_ioctl_cmds.h>`, `ib_uverbs_get_context` of `<rdma/ib_user_verbs.h>`.

use abi::{
    IB_USER_VERBS_CMD_GET_CONTEXT, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT,
    UVERBS_ATTR_GET_CONTEXT_FD_ARR, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS,
    UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS,
    UVERBS_METHOD_GET_CONTEXT, UVERBS_METHOD_QUERY_CONTEXT, UVERBS_OBJECT_DEVICE, Zeroed,
    ib_uverbs_get_context, ib_uverbs_get_context_resp, ibv_command_buffer, ibv_context, ibv_fd_arr,
    ibv_get_context, verbs_context,
};

use super::status::Status;
use crate::front::command::IoctlOutcome;
use crate::front::command::buffer::{Chain, Command};
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::Driver;
use crate::front::command::write::Number;
use crate::front::context::Context;
use crate::front::generation;
use crate::front::op::Op;
use cface::{Errno, verb};

plain_data! { ib_uverbs_get_context ib_uverbs_get_context_resp }

verb! {
    /// `ibv_cmd_get_context` of private ABI 34: the first command on a new context. Sets the number
    /// of completion vectors; the ioctl also tells what the kernel core supports, the write command
    /// delivers the event descriptor.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `context` is a live `verbs_context` of that ABI; `cmd` and `resp` are as long as the sizes
    /// say.
    pub(crate) fn get_context_34(
        context: *mut verbs_context,
        cmd: *mut ibv_get_context,
        cmd_size: usize,
        resp: *mut ib_uverbs_get_context_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the provider is opening `context`, so it is live; `cmd` and `resp` are as long as
        // their sizes say.
        let (context, driver) = unsafe {
            (of_verbs(context, 34)?, Driver::after_core(cmd, cmd_size, resp, resp_size))
        };
        get_context_common(context, driver, InputBytes::NONE)
    }

    /// `ibv_cmd_get_context` since private ABI 57: with descriptors that the kernel keeps for the
    /// context (`fd_arr`, or NULL). The write command can't carry them and leaves them out.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// As for [`get_context_34`], with a context of private ABI `PABI`; `fd_arr` is NULL or
    /// readable.
    pub(crate) fn get_context<const PABI: u32>(
        context: *mut verbs_context,
        cmd: *mut ibv_get_context,
        cmd_size: usize,
        fd_arr: *mut ibv_fd_arr,
        resp: *mut ib_uverbs_get_context_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the provider is opening `context`; `cmd` and `resp` have their sizes, `fd_arr` is
        // NULL or readable.
        let (context, driver, fds) = unsafe {
            (of_verbs(context, PABI)?, Driver::after_core(cmd, cmd_size, resp, resp_size), fd_arr.as_ref())
        };
        let fds = fds.map_or(InputBytes::NONE, |fds| {
            // No overflow: 2^32 descriptors of 4 bytes fit a usize.
            // SAFETY: that many descriptors, per the contract above.
            unsafe { InputBytes::raw(fds.arr.cast(), fds.count as usize * size_of::<i32>()) }
        });
        get_context_common(context, driver, fds)
    }

    /// `ibv_cmd_query_context`: the same facts about a context that another process opened; ioctl
    /// only.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `context` is live; `driver` is NULL or a chain of command buffers.
    pub(crate) fn query_context(context: *mut ibv_context, driver: *mut ibv_command_buffer) -> Status {
        // SAFETY: the provider is opening `context`, so it is live; `driver` is NULL or its chain
        // of command buffers.
        let (context, chain) = unsafe { (super::context_of(context)?, Chain::new(driver)) };
        let mut facts = ContextInfo::default();
        let mut command =
            Command::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT).with_chain(chain);
        command.output(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, OutputBytes::of(&mut facts.comp_vectors));
        command.output(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, OutputBytes::of(&mut facts.core_support));
        command.run(context)?;
        facts.store(context);
        Ok(Status::DONE)
    }
}

/// # Safety
/// `context` is NULL or a live `verbs_context` of private ABI `pabi`.
unsafe fn of_verbs(context: *mut verbs_context, pabi: u32) -> Result<Context, Errno> {
    let generation = generation::of_pabi(pabi).ok_or(Errno::EINVAL)?;
    // SAFETY: NULL, which is refused, or a live `verbs_context`, in which this ABI's generation
    // knows the offset.
    unsafe { Context::from_verbs(context, generation) }
}

fn get_context_common(
    context: Context,
    driver: Driver<'_>,
    fds: InputBytes<'_>,
) -> Result<Status, Errno> {
    let mut facts = ContextInfo::default();
    let mut command =
        Command::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT).with_driver(driver);
    command
        .output(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, OutputBytes::of(&mut facts.comp_vectors));
    command.output(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, OutputBytes::of(&mut facts.core_support));
    if !fds.is_empty() {
        command.bytes_in(UVERBS_ATTR_GET_CONTEXT_FD_ARR, fds);
    }
    // The slot of `free_context` is unused, because that operation is never an ioctl.
    match command.run_or_fall_back(context, Op::free_context)? {
        IoctlOutcome::Done => facts.store(context),
        IoctlOutcome::Write | IoctlOutcome::WriteEx => {
            let mut response = ib_uverbs_get_context_resp::zeroed();
            let number = Number::Plain(IB_USER_VERBS_CMD_GET_CONTEXT);
            command.write_resp(context, number, &ib_uverbs_get_context::zeroed(), &mut response)?;
            // SAFETY: a live context that is being opened.
            unsafe {
                (*context.as_ptr()).async_fd = response.async_fd.cast_signed();
                (*context.as_ptr()).num_comp_vectors = response.num_comp_vectors.cast_signed();
            }
        }
    }
    Ok(Status::DONE)
}

/// The kernel's description of a context.
#[derive(Debug, Default)]
struct ContextInfo {
    comp_vectors: u32,
    core_support: u64,
}

impl ContextInfo {
    fn store(&self, context: Context) {
        // SAFETY: a live context that is being opened, and its device, for which all contexts store
        // equal values.
        unsafe {
            (*context.as_ptr()).num_comp_vectors = self.comp_vectors.cast_signed();
            (*context.device()).core_support = self.core_support;
        }
    }
}
