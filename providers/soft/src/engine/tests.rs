//! Tests of two connected QPs of one process, on both data paths: bytes moved by the initiator, and
//! bytes moved through the ring. This module has the fixtures (`Side`, `pair`, `request`); its
//! submodules have the tests of one subject each.
//!
//! Map of the file: `adapter` and `join` make adapters, [`Side`] a QP, `pair` a connection, and
//! `request` a work request; the tests of the basic operations follow. The test thread and the
//! service thread of each adapter enter the engine. The only lock here is `JOINED`, a leaf lock.

use crate::engine::adapter::Adapter;
use crate::engine::keys::regions::{
    Extent, Keys, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE,
};
use crate::engine::queues::channel::{Channel, Reporter};
use crate::engine::queues::cq::{Cq, CqOptions};
use crate::engine::queues::qp::creating::QpParameters;
use crate::engine::queues::qp::{Pair, Qp, Role};
use crate::engine::queues::served_by::ServedBy;
use crate::engine::queues::srq::Srq;
use crate::engine::queues::srq::receives::SrqParameters;
use crate::net::Gids;
use abi::*;
use cface::sync::Mutex;
use soft_local::fabric::FabricConfig;
use soft_semantics::completion::{Cqe, Reads};
use soft_semantics::request::{Destination, RemoteAddress, Request, RequestOperation};
use soft_semantics::state::QpType;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

mod access_rights;
mod deregistering;
mod differential;
mod early_packets;
mod footprint;
mod forged;
mod helping;
mod inline;
mod leaving_rts;
mod queueless;
mod reconnecting;
mod segmented;
mod shared_atomics;
mod short_sends;
mod strict;
mod unmapped;
mod unpolled;
mod waiting_datagrams;
mod xrc_order;
mod xrc_questions;

const QKEY: u32 = 0x1111;
const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

/// An adapter on a fabric of its own, whose directory is removed when the program ends.
fn adapter(cma: bool) -> Arc<Adapter> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    join_named(&COUNT.fetch_add(1, Ordering::Relaxed).to_string(), cma)
}

/// An adapter for connections by UDP packets. All of them are members of one fabric, because the
/// UDP port of a network namespace belongs to one fabric, and tests run side by side.
fn adapter_with_port() -> Arc<Adapter> {
    join_named("wire", true)
}

fn join_named(name: &str, cma: bool) -> Arc<Adapter> {
    let name = format!("ferroverbs-test-{}-{name}", std::process::id());
    let mut config = FabricConfig::new(std::env::temp_dir().join(name));
    config.dir_is_ours = true;
    config.cma = cma;
    join(config)
}

fn join(config: FabricConfig) -> Arc<Adapter> {
    static CLEAN: Once = Once::new();
    CLEAN.call_once(|| {
        remove_what_the_dead_left();
        // SAFETY: `leave_all` is a function of this program without captures.
        unsafe { libc::atexit(leave_all) };
    });
    let adapter = Adapter::join(config).expect("a fabric in the temporary directory");
    JOINED.lock().push(Arc::downgrade(&adapter));
    adapter
}

/// The adapters that may still exist when all tests are over. A failed test does not destroy its
/// QPs, and each QP holds its adapter.
static JOINED: Mutex<Vec<Weak<Adapter>>> = Mutex::new(vec![]);

extern "C" fn leave_all() {
    for adapter in JOINED.lock().iter().filter_map(Weak::upgrade) {
        adapter.fabric.leave();
    }
}

