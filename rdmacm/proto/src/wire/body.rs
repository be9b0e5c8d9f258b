//! The body of a MAD after its header, by the offsets of the specification's tables.
//! The messages of [`super`] parse and emit their fields here.

use super::Bits;

/// Bytes after the common header.
pub(super) const BODY_LEN: usize = 232;

/// The body of a MAD. Offsets are constants, checked at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Body(pub(super) [u8; BODY_LEN]);

impl Body {
    /// All zeros, the value of reserved fields.
    pub(super) const ZERO: Self = Self([0; BODY_LEN]);

    /// `N` bytes at `AT`.
    pub(super) fn bytes<const AT: usize, const N: usize>(&self) -> [u8; N] {
        const { assert!(AT + N <= BODY_LEN) };
        std::array::from_fn(|i| self.0[AT + i])
    }

    pub(super) fn u8<const AT: usize>(&self) -> u8 {
        let [byte] = self.bytes::<AT, 1>();
        byte
    }

    pub(super) fn u16<const AT: usize>(&self) -> u16 {
        u16::from_be_bytes(self.bytes::<AT, 2>())
    }

    pub(super) fn u24<const AT: usize>(&self) -> Bits<24> {
        let [high, middle, low] = self.bytes::<AT, 3>();
        Bits::new(u32::from_be_bytes([0, high, middle, low]))
    }

    pub(super) fn u32<const AT: usize>(&self) -> u32 {
        u32::from_be_bytes(self.bytes::<AT, 4>())
    }

    pub(super) fn u64<const AT: usize>(&self) -> u64 {
        u64::from_be_bytes(self.bytes::<AT, 8>())
    }

    /// `WIDTH` bits of the byte at `AT`, after `SKIP` more significant ones.
    pub(super) fn bits<const AT: usize, const SKIP: u32, const WIDTH: u32>(&self) -> Bits<WIDTH> {
        const { assert!(SKIP + WIDTH <= 8) };
        Bits::new(u32::from(self.u8::<AT>()) >> (8 - SKIP - WIDTH))
    }

    /// One bit of the byte at `AT`, after `SKIP` more significant ones.
    pub(super) fn bit<const AT: usize, const SKIP: u32>(&self) -> bool {
        self.bits::<AT, SKIP, 1>().raw() == 1
    }

    /// Stores bytes at `AT`.
    pub(super) fn put<const AT: usize, const N: usize>(&mut self, bytes: [u8; N]) {
        const { assert!(AT + N <= BODY_LEN) };
        for (i, byte) in bytes.into_iter().enumerate() {
            self.0[AT + i] = byte;
        }
    }

    pub(super) fn put_u24<const AT: usize>(&mut self, value: Bits<24>) {
        let [_, high, middle, low] = value.raw().to_be_bytes();
        self.put::<AT, 3>([high, middle, low]);
    }

    /// Adds bits to the byte at `AT`, after `SKIP` more significant ones; the bits must have been
    /// zero.
    pub(super) fn put_bits<const AT: usize, const SKIP: u32, const WIDTH: u32>(
        &mut self,
        value: Bits<WIDTH>,
    ) {
        const { assert!(SKIP + WIDTH <= 8) };
        let [before] = self.bytes::<AT, 1>();
        let [_, _, _, low] = value.raw().to_be_bytes();
        self.put::<AT, 1>([before | low << (8 - SKIP - WIDTH)]);
    }

    pub(super) fn put_bit<const AT: usize, const SKIP: u32>(&mut self, value: bool) {
        self.put_bits::<AT, SKIP, 1>(Bits::new(value.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_most_significant() {
        let mut body = Body::ZERO;
        body.put_bits::<43, 0, 5>(Bits::new(0x15));
        body.put_bits::<43, 5, 2>(Bits::new(3));
        body.put_bit::<43, 7>(true);
        assert_eq!(body.u8::<43>(), 0b1010_1111);
        assert_eq!(body.bits::<43, 0, 5>().raw(), 0x15);
        assert_eq!(body.bits::<43, 5, 2>().raw(), 3);
        assert!(body.bit::<43, 7>());
        body.put_u24::<229>(Bits::new(0x12_3456));
        assert_eq!(body.bytes::<229, 3>(), [0x12, 0x34, 0x56]);
        assert_eq!(body.u24::<229>().raw(), 0x12_3456);
    }
}
