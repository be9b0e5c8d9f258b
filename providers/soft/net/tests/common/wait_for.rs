//! Polling for a condition that no event reports. The tests wait with it for results that the
//! kernel delivers late.

use std::time::{Duration, Instant};

/// Polls until `what` returns a value, for a bounded time.
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