/// Removes the directories of test programs that were killed.
fn remove_what_the_dead_left() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid =
            name.to_str().and_then(|name| name.strip_prefix("ferroverbs-test-")?.split('-').next());
        if pid.is_some_and(|pid| !std::path::Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Two adapters on one new fabric.
fn adapters() -> [Arc<Adapter>; 2] {
    let first = adapter(true);
    let second = join(first.fabric.config().clone());
    [first, second]
}

/// Waits until `is_so` holds; panics with `what` after 20 seconds.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// Waits until the service thread has seen everything that was there before this call.
fn looked(adapter: &Adapter) {
    // The service thread may be in the middle of a round. The next round begins after this point,
    // and it is over when a further one begins.
    for _ in 0..2 {
        let before = adapter.service.rounds();
        adapter.fabric.wake_self();
        until("a round", || adapter.service.rounds() != before);
    }
}

fn reporter() -> Reporter {
    Reporter(Arc::new(Channel::new(2).expect("a channel")))
}

/// A completion queue with more capacity than any test needs.
fn queue(adapter: &Arc<Adapter>) -> Arc<Cq> {
    let form = CqOptions {
        capacity: 1024,
        reads: Reads::default(),
        overwrites: false,
        single_threaded: false,
    };
    Cq::new(Arc::clone(adapter), form, None, reporter()).expect("memory")
}

/// One end of a connection: a QP with its completion queue and some registered memory.
struct Side {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    memory: Box<[u8]>,
    keys: Keys,
}

impl Side {
    fn new(adapter: &Arc<Adapter>, kind: QpType, bytes: usize) -> Self {
        Self::with(adapter, kind, bytes, 256, None)
    }

    fn with(
        adapter: &Arc<Adapter>,
        kind: QpType,
        bytes: usize,
        max_inline: u32,
        srq: Option<&Arc<Srq>>,
    ) -> Self {
        let cq = queue(adapter);
        Self::with_queues(adapter, kind, bytes, max_inline, srq, [&cq, &cq])
    }

    /// Creates the QP with one CQ for its sends, which `poll` reads, and one for its receives.
    fn with_queues(
        adapter: &Arc<Adapter>,
        kind: QpType,
        bytes: usize,
        max_inline: u32,
        srq: Option<&Arc<Srq>>,
        [cq, recv_cq]: [&Arc<Cq>; 2],
    ) -> Self {
        let pd = match srq {
            Some(srq) => srq.pd,
            None => adapter.domains.create(0).expect("room").0,
        };
        let memory = vec![0u8; bytes].into_boxed_slice();
        let va = memory.as_ptr() as u64;
        let extent = Extent { pd, va, iova: va, len: bytes as u64, access: ALL };
        let keys = adapter.regions.register(&extent).expect("room");
        let cap = ibv_qp_cap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: max_inline,
        };
        let mut pair = Pair::new(Arc::clone(cq), Arc::clone(recv_cq), srq.cloned());
        pair.signals_all = true;
        let wanted = QpParameters::pair(kind, pd, pair, cap, reporter());
        let qp = Qp::new(adapter, wanted).expect("a number");
        Self { qp, cq: Arc::clone(cq), memory, keys }
    }

    fn modify(&self, state: u32, given: u32, attr: ibv_qp_attr) {
        let attr = ibv_qp_attr { qp_state: state, ..attr };
        let gids = Gids::of_this_host(self.qp.adapter().identity.guid(), 0);
        crate::ops::qp::modify(&self.qp, &gids, &attr, given | IBV_QP_STATE)
            .expect("a permitted transition");
    }

    /// Takes the QP through INIT and RTR to RTS. `rnr_retry` bounds how often the peer lets a
    /// message wait for a receive.
    fn connect(&self, to: u32, rnr_retry: u8) {
        self.connect_as(to, ibv_qp_attr { rnr_retry, timeout: 1, ..Zeroed::zeroed() });
    }

    /// Takes the QP through INIT and RTR to RTS with the PSNs and the timeouts of `own`.
    fn connect_as(&self, to: u32, own: ibv_qp_attr) {
        let attr = ibv_qp_attr {
            qkey: QKEY,
            qp_access_flags: ALL,
            port_num: 1,
            path_mtu: IBV_MTU_4096,
            dest_qp_num: to,
            ah_attr: ibv_ah_attr { port_num: 1, ..Zeroed::zeroed() },
            min_rnr_timer: 1,
            ..own
        };
        for state in [
            soft_semantics::state::QpState::Init,
            soft_semantics::state::QpState::Rtr,
            soft_semantics::state::QpState::Rts,
        ] {
            let needs =
                soft_semantics::modify::transition(self.qp.qp_type(), self.qp.state(), state);
            self.modify(state as u32, needs.expect("the usual way").required, attr);
        }
    }

    fn sge(&self, at: usize, len: usize) -> ibv_sge {
        let addr = self.memory[at..at + len].as_ptr() as u64;
        ibv_sge { addr, length: len as u32, lkey: self.keys.lkey }
    }

    fn receive(&self, wr_id: u64, sges: &[ibv_sge]) {
        self.qp.post_receive(wr_id, sges).expect("room");
        self.qp.receives_posted();
    }

    fn send(&self, request: Request, sges: &[ibv_sge]) {
        let mut requester = self.qp.requester().lock();
        requester.post(&self.qp, &request, sges).expect("a good request");
        requester.publish();
        self.qp.release_requester(requester);
    }

    fn poll(&self) -> Option<Cqe> {
        let mut found = None;
        self.cq.poll(1, |_, cqe| found = Some(*cqe));
        found
    }

    /// Polls until a completion comes. It polls `other` too, because no other thread drives that
    /// side.
    fn wait(&self, other: &Side) -> Cqe {
        loop {
            if let Some(cqe) = self.poll() {
                return cqe;
            }
            other.cq.sweep(ServedBy::Application);
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.qp.retire();
        self.cq.retire();
    }
}

fn pair(kind: QpType, cma: bool, bytes: usize) -> (Side, Side) {
    let adapter = adapter(cma);
    let (a, b) = (Side::new(&adapter, kind, bytes), Side::new(&adapter, kind, bytes));
    a.connect(b.qp.qpn(), 0);
    b.connect(a.qp.qpn(), 0);
    (a, b)
}

fn fill(side: &mut Side, seed: usize) {
    for (i, byte) in side.memory.iter_mut().enumerate() {
        *byte = ((i * 31 + seed) % 251) as u8;
    }
}

fn request(opcode: u32, to: &Side) -> Request {
    Request {
        wr_id: 9,
        opcode,
        imm: 0x0403_0201,
        operation: operation_of(
            opcode,
            RemoteAddress { addr: to.memory.as_ptr() as u64, rkey: to.keys.rkey },
        ),
        destination: Destination { qpn: to.qp.qpn(), qkey: QKEY, elsewhere: false, grh: None },
        ..Request::default()
    }
}

/// The operation that `opcode` names, on `remote`.
pub(crate) fn operation_of(opcode: u32, remote: RemoteAddress) -> RequestOperation {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => RequestOperation::Write(remote),
        IBV_WR_RDMA_READ => RequestOperation::Read(remote),
        IBV_WR_ATOMIC_FETCH_AND_ADD => RequestOperation::FetchAdd { remote, add: 0 },
        IBV_WR_ATOMIC_CMP_AND_SWP => RequestOperation::CompareSwap { remote, compare: 0, swap: 0 },
        IBV_WR_ATOMIC_WRITE => RequestOperation::Store { remote, word: None },
        IBV_WR_FLUSH => RequestOperation::Flush { remote, len: 8, placement: IBV_FLUSH_GLOBAL },
        _ => RequestOperation::Send,
    }
}

