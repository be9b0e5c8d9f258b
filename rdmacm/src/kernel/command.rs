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
/// `T` has no padding. Its addresses are valid for the command, and writable for answers.
unsafe fn send_any<T: Copy>(fd: c_int, command: u32, out: usize, body: T) -> Result<(), Errno> {
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

/// A structure of numbers and bytes without padding, in which the kernel looks for no address.
///
/// # Safety
/// As the description says.
pub(super) unsafe trait Order: Copy {}

/// A structure of numbers and bytes without padding, whose only address is that of the answer.
///
/// # Safety
/// As the description says.
pub(super) unsafe trait Question: Copy {
    /// Sets the address of the answer.
    fn set_response(&mut self, at: u64);
}

/// A structure for which any bytes are a value.
///
/// # Safety
/// As the description says.
pub(super) unsafe trait Answer: Copy {}

macro_rules! structures {
    (orders: $($order:ty)*; questions: $($question:ty)*; answers: $($answer:ty)*;) => {
        $(
            // SAFETY: the layout of the kernel's header.
            unsafe impl Order for $order {}
        )*
        $(
            // SAFETY: the layout of the kernel's header.
            unsafe impl Question for $question {
                fn set_response(&mut self, at: u64) {
                    self.response = at;
                }
            }
        )*
        $(
            // SAFETY: the members are numbers and bytes, and unions of them.
            unsafe impl Answer for $answer {}
        )*
    };
}
structures! {
    // `bind_ip` has a response, to which the kernel writes nothing.
    orders: rdma_ucm_bind_ip rdma_ucm_bind rdma_ucm_resolve_ip rdma_ucm_resolve_addr
        rdma_ucm_resolve_route rdma_ucm_connect rdma_ucm_listen rdma_ucm_accept rdma_ucm_reject
        rdma_ucm_disconnect rdma_ucm_notify rdma_ucm_write_cm_event;
    questions: rdma_ucm_create_id rdma_ucm_destroy_id rdma_ucm_migrate_id rdma_ucm_query
        rdma_ucm_init_qp_attr rdma_ucm_join_ip_mcast rdma_ucm_join_mcast rdma_ucm_get_event;
    answers: rdma_ucm_create_id_resp rdma_ucm_destroy_id_resp rdma_ucm_migrate_resp
        rdma_ucm_query_addr_resp rdma_ucm_query_route_resp Paths ib_uverbs_qp_attr
        rdma_ucm_event_resp;
}

/// Sends a command without an answer.
///
/// # Errors
/// The errno of the kernel; `ENODATA` the kernel accepted fewer bytes.
pub(super) fn send(fd: c_int, command: u32, body: impl Order) -> Result<(), Errno> {
    // SAFETY: the structure contains no address.
    unsafe { send_any(fd, command, 0, body) }
}

/// Sends a command, and returns the answer, which overwrites `answer`.
///
/// # Errors
/// As [`send`].
pub(super) fn send_query<A: Answer>(
    fd: c_int,
    command: u32,
    mut body: impl Question,
    mut answer: A,
) -> Result<A, Errno> {
    body.set_response((&raw mut answer) as u64);
    // SAFETY: the structure contains only the address of `answer`, which has the stated room.
    unsafe { send_any(fd, command, size_of::<A>(), body)? };
    Ok(answer)
}

/// Sets an option of the kernel's id `handle` to a value of the program; `None`: NULL.
///
/// # Errors
/// The errno of the kernel.
pub(super) fn set_option(
    fd: c_int,
    handle: u32,
    (level, name): (c_int, c_int),
    value: Option<&[u8]>,
    len: usize,
) -> Result<(), Errno> {
    let command_body = rdma_ucm_set_option {
        optval: value.map_or(0, |value| value.as_ptr() as u64),
        id: handle,
        level: level.cast_unsigned(),
        optname: name.cast_unsigned(),
        optlen: value.map_or(len, <[u8]>::len) as u32,
    };
    // SAFETY: the kernel reads at most `optlen` bytes of the value.
    unsafe { send_any(fd, RDMA_USER_CM_CMD_SET_OPTION, 0, command_body) }
}

/// The number of paths that an answer has room for, as upstream's.
pub(super) const MOST_PATHS: usize = 6;

/// The answer to a query of paths.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Paths {
    pub(super) head: rdma_ucm_query_path_resp,
    pub(super) paths: [ibv_path_data; MOST_PATHS],
}

// SAFETY: both members consist of numbers and bytes.
unsafe impl Zeroed for Paths {}

/// Takes the next event; waits unless the descriptor is non-blocking.
///
/// # Errors
/// As [`send`]; `EAGAIN` no event waits, and the descriptor is non-blocking.
pub(crate) fn next_event(fd: c_int) -> Result<rdma_ucm_event_resp, Errno> {
    let body = rdma_ucm_get_event { response: 0 };
    send_query(fd, RDMA_USER_CM_CMD_GET_EVENT, body, rdma_ucm_event_resp::zeroed())
}

/// The parameters of a connection in an event.
pub(super) const fn connection_of(response: &rdma_ucm_event_resp) -> &rdma_ucm_conn_param {
    // SAFETY: the members are numbers, written by the kernel or zero.
    unsafe { &response.param.conn }
}

/// The parameters of datagrams in an event.
pub(super) const fn datagrams_of(response: &rdma_ucm_event_resp) -> &rdma_ucm_ud_param {
    // SAFETY: the members are numbers, written by the kernel or zero.
    unsafe { &response.param.ud }
}

/// The number of the program in an event that the program wrote.
pub(super) const fn argument_of(response: &rdma_ucm_event_resp) -> u64 {
    // SAFETY: the kernel wrote all bytes; the program's number is in the first eight.
    unsafe { (&raw const response.param).cast::<u64>().read_unaligned() }
}
