//! Devices, device attributes and ports: `ibv_get_device_list(3)`, `ibv_query_device_ex(3)`,
//! `ibv_query_port(3)`; layouts of `<infiniband/verbs.h>`.
//!
//! Map of this file: the device, its capability flags, the attributes (the classic structure, then
//! one structure for each extended capability), and the ports.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::{c_char, c_int, c_uint};

use crate::{be64, ibv_context, ibv_tm_caps};

/// The kind of a device (`ibv_get_device_list(3)`).
pub type ibv_node_type = c_int;
pub const IBV_NODE_UNKNOWN: ibv_node_type = -1;
pub const IBV_NODE_CA: ibv_node_type = 1;
pub const IBV_NODE_SWITCH: ibv_node_type = 2;
pub const IBV_NODE_ROUTER: ibv_node_type = 3;
pub const IBV_NODE_RNIC: ibv_node_type = 4;
pub const IBV_NODE_USNIC: ibv_node_type = 5;
pub const IBV_NODE_USNIC_UDP: ibv_node_type = 6;
pub const IBV_NODE_UNSPECIFIED: ibv_node_type = 7;

/// The transport of a device (`ibv_get_device_list(3)`).
pub type ibv_transport_type = c_int;
pub const IBV_TRANSPORT_UNKNOWN: ibv_transport_type = -1;
pub const IBV_TRANSPORT_IB: ibv_transport_type = 0;
pub const IBV_TRANSPORT_IWARP: ibv_transport_type = 1;
pub const IBV_TRANSPORT_USNIC: ibv_transport_type = 2;
pub const IBV_TRANSPORT_USNIC_UDP: ibv_transport_type = 3;
pub const IBV_TRANSPORT_UNSPECIFIED: ibv_transport_type = 4;

// Sizes of the name buffers inside [`ibv_device`].
pub const IBV_SYSFS_NAME_MAX: c_uint = 64;
pub const IBV_SYSFS_PATH_MAX: c_uint = 256;

/// Never used; two pointers that must be NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct _ibv_device_ops {
    pub _dummy1:
        Option<unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: c_int) -> *mut ibv_context>,
    pub _dummy2: Option<unsafe extern "C" fn(context: *mut ibv_context)>,
}
layout!(_ibv_device_ops: 16 { _dummy1 @ 0, _dummy2 @ 8 });

/// A device of the list (`ibv_get_device_list(3)`); embedded in `verbs_device`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_device {
    pub _ops: _ibv_device_ops,
    pub node_type: ibv_node_type,
    pub transport_type: ibv_transport_type,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}
layout!(ibv_device: 664 {
    _ops @ 0, node_type @ 16, transport_type @ 20, name @ 24, dev_name @ 88, dev_path @ 152,
    ibdev_path @ 408,
});

/// Bits of `ibv_device_attr.device_cap_flags` (`ibv_query_device(3)`).
pub type ibv_device_cap_flags = c_uint;
pub const IBV_DEVICE_RESIZE_MAX_WR: ibv_device_cap_flags = 1 << 0;
pub const IBV_DEVICE_BAD_PKEY_CNTR: ibv_device_cap_flags = 1 << 1;
pub const IBV_DEVICE_BAD_QKEY_CNTR: ibv_device_cap_flags = 1 << 2;
pub const IBV_DEVICE_RAW_MULTI: ibv_device_cap_flags = 1 << 3;
pub const IBV_DEVICE_AUTO_PATH_MIG: ibv_device_cap_flags = 1 << 4;
pub const IBV_DEVICE_CHANGE_PHY_PORT: ibv_device_cap_flags = 1 << 5;
pub const IBV_DEVICE_UD_AV_PORT_ENFORCE: ibv_device_cap_flags = 1 << 6;
pub const IBV_DEVICE_CURR_QP_STATE_MOD: ibv_device_cap_flags = 1 << 7;
pub const IBV_DEVICE_SHUTDOWN_PORT: ibv_device_cap_flags = 1 << 8;
pub const IBV_DEVICE_INIT_TYPE: ibv_device_cap_flags = 1 << 9;
pub const IBV_DEVICE_PORT_ACTIVE_EVENT: ibv_device_cap_flags = 1 << 10;
pub const IBV_DEVICE_SYS_IMAGE_GUID: ibv_device_cap_flags = 1 << 11;
pub const IBV_DEVICE_RC_RNR_NAK_GEN: ibv_device_cap_flags = 1 << 12;
pub const IBV_DEVICE_SRQ_RESIZE: ibv_device_cap_flags = 1 << 13;
pub const IBV_DEVICE_N_NOTIFY_CQ: ibv_device_cap_flags = 1 << 14;
pub const IBV_DEVICE_MEM_WINDOW: ibv_device_cap_flags = 1 << 17;
pub const IBV_DEVICE_UD_IP_CSUM: ibv_device_cap_flags = 1 << 18;
pub const IBV_DEVICE_XRC: ibv_device_cap_flags = 1 << 20;
pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: ibv_device_cap_flags = 1 << 21;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2A: ibv_device_cap_flags = 1 << 23;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: ibv_device_cap_flags = 1 << 24;
pub const IBV_DEVICE_RC_IP_CSUM: ibv_device_cap_flags = 1 << 25;
pub const IBV_DEVICE_RAW_IP_CSUM: ibv_device_cap_flags = 1 << 26;
pub const IBV_DEVICE_MANAGED_FLOW_STEERING: ibv_device_cap_flags = 1 << 29;

