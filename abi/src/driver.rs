//! The interface between provider plugins and the front-end: private ABI of rdma-core, newest
//! generation (65). Types name sizes that differ in older generations.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; each type says what it is for."
)]

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::{
    ibv_counters, ibv_cq, ibv_cq_ex, ibv_device, ibv_dm, ibv_dmah, ibv_flow_action, ibv_mr,
    ibv_node_type, ibv_qp, ibv_qp_ex, ibv_srq, ibv_srq_type, ibv_xrcd, verbs_context,
};

// Kinds of [`verbs_match_ent`].
pub const VERBS_MATCH_SENTINEL: c_uint = 0;
pub const VERBS_MATCH_PCI: c_uint = 1;
pub const VERBS_MATCH_MODALIAS: c_uint = 2;
pub const VERBS_MATCH_DRIVER_ID: c_uint = 3;

/// The value that a match entry compares, by the entry's kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub union verbs_match_ent_u {
    pub modalias: *const c_char,
    pub driver_id: u64,
}
layout!(verbs_match_ent_u: 8 { modalias @ 0, driver_id @ 0 });
opaque_debug!(verbs_match_ent_u);

/// One way a provider recognises a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_match_ent {
    pub driver_data: *mut c_void,
    pub u: verbs_match_ent_u,
    pub vendor: u16,
    pub device: u16,
    /// `VERBS_MATCH_*`; 0 ends a table.
    pub kind: u8,
}
layout!(verbs_match_ent: 24 { driver_data @ 0, u @ 8, vendor @ 16, device @ 18, kind @ 20 });

// SAFETY: a match table is constant data of a plugin that is never unloaded.
unsafe impl Sync for verbs_match_ent {}

/// Link of an intrusive list (ccan style). The front-end keeps its own lists and leaves the link
/// NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct list_node {
    pub next: *mut list_node,
    pub prev: *mut list_node,
}
layout!(list_node: 16 { next @ 0, prev @ 8 });

// Bits of `verbs_sysfs_dev.flags`: the values that were read already.
pub const VSYSFS_READ_MODALIAS: c_uint = 1;
pub const VSYSFS_READ_NODE_GUID: c_uint = 2;

/// A kernel device as enumerated; owned and freed by the front-end. 984 bytes without `num_ports`
/// in rdma-core 34.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_sysfs_dev {
    pub entry: list_node,
    pub provider_data: *mut c_void,
    pub match_: *const verbs_match_ent,
    pub flags: c_uint,
    pub sysfs_name: [c_char; 64],
    pub sysfs_cdev: libc::dev_t,
    pub ibdev_name: [c_char; 64],
    pub ibdev_path: [c_char; 256],
    pub modalias: [c_char; 512],
    /// Host byte order; valid with `VSYSFS_READ_NODE_GUID`.
    pub node_guid: u64,
    pub driver_id: u32,
    pub node_type: ibv_node_type,
    /// Kernel index of the device, -1 when it was found through sysfs.
    pub ibdev_idx: c_int,
    /// Since rdma-core 35.
    pub num_ports: u32,
    pub abi_ver: u32,
    pub time_created: libc::timespec,
}
layout!(verbs_sysfs_dev: 992 {
    entry @ 0, provider_data @ 16, match_ @ 24, flags @ 32, sysfs_name @ 36, sysfs_cdev @ 104,
    ibdev_name @ 112, ibdev_path @ 176, modalias @ 432, node_guid @ 944, driver_id @ 952,
    node_type @ 956, ibdev_idx @ 960, num_ports @ 964, abi_ver @ 968, time_created @ 976,
});

/// A device of a provider, allocated by it with `calloc`; same in all generations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_device {
    pub device: ibv_device,
    pub ops: *const verbs_device_ops,
    /// The device list, each copy of it, and each open context hold a reference.
    pub refcount: c_int,
    pub entry: list_node,
    /// NULL for a device without a kernel device.
    pub sysfs: *mut verbs_sysfs_dev,
    /// Bits of [`ib_uverbs_core_support`](crate::ib_uverbs_core_support).
    pub core_support: u64,
}
layout!(verbs_device: 712 {
    device @ 0, ops @ 664, refcount @ 672, entry @ 680, sysfs @ 696, core_support @ 704,
});

