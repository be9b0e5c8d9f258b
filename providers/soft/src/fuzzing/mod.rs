//! Entry points of the fuzz targets (`fuzz/`): each accepts any bytes and must not panic.

mod segments;

use soft_local::fabric;
use soft_local::shm::slot::{Head, Op, PayloadLocation, SEND_INLINE, ShortHead};
use soft_memory::foreign::tells_mapping;
use soft_semantics::faults;
use soft_semantics::frames::{
    Framing, Segment, are_right as frame_is_right, dissect, frame_check, make_segment,
};
use soft_semantics::tags::wire;

pub use segments::segments;

/// A message of the handshake.
pub fn hello(data: &[u8]) {
    assert!(fabric::round_trip(data), "what is parsed is what would be emitted");
}

/// The head of a ring slot.
pub fn slot(data: &[u8]) {
    let (words, _) = data.as_chunks::<8>();
    let &[first, second, ..] = words else { return };
    let words = [u64::from_le_bytes(first), u64::from_le_bytes(second)];
    let head = Head::parse(words);
    if let Some(head) = head {
        assert_eq!(head.emit(), words, "every bit of a head means something");
    }
    // The fast path and the general path decode the same values.
    let short = ShortHead(words);
    if short.is_one() && short.len() <= SEND_INLINE {
        let head = head.expect("a short one is one");
        assert_eq!((head.op, head.carrier), (Op::Send, PayloadLocation::Inline));
        assert_eq!((usize::from(head.count), head.seq), (short.len(), short.seq()));
        assert_eq!((head.src_qpn, head.ack), (short.src_qpn(), short.ack()));
    }
    if short.is_chunked() {
        assert_eq!(head.map(|head| head.carrier), Some(PayloadLocation::Chunk));
    }
}

/// The rules of `FERROVERBS_SOFT_FAULTS`.
pub fn faults(data: &[u8]) {
    if let Err(why) = faults::parse(&String::from_utf8_lossy(data)) {
        assert!(!why.contains('\n'), "one line: {why}");
    }
}

/// An Ethernet frame: dissected, checked and segmented.
pub fn frame(data: &[u8]) {
    if let Some((key, places)) = dissect(data) {
        let _ = (key.words(), key.is_multicast(), places.vlan);
        frame_is_right(data, &places);
    }
    frame_check(data);
    for framing in [Framing::Ethernet, Framing::Ipoib] {
        for (index, last) in [(0, false), (1, false), (7, true)] {
            let mut frame = data.to_vec();
            make_segment(&mut frame, framing, Segment { index, offset: index * 1400, last });
            assert_eq!(frame.len(), data.len());
        }
    }
}

/// The headers of a tagged message.
pub fn tagged(data: &[u8]) {
    match wire::TagHeaders::parse(data) {
        wire::TagHeaders::Untagged => {}
        wire::TagHeaders::Eager(_) => assert!(data.len() >= wire::TMH_LEN),
        wire::TagHeaders::Rendezvous(tagged, offer) => {
            let fin = wire::fin(tagged, offer);
            assert_eq!(fin[4..], data[4..wire::HEADERS_LEN], "what was told is told back");
        }
    }
}

/// A line of `/proc/<pid>/maps`.
pub fn mapping(data: &[u8]) {
    tells_mapping(&String::from_utf8_lossy(data));
}
