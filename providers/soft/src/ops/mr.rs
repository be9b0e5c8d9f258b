//! Memory regions (ibv_reg_mr(3), ibv_rereg_mr(3)). The C entry points of `engine/keys/regions`;
//! deregistration waits here for operations in flight.
//!
//! Map of this file: `Mr` and its parts; checks of rights and ranges; registration; the C entry
//! points; `withdraw`. Threads: application threads. Locks: those of `engine/keys/regions`.

use super::dm::DeviceMemory;
use super::dmah::DmaHandleUse;
use super::pd::Pd;
use super::state::Context;
use super::{object, status};
use crate::engine::keys::regions::{
    Extent, FLUSH_GLOBAL, Keys, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, VOID,
};
use abi::*;
use soft_local::shm::layout::mr_handle;
use soft_memory::populate::populate;
use soft_sys::Errno;
use soft_sys::map::Mapping;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A memory region. The C object comes first.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Mr {
    verbs: verbs_mr,
    pd: *mut ibv_pd,
    keys: Keys,
    extent: Extent,
    _backing: Backing,
    /// The DMA handle of ibv_reg_mr_ex(3), which cannot be freed before the region.
    _hints: Option<DmaHandleUse>,
    kind: HandleKind,
}

/// The owner of a region's memory. Memory of the provider lives at least as long as the region.
#[derive(Debug)]
#[allow(dead_code, reason = "held until it is dropped")]
pub(super) enum Backing {
    /// The application, or nobody: the region has no memory.
    Application,
    Device(Arc<DeviceMemory>),
    /// A mapping that was made for the region.
    File(Mapping),
}

/// The relation of a handle to the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandleKind {
    /// The destruction of the handle destroys the region.
    Own,
    /// Imported from a context of this process: the keys of the region itself.
    Alias,
    /// Imported from another process: own keys.
    Import,
}

impl Mr {
    /// # Safety
    /// `mr` is a live region of this provider.
    pub(super) unsafe fn of<'a>(mr: *mut ibv_mr) -> &'a Self {
        // SAFETY: made by this file, and the C object is the first member.
        unsafe { &*mr.cast::<Self>() }
    }

    /// Whether the region covers memory of the application.
    pub(super) const fn is_ordinary(&self) -> bool {
        self.verbs.mr_type == IBV_MR_TYPE_MR
    }

    /// Has the region hold the DMA handle of its registration.
    ///
    /// # Safety
    /// `mr` is a fresh region of this provider, which no other thread knows.
    pub(super) unsafe fn keep_hints(mr: *mut ibv_mr, hints: DmaHandleUse) {
        // SAFETY: made by this file, the C object is the first member, and nobody else knows it.
        unsafe { (*mr.cast::<Self>())._hints = Some(hints) };
    }

    pub(super) const fn is_zero_based(&self) -> bool {
        self.extent.access & IBV_ACCESS_ZERO_BASED != 0
    }

    pub(super) const fn handle_kind(&self) -> HandleKind {
        self.kind
    }

    /// A handle of a published region, which the handle does not destroy.
    ///
    /// # Safety
    /// `pd` is live.
    pub(super) unsafe fn imported(
        pd: *mut ibv_pd,
        handle: u32,
        keys: Keys,
        extent: Extent,
        kind: HandleKind,
    ) -> *mut ibv_mr {
        // SAFETY: the caller states that `pd` is live during the call; it is only read.
        let context = unsafe { (*pd).context };
        let (addr, length) = (std::ptr::null_mut(), extent.len as usize);
        let ibv_mr = ibv_mr { context, pd, addr, length, handle, lkey: keys.lkey, rkey: keys.rkey };
        let verbs = verbs_mr { ibv_mr, mr_type: IBV_MR_TYPE_IMPORTED_MR, access: 0 };
        let mr = Mr { verbs, pd, keys, extent, _backing: Backing::Application, _hints: None, kind };
        Box::into_raw(Box::new(mr)).cast()
    }

