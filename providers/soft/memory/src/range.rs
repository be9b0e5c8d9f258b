//! A run of bytes that others may change at any time: checked application memory, or a bounce
//! buffer.

use crate::guard::{self, UnmappedSide};
use std::marker::PhantomData;

/// Bytes of this process's memory, to be copied from and to. Laid out as `struct iovec`.
///
/// The creator has checked that the bytes may be used, and for how long. Copies need no further
/// promise. No reference to the bytes is ever made, because threads of the application and other
/// processes write them at any time. `'static`: the creator's promise has no scope that the
/// compiler knows, as for registered memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Range<'a> {
    base: *mut u8,
    len: usize,
    bytes: PhantomData<&'a mut [u8]>,
}

// SAFETY: an address and a length, which any thread may use: each access is a raw copy, covered by
// the promise of the creator. A range of a borrowed buffer has no such promise and stays in its
// thread.
unsafe impl Send for Range<'static> {}
// SAFETY: a shared range has the same two numbers, which never change.
unsafe impl Sync for Range<'static> {}

const _: () = assert!(size_of::<Range>() == size_of::<libc::iovec>());
const _: () = assert!(std::mem::offset_of!(libc::iovec, iov_len) == 8);

impl<'a> Range<'a> {
    /// The bytes of a buffer of this thread, borrowed as long as a copy of the range lives.
    #[inline]
    pub const fn of(bytes: &'a mut [u8]) -> Self {
        Self { base: bytes.as_mut_ptr(), len: bytes.len(), bytes: PhantomData }
    }

    /// The bytes of a word of this thread.
    #[inline]
    pub const fn of_word(word: &'a mut u64) -> Self {
        Self::of(bytes_of_mut(std::slice::from_mut(word)))
    }