// 64-bit bits of `ibv_device_attr_ex.device_cap_flags_ex` (`ibv_query_device_ex(3)`).
pub const IBV_DEVICE_RAW_SCATTER_FCS: u64 = 1 << 34;
pub const IBV_DEVICE_PCI_WRITE_END_PADDING: u64 = 1 << 36;
pub const IBV_DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
pub const IBV_DEVICE_FLUSH_PERSISTENT: u64 = 1 << 39;
pub const IBV_DEVICE_ATOMIC_WRITE: u64 = 1 << 40;
pub const IBV_DEVICE_CC_DMA_BOUNCE: u64 = 1 << 41;

/// The scope of atomic operations (`ibv_query_device(3)`).
pub type ibv_atomic_cap = c_uint;
pub const IBV_ATOMIC_NONE: ibv_atomic_cap = 0;
pub const IBV_ATOMIC_HCA: ibv_atomic_cap = 1;
pub const IBV_ATOMIC_GLOB: ibv_atomic_cap = 2;

/// Limits and identity of a device (`ibv_query_device(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    /// Big endian.
    pub node_guid: be64,
    /// Big endian.
    pub sys_image_guid: be64,
    /// Bytes.
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: ibv_atomic_cap,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    /// Exponent: 4.096 us * 2^n (IBTA 1.7 9.7.6.1.3).
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
layout!(ibv_device_attr: 232 {
    fw_ver @ 0, node_guid @ 64, sys_image_guid @ 72, max_mr_size @ 80, page_size_cap @ 88,
    vendor_id @ 96, vendor_part_id @ 100, hw_ver @ 104, max_qp @ 108, max_qp_wr @ 112,
    device_cap_flags @ 116, max_sge @ 120, max_sge_rd @ 124, max_cq @ 128, max_cqe @ 132,
    max_mr @ 136, max_pd @ 140, max_qp_rd_atom @ 144, max_ee_rd_atom @ 148, max_res_rd_atom @ 152,
    max_qp_init_rd_atom @ 156, max_ee_init_rd_atom @ 160, atomic_cap @ 164, max_ee @ 168,
    max_rdd @ 172, max_mw @ 176, max_raw_ipv6_qp @ 180, max_raw_ethy_qp @ 184, max_mcast_grp @ 188,
    max_mcast_qp_attach @ 192, max_total_mcast_qp_attach @ 196, max_ah @ 200, max_fmr @ 204,
    max_map_per_fmr @ 208, max_srq @ 212, max_srq_wr @ 216, max_srq_sge @ 220, max_pkeys @ 224,
    local_ca_ack_delay @ 226, phys_port_cnt @ 227,
});

/// Input of `ibv_query_device_ex(3)`; `comp_mask` must be 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_query_device_ex_input {
    pub comp_mask: u32,
}
layout!(ibv_query_device_ex_input: 4 { comp_mask @ 0 });

/// Bits of `ibv_odp_caps.general_caps` (`ibv_query_device_ex(3)`).
pub type ibv_odp_general_caps = c_uint;
pub const IBV_ODP_SUPPORT: ibv_odp_general_caps = 1 << 0;
pub const IBV_ODP_SUPPORT_IMPLICIT: ibv_odp_general_caps = 1 << 1;

