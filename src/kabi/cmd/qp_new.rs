//! A new queue pair, by ioctl or by write command: what the three `ibv_cmd_create_qp*` of
//! [`super::qp`] share. Attributes of `UVERBS_METHOD_QP_CREATE` of `<rdma/ib_user_ioctl_cmds.h>`,
//! `ib_uverbs_create_qp` and `ib_uverbs_ex_create_qp` of `<rdma/ib_user_verbs.h>`.
//!
//! Map of this file: `QpObjects`, the checked handles and flags; `create`; the ioctl, the write
//! command and the extended write command; conversions of capacities; tests.

use abi::{
    IB_USER_VERBS_CMD_CREATE_QP, IB_USER_VERBS_EX_CMD_CREATE_QP, IB_UVERBS_QP_CREATE_SQ_SIG_ALL,
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_CREATE_CVLAN_STRIPPING,
    IBV_QP_CREATE_PCI_WRITE_END_PADDING, IBV_QP_CREATE_SCATTER_FCS, IBV_QP_CREATE_SOURCE_QPN,
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_XRCD, IBV_QPS_RESET, IBV_QPT_DRIVER, IBV_QPT_RAW_PACKET, IBV_QPT_RC,
    IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, UVERBS_ATTR_CREATE_QP_CAP,
    UVERBS_ATTR_CREATE_QP_EVENT_FD, UVERBS_ATTR_CREATE_QP_FLAGS, UVERBS_ATTR_CREATE_QP_HANDLE,
    UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE, UVERBS_ATTR_CREATE_QP_PD_HANDLE,
    UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, UVERBS_ATTR_CREATE_QP_RESP_CAP,
    UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE,
    UVERBS_ATTR_CREATE_QP_SOURCE_QPN, UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, UVERBS_ATTR_CREATE_QP_TYPE,
    UVERBS_ATTR_CREATE_QP_USER_HANDLE, UVERBS_ATTR_CREATE_QP_XRCD_HANDLE, UVERBS_METHOD_QP_CREATE,
    UVERBS_OBJECT_QP, Zeroed, ib_uverbs_create_qp, ib_uverbs_create_qp_resp,
    ib_uverbs_ex_create_qp, ib_uverbs_ex_create_qp_resp, ib_uverbs_qp_cap, ibv_context, ibv_cq,
    ibv_create_qp_resp_v3, ibv_create_qp_resp_v4, ibv_qp, ibv_qp_cap, ibv_qp_init_attr_ex,
    verbs_qp, verbs_xrcd,
};

use super::status::{Status, set};
use crate::front::command::buffer::{Chain, Command};
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::Driver;
use crate::front::command::write::Number;
use crate::front::command::{IoctlOutcome, async_fd, is_imported};
use crate::front::context::Context;
use crate::front::op::Op;
use cface::{Errno, lock};

plain_data! { ib_uverbs_create_qp ib_uverbs_create_qp_resp ib_uverbs_ex_create_qp ib_uverbs_ex_create_qp_resp ib_uverbs_qp_cap ibv_create_qp_resp_v3 ibv_create_qp_resp_v4 }

/// Handles and flags that a QP is created with.
#[derive(Clone, Copy, Debug)]
struct QpObjects {
    /// PD, or XRC domain of a receiving XRC QP.
    domain: u32,
    send_cq: Option<u32>,
    recv_cq: Option<u32>,
    srq: Option<u32>,
    ind_table: Option<u32>,
    /// `IB_UVERBS_QP_CREATE_*`
    flags: u32,
    source_qpn: Option<u32>,
    needs_extended: bool,
}