    pub(super) const fn keys(&self) -> Keys {
        self.keys
    }

    /// The number of its protection domain.
    pub(super) const fn domain_number(&self) -> u32 {
        self.extent.pd
    }

    pub(super) const fn rkey(&self) -> u32 {
        self.keys.rkey
    }
}

/// The flags of ibv_reg_mr(3) that must be supported; flags in the optional range may be ignored.
/// `FLUSH_PERSISTENT` is unsupported, because no memory of a process is persistent.
const KNOWN_ACCESS: u32 = LOCAL_WRITE
    | REMOTE_WRITE
    | REMOTE_READ
    | REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_HUGETLB
    | FLUSH_GLOBAL;

/// Checks the access flags. Remote writes and atomics require local writes (ibv_reg_mr(3)).
fn check_access(access: c_int) -> Result<u32, Errno> {
    let access = access as u32 & !IBV_ACCESS_OPTIONAL_RANGE;
    let changes = access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0;
    if access & !KNOWN_ACCESS != 0 || (changes && access & LOCAL_WRITE == 0) {
        return Err(Errno::EINVAL);
    }
    Ok(access)
}

/// Refusals of the kernel that `soft` makes only in strict mode: an empty region, and an iova with
/// another offset in its page than the memory.
fn check_strictly(addr: u64, length: usize, iova: u64) -> Result<(), Errno> {
    let is_kept = length > 0 && (addr ^ iova).is_multiple_of(cface::mem::page_size() as u64);
    is_kept.then_some(()).ok_or(Errno::EINVAL)
}

/// The extent of a region of `domain` over `length` bytes at `addr`, after a check of the memory.
/// Pages of a region on demand are checked at use, all others now.
fn cover(domain: &Pd, addr: u64, length: usize, iova: u64, access: c_int) -> Result<Extent, Errno> {
    let rights = check_access(access)?;
    let on_demand = rights & IBV_ACCESS_ON_DEMAND != 0;
    // The whole address space, for use on demand.
    let implicit = length == usize::MAX;
    if implicit && (addr != 0 || !on_demand) {
        return Err(Errno::EINVAL);
    }
    if addr.checked_add(length as u64).is_none() || iova.checked_add(length as u64).is_none() {
        return Err(Errno::EINVAL);
    }
    if !on_demand {
        populate(addr, length, rights & LOCAL_WRITE != 0)?;
    }
    let iova = if rights & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    Ok(Extent { pd: domain.number, va: addr, iova, len: length as u64, access: rights })
}

impl Mr {
    /// Publishes a region over `extent`.
    ///
    /// # Errors
    /// `ENOMEM` the table is full.
    ///
    /// # Safety
    /// `pd` is live.
    pub(super) unsafe fn create(
        pd: *mut ibv_pd,
        extent: Extent,
        mr_type: ibv_mr_type,
        access: c_int,
        backing: Backing,
    ) -> Result<*mut ibv_mr, Errno> {
        // SAFETY: `pd` is a live domain of this provider during the call, and only read; the region
        // holds it from here on.
        let (domain, context) = unsafe { (Pd::of(pd), (*pd).context) };
        let held = domain.hold_for_object()?;
        let keys = domain.adapter.regions.register(&extent).ok_or(Errno::ENOMEM)?;
        // SAFETY: the context of a live domain.
        let origin = unsafe { Context::of(context) }.identity.origin;
        domain.adapter.regions.belongs_to(keys.index, origin);
        held.keep_for_object();
        let ordinary = mr_type == IBV_MR_TYPE_MR;
        let ibv_mr = ibv_mr {
            context,
            pd,
            addr: if ordinary { extent.va as usize as *mut c_void } else { std::ptr::null_mut() },
            length: if mr_type == IBV_MR_TYPE_NULL_MR { 0 } else { extent.len as usize },
            handle: mr_handle(domain.adapter.fabric.slot(), keys.index),
            lkey: keys.lkey,
            rkey: keys.rkey,
        };
        let verbs = verbs_mr { ibv_mr, mr_type, access };
        Ok(Box::into_raw(Box::new(Mr {
            verbs,
            pd,
            keys,
            extent,
            _backing: backing,
            _hints: None,
            kind: HandleKind::Own,
        }))
        .cast())
    }
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
        // SAFETY: `pd` is a live domain of this provider: the application does not deallocate a
        // domain while it registers memory in it.
        let domain = unsafe { Pd::of(pd) };
        if domain.adapter.identity.is_strict() {
            check_strictly(addr as u64, length, hca_va)?;
        }
        let extent = cover(domain, addr as u64, length, hca_va, access)?;
        // SAFETY: `pd` is live during the call, as `create` requires; the region holds it
        // afterwards.
        unsafe { Mr::create(pd, extent, IBV_MR_TYPE_MR, access, Backing::Application) }
    })
}

