//! DMA handles (ibv_alloc_dmah(3)), whose hints `soft` checks and ignores, and the registration by
//! attributes that names them (ibv_reg_mr_ex(3)).

use super::dmabuf::reg_dmabuf_mr;
use super::mr::{Mr, reg_mr};
use super::{object, status};
use abi::*;
use soft_sys::Errno;
use std::ffi::c_int;
use std::sync::Arc;

/// A DMA handle. The C object comes first.
#[repr(C)]
#[derive(Debug)]
struct DmaHandle {
    verbs: ibv_dmah,
    users: DmaHandleUse,
}

/// Counts the regions that a DMA handle was given to: one clone for each, besides the handle's own.
#[derive(Clone, Debug, Default)]
pub(super) struct DmaHandleUse(Arc<()>);

impl DmaHandleUse {
    fn has_others(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Known members of `ibv_dmah_init_attr`.
const KNOWN_MEMBERS: u32 = IBV_DMAH_INIT_ATTR_MASK_CPU_ID
    | IBV_DMAH_INIT_ATTR_MASK_PH
    | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;

/// The largest processing hint, which has two bits.
const MAX_PROCESSING_HINT: u8 = 3;

/// Checks hints.
///
/// # Errors
/// `EINVAL` an unknown member or hint, or a processor that the machine does not have.
fn check(attr: &ibv_dmah_init_attr, processors: u32) -> Result<(), Errno> {
    let has = |member| attr.comp_mask & member != 0;
    let wrong = attr.comp_mask & !KNOWN_MEMBERS != 0
        || (has(IBV_DMAH_INIT_ATTR_MASK_CPU_ID) && attr.cpu_id >= processors)
        || (has(IBV_DMAH_INIT_ATTR_MASK_PH) && attr.ph > MAX_PROCESSING_HINT)
        || (has(IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE)
            && !matches!(attr.tph_mem_type.into(), IBV_TPH_MEM_TYPE_VM | IBV_TPH_MEM_TYPE_PM));
    if wrong { Err(Errno::EINVAL) } else { Ok(()) }
}

/// ibv_alloc_dmah(3).
///
/// # Errors
/// Those of [`check`], and `EINVAL` without attributes.
///
/// # Safety
/// `context` is open; `attr` is NULL or readable.
pub(super) unsafe extern "C" fn alloc_dmah(
    context: *mut ibv_context,
    attr: *mut ibv_dmah_init_attr,
) -> *mut ibv_dmah {
    object(|| {
        // SAFETY: `attr` is NULL, which is refused, or the caller's and readable during the call.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: sysconf takes an integer.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        check(attr, u32::try_from(processors).unwrap_or(1))?;
        let handle = DmaHandle { verbs: ibv_dmah { context }, users: DmaHandleUse::default() };
        Ok(Box::into_raw(Box::new(handle)).cast())
    })
}

/// ibv_dealloc_dmah(3): EBUSY while a region has the handle.
///
/// # Safety
/// `dmah` is a live handle of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn dealloc_dmah(dmah: *mut ibv_dmah) -> c_int {
    status(|| {
        let handle: *mut DmaHandle = dmah.cast();
        // SAFETY: alloc_dmah made the handle, and the reference ends with the line.
        if unsafe { &(*handle).users }.has_others() {
            return Err(Errno::EBUSY);
        }
        // SAFETY: made by alloc_dmah and returned once; no region has it.
        drop(unsafe { Box::from_raw(handle) });
        Ok(())
    })
}

/// ibv_reg_mr_ex(3). libibverbs has replaced a buffer by its memory, and passes a copy of the
/// attributes in which members without their bit are zero.
///
/// # Errors
/// `EOPNOTSUPP` an unknown member; `EINVAL` neither memory nor a file, or both, a part of a file's
/// attributes, a DMA handle of another context, or one for a region on demand; those of
/// ibv_reg_mr(3) and ibv_reg_dmabuf_mr(3).
///
/// # Safety
/// `pd` is a live protection domain of this provider, `attr` is readable, and a handle that it
/// names is live; the memory stays mapped until deregistration.
pub(super) unsafe extern "C" fn reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    object(|| {
        // SAFETY: libibverbs passes its own copy of the attributes.
        let attr = unsafe { *attr };
        let mask = MrInitMask::from_bits_retain(attr.comp_mask);
        let file = MrInitMask::FD | MrInitMask::FD_OFFSET | MrInitMask::IOVA;
        let known = file | MrInitMask::ADDR | MrInitMask::DMAH;
        if !known.contains(mask) {
            return Err(Errno::EOPNOTSUPP);
        }
        let hints = if mask.contains(MrInitMask::DMAH) {
            let on_demand = attr.access as u32 & IBV_ACCESS_ON_DEMAND != 0;
            // SAFETY: the application names a live handle, or NULL, which is refused.
            let handle = unsafe { attr.dmah.cast::<DmaHandle>().as_ref() }.ok_or(Errno::EINVAL)?;
            // SAFETY: `pd` is a live domain of this provider, and only read.
            if on_demand || handle.verbs.context != unsafe { (*pd).context } {
                return Err(Errno::EINVAL);
            }
            Some(handle.users.clone())
        } else {
            None
        };
        let has = |members| mask.contains(members);
        let (is_file, is_memory) = (has(MrInitMask::FD), has(MrInitMask::ADDR));
        if is_file == is_memory
            || (is_file && !has(file))
            || (is_memory && has(MrInitMask::FD_OFFSET))
        {
            return Err(Errno::EINVAL);
        }
        let iova = if has(MrInitMask::IOVA) { attr.iova } else { attr.addr as u64 };
        // SAFETY: `pd` is live, and the memory stays mapped, as this function's contract says.
        let mr = unsafe {
            if is_file {
                reg_dmabuf_mr(pd, attr.fd_offset, attr.length, iova, attr.fd, attr.access)
            } else {
                reg_mr(pd, attr.addr, attr.length, iova, attr.access)
            }
        };
        if mr.is_null() {
            return Err(Errno::last());
        }
        if let Some(hints) = hints {
            // SAFETY: a fresh region, which the application does not know yet.
            unsafe { Mr::keep_hints(mr, hints) };
        }
        Ok(mr)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hints_that_exist_are_accepted() {
        let all =
            ibv_dmah_init_attr { comp_mask: KNOWN_MEMBERS, cpu_id: 3, ph: 3, tph_mem_type: 1 };
        let errno = |attr: ibv_dmah_init_attr| check(&attr, 4).err();
        assert_eq!(errno(all), None);
        for wrong in [
            ibv_dmah_init_attr { cpu_id: 4, ..all },
            ibv_dmah_init_attr { ph: 4, ..all },
            ibv_dmah_init_attr { tph_mem_type: 2, ..all },
        ] {
            assert_eq!(errno(wrong), Some(Errno::EINVAL), "{wrong:?}");
            assert_eq!(errno(ibv_dmah_init_attr { comp_mask: 0, ..wrong }), None, "not selected");
        }
        assert_eq!(errno(ibv_dmah_init_attr { comp_mask: 8, ..all }), Some(Errno::EINVAL));
    }
}
