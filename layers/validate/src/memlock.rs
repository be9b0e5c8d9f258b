//! MR-12: explains a failed registration by the limit of locked memory.

use crate::checks::{Id, element};
use crate::native;
use crate::regions;
use crate::report::{is_enabled, report};

/// Checks a registration of `length` bytes that failed with `errno`. The caller restores `errno`.
pub(crate) fn check(call: &str, length: usize, errno: i32) {
    if errno != libc::ENOMEM || !is_enabled(Id::Mr12) {
        return;
    }
    let held = regions::registered_bytes();
    let found = native::locked_memory_limit()
        .and_then(|limit| element::locked_memory(limit, held, length as u64));
    report(call, String::new, found, None);
}
