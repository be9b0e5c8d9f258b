//! The export table of `librdmacm.so.1`: one row for each versioned name.
//! `build.rs` reads the rows and writes the version map; a row therefore stays on one line.

use crate::calls::{options, resolve};
use crate::layers::{TABLE, Table};
use crate::rsocket;

// Functions that a layer can intercept.
cface::exports_through! {
    TABLE, Table;
    "rdma_accept" "@@" "RDMACM_1.0" => accept;
    "rdma_ack_cm_event" "@@" "RDMACM_1.0" => ack_cm_event;
    "rdma_bind_addr" "@@" "RDMACM_1.0" => bind_addr;
    "rdma_connect" "@@" "RDMACM_1.0" => connect;
    "rdma_create_ep" "@@" "RDMACM_1.0" => create_ep;
    "rdma_create_event_channel" "@@" "RDMACM_1.0" => create_event_channel;
    "rdma_create_id" "@@" "RDMACM_1.0" => create_id;
    "rdma_create_qp" "@@" "RDMACM_1.0" => create_qp;
    "rdma_create_qp_ex" "@@" "RDMACM_1.0" => create_qp_ex;
    "rdma_create_srq" "@@" "RDMACM_1.0" => create_srq;
    "rdma_create_srq_ex" "@@" "RDMACM_1.0" => create_srq_ex;
    "rdma_destroy_ep" "@@" "RDMACM_1.0" => destroy_ep;
    "rdma_destroy_event_channel" "@@" "RDMACM_1.0" => destroy_event_channel;
    "rdma_destroy_id" "@@" "RDMACM_1.0" => destroy_id;
    "rdma_destroy_qp" "@@" "RDMACM_1.0" => destroy_qp;
    "rdma_destroy_srq" "@@" "RDMACM_1.0" => destroy_srq;
    "rdma_disconnect" "@@" "RDMACM_1.0" => disconnect;
    "rdma_free_devices" "@@" "RDMACM_1.0" => free_devices;
    "rdma_freeaddrinfo" "@@" "RDMACM_1.0" => freeaddrinfo;
    "rdma_get_cm_event" "@@" "RDMACM_1.0" => get_cm_event;
    "rdma_get_devices" "@@" "RDMACM_1.0" => get_devices;
    "rdma_get_request" "@@" "RDMACM_1.0" => get_request;
    "rdma_getaddrinfo" "@@" "RDMACM_1.0" => getaddrinfo;
    "rdma_join_multicast" "@@" "RDMACM_1.0" => join_multicast;
    "rdma_leave_multicast" "@@" "RDMACM_1.0" => leave_multicast;
    "rdma_listen" "@@" "RDMACM_1.0" => listen;
    "rdma_migrate_id" "@@" "RDMACM_1.0" => migrate_id;
    "rdma_notify" "@@" "RDMACM_1.0" => notify;
    "rdma_reject" "@@" "RDMACM_1.0" => reject;
    "rdma_resolve_addr" "@@" "RDMACM_1.0" => resolve_addr;
    "rdma_resolve_route" "@@" "RDMACM_1.0" => resolve_route;
    "rdma_set_option" "@@" "RDMACM_1.0" => set_option;
    "rdma_join_multicast_ex" "@@" "RDMACM_1.1" => join_multicast_ex;
    "rdma_establish" "@@" "RDMACM_1.2" => establish;
    "rdma_init_qp_attr" "@@" "RDMACM_1.2" => init_qp_attr;
    "rdma_get_remote_ece" "@@" "RDMACM_1.3" => get_remote_ece;
    "rdma_reject_ece" "@@" "RDMACM_1.3" => reject_ece;
    "rdma_set_local_ece" "@@" "RDMACM_1.3" => set_local_ece;
    "rdma_query_addrinfo" "@@" "RDMACM_1.4" => query_addrinfo;
    "rdma_resolve_addrinfo" "@@" "RDMACM_1.4" => resolve_addrinfo;
    "rdma_write_cm_event" "@@" "RDMACM_1.4" => write_cm_event;
}

cface::exports! {
    "raccept" "@@" "RDMACM_1.0" => rsocket::entry::raccept;
    "rbind" "@@" "RDMACM_1.0" => rsocket::entry::rbind;
    "rclose" "@@" "RDMACM_1.0" => rsocket::end::rclose;
    "rconnect" "@@" "RDMACM_1.0" => rsocket::entry::rconnect;
    "rdma_event_str" "@@" "RDMACM_1.0" => options::event_str;
    "rdma_get_dst_port" "@@" "RDMACM_1.0" => resolve::dst_port;
    "rdma_get_src_port" "@@" "RDMACM_1.0" => resolve::src_port;
    "rfcntl" "@@" "RDMACM_1.0" => rsocket::options::rfcntl;
    "rgetpeername" "@@" "RDMACM_1.0" => rsocket::entry::rgetpeername;
    "rgetsockname" "@@" "RDMACM_1.0" => rsocket::entry::rgetsockname;
    "rgetsockopt" "@@" "RDMACM_1.0" => rsocket::entry::rgetsockopt;
    "riomap" "@@" "RDMACM_1.0" => rsocket::entry::riomap;
    "riounmap" "@@" "RDMACM_1.0" => rsocket::entry::riounmap;
    "riowrite" "@@" "RDMACM_1.0" => rsocket::entry::riowrite;
    "rlisten" "@@" "RDMACM_1.0" => rsocket::connect::rlisten;
    "rpoll" "@@" "RDMACM_1.0" => rsocket::entry::rpoll;
    "rread" "@@" "RDMACM_1.0" => rsocket::entry::rread;
    "rreadv" "@@" "RDMACM_1.0" => rsocket::entry::rreadv;
    "rrecv" "@@" "RDMACM_1.0" => rsocket::entry::rrecv;
    "rrecvfrom" "@@" "RDMACM_1.0" => rsocket::entry::rrecvfrom;
    "rrecvmsg" "@@" "RDMACM_1.0" => rsocket::entry::rrecvmsg;
    "rselect" "@@" "RDMACM_1.0" => rsocket::entry::rselect;
    "rsend" "@@" "RDMACM_1.0" => rsocket::entry::rsend;
    "rsendmsg" "@@" "RDMACM_1.0" => rsocket::entry::rsendmsg;
    "rsendto" "@@" "RDMACM_1.0" => rsocket::entry::rsendto;
    "rsetsockopt" "@@" "RDMACM_1.0" => rsocket::entry::rsetsockopt;
    "rshutdown" "@@" "RDMACM_1.0" => rsocket::end::rshutdown;
    "rsocket" "@@" "RDMACM_1.0" => rsocket::connect::rsocket;
    "rwrite" "@@" "RDMACM_1.0" => rsocket::entry::rwrite;
    "rwritev" "@@" "RDMACM_1.0" => rsocket::entry::rwritev;
    "repoll_create" "@@" "RDMACM_1.5" => rsocket::set::create;
    "repoll_ctl" "@@" "RDMACM_1.5" => rsocket::entry::repoll_ctl;
    "repoll_wait" "@@" "RDMACM_1.5" => rsocket::entry::repoll_wait;
}
