//! The owner in the names of ports, listeners and processes.
//! The owner is one user, or a group whose members meet (`FERROVERBS_FABRIC_GROUP`), as in the
//! adapter.

use std::ffi::{CString, c_char};
use std::sync::OnceLock;

static GROUP: OnceLock<Option<u32>> = OnceLock::new();

/// Whether the owner is a group, whose members have different users.
pub(crate) fn is_group() -> bool {
    GROUP.get_or_init(group).is_some()
}

/// The effective user of this process.
pub(crate) fn effective_id() -> libc::uid_t {
    // SAFETY: geteuid has no requirements.
    unsafe { libc::geteuid() }
}

/// The part of a name that states the owner.
pub(crate) fn owner() -> String {
    match GROUP.get_or_init(group) {
        Some(group) => format!("g{group}"),
        None => effective_id().to_string(),
    }
}

/// The group whose members meet. The adapter reports an unknown group name.
fn group() -> Option<u32> {
    let text = cface::env::trusted("FERROVERBS_FABRIC_GROUP")?;
    let text = text.to_str()?;
    text.parse().ok().or_else(|| group_named(text))
}

/// The number of a group name (`getgrnam_r(3)`).
fn group_named(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut text: Vec<c_char> = vec![0; 1 << 10];
    loop {
        let mut found = std::ptr::null_mut();
        // SAFETY: zeros are a valid group of numbers and NULL; all pointers are to live locals, and
        // the length is the length of `text`.
        let (error, number) = unsafe {
            let mut group: libc::group = std::mem::zeroed();
            let error = libc::getgrnam_r(
                name.as_ptr(),
                &raw mut group,
                text.as_mut_ptr(),
                text.len(),
                &raw mut found,
            );
            (error, group.gr_gid)
        };
        match error {
            libc::ERANGE if text.len() < 1 << 20 => text.resize(text.len() * 4, 0),
            0 if !found.is_null() => return Some(number),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_name() {
        assert_eq!(group_named("root"), Some(0));
        assert_eq!(group_named("no such group"), None);
    }
}
