//! Multicast groups: `ibv_attach_mcast(3)`; `ib_uverbs_attach_mcast` of `<rdma/ib_user_verbs.h>`.
//! Both commands name the QP by its handle, and the group by its GID and LID.

use abi::{
    IB_USER_VERBS_CMD_ATTACH_MCAST, IB_USER_VERBS_CMD_DETACH_MCAST, Zeroed, ib_uverbs_attach_mcast,
    ib_uverbs_detach_mcast, ibv_gid, ibv_qp,
};

use super::destroy;
use super::status::Status;
use crate::front::command::bytes::{InputBytes, PlainData, plain_data};
use crate::front::command::write::{Number, Write};
use cface::verb;

plain_data! { ib_uverbs_attach_mcast ib_uverbs_detach_mcast }

verb! {
    /// `ibv_cmd_attach_mcast`: joins `qp` to a group.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `qp` is live, `gid` is readable.
    pub(crate) fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> Status {
        // SAFETY: the caller's QP is live, and its GID is readable; both are only read.
        let (context, handle, gid) =
            unsafe { (super::context_of((*qp).context)?, (*qp).handle, (*gid).bytes()) };
        let mut request = ib_uverbs_attach_mcast::zeroed();
        request.gid = gid;
        request.qp_handle = handle;
        request.mlid = lid;
        Write::new(Number::Plain(IB_USER_VERBS_CMD_ATTACH_MCAST), InputBytes::of(&request)).run(context)?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_detach_mcast`: the opposite. On an unplugged device it succeeds as destroying does.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `qp` is live, `gid` is readable.
    pub(crate) fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> Status {
        // SAFETY: the caller's QP is live, and its GID is readable; both are only read.
        let (context, handle, gid) =
            unsafe { (super::context_of((*qp).context)?, (*qp).handle, (*gid).bytes()) };
        let mut request = ib_uverbs_detach_mcast::zeroed();
        request.gid = gid;
        request.qp_handle = handle;
        request.mlid = lid;
        let result =
            Write::new(Number::Plain(IB_USER_VERBS_CMD_DETACH_MCAST), InputBytes::of(&request)).run(context);
        destroy::destroy_result(result)?;
        Ok(Status::DONE)
    }
}
