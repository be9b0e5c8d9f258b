//! Tag matching of a shared receive queue (ibv_create_srq_ex(3) with `IBV_SRQT_TM`,
//! ibv_post_srq_ops(3)). `ops/tags` posts operations; `tagged` and `rendezvous` match messages and
//! end entries.
//!
//! Locks, outer first: QP responder, QP requester > `tags` > receive queue, ring of the CQ,
//! `pending_fetches`.

use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::{Fetch, Qp, RendezvousPayload, Tagging};
use crate::engine::queues::srq::{TagMatching, Tags};
use abi::*;
use cface::sync::{Mutex, MutexGuard};
use soft_semantics::completion::{Cqe, RareFields};
use soft_semantics::tags::wire::Tagged;
use soft_semantics::tags::{MAX_TAG_SGE, Removal, Restored, TagList};
use soft_sys::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Largest rendezvous request in bytes, including user data.
pub(crate) const MAX_RNDV_HEADERS: usize = 1024;
/// Largest number of signaled operations without a polled completion.
pub(crate) const MAX_TAG_OPS: u32 = 32 * 1024;

/// An operation of ibv_post_srq_ops(3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TagOperation<'a> {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    /// Number of unexpected messages that software has handled, if given.
    pub(crate) unexpected_handled: Option<u32>,
    pub(crate) action: TagAction<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum TagAction<'a> {
    Add { recv_wr_id: u64, list: &'a [ibv_sge], tag: u64, mask: u64 },
    Remove { handle: u32 },
    Sync,
}

impl TagMatching {
    pub(crate) fn new(cq: Arc<Cq>, max_tags: usize, max_ops: usize) -> Option<Self> {
        let seed = soft_sys::process::random().unwrap_or_default();
        let mut signaled = VecDeque::new();
        signaled.try_reserve_exact(max_ops).ok()?;
        let tags = Tags { list: TagList::new(max_tags, MAX_TAG_SGE, seed)?, signaled };
        Some(Self { cq, tags: Mutex::new(tags), max_ops })
    }

    pub(in crate::engine) fn lock(&self) -> MutexGuard<'_, Tags> {
        self.tags.lock()
    }

    /// Executes an operation. Returns the handle of an added entry.
    ///
    /// # Errors
    /// `ENOMEM` the list is full, or too many completions of operations were not polled; `EINVAL`
    /// too many ranges, or an unknown handle.
    pub(crate) fn post(&self, operation: &TagOperation<'_>) -> Result<Option<u32>, Errno> {
        let mut tags = self.lock();
        if operation.signaled && tags.signaled.len() >= self.max_ops {
            let polled = self.cq.polled();
            while tags.signaled.front().is_some_and(|position| *position < polled) {
                tags.signaled.pop_front();
            }
            if tags.signaled.len() >= self.max_ops {
                return Err(Errno::ENOMEM);
            }
        }
        match operation.action {
            TagAction::Add { list, .. } if list.len() > MAX_TAG_SGE => return Err(Errno::EINVAL),
            TagAction::Add { .. } if tags.list.is_full() => return Err(Errno::ENOMEM),
            _ => {}
        }
        if let Some(seen) = operation.unexpected_handled {
            tags.list.sync(seen);
        }
        let (opcode, status, handle) = match operation.action {
            TagAction::Add { recv_wr_id, list, tag, mask } => {
                let handle = tags.list.add(tag, mask, recv_wr_id, list).ok_or(Errno::ENOMEM)?;
                (IBV_WC_TM_ADD, IBV_WC_SUCCESS, Some(handle))
            }
            TagAction::Remove { handle } => match tags.list.remove(handle) {
                Removal::Removed => (IBV_WC_TM_DEL, IBV_WC_SUCCESS, None),
                Removal::TooLate => (IBV_WC_TM_DEL, IBV_WC_TM_ERR, None),
                Removal::Unknown => return Err(Errno::EINVAL),
            },
            TagAction::Sync => (IBV_WC_TM_SYNC, IBV_WC_SUCCESS, None),
        };
        if operation.signaled {
            let cqe = Cqe {
                wr_id: operation.wr_id,
                status,
                opcode,
                wc_flags: if tags.list.in_step() { 0 } else { IBV_WC_TM_SYNC_REQ },
                ..Cqe::default()
            };
            let position = self.cq.push_with(&cqe, None, false);
            tags.signaled.push_back(position);
        }
        Ok(handle)
    }

    /// Completes the receive of a rendezvous: its data arrived and FIN was acknowledged, or it
    /// failed.
    pub(in crate::engine) fn finish_fetch(&self, qp: &Qp, fetch: &RendezvousPayload, status: u32) {
        let mut tags = self.lock();
        // After a failed READ and a flushed FIN, only the first completes the receive.
        let Some(wr_id) = tags.list.finish(fetch.handle) else { return };
        let good = status == IBV_WC_SUCCESS;
        let cqe = Cqe {
            wr_id,
            status,
            opcode: IBV_WC_TM_RECV,
            byte_len: if good { fetch.len } else { 0 },
            qp_num: qp.qpn(),
            wc_flags: IBV_WC_TM_DATA_VALID,
            ..Cqe::default()
        };
        if good {
            self.cq.push(&cqe, fetch.solicited);
        } else {
            self.cq.push_failed(&cqe, fetch.solicited);
        }
    }

    /// Releases the entry of a message that ended before completion.
    pub(in crate::engine) fn restore(&self, qp: &Qp, handle: u32) {
        let mut tags = self.lock();
        if let Some(Restored::MustComplete(wr_id)) = tags.list.restore(handle) {
            let cqe = Cqe {
                wr_id,
                status: IBV_WC_WR_FLUSH_ERR,
                opcode: IBV_WC_TM_RECV,
                qp_num: qp.qpn(),
                ..Cqe::default()
            };
            crate::probes::completion_error(&cqe);
            self.cq.push(&cqe, false);
        }
    }
}

/// The tag fields of a completion.
pub(in crate::engine) fn tagged(tagged: Tagged) -> RareFields {
    RareFields { tag: tagged.tag, tag_priv: tagged.app_ctx, ..RareFields::default() }
}

impl Tagging {
    pub(in crate::engine) fn new(named: Arc<Cq>) -> Box<Self> {
        Box::new(Self {
            pending_fetches: Mutex::default(),
            has_new_fetches: AtomicBool::new(false),
            listed: AtomicBool::new(false),
            unused_recv_cq: named,
        })
    }

    pub(in crate::engine) fn add_fetch(&self, fetch: Fetch) {
        self.pending_fetches.lock().push_back(fetch);
        self.has_new_fetches.store(true, Ordering::Release);
    }

    pub(in crate::engine) fn next_fetch(&self) -> Option<Fetch> {
        self.pending_fetches.lock().pop_front()
    }

    pub(in crate::engine) fn is_waiting(&self) -> bool {
        !self.pending_fetches.lock().is_empty()
    }

    /// Whether rendezvous were added since the last call.
    pub(crate) fn take_has_new_fetches(&self) -> bool {
        self.has_new_fetches.load(Ordering::Acquire)
            && self.has_new_fetches.swap(false, Ordering::AcqRel)
    }

    pub(in crate::engine) const fn listing_mark(&self) -> &AtomicBool {
        &self.listed
    }
}