/// As `request`, for another address at the peer.
fn request_at(opcode: u32, to: &Side, addr: u64) -> Request {
    let mut request = request(opcode, to);
    if let Some(remote) = request.operation.remote_mut() {
        remote.addr = addr;
    }
    request
}

/// As `request`, with an rkey that names no region.
fn misnamed(opcode: u32, to: &Side) -> Request {
    let mut request = request(opcode, to);
    if let Some(remote) = request.operation.remote_mut() {
        remote.rkey ^= 0x4000;
    }
    request
}

const SIZES: [usize; 12] = [0, 1, 47, 48, 49, 64, 4096, 8192, 8193, 16384, 16385, 300_001];

#[test]
fn sends_of_all_sizes_arrive_whole_on_both_paths() {
    for (kind, cma) in
        [(QpType::Rc, true), (QpType::Rc, false), (QpType::Uc, true), (QpType::Uc, false)]
    {
        let (mut a, b) = pair(kind, cma, 300_001);
        for (n, size) in SIZES.into_iter().enumerate() {
            fill(&mut a, n);
            b.receive(n as u64, &[b.sge(0, size / 3), b.sge(size / 3, size - size / 3)]);
            a.send(
                request(IBV_WR_SEND_WITH_IMM, &b),
                &[a.sge(0, size / 2), a.sge(size / 2, size - size / 2)],
            );
            let got = b.wait(&a);
            assert_eq!((got.status, got.opcode), (IBV_WC_SUCCESS, IBV_WC_RECV));
            assert_eq!((got.wr_id, got.byte_len, got.imm), (n as u64, size as u32, 0x0403_0201));
            assert_eq!(got.wc_flags, IBV_WC_WITH_IMM);
            assert_eq!(a.memory[..size], b.memory[..size], "{size} bytes, {kind:?}, {cma}");
            let sent = a.wait(&b);
            assert_eq!((sent.status, sent.opcode), (IBV_WC_SUCCESS, IBV_WC_SEND));
        }
    }
}

