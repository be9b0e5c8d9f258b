//! Ids on devices of the kernel, by the kernel's connection manager `/dev/infiniband/rdma_cm`.
//! `calls` enters here for kernel ids. Commands and their order are those of upstream's library.
//!
//! | | |
//! |---|---|
//! | `node` | the character device and its version |
//! | `command` | one write(2) |
//! | `adapter` | the kernel's RDMA devices |
//! | `id`, `connect`, `multicast` | commands for calls of the program |
//! | `event` | events of the kernel |
//! | `channel` | event channels over the present devices |
//! | `qp` | state changes of queue pairs |
//! | `registry` | the id that an event belongs to |
//!
//! With devices of both kinds, an id is undecided until its address decides: the kernel is asked
//! first ([`claims`]).

pub(crate) mod adapter;
pub(crate) mod channel;
mod command;
pub(crate) mod connect;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod multicast;
mod node;
pub(crate) mod qp;
mod registry;

pub(crate) use command::next_event;

use crate::core::device;
use crate::core::id::{Backend, Extension, Id};
use abi::*;
use adapter::Adapter;
use cface::Errno;
use cface::sync::Mutex;
use multicast::Group;
use std::any::Any;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};

/// The kernel's part of an id.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The library's name of the id in events of the kernel; 0 before the kernel has the id.
    name: AtomicU64,
    /// The kernel's handle of the id.
    handle: AtomicU32,
    /// True: the kernel has no id, either not yet or no longer.
    is_absent: AtomicBool,
    pub(crate) state: Mutex<KernelIdState>,
}

/// The state of an id on a kernel device.
#[derive(Debug, Default)]
pub(crate) struct KernelIdState {
    pub(crate) adapter: Option<&'static Adapter>,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_resources: u8,
    /// True: setting up the queue pair failed, so the peer's later messages are not reported.
    failed: bool,
    groups: Vec<Arc<Group>>,
}

impl Kernel {
    /// The value for an id that the kernel does not have yet.
    fn new() -> Self {
        let state = Mutex::new(KernelIdState::default());
        let (name, handle) = (AtomicU64::new(0), AtomicU32::new(u32::MAX));
        Self { name, handle, is_absent: AtomicBool::new(true), state }
    }

    fn handle(&self) -> u32 {
        self.handle.load(Ordering::Relaxed)
    }

    /// Records that the kernel has the id, with these names.
    fn begin(&self, name: u64, handle: u32) {
        self.name.store(name, Ordering::Relaxed);
        self.handle.store(handle, Ordering::Relaxed);
        self.is_absent.store(false, Ordering::Relaxed);
    }
}

impl Extension for Kernel {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        registry::remove_id(self.name.load(Ordering::Relaxed), self.handle());
    }
}

/// The backend of a new id, with the kernel's part if the id may be on a kernel device.
pub(crate) fn backend(backend: Backend) -> (Backend, Option<Box<dyn Extension>>) {
    let has_kernel = backend != Backend::Soft;
    (backend, has_kernel.then(|| -> Box<dyn Extension> { Box::new(Kernel::new()) }))
}

/// The kernel's part of an id; None for an id on another device.
fn kernel_of(id: &Id) -> Option<&Kernel> {
    id.extension()?.downcast_ref()
}

/// The kernel's part of an id, and the descriptor for its commands.
///
/// # Errors
/// `EINVAL` the id has no kernel part.
fn part(id: &Id) -> Result<(&Kernel, c_int), Errno> {
    let kernel = kernel_of(id).ok_or(Errno::EINVAL)?;
    Ok((kernel, id.lock().channel.kernel_fd()))
}

/// Opens the kernel's connection manager, for one event channel. The first failure prints a line on
/// stderr.
///
/// # Errors
/// The errno of the system; `EPERM` an unsupported version.
pub(crate) fn open() -> Result<OwnedFd, Errno> {
    let opened = node::node().and_then(node::Node::open);
    opened.inspect_err(|why| {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| explain(*why));
    })
}

fn explain(why: Errno) {
    let mut name = String::from("an RDMA device");
    let _found = device::find_kernel_device(|device| {
        name = device.name();
        Some(())
    });
    let is_emulated = std::env::var_os("FERROVERBS_EMULATE").is_some_and(|value| !value.is_empty());
    cface::say!("ferroverbs: {}", refusal(why, &name, is_emulated));
}

/// The line for a device `name` that has no connections because of `why`. `is_emulated`: the device
/// may be one that `soft` emulates, over which librdmacm has no connections.
fn refusal(why: Errno, name: &str, is_emulated: bool) -> String {
    let reason = match why.raw() {
        libc::EPERM => "the kernel's connection manager has an unsupported version; this library supports versions 3 and 4".to_owned(),
        libc::ENOENT | libc::ENXIO | libc::ENODEV if is_emulated => {
            return format!(
                "librdmacm cannot connect over the emulated device {name}; unset FERROVERBS_EMULATE to connect over soft0"
            );
        }
        libc::ENOENT | libc::ENXIO | libc::ENODEV => {
            "/dev/infiniband/rdma_cm does not exist; load the module rdma_ucm".to_owned()
        }
        _ => format!("/dev/infiniband/rdma_cm: {why}"),
    };
    format!("librdmacm cannot connect over the kernel device {name}: {reason}")
}

/// Whether the kernel supports the family `AF_IB` and the commands of that generation. Tested once
/// with an id of its own, as in upstream's library.
pub(crate) fn takes_any_family() -> bool {
    static TAKES: OnceLock<bool> = OnceLock::new();
    *TAKES.get_or_init(|| id::try_infiniband().is_ok())
}

/// Whether a kernel device has an address: a temporary id is bound to the address.
pub(crate) fn claims(mut address: SocketAddr) -> bool {
    takes_any_family();
    address.set_port(0);
    id::probe(RDMA_PS_TCP, &address.into()).is_ok_and(|found| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulated_device_is_not_taken_for_a_kernel_device() {
        let line = refusal(Errno::ENOENT, "efa_0", true);
        assert!(line.contains("emulated device efa_0") && !line.contains("rdma_ucm"), "{line}");
        let line = refusal(Errno::ENOENT, "mlx5_0", false);
        assert!(line.contains("kernel device mlx5_0") && line.contains("rdma_ucm"), "{line}");
    }
}
