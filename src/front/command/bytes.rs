//! Memory that the kernel reads or writes while a command runs. The kernel gets an address and a
//! length; the lifetimes here keep the memory borrowed until the command is done.

use core::ffi::c_void;
use core::marker::PhantomData;

/// Plain data of the kernel interface.
///
/// # Safety
/// Integers only, without padding: any bytes that the kernel stores are a valid value.
pub(crate) unsafe trait PlainData: Copy {}

macro_rules! plain_data {
    ($($ty:ident)*) => {
        $(
            // SAFETY: a structure of integers, padded explicitly, as its layout assertions show.
            unsafe impl PlainData for $ty {}
        )*
    };
}
pub(crate) use plain_data;

plain_data! { u8 u32 u64 i32 }

/// Bytes for the kernel to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputBytes<'a> {
    start: *const u8,
    len: usize,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> InputBytes<'a> {
    /// No bytes: a NULL address and length 0.
    pub(crate) const NONE: Self = Self { start: core::ptr::null(), len: 0, borrowed: PhantomData };

    /// The bytes of a structure.
    pub(crate) fn of<T: PlainData>(value: &'a T) -> Self {
        Self::slice(core::slice::from_ref(value))
    }

    /// The bytes of an array.
    pub(crate) fn slice<T: PlainData>(values: &'a [T]) -> Self {
        Self { start: values.as_ptr().cast(), len: size_of_val(values), borrowed: PhantomData }
    }

    /// Memory of a provider.
    ///
    /// # Safety
    /// `len` bytes at `start` are readable until `'a` ends, or `len` exceeds 65535, which is
    /// refused without an access.
    pub(crate) const unsafe fn raw(start: *const c_void, len: usize) -> Self {
        Self { start: start.cast(), len, borrowed: PhantomData }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address for the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// The bytes at the front of a word, the rest 0; `None` when there are more than 8. A NULL
    /// address means zeros.
    pub(crate) fn inline(&self) -> Option<u64> {
        let mut word = [0_u8; 8];
        let part = word.get_mut(..self.len)?;
        if !self.start.is_null() {
            // SAFETY: readable by the contract of the constructors; `part` is as long.
            unsafe { self.start.copy_to_nonoverlapping(part.as_mut_ptr(), part.len()) };
        }
        Some(u64::from_ne_bytes(word))
    }

    /// A copy of the bytes.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len);
        self.append_to(&mut copy);
        copy
    }

    /// Appends a copy of the bytes.
    pub(crate) fn append_to(&self, message: &mut Vec<u8>) {
        if self.len > 0 && !self.start.is_null() {
            // SAFETY: readable by the contract of the constructors, and not NULL (checked).
            message.extend_from_slice(unsafe { core::slice::from_raw_parts(self.start, self.len) });
        }
    }
}

/// Bytes for the kernel to write.
#[derive(Debug)]
pub(crate) struct OutputBytes<'a> {
    start: *mut u8,
    len: usize,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> OutputBytes<'a> {
    /// No bytes: a NULL address and length 0.
    pub(crate) const NONE: Self =
        Self { start: core::ptr::null_mut(), len: 0, borrowed: PhantomData };

    /// The bytes of a structure.
    pub(crate) fn of<T: PlainData>(value: &'a mut T) -> Self {
        Self::slice(core::slice::from_mut(value))
    }

    /// The bytes of an array.
    pub(crate) fn slice<T: PlainData>(values: &'a mut [T]) -> Self {
        let len = size_of_val(values);
        Self { start: values.as_mut_ptr().cast(), len, borrowed: PhantomData }
    }

    /// Memory of a provider.
    ///
    /// # Safety
    /// `len` bytes at `start` are exclusively writable until `'a` ends, or `len` exceeds 65535,
    /// which is refused.
    pub(crate) const unsafe fn raw(start: *mut c_void, len: usize) -> Self {
        Self { start: start.cast(), len, borrowed: PhantomData }
    }

    /// The same memory for a shorter time.
    pub(crate) fn reborrow(&mut self) -> OutputBytes<'_> {
        OutputBytes { start: self.start, len: self.len, borrowed: PhantomData }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address for the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// The present content.
    pub(crate) fn as_in(&self) -> InputBytes<'_> {
        InputBytes { start: self.start, len: self.len, borrowed: PhantomData }
    }

    /// Stores as many of `bytes` as fit behind `offset`.
    pub(crate) fn store(&mut self, offset: usize, bytes: &[u8]) {
        let len = self.len.saturating_sub(offset).min(bytes.len());
        if len > 0 {
            // SAFETY: writable by the contract of the constructors, as far as `len` (computed); the
            // exclusive borrow excludes an overlap with `bytes`.
            unsafe { self.start.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), len) };
        }
    }
}

/// The structure at the start of `words`; `None` if they are too few.
pub(crate) fn copy_of<T: PlainData>(words: &[u64]) -> Option<T> {
    // SAFETY: long enough (checked), aligned or not; any bytes are a value.
    (size_of_val(words) >= size_of::<T>())
        .then(|| unsafe { words.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bytes_go_inline_and_nine_do_not() {
        assert_eq!(
            InputBytes::of(&0x1234_u32).inline(),
            Some(u64::from_ne_bytes([0x34, 0x12, 0, 0, 0, 0, 0, 0]))
        );
        assert_eq!(InputBytes::slice(&[0xff_u8; 8]).inline(), Some(u64::MAX));
        assert_eq!(InputBytes::slice(&[0_u8; 9]).inline(), None);
        // SAFETY: not looked at.
        let null = unsafe { InputBytes::raw(core::ptr::null(), 8) };
        assert_eq!(null.inline(), Some(0));
    }

    #[test]
    fn storing_never_exceeds_the_memory() {
        let mut memory = [1_u8; 4];
        OutputBytes::slice(&mut memory[..3]).store(1, &[2; 9]);
        assert_eq!(memory, [1, 2, 2, 1]);
        OutputBytes::of(&mut memory[3]).store(2, &[7]);
        assert_eq!(memory, [1, 2, 2, 1]);
    }
}
