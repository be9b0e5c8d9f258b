//! The pthread locks inside C objects, which providers and inline code use too. Rust code of the
//! project takes them with [`Guard`], and counts acknowledged events with [`acknowledge`].

/// Holds a `pthread_mutex_t` until dropped.
#[derive(Debug)]
pub struct Guard(*mut libc::pthread_mutex_t);

impl Guard {
    /// Locks `mutex`.
    ///
    /// # Safety
    /// `mutex` is initialised and outlives the guard.
    pub unsafe fn lock(mutex: *mut libc::pthread_mutex_t) -> Self {
        // SAFETY: initialised, by the contract above.
        unsafe { libc::pthread_mutex_lock(mutex) };
        Self(mutex)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: locked by `lock`, still alive by its contract.
        unsafe { libc::pthread_mutex_unlock(self.0) };
    }
}

/// Initialises the lock and condition of a fresh object with default attributes.
///
/// # Safety
/// Both point to memory that is not in use yet.
pub unsafe fn init(mutex: *mut libc::pthread_mutex_t, cond: *mut libc::pthread_cond_t) {
    // SAFETY: writable by the contract above.
    unsafe {
        libc::pthread_mutex_init(mutex, core::ptr::null());
        libc::pthread_cond_init(cond, core::ptr::null());
    }
}

/// Adds `count` acknowledged events to a counter, and wakes the destroying thread that waits for
/// it.
///
/// # Safety
/// All three pointers belong to one live object.
pub unsafe fn acknowledge(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    counter: *mut u32,
    count: u32,
) {
    // SAFETY: an initialised lock of a live object; the counter is only accessed under the lock.
    unsafe {
        let guard = Guard::lock(mutex);
        *counter = (*counter).wrapping_add(count);
        libc::pthread_cond_signal(cond);
        drop(guard);
    }
}
