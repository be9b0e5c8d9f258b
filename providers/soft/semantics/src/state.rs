//! States and kinds of QPs, and the durations of their timer attributes (IBTA 1.7 10.3.1, 9.7).
//! `modify.rs` decides which change of state is allowed.

/// `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum QpState {
    /// No request is posted, and no peer is connected.
    Reset = 0,
    /// Receives can be posted.
    Init = 1,
    /// Ready to receive: the remote end is known.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains: only issued requests complete.
    Sqd = 4,
    /// The send queue of an unreliable QP failed; the QP still receives.
    Sqe = 5,
    /// All posted requests are flushed.
    Err = 6,
}

impl QpState {
    /// The state of an `ibv_qp_state`; `None`: no such state.
    #[inline]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => return None,
        })
    }
}

/// The QP types that this adapter offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagrams.
    Ud = 4,
    /// Ethernet frames (`IBV_QPT_RAW_PACKET`).
    Raw = 8,
    /// The sending end of an XRC connection (`IBV_QPT_XRC_SEND`).
    XrcSend = 9,
    /// The receiving end of an XRC connection (`IBV_QPT_XRC_RECV`).
    XrcRecv = 10,
}

impl QpType {
    /// The kind of an `ibv_qp_type`; `None`: not offered.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            2 => Self::Rc,
            3 => Self::Uc,
            4 => Self::Ud,
            8 => Self::Raw,
            9 => Self::XrcSend,
            10 => Self::XrcRecv,
            _ => return None,
        })
    }

    /// Whether a QP of this type has one peer, given at the transition to RTR.
    #[inline]
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud | Self::Raw)
    }

    /// Whether requests are acknowledged, and refused with a NAK.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }
}

/// The wait that a responder without a receive requests, in microseconds, for the 5-bit code of
/// `min_rnr_timer` (IBTA 1.7 9.7.5.2.8).
pub const fn rnr_timer_us(code: u8) -> u32 {
    const HUNDREDTHS_OF_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_OF_MS[(code & 31) as usize] * 10
}

/// The total time for which a requester waits for a response, in microseconds. `timeout` is the
/// 5-bit exponent of ibv_qp_attr (4.096 us times 2^timeout; 0: for ever). The request is sent once
/// and repeated `retry_cnt` times (IBTA 1.7 9.7.6.1.3).
pub const fn give_up_us(timeout: u8, retry_cnt: u8) -> Option<u64> {
    if timeout & 31 == 0 {
        return None;
    }
    Some((4096u64 << (timeout & 31)) / 1000 * (retry_cnt as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_follow_the_specification() {
        assert_eq!(rnr_timer_us(0), 655_360);
        assert_eq!(rnr_timer_us(1), 10);
        assert_eq!(rnr_timer_us(12), 640);
        assert_eq!(rnr_timer_us(31), 491_520);
        assert_eq!(give_up_us(0, 7), None);
        assert_eq!(give_up_us(14, 7), Some(67_108 * 8));
    }
}
