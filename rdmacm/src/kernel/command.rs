//! A command to the kernel's connection manager: one write(2) of a header and a structure (`<rdma/rdma_user_cm.h>`). What it answers it writes to an
//! address in the structure.

use abi::*;
use cface::Errno;
use std::ffi::{c_int, c_void};

unsafe extern "C-unwind" {
    /// `write(2)`, which a cancelled thread unwinds from where it sleeps for an event.
    fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize;
}

/// As it is written: no structure of a command is aligned to more than the eight bytes of the header.
#[repr(C)]
struct Command<T> {
    header: rdma_ucm_cmd_hdr,
    body: T,
}

/// Sends a command whose answer has room for `out` bytes.
///
/// # Errors
/// The kernel's; `ENODATA` where it took less than all.
///
/// # Safety
/// `T` is the structure of `command`, without padding; the addresses in it are as the command wants them, and writable where they are for answers.
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
    // SAFETY: as many bytes are readable; what the kernel does with the addresses in them is the caller's part.
    let done = unsafe { write(fd, (&raw const whole).cast(), bytes) };
    match usize::try_from(done) {
        Ok(done) if done == bytes => Ok(()),
        Ok(_) => Err(Errno::ENODATA),
        Err(_) => Err(Errno::last()),
    }
}

/// The address of an answer, as a command has it.
pub(super) fn answer<T>(to: &mut T) -> u64 {
    (&raw mut *to) as u64
}

/// Asks for the next event; sleeps where the descriptor does.
///
/// # Errors
/// As [`send`]; `EAGAIN` there is none, and the descriptor does not sleep.
pub(crate) fn next_event(fd: c_int) -> Result<rdma_ucm_event_resp, Errno> {
    let mut said = rdma_ucm_event_resp::zeroed();
    let ask = rdma_ucm_get_event { response: answer(&mut said) };
    let room = size_of::<rdma_ucm_event_resp>();
    // SAFETY: the structure is the command's, and the answer has room for an event.
    unsafe { send(fd, RDMA_USER_CM_CMD_GET_EVENT, room, ask)? };
    Ok(said)
}
