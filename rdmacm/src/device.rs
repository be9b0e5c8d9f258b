//! Devices: opened once, and never closed, as ids and programs keep their contexts.

use crate::agent::Agent;
use crate::anew::{Anew, process};
use crate::ports::Blocks;
use crate::{kernel, verbs};
use abi::*;
use cface::Errno;
use cface::sync::Mutex;
use ferroverbs_cm::wire::Gid;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// An open device, which the kernel does not have.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) context: *mut ibv_context,
    /// Of all ids that bring none.
    pub(crate) pd: *mut ibv_pd,
    pub(crate) most_responder_resources: u8,
    pub(crate) most_initiator_depth: u8,
    /// How long it may take to acknowledge, as a time code.
    pub(crate) ack_delay: u8,
    /// Who opened it.
    process: i32,
    agent: OnceLock<Box<Agent>>,
    /// Held by who begins that.
    beginning: Mutex<()>,
}

// SAFETY: context and domain may be used by any thread (verbs are thread safe), and are never closed.
unsafe impl Send for Device {}
// SAFETY: nothing in it changes after it was made; the objects behind its pointers are for any thread.
unsafe impl Sync for Device {}

/// The only port that is used.
pub(crate) const PORT: u8 = 1;

/// The devices of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present {
    /// Those that the kernel does not have.
    pub(crate) soft: &'static [Device],
    /// Whether the kernel has some.
    pub(crate) kernel: bool,
}

/// What a process knows of its devices.
#[derive(Debug, Default)]
struct Known {
    devices: Mutex<Option<Present>>,
    ports: Mutex<Blocks>,
}

/// A child begins anew: it has neither the threads nor the queue pairs of its parent.
static KNOWN: Anew<Known> = Anew::new();

/// The ports of this process.
pub(crate) fn ports() -> &'static Mutex<Blocks> {
    &KNOWN.get().ports
}

/// Refuses what a parent made, in a child of fork(2): `ENODEV`, and a line the first time. Before any lock, since a thread of the parent may
/// have held it.
///
/// # Errors
/// `ENODEV` it is of another process than this one.
pub(crate) fn refuse_parents(of: i32) -> Result<(), Errno> {
    static TOLD: AtomicI32 = AtomicI32::new(0);
    let own = process();
    if of == own {
        return Ok(());
    }
    if TOLD.swap(own, Ordering::Relaxed) != own {
        cface::say!(
            "ferroverbs: librdmacm: process {own} is a fork of {of}, and cannot use its ids, event channels and rsockets; it may make its own"
        );
    }
    Err(Errno::ENODEV)
}

/// All devices.
///
/// # Errors
/// `ENODEV` there are none.
pub(crate) fn present() -> Result<Present, Errno> {
    let mut devices = KNOWN.get().devices.lock();
    if let Some(known) = *devices {
        return Ok(known);
    }
    let mut kernel = false;
    let mut opened = vec![];
    each(|device| {
        // SAFETY: the device is of a list that is not freed before this returns.
        unsafe {
            if kernel::has(device) {
                kernel = true;
            } else {
                opened.extend(open(device));
            }
        }
        None::<()>
    });
    // Later there may be one.
    if opened.is_empty() && !kernel {
        return Err(Errno::ENODEV);
    }
    let found = Present { soft: opened.leak(), kernel };
    *devices = Some(found);
    Ok(found)
}

/// The devices that the kernel does not have.
///
/// # Errors
/// As [`present`].
pub(crate) fn all() -> Result<&'static [Device], Errno> {
    present().map(|present| present.soft)
}

/// What `f` finds among all devices.
fn each<T>(f: impl FnMut(*mut ibv_device) -> Option<T>) -> Option<T> {
    let mut count = 0;
    // SAFETY: `count` is writable.
    let list = unsafe { verbs::ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return None;
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the list has `count` devices until it is freed below.
    let found = (0..count).map(|at| unsafe { *list.add(at) }).find_map(f);
    // SAFETY: from above, not used any more.
    unsafe { verbs::ibv_free_device_list(list) };
    found
}

/// What `f` finds among the kernel's devices, which are open to it until it returns.
pub(crate) fn each_of_kernel<T>(mut f: impl FnMut(*mut ibv_device) -> Option<T>) -> Option<T> {
    // SAFETY: the device is of a list that is not freed before this returns.
    each(|device| if unsafe { kernel::has(device) } { f(device) } else { None })
}

/// # Safety
/// `device` is of a list that was not freed.
unsafe fn open(device: *mut ibv_device) -> Option<Device> {
    // SAFETY: `device` is live, the context is open and never closed; `attr` is writable.
    unsafe {
        let context = verbs::ibv_open_device(device);
        if context.is_null() {
            return None;
        }
        let pd = verbs::ibv_alloc_pd(context);
        let mut attr = ibv_device_attr::zeroed();
        if pd.is_null() || verbs::ibv_query_device(context, &raw mut attr) != 0 {
            return None;
        }
        let byte = |value| u8::try_from(value).unwrap_or(u8::MAX);
        Some(Device {
            context,
            pd,
            most_responder_resources: byte(attr.max_qp_rd_atom),
            most_initiator_depth: byte(attr.max_qp_init_rd_atom),
            ack_delay: attr.local_ca_ack_delay,
            process: process(),
            agent: OnceLock::new(),
            beginning: Mutex::new(()),
        })
    }
}

/// The XRC domain of ids with a context, made by the first that needs it; it stays as the context does.
///
/// # Errors
/// The device's.
///
/// # Safety
/// `context` is one of an id's, which is never closed.
pub(crate) unsafe fn xrc_domain(context: *mut ibv_context) -> Result<*mut ibv_xrcd, Errno> {
    /// Addresses of contexts and of their domains.
    static DOMAINS: Anew<Mutex<Vec<(usize, usize)>>> = Anew::new();
    let mut domains = DOMAINS.get().lock();
    if let Some(&(_, known)) = domains.iter().find(|(of, _)| *of == context.addr()) {
        return Ok(std::ptr::with_exposed_provenance_mut(known));
    }
    // SAFETY: by the contract above.
    let domain = unsafe { verbs::open_xrcd(context) };
    if domain.is_null() {
        return Err(Errno::last());
    }
    domains.push((context.addr(), domain.expose_provenance()));
    Ok(domain)
}

/// Where an id is: the device, and the entry of its GID table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) device: &'static Device,
    pub(crate) gid: Gid,
    pub(crate) index: u32,
    /// That of the address; 0 where it has none.
    pub(crate) interface: u32,
}

