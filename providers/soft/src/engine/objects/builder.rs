//! Requests under construction by the `ibv_wr_*` calls (ibv_wr_post(3)).

use crate::engine::request::Request;
use abi::*;
use arrayvec::ArrayVec;
use cface::sync::RawMutex;
use lock_api::RawMutex as _;
use soft_memory::MAX_SGE;
use soft_sys::Errno;
use std::cell::UnsafeCell;

/// One collected request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Built {
    pub(crate) request: Request,
    pub(crate) sges: ArrayVec<ibv_sge, MAX_SGE>,
    /// Where its inline data begins in the builder's buffer.
    pub(crate) inline_at: usize,
}

/// Requests under construction. Vectors keep their memory: after the first use nothing is allocated.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    /// The first `count` of them; the others are room for more, since one is too large to be moved about.
    pub(crate) built: Vec<Built>,
    pub(crate) count: usize,
    pub(crate) inline: Vec<u8>,
    /// Headers of segmented sends.
    pub(crate) headers: Vec<u8>,
    pub(crate) error: Option<Errno>,
}

/// A builder and its lock, which is taken in one call and released in another.
pub(crate) struct BuilderCell {
    pub(crate) lock: RawMutex,
    pub(crate) builder: UnsafeCell<Builder>,
}

impl Default for BuilderCell {
    fn default() -> Self {
        Self { lock: RawMutex::INIT, builder: UnsafeCell::default() }
    }
}
