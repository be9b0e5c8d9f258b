//! The calls that are recorded, and what the words of their records mean.

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number.
    Dec,
    /// A number whose bits matter: keys, addresses, ids.
    Hex,
    /// `ibv_wr_opcode`.
    Opcode,
    /// `ibv_send_flags`.
    SendFlags,
    /// `ibv_wc_status`.
    Status,
    /// `ibv_wc_opcode`.
    Completed,
    /// `ibv_qp_state`.
    State,
    /// `ibv_qp_type`.
    QpType,
    /// `ibv_access_flags`.
    Access,
    /// `ibv_mtu`: the bytes.
    Mtu,
    /// A GID: two words.
    Gid,
    /// `ibv_event_type`.
    Event,
    /// `rdma_cm_event_type`.
    CmEvent,
}
use Kind::{
    Access, CmEvent, Completed, Dec, Event, Gid, Hex, Mtu, Opcode, QpType, SendFlags, State, Status,
};

/// An argument: which bits of which word it is.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// As the manual page calls it.
    pub name: &'static str,
    /// How it is written.
    pub kind: Kind,
    pub(crate) word: u8,
    pub(crate) shift: u8,
    pub(crate) bits: u8,
    /// Of `ibv_modify_qp`: the bits of the mask that it is said by; 0 for always.
    pub(crate) mask: u32,
}

const fn part(word: u8, shift: u8, bits: u8, name: &'static str, kind: Kind) -> Arg {
    Arg { name, kind, word, shift, bits, mask: 0 }
}

const fn said(mask: u32, word: u8, shift: u8, bits: u8, name: &'static str, kind: Kind) -> Arg {
    Arg { name, kind, word, shift, bits, mask }
}

macro_rules! calls {
    ($($variant:ident $name:literal $args:expr;)+) => {
        /// A call that is recorded. The number is part of the format: new ones come last.
        #[allow(missing_docs, reason = "each has the name of its function")]
        #[allow(non_camel_case_types, reason = "as above")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Call { $($variant,)+ }

        impl Call {
            /// All of them, by their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// What a program calls.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Its arguments, those that are recorded.
            #[must_use]
            pub const fn args(self) -> &'static [Arg] {
                match self { $(Self::$variant => const { &$args },)+ }
            }
        }
    };
}

macro_rules! word {
    ($index:literal $name:literal $kind:expr) => {
        part($index, 0, 64, $name, $kind)
    };
}

macro_rules! words {
    () => { [] };
    ($a:literal $ka:expr) => { [word!(0 $a $ka)] };
    ($a:literal $ka:expr, $b:literal $kb:expr) => { [word!(0 $a $ka), word!(1 $b $kb)] };
    ($a:literal $ka:expr, $b:literal $kb:expr, $c:literal $kc:expr) => {
        [word!(0 $a $ka), word!(1 $b $kb), word!(2 $c $kc)]
    };
    ($a:literal $ka:expr, $b:literal $kb:expr, $c:literal $kc:expr, $d:literal $kd:expr) => {
        [word!(0 $a $ka), word!(1 $b $kb), word!(2 $c $kc), word!(3 $d $kd)]
    };
    ($a:literal $ka:expr, $b:literal $kb:expr, $c:literal $kc:expr, $d:literal $kd:expr, $e:literal $ke:expr) => {
        [word!(0 $a $ka), word!(1 $b $kb), word!(2 $c $kc), word!(3 $d $kd), word!(4 $e $ke)]
    };
    ($a:literal $ka:expr, $b:literal $kb:expr, $c:literal $kc:expr, $d:literal $kd:expr, $e:literal $ke:expr, $f:literal $kf:expr) => {
        [word!(0 $a $ka), word!(1 $b $kb), word!(2 $c $kc), word!(3 $d $kd), word!(4 $e $ke), word!(5 $f $kf)]
    };
}