impl Place {
    fn of(device: &'static Device, entry: &ibv_gid_entry) -> Self {
        let (gid, index, interface) = (entry.gid.bytes(), entry.gid_index, entry.ndev_ifindex);
        Self { device, gid, index, interface }
    }

    /// Of an entry that is known by its GID; of the first, if none is.
    pub(crate) fn of_gid(device: &'static Device, gid: Gid) -> Self {
        let entries = device.entries();
        let own = entries.iter().find(|entry| entry.gid.bytes() == gid);
        own.map_or(Self { device, gid, index: 0, interface: 0 }, |entry| Self::of(device, entry))
    }
}

/// The device that has an address. Those of loopback lead to any device, by its first GID.
///
/// # Errors
/// `ENODEV` there is none.
pub(crate) fn with_address(address: SocketAddr) -> Result<Place, Errno> {
    let devices = all()?;
    let (ip, interface) = (address.ip(), crate::address::interface(address));
    let gid = crate::address::gid(ip);
    for device in devices {
        let entries = device.entries();
        let is_its = |entry: &&ibv_gid_entry| {
            entry.gid.bytes() == gid && (interface == 0 || entry.ndev_ifindex == interface)
        };
        let own = entries.iter().find(is_its);
        let own = own.or_else(|| if ip.is_loopback() { entries.first() } else { None });
        if let Some(entry) = own {
            return Ok(Place::of(device, entry));
        }
    }
    Err(Errno::ENODEV)
}

impl Device {
    /// Its GIDs, and their indices.
    pub(crate) fn gids(&self) -> Vec<(u32, Gid)> {
        self.entries().iter().map(|entry| (entry.gid_index, entry.gid.bytes())).collect()
    }

    /// The entries of its GID table.
    fn entries(&self) -> Vec<ibv_gid_entry> {
        // SAFETY: the context is never closed.
        let mut entries = unsafe { verbs::gid_table(self.context) };
        entries.retain(|entry| entry.port_num == u32::from(PORT));
        entries
    }

    /// What carries its messages; begun by the first who needs it. Who could not may try again, since what was lacking may be there by then.
    ///
    /// # Errors
    /// `ENODEV` it is a parent's; the device's, or the system's.
    pub(crate) fn agent(&'static self) -> Result<&'static Agent, Errno> {
        refuse_parents(self.process)?;
        if let Some(agent) = self.agent.get() {
            return Ok(agent);
        }
        let _alone = self.beginning.lock();
        if let Some(agent) = self.agent.get() {
            return Ok(agent);
        }
        take_leave_at_exit();
        let agent = Agent::begin(self)?;
        Ok(&**self.agent.get_or_init(|| agent))
    }

    /// The path MTU that its port can have now.
    pub(crate) fn mtu(&self) -> ibv_mtu {
        let mut attr = compat_ibv_port_attr::zeroed();
        // SAFETY: the context is never closed; `attr` is writable.
        let asked = unsafe { verbs::ibv_query_port(self.context, PORT, &raw mut attr) };
        if asked == 0 { attr.active_mtu } else { IBV_MTU_1024 }
    }
}

/// Has the agents say farewell when this process ends by exit(3); not its children, which have copies of its connections.
fn take_leave_at_exit() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    extern "C" fn leave() {
        let Some(devices) = KNOWN.get().devices.try_lock().and_then(|devices| *devices) else {
            return;
        };
        for device in devices.soft {
            if let Some(agent) = device.agent.get() {
                agent.leave();
            }
        }
    }
    ONCE.call_once(|| {
        // SAFETY: the function has no requirements; this library has threads that run for ever, and is never unloaded.
        unsafe { libc::atexit(leave) };
    });
}
