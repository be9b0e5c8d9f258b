//! What layers ask about the wire between hosts (`ferroverbs_plugin_ext`).

use super::ah::Ah;
use super::status;
use crate::engine::objects::qp::Qp;
use crate::net::is_multicast;
use crate::told;
use abi::{ferroverbs_packet_sink, ibv_ah, ibv_qp};
use soft_sys::Errno;
use std::ffi::c_int;

/// `EBUSY` when there is another sink.
///
/// # Safety
/// `sink` can be called for the life of the process.
pub(super) unsafe extern "C" fn tell_packets(sink: ferroverbs_packet_sink) -> c_int {
    // SAFETY: per the caller.
    let is_it = unsafe { told::begin(sink) };
    status(|| if is_it { Ok(()) } else { Err(Errno::from_raw(libc::EBUSY)) })
}

/// What goes to a group goes to this host's members, too; the wire's packet stands for it.
///
/// # Safety
/// `qp` is a live QP of this provider, `ah` NULL or a live address handle of it.
pub(super) unsafe extern "C" fn is_wired(qp: *mut ibv_qp, ah: *mut ibv_ah) -> c_int {
    // SAFETY: per the caller.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: per the caller.
    let to_wire = match (!ah.is_null()).then(|| unsafe { Ah::of(ah) }) {
        Some(ah) => ah.elsewhere || ah.route.is_some_and(|route| is_multicast(&route.dgid)),
        None => qp.kind.is_connected(),
    };
    (to_wire && qp.requester.lock().remote.is_some()).into()
}
