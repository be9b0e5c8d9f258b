//! The C entry points, a file for each verbs object: check the arguments, call the engine, hand
//! over the result. libibverbs calls them through the operations table of a context.

mod ah;
mod buf;
pub(crate) mod builder;
mod context;
mod context_identity;
mod counters;
mod cq;
pub(crate) mod cq_ex;
mod device;
mod dm;
mod dmabuf;
mod dmah;
mod domain;
mod ece;
pub(crate) mod emulated;
mod flow;
mod frontend;
mod mcast;
mod mr;
mod mr_import;
mod mw;
mod orphaned;
mod other_end;
mod pd;
pub(crate) mod post;
mod processes;
pub(crate) mod qp;
mod query;
mod srq;
mod state;
mod tags;
mod wire;
mod wq;
mod xrcd;

use soft_sys::Errno;
use std::ffi::c_int;

/// The `int` convention: 0, or the positive errno, with errno set as well. With a kernel device the
/// failed system call sets errno, and programs print it (`perror`).
fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    cface::boundary(|| body().map(|()| 0))
}

/// The same convention for entry points of the fast path, outside of [`cface::boundary`].
#[cold]
fn failed(errno: Errno) -> c_int {
    cface::Ret::fail(errno)
}

/// The pointer convention: the object, or NULL with errno set.
fn object<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    cface::boundary(body)
}
