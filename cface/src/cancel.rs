//! Defers thread cancellation during calls that must not end early (`pthread_setcancelstate(3)`).
//!
//! A cancelled thread unwinds from its present cancellation point, such as the write(2) that wakes
//! a peer. Unwinding must not happen while locks are held or destructors are pending. Exceptions,
//! as upstream: the sleep in ibv_get_cq_event(3) of the software adapter, and the reads of events.

use std::ffi::c_int;

unsafe extern "C" {
    /// `pthread_setcancelstate(3)`.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const DISABLE: c_int = 1;

/// Defers a cancellation of this thread until the drop.
#[derive(Debug)]
pub struct Uncancelled(c_int);

impl Uncancelled {
    /// From now on.
    pub fn begin() -> Self {
        let mut before = DISABLE;
        // SAFETY: `before` is writable. A refused call changes nothing, here or at the drop.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut ours = DISABLE;
        // SAFETY: the state was this thread's own.
        unsafe { pthread_setcancelstate(self.0, &raw mut ours) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> c_int {
        let mut before = -1;
        // SAFETY: `before` is writable; the state is set back at once.
        unsafe {
            pthread_setcancelstate(DISABLE, &raw mut before);
            pthread_setcancelstate(before, std::ptr::null_mut());
        }
        before
    }

    #[test]
    fn the_previous_state_returns_when_the_outermost_guard_ends() {
        let at_first = state();
        let outer = Uncancelled::begin();
        let inner = Uncancelled::begin();
        drop(inner);
        assert_eq!(state(), DISABLE);
        drop(outer);
        assert_eq!(state(), at_first);
    }
}
