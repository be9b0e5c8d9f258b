//! A plugin for tests: the device `efa_0`, which the unmodified libefa serves, over a data path
//! within the process. The tests show with the plugin how libefa and the engine agree on commands,
//! queues, doorbells and completion entries. No package has the plugin.
//!
//! - `carrier`: the data path. It copies within the process and checks no keys.
//! - `context`: contexts by descriptors, and the commands of a context.
//! - `hook`: the layer above the provider, which reads doorbells after each post and arming.

mod carrier;
mod context;
mod hook;
mod ports;

use core::ffi::{CStr, c_char, c_int};

use abi::{
    IBV_NODE_UNSPECIFIED, VERBS_MATCH_SENTINEL, Zeroed, ferroverbs_device_info,
    ferroverbs_emulation, ferroverbs_plugin_ext, ferroverbs_vendor_device, verbs_device_ops,
    verbs_match_ent, verbs_match_ent_u,
};

/// Matches no device of the kernel.
static MATCHES: [verbs_match_ent; 1] = [verbs_match_ent {
    driver_data: core::ptr::null_mut(),
    u: verbs_match_ent_u { driver_id: 0 },
    vendor: 0,
    device: 0,
    kind: VERBS_MATCH_SENTINEL as u8,
}];

static OPS: verbs_device_ops = verbs_device_ops {
    name: c"loopback".as_ptr(),
    match_min_abi_version: 1,
    match_max_abi_version: 1,
    match_table: MATCHES.as_ptr(),
    static_providers: core::ptr::null_mut(),
    match_device: None,
    alloc_context: None,
    import_context: None,
    alloc_device: None,
    uninit_device: None,
};

static EMULATION: ferroverbs_emulation = ferroverbs_emulation {
    size: size_of::<ferroverbs_emulation>(),
    describe: Some(describe),
    open_device: Some(context::open_device),
    close_device: Some(context::close_device),
    command: Some(context::command),
    hook: &raw const hook::HOOK,
};

/// The extension's table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the symbol's name is part of the interface")]
pub static ferroverbs_plugin_ext_v1: ferroverbs_plugin_ext = ferroverbs_plugin_ext {
    size: size_of::<ferroverbs_plugin_ext>(),
    device_ops: &raw const OPS,
    announce: Some(announce),
    query_gid: Some(ports::query_gid),
    query_pkey: Some(ports::query_pkey),
    create_comp_channel: None,
    destroy_comp_channel: None,
    is_cmd_fd: None,
    await_comp_event: None,
    tell_packets: None,
    is_wired: None,
    waiting: None,
    other_end: None,
    emulation: &raw const EMULATION,
};

extern "C" fn register() {
    type Register = unsafe extern "C" fn(ops: *const verbs_device_ops);
    let name = c"verbs_register_driver_65".as_ptr();
    // SAFETY: two names; libibverbs is in the program that loads the plugin.
    let found = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, name, c"IBVERBS_PRIVATE_65".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the registering function of libibverbs, with a constant table of the plugin.
        unsafe { core::mem::transmute::<*mut libc::c_void, Register>(found)(&raw const OPS) };
    }
}

/// Runs when the plugin is loaded, as in every provider.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

fn store(text: &CStr, to: &mut [c_char]) {
    for (to, from) in to.iter_mut().zip(text.to_bytes_with_nul()) {
        *to = from.cast_signed();
    }
}

/// # Safety
/// `out` has room for `max` entries.
unsafe extern "C" fn announce(_: c_int, out: *mut ferroverbs_device_info, max: c_int) -> c_int {
    let mut info = ferroverbs_device_info::zeroed();
    store(c"efa_0", &mut info.name);
    store(c"uverbs0", &mut info.dev_name);
    info.node_guid = ports::NODE_GUID;
    info.node_type = IBV_NODE_UNSPECIFIED;
    info.num_ports = 1;
    if max > 0 {
        // SAFETY: room for an entry.
        unsafe { out.write(info) };
    }
    1
}

/// # Safety
/// `device` has the size of this plugin's headers.
unsafe extern "C" fn describe(
    _: *const ferroverbs_device_info,
    device: *mut ferroverbs_vendor_device,
) -> c_int {
    // SAFETY: the caller's structure.
    let device = unsafe { &mut *device };
    store(c"efa", &mut device.provider);
    store(c"pci:v00001D0Fd0000EFA1sv00001D0Fsd0000EFA1bc02sc00i00", &mut device.modalias);
    device.abi_version = 1;
    1
}