/// ibv_alloc_null_mr(3): reads as zeros, ignores writes, at any address, for local use.
///
/// # Safety
/// `pd` is a live protection domain of this provider.
pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    object(|| {
        // SAFETY: `pd` is a live domain of this provider: the application does not deallocate a
        // domain while it allocates a region in it.
        let domain = unsafe { Pd::of(pd) };
        domain.adapter.regions.prepare_void()?;
        let extent =
            Extent { pd: domain.number, va: 0, iova: 0, len: u64::MAX, access: LOCAL_WRITE | VOID };
        // SAFETY: `pd` is live during the call, as `create` requires; the region holds it
        // afterwards.
        unsafe {
            let (kind, access) = (IBV_MR_TYPE_NULL_MR, LOCAL_WRITE as c_int);
            Mr::create(pd, extent, kind, access, Backing::Application)
        }
    })
}

/// ibv_advise_mr(3) for regions on demand. Pages are brought in at once. Failures are reported only
/// with `IBV_ADVISE_MR_FLAG_FLUSH`.
///
/// # Errors
/// `EOPNOTSUPP` an unknown advice; `EINVAL` unknown flags, no list, a region that is not on demand,
/// or a range outside of the region; `ENOENT` no such lkey; `EPERM` another domain, or a write
/// without the right; `EFAULT` not mapped.
///
/// # Safety
/// `pd` is a live protection domain of this provider; `list` has `count` elements.
pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    status(|| {
        let write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        if !matches!(
            advice,
            IBV_ADVISE_MR_ADVICE_PREFETCH
                | IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE
                | IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT
        ) {
            return Err(Errno::EOPNOTSUPP);
        }
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || list.is_null() || count == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `list` is not NULL (checked above), and the caller states that it has `count`
        // elements, unchanged during the call; `pd` is a live domain of this provider.
        let (domain, list) =
            unsafe { (Pd::of(pd), std::slice::from_raw_parts(list, count as usize)) };
        let mut ranges = Vec::with_capacity(list.len());
        for sge in list {
            let region = domain.adapter.regions.extent_of(sge.lkey).ok_or(Errno::ENOENT)?;
            if region.pd != domain.number || (write && region.access & LOCAL_WRITE == 0) {
                return Err(Errno::EPERM);
            }
            let last = sge.addr.checked_add(u64::from(sge.length));
            let inside = sge.addr >= region.iova
                && last.is_some_and(|last| last <= region.iova.saturating_add(region.len));
            if region.access & IBV_ACCESS_ON_DEMAND == 0 || !inside {
                return Err(Errno::EINVAL);
            }
            ranges.push((region.va + (sge.addr - region.iova), sge.length as usize));
        }
        if advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
            // Nothing to do: the page tables of the processor already serve present pages.
            return Ok(());
        }
        for (va, len) in ranges {
            let brought = populate(va, len, write);
            if flags & IBV_ADVISE_MR_FLAG_FLUSH != 0 {
                brought?;
            }
        }
        Ok(())
    })
}

