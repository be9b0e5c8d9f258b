//! Waiting for what a test cannot be told.

use std::time::{Duration, Instant};

/// What comes at last.
pub(crate) fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(it) = what() {
            return it;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "it does not come");
        std::thread::yield_now();
    }
}
