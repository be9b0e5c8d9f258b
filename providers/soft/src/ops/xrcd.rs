//! XRC domains (ibv_open_xrcd(3)). The C entry points of `engine/xrc/stand_ins`; processes that
//! open the same file share the domain.

use super::state::Context;
use super::{object, status};
use crate::engine::adapter::Adapter;
use crate::engine::xrc::DomainId;
use abi::*;
use soft_sys::Errno;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An open XRC domain. The C object comes first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Xrcd {
    verbs: verbs_xrcd,
    pub(crate) adapter: Arc<Adapter>,
    pub(crate) id: DomainId,
    /// Number of queues and QPs created or opened by this handle.
    users: AtomicUsize,
}

impl Xrcd {
    /// # Safety
    /// `xrcd` is a live domain of this provider.
    pub(crate) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> &'a Self {
        // SAFETY: open_xrcd made the domain, and the C object is the first member.
        unsafe { &*xrcd.cast::<Self>() }
    }

    /// Counts a new object of the domain.
    pub(crate) fn count_object(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the count of a destroyed object of the domain.
    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// ibv_open_xrcd(3): the domain of a file, shared by processes of the fabric, or (-1) a private
/// domain.
///
/// The errors are those of the kernel. EBADF: no such file. EAGAIN: the domain is not open and
/// O_CREAT was not given. EINVAL: the domain is open and O_EXCL was given.
///
/// # Safety
/// `context` is an open context of this provider; `init` is readable.
pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    object(|| {
        // SAFETY: the caller's context is open and `init` is readable for the whole call; both are
        // only read.
        let (owner, init) = unsafe { (Context::of(context), &*init) };
        if init.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if init.comp_mask & needed != needed {
            return Err(Errno::EINVAL);
        }
        let adapter = Arc::clone(&owner.adapter);
        let has = |flag| init.oflags & flag != 0;
        let file = match init.fd {
            -1 => None,
            fd => Some(duplicate(fd)?),
        };
        let id = adapter.xrc.open_domain(&adapter, file, has(libc::O_CREAT), has(libc::O_EXCL))?;
        let verbs = verbs_xrcd { xrcd: ibv_xrcd { context }, comp_mask: 0, handle: 0 };
        let xrcd = Xrcd { verbs, adapter, id, users: AtomicUsize::new(0) };
        Ok(Box::into_raw(Box::new(xrcd)).cast())
    })
}

/// A private descriptor of the application's file.
fn duplicate(fd: c_int) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: borrowed for one system call, which returns EBADF for an invalid descriptor.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(borrowed.try_clone_to_owned()?)
}

/// ibv_close_xrcd(3): EBUSY while the domain has a queue or QP.
///
/// # Safety
/// `xrcd` is a live domain of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    status(|| {
        // SAFETY: `xrcd` is a live domain until it is freed below, and the reference is not used
        // afterwards.
        let domain = unsafe { Xrcd::of(xrcd) };
        if domain.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        domain.adapter.xrc.close_domain(&domain.adapter, domain.id);
        // SAFETY: made by open_xrcd; no object refers to it any more.
        drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
        Ok(())
    })
}
