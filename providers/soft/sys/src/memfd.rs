//! Memory files of fixed size (`memfd_create(2)`, `fcntl(2)` "File Sealing"): the storage of shared
//! segments.

use std::{
    ffi::CStr,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use libc::{c_int, c_uint};

use super::errno::{Errno, check, retry};
use super::process;

bitflags::bitflags! {
    /// Operations that are forbidden on a memory file. A seal is never removed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Seals: c_int {
        /// No further seals.
        const SEAL = libc::F_SEAL_SEAL;
        /// The file does not shrink: a mapping of it never raises `SIGBUS`.
        const SHRINK = libc::F_SEAL_SHRINK;
        /// The file does not grow.
        const GROW = libc::F_SEAL_GROW;
        /// No new writable mapping and no `write(2)`; existing writable mappings stay writable
        /// (Linux 5.1).
        const FUTURE_WRITE = 0x10;
        const _ = !0;
    }
}

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
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // Request "not executable", else kernels from 6.3 on log a warning; older kernels do not
        // know the flag.
        let fd = match create(name, flags | MFD_NOEXEC_SEAL) {
            Err(Errno::EINVAL) => create(name, flags)?,
            made => made?,
        };
        let size = libc::off_t::try_from(len).map_err(|_| Errno::EINVAL)?;
        // SAFETY: plain integers; `fd` is open for the length of the call.
        retry(|| check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) }))?;
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
        if !seals_of(fd)?.contains(required) {
            return Err(Errno::EPERM);
        }
        // Check the size after the seals: an unsealed size may change at any time.
        if u64::try_from(len) != Ok(size(fd)?) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Adds `seals`.
    pub fn seal(&self, seals: Seals) -> Result<(), Errno> {
        // SAFETY: F_ADD_SEALS takes an int; `self.fd` is open.
        check(unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_ADD_SEALS, seals.bits()) })?;
        Ok(())
    }

    /// The seals of the file; `EINVAL`: not a memory file.
    pub fn seals(&self) -> Result<Seals, Errno> {
        seals_of(self.fd.as_fd())
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

fn seals_of(fd: BorrowedFd<'_>) -> Result<Seals, Errno> {
    // SAFETY: F_GET_SEALS takes no argument; `fd` is open.
    let bits = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
    Ok(Seals::from_bits_retain(bits))
}

fn create(name: &CStr, flags: c_uint) -> Result<OwnedFd, Errno> {
    // SAFETY: `name` is a C string that outlives the call.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
    // SAFETY: the kernel just made `fd`, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` has room for what the call writes; `fd` is open.
    check(unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it filled `stat`.
    u64::try_from(unsafe { stat.assume_init() }.st_size).map_err(|_| Errno::EINVAL)
}

/// `MFD_NOEXEC_SEAL` of `<linux/memfd.h>`, Linux 6.3.
const MFD_NOEXEC_SEAL: c_uint = 0x8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Access, Mapping};

    const SIZE: Seals = Seals::SHRINK.union(Seals::GROW).union(Seals::SEAL);

    #[test]
    fn a_sealed_file_keeps_its_size() {
        let file = Memfd::create(c"fv-test", 8192).unwrap();
        file.seal(SIZE).unwrap();
        // SAFETY: plain integers on a descriptor this test owns.
        let ret = check(unsafe { libc::ftruncate(file.fd.as_raw_fd(), 4096) });
        assert_eq!(ret, Err(Errno::EPERM));
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
