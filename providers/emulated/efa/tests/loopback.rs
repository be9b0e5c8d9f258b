//! The engine as a provider uses it: commands, queues, doorbells and completion entries, over a
//! data path of the test.

// Builds without debug assertions have no fuzzing entries, whose memory this test uses.
#![cfg(debug_assertions)]

use emulated_commands::fields::{Fields, Structure};
use emulated_commands::kernel::{Answer, Kernel, WriteRequest};
use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::{Completion, Operation, Queue, Remote, Source, Status};
use emulated_efa::Efa;
use emulated_efa::fuzzing::{File, Recorder};

const GET_CONTEXT: u32 = 0;
const QUERY_DEVICE: u32 = 1;
const QUERY_PORT: u32 = 2;
const ALLOC_PD: u32 = 3;
const DEALLOC_PD: u32 = 4;
const CREATE_AH: u32 = 5;
const CREATE_COMP_CHANNEL: u32 = 17;
const CREATE_CQ: u32 = 18;
const DESTROY_CQ: u32 = 20;
const CREATE_QP: u32 = 24;
const QUERY_QP: u32 = 25;
const MODIFY_QP: u32 = 26;
const DESTROY_QP: u32 = 27;

const CQ_USER: u64 = 0xc0;
const ARM: u32 = 1 << 31;

struct Bench {
    kernel: Kernel<Efa>,
    file: File,
    carrier: Recorder,
}

/// Where a CQ's entries and doorbell are.
struct Cq {
    handle: u32,
    entries: u64,
    doorbell: u64,
}

/// Where a QP's rings and doorbells are.
struct Qp {
    handle: u32,
    number: u16,
    send: u64,
    receive: u64,
    send_doorbell: u64,
    receive_doorbell: u64,
}

impl Bench {
    fn new() -> Self {
        let mut bench =
            Self { kernel: Kernel::new(Efa), file: File::default(), carrier: Recorder::default() };
        let opened = bench.plain(GET_CONTEXT, &[0; 8], &[0; 8]).expect("a context");
        // The provider fails to open without the bit for CREATE_AH.
        assert_eq!(Fields::new(&opened.vendor).u32(4) & 2, 2);
        bench.plain(ALLOC_PD, &[0; 8], &[]).expect("a PD");
        bench
    }

    fn send(
        &mut self,
        number: u32,
        is_extended: bool,
        core: &[u8],
        vendor: &[u8],
    ) -> Result<Answer, Refusal> {
        let sent = WriteRequest { number, is_extended, core, room: 512, vendor };
        self.kernel.write(&sent, &mut self.file, &mut self.carrier)
    }

    fn plain(&mut self, number: u32, core: &[u8], vendor: &[u8]) -> Result<Answer, Refusal> {
        self.send(number, false, core, vendor)
    }

    fn cq(&mut self, entries: u32, channel: i32) -> Cq {
        let core = Structure::new(32)
            .u64(0, CQ_USER)
            .u32(8, entries)
            .u32(16, channel.cast_unsigned())
            .into_bytes();
        let vendor = Structure::new(16).u32(4, 32).u16(8, 1).u8(10, 3).into_bytes();
        let made = self.send(CREATE_CQ, true, &core, &vendor).expect("a CQ");
        let vendor = Fields::new(&made.vendor);
        assert_eq!(vendor.u32(0), 1, "the doorbell is told");
        Cq {
            handle: Fields::new(&made.core).u32(0),
            entries: vendor.u64(8),
            doorbell: vendor.u64(32) + u64::from(vendor.u32(28)),
        }
    }

    /// A QP with 4 requests and 8 receive descriptors, in RTS.
    fn qp(&mut self, cq: &Cq, kind: u8) -> Qp {
        let core = Structure::new(64)
            .u64(0, 0x99)
            .u32(12, cq.handle)
            .u32(16, cq.handle)
            .u32(24, 4)
            .u32(28, 4)
            .u32(32, 2)
            .u32(36, 2)
            .u32(40, 32)
            .u8(45, kind)
            .into_bytes();
        let vendor = Structure::new(16).u32(4, 8 * 16).u32(8, 4 * 64).into_bytes();
        let made = self.send(CREATE_QP, true, &core, &vendor).expect("a QP");
        let (core, vendor) = (Fields::new(&made.core), Fields::new(&made.vendor));
        let qp = Qp {
            handle: core.u32(0),
            number: u16::try_from(core.u32(4)).expect("16 bits"),
            send: vendor.u64(48) + u64::from(vendor.u32(12)),
            receive: vendor.u64(16),
            send_doorbell: vendor.u64(40) + u64::from(vendor.u32(8)),
            receive_doorbell: vendor.u64(32) + u64::from(vendor.u32(4)),
        };
        for state in [1, 2, 3] {
            self.modify(&qp, state).expect("a step to RTS");
        }
        qp
    }