    /// `len` bytes at `base`.
    ///
    /// # Safety
    /// While a copy of the range is in use, the bytes are readable, and writable where the range is
    /// a target. No reference to them is used meanwhile. (An application may unmap registered
    /// memory: see [`guard`].)
    #[inline]
    pub const unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len, bytes: PhantomData }
    }

    /// `len` bytes at an address of this process.
    ///
    /// # Safety
    /// While a copy of the range is in use, the bytes are readable, and writable where the range is
    /// a target. No reference to them is used meanwhile.
    #[inline]
    pub const unsafe fn at(address: u64, len: usize) -> Self {
        Self { base: address as usize as *mut u8, len, bytes: PhantomData }
    }

    /// The first byte.
    #[inline]
    pub const fn base(self) -> *mut u8 {
        self.base
    }

    /// The first address.
    #[inline]
    pub fn address(self) -> u64 {
        self.base as usize as u64
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether the range is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The part `offset..offset + len`, limited to the range.
    #[inline]
    pub fn part(self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        Self { base: self.base.wrapping_add(offset), len: len.min(self.len - offset), ..self }
    }

    /// The first `len` bytes, or the whole range.
    #[inline]
    pub fn first(self, len: usize) -> Self {
        Self { len: len.min(self.len), ..self }
    }

    /// Copies as many bytes as both ranges have. The ranges may overlap. Returns false if the
    /// source is unmapped. An unmapped target loses the bytes.
    #[inline]
    #[must_use]
    pub fn copy_to(self, to: Range<'_>) -> bool {
        // SAFETY: as many bytes as both have (contract of `new`).
        let copied = unsafe { guard::copy(self.base, to.base, self.len.min(to.len)) };
        copied != Err(UnmappedSide::Source)
    }

    /// Copies as much of `bytes` as fits. An unmapped range loses the bytes.
    #[inline]
    pub fn copy_from(self, bytes: &[u8]) {
        // SAFETY: as many bytes as both have; the contract of `new` covers the range.
        let _ = unsafe { guard::copy(bytes.as_ptr(), self.base, self.len.min(bytes.len())) };
    }

    /// Copies to `bytes` as much as both have. Returns false if the range is unmapped.
    #[inline]
    #[must_use]
    pub fn get(self, bytes: &mut [u8]) -> bool {
        // SAFETY: as many bytes as both have; the contract of `new` covers the range.
        unsafe { guard::copy(self.base, bytes.as_mut_ptr(), self.len.min(bytes.len())) }.is_ok()
    }

    /// Changes the first word of the range and returns its previous value. The change is atomic
    /// among holders of this process's lock of atomics, and for an aligned word among all
    /// processors. `None`: the memory is unmapped.
    pub fn update(self, change: impl Fn(u64) -> u64) -> Option<u64> {
        let word = self.word();
        let mut old = 0u64;
        // SAFETY: eight bytes of the range (`word`), and of a local word.
        unsafe { guard::copy(word.cast(), (&raw mut old).cast(), 8) }.ok()?;
        if !word.is_aligned() {
            // A region may map an aligned address to an odd one.
            let new = change(old);
            // SAFETY: eight bytes of a local word, and of the range (`word`).
            return unsafe { guard::copy((&raw const new).cast(), word.cast(), 8) }
                .ok()
                .map(|()| old);
        }
        loop {
            // Atomic also for adapters of other processes that share the memory.
            // SAFETY: eight bytes of the range (`word`), and aligned.
            let seen = unsafe { guard::compare_exchange(word, old, change(old)) }?;
            if std::mem::replace(&mut old, seen) == seen {
                return Some(seen);
            }
        }
    }

    /// Stores the first word of the range. If the word is aligned, one store writes it, so that a
    /// concurrent reader never sees a part. Returns false if the memory is unmapped.
    #[must_use]
    pub fn store(self, value: u64) -> bool {
        let word = self.word();
        if word.is_aligned() {
            // SAFETY: eight bytes of the range (`word`), and aligned.
            unsafe { guard::store(word, value) }
        } else {
            // SAFETY: eight bytes of a local word, and of the range (`word`).
            unsafe { guard::copy((&raw const value).cast(), word.cast(), 8) }.is_ok()
        }
    }

    fn word(self) -> *mut u64 {
        assert!(self.len >= 8, "a word of {} bytes", self.len);
        self.base.cast()
    }
}

/// The bytes of words.
#[inline]
pub const fn bytes_of(words: &[u64]) -> &[u8] {
    // SAFETY: the same memory; bytes have no alignment, and any byte is valid.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// The bytes of words, for writing.
#[inline]
pub const fn bytes_of_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: the same memory, borrowed exclusively; bytes have no alignment, and any bytes make a
    // word.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_never_goes_beyond_the_end() {
        let mut bytes = [0; 10];
        let range = Range::of(&mut bytes);
        assert_eq!((range.part(4, 100).len(), range.part(11, 1).len()), (6, 0));
        assert_eq!((range.first(11).len(), range.first(3).len()), (10, 3));
        assert_eq!(range.part(usize::MAX, usize::MAX).address(), range.address() + 10);
    }

    #[test]
    fn a_copy_is_as_long_as_the_shorter_side() {
        let (mut from, mut to) = ([1, 2, 3, 4], [0; 6]);
        assert!(Range::of(&mut from).copy_to(Range::of(&mut to)));
        Range::of(&mut to).part(4, 2).copy_from(&[5, 6, 7]);
        let mut got = [0; 9];
        assert!(Range::of(&mut to).get(&mut got));
        assert_eq!(got, [1, 2, 3, 4, 5, 6, 0, 0, 0]);
    }

    #[test]
    fn a_word_is_changed_wherever_it_lies() {
        let mut words = [0u64; 2];
        let range = Range::of(bytes_of_mut(&mut words));
        for at in 0..8 {
            let word = range.part(at, 8);
            assert!(word.store(40));
            assert_eq!(word.update(|old| old + 2), Some(40));
            assert_eq!(word.update(|old| old), Some(42));
        }
    }
}
