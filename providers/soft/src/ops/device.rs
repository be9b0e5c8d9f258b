//! The entry of the plugin: registration with libibverbs, and the announced devices. The loader
//! runs `register`; libibverbs then calls the functions of `ferroverbs_plugin_ext_v1`.

use super::frontend::verbs_register_driver_65;
use super::{context, emulated};
use crate::config;
use crate::guid::AdapterGuid;
use abi::*;
use soft_local::fabric::FabricConfig;
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_char, c_int};
use std::ptr;

/// Never matches a kernel device: the devices of soft have no kernel device.
static NO_MATCH: [verbs_match_ent; 1] = [verbs_match_ent {
    driver_data: ptr::null_mut(),
    u: verbs_match_ent_u { driver_id: 0 },
    vendor: 0,
    device: 0,
    kind: VERBS_MATCH_SENTINEL as u8,
}];

static OPS: verbs_device_ops = verbs_device_ops {
    name: c"soft".as_ptr(),
    match_min_abi_version: 0,
    match_max_abi_version: u32::MAX,
    match_table: NO_MATCH.as_ptr(),
    static_providers: ptr::null_mut(),
    match_device: None,
    alloc_context: Some(context::alloc_context),
    import_context: Some(context::import_context),
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
};

/// A table that `register` may replace before libibverbs reads the table.
#[repr(transparent)]
#[allow(unreachable_pub, reason = "the type of a C symbol")]
pub struct Extension(UnsafeCell<ferroverbs_plugin_ext>);

// SAFETY: written by the constructor of the library only, which no other code of the library
// precedes.
unsafe impl Sync for Extension {}

/// How libibverbs learns of devices without a kernel device: see `abi::ext`.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, unreachable_pub, reason = "a C symbol")]
pub static ferroverbs_plugin_ext_v1: Extension = Extension(UnsafeCell::new(SOFT));

/// The extension for the adapter's own devices.
const SOFT: ferroverbs_plugin_ext = ferroverbs_plugin_ext {
    size: size_of::<ferroverbs_plugin_ext>(),
    device_ops: &raw const OPS,
    announce: Some(announce),
    query_gid: Some(super::query::query_gid),
    query_pkey: Some(super::query::query_pkey),
    create_comp_channel: Some(context::create_comp_channel),
    destroy_comp_channel: Some(context::destroy_comp_channel),
    is_cmd_fd: Some(context::is_cmd_fd),
    await_comp_event: Some(context::await_comp_event),
    tell_packets: Some(super::wire::tell_packets),
    is_wired: Some(super::wire::is_wired),
    waiting: Some(super::cq::waiting),
    other_end: Some(super::other_end::other_end),
    emulation: ptr::null(),
    process_number: Some(super::processes::process_number),
    is_process: Some(super::processes::is_process),
    watch_process: Some(super::processes::watch_process),
};

extern "C" fn register() {
    if emulated::is_wanted() {
        let extension = emulated::extension(&raw const OPS);
        // SAFETY: the library is being loaded, so nobody else has the table.
        unsafe { ferroverbs_plugin_ext_v1.0.get().write(extension) };
    }
    // SAFETY: OPS is a static of a plugin that is never unloaded.
    unsafe { verbs_register_driver_65(&raw const OPS) };
    // The C library allocates the thread-local data of this library at the first use, and ends the
    // program if the memory is exhausted. The allocation happens here, before the program has
    // objects. `black_box` keeps the optimiser from removing a store that nothing reads.
    LOADED.with(|loaded| std::hint::black_box(loaded).set(true));
}

thread_local! {
    /// Set by the thread that loaded the plugin.
    static LOADED: Cell<bool> = const { Cell::new(false) };
}

/// Runs when the plugin is loaded, as in every provider.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

/// Announces `soft0` if the kernel has no device, or if the settings force it. The settings may
/// name further devices, and other names (`FERROVERBS_SOFT_NAME`).
///
/// # Safety
/// `out` has room for `max` entries.
unsafe extern "C" fn announce(
    kernel_devices: c_int,
    out: *mut ferroverbs_device_info,
    max: c_int,
) -> c_int {
    let wanted = config::DEVICES_ASKED.get().unwrap_or(usize::from(kernel_devices == 0));
    let count = wanted.min(usize::try_from(max).unwrap_or(0));
    if count == 0 {
        return 0;
    }
    // Opening a device reports invalid settings.
    let settings = config::fabric().unwrap_or_else(|_| FabricConfig::new("nowhere"));
    let identity = AdapterGuid::of(&settings);
    for n in 0..count {
        let mut info = ferroverbs_device_info {
            name: [0; 64],
            dev_name: [0; 64],
            node_guid: u64::from_ne_bytes(identity.guid(n)),
            node_type: IBV_NODE_CA as c_int,
            num_ports: 1,
        };
        let name = config::device_names().name(n);
        write_name(&mut info.name, &name);
        write_name(&mut info.dev_name, &name);
        // SAFETY: n is below max.
        unsafe { out.add(n).write(info) };
    }
    count as c_int
}

fn write_name(to: &mut [c_char], name: &str) {
    for (to, from) in to.iter_mut().zip(name.bytes().chain([0])) {
        *to = from as c_char;
    }
}

/// # Safety
/// `sysfs_dev` describes an announced device.
unsafe extern "C" fn alloc_device(_sysfs_dev: *mut verbs_sysfs_dev) -> *mut verbs_device {
    // SAFETY: calloc of a plain struct; libibverbs fills it in, and returns it to uninit_device.
    unsafe { libc::calloc(1, size_of::<verbs_device>()).cast() }
}

/// # Safety
/// `device` came from `alloc_device` and is not used any more.
unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: `alloc_device` got it from calloc, and the front-end returns it once.
    unsafe { libc::free(device.cast()) };
}