/// A send request; `tap` packs it so.
const SEND: [Arg; 15] = [
    part(0, 0, 32, "qp", Hex),
    part(1, 0, 64, "wr_id", Hex),
    part(0, 32, 16, "opcode", Opcode),
    part(2, 0, 32, "send_flags", SendFlags),
    part(2, 32, 32, "num_sge", Dec),
    part(3, 0, 64, "bytes", Dec),
    part(4, 0, 64, "sge0_addr", Hex),
    part(5, 0, 32, "sge0_length", Dec),
    part(5, 32, 32, "sge0_lkey", Hex),
    part(6, 0, 64, "remote_addr", Hex),
    part(7, 0, 32, "rkey", Hex),
    part(7, 32, 32, "imm_data", Hex),
    part(9, 0, 32, "remote_qp", Hex),
    part(8, 0, 64, "message", Dec),
    part(10, 0, 1, "due", Dec),
];

const fn receive(queue: &'static str) -> [Arg; 7] {
    [
        part(0, 0, 64, queue, Hex),
        part(1, 0, 64, "wr_id", Hex),
        part(2, 32, 32, "num_sge", Dec),
        part(3, 0, 64, "bytes", Dec),
        part(4, 0, 64, "sge0_addr", Hex),
        part(5, 0, 32, "sge0_length", Dec),
        part(5, 32, 32, "sge0_lkey", Hex),
    ]
}

const COMPLETION: [Arg; 12] = [
    part(0, 0, 32, "qp", Hex),
    part(1, 0, 64, "wr_id", Hex),
    part(0, 32, 32, "status", Status),
    part(2, 0, 32, "opcode", Completed),
    part(2, 32, 32, "wc_flags", Hex),
    part(3, 0, 32, "byte_len", Dec),
    part(3, 32, 32, "vendor_err", Hex),
    part(4, 0, 32, "imm_data", Hex),
    part(4, 32, 32, "src_qp", Hex),
    part(5, 0, 64, "cq", Hex),
    part(6, 0, 64, "empty_polls", Dec),
    part(7, 0, 64, "message", Dec),
];

const CREATE_QP: [Arg; 11] = [
    part(0, 0, 32, "qp", Hex),
    part(0, 32, 32, "qp_type", QpType),
    part(1, 0, 64, "pd", Hex),
    part(2, 0, 64, "send_cq", Hex),
    part(3, 0, 64, "recv_cq", Hex),
    part(4, 0, 64, "srq", Hex),
    part(5, 0, 32, "max_send_wr", Dec),
    part(5, 32, 32, "max_recv_wr", Dec),
    part(6, 0, 32, "max_send_sge", Dec),
    part(6, 32, 32, "max_recv_sge", Dec),
    part(7, 0, 32, "max_inline_data", Dec),
];

const MODIFY_QP: [Arg; 23] = [
    part(0, 0, 32, "qp", Hex),
    part(0, 32, 32, "attr_mask", Hex),
    said(abi::IBV_QP_STATE, 1, 0, 8, "qp_state", State),
    said(abi::IBV_QP_CUR_STATE, 1, 8, 8, "cur_qp_state", State),
    said(abi::IBV_QP_PATH_MTU, 1, 16, 8, "path_mtu", Mtu),
    said(abi::IBV_QP_PORT, 1, 24, 8, "port_num", Dec),
    said(abi::IBV_QP_TIMEOUT, 1, 32, 8, "timeout", Dec),
    said(abi::IBV_QP_RETRY_CNT, 1, 40, 8, "retry_cnt", Dec),
    said(abi::IBV_QP_RNR_RETRY, 1, 48, 8, "rnr_retry", Dec),
    said(abi::IBV_QP_MIN_RNR_TIMER, 1, 56, 8, "min_rnr_timer", Dec),
    said(abi::IBV_QP_MAX_QP_RD_ATOMIC, 2, 0, 8, "max_rd_atomic", Dec),
    said(abi::IBV_QP_MAX_DEST_RD_ATOMIC, 2, 8, 8, "max_dest_rd_atomic", Dec),
    said(abi::IBV_QP_PKEY_INDEX, 2, 32, 16, "pkey_index", Dec),
    said(abi::IBV_QP_QKEY, 3, 32, 32, "qkey", Hex),
    said(abi::IBV_QP_DEST_QPN, 3, 0, 32, "dest_qp_num", Hex),
    said(abi::IBV_QP_RQ_PSN, 4, 0, 32, "rq_psn", Hex),
    said(abi::IBV_QP_SQ_PSN, 4, 32, 32, "sq_psn", Hex),
    said(abi::IBV_QP_ACCESS_FLAGS, 5, 0, 32, "qp_access_flags", Access),
    said(abi::IBV_QP_AV, 2, 48, 8, "is_global", Dec),
    said(abi::IBV_QP_AV, 2, 16, 8, "sgid_index", Dec),
    said(abi::IBV_QP_AV, 2, 24, 8, "hop_limit", Dec),
    said(abi::IBV_QP_AV, 5, 32, 16, "dlid", Dec),
    said(abi::IBV_QP_AV, 6, 0, 64, "dgid", Gid),
];

