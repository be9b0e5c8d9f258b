//! Shared mappings of a file (`mmap(2)`).

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
};

use super::errno::Errno;

/// What a mapping lets this process do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read. A store through the mapping raises `SIGSEGV`.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// A shared mapping of the first [`len`](Self::len) bytes of a file, unmapped on drop.
///
/// Another process may write these bytes at any time: copy them out through raw pointers or
/// atomics, and never form a `&[u8]` to them.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: the type only hands out addresses; whoever dereferences one answers for the access. The
// mapping belongs to the process and not to a thread, so any thread may unmap it.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` changes nothing.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, wherever the kernel likes.
    pub fn new(fd: BorrowedFd<'_>, len: usize, access: Access) -> Result<Self, Errno> {
        let protection = match access {
            Access::ReadOnly => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a NULL address without MAP_FIXED never replaces a mapping that someone uses.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let base = NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Self { base, len, access })
    }

    /// First byte; page aligned, and valid for as long as the mapping lives. A store through it
    /// faults if the mapping [is not writable](Self::is_writable).
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes; never 0.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: the kernel makes no empty mapping.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether this process may store through the mapping.
    pub fn is_writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    /// Leaves the bytes out of core dumps; for memory that another process owns.
    pub fn exclude_from_dumps(&self) {
        // SAFETY: the range is exactly our own mapping, and the advice changes no byte of it.
        // A kernel that refuses the advice only makes dumps larger.
        let _ = unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_DONTDUMP) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `new` mapped; that addresses taken from `base` are no
        // longer used follows from its documentation.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memfd::Memfd;

    #[test]
    fn two_mappings_of_a_file_show_the_same_bytes() {
        let file = Memfd::create(c"fv-test", 8192).unwrap();
        let one = Mapping::new(file.as_fd(), file.len(), Access::ReadWrite).unwrap();
        let two = Mapping::new(file.as_fd(), file.len(), Access::ReadOnly).unwrap();
        assert!(one.is_writable() && !two.is_writable());
        // SAFETY: offset 5000 is inside both 8192-byte mappings, which nobody else uses.
        unsafe { one.base().add(5000).write_volatile(0x5a) };
        // SAFETY: as above.
        assert_eq!(unsafe { two.base().add(5000).read_volatile() }, 0x5a);
    }

    #[test]
    fn an_empty_mapping_is_refused() {
        let file = Memfd::create(c"fv-test", 4096).unwrap();
        assert_eq!(Mapping::new(file.as_fd(), 0, Access::ReadOnly).map(|_| ()), Err(Errno::EINVAL));
    }
}
