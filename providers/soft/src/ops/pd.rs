//! Protection domains (ibv_alloc_pd(3), ibv_import_pd(3)). The C entry points of
//! `engine/keys/domains`; every object is created in a domain and holds it.

use super::context_identity::exporter;
use super::domain::Parent;
use super::state::Context;
use super::{object, status};
use crate::engine::adapter::Adapter;
use crate::engine::keys::domains::{Users, origin_of};
use abi::*;
use soft_local::fabric::Peer;
use soft_local::shm::layout::split_pd;
use soft_local::shm::tenure;
use soft_local::shm::view::look_at;
use soft_sys::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A protection domain. The C object comes first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    verbs: ibv_pd,
    pub(crate) adapter: Arc<Adapter>,
    /// The number that regions and QPs of the domain carry.
    pub(crate) number: u32,
    /// Number of objects that hold this handle.
    users: AtomicUsize,
    kind: HandleKind,
}

/// The relation of a handle to the domain.
#[derive(Debug)]
pub(super) enum HandleKind {
    /// The domain belongs to this process; counts the objects of all its handles here.
    Own(Users),
    /// Imported from this process; the same count.
    Imported(Users),
    /// Imported from this other process.
    Borrowed(Arc<Peer>),
    /// A parent domain, and the domains that it holds.
    #[allow(dead_code, reason = "held until it is dropped")]
    Parent(Parent),
}

impl Pd {
    /// # Safety
    /// `pd` is a live protection domain of this provider.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: `create` made the domain, and the C object is the first member.
        unsafe { &*pd.cast::<Self>() }
    }

    pub(super) fn create(
        verbs: ibv_pd,
        adapter: Arc<Adapter>,
        number: u32,
        kind: HandleKind,
    ) -> *mut ibv_pd {
        let pd = Self { verbs, adapter, number, users: AtomicUsize::new(0), kind };
        Box::into_raw(Box::new(pd)).cast()
    }

    pub(super) const fn is_parent(&self) -> bool {
        matches!(self.kind, HandleKind::Parent(_))
    }

    /// Holds the domain for an object that is about to be made. The domain stays until the result
    /// is dropped or, after [`PdHold::keep_for_object`], until [`Pd::release`].
    ///
    /// # Errors
    /// `EINVAL` its owner is deallocating it; `ENOMEM` this process has objects in too many foreign
    /// domains.
    pub(crate) fn hold_for_object(&self) -> Result<PdHold<'_>, Errno> {
        match &self.kind {
            HandleKind::Own(users) | HandleKind::Imported(users) => {
                if !tenure::hold_domain(users) {
                    return Err(Errno::EINVAL);
                }
            }
            HandleKind::Borrowed(owner) => {
                look_at(owner, |view| self.adapter.domains.borrow(self.number, view))?;
            }
            HandleKind::Parent(_) => {}
        }
        self.users.fetch_add(1, Ordering::AcqRel);
        Ok(PdHold(self))
    }

    /// Releases the domain after an object in it ended.
    pub(crate) fn release(&self) {
        match &self.kind {
            HandleKind::Own(users) | HandleKind::Imported(users) => tenure::release_domain(users),
            HandleKind::Borrowed(_) => self.adapter.domains.return_borrowed(self.number),
            HandleKind::Parent(_) => {}
        }
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A domain held for an object that is being made.
#[derive(Debug)]
#[must_use]
pub(crate) struct PdHold<'a>(&'a Pd);

impl PdHold<'_> {
    /// Keeps the hold for the finished object.
    pub(crate) fn keep_for_object(self) {
        std::mem::forget(self);
    }
}

impl Drop for PdHold<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// ibv_alloc_pd(3): ENOMEM above the limit of the device.
///
/// # Safety
/// `context` is an open context of this provider.
pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(|| {
        // SAFETY: the caller's context is open for the whole call.
        let owner = unsafe { Context::of(context) };
        let adapter = Arc::clone(&owner.adapter);
        let (number, users) = adapter.domains.create(owner.identity.origin).ok_or(Errno::ENOMEM)?;
        let verbs = ibv_pd { context, handle: number };
        Ok(Pd::create(verbs, adapter, number, HandleKind::Own(users)))
    })
}

/// ibv_dealloc_pd(3), also for parent domains.
///
/// # Errors
/// `EBUSY` an object uses it, in this or another process; `EINVAL` an imported domain, which only
/// its allocator deallocates.
///
/// # Safety
/// `pd` is a live protection domain of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        // SAFETY: `pd` is a live domain until it is freed below, and the reference is not used
        // afterwards.
        let domain = unsafe { Pd::of(pd) };
        let used = |users: &AtomicUsize| users.load(Ordering::Acquire) > 0;
        match &domain.kind {
            HandleKind::Imported(_) | HandleKind::Borrowed(_) => return Err(Errno::EINVAL),
            _ if used(&domain.users) => return Err(Errno::EBUSY),
            HandleKind::Own(_) if !domain.adapter.remove_domain(domain.number) => {
                return Err(Errno::EBUSY);
            }
            HandleKind::Own(_) | HandleKind::Parent(_) => {}
        }
        // SAFETY: made by `create`; no object refers to it any more.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        Ok(())
    })
}

/// ibv_import_pd(3): a further handle of a domain in the family of contexts.
///
/// # Errors
/// `ENOENT` no such domain in the family, or its process is gone.
///
/// # Safety
/// `context` is an open context of this provider.
pub(super) unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    object(|| {
        // SAFETY: the caller's context is open for the whole call.
        let owner = unsafe { Context::of(context) };
        let adapter = Arc::clone(&owner.adapter);
        let (slot, _) = split_pd(handle);
        let peer = exporter(&adapter.fabric, slot)?;
        if look_at(&peer, |view| origin_of(view, handle)) != Some(owner.identity.origin) {
            return Err(Errno::ENOENT);
        }
        let kind = if peer.is_self {
            HandleKind::Imported(adapter.domains.users(handle).ok_or(Errno::ENOENT)?)
        } else {
            HandleKind::Borrowed(peer)
        };
        let verbs = ibv_pd { context, handle };
        Ok(Pd::create(verbs, adapter, handle, kind))
    })
}

/// ibv_unimport_pd(3). A handle with objects stays with them.
///
/// # Safety
/// `pd` is an imported protection domain of this provider and is not used any more.
pub(super) unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: `pd` is an imported domain, live until it is freed below, and the reference is not
    // used afterwards.
    let domain = unsafe { Pd::of(pd) };
    let unused = domain.users.load(Ordering::Acquire) == 0;
    if unused && matches!(domain.kind, HandleKind::Imported(_) | HandleKind::Borrowed(_)) {
        // SAFETY: made by `create`; no object refers to it any more.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
    }
}
