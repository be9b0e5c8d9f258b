//! The process: values that the child of fork(2) creates again, the owner in the names of ports and
//! listeners, threads, and functions that run at fork and exit.
//!
//! A child has neither the threads nor usable descriptors of its parent, and a thread of the parent
//! may have held any lock at the fork.

use cface::Errno;
use std::ffi::{CString, c_char};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The id of this process.
pub(crate) fn process() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

/// The value of one process.
struct ProcessValue<T> {
    process: i32,
    value: T,
}

/// A static with one value for each process, at first the default.
pub(crate) struct PerProcess<T>(AtomicPtr<ProcessValue<T>>, PhantomData<T>);

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// A static without a value.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()), PhantomData)
    }

    /// The value of this process. Takes no lock.
    pub(crate) fn get(&'static self) -> &'static T {
        let own = process();
        // Before the first call in a child, the pointer is to the parent's value. Acquire pairs
        // with the AcqRel exchange below, which publishes the new value.
        let mut at = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: NULL, or from below and never freed.
            if let Some(known) = unsafe { at.as_ref() }.filter(|known| known.process == own) {
                return &known.value;
            }
            let new = Box::into_raw(Box::new(ProcessValue { process: own, value: T::default() }));
            match self.0.compare_exchange(at, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: made just before, and never freed.
                Ok(_) => return unsafe { &(*new).value },
                Err(other) => {
                    // SAFETY: made just before, and not shared.
                    drop(unsafe { Box::from_raw(new) });
                    at = other;
                }
            }
        }
    }
}

/// The part of a name that states the owner: a group, whose members have different users, or this
/// user.
pub(crate) fn owner() -> String {
    static GROUP: OnceLock<Option<u32>> = OnceLock::new();
    match GROUP.get_or_init(group) {
        Some(group) => format!("g{group}"),
        None => rustix::process::geteuid().as_raw().to_string(),
    }
}

/// The group whose members meet. The adapter reports an unknown group name.
fn group() -> Option<u32> {
    let text = cface::env::trusted("FERROVERBS_FABRIC_GROUP")?;
    let text = text.to_str()?;
    text.parse().ok().or_else(|| group_named(text))
}

/// The number of a group name (`getgrnam_r(3)`).
fn group_named(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut text: Vec<c_char> = vec![0; 1 << 10];
    loop {
        let mut found = null_mut();
        // SAFETY: zeros are a valid group of numbers and NULL; all pointers are to live locals, and
        // the length is the length of `text`.
        let (error, number) = unsafe {
            let mut group: libc::group = std::mem::zeroed();
            let error = libc::getgrnam_r(
                name.as_ptr(),
                &raw mut group,
                text.as_mut_ptr(),
                text.len(),
                &raw mut found,
            );
            (error, group.gr_gid)
        };
        match error {
            libc::ERANGE if text.len() < 1 << 20 => text.resize(text.len() * 4, 0),
            0 if !found.is_null() => return Some(number),
            _ => return None,
        }
    }
}

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

/// Runs `function` when this process exits by itself.
pub(crate) fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function has no requirements; this library has endless threads, and is never
    // unloaded.
    unsafe { libc::atexit(function) };
}

/// Runs the functions in the thread that forks, before fork(2) and after it in both processes.
pub(crate) fn at_fork(
    before: extern "C" fn(),
    in_parent: extern "C" fn(),
    in_child: extern "C" fn(),
) {
    // SAFETY: the functions belong to this library; glibc removes them if the library is unloaded.
    // A failure only affects children.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use cface::sync::Mutex;

    #[test]
    fn a_group_is_found_by_its_name() {
        assert_eq!(group_named("root"), Some(0));
        assert_eq!(group_named("no such group"), None);
    }

    #[test]
    fn a_child_does_not_wait_for_its_parents_threads() {
        static KNOWN: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
        KNOWN.get().lock().push(7);
        let held = KNOWN.get().lock();
        // SAFETY: the child calls only functions that need no other thread of this process, and
        // _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mine = KNOWN.get().try_lock();
            let right = mine.is_some_and(|mine| mine.is_empty());
            // SAFETY: _exit has no requirements.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        assert_eq!(*held, [7]);
        let mut status = -1;
        // SAFETY: a child of this process; `status` is writable.
        let got = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((got, status), (child, 0), "the child has a new value");
    }
}
