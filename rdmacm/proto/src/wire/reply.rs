//! REP: a connection is granted, and RTU: both ends are ready (IBTA vol 1, 12.6.8 and 12.6.9).

use super::body::Body;
use super::{Bits, CommId, Ece, Guid, Private, Psn, Qpn, TimeCode};

/// REP: a connection is granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The sender's name for the connection.
    pub local_id: CommId,
    /// The receiver's.
    pub remote_id: CommId,
    /// ECE.
    pub ece: Ece,
    /// Of datagrams.
    pub qkey: u32,
    /// The sender's queue pair; not of XRC.
    pub qpn: Qpn,
    /// Number of the sender's EE context; of XRC its target queue pair.
    pub eecn: Bits<24>,
    /// The PSN with which the receiver of this message begins to send (Linux, drivers/infiniband/core/cm.c, `cm_req_handler`: it becomes `sq_psn`).
    pub psn: Psn,
    /// READs and atomics that the sender can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants to have under way.
    pub initiator_depth: u8,
    /// How long the sender may take until it acknowledges a packet.
    pub ack_delay: TimeCode,
    /// What became of the alternate path: 0 it is accepted, 1 there is no such thing, 2 it is rejected.
    pub failover: Bits<2>,
    /// Whether the sender has end-to-end flow control.
    pub flow_control: bool,
    /// How often the receiver's queue pair is to try again when there is no receive.
    pub rnr_retry: Bits<3>,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's adapter.
    pub guid: Guid,
    /// The application's.
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

    /// Returns the options of ECE, which are in the header.
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

    /// The number of the sender's queue pair, wherever its transport has it.
    #[must_use]
    pub fn peer_qpn(&self, transport: super::Transport) -> Qpn {
        if transport == super::Transport::Extended { self.eecn } else { self.qpn }
    }
}

/// RTU: the one who asked is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The sender's name for the connection.
    pub local_id: CommId,
    /// The receiver's.
    pub remote_id: CommId,
    /// The application's.
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
