use super::*;
use crate::Fields;
use crate::segment::Route;
use soft_semantics::request::RemoteAddress;

/// The bytes of an entry: a control segment and further units.
fn entry(code: u8, units: &[Unit]) -> Vec<u8> {
    let control = Control {
        modifier: 0,
        index: 5,
        opcode: code,
        qpn: 0x33,
        units: units.len() as u8 + 1,
        signature: 0,
        flags: Control::COMPLETION,
        immediate: [1, 2, 3, 4],
    };
    let all = std::iter::once(control.emit()).chain(units.iter().copied());
    all.flat_map(|unit| unit.0).collect()
}

fn pair(first: u64, second: u64) -> Unit {
    let mut unit = Unit::default();
    unit.set::<0, 8>(first.to_be_bytes());
    unit.set::<8, 8>(second.to_be_bytes());
    unit
}

const REMOTE: RemoteAddress = RemoteAddress { addr: 0x1122_3344_5566_7788, rkey: 0x99 };

fn remote() -> Unit {
    pair(REMOTE.addr, u64::from(REMOTE.rkey) << 32)
}

fn memory(count: u32) -> Data {
    Data { count, lkey: 0x55, addr: 0x1000 }
}

/// Decodes, encodes again, and compares the bytes.
fn there_and_back<'a>(kind: QpType, entry: &'a [u8]) -> Request<'a> {
    let request = decode(kind, entry).expect("valid");
    let mut into = [0xee; MAX_BYTES];
    assert_eq!(encode(&request, &mut into), Some(entry));
    request
}

#[test]
fn sends_of_all_kinds_come_back() {
    for code in [opcode::SEND, opcode::SEND_IMMEDIATE, opcode::SEND_INVALIDATE] {
        let entry = entry(code, &[memory(10).emit(), memory(20).emit()]);
        let request = there_and_back(QpType::Rc, &entry);
        assert_eq!(request.operation, Operation::Send);
        assert_eq!(request.control.immediate, [1, 2, 3, 4]);
        let pieces: Vec<_> = request.data.collect();
        assert_eq!(pieces, [Piece::Memory(memory(10)), Piece::Memory(memory(20))]);
        assert!(!request.data.is_inline());
    }
    let entry = entry(opcode::SEND, &[]);
    assert!(!there_and_back(QpType::Uc, &entry).data.is_inline());
}

#[test]
fn one_sided_requests_come_back() {
    let write = entry(opcode::WRITE, &[remote(), memory(10).emit()]);
    assert_eq!(there_and_back(QpType::Uc, &write).operation, Operation::Write(REMOTE));
    let write = entry(opcode::WRITE_IMMEDIATE, &[remote()]);
    assert_eq!(there_and_back(QpType::Rc, &write).operation, Operation::Write(REMOTE));
    let read = entry(opcode::READ, &[remote(), memory(10).emit()]);
    assert_eq!(there_and_back(QpType::Rc, &read).operation, Operation::Read(REMOTE));
}

#[test]
fn atomics_come_back() {
    let remote_at = REMOTE;
    let swap = entry(opcode::COMPARE_SWAP, &[remote(), pair(1, 2), memory(8).emit()]);
    let operation = Operation::CompareSwap { remote: remote_at, swap: 1, compare: 2 };
    assert_eq!(there_and_back(QpType::Rc, &swap).operation, operation);
    let add = entry(opcode::FETCH_ADD, &[remote(), pair(3, 0), memory(8).emit()]);
    let operation = Operation::FetchAdd { remote: remote_at, add: 3 };
    assert_eq!(there_and_back(QpType::Rc, &add).operation, operation);
    let units = [remote(), pair(1, 2), pair(3, 4), memory(8).emit()];
    let masked = entry(opcode::MASKED_COMPARE_SWAP, &units);
    let operation = Operation::MaskedCompareSwap {
        remote: remote_at,
        swap: 1,
        compare: 2,
        swap_mask: 3,
        compare_mask: 4,
    };
    assert_eq!(there_and_back(QpType::Rc, &masked).operation, operation);
    let masked = entry(opcode::MASKED_FETCH_ADD, &[remote(), pair(1, 2), memory(8).emit()]);
    let operation = Operation::MaskedFetchAdd { remote: remote_at, add: 1, boundaries: 2 };
    assert_eq!(there_and_back(QpType::Rc, &masked).operation, operation);
}

#[test]
fn datagrams_carry_either_form_of_address() {
    let compact = AddressVector { qkey: 7, qpn: 9, rlid: 3, ..AddressVector::default() };
    let extended = AddressVector { route: Some(Route::default()), ..compact };
    for vector in [compact, extended] {
        let units: Vec<_> = vector.emit().chain([memory(10).emit()]).collect();
        let entry = entry(opcode::SEND_IMMEDIATE, &units);
        let request = there_and_back(QpType::Ud, &entry);
        assert_eq!(request.destination, Some(vector));
        assert_eq!(request.data.count(), 1);
    }
}

#[test]
fn requests_of_xrc_name_the_shared_receive_queue() {
    let mut srqn = Unit::default();
    srqn.set::<0, 4>(0x12_3456u32.to_be_bytes());
    let entry = entry(opcode::WRITE_IMMEDIATE, &[srqn, remote(), memory(1).emit()]);
    let request = there_and_back(QpType::XrcSend, &entry);
    assert_eq!((request.srqn, request.operation), (Some(0x12_3456), Operation::Write(REMOTE)));
}

