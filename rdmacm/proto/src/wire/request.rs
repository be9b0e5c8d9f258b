//! REQ: a connection is asked for (IBTA vol 1, 12.6.5).

use super::body::Body;
use super::path::PATH_LEN;
use super::{Bits, CommId, Guid, Malformed, Path, Private, Psn, Qpn, ServiceId, TimeCode};

/// What kind of connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Reliable,
    /// Unreliable connection.
    Unreliable,
    /// Reliable datagram, which nobody has.
    ReliableDatagram,
    /// Extended reliable connection (annex A14).
    Extended,
}

/// What vendors agree upon when they connect (enhanced connection establishment); zeros where they do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// Who defines the options.
    pub vendor: Bits<24>,
    /// The options.
    pub options: u32,
}

/// REQ: a connection is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The sender's name for the connection.
    pub local_id: CommId,
    /// ECE.
    pub ece: Ece,
    /// Whom it is for.
    pub service: ServiceId,
    /// The sender's adapter.
    pub guid: Guid,
    /// Of datagrams.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// READs and atomics that the sender can answer at a time.
    pub responder_resources: u8,
    /// Number of the sender's EE context (reliable datagrams only).
    pub local_eecn: Bits<24>,
    /// READs and atomics that the sender wants to have under way.
    pub initiator_depth: u8,
    /// Number of the receiver's EE context (reliable datagrams only).
    pub remote_eecn: Bits<24>,
    /// How soon the receiver should answer a message of this exchange.
    pub remote_response_timeout: TimeCode,
    /// What kind of connection.
    pub transport: Transport,
    /// Whether the sender has end-to-end flow control.
    pub flow_control: bool,
    /// The PSN with which the receiver of this message begins to send (Linux, drivers/infiniband/core/cm.c, `cm_req_handler`: it becomes `sq_psn`).
    pub psn: Psn,
    /// How soon the sender will answer a message of this exchange.
    pub local_response_timeout: TimeCode,
    /// How often the receiver's queue pair is to try again.
    pub retry_count: Bits<3>,
    /// Partition.
    pub pkey: u16,
    /// Path MTU, in the encoding of `enum ibv_mtu`.
    pub mtu: Bits<4>,
    /// There is a reliable datagram channel already.
    pub channel_exists: bool,
    /// How often the receiver's queue pair is to try again when there is no receive.
    pub rnr_retry: Bits<3>,
    /// How often each end sends a message of this exchange again.
    pub max_retries: Bits<4>,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The path of the connection.
    pub primary: Path,
    /// Another one; zeros for none.
    pub alternate: Path,
    /// The application's, behind the header of IP addressing for services of IP port spaces.
    pub private: Private<92>,
}

/// The extended transport that annex A14 defines.
const XRC: u32 = 1;

impl Request {
    pub(super) fn parse(body: &Body, options: u32) -> Result<Self, Malformed> {
        let transport = match (body.bits::<43, 5, 2>().raw(), body.bits::<51, 5, 3>().raw()) {
            (0, _) => Transport::Reliable,
            (1, _) => Transport::Unreliable,
            (2, _) => Transport::ReliableDatagram,
            (_, XRC) => Transport::Extended,
            _ => return Err(Malformed::Reserved),
        };
        Ok(Self {
            local_id: CommId(body.u32::<0>()),
            ece: Ece { vendor: body.u24::<5>(), options },
            service: ServiceId(body.u64::<8>()),
            guid: Guid(body.u64::<16>()),
            qkey: body.u32::<28>(),
            qpn: body.u24::<32>(),
            responder_resources: body.u8::<35>(),
            local_eecn: body.u24::<36>(),
            initiator_depth: body.u8::<39>(),
            remote_eecn: body.u24::<40>(),
            remote_response_timeout: body.bits::<43, 0, 5>(),
            transport,
            flow_control: body.bit::<43, 7>(),
            psn: body.u24::<44>(),
            local_response_timeout: body.bits::<47, 0, 5>(),
            retry_count: body.bits::<47, 5, 3>(),
            pkey: body.u16::<48>(),
            mtu: body.bits::<50, 0, 4>(),
            channel_exists: body.bit::<50, 4>(),
            rnr_retry: body.bits::<50, 5, 3>(),
            max_retries: body.bits::<51, 0, 4>(),
            srq: body.bit::<51, 4>(),
            primary: Path::parse(body.bytes::<52, PATH_LEN>()),
            alternate: Path::parse(body.bytes::<96, PATH_LEN>()),
            private: Private::from_bytes(body.bytes::<140, 92>()),
        })
    }

    /// Returns the options of ECE, which are in the header.
    pub(super) fn emit(&self, body: &mut Body) -> u32 {
        let (transport, extended) = match self.transport {
            Transport::Reliable => (0, 0),
            Transport::Unreliable => (1, 0),
            Transport::ReliableDatagram => (2, 0),
            Transport::Extended => (3, XRC),
        };
        body.put::<0, 4>(self.local_id.0.to_be_bytes());
        body.put_u24::<5>(self.ece.vendor);
        body.put::<8, 8>(self.service.0.to_be_bytes());
        body.put::<16, 8>(self.guid.0.to_be_bytes());
        body.put::<28, 4>(self.qkey.to_be_bytes());
        body.put_u24::<32>(self.qpn);
        body.put::<35, 1>([self.responder_resources]);
        body.put_u24::<36>(self.local_eecn);
        body.put::<39, 1>([self.initiator_depth]);
        body.put_u24::<40>(self.remote_eecn);
        body.put_bits::<43, 0, 5>(self.remote_response_timeout);
        body.put_bits::<43, 5, 2>(Bits::new(transport));
        body.put_bit::<43, 7>(self.flow_control);
        body.put_u24::<44>(self.psn);
        body.put_bits::<47, 0, 5>(self.local_response_timeout);
        body.put_bits::<47, 5, 3>(self.retry_count);
        body.put::<48, 2>(self.pkey.to_be_bytes());
        body.put_bits::<50, 0, 4>(self.mtu);
        body.put_bit::<50, 4>(self.channel_exists);
        body.put_bits::<50, 5, 3>(self.rnr_retry);
        body.put_bits::<51, 0, 4>(self.max_retries);
        body.put_bit::<51, 4>(self.srq);
        body.put_bits::<51, 5, 3>(Bits::new(extended));
        body.put::<52, PATH_LEN>(self.primary.emit());
        body.put::<96, PATH_LEN>(self.alternate.emit());
        body.put::<140, 92>(*self.private.bytes());
        self.ece.options
    }
}
