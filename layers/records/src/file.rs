//! The files of all layers: folder, name and head. Layers write them (`layer_tap::file`), and the
//! command `ferroverbs` reads them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Bytes of the head, which precedes the first record.
pub const HEAD: usize = 4096;
/// Word of the head: the magic number.
pub const AT_MAGIC: usize = 0;
/// Word of the head: the number of records for which the file has room.
pub const AT_CAPACITY: usize = 1;
/// Word of the head: the process number.
pub const AT_PID: usize = 2;
/// Word of the head: nanoseconds of CLOCK_REALTIME, read together with `AT_MONOTONIC`.
pub const AT_REALTIME: usize = 3;
/// Word of the head: nanoseconds of CLOCK_MONOTONIC, the clock of the records.
pub const AT_MONOTONIC: usize = 4;
/// Words of the head: the program's name, 64 bytes, padded with zeros.
pub const AT_PROGRAM: usize = 32;

/// The default folder of a layer's files, which only this user can read.
#[must_use]
pub fn own_folder(layer: &str, runtime: Option<&OsStr>, uid: u32) -> PathBuf {
    match runtime.map(Path::new).filter(|dir| dir.is_absolute()) {
        Some(dir) => dir.join(format!("ferroverbs-{layer}")),
        None => format!("/tmp/ferroverbs-{layer}-{uid}").into(),
    }
}

/// The ending of a layer's file names.
#[must_use]
pub fn ending(layer: &str) -> String {
    format!(".fv{layer}")
}

/// Packs text into words, shortened to fit and padded with zeros.
#[must_use]
pub fn pack_text<const N: usize>(text: &[u8]) -> [u64; N] {
    let mut words = [0_u64; N];
    for (index, byte) in text.iter().take(N * 8 - 1).enumerate() {
        words[index / 8] |= u64::from(*byte) << (index % 8 * 8);
    }
    words
}

/// Unpacks the text that [`pack_text`] packed.
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
