//! DMA handles (rdma-core 59): object `UVERBS_OBJECT_DMAH` of `<rdma/ib_user_ioctl_cmds.h>`. Ioctl
//! only.

use abi::{
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID, IBV_DMAH_INIT_ATTR_MASK_PH,
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE, UVERBS_ATTR_ALLOC_DMAH_CPU_ID,
    UVERBS_ATTR_ALLOC_DMAH_HANDLE, UVERBS_ATTR_ALLOC_DMAH_PH, UVERBS_ATTR_ALLOC_DMAH_TPH_MEM_TYPE,
    UVERBS_ATTR_FREE_DMA_HANDLE, UVERBS_METHOD_DMAH_ALLOC, UVERBS_METHOD_DMAH_FREE,
    UVERBS_OBJECT_DMAH, ibv_context, ibv_dmah_init_attr, verbs_dmah,
};

use super::destroy;
use super::status::Status;
use crate::front::command::buffer::Command;
use crate::front::command::bytes::InputBytes;
use cface::verb;

verb! {
    /// `ibv_cmd_alloc_dmah`: sets `context` and `handle`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `context` is live, `dmah` is the provider's to fill, `attr` is readable.
    pub(crate) fn alloc_dmah(
        context: *mut ibv_context,
        dmah: *mut verbs_dmah,
        attr: *mut ibv_dmah_init_attr,
    ) -> Status {
        // SAFETY: the provider's context is NULL, which is refused, or live; `attr` is readable,
        // and copied.
        let (live, attr) = unsafe { (super::context_of(context)?, *attr) };
        let has = |member: u32| attr.comp_mask & member != 0;
        let mut command = Command::new(UVERBS_OBJECT_DMAH, UVERBS_METHOD_DMAH_ALLOC);
        let handle = command.object_out(UVERBS_ATTR_ALLOC_DMAH_HANDLE);
        if has(IBV_DMAH_INIT_ATTR_MASK_CPU_ID) {
            command.u32_in(UVERBS_ATTR_ALLOC_DMAH_CPU_ID, attr.cpu_id);
        }
        if has(IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) {
            command.enum_in(UVERBS_ATTR_ALLOC_DMAH_TPH_MEM_TYPE, attr.tph_mem_type, InputBytes::NONE);
        }
        if has(IBV_DMAH_INIT_ATTR_MASK_PH) {
            command.bytes_in(UVERBS_ATTR_ALLOC_DMAH_PH, InputBytes::of(&attr.ph));
        }
        command.run(live)?;
        // SAFETY: the provider's to fill, per the contract above.
        unsafe {
            (*dmah).handle = command.handle(handle);
            (*dmah).dmah.context = context;
        }
        Ok(Status::DONE)
    }

    /// `ibv_cmd_free_dmah`.
    ///
    /// # Errors
    /// The kernel's errno.
    ///
    /// # Safety
    /// `dmah` is live.
    pub(crate) fn free_dmah(dmah: *mut verbs_dmah) -> Status {
        // SAFETY: the provider's DMA handle is live, so its context and handle can be read.
        let (context, handle) = unsafe { (super::context_of((*dmah).dmah.context)?, (*dmah).handle) };
        let mut command = Command::new(UVERBS_OBJECT_DMAH, UVERBS_METHOD_DMAH_FREE);
        command.object_in(UVERBS_ATTR_FREE_DMA_HANDLE, handle);
        destroy::destroy_result(command.run(context))?;
        Ok(Status::DONE)
    }
}
