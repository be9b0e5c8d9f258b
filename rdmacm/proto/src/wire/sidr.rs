//! SIDR_REQ and SIDR_REP: the queue pair of a datagram service (IBTA 1.7 12.11).
//! [`super::Mad`] contains these messages.

use super::body::Body;
use super::{Bits, CommId, Ece, Malformed, Private, Qpn, ServiceId};

/// SIDR_REQ: a request for the queue pair of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramRequest {
    /// The sender's number of the request (RequestID).
    pub id: CommId,
    /// The partition key.
    pub pkey: u16,
    /// The service.
    pub service: ServiceId,
    /// Private data of the application. For services of IP port spaces it begins with the IP
    /// addressing header of annex A11.
    pub private: Private<216>,
}

impl DatagramRequest {
    pub(super) fn parse(body: &Body) -> Self {
        Self {
            id: CommId(body.u32::<0>()),
            pkey: body.u16::<4>(),
            service: ServiceId(body.u64::<8>()),
            private: Private::from_bytes(body.bytes::<16, 216>()),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put::<0, 4>(self.id.0.to_be_bytes());
        body.put::<4, 2>(self.pkey.to_be_bytes());
        body.put::<8, 8>(self.service.0.to_be_bytes());
        body.put::<16, 216>(*self.private.bytes());
    }
}

/// The status of a SIDR_REP. Other numbers are failures too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramStatus(pub u8);

impl DatagramStatus {
    /// The reply contains the queue pair.
    pub const SUCCESS: Self = Self(0);
    /// The service has no listener.
    pub const UNSUPPORTED: Self = Self(1);
    /// The application rejects.
    pub const REJECTED: Self = Self(2);
    /// No queue pair is available.
    pub const NO_QP: Self = Self(3);
}

/// SIDR_REP: the answer to a SIDR_REQ. The additional information of a redirection or of an
/// unsupported version is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramReply {
    /// The receiver's copy of [`DatagramRequest::id`].
    pub id: CommId,
    /// The status.
    pub status: DatagramStatus,
    /// Enhanced connection establishment (ECE).
    pub ece: Ece,
    /// The queue pair.
    pub qpn: Qpn,
    /// The service.
    pub service: ServiceId,
    /// The Q_Key of the service's datagrams.
    pub qkey: u32,
    /// Private data of the application.
    pub private: Private<136>,
}

impl DatagramReply {
    pub(super) fn parse(body: &Body, options: u32) -> Result<Self, Malformed> {
        if body.u8::<5>() > 72 {
            return Err(Malformed::Inner);
        }
        let vendor = u32::from(body.u16::<6>()) << 8 | u32::from(body.u8::<11>());
        Ok(Self {
            id: CommId(body.u32::<0>()),
            status: DatagramStatus(body.u8::<4>()),
            ece: Ece { vendor: Bits::new(vendor), options },
            qpn: body.u24::<8>(),
            service: ServiceId(body.u64::<12>()),
            qkey: body.u32::<20>(),
            private: Private::from_bytes(body.bytes::<96, 136>()),
        })
    }

    /// Returns the ECE options, which are in the header of the MAD.
    pub(super) fn emit(&self, body: &mut Body) -> u32 {
        let [_, high, middle, low] = self.ece.vendor.raw().to_be_bytes();
        body.put::<0, 4>(self.id.0.to_be_bytes());
        body.put::<4, 1>([self.status.0]);
        body.put::<6, 2>([high, middle]);
        body.put_u24::<8>(self.qpn);
        body.put::<11, 1>([low]);
        body.put::<12, 8>(self.service.0.to_be_bytes());
        body.put::<20, 4>(self.qkey.to_be_bytes());
        body.put::<96, 136>(*self.private.bytes());
        self.ece.options
    }
}
