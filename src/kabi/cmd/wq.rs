//! Work queues and indirection tables: `ibv_create_wq(3)`, `ibv_create_rwq_ind_table(3)`; object
//! `UVERBS_OBJECT_WQ` of `<rdma/ib_user_ioctl_cmds.h>` and the WQ commands of
//! `<rdma/ib_user_verbs.h>`.

use abi::{
    IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, IB_USER_VERBS_EX_CMD_CREATE_WQ,
    IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL, IB_USER_VERBS_EX_CMD_DESTROY_WQ,
    IB_USER_VERBS_EX_CMD_MODIFY_WQ, IBV_CREATE_IND_TABLE_RESERVED, IBV_WQ_ATTR_CURR_STATE,
    IBV_WQ_ATTR_FLAGS, IBV_WQ_ATTR_RESERVED, IBV_WQ_ATTR_STATE, IBV_WQ_FLAGS_RESERVED,
    IBV_WQ_INIT_ATTR_FLAGS, IBV_WQ_INIT_ATTR_RESERVED, UVERBS_ATTR_CREATE_WQ_CQ_HANDLE,
    UVERBS_ATTR_CREATE_WQ_EVENT_FD, UVERBS_ATTR_CREATE_WQ_FLAGS, UVERBS_ATTR_CREATE_WQ_HANDLE,
    UVERBS_ATTR_CREATE_WQ_MAX_SGE, UVERBS_ATTR_CREATE_WQ_MAX_WR, UVERBS_ATTR_CREATE_WQ_PD_HANDLE,
    UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE, UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR,
    UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, UVERBS_ATTR_CREATE_WQ_TYPE,
    UVERBS_ATTR_CREATE_WQ_USER_HANDLE, UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE,
    UVERBS_ATTR_DESTROY_WQ_HANDLE, UVERBS_ATTR_DESTROY_WQ_RESP, UVERBS_METHOD_RWQ_IND_TBL_DESTROY,
    UVERBS_METHOD_WQ_CREATE, UVERBS_METHOD_WQ_DESTROY, UVERBS_OBJECT_RWQ_IND_TBL, UVERBS_OBJECT_WQ,
    Zeroed, ib_uverbs_ex_create_rwq_ind_table, ib_uverbs_ex_create_rwq_ind_table_resp,
    ib_uverbs_ex_create_wq, ib_uverbs_ex_create_wq_resp, ib_uverbs_ex_destroy_rwq_ind_table,
    ib_uverbs_ex_destroy_wq, ib_uverbs_ex_destroy_wq_resp, ib_uverbs_ex_modify_wq, ibv_context,
    ibv_create_wq, ibv_modify_wq, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq,
    ibv_wq_attr, ibv_wq_init_attr,
};

use super::destroy::{Destroy, DestroyResult, destroy_result, wait_for_acknowledgements};
use super::status::{Status, set};
use crate::front::command::buffer::Command;
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::{self, Driver};
use crate::front::command::write::{Number, Write};
use crate::front::command::{IoctlOutcome, async_fd, is_imported};
use crate::front::op::Op;
use cface::{Errno, verb};

plain_data! {
    ib_uverbs_ex_create_rwq_ind_table_resp ib_uverbs_ex_create_wq ib_uverbs_ex_create_wq_resp
    ib_uverbs_ex_destroy_rwq_ind_table ib_uverbs_ex_destroy_wq ib_uverbs_ex_destroy_wq_resp
    ib_uverbs_ex_modify_wq
}

