//! Imported memory regions (ibv_import_mr(3)), from another context of this process or from another
//! process. The keys of an import of another process lead to `engine/keys/imported`.

use super::context_identity::exporter;
use super::mr::{HandleKind, Mr, withdraw};
use super::object;
use super::pd::Pd;
use super::state::Context;
use crate::engine::keys::imported::Imported;
use crate::engine::keys::regions::{Extent, IMPORTED, ON_DEMAND, VOID};
use abi::*;
use soft_local::shm::layout::{MRS, MWS, split_mr_handle};
use soft_local::shm::view::{PeerView, View};
use soft_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The rkey and the extent that the owner of `view` published as entry `index` for importers of the
/// contexts `origin`.
pub(super) fn published(view: &View, index: usize, origin: u64) -> Option<(u32, Extent)> {
    if index == 0 || index >= MRS - MWS {
        return None;
    }
    let entry = view.mr(index);
    let key = entry.key.load(Ordering::SeqCst);
    let extent = Extent {
        pd: entry.pd.load(Ordering::Relaxed) as u32,
        va: entry.va.load(Ordering::Relaxed),
        iova: entry.iova.load(Ordering::Relaxed),
        len: entry.len.load(Ordering::Relaxed),
        access: (key >> 32) as u32,
    };
    let good = key as u32 != 0 && entry.origin.load(Ordering::Acquire) == origin;
    good.then_some((key as u32, extent))
}

/// ibv_import_mr(3). The region stays in the domain of its registration, independent of `pd`. An
/// import from another context of this process has the keys of the original. An import from another
/// process has its own keys, and its bytes move by cross-memory attach.
///
/// # Errors
/// `ENOENT` no such region in the family of contexts of `pd`, or its process is gone; `EOPNOTSUPP`
/// the kernel refuses attach to that process, or the region has no memory; `ENOMEM` the table is
/// full.
///
/// # Safety
/// `pd` is a live protection domain of this provider.
pub(super) unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    object(|| {
        // SAFETY: `pd` is a live domain of this provider during the call, and a context outlives
        // its domains.
        let (domain, owner) = unsafe { (Pd::of(pd), Context::of((*pd).context)) };
        let adapter = &domain.adapter;
        let (slot, index) = split_mr_handle(handle);
        let peer = exporter(&adapter.fabric, slot)?;
        let view = PeerView::of(Arc::clone(&peer));
        let origin = owner.identity.origin;
        let (rkey, extent) = published(&view, index, origin)
            .filter(|(_, extent)| extent.pd != 0)
            .ok_or(Errno::ENOENT)?;
        if peer.is_self {
            let keys = adapter.regions.keys(index, rkey);
            // SAFETY: the caller states that `pd` is live during the call, and `imported` only
            // reads its context.
            return Ok(unsafe { Mr::imported(pd, handle, keys, extent, HandleKind::Alias) });
        }
        if !peer.can_attach() || extent.access & (VOID | IMPORTED) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let own = adapter.fabric.slot();
        let imported = Arc::new(Imported::new(&peer, index, adapter.view, own));
        // During a copy the kernel brings in pages on demand itself.
        let extent = Extent { access: extent.access & !(ON_DEMAND | IBV_ACCESS_MW_BIND), ..extent };
        let keys = adapter.regions.import(&extent, &imported).ok_or(Errno::ENOMEM)?;
        // SAFETY: the caller states that `pd` is live during the call, and `imported` only reads
        // its context.
        let mr = unsafe { Mr::imported(pd, handle, keys, extent, HandleKind::Import) };
        Ok(mr)
    })
}

/// ibv_unimport_mr(3): the region stays. The keys of an import from another process end here, after
/// a wait for operations by them.
///
/// # Safety
/// `mr` is an imported region of this provider and is not used any more; its domain is live.
pub(super) unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: `mr` is a live imported region until it is freed below, and the reference is not used
    // afterwards.
    let region = unsafe { Mr::of(mr) };
    match region.handle_kind() {
        // Not imported: nothing to undo.
        HandleKind::Own => return,
        HandleKind::Alias => {}
        HandleKind::Import => {
            // SAFETY: the domain is unimported after its regions.
            let domain = unsafe { Pd::of((*mr).pd) };
            let keys = region.keys();
            domain.adapter.regions.forget_import(keys.index);
            // Cannot fail: no window is ever bound to imported memory.
            let _ = withdraw(domain, keys, region.domain_number());
        }
    }
    // SAFETY: made by import_mr and returned once.
    drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
}
