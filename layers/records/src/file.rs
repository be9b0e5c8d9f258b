//! What the files of all layers have in common: where they are, what they are called, and how they begin.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Bytes before the first record.
pub const HEAD: usize = 4096;
/// Words of the head, from its start: the magic number.
pub const AT_MAGIC: usize = 0;
/// How many records there are room for.
pub const AT_CAPACITY: usize = 1;
/// The process.
pub const AT_PID: usize = 2;
/// Nanoseconds of CLOCK_REALTIME at the same moment as ..
pub const AT_REALTIME: usize = 3;
/// .. these of CLOCK_MONOTONIC, which records have.
pub const AT_MONOTONIC: usize = 4;
/// The program's name, 64 bytes, behind it zeros.
pub const AT_PROGRAM: usize = 32;

/// The folder of this user alone where a layer's files are that nobody gave another place.
#[must_use]
pub fn own_folder(layer: &str, runtime: Option<&OsStr>, uid: u32) -> PathBuf {
    match runtime.map(Path::new).filter(|dir| dir.is_absolute()) {
        Some(dir) => dir.join(format!("ferroverbs-{layer}")),
        None => format!("/tmp/ferroverbs-{layer}-{uid}").into(),
    }
}

/// How the files of a layer end.
#[must_use]
pub fn ending(layer: &str) -> String {
    format!(".fv{layer}")
}

/// Text in words, cut to fit, behind it zeros.
#[must_use]
pub fn pack_text<const N: usize>(text: &[u8]) -> [u64; N] {
    let mut words = [0_u64; N];
    for (index, byte) in text.iter().take(N * 8 - 1).enumerate() {
        words[index / 8] |= u64::from(*byte) << (index % 8 * 8);
    }
    words
}

/// What [`pack_text`] packed.
#[must_use]
pub fn unpack_text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or(&[]);
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_fit_and_comes_back() {
        assert_eq!(unpack_text(&pack_text::<2>(b"ib_send_lat")), "ib_send_lat");
        assert_eq!(unpack_text(&pack_text::<1>(b"ib_send_lat")), "ib_send");
        assert_eq!(unpack_text(&[]), "");
    }

    #[test]
    fn the_folder_is_the_session_s_or_one_with_the_user_s_number() {
        let of = |dir: Option<&str>| own_folder("stats", dir.map(OsStr::new), 7);
        assert_eq!(of(Some("/run/user/7")), Path::new("/run/user/7/ferroverbs-stats"));
        for none in [None, Some(""), Some("relative")] {
            assert_eq!(of(none), Path::new("/tmp/ferroverbs-stats-7"), "{none:?}");
        }
    }
}
