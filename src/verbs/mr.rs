//! Memory regions: `ibv_reg_mr(3)`, `ibv_rereg_mr(3)`, `ibv_dereg_mr(3)`, `ibv_import_mr(3)`, and the
//! buffers and DMA handles that newer registrations refer to.

use core::ffi::{c_int, c_void};

use abi::{
    AccessFlags, IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS, IBV_MR_TYPE_MR,
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_DONT_FORK_NEW, IBV_REREG_MR_ERR_INPUT,
    IBV_REREG_MR_FLAGS_SUPPORTED, MrInitMask, Zeroed, ibv_buf, ibv_context, ibv_dmah,
    ibv_dmah_init_attr, ibv_mr, ibv_mr_init_attr, ibv_pd, verbs_mr,
};

use super::context_of;
use crate::ffi::{Errno, MinusOne, verb};
use crate::front::context::{Context, op};
use crate::front::fork;

verb! {
    /// `ibv_reg_mr(3)`.
    ///
    /// # Safety
    /// `pd` is NULL or live; the memory stays mapped until the region is gone.
    pub(crate) fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
        // SAFETY: per the contract above.
        unsafe { register(pd, addr, length, addr.addr() as u64, access) }
    }

    /// `ibv_reg_mr_iova(3)`: the device sees the memory at `iova`.
    ///
    /// # Safety
    /// As `reg_mr`.
    pub(crate) fn reg_mr_iova(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> *mut ibv_mr {
        // SAFETY: per the contract above.
        unsafe { register(pd, addr, length, iova, access) }
    }

    /// `ibv_reg_mr_iova2`: as `reg_mr_iova`, with access bits that are no compile-time constants.
    ///
    /// # Safety
    /// As `reg_mr`.
    pub(crate) fn reg_mr_iova2(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: u32,
    ) -> *mut ibv_mr {
        // SAFETY: per the contract above.
        unsafe { register(pd, addr, length, iova, access.cast_signed()) }
    }

    /// `ibv_reg_dmabuf_mr(3)`: memory of a DMA-BUF; forks don't concern it.
    ///
    /// # Safety
    /// `pd` is NULL or live.
    pub(crate) fn reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> *mut ibv_mr {
        // SAFETY: live by the contract above.
        let context = unsafe { context_of(pd)? };
        let reg = op!(context, reg_dmabuf_mr)?;
        // SAFETY: the provider's operation.
        let mr = unsafe { reg(pd, offset, length, iova, fd, access) };
        let addr = core::ptr::without_provenance_mut(offset as usize);
        // SAFETY: NULL or fresh.
        unsafe { fill(mr, context, pd, addr, length) };
        Ok(mr)
    }

    /// `ibv_reg_mr_ex(3)`: a registration described by a mask and its fields.
    ///
    /// # Errors
    /// `EINVAL` a buffer that is not of this PD or does not contain the range.
    ///
    /// # Safety
    /// `pd` and what `attr` refers to are live; the memory stays mapped until the region is gone.
    pub(crate) fn reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
        // SAFETY: live by the contract above.
        let context = unsafe { context_of(pd)? };
        // SAFETY: readable as far as its mask says (checked inside).
        let mut attr = unsafe { sanitised(attr)? };
        // SAFETY: live by the contract above.
        unsafe { resolve_buffer(pd, &mut attr)? };
        attr.access = usable_access(context, attr.access);
        let mask = MrInitMask::from_bits_retain(attr.comp_mask);
        let on_demand = is_on_demand(attr.access);
        let forks = !on_demand && !mask.contains(MrInitMask::FD);
        if forks {
            fork::dont_fork(attr.addr, attr.length)?;
        }
        let reg = op!(context, reg_mr_ex)?;
        // SAFETY: the provider's operation, with our own complete copy of the attributes.
        let mr = unsafe { reg(pd, &raw mut attr) };
        let addr = if mask.contains(MrInitMask::ADDR) {
            attr.addr
        } else {
            core::ptr::without_provenance_mut(attr.fd_offset as usize)
        };
        // SAFETY: NULL or fresh.
        unsafe { fill(mr, context, pd, addr, attr.length) };
        if mr.is_null() && forks {
            let error = Errno::last();
            fork::do_fork(attr.addr, attr.length);
            error.set();
        }
        Ok(mr)
    }

    /// `ibv_reg_buf_mr(3)`: part of a buffer from `ibv_alloc_buf(3)`.
    ///
    /// # Safety
    /// `pd` and `buf` are live.
    pub(crate) fn reg_buf_mr(
        pd: *mut ibv_pd,
        buf: *mut ibv_buf,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr {
        let mask = MrInitMask::BUF | MrInitMask::ADDR;
        let mut attr = ibv_mr_init_attr {
            length,
            access,
            comp_mask: mask.bits(),
            addr,
            buf,
            ..ibv_mr_init_attr::zeroed()
        };
        // SAFETY: per the contract above.
        Ok(unsafe { reg_mr_ex(pd, &raw mut attr) })
    }

    /// `ibv_rereg_mr(3)`: its own error codes, -1 to -5, with errno.
    ///
    /// # Safety
    /// `mr` is NULL or live and idle; `pd` is live when it is to be changed.
    pub(crate) fn rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> MinusOne {
        // SAFETY: per the contract above.
        Ok(MinusOne(unsafe { change(mr, flags.cast_unsigned(), pd, addr, length, access) }))
    }

    /// `ibv_dereg_mr(3)`.
    ///
    /// # Safety
    /// `mr` is NULL or live, and used no more after success.
    pub(crate) fn dereg_mr(mr: *mut ibv_mr) -> c_int {
        // SAFETY: live by the contract above.
        let dereg = op!(unsafe { context_of(mr)? }, dereg_mr)?;
        let verbs: *mut verbs_mr = mr.cast();
        // SAFETY: every ibv_mr starts a verbs_mr; read before it is freed.
        let (addr, length, mr_type, access) =
            unsafe { ((*mr).addr, (*mr).length, (*verbs).mr_type, (*verbs).access) };
        // SAFETY: the provider's operation.
        let result = unsafe { dereg(verbs) };
        if result == 0 && mr_type == IBV_MR_TYPE_MR && !is_on_demand(access) {
            fork::do_fork(addr, length);
        }
        Ok(result)
    }

    /// `ibv_import_mr(3)`.
    ///
    /// # Safety
    /// `pd` is NULL or an imported PD.
    pub(crate) fn import(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
        // SAFETY: live by the contract above.
        let import = op!(unsafe { context_of(pd)? }, import_mr)?;
        // SAFETY: the provider's operation.
        Ok(unsafe { import(pd, handle) })
    }

    /// `ibv_unimport_mr(3)`.
    ///
    /// # Safety
    /// `mr` is NULL or an imported region that is used no more.
    pub(crate) fn unimport(mr: *mut ibv_mr) {
        // SAFETY: live by the contract above.
        let unimport = op!(unsafe { context_of(mr)? }, unimport_mr)?;
        // SAFETY: the provider's operation.
        unsafe { unimport(mr) };
        Ok(())
    }

    /// `ibv_alloc_buf(3)`: memory that suits the device.
    ///
    /// # Safety
    /// `pd` is NULL or live; `buf` is writable.
    pub(crate) fn alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
        // SAFETY: live by the contract above.
        let alloc = op!(unsafe { context_of(pd)? }, alloc_buf)?;
        if buf.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the provider's operation.
        Ok(unsafe { alloc(pd, size, buf) })
    }

    /// `ibv_free_buf(3)`.
    ///
    /// # Safety
    /// `buf` is NULL or from `ibv_alloc_buf(3)`, and used no more.
    pub(crate) fn free_buf(buf: *mut ibv_buf) {
        if buf.is_null() {
            return Ok(());
        }
        // SAFETY: live by the contract above.
        let free = op!(unsafe { context_of((*buf).pd)? }, free_buf)?;
        // SAFETY: the provider's operation.
        unsafe { free(buf) };
        Ok(())
    }

    /// `ibv_export_buf_dmabuf_fd(3)`: a new descriptor of the buffer's DMA-BUF.
    ///
    /// # Errors
    /// -1 and `ENODATA` when the buffer is no DMA-BUF.
    ///
    /// # Safety
    /// `buf` is NULL or live.
    pub(crate) fn export_buf_dmabuf_fd(buf: *mut ibv_buf) -> MinusOne {
        // SAFETY: live by the contract above.
        let fd = unsafe { buf.as_ref() }.ok_or(Errno::EINVAL)?.dmabuf_fd;
        if fd < 0 {
            return Err(Errno::ENODATA);
        }
        // SAFETY: fcntl with an integer argument.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 { Err(Errno::last()) } else { Ok(MinusOne(copy)) }
    }

    /// `ibv_alloc_dmah(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open; `attr` is readable.
    pub(crate) fn alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah {
        // SAFETY: open by the contract above.
        let context = unsafe { Context::new(context)? };
        let alloc = op!(context, alloc_dmah)?;
        // SAFETY: the provider's operation.
        Ok(unsafe { alloc(context.as_ptr(), attr) })
    }

    /// `ibv_dealloc_dmah(3)`.
    ///
    /// # Safety
    /// `dmah` is NULL or live, and used no more after success.
    pub(crate) fn dealloc_dmah(dmah: *mut ibv_dmah) -> c_int {
        // SAFETY: live by the contract above.
        let dealloc = op!(unsafe { context_of(dmah)? }, dealloc_dmah)?;
        // SAFETY: the provider's operation.
        Ok(unsafe { dealloc(dmah) })
    }
}

