//! Keeping cancellations of threads out of calls that cannot be left half done (`pthread_setcancelstate(3)`).
//!
//! A thread that is cancelled unwinds from whatever cancellation point it is in: write(2), which wakes a peer, is one. That must not be
//! where locks are held or destructors wait. One call may be left so, as upstream's may: the sleep in ibv_get_cq_event(3)
//! of our adapter, and the reads of events.

use std::ffi::c_int;

unsafe extern "C" {
    /// `pthread_setcancelstate(3)`.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const DISABLE: c_int = 1;

/// While it lives, a cancellation of this thread waits.
#[derive(Debug)]
pub struct Uncancelled(c_int);

impl Uncancelled {
    /// From now on.
    pub fn begin() -> Self {
        let mut before = DISABLE;
        // SAFETY: `before` is writable. Where it is refused nothing changes, then or when it ends.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut ours = DISABLE;
        // SAFETY: the state is one that this very thread had.
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
    fn the_state_of_before_comes_back_with_the_outermost() {
        let at_first = state();
        let outer = Uncancelled::begin();
        let inner = Uncancelled::begin();
        drop(inner);
        assert_eq!(state(), DISABLE);
        drop(outer);
        assert_eq!(state(), at_first);
    }
}
