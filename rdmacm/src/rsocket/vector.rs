//! Scattered bytes of an application (`struct iovec`), visited piece by piece.
//! Send and receive calls copy through a vector.

use cface::Errno;
use std::ffi::c_int;

/// The rest of a vector.
#[derive(Debug)]
pub(super) struct Vector {
    pieces: Vec<(*mut u8, usize)>,
    /// The current piece, and the offset in it.
    at: usize,
    within: usize,
    left: usize,
}

impl Vector {
    /// A vector of one piece.
    pub(super) fn one(base: *mut u8, bytes: usize) -> Self {
        Self { pieces: vec![(base, bytes)], at: 0, within: 0, left: bytes }
    }

    /// A vector of C pieces.
    ///
    /// # Errors
    /// `EINVAL` a negative count, or a total length above `isize::MAX`.
    ///
    /// # Safety
    /// `pieces` has `count` readable entries.
    pub(super) unsafe fn of(pieces: *const libc::iovec, count: c_int) -> Result<Self, Errno> {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        let mut left = 0_usize;
        let mut known = Vec::with_capacity(count);
        for at in 0..count {
            // SAFETY: one of the `count` entries, by contract.
            let piece = unsafe { pieces.add(at).read() };
            left = left
                .checked_add(piece.iov_len)
                .filter(|&all| isize::try_from(all).is_ok())
                .ok_or(Errno::EINVAL)?;
            known.push((piece.iov_base.cast(), piece.iov_len));
        }
        Ok(Self { pieces: known, at: 0, within: 0, left })
    }

    /// The number of remaining bytes.
    pub(super) const fn left(&self) -> usize {
        self.left
    }

    /// Visits the next `bytes` bytes: each piece, with its offset from the start of the visit.
    pub(super) fn each(&mut self, bytes: usize, mut f: impl FnMut(*mut u8, usize, usize)) {
        let mut done = 0;
        while done < bytes.min(self.left)
            && let Some(&(base, len)) = self.pieces.get(self.at)
        {
            let some = (len - self.within).min(bytes - done);
            if some > 0 {
                f(base.wrapping_add(self.within), done, some);
            }
            done += some;
            self.within += some;
            if self.within == len {
                self.at += 1;
                self.within = 0;
            }
        }
        self.left -= done;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_gone_through_in_order_whatever_is_asked_for() {
        let text = b"abcdefgh";
        let at = |from: usize, len| libc::iovec {
            iov_base: text[from..].as_ptr().cast_mut().cast(),
            iov_len: len,
        };
        let pieces = [at(0, 3), at(3, 0), at(3, 1), at(4, 4)];
        for step in 1..10 {
            // SAFETY: all four entries are readable.
            let mut vector = unsafe { Vector::of(pieces.as_ptr(), 4).expect("four pieces") };
            assert_eq!(vector.left(), 8);
            let mut got = vec![];
            while vector.left() > 0 {
                let before = got.len();
                vector.each(step, |from, behind, bytes| {
                    assert_eq!(behind, got.len() - before);
                    // SAFETY: the piece is part of `text`.
                    got.extend_from_slice(unsafe { std::slice::from_raw_parts(from, bytes) });
                });
            }
            assert_eq!(got, text, "in steps of {step}");
        }
    }

    #[test]
    fn more_bytes_than_can_be_counted_are_refused() {
        let huge = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: usize::MAX };
        // SAFETY: readable entries; their memory is not accessed.
        unsafe {
            assert_eq!(Vector::of([huge].as_ptr(), 1).err(), Some(Errno::EINVAL));
            assert_eq!(Vector::of([huge].as_ptr(), -1).err(), Some(Errno::EINVAL));
        }
    }
}
