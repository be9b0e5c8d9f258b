//! Contexts of provider plugins: a plugin allocates a context, sets its operations, and ends it.
//! The functions are exported under the names of rdma-core's provider ABI.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;

use abi::{
    ferroverbs_emulation, ibv_context, ibv_device, verbs_context, verbs_context_ops, verbs_device,
};

use crate::front::command::opening;
use crate::front::context::{Context, ContextState};
use crate::front::device::Device;
use crate::front::dummies::DUMMIES;
use crate::front::generation::{self, NEWEST};
use crate::front::{ext, registry};
use crate::sys::fd;
use cface::{Errno, mem, verb};

verb! {
    /// `_verbs_init_and_alloc_context`: allocates the provider's context structure with libc (the
    /// provider frees it) and readies the `verbs_context` inside it. `member_offset` is not a
    /// pointer but the offset of that member. `cmd_fd` is closed on failure.
    ///
    /// # Errors
    /// `ENOMEM`.
    ///
    /// # Safety
    /// `device` is a live device of a driver of this private ABI.
    pub(crate) fn init_and_alloc<const PABI: u32>(
        device: *mut ibv_device,
        cmd_fd: c_int,
        alloc_size: usize,
        member_offset: *mut verbs_context,
        driver_id: u32,
    ) -> *mut c_void {
        // SAFETY: the provider's device is NULL, which is refused, or live; every ibv_device starts
        // a verbs_device.
        match unsafe { init_and_alloc_inner(device.cast(), PABI, cmd_fd, alloc_size, member_offset.addr(), driver_id) } {
            Ok(memory) => Ok(memory.as_ptr()),
            Err(error) => {
                // SAFETY: as above.
                let device = unsafe { Device::new(device.cast()) };
                let emulation = device.ok().and_then(|device| {
                    ext::emulation_of(device, ext::of_device(device)?)
                });
                close_cmd_fd(emulation, cmd_fd);
                Err(error)
            }
        }
    }

    /// `verbs_set_ops`: copies the non-NULL entries of a table of this private ABI.
    ///
    /// # Safety
    /// `context` is a live `verbs_context` and `ops` a table, both of this private ABI.
    pub(crate) fn set_ops<const PABI: u32>(context: *mut verbs_context, ops: *const verbs_context_ops) {
        let generation = generation::of_pabi(PABI).ok_or(Errno::EINVAL)?;
        // SAFETY: NULL, which is refused, or the provider's own, of this private ABI, which
        // `init_and_alloc` readied.
        let context = unsafe { Context::from_verbs(context, generation)? };
        if !ops.is_null() {
            // SAFETY: a table of this private ABI, per the contract above.
            unsafe { context.install(ops, context.private().generation) };
        }
        Ok(())
    }

    /// `verbs_uninit_context`: ends the front-end's part of a context: closes its descriptors and
    /// returns the device reference. The provider frees its structure.
    ///
    /// # Safety
    /// `context` is a `verbs_context` of this private ABI, not used any more.
    pub(crate) fn uninit<const PABI: u32>(context: *mut verbs_context) {
        let generation = generation::of_pabi(PABI).ok_or(Errno::EINVAL)?;
        // SAFETY: NULL, which is refused, or the provider's context of this private ABI, freed only
        // afterwards.
        let context = unsafe { Context::from_verbs(context, generation)? };
        let raw = context.as_ptr();
        // SAFETY: the context's memory is still the provider's, and live.
        let (cmd_fd, async_fd) = unsafe { ((*raw).cmd_fd, (*raw).async_fd) };
        let (device, emulation) = (context.device(), context.private().emulation);
        // SAFETY: the caller promises that nobody uses the context any more.
        unsafe { context.free_private_block() };
        close_cmd_fd(emulation, cmd_fd);
        fd::close(async_fd);
        // SAFETY: the reference that init_and_alloc took.
        unsafe { Device::new(device)?.drop_reference() };
        Ok(())
    }
}

/// Ends the command descriptor of a context: the plugin that made it closes it, if one did.
fn close_cmd_fd(emulation: Option<&ferroverbs_emulation>, cmd_fd: c_int) {
    match emulation.and_then(|emulation| emulation.close_device) {
        // SAFETY: the plugin's own function and descriptor, which no context uses any more.
        Some(close) if cmd_fd >= 0 => unsafe { close(cmd_fd) },
        _ => fd::close(cmd_fd),
    }
}

/// # Safety
/// `device` is NULL or a live device of a driver of private ABI `pabi`.
unsafe fn init_and_alloc_inner(
    device: *mut verbs_device,
    pabi: u32,
    cmd_fd: c_int,
    alloc_size: usize,
    member_offset: usize,
    driver_id: u32,
) -> Result<NonNull<c_void>, Errno> {
    // SAFETY: `device` is NULL, which is refused, or live: the opener holds a reference until this
    // function takes its own.
    let device = unsafe { Device::new(device)? };
    // A driver's own number decides; a device that a plugin made by itself has no registered
    // driver.
    let generation = registry::find_driver(device.ops())
        .and_then(|driver| driver.generation())
        .filter(|generation| generation.pabi == pabi)
        .or_else(|| generation::of_pabi(pabi))
        .unwrap_or(NEWEST);
    let end = member_offset.checked_add(generation.context_size());
    if end.is_none_or(|end| end > alloc_size) {
        return Err(Errno::EINVAL);
    }
    let memory = mem::calloc_bytes(alloc_size)?;
    // SAFETY: within the allocation (checked).
    let context: NonNull<ibv_context> =
        unsafe { memory.byte_add(member_offset + generation.context_offset) }.cast();
    let ext = ext::of_device(device);
    let mut private = ContextState::new(generation, driver_id, ext);
    private.emulation = ext.and_then(|ext| ext::emulation_of(device, ext));
    private.use_ioctl_write.store(
        private.emulation.is_some() || opening::takes_wrapped_writes(cmd_fd, driver_id),
        core::sync::atomic::Ordering::Relaxed,
    );
    device.add_reference();
    // SAFETY: fresh zeroed memory with the extended context in front (checked); a live device.
    let context = unsafe { Context::init(context, device.as_ptr(), cmd_fd, Box::new(private)) };
    // SAFETY: the canonical table of the newest generation.
    unsafe { context.install(&raw const DUMMIES, NEWEST) };
    Ok(memory)
}
