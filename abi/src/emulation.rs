//! Announced devices that the unmodified provider of a vendor serves: the plugin plays the kernel.
//!
//! For such a device the front-end opens the provider's plugin by its name, and offers the device
//! to the provider like a kernel device. Each context gets its `cmd_fd` from the plugin, and each
//! command of the context goes to the plugin instead of the kernel. Commands have the form of
//! `<rdma/rdma_user_ioctl_cmds.h>`: a header and attributes. A write command of
//! `<rdma/ib_user_verbs.h>` is always wrapped in an ioctl: object `UVERBS_OBJECT_DEVICE`, method
//! `UVERBS_METHOD_INVOKE_WRITE`, with the number in `UVERBS_ATTR_WRITE_CMD`, the core bytes in
//! `UVERBS_ATTR_CORE_IN` and `_CORE_OUT`, and the provider's bytes in `UVERBS_ATTR_UHW_IN` and
//! `_UHW_OUT`. A plugin may answer `EPROTONOSUPPORT` to a method that has a write command; the
//! front-end then sends the write command, and remembers the answer for the context.

use core::ffi::{c_char, c_int};

use crate::ext::adopt_known;
use crate::{ferroverbs_device_info, ferroverbs_layer, ib_uverbs_ioctl_hdr, ibv_device};

/// The device of a vendor that an announced device emulates. Texts are NUL terminated.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ferroverbs_vendor_device {
    /// Size of the caller's structure in bytes; no more bytes are written.
    pub size: usize,
    /// The name of the provider, as `*.driver` files have it: `efa` for `libefa-rdmav34.so`.
    pub provider: [c_char; 64],
    /// `RDMA_DRIVER_*`, by which providers are matched first; 0: unknown.
    pub driver_id: u32,
    /// `abi_version` of the uverbs device, between the provider's limits.
    pub abi_version: u32,
    /// The modalias of the PCI device, by which providers are matched next; empty: none.
    pub modalias: [c_char; 512],
    /// `ibv_device.ibdev_path`: a folder with `device`, which has the files of the PCI device.
    /// Empty: the folder that a kernel device of this name would have.
    pub ibdev_path: [c_char; 256],
}
layout!(ferroverbs_vendor_device: 848 {
    size @ 0, provider @ 8, driver_id @ 72, abi_version @ 76, modalias @ 80, ibdev_path @ 592,
});

/// The functions by which a plugin plays the kernel for devices of a vendor's provider.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ferroverbs_emulation {
    /// Bytes of this struct the plugin was built with; fields beyond are absent.
    pub size: usize,
    /// Describes an announced device. 1: `device` is filled; 0: the plugin itself serves the
    /// announced device.
    pub describe: Option<
        unsafe extern "C" fn(
            info: *const ferroverbs_device_info,
            device: *mut ferroverbs_vendor_device,
        ) -> c_int,
    >,
    /// A new context's `cmd_fd`, which the provider maps; or `-errno`.
    pub open_device: Option<unsafe extern "C" fn(device: *mut ibv_device) -> c_int>,
    /// The end of a context: closes its `cmd_fd`, and frees the objects that are left.
    pub close_device: Option<unsafe extern "C" fn(cmd_fd: c_int)>,
    /// A command of the context with this `cmd_fd`: 0 or an errno. Attributes may be written as the
    /// kernel writes them. Any thread calls the function, also several threads at a time.
    pub command:
        Option<unsafe extern "C" fn(cmd_fd: c_int, message: *mut ib_uverbs_ioctl_hdr) -> c_int>,
    /// NULL, or a layer that stands directly above the provider in each such context, under the
    /// layers of `FERROVERBS_LAYERS`. Its `refused` is not called.
    pub hook: *const ferroverbs_layer,
}
layout!(ferroverbs_emulation: 48 {
    size @ 0, describe @ 8, open_device @ 16, close_device @ 24, command @ 32, hook @ 40,
});

impl ferroverbs_emulation {
    /// A complete copy of a plugin's table; fields beyond the plugin's size are absent.
    ///
    /// # Safety
    /// `table` points to constant data of a plugin that is never unloaded, with the length of its
    /// `size`.
    #[must_use]
    pub unsafe fn adopt(table: *const Self) -> Self {
        // SAFETY: per the caller; the first field is the size.
        unsafe { adopt_known(table) }
    }
}

// SAFETY: the table is constant data of a plugin that is never unloaded, pointing only at such
// data.
unsafe impl Sync for ferroverbs_emulation {}
// SAFETY: as above.
unsafe impl Send for ferroverbs_emulation {}
