//! Scattered bytes of an application (`struct iovec`), copied piece by piece.
//! Send calls copy from a [`Source`], receive calls into a [`Room`].
//!
//! Other threads of the application may change the bytes, so no Rust reference to them exists.

use crate::sys::objects::Memory;
use cface::Errno;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// Bytes that are not visited yet.
#[derive(Debug)]
struct Pieces {
    pieces: Vec<(*mut u8, usize)>,
    /// The current piece, and the offset in it.
    piece_index: usize,
    piece_offset: usize,
    left: usize,
}

impl Pieces {
    fn single(base: *mut u8, bytes: usize) -> Self {
        Self { pieces: vec![(base, bytes)], piece_index: 0, piece_offset: 0, left: bytes }
    }

    /// # Errors
    /// `EINVAL` a negative count, or a total length above `isize::MAX`.
    ///
    /// # Safety
    /// `pieces` has `count` readable entries.
    unsafe fn of(pieces: *const libc::iovec, count: c_int) -> Result<Self, Errno> {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        let mut left = 0_usize;
        let mut all = Vec::with_capacity(count);
        for at in 0..count {
            // SAFETY: one of the `count` entries, by contract.
            let piece = unsafe { pieces.add(at).read() };
            left = left
                .checked_add(piece.iov_len)
                .filter(|&all| isize::try_from(all).is_ok())
                .ok_or(Errno::EINVAL)?;
            all.push((piece.iov_base.cast(), piece.iov_len));
        }
        Ok(Self { pieces: all, piece_index: 0, piece_offset: 0, left })
    }

    /// Visits the next `bytes` bytes: each piece, with its offset from the start of the visit.
    fn for_each(&mut self, bytes: usize, mut f: impl FnMut(*mut u8, usize, usize)) {
        let mut done = 0;
        while done < bytes.min(self.left)
            && let Some(&(base, len)) = self.pieces.get(self.piece_index)
        {
            let some = (len - self.piece_offset).min(bytes - done);
            if some > 0 {
                f(base.wrapping_add(self.piece_offset), done, some);
            }
            done += some;
            self.piece_offset += some;
            if self.piece_offset == len {
                self.piece_index += 1;
                self.piece_offset = 0;
            }
        }
        self.left -= done;
    }
}

/// Bytes to send.
#[derive(Debug)]
pub(super) struct Source<'a>(Pieces, PhantomData<&'a u8>);

impl<'a> Source<'a> {
    /// No bytes.
    pub(super) fn empty() -> Self {
        Self(Pieces::single(null_mut(), 0), PhantomData)
    }

    /// Bytes of this library.
    pub(super) fn of_slice(bytes: &'a [u8]) -> Self {
        Self(Pieces::single(bytes.as_ptr().cast_mut(), bytes.len()), PhantomData)
    }

    /// Bytes of an application.
    ///
    /// # Safety
    /// `base` has `bytes` readable bytes during `'a`.
    pub(super) unsafe fn single(base: *const u8, bytes: usize) -> Self {
        Self(Pieces::single(base.cast_mut(), bytes), PhantomData)
    }

    /// Pieces of an application.
    ///
    /// # Errors
    /// `EINVAL` a negative count, or a total length above `isize::MAX`.
    ///
    /// # Safety
    /// `pieces` has `count` readable entries, whose bytes are readable during `'a`.
    pub(super) unsafe fn of(pieces: *const libc::iovec, count: c_int) -> Result<Self, Errno> {
        // SAFETY: by the contract above.
        Ok(Self(unsafe { Pieces::of(pieces, count)? }, PhantomData))
    }

    /// The number of remaining bytes.
    pub(super) const fn left(&self) -> usize {
        self.0.left
    }

    /// Copies the next bytes, as many as `to` has and the source has left.
    pub(super) fn copy_to(&mut self, to: &mut [u8]) {
        let (at, len) = (to.as_mut_ptr(), to.len());
        self.0.for_each(len, |from, behind, some| {
            // SAFETY: the pieces are readable by the contract of the constructor; `to` has room for
            // `len` bytes.
            unsafe { at.add(behind).copy_from_nonoverlapping(from, some) };
        });
    }

    /// Copies the next `bytes` bytes to registered memory.
    ///
    /// # Errors
    /// `EFAULT` out of range of the memory.
    pub(super) fn copy_to_memory(
        &mut self,
        memory: &Memory,
        at: u32,
        bytes: usize,
    ) -> Result<(), Errno> {
        let to = memory.pointer(at, bytes)?;
        self.0.for_each(bytes, |from, behind, some| {
            // SAFETY: the pieces are readable by the contract of the constructor; the memory has
            // room for `bytes` bytes, and the application has no access to it.
            unsafe { to.add(behind).copy_from_nonoverlapping(from, some) };
        });
        Ok(())
    }
}

