//! The export table: one row per versioned name, and the only such list. `build.rs` reads the rows
//! and writes the version map. Keep each row on one line.
//!
//! A row is `"name" "@@" "node" => function;` (`@` for a version that only old binaries ask for) or
//! `"name" since N => function;` for a function of the private ABI that is the same in each
//! generation from N on. The oldest version is the default (`@@`), as in the release of that
//! generation. Plugins name their version, so the default only affects symbol listings.

use super::{compat10, variadic};
use crate::{kabi, verbs};

cface::exports! {
    // Binaries built before libibverbs 1.1 (2007).
    "ibv_ack_async_event" "@" "IBVERBS_1.0" => compat10::event::ack_async_event;
    "ibv_ack_cq_events" "@" "IBVERBS_1.0" => compat10::cq::ack_cq_events;
    "ibv_alloc_pd" "@" "IBVERBS_1.0" => compat10::pd::alloc;
    "ibv_attach_mcast" "@" "IBVERBS_1.0" => compat10::qp::attach_mcast;
    "ibv_close_device" "@" "IBVERBS_1.0" => compat10::device::close_device;
    "ibv_create_ah" "@" "IBVERBS_1.0" => compat10::ah::create_ah;
    "ibv_create_cq" "@" "IBVERBS_1.0" => compat10::cq::create_cq;
    "ibv_create_qp" "@" "IBVERBS_1.0" => compat10::qp::create_qp;
    "ibv_create_srq" "@" "IBVERBS_1.0" => compat10::srq::create_srq;
    "ibv_dealloc_pd" "@" "IBVERBS_1.0" => compat10::pd::dealloc;
    "ibv_dereg_mr" "@" "IBVERBS_1.0" => compat10::mr::dereg_mr;
    "ibv_destroy_ah" "@" "IBVERBS_1.0" => compat10::ah::destroy_ah;
    "ibv_destroy_cq" "@" "IBVERBS_1.0" => compat10::cq::destroy_cq;
    "ibv_destroy_qp" "@" "IBVERBS_1.0" => compat10::qp::destroy_qp;
    "ibv_destroy_srq" "@" "IBVERBS_1.0" => compat10::srq::destroy_srq;
    "ibv_detach_mcast" "@" "IBVERBS_1.0" => compat10::qp::detach_mcast;
    "ibv_free_device_list" "@" "IBVERBS_1.0" => compat10::device::free_device_list;
    "ibv_get_async_event" "@" "IBVERBS_1.0" => compat10::event::get_async_event;
    "ibv_get_cq_event" "@" "IBVERBS_1.0" => compat10::cq::get_cq_event;
    "ibv_get_device_guid" "@" "IBVERBS_1.0" => compat10::device::get_device_guid;
    "ibv_get_device_list" "@" "IBVERBS_1.0" => compat10::device::get_device_list;
    "ibv_get_device_name" "@" "IBVERBS_1.0" => compat10::device::get_device_name;
    "ibv_modify_qp" "@" "IBVERBS_1.0" => compat10::qp::modify_qp;
    "ibv_modify_srq" "@" "IBVERBS_1.0" => compat10::srq::modify_srq;
    "ibv_open_device" "@" "IBVERBS_1.0" => compat10::device::open_device;
    "ibv_query_device" "@" "IBVERBS_1.0" => compat10::device::query_device;
    "ibv_query_gid" "@" "IBVERBS_1.0" => compat10::device::query_gid;
    "ibv_query_pkey" "@" "IBVERBS_1.0" => compat10::device::query_pkey;
    "ibv_query_port" "@" "IBVERBS_1.0" => compat10::device::query_port;
    "ibv_query_qp" "@" "IBVERBS_1.0" => compat10::qp::query_qp;
    "ibv_query_srq" "@" "IBVERBS_1.0" => compat10::srq::query_srq;
    "ibv_reg_mr" "@" "IBVERBS_1.0" => compat10::mr::reg_mr;
    "ibv_resize_cq" "@" "IBVERBS_1.0" => compat10::cq::resize_cq;

    "ibv_copy_path_rec_from_kern" "@@" "IBVERBS_1.0" => verbs::marshal::path_rec_from_kern;
    "ibv_copy_path_rec_to_kern" "@@" "IBVERBS_1.0" => verbs::marshal::path_rec_to_kern;
    "ibv_copy_qp_attr_from_kern" "@@" "IBVERBS_1.0" => verbs::marshal::qp_attr_from_kern;
    "ibv_create_comp_channel" "@@" "IBVERBS_1.0" => verbs::channel::create;
    "ibv_destroy_comp_channel" "@@" "IBVERBS_1.0" => verbs::channel::destroy;
    "ibv_get_sysfs_path" "@@" "IBVERBS_1.0" => verbs::sysfs::path;
    "ibv_rate_to_mult" "@@" "IBVERBS_1.0" => verbs::rates::rate_to_mult;
    "ibv_read_sysfs_file" "@@" "IBVERBS_1.0" => verbs::sysfs::read_file;
    "mult_to_ibv_rate" "@@" "IBVERBS_1.0" => verbs::rates::mult_to_rate;

    "ibv_register_driver" "@" "IBVERBS_1.1" => kabi::driver::register_ancient;

    "ibv_ack_async_event" "@@" "IBVERBS_1.1" => verbs::event::ack_async_event;
    "ibv_ack_cq_events" "@@" "IBVERBS_1.1" => verbs::cq::ack_cq_events;
    "ibv_alloc_pd" "@@" "IBVERBS_1.1" => verbs::pd::alloc;
    "ibv_attach_mcast" "@@" "IBVERBS_1.1" => verbs::qp::attach_mcast;
    "ibv_close_device" "@@" "IBVERBS_1.1" => verbs::device::close_device;
    "ibv_copy_ah_attr_from_kern" "@@" "IBVERBS_1.1" => verbs::marshal::ah_attr_from_kern;
    "ibv_create_ah" "@@" "IBVERBS_1.1" => verbs::ah::create_ah;
    "ibv_create_ah_from_wc" "@@" "IBVERBS_1.1" => verbs::ah::create_ah_from_wc;
    "ibv_create_cq" "@@" "IBVERBS_1.1" => verbs::cq::create_cq;
    "ibv_create_qp" "@@" "IBVERBS_1.1" => verbs::qp::create_qp;
    "ibv_create_srq" "@@" "IBVERBS_1.1" => verbs::srq::create_srq;
    "ibv_dealloc_pd" "@@" "IBVERBS_1.1" => verbs::pd::dealloc;
    "ibv_dereg_mr" "@@" "IBVERBS_1.1" => verbs::mr::dereg_mr;
    "ibv_destroy_ah" "@@" "IBVERBS_1.1" => verbs::ah::destroy_ah;
    "ibv_destroy_cq" "@@" "IBVERBS_1.1" => verbs::cq::destroy_cq;
    "ibv_destroy_qp" "@@" "IBVERBS_1.1" => verbs::qp::destroy_qp;
    "ibv_destroy_srq" "@@" "IBVERBS_1.1" => verbs::srq::destroy_srq;
    "ibv_detach_mcast" "@@" "IBVERBS_1.1" => verbs::qp::detach_mcast;
    "ibv_dofork_range" "@@" "IBVERBS_1.1" => verbs::fork::dofork_range;
    "ibv_dontfork_range" "@@" "IBVERBS_1.1" => verbs::fork::dontfork_range;
    "ibv_event_type_str" "@@" "IBVERBS_1.1" => verbs::strings::event_type_str;
    "ibv_fork_init" "@@" "IBVERBS_1.1" => verbs::fork::fork_init;
    "ibv_free_device_list" "@@" "IBVERBS_1.1" => verbs::device::free_device_list;
    "ibv_get_async_event" "@@" "IBVERBS_1.1" => verbs::event::get_async_event;
    "ibv_get_cq_event" "@@" "IBVERBS_1.1" => verbs::cq::get_cq_event;
    "ibv_get_device_guid" "@@" "IBVERBS_1.1" => verbs::device::get_device_guid;
    "ibv_get_device_list" "@@" "IBVERBS_1.1" => verbs::device::get_device_list;
    "ibv_get_device_name" "@@" "IBVERBS_1.1" => verbs::device::get_device_name;
    "ibv_init_ah_from_wc" "@@" "IBVERBS_1.1" => verbs::ah::init_ah_from_wc;
    "ibv_modify_qp" "@@" "IBVERBS_1.1" => verbs::qp::modify_qp;
    "ibv_modify_srq" "@@" "IBVERBS_1.1" => verbs::srq::modify_srq;
    "ibv_node_type_str" "@@" "IBVERBS_1.1" => verbs::strings::node_type_str;
    "ibv_open_device" "@@" "IBVERBS_1.1" => verbs::device::open_device;
    "ibv_port_state_str" "@@" "IBVERBS_1.1" => verbs::strings::port_state_str;
    "ibv_query_device" "@@" "IBVERBS_1.1" => verbs::port::query_device;
    "ibv_query_gid" "@@" "IBVERBS_1.1" => verbs::gid::query_gid;
    "ibv_query_pkey" "@@" "IBVERBS_1.1" => verbs::gid::query_pkey;
    "ibv_query_port" "@@" "IBVERBS_1.1" => verbs::port::query_port;
    "ibv_query_qp" "@@" "IBVERBS_1.1" => verbs::qp::query_qp;
    "ibv_query_srq" "@@" "IBVERBS_1.1" => verbs::srq::query_srq;
    "ibv_rate_to_mbps" "@@" "IBVERBS_1.1" => verbs::rates::rate_to_mbps;
    "ibv_reg_mr" "@@" "IBVERBS_1.1" => verbs::mr::reg_mr;
    "ibv_rereg_mr" "@@" "IBVERBS_1.1" => verbs::mr::rereg_mr;
    "ibv_resize_cq" "@@" "IBVERBS_1.1" => verbs::cq::resize_cq;
    "ibv_resolve_eth_l2_from_gid" "@@" "IBVERBS_1.1" => verbs::ah::resolve_eth_l2_from_gid;
    "ibv_wc_status_str" "@@" "IBVERBS_1.1" => verbs::strings::wc_status_str;
    "mbps_to_ibv_rate" "@@" "IBVERBS_1.1" => verbs::rates::mbps_to_rate;

    "ibv_get_pkey_index" "@@" "IBVERBS_1.5" => verbs::gid::get_pkey_index;

    "ibv_qp_to_qp_ex" "@@" "IBVERBS_1.6" => verbs::qp::qp_to_qp_ex;

    "ibv_reg_mr_iova" "@@" "IBVERBS_1.7" => verbs::mr::reg_mr_iova;

    "ibv_reg_mr_iova2" "@@" "IBVERBS_1.8" => verbs::mr::reg_mr_iova2;

    "ibv_get_device_index" "@@" "IBVERBS_1.9" => verbs::device::get_device_index;

    "ibv_import_device" "@@" "IBVERBS_1.10" => verbs::device::import_device;
    "ibv_import_mr" "@@" "IBVERBS_1.10" => verbs::mr::import;
    "ibv_import_pd" "@@" "IBVERBS_1.10" => verbs::pd::import;
    "ibv_query_ece" "@@" "IBVERBS_1.10" => verbs::qp::query_ece;
    "ibv_set_ece" "@@" "IBVERBS_1.10" => verbs::qp::set_ece;
    "ibv_unimport_mr" "@@" "IBVERBS_1.10" => verbs::mr::unimport;
    "ibv_unimport_pd" "@@" "IBVERBS_1.10" => verbs::pd::unimport;

    "_ibv_query_gid_ex" "@@" "IBVERBS_1.11" => verbs::gid::query_gid_ex;
    "_ibv_query_gid_table" "@@" "IBVERBS_1.11" => verbs::gid::query_gid_table;

    "ibv_reg_dmabuf_mr" "@@" "IBVERBS_1.12" => verbs::mr::reg_dmabuf_mr;

    "ibv_import_dm" "@@" "IBVERBS_1.13" => verbs::dm::import;
    "ibv_is_fork_initialized" "@@" "IBVERBS_1.13" => verbs::fork::is_fork_initialized;
    "ibv_unimport_dm" "@@" "IBVERBS_1.13" => verbs::dm::unimport;

    "ibv_query_qp_data_in_order" "@@" "IBVERBS_1.14" => verbs::qp::query_qp_data_in_order;

    "ibv_alloc_dmah" "@@" "IBVERBS_1.15" => verbs::mr::alloc_dmah;
    "ibv_dealloc_dmah" "@@" "IBVERBS_1.15" => verbs::mr::dealloc_dmah;
    "ibv_reg_mr_ex" "@@" "IBVERBS_1.15" => verbs::mr::reg_mr_ex;

    "ibv_dm_export_dmabuf_fd" "@@" "IBVERBS_1.16" => verbs::dm::export_dmabuf_fd;
    "ibv_query_port_speed" "@@" "IBVERBS_1.16" => verbs::gid::query_port_speed;

    "ibv_alloc_buf" "@@" "IBVERBS_1.17" => verbs::mr::alloc_buf;
    "ibv_free_buf" "@@" "IBVERBS_1.17" => verbs::mr::free_buf;
    "ibv_reg_buf_mr" "@@" "IBVERBS_1.17" => verbs::mr::reg_buf_mr;

    "_ibv_query_comp_cntr_caps" "@@" "IBVERBS_1.18" => verbs::comp_cntr::query_caps;
    "ibv_create_comp_cntr" "@@" "IBVERBS_1.18" => verbs::comp_cntr::create;
    "ibv_destroy_comp_cntr" "@@" "IBVERBS_1.18" => verbs::comp_cntr::destroy;
    "ibv_export_buf_dmabuf_fd" "@@" "IBVERBS_1.18" => verbs::mr::export_buf_dmabuf_fd;
    "ibv_inc_comp_cntr" "@@" "IBVERBS_1.18" => verbs::comp_cntr::inc;
    "ibv_inc_err_comp_cntr" "@@" "IBVERBS_1.18" => verbs::comp_cntr::inc_err;
    "ibv_qp_attach_comp_cntr" "@@" "IBVERBS_1.18" => verbs::qp::attach_comp_cntr;
    "ibv_read_comp_cntr" "@@" "IBVERBS_1.18" => verbs::comp_cntr::read;
    "ibv_read_err_comp_cntr" "@@" "IBVERBS_1.18" => verbs::comp_cntr::read_err;
    "ibv_set_comp_cntr" "@@" "IBVERBS_1.18" => verbs::comp_cntr::set;
    "ibv_set_err_comp_cntr" "@@" "IBVERBS_1.18" => verbs::comp_cntr::set_err;

    // Functions for provider plugins. `since` N: under the private node of every generation from N
    // on.
    "__ioctl_final_num_attrs" since 34 => kabi::cmd::execute::final_num_attrs;
    "__verbs_log" since 34 => variadic::verbs_log;
    "_verbs_init_and_alloc_context" "@@" "IBVERBS_PRIVATE_34" => kabi::context::init_and_alloc::<34>;
    "_verbs_init_and_alloc_context" "@" "IBVERBS_PRIVATE_57" => kabi::context::init_and_alloc::<57>;
    "_verbs_init_and_alloc_context" "@" "IBVERBS_PRIVATE_59" => kabi::context::init_and_alloc::<59>;
    "_verbs_init_and_alloc_context" "@" "IBVERBS_PRIVATE_64" => kabi::context::init_and_alloc::<64>;
    "_verbs_init_and_alloc_context" "@" "IBVERBS_PRIVATE_65" => kabi::context::init_and_alloc::<65>;
    "execute_ioctl" since 34 => kabi::cmd::execute::execute_ioctl;
    "ibv_cmd_advise_mr" since 34 => kabi::cmd::mr::advise_mr;
    "ibv_cmd_alloc_dm" since 34 => kabi::cmd::dm::alloc_dm;
    "ibv_cmd_alloc_dmah" since 59 => kabi::cmd::dmah::alloc_dmah;
    "ibv_cmd_alloc_mw" since 34 => kabi::cmd::mw::alloc_mw;
    "ibv_cmd_alloc_pd" since 34 => kabi::cmd::pd::alloc_pd;
    "ibv_cmd_attach_mcast" since 34 => kabi::cmd::mcast::attach_mcast;
    "ibv_cmd_close_xrcd" since 34 => kabi::cmd::xrcd::close_xrcd;
    "ibv_cmd_create_ah" since 34 => kabi::cmd::ah::create_ah;
    "ibv_cmd_create_comp_cntr" since 65 => kabi::cmd::comp_cntr::create;
    "ibv_cmd_create_counters" since 34 => kabi::cmd::counters::create_counters;
    "ibv_cmd_create_cq" since 34 => kabi::cmd::cq::create_cq;
    "ibv_cmd_create_cq_ex" "@@" "IBVERBS_PRIVATE_34" => kabi::cmd::cq::create_cq_ex_34;
    "ibv_cmd_create_cq_ex" "@" "IBVERBS_PRIVATE_57" => kabi::cmd::cq::create_cq_ex_34;
    "ibv_cmd_create_cq_ex" "@" "IBVERBS_PRIVATE_59" => kabi::cmd::cq::create_cq_ex;
    "ibv_cmd_create_cq_ex" "@" "IBVERBS_PRIVATE_64" => kabi::cmd::cq::create_cq_ex;
    "ibv_cmd_create_cq_ex" "@" "IBVERBS_PRIVATE_65" => kabi::cmd::cq::create_cq_ex;
    "ibv_cmd_create_cq_ex2" "@@" "IBVERBS_PRIVATE_34" => kabi::cmd::cq::create_cq_ex2_34;
    "ibv_cmd_create_cq_ex2" "@" "IBVERBS_PRIVATE_57" => kabi::cmd::cq::create_cq_ex2_34;
    "ibv_cmd_create_cq_ex2" "@" "IBVERBS_PRIVATE_59" => kabi::cmd::cq::create_cq_ex2;
    "ibv_cmd_create_cq_ex2" "@" "IBVERBS_PRIVATE_64" => kabi::cmd::cq::create_cq_ex2;
    "ibv_cmd_create_cq_ex2" "@" "IBVERBS_PRIVATE_65" => kabi::cmd::cq::create_cq_ex2;
    "ibv_cmd_create_flow" since 34 => kabi::cmd::flow::create_flow;
    "ibv_cmd_create_flow_action_esp" since 34 => kabi::cmd::flow_action::create_esp;
    "ibv_cmd_create_qp" since 34 => kabi::cmd::qp::create_qp;
    "ibv_cmd_create_qp_ex" since 34 => kabi::cmd::qp::create_qp_ex;
    "ibv_cmd_create_qp_ex2" "@@" "IBVERBS_PRIVATE_34" => kabi::cmd::qp::create_qp_ex2_34;
    "ibv_cmd_create_qp_ex2" "@" "IBVERBS_PRIVATE_57" => kabi::cmd::qp::create_qp_ex2_34;
    "ibv_cmd_create_qp_ex2" "@" "IBVERBS_PRIVATE_59" => kabi::cmd::qp::create_qp_ex2_34;
    "ibv_cmd_create_qp_ex2" "@" "IBVERBS_PRIVATE_64" => kabi::cmd::qp::create_qp_ex2;
    "ibv_cmd_create_qp_ex2" "@" "IBVERBS_PRIVATE_65" => kabi::cmd::qp::create_qp_ex2;
    "ibv_cmd_create_rwq_ind_table" since 34 => kabi::cmd::wq::create_rwq_ind_table;
    "ibv_cmd_create_srq" since 34 => kabi::cmd::srq::create_srq;
    "ibv_cmd_create_srq_ex" since 34 => kabi::cmd::srq::create_srq_ex;
    "ibv_cmd_create_wq" since 34 => kabi::cmd::wq::create_wq;
    "ibv_cmd_dealloc_mw" since 34 => kabi::cmd::mw::dealloc_mw;
    "ibv_cmd_dealloc_pd" since 34 => kabi::cmd::pd::dealloc_pd;
    "ibv_cmd_dereg_mr" since 34 => kabi::cmd::mr::dereg_mr;
    "ibv_cmd_destroy_ah" since 34 => kabi::cmd::ah::destroy_ah;
    "ibv_cmd_destroy_comp_cntr" since 65 => kabi::cmd::comp_cntr::destroy;
    "ibv_cmd_destroy_counters" since 34 => kabi::cmd::counters::destroy_counters;
    "ibv_cmd_destroy_cq" since 34 => kabi::cmd::cq::destroy_cq;
    "ibv_cmd_destroy_flow" since 34 => kabi::cmd::flow::destroy_flow;
    "ibv_cmd_destroy_flow_action" since 34 => kabi::cmd::flow_action::destroy;
    "ibv_cmd_destroy_qp" since 34 => kabi::cmd::qp::destroy_qp;
    "ibv_cmd_destroy_rwq_ind_table" since 34 => kabi::cmd::wq::destroy_rwq_ind_table;
    "ibv_cmd_destroy_srq" since 34 => kabi::cmd::srq::destroy_srq;
    "ibv_cmd_destroy_wq" since 34 => kabi::cmd::wq::destroy_wq;
    "ibv_cmd_detach_mcast" since 34 => kabi::cmd::mcast::detach_mcast;
    "ibv_cmd_export_dmabuf_fd" since 59 => kabi::cmd::dmabuf::export_fd;
    "ibv_cmd_free_dm" since 34 => kabi::cmd::dm::free_dm;
    "ibv_cmd_free_dmah" since 59 => kabi::cmd::dmah::free_dmah;
    "ibv_cmd_get_context" "@@" "IBVERBS_PRIVATE_34" => kabi::cmd::context::get_context_34;
    "ibv_cmd_get_context" "@" "IBVERBS_PRIVATE_57" => kabi::cmd::context::get_context::<57>;
    "ibv_cmd_get_context" "@" "IBVERBS_PRIVATE_59" => kabi::cmd::context::get_context::<59>;
    "ibv_cmd_get_context" "@" "IBVERBS_PRIVATE_64" => kabi::cmd::context::get_context::<64>;
    "ibv_cmd_get_context" "@" "IBVERBS_PRIVATE_65" => kabi::cmd::context::get_context::<65>;
    "ibv_cmd_inc_comp_cntr" since 65 => kabi::cmd::comp_cntr::inc;
    "ibv_cmd_inc_err_comp_cntr" since 65 => kabi::cmd::comp_cntr::inc_err;
    "ibv_cmd_modify_cq" since 34 => kabi::cmd::cq::modify_cq;
    "ibv_cmd_modify_flow_action_esp" since 34 => kabi::cmd::flow_action::modify_esp;
    "ibv_cmd_modify_qp" since 34 => kabi::cmd::qp_modify::modify_qp;
    "ibv_cmd_modify_qp_ex" since 34 => kabi::cmd::qp_modify::modify_qp_ex;
    "ibv_cmd_modify_srq" since 34 => kabi::cmd::srq::modify_srq;
    "ibv_cmd_modify_wq" since 34 => kabi::cmd::wq::modify_wq;
    "ibv_cmd_open_qp" since 34 => kabi::cmd::qp::open_qp;
    "ibv_cmd_open_xrcd" since 34 => kabi::cmd::xrcd::open_xrcd;
    "ibv_cmd_poll_cq" since 34 => kabi::cmd::poll::poll_cq;
    "ibv_cmd_post_recv" since 34 => kabi::cmd::post::post_recv;
    "ibv_cmd_post_send" since 34 => kabi::cmd::post::post_send;
    "ibv_cmd_post_srq_recv" since 34 => kabi::cmd::post::post_srq_recv;
    "ibv_cmd_qp_attach_comp_cntr" since 65 => kabi::cmd::comp_cntr::qp_attach;
    "ibv_cmd_query_comp_cntr_caps" since 65 => kabi::cmd::comp_cntr::query_caps;
    "ibv_cmd_query_context" since 34 => kabi::cmd::context::query_context;
    "ibv_cmd_query_device_any" since 34 => kabi::cmd::device::query_device_any;
    "ibv_cmd_query_mr" since 34 => kabi::cmd::mr::query_mr;
    "ibv_cmd_query_port" since 34 => kabi::cmd::device::query_port;
    "ibv_cmd_query_port_speed" since 59 => kabi::cmd::device::query_port_speed;
    "ibv_cmd_query_qp" since 34 => kabi::cmd::qp_modify::query_qp;
    "ibv_cmd_query_srq" since 34 => kabi::cmd::srq::query_srq;
    "ibv_cmd_read_comp_cntr" since 65 => kabi::cmd::comp_cntr::read;
    "ibv_cmd_read_counters" since 34 => kabi::cmd::counters::read_counters;
    "ibv_cmd_read_err_comp_cntr" since 65 => kabi::cmd::comp_cntr::read_err;
    "ibv_cmd_reg_dm_mr" since 34 => kabi::cmd::dm::reg_dm_mr;
    "ibv_cmd_reg_dmabuf_mr" since 34 => kabi::cmd::mr::reg_dmabuf_mr;
    "ibv_cmd_reg_mr" since 34 => kabi::cmd::mr::reg_mr;
    "ibv_cmd_reg_mr_ex" since 59 => kabi::cmd::mr::reg_mr_ex;
    "ibv_cmd_req_notify_cq" since 34 => kabi::cmd::poll::req_notify_cq;
    "ibv_cmd_rereg_mr" since 34 => kabi::cmd::mr::rereg_mr;
    "ibv_cmd_resize_cq" since 34 => kabi::cmd::cq::resize_cq;
    "ibv_cmd_set_comp_cntr" since 65 => kabi::cmd::comp_cntr::set;
    "ibv_cmd_set_err_comp_cntr" since 65 => kabi::cmd::comp_cntr::set_err;
    "ibv_dmabuf_heap_alloc" since 64 => kabi::cmd::dmabuf::heap_alloc;
    "ibv_dmabuf_heap_cc_shared_init" since 64 => kabi::cmd::dmabuf::heap_cc_shared_init;
    "ibv_dmabuf_heap_destroy" since 64 => kabi::cmd::dmabuf::heap_destroy;
    "ibv_dmabuf_heap_free" since 64 => kabi::cmd::dmabuf::heap_free;
    "ibv_query_gid_type" since 34 => verbs::gid::query_gid_type;
    "ibv_read_ibdev_sysfs_file" since 34 => variadic::read_ibdev_sysfs_file;
    "ibv_wr_opcode_str" since 34 => verbs::strings::wr_opcode_str;
    "verbs_init_cq" since 34 => kabi::cq::init;
    "verbs_open_device" since 34 => verbs::device::open_device_with;
    "verbs_set_ops" "@@" "IBVERBS_PRIVATE_34" => kabi::context::set_ops::<34>;
    "verbs_set_ops" "@" "IBVERBS_PRIVATE_57" => kabi::context::set_ops::<57>;
    "verbs_set_ops" "@" "IBVERBS_PRIVATE_59" => kabi::context::set_ops::<59>;
    "verbs_set_ops" "@" "IBVERBS_PRIVATE_64" => kabi::context::set_ops::<64>;
    "verbs_set_ops" "@" "IBVERBS_PRIVATE_65" => kabi::context::set_ops::<65>;
    "verbs_uninit_context" "@@" "IBVERBS_PRIVATE_34" => kabi::context::uninit::<34>;
    "verbs_uninit_context" "@" "IBVERBS_PRIVATE_57" => kabi::context::uninit::<57>;
    "verbs_uninit_context" "@" "IBVERBS_PRIVATE_59" => kabi::context::uninit::<59>;
    "verbs_uninit_context" "@" "IBVERBS_PRIVATE_64" => kabi::context::uninit::<64>;
    "verbs_uninit_context" "@" "IBVERBS_PRIVATE_65" => kabi::context::uninit::<65>;
    "verbs_register_driver_34" "@@" "IBVERBS_PRIVATE_34" => kabi::driver::register::<34>;
    "verbs_register_driver_57" "@@" "IBVERBS_PRIVATE_57" => kabi::driver::register::<57>;
    "verbs_register_driver_59" "@@" "IBVERBS_PRIVATE_59" => kabi::driver::register::<59>;
    "verbs_register_driver_64" "@@" "IBVERBS_PRIVATE_64" => kabi::driver::register::<64>;
    "verbs_register_driver_65" "@@" "IBVERBS_PRIVATE_65" => kabi::driver::register::<65>;
}
