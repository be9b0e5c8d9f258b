//! Registered memory for queue pairs of rsockets.
//! The device reads and writes the memory while this process does, so no Rust reference to it
//! exists.

use crate::sys::verbs;
use abi::*;
use cface::Errno;
use std::ptr::null_mut;

/// Pages with their memory region.
#[derive(Debug)]
pub(super) struct Memory {
    base: *mut u8,
    bytes: usize,
    mr: *mut ibv_mr,
}

impl Memory {
    /// New memory of zeros.
    ///
    /// # Errors
    /// The errno of the system or device.
    ///
    /// # Safety
    /// `pd` is live until this value is dropped.
    pub(super) unsafe fn new(pd: *mut ibv_pd, bytes: usize, access: u32) -> Result<Self, Errno> {
        let (read, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new pages at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null_mut(), bytes.max(1), read, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let mut memory = Self { base: base.cast(), bytes: bytes.max(1), mr: null_mut() };
        // SAFETY: the domain is live, and the pages stay until the region is deregistered.
        memory.mr = unsafe { verbs::ibv_reg_mr(pd, base, memory.bytes, access.cast_signed()) };
        if memory.mr.is_null() { Err(Errno::last()) } else { Ok(memory) }
    }

    /// The address of a byte.
    pub(super) fn address_of(&self, at: u32) -> u64 {
        self.base as u64 + u64::from(at)
    }

    /// The local key.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region lives as long as this value.
        unsafe { (*self.mr).lkey }
    }

    /// The remote key.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: the region lives as long as this value.
        unsafe { (*self.mr).rkey }
    }

    /// A pointer to `bytes` bytes at `at`.
    ///
    /// # Errors
    /// `EFAULT` out of range.
    pub(super) fn pointer(&self, at: u32, bytes: usize) -> Result<*mut u8, Errno> {
        let at = at as usize;
        let end = at.checked_add(bytes).filter(|&end| end <= self.bytes);
        end.map(|_| self.base.wrapping_add(at)).ok_or(Errno::EFAULT)
    }

    /// Copies into `to`, which has room for `bytes`.
    ///
    /// # Errors
    /// `EFAULT` out of range.
    ///
    /// # Safety
    /// `to` has room for `bytes` bytes, and is outside of this memory.
    pub(super) unsafe fn read(&self, at: u32, to: *mut u8, bytes: usize) -> Result<(), Errno> {
        let from = self.pointer(at, bytes)?;
        // SAFETY: the range is checked; `to` is valid by contract.
        unsafe { from.copy_to_nonoverlapping(to, bytes) };
        Ok(())
    }

    /// A copy of `N` bytes.
    ///
    /// # Errors
    /// `EFAULT` out of range.
    pub(super) fn array<const N: usize>(&self, at: u32) -> Result<[u8; N], Errno> {
        let mut bytes = [0; N];
        // SAFETY: `bytes` has room for `N` bytes.
        unsafe { self.read(at, bytes.as_mut_ptr(), N)? };
        Ok(bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value owns region and pages. The region is deregistered first; if the device
        // refuses, both stay.
        unsafe {
            if self.mr.is_null() || verbs::ibv_dereg_mr(self.mr) == 0 {
                libc::munmap(self.base.cast(), self.bytes);
            }
        }
    }
}
