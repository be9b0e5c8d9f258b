//! Creation of a QP (ibv_create_qp(3), ibv_open_qp(3)): its number, its queues, its wire, and its
//! entry in the tables. `ops/qp` and `xrc/tasks` create QPs here; `qp/mod` has their fields.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::datagram::ud;
use crate::engine::datagram::ud::DatagramWire;
use crate::engine::frames::{FrameWire, MAX_FRAME};
use crate::engine::queues::channel::{Events, Reporter};
use crate::engine::queues::qp::builder::BuilderCell;
use crate::engine::queues::qp::half::HalfLock;
use crate::engine::queues::qp::list_marks::ListMarks;
use crate::engine::queues::qp::{
    Attributes, FastPath, Incarnation, Pair, PostedReceives, Qp, QpIdentity, QpLife, QpReports,
    Role, Unconnected,
};
use crate::engine::queues::qp::{Requester, Wire};
use crate::engine::queues::wq::Rss;
use crate::engine::ring::Responder;
use crate::engine::ring::rendezvous::OWN_REQUESTS;
use crate::engine::ring::requester::RingWire;
use crate::engine::ring::ring_acks::RingAcks;
use crate::engine::verbs_cell::VerbsCell;
use crate::engine::xrc::opened;
use crate::engine::xrc::rings::XrcWire;
use abi::*;
use cface::sync::Mutex;
use soft_local::shm::layout::{Life, RING_SLOTS};
use soft_semantics::frames::Framing;
use soft_semantics::frames::segmenter::Segmenter;
use soft_semantics::receive::ReceiveQueue;
use soft_semantics::request::SendQueue;
use soft_semantics::state::{QpState, QpType};
use soft_sys::Errno;
use soft_sys::spin_lock::SpinLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The checked parameters of ibv_create_qp(3) or ibv_open_qp(3).
#[derive(Debug)]
pub(crate) struct QpParameters {
    qp_type: QpType,
    pd: u32,
    role: Role,
    cap: ibv_qp_cap,
    max_tso_header: u16,
    report: Reporter,
    /// Whether the QP gets one of the numbers for QPs of emulated devices.
    has_low_number: bool,
}

impl QpParameters {
    /// A queue pair of `kind` (not XRC_RECV) in protection domain `pd`.
    pub(crate) const fn pair(
        kind: QpType,
        pd: u32,
        pair: Pair,
        cap: ibv_qp_cap,
        report: Reporter,
    ) -> Self {
        Self {
            qp_type: kind,
            pd,
            role: Role::Pair(pair),
            cap,
            max_tso_header: 0,
            report,
            has_low_number: false,
        }
    }

    /// RAW_PACKET and UD: reserves `bytes` for the headers of segmented sends.
    pub(crate) fn with_tso_header(self, bytes: u16) -> Self {
        Self { max_tso_header: bytes, ..self }
    }

    /// Chooses a number of the range for QPs of emulated devices.
    pub(crate) fn with_low_number(self, has_low_number: bool) -> Self {
        Self { has_low_number, ..self }
    }

    /// A RAW_PACKET QP that spreads frames, with the capacities given by its creator.
    pub(crate) const fn spreader(pd: u32, rss: Rss, cap: ibv_qp_cap, report: Reporter) -> Self {
        Self {
            qp_type: QpType::Raw,
            pd,
            role: Role::Rss(rss),
            cap,
            max_tso_header: 0,
            report,
            has_low_number: false,
        }
    }

    /// An XRC receiver: a QP of this process, a stand-in for a QP of another process, or a handle
    /// of either.
    pub(crate) fn receiver(role: Role, report: Reporter) -> Self {
        let (kind, cap) = (QpType::XrcRecv, Zeroed::zeroed());
        Self { qp_type: kind, pd: 0, role, cap, max_tso_header: 0, report, has_low_number: false }
    }
}