/// # Safety
/// `pd` is NULL or live; the memory stays mapped until the region is gone.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: live by the contract above.
    let context = unsafe { context_of(pd)? };
    let reg = op!(context, reg_mr)?;
    let access = usable_access(context, access);
    let forks = !is_on_demand(access);
    if forks {
        fork::dont_fork(addr, length)?;
    }
    // SAFETY: the provider's operation.
    let mr = unsafe { reg(pd, addr, length, iova, access) };
    // SAFETY: NULL or fresh.
    unsafe { fill(mr, context, pd, addr, length) };
    if mr.is_null() && forks {
        let error = Errno::last();
        fork::do_fork(addr, length);
        error.set();
    }
    Ok(mr)
}

/// Drops access bits that this kernel would refuse although it may ignore them.
fn usable_access(context: Context, access: c_int) -> c_int {
    // SAFETY: the device of an open context is live; the field is constant once a context is open.
    let support = unsafe { (*context.device()).core_support };
    let access = AccessFlags::from_bits_retain(access.cast_unsigned());
    // A device without a kernel device checks for itself.
    let all = context.private().ext.is_some()
        || support & u64::from(IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS) != 0;
    let usable = if all { access } else { access.difference(AccessFlags::OPTIONAL_RANGE) };
    usable.bits().cast_signed()
}

