//! Commands to the kernel's connection manager, `/dev/infiniband/rdma_cm`: `<rdma/rdma_user_cm.h>`.
//! A command is one write(2) of [`rdma_ucm_cmd_hdr`] and its structure; the kernel writes the
//! answer to the address in `response`.
//!
//! Map of this file: the numbers of the commands, the header, then the structures of each command
//! and of its response.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the kernel header describes them."
)]

use core::ffi::{c_char, c_uint};

use super::ib_uverbs_ah_attr;
use crate::ib_user_path_rec;

pub const RDMA_USER_CM_ABI_VERSION: c_uint = 4;
pub const RDMA_MAX_PRIVATE_DATA: usize = 256;

// `rdma_ucm_cmd_hdr.cmd`
pub const RDMA_USER_CM_CMD_CREATE_ID: u32 = 0;
pub const RDMA_USER_CM_CMD_DESTROY_ID: u32 = 1;
pub const RDMA_USER_CM_CMD_BIND_IP: u32 = 2;
pub const RDMA_USER_CM_CMD_RESOLVE_IP: u32 = 3;
pub const RDMA_USER_CM_CMD_RESOLVE_ROUTE: u32 = 4;
pub const RDMA_USER_CM_CMD_QUERY_ROUTE: u32 = 5;
pub const RDMA_USER_CM_CMD_CONNECT: u32 = 6;
pub const RDMA_USER_CM_CMD_LISTEN: u32 = 7;
pub const RDMA_USER_CM_CMD_ACCEPT: u32 = 8;
pub const RDMA_USER_CM_CMD_REJECT: u32 = 9;
pub const RDMA_USER_CM_CMD_DISCONNECT: u32 = 10;
pub const RDMA_USER_CM_CMD_INIT_QP_ATTR: u32 = 11;
pub const RDMA_USER_CM_CMD_GET_EVENT: u32 = 12;
pub const RDMA_USER_CM_CMD_GET_OPTION: u32 = 13;
pub const RDMA_USER_CM_CMD_SET_OPTION: u32 = 14;
pub const RDMA_USER_CM_CMD_NOTIFY: u32 = 15;
pub const RDMA_USER_CM_CMD_JOIN_IP_MCAST: u32 = 16;
pub const RDMA_USER_CM_CMD_LEAVE_MCAST: u32 = 17;
pub const RDMA_USER_CM_CMD_MIGRATE_ID: u32 = 18;
pub const RDMA_USER_CM_CMD_QUERY: u32 = 19;
pub const RDMA_USER_CM_CMD_BIND: u32 = 20;
pub const RDMA_USER_CM_CMD_RESOLVE_ADDR: u32 = 21;
pub const RDMA_USER_CM_CMD_JOIN_MCAST: u32 = 22;
/// Of newer kernels.
pub const RDMA_USER_CM_CMD_WRITE_CM_EVENT: u32 = 24;

// `rdma_ucm_query.option`
pub const RDMA_USER_CM_QUERY_ADDR: u32 = 0;
pub const RDMA_USER_CM_QUERY_PATH: u32 = 1;
pub const RDMA_USER_CM_QUERY_GID: u32 = 2;

/// Any socket address, as the kernel's headers have it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct __kernel_sockaddr_storage {
    pub ss_family: u16,
    pub __data: [c_char; 126],
}
layout!(__kernel_sockaddr_storage: 128 { ss_family @ 0, __data @ 2 });

/// In front of each command.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_cmd_hdr {
    pub cmd: u32,
    pub in_: u16,
    pub out: u16,
}
layout!(rdma_ucm_cmd_hdr: 8 { cmd @ 0, in_ @ 4, out @ 6 });

/// Command `create_id`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_create_id {
    pub uid: u64,
    pub response: u64,
    pub ps: u16,
    pub qp_type: u8,
    pub reserved: [u8; 5],
}
layout!(rdma_ucm_create_id: 24 { uid @ 0, response @ 8, ps @ 16, qp_type @ 18, reserved @ 19 });

/// Answer to `create_id`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_create_id_resp {
    pub id: u32,
}
layout!(rdma_ucm_create_id_resp: 4 { id @ 0 });

/// Command `destroy_id`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_destroy_id {
    pub response: u64,
    pub id: u32,
    pub reserved: u32,
}
layout!(rdma_ucm_destroy_id: 16 { response @ 0, id @ 8, reserved @ 12 });

/// Answer to `destroy_id`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_destroy_id_resp {
    pub events_reported: u32,
}
layout!(rdma_ucm_destroy_id_resp: 4 { events_reported @ 0 });

/// Command `bind_ip`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_bind_ip {
    pub response: u64,
    pub addr: libc::sockaddr_in6,
    pub id: u32,
}
layout!(rdma_ucm_bind_ip: 40 { response @ 0, addr @ 8, id @ 36 });

