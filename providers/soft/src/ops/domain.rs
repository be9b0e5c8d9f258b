//! Thread domains and parent domains: ibv_alloc_td(3), ibv_alloc_parent_domain(3).
//!
//! A thread domain promises that its objects are used by one thread at a time. Nothing is gained by that here: our locks
//! are held against the service thread and other processes. A parent domain is accepted wherever a protection domain is.
//! Its allocators are for the queues of devices that read them; ours lie in memory that processes share, and do without.

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
    /// Parent domains that hold on to it.
    users: AtomicUsize,
}

/// What a parent domain stands for; holds both until it is dropped.
#[derive(Debug)]
pub(super) struct Parent {
    pd: *mut ibv_pd,
    /// NULL where there is none.
    td: *mut ibv_td,
}

impl Parent {
    /// # Safety
    /// `pd` is live, `td` live or NULL, both of this provider.
    unsafe fn new(pd: *mut ibv_pd, td: *mut ibv_td) -> Result<Self, Errno> {
        // SAFETY: `pd` is live, and `td` NULL or live; both are held from here on, so that they are not deallocated
        // before `drop`. A thread domain is the first member of the `Td` that alloc_td made.
        unsafe {
            Pd::of(pd).hold()?.keep();
            if let Some(td) = td.cast::<Td>().as_ref() {
                td.users.fetch_add(1, Ordering::AcqRel);
            }
        }
        Ok(Self { pd, td })
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        // SAFETY: both are held since `new`, and cannot be deallocated before this.
        unsafe {
            Pd::of(self.pd).release();
            if let Some(td) = self.td.cast::<Td>().as_ref() {
                td.users.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

/// ibv_alloc_td(3): EINVAL for attributes that nobody knows.
///
/// # Safety
/// `context` is open; `init` is readable.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    object(|| {
        // SAFETY: `init` is NULL, which is refused, or the caller's, readable for the whole call.
        let init = unsafe { init.as_ref() }.ok_or(Errno::EINVAL)?;
        if init.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        let td = Td { verbs: ibv_td { context }, users: AtomicUsize::new(0) };
        Ok(Box::into_raw(Box::new(td)).cast())
    })
}

/// ibv_dealloc_td(3): EBUSY while a parent domain has it.
///
/// # Safety
/// `td` is a live thread domain of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    status(|| {
        let td = td.cast::<Td>();
        // SAFETY: `td` is a live thread domain, the first member of the `Td` that alloc_td made; the reference ends
        // with this line, before the box is freed.
        if unsafe { &*td }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: from alloc_td; nothing refers to it any more.
        drop(unsafe { Box::from_raw(td) });
        Ok(())
    })
}

/// ibv_alloc_parent_domain(3): EINVAL without a protection domain, with a parent domain for one, with one allocator without
/// the other, or for attributes that nobody knows.
///
/// # Safety
/// `context` is open; `attr` is readable, and the domains that it names are live ones of this provider.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    object(|| {
        // SAFETY: `attr` is NULL, which is refused, or the caller's, readable for the whole call.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        if attr.pd.is_null() || attr.comp_mask & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        let allocators = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
        if allocators && (attr.alloc.is_none() || attr.free.is_none()) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `attr.pd` is not NULL (checked above), and the caller says that it is a live domain of this provider;
        // the context is open for the whole call.
        let (domain, owner) = unsafe { (Pd::of(attr.pd), Context::of(context)) };
        if domain.is_parent() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the domains that `attr` names are live ones of this provider during this call; the thread domain may
        // be NULL, which `new` takes.
        let parent = unsafe { Parent::new(attr.pd, attr.td)? };
        let verbs = ibv_pd { context, handle: domain.number };
        let adapter = Arc::clone(&owner.adapter);
        Ok(Pd::create(verbs, adapter, domain.number, HandleKind::Parent(parent)))
    })
}
