//! Requests of ids to peers: their times, and the end of a request that was not sent.
//! `calls::connect` makes requests, and the agent sends or refuses them.

use crate::core::channel::Event;
use crate::core::id::{Id, Stage};
use abi::*;
use cface::Errno;
use ferroverbs_cm::Refused;
use ferroverbs_cm::wire::{DatagramStatus, Reason, TimeCode};
use std::ffi::c_int;
use std::sync::Arc;

/// The time in which a peer answers a MAD, as a time code: 4.3 s.
pub(crate) const RESPONSE: TimeCode = TimeCode::new(20);
/// The number of retransmissions of a MAD.
pub(crate) const RETRIES: u32 = 15;

/// A copy of the connection parameters of the program.
pub(crate) struct ProgramParameters {
    pub(crate) conn: rdma_conn_param,
    pub(crate) data: Vec<u8>,
}

/// The errno of a refusal by the manager.
pub(crate) const fn errno(why: Refused) -> Errno {
    match why {
        Refused::InUse => Errno::from_raw(libc::EADDRINUSE),
        Refused::NoRoom => Errno::ENOMEM,
        Refused::Gone | Refused::State(_) => Errno::EINVAL,
    }
}

/// Reports to the program the answer of a host without a listener.
pub(crate) fn refuse(id: &Arc<Id>) {
    let (kind, status) = if id.is_datagram() {
        (RDMA_CM_EVENT_UNREACHABLE, i32::from(DatagramStatus::UNSUPPORTED.0))
    } else {
        (RDMA_CM_EVENT_REJECTED, i32::from(Reason::INVALID_SERVICE.0))
    };
    end_request(id, kind, status);
}

/// Reports to the program that the request of `id` could not be sent.
pub(crate) fn fail(id: &Arc<Id>, why: Errno) {
    end_request(id, RDMA_CM_EVENT_CONNECT_ERROR, -why.raw());
}

/// Ends a request that waited for a listener, unless the id was destroyed meanwhile.
fn end_request(id: &Arc<Id>, kind: rdma_cm_event_type, status: c_int) {
    let mut state = id.lock();
    if matches!(state.stage, Stage::Connecting(_)) {
        state.set_ended();
        // The lock is held: a thread that destroys the id discards its events afterwards.
        state.channel.push(Event::new(id, kind, status));
    }
}
