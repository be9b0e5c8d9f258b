//! Completion counters (rdma-core 65): object `UVERBS_OBJECT_COMP_CNTR` of
//! `<rdma/ib_user_ioctl_cmds.h>`. Ioctl only.

use abi::{
    IB_UVERBS_COMP_CNTR_ENTRY_COMP, IB_UVERBS_COMP_CNTR_ENTRY_ERR,
    IB_UVERBS_COMP_CNTR_MODIFY_OP_INC, IB_UVERBS_COMP_CNTR_MODIFY_OP_SET,
    UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE, UVERBS_ATTR_DESTROY_COMP_CNTR_HANDLE,
    UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY, UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE,
    UVERBS_ATTR_MODIFY_COMP_CNTR_OP, UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE,
    UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE, UVERBS_ATTR_QP_ATTACH_COMP_CNTR_HANDLE,
    UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK, UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS,
    UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE,
    UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS, UVERBS_ATTR_READ_COMP_CNTR_ENTRY,
    UVERBS_ATTR_READ_COMP_CNTR_HANDLE, UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE,
    UVERBS_METHOD_COMP_CNTR_CREATE, UVERBS_METHOD_COMP_CNTR_DESTROY,
    UVERBS_METHOD_COMP_CNTR_MODIFY, UVERBS_METHOD_COMP_CNTR_READ,
    UVERBS_METHOD_QP_ATTACH_COMP_CNTR, UVERBS_METHOD_QUERY_COMP_CNTR_CAPS, UVERBS_OBJECT_COMP_CNTR,
    UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_QP, ib_uverbs_comp_cntr_entry,
    ib_uverbs_comp_cntr_modify_op, ibv_command_buffer, ibv_comp_cntr, ibv_comp_cntr_caps,
    ibv_context, ibv_qp, ibv_qp_attach_comp_cntr_attr,
};

use super::destroy;
use super::status::Status;
use crate::front::command::buffer::{Chain, Command};
use crate::front::command::bytes::OutputBytes;
use cface::{Errno, verb};

/// Operations that can be counted: the same six bits for applications and kernel.
const KNOWN_OPERATIONS: u32 = 0x3f;

verb! {
    /// `ibv_cmd_create_comp_cntr`: sets `context` and `handle`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `context` is live, `comp_cntr` is the provider's to fill, `link` is NULL or a chain of
    /// command buffers.
    pub(crate) fn create(
        context: *mut ibv_context,
        comp_cntr: *mut ibv_comp_cntr,
        link: *mut ibv_command_buffer,
    ) -> Status {
        // SAFETY: the provider's context is NULL, which is refused, or live; `link` is NULL or its
        // chain of buffers.
        let (live, chain) = unsafe { (super::context_of(context)?, Chain::new(link)) };
        // SAFETY: the provider's to fill, per the contract above.
        unsafe { (*comp_cntr).context = context };
        let mut command =
            Command::new(UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_CREATE).with_chain(chain);
        let handle = command.object_out(UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE);
        command.run(live)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe { (*comp_cntr).handle = command.handle(handle) };
        Ok(Status::DONE)
    }

    /// `ibv_cmd_destroy_comp_cntr`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `comp_cntr` is live.
    pub(crate) fn destroy(comp_cntr: *mut ibv_comp_cntr) -> Status {
        // SAFETY: the provider's counter is live, so its context and handle can be read.
        let (context, handle) =
            unsafe { (super::context_of((*comp_cntr).context)?, (*comp_cntr).handle) };
        let mut command = Command::new(UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_DESTROY);
        command.object_in(UVERBS_ATTR_DESTROY_COMP_CNTR_HANDLE, handle);
        destroy::destroy_result(command.run(context))?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_set_comp_cntr`: sets the count of completions.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `comp_cntr` is live.
    pub(crate) fn set(comp_cntr: *mut ibv_comp_cntr, value: u64) -> Status {
        // SAFETY: `modify` only needs the live counter that the provider gives.
        unsafe { modify(comp_cntr, IB_UVERBS_COMP_CNTR_ENTRY_COMP, IB_UVERBS_COMP_CNTR_MODIFY_OP_SET, value) }
    }

    /// `ibv_cmd_set_err_comp_cntr`: sets the count of errors.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `comp_cntr` is live.
    pub(crate) fn set_err(comp_cntr: *mut ibv_comp_cntr, value: u64) -> Status {
        // SAFETY: `modify` only needs the live counter that the provider gives.
        unsafe { modify(comp_cntr, IB_UVERBS_COMP_CNTR_ENTRY_ERR, IB_UVERBS_COMP_CNTR_MODIFY_OP_SET, value) }
    }

    /// `ibv_cmd_inc_comp_cntr`: adds to the count of completions.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `comp_cntr` is live.
    pub(crate) fn inc(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> Status {
        // SAFETY: `modify` only needs the live counter that the provider gives.
        unsafe { modify(comp_cntr, IB_UVERBS_COMP_CNTR_ENTRY_COMP, IB_UVERBS_COMP_CNTR_MODIFY_OP_INC, amount) }
    }

    /// `ibv_cmd_inc_err_comp_cntr`: adds to the count of errors.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `comp_cntr` is live.
    pub(crate) fn inc_err(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> Status {
        // SAFETY: `modify` only needs the live counter that the provider gives.
        unsafe { modify(comp_cntr, IB_UVERBS_COMP_CNTR_ENTRY_ERR, IB_UVERBS_COMP_CNTR_MODIFY_OP_INC, amount) }
    }

    /// `ibv_cmd_read_comp_cntr`: the count of completions.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `comp_cntr` is live, `value` can be written.
    pub(crate) fn read(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> Status {
        // SAFETY: the provider's counter is live; `value` is NULL, which is refused, or the
        // caller's to be written.
        unsafe { read_entry(comp_cntr, IB_UVERBS_COMP_CNTR_ENTRY_COMP, value) }
    }

    /// `ibv_cmd_read_err_comp_cntr`: the count of errors.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `comp_cntr` is live, `value` can be written.
    pub(crate) fn read_err(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> Status {
        // SAFETY: the provider's counter is live; `value` is NULL, which is refused, or the
        // caller's to be written.
        unsafe { read_entry(comp_cntr, IB_UVERBS_COMP_CNTR_ENTRY_ERR, value) }
    }

    /// `ibv_cmd_qp_attach_comp_cntr`: lets a counter count operations of a QP. Operations we do not
    /// know are left out.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `qp` and `comp_cntr` are live, `attr` is readable.
    pub(crate) fn qp_attach(
        qp: *mut ibv_qp,
        comp_cntr: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> Status {
        // SAFETY: QP and counter are live and `attr` is readable, so these four members can be
        // read.
        let (context, qp, counter, operations) = unsafe {
            (super::context_of((*qp).context)?, (*qp).handle, (*comp_cntr).handle, (*attr).op_mask)
        };
        let mut command = Command::new(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_ATTACH_COMP_CNTR);
        command.object_in(UVERBS_ATTR_QP_ATTACH_COMP_CNTR_HANDLE, qp);
        command.object_in(UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE, counter);
        command.u32_in(UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK, operations & KNOWN_OPERATIONS);
        command.run(context)?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_query_comp_cntr_caps`: limits of the counters of a device.
    ///
    /// # Errors
    /// `EINVAL` less room than the structure; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `context` is live, `caps` has `caps_size` bytes.
    pub(crate) fn query_caps(
        context: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
        caps_size: usize,
    ) -> Status {
        if caps_size < size_of::<ibv_comp_cntr_caps>() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the context is live; `caps` is NULL, which is refused, or has room for the
        // structure (checked above).
        let (context, caps) =
            unsafe { (super::context_of(context)?, caps.as_mut().ok_or(Errno::EINVAL)?) };
        let mut operations = 0_u32;
        let mut command = Command::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_COMP_CNTR_CAPS);
        command.output(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS, OutputBytes::of(&mut caps.max_counters));
        command.output(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE, OutputBytes::of(&mut caps.max_value));
        command.output(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS, OutputBytes::of(&mut operations));
        command.run(context)?;
        caps.supported_qp_attach_ops = operations & KNOWN_OPERATIONS;
        Ok(Status::DONE)
    }
}

