//! Private data: bytes of the application inside a message.
//! Each message has its own length `N`.

use std::fmt;

/// Private data of a message with room for `N` bytes. The format has no length: shorter data are
/// padded with zeros, and the receiver gets all `N` bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Private<const N: usize>([u8; N]);

/// The error of private data that are too long for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The number of bytes.
    pub bytes: usize,
    /// The room in the message.
    pub room: usize,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of private data, room for {}", self.bytes, self.room)
    }
}

impl std::error::Error for TooLong {}

impl<const N: usize> Private<N> {
    /// All zeros.
    pub const NONE: Self = Self([0; N]);

    /// `data`, followed by zeros.
    ///
    /// # Errors
    /// The data are longer than `N` bytes.
    pub fn new(data: &[u8]) -> Result<Self, TooLong> {
        let mut bytes = [0; N];
        let room = bytes.get_mut(..data.len());
        room.ok_or(TooLong { bytes: data.len(), room: N })?.copy_from_slice(data);
        Ok(Self(bytes))
    }

    /// All bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; N] {
        &self.0
    }

    pub(super) const fn from_bytes(bytes: [u8; N]) -> Self {
        Self(bytes)
    }
}

impl<const N: usize> Default for Private<N> {
    fn default() -> Self {
        Self::NONE
    }
}

/// The output omits trailing zeros.
impl<const N: usize> fmt::Debug for Private<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        self.0.iter().take(len).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, " ({N} bytes)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_padded_and_what_is_too_long_is_refused() {
        assert_eq!(Private::<4>::new(b"ab").expect("fits").bytes(), b"ab\0\0");
        assert_eq!(Private::<4>::new(b"abcd").expect("fits").bytes(), b"abcd");
        assert_eq!(Private::<4>::new(b"abcde"), Err(TooLong { bytes: 5, room: 4 }));
        assert_eq!(format!("{:?}", Private::<4>::new(b"ab").expect("fits")), "6162 (4 bytes)");
    }
}
