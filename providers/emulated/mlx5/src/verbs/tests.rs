use super::*;
use crate::segment::{Data, Route};
use crate::wqe::{MAX_BYTES, decode, encode};

const NAMES: Names = Names { user_index: 0x77, is_solicited: true, timestamp: 5 };

fn control(code: u8) -> Control {
    Control {
        modifier: 0,
        index: 0x1234,
        opcode: code,
        qpn: 0x33,
        units: 0,
        signature: 0,
        flags: Control::COMPLETION | Control::SOLICITED | Control::FENCE,
        immediate: [1, 2, 3, 4],
    }
}

fn posted(operation: Operation, code: u8) -> Result<Request, Malformed> {
    let (destination, srqn, data) = (None, None, Pieces::NONE);
    let entry = wqe::Request { control: control(code), operation, destination, srqn, data };
    request(&entry, QpType::Rc).map(|execution| match execution {
        Execution::Post(request) => request,
        Execution::Complete => panic!("a request"),
    })
}

#[test]
fn tickets_come_back_from_their_ids() {
    let tickets = [
        Ticket::Send { index: 0xffff, opcode: 0x0a, refused: None },
        Ticket::Send { index: 0, opcode: 0xff, refused: Some(Malformed::Masked) },
        Ticket::Receive { counter: 0x8000 },
        Ticket::SharedReceive { entry: 0xffff, xrc_index: None },
        Ticket::SharedReceive { entry: 3, xrc_index: Some(0xff_ffff) },
        Ticket::SharedReceive { entry: 3, xrc_index: Some(0) },
    ];
    for ticket in tickets {
        assert_eq!(Ticket::of(ticket.wr_id()), Some(ticket));
    }
    assert_eq!((Ticket::of(0), Ticket::of(u64::MAX)), (None, None));
}

#[test]
fn each_operation_has_its_verbs_request() {
    let remote = RemoteAddress { addr: 0x1000, rkey: 9 };
    let network = u32::from_ne_bytes([1, 2, 3, 4]);
    let rows = [
        (opcode::SEND, Operation::Send, IBV_WR_SEND, 0, RequestOperation::Send),
        (
            opcode::SEND_IMMEDIATE,
            Operation::Send,
            IBV_WR_SEND_WITH_IMM,
            network,
            RequestOperation::Send,
        ),
        (
            opcode::SEND_INVALIDATE,
            Operation::Send,
            IBV_WR_SEND_WITH_INV,
            0x0102_0304,
            RequestOperation::Send,
        ),
        (
            opcode::WRITE,
            Operation::Write(remote),
            IBV_WR_RDMA_WRITE,
            0,
            RequestOperation::Write(remote),
        ),
        (
            opcode::WRITE_IMMEDIATE,
            Operation::Write(remote),
            IBV_WR_RDMA_WRITE_WITH_IMM,
            network,
            RequestOperation::Write(remote),
        ),
        (
            opcode::READ,
            Operation::Read(remote),
            IBV_WR_RDMA_READ,
            0,
            RequestOperation::Read(remote),
        ),
        (
            opcode::COMPARE_SWAP,
            Operation::CompareSwap { remote, swap: 1, compare: 2 },
            IBV_WR_ATOMIC_CMP_AND_SWP,
            0,
            RequestOperation::CompareSwap { remote, compare: 2, swap: 1 },
        ),
        (
            opcode::FETCH_ADD,
            Operation::FetchAdd { remote, add: 3 },
            IBV_WR_ATOMIC_FETCH_AND_ADD,
            0,
            RequestOperation::FetchAdd { remote, add: 3 },
        ),
    ];
    for (code, operation, expected, imm, what) in rows {
        let request = posted(operation, code).expect("valid");
        assert_eq!((request.opcode, request.imm, request.operation), (expected, imm, what));
        let flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_FENCE;
        assert_eq!(request.flags, flags);
        let ticket = Ticket::Send { index: 0x1234, opcode: code, refused: None };
        assert_eq!(Ticket::of(request.wr_id), Some(ticket));
    }
}

#[test]
fn windows_are_bound_invalidated_and_unbound() {
    let bind = |start| WindowChange::Bind {
        variant: 0x55,
        is_type_2: true,
        access: IBV_ACCESS_REMOTE_READ,
        start,
        len: 64,
        region: 0x900,
        addr: 0x2000,
    };
    let what =
        |change| posted(Operation::Window(change), opcode::UMR).map(|r| (r.opcode, r.operation));
    let expected = |access| {
        let bind = Bind { rkey: 0x0102_0355, region: 0x900, addr: 0x2000, len: 64, access };
        Ok((IBV_WR_BIND_MW, RequestOperation::Bind(bind)))
    };
    assert_eq!(what(bind(0x2000)), expected(IBV_ACCESS_REMOTE_READ));
    assert_eq!(what(bind(0)), expected(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED));
    assert_eq!(what(bind(0x1000)), Err(Malformed::Umr));
    let free = |is_type_2| WindowChange::Free { variant: 0x66, is_type_2 };
    let invalidated = (IBV_WR_LOCAL_INV, RequestOperation::Invalidate { rkey: 0x0102_0304 });
    assert_eq!(what(free(true)), Ok(invalidated));
    let unbound = Bind { rkey: 0x0102_0366, region: 0, addr: 0, len: 0, access: 0 };
    assert_eq!(what(free(false)), Ok((IBV_WR_BIND_MW, RequestOperation::Bind(unbound))));
}