#[test]
fn window_operations_come_back() {
    let bind = WindowChange::Bind {
        variant: 3,
        is_type_2: true,
        access: abi::IBV_ACCESS_REMOTE_WRITE,
        start: 0,
        len: 100,
        region: 0x55,
        addr: 0x1000,
    };
    for change in [bind, WindowChange::Free { variant: 0, is_type_2: true }] {
        let units: Vec<_> = change.emit(0x33).collect();
        let entry = entry(opcode::UMR, &units);
        let request = there_and_back(QpType::Rc, &entry);
        assert_eq!(request.operation, Operation::Window(change));
        assert_eq!(request.data.count(), 0);
    }
    assert_eq!(bind.emit(0).count() + 1, BIND_UNITS);
}

#[test]
fn inline_bytes_of_every_length_come_back() {
    for len in 0..=200usize {
        let mut bytes = vec![0u8; (4 + len).next_multiple_of(UNIT)];
        bytes[..4].copy_from_slice(&(Data::INLINE | len as u32).to_be_bytes());
        for (n, byte) in bytes[4..4 + len].iter_mut().enumerate() {
            *byte = n as u8 + 1;
        }
        let mut units: Vec<Unit> =
            bytes.chunks_exact(UNIT).map(|unit| Fields(unit.try_into().expect("16"))).collect();
        let inline = entry(opcode::SEND, &units);
        let request = there_and_back(QpType::Rc, &inline);
        assert!(request.data.is_inline());
        assert_eq!(request.data.inline(20, len), &bytes[4..4 + len]);
        // A header inline, and memory behind the header.
        units.push(memory(10).emit());
        let mixed = entry(opcode::SEND, &units);
        let request = there_and_back(QpType::Rc, &mixed);
        assert!(!request.data.is_inline());
        let pieces: Vec<_> = request.data.collect();
        assert_eq!(pieces, [Piece::Inline { offset: 20, len }, Piece::Memory(memory(10))]);
    }
}

#[test]
fn a_nop_has_no_data() {
    let entry = entry(opcode::NOP, &[memory(1).emit()]);
    for kind in [QpType::Rc, QpType::Ud, QpType::XrcSend] {
        let request = decode(kind, &entry).expect("valid");
        assert_eq!((request.operation, request.data.count()), (Operation::Nop, 0));
    }
}

#[test]
fn opcodes_that_a_qp_type_does_not_permit_are_refused() {
    let units = [remote(), pair(0, 0), pair(0, 0), memory(1).emit()];
    let refused = |kind, code| decode(kind, &entry(code, &units)).err();
    for code in [opcode::WRITE, opcode::READ, opcode::FETCH_ADD, opcode::SEND_INVALIDATE] {
        assert_eq!(refused(QpType::Ud, code), Some(Malformed::Opcode));
    }
    for code in [opcode::READ, opcode::COMPARE_SWAP, opcode::MASKED_FETCH_ADD] {
        assert_eq!(refused(QpType::Uc, code), Some(Malformed::Opcode));
    }
    for code in [0x0e, 0x20, 0x28, 0x2f, 0x3f, 0xff] {
        assert_eq!(refused(QpType::Rc, code), Some(Malformed::Opcode));
    }
    assert_eq!(refused(QpType::XrcRecv, opcode::SEND), Some(Malformed::Opcode));
    assert_eq!(refused(QpType::Raw, opcode::SEND), Some(Malformed::Opcode));
}

#[test]
fn entries_without_their_segments_are_refused() {
    let refused = |kind, code, units: &[Unit]| decode(kind, &entry(code, units)).err();
    assert_eq!(refused(QpType::Rc, opcode::WRITE, &[]), Some(Malformed::Segment));
    assert_eq!(refused(QpType::Rc, opcode::COMPARE_SWAP, &[remote()]), Some(Malformed::Segment));
    assert_eq!(refused(QpType::XrcSend, opcode::SEND, &[]), Some(Malformed::Segment));
    assert_eq!(refused(QpType::Ud, opcode::SEND, &[]), Some(Malformed::Segment));
    let extended = AddressVector { route: Some(Route::default()), ..AddressVector::default() };
    let units: Vec<_> = extended.emit().take(2).collect();
    assert_eq!(refused(QpType::Ud, opcode::SEND, &units), Some(Malformed::Segment));
    assert_eq!(refused(QpType::Rc, opcode::UMR, &[Unit::default(); 6]), Some(Malformed::Segment));
    assert_eq!(refused(QpType::Rc, opcode::UMR, &[Unit::default(); 7]), Some(Malformed::Umr));
}

#[test]
fn inline_data_beyond_the_entry_or_for_arriving_bytes_is_refused() {
    let refused = |code, units: &[Unit]| decode(QpType::Rc, &entry(code, units)).err();
    let long = memory(Data::INLINE | 13).emit();
    assert_eq!(refused(opcode::SEND, &[long]), Some(Malformed::Inline));
    let huge = memory(u32::MAX).emit();
    assert_eq!(refused(opcode::SEND, &[memory(1).emit(), huge]), Some(Malformed::Inline));
    let short = memory(Data::INLINE | 12).emit();
    assert_eq!(refused(opcode::SEND, &[short]), None);
    assert_eq!(refused(opcode::READ, &[remote(), short]), Some(Malformed::Inline));
    let atomic = [remote(), pair(0, 0), short];
    assert_eq!(refused(opcode::FETCH_ADD, &atomic), Some(Malformed::Inline));
}
