//! Numbers at fixed offsets of an array of bytes.

/// An array of bytes with numbers at fixed offsets. An offset beyond the array does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields<const N: usize>(pub [u8; N]);

impl<const N: usize> Default for Fields<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> Fields<N> {
    /// The `LEN` bytes at offset `AT`.
    #[inline]
    #[must_use]
    pub const fn bytes<const AT: usize, const LEN: usize>(&self) -> [u8; LEN] {
        const { assert!(AT + LEN <= N, "the field lies in the array") };
        let mut found = [0; LEN];
        let mut n = 0;
        while n < LEN {
            found[n] = self.0[AT + n];
            n += 1;
        }
        found
    }

    /// Stores `bytes` at offset `AT`.
    #[inline]
    pub const fn set<const AT: usize, const LEN: usize>(&mut self, bytes: [u8; LEN]) {
        const { assert!(AT + LEN <= N, "the field lies in the array") };
        let mut n = 0;
        while n < LEN {
            self.0[AT + n] = bytes[n];
            n += 1;
        }
    }

    /// The byte at offset `AT`.
    #[inline]
    #[must_use]
    pub const fn byte<const AT: usize>(&self) -> u8 {
        self.bytes::<AT, 1>()[0]
    }

    /// The big endian number of 16 bits at offset `AT`.
    #[inline]
    #[must_use]
    pub const fn be16<const AT: usize>(&self) -> u16 {
        u16::from_be_bytes(self.bytes::<AT, 2>())
    }

    /// The big endian number of 32 bits at offset `AT`.
    #[inline]
    #[must_use]
    pub const fn be32<const AT: usize>(&self) -> u32 {
        u32::from_be_bytes(self.bytes::<AT, 4>())
    }

    /// The big endian number of 64 bits at offset `AT`.
    #[inline]
    #[must_use]
    pub const fn be64<const AT: usize>(&self) -> u64 {
        u64::from_be_bytes(self.bytes::<AT, 8>())
    }

    /// The number of 16 bits at offset `AT` in the order of the host.
    #[inline]
    #[must_use]
    pub const fn host16<const AT: usize>(&self) -> u16 {
        u16::from_ne_bytes(self.bytes::<AT, 2>())
    }

    /// The number of 32 bits at offset `AT` in the order of the host.
    #[inline]
    #[must_use]
    pub const fn host32<const AT: usize>(&self) -> u32 {
        u32::from_ne_bytes(self.bytes::<AT, 4>())
    }

    /// The number of 64 bits at offset `AT` in the order of the host.
    #[inline]
    #[must_use]
    pub const fn host64<const AT: usize>(&self) -> u64 {
        u64::from_ne_bytes(self.bytes::<AT, 8>())
    }

    /// The array that begins with as many bytes of `given` as fit; the rest is zero.
    ///
    /// Vendor data of commands grow from release to release, so a shorter request lacks fields.
    #[must_use]
    pub fn prefix(given: &[u8]) -> Self {
        let mut fields = Self::default();
        let known = given.len().min(N);
        if let (Some(into), Some(from)) = (fields.0.get_mut(..known), given.get(..known)) {
            into.copy_from_slice(from);
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_both_orders() {
        let mut fields = Fields::<16>::default();
        fields.set::<4, 4>(0x0102_0304u32.to_be_bytes());
        assert_eq!((fields.byte::<4>(), fields.be16::<6>()), (1, 0x0304));
        assert_eq!(fields.be32::<4>(), 0x0102_0304);
        assert_eq!(fields.be64::<0>(), 0x0102_0304);
        fields.set::<8, 8>(7u64.to_ne_bytes());
        assert_eq!(fields.host64::<8>(), 7);
        fields.set::<0, 4>(9u32.to_ne_bytes());
        assert_eq!(fields.host32::<0>(), 9);
        fields.set::<0, 2>(3u16.to_ne_bytes());
        assert_eq!(fields.host16::<0>(), 3);
    }

    #[test]
    fn a_shorter_request_lacks_fields_and_a_longer_one_loses_its_end() {
        assert_eq!(Fields::<4>::prefix(&[1, 2]).0, [1, 2, 0, 0]);
        assert_eq!(Fields::<4>::prefix(&[1, 2, 3, 4, 5]).0, [1, 2, 3, 4]);
        assert_eq!(Fields::<4>::prefix(&[]).0, [0; 4]);
    }
}
