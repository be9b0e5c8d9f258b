//! Device memory (ibv_alloc_dm(3), ibv_import_dm(3)): a memory file. An application reaches it only
//! by its regions and by copying; importers map it again.

use super::context_identity::exporter;
use super::mr::{Backing, Mr};
use super::mr_import::published;
use super::pd::Pd;
use super::state::Context;
use super::{object, status};
use crate::engine::adapter::Adapter;
use crate::engine::keys::regions::{
    Extent, Keys, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE,
};
use abi::*;
use soft_local::shm::layout::{mr_handle, split_mr_handle};
use soft_local::shm::view::PeerView;
use soft_memory::foreign::Foreign;
use soft_sys::Errno;
use soft_sys::map::{Access, Mapping};
use soft_sys::memfd::{Memfd, Seals};
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Limit of device memory for a process, in bytes.
pub(super) const MAX_DM: u64 = 256 << 20;

/// The access flags that a region of device memory may have.
const RIGHTS: u32 = LOCAL_WRITE
    | REMOTE_READ
    | REMOTE_WRITE
    | REMOTE_ATOMIC
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_OPTIONAL_RANGE;

/// A piece of device memory.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    adapter: Arc<Adapter>,
    base: *mut u8,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Own {
        map: Mapping,
        /// A peer that uses the memory finds it by its owner's descriptor (`engine::ring::mapped`).
        _file: Memfd,
        /// The table entry by which importers find the memory; it belongs to no protection domain.
        keys: Keys,
    },
    /// Memory of another context or process, mapped again.
    #[allow(dead_code, reason = "held until it is dropped")]
    Imported(Foreign),
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Store::Own { map, keys, .. } = &self.store {
            self.adapter.regions.revoke(keys.index);
            self.adapter.regions.release(keys.index);
            self.adapter.registry.device_memory().give_back(map.len() as u64);
        }
    }
}

// SAFETY: the address of a mapping that belongs to the process; access to its bytes follows the
// rules of verbs.
unsafe impl Send for DeviceMemory {}
// SAFETY: a shared `DeviceMemory` only permits reading the address, which never changes; all
// further members are Sync.
unsafe impl Sync for DeviceMemory {}

/// A piece of device memory of the application. The C object comes first.
#[repr(C)]
#[derive(Debug)]
struct Dm {
    verbs: ibv_dm,
    memory: Arc<DeviceMemory>,
    /// Requested length in bytes; the memory has whole pages.
    length: u64,
}

impl Dm {
    /// # Safety
    /// `dm` is live device memory of this provider.
    unsafe fn of<'a>(dm: *mut ibv_dm) -> &'a Self {
        // SAFETY: alloc_dm made it, and the C object is the first member.
        unsafe { &*dm.cast::<Self>() }
    }

    /// The address for a copy of `length` bytes at `offset`. Only words are copied, as on mlx5, the
    /// adapter with such memory; a program that works here works there.
    ///
    /// # Errors
    /// `EFAULT` out of range; `EINVAL` offset or length is not a multiple of 4.
    fn words(&self, offset: u64, length: usize) -> Result<*mut u8, Errno> {
        let at = self.address_at(offset, length).ok_or(Errno::EFAULT)?;
        if offset.is_multiple_of(4) && length.is_multiple_of(4) {
            Ok(at)
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// The address of `length` bytes at `offset`, if inside.
    fn address_at(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length as u64)?;
        // SAFETY: inside the mapping.
        (end <= self.length).then(|| unsafe { self.memory.base.add(offset as usize) })
    }
}

/// ibv_alloc_dm(3). The alignment is ignored, because regions of device memory are zero-based.
///
/// # Errors
/// `EINVAL` no length, more than `max_dm_size`, or unknown attributes; `ENOMEM` too much device
/// memory is in use.
///
/// # Safety
/// `context` is open; `attr` is readable.
pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    object(|| {
        // SAFETY: the caller's context is open and `attr` is readable for the whole call; both are
        // only read.
        let (attr, owner) = unsafe { (&*attr, Context::of(context)) };
        let length = attr.length as u64;
        if attr.comp_mask != 0 || length == 0 || length > MAX_DM || attr.log_align_req > 63 {
            return Err(Errno::EINVAL);
        }
        let adapter = Arc::clone(&owner.adapter);
        let bytes = length.next_multiple_of(cface::mem::page_size() as u64);
        adapter.registry.device_memory().count_new(bytes, MAX_DM)?;
        let (map, file) = match memory(c"ferroverbs-dm", bytes as usize) {
            Ok(made) => made,
            Err(errno) => {
                adapter.registry.device_memory().give_back(bytes);
                return Err(errno);
            }
        };
        let base = map.base();
        let extent = Extent { pd: 0, va: base as u64, iova: 0, len: length, access: 0 };
        let Some(keys) = adapter.regions.register(&extent) else {
            adapter.registry.device_memory().give_back(bytes);
            return Err(Errno::ENOMEM);
        };
        adapter.regions.belongs_to(keys.index, owner.identity.origin);
        let handle = mr_handle(adapter.fabric.slot(), keys.index);
        let store = Store::Own { map, _file: file, keys };
        let memory = Arc::new(DeviceMemory { adapter, base, store });
        Ok(Box::into_raw(Box::new(Dm { verbs: verbs(context, handle), memory, length })).cast())
    })
}

fn verbs(context: *mut ibv_context, handle: u32) -> ibv_dm {
    ibv_dm {
        context,
        memcpy_to_dm: Some(copy_to),
        memcpy_from_dm: Some(copy_from),
        comp_mask: 0,
        handle,
    }
}

