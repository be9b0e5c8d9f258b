//! Devices, opened once for the process.
//! Devices are never closed, because ids and programs keep their contexts.

use crate::core::agent::Agent;
use crate::sys::objects::{self, Context, Domain, ListedDevice, XrcDomain};
use crate::sys::ports::Blocks;
use crate::sys::process::{self, PerProcess, process};
use abi::*;
use cface::Errno;
use cface::sync::Mutex;
use ferroverbs_cm::wire::Gid;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// An open device without a kernel driver.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) context: Context,
    /// The domain of all ids for which the program gives none.
    pub(crate) pd: Domain,
    pub(crate) most_responder_resources: u8,
    pub(crate) most_initiator_depth: u8,
    /// The largest local acknowledgement delay, as a time code (IBTA 1.7 9.7.6.1.3).
    pub(crate) ack_delay: u8,
    /// The process that opened the device.
    process: i32,
    agent: OnceLock<Box<Agent>>,
    /// Held by the thread that starts the agent.
    starting: Mutex<()>,
}

/// The only port that the library uses.
pub(crate) const PORT: u8 = 1;

/// The devices of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Devices {
    /// Devices without a kernel driver.
    pub(crate) soft: &'static [Device],
    /// Whether the kernel has devices.
    pub(crate) kernel: bool,
}

/// The devices and ports of one process.
#[derive(Debug, Default)]
struct ProcessDevices {
    devices: Mutex<Option<Devices>>,
    ports: Mutex<Blocks>,
}

/// A child of fork(2) gets a new value: it has neither the threads nor the queue pairs of its
/// parent.
static PROCESS_DEVICES: PerProcess<ProcessDevices> = PerProcess::new();

/// The automatic ports of this process.
pub(crate) fn ports() -> &'static Mutex<Blocks> {
    &PROCESS_DEVICES.get().ports
}

/// Refuses objects of a parent process in a child of fork(2) with `ENODEV`, and prints a line the
/// first time. Callers check this before they take a lock, because a thread of the parent may have
/// held the lock at the fork.
///
/// # Errors
/// `ENODEV` the object belongs to another process.
pub(crate) fn refuse_inherited(of: i32) -> Result<(), Errno> {
    static REPORTED: AtomicI32 = AtomicI32::new(0);
    let own = process();
    if of == own {
        return Ok(());
    }
    if REPORTED.swap(own, Ordering::Relaxed) != own {
        cface::say!(
            "ferroverbs: librdmacm: process {own} is a fork of process {of} and cannot use its ids, event channels and rsockets; create new ones in process {own}"
        );
    }
    Err(Errno::ENODEV)
}

/// All devices.
///
/// # Errors
/// `ENODEV` no device is present.
pub(crate) fn present() -> Result<Devices, Errno> {
    let mut devices = PROCESS_DEVICES.get().devices.lock();
    if let Some(known) = *devices {
        return Ok(known);
    }
    let mut kernel = false;
    let mut opened = vec![];
    objects::find_device(|device| {
        if device.is_announced() {
            opened.extend(open(device));
        } else {
            kernel = true;
        }
        None::<()>
    });
    // An empty result is not stored: a device may appear later.
    if opened.is_empty() && !kernel {
        return Err(Errno::ENODEV);
    }
    let found = Devices { soft: opened.leak(), kernel };
    *devices = Some(found);
    Ok(found)
}

/// The devices without a kernel driver.
///
/// # Errors
/// As [`present`].
pub(crate) fn without_kernel_driver() -> Result<&'static [Device], Errno> {
    present().map(|present| present.soft)
}

