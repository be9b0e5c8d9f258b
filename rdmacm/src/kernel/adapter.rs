//! Devices of the kernel, opened when the kernel's connection manager first places an id on them.
//! `kernel::id` and `kernel::connect` read limits and contexts here.

use crate::core::device;
use crate::sys::per_process::PerProcess;
use crate::sys::verbs;
use abi::*;
use cface::Errno;
use cface::sync::Mutex;

/// An open device of the kernel. Adapters are never closed, because ids and programs keep the
/// context.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) context: *mut ibv_context,
    /// The domain of all ids for which the program gives none.
    pub(crate) pd: *mut ibv_pd,
    /// The node GUID in network byte order, as the kernel reports it.
    guid: u64,
    /// The kernel's index of the device; -1 if unknown.
    index: i32,
    pub(crate) most_responder_resources: u8,
    pub(crate) most_initiator_depth: u8,
    /// Whether each port is an InfiniBand port, from port 1.
    is_infiniband: Vec<bool>,
}

// SAFETY: any thread may use context and domain (verbs are thread safe); neither is ever closed.
unsafe impl Send for Adapter {}
// SAFETY: no field changes after construction; any thread may use the objects behind the pointers.
unsafe impl Sync for Adapter {}

/// The adapters opened so far.
static OPEN: PerProcess<Mutex<Vec<&'static Adapter>>> = PerProcess::new();

impl Adapter {
    /// # Safety
    /// `device` is of a list that is not freed.
    unsafe fn open(device: *mut ibv_device) -> Result<Self, Errno> {
        // SAFETY: `device` is live; the context is open and never closed; `attr` and `port` are
        // writable.
        unsafe {
            let context = verbs::ibv_open_device(device);
            if context.is_null() {
                return Err(Errno::ENODEV);
            }
            let mut attr = ibv_device_attr::zeroed();
            let error = verbs::ibv_query_device(context, &raw mut attr);
            if error != 0 {
                return Err(Errno::from_raw(error));
            }
            let is_infiniband = |port| {
                let mut attr = compat_ibv_port_attr::zeroed();
                verbs::ibv_query_port(context, port, &raw mut attr) == 0
                    && u32::from(attr.link_layer) == IBV_LINK_LAYER_INFINIBAND
            };
            let pd = verbs::ibv_alloc_pd(context);
            if pd.is_null() {
                return Err(Errno::last());
            }
            Ok(Self {
                context,
                pd,
                guid: verbs::ibv_get_device_guid(device),
                index: verbs::ibv_get_device_index(device),
                // Truncated, as in upstream's C code.
                most_responder_resources: attr.max_qp_rd_atom as u8,
                most_initiator_depth: attr.max_qp_init_rd_atom as u8,
                is_infiniband: (1..=attr.phys_port_cnt).map(is_infiniband).collect(),
            })
        }
    }

    /// Whether a port is an InfiniBand port.
    pub(super) fn is_infiniband(&self, port: u8) -> bool {
        let at = usize::from(port).wrapping_sub(1);
        self.is_infiniband.get(at).copied().unwrap_or(false)
    }
}

fn is_it(guid: u64, index: i32, (wanted, at): (u64, i32)) -> bool {
    guid == wanted && (index == at || index == -1 || at == -1)
}

/// The device that the kernel identifies.
///
/// # Errors
/// `ENODEV` no such device is present; else the errno of the device.
pub(super) fn named(guid: u64, index: i32) -> Result<&'static Adapter, Errno> {
    let wanted = (guid, index);
    let mut open = OPEN.get().lock();
    if let Some(known) = open.iter().find(|known| is_it(known.guid, known.index, wanted)) {
        return Ok(known);
    }
    let found = device::find_kernel_device(|device| {
        // SAFETY: the list of the device is freed after this closure has returned.
        unsafe {
            let (guid, index) =
                (verbs::ibv_get_device_guid(device), verbs::ibv_get_device_index(device));
            is_it(guid, index, wanted).then(|| Adapter::open(device))
        }
    });
    let adapter: &'static Adapter = Box::leak(Box::new(found.ok_or(Errno::ENODEV)??));
    open.push(adapter);
    Ok(adapter)
}

/// All kernel devices that can be opened.
pub(crate) fn all() -> Vec<&'static Adapter> {
    let mut names = vec![];
    device::find_kernel_device(|device| {
        // SAFETY: the list of the device is freed after this closure has returned.
        let name =
            unsafe { (verbs::ibv_get_device_guid(device), verbs::ibv_get_device_index(device)) };
        names.push(name);
        None::<()>
    });
    names.into_iter().filter_map(|(guid, index)| named(guid, index).ok()).collect()
}
