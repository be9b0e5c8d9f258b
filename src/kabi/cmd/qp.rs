//! Creating, opening and destroying queue pairs: `ibv_create_qp(3)`, `ibv_create_qp_ex(3)`,
//! `ibv_open_qp(3)`; object `UVERBS_OBJECT_QP` of `<rdma/ib_user_ioctl_cmds.h>` and the QP commands
//! of `<rdma/ib_user_verbs.h>`.

use core::ffi::c_int;

use abi::{
    IB_USER_VERBS_CMD_DESTROY_QP, IB_USER_VERBS_CMD_OPEN_QP, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD,
    IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_RESERVED, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD,
    IBV_QPS_UNKNOWN, UVERBS_ATTR_DESTROY_QP_HANDLE, UVERBS_ATTR_DESTROY_QP_RESP,
    UVERBS_METHOD_QP_DESTROY, UVERBS_OBJECT_QP, VERBS_QP_XRCD, Zeroed, ib_uverbs_create_qp_resp,
    ib_uverbs_destroy_qp, ib_uverbs_destroy_qp_resp, ib_uverbs_ex_create_qp_resp,
    ib_uverbs_open_qp, ibv_command_buffer, ibv_context, ibv_create_qp, ibv_create_qp_ex,
    ibv_open_qp, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, verbs_qp,
    verbs_xrcd,
};

use super::destroy::{DestroyResult, destroy_result, wait_for_acknowledgements};
use super::qp_new::create;
use super::status::{Status, set};
use crate::front::command::IoctlOutcome;
use crate::front::command::buffer::{Chain, Command};
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::{Driver, Frame};
use crate::front::command::write::{Number, Write};
use crate::front::context::Context;
use crate::front::op::Op;
use cface::{Errno, lock, verb};

plain_data! { ib_uverbs_destroy_qp ib_uverbs_destroy_qp_resp ib_uverbs_open_qp }

/// The members that `ibv_cmd_create_qp_ex` supports.
const PLAIN_MEMBERS: u32 =
    IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
/// The members that `ibv_cmd_create_qp_ex2` supports.
const EXTENDED_MEMBERS: u32 = PLAIN_MEMBERS
    | IBV_QP_INIT_ATTR_CREATE_FLAGS
    | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
    | IBV_QP_INIT_ATTR_IND_TABLE
    | IBV_QP_INIT_ATTR_RX_HASH;
