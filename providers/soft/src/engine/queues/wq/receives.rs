//! Work queues, indirection tables and RSS (ibv_create_wq(3), ibv_create_rwq_ind_table(3)).
//! `ops/wq` creates them. Frames arrive from `engine/frames/receive`; completions go to the CQ of
//! the work queue.

use crate::engine::adapter::Adapter;
use crate::engine::datagram::ReceiveShortage;
use crate::engine::frames::FrameTarget;
use crate::engine::queues::channel::{Events, Reporter};
use crate::engine::queues::cq::Cq;
use crate::engine::queues::wq::{Rss, Wq};
use crate::engine::refused::errno;
use crate::engine::verbs_cell::VerbsCell;
use abi::*;
use cface::sync::Mutex;
use soft_semantics::completion::Cqe;
use soft_semantics::frames::Key;
use soft_semantics::receive::{Receive, ReceiveQueue};
use soft_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// Largest indirection table; sizes are powers of two.
pub(crate) const MAX_TABLE: u32 = 128;
/// Number of indirection tables of the device.
pub(crate) const MAX_TABLES: u32 = 65536;

/// The checked parameters of ibv_create_wq(3).
#[derive(Debug)]
pub(crate) struct WqParameters {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) flags: u32,
    pub(crate) pd: u32,
    pub(crate) cq: Arc<Cq>,
    pub(crate) number: u32,
    pub(crate) report: Reporter,
}

impl Wq {
    /// Creates a work queue in RESET.
    ///
    /// # Errors
    /// `ENOMEM` no memory for the receives.
    pub(crate) fn new(adapter: &Arc<Adapter>, wanted: WqParameters) -> Result<Arc<Self>, Errno> {
        let queue = ReceiveQueue::new(wanted.max_wr as usize, wanted.max_sge as usize);
        let queue = queue.ok_or(Errno::ENOMEM)?;
        let wq = Arc::new(Self {
            verbs: VerbsCell::new(Zeroed::zeroed()),
            adapter: Arc::clone(adapter),
            queue: Mutex::new(queue),
            state: AtomicU8::new(IBV_WQS_RESET as u8),
            flags: AtomicU32::new(wanted.flags),
            cq: wanted.cq,
            pd: wanted.pd,
            number: wanted.number,
            shortage: ReceiveShortage::default(),
            users: AtomicUsize::new(0),
            events: Events::default(),
            report: wanted.report,
        });
        wq.cq.users.fetch_add(1, Ordering::AcqRel);
        wq.cq.count_datagram_user(true);
        adapter.registry.work_queues().add();
        adapter.registry.remember_wq(&wq);
        Ok(wq)
    }

    pub(crate) const fn handle(&self) -> *mut ibv_wq {
        self.verbs.get()
    }

    /// The state as `ibv_wq_state`.
    pub(crate) fn state(&self) -> u32 {
        u32::from(self.state.load(Ordering::Acquire))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `EINVAL` in RESET, or too many ranges; `ENOMEM` the queue is full.
    pub(crate) fn post(&self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        if self.state() == IBV_WQS_RESET {
            return Err(Errno::EINVAL);
        }
        self.queue.lock().post(wr_id, sges).map_err(errno)
    }

    /// Called after a post: flushes the receives in ERR.
    pub(crate) fn receives_posted(&self) {
        if self.state() == IBV_WQS_ERR {
            self.flush();
        }
    }

    /// Takes the oldest receive, if the queue is ready.
    pub(crate) fn take_receive(&self, to: &mut Receive) -> bool {
        let mut queue = self.queue.lock();
        self.state() == IBV_WQS_RDY && queue.take(to)
    }

    /// Whether a frame must wait for a receive.
    pub(in crate::engine) fn must_wait(&self) -> bool {
        self.state() == IBV_WQS_RDY && self.shortage.frame_waits(!self.queue.lock().is_empty())
    }

    /// The target for frames of this queue.
    pub(crate) fn frame_target<'a>(&'a self, adapter: &'a Adapter) -> FrameTarget<'a> {
        let flags = self.flags.load(Ordering::Relaxed);
        FrameTarget {
            adapter,
            pd: self.pd,
            cq: &self.cq,
            number: self.number,
            strips_vlan: flags & IBV_WQ_FLAGS_CVLAN_STRIPPING != 0,
            appends_fcs: flags & IBV_WQ_FLAGS_SCATTER_FCS != 0,
        }
    }

    /// Changes the state. ERR flushes all receives; RESET forgets them.
    ///
    /// # Errors
    /// `EINVAL` the transition is not allowed.
    pub(crate) fn change_state(&self, to: u32) -> Result<(), Errno> {
        let from = self.state();
        match (from, to) {
            (_, IBV_WQS_RESET) => {
                self.state.store(to as u8, Ordering::Release);
                self.adapter.datagrams.wait_for_deliveries();
                let mut receive = Receive::default();
                while self.queue.lock().take(&mut receive) {}
                self.cq.drop_completions(self.number, false);
            }
            (IBV_WQS_RESET | IBV_WQS_RDY, IBV_WQS_RDY) => {
                self.state.store(to as u8, Ordering::Release);
            }
            (IBV_WQS_RDY | IBV_WQS_ERR, IBV_WQS_ERR) => {
                self.state.store(to as u8, Ordering::Release);
                self.flush();
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Stops the queue after a failed receive or an overrun of its CQ.
    #[cold]
    pub(crate) fn fail(&self) {
        let stops = |now| (u32::from(now) == IBV_WQS_RDY).then_some(IBV_WQS_ERR as u8);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, stops).is_err() {
            return;
        }
        self.report.report(&self.events, self.handle(), IBV_EVENT_WQ_FATAL);
        self.flush();
    }

    fn flush(&self) {
        let mut receive = Receive::default();
        while self.queue.lock().take(&mut receive) {
            let cqe = Cqe {
                wr_id: receive.wr_id,
                status: IBV_WC_WR_FLUSH_ERR,
                opcode: IBV_WC_RECV,
                qp_num: self.number,
                ..Cqe::default()
            };
            self.cq.push_failed(&cqe, false);
        }
    }

    /// Ends the queue before its destruction.
    pub(crate) fn retire(&self) {
        self.state.store(IBV_WQS_RESET as u8, Ordering::Release);
        self.adapter.datagrams.wait_for_deliveries();
        self.cq.drop_completions(self.number, false);
        self.cq.count_datagram_user(false);
        self.cq.users.fetch_sub(1, Ordering::AcqRel);
        self.adapter.registry.work_queues().give_back();
    }
}

impl Rss {
    /// The work queue for a frame.
    pub(crate) fn pick(&self, key: &Key) -> Option<&Arc<Wq>> {
        let queues = &self.table.queues;
        let at = self.hash.of(key) as usize & queues.len().wrapping_sub(1);
        queues.get(at)
    }
}
