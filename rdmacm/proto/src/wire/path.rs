//! Paths, and the messages that replace a path (LAP, APR).
//! REQ and LAP contain paths.

use super::body::Body;
use super::{Bits, CommId, Gid, Malformed, Private, Qpn, TimeCode};

/// A path between two ports, as in a REQ. For RoCE the LIDs are 0xffff, and the hop limit states
/// whether routers are between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// LID of the sender.
    pub local_lid: u16,
    /// LID of the receiver.
    pub remote_lid: u16,
    /// GID of the sender.
    pub local_gid: Gid,
    /// GID of the receiver.
    pub remote_gid: Gid,
    /// Flow label for both directions.
    pub flow_label: Bits<20>,
    /// Static rate, in the encoding of `enum ibv_rate`.
    pub rate: Bits<6>,
    /// Traffic class; with RoCE the type of service.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub service_level: Bits<4>,
    /// True: both ports are in one subnet.
    pub subnet_local: bool,
    /// The sender's acknowledgement timeout: two packet lifetimes and the sender's own delay.
    pub ack_timeout: TimeCode,
}

/// Bytes of a path in a REQ.
pub(super) const PATH_LEN: usize = 44;

impl Path {
    /// Parses one of the two paths of a REQ.
    pub(super) fn parse(bytes: [u8; PATH_LEN]) -> Self {
        let body = Body::starting(bytes);
        Self {
            local_lid: body.u16::<0>(),
            remote_lid: body.u16::<2>(),
            local_gid: body.bytes::<4, 16>(),
            remote_gid: body.bytes::<20, 16>(),
            flow_label: Bits::new(body.u32::<36>() >> 12),
            rate: body.bits::<39, 2, 6>(),
            traffic_class: body.u8::<40>(),
            hop_limit: body.u8::<41>(),
            service_level: body.bits::<42, 0, 4>(),
            subnet_local: body.bit::<42, 4>(),
            ack_timeout: body.bits::<43, 0, 5>(),
        }
    }

    pub(super) fn emit(&self) -> [u8; PATH_LEN] {
        let mut body = Body::ZERO;
        body.put::<0, 2>(self.local_lid.to_be_bytes());
        body.put::<2, 2>(self.remote_lid.to_be_bytes());
        body.put::<4, 16>(self.local_gid);
        body.put::<20, 16>(self.remote_gid);
        body.put::<36, 4>((self.flow_label.raw() << 12).to_be_bytes());
        body.put_bits::<39, 2, 6>(self.rate);
        body.put::<40, 1>([self.traffic_class]);
        body.put::<41, 1>([self.hop_limit]);
        body.put_bits::<42, 0, 4>(self.service_level);
        body.put_bit::<42, 4>(self.subnet_local);
        body.put_bits::<43, 0, 5>(self.ack_timeout);
        body.bytes::<0, PATH_LEN>()
    }
}

impl Body {
    fn starting(bytes: [u8; PATH_LEN]) -> Self {
        let mut body = Self::ZERO;
        body.put::<0, PATH_LEN>(bytes);
        body
    }
}

/// LAP: an offer of another path for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadPath {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// The time in which the receiver answers.
    pub response_timeout: TimeCode,
    /// The path.
    pub path: Path,
    /// Private data of the application.
    pub private: Private<168>,
}

impl LoadPath {
    pub(super) fn parse(body: &Body) -> Self {
        Self {
            local_id: CommId(body.u32::<0>()),
            remote_id: CommId(body.u32::<4>()),
            remote_qpn: body.u24::<12>(),
            response_timeout: body.bits::<15, 0, 5>(),
            path: Path {
                local_lid: body.u16::<20>(),
                remote_lid: body.u16::<22>(),
                local_gid: body.bytes::<24, 16>(),
                remote_gid: body.bytes::<40, 16>(),
                flow_label: Bits::new(body.u32::<56>() >> 12),
                traffic_class: body.u8::<59>(),
                hop_limit: body.u8::<60>(),
                rate: body.bits::<61, 2, 6>(),
                service_level: body.bits::<62, 0, 4>(),
                subnet_local: body.bit::<62, 4>(),
                ack_timeout: body.bits::<63, 0, 5>(),
            },
            private: Private::from_bytes(body.bytes::<64, 168>()),
        }
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put::<0, 4>(self.local_id.0.to_be_bytes());
        body.put::<4, 4>(self.remote_id.0.to_be_bytes());
        body.put_u24::<12>(self.remote_qpn);
        body.put_bits::<15, 0, 5>(self.response_timeout);
        let path = &self.path;
        body.put::<20, 2>(path.local_lid.to_be_bytes());
        body.put::<22, 2>(path.remote_lid.to_be_bytes());
        body.put::<24, 16>(path.local_gid);
        body.put::<40, 16>(path.remote_gid);
        body.put::<56, 4>((path.flow_label.raw() << 12).to_be_bytes());
        body.put::<59, 1>([path.traffic_class]);
        body.put::<60, 1>([path.hop_limit]);
        body.put_bits::<61, 2, 6>(path.rate);
        body.put_bits::<62, 0, 4>(path.service_level);
        body.put_bit::<62, 4>(path.subnet_local);
        body.put_bits::<63, 0, 5>(path.ack_timeout);
        body.put::<64, 168>(*self.private.bytes());
    }
}

/// APR: the answer to a LAP. Additional information of some statuses is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReply {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// 0: the path is loaded. [`UNSUPPORTED`](Self::UNSUPPORTED) and other values: an error.
    pub status: u8,
}

impl PathReply {
    /// No connection has these communication ids.
    pub const INVALID_COMM_ID: u8 = 1;
    /// The receiver cannot replace paths.
    pub const UNSUPPORTED: u8 = 2;

    pub(super) fn parse(body: &Body) -> Result<Self, Malformed> {
        if body.u8::<8>() > 72 {
            return Err(Malformed::Inner);
        }
        Ok(Self {
            local_id: CommId(body.u32::<0>()),
            remote_id: CommId(body.u32::<4>()),
            status: body.u8::<9>(),
        })
    }

    pub(super) fn emit(&self, body: &mut Body) {
        body.put::<0, 4>(self.local_id.0.to_be_bytes());
        body.put::<4, 4>(self.remote_id.0.to_be_bytes());
        body.put::<9, 1>([self.status]);
    }
}
