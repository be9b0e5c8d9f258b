//! What arrives at a responder, and what becomes of it (IBTA vol 1, 9.7 "responder", 9.8 for unreliable transports).

use abi::*;

/// Why a request was refused (IBTA vol 1, table 57: syndromes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Nak {
    /// A request that is none, or longer than the receive.
    Invalid = 1,
    /// A key does not let it reach what it names.
    Access = 2,
    /// The responder could not do what it may.
    Operation = 3,
    /// No receive was posted for as long as the requester was willing to wait.
    Rnr = 4,
    /// XRC: no such shared receive queue in the QP's domain (IBTA vol 1, A14.5: as for reliable datagrams).
    InvalidRd = 5,
}

impl Nak {
    /// From its number; `None`: there is no such one.
    #[inline]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Invalid,
            2 => Self::Access,
            3 => Self::Operation,
            4 => Self::Rnr,
            5 => Self::InvalidRd,
            _ => return None,
        })
    }

    /// The status that the requester's completion gets.
    #[inline]
    pub const fn requester_status(self) -> u32 {
        match self {
            Self::Invalid => IBV_WC_REM_INV_REQ_ERR,
            Self::Access => IBV_WC_REM_ACCESS_ERR,
            Self::Operation => IBV_WC_REM_OP_ERR,
            Self::Rnr => IBV_WC_RNR_RETRY_EXC_ERR,
            Self::InvalidRd => IBV_WC_REM_INV_RD_REQ_ERR,
        }
    }

    /// The event of the queue pair that refuses (IBTA vol 1, 11.6.3); `None`: it goes on as before.
    pub const fn event(self) -> Option<u32> {
        match self {
            Self::Invalid | Self::InvalidRd => Some(IBV_EVENT_QP_REQ_ERR),
            Self::Access => Some(IBV_EVENT_QP_ACCESS_ERR),
            Self::Operation => Some(IBV_EVENT_QP_FATAL),
            Self::Rnr => None,
        }
    }
}

/// What a transport is to do about one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done: it can be acknowledged.
    Done,
    /// Not done and not missed: an unreliable transport counts it and goes on.
    Dropped,
    /// No receive is posted: the same piece again later.
    NotReady,
    /// The lock of atomics is held: the same piece again later.
    Busy,
    /// Refused; the QP is in error unless this is `Nak::Rnr`.
    Refuse(Nak),
    /// A receive completed with an error, so the QP is in error; an unreliable sender never knows.
    Broken,
    /// The sender went away while its bytes were fetched: what it sent does not count.
    Stale,
    /// The sender died, and the message with it.
    Gone,
}

/// What the headers of a piece say.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// It begins a message.
    pub first: bool,
    /// It ends one.
    pub last: bool,
    /// Immediate data in network order; with the last piece of a SEND, and all of a WRITE.
    pub imm: Option<u32>,
    /// rkey of ours to take back before the receive completes; with the last piece of a SEND.
    pub invalidate: Option<u32>,
    /// The sender asks for an event (`IBV_SEND_SOLICITED`).
    pub solicited: bool,
    /// Bytes of the message as far as is known: of all of it, or up to the end of this piece.
    pub total: usize,
    /// The sender's QP number.
    pub src_qpn: u32,
    /// The receive begins with a global route header, of this kind of packet; 0: it does not.
    pub packet: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_survives_its_word() {
        for nak in [Nak::Invalid, Nak::Access, Nak::Operation, Nak::Rnr, Nak::InvalidRd] {
            assert_eq!(Nak::from_raw(nak as u32), Some(nak));
        }
        assert_eq!(Nak::from_raw(0), None);
    }
}
