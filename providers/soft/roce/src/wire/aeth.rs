//! The ACK extended header: syndromes, credits, and RNR timers (IBTA 1.7 9.7.5.1.1, 9.7.5.2.8,
//! 9.7.7).

use super::{Malformed, Number, split_first};
use std::time::Duration;

/// The ACK extended header: a syndrome, and the number of completed messages (MSN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// The result of the request.
    pub syndrome: Syndrome,
    /// Number of messages that the responder has completed, modulo 2^24.
    pub msn: Number,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Executed; the credits allow further messages.
    Ack(Credits),
    /// No receive was posted; the requester repeats the request after the timer.
    Rnr(RnrTimer),
    /// Refused.
    Nak(Nak),
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// Packets before this one are missing.
    Sequence = 0,
    /// The request is invalid: opcode, length, or access rights of the QP.
    InvalidRequest = 1,
    /// The rkey does not permit the access.
    RemoteAccess = 2,
    /// The responder failed.
    RemoteOperation = 3,
    /// An error of reliable datagrams, which no current device supports.
    InvalidRd = 4,
}

/// End-to-end credits in 5 bits: an index into a table of 0 to 32768 messages, or unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits(u8);

/// The wait after an RNR NAK, as one of 32 codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl Aeth {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// Parses the header; returns it and the remaining bytes.
    ///
    /// # Errors
    /// [`Malformed::Short`], or [`Malformed::Syndrome`] for a reserved syndrome.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (&[syndrome, m2, m1, m0], rest) = split_first(bytes)?;
        let value = syndrome & 0x1f;
        let syndrome = match (syndrome >> 5, value) {
            (0b000, _) => Syndrome::Ack(Credits(value)),
            (0b001, _) => Syndrome::Rnr(RnrTimer(value)),
            (0b011, 0) => Syndrome::Nak(Nak::Sequence),
            (0b011, 1) => Syndrome::Nak(Nak::InvalidRequest),
            (0b011, 2) => Syndrome::Nak(Nak::RemoteAccess),
            (0b011, 3) => Syndrome::Nak(Nak::RemoteOperation),
            (0b011, 4) => Syndrome::Nak(Nak::InvalidRd),
            _ => return Err(Malformed::Syndrome),
        };
        Ok((Self { syndrome, msn: Number::from_bytes([m2, m1, m0]) }, rest))
    }

    /// The header's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let syndrome = match self.syndrome {
            Syndrome::Ack(Credits(code)) => code,
            Syndrome::Rnr(RnrTimer(code)) => 0x20 | code,
            Syndrome::Nak(nak) => 0x60 | nak as u8,
        };
        let [m2, m1, m0] = self.msn.to_bytes();
        [syndrome, m2, m1, m0]
    }
}

/// Number of messages for each code up to 30.
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

impl Credits {
    /// Unlimited credits: the only choice of a QP with a shared receive queue.
    pub const UNLIMITED: Self = Self(31);

    /// The largest table entry that is at most `receives`.
    #[must_use]
    pub fn at_most(receives: u32) -> Self {
        let above = CREDITS.partition_point(|&credits| u32::from(credits) <= receives);
        // The table begins with 0, so at least one entry qualifies.
        Self(u8::try_from(above - 1).unwrap_or(0))
    }

    /// Number of messages that may follow the acknowledged one; `None`: unlimited.
    #[must_use]
    pub fn messages(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).map(|&credits| u32::from(credits))
    }
}

/// The wait of each code, in units of 10 us.
const RNR_TENS_OF_US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// The low 5 bits of `code`, a `min_rnr_timer` of ibv_modify_qp(3).
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time to wait.
    #[must_use]
    pub fn duration(self) -> Duration {
        let tens = RNR_TENS_OF_US.get(usize::from(self.0)).copied().unwrap_or(0);
        Duration::from_micros(u64::from(tens) * 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA 1.7 9.7.5.1.1.
    #[test]
    fn golden_bytes() {
        let msn = Number::new(5);
        for (syndrome, byte) in [
            (Syndrome::Ack(Credits::UNLIMITED), 0x1f),
            (Syndrome::Ack(Credits::at_most(0)), 0x00),
            (Syndrome::Rnr(RnrTimer::new(12)), 0x2c),
            (Syndrome::Nak(Nak::Sequence), 0x60),
            (Syndrome::Nak(Nak::InvalidRequest), 0x61),
            (Syndrome::Nak(Nak::RemoteAccess), 0x62),
            (Syndrome::Nak(Nak::RemoteOperation), 0x63),
            (Syndrome::Nak(Nak::InvalidRd), 0x64),
        ] {
            let aeth = Aeth { syndrome, msn };
            assert_eq!(aeth.emit(), [byte, 0, 0, 5]);
            assert_eq!(Aeth::parse(&aeth.emit()), Ok((aeth, &[][..])));
        }
    }

    #[test]
    fn every_syndrome_round_trips_or_is_reserved() {
        for byte in 0..=u8::MAX {
            match Aeth::parse(&[byte, 1, 2, 3]) {
                Ok((aeth, _)) => assert_eq!(aeth.emit(), [byte, 1, 2, 3]),
                Err(error) => {
                    assert_eq!(error, Malformed::Syndrome);
                    assert!(byte >> 5 > 1 && !(0x60..=0x64).contains(&byte), "{byte:#x}");
                }
            }
        }
    }

    /// IBTA 1.7 9.7.7.
    #[test]
    fn credits_are_rounded_down_to_the_table() {
        for (receives, messages) in
            [(0, 0), (4, 4), (5, 4), (7, 6), (1000, 768), (32768, 32768), (u32::MAX, 32768)]
        {
            assert_eq!(Credits::at_most(receives).messages(), Some(messages));
        }
        assert_eq!(Credits::UNLIMITED.messages(), None);
    }

    /// IBTA 1.7 9.7.5.2.8.
    #[test]
    fn rnr_timer_code_zero_is_the_longest() {
        let us = |code| RnrTimer::new(code).duration().as_micros();
        assert_eq!(us(0), 655_360);
        assert_eq!(us(1), 10);
        assert_eq!(us(12), 640);
        assert_eq!(us(31), 491_520);
        assert!((2..32).all(|code| us(code - 1) < us(code)));
    }
}
