//! Tag matching (ibv_create_srq_ex(3) with `IBV_SRQT_TM`, ibv_post_srq_ops(3)): what a shared receive queue has of it, what
//! each of its QPs has, and the completions of both.
//!
//! Locks, outer first: QP responder, QP requester > `tags` > receive queue, completion queue, `found`.

use super::completion::{Cqe, Rare};
use super::objects::cq::Cq;
use super::objects::qp::{Fetch, Fetched, Qp, Tagging};
use super::objects::srq::{TagMatching, Tags};
use super::tags::wire::Tagged;
use super::tags::{MAX_TAG_SGE, Removal, Restored, TagList};
use abi::*;
use cface::sync::{Mutex, MutexGuard};
use soft_sys::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a rendezvous request, user data included.
pub(crate) const MAX_RNDV_HEADERS: usize = 1024;
/// Signaled operations whose completions were not polled yet.
pub(crate) const MAX_TAG_OPS: u32 = 32 * 1024;

/// An operation on a tag list, as ibv_post_srq_ops(3) gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'a> {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    /// Unexpected messages that software has seen, if it says.
    pub(crate) seen: Option<u32>,
    pub(crate) what: What<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What<'a> {
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

    pub(super) fn lock(&self) -> MutexGuard<'_, Tags> {
        self.tags.lock()
    }

    /// Carries out one operation; the handle of what was added.
    ///
    /// # Errors
    /// `ENOMEM` the list is full, or too many completions of operations were not polled; `EINVAL` too many ranges, or a handle
    /// that was never given out.
    pub(crate) fn post(&self, operation: &Operation<'_>) -> Result<Option<u32>, Errno> {
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
        match operation.what {
            What::Add { list, .. } if list.len() > MAX_TAG_SGE => return Err(Errno::EINVAL),
            What::Add { .. } if tags.list.is_full() => return Err(Errno::ENOMEM),
            _ => {}
        }
        if let Some(seen) = operation.seen {
            tags.list.sync(seen);
        }
        let (opcode, status, handle) = match operation.what {
            What::Add { recv_wr_id, list, tag, mask } => {
                let handle = tags.list.add(tag, mask, recv_wr_id, list).ok_or(Errno::ENOMEM)?;
                (IBV_WC_TM_ADD, IBV_WC_SUCCESS, Some(handle))
            }
            What::Remove { handle } => match tags.list.remove(handle) {
                Removal::Removed => (IBV_WC_TM_DEL, IBV_WC_SUCCESS, None),
                Removal::TooLate => (IBV_WC_TM_DEL, IBV_WC_TM_ERR, None),
                Removal::Unknown => return Err(Errno::EINVAL),
            },
            What::Sync => (IBV_WC_TM_SYNC, IBV_WC_SUCCESS, None),
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

    /// The data of a rendezvous is here and its sender knows; or it failed.
    pub(super) fn fetched(&self, qp: &Qp, fetch: &Fetched, status: u32) {
        let mut tags = self.lock();
        // Of a read that failed and the FIN behind it that was flushed, one completes the receive.
        let Some(wr_id) = tags.list.finish(fetch.handle) else { return };
        let good = status == IBV_WC_SUCCESS;
        let cqe = Cqe {
            wr_id,
            status,
            opcode: IBV_WC_TM_RECV,
            byte_len: if good { fetch.len } else { 0 },
            qp_num: qp.qpn,
            wc_flags: IBV_WC_TM_DATA_VALID,
            ..Cqe::default()
        };
        self.cq.push(&cqe, fetch.solicited);
    }

    /// A message that found an entry ends before it is complete: the entry is there for another one.
    pub(super) fn restore(&self, qp: &Qp, handle: u32) {
        let mut tags = self.lock();
        if let Some(Restored::MustComplete(wr_id)) = tags.list.restore(handle) {
            let cqe = Cqe {
                wr_id,
                status: IBV_WC_WR_FLUSH_ERR,
                opcode: IBV_WC_TM_RECV,
                qp_num: qp.qpn,
                ..Cqe::default()
            };
            self.cq.push(&cqe, false);
        }
    }
}

/// The tagged part of a completion, for those who read it.
pub(super) fn tagged(tagged: Tagged) -> Rare {
    Rare { tag: tagged.tag, tag_priv: tagged.app_ctx, ..Rare::default() }
}

impl Tagging {
    pub(super) fn new(named: Arc<Cq>) -> Box<Self> {
        Box::new(Self {
            pending_fetches: Mutex::default(),
            has_new_fetches: AtomicBool::new(false),
            listed: AtomicBool::new(false),
            unused_recv_cq: named,
        })
    }

    pub(super) fn find(&self, fetch: Fetch) {
        self.pending_fetches.lock().push_back(fetch);
        self.has_new_fetches.store(true, Ordering::Release);
    }

    pub(super) fn next(&self) -> Option<Fetch> {
        self.pending_fetches.lock().pop_front()
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.pending_fetches.lock().is_empty()
    }

    /// Whether something was found since the last call.
    pub(crate) fn take_due(&self) -> bool {
        self.has_new_fetches.load(Ordering::Acquire)
            && self.has_new_fetches.swap(false, Ordering::AcqRel)
    }

    pub(super) const fn listed(&self) -> &AtomicBool {
        &self.listed
    }
}
