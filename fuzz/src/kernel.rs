//! The kernel's side of plugins' commands. This program's `ioctl` and `write` replace those of the
//! C library, and answer commands on one descriptor with bytes of the input. The front-end under
//! test is the product's, without changes.
//!
//! This kernel keeps one rule: it writes only to memory that a command names for an answer, within
//! the given length. The input chooses the written bytes, handles and numbers, changes of the
//! attributes, and errors.

use core::ffi::{c_int, c_ulong, c_void};
use std::cell::RefCell;

use abi::*;

/// The descriptor of commands: a number that no process can have.
const DEVICE: c_int = i32::MAX;
/// `EIO` is not among them: no command fails with it but by a defect of ours.
const ERRORS: [c_int; 8] = [
    libc::EINVAL,
    libc::ENOTTY,
    libc::EPROTONOSUPPORT,
    libc::EOPNOTSUPP,
    libc::ENOSYS,
    libc::ENOMEM,
    libc::EBUSY,
    libc::ENOSPC,
];

/// A request of no device, and this `ioctl`'s answer to it.
const ARE_YOU_THERE: c_ulong = 0;
const HERE: c_int = 7;

thread_local! {
    /// The rest of the input.
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Commands, and answers to them.
pub(crate) fn run(data: &[u8]) {
    // SAFETY: it changes nothing.
    let here = unsafe { libc::ioctl(DEVICE, ARE_YOU_THERE) };
    assert_eq!(here, HERE, "ioctl is the C library's");
    // Taken from the end.
    INPUT.with(|input| *input.borrow_mut() = data.iter().rev().copied().collect());
    ibverbs::fuzzing::commands::commands(DEVICE, &|| byte().into());
}

/// The next byte; 0 when there is none.
fn byte() -> u8 {
    INPUT.with(|input| input.borrow_mut().pop().unwrap_or(0))
}

fn number() -> u64 {
    // Lengths, counts and handles that no kernel gives are more likely than by chance.
    const EDGES: [u64; 7] =
        [1, 7, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX];
    match byte() {
        0 => 0,
        edge @ 1..=7 => EDGES.get(usize::from(edge) - 1).copied().unwrap_or(0),
        _ => u64::from_ne_bytes(core::array::from_fn(|_| byte())),
    }
}

/// Fills an answer.
///
/// # Safety
/// `to` is writable for `len` bytes.
unsafe fn fill(to: u64, len: usize) {
    let to: *mut u8 = core::ptr::with_exposed_provenance_mut(to as usize);
    let mut word = [0; 8];
    for at in 0..len {
        if at % 8 == 0 {
            word = number().to_ne_bytes();
        }
        // SAFETY: within `len` bytes.
        unsafe { to.add(at).write(word.get(at % 8).copied().unwrap_or(0)) };
    }
}

/// The error that the input demands, if any.
fn refusal() -> Option<c_int> {
    let byte = byte();
    (byte & 0xc0 == 0xc0).then(|| ERRORS.get(usize::from(byte) & 7).copied().unwrap_or(0))
}

fn fail(error: c_int) -> c_int {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// `ioctl(2)`: commands to the device are answered here.
///
/// # Safety
/// As `ioctl(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if fd != DEVICE {
        // SAFETY: the caller's promise to the real function.
        return unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) } as c_int;
    }
    if request == ARE_YOU_THERE {
        return HERE;
    }
    assert_eq!(request, RDMA_VERBS_IOCTL);
    let header: *mut ib_uverbs_ioctl_hdr = argument.cast();
    // SAFETY: the front-end passes its message: a header and the number of attributes in the
    // header.
    let (header, attributes) = unsafe {
        let attributes = header.add(1).cast::<ib_uverbs_attr>();
        let copy = header.read();
        (copy, core::slice::from_raw_parts_mut(attributes, copy.num_attrs.into()))
    };
    let bytes = size_of::<ib_uverbs_ioctl_hdr>() + size_of_val(attributes);
    assert_eq!(usize::from(header.length), bytes, "a message is as long as its attributes");
    if let Some(error) = refusal() {
        return fail(error);
    }
    for attr in attributes {
        if is_answer(header.object_id, header.method_id, attr.attr_id) {
            // SAFETY: memory that the command lends for an answer of this length.
            unsafe { fill(attr.data, attr.len.into()) };
        }
        // Handles are stored here; sometimes this kernel stores a wrong value.
        if byte() & 1 != 0 {
            attr.data = number();
            let other = number();
            (attr.len, attr.flags) = (other as u16, (other >> 16) as u16);
        }
    }
    0
}

