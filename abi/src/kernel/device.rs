//! Context, device, PD, AH and event parts of the uverbs ABI: `<rdma/ib_user_verbs.h>`, bodies
//! without the command header.
//!
//! Map of this file: the numbers of commands, then the structures in the order of their names; the
//! header of extended commands is last.
#![allow(missing_docs, reason = "Names are those of the kernel headers, which describe them.")]

use crate::{be64, ib_uverbs_cq_moderation_caps};

// Older numbers that only abi versions 3 to 5 use.
pub const IB_USER_VERBS_CMD_CREATE_QP_V3: u32 = 24;
pub const IB_USER_VERBS_CMD_CREATE_QP_V4: u32 = 24;
pub const IB_USER_VERBS_CMD_CREATE_SRQ_V5: u32 = 32;
pub const IB_USER_VERBS_CMD_MODIFY_SRQ_V3: u32 = 33;

/// Marks an extended write command.
pub const IB_USER_VERBS_CMD_FLAG_EXTENDED: u32 = 0x8000_0000;
pub const IB_USER_VERBS_EX_CMD_QUERY_DEVICE: u32 = 1;
pub const IB_USER_VERBS_EX_CMD_CREATE_CQ: u32 = 18;
pub const IB_USER_VERBS_EX_CMD_CREATE_QP: u32 = 24;
pub const IB_USER_VERBS_EX_CMD_MODIFY_QP: u32 = 26;
pub const IB_USER_VERBS_EX_CMD_CREATE_FLOW: u32 = 50;
pub const IB_USER_VERBS_EX_CMD_DESTROY_FLOW: u32 = 51;
pub const IB_USER_VERBS_EX_CMD_CREATE_WQ: u32 = 52;
pub const IB_USER_VERBS_EX_CMD_MODIFY_WQ: u32 = 53;
pub const IB_USER_VERBS_EX_CMD_DESTROY_WQ: u32 = 54;
pub const IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL: u32 = 55;
pub const IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL: u32 = 56;
pub const IB_USER_VERBS_EX_CMD_MODIFY_CQ: u32 = 57;

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ah_attr {
    pub grh: ib_uverbs_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
    pub reserved: u8,
}
layout!(ib_uverbs_ah_attr: 32 {
    grh @ 0, dlid @ 24, sl @ 26, src_path_bits @ 27, static_rate @ 28, is_global @ 29,
    port_num @ 30, reserved @ 31,
});

/// `struct ib_uverbs_alloc_pd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_alloc_pd {
    pub response: u64,
}
layout!(ib_uverbs_alloc_pd: 8 { response @ 0 });

/// `struct ib_uverbs_alloc_pd_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_alloc_pd_resp {
    pub pd_handle: u32,
}
layout!(ib_uverbs_alloc_pd_resp: 4 { pd_handle @ 0 });

/// `struct ib_uverbs_async_event_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_async_event_desc {
    pub element: u64,
    pub event_type: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_async_event_desc: 16 { element @ 0, event_type @ 8, reserved @ 12 });

/// `struct ib_uverbs_clock_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_clock_info {
    pub sign: u32,
    pub resv: u32,
    pub nsec: u64,
    pub cycles: u64,
    pub frac: u64,
    pub mult: u32,
    pub shift: u32,
    pub mask: u64,
    pub overflow_period: u64,
}
layout!(ib_uverbs_clock_info: 56 {
    sign @ 0, resv @ 4, nsec @ 8, cycles @ 16, frac @ 24, mult @ 32, shift @ 36, mask @ 40,
    overflow_period @ 48,
});

/// `struct ib_uverbs_close_xrcd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_close_xrcd {
    pub xrcd_handle: u32,
}
layout!(ib_uverbs_close_xrcd: 4 { xrcd_handle @ 0 });

/// `struct ib_uverbs_cmd_hdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_cmd_hdr {
    pub command: u32,
    pub in_words: u16,
    pub out_words: u16,
}
layout!(ib_uverbs_cmd_hdr: 8 { command @ 0, in_words @ 4, out_words @ 6 });

/// `struct ib_uverbs_comp_event_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_comp_event_desc {
    pub cq_handle: u64,
}
layout!(ib_uverbs_comp_event_desc: 8 { cq_handle @ 0 });

/// `struct ib_uverbs_create_ah`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_create_ah {
    pub response: u64,
    pub user_handle: u64,
    pub pd_handle: u32,
    pub reserved: u32,
    pub attr: ib_uverbs_ah_attr,
}
layout!(ib_uverbs_create_ah: 56 {
    response @ 0, user_handle @ 8, pd_handle @ 16, reserved @ 20, attr @ 24,
});

