//! Capture files for Wireshark, in the format pcapng (draft-ietf-opsawg-pcapng). The layer
//! `capture` writes its blocks, and the command `ferroverbs capture` merges files.

use std::collections::HashMap;

/// The first header of an interface's packets, by its number in the registry of link types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// An Ethernet header.
    Ethernet = 1,
    /// Tags that name a dissector (LINKTYPE_WIRESHARK_UPPER_PDU).
    UpperPdu = 252,
}

/// The direction of a packet, as the process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The process received the packet.
    In = 1,
    /// The process sent the packet.
    Out = 2,
}

/// A packet, or the part that the layer keeps.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Index of the interface among the interface blocks of this section.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// The kept bytes, in parts; the sum is at most `length`.
    pub parts: &'a [&'a [u8]],
    /// Bytes of the whole packet.
    pub length: usize,
    /// Which way it went.
    pub direction: Direction,
    /// The packet's comment.
    pub comment: &'a str,
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Bytes of an option; longer values are shortened.
const OPTION_MAX: usize = 4096;

fn word(out: &mut Vec<u8>, word: u32) {
    out.extend(word.to_le_bytes());
}

fn pad(out: &mut Vec<u8>, length: usize) {
    out.extend(&[0; 3][..length.wrapping_neg() % 4]);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..OPTION_MAX).unwrap_or(value);
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    pad(out, value.len());
}

/// Appends a block whose body `fill` writes.
fn block(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    word(out, kind);
    word(out, 0);
    fill(out);
    let length = (out.len() - start + 4) as u32;
    word(out, length);
    if let Some(place) = out.get_mut(start + 4..start + 8) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

/// Appends the section header, with which a file begins.
pub fn section(out: &mut Vec<u8>, program: &str, comment: &str) {
    block(out, SECTION, |out| {
        word(out, BYTE_ORDER);
        word(out, 1);
        // -1 as section length means an unknown length.
        out.extend([0xff; 8]);
        option(out, 1, comment.as_bytes());
        option(out, 3, b"Linux");
        option(out, 4, program.as_bytes());
        option(out, 0, &[]);
    });
}

/// Appends an interface block. Packets name an interface by its index among these blocks. `snap`
/// is the kept number of bytes of a packet, 0 for all.
pub fn interface(out: &mut Vec<u8>, link: Link, snap: u32, name: &str, description: &str) {
    block(out, INTERFACE, |out| {
        word(out, link as u32);
        word(out, snap);
        option(out, 2, name.as_bytes());
        option(out, 3, description.as_bytes());
        // Timestamps count nanoseconds (if_tsresol).
        option(out, 9, &[9]);
        option(out, 0, &[]);
    });
}

/// Appends a packet block.
pub fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    let padding = |length: usize| &[0; 3][..length.wrapping_neg() % 4];
    let kept = packet.parts.iter().map(|part| part.len()).sum::<usize>();
    let comment = packet.comment.as_bytes();
    let comment = comment.get(..OPTION_MAX).unwrap_or(comment);
    let (before, between) = (padding(kept), padding(comment.len()));
    // The block is written in few pieces, because each message has one: words before the packet,
    // words before the comment, words after the comment.
    let length = 28 + kept + before.len() + 4 + comment.len() + between.len() + 16;
    let full = packet.length.max(kept) as u32;
    let (high, low) = ((packet.time >> 32) as u32, packet.time as u32);
    out.reserve(length);
    words(out, [PACKET, length as u32, packet.interface, high, low, kept as u32, full]);
    packet.parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(before);
    // opt_comment; epb_flags; opt_endofopt.
    words(out, [1 | (comment.len() as u32) << 16]);
    out.extend_from_slice(comment);
    out.extend_from_slice(between);
    words(out, [2 | 4 << 16, packet.direction as u32, 0, length as u32]);
}

fn words<const N: usize>(out: &mut Vec<u8>, words: [u32; N]) {
    out.extend_from_slice(words.map(u32::to_le_bytes).as_flattened());
}

/// A block of a file: its type, and all its bytes.
struct Block<'a> {
    block_type: u32,
    bytes: &'a [u8],
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The blocks of a file. The iterator ends at the first incomplete block: the writer may have been
/// killed.
fn blocks(bytes: &[u8]) -> impl Iterator<Item = Block<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (kind, length) = (word_at(rest, 0)?, word_at(rest, 4)? as usize);
        let (bytes, behind) = rest.split_at_checked(length)?;
        let is_whole = length >= 12 && length % 4 == 0;
        if !is_whole || word_at(bytes, length - 4)? as usize != length {
            return None;
        }
        rest = behind;
        Some(Block { block_type: kind, bytes })
    })
}

