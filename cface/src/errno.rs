//! The C errno as a value (`errno(3)`). A `verb!` reports errors with this type; `ret.rs`
//! turns the error into the C failure value.

use core::ffi::c_int;
use std::{fmt, io};

/// A positive errno value. `Debug` shows its name, `Display` its message.
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
        impl fmt::Debug for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(other) => write!(f, "errno {other}"),
                }
            }
        }
    };
}

names! {
    EACCES EADDRINUSE EAGAIN EBADF EBUSY ECONNABORTED ECONNREFUSED ECONNRESET EEXIST EFAULT EHOSTUNREACH EINTR
    EINVAL EIO ELOOP EMFILE EMSGSIZE ENAMETOOLONG ENETUNREACH ENFILE ENODATA ENODEV ENOENT ENOMEM ENOSPC ENOSYS
    ENOTCONN ENOTDIR ENOTEMPTY ENOTTY ENXIO EOPNOTSUPP EPERM EPIPE EPROTO EPROTONOSUPPORT EROFS ESRCH ESTALE
    ETIMEDOUT ETOOMANYREFS
}

impl Errno {
    /// From an errno of the kernel, libc or a provider. 0 and negative values become `EIO`, because
    /// a failure must never read as success.
    pub const fn from_raw(raw: c_int) -> Self {
        if raw > 0 { Self(raw) } else { Self::EIO }
    }

    /// The error of the calling thread's last failed libc call.
    pub fn last() -> Self {
        // SAFETY: libc returns the address of this thread's errno, which lives as long as the
        // thread.
        Self::from_raw(unsafe { *libc::__errno_location() })
    }

    /// The positive number.
    pub const fn raw(self) -> c_int {
        self.0
    }

    /// Stores the value as the calling thread's errno.
    pub fn set(self) {
        // SAFETY: libc returns the address of this thread's errno, which lives as long as the
        // thread.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

impl From<&io::Error> for Errno {
    fn from(error: &io::Error) -> Self {
        Self::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
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

impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_never_reads_as_success() {
        assert_eq!(Errno::from_raw(0), Errno::EIO);
        assert_eq!(Errno::from_raw(-22), Errno::EIO);
        assert_eq!(Errno::from_raw(22), Errno::EINVAL);
    }

    #[test]
    fn errno_belongs_to_the_thread() {
        Errno::ENODATA.set();
        assert_eq!(Errno::last(), Errno::ENODATA);
        assert!(
            std::thread::spawn(|| Errno::last() != Errno::ENODATA).join().is_ok_and(|other| other)
        );
    }

    #[test]
    fn an_errno_shows_its_name_and_reads_as_its_message_alone() {
        assert_eq!(format!("{:?}", Errno::ENOENT), "ENOENT");
        assert_eq!(Errno::ENOENT.to_string(), "No such file or directory");
    }
}