/// `struct ib_uverbs_create_ah_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_create_ah_resp {
    pub ah_handle: u32,
}
layout!(ib_uverbs_create_ah_resp: 4 { ah_handle @ 0 });

/// `struct ib_uverbs_create_comp_channel`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_create_comp_channel {
    pub response: u64,
}
layout!(ib_uverbs_create_comp_channel: 8 { response @ 0 });

/// `struct ib_uverbs_create_comp_channel_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_create_comp_channel_resp {
    pub fd: u32,
}
layout!(ib_uverbs_create_comp_channel_resp: 4 { fd @ 0 });

/// `struct ib_uverbs_dealloc_pd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_dealloc_pd {
    pub pd_handle: u32,
}
layout!(ib_uverbs_dealloc_pd: 4 { pd_handle @ 0 });

/// `struct ib_uverbs_destroy_ah`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_destroy_ah {
    pub ah_handle: u32,
}
layout!(ib_uverbs_destroy_ah: 4 { ah_handle @ 0 });

/// `struct ib_uverbs_ex_cmd_hdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_cmd_hdr {
    pub response: u64,
    pub provider_in_words: u16,
    pub provider_out_words: u16,
    pub cmd_hdr_reserved: u32,
}
layout!(ib_uverbs_ex_cmd_hdr: 16 {
    response @ 0, provider_in_words @ 8, provider_out_words @ 10, cmd_hdr_reserved @ 12,
});

/// `struct ib_uverbs_ex_query_device`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_query_device {
    pub comp_mask: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_ex_query_device: 8 { comp_mask @ 0, reserved @ 4 });

/// `struct ib_uverbs_ex_query_device_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_ex_query_device_resp {
    pub base: ib_uverbs_query_device_resp,
    pub comp_mask: u32,
    pub response_length: u32,
    pub odp_caps: ib_uverbs_odp_caps,
    pub timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub rss_caps: ib_uverbs_rss_caps,
    pub max_wq_type_rq: u32,
    pub raw_packet_caps: u32,
    pub tm_caps: ib_uverbs_tm_caps,
    pub cq_moderation_caps: ib_uverbs_cq_moderation_caps,
    pub max_dm_size: u64,
    pub xrc_odp_caps: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_ex_query_device_resp: 304 {
    base @ 0, comp_mask @ 176, response_length @ 180, odp_caps @ 184, timestamp_mask @ 208,
    hca_core_clock @ 216, device_cap_flags_ex @ 224, rss_caps @ 232, max_wq_type_rq @ 248,
    raw_packet_caps @ 252, tm_caps @ 256, cq_moderation_caps @ 280, max_dm_size @ 288,
    xrc_odp_caps @ 296, reserved @ 300,
});

/// `struct ib_uverbs_get_context`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_get_context {
    pub response: u64,
}
layout!(ib_uverbs_get_context: 8 { response @ 0 });

/// `struct ib_uverbs_get_context_resp`: response.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_get_context_resp {
    pub async_fd: u32,
    pub num_comp_vectors: u32,
}
layout!(ib_uverbs_get_context_resp: 8 { async_fd @ 0, num_comp_vectors @ 4 });

/// `struct ib_uverbs_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_gid_entry {
    pub gid: [u64; 2],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub netdev_ifindex: u32,
}
layout!(ib_uverbs_gid_entry: 32 {
    gid @ 0, gid_index @ 16, port_num @ 20, gid_type @ 24, netdev_ifindex @ 28,
});

/// `struct ib_uverbs_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_global_route {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reserved: u8,
}
layout!(ib_uverbs_global_route: 24 {
    dgid @ 0, flow_label @ 16, sgid_index @ 20, hop_limit @ 21, traffic_class @ 22, reserved @ 23,
});

/// Per-transport masks of `struct ib_uverbs_odp_caps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_odp_per_transport_caps {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}
layout!(ib_uverbs_odp_per_transport_caps: 12 { rc_odp_caps @ 0, uc_odp_caps @ 4, ud_odp_caps @ 8 });

/// `struct ib_uverbs_odp_caps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_odp_caps {
    pub general_caps: u64,
    pub per_transport_caps: ib_uverbs_odp_per_transport_caps,
    pub reserved: u32,
}
layout!(ib_uverbs_odp_caps: 24 { general_caps @ 0, per_transport_caps @ 8, reserved @ 20 });

/// `struct ib_uverbs_open_xrcd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_open_xrcd {
    pub response: u64,
    pub fd: u32,
    pub oflags: u32,
}
layout!(ib_uverbs_open_xrcd: 16 { response @ 0, fd @ 8, oflags @ 12 });

