//! The requests that a program builds with `ibv_wr_*`, of one QP. The record of the QP holds them,
//! and the functions in `builder` change them.

use core::sync::atomic::{AtomicU32, Ordering};

use abi::ibv_sge;
use layer_tap::BuilderPointers;
use layer_tap::spin::{Spin, SpinGuard};

use crate::checks::request::SendRequest;
use crate::stack::Site;

/// Elements of a request that are checked.
pub(crate) const SGES: usize = 32;

/// A request that is being built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenRequest {
    wr_id: u64,
    flags: u32,
    opcode: u32,
    remote: u64,
    rkey: u32,
    pub(crate) ah: usize,
    pub(crate) qkey: u32,
    /// Bytes of inline data.
    pub(crate) inline: Option<u64>,
    count: usize,
    sges: [ibv_sge; SGES],
}

impl OpenRequest {
    /// A request without memory; `wr_id` and `flags` are those of the QP.
    #[inline(always)]
    pub(crate) const fn new(
        (wr_id, flags): (u64, u32),
        opcode: u32,
        remote: u64,
        rkey: u32,
    ) -> Self {
        let sges = [ibv_sge { addr: 0, length: 0, lkey: 0 }; SGES];
        Self { wr_id, flags, opcode, remote, rkey, ah: 0, qkey: 0, inline: None, count: 0, sges }
    }

    /// Sets `count` elements, of which `first` are the first ones.
    #[inline(always)]
    pub(crate) fn set_elements(&mut self, count: usize, first: &[ibv_sge]) {
        self.count = count;
        for (place, sge) in self.sges.iter_mut().zip(first) {
            *place = *sge;
        }
    }

    /// The request in the form for checks.
    #[inline(always)]
    pub(crate) fn request(&self) -> SendRequest<'_> {
        SendRequest {
            wr_id: self.wr_id,
            opcode: self.opcode,
            flags: self.flags,
            sges: self.sges.get(..self.count.min(SGES)),
            count: i64::try_from(self.count).unwrap_or(i64::MAX),
            inline: self.inline,
            remote: self.remote,
            rkey: self.rkey,
            ah: self.ah,
            qkey: self.qkey,
        }
    }
}

/// The state of a builder that its lock guards.
pub(crate) struct Building {
    /// The provider's pointers.
    pub(crate) pointers: BuilderPointers,
    pub(crate) open: Option<OpenRequest>,
    /// wr_ids of the requests since `ibv_wr_start` that are recorded as in flight.
    pub(crate) ids: Vec<u64>,
    pub(crate) site: Site,
}

/// The requests being built. The provider admits one thread between `ibv_wr_start` and
/// `ibv_wr_complete`, and the layer checks the program for the same rule.
pub(crate) struct Builder {
    building: Spin<Building>,
    /// The thread that builds; 0 for none.
    owner: AtomicU32,
}

impl Builder {
    pub(crate) fn new() -> Self {
        let building =
            Building { pointers: BuilderPointers::none(), open: None, ids: Vec::new(), site: 0 };
        Self { building: Spin::new(building), owner: AtomicU32::new(0) }
    }

    /// The requests, under the builder's lock.
    #[inline(always)]
    pub(crate) fn lock(&self) -> SpinGuard<'_, Building> {
        self.building.lock()
    }

    /// The lock, which the thread that forks must hold.
    pub(crate) fn fork_lock(&self) -> &dyn layer_tap::life::Lock {
        &self.building
    }

    /// The thread that builds; 0 for none.
    #[inline(always)]
    pub(crate) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Sets the thread that builds; 0 for none.
    #[inline(always)]
    pub(crate) fn set_owner(&self, thread: u32) {
        self.owner.store(thread, Ordering::Relaxed);
    }
}