/// Bits of the per-transport masks of [`ibv_odp_caps`].
pub type ibv_odp_transport_cap_bits = c_uint;
pub const IBV_ODP_SUPPORT_SEND: ibv_odp_transport_cap_bits = 1 << 0;
pub const IBV_ODP_SUPPORT_RECV: ibv_odp_transport_cap_bits = 1 << 1;
pub const IBV_ODP_SUPPORT_WRITE: ibv_odp_transport_cap_bits = 1 << 2;
pub const IBV_ODP_SUPPORT_READ: ibv_odp_transport_cap_bits = 1 << 3;
pub const IBV_ODP_SUPPORT_ATOMIC: ibv_odp_transport_cap_bits = 1 << 4;
pub const IBV_ODP_SUPPORT_SRQ_RECV: ibv_odp_transport_cap_bits = 1 << 5;
pub const IBV_ODP_SUPPORT_FLUSH: ibv_odp_transport_cap_bits = 1 << 6;
pub const IBV_ODP_SUPPORT_ATOMIC_WRITE: ibv_odp_transport_cap_bits = 1 << 7;

/// Operations that may fault, per transport: bits of [`ibv_odp_transport_cap_bits`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_odp_per_transport_caps {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}
layout!(ibv_odp_per_transport_caps: 12 { rc_odp_caps @ 0, uc_odp_caps @ 4, ud_odp_caps @ 8 });

/// On-demand paging (`ibv_query_device_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_odp_caps {
    /// Bits of [`ibv_odp_general_caps`].
    pub general_caps: u64,
    pub per_transport_caps: ibv_odp_per_transport_caps,
}
layout!(ibv_odp_caps: 24 { general_caps @ 0, per_transport_caps @ 8 });

/// Segmentation offload (`ibv_query_device_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_tso_caps {
    pub max_tso: u32,
    pub supported_qpts: u32,
}
layout!(ibv_tso_caps: 8 { max_tso @ 0, supported_qpts @ 4 });

/// Hash functions (`ibv_create_qp_ex(3)`).
pub type ibv_rx_hash_function_flags = c_uint;
pub const IBV_RX_HASH_FUNC_TOEPLITZ: ibv_rx_hash_function_flags = 1 << 0;

/// Packet fields that are hashed (`ibv_create_qp_ex(3)`).
pub type ibv_rx_hash_fields = c_uint;
pub const IBV_RX_HASH_SRC_IPV4: ibv_rx_hash_fields = 1;
pub const IBV_RX_HASH_DST_IPV4: ibv_rx_hash_fields = 2;
pub const IBV_RX_HASH_SRC_IPV6: ibv_rx_hash_fields = 4;
pub const IBV_RX_HASH_DST_IPV6: ibv_rx_hash_fields = 8;
pub const IBV_RX_HASH_SRC_PORT_TCP: ibv_rx_hash_fields = 16;
pub const IBV_RX_HASH_DST_PORT_TCP: ibv_rx_hash_fields = 32;
pub const IBV_RX_HASH_SRC_PORT_UDP: ibv_rx_hash_fields = 64;
pub const IBV_RX_HASH_DST_PORT_UDP: ibv_rx_hash_fields = 128;
pub const IBV_RX_HASH_IPSEC_SPI: ibv_rx_hash_fields = 256;
pub const IBV_RX_HASH_INNER: ibv_rx_hash_fields = 2147483648;

/// Receive side scaling (`ibv_query_device_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}
layout!(ibv_rss_caps: 32 {
    supported_qpts @ 0, max_rwq_indirection_tables @ 4, max_rwq_indirection_table_size @ 8,
    rx_hash_fields_mask @ 16, rx_hash_function @ 24,
});

/// Rate limits (`ibv_query_device_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_packet_pacing_caps {
    /// kbit/s.
    pub qp_rate_limit_min: u32,
    /// kbit/s.
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}
layout!(ibv_packet_pacing_caps: 12 {
    qp_rate_limit_min @ 0, qp_rate_limit_max @ 4, supported_qpts @ 8,
});

/// Bits of `ibv_device_attr_ex.raw_packet_caps`.
pub type ibv_raw_packet_caps = c_uint;
pub const IBV_RAW_PACKET_CAP_CVLAN_STRIPPING: ibv_raw_packet_caps = 1 << 0;
pub const IBV_RAW_PACKET_CAP_SCATTER_FCS: ibv_raw_packet_caps = 1 << 1;
pub const IBV_RAW_PACKET_CAP_IP_CSUM: ibv_raw_packet_caps = 1 << 2;
pub const IBV_RAW_PACKET_CAP_DELAY_DROP: ibv_raw_packet_caps = 1 << 3;

