//! The mapped file of packets that the layer `capture` has not yet written into its packet file.
//!
//! The mapping survives a kill, so no packet is lost. The layer stores blocks here before it
//! writes them into the packet file. They stay until the next blocks replace them.

use crate::file::{AT_MAGIC, HEAD};

/// The first word of the file; the last digit is the version of the format.
pub const MAGIC: u64 = u64::from_le_bytes(*b"fvrest_1");
/// Bytes of the file's body: the gathered blocks, and the longest block after them.
pub const ROOM: usize = 140 << 10;
/// Word of the head: the index of the packet file, from 0.
pub const AT_FILE: usize = 8;
/// Word of the head: length and file offset of the waiting bytes, as [`pack`] packs them.
pub const AT_WAITING: usize = 9;

const LENGTH_BITS: u32 = 24;
const _: () = assert!(ROOM < 1 << LENGTH_BITS);

/// Packs `length` bytes for `offset` into one word, so that both change at once.
#[must_use]
pub const fn pack(offset: u64, length: usize) -> u64 {
    offset << LENGTH_BITS | length as u64
}

/// Completes packet file number `index` of a process by the waiting bytes. The caller reads `rest`
/// before `file`.
#[must_use]
pub fn complete(mut file: Vec<u8>, index: u64, rest: &[u8]) -> Vec<u8> {
    let word = |at: usize| Some(u64::from_ne_bytes(*rest.get(at * 8..)?.first_chunk()?));
    if word(AT_MAGIC) != Some(MAGIC) || word(AT_FILE) != Some(index) {
        return file;
    }
    let waiting = word(AT_WAITING).unwrap_or(0);
    let offset = usize::try_from(waiting >> LENGTH_BITS).unwrap_or(usize::MAX);
    let length = (waiting & ((1 << LENGTH_BITS) - 1)) as usize;
    let bytes = rest.get(HEAD..).and_then(|bytes| bytes.get(..length)).unwrap_or_default();
    // The layer may have written some of these bytes already, and later bytes as well.
    if offset <= file.len() && file.len() - offset < bytes.len() {
        file.truncate(offset);
        file.extend_from_slice(bytes);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(index: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
        let mut words = vec![0_u64; HEAD / 8];
        (words[AT_MAGIC], words[AT_FILE]) = (MAGIC, index);
        words[AT_WAITING] = pack(offset, bytes.len());
        let mut all: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        all.extend(bytes);
        all
    }

    #[test]
    fn what_waited_is_put_where_it_belongs_once() {
        let rest = rest(3, 4, b"efgh");
        for file in ["abcd", "abcdef", "abcdefgh"] {
            assert_eq!(complete(file.into(), 3, &rest), b"abcdefgh", "{file}");
        }
        assert_eq!(complete(b"abcdefghij".into(), 3, &rest), b"abcdefghij", "what followed stays");
        assert_eq!(complete(b"abcd".into(), 2, &rest), b"abcd", "another file of the process");
        assert_eq!(complete(b"ab".into(), 3, &rest), b"ab", "the file was read too early");
    }

    #[test]
    fn what_is_cut_or_nonsense_changes_nothing() {
        let whole = rest(0, 0, b"efgh");
        for length in 0..whole.len() {
            assert_eq!(complete(b"".into(), 0, &whole[..length]), b"", "{length}");
        }
        let mut other = whole.clone();
        other[AT_MAGIC] ^= 1;
        assert_eq!(complete(b"".into(), 0, &other), b"");
        assert_eq!(complete(b"".into(), 0, &whole), b"efgh");
    }
}
