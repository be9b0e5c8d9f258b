//! The recorded calls of a trace, and the meaning of the words in their records. The tap fills the
//! words; [`crate::trace`] reads them.
//!
//! Map of this file: `ValueKind` and `Arg`; the macros `calls!`, `word!` and `words!`; the words
//! that calls share; the table of all calls, one line for each; `Call::of`; tests.

/// The representation of a value as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// A number.
    Dec,
    /// A number in hexadecimal: keys, addresses, ids.
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
    /// `ibv_mtu`, written in bytes.
    Mtu,
    /// A GID: two words.
    Gid,
    /// Text; [`Arg::bits`] is its length in words.
    Text,
    /// `ibv_event_type`.
    Event,
    /// `rdma_cm_event_type`.
    CmEvent,
}
use ValueKind::{
    Access, CmEvent, Completed, Dec, Event, Gid, Hex, Mtu, Opcode, QpType, SendFlags, State,
    Status, Text,
};

/// An argument: the bits of a record's word that hold the argument.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// The name in the manual page.
    pub name: &'static str,
    /// The representation as text.
    pub value_kind: ValueKind,
    pub(crate) word: u8,
    pub(crate) shift: u8,
    pub(crate) bits: u8,
    /// The records that have the argument.
    pub(crate) condition: ArgCondition,
}

/// The records of a call that have an argument. Different arguments may share a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgCondition {
    /// All records of the call.
    Always,
    /// Records of `ibv_modify_qp` with one of these bits in the mask.
    Mask(u32),
    /// Requests of a UD queue pair.
    Datagram,
    /// Requests of a QP of another type than UD.
    Connected,
    /// Atomic requests.
    Atomic,
    /// Atomic requests that compare and swap.
    Swap,
    /// Requests other than atomics.
    Plain,
}

impl Arg {
    /// The number of bits.
    #[must_use]
    pub const fn bits(&self) -> u8 {
        self.bits
    }
}

const fn part(word: u8, shift: u8, bits: u8, name: &'static str, kind: ValueKind) -> Arg {
    Arg { name, value_kind: kind, word, shift, bits, condition: ArgCondition::Always }
}

const fn under_condition(when: ArgCondition, arg: Arg) -> Arg {
    Arg { condition: when, ..arg }
}

const fn masked(
    mask: u32,
    word: u8,
    shift: u8,
    bits: u8,
    name: &'static str,
    kind: ValueKind,
) -> Arg {
    under_condition(ArgCondition::Mask(mask), part(word, shift, bits, name, kind))
}

