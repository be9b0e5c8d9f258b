//! Memory regions: `ibv_reg_mr(3)`, `ibv_rereg_mr(3)`, `ibv_advise_mr(3)`, `ibv_reg_dmabuf_mr(3)`,
//! `ibv_reg_mr_ex(3)`; object `UVERBS_OBJECT_MR` of `<rdma/ib_user_ioctl_cmds.h>` and the MR
//! commands of `<rdma/ib_user_verbs.h>`.
//!
//! Map of this file: the exported functions; `RegionRequest`, the checked attributes of
//! `ibv_reg_mr_ex(3)`; tests.

use core::ffi::{c_int, c_uint, c_void};

use abi::{
    AccessFlags, IB_USER_VERBS_CMD_DEREG_MR, IB_USER_VERBS_CMD_REG_MR, IB_USER_VERBS_CMD_REREG_MR,
    IBV_MR_TYPE_DMABUF_MR, IBV_MR_TYPE_IMPORTED_MR, IBV_MR_TYPE_MR, IBV_REREG_MR_CHANGE_PD,
    MrInitMask, UVERBS_ATTR_ADVISE_MR_ADVICE, UVERBS_ATTR_ADVISE_MR_FLAGS,
    UVERBS_ATTR_ADVISE_MR_PD_HANDLE, UVERBS_ATTR_ADVISE_MR_SGE_LIST, UVERBS_ATTR_DESTROY_MR_HANDLE,
    UVERBS_ATTR_QUERY_MR_HANDLE, UVERBS_ATTR_QUERY_MR_RESP_LENGTH, UVERBS_ATTR_QUERY_MR_RESP_LKEY,
    UVERBS_ATTR_QUERY_MR_RESP_RKEY, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS,
    UVERBS_ATTR_REG_DMABUF_MR_FD, UVERBS_ATTR_REG_DMABUF_MR_HANDLE, UVERBS_ATTR_REG_DMABUF_MR_IOVA,
    UVERBS_ATTR_REG_DMABUF_MR_LENGTH, UVERBS_ATTR_REG_DMABUF_MR_OFFSET,
    UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY,
    UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, UVERBS_ATTR_REG_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_MR_ADDR,
    UVERBS_ATTR_REG_MR_DMA_HANDLE, UVERBS_ATTR_REG_MR_FD, UVERBS_ATTR_REG_MR_FD_OFFSET,
    UVERBS_ATTR_REG_MR_HANDLE, UVERBS_ATTR_REG_MR_IOVA, UVERBS_ATTR_REG_MR_LENGTH,
    UVERBS_ATTR_REG_MR_PD_HANDLE, UVERBS_ATTR_REG_MR_RESP_LKEY, UVERBS_ATTR_REG_MR_RESP_RKEY,
    UVERBS_METHOD_ADVISE_MR, UVERBS_METHOD_MR_DESTROY, UVERBS_METHOD_QUERY_MR,
    UVERBS_METHOD_REG_DMABUF_MR, UVERBS_METHOD_REG_MR, UVERBS_OBJECT_MR, Zeroed, ib_uverbs_reg_mr,
    ib_uverbs_reg_mr_resp, ib_uverbs_rereg_mr, ib_uverbs_rereg_mr_resp, ibv_advise_mr_advice,
    ibv_command_buffer, ibv_mr_init_attr, ibv_pd, ibv_reg_mr, ibv_rereg_mr, ibv_sge, verbs_dmah,
    verbs_mr,
};

use super::destroy::Destroy;
use super::status::{Status, set};
use crate::front::command::IoctlOutcome;
use crate::front::command::buffer::{Chain, Command};
use crate::front::command::bytes::{InputBytes, OutputBytes, PlainData, plain_data};
use crate::front::command::frame::Frame;
use crate::front::command::write::{Number, Write};
use crate::front::op::Op;
use cface::{Errno, verb};

plain_data! { ib_uverbs_reg_mr ib_uverbs_reg_mr_resp ib_uverbs_rereg_mr ib_uverbs_rereg_mr_resp ibv_sge }

