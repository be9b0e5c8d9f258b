//! MR-08, MR-09, MR-10, WR-14: bytes that two requests, or a request and the program, use at once.

use core::ops::Range;

use super::Id;
use super::finding::{Finding, Stack};

fn posted(stack: Option<Stack>) -> Option<super::finding::Origin> {
    stack.map(|stack| ("which was posted", stack))
}

/// The bytes that two ranges have in common; `None` if there are none.
pub(crate) fn common(one: &Range<u64>, other: &Range<u64>) -> Option<Range<u64>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (!both.is_empty()).then_some(both)
}

/// MR-08: bytes that changed while a send of them was in flight.
pub(crate) fn changed(at: u64, length: usize, stack: Option<Stack>) -> Finding {
    let end = at.wrapping_add(length as u64);
    Finding::new(
        Id::Mr08,
        format!("bytes of [{at:#x}, {end:#x}) are not what they were when the request was posted"),
        "leave a buffer alone until its completion was polled: the device reads it when it sends, and again when it repeats",
    )
    .from(posted(stack))
}

/// MR-09: bytes that an earlier request in flight writes too.
pub(crate) fn written_twice(bytes: &Range<u64>, wr_id: u64, stack: Option<Stack>) -> Finding {
    let Range { start, end } = bytes;
    Finding::new(
        Id::Mr09,
        format!(
            "it writes [{start:#x}, {end:#x}), as does a request before it, wr_id {wr_id:#x}, which has not completed"
        ),
        "give each request in flight a buffer of its own, unless nobody wants the bytes",
    )
    .from(posted(stack))
}

/// MR-10: a byte that the program touched while a request writes it. `what` names the operation.
pub(crate) fn touched(at: u64, what: &str, stack: Option<Stack>) -> Finding {
    Finding::new(
        Id::Mr10,
        format!(
            "byte {at:#x} is of the buffer of {what}, whose completion was not polled: AddressSanitizer says above who touches it"
        ),
        "leave the buffer alone until ibv_poll_cq has given its completion",
    )
    .from(posted(stack))
}

/// WR-14: a send of bytes that an earlier READ or atomic may not have brought yet.
pub(crate) fn unfenced(
    bytes: &Range<u64>,
    wr_id: u64,
    is_inline: bool,
    stack: Option<Stack>,
) -> Finding {
    let Range { start, end } = bytes;
    let remedy = if is_inline {
        "poll the completion of the earlier one first: inline data are read when they are posted"
    } else {
        "set IBV_SEND_FENCE, or poll the completion of the earlier one first"
    };
    Finding::new(
        Id::Wr14,
        format!(
            "it sends [{start:#x}, {end:#x}), which an earlier READ or atomic, wr_id {wr_id:#x}, may not have brought yet"
        ),
        remedy,
    )
    .from(posted(stack))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_have_nothing_in_common() {
        assert_eq!(common(&(0..8), &(8..16)), None);
        assert_eq!(common(&(0..8), &(4..16)), Some(4..8));
        assert_eq!(common(&(0..0), &(0..16)), None, "an unknown range has no bytes");
        assert_eq!(common(&(0..16), &(4..8)), Some(4..8));
    }

    #[test]
    fn changed_bytes_are_named_by_their_range() {
        let found = changed(0x1000, 16, None);
        assert_eq!(
            found.text,
            "bytes of [0x1000, 0x1010) are not what they were when the request was posted"
        );
        assert_eq!(found.origin, None);
    }

    #[test]
    fn bytes_that_two_requests_write_are_named_with_the_earlier_request() {
        let found = written_twice(&(0x10..0x20), 7, Some([1; 8]));
        assert!(found.text.contains("[0x10, 0x20)") && found.text.contains("wr_id 0x7"));
        assert_eq!(found.origin, Some(("which was posted", [1; 8])));
    }

    #[test]
    fn a_touched_byte_is_named_with_the_operation() {
        assert!(
            touched(0x10, "a receive", None)
                .text
                .starts_with("byte 0x10 is of the buffer of a receive")
        );
    }

    #[test]
    fn a_fence_does_not_help_inline_data() {
        assert!(unfenced(&(0..8), 7, false, None).remedy.contains("IBV_SEND_FENCE"));
        assert!(!unfenced(&(0..8), 7, true, None).remedy.contains("IBV_SEND_FENCE"));
    }
}
