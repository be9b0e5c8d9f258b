//! Threads of the library.
//! The agent, the resolver and keep-alive run on such threads.

use cface::Errno;
use std::ptr::null_mut;

/// Address space for the stack of a thread. Only used pages take memory.
const STACK_BYTES: usize = 2 << 20;

/// Starts a thread of the library.
///
/// # Errors
/// The errno of the system.
pub(crate) fn spawn(name: &str, what: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // All signals are blocked: signals belong to the threads of the program.
    // SAFETY: both sets are filled in before they are read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let started = cface::thread::spawn(name, STACK_BYTES, what);
    // SAFETY: the set was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    started.map(drop)
}
