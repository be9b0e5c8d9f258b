//! `ferroverbs describe-devices`: asks libibverbs.so.1 for the devices that no kernel has.
//!
//! The command is for `ferroverbs` itself. The library loads plugins and starts threads, so it has
//! a process of its own: a process with threads cannot enter a user namespace.

use super::facts::{DeviceFacts, GidFacts, PortFacts};
use crate::{installation, output};
use abi::{
    IBV_GID_TYPE_ROCE_V2, Zeroed, compat_ibv_port_attr, ibv_context, ibv_device, ibv_device_attr,
    ibv_gid_entry, verbs_device,
};
use cface::chars;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int};
use std::net::Ipv6Addr;
use std::process::ExitCode;

/// The arguments of `ferroverbs describe-devices`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the names only, and open no device
    #[arg(long)]
    names: bool,
}

/// The functions of libibverbs.so.1 that the command calls.
struct Verbs {
    device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
    device_guid: unsafe extern "C" fn(*mut ibv_device) -> u64,
    open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
    close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int,
    query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int,
    query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut compat_ibv_port_attr) -> c_int,
    query_pkey: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int,
    query_gid_table:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize,
}

impl Verbs {
    fn load() -> crate::Result<Self> {
        let file = installation::library_folder()?.join(installation::LIBRARY);
        let failed = |e: libloading::Error| format!("{}: {e}", file.display());
        // SAFETY: the library of this installation. Its constructors may run in any process.
        let library = unsafe { Library::new(&file) }.map_err(failed)?;
        // The functions are used until this process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type is that of the default version of the symbol.
                *unsafe { library.get($name) }.map_err(failed)?
            };
        }
        Ok(Self {
            device_list: function!(b"ibv_get_device_list\0"),
            free_device_list: function!(b"ibv_free_device_list\0"),
            device_guid: function!(b"ibv_get_device_guid\0"),
            open_device: function!(b"ibv_open_device\0"),
            close_device: function!(b"ibv_close_device\0"),
            query_device: function!(b"ibv_query_device\0"),
            query_port: function!(b"ibv_query_port\0"),
            query_pkey: function!(b"ibv_query_pkey\0"),
            query_gid_table: function!(b"_ibv_query_gid_table\0"),
        })
    }
}

/// Runs `ferroverbs describe-devices`: prints the devices as JSON.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let verbs = Verbs::load()?;
    let mut count = 0;
    // SAFETY: `count` is writable.
    let list = unsafe { (verbs.device_list)(&raw mut count) };
    let mut all = Vec::new();
    if !list.is_null() {
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` devices, and is freed below.
            let device = unsafe { *list.add(at) };
            // SAFETY: a device of our own library, which has NULL here for an announced device.
            if unsafe { !(*device.cast::<verbs_device>()).sysfs.is_null() } {
                continue;
            }
            // SAFETY: a live device of the list.
            let name = unsafe { text(&(*device).name) };
            all.push(if args.names {
                serde_json::json!({ "name": name })
            } else {
                // SAFETY: a live device of the list.
                unsafe { describe(&verbs, device) }.ok_or(name)?.to_json()
            });
        }
        // SAFETY: the list from above, which is not used any more.
        unsafe { (verbs.free_device_list)(list) };
    }
    output::print_text(&format!("{}\n", serde_json::Value::Array(all)))
}

fn text(chars: &[c_char]) -> String {
    String::from_utf8_lossy(&chars::bytes(chars)).into_owned()
}

/// The facts of a device. `None` if the device cannot be opened or asked.
///
/// # Safety
/// `device` is live.
unsafe fn describe(verbs: &Verbs, device: *mut ibv_device) -> Option<DeviceFacts> {
    // SAFETY: by the contract.
    let context = unsafe { (verbs.open_device)(device) };
    if context.is_null() {
        return None;
    }
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: an open context, and a structure to be written.
    let errno = unsafe { (verbs.query_device)(context, &raw mut attr) };
    // SAFETY: a live device.
    let (name, dev_name, node_type, guid) = unsafe {
        (
            text(&(*device).name),
            text(&(*device).dev_name),
            (*device).node_type,
            (verbs.device_guid)(device),
        )
    };
    // SAFETY: an open context.
    let ports = (1..=attr.phys_port_cnt).map(|port| unsafe { describe_port(verbs, context, port) });
    let ports: Option<Vec<_>> = ports.collect();
    // SAFETY: an open context, which is not used any more.
    unsafe { (verbs.close_device)(context) };
    (errno == 0).then_some(())?;
    Some(DeviceFacts {
        name,
        dev_name,
        node_guid: u64::from_be(guid),
        sys_image_guid: u64::from_be(attr.sys_image_guid),
        node_type: u32::try_from(node_type).unwrap_or(0),
        firmware: text(&attr.fw_ver),
        hardware: attr.hw_ver,
        vendor: attr.vendor_id,
        part: attr.vendor_part_id,
        ports: ports?,
    })
}

/// # Safety
/// `context` is open.
unsafe fn describe_port(verbs: &Verbs, context: *mut ibv_context, port: u8) -> Option<PortFacts> {
    let mut attr = compat_ibv_port_attr::zeroed();
    // SAFETY: an open context, and a structure to be written.
    if unsafe { (verbs.query_port)(context, port, &raw mut attr) } != 0 {
        return None;
    }
    let pkey = |index| {
        let mut pkey = 0;
        // SAFETY: as above.
        let errno = unsafe { (verbs.query_pkey)(context, port, index, &raw mut pkey) };
        (errno == 0).then(|| u32::from(u16::from_be(pkey)))
    };
    let table = usize::try_from(attr.gid_tbl_len).unwrap_or(0);
    let mut entries = vec![ibv_gid_entry::zeroed(); table];
    // SAFETY: an open context, and room for `table` entries of this size.
    let count = unsafe {
        (verbs.query_gid_table)(context, entries.as_mut_ptr(), table, 0, size_of::<ibv_gid_entry>())
    };
    entries.truncate(usize::try_from(count).ok()?);
    entries.retain(|entry| entry.port_num == u32::from(port));
    Some(PortFacts {
        number: u32::from(port),
        state: attr.state,
        phys_state: u32::from(attr.phys_state),
        lid: u32::from(attr.lid),
        lmc: u32::from(attr.lmc),
        sm_lid: u32::from(attr.sm_lid),
        sm_sl: u32::from(attr.sm_sl),
        capabilities: attr.port_cap_flags,
        width: u32::from(attr.active_width),
        speed: u32::from(attr.active_speed),
        link_layer: u32::from(attr.link_layer),
        table: u32::try_from(table).unwrap_or(0),
        gids: entries.iter().map(gid).collect(),
        pkeys: (0..c_int::from(attr.pkey_tbl_len)).map_while(pkey).collect(),
    })
}

fn gid(entry: &ibv_gid_entry) -> GidFacts {
    GidFacts {
        index: entry.gid_index,
        gid: Ipv6Addr::from(entry.gid.bytes()),
        is_v2: entry.gid_type == IBV_GID_TYPE_ROCE_V2,
        interface: interface_name(entry.ndev_ifindex),
    }
}

fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: room for the longest name.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: if_indextoname(3) wrote a name that ends with NUL.
    Some(unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned())
}