/// The table that a provider registers: how to match and open its devices. Equal in all
/// generations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_device_ops {
    pub name: *const c_char,
    pub match_min_abi_version: u32,
    pub match_max_abi_version: u32,
    pub match_table: *const verbs_match_ent,
    pub static_providers: *mut *const verbs_device_ops,
    pub match_device: Option<unsafe extern "C" fn(sysfs_dev: *mut verbs_sysfs_dev) -> bool>,
    pub alloc_context: Option<
        unsafe extern "C" fn(
            device: *mut ibv_device,
            cmd_fd: c_int,
            private_data: *mut c_void,
        ) -> *mut verbs_context,
    >,
    pub import_context:
        Option<unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: c_int) -> *mut verbs_context>,
    pub alloc_device:
        Option<unsafe extern "C" fn(sysfs_dev: *mut verbs_sysfs_dev) -> *mut verbs_device>,
    pub uninit_device: Option<unsafe extern "C" fn(device: *mut verbs_device)>,
}
layout!(verbs_device_ops: 72 {
    name @ 0, match_min_abi_version @ 8, match_max_abi_version @ 12, match_table @ 16,
    static_providers @ 24, match_device @ 32, alloc_context @ 40, import_context @ 48,
    alloc_device @ 56, uninit_device @ 64,
});

// SAFETY: a registered table is constant data of a plugin that is never unloaded.
unsafe impl Sync for verbs_device_ops {}

/// Origin of a region; decides the operations that the front-end permits.
pub type ibv_mr_type = c_uint;
pub const IBV_MR_TYPE_MR: ibv_mr_type = 0;
pub const IBV_MR_TYPE_NULL_MR: ibv_mr_type = 1;
pub const IBV_MR_TYPE_IMPORTED_MR: ibv_mr_type = 2;
pub const IBV_MR_TYPE_DMABUF_MR: ibv_mr_type = 3;

/// A region as providers embed it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_mr {
    pub ibv_mr: ibv_mr,
    pub mr_type: ibv_mr_type,
    pub access: c_int,
}
layout!(verbs_mr: 56 { ibv_mr @ 0, mr_type @ 48, access @ 52 });

/// Bits of `verbs_qp.comp_mask`.
pub type verbs_qp_mask = c_uint;
pub const VERBS_QP_XRCD: verbs_qp_mask = 1 << 0;
pub const VERBS_QP_EX: verbs_qp_mask = 1 << 1;

/// The QP itself, seen plain or extended.
#[repr(C)]
#[derive(Clone, Copy)]
pub union verbs_qp_base {
    pub qp: ibv_qp,
    pub qp_ex: ibv_qp_ex,
}
layout!(verbs_qp_base: 360 { qp @ 0, qp_ex @ 0 });
opaque_debug!(verbs_qp_base);

/// A QP as providers embed it. `base` has no name in C. The two fields behind it sit 16 bytes lower
/// before rdma-core 44 and 8 bytes lower in 44, because [`ibv_qp_ex`] was shorter.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_qp {
    pub base: verbs_qp_base,
    /// Bits of [`verbs_qp_mask`].
    pub comp_mask: u32,
    pub xrcd: *mut verbs_xrcd,
}
layout!(verbs_qp: 376 { base @ 0, comp_mask @ 360, xrcd @ 368 });

/// A CQ as providers embed it, seen plain or extended.
#[repr(C)]
#[derive(Clone, Copy)]
pub union verbs_cq {
    pub cq: ibv_cq,
    pub cq_ex: ibv_cq_ex,
}
layout!(verbs_cq: 288 { cq @ 0, cq_ex @ 0 });
opaque_debug!(verbs_cq);

/// An SRQ as providers embed it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_srq {
    pub srq: ibv_srq,
    pub srq_type: ibv_srq_type,
    pub xrcd: *mut verbs_xrcd,
    pub cq: *mut ibv_cq,
    pub srq_num: u32,
}
layout!(verbs_srq: 160 { srq @ 0, srq_type @ 128, xrcd @ 136, cq @ 144, srq_num @ 152 });