fn is_on_demand(access: c_int) -> bool {
    AccessFlags::from_bits_retain(access.cast_unsigned()).contains(AccessFlags::ON_DEMAND)
}

/// The front-end's fields of a fresh region.
///
/// # Safety
/// `mr` is NULL or fresh.
unsafe fn fill(
    mr: *mut ibv_mr,
    context: Context,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
) {
    if mr.is_null() {
        return;
    }
    // SAFETY: fresh and only ours.
    unsafe {
        (*mr).context = context.as_ptr();
        (*mr).pd = pd;
        (*mr).addr = addr;
        (*mr).length = length;
    }
}

/// A copy of the attributes with only the masked fields: callers of older releases pass less.
///
/// # Safety
/// `attr` is NULL or readable as far as its mask says.
unsafe fn sanitised(attr: *const ibv_mr_init_attr) -> Result<ibv_mr_init_attr, Errno> {
    if attr.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the first three fields exist in every release, the others when the mask says so.
    unsafe {
        let mask = MrInitMask::from_bits_retain((*attr).comp_mask);
        let mut copy = ibv_mr_init_attr {
            length: (*attr).length,
            access: (*attr).access,
            comp_mask: (*attr).comp_mask,
            ..ibv_mr_init_attr::zeroed()
        };
        if mask.contains(MrInitMask::IOVA) {
            copy.iova = (*attr).iova;
        }
        if mask.contains(MrInitMask::ADDR) {
            copy.addr = (*attr).addr;
        }
        if mask.contains(MrInitMask::FD) {
            copy.fd = (*attr).fd;
        }
        if mask.contains(MrInitMask::FD_OFFSET) {
            copy.fd_offset = (*attr).fd_offset;
        }
        if mask.contains(MrInitMask::DMAH) {
            copy.dmah = (*attr).dmah;
        }
        if mask.contains(MrInitMask::BUF) {
            copy.buf = (*attr).buf;
        }
        Ok(copy)
    }
}

