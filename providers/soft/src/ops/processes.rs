//! Queries of librdmacm about the processes of the host (`ferroverbs_plugin_ext`). The number of a
//! process is its slot in the fabric.

use super::state::Context;
use abi::ibv_context;
use soft_sys::Errno;
use std::ffi::c_int;
use std::os::fd::IntoRawFd;

/// The slot of a process number; `None` for a number that no process has.
fn slot(number: c_int) -> Option<u16> {
    u16::try_from(number).ok().filter(|slot| *slot > 0)
}

/// The number of this process.
///
/// # Safety
/// `context` is an open context of this provider.
pub(super) unsafe extern "C" fn process_number(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller's context is open for the whole call.
    unsafe { Context::of(context) }.adapter.fabric.slot().into()
}

/// Whether a live process has the number: 1 or 0. An unknown state is 1.
///
/// # Safety
/// `context` is an open context of this provider.
pub(super) unsafe extern "C" fn is_process(context: *mut ibv_context, number: c_int) -> c_int {
    // SAFETY: the caller's context is open for the whole call.
    let fabric = unsafe { &Context::of(context).adapter.fabric };
    slot(number).is_some_and(|slot| fabric.may_be_occupied(slot)).into()
}

/// A new descriptor that is readable from the end of the process on, or `-errno`.
///
/// # Safety
/// `context` is an open context of this provider.
pub(super) unsafe extern "C" fn watch_process(context: *mut ibv_context, number: c_int) -> c_int {
    // SAFETY: the caller's context is open for the whole call.
    let fabric = unsafe { &Context::of(context).adapter.fabric };
    let watched = slot(number).ok_or(Errno::ESRCH).and_then(|slot| fabric.watch_process(slot));
    watched.map_or_else(|why| -why.raw(), IntoRawFd::into_raw_fd)
}