/// `struct ib_uverbs_open_xrcd_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_open_xrcd_resp {
    pub xrcd_handle: u32,
}
layout!(ib_uverbs_open_xrcd_resp: 4 { xrcd_handle @ 0 });

/// `struct ib_uverbs_query_device`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_query_device {
    pub response: u64,
}
layout!(ib_uverbs_query_device: 8 { response @ 0 });

/// `struct ib_uverbs_query_device_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_query_device_resp {
    pub fw_ver: u64,
    pub node_guid: be64,
    pub sys_image_guid: be64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub device_cap_flags: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_ee_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_ee_init_rd_atom: u32,
    pub atomic_cap: u32,
    pub max_ee: u32,
    pub max_rdd: u32,
    pub max_mw: u32,
    pub max_raw_ipv6_qp: u32,
    pub max_raw_ethy_qp: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_fmr: u32,
    pub max_map_per_fmr: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
    pub reserved: [u8; 4],
}
layout!(ib_uverbs_query_device_resp: 176 {
    fw_ver @ 0, node_guid @ 8, sys_image_guid @ 16, max_mr_size @ 24, page_size_cap @ 32,
    vendor_id @ 40, vendor_part_id @ 44, hw_ver @ 48, max_qp @ 52, max_qp_wr @ 56,
    device_cap_flags @ 60, max_sge @ 64, max_sge_rd @ 68, max_cq @ 72, max_cqe @ 76, max_mr @ 80,
    max_pd @ 84, max_qp_rd_atom @ 88, max_ee_rd_atom @ 92, max_res_rd_atom @ 96,
    max_qp_init_rd_atom @ 100, max_ee_init_rd_atom @ 104, atomic_cap @ 108, max_ee @ 112,
    max_rdd @ 116, max_mw @ 120, max_raw_ipv6_qp @ 124, max_raw_ethy_qp @ 128, max_mcast_grp @ 132,
    max_mcast_qp_attach @ 136, max_total_mcast_qp_attach @ 140, max_ah @ 144, max_fmr @ 148,
    max_map_per_fmr @ 152, max_srq @ 156, max_srq_wr @ 160, max_srq_sge @ 164, max_pkeys @ 168,
    local_ca_ack_delay @ 170, phys_port_cnt @ 171, reserved @ 172,
});

/// `struct ib_uverbs_query_port`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_query_port {
    pub response: u64,
    pub port_num: u8,
    pub reserved: [u8; 7],
}
layout!(ib_uverbs_query_port: 16 { response @ 0, port_num @ 8, reserved @ 9 });

/// `struct ib_uverbs_query_port_resp`: response.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_query_port_resp {
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub gid_tbl_len: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub state: u8,
    pub max_mtu: u8,
    pub active_mtu: u8,
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
    pub reserved: u8,
}
layout!(ib_uverbs_query_port_resp: 40 {
    port_cap_flags @ 0, max_msg_sz @ 4, bad_pkey_cntr @ 8, qkey_viol_cntr @ 12, gid_tbl_len @ 16,
    pkey_tbl_len @ 20, lid @ 22, sm_lid @ 24, state @ 26, max_mtu @ 27, active_mtu @ 28, lmc @ 29,
    max_vl_num @ 30, sm_sl @ 31, subnet_timeout @ 32, init_type_reply @ 33, active_width @ 34,
    active_speed @ 35, phys_state @ 36, link_layer @ 37, flags @ 38, reserved @ 39,
});

/// `struct ib_uverbs_query_port_resp_ex`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_query_port_resp_ex {
    pub legacy_resp: ib_uverbs_query_port_resp,
    pub port_cap_flags2: u16,
    pub reserved: [u8; 2],
    pub active_speed_ex: u32,
}
layout!(ib_uverbs_query_port_resp_ex: 48 {
    legacy_resp @ 0, port_cap_flags2 @ 40, reserved @ 42, active_speed_ex @ 44,
});

/// `struct ib_uverbs_rss_caps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_rss_caps: 16 {
    supported_qpts @ 0, max_rwq_indirection_tables @ 4, max_rwq_indirection_table_size @ 8,
    reserved @ 12,
});

/// `struct ib_uverbs_tm_caps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_uverbs_tm_caps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
    pub reserved: u32,
}
layout!(ib_uverbs_tm_caps: 24 {
    max_rndv_hdr_size @ 0, max_num_tags @ 4, flags @ 8, max_ops @ 12, max_sge @ 16, reserved @ 20,
});

/// Both headers of an extended write command.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ex_hdr {
    pub hdr: ib_uverbs_cmd_hdr,
    pub ex_hdr: ib_uverbs_ex_cmd_hdr,
}
layout!(ex_hdr: 24 { hdr @ 0, ex_hdr @ 8 });