/// ibv_dereg_mr(3): waits for operations on the region; EBUSY while a memory window is bound to it;
/// EINVAL for an imported region (ibv_unimport_mr(3)).
///
/// # Safety
/// `mr` is a live region of this provider and is not used any more.
pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    status(|| {
        // SAFETY: made by reg_mr.
        let region = unsafe { Mr::of(mr.cast()) };
        if region.kind != HandleKind::Own {
            return Err(Errno::EINVAL);
        }
        // SAFETY: a region holds its domain.
        let domain = unsafe { Pd::of(region.pd) };
        withdraw(domain, region.keys, region.extent.pd)?;
        domain.release();
        // SAFETY: made by reg_mr and returned once.
        drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
        Ok(())
    })
}

/// Revokes the keys of a region, and waits for operations by them.
///
/// # Errors
/// `EBUSY` a window is bound to it; nothing changed.
pub(super) fn withdraw(domain: &Pd, keys: Keys, pd: u32) -> Result<(), Errno> {
    let adapter = &domain.adapter;
    if !adapter.windows.unless_bound(keys.index, || adapter.regions.revoke(keys.index)) {
        return Err(Errno::EBUSY);
    }
    adapter.quiesce(pd, keys.rkey, "ibv_dereg_mr");
    adapter.regions.release(keys.index);
    Ok(())
}

/// ibv_rereg_mr(3): changes domain, translation or access. The keys stay, as on mlx5, so programs
/// continue with them.
///
/// # Errors
/// `EBUSY` a memory window is bound to it; `EINVAL` a domain of another context, or no flags in
/// strict mode; `EFAULT` not mapped. After an error the region is unchanged.
///
/// # Safety
/// `mr` is a live region of this provider, whose handle no other thread uses during the call. If
/// `flags` select them, `pd` is a live protection domain of this provider, and the new memory stays
/// mapped until deregistration.
pub(super) unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    status(|| {
        // SAFETY: made by reg_mr; the application changes a region from a single thread at a time.
        let mr = unsafe { &mut *mr.cast::<Mr>() };
        let flags = flags as u32;
        // SAFETY: a region holds its domain.
        let old = unsafe { Pd::of(mr.pd) };
        let new = if flags & IBV_REREG_MR_CHANGE_PD != 0 { pd } else { mr.pd };
        // SAFETY: the application names a live domain (ibv_rereg_mr(3)) of the region's context.
        let (domain, context) = unsafe { (Pd::of(new), (*new).context) };
        if context != mr.verbs.ibv_mr.context || (domain.adapter.identity.is_strict() && flags == 0)
        {
            return Err(Errno::EINVAL);
        }
        let (mut extent, mut given) = (Extent { pd: domain.number, ..mr.extent }, mr.verbs.access);
        if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
            given = access;
        }
        if flags & (IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS) != 0 {
            let (at, len, iova) = if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
                if domain.adapter.identity.is_strict() {
                    check_strictly(addr as u64, length, addr as u64)?;
                }
                (addr as u64, length, addr as u64)
            } else {
                (extent.va, extent.len as usize, extent.iova)
            };
            extent = cover(domain, at, len, iova, given)?;
        }
        let held = domain.hold_for_object()?;
        // The table entry is reused, so peers need not learn new keys.
        let (adapter, index) = (&domain.adapter, mr.keys.index);
        if !adapter.windows.unless_bound(index, || adapter.regions.revoke(index)) {
            return Err(Errno::EBUSY);
        }
        adapter.quiesce(mr.extent.pd, mr.keys.rkey, "ibv_rereg_mr");
        adapter.regions.publish(index, mr.keys.rkey, &extent);
        // SAFETY: the context of a live domain.
        let origin = unsafe { Context::of((*new).context) }.identity.origin;
        adapter.regions.belongs_to(index, origin);
        held.keep_for_object();
        old.release();
        (mr.pd, mr.extent) = (new, extent);
        mr.verbs.access = given;
        Ok(())
    })
}
