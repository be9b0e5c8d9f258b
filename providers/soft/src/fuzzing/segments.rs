//! A fuzz target for shared memory: an adapter reads what another member wrote into rings, control
//! words, chunks and tables. Both members are in one process. Cross-memory attach is off, because
//! an adapter with attach would write to the addresses given by the other member.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use abi::*;

use crate::engine::adapter::Adapter;
use crate::engine::keys::regions::{
    Extent, Keys, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE,
};
use crate::engine::queues::channel::{Channel, Reporter};
use crate::engine::queues::cq::{Cq, CqOptions};
use crate::engine::queues::qp::creating::QpParameters;
use crate::engine::queues::qp::{Pair, Qp};
use crate::engine::queues::served_by::ServedBy;
use crate::net::Gids;
use crate::ops::qp::modify;
use soft_local::fabric::{Fabric, FabricConfig, Handler, Peer};
use soft_local::shm::holder::RingHolder;
use soft_local::shm::layout::*;
use soft_local::shm::protocol;
use soft_local::shm::view::PeerView;
use soft_semantics::completion::Reads;
use soft_semantics::modify::transition;
use soft_semantics::request::{Destination, RemoteAddress, Request, RequestOperation};
use soft_semantics::state::{QpState, QpType};

/// Bytes of a record: kind, three parameters, and eight words.
const RECORD: usize = 4 + 64;
/// Maximal number of records of an input.
const MOST: usize = 64;
/// Bytes of registered memory, and of the unregistered memory on each side.
const MEMORY: usize = 8192;
const BYTES_AROUND: usize = 4096;
const QKEY: u32 = 0x1111_1111;
const KINDS: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];
const RECEIVES: u64 = 4;

struct Deaf;

impl Handler for Deaf {
    fn on_wake(&self) -> Option<Duration> {
        None
    }
    fn on_peer_joined(&self, _: &Arc<Peer>) {}
    fn on_peer_death(&self, _: &Arc<Peer>) {}
}

/// The adapter with its objects, and the other member.
struct World {
    adapter: Arc<Adapter>,
    gids: Gids,
    cq: Arc<Cq>,
    qps: Vec<Arc<Qp>>,
    memory: Box<[u8]>,
    keys: Keys,
    other_fabric: Arc<Fabric>,
    /// The segments of the other member, and the adapter's segments as mapped by it.
    own_view: PeerView,
    victim: PeerView,
}

