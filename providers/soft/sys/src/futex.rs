//! Sleeping on a word of shared memory until another process changes it (`futex(2)`).

use super::errno::{Errno, check_len};
use std::sync::atomic::AtomicU32;

unsafe extern "C-unwind" {
    /// `pthread_setcanceltype(3)`.
    fn pthread_setcanceltype(kind: libc::c_int, old: *mut libc::c_int) -> libc::c_int;

    /// `syscall(2)`; a thread that is cancelled in it unwinds.
    fn syscall(number: libc::c_long, ...) -> libc::c_long;
}

/// `PTHREAD_CANCEL_ASYNCHRONOUS` of glibc and musl.
const ASYNCHRONOUS: libc::c_int = 1;

/// Sleeps until somebody calls [`wake`] for the word, unless its value is not `expected` any more. May return for no reason.
///
/// # Errors
/// `EINTR` a signal handler ran that does not restart system calls.
pub fn wait(word: &AtomicU32, expected: u32) -> Result<(), Errno> {
    // SAFETY: a live word of ours.
    result(unsafe { sleep(word, expected) })
}

/// As [`wait`], and a cancellation point, as read(2) is. The caller, and whoever called him, has nothing to drop: the thread unwinds
/// through them.
///
/// # Errors
/// As `wait`.
///
/// # Safety
/// The word stays mapped.
pub unsafe fn wait_cancellable(word: *const AtomicU32, expected: u32) -> Result<(), Errno> {
    let mut before = 0;
    // SAFETY: `before` is writable. The system call is all that is cancelled: no lock is taken, and nothing allocated, between here
    // and where the old type is back.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
    // SAFETY: the caller says that the word stays mapped, which is what `sleep` asks for.
    let slept = result(unsafe { sleep(word, expected) });
    // SAFETY: `before` is writable, and holds the type that this very thread had; nothing but this thread's type is
    // changed.
    unsafe { pthread_setcanceltype(before, &raw mut before) };
    slept
}

/// # Safety
/// The word stays mapped.
unsafe fn sleep(word: *const AtomicU32, expected: u32) -> libc::c_long {
    let nothing = std::ptr::null::<libc::timespec>();
    // SAFETY: the caller says that the word stays mapped, and the kernel only reads it; the NULL timeout means none.
    unsafe { syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, expected, nothing) }
}

fn result(returned: libc::c_long) -> Result<(), Errno> {
    match check_len(returned as isize) {
        // The value is another one: somebody was faster.
        Err(Errno::EAGAIN) | Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Wakes one thread that sleeps on the word, of whichever process. Returns whether there was one.
pub fn wake(word: &AtomicU32) -> bool {
    // SAFETY: the reference keeps the word for this call, in which the kernel only uses its address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) > 0 }
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