/// Replaces a buffer by what it is made of: a DMA-BUF, or plain memory.
///
/// # Safety
/// A masked `attr.buf` is NULL or live.
unsafe fn resolve_buffer(pd: *mut ibv_pd, attr: &mut ibv_mr_init_attr) -> Result<(), Errno> {
    let mut mask = MrInitMask::from_bits_retain(attr.comp_mask);
    if !mask.contains(MrInitMask::BUF) {
        return Ok(());
    }
    // SAFETY: live by the contract above.
    let buf = unsafe { attr.buf.as_ref() }.ok_or(Errno::EINVAL)?;
    let offset = attr.addr.addr().wrapping_sub(buf.addr.addr());
    let inside = offset.checked_add(attr.length).is_some_and(|end| end <= buf.size);
    if buf.pd != pd
        || !mask.contains(MrInitMask::ADDR)
        || mask.intersects(MrInitMask::FD | MrInitMask::FD_OFFSET)
        || !inside
    {
        return Err(Errno::EINVAL);
    }
    mask.remove(MrInitMask::BUF);
    if buf.dmabuf_fd != -1 {
        if mask.contains(MrInitMask::IOVA) {
            return Err(Errno::EINVAL);
        }
        mask.remove(MrInitMask::ADDR);
        mask.insert(MrInitMask::FD | MrInitMask::FD_OFFSET | MrInitMask::IOVA);
        attr.fd = buf.dmabuf_fd;
        attr.fd_offset = offset as u64;
        attr.iova = attr.addr.addr() as u64;
    }
    attr.comp_mask = mask.bits();
    attr.buf = core::ptr::null_mut();
    Ok(())
}

/// # Safety
/// As `rereg_mr`.
unsafe fn change(
    mr: *mut ibv_mr,
    flags: u32,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let input_error = || {
        Errno::EINVAL.set();
        IBV_REREG_MR_ERR_INPUT
    };
    // SAFETY: live by the contract above.
    let Ok(context) = (unsafe { context_of(mr) }) else { return input_error() };
    let verbs: *mut verbs_mr = mr.cast();
    // SAFETY: every ibv_mr starts a verbs_mr.
    let mr_type = unsafe { (*verbs).mr_type };
    let translation = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    if mr_type != IBV_MR_TYPE_MR
        || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || (translation && (addr.is_null() || length == 0))
        || (access != 0 && flags & IBV_REREG_MR_CHANGE_ACCESS == 0)
    {
        return input_error();
    }
    let Ok(rereg) = op!(context, rereg_mr) else { return input_error() };
    if translation && let Err(error) = fork::dont_fork(addr, length) {
        error.set();
        return IBV_REREG_MR_ERR_DONT_FORK_NEW;
    }
    // SAFETY: live by the contract above.
    let (old_addr, old_length) = unsafe { ((*mr).addr, (*mr).length) };
    // SAFETY: the provider's operation.
    let result = unsafe { rereg(verbs, flags.cast_signed(), pd, addr, length, access) };
    if result == 0 {
        // SAFETY: live; the caller leaves it alone meanwhile.
        unsafe {
            if flags & IBV_REREG_MR_CHANGE_PD != 0 {
                (*mr).pd = pd;
            }
            if translation {
                (*mr).addr = addr;
                (*mr).length = length;
            }
        }
        if translation {
            fork::do_fork(old_addr, old_length);
        }
        return 0;
    }
    if translation {
        fork::do_fork(addr, length);
    }
    IBV_REREG_MR_ERR_CMD
}