/// Event moderation (`ibv_query_device_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_cq_moderation_caps {
    pub max_cq_count: u16,
    /// Microseconds.
    pub max_cq_period: u16,
}
layout!(ibv_cq_moderation_caps: 4 { max_cq_count @ 0, max_cq_period @ 2 });

/// Bits of the fields of [`ibv_pci_atomic_caps`].
pub type ibv_pci_atomic_op_size = c_uint;
pub const IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = 1;
pub const IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = 2;
pub const IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP: ibv_pci_atomic_op_size = 4;

/// PCI atomics a device can emit (`ibv_query_device_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_pci_atomic_caps {
    pub fetch_add: u16,
    pub swap: u16,
    pub compare_swap: u16,
}
layout!(ibv_pci_atomic_caps: 6 { fetch_add @ 0, swap @ 2, compare_swap @ 4 });

/// Extended attributes (`ibv_query_device_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    /// kHz.
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: ibv_tso_caps,
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: ibv_packet_pacing_caps,
    pub raw_packet_caps: u32,
    pub tm_caps: ibv_tm_caps,
    pub cq_mod_caps: ibv_cq_moderation_caps,
    pub max_dm_size: u64,
    pub pci_atomic_caps: ibv_pci_atomic_caps,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
layout!(ibv_device_attr_ex: 400 {
    orig_attr @ 0, comp_mask @ 232, odp_caps @ 240, completion_timestamp_mask @ 264,
    hca_core_clock @ 272, device_cap_flags_ex @ 280, tso_caps @ 288, rss_caps @ 296,
    max_wq_type_rq @ 328, packet_pacing_caps @ 332, raw_packet_caps @ 344, tm_caps @ 348,
    cq_mod_caps @ 368, max_dm_size @ 376, pci_atomic_caps @ 384, xrc_odp_caps @ 392,
    phys_port_cnt_ex @ 396,
});

/// Path MTU codes (`ibv_query_port(3)`).
pub type ibv_mtu = c_uint;
pub const IBV_MTU_256: ibv_mtu = 1;
pub const IBV_MTU_512: ibv_mtu = 2;
pub const IBV_MTU_1024: ibv_mtu = 3;
pub const IBV_MTU_2048: ibv_mtu = 4;
pub const IBV_MTU_4096: ibv_mtu = 5;

/// Logical port state (`ibv_query_port(3)`).
pub type ibv_port_state = c_uint;
pub const IBV_PORT_NOP: ibv_port_state = 0;
pub const IBV_PORT_DOWN: ibv_port_state = 1;
pub const IBV_PORT_INIT: ibv_port_state = 2;
pub const IBV_PORT_ARMED: ibv_port_state = 3;
pub const IBV_PORT_ACTIVE: ibv_port_state = 4;
pub const IBV_PORT_ACTIVE_DEFER: ibv_port_state = 5;

// Values of `ibv_port_attr.link_layer`.
pub const IBV_LINK_LAYER_UNSPECIFIED: c_uint = 0;
pub const IBV_LINK_LAYER_INFINIBAND: c_uint = 1;
pub const IBV_LINK_LAYER_ETHERNET: c_uint = 2;

