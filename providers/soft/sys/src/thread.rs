//! Threads of the library, which the application does not know. Signal handlers of the application
//! do not run in them.

use std::{mem::MaybeUninit, ptr, thread, time::Duration};

use cface::thread::spawn;
pub use cface::thread::{Id, Thread};

use super::Errno;

/// The first and the largest pause between two wake-ups of a thread that must end.
const CALL_AGAIN: Duration = Duration::from_micros(20);
const CALL_AGAIN_MOST: Duration = Duration::from_millis(5);

/// Starts a thread in which no signal handler of the application runs. All signals are blocked
/// except those of the thread's own faults, because blocking these would turn a handled fault into
/// a kill (`sigprocmask(2)`).
///
/// `name` has at most 15 bytes (`pthread_setname_np(3)`).
///
/// # Errors
/// `ENOMEM`: no memory. `EAGAIN`: the limit on threads is reached (`pthread_create(3)`).
pub fn spawn_quiet(
    name: &str,
    stack_bytes: usize,
    body: impl FnOnce() + Send + 'static,
) -> Result<Thread, Errno> {
    cface::reserve::look_for_memory()?;
    let before = block_signals();
    let thread = spawn(name, stack_bytes, body);
    // SAFETY: `before` was filled by the call that blocked the signals.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    thread
}

/// Makes this thread wait for its turn instead of preempting others (`SCHED_BATCH` of sched(7)).
pub fn yield_to_others() {
    // SAFETY: a local structure. If refused, the thread keeps its policy.
    unsafe {
        let nothing = MaybeUninit::<libc::sched_param>::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, nothing.as_ptr());
    }
}

/// Waits until a thread has ended that ends when woken by `call`. Calls repeatedly: if other
/// processes can write the wake-up object, or sleep on it, one wake-up may be lost.
pub fn end_called(thread: Thread, call: impl Fn()) {
    let mut pause = CALL_AGAIN;
    loop {
        call();
        if thread.is_finished() {
            break;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(CALL_AGAIN_MOST);
    }
    thread.join();
}

#[cfg(any(test, feature = "testing"))]
pub mod testing {
    //! Queries of threads for tests.

    use std::path::PathBuf;

    /// A thread of this process, as seen by other threads.
    #[derive(Clone, Debug)]
    pub struct ThreadHandle(PathBuf);

    /// Gives the calling thread a descriptor table of its own, a copy: what other threads open from
    /// now on is not in it.
    ///
    /// # Panics
    /// The kernel refuses.
    pub fn unshare_descriptors() {
        // SAFETY: the thread goes on with copies of all descriptors.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0, "a table of its own");
    }

    impl ThreadHandle {
        /// The calling thread.
        pub fn current() -> Self {
            Self(std::fs::canonicalize("/proc/thread-self").expect("proc(5) is mounted"))
        }

        /// Whether the thread sleeps in the kernel; false after its end.
        pub fn sleeps(&self) -> bool {
            let status = std::fs::read_to_string(self.0.join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:\tS"))
        }
    }
}

/// Blocks this thread's signals and returns the previous mask; a new thread inherits the mask.
fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `sigfillset` initialises the set; the other calls take an initialised set and real
    // signal numbers, and the last one fills `before` (zeros, an empty set, should it ever fail).
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn blocked(signal: libc::c_int) -> bool {
        let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: a NULL new set only reads the mask into `mask`, which zeros initialise.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), mask.as_mut_ptr());
            libc::sigismember(mask.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn a_thread_that_misses_calls_is_called_until_it_ends() {
        let (calls, calls_there) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
        let heard = Arc::clone(&calls_there);
        let ends = move || {
            while heard.load(Ordering::Relaxed) < 3 {
                thread::sleep(Duration::from_micros(50));
            }
        };
        let thread = spawn_quiet("fv-test", 256 << 10, ends).unwrap();
        end_called(thread, || {
            calls.fetch_add(1, Ordering::Relaxed);
            calls_there.fetch_add(1, Ordering::Relaxed);
        });
        assert!(calls.into_inner() >= 3);
    }

    #[test]
    fn signals_are_blocked_in_the_thread_and_not_in_its_parent() {
        let thread = spawn_quiet("fv-test", 256 << 10, || {
            assert!(blocked(libc::SIGUSR1) && blocked(libc::SIGTERM));
            assert!(!blocked(libc::SIGSEGV));
        });
        thread.unwrap().join();
        assert!(!blocked(libc::SIGUSR1));
    }
}
