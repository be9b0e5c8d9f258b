//! Entries of EFA's queues as bytes.

use emulated_commands::vendor::{
    Completion, Destination, Operation, Queue, Remote, Route, Segment, Source, Status, WorkRequest,
};

/// Bytes of a send entry.
pub const SEND_ENTRY: usize = 64;
/// Bytes of a receive descriptor, which has one segment.
pub const RECEIVE_ENTRY: usize = 16;
/// Bytes of a completion entry without a source GID.
pub const COMPLETION_ENTRY: usize = 16;
/// Bytes of a completion entry with a source GID.
pub const WIDE_COMPLETION_ENTRY: usize = 32;
/// Bytes of inline data in a send entry.
pub const MAX_INLINE: usize = 32;
/// Segments of a message.
pub const MAX_SEGMENTS: usize = 2;
/// Keys in descriptors have 24 bits.
pub const LKEY_MASK: u32 = 0x00ff_ffff;

/// A completion entry's address handle of a sender without one.
const NO_AH: u16 = 0xffff;

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut found = [0; N];
    for (to, from) in found.iter_mut().zip(bytes.get(at..).unwrap_or_default()) {
        *to = *from;
    }
    found
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// An address in two words, the lower first.
fn address_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A local buffer of a send entry: length, key, address.
fn segment_at(bytes: &[u8], at: usize) -> Segment {
    Segment {
        length: u32_at(bytes, at),
        lkey: u32_at(bytes, at + 4) & LKEY_MASK,
        address: address_at(bytes, at + 8),
    }
}

/// Decodes a send entry into `request`. The id is valid in any case.
///
/// # Errors
/// The result of an entry that cannot be executed.
pub fn decode_send(
    entry: &[u8; SEND_ENTRY],
    is_datagram: bool,
    request: &mut WorkRequest,
) -> Result<(), Status> {
    /// Where the data of an entry begin.
    const DATA: usize = 32;
    /// Bits of the first control byte.
    const HAS_IMMEDIATE: u8 = 1 << 4;
    const IS_INLINE: u8 = 1 << 5;
    const EXTENDED: u8 = 1 << 6;
    const DESCRIBES: u8 = 1 << 7;
    /// Bits of the second control byte: the first and the last descriptor of a request.
    const WHOLE: u8 = 1 << 2 | 1 << 3;
    const WANTS_COMPLETION: u8 = 1 << 4;

    request.clear(u64::from(u16_at(entry, 0)));
    let [first, second] = array(entry, 2);
    if first & DESCRIBES == 0 || first & EXTENDED != 0 || second & WHOLE != WHOLE {
        return Err(Status::Malformed);
    }
    request.is_signalled = second & WANTS_COMPLETION != 0;
    request.immediate = (first & HAS_IMMEDIATE != 0).then(|| u32_at(entry, 8));
    request.destination = Some(Destination {
        qp: u32::from(u16_at(entry, 4)),
        route: Route::Handle(u32::from(u16_at(entry, 12))),
        qkey: u32_at(entry, 16),
    });
    let length = usize::from(u16_at(entry, 6));
    let remote = Remote { address: address_at(entry, DATA + 8), rkey: u32_at(entry, DATA + 4) };
    match first & 0xf {
        0 => request.operation = Operation::Send,
        1 if !is_datagram => request.operation = Operation::Read(remote),
        2 if !is_datagram => request.operation = Operation::Write(remote),
        _ => return Err(Status::Unsupported),
    }
    let is_inline = first & IS_INLINE != 0;
    if request.operation == Operation::Send {
        if is_inline {
            let data = entry.get(DATA..DATA + length).filter(|_| length <= MAX_INLINE);
            request.inline = Some(data.ok_or(Status::LocalLength)?.to_vec());
            return Ok(());
        }
        if length > MAX_SEGMENTS {
            return Err(Status::LocalLength);
        }
        let segments = (0..length).map(|index| segment_at(entry, DATA + index * 16));
        request.segments.extend(segments);
        return Ok(());
    }
    if is_inline || (request.immediate.is_some() && matches!(request.operation, Operation::Read(_)))
    {
        return Err(Status::Unsupported);
    }
    // The remote range has the length of the request, the single local buffer at least that.
    let (bytes, local) = (u32_at(entry, DATA), segment_at(entry, DATA + 16));
    if length > 1 || (length == 0 && bytes > 0) || (length == 1 && local.length < bytes) {
        return Err(Status::LocalLength);
    }
    if length == 1 {
        request.segments.push(Segment { length: bytes, ..local });
    }
    Ok(())
}

/// A receive descriptor: one segment of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveDescriptor {
    /// The id of the receive.
    pub id: u16,
    /// The segment.
    pub segment: Segment,
    /// The descriptor begins a receive.
    pub is_first: bool,
    /// The descriptor ends a receive.
    pub is_last: bool,
}