macro_rules! calls {
    ($($variant:ident $name:literal $args:expr;)+) => {
        /// A recorded call. The number is part of the format, so a new call is added at the end.
        #[allow(missing_docs, reason = "each has the name of its function")]
        #[allow(non_camel_case_types, reason = "as above")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Call { $($variant,)+ }

        impl Call {
            /// All calls, by their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name of the function.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The recorded arguments.
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

/// Arguments of one word each, in order.
macro_rules! words {
    ($($name:literal $kind:expr),*) => { numbered([$(word!(0 $name $kind)),*]) };
}

const fn numbered<const N: usize>(mut args: [Arg; N]) -> [Arg; N] {
    let mut at = 0;
    while at < N {
        args[at].word = at as u8;
        at += 1;
    }
    args
}

/// A send request, as the tap packs it.
const SEND: [Arg; 21] = [
    part(0, 0, 32, "qp", Hex),
    part(1, 0, 64, "wr_id", Hex),
    part(0, 32, 16, "opcode", Opcode),
    part(2, 0, 32, "send_flags", SendFlags),
    part(2, 32, 32, "num_sge", Dec),
    part(3, 0, 64, "bytes", Dec),
    part(4, 0, 64, "sge0_addr", Hex),
    part(5, 0, 32, "sge0_length", Dec),
    part(5, 32, 32, "sge0_lkey", Hex),
    under_condition(ArgCondition::Connected, part(6, 0, 64, "remote_addr", Hex)),
    under_condition(ArgCondition::Datagram, part(6, 0, 64, "ah", Hex)),
    under_condition(ArgCondition::Connected, part(7, 0, 32, "rkey", Hex)),
    part(7, 32, 32, "imm_data", Hex),
    under_condition(ArgCondition::Atomic, part(8, 0, 64, "compare_add", Hex)),
    under_condition(ArgCondition::Swap, part(10, 0, 64, "swap", Hex)),
    part(9, 0, 32, "remote_qp", Hex),
    under_condition(ArgCondition::Datagram, part(7, 0, 32, "remote_qkey", Hex)),
    part(9, 32, 32, "remote_srqn", Hex),
    under_condition(ArgCondition::Plain, part(8, 0, 64, "message", Dec)),
    part(0, 48, 1, "due", Dec),
    part(0, 49, 1, "datagram", Dec),
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

const CREATE_QP: [Arg; 12] = [
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
    part(7, 32, 8, "sq_sig_all", Dec),
];

/// The arguments of `ibv_create_qp_ex`. A member that the mask does not name is 0.
const CREATE_QP_EX: [Arg; 18] = {
    let mut all = [part(10, 0, 64, "xrcd", Hex); 18];
    let mut at = 0;
    while at < CREATE_QP.len() {
        all[at] = CREATE_QP[at];
        at += 1;
    }
    all[12] = part(8, 0, 32, "comp_mask", Hex);
    all[13] = part(8, 32, 32, "create_flags", Hex);
    all[14] = part(9, 0, 32, "send_ops_flags", Hex);
    all[15] = part(9, 32, 32, "source_qpn", Hex);
    all[16] = part(7, 48, 16, "max_tso_header", Dec);
    // The last element stays `xrcd`.
    all
};

const MODIFY_QP: [Arg; 36] = [
    part(0, 0, 32, "qp", Hex),
    part(0, 32, 32, "attr_mask", Hex),
    masked(abi::IBV_QP_STATE, 1, 0, 8, "qp_state", State),
    masked(abi::IBV_QP_CUR_STATE, 1, 8, 8, "cur_qp_state", State),
    masked(abi::IBV_QP_PATH_MTU, 1, 16, 8, "path_mtu", Mtu),
    masked(abi::IBV_QP_PORT, 1, 24, 8, "port_num", Dec),
    masked(abi::IBV_QP_TIMEOUT, 1, 32, 8, "timeout", Dec),
    masked(abi::IBV_QP_RETRY_CNT, 1, 40, 8, "retry_cnt", Dec),
    masked(abi::IBV_QP_RNR_RETRY, 1, 48, 8, "rnr_retry", Dec),
    masked(abi::IBV_QP_MIN_RNR_TIMER, 1, 56, 8, "min_rnr_timer", Dec),
    masked(abi::IBV_QP_MAX_QP_RD_ATOMIC, 2, 0, 8, "max_rd_atomic", Dec),
    masked(abi::IBV_QP_MAX_DEST_RD_ATOMIC, 2, 8, 8, "max_dest_rd_atomic", Dec),
    masked(abi::IBV_QP_PKEY_INDEX, 2, 32, 16, "pkey_index", Dec),
    masked(abi::IBV_QP_QKEY, 3, 32, 32, "qkey", Hex),
    masked(abi::IBV_QP_DEST_QPN, 3, 0, 32, "dest_qp_num", Hex),
    masked(abi::IBV_QP_RQ_PSN, 4, 0, 32, "rq_psn", Hex),
    masked(abi::IBV_QP_SQ_PSN, 4, 32, 32, "sq_psn", Hex),
    masked(abi::IBV_QP_ACCESS_FLAGS, 5, 0, 32, "qp_access_flags", Access),
    masked(abi::IBV_QP_AV, 2, 48, 8, "is_global", Dec),
    masked(abi::IBV_QP_AV, 2, 16, 8, "sgid_index", Dec),
    masked(abi::IBV_QP_AV, 2, 24, 8, "hop_limit", Dec),
    masked(abi::IBV_QP_AV, 5, 32, 16, "dlid", Dec),
    masked(abi::IBV_QP_AV, 6, 0, 64, "dgid", Gid),
    masked(abi::IBV_QP_AV, 2, 56, 8, "sl", Dec),
    masked(abi::IBV_QP_AV, 8, 0, 32, "flow_label", Hex),
    masked(abi::IBV_QP_AV, 8, 32, 8, "traffic_class", Dec),
    masked(abi::IBV_QP_AV, 8, 40, 8, "src_path_bits", Dec),
    masked(abi::IBV_QP_AV, 8, 48, 8, "static_rate", Dec),
    masked(abi::IBV_QP_AV, 8, 56, 8, "ah_port_num", Dec),
    masked(abi::IBV_QP_PATH_MIG_STATE, 9, 0, 8, "path_mig_state", Dec),
    masked(abi::IBV_QP_EN_SQD_ASYNC_NOTIFY, 9, 8, 8, "en_sqd_async_notify", Dec),
    masked(abi::IBV_QP_ALT_PATH, 9, 16, 8, "alt_port_num", Dec),
    masked(abi::IBV_QP_ALT_PATH, 9, 24, 8, "alt_timeout", Dec),
    masked(abi::IBV_QP_ALT_PATH, 9, 32, 16, "alt_pkey_index", Dec),
    masked(abi::IBV_QP_ALT_PATH, 9, 48, 16, "alt_dlid", Dec),
    masked(abi::IBV_QP_RATE_LIMIT, 10, 0, 32, "rate_limit", Dec),
];

/// The parameters of `rdma_connect` and `rdma_accept`.
const CONNECTION: [Arg; 9] = words!(
    "id" Hex, "private_data_len" Dec, "responder_resources" Dec, "initiator_depth" Dec, "rnr_retry_count" Dec, "qp_num" Hex, "flow_control" Dec,
    "retry_count" Dec, "srq" Dec
);

/// A QP for an id. A member that the mask of the extended call does not name is 0.
const ID_QP: [Arg; 13] = [
    word!(0 "id" Hex),
    word!(1 "pd" Hex),
    part(2, 0, 32, "qp", Hex),
    part(2, 32, 32, "comp_mask", Hex),
    word!(3 "send_cq" Hex),
    word!(4 "recv_cq" Hex),
    word!(5 "srq" Hex),
    part(6, 0, 32, "qp_type", QpType),
    part(6, 32, 8, "sq_sig_all", Dec),
    part(7, 0, 32, "max_send_wr", Dec),
    part(7, 32, 32, "max_recv_wr", Dec),
    part(8, 0, 32, "max_send_sge", Dec),
    part(8, 32, 32, "max_recv_sge", Dec),
];

calls! {
    post_send "ibv_post_send" SEND;
    wr_post "ibv_wr_post" SEND;
    post_recv "ibv_post_recv" receive("qp");
    post_srq_recv "ibv_post_srq_recv" receive("srq");
    completion "completion" COMPLETION;
    create_qp "ibv_create_qp" CREATE_QP;
    create_qp_ex "ibv_create_qp_ex" CREATE_QP_EX;
    modify_qp "ibv_modify_qp" MODIFY_QP;
    destroy_qp "ibv_destroy_qp" words!("qp" Hex);
    query_qp "ibv_query_qp" words!("qp" Hex, "attr_mask" Hex);
    alloc_pd "ibv_alloc_pd" words!("context" Hex);
    alloc_parent_domain "ibv_alloc_parent_domain" words!("context" Hex, "pd" Hex, "td" Hex, "comp_mask" Hex);
    dealloc_pd "ibv_dealloc_pd" words!("pd" Hex);
    alloc_td "ibv_alloc_td" words!("context" Hex, "comp_mask" Hex);
    dealloc_td "ibv_dealloc_td" words!("td" Hex);
    reg_mr "ibv_reg_mr" [
        word!(0 "pd" Hex), word!(1 "addr" Hex), word!(2 "length" Dec), word!(3 "iova" Hex), word!(4 "access" Access),
        part(5, 0, 32, "lkey", Hex), part(5, 32, 32, "rkey", Hex),
    ];
    reg_mr_ex "ibv_reg_mr_ex" words!("pd" Hex, "comp_mask" Hex, "addr" Hex, "length" Dec, "iova" Hex, "access" Access, "fd" Dec, "fd_offset" Hex);
    reg_dmabuf_mr "ibv_reg_dmabuf_mr" words!("pd" Hex, "offset" Hex, "length" Dec, "iova" Hex, "fd" Dec, "access" Access);
    reg_dm_mr "ibv_reg_dm_mr" words!("pd" Hex, "dm" Hex, "dm_offset" Hex, "length" Dec, "access" Access);
    rereg_mr "ibv_rereg_mr" words!("mr" Hex, "flags" Hex, "pd" Hex, "addr" Hex, "length" Dec, "access" Access);
    dereg_mr "ibv_dereg_mr" words!("mr" Hex, "lkey" Hex, "addr" Hex, "length" Dec);
    advise_mr "ibv_advise_mr" words!("pd" Hex, "advice" Dec, "flags" Hex, "sg_list" Hex, "num_sge" Dec);
    alloc_mw "ibv_alloc_mw" words!("pd" Hex, "type" Dec);
    bind_mw "ibv_bind_mw" words!("qp" Hex, "mw" Hex, "wr_id" Hex, "send_flags" SendFlags, "mr" Hex, "addr" Hex, "length" Dec, "mw_access_flags" Access);
    dealloc_mw "ibv_dealloc_mw" words!("mw" Hex);
    create_cq "ibv_create_cq" words!("context" Hex, "cqe" Dec, "channel" Hex, "comp_vector" Dec);
    create_cq_ex "ibv_create_cq_ex" words!("context" Hex, "cqe" Dec, "channel" Hex, "comp_vector" Dec, "wc_flags" Hex, "comp_mask" Hex, "flags" Hex, "parent_domain" Hex);
    resize_cq "ibv_resize_cq" words!("cq" Hex, "cqe" Dec);
    modify_cq "ibv_modify_cq" words!("cq" Hex, "attr_mask" Hex, "cq_count" Dec, "cq_period" Dec);
    req_notify_cq "ibv_req_notify_cq" words!("cq" Hex, "solicited_only" Dec);
    cq_event "ibv_get_cq_event" words!("cq" Hex);
    destroy_cq "ibv_destroy_cq" words!("cq" Hex);
    create_ah "ibv_create_ah" [
        part(0, 0, 64, "pd", Hex), part(1, 0, 8, "is_global", Dec), part(1, 8, 8, "sgid_index", Dec), part(1, 16, 8, "port_num", Dec),
        part(1, 32, 16, "dlid", Dec), part(2, 0, 64, "dgid", Gid), part(1, 24, 8, "sl", Dec), part(1, 48, 8, "src_path_bits", Dec),
        part(1, 56, 8, "static_rate", Dec), part(4, 0, 32, "flow_label", Hex), part(4, 32, 8, "traffic_class", Dec), part(4, 40, 8, "hop_limit", Dec),
    ];
    destroy_ah "ibv_destroy_ah" words!("ah" Hex);
    create_srq "ibv_create_srq" words!("pd" Hex, "max_wr" Dec, "max_sge" Dec, "srq_limit" Dec);
    create_srq_ex "ibv_create_srq_ex" words!(
        "context" Hex, "max_wr" Dec, "max_sge" Dec, "srq_type" Dec, "cq" Hex, "comp_mask" Hex, "pd" Hex, "xrcd" Hex, "srq_limit" Dec, "max_num_tags" Dec,
        "max_ops" Dec
    );
    modify_srq "ibv_modify_srq" words!("srq" Hex, "srq_attr_mask" Hex, "max_wr" Dec, "srq_limit" Dec);
    query_srq "ibv_query_srq" words!("srq" Hex);
    destroy_srq "ibv_destroy_srq" words!("srq" Hex);
    post_srq_ops "ibv_post_srq_ops" words!("srq" Hex, "wr_id" Hex, "opcode" Dec, "flags" Hex);
    query_device_ex "ibv_query_device_ex" words!("context" Hex);
    query_port "ibv_query_port" words!("context" Hex, "port_num" Dec);
    query_rt_values "ibv_query_rt_values_ex" words!("context" Hex, "comp_mask" Hex);
    async_event "ibv_get_async_event" words!("context" Hex, "event_type" Event, "element" Hex);
    attach_mcast "ibv_attach_mcast" [part(0, 0, 64, "qp", Hex), part(1, 0, 64, "gid", Gid), part(3, 0, 64, "lid", Dec)];
    detach_mcast "ibv_detach_mcast" [part(0, 0, 64, "qp", Hex), part(1, 0, 64, "gid", Gid), part(3, 0, 64, "lid", Dec)];
    open_xrcd "ibv_open_xrcd" words!("context" Hex, "comp_mask" Hex, "fd" Dec, "oflags" Hex);
    close_xrcd "ibv_close_xrcd" words!("xrcd" Hex);
    open_qp "ibv_open_qp" words!("context" Hex, "comp_mask" Hex, "qp_num" Hex, "xrcd" Hex, "qp_type" QpType);
    create_wq "ibv_create_wq" words!("context" Hex, "wq_type" Dec, "max_wr" Dec, "max_sge" Dec, "pd" Hex, "cq" Hex, "comp_mask" Hex, "create_flags" Hex);
    modify_wq "ibv_modify_wq" words!("wq" Hex, "attr_mask" Hex, "wq_state" Dec, "curr_wq_state" Dec, "flags" Hex, "flags_mask" Hex);
    destroy_wq "ibv_destroy_wq" words!("wq" Hex);
    create_flow "ibv_create_flow" words!("qp" Hex, "comp_mask" Hex, "type" Dec, "priority" Dec, "num_of_specs" Dec, "port" Dec, "flags" Hex);
    destroy_flow "ibv_destroy_flow" words!("flow" Hex);
    alloc_dm "ibv_alloc_dm" words!("context" Hex, "length" Dec, "log_align_req" Dec, "comp_mask" Hex);
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
    rdma_create_ep "rdma_create_ep" [
        word!(0 "id" Hex), word!(1 "pd" Hex), part(2, 0, 32, "ai_flags", Hex), part(2, 32, 32, "ai_port_space", Hex), part(3, 0, 64, "addr", Gid),
        word!(5 "port" Dec), part(6, 0, 32, "max_send_wr", Dec), part(6, 32, 32, "max_recv_wr", Dec), word!(7 "qp_type" QpType),
    ];
    rdma_destroy_ep "rdma_destroy_ep" words!("id" Hex);
    rdma_bind_addr "rdma_bind_addr" [word!(0 "id" Hex), word!(1 "addr" Gid), word!(3 "port" Dec)];
    rdma_resolve_addr "rdma_resolve_addr" [word!(0 "id" Hex), word!(1 "dst_addr" Gid), word!(3 "port" Dec), word!(4 "timeout_ms" Dec)];
    rdma_resolve_route "rdma_resolve_route" words!("id" Hex, "timeout_ms" Dec);
    rdma_create_qp "rdma_create_qp" ID_QP;
    rdma_create_qp_ex "rdma_create_qp_ex" ID_QP;
    rdma_destroy_qp "rdma_destroy_qp" words!("id" Hex);
    rdma_create_srq "rdma_create_srq" words!("id" Hex, "pd" Hex, "max_wr" Dec, "max_sge" Dec);
    rdma_create_srq_ex "rdma_create_srq_ex" words!("id" Hex, "pd" Hex, "max_wr" Dec, "max_sge" Dec, "comp_mask" Hex, "srq_type" Dec);
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
    rdma_join_multicast "rdma_join_multicast" [word!(0 "id" Hex), word!(1 "addr" Gid)];
    rdma_join_multicast_ex "rdma_join_multicast_ex" [word!(0 "id" Hex), word!(1 "addr" Gid), word!(3 "comp_mask" Hex), word!(4 "join_flags" Hex)];
    rdma_leave_multicast "rdma_leave_multicast" [word!(0 "id" Hex), word!(1 "addr" Gid)];
    rdma_set_option "rdma_set_option" words!("id" Hex, "level" Dec, "optname" Dec, "optval" Hex, "optlen" Dec);
    rdma_init_qp_attr "rdma_init_qp_attr" words!("id" Hex, "qp_state" State, "qp_attr_mask" Hex);
    rdma_set_local_ece "rdma_set_local_ece" words!("id" Hex, "vendor_id" Hex, "options" Hex);
    rdma_get_remote_ece "rdma_get_remote_ece" words!("id" Hex, "vendor_id" Hex, "options" Hex);
    rdma_write_cm_event "rdma_write_cm_event" words!("id" Hex, "event" CmEvent, "status" Dec, "arg" Hex);
    rdma_getaddrinfo "rdma_getaddrinfo" [
        part(0, 0, 4, "node", Text), part(4, 0, 3, "service", Text), part(7, 0, 32, "ai_flags", Hex), part(7, 32, 32, "ai_family", Dec),
        part(8, 0, 32, "ai_qp_type", Dec), part(8, 32, 32, "ai_port_space", Hex), word!(9 "res" Hex),
    ];
    rdma_freeaddrinfo "rdma_freeaddrinfo" words!("res" Hex);
    rdma_resolve_addrinfo "rdma_resolve_addrinfo" [
        part(0, 0, 4, "node", Text), part(4, 0, 3, "service", Text), part(7, 0, 32, "ai_flags", Hex), part(7, 32, 32, "ai_family", Dec),
        part(8, 0, 32, "ai_qp_type", Dec), part(8, 32, 32, "ai_port_space", Hex), word!(9 "id" Hex),
    ];
    rdma_query_addrinfo "rdma_query_addrinfo" words!("id" Hex, "info" Hex);
    rdma_get_devices "rdma_get_devices" words!("num_devices" Dec);
    rdma_free_devices "rdma_free_devices" words!("list" Hex);
}

impl Call {
    /// The call with this number.
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
                let words = match arg.value_kind {
                    Gid => 2,
                    Text => usize::from(arg.bits),
                    _ => 1,
                };
                assert!(usize::from(arg.word) + words <= ARGS, "{call:?} {}", arg.name);
                assert!(arg.bits > 0 && arg.shift + arg.bits <= 64, "{call:?} {}", arg.name);
            }
        }
        assert_eq!(Call::of(u16::MAX), None);
    }
}