/// Calls `f` for each kernel device until `f` returns a value.
pub(crate) fn find_kernel_device<T>(mut f: impl FnMut(ListedDevice<'_>) -> Option<T>) -> Option<T> {
    objects::find_device(|device| if device.is_announced() { None } else { f(device) })
}

fn open(device: ListedDevice<'_>) -> Option<Device> {
    let context = device.open().ok()?;
    let pd = context.allocate_domain().ok()?;
    let attr = context.limits().ok()?;
    let byte = |value| u8::try_from(value).unwrap_or(u8::MAX);
    Some(Device {
        context,
        pd,
        most_responder_resources: byte(attr.max_qp_rd_atom),
        most_initiator_depth: byte(attr.max_qp_init_rd_atom),
        ack_delay: attr.local_ca_ack_delay,
        process: process(),
        agent: OnceLock::new(),
        starting: Mutex::new(()),
    })
}

/// The XRC domain for all ids of a context. The first caller creates the domain, which lives as
/// long as the context.
///
/// # Errors
/// The errno of the device.
pub(crate) fn xrc_domain(context: Context) -> Result<XrcDomain, Errno> {
    static DOMAINS: PerProcess<Mutex<Vec<(Context, XrcDomain)>>> = PerProcess::new();
    let mut domains = DOMAINS.get().lock();
    if let Some(&(_, known)) = domains.iter().find(|(of, _)| *of == context) {
        return Ok(known);
    }
    let domain = context.open_xrc_domain()?;
    domains.push((context, domain));
    Ok(domain)
}

/// The local address of an id: a device and an entry of the device's GID table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalAddress {
    pub(crate) device: &'static Device,
    pub(crate) gid: Gid,
    pub(crate) index: u32,
    /// The interface index of the address; 0 for an address without an interface.
    pub(crate) interface: u32,
}

impl LocalAddress {
    fn of(device: &'static Device, entry: &ibv_gid_entry) -> Self {
        let (gid, index, interface) = (entry.gid.bytes(), entry.gid_index, entry.ndev_ifindex);
        Self { device, gid, index, interface }
    }

    /// The entry with this GID; index 0 if no entry has the GID.
    pub(crate) fn of_gid(device: &'static Device, gid: Gid) -> Self {
        let entries = device.entries();
        let own = entries.iter().find(|entry| entry.gid.bytes() == gid);
        own.map_or(Self { device, gid, index: 0, interface: 0 }, |entry| Self::of(device, entry))
    }
}

/// The device that has an address. A loopback address leads to the first device, by its first GID.
///
/// # Errors
/// `ENODEV` no device has the address.
pub(crate) fn with_address(address: SocketAddr) -> Result<LocalAddress, Errno> {
    let devices = without_kernel_driver()?;
    let (ip, interface) = (address.ip(), crate::sys::address::interface(address));
    let gid = crate::sys::address::gid(ip);
    for device in devices {
        let entries = device.entries();
        let is_its = |entry: &&ibv_gid_entry| {
            entry.gid.bytes() == gid && (interface == 0 || entry.ndev_ifindex == interface)
        };
        let own = entries.iter().find(is_its);
        let own = own.or_else(|| if ip.is_loopback() { entries.first() } else { None });
        if let Some(entry) = own {
            return Ok(LocalAddress::of(device, entry));
        }
    }
    Err(Errno::ENODEV)
}

impl Device {
    /// The GIDs of the device, with their indices.
    pub(crate) fn gids(&self) -> Vec<(u32, Gid)> {
        self.entries().iter().map(|entry| (entry.gid_index, entry.gid.bytes())).collect()
    }

    /// The entries of the device's GID table.
    fn entries(&self) -> Vec<ibv_gid_entry> {
        let mut entries = self.context.gid_table();
        entries.retain(|entry| entry.port_num == u32::from(PORT));
        entries
    }

    /// The agent of the device. The first caller starts the agent; a caller after a failure tries
    /// again, because resources may be free by then.
    ///
    /// # Errors
    /// `ENODEV` the device belongs to a parent process; else the errno of the device or system.
    pub(crate) fn agent(&'static self) -> Result<&'static Agent, Errno> {
        refuse_inherited(self.process)?;
        if let Some(agent) = self.agent.get() {
            return Ok(agent);
        }
        let _alone = self.starting.lock();
        if let Some(agent) = self.agent.get() {
            return Ok(agent);
        }
        disconnect_at_exit();
        let agent = Agent::begin(self)?;
        Ok(&**self.agent.get_or_init(|| agent))
    }

    /// The active path MTU of the port.
    pub(crate) fn mtu(&self) -> ibv_mtu {
        self.context.port(PORT).map_or(IBV_MTU_1024, |attr| attr.active_mtu)
    }
}

/// Registers an atexit(3) function by which all agents disconnect when this process exits. The
/// function does nothing in a child of fork(2), whose connections are only copies.
fn disconnect_at_exit() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    extern "C" fn disconnect_agents() {
        let Some(devices) = PROCESS_DEVICES.get().devices.try_lock().and_then(|devices| *devices)
        else {
            return;
        };
        for device in devices.soft {
            if let Some(agent) = device.agent.get() {
                agent.disconnect_all();
            }
        }
    }
    ONCE.call_once(|| process::at_exit(disconnect_agents));
}
