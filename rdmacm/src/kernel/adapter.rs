//! Devices of the kernel, opened when the kernel's connection manager first places an id on them.
//! `kernel::id` and `kernel::connect` read limits and contexts here.

use crate::core::device;
use crate::sys::objects::{Context, Domain, ListedDevice};
use crate::sys::process::PerProcess;
use abi::*;
use cface::Errno;
use cface::sync::Mutex;

/// An open device of the kernel. Adapters are never closed, because ids and programs keep the
/// context.
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) context: Context,
    /// The domain of all ids for which the program gives none.
    pub(crate) pd: Domain,
    /// The node GUID in network byte order, as the kernel reports it.
    guid: u64,
    /// The kernel's index of the device; -1 if unknown.
    index: i32,
    pub(crate) most_responder_resources: u8,
    pub(crate) most_initiator_depth: u8,
    /// Whether each port is an InfiniBand port, from port 1.
    is_infiniband: Vec<bool>,
}

/// The adapters opened so far.
static OPEN: PerProcess<Mutex<Vec<&'static Adapter>>> = PerProcess::new();

impl Adapter {
    fn open(device: ListedDevice<'_>) -> Result<Self, Errno> {
        let context = device.open()?;
        let attr = context.limits()?;
        let is_infiniband = |port| {
            let attr = context.port(port);
            attr.is_ok_and(|attr| u32::from(attr.link_layer) == IBV_LINK_LAYER_INFINIBAND)
        };
        let pd = context.allocate_domain()?;
        let (guid, index) = device.identity();
        Ok(Self {
            context,
            pd,
            guid,
            index,
            // Truncated, as in upstream's C code.
            most_responder_resources: attr.max_qp_rd_atom as u8,
            most_initiator_depth: attr.max_qp_init_rd_atom as u8,
            is_infiniband: (1..=attr.phys_port_cnt).map(is_infiniband).collect(),
        })
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
pub(super) fn by_guid(guid: u64, index: i32) -> Result<&'static Adapter, Errno> {
    let wanted = (guid, index);
    let mut open = OPEN.get().lock();
    if let Some(known) = open.iter().find(|known| is_it(known.guid, known.index, wanted)) {
        return Ok(known);
    }
    let found = device::find_kernel_device(|device| {
        let (guid, index) = device.identity();
        is_it(guid, index, wanted).then(|| Adapter::open(device))
    });
    let adapter: &'static Adapter = Box::leak(Box::new(found.ok_or(Errno::ENODEV)??));
    open.push(adapter);
    Ok(adapter)
}

/// All kernel devices that can be opened.
pub(crate) fn all_openable() -> Vec<&'static Adapter> {
    let mut names = vec![];
    device::find_kernel_device(|device| {
        names.push(device.identity());
        None::<()>
    });
    names.into_iter().filter_map(|(guid, index)| by_guid(guid, index).ok()).collect()
}
