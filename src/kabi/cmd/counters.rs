//! Counters: `ibv_create_counters(3)`; object `UVERBS_OBJECT_COUNTERS` of
//! `<rdma/ib_user_ioctl_cmds.h>`. Ioctl only.

use abi::{
    UVERBS_ATTR_CREATE_COUNTERS_HANDLE, UVERBS_ATTR_DESTROY_COUNTERS_HANDLE,
    UVERBS_ATTR_READ_COUNTERS_BUFF, UVERBS_ATTR_READ_COUNTERS_FLAGS,
    UVERBS_ATTR_READ_COUNTERS_HANDLE, UVERBS_METHOD_COUNTERS_CREATE,
    UVERBS_METHOD_COUNTERS_DESTROY, UVERBS_METHOD_COUNTERS_READ, UVERBS_OBJECT_COUNTERS,
    ibv_command_buffer, ibv_context, ibv_counters_init_attr, verbs_counters,
};

use super::destroy;
use super::status::Status;
use crate::front::command::buffer::{Chain, Command};
use crate::front::command::bytes::OutputBytes;
use cface::{Errno, verb};

verb! {
    /// `ibv_cmd_create_counters`: sets `context` and `handle`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` unknown members; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `context` is live, `init_attr` is readable, `vcounters` is the provider's to fill, `link` is
    /// NULL or a chain of command buffers.
    pub(crate) fn create_counters(
        context: *mut ibv_context,
        init_attr: *mut ibv_counters_init_attr,
        vcounters: *mut verbs_counters,
        link: *mut ibv_command_buffer,
    ) -> Status {
        // SAFETY: the application's `init_attr` is readable, and every release has the mask.
        if unsafe { (*init_attr).comp_mask } != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: the provider's context is NULL, which is refused, or live; `link` is NULL or its
        // chain of buffers.
        let (live, chain) = unsafe { (super::context_of(context)?, Chain::new(link)) };
        let mut command =
            Command::new(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_CREATE).with_chain(chain);
        let handle = command.object_out(UVERBS_ATTR_CREATE_COUNTERS_HANDLE);
        command.run(live)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*vcounters).counters.context = context;
            (*vcounters).handle = command.handle(handle);
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_destroy_counters`.
    ///
    /// # Errors
    /// The kernel's errno; `EBUSY` while a flow uses them.
    ///
    /// # Safety
    /// `vcounters` is live.
    pub(crate) fn destroy_counters(vcounters: *mut verbs_counters) -> Status {
        // SAFETY: the provider's counters are live, so their context and handle can be read.
        let (context, handle) =
            unsafe { (super::context_of((*vcounters).counters.context)?, (*vcounters).handle) };
        let mut command = Command::new(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_DESTROY);
        command.object_in(UVERBS_ATTR_DESTROY_COUNTERS_HANDLE, handle);
        destroy::destroy_result(command.run(context))?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_read_counters`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `vcounters` is live, `counters_value` has room for `ncounters` values, `link` is NULL or a
    /// chain of command buffers.
    pub(crate) fn read_counters(
        vcounters: *mut verbs_counters,
        counters_value: *mut u64,
        ncounters: u32,
        flags: u32,
        link: *mut ibv_command_buffer,
    ) -> Status {
        // SAFETY: the provider's counters are live; `link` is NULL or its chain of command buffers.
        let (context, handle, chain) = unsafe {
            (super::context_of((*vcounters).counters.context)?, (*vcounters).handle, Chain::new(link))
        };
        // SAFETY: room for that many, per the contract above; 2^32 values of 8 bytes fit a usize.
        let values = unsafe { OutputBytes::raw(counters_value.cast(), ncounters as usize * size_of::<u64>()) };
        let mut command =
            Command::new(UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_READ).with_chain(chain);
        command.object_in(UVERBS_ATTR_READ_COUNTERS_HANDLE, handle);
        command.output(UVERBS_ATTR_READ_COUNTERS_BUFF, values);
        command.u32_in(UVERBS_ATTR_READ_COUNTERS_FLAGS, flags);
        command.run(context)?;
        Ok(Status::DONE)
    }
}