/// Command `bind`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_bind {
    pub id: u32,
    pub addr_size: u16,
    pub reserved: u16,
    pub addr: __kernel_sockaddr_storage,
}
layout!(rdma_ucm_bind: 136 { id @ 0, addr_size @ 4, reserved @ 6, addr @ 8 });

/// Command `resolve_ip`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_resolve_ip {
    pub src_addr: libc::sockaddr_in6,
    pub dst_addr: libc::sockaddr_in6,
    pub id: u32,
    pub timeout_ms: u32,
}
layout!(rdma_ucm_resolve_ip: 64 { src_addr @ 0, dst_addr @ 28, id @ 56, timeout_ms @ 60 });

/// Command `resolve_addr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_resolve_addr {
    pub id: u32,
    pub timeout_ms: u32,
    pub src_size: u16,
    pub dst_size: u16,
    pub reserved: u32,
    pub src_addr: __kernel_sockaddr_storage,
    pub dst_addr: __kernel_sockaddr_storage,
}
layout!(rdma_ucm_resolve_addr: 272 {
    id @ 0, timeout_ms @ 4, src_size @ 8, dst_size @ 10, reserved @ 12, src_addr @ 16,
    dst_addr @ 144,
});

/// Command `resolve_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_resolve_route {
    pub id: u32,
    pub timeout_ms: u32,
}
layout!(rdma_ucm_resolve_route: 8 { id @ 0, timeout_ms @ 4 });

/// Command `query`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_query {
    pub response: u64,
    pub id: u32,
    pub option: u32,
}
layout!(rdma_ucm_query: 16 { response @ 0, id @ 8, option @ 12 });

/// Answer to `query_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_query_route_resp {
    pub node_guid: u64,
    pub ib_route: [ib_user_path_rec; 2],
    pub src_addr: libc::sockaddr_in6,
    pub dst_addr: libc::sockaddr_in6,
    pub num_paths: u32,
    pub port_num: u8,
    pub reserved: [u8; 3],
    pub ibdev_index: u32,
    pub reserved1: u32,
}
layout!(rdma_ucm_query_route_resp: 208 {
    node_guid @ 0, ib_route @ 8, src_addr @ 136, dst_addr @ 164, num_paths @ 192, port_num @ 196,
    reserved @ 197, ibdev_index @ 200, reserved1 @ 204,
});

/// Answer to `query_addr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_query_addr_resp {
    pub node_guid: u64,
    pub port_num: u8,
    pub reserved: u8,
    pub pkey: u16,
    pub src_size: u16,
    pub dst_size: u16,
    pub src_addr: __kernel_sockaddr_storage,
    pub dst_addr: __kernel_sockaddr_storage,
    pub ibdev_index: u32,
    pub reserved1: u32,
}
layout!(rdma_ucm_query_addr_resp: 280 {
    node_guid @ 0, port_num @ 8, reserved @ 9, pkey @ 10, src_size @ 12, dst_size @ 14,
    src_addr @ 16, dst_addr @ 144, ibdev_index @ 272, reserved1 @ 276,
});

/// Answer to a query of paths; as many `ib_path_rec_data` follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_query_path_resp {
    pub num_paths: u32,
    pub reserved: u32,
}
layout!(rdma_ucm_query_path_resp: 8 { num_paths @ 0, reserved @ 4 });

/// The parameters of a connection.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_conn_param {
    pub qp_num: u32,
    pub qkey: u32,
    pub private_data: [u8; RDMA_MAX_PRIVATE_DATA],
    pub private_data_len: u8,
    pub srq: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub valid: u8,
}
layout!(rdma_ucm_conn_param: 272 {
    qp_num @ 0, qkey @ 4, private_data @ 8, private_data_len @ 264, srq @ 265,
    responder_resources @ 266, initiator_depth @ 267, flow_control @ 268, retry_count @ 269,
    rnr_retry_count @ 270, valid @ 271,
});

/// The destination of datagrams.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_ud_param {
    pub qp_num: u32,
    pub qkey: u32,
    pub ah_attr: ib_uverbs_ah_attr,
    pub private_data: [u8; RDMA_MAX_PRIVATE_DATA],
    pub private_data_len: u8,
    pub reserved: [u8; 7],
}
layout!(rdma_ucm_ud_param: 304 {
    qp_num @ 0, qkey @ 4, ah_attr @ 8, private_data @ 40, private_data_len @ 296, reserved @ 297,
});

/// Enhanced connection establishment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_ece {
    pub vendor_id: u32,
    pub attr_mod: u32,
}
layout!(rdma_ucm_ece: 8 { vendor_id @ 0, attr_mod @ 4 });

