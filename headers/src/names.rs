//! Differences between the C form and the Rust form of types, which cbindgen cannot express.
//! `rust.rs` and `c.rs` consult these tables for each definition.

/// Types that C declares at their use, without a name.
pub const IN_PLACE: &[&str] = &[
    "ib_uverbs_attr_enum_data",
    "ib_uverbs_odp_per_transport_caps",
    "ib_uverbs_send_wr_atomic",
    "ib_uverbs_send_wr_rdma",
    "ib_uverbs_send_wr_ud",
    "ib_uverbs_send_wr_wr",
    "ibv_async_event_element",
    "ibv_flow_spec_hdr",
    "ibv_gid_global",
    "ibv_odp_per_transport_caps",
    "ibv_ops_wr_tm",
    "ibv_ops_wr_tm_add",
    "ibv_send_wr_atomic",
    "ibv_send_wr_bind_mw",
    "ibv_send_wr_imm",
    "ibv_send_wr_qp_type",
    "ibv_send_wr_rdma",
    "ibv_send_wr_tail",
    "ibv_send_wr_tso",
    "ibv_send_wr_ud",
    "ibv_send_wr_wr",
    "ibv_send_wr_xrc",
    "ibv_wc_imm",
    "ib_addr_u",
    "rdma_cm_event_param",
    "verbs_create_cq_buffer",
    "verbs_create_cq_buffer_place",
    "verbs_create_cq_dmabuf",
    "verbs_match_ent_u",
    "verbs_qp_base",
];

/// Members (type, Rust name) without a name in C (anonymous structures and unions).
pub const UNNAMED: &[(&str, &str)] = &[
    ("ibv_send_wr", "imm"),
    ("ibv_send_wr", "tail"),
    ("ibv_wc", "imm"),
    ("verbs_create_cq_buffer", "place"),
    ("verbs_qp", "base"),
];

/// Unions that are structures with a union without a name in C.
pub const WRAPPED: &[&str] = &["ibv_flow_spec", "verbs_cq"];

/// Members and parameters whose C name is a Rust keyword, or has capitals.
pub const SPELLING: &[(&str, &str)] = &[
    ("_abi_placeholder3", "_ABI_placeholder3"),
    ("abi_placeholder1", "ABI_placeholder1"),
    ("abi_placeholder2", "ABI_placeholder2"),
    ("in_", "in"),
    ("match_", "match"),
    ("priv_", "priv"),
    ("type_", "type"),
];

/// The C name of a Rust member or parameter.
pub fn spelling(name: &str) -> &str {
    SPELLING.iter().find(|(rust, _)| *rust == name).map_or(name, |(_, c)| c)
}

/// Types that C writes with a keyword but cbindgen does not see: a C library's structures, and an
/// enum that is a macro for the kernel's.
pub const TAGGED: &[(&str, &str)] = &[
    ("ibv_advise_mr_advice", "enum"),
    ("epoll_event", "struct"),
    ("iovec", "struct"),
    ("msghdr", "struct"),
    ("pollfd", "struct"),
    ("sockaddr", "struct"),
    ("timespec", "struct"),
    ("timeval", "struct"),
];

/// Array parameters: function, cbindgen's text, and C text with the number of elements.
pub const ARRAYS: &[(&str, &str, &str)] =
    &[("ibv_resolve_eth_l2_from_gid", "uint8_t *eth_mac", "uint8_t eth_mac[ETHERNET_LL_SIZE]")];
