//! DREQ and DREP: the end of a connection (IBTA 1.7 12.6.10, 12.6.11).
//! [`super::Mad`] contains these messages.

use super::body::Body;
use super::{CommId, Private, Qpn};

/// DREQ: the end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DisconnectRequest {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// Private data of the application.
    pub private: Private<220>,
}

impl DisconnectRequest {
    /// The number of no queue pair, which stands for multicast (IBTA 1.7 9.2.4). A DREQ with
    /// this number ends no connection: a manager with the connection drops the DREQ, and any other
    /// manager answers DREP.
    pub const NO_QPN: Qpn = Qpn::new(0xff_ffff);

    /// Whether the DREQ ends the connection, and is not only a question.
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

/// DREP: the acknowledgement of a DREQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DisconnectReply {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// Private data of the application.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA 1.7 9.2.4.
    #[test]
    fn a_dreq_to_no_queue_pair_asks_and_ends_nothing() {
        let ends = |remote_qpn| DisconnectRequest { remote_qpn, ..Default::default() }.ends();
        assert!(!ends(DisconnectRequest::NO_QPN));
        assert!(ends(Qpn::new(0xff_fffe)));
        assert!(ends(Qpn::new(1)));
    }
}