/// Bits of `ibv_port_attr.port_cap_flags`.
pub type ibv_port_cap_flags = c_uint;
pub const IBV_PORT_SM: ibv_port_cap_flags = 1 << 1;
pub const IBV_PORT_NOTICE_SUP: ibv_port_cap_flags = 1 << 2;
pub const IBV_PORT_TRAP_SUP: ibv_port_cap_flags = 1 << 3;
pub const IBV_PORT_OPT_IPD_SUP: ibv_port_cap_flags = 1 << 4;
pub const IBV_PORT_AUTO_MIGR_SUP: ibv_port_cap_flags = 1 << 5;
pub const IBV_PORT_SL_MAP_SUP: ibv_port_cap_flags = 1 << 6;
pub const IBV_PORT_MKEY_NVRAM: ibv_port_cap_flags = 1 << 7;
pub const IBV_PORT_PKEY_NVRAM: ibv_port_cap_flags = 1 << 8;
pub const IBV_PORT_LED_INFO_SUP: ibv_port_cap_flags = 1 << 9;
pub const IBV_PORT_SYS_IMAGE_GUID_SUP: ibv_port_cap_flags = 1 << 11;
pub const IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP: ibv_port_cap_flags = 1 << 12;
pub const IBV_PORT_EXTENDED_SPEEDS_SUP: ibv_port_cap_flags = 1 << 14;
pub const IBV_PORT_CAP_MASK2_SUP: ibv_port_cap_flags = 1 << 15;
pub const IBV_PORT_CM_SUP: ibv_port_cap_flags = 1 << 16;
pub const IBV_PORT_SNMP_TUNNEL_SUP: ibv_port_cap_flags = 1 << 17;
pub const IBV_PORT_REINIT_SUP: ibv_port_cap_flags = 1 << 18;
pub const IBV_PORT_DEVICE_MGMT_SUP: ibv_port_cap_flags = 1 << 19;
pub const IBV_PORT_VENDOR_CLASS_SUP: ibv_port_cap_flags = 1 << 20;
pub const IBV_PORT_DR_NOTICE_SUP: ibv_port_cap_flags = 1 << 21;
pub const IBV_PORT_CAP_MASK_NOTICE_SUP: ibv_port_cap_flags = 1 << 22;
pub const IBV_PORT_BOOT_MGMT_SUP: ibv_port_cap_flags = 1 << 23;
pub const IBV_PORT_LINK_LATENCY_SUP: ibv_port_cap_flags = 1 << 24;
pub const IBV_PORT_CLIENT_REG_SUP: ibv_port_cap_flags = 1 << 25;
pub const IBV_PORT_IP_BASED_GIDS: ibv_port_cap_flags = 1 << 26;

/// Bits of `ibv_port_attr.port_cap_flags2`.
pub type ibv_port_cap_flags2 = c_uint;
pub const IBV_PORT_SET_NODE_DESC_SUP: ibv_port_cap_flags2 = 1 << 0;
pub const IBV_PORT_INFO_EXT_SUP: ibv_port_cap_flags2 = 1 << 1;
pub const IBV_PORT_VIRT_SUP: ibv_port_cap_flags2 = 1 << 2;
pub const IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP: ibv_port_cap_flags2 = 1 << 3;
pub const IBV_PORT_LINK_WIDTH_2X_SUP: ibv_port_cap_flags2 = 1 << 4;
pub const IBV_PORT_LINK_SPEED_HDR_SUP: ibv_port_cap_flags2 = 1 << 5;
pub const IBV_PORT_LINK_SPEED_NDR_SUP: ibv_port_cap_flags2 = 1 << 10;
pub const IBV_PORT_LINK_SPEED_XDR_SUP: ibv_port_cap_flags2 = 1 << 12;

// Bits of `ibv_port_attr.flags`.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1 << 0;

/// State and limits of a port (`ibv_query_port(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    /// Host byte order.
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// Since rdma-core 49; older callers pass 52 bytes.
    pub active_speed_ex: u32,
}
layout!(ibv_port_attr: 56 {
    state @ 0, max_mtu @ 4, active_mtu @ 8, gid_tbl_len @ 12, port_cap_flags @ 16, max_msg_sz @ 20,
    bad_pkey_cntr @ 24, qkey_viol_cntr @ 28, pkey_tbl_len @ 32, lid @ 34, sm_lid @ 36, lmc @ 38,
    max_vl_num @ 39, sm_sl @ 40, subnet_timeout @ 41, init_type_reply @ 42, active_width @ 43,
    active_speed @ 44, phys_state @ 45, link_layer @ 46, flags @ 47, port_cap_flags2 @ 48,
    active_speed_ex @ 52,
});

/// The part of [`ibv_port_attr`] that the exported `ibv_query_port` fills: it ends with `flags`, as
/// in libibverbs 1.1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct compat_ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
}
layout!(compat_ibv_port_attr: 48 {
    state @ 0, max_mtu @ 4, active_mtu @ 8, gid_tbl_len @ 12, port_cap_flags @ 16, max_msg_sz @ 20,
    bad_pkey_cntr @ 24, qkey_viol_cntr @ 28, pkey_tbl_len @ 32, lid @ 34, sm_lid @ 36, lmc @ 38,
    max_vl_num @ 39, sm_sl @ 40, subnet_timeout @ 41, init_type_reply @ 42, active_width @ 43,
    active_speed @ 44, phys_state @ 45, link_layer @ 46, flags @ 47,
});
