//! Protection domains (ibv_alloc_pd(3)).

use super::context::Context;
use super::domain::Parent;
use super::{object, status};
use crate::adapter::Adapter;
use crate::sys::Errno;
use abi::*;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A protection domain. The C object comes first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    verbs: ibv_pd,
    pub(crate) adapter: Arc<Adapter>,
    /// What regions and QPs carry to show that they belong here.
    pub(crate) number: u32,
    /// Objects that hold on to it.
    users: AtomicUsize,
    /// A parent domain: what it stands for.
    pub(super) parent: Option<Parent>,
}

impl Pd {
    /// # Safety
    /// `pd` is a live protection domain of this provider.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: alloc_pd made it, and the C object is the first member.
        unsafe { &*pd.cast::<Self>() }
    }

    pub(super) fn create(
        verbs: ibv_pd,
        adapter: Arc<Adapter>,
        number: u32,
        parent: Option<Parent>,
    ) -> *mut ibv_pd {
        let pd = Self { verbs, adapter, number, users: AtomicUsize::new(0), parent };
        Box::into_raw(Box::new(pd)).cast()
    }

    /// An object in the domain was made.
    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// An object in the domain is gone.
    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// ibv_alloc_pd(3).
///
/// # Safety
/// `context` is an open context of this provider.
pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(|| {
        // SAFETY: by contract.
        let adapter = Arc::clone(unsafe { &Context::of(context).adapter });
        let number = adapter.new_pd();
        let verbs = ibv_pd { context, handle: number };
        Ok(Pd::create(verbs, adapter, number, None))
    })
}

/// ibv_dealloc_pd(3), of a parent domain too: EBUSY while anything uses it.
///
/// # Safety
/// `pd` is a live protection domain of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        // SAFETY: by contract.
        if unsafe { Pd::of(pd) }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: from `create`; nothing refers to it any more.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        Ok(())
    })
}