impl QpObjects {
    /// # Errors
    /// `EINVAL` for members that a type lacks, or for contradicting members.
    ///
    /// # Safety
    /// The objects that `wish` names are live.
    unsafe fn new(wish: &ibv_qp_init_attr_ex) -> Result<Self, Errno> {
        let has = |member: u32| wish.comp_mask & member != 0;
        let domain = match wish.qp_type {
            IBV_QPT_XRC_RECV if has(IBV_QP_INIT_ATTR_XRCD) => {
                // SAFETY: live; providers embed each domain in a verbs_xrcd.
                unsafe { (*wish.xrcd.cast::<verbs_xrcd>()).handle }
            }
            IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD | IBV_QPT_RAW_PACKET | IBV_QPT_XRC_SEND
            | IBV_QPT_DRIVER
                if has(IBV_QP_INIT_ATTR_PD) =>
            {
                // SAFETY: the mask names the PD (checked by the guard), and what `wish` names is
                // live.
                unsafe { (*wish.pd).handle }
            }
            _ => return Err(set(Errno::EINVAL)),
        };
        let cq_handle = |cq: *mut ibv_cq| {
            // SAFETY: not NULL (checked), so live by the contract. No reference: other threads
            // count events in it.
            (!cq.is_null()).then(|| unsafe { (*cq).handle })
        };
        let (send_cq, recv_cq) = (cq_handle(wish.send_cq), cq_handle(wish.recv_cq));
        // SAFETY: not NULL (checked), so live by the contract. No reference, as for the queues.
        let srq = (!wish.srq.is_null()).then(|| unsafe { (*wish.srq).handle });
        let mut parts = Self {
            domain,
            send_cq: None,
            recv_cq: None,
            srq,
            ind_table: None,
            flags: 0,
            source_qpn: None,
            needs_extended: false,
        };
        if has(IBV_QP_INIT_ATTR_IND_TABLE) {
            if wish.cap.max_recv_wr != 0
                || wish.cap.max_recv_sge != 0
                || recv_cq.is_some()
                || srq.is_some()
            {
                return Err(set(Errno::EINVAL));
            }
            // SAFETY: the mask names the table (checked above), and what `wish` names is live.
            parts.ind_table = Some(unsafe { (*wish.rwq_ind_tbl).ind_tbl_handle }.cast_unsigned());
            parts.needs_extended = true;
            if wish.cap.max_send_wr != 0 {
                parts.send_cq = send_cq;
            }
        } else if wish.qp_type != IBV_QPT_XRC_RECV {
            parts.send_cq = send_cq;
            if wish.qp_type != IBV_QPT_XRC_SEND {
                parts.recv_cq = recv_cq;
            }
        }
        if wish.sq_sig_all != 0 {
            parts.flags |= IB_UVERBS_QP_CREATE_SQ_SIG_ALL;
        }
        if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) {
            if wish.create_flags & !CREATE_FLAGS != 0 {
                return Err(set(Errno::EINVAL));
            }
            parts.needs_extended = true;
            if wish.create_flags & IBV_QP_CREATE_SOURCE_QPN != 0 {
                parts.source_qpn = Some(wish.source_qpn);
            }
            parts.flags |= wish.create_flags & !IBV_QP_CREATE_SOURCE_QPN;
        }
        Ok(parts)
    }
}

/// Creates a QP and fills the object.
///
/// # Errors
/// `EINVAL` with errno set for members that exclude each other; otherwise the kernel's errno.
///
/// # Safety
/// `raw_context` and what `wish` names are live; `qp` is the provider's to fill, and `extended` is
/// the same object if it is a `verbs_qp`.
pub(super) unsafe fn create(
    raw_context: *mut ibv_context,
    qp: *mut ibv_qp,
    extended: Option<*mut verbs_qp>,
    wish: &mut ibv_qp_init_attr_ex,
    driver: Driver<'_>,
    chain: Chain<'_>,
) -> Result<Status, Errno> {
    // SAFETY: the provider's context is NULL, which is refused, or live during this call.
    let context = unsafe { super::context_of(raw_context)? };
    // SAFETY: the provider's to fill, by the contract.
    unsafe { (*qp).context = raw_context };
    // SAFETY: our caller promises that all objects in `wish` are live, which is what
    // `QpObjects::new` asks.
    let parts = unsafe { QpObjects::new(wish)? };
    if wish.qp_type == IBV_QPT_XRC_SEND {
        wish.cap.max_recv_wr = 0;
        wish.cap.max_recv_sge = 0;
    }
    let created = command(context, qp.expose_provenance() as u64, &parts, wish, driver, chain)?;

    wish.cap = created.cap;
    // The mask tells what was given, the member what the type uses.
    let xrcd = (wish.comp_mask & IBV_QP_INIT_ATTR_XRCD != 0).then(|| match wish.qp_type {
        IBV_QPT_XRC_RECV => wish.xrcd.cast(),
        _ => core::ptr::null_mut(),
    });
    // SAFETY: the provider's to fill, by the contract.
    unsafe {
        (*qp).handle = created.handle;
        (*qp).qp_num = created.qp_num;
        (*qp).qp_context = wish.qp_context;
        (*qp).pd = wish.pd;
        (*qp).send_cq = wish.send_cq;
        (*qp).recv_cq = wish.recv_cq;
        (*qp).srq = wish.srq;
        (*qp).qp_type = wish.qp_type;
        (*qp).state = IBV_QPS_RESET;
        (*qp).events_completed = 0;
        lock::init(&raw mut (*qp).mutex, &raw mut (*qp).cond);
        if let Some(extended) = extended {
            super::qp::store_xrcd(context, extended, xrcd);
        }
    }
    Ok(Status::DONE)
}

