//! Emulated devices: the unmodified provider of a vendor over the adapter (`FERROVERBS_EMULATE`,
//! docs/design/emulated.md).
//!
//! With the setting the plugin announces the vendor's device instead of its own devices, and plays
//! the kernel for it. `emulated_commands` executes the provider's commands, `emulated_efa` and
//! `emulated_mlx5` read and write the queues. The files here are the carrier of both: they execute
//! the vendor's requests by objects of the adapter.
//!
//! - `context`: commands, and a thread for each context; `listing`: contexts by descriptor.
//! - `hook`: the layer directly above the provider, which reads doorbells.
//! - `carrier`: the trait `Carrier` over objects of the adapter; `objects` owns these objects.
//! - `direct`: the QPs of mlx5; `qp`: UD of EFA; `srd`: SRD over RC, with the messages of
//!   `handshake`; `requests`: what is posted.
//! - `numbers`: numbers of QPs; `remote`: addresses; `channels`: event channels.

mod carrier;
mod channels;
mod context;
mod direct;
mod handshake;
mod hook;
pub(super) mod listing;
mod numbers;
mod objects;
mod qp;
mod remote;
mod requests;
mod srd;

pub(crate) use numbers::LOW_QPS;

use crate::config;
use crate::guid::AdapterGuid;
use abi::*;
use emulated_mlx5::device::CONNECTX_6_DX;
use soft_local::fabric::FabricConfig;
use soft_semantics::emulated::EmulatedDevice;
use std::ffi::{CStr, CString, c_char, c_int};

/// What an announced device shows.
struct Shown {
    name: &'static CStr,
    node_type: i32,
    modalias: CString,
}

impl Shown {
    fn of(device: EmulatedDevice) -> Self {
        match device {
            EmulatedDevice::Efa => Self {
                name: c"efa_0",
                node_type: IBV_NODE_UNSPECIFIED,
                modalias: c"pci:v00001D0Fd0000EFA1sv00001D0Fsd0000EFA1bc02sc00i00".to_owned(),
            },
            EmulatedDevice::Mlx5 => Self {
                name: c"mlx5_0",
                node_type: IBV_NODE_CA,
                modalias: CString::new(CONNECTX_6_DX.modalias()).unwrap_or_default(),
            },
        }
    }
}

static EMULATION: ferroverbs_emulation = ferroverbs_emulation {
    size: size_of::<ferroverbs_emulation>(),
    describe: Some(describe_vendor_device),
    open_device: Some(context::open_device),
    close_device: Some(context::close_device),
    command: Some(context::command),
    hook: &raw const hook::HOOK,
};

/// The extension of a plugin that announces emulated devices only.
pub(super) const fn extension(device_ops: *const verbs_device_ops) -> ferroverbs_plugin_ext {
    ferroverbs_plugin_ext {
        size: size_of::<ferroverbs_plugin_ext>(),
        device_ops,
        announce: Some(announce),
        query_gid: Some(query_gid),
        query_pkey: Some(super::query::query_pkey),
        create_comp_channel: None,
        destroy_comp_channel: Some(destroy_comp_channel),
        is_cmd_fd: None,
        await_comp_event: None,
        tell_packets: None,
        is_wired: None,
        waiting: None,
        other_end: None,
        emulation: &raw const EMULATION,
        process_number: None,
        is_process: None,
        watch_process: None,
    }
}

fn store(text: &CStr, to: &mut [c_char]) {
    for (to, from) in to.iter_mut().zip(text.to_bytes_with_nul()) {
        *to = *from as c_char;
    }
}

/// Announces the emulated device.
///
/// # Safety
/// `out` has room for `max` entries.
unsafe extern "C" fn announce(_: c_int, out: *mut ferroverbs_device_info, max: c_int) -> c_int {
    let Some(device) = config::emulated_device().filter(|_| max > 0) else { return 0 };
    let shown = Shown::of(device);
    // Opening a device reports invalid settings.
    let settings = config::fabric().unwrap_or_else(|_| FabricConfig::new("nowhere"));
    let mut info = ferroverbs_device_info {
        name: [0; 64],
        dev_name: [0; 64],
        node_guid: u64::from_ne_bytes(AdapterGuid::of(&settings).guid(0)),
        node_type: shown.node_type,
        num_ports: 1,
    };
    store(shown.name, &mut info.name);
    store(shown.name, &mut info.dev_name);
    // SAFETY: room for an entry.
    unsafe { out.write(info) };
    1
}

/// # Safety
/// `device` has the size of the headers of this plugin.
unsafe extern "C" fn describe_vendor_device(
    _: *const ferroverbs_device_info,
    device: *mut ferroverbs_vendor_device,
) -> c_int {
    // SAFETY: the caller's structure.
    let device = unsafe { &mut *device };
    let Some(emulated) = config::emulated_device() else { return 0 };
    for (to, from) in device.provider.iter_mut().zip(emulated.provider().bytes().chain([0])) {
        *to = from as c_char;
    }
    store(&Shown::of(emulated).modalias, &mut device.modalias);
    device.abi_version = 1;
    1
}

/// An entry of the GID table of an emulated device.
///
/// # Safety
/// `context` is an open context of an emulated device; `entry` is writable.
unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
) -> c_int {
    // SAFETY: an open context.
    let cmd_fd = unsafe { (*context).cmd_fd };
    match context::with(cmd_fd, |context| context.query_gid(port, index)) {
        Some(Ok(filled)) => {
            // SAFETY: the caller's entry.
            unsafe { entry.write(filled) };
            0
        }
        Some(Err(errno)) => errno.raw(),
        None => libc::ENODEV,
    }
}

/// # Safety
/// `context` is an open context of an emulated device, `fd` a completion channel of it.
unsafe extern "C" fn destroy_comp_channel(context: *mut ibv_context, fd: c_int) -> c_int {
    // SAFETY: an open context.
    let cmd_fd = unsafe { (*context).cmd_fd };
    context::with(cmd_fd, |context| context.close_channel(fd));
    objects::close(fd);
    0
}

/// Whether the plugin announces emulated devices only.
pub(super) fn is_wanted() -> bool {
    config::emulated_device().is_some()
}
