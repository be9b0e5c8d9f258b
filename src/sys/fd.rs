//! File descriptors that C code owns. The descriptors of contexts and completion channels are such,
//! so no Rust value owns them.

use core::ffi::{c_int, c_void};

use cface::Errno;

unsafe extern "C-unwind" {
    /// `read(2)`; a thread that is cancelled in the call unwinds.
    fn read(fd: c_int, buffer: *mut c_void, len: usize) -> isize;
}

/// Closes `fd` unless it is negative.
pub(crate) fn close(fd: c_int) {
    if fd >= 0 {
        // SAFETY: the caller owns the descriptor and gives it up.
        unsafe { libc::close(fd) };
    }
}

/// Reads one record of exactly `N` bytes: what the kernel delivers on event descriptors. A short
/// read is `EIO`.
pub(crate) fn read_record<const N: usize>(fd: c_int) -> Result<[u8; N], Errno> {
    let mut record = [0_u8; N];
    // SAFETY: `record` has room for N bytes.
    let read = unsafe { read(fd, record.as_mut_ptr().cast::<c_void>(), N) };
    match usize::try_from(read) {
        Ok(bytes) if bytes == N => Ok(record),
        Ok(_) => Err(Errno::EIO),
        Err(_) => Err(Errno::last()),
    }
}

/// Whether `fd` is an open descriptor.
pub(crate) fn is_open(fd: c_int) -> bool {
    // SAFETY: asks for flags; any number may be asked about.
    unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
}
