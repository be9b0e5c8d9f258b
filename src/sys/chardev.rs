//! The kernel's character devices, `/dev/infiniband/uverbsN`. If a device node is missing, udev
//! gets time to announce it as `/dev/char/<major>:<minor>` (`inotify(7)`).

use core::ffi::c_int;
use core::time::Duration;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use cface::Errno;

/// The directory in which udev links every character device by number, after setting its
/// permissions.
const BY_NUMBER: &str = "/dev/char";

/// How long a link may take to appear.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// `/dev/infiniband/<name>`.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new("/dev/infiniband").join(name)
}

/// Opens the device for commands. A node that is no character device, or another one than expected
/// (`cdev` 0 expects nothing), is `ENODEV`; but the function waits for an expected device.
///
/// Never inlined: a caller that opens a device without a node keeps 4 KiB of stack.
#[inline(never)]
pub(crate) fn open(name: &str, cdev: libc::dev_t) -> Result<c_int, Errno> {
    let first = match open_node(&path(name), cdev) {
        Err(error) if cdev != 0 => error,
        done => return done,
    };
    let link = format!("{}:{}", libc::major(cdev), libc::minor(cdev));
    let later =
        wait_for(Path::new(BY_NUMBER), NODE_TIMEOUT, |folder| open_node(&folder.join(&link), cdev));
    // A missing link is less informative than the node's own error.
    later.map_err(|error| if error == Errno::ENOENT { first } else { error })
}

fn open_node(path: &Path, cdev: libc::dev_t) -> Result<c_int, Errno> {
    let file = File::options().read(true).write(true).open(path)?;
    let data = file.metadata()?;
    if !data.file_type().is_char_device() || (cdev != 0 && data.rdev() != cdev) {
        return Err(Errno::ENODEV);
    }
    Ok(file.into_raw_fd())
}

/// Tries again whenever something appears in `folder`, and a last time when `patience` is over.
/// Wait only for a missing device: other errors don't pass by themselves.
fn wait_for(
    folder: &Path,
    patience: Duration,
    mut open: impl FnMut(&Path) -> Result<c_int, Errno>,
) -> Result<c_int, Errno> {
    // Start the watch first, so that no node appears unseen.
    let Ok(mut watch) = Watch::new(folder) else {
        return open(folder);
    };
    let deadline = Instant::now() + patience;
    let mut over = false;
    loop {
        match open(folder) {
            Err(error) if is_absence(error) && !over => over = !watch.wait(deadline)?,
            done => return done,
        }
    }
}

fn is_absence(error: Errno) -> bool {
    matches!(error.raw(), libc::ENOENT | libc::ENODEV | libc::ENXIO)
}

/// Tells when something is created in a folder.
#[derive(Debug)]
struct Watch(File);

impl Watch {
    fn new(folder: &Path) -> Result<Self, Errno> {
        let folder = CString::new(folder.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
        // SAFETY: no requirements.
        let fd = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: just opened, and only ours.
        let watch = Self(unsafe { OwnedFd::from_raw_fd(fd) }.into());
        // SAFETY: a C string.
        if unsafe { libc::inotify_add_watch(fd, folder.as_ptr(), libc::IN_CREATE) } < 0 {
            return Err(Errno::last());
        }
        Ok(watch)
    }

    /// Waits until something is created (or a signal arrives); `false` when the deadline is over.
    fn wait(&mut self, deadline: Instant) -> Result<bool, Errno> {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: the timer must not report an end too early.
        let left = c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX);
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, ours.
        match unsafe { libc::poll(&raw mut poll, 1, left) } {
            0 => return Ok(false),
            1.. => {}
            _ => {
                let error = Errno::last();
                return if error == Errno::EINTR { Ok(true) } else { Err(error) };
            }
        }
        // The content is irrelevant; reading it lets the next call wait.
        let mut events = [0; 4096];
        while matches!(self.0.read(&mut events), Ok(1..)) {}
        Ok(true)
    }
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

#[cfg(test)]
mod tests {
    use super::super::fd;
    use super::*;

    /// Far longer than any of these tests should take.
    const LONG: Duration = Duration::from_secs(120);

    fn folder(tag: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("fv-chardev-{tag}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    fn null_device() -> libc::dev_t {
        std::fs::metadata("/dev/null").expect("there on every system").rdev()
    }

    #[test]
    fn a_node_must_be_the_expected_character_device() {
        let null = open_node(Path::new("/dev/null"), null_device()).expect("its own number");
        assert_eq!(number(null), Some(null_device()));
        fd::close(null);
        fd::close(open_node(Path::new("/dev/null"), 0).expect("nothing expected"));
        let other = libc::makedev(1, 4000);
        assert_eq!(open_node(Path::new("/dev/null"), other), Err(Errno::ENODEV));
        let folder = folder("file");
        let file = folder.join("file");
        std::fs::write(&file, b"").expect("a file");
        assert_eq!(open_node(&file, 0), Err(Errno::ENODEV));
        std::fs::remove_dir_all(folder).expect("cleaning up");
    }

    #[test]
    fn a_device_without_a_node_is_opened_by_its_number() {
        // Where udev does not link devices by number, waiting is refused at once.
        let by_number = Path::new(BY_NUMBER).join("1:3").exists();
        let opened = by_number.then(|| open("no such node", null_device()));
        if let Some(opened) = opened {
            fd::close(opened.expect("/dev/char/1:3 is /dev/null"));
        }
        assert_eq!(open("no such node", 0), Err(Errno::ENOENT));
    }

    #[test]
    fn a_missing_node_is_tried_again_when_a_file_appears() {
        let folder = folder("appears");
        let mut attempts = 0;
        let opened = wait_for(&folder, LONG, |folder| {
            attempts += 1;
            let link = folder.join("1:3");
            let result = open_node(&link, null_device());
            // As udev would, between two attempts: first something else, then ours.
            match attempts {
                1 => drop(File::create(folder.join("1:5")).expect("a file")),
                2 => std::os::unix::fs::symlink("/dev/null", &link).expect("a link"),
                _ => {}
            }
            result
        });
        assert_eq!(attempts, 3);
        fd::close(opened.expect("it appeared"));
        std::fs::remove_dir_all(folder).expect("cleaning up");
    }

    #[test]
    fn waiting_for_a_node_ends_with_one_more_attempt_and_other_errors_are_not_awaited() {
        let folder = folder("patience");
        let attempts_at = |patience, error: Errno| {
            let mut attempts = 0;
            let result = wait_for(&folder, patience, |_| {
                attempts += 1;
                Err(error)
            });
            assert_eq!(result, Err(error));
            attempts
        };
        assert_eq!(attempts_at(Duration::ZERO, Errno::ENOENT), 2);
        assert_eq!(attempts_at(LONG, Errno::from_raw(libc::EACCES)), 1);
        std::fs::remove_dir(&folder).expect("cleaning up");
        assert_eq!(attempts_at(LONG, Errno::ENOENT), 1);
    }
}