    fn modify(&mut self, qp: &Qp, state: u8) -> Result<Answer, Refusal> {
        let core = Structure::new(112).u32(64, qp.handle).u32(68, 1).u8(96, state).into_bytes();
        self.plain(MODIFY_QP, &core, &[])
    }

    fn post(&mut self, at: u64, entry: &[u8], doorbell: u64, counter: u32) {
        self.file.poke(at, entry);
        self.file.poke(doorbell, &counter.to_le_bytes());
    }

    fn ring(&mut self, qp: &Qp) -> usize {
        self.kernel.ring(qp.handle, &mut self.file, &mut self.carrier).expect("a QP")
    }

    fn complete(&mut self, qp: &Qp, completion: &Completion) {
        let done = self.kernel.complete(qp.handle, completion, &mut self.file, &mut self.carrier);
        done.expect("a QP");
    }

    fn entry(&self, cq: &Cq, index: u64) -> [u8; 32] {
        let at = usize::try_from(cq.entries + index * 32).expect("a small file");
        self.file.bytes()[at..at + 32].try_into().expect("32 bytes")
    }
}

fn send_entry(id: u16, first: u8, length: u16, words: [u32; 8]) -> Vec<u8> {
    let mut entry = Structure::new(64)
        .u16(0, id)
        .u8(2, 0x80 | first)
        .u8(3, 0b1_1100)
        .u16(4, 2)
        .u16(6, length)
        .u32(8, 0xfeed)
        .u16(12, 1);
    for (index, word) in words.into_iter().enumerate() {
        entry = entry.u32(32 + index * 4, word);
    }
    entry.into_bytes()
}

fn receive_entry(id: u16, length: u16, control: u32) -> Vec<u8> {
    Structure::new(16).u32(0, 0x8000).u16(8, id).u16(10, length).u32(12, control).into_bytes()
}

#[test]
fn a_device_answers_its_limits_and_its_port() {
    let mut bench = Bench::new();
    let device = bench.send(QUERY_DEVICE, true, &[0; 8], &[]).expect("attributes");
    let (core, vendor) = (Fields::new(&device.core), Fields::new(&device.vendor));
    assert_eq!((core.u32(40), core.u32(180)), (0x1d0f, 304));
    assert_eq!((core.u8(171), vendor.u16(12), vendor.u32(20) & 1), (1, 2, 1));
    let port = |port| Structure::new(16).u8(8, port).into_bytes();
    assert_eq!(bench.plain(QUERY_PORT, &port(1), &[]).expect("a port").core[26], 4);
    assert_eq!(bench.plain(QUERY_PORT, &port(2), &[]), Err(Refusal::Invalid));
}

#[test]
fn requests_and_receives_go_out_and_results_come_back_in_rings_that_wrap() {
    let mut bench = Bench::new();
    let cq = bench.cq(4, -1);
    let qp = bench.qp(&cq, 255);
    for round in 0..10_u16 {
        let slot = u64::from(round);
        let counter = u32::from(round) + 1;
        // A receive of two descriptors, an RDMA READ.
        let at = qp.receive + slot * 2 % 8 * 16;
        bench.file.poke(at, &receive_entry(round, 40, 1 << 30 | 5));
        let second = receive_entry(round, 60, 1 << 31 | 6);
        bench.post(at + 16, &second, qp.receive_doorbell, counter * 2);
        let read = send_entry(round, 1, 1, [500, 0x77, 0x1000, 0, 500, 3, 0x2000, 0]);
        bench.post(qp.send + slot % 4 * 64, &read, qp.send_doorbell, counter);
        assert_eq!(bench.ring(&qp), 2);

        let (_, receive) = bench.carrier.receives.pop_front().expect("a receive");
        let lengths: Vec<u32> = receive.segments.iter().map(|segment| segment.length).collect();
        assert_eq!((receive.id, lengths), (u64::from(round), vec![40, 60]));
        let (_, request) = bench.carrier.requests.pop_front().expect("a request");
        let remote = Remote { address: 0x1000, rkey: 0x77 };
        assert_eq!((request.operation, request.len()), (Operation::Read(remote), 500));

        let id = Some(request.id);
        let of = u32::from(qp.number);
        let read = Completion { qp: of, id, operation: request.operation, ..Default::default() };
        bench.complete(&qp, &read);
        let source = Source { qp: 9, ah: None, gid: [0xee; 16] };
        let received = Completion {
            qp: of,
            queue: Queue::Receive,
            id: Some(receive.id),
            len: 70,
            source: Some(source),
            ..Default::default()
        };
        bench.complete(&qp, &received);
        let phase = u8::from(slot * 2 / 4 % 2 == 0);
        let [sent, received] = [0, 1].map(|n| bench.entry(&cq, (slot * 2 + n) % 4));
        assert_eq!((sent[3], u16::from(sent[0])), (0x10 | 2 | phase, round));
        assert_eq!((received[3], received[6], received[16]), (4 | phase, 70, 0xee));
        bench.file.poke(cq.doorbell, &(u32::from(round) * 2 + 2).to_le_bytes());
    }
    assert!(bench.carrier.reports.is_empty());
}

