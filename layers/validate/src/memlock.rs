//! MR-12: explains a failed registration by the limit of locked memory.

use crate::checks::{Id, element};
use crate::regions;
use crate::report::{report, wanted};

/// Bytes that this process may lock; `None` without a limit.
fn limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local variable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Checks a registration of `length` bytes that failed with `errno`. The caller restores `errno`.
pub(crate) fn check(call: &str, length: usize, errno: i32) {
    if errno != libc::ENOMEM || !wanted(Id::Mr12) {
        return;
    }
    let held = regions::registered_bytes();
    let found = limit().and_then(|limit| element::locked_memory(limit, held, length as u64));
    report(call, String::new, found, None);
}
