//! The numbers and tables of an adapter: its QPs, shared receive queues, CQs and work queues, and
//! how many objects of each kind may exist.
//!
//! Locks: all are leaves. No lock is held while a QP is served. [`Registry::busy_qps`] asks under
//! `qps` whether QPs are locked, and waits for none of them.
#![forbid(unsafe_code)]

use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::half::{RecentLocks, TrackedLock};
use crate::engine::queues::srq::Srq;
use crate::engine::queues::wq::Wq;
use crate::engine::xrc::DomainId;
use crate::table::Table;
use arrayvec::ArrayVec;
use cface::sync::{Mutex, RwLock};
use soft_local::shm::layout::{QPS, SRQS, qpn, split_qpn};
use soft_sys::Errno;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};

/// CQs inspected in a round while an application polls. The rest can wait: a thread that waits for
/// an unpolled CQ sets its arrival flag soon.
const FEW_CQS: usize = 512;

/// CQs that a look at another CQ passes over because they are polled or being destroyed.
const MAX_PASSED: usize = 4;

/// Result of the search for another CQ.
#[derive(Debug)]
pub(crate) enum OtherCq {
    Cq(Arc<Cq>),
    /// All CQs looked at are polled, or the list is in use.
    Polled,
    /// The process has no other CQ.
    None,
}

/// The objects of a process by number, and their counts.
#[derive(Debug)]
pub(crate) struct Registry {
    /// The process slot, which is part of every number.
    slot: u16,
    qps: RwLock<Table<Qp>>,
    /// The locks of QPs that a deregistration must inspect.
    recent_locks: Arc<RecentLocks>,
    srqs: RwLock<Table<Srq>>,
    cqs: CqList,
    /// The CQ with which the next partial sweep begins.
    next_sweep: AtomicUsize,
    /// The CQ that a poller of another CQ looked at last.
    last_other_cq: AtomicUsize,
    /// Work queues, for the handling of overruns. Destroyed work queues are removed when the list
    /// is full.
    wqs: Mutex<Vec<Weak<Wq>>>,
    work_queues: ObjectCount,
    indirection_tables: ObjectCount,
    address_handles: ObjectCount,
    device_memory: DeviceMemoryBytes,
}

/// All CQs of a process by the address of their C object.
type CqList = Mutex<BTreeMap<usize, Weak<Cq>>>;

impl Registry {
    /// An empty registry of the process with this slot.
    /// The indices below `low` are for [`Registry::reserve_low_qp`] alone.
    pub(crate) fn new(slot: u16, low: u16) -> Self {
        Self {
            slot,
            qps: RwLock::new(Table::with_low(QPS as u16, low)),
            recent_locks: Arc::default(),
            srqs: RwLock::new(Table::new(SRQS as u16)),
            cqs: CqList::default(),
            next_sweep: AtomicUsize::new(0),
            last_other_cq: AtomicUsize::new(0),
            wqs: Mutex::default(),
            work_queues: ObjectCount::default(),
            indirection_tables: ObjectCount::default(),
            address_handles: ObjectCount::default(),
            device_memory: DeviceMemoryBytes::default(),
        }
    }

    /// The list in which the locks of each new QP enter themselves.
    pub(crate) const fn recent_locks(&self) -> &Arc<RecentLocks> {
        &self.recent_locks
    }

    /// Number of work queues.
    pub(crate) const fn work_queues(&self) -> &ObjectCount {
        &self.work_queues
    }

    /// Number of indirection tables.
    pub(crate) const fn indirection_tables(&self) -> &ObjectCount {
        &self.indirection_tables
    }

    /// Number of address handles.
    pub(crate) const fn address_handles(&self) -> &ObjectCount {
        &self.address_handles
    }

    /// Bytes of device memory in use.
    pub(crate) const fn device_memory(&self) -> &DeviceMemoryBytes {
        &self.device_memory
    }