#[test]
fn an_entry_that_cannot_be_executed_gets_its_error_and_the_next_one_goes_on() {
    let mut bench = Bench::new();
    let cq = bench.cq(8, -1);
    let qp = bench.qp(&cq, 255);
    bench.file.poke(qp.send, &send_entry(1, 7, 1, [0; 8]));
    bench.file.poke(qp.send + 64, &send_entry(2, 0, 3, [0; 8]));
    bench.file.poke(qp.send + 128, &send_entry(3, 0, 1, [10, 1, 0, 0, 0, 0, 0, 0]));
    bench.post(qp.send + 192, &send_entry(4, 0, 0, [0; 8]), qp.send_doorbell, 4);
    bench.carrier.refusal = Some(Status::BadAddressHandle);
    assert_eq!(bench.ring(&qp), 4);
    let results: Vec<_> = (0..3).map(|n| bench.entry(&cq, n)).map(|e| (e[0], e[2])).collect();
    assert_eq!(results, [(1, 3), (2, 6), (3, 4)]);
    let begun: Vec<_> = bench.carrier.requests.iter().map(|(_, request)| request.id).collect();
    assert_eq!(begun, [4]);

    // A receive that does not begin with its first descriptor.
    let broken = receive_entry(9, 1, 1 << 31);
    bench.post(qp.receive, &broken, qp.receive_doorbell, 1);
    bench.ring(&qp);
    let entry = bench.entry(&cq, 3);
    assert_eq!((entry[0], entry[2], entry[3] & 6), (9, 2, 4));
}

#[test]
fn a_qp_waits_in_init_and_flushes_in_error() {
    let mut bench = Bench::new();
    let cq = bench.cq(8, -1);
    let qp = bench.qp(&cq, 255);
    bench.modify(&qp, 0).expect("RESET");
    bench.modify(&qp, 1).expect("INIT");
    bench.post(qp.send, &send_entry(5, 0, 0, [0; 8]), qp.send_doorbell, 1);
    let receive = receive_entry(6, 9, 3 << 30);
    bench.post(qp.receive, &receive, qp.receive_doorbell, 1);
    assert_eq!(bench.ring(&qp), 1, "receives may be posted, requests may not");
    assert_eq!((bench.carrier.receives.len(), bench.carrier.requests.len()), (1, 0));
    // The state alone makes what waits complete; the data path flushes what it has.
    bench.modify(&qp, 6).expect("ERR");
    let entry = bench.entry(&cq, 0);
    assert_eq!((entry[0], entry[2]), (5, 1));
    let core = Structure::new(16).u32(8, qp.handle).into_bytes();
    let answer = bench.plain(QUERY_QP, &core, &[]).expect("attributes");
    let sizes: Vec<u32> = (0..5).map(|n| Fields::new(&answer.core).u32(64 + n * 4)).collect();
    assert_eq!(sizes, [4, 4, 2, 2, 32]);
}

#[test]
fn datagrams_have_no_rdma() {
    let mut bench = Bench::new();
    let cq = bench.cq(4, -1);
    let qp = bench.qp(&cq, 4);
    let write = send_entry(1, 2, 1, [4, 1, 0, 0, 4, 1, 0, 0]);
    bench.post(qp.send, &write, qp.send_doorbell, 1);
    bench.ring(&qp);
    assert_eq!((bench.entry(&cq, 0)[2], bench.carrier.requests.len()), (3, 0));
}

