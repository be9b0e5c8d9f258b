//! Memory regions (ibv_reg_mr(3), ibv_rereg_mr(3)).

use super::pd::Pd;
use super::{object, status};
use crate::engine::regions::{Extent, Keys, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_WRITE};
use crate::sys::Errno;
use abi::*;
use std::ffi::{c_int, c_void};

/// A memory region. The C object comes first.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Mr {
    verbs: verbs_mr,
    pd: *mut ibv_pd,
    keys: Keys,
    extent: Extent,
}

impl Mr {
    /// # Safety
    /// `mr` is a live region of this provider.
    pub(super) unsafe fn of<'a>(mr: *mut ibv_mr) -> &'a Self {
        // SAFETY: made here, and the C object is the first member.
        unsafe { &*mr.cast::<Self>() }
    }

    /// Over memory of the application, rather than of the device or none.
    pub(super) const fn is_ordinary(&self) -> bool {
        self.verbs.mr_type == IBV_MR_TYPE_MR
    }

    pub(super) const fn is_zero_based(&self) -> bool {
        self.extent.access & IBV_ACCESS_ZERO_BASED != 0
    }

    pub(super) const fn rkey(&self) -> u32 {
        self.keys.rkey
    }
}

/// Remote writes and atomics need local ones (ibv_reg_mr(3)).
fn check_access(access: c_int) -> Result<u32, Errno> {
    let access = access as u32;
    if access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0 && access & LOCAL_WRITE == 0 {
        return Err(Errno::EINVAL);
    }
    if access & IBV_ACCESS_ON_DEMAND != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(access)
}

/// Brings the memory in as the access needs it, as pinning would: whatever is not mapped, or not writable where
/// it must be, is found now and not by a crash when a message arrives.
fn populate(addr: u64, length: usize, access: u32) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    let start = addr & !4095;
    let end = addr.checked_add(length as u64).ok_or(Errno::EINVAL)?;
    let len = (end - start).next_multiple_of(4096) as usize;
    let advice = if access & LOCAL_WRITE != 0 { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    let start = start as usize as *mut c_void;
    // SAFETY: madvise(2) changes no contents and checks the range.
    if unsafe { libc::madvise(start, len, advice) } == 0 {
        return Ok(());
    }
    match Errno::last() {
        // The advice is as new as Linux 5.14. Before, all that can be asked is whether there is a mapping.
        // SAFETY: as above; no length, no effect but the check of the advice.
        Errno::EINVAL if unsafe { libc::madvise(start, 0, advice) } != 0 => mapped(start, len),
        // No mapping, or not with that protection: what the kernel's own registration says then.
        Errno::ENOMEM | Errno::EINVAL => Err(Errno::EFAULT),
        other => Err(other),
    }
}

/// Since Linux 5.14; not in the libc crate for every target.
const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;

fn mapped(start: *mut c_void, len: usize) -> Result<(), Errno> {
    let mut residency = vec![0u8; len / 4096];
    // SAFETY: one byte of answer for each page.
    if unsafe { libc::mincore(start, len, residency.as_mut_ptr()) } != 0 {
        return Err(Errno::EFAULT);
    }
    Ok(())
}

/// ibv_reg_mr(3).
///
/// # Safety
/// `pd` is a live protection domain of this provider; the memory stays mapped until deregistration.
pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut ibv_mr {
    object(|| {
        // SAFETY: by contract.
        let domain = unsafe { Pd::of(pd) };
        let rights = check_access(access)?;
        populate(addr as u64, length, rights)?;
        let extent = Extent {
            pd: domain.number,
            va: addr as u64,
            iova: if rights & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { hca_va },
            len: length as u64,
            access: rights,
        };
        let keys = domain.adapter.regions.register(&extent).ok_or(Errno::ENOMEM)?;
        domain.hold();
        // SAFETY: `pd` is live.
        let context = unsafe { (*pd).context };
        let ibv_mr = ibv_mr {
            context,
            pd,
            addr,
            length,
            handle: keys.index as u32,
            lkey: keys.lkey,
            rkey: keys.rkey,
        };
        let verbs = verbs_mr { ibv_mr, mr_type: IBV_MR_TYPE_MR, access };
        Ok(Box::into_raw(Box::new(Mr { verbs, pd, keys, extent })).cast())
    })
}

