//! Threads that a program does not know about (`pthread_create(3)`).
//!
//! The standard library starts a thread with memory of malloc(3) alone, and ends the process
//! without it. It does the same where a thread first asks for its own handle
//! (`std::thread::current`). So our libraries start threads by [`spawn`], and compare threads by
//! [`Id`].

use core::ffi::c_void;
use core::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Errno;

/// A thread of this process. The number can be used again when the thread has ended.
#[derive(Clone, Copy, Debug)]
pub struct Id(libc::pthread_t);

impl Id {
    /// The calling thread.
    pub fn own() -> Self {
        // SAFETY: takes nothing and cannot fail.
        Self(unsafe { libc::pthread_self() })
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        // SAFETY: the call compares two numbers.
        unsafe { libc::pthread_equal(self.0, other.0) != 0 }
    }
}

impl Eq for Id {}

/// A thread that [`spawn`] started. Once dropped, the thread goes on, and nobody can wait for it.
#[derive(Debug)]
pub struct Thread {
    id: Id,
    is_over: Arc<AtomicBool>,
}

impl Thread {
    /// Which thread it is.
    pub const fn id(&self) -> Id {
        self.id
    }

    /// Whether the thread's function has returned, so that [`Self::join`] does not wait for long.
    pub fn is_finished(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Waits until the thread has ended. A panic of the thread was printed, and is otherwise
    /// ignored.
    pub fn join(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: the thread was neither joined nor detached, because both consume the handle, and
        // `this` is not used again.
        unsafe {
            libc::pthread_join(this.id.0, core::ptr::null_mut());
            drop(core::ptr::read(&raw const this.is_over));
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the thread was neither joined nor detached.
        unsafe { libc::pthread_detach(self.id.0) };
    }
}

/// The argument of a new thread.
struct Start {
    /// With its NUL; the kernel keeps 15 bytes of a name.
    name: [u8; 16],
    is_over: Arc<AtomicBool>,
    body: Box<dyn FnOnce() + Send>,
}

/// Starts a thread with a stack of `stack_bytes`. The thread inherits the signal mask.
///
/// `name` has at most 15 bytes; the rest is cut off (`pthread_setname_np(3)`).
///
/// # Errors
/// `EAGAIN` no memory for a stack, or the limit on threads; `EINVAL` the stack is too small.
pub fn spawn(
    name: &str,
    stack_bytes: usize,
    body: impl FnOnce() + Send + 'static,
) -> Result<Thread, Errno> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut start = Start { name: [0; 16], is_over: Arc::clone(&is_over), body: Box::new(body) };
    for (to, from) in start.name[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    let start = Box::into_raw(Box::new(start));
    let mut id = MaybeUninit::uninit();
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let stack_bytes = stack_bytes.next_multiple_of(crate::mem::page_size());
    // SAFETY: `attributes` is initialised before it is used, and destroyed once. A new thread owns
    // `start`.
    let error = unsafe {
        let mut error = libc::pthread_attr_init(attributes.as_mut_ptr());
        if error == 0 {
            error = libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack_bytes);
            if error == 0 {
                let attributes = attributes.as_ptr();
                error = libc::pthread_create(id.as_mut_ptr(), attributes, run, start.cast());
            }
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
        error
    };
    if error != 0 {
        // SAFETY: there is no thread that owns it.
        drop(unsafe { Box::from_raw(start) });
        return Err(Errno::from_raw(error));
    }
    // SAFETY: pthread_create(3) succeeded and wrote it.
    Ok(Thread { id: Id(unsafe { id.assume_init() }), is_over })
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` made it of a box, and gives it to this thread alone.
    let Start { name, is_over, body } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: a string with a NUL.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr().cast()) };
    // The hook has printed a panic.
    let _ = catch_unwind(AssertUnwindSafe(body));
    is_over.store(true, Ordering::Release);
    core::ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const STACK: usize = 256 << 10;

    #[test]
    fn a_thread_has_its_name_and_ends_when_its_function_returns() {
        let (output, heard) = channel();
        let (go, wait) = channel::<()>();
        let thread = spawn("fv-a-name-that-is-long", STACK, move || {
            let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default();
            output.send((Id::own(), name)).unwrap();
            wait.recv().unwrap();
        });
        let thread = thread.unwrap();
        assert_eq!(heard.recv().unwrap(), (thread.id(), "fv-a-name-that-\n".to_owned()));
        assert!(!thread.is_finished() && thread.id() != Id::own());
        go.send(()).unwrap();
        thread.join();
    }

    #[test]
    fn a_panic_ends_a_thread_and_nothing_else() {
        let thread = spawn("fv-test", STACK, || panic!("expected by this test")).unwrap();
        while !thread.is_finished() {
            std::thread::yield_now();
        }
        drop(thread);
    }

    #[test]
    fn what_cannot_be_started_is_dropped() {
        let (held, holder) = channel::<()>();
        let error = spawn("fv-test", 1, move || drop(held)).err();
        assert_eq!(error, Some(Errno::EINVAL));
        assert!(holder.recv().is_err(), "the other end was dropped");
    }
}