verb! {
    /// `ibv_cmd_create_qp`: a new QP from the classic attributes; all members of `ibv_qp` are set,
    /// and the capacities in `attr`.
    ///
    /// # Errors
    /// `EINVAL` a type that needs more than a PD; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `pd` and what `attr` names are live, `qp` is the provider's to fill, `cmd` and `resp` are as
    /// long as the sizes say.
    pub(crate) fn create_qp(
        pd: *mut ibv_pd,
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_init_attr,
        cmd: *mut ibv_create_qp,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_qp_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the caller's PD is live, and the application's attributes are readable; they are
        // copied.
        let (raw_context, classic) = unsafe { ((*pd).context, *attr) };
        let mut wish = ibv_qp_init_attr_ex::zeroed();
        wish.qp_context = classic.qp_context;
        wish.send_cq = classic.send_cq;
        wish.recv_cq = classic.recv_cq;
        wish.srq = classic.srq;
        wish.cap = classic.cap;
        wish.qp_type = classic.qp_type;
        wish.sq_sig_all = classic.sq_sig_all;
        wish.comp_mask = IBV_QP_INIT_ATTR_PD;
        wish.pd = pd;
        // SAFETY: the PD's context is live, `qp` and `attr` are there to be filled, `cmd` and
        // `resp` have their sizes.
        unsafe {
            let driver = Driver::after_core(cmd, cmd_size, resp, resp_size);
            create(raw_context, qp, None, &mut wish, driver, Chain::NONE)?;
            (*attr).cap = wish.cap;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_create_qp_ex`: a new QP from extended attributes as far as the plain write command
    /// has them; members of `verbs_qp` are set too.
    ///
    /// # Errors
    /// `EINVAL` with errno set for other members; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `context` and what `attr_ex` names are live, `qp` is the provider's to fill, `cmd` and
    /// `resp` are as long as the sizes say.
    pub(crate) fn create_qp_ex(
        context: *mut ibv_context,
        qp: *mut verbs_qp,
        attr_ex: *mut ibv_qp_init_attr_ex,
        cmd: *mut ibv_create_qp,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_qp_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: what `attr_ex` names is live; `qp` may be written, `cmd` and `resp` are as long
        // as their sizes.
        unsafe {
            let wish = attr_ex.as_mut().ok_or(Errno::EINVAL)?;
            only_members(wish, PLAIN_MEMBERS)?;
            let driver = Driver::after_core(cmd, cmd_size, resp, resp_size);
            create(context, qp.cast(), Some(qp), wish, driver, Chain::NONE)?;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_create_qp_ex2` of private ABI 34 to 59: a new QP from all extended attributes.
    ///
    /// # Errors
    /// `EINVAL` with errno set for unknown members; otherwise the kernel's errno.
    ///
    /// # Safety
    /// As for [`create_qp_ex`].
    pub(crate) fn create_qp_ex2_34(
        context: *mut ibv_context,
        qp: *mut verbs_qp,
        attr: *mut ibv_qp_init_attr_ex,
        cmd: *mut ibv_create_qp_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_qp_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: as for `create_qp_ex`: live objects, a QP to fill, and memory as long as the
        // sizes.
        unsafe {
            let uhw = Driver::after_core(cmd, cmd_size, resp, resp_size);
            create_extended(context, qp, attr, uhw, Chain::NONE)
        }
    }

    /// `ibv_cmd_create_qp_ex2` since private ABI 64: with attributes of the provider.
    ///
    /// # Errors
    /// As for [`create_qp_ex2_34`].
    ///
    /// # Safety
    /// As for [`create_qp_ex`]; `driver` is NULL or a chain of command buffers.
    pub(crate) fn create_qp_ex2(
        context: *mut ibv_context,
        qp: *mut verbs_qp,
        attr: *mut ibv_qp_init_attr_ex,
        cmd: *mut ibv_create_qp_ex,
        cmd_size: usize,
        resp: *mut ib_uverbs_ex_create_qp_resp,
        resp_size: usize,
        driver: *mut ibv_command_buffer,
    ) -> Status {
        // SAFETY: as for `create_qp_ex`; `driver` is NULL or the provider's chain of command
        // buffers.
        unsafe {
            let uhw = Driver::after_core(cmd, cmd_size, resp, resp_size);
            create_extended(context, qp, attr, uhw, Chain::new(driver))
        }
    }

    /// `ibv_cmd_open_qp`: opens the receiving QP of an XRC domain that another process created.
    /// `vqp_sz` says how much of `verbs_qp` the provider has.
    ///
    /// # Errors
    /// `EOPNOTSUPP` unknown members; `EINVAL` members missing; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `context` and what `attr` names are live, `qp` is the provider's to fill, `cmd` and `resp`
    /// are as long as the sizes say.
    pub(crate) fn open_qp(
        context: *mut ibv_context,
        qp: *mut verbs_qp,
        vqp_sz: c_int,
        attr: *mut ibv_qp_open_attr,
        cmd: *mut ibv_open_qp,
        cmd_size: usize,
        resp: *mut ib_uverbs_create_qp_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the application's attributes are readable; they are copied.
        let attr = unsafe { *attr };
        if attr.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        let needed = IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_TYPE;
        if attr.comp_mask & needed != needed {
            return Err(Errno::EINVAL);
        }
        let xrcd: *mut verbs_xrcd = attr.xrcd.cast();
        // SAFETY: the mask names the domain, so it is live, in a verbs_xrcd as with all providers;
        // sizes are checked.
        let (live, frame, xrcd_handle) = unsafe {
            (super::context_of(context)?, Frame::new(cmd, cmd_size, resp, resp_size)?, (*xrcd).handle)
        };
        let core = &mut frame.cmd.core_payload;
        core.user_handle = qp.expose_provenance() as u64;
        core.pd_handle = xrcd_handle;
        core.qpn = attr.qp_num;
        // Types are below 256.
        core.qp_type = attr.qp_type as u8;
        Write::new(Number::Plain(IB_USER_VERBS_CMD_OPEN_QP), InputBytes::of(core))
            .response(OutputBytes::of(&mut *frame.resp))
            .driver(frame.driver)
            .run(live)?;

        let base: *mut ibv_qp = qp.cast();
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*base).handle = frame.resp.qp_handle;
            (*base).context = context;
            (*base).qp_context = attr.qp_context;
            (*base).pd = core::ptr::null_mut();
            (*base).send_cq = core::ptr::null_mut();
            (*base).recv_cq = core::ptr::null_mut();
            (*base).srq = core::ptr::null_mut();
            (*base).qp_num = attr.qp_num;
            (*base).qp_type = attr.qp_type;
            (*base).state = IBV_QPS_UNKNOWN;
            (*base).events_completed = 0;
            lock::init(&raw mut (*base).mutex, &raw mut (*base).cond);
        }
        let mask_offset = live.private().generation.qp_mask_offset;
        let with_xrcd = mask_offset + size_of::<u64>() + size_of::<*mut verbs_xrcd>();
        if usize::try_from(vqp_sz).is_ok_and(|size| size >= with_xrcd) {
            // SAFETY: the structure of the provider's generation reaches that far, as its size
            // says.
            unsafe { store_xrcd(live, qp, Some(xrcd)) };
        } else {
            // SAFETY: the mask is there in all providers.
            unsafe { store_xrcd(live, qp, None) };
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_destroy_qp`: returns when the application has acknowledged all events of the QP.
    ///
    /// # Errors
    /// The kernel's errno; `EBUSY` while attached to a multicast group.
    ///
    /// # Safety
    /// `qp` is live.
    pub(crate) fn destroy_qp(qp: *mut ibv_qp) -> Status {
        // SAFETY: the caller's QP is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*qp).context)?, (*qp).handle) };
        let mut reported = ib_uverbs_destroy_qp_resp::zeroed();
        let mut response = ib_uverbs_destroy_qp_resp::zeroed();
        let mut command = Command::new(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY);
        command.output(UVERBS_ATTR_DESTROY_QP_RESP, OutputBytes::of(&mut reported));
        command.object_in(UVERBS_ATTR_DESTROY_QP_HANDLE, handle);
        let result = match command.run_or_fall_back(context, Op::destroy_qp) {
            Ok(IoctlOutcome::Done) => {
                response = reported;
                Ok(())
            }
            Ok(IoctlOutcome::Write | IoctlOutcome::WriteEx) => {
                let mut request = ib_uverbs_destroy_qp::zeroed();
                request.qp_handle = handle;
                command.write_resp(context, Number::Plain(IB_USER_VERBS_CMD_DESTROY_QP), &request, &mut response)
            }
            Err(error) => Err(error),
        };
        if destroy_result(result)? == DestroyResult::Destroyed {
            // SAFETY: one live object, per the contract above.
            unsafe {
                wait_for_acknowledgements(&raw mut (*qp).mutex, &raw mut (*qp).cond, [(
                    &raw const (*qp).events_completed,
                    response.events_reported,
                )]);
            }
        }
        Ok(Status::DONE)
    }
}

fn only_members(wish: &ibv_qp_init_attr_ex, known: u32) -> Result<(), Errno> {
    if wish.comp_mask & !known == 0 { Ok(()) } else { Err(set(Errno::EINVAL)) }
}

/// # Safety
/// As for [`create_qp_ex`].
unsafe fn create_extended(
    context: *mut ibv_context,
    qp: *mut verbs_qp,
    attr: *mut ibv_qp_init_attr_ex,
    driver: Driver<'_>,
    chain: Chain<'_>,
) -> Result<Status, Errno> {
    // SAFETY: both callers promise a live context, live objects in `attr`, and a QP that the
    // provider lets us fill.
    unsafe {
        let wish = attr.as_mut().ok_or(Errno::EINVAL)?;
        only_members(wish, EXTENDED_MEMBERS)?;
        create(context, qp.cast(), Some(qp), wish, driver, chain)
    }
}

/// Sets `verbs_qp.comp_mask`, and `verbs_qp.xrcd` if there is a domain: behind an `ibv_qp_ex` whose
/// length depends on the generation.
///
/// # Safety
/// `qp` is a `verbs_qp` of the context's generation, at least up to the members written.
pub(super) unsafe fn store_xrcd(
    context: Context,
    qp: *mut verbs_qp,
    xrcd: Option<*mut verbs_xrcd>,
) {
    let mask_offset = context.private().generation.qp_mask_offset;
    // SAFETY: where the generation has the mask and, 8 bytes further, the domain.
    unsafe {
        let mask = qp.byte_add(mask_offset).cast::<u32>();
        mask.write(0);
        if let Some(xrcd) = xrcd {
            mask.write(VERBS_QP_XRCD);
            qp.byte_add(mask_offset + size_of::<u64>()).cast::<*mut verbs_xrcd>().write(xrcd);
        }
    }
}
