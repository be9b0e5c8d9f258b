//! Random numbers from the kernel.
//! PSNs, communication ids and the process's GUID come from here.

use rustix::rand::{GetRandomFlags, getrandom};

/// An unpredictable number.
pub(crate) fn number() -> u64 {
    let mut bytes = [0; 8];
    // A read of up to 256 bytes does not fail short.
    if getrandom(&mut bytes[..], GetRandomFlags::empty()) == Ok(bytes.len()) {
        return u64::from_ne_bytes(bytes);
    }
    // An old kernel or a seccomp filter: use the seed of the standard library's hash tables.
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
