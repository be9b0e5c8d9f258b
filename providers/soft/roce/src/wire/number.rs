//! The 24-bit numbers of the transport: PSN, QPN, MSN (IBTA 1.7 9.2). Arithmetic on them is modulo
//! 2^24.

use std::fmt;

/// The mask of 24 bits.
const MASK: u32 = 0xff_ffff;

/// 24-bit packet sequence number; all arithmetic is modulo 2^24.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `raw`.
    #[must_use]
    pub const fn new(raw: u32) -> Self {
        Self(raw & MASK)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `packets` later.
    #[must_use]
    pub const fn add(self, packets: u32) -> Self {
        Self(self.0.wrapping_add(packets) & MASK)
    }

    /// Signed distance `self - base` in packets, in `-2^23..2^23`.
    #[must_use]
    pub const fn since(self, base: Self) -> i32 {
        (self.0.wrapping_sub(base.0) << 8).cast_signed() >> 8
    }

    /// Number of packets from `base` to this PSN; `None`: this PSN is before `base`.
    #[must_use]
    pub const fn after(self, base: Self) -> Option<u32> {
        let distance = self.since(base);
        if distance < 0 { None } else { Some(distance.cast_unsigned()) }
    }

    pub(crate) const fn to_bytes(self) -> [u8; 3] {
        let [_, hi, mid, lo] = self.0.to_be_bytes();
        [hi, mid, lo]
    }

    pub(crate) const fn from_bytes([hi, mid, lo]: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, hi, mid, lo]))
    }
}

/// A 24-bit number: of a queue pair, an XRC shared receive queue, or of messages (MSN).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(u32);

/// Number of a queue pair.
pub type Qpn = Number;

impl Number {
    /// The destination of multicast datagrams (IBTA 1.7 10.5).
    pub const MULTICAST: Self = Self(MASK);
    /// The general services interface, which manages connections (IBTA 1.7 3.5.10).
    pub const GSI: Self = Self(1);

    /// The low 24 bits of `raw`.
    #[must_use]
    pub const fn new(raw: u32) -> Self {
        Self(raw & MASK)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The following number, modulo 2^24.
    #[must_use]
    pub const fn next(self) -> Self {
        Self((self.0 + 1) & MASK)
    }

    pub(crate) const fn to_bytes(self) -> [u8; 3] {
        let [_, hi, mid, lo] = self.0.to_be_bytes();
        [hi, mid, lo]
    }

    pub(crate) const fn from_bytes([hi, mid, lo]: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, hi, mid, lo]))
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA 1.7 9.2.
    #[test]
    fn psn_distance_wraps_at_24_bits() {
        let near_the_end = Psn::new(0xff_fffe);
        assert_eq!(near_the_end.add(3), Psn::new(1));
        assert_eq!(Psn::new(1).since(near_the_end), 3);
        assert_eq!(near_the_end.since(Psn::new(1)), -3);
        assert_eq!(Psn::new(1).after(near_the_end), Some(3));
        assert_eq!(near_the_end.after(Psn::new(1)), None);
    }

    #[test]
    fn half_the_circle_is_before() {
        let base = Psn::new(5);
        assert_eq!(base.add(0x7f_ffff).since(base), 0x7f_ffff);
        assert_eq!(base.add(0x80_0000).since(base), -0x80_0000);
    }

    #[test]
    fn numbers_keep_24_bits() {
        assert_eq!(Psn::new(0x1234_5678).get(), 0x34_5678);
        assert_eq!(Number::new(0xffff_ffff), Number::MULTICAST);
        assert_eq!(Number::MULTICAST.next(), Number::new(0));
        assert_eq!(Number::from_bytes(Number::new(0x01_0203).to_bytes()).get(), 0x01_0203);
        assert_eq!(Psn::from_bytes(Psn::new(0x01_0203).to_bytes()).get(), 0x01_0203);
    }
}
