//! The kernel's character devices, `/dev/infiniband/uverbsN`.

use core::ffi::c_int;
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::ffi::Errno;

/// `/dev/infiniband/<name>`.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new("/dev/infiniband").join(name)
}

/// Opens the device for commands. A node that is no character device, or another one than expected
/// (`cdev` 0 expects nothing), is `ENODEV`.
pub(crate) fn open(name: &str, cdev: libc::dev_t) -> Result<c_int, Errno> {
    let file = File::options().read(true).write(true).open(path(name))?;
    let data = file.metadata()?;
    if !data.file_type().is_char_device() || (cdev != 0 && data.rdev() != cdev) {
        return Err(Errno::ENODEV);
    }
    Ok(file.into_raw_fd())
}

/// The number of the character device behind a descriptor; `None` for anything else.
pub(crate) fn number(fd: c_int) -> Option<libc::dev_t> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fstat fills the structure, or fails.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled by fstat.
    let stat = unsafe { stat.assume_init() };
    (stat.st_mode & libc::S_IFMT == libc::S_IFCHR).then_some(stat.st_rdev)
}
