//! REJ: no, or no more, and MRA: wait longer (IBTA vol 1, 12.6.6 and 12.6.7).

use super::body::Body;
use super::{Bits, CommId, Malformed, Private, TimeCode};

/// Which message is answered by a REJ or an MRA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rejected {
    /// A REQ.
    #[default]
    Request,
    /// A REP.
    Reply,
    /// A REJ: none, or any other. An MRA: a LAP.
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

/// Why a REJ was sent (IBTA vol 1, 12.6.7.2). Numbers without a name here are valid, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason(pub u16);

impl Reason {
    /// There is no queue pair for it.
    pub const NO_QP: Self = Self(1);
    /// No memory, or a limit.
    pub const NO_RESOURCES: Self = Self(3);
    /// The sender waited long enough. Additional information: its GUID.
    pub const TIMEOUT: Self = Self(4);
    /// Such a request is not supported.
    pub const UNSUPPORTED: Self = Self(5);
    /// No connection has these names.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// Nobody listens on that service.
    pub const INVALID_SERVICE: Self = Self(8);
    /// The transport is not supported.
    pub const INVALID_TRANSPORT: Self = Self(9);
    /// The names or the queue pair are of a connection that is not over yet here.
    pub const STALE: Self = Self(10);
    /// By the application.
    pub const CONSUMER: Self = Self(28);
}

/// Bytes of additional information.
const INFORMATION: usize = 72;

/// What a reason adds to a REJ: at most 72 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Information {
    padded: Private<INFORMATION>,
    len: u8,
}

impl Information {
    /// What is beyond 72 bytes is left out.
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

/// REJ: no, or no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reject {
    /// The sender's name for the connection; 0 if it never had one.
    pub local_id: CommId,
    /// The receiver's; 0 if the sender does not know it.
    pub remote_id: CommId,
    /// What is answered.
    pub rejected: Rejected,
    /// Why.
    pub reason: Reason,
    /// What the reason adds to it.
    pub information: Information,
    /// The application's.
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

/// MRA: wait longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledge {
    /// The sender's name for the connection.
    pub local_id: CommId,
    /// The receiver's.
    pub remote_id: CommId,
    /// What is answered.
    pub of: Rejected,
    /// How long it may take until there is an answer.
    pub service_timeout: TimeCode,
    /// The application's.
    pub private: Private<222>,
}

impl Acknowledge {
    pub(super) fn parse(body: &Body) -> Result<Self, Malformed> {
        Ok(Self {
            local_id: CommId(body.u32::<0>()),
            remote_id: CommId(body.u32::<4>()),
            of: Rejected::parse(body.bits::<8, 0, 2>())?,
            service_timeout: body.bits::<9, 0, 5>(),
            private: Private::from_bytes(body.bytes::<10, 222>()),
        })
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put::<0, 4>(self.local_id.0.to_be_bytes());
        body.put::<4, 4>(self.remote_id.0.to_be_bytes());
        body.put_bits::<8, 0, 2>(self.of.emit());
        body.put_bits::<9, 0, 5>(self.service_timeout);
        body.put::<10, 222>(*self.private.bytes());
    }
}
