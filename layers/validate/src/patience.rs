//! Conditions that another thread may be about to end, such as an event without acknowledgement. A
//! check reports a condition only after some time.

use std::time::{Duration, Instant};

/// Time that a condition must last before a message.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// The result of `left` if it remains `Some` for `GRACE`. The call that follows would wait for the
/// same condition.
pub(crate) fn persists<T>(left: impl Fn() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        let now = left()?;
        if begin.elapsed() >= GRACE {
            return Some(now);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
