//! MRA, a request for more time, and REJ, a rejection (IBTA 1.7 12.6.6, 12.6.7).
//! [`super::Mad`] contains these messages.

use super::body::Body;
use super::{Bits, CommId, Malformed, Private, TimeCode};

/// The message that a REJ or MRA answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rejected {
    /// A REQ.
    #[default]
    Request,
    /// A REP.
    Reply,
    /// For a REJ: none, or any other message. For an MRA: a LAP.
    Other,
}

impl Rejected {
    fn parse(bits: Bits<2>) -> Result<Self, Malformed> {
        match bits.raw() {
            0 => Ok(Self::Request),
            1 => Ok(Self::Reply),
            2 => Ok(Self::Other),
            _ => Err(Malformed::Reserved),
        }
    }

    const fn emit(self) -> Bits<2> {
        Bits::new(match self {
            Self::Request => 0,
            Self::Reply => 1,
            Self::Other => 2,
        })
    }
}

/// The reason of a REJ (IBTA 1.7 12.6.7.2). Other numbers are valid too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason(pub u16);

impl Reason {
    /// No queue pair is available.
    pub const NO_QP: Self = Self(1);
    /// Memory or another resource is exhausted.
    pub const NO_RESOURCES: Self = Self(3);
    /// The sender gave up waiting. The additional information is the sender's GUID.
    pub const TIMEOUT: Self = Self(4);
    /// The request is not supported.
    pub const UNSUPPORTED: Self = Self(5);
    /// No connection has these communication ids.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// The service has no listener.
    pub const INVALID_SERVICE: Self = Self(8);
    /// The transport is not supported.
    pub const INVALID_TRANSPORT: Self = Self(9);
    /// The communication id or queue pair belongs to a connection that has not ended.
    pub const STALE: Self = Self(10);
    /// The application rejects.
    pub const CONSUMER: Self = Self(28);
}

/// Bytes of additional information.
const INFORMATION: usize = 72;

/// Additional information of a REJ: at most 72 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Information {
    padded: Private<INFORMATION>,
    len: u8,
}

impl Information {
    /// Copies `bytes`; bytes after the first 72 are dropped.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let fits = bytes.get(..bytes.len().min(INFORMATION)).unwrap_or_default();
        let len = u8::try_from(fits.len()).unwrap_or_default();
        Self { padded: Private::new(fits).unwrap_or_default(), len }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.padded.bytes().get(..self.len.into()).unwrap_or_default()
    }
}

/// REJ: the rejection of a request, or the end of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reject {
    /// The sender's communication id; 0 if it has none.
    pub local_id: CommId,
    /// The receiver's communication id; 0 if unknown.
    pub remote_id: CommId,
    /// The message that is answered.
    pub rejected: Rejected,
    /// The reason.
    pub reason: Reason,
    /// Additional information of the reason.
    pub information: Information,
    /// Private data of the application.
    pub private: Private<148>,
}

impl Reject {
    pub(super) fn parse(body: &Body) -> Result<Self, Malformed> {
        let len = body.bits::<9, 0, 7>().raw() as usize;
        let all = body.bytes::<12, INFORMATION>();
        let information = all.get(..len).ok_or(Malformed::Inner)?;
        Ok(Self {
            local_id: CommId(body.u32::<0>()),
            remote_id: CommId(body.u32::<4>()),
            rejected: Rejected::parse(body.bits::<8, 0, 2>())?,
            reason: Reason(body.u16::<10>()),
            information: Information::new(information),
            private: Private::from_bytes(body.bytes::<84, 148>()),
        })
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put::<0, 4>(self.local_id.0.to_be_bytes());
        body.put::<4, 4>(self.remote_id.0.to_be_bytes());
        body.put_bits::<8, 0, 2>(self.rejected.emit());
        body.put_bits::<9, 0, 7>(Bits::new(self.information.len.into()));
        body.put::<10, 2>(self.reason.0.to_be_bytes());
        body.put::<12, INFORMATION>(*self.information.padded.bytes());
        body.put::<84, 148>(*self.private.bytes());
    }
}

/// MRA: a request to wait longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledge {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// The message that is answered.
    pub message: Rejected,
    /// The time until the answer.
    pub service_timeout: TimeCode,
    /// Private data of the application.
    pub private: Private<222>,
}

impl Acknowledge {
    pub(super) fn parse(body: &Body) -> Result<Self, Malformed> {
        Ok(Self {
            local_id: CommId(body.u32::<0>()),
            remote_id: CommId(body.u32::<4>()),
            message: Rejected::parse(body.bits::<8, 0, 2>())?,
            service_timeout: body.bits::<9, 0, 5>(),
            private: Private::from_bytes(body.bytes::<10, 222>()),
        })
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put::<0, 4>(self.local_id.0.to_be_bytes());
        body.put::<4, 4>(self.remote_id.0.to_be_bytes());
        body.put_bits::<8, 0, 2>(self.message.emit());
        body.put_bits::<9, 0, 5>(self.service_timeout);
        body.put::<10, 222>(*self.private.bytes());
    }
}
