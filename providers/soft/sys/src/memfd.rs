//! Memory files of fixed size (`memfd_create(2)`, `fcntl(2)` "File Sealing"): the storage of shared
//! segments.

use std::{
    ffi::CStr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::fs::{MemfdFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use super::errno::{Errno, from_rustix, retry};
use super::process;

/// Operations that are forbidden on a memory file. A seal is never removed. With `SHRINK` a mapping
/// of the file never raises `SIGBUS`; with `FUTURE_WRITE` (Linux 5.1) existing writable mappings
/// stay writable.
pub use rustix::fs::SealFlags as Seals;

/// A memory file of known size.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    len: usize,
}

impl Memfd {
    /// Creates a sparse file of `len` bytes; `name` is what `/proc/self/maps` shows.
    ///
    /// # Errors
    /// `EFBIG`: the limit on file sizes is smaller. Otherwise the errno of `memfd_create(2)`.
    pub fn create(name: &CStr, len: usize) -> Result<Self, Errno> {
        // Beyond the limit, ftruncate(2) sends SIGXFSZ, which ends the program.
        if process::file_size_limit() < len as u64 {
            return Err(Errno::from_raw(libc::EFBIG));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Request "not executable", else kernels from 6.3 on log a warning; older kernels do not
        // know the flag.
        let fd = match from_rustix(memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)) {
            Err(Errno::EINVAL) => from_rustix(memfd_create(name, flags))?,
            made => made?,
        };
        retry(|| from_rustix(ftruncate(&fd, len as u64)))?;
        Ok(Self { fd, len })
    }

    /// Adopts a received descriptor, if it is a memory file of exactly `len` bytes with all
    /// `required` seals.
    ///
    /// # Errors
    /// `EINVAL`: not a memory file, or of another size. `EPERM`: a seal is missing.
    pub fn verify(fd: OwnedFd, len: usize, required: Seals) -> Result<Self, Errno> {
        Self::check(fd.as_fd(), len, required)?;
        Ok(Self { fd, len })
    }

    /// Checks a descriptor as [`verify`](Self::verify) does.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn check(fd: BorrowedFd<'_>, len: usize, required: Seals) -> Result<(), Errno> {
        if !from_rustix(fcntl_get_seals(fd))?.contains(required) {
            return Err(Errno::EPERM);
        }
        // Check the size after the seals: an unsealed size may change at any time.
        if usize::try_from(from_rustix(fstat(fd))?.st_size) != Ok(len) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Adds `seals`.
    pub fn seal(&self, seals: Seals) -> Result<(), Errno> {
        from_rustix(fcntl_add_seals(&self.fd, seals))
    }

    /// The seals of the file; `EINVAL`: not a memory file.
    pub fn seals(&self) -> Result<Seals, Errno> {
        from_rustix(fcntl_get_seals(&self.fd))
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Access, Mapping};

    const SIZE: Seals = Seals::SHRINK.union(Seals::GROW).union(Seals::SEAL);

    #[test]
    fn a_sealed_file_keeps_its_size() {
        let file = Memfd::create(c"fv-test", 8192).unwrap();
        file.seal(SIZE).unwrap();
        assert_eq!(from_rustix(ftruncate(&file.fd, 4096)), Err(Errno::EPERM));
    }

    #[test]
    fn a_future_write_seal_leaves_old_mappings_writable_and_refuses_new_ones() {
        let file = Memfd::create(c"fv-test", 4096).unwrap();
        let ours = Mapping::new(file.as_fd(), 4096, Access::ReadWrite).unwrap();
        file.seal(SIZE | Seals::FUTURE_WRITE).unwrap();
        assert!(Mapping::new(file.as_fd(), 4096, Access::ReadWrite).is_err());
        let theirs = Mapping::new(file.as_fd(), 4096, Access::ReadOnly).unwrap();
        // SAFETY: both mappings are one page of the same live file, which only this test uses.
        unsafe { ours.base().write_volatile(7) };
        // SAFETY: `theirs` is a page of the live file, mapped until the end of the test and not
        // written any more.
        assert_eq!(unsafe { theirs.base().read_volatile() }, 7);
    }

    #[test]
    fn verification_refuses_another_size_a_missing_seal_and_other_files() {
        let of = |seals, len| {
            let file = Memfd::create(c"fv-test", 4096).unwrap();
            file.seal(seals).unwrap();
            Memfd::verify(file.fd, len, SIZE).map(|file| file.len())
        };
        assert_eq!(of(SIZE, 4096), Ok(4096));
        assert_eq!(of(SIZE, 8192), Err(Errno::EINVAL));
        assert_eq!(of(Seals::SEAL, 4096), Err(Errno::EPERM));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Memfd::verify(null.into(), 0, SIZE).map(|_| ()), Err(Errno::EINVAL));
    }
}
