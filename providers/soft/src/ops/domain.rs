//! Thread domains and parent domains: ibv_alloc_td(3), ibv_alloc_parent_domain(3). Functions that
//! accept a protection domain accept a parent domain, too.
//!
//! The objects of a thread domain are used by a single thread at a time. The promise saves nothing
//! here, because locks also exclude the service thread and other processes. The allocators of a
//! parent domain serve queues that hardware reads; the queues of soft lie in shared memory and
//! ignore the allocators.

use super::pd::{HandleKind, Pd};
use super::state::Context;
use super::{object, status};
use abi::*;
use soft_sys::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A thread domain. The C object comes first.
#[repr(C)]
#[derive(Debug)]
struct Td {
    verbs: ibv_td,
    /// Number of parent domains that hold it.
    users: AtomicUsize,
}

/// The domains behind a parent domain; holds both until it is dropped.
#[derive(Debug)]
pub(super) struct Parent {
    pd: *mut ibv_pd,
    /// NULL if none.
    td: *mut ibv_td,
}

impl Parent {
    /// # Safety
    /// `pd` is live, `td` is live or NULL, both of this provider.
    unsafe fn new(pd: *mut ibv_pd, td: *mut ibv_td) -> Result<Self, Errno> {
        // SAFETY: `pd` is live, and `td` is NULL or live; both are held from here on, so they are
        // not deallocated before `drop`. A thread domain is the first member of the `Td` made by
        // alloc_td.
        unsafe {
            Pd::of(pd).hold_for_object()?.keep_for_object();
            if let Some(td) = td.cast::<Td>().as_ref() {
                td.users.fetch_add(1, Ordering::AcqRel);
            }
        }
        Ok(Self { pd, td })
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        // SAFETY: both are held since `new`, and cannot be deallocated before.
        unsafe {
            Pd::of(self.pd).release();
            if let Some(td) = self.td.cast::<Td>().as_ref() {
                td.users.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

/// ibv_alloc_td(3): EINVAL for unknown attributes.
///
/// # Safety
/// `context` is open; `init` is readable.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    object(|| {
        // SAFETY: `init` is NULL (refused) or readable for the whole call.
        let init = unsafe { init.as_ref() }.ok_or(Errno::EINVAL)?;
        if init.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        let td = Td { verbs: ibv_td { context }, users: AtomicUsize::new(0) };
        Ok(Box::into_raw(Box::new(td)).cast())
    })
}

/// ibv_dealloc_td(3): EBUSY while a parent domain holds it.
///
/// # Safety
/// `td` is a live thread domain of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    status(|| {
        let td = td.cast::<Td>();
        // SAFETY: `td` is a live thread domain, the first member of the `Td` made by alloc_td; the
        // reference ends with the line, before the box is freed.
        if unsafe { &*td }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: made by alloc_td; no object refers to it any more.
        drop(unsafe { Box::from_raw(td) });
        Ok(())
    })
}

/// ibv_alloc_parent_domain(3): EINVAL without a protection domain, for a parent domain in its
/// place, for a single allocator, or for unknown attributes.
///
/// # Safety
/// `context` is open; `attr` is readable, and the domains named by it are live domains of this
/// provider.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN_MEMBERS: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    object(|| {
        // SAFETY: `attr` is NULL (refused) or readable for the whole call.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        if attr.pd.is_null() || attr.comp_mask & !KNOWN_MEMBERS != 0 {
            return Err(Errno::EINVAL);
        }
        let allocators = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
        if allocators && (attr.alloc.is_none() || attr.free.is_none()) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `attr.pd` is not NULL (checked above), and the caller states that it is a live
        // domain of this provider; the context is open for the whole call.
        let (domain, owner) = unsafe { (Pd::of(attr.pd), Context::of(context)) };
        if domain.is_parent() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the domains named by `attr` are live domains of this provider during the call;
        // `new` accepts a NULL thread domain.
        let parent = unsafe { Parent::new(attr.pd, attr.td)? };
        let verbs = ibv_pd { context, handle: domain.number };
        let adapter = Arc::clone(&owner.adapter);
        Ok(Pd::create(verbs, adapter, domain.number, HandleKind::Parent(parent)))
    })
}
