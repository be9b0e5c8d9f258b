//! The state of an open device. Every object of a program leads to its context here.

use super::context_identity::ContextIdentity;
use crate::engine::adapter::Adapter;
use crate::engine::adapter::port::Interfaces;
use crate::engine::queues::channel::{Channel, Reporter};
use crate::net::{GidTable, Gids};
use abi::*;
use cface::sync::Mutex;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// An open device, in memory allocated by libibverbs.
#[repr(C)]
pub(super) struct SoftContext {
    pub(super) vctx: verbs_context,
    pub(super) inner: *mut Context,
}

/// The part of an open device that belongs to this provider.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) adapter: Arc<Adapter>,
    pub(super) gids: GidTable,
    pub(crate) report: Reporter,
    /// Identifies the family of contexts whose objects may be imported here.
    pub(super) identity: ContextIdentity,
    /// Completion channels by the descriptor of the application.
    pub(super) channels: Mutex<HashMap<c_int, Arc<Channel>>>,
    /// The process inherited the context from its parent ([`super::orphaned`]).
    pub(super) orphaned: AtomicBool,
}

impl Context {
    /// The context behind a C handle.
    ///
    /// # Safety
    /// `context` is an open context of this provider.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        let offset = std::mem::offset_of!(verbs_context, context);
        // SAFETY: alloc_context placed the ibv_context inside a SoftContext and set `inner`.
        unsafe { &*(*context.byte_sub(offset).cast::<SoftContext>()).inner }
    }

    /// The GID table in the version known to the application.
    pub(super) fn gids(&self) -> Arc<Gids> {
        let Interfaces { reported, gid_indices, .. } = &self.adapter.interfaces;
        self.gids.after_changes(self.adapter.port.gid_changes(), reported, gid_indices)
    }

    /// The channel with the descriptor `fd`.
    pub(crate) fn channel(&self, fd: c_int) -> Option<Arc<Channel>> {
        self.channels.lock().get(&fd).cloned()
    }
}