#[test]
fn one_sided_requests_of_all_sizes_do_the_same_on_both_paths() {
    for cma in [true, false] {
        let (mut a, mut b) = pair(QpType::Rc, cma, 300_001);
        for (n, size) in SIZES.into_iter().enumerate() {
            fill(&mut a, n);
            b.memory.fill(0);
            a.send(request(IBV_WR_RDMA_WRITE, &b), &[a.sge(0, size)]);
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
            assert_eq!(a.memory[..size], b.memory[..size], "write of {size}, {cma}");
            assert!(b.memory[size..].iter().all(|byte| *byte == 0));

            fill(&mut b, n + 100);
            a.send(request(IBV_WR_RDMA_READ, &b), &[a.sge(0, size)]);
            let read = a.wait(&b);
            assert_eq!((read.status, read.opcode), (IBV_WC_SUCCESS, IBV_WC_RDMA_READ));
            assert_eq!(a.memory[..size], b.memory[..size], "read of {size}, {cma}");

            b.receive(7, &[]);
            fill(&mut a, n + 200);
            a.send(request(IBV_WR_RDMA_WRITE_WITH_IMM, &b), &[a.sge(0, size)]);
            let got = b.wait(&a);
            assert_eq!((got.status, got.opcode), (IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM));
            assert_eq!((got.byte_len, got.imm), (size as u32, 0x0403_0201));
            assert_eq!(a.memory[..size], b.memory[..size], "write with immediate of {size}, {cma}");
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        }
    }
}

/// IBTA 1.7 9.4.5.
#[test]
fn atomics_return_the_old_value_and_change_the_new_one_on_both_paths() {
    for cma in [true, false] {
        let (a, mut b) = pair(QpType::Rc, cma, 64);
        b.memory[..8].copy_from_slice(&40u64.to_ne_bytes());
        let word = |side: &Side| u64::from_ne_bytes(side.memory[..8].try_into().expect("eight"));
        let remote = RemoteAddress { addr: b.memory.as_ptr() as u64, rkey: b.keys.rkey };
        let operation = RequestOperation::FetchAdd { remote, add: 2 };
        let add = Request { operation, ..request(IBV_WR_ATOMIC_FETCH_AND_ADD, &b) };
        a.send(add, &[a.sge(0, 8)]);
        let done = a.wait(&b);
        assert_eq!(
            (done.status, done.opcode, done.byte_len),
            (IBV_WC_SUCCESS, IBV_WC_FETCH_ADD, 8)
        );
        assert_eq!((word(&a), word(&b)), (40, 42));
        for (compare, after) in [(41, 42), (42, 7)] {
            let operation = RequestOperation::CompareSwap { remote, compare, swap: 7 };
            let swap = Request { operation, ..request(IBV_WR_ATOMIC_CMP_AND_SWP, &b) };
            a.send(swap, &[a.sge(0, 8)]);
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
            assert_eq!((word(&a), word(&b)), (42, after));
        }
    }
}

/// IBTA 1.7 9.7.5.2.2.
#[test]
fn a_bad_key_fails_both_ends() {
    for (cma, opcode) in [
        (true, IBV_WR_RDMA_WRITE),
        (false, IBV_WR_RDMA_WRITE),
        (true, IBV_WR_RDMA_READ),
        (false, IBV_WR_RDMA_READ),
        (true, IBV_WR_ATOMIC_FETCH_AND_ADD),
        (false, IBV_WR_ATOMIC_FETCH_AND_ADD),
    ] {
        let (a, b) = pair(QpType::Rc, cma, 64);
        b.receive(1, &[b.sge(0, 8)]);
        let bad = misnamed(opcode, &b);
        a.send(bad, &[a.sge(0, 8)]);
        a.receive(2, &[a.sge(0, 8)]);
        assert_eq!(a.wait(&b).status, IBV_WC_REM_ACCESS_ERR, "{opcode} {cma}");
        assert_eq!(a.wait(&b).status, IBV_WC_WR_FLUSH_ERR);
        let flushed = b.wait(&a);
        assert_eq!((flushed.status, flushed.wr_id), (IBV_WC_WR_FLUSH_ERR, 1));
    }
}