impl World {
    fn new() -> Self {
        let name = format!("ferroverbs-fuzz-{}", std::process::id());
        let mut config = FabricConfig::new(std::env::temp_dir().join(name));
        config.dir_is_ours = true;
        config.cma = false;
        config.first_slot = Some(1);
        let adapter = Adapter::join(config.clone()).expect("a fabric");
        let other = Fabric::join(config, TABLES_LEN, RINGS_LEN, Arc::new(Deaf)).expect("a slot");
        let view = |slot| PeerView::of(other.peer(slot).expect("it is there"));
        let (own, victim) = (view(other.slot()), view(adapter.fabric.slot()));
        let form = CqOptions {
            capacity: 4096,
            reads: Reads::default(),
            overwrites: false,
            single_threaded: false,
        };
        let report = Reporter(Arc::new(Channel::new(2).expect("a channel")));
        let cq = Cq::new(Arc::clone(&adapter), form, None, report.clone()).expect("memory");
        let pd = adapter.domains.create(0).expect("room").0;
        let memory = vec![0xa5; MEMORY + 2 * BYTES_AROUND].into_boxed_slice();
        let va = memory.as_ptr() as u64 + BYTES_AROUND as u64;
        let access = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
        let extent = Extent { pd, va, iova: va, len: MEMORY as u64, access };
        let keys = adapter.regions.register(&extent).expect("room");
        let qps = KINDS.map(|kind| {
            let cap = ibv_qp_cap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 64,
            };
            let mut pair = Pair::new(Arc::clone(&cq), Arc::clone(&cq), None);
            pair.signals_all = true;
            let wanted = QpParameters::pair(kind, pd, pair, cap, report.clone());
            Qp::new(&adapter, wanted).expect("a number")
        });
        let gids = Gids::of_this_host(adapter.identity.guid(), 0);
        Self {
            adapter,
            gids,
            cq,
            qps: qps.to_vec(),
            memory,
            keys,
            other_fabric: other,
            own_view: own,
            victim,
        }
    }

    /// The number of the remote QP of a QP.
    fn number(&self, which: usize) -> u32 {
        qpn(self.other_fabric.slot(), which + 1)
    }

    /// Resets all QPs to the state after their first connection.
    fn restart(&self) {
        let attr = ibv_qp_attr {
            qkey: QKEY,
            qp_access_flags: REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC,
            port_num: 1,
            path_mtu: IBV_MTU_4096,
            ah_attr: ibv_ah_attr { port_num: 1, ..Zeroed::zeroed() },
            min_rnr_timer: 1,
            timeout: 1,
            ..Zeroed::zeroed()
        };
        for (which, qp) in self.qps.iter().enumerate() {
            let reset = ibv_qp_attr { qp_state: QpState::Reset as u32, ..attr };
            modify(qp, &self.gids, &reset, IBV_QP_STATE).expect("RESET is always allowed");
            // The tables of a correct remote process.
            let entry = self.own_view.qp(which + 1);
            let kind = qp.qp_type() as u8;
            let life = Life { state: Life::RTS, qp_type: kind, generation: 1, dest_qpn: qp.qpn() };
            entry.rights.store(u64::from(u32::MAX), Relaxed);
            entry.ring_base.store(RING_SLOTS, Relaxed);
            entry.rnr_retry.store(0, Relaxed);
            let ring = self.own_view.qp_ring(which + 1).expect("mapped");
            ring.acked().store(RING_SLOTS, Relaxed);
            ring.nak().store(0, Relaxed);
            ring.holder().store(0, Relaxed);
            entry.packed_life.store(life.pack(), Release);
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                let needs =
                    transition(qp.qp_type(), qp.state(), state).expect("the usual way").required;
                let dest_qp_num = self.number(which);
                let attr = ibv_qp_attr { qp_state: state as u32, dest_qp_num, ..attr };
                modify(qp, &self.gids, &attr, needs | IBV_QP_STATE)
                    .expect("a permitted transition");
            }
            RingHolder::new(self.other_fabric.identity(), 1)
                .take(&self.victim.qp_ring(qp.index()).expect("mapped"));
            for id in 0..RECEIVES {
                if let Ok(mut receives) = qp.lock_receives_for_post() {
                    let _ = receives.post(id, &[self.sge(id as usize * 1024, 1024)]);
                }
            }
            qp.receives_posted();
        }
        while self.cq.poll(64, |_, _| {}) > 0 {}
    }

    fn sge(&self, at: usize, len: usize) -> ibv_sge {
        let addr = self.memory.as_ptr() as u64 + (BYTES_AROUND + at) as u64;
        ibv_sge { addr, length: len as u32, lkey: self.keys.lkey }
    }

    /// Executes a record.
    fn execute(&self, [kind, which, a, b]: [u8; 4], words: [u64; 8]) {
        let (which, at) = (usize::from(which) % KINDS.len(), usize::from(a));
        let qp = &self.qps[which];
        let ring = self.victim.qp_ring(qp.index()).expect("mapped");
        match kind % 12 {
            // A slot at the position that the adapter reads next. Bit 0 clear: the correct sender.
            // Bit 1 clear: an address in the registered memory.
            0..3 => {
                let seq = ring.acked().load(Relaxed).unchecked();
                let seq = (0..RING_SLOTS).map(|n| seq.wrapping_add(n));
                let Some(seq) = seq.clone().find(|seq| !ring.ready(*seq)) else { return };
                let mut words = words;
                words[0] = words[0] & !0xffff_ffff | u64::from(seq);
                if b & 1 == 0 {
                    words[1] = words[1] & !(0xff_ffff << 32) | u64::from(self.number(which)) << 32;
                }
                if b & 2 == 0 {
                    let base = self.memory.as_ptr() as u64 + BYTES_AROUND as u64;
                    words[2] = base.wrapping_add(words[2] as u16 as u64).wrapping_sub(64);
                    words[3] = words[3] & !0xffff_ffff | u64::from(self.keys.rkey);
                }
                write(&ring, seq, words);
                self.victim.set_qp_arrival(qp.index());
            }
            3 => {
                let ring = self.victim.peer_ring(self.other_fabric.slot()).expect("mapped");
                let seq = ring.acked().load(Relaxed).unchecked();
                let seq = (0..RING_SLOTS).map(|n| seq.wrapping_add(n));
                let Some(seq) = seq.clone().find(|seq| !ring.ready(*seq)) else { return };
                let mut words = words;
                words[0] = words[0] & !0xffff_ffff | u64::from(seq);
                if b & 1 == 0 {
                    let own = u64::from(self.number(which)) << 32;
                    words[1] = words[1] & !(0xff_ffff << 32) | own;
                    words[2] = u64::from(qp.qpn()) | u64::from(QKEY) << 32;
                }
                write(&ring, seq, words);
                self.victim.set_peer_arrival(self.other_fabric.slot());
            }
            4 => {
                let control =
                    [ring.acked().word(), ring.nak().word(), ring.begun().word(), &**ring.hot()];
                control[at % 4].store(words[0] as u32, Release);
            }
            5 => ring.holder().store(words[0], Release),
            6 => {
                let ring = self.own_view.qp_ring(which + 1).expect("mapped");
                let near =
                    ring.acked().load(Relaxed).unchecked().wrapping_add(words[0] as u32 % 512);
                match at % 4 {
                    0 => ring.acked().store(near, Release),
                    1 => ring.acked().store(words[0] as u32, Release),
                    2 => ring.nak().store(words[0] as u32 % 8, Release),
                    _ => ring.holder().store(words[0], Release),
                }
                self.victim.set_qp_arrival(qp.index());
            }
            7 => self.change_entry(which, at, &words),
            8 => {
                let entry = self.own_view.mr(1 + at % 4);
                entry.iova.store(words[0], Relaxed);
                entry.len.store(words[1], Relaxed);
                entry.va.store(words[2], Relaxed);
                entry.pd.store(words[3], Relaxed);
                entry.qpn.store(words[4] as u32, Relaxed);
                protocol::validate(&entry.key, words[5]);
            }
            9 => {
                let Some(chunk) = self.own_view.chunk(u32::from(a) % 4) else { return };
                for (n, word) in words.into_iter().enumerate() {
                    assert!(chunk.part(8 * n, 8).store(word), "mapped");
                }
            }
            10 => self.send(qp, which, a, &words),
            _ => self.poll_all(),
        }
    }

    fn change_entry(&self, which: usize, at: usize, words: &[u64; 8]) {
        let entry = self.own_view.qp(which + 1);
        let word = words[0];
        match at % 10 {
            0 => entry.packed_life.store(word, Release),
            1 => entry.rights.store(word, Release),
            2 => entry.ring_base.store(word as u32, Release),
            3 => entry.rnr_retry.store(word as u8, Release),
            4 => entry.rq_psn.store(word as u32, Release),
            5 => entry.recv_channel.store(word as u16, Release),
            6 => entry.send_channel.store(word as u16, Release),
            7 => entry.awaits_acks.store(word as u8, Release),
            8 => entry.chunk_worth.store(word as u32, Release),
            _ => self.own_view.tables_head().attention.store(word as u32, Release),
        }
    }

    /// The adapter sends a request to the other member.
    fn send(&self, qp: &Qp, which: usize, what: u8, words: &[u64; 8]) {
        let opcodes = [
            IBV_WR_SEND,
            IBV_WR_RDMA_WRITE,
            IBV_WR_RDMA_READ,
            IBV_WR_ATOMIC_FETCH_AND_ADD,
            IBV_WR_RDMA_WRITE_WITH_IMM,
            IBV_WR_SEND_WITH_IMM,
        ];
        let opcode = opcodes[usize::from(what) % 6];
        let allowed = match qp.qp_type() {
            QpType::Rc => true,
            QpType::Uc => !matches!(opcode, IBV_WR_RDMA_READ | IBV_WR_ATOMIC_FETCH_AND_ADD),
            _ => matches!(opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM),
        };
        if !allowed {
            return;
        }
        let len = if opcode == IBV_WR_ATOMIC_FETCH_AND_ADD { 8 } else { words[0] as usize % 4096 };
        let remote = RemoteAddress { addr: words[2], rkey: words[1] as u32 };
        let operation = match opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => RequestOperation::Write(remote),
            IBV_WR_RDMA_READ => RequestOperation::Read(remote),
            IBV_WR_ATOMIC_FETCH_AND_ADD => RequestOperation::FetchAdd { remote, add: 0 },
            _ => RequestOperation::Send,
        };
        let request = Request {
            wr_id: 99,
            opcode,
            operation,
            destination: Destination {
                qpn: self.number(which),
                qkey: QKEY,
                elsewhere: false,
                grh: None,
            },
            ..Request::default()
        };
        let mut requester = qp.requester().lock();
        let _ = requester.post(qp, &request, &[self.sge(0, len)]);
        requester.publish();
        qp.release_requester(requester);
    }

    fn poll_all(&self) {
        self.cq.sweep(ServedBy::Application);
        self.adapter.datagrams.drive(&self.adapter, ServedBy::Application);
        self.cq.poll(64, |_, cqe| {
            assert!(cqe.wr_id < RECEIVES || cqe.wr_id == 99, "a completion is of a request");
            assert!(
                cqe.byte_len as usize <= MEMORY || cqe.status != 0 || cqe.opcode != IBV_WC_RECV
            );
        });
    }
}

fn write(ring: &soft_local::shm::ring::Ring, seq: u32, words: [u64; 8]) {
    let [first, second, body @ ..] = words;
    protocol::publish(ring.words(seq), [first, second], &body);
}

/// Interprets any bytes as actions of another member: records with kind, object and eight words.
pub fn segments(data: &[u8]) {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    let world = WORLD.get_or_init(|| Mutex::new(World::new()));
    let world = world.lock().unwrap_or_else(PoisonError::into_inner);
    world.restart();
    let (records, _) = data.as_chunks::<RECORD>();
    for record in records.iter().take(MOST) {
        let Some((what, words)) = record.split_first_chunk::<4>() else { continue };
        let (words, _) = words.as_chunks::<8>();
        let Ok(words) = <[[u8; 8]; 8]>::try_from(words) else { continue };
        world.execute(*what, words.map(u64::from_le_bytes));
    }
    world.poll_all();
    let (before, rest) = world.memory.split_at(BYTES_AROUND);
    let beside = before.iter().chain(&rest[MEMORY..]);
    assert!(beside.into_iter().all(|byte| *byte == 0xa5), "memory beside the region is as it was");
}