#[test]
fn a_nop_completes_in_order_on_a_connection_and_at_once_on_ud() {
    let request = posted(Operation::Nop, opcode::NOP).expect("valid");
    assert_eq!(request.operation, RequestOperation::Write(RemoteAddress::default()));
    let entry = wqe::Request {
        control: control(opcode::NOP),
        operation: Operation::Nop,
        destination: None,
        srqn: None,
        data: Pieces::NONE,
    };
    assert!(matches!(super::request(&entry, QpType::Ud), Ok(Execution::Complete)));
}

#[test]
fn inline_bytes_come_from_the_queue_in_two_ranges_where_they_wrap() {
    // Ten units of inline data from the last but one block of a ring of four.
    let mut bytes = [0; MAX_BYTES];
    bytes[..16].copy_from_slice(&Control { units: 11, ..control(opcode::SEND) }.emit().0);
    bytes[16..20].copy_from_slice(&(Data::INLINE | 156).to_be_bytes());
    let entry = decode(QpType::Rc, &bytes[..176]).expect("valid");
    let geometry = Geometry { offset: 0x100, blocks: 4 };
    let queue = QueueMemory { addr: 0x10_0000, lkey: 0x44 };
    let found = ranges(entry.data, 2, &geometry, &queue).expect("few ranges");
    let parts: Vec<_> = found.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect();
    assert_eq!(parts, [(0x10_0100 + 128 + 20, 108, 0x44), (0x10_0100, 48, 0x44)]);
    let Ok(Execution::Post(request)) = request(&entry, QpType::Rc) else { panic!("a request") };
    assert_ne!(request.flags & IBV_SEND_INLINE, 0);
}

#[test]
fn a_count_of_zero_stands_for_two_gigabytes_and_many_segments_are_refused() {
    let mut bytes = [0; MAX_BYTES];
    bytes[..16].copy_from_slice(&Control { units: 34, ..control(opcode::SEND) }.emit().0);
    let geometry = Geometry { offset: 0, blocks: 16 };
    let queue = QueueMemory { addr: 0, lkey: 0 };
    let entry = decode(QpType::Rc, &bytes[..33 * 16]).expect("valid");
    let found = ranges(entry.data, 0, &geometry, &queue).expect("32 ranges");
    assert_eq!((found.len(), found[0].length), (32, 1 << 31));
    let entry = decode(QpType::Rc, &bytes[..34 * 16]).expect("valid");
    let refused = ranges(entry.data, 0, &geometry, &queue).err();
    assert_eq!(refused, Some(Malformed::TooManySegments));
}

#[test]
fn datagrams_keep_their_address() {
    let route = Route {
        mac: [0; 6],
        traffic_class: 3,
        hop_limit: 64,
        gid_and_flow: 7 << 20 | 0x54321,
        gid: [0xfe; 16],
    };
    let vector = AddressVector {
        qkey: 0x1111,
        qpn: 0x22,
        rate_and_sl: 0x24,
        loopback_and_path: 0,
        rlid: 0xc000,
        route: Some(route),
    };
    let attr = address(&vector, 2);
    assert_eq!((attr.is_global, attr.port_num, attr.sl, attr.static_rate), (1, 2, 2, 2));
    assert_eq!((attr.grh.sgid_index, attr.grh.flow_label), (7, 0x54321));
    assert_eq!((attr.grh.hop_limit, attr.grh.traffic_class, attr.dlid), (64, 3, 0));
    let compact = AddressVector { route: None, ..vector };
    assert_eq!((address(&compact, 1).is_global, address(&compact, 1).dlid), (0, 0xc000));
    let entry = wqe::Request {
        control: control(opcode::SEND),
        operation: Operation::Send,
        destination: Some(vector),
        srqn: None,
        data: Pieces::NONE,
    };
    let Ok(Execution::Post(request)) = request(&entry, QpType::Ud) else { panic!("a request") };
    assert_eq!((request.destination.qpn, request.destination.qkey), (0x22, 0x1111));
}

fn cqe(ticket: Ticket, status: u32, opcode: u32) -> Cqe {
    let wr_id = ticket.wr_id();
    Cqe { wr_id, status, opcode, byte_len: 100, qp_num: 0x33, vendor_err: 2, ..Cqe::default() }
}

