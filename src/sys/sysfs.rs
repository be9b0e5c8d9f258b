//! Reading sysfs: its mount point, and its one-line files. Enumeration, GIDs and the exported sysfs
//! functions read through it.

use std::ffi::{CString, OsStr};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use once_cell::sync::OnceCell;

use super::env;
use cface::Errno;

/// Longest root we accept.
const MAX_ROOT: usize = 255;

/// Where sysfs is mounted: `SYSFS_PATH` (not in privileged programs) or `/sys`. The string lives
/// for ever, as `ibv_get_sysfs_path` hands it out.
pub(crate) fn root() -> &'static CString {
    static ROOT: OnceCell<CString> = OnceCell::new();
    ROOT.get_or_init(|| {
        let mut path =
            env::trusted("SYSFS_PATH").map_or_else(|| b"/sys".to_vec(), OsStringExt::into_vec);
        path.truncate(MAX_ROOT);
        while path.len() > 1 && path.last() == Some(&b'/') {
            path.pop();
        }
        CString::new(path).unwrap_or_default()
    })
}

/// `<sysfs>/class/<name>`.
pub(crate) fn class(name: &str) -> PathBuf {
    Path::new(OsStr::from_bytes(root().to_bytes())).join("class").join(name)
}

/// True if the kernel wrote a file: the file is in a file system of type sysfs, or `SYSFS_PATH`
/// names the folder of all files. `ferroverbs run` shows devices in `/sys` that no kernel has, in
/// another file system.
pub(crate) fn is_of_kernel(path: &Path) -> bool {
    if root().as_bytes() != b"/sys" {
        return true;
    }
    is_in_sysfs(path)
}

fn is_in_sysfs(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut found = core::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: a path that ends with NUL, and a structure to be written.
    if unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: statfs succeeded, so the structure is written.
    unsafe { found.assume_init() }.f_type == libc::SYSFS_MAGIC
}

/// As [`read_raw`], into a buffer of ours.
pub(crate) fn read_into(path: &Path, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: a writable buffer.
    unsafe { read_raw(path, buffer.as_mut_ptr(), buffer.len()) }
}

/// The one primitive of rdma-core: one `read` into `buffer`; a newline at the end becomes NUL,
/// otherwise a NUL is added if there is room. Returns the length of the text.
///
/// # Errors
/// Of `open` and `read`; `EMSGSIZE` when the file fills the buffer without a newline.
///
/// # Safety
/// `buffer` is writable for `size` bytes, or for the content of the file and one more.
pub(crate) unsafe fn read_raw(path: &Path, buffer: *mut u8, size: usize) -> Result<usize, Errno> {
    let file = std::fs::File::open(path)?;
    // SAFETY: the kernel writes what the file has, and no more than `size` bytes: by the contract
    // there is room.
    let len = unsafe { libc::read(file.as_raw_fd(), buffer.cast(), size) };
    let len = usize::try_from(len).map_err(|_| Errno::last())?;
    // SAFETY: the byte before `len` was just read, if it exists; the one at `len` is within `size`
    // bytes where it is used.
    unsafe {
        if len > 0 && *buffer.add(len - 1) == b'\n' {
            *buffer.add(len - 1) = 0;
            return Ok(len - 1);
        }
        if len == size {
            return Err(Errno::EMSGSIZE);
        }
        *buffer.add(len) = 0;
    }
    Ok(len)
}

/// A short text file without its newline.
pub(crate) fn read_text(path: &Path) -> Result<String, Errno> {
    let mut buffer = [0_u8; 256];
    let len = read_into(path, &mut buffer)?;
    Ok(String::from_utf8_lossy(buffer.get(..len).unwrap_or_default()).into_owned())
}

/// The decimal number a file starts with.
pub(crate) fn read_number(path: &Path) -> Option<u32> {
    let text = read_text(path).ok()?;
    let digits: &str = text.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// `major:minor`.
pub(crate) fn read_dev(path: &Path) -> Option<libc::dev_t> {
    let text = read_text(path).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(tag: &str, content: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("fv-sysfs-{tag}-{}", std::process::id()));
        std::fs::write(&path, content).expect("a temporary file");
        path
    }

    #[test]
    fn the_newline_is_removed_and_the_text_must_fit_into_the_buffer() {
        let path = file("read", b"abc\n");
        let mut buffer = [b'x'; 8];
        assert_eq!(read_into(&path, &mut buffer), Ok(3));
        assert_eq!(&buffer[..5], b"abc\0x");
        assert_eq!(read_into(&path, &mut [0; 4]), Ok(3));
        assert_eq!(read_into(&path, &mut [0; 3]), Err(Errno::EMSGSIZE));
        std::fs::remove_file(&path).expect("cleaning up");
        assert_eq!(read_into(&path, &mut buffer), Err(Errno::ENOENT));
    }

    #[test]
    fn a_file_of_another_file_system_is_not_the_kernels() {
        let path = file("other", b"231:192\n");
        assert!(!is_in_sysfs(&path) && !is_in_sysfs(Path::new("/not/there")));
        assert!(is_in_sysfs(Path::new("/sys/kernel")) || !Path::new("/sys/kernel").exists());
        std::fs::remove_file(&path).expect("cleaning up");
    }

    #[test]
    fn numbers_and_device_numbers_are_parsed_from_the_start() {
        let path = file("number", b"4: RNIC\n");
        assert_eq!(read_number(&path), Some(4));
        std::fs::write(&path, b"231:192\n").expect("a temporary file");
        assert_eq!(read_dev(&path), Some(libc::makedev(231, 192)));
        std::fs::write(&path, b"none\n").expect("a temporary file");
        assert_eq!((read_number(&path), read_dev(&path)), (None, None));
        std::fs::remove_file(&path).expect("cleaning up");
    }
}
