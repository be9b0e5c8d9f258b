//! Random numbers from the kernel.
//! PSNs, communication ids and the process's GUID come from here.

/// An unpredictable number.
pub(crate) fn number() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: eight bytes are writable. A read of up to 256 bytes does not fail short.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 {
        return u64::from_ne_bytes(bytes);
    }
    // An old kernel or a seccomp filter: use the seed of the standard library's hash tables.
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