verb! {
    /// `ibv_cmd_reg_mr`: registers memory; sets the keys, `handle`, `context`, type and access.
    ///
    /// # Errors
    /// `EINVAL` with errno set for an implicit on-demand region that does not start at 0, or for
    /// sizes below those of the structures; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `pd` is live, `vmr` is the provider's to fill, `cmd` and `resp` are as long as the sizes
    /// say.
    pub(crate) fn reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        hca_va: u64,
        access: c_int,
        vmr: *mut verbs_mr,
        cmd: *mut ibv_reg_mr,
        cmd_size: usize,
        resp: *mut ib_uverbs_reg_mr_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the caller's PD is live, so its context and handle can be read.
        let (raw_context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
        // SAFETY: the context of a live PD is live; `cmd` and `resp` are as long as their sizes,
        // checked inside.
        let (context, frame) =
            unsafe { (super::context_of(raw_context)?, Frame::new(cmd, cmd_size, resp, resp_size)?) };
        let core = &mut frame.cmd.core_payload;
        core.start = addr.expose_provenance() as u64;
        core.length = kernel_length(addr, length, access)?;
        core.hca_va = hca_va;
        core.pd_handle = pd_handle;
        core.access_flags = access.cast_unsigned();
        Write::new(Number::Plain(IB_USER_VERBS_CMD_REG_MR), InputBytes::of(core))
            .response(OutputBytes::of(&mut *frame.resp))
            .driver(frame.driver)
            .run(context)?;
        let resp = *frame.resp;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*vmr).ibv_mr.handle = resp.mr_handle;
            (*vmr).ibv_mr.lkey = resp.lkey;
            (*vmr).ibv_mr.rkey = resp.rkey;
            (*vmr).ibv_mr.context = raw_context;
            (*vmr).mr_type = IBV_MR_TYPE_MR;
            (*vmr).access = access;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_rereg_mr`: changes a region; updates its keys.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `vmr` is live, `pd` too if `flags` changes it, `cmd` and `resp` are as long as the sizes
    /// say.
    pub(crate) fn rereg_mr(
        vmr: *mut verbs_mr,
        flags: u32,
        addr: *mut c_void,
        length: usize,
        hca_va: u64,
        access: c_int,
        pd: *mut ibv_pd,
        cmd: *mut ibv_rereg_mr,
        cmd_size: usize,
        resp: *mut ib_uverbs_rereg_mr_resp,
        resp_size: usize,
    ) -> Status {
        // SAFETY: the provider's region is live, so its context and handle can be read.
        let (raw_context, handle) = unsafe { ((*vmr).ibv_mr.context, (*vmr).ibv_mr.handle) };
        // SAFETY: the context of a live region is live; `cmd` and `resp` are as long as their
        // sizes, checked inside.
        let (context, frame) =
            unsafe { (super::context_of(raw_context)?, Frame::new(cmd, cmd_size, resp, resp_size)?) };
        let core = &mut frame.cmd.core_payload;
        core.mr_handle = handle;
        core.flags = flags;
        core.start = addr.expose_provenance() as u64;
        core.length = length as u64;
        core.hca_va = hca_va;
        core.pd_handle = if flags & IBV_REREG_MR_CHANGE_PD != 0 {
            // SAFETY: live if it is to change, per the contract above.
            unsafe { (*pd).handle }
        } else {
            0
        };
        core.access_flags = access.cast_unsigned();
        Write::new(Number::Plain(IB_USER_VERBS_CMD_REREG_MR), InputBytes::of(core))
            .response(OutputBytes::of(&mut *frame.resp))
            .driver(frame.driver)
            .run(context)?;
        // SAFETY: the region is the provider's and live for the whole call, and so is a PD that is
        // to be set.
        unsafe {
            (*vmr).ibv_mr.lkey = frame.resp.lkey;
            (*vmr).ibv_mr.rkey = frame.resp.rkey;
            if flags & IBV_REREG_MR_CHANGE_PD != 0 {
                (*vmr).ibv_mr.context = (*pd).context;
            }
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_dereg_mr`.
    ///
    /// # Errors
    /// The kernel's errno; `EBUSY` while windows are bound.
    ///
    /// # Safety
    /// `vmr` is live.
    pub(crate) fn dereg_mr(vmr: *mut verbs_mr) -> Status {
        // SAFETY: the provider's region is live, so its context and handle can be read.
        let (context, handle) =
            unsafe { (super::context_of((*vmr).ibv_mr.context)?, (*vmr).ibv_mr.handle) };
        let destroy = Destroy {
            op: Op::dereg_mr,
            object: UVERBS_OBJECT_MR,
            method: UVERBS_METHOD_MR_DESTROY,
            handle: UVERBS_ATTR_DESTROY_MR_HANDLE,
        };
        destroy.run(context, handle, Number::Plain(IB_USER_VERBS_CMD_DEREG_MR), &handle)
    }

    /// `ibv_cmd_advise_mr`: ioctl only.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `pd` is live, `sg_list` has `num_sge` elements.
    pub(crate) fn advise_mr(
        pd: *mut ibv_pd,
        advice: ibv_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> Status {
        // SAFETY: the caller's PD is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*pd).context)?, (*pd).handle) };
        // No overflow: 2^32 elements of 16 bytes fit a usize.
        let bytes = num_sge as usize * size_of::<ibv_sge>();
        let mut command = Command::new(UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR);
        command.object_in(UVERBS_ATTR_ADVISE_MR_PD_HANDLE, handle);
        command.u64_in(UVERBS_ATTR_ADVISE_MR_ADVICE, advice.into());
        command.u32_in(UVERBS_ATTR_ADVISE_MR_FLAGS, flags);
        // SAFETY: that many elements, per the contract above.
        command.bytes_in(UVERBS_ATTR_ADVISE_MR_SGE_LIST, unsafe { InputBytes::raw(sg_list.cast(), bytes) });
        command.run(context)?;
        Ok(Status::DONE)
    }

    /// `ibv_cmd_query_mr`: learns about a region that another process registered; ioctl only.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `pd` is live, `vmr` is the provider's to fill.
    pub(crate) fn query_mr(pd: *mut ibv_pd, vmr: *mut verbs_mr, mr_handle: u32) -> Status {
        // SAFETY: the caller's PD is live, so its context can be read.
        let raw_context = unsafe { (*pd).context };
        // SAFETY: the context of a live PD is live.
        let context = unsafe { super::context_of(raw_context)? };
        let (mut lkey, mut rkey) = (0_u32, 0_u32);
        let mut length = 0_u64;
        let mut command = Command::new(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR);
        command.object_in(UVERBS_ATTR_QUERY_MR_HANDLE, mr_handle);
        command.output(UVERBS_ATTR_QUERY_MR_RESP_LKEY, OutputBytes::of(&mut lkey));
        command.output(UVERBS_ATTR_QUERY_MR_RESP_RKEY, OutputBytes::of(&mut rkey));
        command.output(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, OutputBytes::of(&mut length));
        command.run(context)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*vmr).ibv_mr.handle = mr_handle;
            (*vmr).ibv_mr.context = raw_context;
            (*vmr).ibv_mr.lkey = lkey;
            (*vmr).ibv_mr.rkey = rkey;
            (*vmr).ibv_mr.length = length as usize;
            (*vmr).ibv_mr.pd = pd;
            (*vmr).ibv_mr.addr = core::ptr::null_mut();
            (*vmr).mr_type = IBV_MR_TYPE_IMPORTED_MR;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_reg_dmabuf_mr`: registers a DMA-BUF; ioctl only. The last argument exists since
    /// rdma-core 54 only; what earlier providers leave in its place is not looked at.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `pd` is live, `vmr` is the provider's to fill, `driver` is NULL or a chain of command
    /// buffers if the provider's generation passes it.
    pub(crate) fn reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
        vmr: *mut verbs_mr,
        driver: *mut ibv_command_buffer,
    ) -> Status {
        // SAFETY: the caller's PD is live, so its context and handle can be read.
        let (raw_context, pd_handle) = unsafe { ((*pd).context, (*pd).handle) };
        // SAFETY: the context of a live PD is live.
        let context = unsafe { super::context_of(raw_context)? };
        let chain = if context.private().generation.reg_dmabuf_mr_has_link() {
            // SAFETY: a chain or NULL in these generations, per the contract above.
            unsafe { Chain::new(driver) }
        } else {
            Chain::NONE
        };
        let (mut lkey, mut rkey) = (0_u32, 0_u32);
        let mut command = Command::new(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR).with_chain(chain);
        let handle = command.object_out(UVERBS_ATTR_REG_DMABUF_MR_HANDLE);
        command.output(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, OutputBytes::of(&mut lkey));
        command.output(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, OutputBytes::of(&mut rkey));
        command.object_in(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, pd_handle);
        command.u64_in(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, offset);
        command.u64_in(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, length as u64);
        command.u64_in(UVERBS_ATTR_REG_DMABUF_MR_IOVA, iova);
        // The kernel takes this descriptor as a number.
        command.u32_in(UVERBS_ATTR_REG_DMABUF_MR_FD, fd.cast_unsigned());
        command.u32_in(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, access.cast_unsigned());
        command.run(context)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*vmr).ibv_mr.handle = command.handle(handle);
            (*vmr).ibv_mr.context = raw_context;
            (*vmr).ibv_mr.lkey = lkey;
            (*vmr).ibv_mr.rkey = rkey;
            (*vmr).ibv_mr.pd = pd;
            (*vmr).ibv_mr.addr = core::ptr::with_exposed_provenance_mut(offset as usize);
            (*vmr).ibv_mr.length = length;
            (*vmr).mr_type = IBV_MR_TYPE_DMABUF_MR;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_reg_mr_ex`: registers memory or a DMA-BUF, possibly with a DMA handle. Kernels
    /// without the ioctl get the plain write command where that can express the request.
    ///
    /// # Errors
    /// `EINVAL` with errno set for attributes that contradict each other; `EOPNOTSUPP` with errno
    /// set when only the ioctl could do it and the kernel lacks it; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `pd` and the DMA handle in `mr_init_attr` are live, `vmr` is the provider's to fill.
    pub(crate) fn reg_mr_ex(pd: *mut ibv_pd, vmr: *mut verbs_mr, mr_init_attr: *mut ibv_mr_init_attr) -> Status {
        // SAFETY: the PD and `mr_init_attr` are live; only members that providers of every
        // generation know are read.
        let (raw_context, pd_handle, wish) =
            unsafe { ((*pd).context, (*pd).handle, RegionRequest::new(mr_init_attr)?) };
        // SAFETY: the context of a live PD is live.
        let context = unsafe { super::context_of(raw_context)? };
        let (mut lkey, mut rkey) = (0_u32, 0_u32);
        let mut command = Command::new(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_MR);
        match wish.source {
            RegionSource::Fd { fd, offset } => {
                command.require_ioctl();
                command.u64_in(UVERBS_ATTR_REG_MR_FD_OFFSET, offset);
                command.fd_in(UVERBS_ATTR_REG_MR_FD, fd);
            }
            RegionSource::Memory(addr) => {
                command.u64_in(UVERBS_ATTR_REG_MR_ADDR, addr.expose_provenance() as u64);
            }
        }
        command.u64_in(UVERBS_ATTR_REG_MR_IOVA, wish.iova);
        let handle = command.object_out(UVERBS_ATTR_REG_MR_HANDLE);
        command.output(UVERBS_ATTR_REG_MR_RESP_LKEY, OutputBytes::of(&mut lkey));
        command.output(UVERBS_ATTR_REG_MR_RESP_RKEY, OutputBytes::of(&mut rkey));
        command.object_in(UVERBS_ATTR_REG_MR_PD_HANDLE, pd_handle);
        command.u64_in(UVERBS_ATTR_REG_MR_LENGTH, wish.length);
        command.u32_in(UVERBS_ATTR_REG_MR_ACCESS_FLAGS, wish.access.cast_unsigned());
        if let Some(dmah) = wish.dmah {
            command.require_ioctl();
            command.object_in(UVERBS_ATTR_REG_MR_DMA_HANDLE, dmah);
        }
        let mr_handle = match command.run_or_fall_back(context, Op::reg_mr_ex)? {
            IoctlOutcome::Done => command.handle(handle),
            IoctlOutcome::Write | IoctlOutcome::WriteEx => {
                let mut request = ib_uverbs_reg_mr::zeroed();
                if let RegionSource::Memory(addr) = wish.source {
                    request.start = addr.expose_provenance() as u64;
                }
                request.length = wish.length;
                request.hca_va = wish.iova;
                request.pd_handle = pd_handle;
                request.access_flags = wish.access.cast_unsigned();
                let mut response = ib_uverbs_reg_mr_resp::zeroed();
                command.write_resp(context, Number::Plain(IB_USER_VERBS_CMD_REG_MR), &request, &mut response)?;
                (lkey, rkey) = (response.lkey, response.rkey);
                response.mr_handle
            }
        };
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*vmr).ibv_mr.handle = mr_handle;
            (*vmr).ibv_mr.lkey = lkey;
            (*vmr).ibv_mr.rkey = rkey;
            (*vmr).ibv_mr.context = raw_context;
            (*vmr).mr_type = match wish.source {
                RegionSource::Fd { .. } => IBV_MR_TYPE_DMABUF_MR,
                RegionSource::Memory(_) => IBV_MR_TYPE_MR,
            };
            (*vmr).access = wish.access;
        }
        Ok(Status::DONE)
    }
}

