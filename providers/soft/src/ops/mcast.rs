//! Multicast groups (ibv_attach_mcast(3)). The C entry points of `engine/datagram/multicast`;
//! groups of other hosts are joined by the wire between hosts.

use super::status;
use crate::engine::queues::qp::Qp;
use crate::net::is_multicast;
use abi::*;
use soft_semantics::state::QpType;
use soft_sys::Errno;
use std::ffi::c_int;

/// The QP and the group of a call.
///
/// # Errors
/// `EINVAL` not a UD QP, or not a multicast GID.
///
/// # Safety
/// `qp` is a live QP of this provider; `gid` is NULL or readable.
unsafe fn qp_and_group<'a>(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
) -> Result<(&'a Qp, [u8; 16]), Errno> {
    // SAFETY: `qp` is a live QP of this provider, which the application does not destroy during the
    // call; `gid` is NULL (refused) or readable, and copied at once.
    let (queue, gid) = unsafe { (Qp::of(qp), gid.as_ref().ok_or(Errno::EINVAL)?.bytes()) };
    if queue.qp_type() != QpType::Ud || !is_multicast(&gid) {
        return Err(Errno::EINVAL);
    }
    Ok((queue, gid))
}

/// ibv_attach_mcast(3): EINVAL for a GID that is not multicast or a QP that is not UD; ENOMEM above
/// the limits of the device; the errors of connecting to possible senders. The LID is ignored on an
/// Ethernet port (IBTA 1.7 A16.4.6). A second attach has no effect.
///
/// # Safety
/// `qp` is a live QP of this provider; `gid` is NULL or readable.
pub(super) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    status(|| {
        // SAFETY: `qp` is a live QP and `gid` is NULL or readable during the call, as
        // `qp_and_group` requires.
        let (queue, gid) = unsafe { qp_and_group(qp, gid)? };
        // Processes that send to groups must know this process.
        queue.adapter().datagrams.meet_all_processes(queue.adapter())?;
        queue.adapter().groups.attach(queue, &gid)?;
        queue.adapter().set_group_membership(&gid, true);
        Ok(())
    })
}

/// ibv_detach_mcast(3): EINVAL if the QP is not attached.
///
/// # Safety
/// `qp` is a live QP of this provider; `gid` is NULL or readable.
pub(super) unsafe extern "C" fn detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    status(|| {
        // SAFETY: `qp` is a live QP and `gid` is NULL or readable during the call, as
        // `qp_and_group` requires.
        let (queue, gid) = unsafe { qp_and_group(qp, gid)? };
        queue.adapter().groups.detach(queue, &gid)?;
        if !queue.adapter().groups.has_any(&gid) {
            queue.adapter().set_group_membership(&gid, false);
        }
        Ok(())
    })
}
