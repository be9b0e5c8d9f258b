//! Requests under construction by the `ibv_wr_*` functions (ibv_wr_post(3)). `ops/builder` fills
//! them; `ibv_wr_complete` posts them to the send queue.

use crate::engine::verbs_cell::{CallLock, VerbsCell};
use abi::*;
use arrayvec::ArrayVec;
use soft_memory::MAX_SGE;
use soft_semantics::request::Request;
use soft_sys::Errno;

/// A request under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct BuiltRequest {
    pub(crate) request: Request,
    pub(crate) sges: ArrayVec<ibv_sge, MAX_SGE>,
    /// Offset of the inline data in the builder's buffer.
    pub(crate) inline_at: usize,
}

/// Requests under construction. The vectors keep their memory, so only the first use allocates.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    /// The first `count` entries are in use. Later entries are kept for reuse, because an entry is
    /// too large to move.
    pub(crate) built: Vec<BuiltRequest>,
    pub(crate) count: usize,
    pub(crate) inline: Vec<u8>,
    /// Headers of segmented sends.
    pub(crate) headers: Vec<u8>,
    pub(crate) error: Option<Errno>,
}

/// A builder and its lock. One call of the application takes the lock, a later call releases it.
pub(crate) struct BuilderCell {
    pub(crate) lock: CallLock,
    pub(crate) builder: VerbsCell<Builder>,
}

impl Default for BuilderCell {
    fn default() -> Self {
        Self { lock: CallLock::new(), builder: VerbsCell::default() }
    }
}
