//! Open directories, and operations on their entries (`openat(2)` and related calls). The fabric
//! directory and its entries are accessed through this module.

use std::{
    ffi::CString,
    fmt,
    fs::File,
    io::Read,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use libc::{c_int, gid_t, mode_t, uid_t};

use super::errno::{Errno, check, check_len, retry};

/// An open directory. Operations refer to this directory, even if its path is reused.
#[derive(Debug)]
pub struct Dir(OwnedFd);

/// The result of `stat(2)`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Device and inode number, which identify an existing file.
    pub id: (u64, u64),
    /// Owner.
    pub uid: uid_t,
    /// Group.
    pub gid: gid_t,
    /// Kind and permissions.
    pub mode: mode_t,
    /// Time of the last write; for a directory, of the last change of its entries.
    pub changed: Stamp,
}

/// A modification time of a file system, whose clock has ticks of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    seconds: i64,
    nanoseconds: i64,
}

impl Stamp {
    /// Whether the time is so long ago that a later change has a different time. False if the clock
    /// was set back since.
    pub fn is_past(self) -> bool {
        let at = Duration::new(self.seconds.try_into().unwrap_or(0), self.nanoseconds as u32);
        SystemTime::now().duration_since(UNIX_EPOCH + at).is_ok_and(|age| age > TICKS)
    }
}

/// Longer than the tick of any file system's clock; some count seconds, or two seconds.
const TICKS: Duration = Duration::from_secs(3);

impl Stat {
    /// Whether the file is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

impl fmt::Debug for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} uid {} gid {} mode {:o}", self.id, self.uid, self.gid, self.mode)
    }
}

/// Whether the last component of a path may be a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// A link is followed.
    Follow,
    /// A link causes `ENOTDIR` or `ELOOP`.
    Refuse,
}

impl Dir {
    /// Opens the directory at `path`.
    pub fn open(path: &Path, links: Links) -> Result<Self, Errno> {
        let flags = match links {
            Links::Follow => 0,
            Links::Refuse => libc::O_NOFOLLOW,
        };
        open(libc::AT_FDCWD, &c_path(path)?, flags | libc::O_DIRECTORY, 0).map(Self)
    }

    /// Opens the directory `name` in this one.
    pub fn open_dir(&self, name: &Path) -> Result<Self, Errno> {
        let flags = libc::O_NOFOLLOW | libc::O_DIRECTORY;
        open(self.0.as_raw_fd(), &c_path(name)?, flags, 0).map(Self)
    }

    /// Opens the file `name` for reading and writing, and creates the file if necessary.
    pub fn open_file(&self, name: &Path, mode: mode_t) -> Result<OwnedFd, Errno> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW;
        open(self.0.as_raw_fd(), &c_path(name)?, flags, mode)
    }

    /// Reads the regular file `name` of at most `most` bytes; `EFBIG` or `EINVAL` otherwise.
    pub fn read_file(&self, name: &Path, most: usize) -> Result<Vec<u8>, Errno> {
        // Non-blocking, because another kind of file could block.
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let fd = open(self.0.as_raw_fd(), &c_path(name)?, flags, 0)?;
        if stat_fd(fd.as_fd())?.mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Errno::EINVAL);
        }
        let mut text = Vec::new();
        File::from(fd).take(most as u64 + 1).read_to_end(&mut text)?;
        if text.len() > most { Err(Errno::from_raw(libc::EFBIG)) } else { Ok(text) }
    }

    /// Renames `from` to `to`, replacing the latter.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        let (from, to, dir) = (c_path(from)?, c_path(to)?, self.0.as_raw_fd());
        // SAFETY: both names are C strings that outlive the call.
        check(unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) })?;
        Ok(())
    }

    /// Creates the directory `name`.
    pub fn make_dir(&self, name: &Path, mode: mode_t) -> Result<(), Errno> {
        let name = c_path(name)?;
        // SAFETY: `name` is a C string that outlives the call.
        check(unsafe { libc::mkdirat(self.0.as_raw_fd(), name.as_ptr(), mode) })?;
        Ok(())
    }

    /// Removes the file or socket `name`.
    pub fn unlink(&self, name: &Path) -> Result<(), Errno> {
        self.remove(name, 0)
    }

    /// Removes the empty directory `name`.
    pub fn remove_dir(&self, name: &Path) -> Result<(), Errno> {
        self.remove(name, libc::AT_REMOVEDIR)
    }

    /// The status of `name` in this directory; a symbolic link is not followed.
    pub fn stat(&self, name: &Path) -> Result<Stat, Errno> {
        let name = c_path(name)?;
        stat_at(self.0.as_raw_fd(), &name, libc::AT_SYMLINK_NOFOLLOW)
    }

    /// Protects the directory from cleaners of temporary directories, which skip a directory with a
    /// BSD lock (`tmpfiles.d(5)`, "Age"), until this descriptor is closed.
    pub fn keep_from_cleaners(&self) {
        // SAFETY: plain integers. A file system without locks needs no protection.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) };
    }

    fn remove(&self, name: &Path, flags: c_int) -> Result<(), Errno> {
        let name = c_path(name)?;
        // SAFETY: `name` is a C string that outlives the call.
        check(unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), flags) })?;
        Ok(())
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Creates the directory `path`.
pub fn make_dir(path: &Path, mode: mode_t) -> Result<(), Errno> {
    let path = c_path(path)?;
    // SAFETY: `path` is a C string that outlives the call.
    check(unsafe { libc::mkdir(path.as_ptr(), mode) })?;
    Ok(())
}