/// The length as the kernel wants it: an implicit on-demand region covers the whole address space,
/// for which C says `SIZE_MAX`.
fn kernel_length(addr: *const c_void, length: usize, access: c_int) -> Result<u64, Errno> {
    let access = AccessFlags::from_bits_retain(access.cast_unsigned());
    if !access.contains(AccessFlags::ON_DEMAND) || length != usize::MAX {
        return Ok(length as u64);
    }
    if addr.is_null() { Ok(u64::MAX) } else { Err(set(Errno::EINVAL)) }
}

/// Where the memory of a region is.
#[derive(Clone, Copy, Debug)]
enum RegionSource {
    Fd { fd: c_int, offset: u64 },
    Memory(*mut c_void),
}

/// Attributes of `ibv_reg_mr_ex(3)`, checked.
#[derive(Clone, Copy, Debug)]
struct RegionRequest {
    source: RegionSource,
    iova: u64,
    length: u64,
    access: c_int,
    dmah: Option<c_uint>,
}

impl RegionRequest {
    /// # Errors
    /// `EINVAL` with errno set.
    ///
    /// # Safety
    /// `attr` and the DMA handle it names are live. Only the members of rdma-core 59 are read.
    unsafe fn new(attr: *const ibv_mr_init_attr) -> Result<Self, Errno> {
        // SAFETY: the caller's `attr` is live, and each release has these three members.
        let (mask, access, length) = unsafe {
            (MrInitMask::from_bits_retain((*attr).comp_mask), (*attr).access, (*attr).length)
        };
        // SAFETY: the caller's `attr` is live, and the structure had these members from the start.
        let (addr, iova) = unsafe { ((*attr).addr, (*attr).iova) };
        let refuse = || Err(set(Errno::EINVAL));
        let (source, iova, length) = if mask.contains(MrInitMask::FD) {
            if !mask.contains(MrInitMask::FD_OFFSET | MrInitMask::IOVA)
                || mask.contains(MrInitMask::ADDR)
            {
                return refuse();
            }
            // SAFETY: the caller's `attr` is live, and the structure had these members from the
            // start.
            let source = unsafe { RegionSource::Fd { fd: (*attr).fd, offset: (*attr).fd_offset } };
            (source, iova, length as u64)
        } else {
            if !mask.contains(MrInitMask::ADDR) || mask.contains(MrInitMask::FD_OFFSET) {
                return refuse();
            }
            let iova = if mask.contains(MrInitMask::IOVA) {
                iova
            } else {
                addr.expose_provenance() as u64
            };
            (RegionSource::Memory(addr), iova, kernel_length(addr, length, access)?)
        };
        let dmah = mask.contains(MrInitMask::DMAH).then(|| {
            // SAFETY: a live handle, which a provider embeds in its own structure.
            unsafe { (*(*attr).dmah.cast::<verbs_dmah>()).handle }
        });
        Ok(Self { source, iova, length, access, dmah })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_implicit_region_starts_at_zero_and_covers_everything() {
        let on_demand = AccessFlags::ON_DEMAND.bits().cast_signed();
        let some = core::ptr::without_provenance(0x1000);
        assert_eq!(kernel_length(core::ptr::null(), usize::MAX, on_demand), Ok(u64::MAX));
        assert_eq!(kernel_length(some, usize::MAX, on_demand), Err(Errno::EINVAL));
        assert_eq!(kernel_length(some, 4096, on_demand), Ok(4096));
        assert_eq!(kernel_length(some, usize::MAX, 0), Ok(u64::MAX));
    }

    #[test]
    fn memory_and_descriptor_do_not_mix() {
        let mut attr = ibv_mr_init_attr::zeroed();
        let mut check = |mask: MrInitMask| {
            attr.comp_mask = mask.bits();
            // SAFETY: a live structure without DMA handle.
            unsafe { RegionRequest::new(&raw const attr) }
                .map(|wish| matches!(wish.source, RegionSource::Fd { .. }))
        };
        let fd = MrInitMask::FD | MrInitMask::FD_OFFSET | MrInitMask::IOVA;
        assert_eq!(check(fd), Ok(true));
        assert_eq!(check(MrInitMask::FD | MrInitMask::IOVA), Err(Errno::EINVAL));
        assert_eq!(check(fd | MrInitMask::ADDR), Err(Errno::EINVAL));
        assert_eq!(check(MrInitMask::ADDR), Ok(false));
        assert_eq!(check(MrInitMask::IOVA), Err(Errno::EINVAL));
        assert_eq!(check(MrInitMask::ADDR | MrInitMask::FD_OFFSET), Err(Errno::EINVAL));
    }
}