#[test]
fn an_armed_cq_has_one_event_and_a_full_one_is_reported_once() {
    let mut bench = Bench::new();
    let channel = bench.plain(CREATE_COMP_CHANNEL, &[0; 8], &[]).expect("a channel");
    let channel = Fields::new(&channel.core).u32(0).cast_signed();
    let cq = bench.cq(2, channel);
    let qp = bench.qp(&cq, 255);
    let done = Completion { qp: u32::from(qp.number), id: Some(1), ..Default::default() };
    bench.complete(&qp, &done);
    assert!(bench.carrier.events.is_empty(), "not armed");
    // Polled up to the entry, then armed, then polled once more, which hides the arming.
    bench.file.poke(cq.doorbell, &(ARM | 1).to_le_bytes());
    bench.kernel.arm(cq.handle, &bench.file, &mut bench.carrier).expect("a CQ");
    bench.file.poke(cq.doorbell, &1_u32.to_le_bytes());
    assert!(bench.carrier.events.is_empty(), "nothing is new");
    bench.complete(&qp, &done);
    assert_eq!(bench.carrier.events, [(channel, CQ_USER)]);
    for _ in 0..3 {
        bench.complete(&qp, &done);
    }
    assert_eq!(
        (&bench.carrier.events[..], &bench.carrier.reports[..]),
        (&[(channel, CQ_USER)][..], &[(CQ_USER, 0)][..])
    );
}

#[test]
fn objects_in_use_stay_and_everything_is_given_back() {
    let mut bench = Bench::new();
    let cq = bench.cq(4, -1);
    let qp = bench.qp(&cq, 255);
    let ah = Structure::new(56).u8(24 + 30, 1).u8(24 + 29, 1).into_bytes();
    let made = bench.plain(CREATE_AH, &ah, &[]).expect("an address handle");
    assert_eq!(Fields::new(&made.vendor).u16(4), 0);
    let handle = |at: usize, handle| Structure::new(16).u32(at, handle).into_bytes();
    assert_eq!(bench.plain(DESTROY_CQ, &handle(8, cq.handle), &[]), Err(Refusal::InUse));
    assert_eq!(bench.plain(DEALLOC_PD, &handle(0, 0), &[]), Err(Refusal::InUse));
    bench.plain(DESTROY_QP, &handle(8, qp.handle), &[]).expect("destroyed");
    assert_eq!(bench.plain(DESTROY_QP, &handle(8, qp.handle), &[]), Err(Refusal::NoObject));
    bench.plain(DESTROY_CQ, &handle(8, cq.handle), &[]).expect("destroyed");
    assert_eq!(bench.file.areas(), 0);
    // The number of the destroyed QP is given again.
    let cq = bench.cq(4, -1);
    assert_eq!(bench.qp(&cq, 255).number, qp.number);
}

#[test]
fn requests_that_lie_are_refused_as_the_kernel_refuses_them() {
    let mut bench = Bench::new();
    assert_eq!(bench.plain(ALLOC_PD, &[0; 7], &[]), Err(Refusal::TooShort));
    let short =
        WriteRequest { number: 1, is_extended: false, core: &[0; 8], room: 175, vendor: &[] };
    let done = bench.kernel.write(&short, &mut bench.file, &mut bench.carrier);
    assert_eq!(done, Err(Refusal::TooShort));
    assert_eq!(bench.plain(41, &[], &[]), Err(Refusal::Invalid));
    assert_eq!(bench.plain(32, &[0; 64], &[]), Err(Refusal::Unsupported), "no SRQs");
    let cq = Structure::new(32).u32(8, 4).u32(16, u32::MAX);
    for vendor in [
        Structure::new(16).u32(4, 24).u16(8, 1),
        Structure::new(16).u32(4, 16).u16(8, 2),
        Structure::new(16).u32(4, 16).u16(8, 1).u8(10, 2),
        Structure::new(24).u32(4, 16).u16(8, 1).u8(23, 1),
    ] {
        let core = cq.clone().into_bytes();
        let done = bench.send(CREATE_CQ, true, &core, &vendor.into_bytes());
        assert_eq!(done, Err(Refusal::Invalid));
    }
    let made = bench.cq(4, -1);
    let qp = Structure::new(64).u32(12, made.handle).u32(16, made.handle).u32(24, 4).u8(45, 255);
    for vendor in [
        Structure::new(16).u32(8, 3 * 64),
        Structure::new(16).u32(8, 4 * 64 + 1),
        Structure::new(16).u32(8, 2 * 64),
        Structure::new(16).u32(8, 4 * 64).u32(12, 1),
        Structure::new(16).u32(8, 1 << 31),
    ] {
        let done = bench.send(CREATE_QP, true, &qp.clone().into_bytes(), &vendor.into_bytes());
        assert_eq!(done, Err(Refusal::Invalid));
    }
    assert_eq!((bench.file.areas(), bench.carrier.objects()), (1, 1));
}
