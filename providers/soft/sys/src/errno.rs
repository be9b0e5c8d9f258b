//! Conversion of failed system calls into [`Errno`] (`errno(3)`). The other modules of this crate
//! check the results of system calls with it.

use libc::c_int;

pub use cface::Errno;

/// The result of a call that returns -1 and sets `errno`.
pub fn check(ret: c_int) -> Result<c_int, Errno> {
    if ret < 0 { Err(Errno::last()) } else { Ok(ret) }
}

/// Like [`check`], for calls that return a number of bytes.
pub fn check_len(ret: isize) -> Result<usize, Errno> {
    usize::try_from(ret).map_err(|_| Errno::last())
}

/// The result of a call of rustix.
pub fn from_rustix<T>(result: rustix::io::Result<T>) -> Result<T, Errno> {
    result.map_err(|errno| Errno::from_raw(errno.raw_os_error()))
}

/// Repeats a call while a signal interrupts it.
pub fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_call_is_repeated() {
        let mut left = 3;
        let done = retry(|| {
            left -= 1;
            if left > 0 { Err(Errno::EINTR) } else { Ok(left) }
        });
        assert_eq!(done, Ok(0));
    }
}
