//! The error number of a failed system call (`errno(3)`).

use std::{fmt, io};

use libc::c_int;

/// A positive error number, such as [`Errno::EINVAL`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(c_int);

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "` of `errno(3)`.")]
                pub const $name: Self = Self(libc::$name);
            )*
        }
    };
}

names! {
    EACCES EADDRINUSE EAGAIN EBADF EBUSY ECONNABORTED ECONNREFUSED ECONNRESET EEXIST EFAULT EINTR
    EINVAL EIO ELOOP EMFILE ENAMETOOLONG ENFILE ENODEV ENOENT ENOMEM ENOSPC ENOSYS ENOTCONN ENOTDIR
    ENOTEMPTY ENXIO EOPNOTSUPP EPERM EPIPE EPROTO EROFS ESRCH ESTALE ETIMEDOUT ETOOMANYREFS
}

impl Errno {
    /// The error number `raw`; zero or a negative value counts as `EIO`, as no call fails with it.
    pub const fn new(raw: c_int) -> Self {
        if raw > 0 { Self(raw) } else { Self::EIO }
    }

    /// What the calling thread's last failed libc call left behind.
    pub fn last() -> Self {
        Self::from(&io::Error::last_os_error())
    }

    /// The positive number itself.
    pub const fn raw(self) -> c_int {
        self.0
    }

    /// Sets the calling thread's `errno`.
    pub fn set(self) {
        // SAFETY: glibc and musl return the address of this thread's errno, which is always valid.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

impl From<&io::Error> for Errno {
    fn from(error: &io::Error) -> Self {
        Self::new(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self::from(&error)
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        // The standard library appends " (os error N)", which tells a user nothing.
        f.write_str(text.split(" (os error").next().unwrap_or(&text))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

impl std::error::Error for Errno {}

/// The result of a call that returns -1 and sets `errno`.
pub(super) fn check(ret: c_int) -> Result<c_int, Errno> {
    if ret < 0 { Err(Errno::last()) } else { Ok(ret) }
}

/// Like [`check`], for calls that return a number of bytes.
pub(super) fn check_len(ret: isize) -> Result<usize, Errno> {
    usize::try_from(ret).map_err(|_| Errno::last())
}

/// Repeats a call for as long as a signal interrupts it.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
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
    fn an_errno_reads_as_its_message_alone() {
        assert_eq!(Errno::ENOENT.to_string(), "No such file or directory");
    }

    #[test]
    fn set_is_seen_by_last() {
        Errno::EPROTO.set();
        assert_eq!(Errno::last(), Errno::EPROTO);
    }

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
