//! The C errno as a value (`errno(3)`).

use core::ffi::c_int;

/// A positive errno value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(c_int);

macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub const $name: Self = Self(libc::$name);
            )*
        }
        impl core::fmt::Debug for Errno {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(other) => write!(f, "errno {other}"),
                }
            }
        }
    };
}

names! {
    EAGAIN EBUSY EEXIST EFAULT EHOSTUNREACH EINTR EINVAL EIO EMSGSIZE ENETUNREACH ENODATA ENODEV ENOENT EPERM
    ENOMEM ENOSPC ENOSYS ENOTTY EOPNOTSUPP EPROTONOSUPPORT
}

impl Errno {
    /// From a value the kernel, libc or a provider gave; 0 and negative values become `EIO`, so that a
    /// failure can never read as success.
    pub const fn from_raw(raw: c_int) -> Self {
        if raw > 0 { Self(raw) } else { Self::EIO }
    }

    /// The calling thread's errno.
    pub fn last() -> Self {
        // SAFETY: libc returns the address of this thread's errno, which lives as long as the thread.
        Self::from_raw(unsafe { *libc::__errno_location() })
    }

    /// The positive number.
    pub const fn raw(self) -> c_int {
        self.0
    }

    /// Stores it as the calling thread's errno.
    pub fn set(self) {
        // SAFETY: libc returns the address of this thread's errno, which lives as long as the thread.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

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
    fn errno_is_the_threads_own() {
        Errno::ENODATA.set();
        assert_eq!(Errno::last(), Errno::ENODATA);
        assert!(
            std::thread::spawn(|| Errno::last() != Errno::ENODATA).join().is_ok_and(|other| other)
        );
    }
}