impl ReceiveDescriptor {
    /// Decodes a descriptor; every value of the bytes has a meaning.
    #[must_use]
    pub fn decode(entry: &[u8; RECEIVE_ENTRY]) -> Self {
        let control = u32_at(entry, 12);
        Self {
            id: u16_at(entry, 8),
            segment: Segment {
                address: address_at(entry, 0),
                length: u32::from(u16_at(entry, 10)),
                lkey: control & LKEY_MASK,
            },
            is_first: control & 1 << 30 != 0,
            is_last: control & 1 << 31 != 0,
        }
    }
}

/// EFA's code of a result.
#[must_use]
pub const fn status_code(status: Status) -> u8 {
    match status {
        Status::Success => 0,
        Status::Flushed => 1,
        Status::Malformed => 2,
        Status::Unsupported => 3,
        Status::BadAddressHandle => 4,
        Status::LocalProtection => 5,
        Status::LocalLength => 6,
        Status::RemoteAccess => 7,
        Status::RemoteAbort => 8,
        Status::NoRemoteQp => 9,
        Status::NotReady => 10,
        Status::RemoteLength => 11,
        Status::BadResponse => 12,
        Status::Unresponsive => 13,
        Status::Unreachable => 15,
    }
}

/// Encodes a completion entry with the phase of its round. A CQ with entries of 16 bytes takes the
/// first half.
#[must_use]
pub fn encode_completion(completion: &Completion, phase: bool) -> [u8; WIDE_COMPLETION_ENTRY] {
    const HAS_IMMEDIATE: u8 = 1 << 3;
    const UNSOLICITED: u8 = 1 << 7;
    let (queue, is_receive) = match completion.queue {
        Queue::Send => (1_u8, false),
        Queue::Receive => (2, true),
    };
    let operation: u8 = match completion.operation {
        Operation::Send => 0,
        Operation::Read(_) => 1,
        Operation::Write(_) => 2,
        // EFA has no atomics, so none completes.
        Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => 0,
    };
    let mut flags = u8::from(phase) | queue << 1 | operation << 4;
    if is_receive && completion.immediate.is_some() {
        flags |= HAS_IMMEDIATE;
    }
    if is_receive && completion.id.is_none() {
        flags |= UNSOLICITED;
    }
    let mut entry = [0; WIDE_COMPLETION_ENTRY];
    let mut put = |at: usize, bytes: &[u8]| {
        for (to, from) in entry.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    };
    // Ids and numbers have 16 bits, because they came from entries and answers of EFA.
    put(0, &(completion.id.unwrap_or(0) as u16).to_le_bytes());
    put(2, &[status_code(completion.status), flags]);
    put(4, &(completion.qp as u16).to_le_bytes());
    if is_receive {
        put(6, &(completion.len as u16).to_le_bytes());
        let Source { qp, ah, gid } =
            completion.source.unwrap_or(Source { qp: 0, ah: None, gid: [0; 16] });
        let ah = ah.and_then(|ah| u16::try_from(ah).ok()).unwrap_or(NO_AH);
        put(8, &ah.to_le_bytes());
        put(10, &(qp as u16).to_le_bytes());
        put(12, &completion.immediate.unwrap_or(0).to_le_bytes());
        // The source GID and the upper half of the length share their bytes; only a WRITE is longer
        // than 16 bits say, and has no source for programs.
        if operation == 2 {
            put(16, &((completion.len >> 16) as u16).to_le_bytes());
        } else if ah == NO_AH {
            put(16, &gid);
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(first: u8, length: u16) -> [u8; SEND_ENTRY] {
        let mut entry = [0; SEND_ENTRY];
        entry[..2].copy_from_slice(&0x1234_u16.to_le_bytes());
        entry[2..4].copy_from_slice(&[first | 0x80, 0b1_1100]);
        entry[4..6].copy_from_slice(&77_u16.to_le_bytes());
        entry[6..8].copy_from_slice(&length.to_le_bytes());
        entry[8..12].copy_from_slice(&0xa1b2_c3d4_u32.to_le_bytes());
        entry[12..14].copy_from_slice(&5_u16.to_le_bytes());
        entry[16..20].copy_from_slice(&0x1111_1111_u32.to_le_bytes());
        entry
    }

    fn put(entry: &mut [u8], at: usize, words: [u32; 4]) {
        for (index, word) in words.into_iter().enumerate() {
            entry[at + index * 4..][..4].copy_from_slice(&word.to_le_bytes());
        }
    }

    fn decoded(entry: &[u8; SEND_ENTRY], is_datagram: bool) -> Result<WorkRequest, Status> {
        let mut request = WorkRequest::default();
        decode_send(entry, is_datagram, &mut request).map(|()| request)
    }

    #[test]
    fn a_send_has_two_segments_or_inline_data() {
        let mut two = entry(0x10, 2);
        put(&mut two, 32, [100, 0xff00_0007, 0x9000, 1]);
        put(&mut two, 48, [50, 8, 0xa000, 0]);
        let request = decoded(&two, false).expect("valid");
        assert_eq!((request.id, request.operation), (0x1234, Operation::Send));
        assert_eq!((request.immediate, request.len()), (Some(0xa1b2_c3d4), 150));
        let destination = Destination { route: Route::Handle(5), qp: 77, qkey: 0x1111_1111 };
        assert_eq!(request.destination, Some(destination));
        let first = Segment { address: 0x1_0000_9000, length: 100, lkey: 7 };
        assert_eq!(request.segments[0], first);

        let mut inline = entry(0x20, 3);
        inline[32..35].copy_from_slice(b"abc");
        let request = decoded(&inline, true).expect("valid");
        assert_eq!((request.inline.as_deref(), request.len()), (Some(&b"abc"[..]), 3));
        assert_eq!(request.immediate, None);
    }

    #[test]
    fn rdma_has_a_remote_range_and_one_segment() {
        let mut write = entry(0x12, 1);
        put(&mut write, 32, [1000, 0xabcd, 0x5000, 2]);
        put(&mut write, 48, [4096, 9, 0x6000, 0]);
        let request = decoded(&write, false).expect("valid");
        let remote = Remote { address: 0x2_0000_5000, rkey: 0xabcd };
        assert_eq!((request.operation, request.len()), (Operation::Write(remote), 1000));
        let mut read = write;
        read[2] = 0x81;
        let request = decoded(&read, false).expect("valid");
        assert_eq!(request.operation, Operation::Read(remote));
        assert_eq!(decoded(&read, true), Err(Status::Unsupported), "datagrams have no RDMA");
        put(&mut read, 48, [999, 9, 0x6000, 0]);
        assert_eq!(decoded(&read, false), Err(Status::LocalLength));
    }

    #[test]
    fn entries_that_cannot_be_executed_name_the_reason_and_keep_their_id() {
        for (first, length, status) in [
            (0x00, 3, Status::LocalLength),
            (0x20, 33, Status::LocalLength),
            (0x20, u16::MAX, Status::LocalLength),
            (0x03, 1, Status::Unsupported),
            (0x0f, 1, Status::Unsupported),
            (0x40, 1, Status::Malformed),
            (0x11, 1, Status::Unsupported),
            (0x22, 1, Status::Unsupported),
            (0x02, 2, Status::LocalLength),
        ] {
            let mut request = WorkRequest::default();
            let result = decode_send(&entry(first, length), false, &mut request);
            assert_eq!((result, request.id), (Err(status), 0x1234), "{first:#x} {length}");
        }
        let mut half = entry(0, 0);
        half[3] = 0b1_0100;
        assert_eq!(decoded(&half, false), Err(Status::Malformed));
        let mut bare = entry(0, 0);
        bare[2] = 0;
        assert_eq!(decoded(&bare, false), Err(Status::Malformed));
    }

    #[test]
    fn a_receive_descriptor_has_its_marks_beside_the_key() {
        let mut entry = [0; RECEIVE_ENTRY];
        put(&mut entry, 0, [0x1000, 3, 64 << 16 | 9, 1 << 31 | 0xff_1234]);
        let descriptor = ReceiveDescriptor::decode(&entry);
        let segment = Segment { address: 0x3_0000_1000, length: 64, lkey: 0xff_1234 };
        assert_eq!((descriptor.id, descriptor.segment), (9, segment));
        assert!(descriptor.is_last && !descriptor.is_first);
    }

    #[test]
    fn completion_entries_carry_what_the_provider_reads() {
        let sent = Completion {
            qp: 7,
            queue: Queue::Send,
            id: Some(9),
            status: Status::RemoteAccess,
            operation: Operation::Read(Remote::default()),
            ..Default::default()
        };
        let entry = encode_completion(&sent, true);
        assert_eq!(entry[..8], [9, 0, 7, 0b001_0011, 7, 0, 0, 0]);

        let gid = [0xfe; 16];
        let received = Completion {
            qp: 7,
            queue: Queue::Receive,
            id: Some(0x102),
            len: 0x1234,
            immediate: Some(0x0a0b_0c0d),
            source: Some(Source { qp: 0x506, ah: None, gid }),
            ..Default::default()
        };
        let entry = encode_completion(&received, false);
        assert_eq!(entry[..8], [2, 1, 0, 0b1100, 7, 0, 0x34, 0x12]);
        assert_eq!(entry[8..16], [0xff, 0xff, 6, 5, 0x0d, 0x0c, 0x0b, 0x0a]);
        assert_eq!(entry[16..], gid);

        let written = Completion {
            id: None,
            len: 0x7_0001,
            operation: Operation::Write(Remote::default()),
            source: Some(Source { qp: 1, ah: Some(3), gid }),
            ..received
        };
        let entry = encode_completion(&written, true);
        assert_eq!(entry[..10], [0, 0, 0, 0b1010_1101, 7, 0, 1, 0, 3, 0]);
        assert_eq!(entry[16..20], [7, 0, 0, 0]);
    }
}
