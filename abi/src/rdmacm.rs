//! The types of librdmacm: `<rdma/rdma_cma.h>`, `<rdma/rsocket.h>` (rdma-core 44 to 65). The
//! functions of the library are in `rdmacm_functions.rs`, and its kernel interface is in
//! `kernel/rdmacm.rs`.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::{
    be16, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_qp_type,
    ibv_sa_path_rec, ibv_srq,
};

/// The kind of an event of an id: `rdma_get_cm_event(3)`.
pub type rdma_cm_event_type = c_uint;
pub const RDMA_CM_EVENT_ADDR_RESOLVED: rdma_cm_event_type = 0;
pub const RDMA_CM_EVENT_ADDR_ERROR: rdma_cm_event_type = 1;
pub const RDMA_CM_EVENT_ROUTE_RESOLVED: rdma_cm_event_type = 2;
pub const RDMA_CM_EVENT_ROUTE_ERROR: rdma_cm_event_type = 3;
pub const RDMA_CM_EVENT_CONNECT_REQUEST: rdma_cm_event_type = 4;
pub const RDMA_CM_EVENT_CONNECT_RESPONSE: rdma_cm_event_type = 5;
pub const RDMA_CM_EVENT_CONNECT_ERROR: rdma_cm_event_type = 6;
pub const RDMA_CM_EVENT_UNREACHABLE: rdma_cm_event_type = 7;
pub const RDMA_CM_EVENT_REJECTED: rdma_cm_event_type = 8;
pub const RDMA_CM_EVENT_ESTABLISHED: rdma_cm_event_type = 9;
pub const RDMA_CM_EVENT_DISCONNECTED: rdma_cm_event_type = 10;
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: rdma_cm_event_type = 11;
pub const RDMA_CM_EVENT_MULTICAST_JOIN: rdma_cm_event_type = 12;
pub const RDMA_CM_EVENT_MULTICAST_ERROR: rdma_cm_event_type = 13;
pub const RDMA_CM_EVENT_ADDR_CHANGE: rdma_cm_event_type = 14;
pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma_cm_event_type = 15;
pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: rdma_cm_event_type = 16;
pub const RDMA_CM_EVENT_ADDRINFO_ERROR: rdma_cm_event_type = 17;
pub const RDMA_CM_EVENT_USER: rdma_cm_event_type = 18;
pub const RDMA_CM_EVENT_INTERNAL: rdma_cm_event_type = 19;

/// A space of ports: `rdma_create_id(3)`.
pub type rdma_port_space = c_uint;
pub const RDMA_PS_IPOIB: rdma_port_space = 0x0002;
pub const RDMA_PS_TCP: rdma_port_space = 0x0106;
pub const RDMA_PS_UDP: rdma_port_space = 0x0111;
pub const RDMA_PS_IB: rdma_port_space = 0x013f;

// Services of the port spaces (IBTA 1.7 A11).
pub const RDMA_IB_IP_PS_MASK: u64 = 0xffff_ffff_ffff_0000;
pub const RDMA_IB_IP_PORT_MASK: u64 = 0xffff;
pub const RDMA_IB_IP_PS_TCP: u64 = 0x0106_0000;
pub const RDMA_IB_IP_PS_UDP: u64 = 0x0111_0000;
pub const RDMA_IB_PS_IB: u64 = 0x013f_0000;

/// The Q_Key of datagrams between ids.
pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;

/// The InfiniBand addresses of an id.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: be16,
}
layout!(rdma_ib_addr: 40 { sgid @ 0, dgid @ 16, pkey @ 32 });

/// The addresses of an id; C has more names for the first two.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_addr {
    pub src_storage: libc::sockaddr_storage,
    pub dst_storage: libc::sockaddr_storage,
    /// In C, a union with this member.
    pub addr: rdma_ib_addr,
}
layout!(rdma_addr: 296 { src_storage @ 0, dst_storage @ 128, addr @ 256 });

/// The route of an id: `rdma_resolve_route(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}
layout!(rdma_route: 312 { addr @ 0, path_rec @ 296, num_paths @ 304 });

/// Where events come: `rdma_create_event_channel(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_event_channel {
    pub fd: c_int,
}
layout!(rdma_event_channel: 4 { fd @ 0 });

/// An id: `rdma_create_id(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: ibv_qp_type,
}
layout!(rdma_cm_id: 416 {
    verbs @ 0, channel @ 8, context @ 16, qp @ 24, route @ 32, ps @ 344, port_num @ 348,
    event @ 352, send_cq_channel @ 360, send_cq @ 368, recv_cq_channel @ 376, recv_cq @ 384,
    srq @ 392, pd @ 400, qp_type @ 408,
});