    /// Reserves an index of the QP table. Returns the index and its QP number.
    pub(crate) fn reserve_qp(&self) -> Option<(usize, u32)> {
        let mut table = self.qps.write();
        let index = loop {
            let index = table.reserve()?;
            // 0xffffff is the QP number of multicast groups: its index stays reserved.
            if qpn(self.slot, index) != 0xff_ffff {
                break index;
            }
        };
        Some((index, qpn(self.slot, index)))
    }

    /// Reserves one of the low indices. Returns the index and its QP number.
    pub(crate) fn reserve_low_qp(&self) -> Option<(usize, u32)> {
        let index = self.qps.write().reserve_low()?;
        Some((index, qpn(self.slot, index)))
    }

    /// Stores a QP at its reserved index. Calls `counted` with the number of QPs, before that
    /// number can change.
    pub(crate) fn place_qp(&self, qp: &Arc<Qp>, counted: impl FnOnce(usize)) {
        let mut qps = self.qps.write();
        qps.store_at(qp.index(), qp);
        counted(qps.count());
        drop(qps);
        // A deregistration may have unlisted the locks while the QP was not in the table.
        qp.responder().list_now();
        qp.requester().list_now();
    }

    /// Frees an index of the QP table. Returns the number of QPs that are left.
    pub(crate) fn free_qp(&self, index: usize) -> usize {
        let mut qps = self.qps.write();
        let gone = qps.free(index);
        let left = qps.count();
        // Unlocked before the drop, because the end of a QP takes locks.
        drop(qps);
        drop(gone);
        left
    }

    pub(crate) fn qp(&self, index: usize) -> Option<Arc<Qp>> {
        self.qps.read().get(index)
    }

    pub(crate) fn all_qps(&self) -> Vec<Arc<Qp>> {
        self.qps.read().objects()
    }

    /// The QPs selected by `concerned` whose locks were taken since the last call and may still be
    /// held.
    pub(crate) fn busy_qps(&self, concerned: impl Fn(&Qp) -> bool) -> Vec<Arc<Qp>> {
        // Collected first, then waited for by the caller: the holders need the table to finish.
        let mut busy = vec![];
        let qps = self.qps.read();
        let half = |index, sends| -> Option<&dyn TrackedLock> {
            let qp = qps.peek(index)?;
            Some(if sends { qp.requester() } else { qp.responder() })
        };
        self.recent_locks.each_held(half, |index| {
            busy.extend(qps.get(index).filter(|qp| concerned(qp)));
        });
        drop(qps);
        // Acquire pairs with the Release of the locks that were found free: the bytes moved under
        // them are visible.
        fence(Ordering::Acquire);
        busy
    }

    /// Records a work queue.
    pub(crate) fn remember_wq(&self, wq: &Arc<Wq>) {
        let mut wqs = self.wqs.lock();
        if wqs.len() == wqs.capacity() {
            wqs.retain(|wq| wq.strong_count() > 0);
        }
        wqs.push(Arc::downgrade(wq));
    }