/// Merges files into one, ordered by time. Packets of a file may be slightly out of order. Of a
/// truncated file, all complete blocks are used.
///
/// # Errors
/// The index in `files` of a file that is not pcapng, or that has another byte order.
pub fn merge(files: &[Vec<u8>], program: &str, comment: &str) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(files.iter().map(Vec::len).sum());
    section(&mut out, program, comment);
    let mut interfaces: HashMap<&[u8], u32> = HashMap::new();
    let mut packets: Vec<(u64, u32, &[u8])> = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let is_ours = word_at(file, 0) == Some(SECTION) && word_at(file, 8) == Some(BYTE_ORDER);
        if !is_ours {
            return Err(index);
        }
        let mut own: Vec<u32> = Vec::new();
        for Block { block_type: kind, bytes } in blocks(file) {
            match kind {
                SECTION => own.clear(),
                INTERFACE => {
                    let next = interfaces.len() as u32;
                    own.push(*interfaces.entry(bytes).or_insert_with(|| {
                        out.extend(bytes);
                        next
                    }));
                }
                PACKET => {
                    let words = (word_at(bytes, 8), word_at(bytes, 12), word_at(bytes, 16));
                    let (Some(interface), Some(high), Some(low)) = words else { continue };
                    let Some(interface) = own.get(interface as usize) else { continue };
                    packets.push((u64::from(high) << 32 | u64::from(low), *interface, bytes));
                }
                _ => {}
            }
        }
    }
    packets.sort_by_key(|(time, ..)| *time);
    for (_, interface, bytes) in packets {
        let (Some(before), Some(behind)) = (bytes.get(..8), bytes.get(12..)) else { continue };
        out.extend(before);
        word(&mut out, interface);
        out.extend(behind);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, times: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        section(&mut out, "test", "a comment");
        interface(&mut out, Link::Ethernet, 64, name, "a description");
        for &time in times {
            let parts = [&b"head"[..], b"p"];
            packet(
                &mut out,
                &Packet {
                    interface: 0,
                    time,
                    parts: &parts,
                    length: 100,
                    direction: Direction::Out,
                    comment: "wr_id 0x5",
                },
            );
        }
        out
    }

    fn times(file: &[u8]) -> Vec<(u32, u64)> {
        let packets = blocks(file).filter(|block| block.block_type == PACKET);
        let of = |block: Block<'_>| {
            let word = |at| word_at(block.bytes, at).expect("a word");
            (word(8), u64::from(word(12)) << 32 | u64::from(word(16)))
        };
        packets.map(of).collect()
    }

    #[test]
    fn blocks_are_whole_words_that_say_their_length_at_both_ends() {
        let file = file("soft0", &[1 << 40]);
        let kinds: Vec<_> = blocks(&file).map(|block| block.block_type).collect();
        assert_eq!(kinds, [SECTION, INTERFACE, PACKET]);
        assert_eq!(blocks(&file).map(|block| block.bytes.len()).sum::<usize>(), file.len());
        let packet = blocks(&file).last().expect("a packet").bytes;
        assert_eq!((word_at(packet, 20), word_at(packet, 24)), (Some(5), Some(100)));
        assert_eq!(packet[28..36], *b"headp\0\0\0");
        assert_eq!(times(&file), [(0, 1 << 40)]);
    }

    #[test]
    fn files_are_joined_by_time_and_equal_interfaces_are_one() {
        let files = [file("a", &[5, 1]), file("b", &[3]), file("a", &[4])];
        let all = merge(&files, "test", "").expect("whole files");
        assert_eq!(times(&all), [(0, 1), (1, 3), (0, 4), (0, 5)]);
        let names = blocks(&all).filter(|block| block.block_type == INTERFACE).count();
        assert_eq!(names, 2);
    }

    #[test]
    fn of_a_file_that_is_cut_what_is_whole_is_taken() {
        let whole = file("a", &[1, 2]);
        for length in 28..whole.len() {
            let all = merge(&[whole[..length].to_vec()], "test", "").expect("it begins well");
            assert!(times(&all).len() < 2, "{length}");
        }
        assert_eq!(merge(&[whole, b"nonsense".to_vec()], "test", ""), Err(1));
        assert_eq!(merge(&[vec![]], "test", ""), Err(0));
    }
}