#[test]
fn sends_complete_with_their_opcode_and_index() {
    let ticket = |opcode| Ticket::Send { index: 9, opcode, refused: None };
    for (code, wc, byte_count) in [
        (opcode::SEND, IBV_WC_SEND, 0),
        (opcode::READ, IBV_WC_RDMA_READ, 100),
        (opcode::FETCH_ADD, IBV_WC_FETCH_ADD, 8),
        (opcode::NOP, IBV_WC_RDMA_WRITE, 0),
    ] {
        let found = completion(&cqe(ticket(code), 0, wc), &NAMES).expect("a ticket");
        assert_eq!(found.outcome, Outcome::Sent { opcode: code, byte_count });
        assert_eq!((found.counter, found.qpn, found.user_index), (9, 0x33, 0x77));
    }
    let failed = cqe(ticket(opcode::WRITE), IBV_WC_REM_ACCESS_ERR, IBV_WC_RDMA_WRITE);
    let outcome = Outcome::SendFailed {
        opcode: opcode::WRITE,
        syndrome: Syndrome::RemoteAccess,
        vendor_err: 2,
    };
    assert_eq!(completion(&failed, &NAMES).map(|c| c.outcome), Some(outcome));
    assert_eq!(completion(&Cqe::default(), &NAMES), None);
}

#[test]
fn a_refused_entry_fails_with_its_reason_or_is_flushed() {
    let request = refusal(9, 0x2f, Malformed::Opcode);
    let with = |status| Cqe { wr_id: request.wr_id, status, vendor_err: 5, ..Cqe::default() };
    let failed =
        |syndrome, vendor_err| Some(Outcome::SendFailed { opcode: 0x2f, syndrome, vendor_err });
    let outcome = |status| completion(&with(status), &NAMES).map(|c| c.outcome);
    assert_eq!(outcome(IBV_WC_LOC_PROT_ERR), failed(Syndrome::LocalQpOperation, 0x85));
    assert_eq!(outcome(IBV_WC_WR_FLUSH_ERR), failed(Syndrome::Flushed, 5));
}

#[test]
fn receives_complete_with_value_source_and_index() {
    let receive = Ticket::Receive { counter: 4 };
    let shared = Ticket::SharedReceive { entry: 6, xrc_index: None };
    let xrc = Ticket::SharedReceive { entry: 7, xrc_index: Some(0x99) };
    let with = |ticket, opcode, wc_flags, imm| {
        let base = cqe(ticket, 0, opcode);
        completion(&Cqe { wc_flags, imm, src_qp: 0x11, ..base }, &NAMES).expect("a ticket")
    };
    let kind = |found: Completion| match found.outcome {
        Outcome::Arrived { received, byte_count: 100, source, is_solicited: true } => {
            assert_eq!(source.qpn, 0x11);
            received
        }
        other => panic!("{other:?}"),
    };
    let network = u32::from_ne_bytes([1, 2, 3, 4]);
    let sent = with(receive, IBV_WC_RECV, 0, 0);
    assert_eq!((sent.counter, kind(sent)), (4, Received::Send));
    let sent = with(shared, IBV_WC_RECV, IBV_WC_WITH_IMM, network);
    assert_eq!((sent.counter, sent.user_index), (6, 0x77));
    assert_eq!(kind(sent), Received::SendImmediate([1, 2, 3, 4]));
    let sent = with(xrc, IBV_WC_RECV, IBV_WC_WITH_INV, 0x500);
    assert_eq!((sent.counter, sent.user_index), (7, 0x99));
    assert_eq!(kind(sent), Received::SendInvalidate(0x500));
    let written = with(receive, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM, network);
    assert_eq!(kind(written), Received::WriteImmediate([1, 2, 3, 4]));
    let failed = completion(&cqe(receive, IBV_WC_LOC_LEN_ERR, IBV_WC_RECV), &NAMES);
    let outcome = Outcome::ReceiveFailed { syndrome: Syndrome::LocalLength, vendor_err: 2 };
    assert_eq!(failed.map(|c| c.outcome), Some(outcome));
}

#[test]
fn a_request_survives_encoding_decoding_and_posting() {
    let entry = wqe::Request {
        control: control(opcode::READ),
        operation: Operation::Read(RemoteAddress { addr: 1, rkey: 2 }),
        destination: None,
        srqn: None,
        data: Pieces::NONE,
    };
    let mut into = [0; MAX_BYTES];
    let bytes = encode(&entry, &mut into).expect("room");
    let again = decode(QpType::Rc, bytes).expect("valid");
    let wr_id = |entry: &wqe::Request<'_>| match request(entry, QpType::Rc) {
        Ok(Execution::Post(request)) => request.wr_id,
        other => panic!("{other:?}"),
    };
    assert_eq!(wr_id(&again), wr_id(&entry));
}