impl Qp {
    /// Creates a QP in RESET with an entry in the adapter's table.
    ///
    /// # Errors
    /// `ENOMEM` no QP number is free, or no memory for the requests.
    pub(crate) fn new(adapter: &Arc<Adapter>, wanted: QpParameters) -> Result<Arc<Self>, Errno> {
        let QpParameters { qp_type: kind, pd, role, cap, max_tso_header, report, has_low_number } =
            wanted;
        let pair = role.pair();
        let (matches, shares) =
            (pair.is_some_and(|p| p.tm.is_some()), pair.is_some_and(|p| p.srq.is_some()));
        let sends = SendQueue::new(
            cap.max_send_wr as usize,
            cap.max_send_sge as usize,
            cap.max_inline_data as usize,
            if matches { OWN_REQUESTS } else { 0 },
        )
        .ok_or(Errno::ENOMEM)?;
        let (max_wr, max_header) = (cap.max_send_wr as usize, usize::from(max_tso_header));
        let segmenter = match kind {
            QpType::Raw if pair.is_some() => {
                Segmenter::new(Framing::Ethernet, MAX_FRAME, max_wr, max_header)
            }
            QpType::Ud if max_header > 0 => {
                Segmenter::new(Framing::Ipoib, ud::MTU as usize, max_wr, max_header)
            }
            _ => Some(Segmenter::default()),
        }
        .ok_or(Errno::ENOMEM)?;
        let takes_fast_way = matches!(kind, QpType::Rc | QpType::Uc) && may_take_fast_path();
        let (sends_plainly, receives_plainly) =
            (takes_fast_way && !matches, takes_fast_way && !shares);
        let receives = match pair {
            Some(_) if !shares => {
                ReceiveQueue::new(cap.max_recv_wr as usize, cap.max_recv_sge as usize)
            }
            _ => ReceiveQueue::new(0, 0),
        }
        .ok_or(Errno::ENOMEM)?;
        let reserved = if has_low_number {
            adapter.registry.reserve_low_qp()
        } else {
            adapter.registry.reserve_qp()
        };
        let (index, number) = reserved.ok_or(Errno::ENOMEM)?;
        let borrowed = role.borrowed_number();
        let qpn = borrowed.unwrap_or(number);
        let entry = adapter.view.qp(index);
        // The rings segment of this process is mapped whole.
        let ring = adapter.view.qp_ring(index).ok_or_else(|| {
            adapter.free_qp(index);
            Errno::ENOMEM
        })?;
        let before = Life::unpack(entry.packed_life.load(Ordering::Relaxed));
        let ordinal = if borrowed.is_some() { 0 } else { adapter.port.next_qp_ordinal() };
        let recv_key = pair.map_or(0, |pair| pair.recv_cq.key());
        // Zeroed slots read as sequence number 0. A look before the first connection, or on a
        // connection to another host, must find no slot, so the position begins above 0.
        let position = entry.ring_base.load(Ordering::Relaxed).max(RING_SLOTS);
        let qp = Arc::new_cyclic(|me| Self {
            verbs: VerbsCell::new(Zeroed::zeroed()),
            identity: QpIdentity {
                me: me.clone(),
                adapter: Arc::clone(adapter),
                index,
                qpn,
                qp_type: kind,
                ordinal,
                pd,
            },
            role,
            fast: FastPath { recv_key, sends: sends_plainly, receives: receives_plainly },
            ring,
            life: QpLife {
                state: AtomicU8::new(QpState::Reset as u8),
                incarnation: Mutex::new(Incarnation { generation: before.generation, dest_qpn: 0 }),
                attributes: Mutex::new(Attributes { attr: Zeroed::zeroed(), cap }),
            },
            requester: HalfLock::sending(
                adapter.registry.recent_locks(),
                index,
                Requester::new(plain_wire(kind), sends, segmenter),
            ),
            responder: HalfLock::receiving(
                adapter.registry.recent_locks(),
                index,
                Responder::new(ring, position),
            ),
            receives: PostedReceives {
                queue: SpinLock::new(receives),
                awaited: AtomicBool::new(false),
            },
            acks: RingAcks::new(position),
            list_marks: ListMarks::default(),
            unconnected: Unconnected::default(),
            reports: QpReports { report, events: Events::default() },
            builder: BuilderCell::default(),
        });
        if let Some(domain) = qp.role.domain() {
            domain.store(&qp.entry().domain);
            qp.entry().closing.store(0, Ordering::Relaxed);
            if qp.as_stand_in().is_none() {
                opened::forget_openers(&qp.adapter().view, qp.index());
            }
            qp.entry().stands_for.store(qp.qpn(), Ordering::Relaxed);
        }
        let pair = qp.pair();
        let (recv_alarm, send_alarm) =
            pair.map_or((0, 0), |pair| (pair.recv_cq.alarm(), pair.send_cq.alarm()));
        qp.entry().recv_channel.store(recv_alarm, Ordering::Relaxed);
        qp.entry().send_channel.store(send_alarm, Ordering::Relaxed);
        // A rendezvous continues after acknowledgements, while the application waits only for its
        // end.
        let awaits = pair.is_some_and(|p| p.tm.is_some() || p.send_cq.is_armed_at_times());
        qp.entry().awaits_acks.store(u8::from(awaits), Ordering::Relaxed);
        qp.set_state(QpState::Reset);
        qp.role.count_user(kind);
        if is_strict(adapter) {
            qp.requester.lock().become_strict(kind);
        }
        adapter.place_qp(&qp);
        qp.apply_fault_rules();
        Ok(qp)
    }
}

/// The wire of a new QP of `kind`.
fn plain_wire(kind: QpType) -> Box<dyn Wire> {
    match kind {
        QpType::Ud => Box::new(DatagramWire),
        QpType::Raw => Box::new(FrameWire),
        QpType::Rc | QpType::Uc | QpType::XrcRecv => Box::new(RingWire),
        QpType::XrcSend => Box::new(XrcWire),
    }
}

/// Whether new QPs are strict (`strict`).
#[cfg(not(test))]
pub(in crate::engine) const fn is_strict(adapter: &Adapter) -> bool {
    adapter.identity.is_strict()
}

/// Whether new QPs of this thread are strict (`strict`).
#[cfg(test)]
pub(in crate::engine) fn is_strict(adapter: &Adapter) -> bool {
    adapter.identity.is_strict() || STRICT.get()
}

/// Whether new QPs may use the fast path (`fast_send`, `fast_receive`).
#[cfg(not(test))]
pub(in crate::engine) const fn may_take_fast_path() -> bool {
    true
}

/// Whether new QPs of this thread may use the fast path (`fast_send`, `fast_receive`).
#[cfg(test)]
pub(in crate::engine) fn may_take_fast_path() -> bool {
    !ONLY_GENERAL.get()
}

#[cfg(test)]
thread_local! {
    /// Set by the test that compares the fast path with the general path.
    pub(in crate::engine) static ONLY_GENERAL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Set by tests of strict mode.
    pub(in crate::engine) static STRICT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