/// The kernel's values of a new QP.
#[derive(Clone, Copy, Debug)]
struct Created {
    handle: u32,
    qp_num: u32,
    cap: ibv_qp_cap,
}

fn command(
    context: Context,
    user_handle: u64,
    parts: &QpObjects,
    wish: &ibv_qp_init_attr_ex,
    driver: Driver<'_>,
    chain: Chain<'_>,
) -> Result<Created, Errno> {
    let cap_in = kernel_cap(&wish.cap);
    let mut cap = cap_in;
    let mut qp_num = 0_u32;
    let mut command = Command::new(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE)
        .with_driver(driver)
        .with_chain(chain);
    if is_imported(context) {
        command.require_ioctl();
    }
    if parts.needs_extended {
        command.require_ex();
    }
    if wish.qp_type == IBV_QPT_XRC_RECV {
        command.object_in(UVERBS_ATTR_CREATE_QP_XRCD_HANDLE, parts.domain);
    } else {
        command.object_in(UVERBS_ATTR_CREATE_QP_PD_HANDLE, parts.domain);
    }
    for (id, handle) in [
        (UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE, parts.ind_table),
        (UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, parts.send_cq),
        (UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, parts.recv_cq),
    ] {
        if let Some(handle) = handle {
            command.object_in(id, handle);
        }
    }
    let handle = command.object_out(UVERBS_ATTR_CREATE_QP_HANDLE);
    command.u64_in(UVERBS_ATTR_CREATE_QP_TYPE, wish.qp_type.into());
    command.u64_in(UVERBS_ATTR_CREATE_QP_USER_HANDLE, user_handle);
    command.bytes_in(UVERBS_ATTR_CREATE_QP_CAP, InputBytes::of(&cap_in));
    command.fd_in(UVERBS_ATTR_CREATE_QP_EVENT_FD, async_fd(context));
    if let Some(source_qpn) = parts.source_qpn {
        command.u32_in(UVERBS_ATTR_CREATE_QP_SOURCE_QPN, source_qpn);
    }
    if parts.flags != 0 {
        command.u32_in(UVERBS_ATTR_CREATE_QP_FLAGS, parts.flags);
    }
    if let Some(srq) = parts.srq {
        command.object_in(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, srq);
    }
    command.output(UVERBS_ATTR_CREATE_QP_RESP_CAP, OutputBytes::of(&mut cap));
    command.output(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, OutputBytes::of(&mut qp_num));

    match command.run_or_fall_back(context, Op::create_qp)? {
        IoctlOutcome::Done => {
            let handle = command.handle(handle);
            Ok(Created { handle, qp_num, cap: public_cap(&cap) })
        }
        IoctlOutcome::Write => {
            write(context, &mut command, &request(user_handle, parts, wish), wish.cap)
        }
        IoctlOutcome::WriteEx => {
            let plain = request(user_handle, parts, wish);
            write_ex(context, &mut command, &plain, parts)
        }
    }
}

