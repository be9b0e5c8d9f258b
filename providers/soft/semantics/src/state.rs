//! States and kinds of QPs, and the times that their attributes stand for (IBTA vol 1, 10.3.1 and 9.7).

/// `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// Nothing is posted, nobody is connected.
    Reset = 0,
    /// Receives can be posted.
    Init = 1,
    /// Ready to receive: the other end is known.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains: what was begun is done, nothing else is.
    Sqd = 4,
    /// The send queue of an unreliable QP failed; it still receives.
    Sqe = 5,
    /// Everything that is posted is flushed.
    Err = 6,
}

impl State {
    /// From `ibv_qp_state`; `None`: there is no such state.
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

/// Transports that this adapter offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Datagrams.
    Ud = 4,
    /// Ethernet frames (`IBV_QPT_RAW_PACKET`).
    Raw = 8,
    /// The sending end of an XRC connection (`IBV_QPT_XRC_SEND`).
    XrcSend = 9,
    /// The receiving end (`IBV_QPT_XRC_RECV`).
    XrcRecv = 10,
}

impl Kind {
    /// From `ibv_qp_type`.
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

    /// Whether a QP of this type has one peer, named at the transition to RTR.
    #[inline]
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud | Self::Raw)
    }

    /// Whether requests are acknowledged, and refused with a reason.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }
}

/// How long a responder without a receive asks to wait, in microseconds, by the 5-bit code of
/// `min_rnr_timer` (IBTA vol 1, table 45).
pub const fn rnr_timer_us(code: u8) -> u32 {
    const HUNDREDTHS_OF_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_OF_MS[(code & 31) as usize] * 10
}

/// How long a requester waits in all for an answer before it gives up, in microseconds: `timeout` is the 5-bit exponent of
/// ibv_qp_attr (4.096 us times two to its power; 0: for ever), tried once and `retry_cnt` times again (IBTA vol 1, 9.7.6.1.3).
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
