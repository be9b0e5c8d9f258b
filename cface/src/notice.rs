//! Messages to the user on stderr.
//!
//! `std::io::stderr()` has a process-wide lock; a child of fork(2) would wait for ever if another
//! thread held the lock. `eprintln!` panics if stderr has no reader. Hence this module calls
//! write(2).

use core::ffi::c_int;
use core::fmt::Arguments;

use crate::cancel::Uncancelled;

/// Writes one line to stderr in a single write, because processes of a job often share stderr.
/// Failures are ignored; errno stays unchanged.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => {
        $crate::notice::line(::core::format_args!($($arg)*))
    };
}

/// Behind [`say!`].
pub fn line(text: Arguments<'_>) {
    put(libc::STDERR_FILENO, format!("{text}\n").as_bytes());
}

/// Several lines on stderr, which end with a line's end themselves; otherwise as [`say!`].
pub fn lines(text: &str) {
    put(libc::STDERR_FILENO, text.as_bytes());
}

fn put(to: c_int, mut bytes: &[u8]) {
    let _whole = Uncancelled::begin();
    // SAFETY: the calling thread's own.
    let saved = unsafe { *libc::__errno_location() };
    while !bytes.is_empty() {
        // SAFETY: our own bytes; write(2) reports an invalid descriptor.
        let got = unsafe { libc::write(to, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(got) {
            Ok(got) if got > 0 => bytes = bytes.get(got..).unwrap_or_default(),
            Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {
            }
            _ => break,
        }
    }
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = saved };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_message_is_one_write_and_a_closed_stderr_is_no_failure() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        put(writer.as_raw_fd(), b"soft: /tmp/fabric: not there\n");
        let mut got = [0; 64];
        let length = reader.read(&mut got).expect("it was written");
        assert_eq!(&got[..length], b"soft: /tmp/fabric: not there\n");
        drop(reader);
        // SAFETY: the calling thread's own.
        unsafe { *libc::__errno_location() = libc::EXDEV };
        // Rust and Python programs ignore SIGPIPE, so the write fails with EPIPE.
        put(writer.as_raw_fd(), b"again\n");
        put(-1, b"nowhere\n");
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EXDEV));
    }
}
