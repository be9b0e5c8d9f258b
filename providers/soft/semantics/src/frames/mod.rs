//! Ethernet frames of RAW_PACKET QPs: parsing, checksums, segmentation, steering rules, and
//! hashing.

mod checksum;
mod headers;
pub mod segmenter;
pub mod steer;
pub mod toeplitz;

pub use checksum::{Segment, are_right, fill, frame_check, make_segment};
pub use headers::{ETHERNET, Framing, KEY_WORDS, Key, Places, VLAN, dissect};