// The largest values of any device.
pub const RDMA_MAX_RESP_RES: c_uint = 0xff;
pub const RDMA_MAX_INIT_DEPTH: c_uint = 0xff;

/// The parameters of a connection: `rdma_connect(3)`, `rdma_accept(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}
layout!(rdma_conn_param: 24 {
    private_data @ 0, private_data_len @ 8, responder_resources @ 9, initiator_depth @ 10,
    flow_control @ 11, retry_count @ 12, rnr_retry_count @ 13, srq @ 14, qp_num @ 16,
});

/// The destination of datagrams: `rdma_get_cm_event(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}
layout!(rdma_ud_param: 56 {
    private_data @ 0, private_data_len @ 8, ah_attr @ 16, qp_num @ 48, qkey @ 52,
});

/// The parameters of an event, by the port space of the identifier.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    /// Of `RDMA_CM_EVENT_USER`.
    pub arg: u64,
}
opaque_debug!(rdma_cm_event_param);
layout!(rdma_cm_event_param: 56 { conn @ 0, ud @ 0, arg @ 0 });

/// An event: `rdma_get_cm_event(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type,
    pub status: c_int,
    pub param: rdma_cm_event_param,
}
layout!(rdma_cm_event: 80 { id @ 0, listen_id @ 8, event @ 16, status @ 20, param @ 24 });

// `rdma_addrinfo.ai_flags`
pub const RAI_PASSIVE: c_int = 0x01;
pub const RAI_NUMERICHOST: c_int = 0x02;
pub const RAI_NOROUTE: c_int = 0x04;
pub const RAI_FAMILY: c_int = 0x08;
pub const RAI_SA: c_int = 0x10;
pub const RAI_DNS: c_int = 0x20;

/// Addresses of a name: `rdma_getaddrinfo(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: libc::socklen_t,
    pub ai_dst_len: libc::socklen_t,
    pub ai_src_addr: *mut libc::sockaddr,
    pub ai_dst_addr: *mut libc::sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut rdma_addrinfo,
}
layout!(rdma_addrinfo: 96 {
    ai_flags @ 0, ai_family @ 4, ai_qp_type @ 8, ai_port_space @ 12, ai_src_len @ 16,
    ai_dst_len @ 20, ai_src_addr @ 24, ai_dst_addr @ 32, ai_src_canonname @ 40,
    ai_dst_canonname @ 48, ai_route_len @ 56, ai_route @ 64, ai_connect_len @ 72, ai_connect @ 80,
    ai_next @ 88,
});

/// Which members of [`rdma_cm_join_mc_attr_ex`] count.
pub type rdma_cm_join_mc_attr_mask = c_uint;
pub const RDMA_CM_JOIN_MC_ATTR_ADDRESS: rdma_cm_join_mc_attr_mask = 1;
pub const RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: rdma_cm_join_mc_attr_mask = 2;
pub const RDMA_CM_JOIN_MC_ATTR_RESERVED: rdma_cm_join_mc_attr_mask = 4;

/// The role of a member of a multicast group.
pub type rdma_cm_mc_join_flags = c_uint;
pub const RDMA_MC_JOIN_FLAG_FULLMEMBER: rdma_cm_mc_join_flags = 0;
pub const RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: rdma_cm_mc_join_flags = 1;
pub const RDMA_MC_JOIN_FLAG_RESERVED: rdma_cm_mc_join_flags = 2;

/// A multicast group: `rdma_join_multicast_ex(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}
layout!(rdma_cm_join_mc_attr_ex: 16 { comp_mask @ 0, join_flags @ 4, addr @ 8 });

// Levels and options of `rdma_set_option(3)`.
pub const RDMA_OPTION_ID: c_int = 0;
pub const RDMA_OPTION_IB: c_int = 1;
pub const RDMA_OPTION_ID_TOS: c_int = 0;
pub const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
pub const RDMA_OPTION_ID_AFONLY: c_int = 2;
pub const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
pub const RDMA_OPTION_IB_PATH: c_int = 1;

// Level and options of rsockets: `rsocket(7)`.
pub const SOL_RDMA: c_int = 0x10000;
pub const RDMA_SQSIZE: c_int = 0;
pub const RDMA_RQSIZE: c_int = 1;
pub const RDMA_INLINE: c_int = 2;
pub const RDMA_IOMAPSIZE: c_int = 3;
pub const RDMA_ROUTE: c_int = 4;
