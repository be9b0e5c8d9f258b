//! Integers of C structures in bytes, in the byte order of the host. Offsets come from
//! `offset_of!` of the structures in `abi`.

/// A structure that a provider sent. Bytes beyond its end are zero, as the kernel takes them.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The structure that begins with `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Bytes that were sent.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing was sent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `N` bytes at `offset`.
    #[must_use]
    pub fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut found = [0; N];
        for (to, from) in found.iter_mut().zip(self.0.get(offset..).unwrap_or_default()) {
            *to = *from;
        }
        found
    }

    /// 8 bits at `offset`.
    #[must_use]
    pub fn u8(&self, offset: usize) -> u8 {
        self.bytes::<1>(offset)[0]
    }

    /// 16 bits at `offset`.
    #[must_use]
    pub fn u16(&self, offset: usize) -> u16 {
        u16::from_ne_bytes(self.bytes(offset))
    }

    /// 32 bits at `offset`.
    #[must_use]
    pub fn u32(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(offset))
    }

    /// 64 bits at `offset`.
    #[must_use]
    pub fn u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(offset))
    }

    /// Whether all bytes from `offset` on are zero: fields that the emulator does not know.
    #[must_use]
    pub fn is_zero_from(&self, offset: usize) -> bool {
        self.0.get(offset..).unwrap_or_default().iter().all(|&byte| byte == 0)
    }
}

/// A structure under construction, zero at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Structure(Vec<u8>);

impl Structure {
    /// `size` zero bytes.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self(vec![0; size])
    }

    /// Stores bytes at `offset`. Bytes beyond the structure's end are left out.
    #[must_use]
    pub fn with(mut self, offset: usize, bytes: &[u8]) -> Self {
        for (to, from) in self.0.get_mut(offset..).unwrap_or_default().iter_mut().zip(bytes) {
            *to = *from;
        }
        self
    }

    /// Stores 8 bits.
    #[must_use]
    pub fn u8(self, offset: usize, value: u8) -> Self {
        self.with(offset, &[value])
    }

    /// Stores 16 bits.
    #[must_use]
    pub fn u16(self, offset: usize, value: u16) -> Self {
        self.with(offset, &value.to_ne_bytes())
    }

    /// Stores 32 bits.
    #[must_use]
    pub fn u32(self, offset: usize, value: u32) -> Self {
        self.with(offset, &value.to_ne_bytes())
    }

    /// Stores 64 bits.
    #[must_use]
    pub fn u64(self, offset: usize, value: u64) -> Self {
        self.with(offset, &value.to_ne_bytes())
    }

    /// The bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_is_zero_beyond_what_was_sent() {
        let fields = Fields::new(&[1, 2, 3, 4, 5]);
        assert_eq!(fields.u32(0), u32::from_ne_bytes([1, 2, 3, 4]));
        assert_eq!(fields.u32(4), u32::from_ne_bytes([5, 0, 0, 0]));
        assert_eq!((fields.u64(5), fields.u16(usize::MAX), fields.u8(4)), (0, 0, 5));
        assert!(!fields.is_zero_from(4) && fields.is_zero_from(5) && fields.is_zero_from(99));
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let bytes = Structure::new(6).u32(0, 7).u32(4, u32::MAX).u64(99, 1).into_bytes();
        assert_eq!(bytes, [&7_u32.to_ne_bytes()[..], &[0xff, 0xff]].concat());
    }
}
