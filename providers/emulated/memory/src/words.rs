//! Loads and stores of memory that other threads change: bytes as relaxed atomics, and the two
//! ordered accesses of the protocol.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Mapped bytes that live as long as the value of their owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    start: *mut u8,
    len: usize,
}

// SAFETY: all accesses are atomic.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// # Safety
    /// `len` bytes at `start` are mapped, readable and writable, as long as the value is used.
    /// Threads of the process access them only atomically, or as the provider does: by code that
    /// the compiler of this library does not see.
    pub(crate) const unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len }
    }

    pub(crate) const fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The address of `len` bytes at `offset`; `None`: beyond the end.
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.start.wrapping_add(offset))
    }

    /// Copies bytes out. False: beyond the end.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, bytes.len()) else { return false };
        for (index, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: within the mapped bytes (checked), which are accessed atomically. Relaxed: an
            // ordered load of the doorbell came before.
            *byte = unsafe { AtomicU8::from_ptr(from.wrapping_add(index)) }.load(Ordering::Relaxed);
        }
        true
    }

    /// Copies bytes in. False: beyond the end.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(to) = self.at(offset, bytes.len()) else { return false };
        for (index, &byte) in bytes.iter().enumerate() {
            // SAFETY: as in `read`. Relaxed: an ordered store publishes the bytes.
            unsafe { AtomicU8::from_ptr(to.wrapping_add(index)) }.store(byte, Ordering::Relaxed);
        }
        true
    }

    /// Loads an aligned doorbell. Acquire: pairs with the provider's store of the doorbell, before
    /// which it stored the entries.
    pub(crate) fn load(&self, offset: usize) -> Option<u32> {
        let at = self.at(offset, 4)?.cast::<u32>();
        // SAFETY: within the mapped bytes and aligned (checked), accessed atomically.
        at.is_aligned().then(|| unsafe { AtomicU32::from_ptr(at) }.load(Ordering::Acquire))
    }

    /// Stores 8 aligned bytes at once. Release: the provider that sees them sees the bytes that
    /// were written before.
    pub(crate) fn publish(&self, offset: usize, bytes: [u8; 8]) -> bool {
        let Some(at) = self.at(offset, 8) else { return false };
        let at = at.cast::<u64>();
        if !at.is_aligned() {
            return false;
        }
        let word = u64::from_ne_bytes(bytes);
        // SAFETY: within the mapped bytes and aligned (checked), accessed atomically.
        unsafe { AtomicU64::from_ptr(at) }.store(word, Ordering::Release);
        true
    }
}
