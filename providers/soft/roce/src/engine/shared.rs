//! State that the requester half and the responder half of a queue pair share.
//!
//! Both halves build their packets here, so that greetings and piggybacked acknowledgements join
//! them.

use super::greeting::Greeting;
use super::{Config, Counters, Event, Payload, Status, Transmit, congestion::Congestion};
use crate::wire::{
    ALONG_LEN, Bth, ExtensionMessage, Message, OneWay, Packet, PiggybackedAck, Psn, Qpn,
};
use std::collections::VecDeque;

/// State of both halves of a queue pair.
#[derive(Debug)]
pub(super) struct QpShared {
    pub(super) config: Config,
    pub(super) counters: Counters,
    pub(super) events: VecDeque<Event>,
    pub(super) congestion: Congestion,
    /// Whether the queue pair is in error.
    pub(super) error: bool,
    /// The state of the greeting with the peer.
    pub(super) greeting: Greeting,
    /// An acknowledgement that the next packet may carry.
    pub(super) piggybacked_ack: Option<PiggybackedAck>,
}

/// The flags of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    pub(super) solicited: bool,
    pub(super) ack_request: bool,
    pub(super) becn: bool,
}

impl QpShared {
    pub(super) fn new(config: Config) -> Self {
        let congestion = Congestion::new(&config.tuning, config.pmtu.bytes());
        let (counters, events) = (Counters::default(), VecDeque::new());
        let greeting = Greeting::new(config.nonce);
        Self { config, counters, events, congestion, error: false, greeting, piggybacked_ack: None }
    }

    /// Moves the queue pair to the error state for `status`. Returns whether it was not in error
    /// before.
    pub(super) fn fail(&mut self, status: Status) -> bool {
        let first = !self.error;
        if first {
            self.error = true;
            self.events.push_back(Event::Failed(status));
        }
        first
    }

    pub(super) fn completed(&mut self, work: u64, status: Status) {
        self.events.push_back(Event::Completed { work, status });
    }

    /// Builds a packet for the peer.
    pub(super) fn packet(
        &mut self,
        psn: Psn,
        message: Message,
        flags: Flags,
        payload: Payload,
    ) -> Transmit {
        let to = self.config.peer.map_or(Qpn::new(0), |peer| peer.qpn);
        let message = self.with_acknowledgement(message, payload.len());
        self.packet_to(to, psn, message, flags, payload)
    }

    /// Adds the waiting acknowledgement, if `message` can carry it and the packet stays within the
    /// path MTU.
    fn with_acknowledgement(&mut self, message: Message, len: u32) -> Message {
        if let (Message::Rc(request), Some(along)) = (message, self.piggybacked_ack)
            && len + ALONG_LEN <= self.config.pmtu.bytes()
            && let Some(to) = self.greeting.peer()
            && let Ok(request) = OneWay::try_from(request)
        {
            self.piggybacked_ack = None;
            return Message::ExtensionMessage(ExtensionMessage::PiggybackedAck {
                receiver_nonce: to,
                ack: along,
                request,
            });
        }
        message
    }

    /// Builds a packet for any queue pair.
    pub(super) fn packet_to(
        &mut self,
        dest_qpn: Qpn,
        psn: Psn,
        message: Message,
        flags: Flags,
        payload: Payload,
    ) -> Transmit {
        self.counters.sent_pkts += 1;
        let Flags { solicited, ack_request, becn } = flags;
        let proof = self.greeting.proof();
        let bth = Bth { solicited, ack_request, becn, proof, ..Bth::new(dest_qpn, psn) };
        let packet = Packet { bth: Bth { pkey: self.config.pkey, ..bth }, message };
        let len = payload.len() as usize;
        let ecn_capable = !matches!(message, Message::Cnp);
        Transmit { head: packet.emit(len), payload, padding: Packet::padding(len), ecn_capable }
    }
}

impl Payload {
    /// The length in bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Work { len, .. } => *len,
            Self::Region { part, .. } => part.len,
        }
    }

    /// Whether the payload is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
