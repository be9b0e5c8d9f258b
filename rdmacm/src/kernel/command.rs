//! A command to the kernel's connection manager: one write(2) of a header and a structure
//! (`<rdma/rdma_user_cm.h>`).
//! The kernel writes its answer to an address in the structure. All other files of `kernel` send
//! through here.

use abi::*;
use cface::Errno;
use std::ffi::{c_int, c_void};

unsafe extern "C-unwind" {
    /// `write(2)`, from which a cancelled thread unwinds while it waits for an event.
    fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize;
}

/// A command as written: no structure has an alignment above the eight bytes of the header.
#[repr(C)]
struct Command<T> {
    header: rdma_ucm_cmd_hdr,
    body: T,
}

/// Sends a command whose answer has room for `out` bytes.
///
/// # Errors
/// The errno of the kernel; `ENODATA` the kernel accepted fewer bytes.
///
/// # Safety
/// `T` is the structure of `command`, without padding. Its addresses are valid for the command, and
/// writable for answers.
pub(super) unsafe fn send<T: Copy>(
    fd: c_int,
    command: u32,
    out: usize,
    body: T,
) -> Result<(), Errno> {
    const { assert!(align_of::<T>() <= align_of::<u64>()) };
    let header = rdma_ucm_cmd_hdr { cmd: command, in_: size_of::<T>() as u16, out: out as u16 };
    let whole = Command { header, body };
    let bytes = size_of::<Command<T>>();
    // SAFETY: `bytes` bytes are readable; the addresses in the structure are valid by contract.
    let done = unsafe { write(fd, (&raw const whole).cast(), bytes) };
    match usize::try_from(done) {
        Ok(done) if done == bytes => Ok(()),
        Ok(_) => Err(Errno::ENODATA),
        Err(_) => Err(Errno::last()),
    }
}

/// The address of an answer, as a command contains it.
pub(super) fn answer<T>(to: &mut T) -> u64 {
    (&raw mut *to) as u64
}

/// Takes the next event; waits unless the descriptor is non-blocking.
///
/// # Errors
/// As [`send`]; `EAGAIN` no event waits, and the descriptor is non-blocking.
pub(crate) fn next_event(fd: c_int) -> Result<rdma_ucm_event_resp, Errno> {
    let mut answered = rdma_ucm_event_resp::zeroed();
    let command_body = rdma_ucm_get_event { response: answer(&mut answered) };
    let room = size_of::<rdma_ucm_event_resp>();
    // SAFETY: the structure is the command's, and the answer has room for an event.
    unsafe { send(fd, RDMA_USER_CM_CMD_GET_EVENT, room, command_body)? };
    Ok(answered)
}