/// ibv_dereg_mr(3): waits for operations on the region that are under way; EBUSY while a memory window is bound to it.
///
/// # Safety
/// `mr` is a live region of this provider and is not used any more.
pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    status(|| {
        // SAFETY: from reg_mr.
        let region = unsafe { Mr::of(mr.cast()) };
        // SAFETY: a region holds its domain.
        let domain = unsafe { Pd::of(region.pd) };
        withdraw(domain, region.keys, region.extent.pd)?;
        domain.release();
        // SAFETY: from reg_mr, given back once.
        drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
        Ok(())
    })
}

/// Takes a region's keys back and waits for whoever uses them.
///
/// # Errors
/// `EBUSY` a window is bound to it: nothing happened.
fn withdraw(domain: &Pd, keys: Keys, pd: u32) -> Result<(), Errno> {
    let adapter = &domain.adapter;
    if !adapter.windows.unless_bound(keys.index, || adapter.regions.revoke(keys.index)) {
        return Err(Errno::EBUSY);
    }
    adapter.quiesce(pd, keys.rkey);
    adapter.regions.release(keys.index);
    Ok(())
}

/// ibv_rereg_mr(3): changes domain, translation or access; the keys change.
///
/// # Safety
/// As `reg_mr` and `dereg_mr`, for the parts that `flags` names.
pub(super) unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    status(|| {
        // SAFETY: from reg_mr; the application changes it from one thread at a time.
        let mr = unsafe { &mut *mr.cast::<Mr>() };
        let flags = flags as u32;
        // SAFETY: a region holds its domain.
        let old = unsafe { Pd::of(mr.pd) };
        let new = if flags & IBV_REREG_MR_CHANGE_PD != 0 { pd } else { mr.pd };
        // SAFETY: live by contract.
        let domain = unsafe { Pd::of(new) };
        let mut extent = Extent { pd: domain.number, ..mr.extent };
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            (extent.va, extent.iova, extent.len) = (addr as u64, addr as u64, length as u64);
        }
        if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            extent.access = check_access(access)?;
        }
        populate(extent.va, extent.len as usize, extent.access)?;
        let keys = domain.adapter.regions.register(&extent).ok_or(Errno::ENOMEM)?;
        if let Err(errno) = withdraw(old, mr.keys, mr.extent.pd) {
            // The region stays as it was.
            withdraw(domain, keys, extent.pd)?;
            return Err(errno);
        }
        domain.hold();
        old.release();
        (mr.pd, mr.keys, mr.extent) = (new, keys, extent);
        mr.verbs.access = extent.access as c_int;
        mr.verbs.ibv_mr.lkey = keys.lkey;
        mr.verbs.ibv_mr.rkey = keys.rkey;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pages, the second of them with `protection`.
    fn pages(protection: c_int) -> *mut c_void {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: fresh anonymous memory, of which we change the second half's protection.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(4096), 4096, protection), 0);
            at
        }
    }

    #[test]
    fn memory_that_cannot_be_used_as_asked_is_refused() {
        let read_only = pages(libc::PROT_READ) as u64;
        assert_eq!(populate(read_only, 4096, LOCAL_WRITE), Ok(()));
        assert_eq!(populate(read_only, 8192, 0), Ok(()));
        assert_eq!(populate(read_only, 4097, LOCAL_WRITE), Err(Errno::EFAULT));
        assert_eq!(populate(pages(libc::PROT_NONE) as u64, 8192, 0), Err(Errno::EFAULT));
        assert_eq!(populate(u64::MAX - 10, 100, 0), Err(Errno::EINVAL));
        assert_eq!(populate(0, 0, LOCAL_WRITE), Ok(()));
    }
}
