//! REQ: a connection request (IBTA 1.7 12.6.5).
//! [`super::Mad`] contains this message.

use super::body::Body;
use super::path::PATH_LEN;
use super::{Bits, CommId, Guid, Malformed, Path, Private, Psn, Qpn, ServiceId, TimeCode};

/// The transport of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Reliable,
    /// Unreliable connection.
    Unreliable,
    /// Reliable datagram, which no adapter supports.
    ReliableDatagram,
    /// Extended reliable connection (IBTA 1.7 A14).
    Extended,
}

/// Vendor options of enhanced connection establishment; zeros without support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor that defines the options.
    pub vendor: Bits<24>,
    /// The options.
    pub options: u32,
}

/// REQ: a connection request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The sender's communication id.
    pub local_id: CommId,
    /// ECE.
    pub ece: Ece,
    /// The requested service.
    pub service: ServiceId,
    /// The sender's adapter.
    pub guid: Guid,
    /// The Q_Key, for reliable datagrams.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The number of concurrent READs and atomics that the sender can answer.
    pub responder_resources: u8,
    /// The sender's EE context (reliable datagrams only).
    pub local_eecn: Bits<24>,
    /// The number of concurrent READs and atomics that the sender wants to issue.
    pub initiator_depth: u8,
    /// The receiver's EE context (reliable datagrams only).
    pub remote_eecn: Bits<24>,
    /// The time in which the receiver should answer a message of this exchange.
    pub remote_response_timeout: TimeCode,
    /// The transport.
    pub transport: Transport,
    /// Whether the sender has end-to-end flow control.
    pub flow_control: bool,
    /// The first PSN that the receiver of this message sends (`cm_req_handler` in Linux'
    /// `drivers/infiniband/core/cm.c`, where it becomes `sq_psn`).
    pub psn: Psn,
    /// The time in which the sender answers a message of this exchange.
    pub local_response_timeout: TimeCode,
    /// The number of retries of the receiver's queue pair.
    pub retry_count: Bits<3>,
    /// The partition key.
    pub pkey: u16,
    /// Path MTU, in the encoding of `enum ibv_mtu`.
    pub mtu: Bits<4>,
    /// True: a reliable datagram channel exists already.
    pub channel_exists: bool,
    /// The number of RNR retries of the receiver's queue pair.
    pub rnr_retry: Bits<3>,
    /// The number of repetitions of a message of this exchange, for each end.
    pub max_retries: Bits<4>,
    /// True: the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The path of the connection.
    pub primary: Path,
    /// The alternate path; zeros for none.
    pub alternate: Path,
    /// Private data of the application, after the IP header for services of IP port spaces.
    pub private: Private<92>,
}

/// The extended transport (IBTA 1.7 A14).
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

    /// Returns the ECE options, which are in the header of the MAD.
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
