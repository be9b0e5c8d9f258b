//! Open directories, and operations on their entries (`openat(2)` and related calls). The fabric
//! directory and its entries are accessed through this module.

use std::{
    fmt,
    fs::File,
    io::Read,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use libc::{gid_t, mode_t, uid_t};
use rustix::fs::{self, AtFlags, CWD, FlockOperation, Gid, Mode, OFlags};
use rustix::io::{pread, pwrite};

use super::errno::{Errno, from_rustix, retry};

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

impl From<fs::Stat> for Stat {
    fn from(stat: fs::Stat) -> Self {
        Self {
            id: (stat.st_dev, stat.st_ino),
            uid: stat.st_uid,
            gid: stat.st_gid,
            mode: stat.st_mode,
            changed: Stamp { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as i64 },
        }
    }
}

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
            Links::Follow => OFlags::empty(),
            Links::Refuse => OFlags::NOFOLLOW,
        };
        open(CWD, path, flags | OFlags::DIRECTORY, 0).map(Self)
    }

    /// Opens the directory `name` in this one.
    pub fn open_dir(&self, name: &Path) -> Result<Self, Errno> {
        open(self.as_fd(), name, OFlags::NOFOLLOW | OFlags::DIRECTORY, 0).map(Self)
    }

    /// Opens the file `name` for reading and writing, and creates the file if necessary.
    pub fn open_file(&self, name: &Path, mode: mode_t) -> Result<OwnedFd, Errno> {
        open(self.as_fd(), name, OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW, mode)
    }

    /// Reads the regular file `name` of at most `most` bytes; `EFBIG` or `EINVAL` otherwise.
    pub fn read_file(&self, name: &Path, most: usize) -> Result<Vec<u8>, Errno> {
        // Non-blocking, because another kind of file could block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = open(self.as_fd(), name, flags, 0)?;
        if stat_fd(fd.as_fd())?.mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Errno::EINVAL);
        }
        let mut text = Vec::new();
        File::from(fd).take(most as u64 + 1).read_to_end(&mut text)?;
        if text.len() > most { Err(Errno::from_raw(libc::EFBIG)) } else { Ok(text) }
    }

    /// Renames `from` to `to`, replacing the latter.
    pub fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        from_rustix(fs::renameat(&self.0, from, &self.0, to))
    }

    /// Creates the directory `name`.
    pub fn make_dir(&self, name: &Path, mode: mode_t) -> Result<(), Errno> {
        from_rustix(fs::mkdirat(&self.0, name, Mode::from_raw_mode(mode)))
    }

    /// Removes the file or socket `name`.
    pub fn unlink(&self, name: &Path) -> Result<(), Errno> {
        from_rustix(fs::unlinkat(&self.0, name, AtFlags::empty()))
    }

    /// Removes the empty directory `name`.
    pub fn remove_dir(&self, name: &Path) -> Result<(), Errno> {
        from_rustix(fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR))
    }

    /// The status of `name` in this directory; a symbolic link is not followed.
    pub fn stat(&self, name: &Path) -> Result<Stat, Errno> {
        from_rustix(fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)).map(Stat::from)
    }

    /// Protects the directory from cleaners of temporary directories, which skip a directory with a
    /// BSD lock (`tmpfiles.d(5)`, "Age"), until this descriptor is closed.
    pub fn keep_from_cleaners(&self) {
        // A file system without locks needs no protection.
        let _ = fs::flock(&self.0, FlockOperation::NonBlockingLockShared);
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Creates the directory `path`.
pub fn make_dir(path: &Path, mode: mode_t) -> Result<(), Errno> {
    from_rustix(fs::mkdir(path, Mode::from_raw_mode(mode)))
}

/// Removes the empty directory `path`.
pub fn remove_dir(path: &Path) -> Result<(), Errno> {
    from_rustix(fs::rmdir(path))
}

/// The status of `path`; a symbolic link is followed.
pub fn stat(path: &Path) -> Result<Stat, Errno> {
    from_rustix(fs::stat(path)).map(Stat::from)
}

/// The status of an open file.
pub fn stat_fd(fd: BorrowedFd<'_>) -> Result<Stat, Errno> {
    from_rustix(fs::fstat(fd)).map(Stat::from)
}

/// Sets the permissions of an open file or directory, regardless of the umask.
pub fn set_mode(fd: BorrowedFd<'_>, mode: mode_t) -> Result<(), Errno> {
    from_rustix(fs::fchmod(fd, Mode::from_raw_mode(mode)))
}

/// Sets the group of an open file or directory.
pub fn set_group(fd: BorrowedFd<'_>, group: gid_t) -> Result<(), Errno> {
    from_rustix(fs::fchown(fd, None, Some(Gid::from_raw(group))))
}

/// Sets permissions and group of the socket file at `path`, which cannot be opened.
pub fn set_path_mode(path: &Path, mode: mode_t, group: Option<gid_t>) -> Result<(), Errno> {
    if let Some(group) = group {
        let group = Some(Gid::from_raw(group));
        from_rustix(fs::chownat(CWD, path, None, group, AtFlags::SYMLINK_NOFOLLOW))?;
    }
    from_rustix(fs::chmod(path, Mode::from_raw_mode(mode)))
}

/// The first 8 bytes of a file, padded with zeros.
pub fn read_word(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut bytes = [0_u8; 8];
    retry(|| from_rustix(pread(fd, &mut bytes, 0)))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Replaces the first 8 bytes of a file.
pub fn write_word(fd: BorrowedFd<'_>, word: u64) -> Result<(), Errno> {
    let bytes = word.to_ne_bytes();
    retry(|| from_rustix(pwrite(fd, &bytes, 0)))?;
    Ok(())
}

fn open(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: mode_t) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(mode);
    retry(|| from_rustix(fs::openat(dir, path, flags | OFlags::CLOEXEC, mode)))
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
