//! Multicast groups (ibv_attach_mcast(3)).

use super::status;
use crate::engine::objects::qp::Qp;
use crate::engine::state::Kind;
use crate::net::is_multicast;
use abi::*;
use soft_sys::Errno;
use std::ffi::c_int;

/// The QP and the group that a call names.
///
/// # Errors
/// `EINVAL` no UD QP, or no multicast GID.
///
/// # Safety
/// `qp` is a live QP of this provider; `gid` is NULL or readable.
unsafe fn named<'a>(qp: *mut ibv_qp, gid: *const ibv_gid) -> Result<(&'a Qp, [u8; 16]), Errno> {
    // SAFETY: `qp` is a live QP of this provider, which the application does not destroy during this call; `gid` is
    // NULL, which is refused, or readable, and copied at once.
    let (queue, gid) = unsafe { (Qp::of(qp), gid.as_ref().ok_or(Errno::EINVAL)?.bytes()) };
    if queue.kind != Kind::Ud || !is_multicast(&gid) {
        return Err(Errno::EINVAL);
    }
    Ok((queue, gid))
}

/// ibv_attach_mcast(3): EINVAL for a GID that is no group's or a QP that is not UD; ENOMEM beyond the device's limits, and what this process lacks to
/// meet those who may send. The LID means nothing on an Ethernet port (RoCE annex A16.4.6), whatever it is. Attaching twice is attaching once.
///
/// # Safety
/// `qp` is a live QP of this provider; `gid` is NULL or readable.
pub(super) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    status(|| {
        // SAFETY: `qp` is a live QP and `gid` NULL or readable during this call, which is what `named` asks for.
        let (queue, gid) = unsafe { named(qp, gid)? };
        // Those who send to groups must know us.
        queue.adapter.datagrams.meet_everyone(&queue.adapter)?;
        queue.adapter.groups.attach(queue, &gid)?;
        queue.adapter.wire.take_part(&queue.adapter, &gid, true);
        Ok(())
    })
}

/// ibv_detach_mcast(3): EINVAL where the QP is not attached.
///
/// # Safety
/// `qp` is a live QP of this provider; `gid` is NULL or readable.
pub(super) unsafe extern "C" fn detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    status(|| {
        // SAFETY: `qp` is a live QP and `gid` NULL or readable during this call, which is what `named` asks for.
        let (queue, gid) = unsafe { named(qp, gid)? };
        queue.adapter.groups.detach(queue, &gid)?;
        if !queue.adapter.groups.has_any(&gid) {
            queue.adapter.wire.take_part(&queue.adapter, &gid, false);
        }
        Ok(())
    })
}