verb! {
    /// `ibv_cmd_create_wq`: a new WQ. Sets `context`, `cq`, `pd`, `wq_type`, `handle` and `wq_num`,
    /// and the capacities in `attr`; lock, counter and state are set by inline code of the
    /// application.
    ///
    /// # Errors
    /// `EINVAL` unknown members; `EOPNOTSUPP` unknown flags; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `context` and what `attr` names are live, `wq` is the provider's to fill, `cmd` and `resp`
    /// are as long as the sizes say.
    pub(crate) fn create_wq(
        context: *mut ibv_context,
        attr: *mut ibv_wq_init_attr,
        wq: *mut ibv_wq,
        cmd: *mut ibv_create_wq,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_wq_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the application's attributes are readable; they are copied.
        let wish = unsafe { *attr };
        if wish.comp_mask >= IBV_WQ_INIT_ATTR_RESERVED {
            return Err(set(Errno::EINVAL));
        }
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*wq).context = context;
            (*wq).cq = wish.cq;
            (*wq).pd = wish.pd;
            (*wq).wq_type = wish.wq_type;
        }
        let mut flags = 0;
        if wish.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 {
            if wish.create_flags & !(IBV_WQ_FLAGS_RESERVED - 1) != 0 {
                return Err(set(Errno::EOPNOTSUPP));
            }
            flags = wish.create_flags;
        }
        // SAFETY: the context is live or NULL, which is refused, and the attributes name a live PD
        // and a live CQ.
        let (live, pd, cq) =
            unsafe { (super::context_of(context)?, (*wish.pd).handle, (*wish.cq).handle) };
        let user_handle = wq.expose_provenance() as u64;
        let (mut max_wr, mut max_sge, mut wq_num) = (0_u32, 0_u32, 0_u32);
        // SAFETY: the provider's `cmd` and `resp` are as long as their sizes, and not used
        // elsewhere meanwhile.
        let driver = unsafe { Driver::after_core(cmd, cmd_size, resp, resp_size) };
        let mut command = Command::new(UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE).with_driver(driver);
        command.require_ex();
        if is_imported(live) {
            command.require_ioctl();
        }
        let handle = command.object_out(UVERBS_ATTR_CREATE_WQ_HANDLE);
        command.u64_in(UVERBS_ATTR_CREATE_WQ_USER_HANDLE, user_handle);
        command.object_in(UVERBS_ATTR_CREATE_WQ_PD_HANDLE, pd);
        command.object_in(UVERBS_ATTR_CREATE_WQ_CQ_HANDLE, cq);
        command.u64_in(UVERBS_ATTR_CREATE_WQ_TYPE, wish.wq_type.into());
        command.u32_in(UVERBS_ATTR_CREATE_WQ_MAX_WR, wish.max_wr);
        command.u32_in(UVERBS_ATTR_CREATE_WQ_MAX_SGE, wish.max_sge);
        command.fd_in(UVERBS_ATTR_CREATE_WQ_EVENT_FD, async_fd(live));
        command.u32_in(UVERBS_ATTR_CREATE_WQ_FLAGS, flags);
        command.output(UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR, OutputBytes::of(&mut max_wr));
        command.output(UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE, OutputBytes::of(&mut max_sge));
        command.output(UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, OutputBytes::of(&mut wq_num));
        let handle = match command.run_or_fall_back(live, Op::create_wq)? {
            IoctlOutcome::Done => command.handle(handle),
            IoctlOutcome::Write | IoctlOutcome::WriteEx => {
                let mut request = ib_uverbs_ex_create_wq::zeroed();
                request.wq_type = wish.wq_type;
                request.user_handle = user_handle;
                request.pd_handle = pd;
                request.cq_handle = cq;
                request.max_wr = wish.max_wr;
                request.max_sge = wish.max_sge;
                // The mask only guards the ioctl's attribute, as in rdma-core.
                request.create_flags = wish.create_flags;
                let mut response = ib_uverbs_ex_create_wq_resp::zeroed();
                let number = Number::Extended(IB_USER_VERBS_EX_CMD_CREATE_WQ);
                command.write_resp(live, number, &request, &mut response)?;
                (max_wr, max_sge, wq_num) = (response.max_wr, response.max_sge, response.wqn);
                response.wq_handle
            }
        };
        // SAFETY: the provider's to fill, and the caller's, per the contract above.
        unsafe {
            (*wq).handle = handle;
            (*wq).wq_num = wq_num;
            (*attr).max_wr = max_wr;
            (*attr).max_sge = max_sge;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_destroy_wq`: returns when the application has acknowledged all events of the WQ.
    ///
    /// # Errors
    /// The kernel's errno; `EBUSY` while an indirection table uses it.
    ///
    /// # Safety
    /// `wq` is live.
    pub(crate) fn destroy_wq(wq: *mut ibv_wq) -> Status {
        // SAFETY: the caller's WQ is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*wq).context)?, (*wq).handle) };
        let mut reported = 0_u32;
        let mut response = ib_uverbs_ex_destroy_wq_resp::zeroed();
        let mut command = Command::new(UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_DESTROY);
        command.output(UVERBS_ATTR_DESTROY_WQ_RESP, OutputBytes::of(&mut reported));
        command.object_in(UVERBS_ATTR_DESTROY_WQ_HANDLE, handle);
        let result = match command.run_or_fall_back(context, Op::destroy_wq) {
            Ok(IoctlOutcome::Done) => {
                response.events_reported = reported;
                Ok(())
            }
            Ok(IoctlOutcome::Write | IoctlOutcome::WriteEx) => {
                let mut request = ib_uverbs_ex_destroy_wq::zeroed();
                request.wq_handle = handle;
                let number = Number::Extended(IB_USER_VERBS_EX_CMD_DESTROY_WQ);
                command.write_resp(context, number, &request, &mut response)
            }
            Err(error) => Err(error),
        };
        if destroy_result(result)? == DestroyResult::Destroyed {
            // SAFETY: one live object, per the contract above.
            unsafe {
                wait_for_acknowledgements(&raw mut (*wq).mutex, &raw mut (*wq).cond, [(
                    &raw const (*wq).events_completed,
                    response.events_reported,
                )]);
            }
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_modify_wq`: updates `state` if that was changed.
    ///
    /// # Errors
    /// `EINVAL` unknown members; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `wq` is live, `attr` is readable, `cmd` is as long as its size says.
    pub(crate) fn modify_wq(
        wq: *mut ibv_wq,
        attr: *mut ibv_wq_attr,
        cmd: *mut ibv_modify_wq,
        cmd_size: usize,
    ) -> Status {
        // SAFETY: the application's attributes are readable; they are copied.
        let attr = unsafe { *attr };
        if attr.attr_mask >= IBV_WQ_ATTR_RESERVED {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's WQ is live, and `cmd` is as long as its size, which `request`
        // checks.
        let (context, handle, (cmd, driver)) =
            unsafe { (super::context_of((*wq).context)?, (*wq).handle, frame::request(cmd, cmd_size)?) };
        let core = &mut cmd.core_payload;
        *core = ib_uverbs_ex_modify_wq::zeroed();
        core.curr_wq_state = attr.curr_wq_state;
        core.wq_state = attr.wq_state;
        if attr.attr_mask & IBV_WQ_ATTR_FLAGS != 0 {
            core.flags = attr.flags;
            core.flags_mask = attr.flags_mask;
        }
        core.wq_handle = handle;
        core.attr_mask = attr.attr_mask;
        Write::new(Number::Extended(IB_USER_VERBS_EX_CMD_MODIFY_WQ), InputBytes::of(core)).driver(driver).run(context)?;
        if attr.attr_mask & IBV_WQ_ATTR_STATE != 0 {
            // SAFETY: the WQ is still live: the provider gave it for the whole call.
            unsafe { (*wq).state = attr.wq_state };
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_create_rwq_ind_table`: a new table; sets its handle, number and `context`.
    ///
    /// # Errors
    /// `EINVAL` unknown members or a short response; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `context` and the WQs in `init_attr` are live, `table` is the provider's to fill, `resp` is
    /// as long as its size says.
    pub(crate) fn create_rwq_ind_table(
        context: *mut ibv_context,
        init_attr: *mut ibv_rwq_ind_table_init_attr,
        table: *mut ibv_rwq_ind_table,
        resp: *mut ib_uverbs_ex_create_rwq_ind_table_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the application's attributes are readable; they are copied.
        let init_attr = unsafe { *init_attr };
        if init_attr.comp_mask >= IBV_CREATE_IND_TABLE_RESERVED {
            return Err(Errno::EINVAL);
        }
        if resp_size < size_of::<ib_uverbs_ex_create_rwq_ind_table_resp>() {
            return Err(set(Errno::EINVAL));
        }
        // SAFETY: the provider's context is NULL, which is refused, or live during this call.
        let live = unsafe { super::context_of(context)? };
        // SAFETY: 2^log WQs, per the contract above.
        let request = unsafe { ind_table_request(&init_attr)? };
        // SAFETY: long enough (checked).
        let (response, driver) = unsafe {
            (&mut *resp, Driver::after_core(core::ptr::null::<u8>(), 0, resp, resp_size))
        };
        let number = Number::Extended(IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL);
        Write::new(number, InputBytes::slice(&request)).response(OutputBytes::of(&mut *response)).driver(driver).run(live)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*table).ind_tbl_handle = response.ind_tbl_handle.cast_signed();
            (*table).ind_tbl_num = response.ind_tbl_num.cast_signed();
            (*table).context = context;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_destroy_rwq_ind_table`.
    ///
    /// # Errors
    /// The kernel's errno; `EBUSY` while QPs use it.
    ///
    /// # Safety
    /// `table` is live.
    pub(crate) fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> Status {
        // SAFETY: the caller's table is live, so its context and handle can be read.
        let (context, handle) =
            unsafe { (super::context_of((*table).context)?, (*table).ind_tbl_handle.cast_unsigned()) };
        let destroy = Destroy {
            // Shared with address handles, as in rdma-core: the kernel learned both at once.
            op: Op::destroy_ah,
            object: UVERBS_OBJECT_RWQ_IND_TBL,
            method: UVERBS_METHOD_RWQ_IND_TBL_DESTROY,
            handle: UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE,
        };
        let request = ib_uverbs_ex_destroy_rwq_ind_table { comp_mask: 0, ind_tbl_handle: handle };
        destroy.run(context, handle, Number::Extended(IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL), &request)
    }
}

/// Members of [`ibv_wq_attr`] that the kernel knows.
const _: () = assert!(
    IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS == IBV_WQ_ATTR_RESERVED - 1
);

/// The request: a head, then the handles, an even number of words.
///
/// # Errors
/// `EINVAL` when there are more handles than any command can carry.
///
/// # Safety
/// The table has 2^`log_ind_tbl_size` live WQs.
unsafe fn ind_table_request(init_attr: &ibv_rwq_ind_table_init_attr) -> Result<Vec<u32>, Errno> {
    const HEAD: usize = size_of::<ib_uverbs_ex_create_rwq_ind_table>() / size_of::<u32>();
    let log = init_attr.log_ind_tbl_size;
    if log > MAX_LOG_IND_TABLE {
        return Err(Errno::EINVAL);
    }
    let count = 1_usize << log;
    let mut request = Vec::with_capacity(HEAD + count + 1);
    request.extend([0, log]);
    for at in 0..count {
        // SAFETY: one of the WQs of the contract.
        request.push(unsafe { (**init_attr.ind_tbl.add(at)).handle });
    }
    request.resize(request.len().next_multiple_of(2), 0);
    Ok(request)
}

/// The header counts 8-byte words of requests in 16 bits: 2^16 handles are the most.
const MAX_LOG_IND_TABLE: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handles_of_a_table_are_padded_to_whole_words() {
        let mut wq = ibv_wq::zeroed();
        wq.handle = 7;
        let mut queues = [&raw mut wq; 2];
        let mut attr = ibv_rwq_ind_table_init_attr::zeroed();
        attr.ind_tbl = queues.as_mut_ptr();
        // SAFETY: as many WQs as the attributes say.
        unsafe {
            assert_eq!(ind_table_request(&attr), Ok(vec![0, 0, 7, 0]));
            attr.log_ind_tbl_size = 1;
            assert_eq!(ind_table_request(&attr), Ok(vec![0, 1, 7, 7]));
            attr.log_ind_tbl_size = 17;
            assert_eq!(ind_table_request(&attr), Err(Errno::EINVAL));
        }
    }
}
