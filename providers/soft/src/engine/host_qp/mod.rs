//! QPs on the wire `host`: what joins the queues of the engine with `crate::host`.
//! Stands between the objects of the engine and the wire; the wire calls back by traits.
//!
//! | file | content |
//! |---|---|
//! | `mod` | the adapter's calls of its wire |
//! | `process` | the wire's calls of its process (trait `Process`) |
//! | `connect` | connects a QP to a peer |
//! | `send` | the send queue (trait `RequestQueue`) |
//! | `receive` | both halves (trait `RequestServer`) |
//! | `datagrams`, `multicast` | UD; multicast and QP 1 |
//! | `forward` | packets for another process of this host |
//! | `admission` | which hosts and addresses are permitted |
//! | `xrc_requests`, `xrc_serving` | XRC: requests for a shared receive queue of another process |
#![forbid(unsafe_code)]

mod admission;
mod connect;
mod datagrams;
mod forward;
mod multicast;
mod process;
mod receive;
mod send;
mod xrc_requests;
mod xrc_serving;

#[cfg(test)]
pub(crate) use forward::FRAME_KINDS;
pub(crate) use forward::receive_frame;
pub(crate) use xrc_serving::answer_srq_request;
#[cfg(test)]
pub(crate) use xrc_serving::receive_srq_request;

use crate::engine::adapter::Adapter;
use crate::engine::queues::served_by::ServedBy;
use crate::host::PeerRoute;
use soft_semantics::request::Route;
use soft_sys::Errno;
use std::time::Duration;

/// Calls of the wire.
impl Adapter {
    /// Receives packets from other hosts, and runs the timeouts that have expired.
    pub(crate) fn drive_wire(&self, served_by: ServedBy) {
        self.wire.drive(self, served_by);
    }

    /// Work of the service thread on the wire. Returns when the thread must call again.
    pub(crate) fn serve_wire(&self) -> Option<Duration> {
        self.wire.serve_unpolled(self)
    }

    /// Sends the deferred acknowledgements that no request has carried.
    #[inline]
    pub(crate) fn send_deferred_acks(&self) {
        self.wire.send_deferred_acks(self);
    }

    /// Opens the sockets if needed.
    ///
    /// # Errors
    /// As `HostWire::open_route`.
    pub(crate) fn ensure_wire_open(&self) -> Result<(), Errno> {
        self.wire.ensure_open(self)
    }

    /// The route to the host of `route`, for packets of QP `qpn`. Opens the sockets if needed.
    ///
    /// # Errors
    /// As `HostWire::open_route`.
    pub(crate) fn open_wire_route(&self, route: &Route, qpn: u32) -> Result<PeerRoute, Errno> {
        self.wire.open_route(self, route, qpn)
    }

    /// Closes the sockets of an exiting process.
    pub(crate) fn leave_wire(&self) {
        self.wire.leave_port(self);
    }
}

#[cfg(test)]
mod testing {
    use crate::engine::queues::qp::Qp;

    impl Qp {
        /// Runs the timeout of the transport as if its time had come.
        pub(crate) fn fire_wire_timer(&self) {
            let sockets = self.adapter().wire.sockets().expect("open");
            self.run_wire_timeout(sockets, sockets.now());
        }

        /// The source port of the packets to another host.
        pub(crate) fn wire_source_port(&self) -> Option<u16> {
            self.requester().lock().host_connection.as_ref()?.source_port()
        }
    }
}