/// ibv_import_dm(3): the same memory, which lives as long as any handle.
///
/// # Errors
/// `ENOENT` no such device memory in the family of contexts, or its process is gone; `EOPNOTSUPP`
/// memory of that process cannot be mapped.
///
/// # Safety
/// `context` is open.
pub(super) unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    object(|| {
        // SAFETY: the caller's context is open for the whole call.
        let owner = unsafe { Context::of(context) };
        let adapter = Arc::clone(&owner.adapter);
        let (slot, index) = split_mr_handle(handle);
        let peer = exporter(&adapter.fabric, slot)?;
        let view = PeerView::of(Arc::clone(&peer));
        let found = || {
            published(&view, index, owner.identity.origin)
                .filter(|(_, extent)| extent.pd == 0 && !peer.is_dead())
                .ok_or(Errno::ENOENT)
        };
        let (rkey, extent) = found()?;
        if !peer.is_self && !peer.can_attach() {
            return Err(Errno::EOPNOTSUPP);
        }
        let map = peer.map(extent.va).ok_or(Errno::EOPNOTSUPP)?;
        // If the entry is unchanged, the mapping shows its memory.
        if found()?.0 != rkey {
            return Err(Errno::ENOENT);
        }
        let base = map.local_range(extent.va, extent.len as usize).ok_or(Errno::EOPNOTSUPP)?;
        let memory = Arc::new(DeviceMemory { adapter, base, store: Store::Imported(map) });
        let dm = Dm { verbs: verbs(context, handle), memory, length: extent.len };
        Ok(Box::into_raw(Box::new(dm)).cast())
    })
}

/// ibv_unimport_dm(3). Regions keep the memory alive.
///
/// # Safety
/// `dm` is imported device memory of this provider and is not used any more.
pub(super) unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: `dm` is live device memory of this provider until it is freed below; the reference
    // ends with the line.
    if matches!(unsafe { Dm::of(dm) }.memory.store, Store::Imported(_)) {
        // SAFETY: made by import_dm; regions hold the memory themselves.
        drop(unsafe { Box::from_raw(dm.cast::<Dm>()) });
    }
}

/// A memory file of fixed size, and its mapping.
pub(super) fn memory(name: &CStr, bytes: usize) -> Result<(Mapping, Memfd), Errno> {
    let file = Memfd::create(name, bytes)?;
    file.seal(Seals::SHRINK | Seals::GROW | Seals::SEAL)?;
    Ok((Mapping::new(file.as_fd(), bytes, Access::ReadWrite)?, file))
}

/// ibv_free_dm(3): EBUSY while it has regions; EINVAL for imported memory (ibv_unimport_dm(3)).
///
/// # Safety
/// `dm` is live device memory of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    status(|| {
        // SAFETY: `dm` is live device memory of this provider until it is freed below, and the
        // reference is not used afterwards.
        let memory = &unsafe { Dm::of(dm) }.memory;
        if matches!(memory.store, Store::Imported(_)) {
            return Err(Errno::EINVAL);
        }
        if Arc::strong_count(memory) > 1 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: made by alloc_dm; no region is left.
        drop(unsafe { Box::from_raw(dm.cast::<Dm>()) });
        Ok(())
    })
}

/// ibv_memcpy_to_dm(3): EFAULT out of range, EINVAL if not whole words.
unsafe extern "C" fn copy_to(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: live device memory, by the manual.
        let to = unsafe { Dm::of(dm) }.words(offset, length)?;
        // SAFETY: inside the device memory (checked); the source is readable, by the manual.
        unsafe { std::ptr::copy(from.cast(), to, length) };
        Ok(())
    })
}

/// ibv_memcpy_from_dm(3): EFAULT out of range, EINVAL if not whole words.
unsafe extern "C" fn copy_from(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: live device memory, by the manual.
        let from = unsafe { Dm::of(dm) }.words(offset, length)?;
        // SAFETY: inside the device memory (checked); the target is writable, by the manual.
        unsafe { std::ptr::copy(from, to.cast(), length) };
        Ok(())
    })
}

/// ibv_reg_dm_mr(3): a zero-based region over a part of device memory.
///
/// # Errors
/// `EINVAL` not zero-based, unsupported access flags, remote writing without local writing, or a
/// range outside.
///
/// # Safety
/// `pd` and `dm` are live objects of this provider.
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    object(|| {
        // SAFETY: `pd` and `dm` are live objects of this provider during the call, and only read.
        let (domain, device) = unsafe { (Pd::of(pd), Dm::of(dm)) };
        let changes = access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0;
        if access & IBV_ACCESS_ZERO_BASED == 0
            || access & !RIGHTS != 0
            || (changes && access & LOCAL_WRITE == 0)
        {
            return Err(Errno::EINVAL);
        }
        let va = device.address_at(offset, length).ok_or(Errno::EINVAL)? as u64;
        let access = access & !IBV_ACCESS_OPTIONAL_RANGE;
        let extent = Extent { pd: domain.number, va, iova: 0, len: length as u64, access };
        let memory = Backing::Device(Arc::clone(&device.memory));
        // SAFETY: `pd` is live during the call; the region holds it afterwards, and the memory by
        // the Arc. libibverbs knows that memory of this type does not belong to the application.
        unsafe { Mr::create(pd, extent, IBV_MR_TYPE_DMABUF_MR, access as c_int, memory) }
    })
}
