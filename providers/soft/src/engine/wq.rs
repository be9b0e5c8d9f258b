//! Work queues, indirection tables, and the QPs that spread frames over them (ibv_create_wq(3), ibv_create_rwq_ind_table(3)).

use super::completion::Cqe;
use super::ethernet::{Key, Sink};
use super::objects::adapter::Adapter;
use super::objects::channel::{Events, Reporter};
use super::objects::cq::Cq;
use super::objects::datagrams::ReceiveShortage;
use super::objects::wq::{Rss, Wq};
use super::receive::{Receive, ReceiveQueue};
use super::refused::errno;
use abi::*;
use cface::sync::Mutex;
use soft_sys::Errno;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// Entries of an indirection table: powers of two up to this one.
pub(crate) const MAX_TABLE: u32 = 128;
/// Indirection tables of a device.
pub(crate) const MAX_TABLES: u32 = 65536;

/// What ibv_create_wq asks for, checked.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) flags: u32,
    pub(crate) pd: u32,
    pub(crate) cq: Arc<Cq>,
    pub(crate) number: u32,
    pub(crate) report: Reporter,
}

impl Wq {
    /// A queue in RESET.
    ///
    /// # Errors
    /// `ENOMEM` there is no memory for so many receives.
    pub(crate) fn new(adapter: &Arc<Adapter>, wanted: Wanted) -> Result<Arc<Self>, Errno> {
        let queue = ReceiveQueue::new(wanted.max_wr as usize, wanted.max_sge as usize);
        let queue = queue.ok_or(Errno::ENOMEM)?;
        let wq = Arc::new(Self {
            verbs: UnsafeCell::new(Zeroed::zeroed()),
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
        adapter.work_queues.fetch_add(1, Ordering::AcqRel);
        adapter.remember_wq(&wq);
        Ok(wq)
    }

    pub(crate) const fn handle(&self) -> *mut ibv_wq {
        self.verbs.get()
    }

    /// `ibv_wq_state`.
    pub(crate) fn state(&self) -> u32 {
        u32::from(self.state.load(Ordering::Acquire))
    }

    /// Posts one receive request.
    ///
    /// # Errors
    /// `EINVAL` in RESET, or too many ranges; `ENOMEM` the queue is full.
    pub(crate) fn post(&self, wr_id: u64, sges: &[ibv_sge]) -> Result<(), Errno> {
        if self.state() == IBV_WQS_RESET {
            return Err(Errno::EINVAL);
        }
        self.queue.lock().post(wr_id, sges).map_err(errno)
    }

    /// After receives were posted: they may be too late.
    pub(crate) fn posted(&self) {
        if self.state() == IBV_WQS_ERR {
            self.flush();
        }
    }

    /// Takes the oldest receive, if the queue is ready and there is one.
    pub(crate) fn take_receive(&self, to: &mut Receive) -> bool {
        let mut queue = self.queue.lock();
        self.state() == IBV_WQS_RDY && queue.take(to)
    }

    /// Whether a frame should wait for a receive.
    pub(super) fn must_wait(&self) -> bool {
        self.state() == IBV_WQS_RDY && self.shortage.frame_waits(!self.queue.lock().is_empty())
    }

    /// How frames are put into its receives.
    pub(crate) fn sink<'a>(&'a self, adapter: &'a Adapter) -> Sink<'a> {
        let flags = self.flags.load(Ordering::Relaxed);
        Sink {
            adapter,
            pd: self.pd,
            cq: &self.cq,
            number: self.number,
            strips_vlan: flags & IBV_WQ_FLAGS_CVLAN_STRIPPING != 0,
            appends_fcs: flags & IBV_WQ_FLAGS_SCATTER_FCS != 0,
        }
    }

    /// Changes the state: to ERR everything posted is flushed, to RESET it is forgotten.
    ///
    /// # Errors
    /// `EINVAL` there is no such transition.
    pub(crate) fn change(&self, to: u32) -> Result<(), Errno> {
        let from = self.state();
        match (from, to) {
            (_, IBV_WQS_RESET) => {
                self.state.store(to as u8, Ordering::Release);
                self.adapter.datagrams.settle();
                let mut receive = Receive::default();
                while self.queue.lock().take(&mut receive) {}
                self.cq.forget(self.number, false);
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

    /// A receive completed with an error, or the completion queue overran: the queue stops.
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
            self.cq.push(&cqe, false);
        }
    }

    /// The queue is destroyed.
    pub(crate) fn retire(&self) {
        self.state.store(IBV_WQS_RESET as u8, Ordering::Release);
        self.adapter.datagrams.settle();
        self.cq.forget(self.number, false);
        self.cq.count_datagram_user(false);
        self.cq.users.fetch_sub(1, Ordering::AcqRel);
        self.adapter.work_queues.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Rss {
    /// The queue for a frame.
    pub(crate) fn pick(&self, key: &Key) -> Option<&Arc<Wq>> {
        let queues = &self.table.queues;
        let at = self.hash.of(key) as usize & queues.len().wrapping_sub(1);
        queues.get(at)
    }
}
