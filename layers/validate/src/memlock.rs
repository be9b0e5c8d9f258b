//! MR-12: explains a failed registration by the limit of locked memory.

use crate::checks::Id;
use crate::report::{Message, emit, wanted};
use crate::state::REGIONS;

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
    let Some(limit) = limit() else { return };
    let held: u64 = {
        let regions = REGIONS.lock();
        let sizes = regions.live.values().filter_map(|mr| mr.range);
        sizes.fold(0, |sum, (start, end)| sum.saturating_add(end - start))
    };
    let Some(text) = told(limit, held, length as u64) else { return };
    emit(
        &Message {
            id: Id::Mr12,
            call,
            object: String::new(),
            text,
            remedy: "raise RLIMIT_MEMLOCK: ulimit -l unlimited, /etc/security/limits.d, LimitMEMLOCK=infinity, --ulimit memlock=-1"
                .into(),
            also: None,
        },
        None,
    );
}

/// The text, if the limit is smaller than the registered and the requested bytes.
fn told(limit: u64, held: u64, asked: u64) -> Option<String> {
    if held.saturating_add(asked) <= limit {
        return None;
    }
    let kib = |bytes: u64| bytes.div_ceil(1024);
    Some(format!(
        "ENOMEM: {} KiB may be locked, {} KiB are registered, and this one has {} KiB",
        limit / 1024,
        kib(held),
        kib(asked)
    ))
}

#[cfg(test)]
mod tests {
    use super::told;

    #[test]
    fn only_what_the_limit_is_too_small_for_is_told() {
        assert_eq!(told(8 << 20, 4 << 20, 4 << 20), None);
        let text = told(8 << 20, 4 << 20, (4 << 20) + 1).expect("too much");
        assert_eq!(
            text,
            "ENOMEM: 8192 KiB may be locked, 4096 KiB are registered, and this one has 4097 KiB"
        );
        assert!(told(65536, u64::MAX, u64::MAX).is_some());
    }
}
