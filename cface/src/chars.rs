//! Fixed-size C strings inside structures, as the kernel and providers read them. Enumeration and
//! the list of devices store names and sysfs paths with these functions.
//! `c_char` is signed on x86-64 and unsigned on aarch64.

use core::ffi::c_char;
use std::path::Path;

/// The bytes before the first NUL.
pub fn bytes(chars: &[c_char]) -> Vec<u8> {
    chars.iter().take_while(|&&c| c != 0).map(|&c| byte(c)).collect()
}

/// Stores `text` with a NUL; `None`: too long, and nothing was stored.
#[must_use]
pub fn store(into: &mut [c_char], text: &[u8]) -> Option<()> {
    if text.len() >= into.len() || text.contains(&0) {
        return None;
    }
    into.fill(0);
    for (to, from) in into.iter_mut().zip(text) {
        *to = c_char::from_ne_bytes([*from]);
    }
    Some(())
}

/// The byte that a `c_char` of either sign stands for.
fn byte(c: c_char) -> u8 {
    let [byte] = c.to_ne_bytes();
    byte
}

/// Stores a path with a NUL.
#[must_use]
pub fn store_path(into: &mut [c_char], path: &Path) -> Option<()> {
    use std::os::unix::ffi::OsStrExt;
    store(into, path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_leaves_no_room_for_its_end_is_refused() {
        let mut field = [c_char::from_ne_bytes(*b"x"); 4];
        assert_eq!(store(&mut field, b"abcd"), None);
        assert_eq!(bytes(&field), b"xxxx");
        assert_eq!(store(&mut field, b"ab"), Some(()));
        assert_eq!(bytes(&field), b"ab");
        assert_eq!(field[2..], [0, 0]);
    }

    #[test]
    fn bytes_above_ascii_keep_their_value() {
        let mut field = [0; 4];
        assert_eq!(store(&mut field, b"\xc3\xbc\xff"), Some(()));
        assert_eq!(bytes(&field), b"\xc3\xbc\xff");
    }
}
