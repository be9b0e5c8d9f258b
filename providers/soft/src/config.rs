//! Settings of the adapter that are not the fabric's, read from the environment once.

use std::sync::OnceLock;

/// Messages longer than this are fetched by the receiver in one copy where it can attach to the sender; up to
/// it they are copied twice through a bounce buffer, which costs no system call. `FERROVERBS_SOFT_EAGER`, bytes.
pub(crate) fn eager_bytes() -> usize {
    static EAGER: OnceLock<usize> = OnceLock::new();
    *EAGER.get_or_init(|| {
        let asked = std::env::var("FERROVERBS_SOFT_EAGER").ok();
        asked.and_then(|v| v.parse().ok()).unwrap_or(EAGER_BYTES)
    })
}

const EAGER_BYTES: usize = 8192;