/// What a connection is asked for, or granted, with.
const CONNECTION: [Arg; 6] = [
    word!(0 "id" Hex),
    word!(1 "private_data_len" Dec),
    word!(2 "responder_resources" Dec),
    word!(3 "initiator_depth" Dec),
    word!(4 "rnr_retry_count" Dec),
    word!(5 "qp_num" Hex),
];

calls! {
    post_send "ibv_post_send" SEND;
    wr_post "ibv_wr_post" SEND;
    post_recv "ibv_post_recv" receive("qp");
    post_srq_recv "ibv_post_srq_recv" receive("srq");
    completion "completion" COMPLETION;
    create_qp "ibv_create_qp" CREATE_QP;
    create_qp_ex "ibv_create_qp_ex" CREATE_QP;
    modify_qp "ibv_modify_qp" MODIFY_QP;
    destroy_qp "ibv_destroy_qp" words!("qp" Hex);
    query_qp "ibv_query_qp" words!("qp" Hex, "attr_mask" Hex);
    alloc_pd "ibv_alloc_pd" words!("context" Hex);
    alloc_parent_domain "ibv_alloc_parent_domain" words!("context" Hex);
    dealloc_pd "ibv_dealloc_pd" words!("pd" Hex);
    alloc_td "ibv_alloc_td" words!("context" Hex);
    dealloc_td "ibv_dealloc_td" words!("td" Hex);
    reg_mr "ibv_reg_mr" [
        word!(0 "pd" Hex), word!(1 "addr" Hex), word!(2 "length" Dec), word!(3 "iova" Hex), word!(4 "access" Access),
        part(5, 0, 32, "lkey", Hex), part(5, 32, 32, "rkey", Hex),
    ];
    reg_mr_ex "ibv_reg_mr_ex" words!("pd" Hex);
    reg_dmabuf_mr "ibv_reg_dmabuf_mr" words!("pd" Hex, "offset" Hex, "length" Dec, "iova" Hex, "fd" Dec, "access" Access);
    reg_dm_mr "ibv_reg_dm_mr" words!("pd" Hex, "dm" Hex, "dm_offset" Hex, "length" Dec, "access" Access);
    rereg_mr "ibv_rereg_mr" words!("mr" Hex, "flags" Hex, "pd" Hex, "addr" Hex, "length" Dec, "access" Access);
    dereg_mr "ibv_dereg_mr" words!("mr" Hex, "lkey" Hex, "addr" Hex, "length" Dec);
    advise_mr "ibv_advise_mr" words!("pd" Hex, "advice" Dec, "flags" Hex, "sg_list" Hex, "num_sge" Dec);
    alloc_mw "ibv_alloc_mw" words!("pd" Hex, "type" Dec);
    bind_mw "ibv_bind_mw" words!("qp" Hex, "mw" Hex);
    dealloc_mw "ibv_dealloc_mw" words!("mw" Hex);
    create_cq "ibv_create_cq" words!("context" Hex, "cqe" Dec, "channel" Hex, "comp_vector" Dec);
    create_cq_ex "ibv_create_cq_ex" words!("context" Hex, "cqe" Dec, "channel" Hex, "comp_vector" Dec, "wc_flags" Hex);
    resize_cq "ibv_resize_cq" words!("cq" Hex, "cqe" Dec);
    modify_cq "ibv_modify_cq" words!("cq" Hex);
    req_notify_cq "ibv_req_notify_cq" words!("cq" Hex, "solicited_only" Dec);
    cq_event "ibv_get_cq_event" words!("cq" Hex);
    destroy_cq "ibv_destroy_cq" words!("cq" Hex);
    create_ah "ibv_create_ah" [
        part(0, 0, 64, "pd", Hex), part(1, 0, 8, "is_global", Dec), part(1, 8, 8, "sgid_index", Dec),
        part(1, 16, 8, "port_num", Dec), part(1, 32, 16, "dlid", Dec), part(2, 0, 64, "dgid", Gid),
    ];
    destroy_ah "ibv_destroy_ah" words!("ah" Hex);
    create_srq "ibv_create_srq" words!("pd" Hex, "max_wr" Dec, "max_sge" Dec);
    create_srq_ex "ibv_create_srq_ex" words!("context" Hex, "max_wr" Dec, "max_sge" Dec, "srq_type" Dec, "cq" Hex);
    modify_srq "ibv_modify_srq" words!("srq" Hex, "srq_attr_mask" Hex, "max_wr" Dec, "srq_limit" Dec);
    query_srq "ibv_query_srq" words!("srq" Hex);
    destroy_srq "ibv_destroy_srq" words!("srq" Hex);
    post_srq_ops "ibv_post_srq_ops" words!("srq" Hex);
    query_device_ex "ibv_query_device_ex" words!("context" Hex);
    query_port "ibv_query_port" words!("context" Hex, "port_num" Dec);
    query_rt_values "ibv_query_rt_values_ex" words!("context" Hex);
    async_event "ibv_get_async_event" words!("context" Hex, "event_type" Event, "element" Hex);
    attach_mcast "ibv_attach_mcast" [part(0, 0, 64, "qp", Hex), part(1, 0, 64, "gid", Gid), part(3, 0, 64, "lid", Dec)];
    detach_mcast "ibv_detach_mcast" [part(0, 0, 64, "qp", Hex), part(1, 0, 64, "gid", Gid), part(3, 0, 64, "lid", Dec)];
    open_xrcd "ibv_open_xrcd" words!("context" Hex);
    close_xrcd "ibv_close_xrcd" words!("xrcd" Hex);
    open_qp "ibv_open_qp" words!("context" Hex);
    create_wq "ibv_create_wq" words!("context" Hex);
    modify_wq "ibv_modify_wq" words!("wq" Hex);
    destroy_wq "ibv_destroy_wq" words!("wq" Hex);
    create_flow "ibv_create_flow" words!("qp" Hex);
    destroy_flow "ibv_destroy_flow" words!("flow" Hex);
    alloc_dm "ibv_alloc_dm" words!("context" Hex, "length" Dec);
    free_dm "ibv_free_dm" words!("dm" Hex);
    import_mr "ibv_import_mr" words!("pd" Hex, "mr_handle" Dec);
    import_pd "ibv_import_pd" words!("context" Hex, "pd_handle" Dec);
    free_context "ibv_close_device" words!("context" Hex);
    attach "ibv_open_device" [part(0, 0, 64, "context", Hex)];
    rdma_create_event_channel "rdma_create_event_channel" words!();
    rdma_destroy_event_channel "rdma_destroy_event_channel" words!("channel" Hex);
    rdma_get_cm_event "rdma_get_cm_event" words!("channel" Hex, "cm_event" Hex, "id" Hex, "event" CmEvent, "status" Dec, "listen_id" Hex);
    rdma_ack_cm_event "rdma_ack_cm_event" words!("cm_event" Hex, "id" Hex, "event" CmEvent);
    rdma_create_id "rdma_create_id" words!("channel" Hex, "id" Hex, "context" Hex, "ps" Hex);
    rdma_destroy_id "rdma_destroy_id" words!("id" Hex);
    rdma_migrate_id "rdma_migrate_id" words!("id" Hex, "channel" Hex);
    rdma_create_ep "rdma_create_ep" words!("id" Hex, "pd" Hex);
    rdma_destroy_ep "rdma_destroy_ep" words!("id" Hex);
    rdma_bind_addr "rdma_bind_addr" [word!(0 "id" Hex), word!(1 "addr" Gid), word!(3 "port" Dec)];
    rdma_resolve_addr "rdma_resolve_addr" [word!(0 "id" Hex), word!(1 "dst_addr" Gid), word!(3 "port" Dec), word!(4 "timeout_ms" Dec)];
    rdma_resolve_route "rdma_resolve_route" words!("id" Hex, "timeout_ms" Dec);
    rdma_create_qp "rdma_create_qp" words!("id" Hex, "pd" Hex, "qp" Hex);
    rdma_create_qp_ex "rdma_create_qp_ex" words!("id" Hex, "qp" Hex);
    rdma_destroy_qp "rdma_destroy_qp" words!("id" Hex);
    rdma_create_srq "rdma_create_srq" words!("id" Hex, "pd" Hex);
    rdma_create_srq_ex "rdma_create_srq_ex" words!("id" Hex);
    rdma_destroy_srq "rdma_destroy_srq" words!("id" Hex);
    rdma_connect "rdma_connect" CONNECTION;
    rdma_establish "rdma_establish" words!("id" Hex);
    rdma_listen "rdma_listen" words!("id" Hex, "backlog" Dec);
    rdma_get_request "rdma_get_request" words!("listen" Hex, "id" Hex);
    rdma_accept "rdma_accept" CONNECTION;
    rdma_reject "rdma_reject" [word!(0 "id" Hex), word!(2 "private_data_len" Dec)];
    rdma_reject_ece "rdma_reject_ece" [word!(0 "id" Hex), word!(2 "private_data_len" Dec)];
    rdma_disconnect "rdma_disconnect" words!("id" Hex);
    rdma_notify "rdma_notify" words!("id" Hex, "event" Event);
    rdma_join_multicast "rdma_join_multicast" words!("id" Hex);
    rdma_join_multicast_ex "rdma_join_multicast_ex" words!("id" Hex);
    rdma_leave_multicast "rdma_leave_multicast" words!("id" Hex);
    rdma_set_option "rdma_set_option" words!("id" Hex, "level" Dec, "optname" Dec);
    rdma_init_qp_attr "rdma_init_qp_attr" words!("id" Hex);
    rdma_set_local_ece "rdma_set_local_ece" words!("id" Hex);
    rdma_get_remote_ece "rdma_get_remote_ece" words!("id" Hex);
    rdma_write_cm_event "rdma_write_cm_event" words!("id" Hex, "event" CmEvent, "status" Dec, "arg" Hex);
    rdma_getaddrinfo "rdma_getaddrinfo" words!();
    rdma_freeaddrinfo "rdma_freeaddrinfo" words!("res" Hex);
    rdma_resolve_addrinfo "rdma_resolve_addrinfo" words!("id" Hex);
    rdma_query_addrinfo "rdma_query_addrinfo" words!("id" Hex);
    rdma_get_devices "rdma_get_devices" words!();
    rdma_free_devices "rdma_free_devices" words!("list" Hex);
}

impl Call {
    /// The one with this number.
    #[must_use]
    pub fn of(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ARGS;

    #[test]
    fn every_argument_lies_within_a_record() {
        for (number, call) in Call::ALL.iter().enumerate() {
            assert_eq!(Call::of(u16::try_from(number).unwrap()), Some(*call));
            for arg in call.args() {
                let words = if arg.kind == Gid { 2 } else { 1 };
                assert!(usize::from(arg.word) + words <= ARGS, "{call:?} {}", arg.name);
                assert!(arg.bits > 0 && arg.shift + arg.bits <= 64, "{call:?} {}", arg.name);
            }
        }
        assert_eq!(Call::of(u16::MAX), None);
    }
}
