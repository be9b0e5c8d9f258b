//! Ids on devices of the kernel, by its own connection manager `/dev/infiniband/rdma_cm`: the same commands in the same order as upstream's library.
//!
//! | | |
//! |---|---|
//! | `node` | which device that is, and its version |
//! | `command` | one write(2) |
//! | `adapter` | the kernel's RDMA devices |
//! | `id`, `connect`, `multicast` | what calls ask of it |
//! | `event` | what it says |
//! | `registry` | whose an event is |
//!
//! Where a process has devices of both kinds, an id is on neither until its address says on which: the kernel is asked first ([`claims`]).

pub(crate) mod adapter;
mod command;
pub(crate) mod connect;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod multicast;
mod node;
mod registry;

pub(crate) use command::next_event;
pub(crate) use registry::forget;

use crate::device;
use crate::id::Id;
use abi::*;
use adapter::Adapter;
use cface::Errno;
use cface::sync::Mutex;
use multicast::Group;
use std::ffi::{CStr, c_int};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once, OnceLock};

/// What the kernel has of an id.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The kernel's name of it.
    handle: AtomicU32,
    /// It has it no more, or not yet.
    gone: AtomicBool,
    pub(crate) known: Mutex<Known>,
}

/// What is known of an id on a device of the kernel.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) adapter: Option<&'static Adapter>,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_resources: u8,
    /// We could not set its queue pair up: what the peer says to that is no news.
    failed: bool,
    groups: Vec<Arc<Group>>,
}

impl Kernel {
    /// Of an id that the kernel does not have yet.
    pub(crate) fn new() -> Self {
        let known = Mutex::new(Known::default());
        Self { handle: AtomicU32::new(u32::MAX), gone: AtomicBool::new(true), known }
    }

    fn handle(&self) -> u32 {
        self.handle.load(Ordering::Relaxed)
    }

    /// The kernel has it, by this name.
    fn begin(&self, handle: u32) {
        self.handle.store(handle, Ordering::Relaxed);
        self.gone.store(false, Ordering::Relaxed);
    }
}

/// The kernel's part of an id, and the descriptor by which it is asked.
///
/// # Errors
/// `EINVAL` it has none.
fn part(id: &Id) -> Result<(&Kernel, c_int), Errno> {
    let kernel = id.kernel.as_ref().ok_or(Errno::EINVAL)?;
    Ok((kernel, id.lock().channel.kernel_fd()))
}

/// Whether an RDMA device is the kernel's.
///
/// # Safety
/// `device` is of a list that was not freed.
pub(crate) unsafe fn has(device: *mut ibv_device) -> bool {
    // SAFETY: libraries end both with a zero.
    let (name, folder) = unsafe {
        (CStr::from_ptr((*device).name.as_ptr()), CStr::from_ptr((*device).ibdev_path.as_ptr()))
    };
    let (name, folder) = (name.to_string_lossy(), folder.to_string_lossy());
    Path::new("/sys/class/infiniband").join(&*name).exists()
        || (!folder.is_empty() && Path::new(&*folder).is_dir())
}

/// Opens the kernel's connection manager, for one event channel.
///
/// # Errors
/// The system's; `EPERM` it speaks another version. A line on stderr says so once.
pub(crate) fn open() -> Result<c_int, Errno> {
    let opened = node::node().and_then(node::Node::open);
    opened.inspect_err(|why| {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| explain(*why));
    })
}

fn explain(why: Errno) {
    let mut name = String::from("an RDMA device");
    let _found = device::each_of_kernel(|device| {
        // SAFETY: live, and libraries end the name with a zero.
        name = unsafe { CStr::from_ptr((*device).name.as_ptr()).to_string_lossy().into_owned() };
        Some(())
    });
    let reason = match why.raw() {
        libc::EPERM => "the kernel's connection manager speaks another version".to_owned(),
        libc::ENOENT | libc::ENXIO | libc::ENODEV => {
            "there is no /dev/infiniband/rdma_cm (is the module rdma_ucm loaded?)".to_owned()
        }
        _ => format!("/dev/infiniband/rdma_cm: {why}"),
    };
    cface::say!("ferroverbs: {name} is a device of the kernel, and makes no connections: {reason}");
}

/// Whether the kernel takes addresses of the family `AF_IB`, and with it the commands that came then. Asked once, by an id of its own, as upstream's
/// library does.
pub(crate) fn takes_any_family() -> bool {
    static TAKES: OnceLock<bool> = OnceLock::new();
    *TAKES.get_or_init(|| id::try_infiniband().is_ok())
}

/// Whether an address is one of the kernel's devices: an id of its own is bound to it, for a moment.
pub(crate) fn claims(mut address: SocketAddr) -> bool {
    takes_any_family();
    address.set_port(0);
    let bytes = id::Bytes::of(address);
    id::probe(RDMA_PS_TCP, &bytes).is_ok_and(|found| found)
}

/// Zeros.
fn zeroed<T: Copy>() -> T {
    // SAFETY: what the kernel's header has consists of numbers and bytes, and of unions of them.
    unsafe { std::mem::zeroed() }
}
