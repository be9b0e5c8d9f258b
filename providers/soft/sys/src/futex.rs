//! Sleeping until another process changes a word of shared memory (`futex(2)`). Helper threads of
//! the adapter and their callers sleep here.

use super::errno::{Errno, check_len, from_rustix};
use rustix::thread::{Timespec, futex};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

unsafe extern "C-unwind" {
    /// `pthread_setcanceltype(3)`.
    fn pthread_setcanceltype(kind: libc::c_int, old: *mut libc::c_int) -> libc::c_int;

    /// `syscall(2)`; a thread that is cancelled in the call unwinds.
    fn syscall(number: libc::c_long, ...) -> libc::c_long;
}

/// `PTHREAD_CANCEL_ASYNCHRONOUS` of glibc and musl.
const ASYNCHRONOUS: libc::c_int = 1;

/// As [`wait`], for the time `most` at most.
///
/// # Errors
/// As `wait`, and `ETIMEDOUT`.
pub fn wait_for(word: &AtomicU32, expected: u32, most: Duration) -> Result<(), Errno> {
    const LONGEST: Timespec = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
    let most = Timespec::try_from(most).unwrap_or(LONGEST);
    result(from_rustix(futex::wait(word, SHARED, expected, Some(&most))))
}

/// Sleeps until a thread calls [`wake`] for the word, unless its value differs from `expected`. May
/// return spuriously.
///
/// # Errors
/// `EINTR`: a signal handler ran that does not restart system calls.
pub fn wait(word: &AtomicU32, expected: u32) -> Result<(), Errno> {
    result(from_rustix(futex::wait(word, SHARED, expected, None)))
}

/// As [`wait`], and a cancellation point as read(2). The caller and its callers must hold no value
/// with a destructor: the thread unwinds through them.
///
/// # Errors
/// As `wait`.
///
/// # Safety
/// The word stays mapped.
pub unsafe fn wait_cancellable(word: *const AtomicU32, expected: u32) -> Result<(), Errno> {
    let mut before = 0;
    // SAFETY: `before` is writable. Only the system call can be cancelled: no lock is taken and
    // nothing is allocated until the previous type is restored.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
    let nothing = std::ptr::null::<libc::timespec>();
    // SAFETY: the word stays mapped by contract, and the kernel only reads it; the NULL timeout
    // means none.
    let slept = unsafe { syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, expected, nothing) };
    // SAFETY: `before` is writable, and holds this thread's previous type; only this thread's type
    // changes.
    unsafe { pthread_setcanceltype(before, &raw mut before) };
    result(check_len(slept as isize).map(drop))
}

/// The word may lie in memory that several processes share.
const SHARED: futex::Flags = futex::Flags::empty();

fn result(slept: Result<(), Errno>) -> Result<(), Errno> {
    match slept {
        // The value has changed: another thread was faster.
        Err(Errno::EAGAIN) => Ok(()),
        slept => slept,
    }
}

/// Wakes one thread of any process that sleeps on the word. Returns whether one slept.
pub fn wake(word: &AtomicU32) -> bool {
    futex::wake(word, SHARED, 1).is_ok_and(|woken| woken > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_sleeper_is_woken_and_a_changed_word_lets_nobody_sleep() {
        let word = AtomicU32::new(7);
        assert!(wait(&word, 6).is_ok(), "the word is not 6");
        assert!(!wake(&word), "nobody sleeps");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Relaxed) == 7 {
                    wait(&word, 7).expect("no signal comes");
                }
            });
            while !wake(&word) {
                std::thread::yield_now();
            }
            word.store(8, Ordering::Relaxed);
            wake(&word);
        });
    }
}