/// Room for received bytes.
#[derive(Debug)]
pub(super) struct Room<'a>(Pieces, PhantomData<&'a mut u8>);

impl Room<'_> {
    /// Room of an application.
    ///
    /// # Safety
    /// `base` has `bytes` writable bytes during `'a`.
    pub(super) unsafe fn single(base: *mut u8, bytes: usize) -> Self {
        Self(Pieces::single(base, bytes), PhantomData)
    }

    /// Pieces of an application.
    ///
    /// # Errors
    /// `EINVAL` a negative count, or a total length above `isize::MAX`.
    ///
    /// # Safety
    /// `pieces` has `count` readable entries, whose bytes are writable during `'a`.
    pub(super) unsafe fn of(pieces: *const libc::iovec, count: c_int) -> Result<Self, Errno> {
        // SAFETY: by the contract above.
        Ok(Self(unsafe { Pieces::of(pieces, count)? }, PhantomData))
    }

    /// The number of remaining bytes.
    pub(super) const fn left(&self) -> usize {
        self.0.left
    }

    /// Fills the next bytes, as many as `from` has and the room has left.
    pub(super) fn fill(&mut self, from: &[u8]) {
        self.0.for_each(from.len(), |to, behind, some| {
            // SAFETY: the pieces are writable by the contract of the constructor; `behind` and
            // `some` lie within `from`.
            unsafe { from.as_ptr().add(behind).copy_to_nonoverlapping(to, some) };
        });
    }

    /// Fills the next `bytes` bytes from registered memory.
    ///
    /// # Errors
    /// `EFAULT` out of range of the memory.
    pub(super) fn fill_from_memory(
        &mut self,
        memory: &Memory,
        at: u32,
        bytes: usize,
    ) -> Result<(), Errno> {
        let from = memory.pointer(at, bytes)?;
        self.0.for_each(bytes, |to, behind, some| {
            // SAFETY: the pieces are writable by the contract of the constructor; the memory has
            // `bytes` bytes, and the application has no access to it.
            unsafe { from.add(behind).copy_to_nonoverlapping(to, some) };
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries for a text of eight bytes; the second has no bytes.
    fn entries(text: &[u8]) -> [libc::iovec; 4] {
        let at = |from: usize, len| libc::iovec {
            iov_base: text[from..].as_ptr().cast_mut().cast(),
            iov_len: len,
        };
        [at(0, 3), at(3, 0), at(3, 1), at(4, 4)]
    }

    #[test]
    fn pieces_are_gone_through_in_order_whatever_is_asked_for() {
        let text = b"abcdefgh";
        for step in 1..10 {
            // SAFETY: all four entries are readable.
            let mut source = unsafe { Source::of(entries(text).as_ptr(), 4).expect("pieces") };
            assert_eq!(source.left(), 8);
            let mut got = vec![];
            while source.left() > 0 {
                let mut some = vec![0; step.min(source.left())];
                source.copy_to(&mut some);
                got.extend_from_slice(&some);
            }
            assert_eq!(got, text, "in steps of {step}");
        }
    }

    #[test]
    fn room_is_filled_in_order_whatever_arrives() {
        for step in 1..10 {
            let mut text = [0; 8];
            let at = text.as_mut_ptr();
            let of = |from: usize, len| libc::iovec {
                iov_base: at.wrapping_add(from).cast(),
                iov_len: len,
            };
            let pieces = [of(0, 3), of(3, 0), of(3, 1), of(4, 4)];
            // SAFETY: all four entries are readable, and their bytes writable.
            let mut room = unsafe { Room::of(pieces.as_ptr(), 4).expect("pieces") };
            for some in b"abcdefgh".chunks(step) {
                room.fill(some);
            }
            room.fill(b"no room is left");
            assert_eq!(room.left(), 0);
            assert_eq!(&text, b"abcdefgh", "in steps of {step}");
        }
    }

    #[test]
    fn more_bytes_than_can_be_counted_are_refused() {
        let huge = libc::iovec { iov_base: null_mut(), iov_len: usize::MAX };
        // SAFETY: readable entries; their memory is not accessed.
        unsafe {
            assert_eq!(Source::of([huge].as_ptr(), 1).err(), Some(Errno::EINVAL));
            assert_eq!(Room::of([huge].as_ptr(), -1).err(), Some(Errno::EINVAL));
        }
    }
}
