//! Named pipes (`fifo(7)`) that others write lines into.

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
};

use super::errno::{Errno, check};
use super::process;

/// The reading end of a named pipe. It has a writing end too, so that the pipe never ends.
#[derive(Debug)]
pub struct Fifo {
    file: File,
    /// Where it is, if it was made here: it is removed again.
    made: Option<PathBuf>,
}

impl Fifo {
    /// Opens the pipe at `path`, or makes it, for this user alone.
    ///
    /// # Errors
    /// `EEXIST` something else is there; `EPERM` it is another user's, or others may write to it; those of `mkfifo(3)` and `open(2)`.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
        // SAFETY: a string with its end.
        let made = match check(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }) {
            Ok(_) => true,
            Err(Errno::EEXIST) => false,
            Err(other) => return Err(other),
        };
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
            .open(path);
        let file = opened.map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO)))?;
        let about = file.metadata().map_err(|_| Errno::EIO)?;
        if !about.file_type().is_fifo() {
            return Err(Errno::EEXIST);
        }
        if about.uid() != process::user() || about.mode() & 0o022 != 0 {
            return Err(Errno::EPERM);
        }
        Ok(Self { file, made: made.then(|| path.to_path_buf()) })
    }

    /// Appends what was written to `to`; nothing if that is nothing.
    pub fn read(&self, to: &mut Vec<u8>) {
        let mut bytes = [0; 4096];
        loop {
            match (&self.file).read(&mut bytes) {
                Ok(0) => return,
                Ok(n) => to.extend_from_slice(bytes.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Removes the pipe if it was made here.
    pub fn remove(&self) {
        if let Some(path) = &self.made {
            // Somebody may have done so before.
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Fifo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("fv-fifo-{}-{name}", process::id()))
    }

    #[test]
    fn what_is_written_is_read_and_the_pipe_goes_with_who_made_it() {
        let path = place("made");
        let fifo = Fifo::open(&path).unwrap();
        let again = Fifo::open(&path).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().write_all(b"port-down\n").unwrap();
        let mut got = vec![];
        fifo.read(&mut got);
        fifo.read(&mut got);
        assert_eq!(got, b"port-down\n");
        again.remove();
        assert!(path.exists(), "not by another one");
        fifo.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_file_of_another_kind_is_left_alone() {
        let path = place("file");
        fs::write(&path, "mine").unwrap();
        assert_eq!(Fifo::open(&path).err(), Some(Errno::EEXIST));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_pipe_that_others_may_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let path = place("open");
        let fifo = Fifo::open(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(Fifo::open(&path).err(), Some(Errno::EPERM));
        fifo.remove();
    }
}