/// Bits of `verbs_xrcd.comp_mask`.
pub type verbs_xrcd_mask = c_uint;
pub const VERBS_XRCD_HANDLE: verbs_xrcd_mask = 1 << 0;
pub const VERBS_XRCD_RESERVED: verbs_xrcd_mask = 1 << 1;

/// An XRC domain as providers embed it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_xrcd {
    pub xrcd: ibv_xrcd,
    pub comp_mask: u32,
    pub handle: u32,
}
layout!(verbs_xrcd: 16 { xrcd @ 0, comp_mask @ 8, handle @ 12 });

/// Device memory as providers embed it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_dm {
    pub dm: ibv_dm,
    pub handle: u32,
}
layout!(verbs_dm: 40 { dm @ 0, handle @ 32 });

/// A DMA handle as providers embed it (rdma-core 59).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_dmah {
    pub dmah: ibv_dmah,
    pub handle: u32,
}
layout!(verbs_dmah: 16 { dmah @ 0, handle @ 8 });

/// Counters as providers embed them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_counters {
    pub counters: ibv_counters,
    pub handle: u32,
}
layout!(verbs_counters: 16 { counters @ 0, handle @ 8 });

/// Kind of flow action.
pub type ibv_flow_action_type = c_uint;
pub const IBV_FLOW_ACTION_UNSPECIFIED: ibv_flow_action_type = 0;
pub const IBV_FLOW_ACTION_ESP: ibv_flow_action_type = 1;

/// A flow action as providers embed it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_flow_action {
    pub action: ibv_flow_action,
    pub handle: u32,
    pub type_: ibv_flow_action_type,
}
layout!(verbs_flow_action: 16 { action @ 0, handle @ 8, type_ @ 12 });

/// A CQ buffer inside a DMA-BUF.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_create_cq_dmabuf {
    pub offset: u64,
    pub fd: c_int,
}
layout!(verbs_create_cq_dmabuf: 16 { offset @ 0, fd @ 8 });

/// Where a CQ buffer of the provider is; `create_cq_cmd_flags` tell which.
#[repr(C)]
#[derive(Clone, Copy)]
pub union verbs_create_cq_buffer_place {
    pub ptr: *mut u8,
    pub dmabuf: verbs_create_cq_dmabuf,
}
layout!(verbs_create_cq_buffer_place: 16 { ptr @ 0, dmabuf @ 0 });
opaque_debug!(verbs_create_cq_buffer_place);

/// A CQ buffer of the provider.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_create_cq_buffer {
    /// Bytes.
    pub length: u64,
    pub place: verbs_create_cq_buffer_place,
}
layout!(verbs_create_cq_buffer: 24 { length @ 0, place @ 8 });

/// Provider's wishes for `ibv_cmd_create_cq_ex` (rdma-core 59).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct verbs_create_cq_prov_attr {
    pub buffer: verbs_create_cq_buffer,
}
layout!(verbs_create_cq_prov_attr: 24 { buffer @ 0 });

/// Flags of `ibv_cmd_create_cq_ex`.
pub type create_cq_cmd_flags = c_uint;
pub const CREATE_CQ_CMD_FLAGS_TS_IGNORED_EX: create_cq_cmd_flags = 1 << 0;
pub const CREATE_CQ_CMD_FLAGS_WITH_MEM_VA: create_cq_cmd_flags = 1 << 1;
pub const CREATE_CQ_CMD_FLAGS_WITH_MEM_DMABUF: create_cq_cmd_flags = 1 << 2;

/// Which members a GID query is wanted for.
pub type verbs_query_gid_attr_mask = c_uint;
pub const VERBS_QUERY_GID_ATTR_GID: verbs_query_gid_attr_mask = 1 << 0;
pub const VERBS_QUERY_GID_ATTR_TYPE: verbs_query_gid_attr_mask = 1 << 1;
pub const VERBS_QUERY_GID_ATTR_NDEV_IFINDEX: verbs_query_gid_attr_mask = 1 << 2;

// Levels of `VERBS_LOG_LEVEL`.
pub const VERBS_LOG_LEVEL_NONE: c_uint = 0;
pub const VERBS_LOG_ERR: c_uint = 1;
pub const VERBS_LOG_WARN: c_uint = 2;
pub const VERBS_LOG_INFO: c_uint = 3;
pub const VERBS_LOG_DEBUG: c_uint = 4;
