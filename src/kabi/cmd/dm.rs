//! Device memory: `ibv_alloc_dm(3)`; object `UVERBS_OBJECT_DM` of `<rdma/ib_user_ioctl_cmds.h>`.
//! Ioctl only.

use core::ffi::c_uint;

use abi::{
    IBV_ACCESS_ZERO_BASED, IBV_DM_MASK_HANDLE, IBV_MR_TYPE_MR, UVERBS_ATTR_ALLOC_DM_ALIGNMENT,
    UVERBS_ATTR_ALLOC_DM_HANDLE, UVERBS_ATTR_ALLOC_DM_LENGTH, UVERBS_ATTR_FREE_DM_HANDLE,
    UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_DM_MR_DM_HANDLE,
    UVERBS_ATTR_REG_DM_MR_HANDLE, UVERBS_ATTR_REG_DM_MR_LENGTH, UVERBS_ATTR_REG_DM_MR_OFFSET,
    UVERBS_ATTR_REG_DM_MR_PD_HANDLE, UVERBS_ATTR_REG_DM_MR_RESP_LKEY,
    UVERBS_ATTR_REG_DM_MR_RESP_RKEY, UVERBS_METHOD_DM_ALLOC, UVERBS_METHOD_DM_FREE,
    UVERBS_METHOD_DM_MR_REG, UVERBS_OBJECT_DM, UVERBS_OBJECT_MR, ibv_alloc_dm_attr,
    ibv_command_buffer, ibv_context, ibv_pd, verbs_dm, verbs_mr,
};

use super::destroy;
use super::status::{Status, set};
use crate::front::command::buffer::{Chain, Command};
use crate::front::command::bytes::OutputBytes;
use cface::{Errno, verb};

verb! {
    /// `ibv_cmd_alloc_dm`: sets `context` and both handles.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `context` is live, `dm_attr` is readable, `dm` is the provider's to fill, `link` is NULL or
    /// a chain of command buffers.
    pub(crate) fn alloc_dm(
        context: *mut ibv_context,
        dm_attr: *const ibv_alloc_dm_attr,
        dm: *mut verbs_dm,
        link: *mut ibv_command_buffer,
    ) -> Status {
        // SAFETY: the provider's context is live or NULL, `dm_attr` is readable, `link` is NULL or
        // a chain of buffers.
        let (live, attr, chain) = unsafe { (super::context_of(context)?, *dm_attr, Chain::new(link)) };
        let mut command = Command::new(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC).with_chain(chain);
        let handle = command.object_out(UVERBS_ATTR_ALLOC_DM_HANDLE);
        command.u64_in(UVERBS_ATTR_ALLOC_DM_LENGTH, attr.length as u64);
        command.u32_in(UVERBS_ATTR_ALLOC_DM_ALIGNMENT, attr.log_align_req);
        command.run(live)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*dm).handle = command.handle(handle);
            (*dm).dm.handle = (*dm).handle;
            (*dm).dm.comp_mask = IBV_DM_MASK_HANDLE;
            (*dm).dm.context = context;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_free_dm`.
    ///
    /// # Errors
    /// The kernel's errno; `EBUSY` while regions use it.
    ///
    /// # Safety
    /// `dm` is live.
    pub(crate) fn free_dm(dm: *mut verbs_dm) -> Status {
        // SAFETY: the provider's device memory is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*dm).dm.context)?, (*dm).handle) };
        let mut command = Command::new(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE);
        command.object_in(UVERBS_ATTR_FREE_DM_HANDLE, handle);
        destroy::destroy_result(command.run(context))?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_reg_dm_mr`: registers a part of device memory.
    ///
    /// # Errors
    /// `EINVAL` with errno set for access that is not zero-based; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `pd` and `dm` are live, `vmr` is the provider's to fill, `link` is NULL or a chain of
    /// command buffers.
    pub(crate) fn reg_dm_mr(
        pd: *mut ibv_pd,
        dm: *mut verbs_dm,
        offset: u64,
        length: usize,
        access: c_uint,
        vmr: *mut verbs_mr,
        link: *mut ibv_command_buffer,
    ) -> Status {
        // An address within device memory means nothing to the application.
        if access & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(set(Errno::EINVAL));
        }
        // SAFETY: PD and device memory are live, so their members can be read; `link` is NULL or a
        // chain of buffers.
        let (raw_context, pd_handle, dm_handle, chain) =
            unsafe { ((*pd).context, (*pd).handle, (*dm).handle, Chain::new(link)) };
        // SAFETY: the context of a live PD is live.
        let context = unsafe { super::context_of(raw_context)? };
        let (mut lkey, mut rkey) = (0_u32, 0_u32);
        let mut command = Command::new(UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG).with_chain(chain);
        let handle = command.object_out(UVERBS_ATTR_REG_DM_MR_HANDLE);
        command.output(UVERBS_ATTR_REG_DM_MR_RESP_LKEY, OutputBytes::of(&mut lkey));
        command.output(UVERBS_ATTR_REG_DM_MR_RESP_RKEY, OutputBytes::of(&mut rkey));
        command.object_in(UVERBS_ATTR_REG_DM_MR_PD_HANDLE, pd_handle);
        command.object_in(UVERBS_ATTR_REG_DM_MR_DM_HANDLE, dm_handle);
        command.u64_in(UVERBS_ATTR_REG_DM_MR_OFFSET, offset);
        command.u64_in(UVERBS_ATTR_REG_DM_MR_LENGTH, length as u64);
        command.u32_in(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, access);
        command.run(context)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*vmr).ibv_mr.handle = command.handle(handle);
            (*vmr).ibv_mr.context = (*dm).dm.context;
            (*vmr).ibv_mr.lkey = lkey;
            (*vmr).ibv_mr.rkey = rkey;
            (*vmr).ibv_mr.length = length;
            (*vmr).ibv_mr.pd = pd;
            (*vmr).ibv_mr.addr = core::ptr::null_mut();
            (*vmr).mr_type = IBV_MR_TYPE_MR;
        }
        Ok(Status::DONE)
    }
}
