//! Random numbers, by the kernel.

/// One that nobody can predict.
pub(crate) fn number() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: eight bytes are writable. So few are always there, at once.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 {
        return u64::from_ne_bytes(bytes);
    }
    // An old kernel, or a filter: what the standard library has for its tables.
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
