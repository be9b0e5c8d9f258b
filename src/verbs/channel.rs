//! Completion event channels: `ibv_create_comp_channel(3)`. A plugin with the plugin extension
//! makes the descriptor of a channel; otherwise the kernel makes it, or the plugin that plays the
//! kernel.

use core::ffi::c_int;

use abi::{ibv_comp_channel, ibv_context};

use super::{context_of, open_context, verb};
use crate::front::command;
use crate::front::context::Context;
use crate::front::refusal::Refusal;
use crate::sys::fd;
use cface::lock::Guard;
use cface::{Errno, mem};

verb! {
    /// `ibv_create_comp_channel(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open.
    pub(crate) fn create as ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let channel = mem::calloc::<ibv_comp_channel>()
            .map_err(|_| Refusal::out_of_memory(c"the completion channel"))?;
        match open(context) {
            Ok(fd) => {
                // SAFETY: fresh memory of the right size.
                unsafe {
                    channel.write(ibv_comp_channel { context: context.as_ptr(), fd, refcnt: 0 });
                }
                Ok(channel.as_ptr())
            }
            Err(error) => {
                // SAFETY: our own channel from calloc, not published yet.
                unsafe { mem::free(channel.as_ptr().cast()) };
                let remedy = c"close descriptors or raise their limit (ulimit -n), and free memory";
                Err(Refusal::new(error, c"the completion channel", c"got no descriptor from the device", remedy))
            }
        }
    }

    /// `ibv_destroy_comp_channel(3)`.
    ///
    /// # Errors
    /// `EBUSY` while a CQ uses it.
    ///
    /// # Safety
    /// `channel` is NULL or live, and used no more after success.
    pub(crate) fn destroy as ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
        // SAFETY: `channel` is NULL, which is refused, or live; a channel's context stays open as
        // long as the channel.
        let context = unsafe { context_of(channel)? };
        // SAFETY: the lock of an open context; fields of a live channel, under it.
        unsafe {
            let guard = Guard::lock(&raw mut (*context.as_ptr()).mutex);
            let used_by = (*channel).refcnt;
            drop(guard);
            if used_by != 0 {
                let remedy = c"destroy the completion queues that were created with the channel first";
                return Err(Refusal::new(Errno::EBUSY, c"channel", c"is used by completion queues", remedy)
                    .with_value(u64::from(used_by.cast_unsigned())));
            }
        }
        // SAFETY: still live, and now only ours.
        let fd = unsafe { (*channel).fd };
        match context.private().ext.and_then(|ext| ext.destroy_comp_channel) {
            Some(destroy) => {
                // SAFETY: the plugin's own function with the descriptor it made.
                let error = unsafe { destroy(context.as_ptr(), fd) };
                if error != 0 {
                    let remedy = c"destroy a channel once, and let only libibverbs close its descriptor";
                    return Err(Refusal::new(Errno::from_raw(error), c"channel", c"was not closed by the device", remedy));
                }
            }
            None => fd::close(fd),
        }
        // SAFETY: the channel came from calloc in create, and nothing refers to it any more.
        unsafe { mem::free(channel.cast()) };
        Ok(0)
    }
}

/// The descriptor of a new channel: from the plugin, or by a command.
fn open(context: Context) -> Result<c_int, Errno> {
    let private = context.private();
    if let Some(ext) = private.ext
        && (ext.create_comp_channel.is_some() || private.emulation.is_none())
    {
        let create = ext.create_comp_channel.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the plugin's own function with its open context.
        let fd = unsafe { create(context.as_ptr()) };
        return if fd < 0 { Err(Errno::from_raw(-fd)) } else { Ok(fd) };
    }
    command::channel::create(context)
}
