//! The responder's result for a piece of a message (IBTA 1.7 9.7; unreliable transports: 9.8).
//!
//! The engine delivers pieces; transports turn the [`Verdict`] into acknowledgements.

use abi::*;

/// Why a request was refused (NAK codes of IBTA 1.7 9.7.5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Nak {
    /// An invalid request, or one longer than the receive.
    Invalid = 1,
    /// The key does not permit the access.
    Access = 2,
    /// The responder failed to execute a permitted request.
    Operation = 3,
    /// No receive was posted for as long as the requester was willing to wait.
    Rnr = 4,
    /// XRC: the QP's domain has no such shared receive queue (IBTA 1.7 A14.5: as for reliable
    /// datagrams).
    InvalidRd = 5,
}

impl Nak {
    /// The code with this number; `None`: no such code.
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

    /// The status of the requester's completion.
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

    /// The event of the refusing queue pair (IBTA 1.7 11.6.3); `None`: the QP continues.
    pub const fn event(self) -> Option<u32> {
        match self {
            Self::Invalid | Self::InvalidRd => Some(IBV_EVENT_QP_REQ_ERR),
            Self::Access => Some(IBV_EVENT_QP_ACCESS_ERR),
            Self::Operation => Some(IBV_EVENT_QP_FATAL),
            Self::Rnr => None,
        }
    }
}

/// The transport's action for one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Executed: acknowledge the piece.
    Done,
    /// Not executed: an unreliable transport counts the piece and continues.
    Dropped,
    /// No receive is posted: deliver the piece again later.
    NotReady,
    /// The lock of atomics is held: deliver the piece again later.
    Busy,
    /// Refused; the QP is in error, except for `Nak::Rnr`.
    Refuse(Nak),
    /// A receive completed with an error, so the QP is in error. An unreliable sender never learns
    /// of it.
    Broken,
    /// The sender reset its QP while its bytes were copied: the piece is void.
    Stale,
    /// The sender died, which ends its message.
    SenderDied,
}

/// The headers of a piece.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// Whether the piece begins a message.
    pub first: bool,
    /// Whether the piece ends a message.
    pub last: bool,
    /// Immediate data in network order, in the last piece of a SEND and in every piece of a WRITE.
    pub imm: Option<u32>,
    /// The rkey to invalidate before the receive completes, in the last piece of a SEND.
    pub invalidate: Option<u32>,
    /// Whether the sender requests a solicited event (`IBV_SEND_SOLICITED`).
    pub solicited: bool,
    /// The known length of the message: its whole length, or the end of this piece.
    pub total: usize,
    /// The sender's QP number.
    pub src_qpn: u32,
    /// The packet type whose global route header precedes the data; 0: none.
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