    pub(crate) fn all_wqs(&self) -> Vec<Arc<Wq>> {
        self.wqs.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Reserves an index of the table of shared receive queues. Returns the index and its number.
    pub(crate) fn reserve_srq(&self) -> Option<(usize, u32)> {
        let index = self.srqs.write().reserve()?;
        Some((index, qpn(self.slot, index)))
    }

    pub(crate) fn place_srq(&self, srq: &Arc<Srq>) {
        self.srqs.write().store_at(srq.index, srq);
    }

    pub(crate) fn free_srq(&self, index: usize) {
        let _gone = self.srqs.write().free(index);
    }

    /// Any shared receive queue of an XRC domain.
    pub(crate) fn srq_of(&self, domain: DomainId) -> Option<Arc<Srq>> {
        self.srqs.read().objects().into_iter().find(|srq| srq.domain == Some(domain))
    }

    /// The shared receive queue with this number, if it belongs to this process.
    pub(crate) fn srq(&self, number: u32) -> Option<Arc<Srq>> {
        let (_, index) = split_qpn(number);
        self.srqs.read().get(index).filter(|srq| srq.number == number)
    }

    pub(crate) fn all_srqs(&self) -> Vec<Arc<Srq>> {
        self.srqs.read().objects()
    }

    pub(crate) fn add_cq(&self, cq: &Arc<Cq>) {
        self.cqs.lock().insert(cq.key(), Arc::downgrade(cq));
    }

    pub(crate) fn cq_count(&self) -> usize {
        self.cqs.lock().len()
    }

    pub(crate) fn remove_cq(&self, cq: &Cq) {
        // The entry kept the address from being reused.
        let _gone = self.cqs.lock().remove(&cq.key());
    }

    /// The CQ whose C object has the address `key`.
    pub(crate) fn cq(&self, key: usize) -> Option<Arc<Cq>> {
        self.cqs.lock().get(&key).and_then(Weak::upgrade)
    }

    /// The next CQ that is not `is_polled`, in turn, except the CQ with the address `own`.
    pub(crate) fn next_other_cq(&self, own: usize, is_polled: impl Fn(&Cq) -> bool) -> OtherCq {
        // Declared before the guard, so dropped after it: a CQ that ends removes itself from the
        // list under the lock.
        let mut passed: ArrayVec<Arc<Cq>, MAX_PASSED> = ArrayVec::new();
        // Not waited for: the thread that changes the list may take long.
        let Some(cqs) = self.cqs.try_lock() else { return OtherCq::Polled };
        if cqs.len() < 2 {
            return OtherCq::None;
        }
        let last = self.last_other_cq.load(Ordering::Relaxed);
        let turn = cqs.range((Excluded(last), Unbounded)).chain(cqs.range(..=last));
        for (key, cq) in turn.filter(|(key, _)| **key != own).take(MAX_PASSED) {
            self.last_other_cq.store(*key, Ordering::Relaxed);
            let Some(cq) = cq.upgrade() else { continue };
            if !is_polled(&cq) {
                return OtherCq::Cq(cq);
            }
            passed.push(cq);
        }
        OtherCq::Polled
    }

    /// Calls `look` for each CQ.
    pub(crate) fn each_cq(&self, look: impl FnMut(Arc<Cq>)) {
        let cqs: Vec<Arc<Cq>> = self.cqs.lock().values().filter_map(Weak::upgrade).collect();
        cqs.into_iter().for_each(look);
    }

    /// The next few CQs, in turn.
    pub(crate) fn next_cqs(&self) -> Vec<Arc<Cq>> {
        let cqs = self.cqs.lock();
        let from = self.next_sweep.load(Ordering::Relaxed);
        let turn = cqs.range(from..).chain(cqs.range(..from)).take(FEW_CQS);
        let mut last = from;
        let few =
            turn.inspect(|(key, _)| last = **key).filter_map(|(_, cq)| cq.upgrade()).collect();
        self.next_sweep.store(last.wrapping_add(1), Ordering::Relaxed);
        few
    }
}

/// Number of objects of a kind.
#[derive(Debug, Default)]
pub(crate) struct ObjectCount(AtomicUsize);

impl ObjectCount {
    /// Counts an object, of at most `most`.
    ///
    /// # Errors
    /// `ENOMEM` the limit is reached.
    pub(crate) fn count_new(&self, most: usize) -> Result<(), Errno> {
        let more = |n: usize| (n < most).then(|| n + 1);
        let counted = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        counted.map(|_| ()).map_err(|_| Errno::ENOMEM)
    }

    /// Counts an object without a limit.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts the end of an object.
    pub(crate) fn give_back(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether an object exists.
    pub(crate) fn has_any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// Bytes of device memory in use.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemoryBytes(AtomicU64);

impl DeviceMemoryBytes {
    /// Counts `bytes`, of at most `most` in all.
    ///
    /// # Errors
    /// `ENOMEM` the limit is reached.
    pub(crate) fn count_new(&self, bytes: u64, most: u64) -> Result<(), Errno> {
        let room = |used: u64| used.checked_add(bytes).filter(|used| *used <= most);
        let counted = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, room);
        counted.map(|_| ()).map_err(|_| Errno::ENOMEM)
    }

    /// Counts the end of `bytes`.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::AcqRel);
    }
}
