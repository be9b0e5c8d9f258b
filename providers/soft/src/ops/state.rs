//! An open device, which all its objects lead to.

use super::badge::Badge;
use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::channel::{Channel, Reporter};
use crate::engine::objects::port::Interfaces;
use crate::net::{GidTable, Gids};
use abi::*;
use cface::sync::Mutex;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// An open device, in memory that libibverbs allocated.
#[repr(C)]
pub(super) struct SoftContext {
    pub(super) vctx: verbs_context,
    pub(super) inner: *mut Context,
}

/// What belongs to an open device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) adapter: Arc<Adapter>,
    pub(super) gids: GidTable,
    pub(crate) report: Reporter,
    /// Whose objects may be imported here, and ours elsewhere.
    pub(super) badge: Badge,
    /// By the descriptor that the application has.
    pub(super) channels: Mutex<HashMap<c_int, Arc<Channel>>>,
    /// The process has it from its parent ([`super::orphaned`]).
    pub(super) orphaned: AtomicBool,
}

impl Context {
    /// The context behind a C handle of ours.
    ///
    /// # Safety
    /// `context` is an open context of this provider.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Self {
        let offset = std::mem::offset_of!(verbs_context, context);
        // SAFETY: alloc_context placed the ibv_context inside a SoftContext and set `inner`.
        unsafe { &*(*context.byte_sub(offset).cast::<SoftContext>()).inner }
    }

    /// Addresses of the host as the application knows them.
    pub(super) fn gids(&self) -> Arc<Gids> {
        let Interfaces { told, places, .. } = &self.adapter.interfaces;
        self.gids.after(self.adapter.port.gid_changes(), told, places)
    }

    /// The channel whose reading end is `fd`.
    pub(crate) fn channel(&self, fd: c_int) -> Option<Arc<Channel>> {
        self.channels.lock().get(&fd).cloned()
    }
}
