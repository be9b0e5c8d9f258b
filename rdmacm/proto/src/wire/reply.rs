//! REP, the acceptance of a request, and RTU, the confirmation (IBTA 1.7 12.6.8, 12.6.9).
//! [`super::Mad`] contains these messages.

use super::body::Body;
use super::{Bits, CommId, Ece, Guid, Private, Psn, Qpn, TimeCode};

/// REP: the acceptance of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// ECE.
    pub ece: Ece,
    /// The Q_Key, for reliable datagrams.
    pub qkey: u32,
    /// The sender's queue pair; 0 with XRC.
    pub qpn: Qpn,
    /// The sender's EE context; with XRC the target queue pair.
    pub eecn: Bits<24>,
    /// The first PSN that the receiver of this message sends (`cm_req_handler` in Linux'
    /// `drivers/infiniband/core/cm.c`, where it becomes `sq_psn`).
    pub psn: Psn,
    /// The number of concurrent READs and atomics that the sender can answer.
    pub responder_resources: u8,
    /// The number of concurrent READs and atomics that the sender wants to issue.
    pub initiator_depth: u8,
    /// The time that the sender may take to acknowledge a packet.
    pub ack_delay: TimeCode,
    /// The result for the alternate path: 0 accepted, 1 not supported, 2 rejected.
    pub failover: Bits<2>,
    /// Whether the sender has end-to-end flow control.
    pub flow_control: bool,
    /// The number of RNR retries of the receiver's queue pair.
    pub rnr_retry: Bits<3>,
    /// True: the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's adapter.
    pub guid: Guid,
    /// Private data of the application.
    pub private: Private<196>,
}

impl Reply {
    pub(super) fn parse(body: &Body, options: u32) -> Self {
        let vendor = u32::from_be_bytes([0, body.u8::<15>(), body.u8::<19>(), body.u8::<23>()]);
        Self {
            local_id: CommId(body.u32::<0>()),
            remote_id: CommId(body.u32::<4>()),
            ece: Ece { vendor: Bits::new(vendor), options },
            qkey: body.u32::<8>(),
            qpn: body.u24::<12>(),
            eecn: body.u24::<16>(),
            psn: body.u24::<20>(),
            responder_resources: body.u8::<24>(),
            initiator_depth: body.u8::<25>(),
            ack_delay: body.bits::<26, 0, 5>(),
            failover: body.bits::<26, 5, 2>(),
            flow_control: body.bit::<26, 7>(),
            rnr_retry: body.bits::<27, 0, 3>(),
            srq: body.bit::<27, 3>(),
            guid: Guid(body.u64::<28>()),
            private: Private::from_bytes(body.bytes::<36, 196>()),
        }
    }

    /// Returns the ECE options, which are in the header of the MAD.
    pub(super) fn emit(&self, body: &mut Body) -> u32 {
        let [_, high, middle, low] = self.ece.vendor.raw().to_be_bytes();
        body.put::<0, 4>(self.local_id.0.to_be_bytes());
        body.put::<4, 4>(self.remote_id.0.to_be_bytes());
        body.put::<8, 4>(self.qkey.to_be_bytes());
        body.put_u24::<12>(self.qpn);
        body.put::<15, 1>([high]);
        body.put_u24::<16>(self.eecn);
        body.put::<19, 1>([middle]);
        body.put_u24::<20>(self.psn);
        body.put::<23, 1>([low]);
        body.put::<24, 1>([self.responder_resources]);
        body.put::<25, 1>([self.initiator_depth]);
        body.put_bits::<26, 0, 5>(self.ack_delay);
        body.put_bits::<26, 5, 2>(self.failover);
        body.put_bit::<26, 7>(self.flow_control);
        body.put_bits::<27, 0, 3>(self.rnr_retry);
        body.put_bit::<27, 3>(self.srq);
        body.put::<28, 8>(self.guid.0.to_be_bytes());
        body.put::<36, 196>(*self.private.bytes());
        self.ece.options
    }

    /// The number of the sender's queue pair, in the field that the transport uses.
    #[must_use]
    pub fn peer_qpn(&self, transport: super::Transport) -> Qpn {
        if transport == super::Transport::Extended { self.eecn } else { self.qpn }
    }
}

/// RTU: the requester is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The sender's communication id.
    pub local_id: CommId,
    /// The receiver's communication id.
    pub remote_id: CommId,
    /// Private data of the application.
    pub private: Private<224>,
}

impl Ready {
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
