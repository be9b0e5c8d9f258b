//! The comment of a packet, built on the stack. Each packet has one or two comments, and `format!`
//! took as long as all other work for the packet.

use core::fmt;
use core::ops::Deref;

/// Bytes for the longest comment.
const ROOM: usize = 320;

/// The text of a comment. Text that does not fit is left out.
#[derive(Clone)]
pub(crate) struct CommentLine {
    bytes: [u8; ROOM],
    length: usize,
}

impl CommentLine {
    /// Begins with QP and request, as most comments do.
    #[inline]
    pub(crate) fn new(qp: u32, wr_id: u64) -> Self {
        let mut line = Self::of_qp(qp);
        line.text(" wr_id ").hex(wr_id);
        line
    }

    /// Begins with the QP.
    #[inline]
    pub(crate) fn of_qp(qp: u32) -> Self {
        let mut line = Self::empty();
        line.text("qp ").hex(qp.into());
        line
    }

    #[inline]
    pub(crate) const fn empty() -> Self {
        Self { bytes: [0; ROOM], length: 0 }
    }

    #[inline]
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        let end = self.length + text.len();
        if let Some(place) = self.bytes.get_mut(self.length..end) {
            place.copy_from_slice(text.as_bytes());
            self.length = end;
        }
        self
    }

    /// Appends a number as `{:#x}` does.
    #[inline]
    pub(crate) fn hex(&mut self, number: u64) -> &mut Self {
        let digits = (67 - (number | 1).leading_zeros() as usize) / 4;
        let end = self.length + 2 + digits;
        if let Some([zero, x, places @ ..]) = self.bytes.get_mut(self.length..end) {
            (*zero, *x) = (b'0', b'x');
            let mut rest = number;
            for place in places.iter_mut().rev() {
                *place = b"0123456789abcdef"[(rest & 15) as usize];
                rest >>= 4;
            }
            self.length = end;
        }
        self
    }

    /// Appends a number as `{}` does.
    #[inline]
    pub(crate) fn dec(&mut self, number: u64) -> &mut Self {
        let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
        let end = self.length + digits;
        if let Some(places) = self.bytes.get_mut(self.length..end) {
            let mut rest = number;
            for place in places.iter_mut().rev() {
                *place = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
            self.length = end;
        }
        self
    }
}

impl Deref for CommentLine {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        // SAFETY: only complete strings and ASCII digits were copied, and `length` is within the
        // array.
        unsafe { core::str::from_utf8_unchecked(&self.bytes[..self.length]) }
    }
}

impl fmt::Display for CommentLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_format_writes_them() {
        for bits in 0..=64 {
            for number in [(1_u128 << bits) - 1, 1 << bits, 10_u128.pow(bits / 4)] {
                let number = number as u64;
                let mut line = CommentLine::new(7, number);
                line.text(", ").dec(number);
                assert_eq!(&*line, format!("qp 0x7 wr_id {number:#x}, {number}"));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_whole() {
        let mut line = CommentLine::new(0, 0);
        for _ in 0..ROOM {
            line.text("\u{e9}").hex(u64::MAX).dec(u64::MAX);
        }
        assert!(line.len() <= ROOM && core::str::from_utf8(line.as_bytes()).is_ok());
    }
}