/// Command `connect`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_connect {
    pub conn_param: rdma_ucm_conn_param,
    pub id: u32,
    pub reserved: u32,
    pub ece: rdma_ucm_ece,
}
layout!(rdma_ucm_connect: 288 { conn_param @ 0, id @ 272, reserved @ 276, ece @ 280 });

/// Command `listen`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_listen {
    pub id: u32,
    pub backlog: u32,
}
layout!(rdma_ucm_listen: 8 { id @ 0, backlog @ 4 });

/// Command `accept`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_accept {
    pub uid: u64,
    pub conn_param: rdma_ucm_conn_param,
    pub id: u32,
    pub reserved: u32,
    pub ece: rdma_ucm_ece,
}
layout!(rdma_ucm_accept: 296 { uid @ 0, conn_param @ 8, id @ 280, reserved @ 284, ece @ 288 });

/// Command `reject`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_reject {
    pub id: u32,
    pub private_data_len: u8,
    pub reason: u8,
    pub reserved: [u8; 2],
    pub private_data: [u8; RDMA_MAX_PRIVATE_DATA],
}
layout!(rdma_ucm_reject: 264 {
    id @ 0, private_data_len @ 4, reason @ 5, reserved @ 6, private_data @ 8,
});

/// Command `disconnect`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_disconnect {
    pub id: u32,
}
layout!(rdma_ucm_disconnect: 4 { id @ 0 });

/// Command `init_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_init_qp_attr {
    pub response: u64,
    pub id: u32,
    pub qp_state: u32,
}
layout!(rdma_ucm_init_qp_attr: 16 { response @ 0, id @ 8, qp_state @ 12 });

/// Command `notify`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_notify {
    pub id: u32,
    pub event: u32,
}
layout!(rdma_ucm_notify: 8 { id @ 0, event @ 4 });

/// Command `join_ip_mcast`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_join_ip_mcast {
    pub response: u64,
    pub uid: u64,
    pub addr: libc::sockaddr_in6,
    pub id: u32,
}
layout!(rdma_ucm_join_ip_mcast: 48 { response @ 0, uid @ 8, addr @ 16, id @ 44 });

/// Command `join_mcast`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_join_mcast {
    pub response: u64,
    pub uid: u64,
    pub id: u32,
    pub addr_size: u16,
    pub join_flags: u16,
    pub addr: __kernel_sockaddr_storage,
}
layout!(rdma_ucm_join_mcast: 152 {
    response @ 0, uid @ 8, id @ 16, addr_size @ 20, join_flags @ 22, addr @ 24,
});

/// Command `get_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_get_event {
    pub response: u64,
}
layout!(rdma_ucm_get_event: 8 { response @ 0 });

/// The parameters of an event, by the port space of the identifier. Not aligned to 8 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_ucm_event_resp_param {
    pub conn: rdma_ucm_conn_param,
    pub ud: rdma_ucm_ud_param,
}
opaque_debug!(rdma_ucm_event_resp_param);
layout!(rdma_ucm_event_resp_param: 304 { conn @ 0, ud @ 0 });

/// An event.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_event_resp {
    pub uid: u64,
    pub id: u32,
    pub event: u32,
    pub status: u32,
    pub param: rdma_ucm_event_resp_param,
    pub reserved: u32,
    pub ece: rdma_ucm_ece,
}
layout!(rdma_ucm_event_resp: 336 {
    uid @ 0, id @ 8, event @ 12, status @ 16, param @ 20, reserved @ 324, ece @ 328,
});

/// Command `set_option`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_set_option {
    pub optval: u64,
    pub id: u32,
    pub level: u32,
    pub optname: u32,
    pub optlen: u32,
}
layout!(rdma_ucm_set_option: 24 { optval @ 0, id @ 8, level @ 12, optname @ 16, optlen @ 20 });

/// Command `migrate_id`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_migrate_id {
    pub response: u64,
    pub id: u32,
    pub fd: u32,
}
layout!(rdma_ucm_migrate_id: 16 { response @ 0, id @ 8, fd @ 12 });

/// Answer to `migrate`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_migrate_resp {
    pub events_reported: u32,
}
layout!(rdma_ucm_migrate_resp: 4 { events_reported @ 0 });

/// The data of an event that a program created.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_ucm_write_cm_event_param {
    pub conn: rdma_ucm_conn_param,
    pub ud: rdma_ucm_ud_param,
    pub arg: u64,
}
opaque_debug!(rdma_ucm_write_cm_event_param);
layout!(rdma_ucm_write_cm_event_param: 304 { conn @ 0, ud @ 0, arg @ 0 });

/// Command `write_cm_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ucm_write_cm_event {
    pub id: u32,
    pub reserved: u32,
    pub event: u32,
    pub status: u32,
    pub param: rdma_ucm_write_cm_event_param,
}
layout!(rdma_ucm_write_cm_event: 320 {
    id @ 0, reserved @ 4, event @ 8, status @ 12, param @ 16,
});
