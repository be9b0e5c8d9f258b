//! Cross-memory attach: copies between this process and another one of the same user
//! (`process_vm_readv(2)`, Linux 3.2). The kernel allows it by the rules of `ptrace(2)`.

use std::fmt;

use libc::{c_ulong, c_void, pid_t};

use crate::Range;
use soft_sys::errno::{Errno, check_len};

/// A range of addresses in this process or in another, laid out as `struct iovec`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct IoVec(libc::iovec);

// SAFETY: a pair of numbers; only the functions of this module turn them into an access, and they
// say what the caller answers for.
unsafe impl Send for IoVec {}
// SAFETY: through a shared IoVec its two numbers can only be read, which is no access to the memory that they name.
unsafe impl Sync for IoVec {}

impl IoVec {
    /// `len` bytes from `address` on, of whichever process the range is used with.
    #[inline]
    pub const fn new(address: u64, len: usize) -> Self {
        Self(libc::iovec { iov_base: address as usize as *mut c_void, iov_len: len })
    }

    /// First address.
    #[inline]
    pub fn address(&self) -> u64 {
        self.0.iov_base as usize as u64
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Whether the range has no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.iov_len == 0
    }
}

impl fmt::Debug for IoVec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x}", self.address(), self.len())
    }
}

/// The most ranges one call takes on either side (`IOV_MAX`).
pub const MAX_RANGES: usize = 1024;

/// Copies from `remote` ranges of process `pid` into `local` ranges of ours; both sides are runs
/// of bytes, and their ranges need not match. Returns how many bytes arrived, which is fewer than
/// asked for where a remote range turned out bad after the first page.
///
/// A process number is reused after its process has died: what was read from a peer counts only if
/// the peer was not dead afterwards.
///
/// # Errors
/// `ESRCH` no such process; `EPERM` not ours to attach; `EFAULT` an address is not mapped there, or
/// not here; `EINVAL` more than [`MAX_RANGES`] ranges.
pub fn read(pid: pid_t, local: &[Range], remote: &[IoVec]) -> Result<usize, Errno> {
    let (local_count, remote_count) = counts(local, remote)?;
    // SAFETY: IoVec and Range are laid out as `iovec`; the counts are those of the slices; the kernel checks
    // every address, and the local ones may be written (contract of Range).
    check_len(unsafe {
        libc::process_vm_readv(
            pid,
            local.as_ptr().cast(),
            local_count,
            remote.as_ptr().cast(),
            remote_count,
            0,
        )
    })
}

/// Copies from `local` ranges of ours into `remote` ranges of process `pid`; otherwise as [`read`].
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// `pid` is a process that expects its `remote` ranges to be written: a number reused by another
/// process of the user would be that one's corruption.
pub unsafe fn write(pid: pid_t, local: &[Range], remote: &[IoVec]) -> Result<usize, Errno> {
    let (local_count, remote_count) = counts(local, remote)?;
    // SAFETY: IoVec and Range are laid out as `iovec`; the counts are those of the slices; the kernel checks
    // every address, and the caller answers for the remote ones.
    check_len(unsafe {
        libc::process_vm_writev(
            pid,
            local.as_ptr().cast(),
            local_count,
            remote.as_ptr().cast(),
            remote_count,
            0,
        )
    })
}

/// As [`read`], from the one range that the kernel finds at `remote` when it begins: somebody else may change it until then.
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// `remote` is an address of this process that stays mapped.
pub unsafe fn read_where(
    pid: pid_t,
    local: &[Range],
    remote: *const IoVec,
) -> Result<usize, Errno> {
    let (count, _) = counts(local, &[])?;
    // SAFETY: Range is laid out as `iovec`, the count is that of the slice, and the ranges may be written (contract of
    // Range). `remote` stays mapped, as the caller says: only the kernel reads the one `iovec` there, and it checks
    // every address.
    check_len(unsafe {
        libc::process_vm_readv(pid, local.as_ptr().cast(), count, remote.cast(), 1, 0)
    })
}

/// As [`write()`], to the one range that the kernel finds at `remote` when it begins.
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// `pid` is a process that expects to be written whatever range the kernel finds at `remote`; `remote` is an address of
/// this process that stays mapped.
pub unsafe fn write_where(
    pid: pid_t,
    local: &[Range],
    remote: *const IoVec,
) -> Result<usize, Errno> {
    let (count, _) = counts(local, &[])?;
    // SAFETY: Range is laid out as `iovec`, the count is that of the slice, and the ranges may be read (contract of
    // Range). `remote` stays mapped: only the kernel reads the one `iovec` there, and it checks every address; the
    // caller answers for the range.
    check_len(unsafe {
        libc::process_vm_writev(pid, local.as_ptr().cast(), count, remote.cast(), 1, 0)
    })
}

/// Reads the number at `address` of process `pid`.
pub fn read_u64(pid: pid_t, address: u64) -> Result<u64, Errno> {
    let mut bytes = [0_u8; 8];
    // SAFETY: exactly `bytes`, which is ours alone.
    let local = unsafe { Range::new(bytes.as_mut_ptr(), bytes.len()) };
    let len = read(pid, &[local], &[IoVec::new(address, bytes.len())])?;
    if len == bytes.len() { Ok(u64::from_ne_bytes(bytes)) } else { Err(Errno::EFAULT) }
}

fn counts(local: &[Range], remote: &[IoVec]) -> Result<(c_ulong, c_ulong), Errno> {
    if local.len() > MAX_RANGES || remote.len() > MAX_RANGES {
        return Err(Errno::EINVAL);
    }
    Ok((local.len() as c_ulong, remote.len() as c_ulong))
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_sys::process;

    #[test]
    fn bytes_move_both_ways_across_unequal_ranges() {
        let from = *b"cross-memory";
        let mut to = [0_u8; 12];
        let there = |offset, len| IoVec::new(from.as_ptr() as u64 + offset, len);
        let dst = to.as_mut_ptr();
        // SAFETY: the two parts of `to`.
        let local = unsafe { [Range::new(dst, 5), Range::new(dst.add(5), 7)] };
        assert_eq!(read(process::id(), &local, &[there(0, 12)]), Ok(12));
        assert_eq!(to, from);
        // SAFETY: only read.
        let tail = unsafe { Range::at(from.as_ptr() as u64 + 7, 5) };
        // SAFETY: the process is this one and the range is the first five bytes of `to`.
        let len = unsafe { write(process::id(), &[tail], &[IoVec::new(dst as u64, 5)]) };
        assert_eq!(len, Ok(5));
        assert_eq!(&to, b"emory-memory");
    }

    #[test]
    fn a_bad_remote_address_is_a_fault() {
        assert_eq!(read_u64(process::id(), 8), Err(Errno::EFAULT));
    }
}
