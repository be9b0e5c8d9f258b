//! Entry points for a fuzzer: no bytes in queues, records and commands may cause a panic or a read
//! beyond a queue. The target `mlx5` of the folder `fuzz/` calls [`adapter`].

use crate::commands::{AllocContext, CreateCq, CreateQp, CreateSrq, CreateWq, ResizeCq};
use crate::cq::CompletionQueue;
use crate::doorbell::Record;
use crate::rq::ReceiveQueue;
use crate::sq::{EntryCopy, SendQueue};
use crate::srq::SharedReceiveQueue;
use crate::verbs::{Execution, QueueMemory};
use crate::wqe::{self, MAX_BYTES, Request};
use crate::{QueueBytes, cqe, device, sq, verbs};
use soft_semantics::completion::Cqe;
use soft_semantics::state::QpType;

/// A buffer of a queue that repeats the input, and refuses bytes beyond the queue.
struct Repeated<'a> {
    input: &'a [u8],
    len: usize,
}

impl QueueBytes for Repeated<'_> {
    fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.len, "a read beyond the queue");
        for (n, byte) in into.iter_mut().enumerate() {
            *byte = self.input.get((offset + n) % self.input.len().max(1)).copied().unwrap_or(0);
        }
    }
}

/// The parts of an input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_at(self.0.len().min(N));
        self.0 = rest;
        crate::Fields::<N>::prefix(head).0
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(self.0.len().min(len));
        self.0 = rest;
        head
    }
}

/// Decodes `bytes` as commands, queues and completion entries of one adapter.
///
/// # Panics
/// A read beyond a queue; a request that is another one after encoding and decoding; an entry that
/// is another one after decoding and encoding.
pub fn adapter(bytes: &[u8]) {
    let mut input = Input(bytes);
    let [selector, sizes, ..] = input.take::<4>();
    let record = Record(input.take());
    commands(&mut input);
    let kinds = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::Raw, QpType::XrcRecv];
    let kind = kinds[usize::from(selector) % kinds.len()];
    let blocks = 1u32 << (sizes & 7);
    sends(kind, blocks, record, input.0);
    receives(sizes, record, input.0);
    completions(record, &mut input);
}

fn commands(input: &mut Input<'_>) {
    let len = usize::from(input.take::<1>()[0]);
    let request = input.bytes(len);
    let [a, b, c, d, e, ..] = input.take::<8>();
    let (many, few) = (u32::from_ne_bytes([a, b, c, d]), u32::from(e));
    let context = AllocContext::parse(request);
    let answer = context.answer(&device::CONNECTX_7, None);
    assert!(answer[44] <= 1, "a version that is not emulated");
    if let Ok(qp) = CreateQp::parse(request) {
        let len = (qp.receive.len() + qp.send.len()) as u64;
        assert!(qp.buffer.checked_add(len).is_some());
    }
    for count in [many, few] {
        let _cq = CreateCq::parse(request, count);
        let _cq = ResizeCq::parse(request, count);
        let _srq = CreateSrq::parse(request, count, few);
    }
    let _wq = CreateWq::parse(request);
}

fn sends(kind: QpType, blocks: u32, record: Record, input: &[u8]) {
    let geometry = sq::Geometry { offset: 256, blocks };
    let buffer = Repeated { input, len: 256 + geometry.len() };
    let Some(mut queue) = SendQueue::new(geometry, kind, own_qpn(input)) else { return };
    let memory = QueueMemory { addr: 0x10_0000, lkey: 7 };
    let mut copy = EntryCopy::default();
    // More steps than blocks: each entry takes one block at least.
    for _ in 0..=u32::from(u16::MAX) {
        let Some(taken) = queue.take(record.send_blocks(), &buffer, &mut copy) else { return };
        let Ok(request) = taken else { continue };
        comes_back(kind, &request);
        let Ok(execution) = verbs::request(&request, kind) else { continue };
        let ranges = verbs::ranges(request.data, request.control.index, &geometry, &memory);
        if let (Execution::Post(posted), Ok(ranges)) = (execution, ranges) {
            assert!(verbs::Ticket::of(posted.wr_id).is_some());
            let own = |sge: &&abi::ibv_sge| sge.lkey == memory.lkey;
            if posted.flags & abi::IBV_SEND_INLINE != 0 {
                assert!(ranges.iter().filter(own).count() == ranges.len());
            }
        }
    }
    panic!("a send queue that does not end");
}