#[test]
fn a_message_longer_than_its_receive_fails_both_ends() {
    let (a, b) = pair(QpType::Rc, true, 64);
    b.receive(1, &[b.sge(0, 8)]);
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 9)]);
    assert_eq!(b.wait(&a).status, IBV_WC_LOC_LEN_ERR);
    assert_eq!(a.wait(&b).status, IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn a_send_without_a_receive_waits_or_fails_as_rnr_retry_says() {
    let (a, b) = pair(QpType::Rc, true, 64);
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 9)]);
    assert_eq!(a.wait(&b).status, IBV_WC_RNR_RETRY_EXC_ERR);

    let adapter = adapter(true);
    let (a, b) = (Side::new(&adapter, QpType::Rc, 64), Side::new(&adapter, QpType::Rc, 64));
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 9)]);
    for _ in 0..100 {
        assert_eq!((a.poll(), b.poll()), (None, None));
    }
    b.receive(1, &[b.sge(0, 9)]);
    assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS);
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
}

#[test]
fn a_remote_qp_that_is_gone_exhausts_the_retries() {
    let (a, b) = pair(QpType::Rc, true, 64);
    b.qp.reset();
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 9)]);
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 9)]);
    assert_eq!(a.wait(&b).status, IBV_WC_RETRY_EXC_ERR);
    assert_eq!(a.wait(&b).status, IBV_WC_WR_FLUSH_ERR);
}

#[test]
fn more_requests_than_the_ring_holds_arrive_in_order() {
    for cma in [true, false] {
        let (mut a, b) = pair(QpType::Rc, cma, 40_000);
        fill(&mut a, 1);
        let mut got = 0;
        let mut sent = 0;
        let mut completed = 0;
        let sizes = [8, 100, 20_000, 40_000, 0, 48];
        // The service thread may serve the last message. Its sender then sees a completion before
        // the receiver polls.
        while completed < 1000 || got < 1000 {
            if sent < 1000 && sent - completed < 64 && sent - got < 64 {
                let size = sizes[sent % sizes.len()];
                b.receive(sent as u64, &[b.sge(0, size)]);
                a.send(request(IBV_WR_SEND, &b), &[a.sge(0, size)]);
                sent += 1;
            }
            if let Some(cqe) = b.poll() {
                assert_eq!((cqe.status, cqe.wr_id), (IBV_WC_SUCCESS, got as u64));
                assert_eq!(cqe.byte_len as usize, sizes[got % sizes.len()]);
                got += 1;
            }
            if let Some(cqe) = a.poll() {
                assert_eq!(cqe.status, IBV_WC_SUCCESS);
                completed += 1;
            }
        }
        assert_eq!((got, completed), (1000, 1000));
    }
}

#[test]
fn datagrams_arrive_with_room_for_a_route_header_or_are_dropped() {
    for size in [0, 1, 32, 33, 4096] {
        let (mut a, b) = pair(QpType::Ud, true, 5000);
        fill(&mut a, size);
        let adapter = b.qp.adapter();
        let ring = adapter.view.peer_ring(adapter.fabric.slot()).expect("mapped");
        let before = ring.acked().load(Ordering::Acquire);
        // No test thread waits for this message: the service thread may serve it.
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, size)]);
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        while ring.acked().load(Ordering::Acquire) == before {
            b.cq.sweep(ServedBy::Application);
            std::thread::yield_now();
        }
        b.receive(3, &[b.sge(0, size + 40)]);
        let wrong = Request {
            destination: Destination { qkey: QKEY + 1, ..request(IBV_WR_SEND, &b).destination },
            ..request(IBV_WR_SEND, &b)
        };
        a.send(wrong, &[a.sge(0, size)]);
        a.send(request(IBV_WR_SEND_WITH_IMM, &b), &[a.sge(0, size)]);
        let got = b.wait(&a);
        assert_eq!((got.status, got.byte_len as usize), (IBV_WC_SUCCESS, size + 40));
        assert_eq!((got.src_qp, got.imm), (a.qp.qpn(), 0x0403_0201));
        assert_eq!(a.memory[..size], b.memory[40..40 + size]);
        assert_eq!(b.poll(), None, "one receive, one datagram");
    }
}