/// The body of the plain write command.
fn request(user_handle: u64, parts: &QpObjects, wish: &ibv_qp_init_attr_ex) -> ib_uverbs_create_qp {
    let mut request = ib_uverbs_create_qp::zeroed();
    request.user_handle = user_handle;
    request.pd_handle = parts.domain;
    request.send_cq_handle = parts.send_cq.unwrap_or(0);
    request.recv_cq_handle = parts.recv_cq.unwrap_or(0);
    request.srq_handle = parts.srq.unwrap_or(0);
    request.max_send_wr = wish.cap.max_send_wr;
    request.max_recv_wr = wish.cap.max_recv_wr;
    request.max_send_sge = wish.cap.max_send_sge;
    request.max_recv_sge = wish.cap.max_recv_sge;
    request.max_inline_data = wish.cap.max_inline_data;
    request.sq_sig_all = u8::from(wish.sq_sig_all != 0);
    // Types are below 256.
    request.qp_type = wish.qp_type as u8;
    request.is_srq = u8::from(parts.srq.is_some());
    request
}

/// The plain write command. Kernels of old answer with less; what they leave out stays as wished.
fn write(
    context: Context,
    command: &mut Command<'_>,
    request: &ib_uverbs_create_qp,
    wished: ibv_qp_cap,
) -> Result<Created, Errno> {
    let number = Number::Plain(IB_USER_VERBS_CMD_CREATE_QP);
    match super::write_abi() {
        ..=3 => {
            let mut response = ibv_create_qp_resp_v3::zeroed();
            command.write_resp(context, number, request, &mut response)?;
            Ok(Created { handle: response.qp_handle, qp_num: response.qpn, cap: wished })
        }
        4 => {
            let mut response = ibv_create_qp_resp_v4::zeroed();
            command.write_resp(context, number, request, &mut response)?;
            let cap = ibv_qp_cap {
                max_send_wr: response.max_send_wr,
                max_recv_wr: response.max_recv_wr,
                max_send_sge: response.max_send_sge,
                max_recv_sge: response.max_recv_sge,
                max_inline_data: response.max_inline_data,
            };
            Ok(Created { handle: response.qp_handle, qp_num: response.qpn, cap })
        }
        _ => {
            let mut response = ib_uverbs_create_qp_resp::zeroed();
            command.write_resp(context, number, request, &mut response)?;
            Ok(created(&response))
        }
    }
}

fn write_ex(
    context: Context,
    command: &mut Command<'_>,
    plain: &ib_uverbs_create_qp,
    parts: &QpObjects,
) -> Result<Created, Errno> {
    let mut request = ib_uverbs_ex_create_qp::zeroed();
    request.user_handle = plain.user_handle;
    request.pd_handle = plain.pd_handle;
    request.send_cq_handle = plain.send_cq_handle;
    request.recv_cq_handle = plain.recv_cq_handle;
    request.srq_handle = plain.srq_handle;
    request.max_send_wr = plain.max_send_wr;
    request.max_recv_wr = plain.max_recv_wr;
    request.max_send_sge = plain.max_send_sge;
    request.max_recv_sge = plain.max_recv_sge;
    request.max_inline_data = plain.max_inline_data;
    request.sq_sig_all = plain.sq_sig_all;
    request.qp_type = plain.qp_type;
    request.is_srq = plain.is_srq;
    request.create_flags = parts.flags & !IB_UVERBS_QP_CREATE_SQ_SIG_ALL;
    if let Some(source_qpn) = parts.source_qpn {
        request.create_flags |= IBV_QP_CREATE_SOURCE_QPN;
        request.source_qpn = source_qpn;
    }
    if let Some(ind_table) = parts.ind_table {
        request.rwq_ind_tbl_handle = ind_table;
        request.comp_mask = EX_MASK_IND_TABLE;
    }
    let mut response = ib_uverbs_ex_create_qp_resp::zeroed();
    let number = Number::Extended(IB_USER_VERBS_EX_CMD_CREATE_QP);
    command.write_resp(context, number, &request, &mut response)?;
    Ok(created(&response.base))
}

