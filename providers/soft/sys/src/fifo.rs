//! Named pipes (`fifo(7)`) into which other programs write lines. The provider reads control
//! commands from such a pipe.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::errno::{Errno, from_rustix};
use super::process;

/// The reading end of a named pipe. A writing end is open too, so that reads never report the end.
#[derive(Debug)]
pub struct Fifo {
    file: File,
    /// The path of a pipe that this process created and must remove.
    created_path: Option<PathBuf>,
}

impl Fifo {
    /// Opens the pipe at `path`, or creates it for this user alone.
    ///
    /// # Errors
    /// `EEXIST`: another kind of file. `EPERM`: another user owns the pipe, or others may write to
    /// it. Otherwise the errno of `mkfifo(3)` or `open(2)`.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let made = match from_rustix(mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0))
        {
            Ok(()) => true,
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
        Ok(Self { file, created_path: made.then(|| path.to_path_buf()) })
    }

    /// Appends all written bytes to `to`.
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

    /// Removes the pipe if this process created it.
    pub fn remove(&self) {
        if let Some(path) = &self.created_path {
            // Another process may have removed it.
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
    fn written_lines_are_read_and_the_creator_removes_the_pipe() {
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
