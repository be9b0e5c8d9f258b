//! What libibverbs calls: one file for each verbs object, thin on purpose. Check, call the engine, hand over.

mod ah;
mod badge;
mod buf;
pub(crate) mod builder;
mod context;
mod counters;
mod cq;
pub(crate) mod cq_ex;
mod device;
mod dm;
mod domain;
mod flow;
mod frontend;
mod mcast;
mod mr;
mod mr_import;
mod mw;
mod pd;
mod post;
pub(crate) mod qp;
mod query;
mod srq;
mod tags;
mod wq;
mod xrcd;

use crate::sys::Errno;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The `int` convention: 0, or the positive errno, as [`failed`] tells it. A panic, which would be a bug, becomes EIO rather than
/// unwinding into C.
fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(errno)) => failed(errno),
        Err(_) => failed(Errno::EIO),
    }
}

/// The positive errno, with errno set: where a kernel serves a verb, the system call that failed has set it, and programs
/// print it (`perror`).
#[cold]
fn failed(errno: Errno) -> c_int {
    errno.set();
    errno.raw()
}

/// The pointer convention: the object, or NULL with errno set.
fn object<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    let errno = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(object)) => return object,
        Ok(Err(errno)) => errno,
        Err(_) => Errno::EIO,
    };
    errno.set();
    std::ptr::null_mut()
}