/// `write(2)`: commands to the device are answered here.
///
/// # Safety
/// As `write(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, from: *const c_void, len: usize) -> isize {
    if fd != DEVICE {
        // SAFETY: the caller's promise to the real function.
        return unsafe { libc::syscall(libc::SYS_write, fd, from, len) } as isize;
    }
    assert!(len >= size_of::<ib_uverbs_cmd_hdr>());
    // SAFETY: readable for `len` bytes, of which the header is the first (checked).
    let header = unsafe { from.cast::<ib_uverbs_cmd_hdr>().read_unaligned() };
    let (in_bytes, answer, room);
    if header.command & IB_USER_VERBS_CMD_FLAG_EXTENDED != 0 {
        assert!(len >= size_of::<ex_hdr>());
        // SAFETY: readable for `len` bytes, which include this longer header (checked).
        let header = unsafe { from.cast::<ex_hdr>().read_unaligned() };
        let words = |core: u16, driver: u16| 8 * (usize::from(core) + usize::from(driver));
        in_bytes =
            size_of::<ex_hdr>() + words(header.hdr.in_words, header.ex_hdr.provider_in_words);
        room = words(header.hdr.out_words, header.ex_hdr.provider_out_words);
        answer = header.ex_hdr.response;
    } else {
        in_bytes = 4 * usize::from(header.in_words);
        room = 4 * usize::from(header.out_words);
        // SAFETY: readable for `len` bytes: a command with room for an answer has its address
        // behind the header.
        answer = if room == 0 { 0 } else { unsafe { from.cast::<u64>().add(1).read_unaligned() } };
    }
    // The kernel ignores bytes beyond whole words.
    assert!(in_bytes <= len && len < in_bytes + 16, "{len} bytes are told as {in_bytes}");
    if let Some(error) = refusal() {
        return fail(error) as isize;
    }
    if room > 0 {
        // SAFETY: memory that the command lends for an answer of this length.
        unsafe { fill(answer, room) };
    }
    // Sometimes a short result.
    if byte() == 1 { len as isize - 1 } else { len as isize }
}

/// Whether an attribute names memory for an answer.
fn is_answer(object: u16, method: u16, attr: u16) -> bool {
    const KNOWN: &[(u16, u16, &[u16])] = &[
        (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, &[UVERBS_ATTR_CORE_OUT]),
        (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT, &[UVERBS_ATTR_QUERY_PORT_RESP]),
        (
            UVERBS_OBJECT_DEVICE,
            UVERBS_METHOD_QUERY_PORT_SPEED,
            &[UVERBS_ATTR_QUERY_PORT_SPEED_RESP],
        ),
        (
            UVERBS_OBJECT_DEVICE,
            UVERBS_METHOD_GET_CONTEXT,
            &[UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT],
        ),
        (
            UVERBS_OBJECT_DEVICE,
            UVERBS_METHOD_QUERY_CONTEXT,
            &[UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT],
        ),
        (
            UVERBS_OBJECT_DEVICE,
            UVERBS_METHOD_QUERY_GID_ENTRY,
            &[UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY],
        ),
        (
            UVERBS_OBJECT_DEVICE,
            UVERBS_METHOD_QUERY_GID_TABLE,
            &[
                UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES,
                UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES,
            ],
        ),
        (
            UVERBS_OBJECT_DEVICE,
            UVERBS_METHOD_QUERY_COMP_CNTR_CAPS,
            &[
                UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS,
                UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE,
                UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS,
            ],
        ),
        (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, &[UVERBS_ATTR_CREATE_CQ_RESP_CQE]),
        (
            UVERBS_OBJECT_QP,
            UVERBS_METHOD_QP_CREATE,
            &[UVERBS_ATTR_CREATE_QP_RESP_CAP, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM],
        ),
        (
            UVERBS_OBJECT_SRQ,
            UVERBS_METHOD_SRQ_CREATE,
            &[
                UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR,
                UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE,
                UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM,
            ],
        ),
        (
            UVERBS_OBJECT_WQ,
            UVERBS_METHOD_WQ_CREATE,
            &[
                UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR,
                UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE,
                UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM,
            ],
        ),
        (
            UVERBS_OBJECT_MR,
            UVERBS_METHOD_DM_MR_REG,
            &[UVERBS_ATTR_REG_DM_MR_RESP_LKEY, UVERBS_ATTR_REG_DM_MR_RESP_RKEY],
        ),
        (
            UVERBS_OBJECT_MR,
            UVERBS_METHOD_QUERY_MR,
            &[
                UVERBS_ATTR_QUERY_MR_RESP_LKEY,
                UVERBS_ATTR_QUERY_MR_RESP_RKEY,
                UVERBS_ATTR_QUERY_MR_RESP_LENGTH,
                UVERBS_ATTR_QUERY_MR_RESP_IOVA,
            ],
        ),
        (
            UVERBS_OBJECT_MR,
            UVERBS_METHOD_REG_DMABUF_MR,
            &[UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY],
        ),
        (UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_READ, &[UVERBS_ATTR_READ_COUNTERS_BUFF]),
        (
            UVERBS_OBJECT_COMP_CNTR,
            UVERBS_METHOD_COMP_CNTR_READ,
            &[UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE],
        ),
    ];
    // Attributes of drivers are even, by the rule of `ibverbs::fuzzing::commands`.
    let drivers_own = attr > UVERBS_ATTR_UHW_OUT && attr.is_multiple_of(2);
    attr == UVERBS_ATTR_UHW_OUT
        || drivers_own
        || KNOWN.iter().any(|(o, m, attrs)| (*o, *m) == (object, method) && attrs.contains(&attr))
}
