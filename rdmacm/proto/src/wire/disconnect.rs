//! DREQ and DREP: the end of a connection (IBTA vol 1, 12.6.10 and 12.6.11).

use super::body::Body;
use super::{CommId, Private, Qpn};

/// DREQ: the end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DisconnectRequest {
    /// The sender's name for the connection.
    pub local_id: CommId,
    /// The receiver's.
    pub remote_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// The application's.
    pub private: Private<220>,
}

impl DisconnectRequest {
    /// No queue pair has this number, which means groups (IBTA vol 1, 9.2.4). A DREQ for it ends
    /// nothing: a manager with the connection drops the DREQ, and any other manager answers DREP.
    pub const NO_QPN: Qpn = Qpn::new(0xff_ffff);

    /// Whether it ends the connection, and does not only ask for it.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.remote_qpn != Self::NO_QPN
    }

    pub(super) fn parse(body: &Body) -> Self {
        Self {
            local_id: CommId(body.u32::<0>()),
            remote_id: CommId(body.u32::<4>()),
            remote_qpn: body.u24::<8>(),
            private: Private::from_bytes(body.bytes::<12, 220>()),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put::<0, 4>(self.local_id.0.to_be_bytes());
        body.put::<4, 4>(self.remote_id.0.to_be_bytes());
        body.put_u24::<8>(self.remote_qpn);
        body.put::<12, 220>(*self.private.bytes());
    }
}

/// DREP: its acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DisconnectReply {
    /// The sender's name for the connection.
    pub local_id: CommId,
    /// The receiver's.
    pub remote_id: CommId,
    /// The application's.
    pub private: Private<224>,
}

impl DisconnectReply {
    pub(super) fn parse(body: &Body) -> Self {
        Self {
            local_id: CommId(body.u32::<0>()),
            remote_id: CommId(body.u32::<4>()),
            private: Private::from_bytes(body.bytes::<8, 224>()),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put::<0, 4>(self.local_id.0.to_be_bytes());
        body.put::<4, 4>(self.remote_id.0.to_be_bytes());
        body.put::<8, 224>(*self.private.bytes());
    }
}