/// # Safety
/// `comp_cntr` is live.
unsafe fn modify(
    comp_cntr: *mut ibv_comp_cntr,
    entry: ib_uverbs_comp_cntr_entry,
    operation: ib_uverbs_comp_cntr_modify_op,
    value: u64,
) -> Result<Status, Errno> {
    // SAFETY: callers pass a live counter, whose context and handle can be read.
    let (context, handle) =
        unsafe { (super::context_of((*comp_cntr).context)?, (*comp_cntr).handle) };
    let mut command = Command::new(UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_MODIFY);
    command.object_in(UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE, handle);
    command.u64_in(UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY, entry.into());
    command.u64_in(UVERBS_ATTR_MODIFY_COMP_CNTR_OP, operation.into());
    command.u64_in(UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE, value);
    command.run(context)?;
    Ok(Status::DONE)
}

/// # Safety
/// `comp_cntr` is live, `value` can be written.
unsafe fn read_entry(
    comp_cntr: *mut ibv_comp_cntr,
    entry: ib_uverbs_comp_cntr_entry,
    value: *mut u64,
) -> Result<Status, Errno> {
    // SAFETY: the counter is live; `value` is NULL, which is refused, or the caller's, and only we
    // write it now.
    let (context, handle, value) = unsafe {
        (
            super::context_of((*comp_cntr).context)?,
            (*comp_cntr).handle,
            value.as_mut().ok_or(Errno::EINVAL)?,
        )
    };
    let mut command = Command::new(UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_READ);
    command.object_in(UVERBS_ATTR_READ_COMP_CNTR_HANDLE, handle);
    command.u64_in(UVERBS_ATTR_READ_COMP_CNTR_ENTRY, entry.into());
    command.output(UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE, OutputBytes::of(value));
    command.run(context)?;
    Ok(Status::DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_and_kernel_number_operations_alike() {
        let pairs = [
            (abi::IBV_QP_ATTACH_COMP_CNTR_OP_SEND, abi::IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_SEND),
            (abi::IBV_QP_ATTACH_COMP_CNTR_OP_RECV, abi::IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RECV),
            (
                abi::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
                abi::IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
            ),
            (
                abi::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ,
                abi::IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ,
            ),
            (
                abi::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
                abi::IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
            ),
            (
                abi::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
                abi::IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
            ),
        ];
        assert!(pairs.iter().all(|(public, kernel)| public == kernel));
        assert_eq!(pairs.iter().fold(0, |all, (public, _)| all | public), KNOWN_OPERATIONS);
    }
}