/// The QP number of the first entry, so that entries pass this check often.
fn own_qpn(input: &[u8]) -> u32 {
    let mut unit = crate::segment::Unit::default();
    Repeated { input, len: usize::MAX }.read(256, &mut unit.0);
    crate::segment::Control::parse(&unit).qpn
}

fn comes_back(kind: QpType, request: &Request<'_>) {
    let mut into = [0; MAX_BYTES];
    let Some(entry) = wqe::encode(request, &mut into) else {
        panic!("a decoded request that does not fit an entry");
    };
    let again = wqe::decode(kind, entry).expect("an encoded request");
    let same = |control: crate::segment::Control| crate::segment::Control { units: 0, ..control };
    assert_eq!(same(again.control), same(request.control));
    assert_eq!(again.operation, request.operation);
    assert_eq!((again.destination, again.srqn), (request.destination, request.srqn));
    assert!(again.data == request.data, "other data after encoding and decoding");
}

fn receives(sizes: u8, record: Record, input: &[u8]) {
    let shift = u32::from(sizes >> 3 & 7) + 4;
    let entries = 1 << (sizes & 7);
    let geometry = crate::rq::Geometry { offset: 0, entries, shift, is_signed: sizes >> 7 != 0 };
    let buffer = Repeated { input, len: geometry.len() };
    if let Some(mut queue) = ReceiveQueue::new(geometry) {
        let mut taken = 0;
        while let Some(Ok(_)) = queue.take(record.receives(), &buffer) {
            taken += 1;
        }
        assert!(taken <= entries);
    }
    let geometry = crate::srq::Geometry { entries: entries.max(2), shift: shift.max(5) };
    let buffer = Repeated { input, len: geometry.len() };
    let mut queue = SharedReceiveQueue::new(geometry);
    let mut taken = 0;
    while let Some(Ok(_)) = queue.take(record.receives(), &buffer) {
        taken += 1;
    }
    assert!(taken <= geometry.entries);
}

fn completions(record: Record, input: &mut Input<'_>) {
    let entry: [u8; cqe::CQE_BYTES] = input.take();
    let Some((completion, owner)) = cqe::Completion::decode(&entry) else { return };
    let again = completion.encode(owner);
    assert_eq!(cqe::Completion::decode(&again), Some((completion, owner)));
    let Some(geometry) = crate::cq::Geometry::of(3, 128) else { return };
    let mut queue = CompletionQueue::new(geometry, false);
    let _stored = queue.push(&completion, record.consumed());
    let _due = queue.take_event(record.arm());
    let cqe = Cqe { wr_id: completion.timestamp, ..Cqe::default() };
    let names = verbs::Names { user_index: 0, is_solicited: false, timestamp: 0 };
    let _entry = verbs::completion(&cqe, &names);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of numbers (xorshift), so that each run has the same inputs.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn random_bytes_cause_neither_panic_nor_read_beyond_a_queue() {
        let mut state = 0x1234_5678_9abc_def1;
        for _ in 0..3000 {
            let len = random(&mut state) as usize % 400;
            let bytes: Vec<u8> = (0..len).map(|_| random(&mut state) as u8).collect();
            adapter(&bytes);
        }
    }

    #[test]
    fn entries_with_true_heads_and_random_bodies_come_back() {
        let codes = [0x00, 0x01, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12, 0x14, 0x15, 0x25];
        let mut state = 0xfeed_beef_1234_5671;
        for round in 0..4000u32 {
            let code = codes[round as usize % codes.len()];
            let units = (random(&mut state) % 16 + 1) as usize;
            let mut bytes: Vec<u8> = (0..units * 16)
                .map(|_| random(&mut state) as u8 & random(&mut state) as u8)
                .collect();
            bytes[3] = code;
            bytes[7] = units as u8;
            for kind in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend] {
                if let Ok(request) = wqe::decode(kind, &bytes) {
                    comes_back(kind, &request);
                }
            }
        }
    }
}
