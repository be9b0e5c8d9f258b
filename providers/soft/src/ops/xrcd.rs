//! XRC domains (ibv_open_xrcd(3)).

use super::state::Context;
use super::{object, status};
use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::xrc::DomainId;
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
    /// Queues and QPs that were made, or opened, by this handle.
    users: AtomicUsize,
}

impl Xrcd {
    /// # Safety
    /// `xrcd` is a live domain of this provider.
    pub(crate) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> &'a Self {
        // SAFETY: open_xrcd made it, and the C object is the first member.
        unsafe { &*xrcd.cast::<Self>() }
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

/// ibv_open_xrcd(3): the domain of a file, which processes of the fabric share, or (-1) one for this process alone.
///
/// The errors are the kernel's: EBADF no such file; EAGAIN nobody has the domain open and O_CREAT was not given; EINVAL
/// O_EXCL, and somebody has.
///
/// # Safety
/// `context` is an open context of this provider; `init` is readable.
pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    object(|| {
        // SAFETY: the caller's context is open and its `init` readable for the whole call; both are only read, and
        // `init` not after it.
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

/// A descriptor of our own for an application's file.
fn duplicate(fd: c_int) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: borrowed for one system call, which says EBADF where there is no such descriptor.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(borrowed.try_clone_to_owned()?)
}

/// ibv_close_xrcd(3): EBUSY while a queue or QP of it is there.
///
/// # Safety
/// `xrcd` is a live domain of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    status(|| {
        // SAFETY: `xrcd` is a live domain until it is freed below, and the reference is not used after that.
        let domain = unsafe { Xrcd::of(xrcd) };
        if domain.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        domain.adapter.xrc.close_domain(&domain.adapter, domain.id);
        // SAFETY: from open_xrcd; nothing refers to it any more.
        drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
        Ok(())
    })
}