/// Removes the empty directory `path`.
pub fn remove_dir(path: &Path) -> Result<(), Errno> {
    let path = c_path(path)?;
    // SAFETY: `path` is a C string that outlives the call.
    check(unsafe { libc::rmdir(path.as_ptr()) })?;
    Ok(())
}

/// The status of `path`; a symbolic link is followed.
pub fn stat(path: &Path) -> Result<Stat, Errno> {
    stat_at(libc::AT_FDCWD, &c_path(path)?, 0)
}

/// The status of an open file.
pub fn stat_fd(fd: BorrowedFd<'_>) -> Result<Stat, Errno> {
    stat_at(fd.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
}

/// Sets the permissions of an open file or directory, regardless of the umask.
pub fn set_mode(fd: BorrowedFd<'_>, mode: mode_t) -> Result<(), Errno> {
    // SAFETY: plain integers on an open descriptor.
    check(unsafe { libc::fchmod(fd.as_raw_fd(), mode) })?;
    Ok(())
}

/// Sets the group of an open file or directory.
pub fn set_group(fd: BorrowedFd<'_>, group: gid_t) -> Result<(), Errno> {
    // SAFETY: plain integers on an open descriptor; an owner of all ones stays unchanged.
    check(unsafe { libc::fchown(fd.as_raw_fd(), uid_t::MAX, group) })?;
    Ok(())
}

/// Sets permissions and group of the socket file at `path`, which cannot be opened.
pub fn set_path_mode(path: &Path, mode: mode_t, group: Option<gid_t>) -> Result<(), Errno> {
    let path = c_path(path)?;
    if let Some(group) = group {
        // SAFETY: `path` is a C string that outlives the call.
        check(unsafe { libc::lchown(path.as_ptr(), uid_t::MAX, group) })?;
    }
    // SAFETY: `path` is a C string that outlives the call; the mode is a plain integer.
    check(unsafe { libc::chmod(path.as_ptr(), mode) })?;
    Ok(())
}

/// The first 8 bytes of a file, padded with zeros.
pub fn read_word(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut bytes = [0_u8; 8];
    retry(|| {
        // SAFETY: `bytes` has room for the 8 bytes asked for.
        check_len(unsafe { libc::pread(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) })
    })?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Replaces the first 8 bytes of a file.
pub fn write_word(fd: BorrowedFd<'_>, word: u64) -> Result<(), Errno> {
    let bytes = word.to_ne_bytes();
    retry(|| {
        // SAFETY: `bytes` has 8 readable bytes.
        check_len(unsafe { libc::pwrite(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) })
    })?;
    Ok(())
}

fn c_path(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

fn open(dir: c_int, path: &CString, flags: c_int, mode: mode_t) -> Result<OwnedFd, Errno> {
    let fd = retry(|| {
        // SAFETY: `path` is a C string that outlives the call; the mode has the type to which a
        // variadic call promotes it.
        check(unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC, mode) })
    })?;
    // SAFETY: the kernel just made `fd`, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn stat_at(dir: c_int, path: &std::ffi::CStr, flags: c_int) -> Result<Stat, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `path` is a C string that outlives the call; `stat` has room for the result.
    check(unsafe { libc::fstatat(dir, path.as_ptr(), stat.as_mut_ptr(), flags) })?;
    // SAFETY: the call succeeded, so it filled `stat`.
    let stat = unsafe { stat.assume_init() };
    Ok(Stat {
        id: (stat.st_dev, stat.st_ino),
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode,
        changed: Stamp { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_and_its_path_are_the_same_until_it_is_unlinked() {
        let path = std::env::temp_dir().join(format!("fv-dir-test-{}", std::process::id()));
        make_dir(&path, 0o700).unwrap();
        let dir = Dir::open(&path, Links::Refuse).unwrap();
        let name = Path::new("file");
        let file = dir.open_file(name, 0o600).unwrap();
        assert_eq!(stat_fd(file.as_fd()), dir.stat(name));
        assert_eq!(read_word(file.as_fd()), Ok(0));
        write_word(file.as_fd(), 77).unwrap();
        assert_eq!(read_word(file.as_fd()), Ok(77));
        dir.unlink(name).unwrap();
        assert_eq!(dir.stat(name), Err(Errno::ENOENT));
        remove_dir(&path).unwrap();
        assert_eq!(stat(&path), Err(Errno::ENOENT));
    }

    #[test]
    fn a_link_is_refused_where_asked() {
        let path = std::env::temp_dir().join(format!("fv-link-test-{}", std::process::id()));
        std::os::unix::fs::symlink("/", &path).unwrap();
        assert!(Dir::open(&path, Links::Follow).is_ok());
        assert!(Dir::open(&path, Links::Refuse).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
