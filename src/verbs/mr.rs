//! Memory regions: `ibv_reg_mr(3)`, `ibv_rereg_mr(3)`, `ibv_dereg_mr(3)`, `ibv_import_mr(3)`, and
//! the buffers and DMA handles that newer registrations refer to.
//!
//! Map of this file: the verbs; `register`, which all registrations share; the checks of a
//! description; tests.

use core::ffi::{c_int, c_void};

use abi::{
    AccessFlags, IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS, IBV_MR_TYPE_MR,
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_DONT_FORK_NEW, IBV_REREG_MR_ERR_INPUT,
    IBV_REREG_MR_FLAGS_SUPPORTED, MrInitMask, Zeroed, ibv_buf, ibv_context, ibv_dmah,
    ibv_dmah_init_attr, ibv_mr, ibv_mr_init_attr, ibv_pd, verbs_mr,
};

use super::{context_of, op, open_context, verb};
use crate::front::context::Context;
use crate::front::fork;
use crate::front::refusal::Refusal;
use cface::{Errno, MinusOne};

verb! {
    /// `ibv_reg_mr(3)`.
    ///
    /// # Safety
    /// `pd` is NULL or live; the memory stays mapped until the region is gone.
    pub(crate) fn reg_mr as ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
        // SAFETY: `register` asks the same of PD and memory: NULL or live, and mapped as long as
        // the region.
        unsafe { register(pd, addr, length, addr.addr() as u64, access) }
    }

    /// `ibv_reg_mr_iova(3)`: the device sees the memory at `iova`.
    ///
    /// # Safety
    /// As `reg_mr`.
    pub(crate) fn reg_mr_iova as ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> *mut ibv_mr {
        // SAFETY: `register` asks the same of PD and memory; `iova` is only a number.
        unsafe { register(pd, addr, length, iova, access) }
    }

    /// `ibv_reg_mr_iova2`: as `reg_mr_iova`, with access bits that are no compile-time constants.
    ///
    /// # Safety
    /// As `reg_mr`.
    pub(crate) fn reg_mr_iova2 as ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: u32,
    ) -> *mut ibv_mr {
        // SAFETY: `register` asks the same of PD and memory; `iova` is only a number.
        unsafe { register(pd, addr, length, iova, access.cast_signed()) }
    }

    /// `ibv_reg_dmabuf_mr(3)`: memory of a DMA-BUF; forks don't concern it.
    ///
    /// # Safety
    /// `pd` is NULL or live.
    pub(crate) fn reg_dmabuf_mr as ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> *mut ibv_mr {
        // SAFETY: `pd` is NULL, which is refused, or live; the context stays open during the call.
        let context = unsafe { context_of(pd)? };
        let reg = op!(context, reg_dmabuf_mr)?;
        // SAFETY: `reg` is from the table of the PD's own context and gets nothing but numbers
        // beside the live PD.
        let mr = unsafe { reg(pd, offset, length, iova, fd, access) };
        let addr = core::ptr::without_provenance_mut(offset as usize);
        // SAFETY: NULL or fresh.
        unsafe { fill(mr, context, pd, addr, length) };
        Ok(mr)
    }

    /// `ibv_reg_mr_ex(3)`: a registration described by a mask and its fields.
    ///
    /// # Errors
    /// `EINVAL` a buffer of another PD, or without the range.
    ///
    /// # Safety
    /// `pd` and what `attr` refers to are live; the memory stays mapped until the region is gone.
    pub(crate) fn reg_mr_ex as ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
        // SAFETY: `pd` is NULL, which is refused, or live; the context stays open during the call.
        let context = unsafe { context_of(pd)? };
        // SAFETY: readable as far as its mask says (checked inside).
        let mut attr = unsafe { sanitised(attr)? };
        // SAFETY: our copy contains the caller's buffer only if the mask names it, and the buffer
        // is NULL or live.
        unsafe { resolve_buffer(pd, &mut attr)? };
        attr.access = usable_access(context, attr.access);
        let mask = MrInitMask::from_bits_retain(attr.comp_mask);
        let on_demand = is_on_demand(attr.access);
        let forks = !on_demand && !mask.contains(MrInitMask::FD);
        if forks {
            fork::dont_fork(attr.addr, attr.length)
                .map_err(|error| Refusal::of_fork_support(error, attr.addr))?;
        }
        let reg = op!(context, reg_mr_ex)?;
        // SAFETY: `reg` is from the table of the PD's own context; `attr` is our own copy, and
        // names live objects.
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
    pub(crate) fn reg_buf_mr as ibv_reg_buf_mr(
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
        // SAFETY: the caller's PD and buffer are live; `attr` is ours, and its range is checked
        // inside.
        Ok(unsafe { reg_mr_ex(pd, &raw mut attr) })
    }

    /// `ibv_rereg_mr(3)`: its own error codes, -1 to -5, with errno.
    ///
    /// # Safety
    /// `mr` is NULL or live and idle; `pd` is live when it is to be changed.
    pub(crate) fn rereg_mr as ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> MinusOne {
        // SAFETY: `change` asks the same: a region that is NULL or idle, and a live PD if it is to
        // be changed.
        Ok(MinusOne(unsafe { change(mr, flags.cast_unsigned(), pd, addr, length, access) }))
    }

    /// `ibv_dereg_mr(3)`.
    ///
    /// # Safety
    /// `mr` is NULL or live, and used no more after success.
    pub(crate) fn dereg_mr as ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
        // SAFETY: `mr` is NULL, which is refused, or live, and a live region has an open context.
        let dereg = op!(unsafe { context_of(mr)? }, dereg_mr)?;
        let verbs: *mut verbs_mr = mr.cast();
        // SAFETY: every ibv_mr starts a verbs_mr; read before it is freed.
        let (addr, length, mr_type, access) =
            unsafe { ((*mr).addr, (*mr).length, (*verbs).mr_type, (*verbs).access) };
        // SAFETY: `dereg` is from the table of the region's own context; the caller uses it no more
        // after success.
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
    pub(crate) fn import as ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
        // SAFETY: `pd` is NULL, which is refused, or an imported PD that is live, with an open
        // context.
        let import = op!(unsafe { context_of(pd)? }, import_mr)?;
        // SAFETY: `import` is from the table of the PD's own context; `handle` is only a number to
        // it.
        Ok(unsafe { import(pd, handle) })
    }

    /// `ibv_unimport_mr(3)`.
    ///
    /// # Safety
    /// `mr` is NULL or an imported region that is used no more.
    pub(crate) fn unimport as ibv_unimport_mr(mr: *mut ibv_mr) {
        // SAFETY: `mr` is NULL, which is refused, or an imported region that is still live, with an
        // open context.
        let unimport = op!(unsafe { context_of(mr)? }, unimport_mr)?;
        // SAFETY: `unimport` is from the table of the region's own context; the caller uses the
        // region no more.
        unsafe { unimport(mr) };
        Ok(())
    }

    /// `ibv_alloc_buf(3)`: memory that suits the device.
    ///
    /// # Safety
    /// `pd` is NULL or live; `buf` is writable.
    pub(crate) fn alloc_buf as ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
        // SAFETY: `pd` is NULL, which is refused, or live, and a live PD has an open context.
        let alloc = op!(unsafe { context_of(pd)? }, alloc_buf)?;
        if buf.is_null() {
            return Err(Refusal::of_null(c"buf"));
        }
        // SAFETY: `alloc` is from the table of the PD's own context; `buf` is not NULL (checked
        // above), so writable.
        Ok(unsafe { alloc(pd, size, buf) })
    }

    /// `ibv_free_buf(3)`.
    ///
    /// # Safety
    /// `buf` is NULL or from `ibv_alloc_buf(3)`, and used no more.
    pub(crate) fn free_buf as ibv_free_buf(buf: *mut ibv_buf) {
        if buf.is_null() {
            return Ok(());
        }
        // SAFETY: not NULL (checked above), so a buffer of the caller's; its PD outlives it.
        let free = op!(unsafe { context_of((*buf).pd)? }, free_buf)?;
        // SAFETY: `free` is from the table of the context that made the buffer; the caller uses the
        // buffer no more.
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
    pub(crate) fn export_buf_dmabuf_fd as ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> MinusOne {
        // SAFETY: `buf` is NULL, which is refused, or live, and a buffer's descriptor does not
        // change while it lives.
        let fd = unsafe { buf.as_ref() }.ok_or(Refusal::of_null(c"buf"))?.dmabuf_fd;
        if fd < 0 {
            return Err(Refusal::unexplained(Errno::ENODATA));
        }
        // SAFETY: fcntl with an integer argument.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 { Err(Refusal::unexplained(Errno::last())) } else { Ok(MinusOne(copy)) }
    }

    /// `ibv_alloc_dmah(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open; `attr` is readable.
    pub(crate) fn alloc_dmah as ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let alloc = op!(context, alloc_dmah)?;
        // SAFETY: `alloc` is from the table of this context, which is open; `attr` is the caller's,
        // and readable.
        Ok(unsafe { alloc(context.as_ptr(), attr) })
    }

    /// `ibv_dealloc_dmah(3)`.
    ///
    /// # Safety
    /// `dmah` is NULL or live, and used no more after success.
    pub(crate) fn dealloc_dmah as ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int {
        // SAFETY: `dmah` is NULL, which is refused, or live, and a live handle has an open context.
        let dealloc = op!(unsafe { context_of(dmah)? }, dealloc_dmah)?;
        // SAFETY: `dealloc` is from the table of the handle's own context; the caller uses it no
        // more after success.
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
) -> Result<*mut ibv_mr, Refusal> {
    // SAFETY: `pd` is NULL, which is refused, or live; the context stays open during the call.
    let context = unsafe { context_of(pd)? };
    let reg = op!(context, reg_mr)?;
    let access = usable_access(context, access);
    let forks = !is_on_demand(access);
    if forks {
        fork::dont_fork(addr, length).map_err(|error| Refusal::of_fork_support(error, addr))?;
    }
    // SAFETY: `reg` is from the table of the PD's own context; the memory stays mapped as long as
    // the region lives.
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

/// Drops optional access bits that this kernel would refuse.
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
unsafe fn sanitised(attr: *const ibv_mr_init_attr) -> Result<ibv_mr_init_attr, Refusal> {
    if attr.is_null() {
        return Err(Refusal::of_null(c"mr_init_attr"));
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

/// Replaces a buffer by its parts: a DMA-BUF, or plain memory.
///
/// # Safety
/// A masked `attr.buf` is NULL or live.
unsafe fn resolve_buffer(pd: *mut ibv_pd, attr: &mut ibv_mr_init_attr) -> Result<(), Refusal> {
    let mut mask = MrInitMask::from_bits_retain(attr.comp_mask);
    if !mask.contains(MrInitMask::BUF) {
        return Ok(());
    }
    // SAFETY: the mask names a buffer (checked above), which is NULL or live; only its fields are
    // read here.
    let buf = unsafe { attr.buf.as_ref() }.ok_or(Refusal::of_null(c"mr_init_attr->buf"))?;
    let offset = attr.addr.addr().wrapping_sub(buf.addr.addr());
    let inside = offset.checked_add(attr.length).is_some_and(|end| end <= buf.size);
    let refuse =
        |argument, problem, remedy| Err(Refusal::new(Errno::EINVAL, argument, problem, remedy));
    if buf.pd != pd {
        let remedy = c"register the buffer with the domain of its ibv_alloc_buf";
        return refuse(c"mr_init_attr->buf", c"belongs to another protection domain", remedy);
    }
    if !mask.contains(MrInitMask::ADDR) || mask.intersects(MrInitMask::FD | MrInitMask::FD_OFFSET) {
        let remedy =
            c"with IBV_REG_MR_MASK_BUF set IBV_REG_MR_MASK_ADDR, and no mask of a descriptor";
        return refuse(c"mr_init_attr->comp_mask", c"does not fit a buffer", remedy);
    }
    if !inside {
        let remedy = c"pass an address and a length within the buffer";
        return refuse(c"mr_init_attr->addr", c"and length are not inside the buffer", remedy);
    }
    mask.remove(MrInitMask::BUF);
    if buf.dmabuf_fd != -1 {
        if mask.contains(MrInitMask::IOVA) {
            let remedy =
                c"clear IBV_REG_MR_MASK_IOVA: the region of a DMA-BUF has the address as its iova";
            return refuse(c"mr_init_attr->comp_mask", c"has an iova for a DMA-BUF", remedy);
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
    let input_error = |refusal: Refusal| {
        refusal.report(c"ibv_rereg_mr");
        Errno::EINVAL.set();
        IBV_REREG_MR_ERR_INPUT
    };
    let refuse = |argument, problem, remedy| {
        input_error(Refusal::new(Errno::EINVAL, argument, problem, remedy))
    };
    // SAFETY: `mr` is NULL, which is refused, or live; the context stays open during the call.
    let context = match unsafe { context_of(mr) } {
        Ok(context) => context,
        Err(refusal) => return input_error(refusal),
    };
    let verbs: *mut verbs_mr = mr.cast();
    // SAFETY: every ibv_mr starts a verbs_mr.
    let mr_type = unsafe { (*verbs).mr_type };
    let translation = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    if mr_type != IBV_MR_TYPE_MR {
        let remedy = c"change only regions of ibv_reg_mr";
        return refuse(c"mr", c"is a region of another kind", remedy);
    }
    if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
        let remedy = c"set only flags of enum ibv_rereg_mr_flags";
        return refuse(c"flags", c"has unknown bits", remedy);
    }
    if translation && (addr.is_null() || length == 0) {
        let remedy =
            c"with IBV_REREG_MR_CHANGE_TRANSLATION pass the new address and a length above 0";
        return refuse(c"addr", c"or length is 0", remedy);
    }
    if access != 0 && flags & IBV_REREG_MR_CHANGE_ACCESS == 0 {
        let remedy = c"set IBV_REREG_MR_CHANGE_ACCESS, or pass 0 as access";
        return refuse(c"access", c"is given but not to be changed", remedy);
    }
    let rereg = match op!(context, rereg_mr) {
        Ok(rereg) => rereg,
        Err(refusal) => return input_error(refusal),
    };
    if translation && let Err(error) = fork::dont_fork(addr, length) {
        Refusal::of_fork_support(error, addr).report(c"ibv_rereg_mr").set();
        return IBV_REREG_MR_ERR_DONT_FORK_NEW;
    }
    // SAFETY: `mr` is live (NULL was refused above) and idle: its address is not changed meanwhile.
    let (old_addr, old_length) = unsafe { ((*mr).addr, (*mr).length) };
    // SAFETY: `rereg` is from the table of the region's own context; a new PD is live, and the
    // region is idle.
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

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use abi::{IBV_MR_TYPE_IMPORTED_MR, IBV_REREG_MR_FLAGS_SUPPORTED, verbs_context_ops};

    use super::*;
    use crate::front::generation::NEWEST;
    use crate::front::testing::TestContext;

    const OPTIONAL: u32 = AccessFlags::OPTIONAL_RANGE.bits();

    thread_local! {
        /// The last arguments of the provider.
        static GIVEN: Cell<ibv_mr_init_attr> = Cell::new(ibv_mr_init_attr::zeroed());
        static RESULT: Cell<c_int> = const { Cell::new(0) };
    }

    fn new_mr() -> *mut ibv_mr {
        if RESULT.get() != 0 {
            Errno::from_raw(RESULT.get()).set();
            return core::ptr::null_mut();
        }
        Box::into_raw(Box::new(verbs_mr::zeroed())).cast()
    }

    unsafe extern "C" fn reg_mr_op(
        _: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> *mut ibv_mr {
        GIVEN.set(ibv_mr_init_attr { addr, length, iova, access, ..ibv_mr_init_attr::zeroed() });
        new_mr()
    }

    unsafe extern "C" fn reg_mr_ex_op(_: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
        // SAFETY: readable as a whole.
        GIVEN.set(unsafe { *attr });
        new_mr()
    }

    unsafe extern "C" fn rereg_mr_op(
        _: *mut verbs_mr,
        _: c_int,
        _: *mut ibv_pd,
        _: *mut c_void,
        _: usize,
        _: c_int,
    ) -> c_int {
        RESULT.get()
    }

    unsafe extern "C" fn dereg_mr_op(mr: *mut verbs_mr) -> c_int {
        // SAFETY: from new_mr.
        drop(unsafe { Box::from_raw(mr) });
        0
    }

    unsafe extern "C" fn unimport_mr_op(mr: *mut ibv_mr) {
        // SAFETY: from new_mr.
        drop(unsafe { Box::from_raw(mr.cast::<verbs_mr>()) });
    }

    unsafe extern "C" fn import_mr_op(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
        let mr = new_mr();
        // SAFETY: fresh; a live PD.
        unsafe {
            (*mr).handle = handle;
            (*mr).context = (*pd).context;
            (*mr.cast::<verbs_mr>()).mr_type = IBV_MR_TYPE_IMPORTED_MR;
        }
        mr
    }

    /// A context with these operations, and a PD of the context.
    fn bench() -> (TestContext, ibv_pd) {
        RESULT.set(0);
        let test = TestContext::new(NEWEST);
        let ops = verbs_context_ops {
            reg_mr: Some(reg_mr_op),
            reg_mr_ex: Some(reg_mr_ex_op),
            rereg_mr: Some(rereg_mr_op),
            dereg_mr: Some(dereg_mr_op),
            import_mr: Some(import_mr_op),
            unimport_mr: Some(unimport_mr_op),
            ..verbs_context_ops::zeroed()
        };
        // SAFETY: a canonical table.
        unsafe { test.context().install(&raw const ops, NEWEST) };
        let pd = ibv_pd { context: test.context().as_ptr(), ..ibv_pd::zeroed() };
        (test, pd)
    }

    fn at(address: usize) -> *mut c_void {
        core::ptr::without_provenance_mut(address)
    }

    #[test]
    fn optional_access_is_only_asked_of_a_kernel_that_may_refuse_it() {
        let (test, mut pd) = bench();
        let (pd, access) = (&raw mut pd, OPTIONAL | 7);
        for (support, expected) in [(0, 7), (1, access)] {
            // SAFETY: a device of this test alone; the operations only look at numbers.
            unsafe {
                (*test.context().device()).core_support = support;
                let mr = reg_mr_iova2(pd, at(0x1000), 0x10, 0x9000, access);
                assert_eq!(GIVEN.get().access.cast_unsigned(), expected);
                assert_eq!(
                    (GIVEN.get().iova, (*mr).addr, (*mr).length),
                    (0x9000, at(0x1000), 0x10)
                );
                assert_eq!(((*mr).pd, (*mr).context), (pd, test.context().as_ptr()));
                assert_eq!(dereg_mr(mr), 0);
            }
        }
        // SAFETY: the same device and the same operations, which only look at numbers.
        unsafe {
            let mr = reg_mr_iova(pd, at(0x1000), 0x10, 0x8000, 1);
            assert_eq!(GIVEN.get().iova, 0x8000);
            assert_eq!(dereg_mr(mr), 0);
            RESULT.set(libc::EFAULT);
            assert!(reg_mr_iova(pd, at(0x1000), 0x10, 0x8000, 1).is_null());
            assert_eq!(Errno::last(), Errno::EFAULT);
        }
    }

    #[test]
    fn a_change_reports_its_own_codes_and_is_remembered() {
        let (_test, mut pd) = bench();
        let mut other_pd = pd;
        let (pd, other_pd) = (&raw mut pd, &raw mut other_pd);
        let null = core::ptr::null_mut();
        let translation = IBV_REREG_MR_CHANGE_TRANSLATION.cast_signed();
        let change_pd = IBV_REREG_MR_CHANGE_PD.cast_signed();
        let unknown = (IBV_REREG_MR_FLAGS_SUPPORTED + 1).cast_signed();
        // SAFETY: the operations only look at numbers.
        unsafe {
            let mr = reg_mr(pd, at(0x1000), 0x10, 1);
            for (flags, addr, length, access) in [
                (unknown, null, 0, 0),
                (translation, null, 0x10, 0),
                (translation, at(0x2000), 0, 0),
                (change_pd, null, 0, 1),
            ] {
                Errno::EIO.set();
                let result = rereg_mr(mr, flags, other_pd, addr, length, access);
                assert_eq!((result.0, Errno::last()), (IBV_REREG_MR_ERR_INPUT, Errno::EINVAL));
            }
            RESULT.set(libc::ENOMEM);
            let result = rereg_mr(mr, translation, null.cast(), at(0x2000), 0x20, 0);
            assert_eq!((result.0, (*mr).addr), (IBV_REREG_MR_ERR_CMD, at(0x1000)));
            RESULT.set(0);
            let result = rereg_mr(mr, translation | change_pd, other_pd, at(0x2000), 0x20, 0);
            assert_eq!((result.0, (*mr).pd), (0, other_pd));
            assert_eq!(((*mr).addr, (*mr).length), (at(0x2000), 0x20));
            assert_eq!(dereg_mr(mr), 0);

            let imported = import(pd, 7);
            assert_eq!((*imported).handle, 7);
            let result = rereg_mr(imported, change_pd, other_pd, null, 0, 0);
            assert_eq!(result.0, IBV_REREG_MR_ERR_INPUT);
            unimport(imported);
        }
    }

    #[test]
    fn only_masked_fields_of_a_description_count() {
        let (_test, mut pd) = bench();
        let mut attr = ibv_mr_init_attr {
            length: 0x10,
            access: 1,
            comp_mask: (MrInitMask::ADDR | MrInitMask::IOVA).bits(),
            iova: 0x9000,
            addr: at(0x1000),
            fd: 5,
            fd_offset: 6,
            ..ibv_mr_init_attr::zeroed()
        };
        // SAFETY: the operations only look at numbers.
        unsafe {
            let mr = reg_mr_ex(&raw mut pd, &raw mut attr);
            let given = GIVEN.get();
            assert_eq!((given.addr, given.iova), (at(0x1000), 0x9000));
            assert_eq!((given.fd, given.fd_offset), (0, 0));
            assert_eq!((*mr).addr, at(0x1000));
            assert_eq!(dereg_mr(mr), 0);

            attr.comp_mask = (MrInitMask::FD | MrInitMask::FD_OFFSET | MrInitMask::IOVA).bits();
            let mr = reg_mr_ex(&raw mut pd, &raw mut attr);
            let given = GIVEN.get();
            assert_eq!((given.addr, given.fd, given.fd_offset), (core::ptr::null_mut(), 5, 6));
            assert_eq!(((*mr).addr, (*mr).length), (at(6), 0x10));
            assert_eq!(dereg_mr(mr), 0);
        }
    }

    #[test]
    fn a_buffer_is_registered_as_what_it_is_made_of() {
        let (_test, mut pd) = bench();
        let mut other_pd = pd;
        let pd = &raw mut pd;
        let mut memory = ibv_buf { addr: at(0x1000), size: 0x100, pd, dmabuf_fd: -1 };
        let mut dmabuf = ibv_buf { dmabuf_fd: 4, ..memory };
        let refused = |buf: *mut ibv_buf, pd: *mut ibv_pd, addr, length| {
            Errno::EIO.set();
            // SAFETY: the operations only look at numbers.
            let mr = unsafe { reg_buf_mr(pd, buf, at(addr), length, 1) };
            mr.is_null() && Errno::last() == Errno::EINVAL
        };
        assert!(refused(&raw mut memory, &raw mut other_pd, 0x1000, 0x10));
        assert!(refused(&raw mut memory, pd, 0xfff, 0x10));
        assert!(refused(&raw mut memory, pd, 0x10f1, 0x10));
        assert!(refused(&raw mut memory, pd, 0x1001, usize::MAX));
        assert!(refused(core::ptr::null_mut(), pd, 0x1000, 0x10));
        // SAFETY: the operations only look at numbers.
        unsafe {
            let mr = reg_buf_mr(pd, &raw mut memory, at(0x10f0), 0x10, 1);
            let given = GIVEN.get();
            assert_eq!(given.comp_mask, MrInitMask::ADDR.bits());
            assert_eq!((given.addr, given.buf), (at(0x10f0), core::ptr::null_mut()));
            assert_eq!(dereg_mr(mr), 0);

            let mr = reg_buf_mr(pd, &raw mut dmabuf, at(0x10f0), 0x10, 1);
            let given = GIVEN.get();
            let mask = MrInitMask::FD | MrInitMask::FD_OFFSET | MrInitMask::IOVA;
            assert_eq!(given.comp_mask, mask.bits());
            assert_eq!((given.fd, given.fd_offset, given.iova), (4, 0xf0, 0x10f0));
            assert_eq!(dereg_mr(mr), 0);
            assert_eq!(export_buf_dmabuf_fd(&raw mut memory), MinusOne(-1));
            assert_eq!(Errno::last(), Errno::ENODATA);
        }
    }

    #[test]
    fn without_a_provider_a_buffer_is_pages_of_memory() {
        let (_test, mut pd) = bench();
        let mut buf = core::ptr::null_mut();
        // SAFETY: objects of ours.
        unsafe {
            let addr = alloc_buf(&raw mut pd, 100, &raw mut buf);
            assert_eq!(addr.addr() % cface::mem::page_size(), 0);
            assert_eq!(((*buf).addr, (*buf).size, (*buf).dmabuf_fd), (addr, 100, -1));
            addr.cast::<u8>().write_bytes(1, 100);
            free_buf(buf);
            free_buf(core::ptr::null_mut());
        }
    }

    #[test]
    fn a_buffer_of_a_provider_that_frees_none_is_left_alone() {
        static MEMORY: [u64; 2] = [7; 2];
        unsafe extern "C" fn alloc(
            pd: *mut ibv_pd,
            size: usize,
            out: *mut *mut ibv_buf,
        ) -> *mut c_void {
            let addr = (&raw const MEMORY).cast_mut().cast();
            let buf = Box::new(ibv_buf { addr, size, pd, dmabuf_fd: -1 });
            // SAFETY: the caller's to receive one pointer.
            unsafe { out.write(Box::into_raw(buf)) };
            addr
        }
        let (test, mut pd) = bench();
        let ops = verbs_context_ops { alloc_buf: Some(alloc), ..verbs_context_ops::zeroed() };
        // SAFETY: a canonical table.
        unsafe { test.context().install(&raw const ops, NEWEST) };
        let mut buf = core::ptr::null_mut();
        // SAFETY: objects of ours; what is not memory of malloc would end the process if it were
        // freed.
        unsafe {
            assert!(!alloc_buf(&raw mut pd, 16, &raw mut buf).is_null());
            free_buf(buf);
            assert_eq!(((*buf).size, MEMORY), (16, [7; 2]));
            drop(Box::from_raw(buf));
        }
    }
}