/// `IB_UVERBS_CREATE_QP_MASK_IND_TABLE` of `<rdma/ib_user_verbs.h>`.
const EX_MASK_IND_TABLE: u32 = 1;

fn created(response: &ib_uverbs_create_qp_resp) -> Created {
    let cap = ibv_qp_cap {
        max_send_wr: response.max_send_wr,
        max_recv_wr: response.max_recv_wr,
        max_send_sge: response.max_send_sge,
        max_recv_sge: response.max_recv_sge,
        max_inline_data: response.max_inline_data,
    };
    Created { handle: response.qp_handle, qp_num: response.qpn, cap }
}

fn kernel_cap(cap: &ibv_qp_cap) -> ib_uverbs_qp_cap {
    ib_uverbs_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

fn public_cap(cap: &ib_uverbs_qp_cap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Flags that applications may set.
const CREATE_FLAGS: u32 = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB
    | IBV_QP_CREATE_SCATTER_FCS
    | IBV_QP_CREATE_CVLAN_STRIPPING
    | IBV_QP_CREATE_SOURCE_QPN
    | IBV_QP_CREATE_PCI_WRITE_END_PADDING;

#[cfg(test)]
mod tests {
    use super::*;

    fn live<T: Zeroed>() -> &'static mut T {
        Box::leak(Box::new(T::zeroed()))
    }

    fn parts(wish: &ibv_qp_init_attr_ex) -> Result<QpObjects, Errno> {
        // SAFETY: what it names is leaked.
        unsafe { QpObjects::new(wish) }
    }

    fn rc() -> ibv_qp_init_attr_ex {
        let mut wish = ibv_qp_init_attr_ex::zeroed();
        let cq: &mut ibv_cq = live();
        cq.handle = 5;
        wish.qp_type = IBV_QPT_RC;
        wish.comp_mask = IBV_QP_INIT_ATTR_PD;
        wish.pd = live();
        wish.send_cq = &raw mut *cq;
        wish.recv_cq = &raw mut *cq;
        wish
    }

    #[test]
    fn a_type_needs_its_domain() {
        let mut wish = rc();
        assert!(
            parts(&wish).is_ok_and(|parts| parts.send_cq == Some(5) && parts.recv_cq == Some(5))
        );
        wish.comp_mask = IBV_QP_INIT_ATTR_XRCD;
        assert_eq!(parts(&wish).map(|_| ()), Err(Errno::EINVAL));
        wish.qp_type = IBV_QPT_XRC_RECV;
        wish.xrcd = core::ptr::from_mut(live::<verbs_xrcd>()).cast();
        assert!(parts(&wish).is_ok_and(|parts| parts.send_cq.is_none()));
        wish.qp_type = 7;
        assert_eq!(parts(&wish).map(|_| ()), Err(Errno::EINVAL));
    }

    #[test]
    fn an_indirection_table_excludes_a_receive_queue() {
        let mut wish = rc();
        wish.comp_mask |= IBV_QP_INIT_ATTR_IND_TABLE;
        wish.rwq_ind_tbl = live();
        assert_eq!(parts(&wish).map(|_| ()), Err(Errno::EINVAL));
        wish.recv_cq = core::ptr::null_mut();
        assert!(parts(&wish).is_ok_and(|parts| parts.needs_extended && parts.send_cq.is_none()));
    }

    #[test]
    fn the_source_number_is_an_attribute_and_not_a_flag() {
        let mut wish = rc();
        wish.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
        wish.create_flags = IBV_QP_CREATE_SOURCE_QPN | IBV_QP_CREATE_SCATTER_FCS;
        wish.source_qpn = 9;
        let found = parts(&wish).expect("known flags");
        assert_eq!((found.flags, found.source_qpn), (IBV_QP_CREATE_SCATTER_FCS, Some(9)));
        wish.create_flags = 1 << 20;
        assert_eq!(parts(&wish).map(|_| ()), Err(Errno::EINVAL));
    }
}
