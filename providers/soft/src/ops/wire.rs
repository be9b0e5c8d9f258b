//! Queries of layers about the wire between hosts (`ferroverbs_plugin_ext`). The layer `capture`
//! registers its packet sink here.

use super::ah::Ah;
use super::status;
use crate::engine::queues::qp::Qp;
use crate::net::is_multicast;
use crate::packet_sink;
use abi::{ferroverbs_packet_sink, ibv_ah, ibv_qp};
use soft_sys::Errno;
use std::ffi::c_int;

/// Registers the packet sink. `EBUSY` if another sink is registered.
///
/// # Safety
/// `sink` can be called for the life of the process.
pub(super) unsafe extern "C" fn tell_packets(sink: ferroverbs_packet_sink) -> c_int {
    // SAFETY: the caller states that `sink` can be called for the life of the process.
    let is_it = unsafe { packet_sink::install(sink) };
    status(|| if is_it { Ok(()) } else { Err(Errno::from_raw(libc::EBUSY)) })
}

/// Whether requests to a destination travel on the wire between hosts. Multicast counts, although
/// local members get the datagram as well: the packet on the wire represents it.
///
/// # Safety
/// `qp` is a live QP of this provider, `ah` is NULL or a live address handle of it.
pub(super) unsafe extern "C" fn is_wired(qp: *mut ibv_qp, ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller states that `qp` is a live QP of this provider.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: the caller states that `ah` is NULL or live.
    let to_wire = match (!ah.is_null()).then(|| unsafe { Ah::of(ah) }) {
        Some(ah) => ah.elsewhere || ah.route.is_some_and(|route| is_multicast(&route.dgid)),
        None => qp.qp_type().is_connected(),
    };
    (to_wire && qp.requester().lock().is_between_hosts()).into()
}
