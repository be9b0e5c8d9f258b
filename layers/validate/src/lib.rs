//! The layer `validate`: reports misuse of verbs, with the object, the values, the place in the
//! program and the remedy.
//!
//! The layer stands between a program and the provider of its device (docs/reference/layers.md),
//! and works with any device. `state` has the records of objects. Each family of checks is a
//! module. `report` writes the messages. `docs/reference/checks/` has a text for each check.

mod acknowledgements;
mod advice;
mod arguments;
mod asan;
mod builder;
mod building;
mod changes;
mod channels;
mod checks;
mod cm;
mod completions;
mod cq;
mod cq_ex;
mod digest;
mod elements;
mod flights;
mod gid;
mod iterator;
mod memlock;
mod mr;
mod native;
mod objects;
mod other_end;
mod others;
mod overlap;
mod patience;
mod poison;
mod provider;
mod qp;
mod refusal;
mod regions;
mod report;
mod settings;
mod stack;
mod state;
mod threads;
mod waits;
mod wr;

use core::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use abi::{
    ferroverbs_cm_calls, ferroverbs_cm_layer, ferroverbs_layer, ferroverbs_refusal, ibv_context,
    ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, verbs_context_ops,
};
use cface::lock::Guard;
use layer_tap::life;
use provider::Provider;

use checks::refused_call::RefusedCall;
use state::{AHS, CONTEXTS, CQS, Ctx, PDS, QPS, SRQS};

/// The symbol by which the front-end finds the layer.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is part of the interface")]
pub static ferroverbs_layer_v1: ferroverbs_layer = ferroverbs_layer {
    size: size_of::<ferroverbs_layer>(),
    generation: cface::generations::NEWEST.pabi,
    reserved: 0,
    name: c"validate".as_ptr(),
    attach: Some(attach),
    awaits: Some(waits::awaits),
    refused: Some(refused),
};

/// The symbol by which librdmacm finds the layer.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is part of the interface")]
pub static ferroverbs_cm_layer_v1: ferroverbs_cm_layer = ferroverbs_cm_layer {
    size: size_of::<ferroverbs_cm_layer>(),
    calls: size_of::<ferroverbs_cm_calls>(),
    name: c"validate".as_ptr(),
    attach: Some(attach_cm),
};

/// Reports a call that libibverbs refused itself.
///
/// # Safety
/// As for `ferroverbs_layer.refused`.
unsafe extern "C" fn refused(refusal: *const ferroverbs_refusal) {
    // SAFETY: readable during this call.
    let refusal = unsafe { &*refusal };
    // SAFETY: each pointer is a constant string of libibverbs.
    let text = |string: *const c_char| unsafe { CStr::from_ptr(string) }.to_string_lossy();
    let call = text(refusal.call);
    let finding = RefusedCall {
        call: &call,
        argument: &text(refusal.argument),
        problem: &text(refusal.problem),
        remedy: &text(refusal.remedy),
        value: (refusal.has_value != 0).then_some(refusal.value),
        error: refusal.error,
    }
    .finding();
    report::report(&call, String::new, Some(finding), None);
}

// These C functions (src/entry.c) call back with the address of their caller.
unsafe extern "C" {
    fn ferroverbs_validate_entry_post_send(
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int;
    fn ferroverbs_validate_entry_post_recv(
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int;
    fn ferroverbs_validate_entry_post_srq_recv(
        srq: *mut ibv_srq,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int;
}

unsafe extern "C" fn attach(
    context: *mut ibv_context,
    next: *const verbs_context_ops,
    mine: *mut verbs_context_ops,
) -> c_int {
    begin();
    // SAFETY: the context is open, and `next` is complete.
    let provider = unsafe { Provider::new(context, next) };
    overlap::begin(provider.has_extension);
    let (device, ports) = provider.limits();
    let longest = ports.iter().map(|port| u64::from(port.max_msg_sz)).max();
    let max_message = longest.unwrap_or(u64::MAX);
    let at = context as usize;
    CONTEXTS.insert(at, Arc::new(Ctx { at, provider, device, ports, max_message }));
    // SAFETY: `mine` is the chain's table for this layer.
    fill(unsafe { &mut *mine });
    0
}

unsafe extern "C" fn attach_cm(
    next: *const ferroverbs_cm_calls,
    mine: *mut ferroverbs_cm_calls,
) -> c_int {
    begin();
    // SAFETY: the arguments are librdmacm's, as the interface describes them.
    unsafe { cm::attach(next, mine) };
    0
}

fn begin() {
    if life::begin(life::ProcessHooks { at_exit, objects, hold, in_child }) {
        let _ = settings::settings();
    }
}

fn fill(mine: &mut verbs_context_ops) {
    macro_rules! put {
        ($($name:ident = $function:path;)+) => {
            $(mine.$name = Some($function);)+
        };
    }
    put! {
        advise_mr = mr::advise_mr;
        alloc_dm = others::alloc_dm;
        alloc_mw = mr::alloc_mw;
        alloc_null_mr = mr::alloc_null_mr;
        alloc_parent_domain = objects::alloc_parent_domain;
        alloc_pd = objects::alloc_pd;
        alloc_td = others::alloc_td;
        async_event = cq::async_event;
        attach_counters_point_flow = others::attach_counters_point_flow;
        attach_mcast = qp::attach_mcast;
        bind_mw = mr::bind_mw;
        close_xrcd = others::close_xrcd;
        cq_event = cq::cq_event;
        create_ah = objects::create_ah;
        create_comp_cntr = others::create_comp_cntr;
        create_counters = others::create_counters;
        create_cq = cq::create_cq;
        create_cq_ex = cq::create_cq_ex;
        create_flow = others::create_flow;
        create_flow_action_esp = others::create_flow_action_esp;
        create_qp = qp::create_qp;
        create_qp_ex = qp::create_qp_ex;
        create_rwq_ind_table = others::create_rwq_ind_table;
        create_srq = objects::create_srq;
        create_srq_ex = objects::create_srq_ex;
        create_wq = others::create_wq;
        dealloc_mw = mr::dealloc_mw;
        dealloc_pd = objects::dealloc_pd;
        dealloc_td = others::dealloc_td;
        dereg_mr = mr::dereg_mr;
        destroy_ah = objects::destroy_ah;
        destroy_comp_cntr = others::destroy_comp_cntr;
        destroy_counters = others::destroy_counters;
        destroy_cq = cq::destroy_cq;
        destroy_flow_action = others::destroy_flow_action;
        destroy_qp = qp::destroy_qp;
        destroy_rwq_ind_table = others::destroy_rwq_ind_table;
        destroy_srq = objects::destroy_srq;
        destroy_wq = others::destroy_wq;
        detach_mcast = qp::detach_mcast;
        free_context = objects::free_context;
        free_dm = others::free_dm;
        import_dm = others::import_dm;
        import_mr = mr::import_mr;
        import_pd = others::import_pd;
        inc_comp_cntr = others::inc_comp_cntr;
        inc_err_comp_cntr = others::inc_err_comp_cntr;
        modify_cq = others::modify_cq;
        modify_flow_action_esp = others::modify_flow_action_esp;
        modify_qp = qp::modify_qp;
        modify_qp_rate_limit = others::modify_qp_rate_limit;
        modify_srq = objects::modify_srq;
        modify_wq = others::modify_wq;
        open_qp = others::open_qp;
        open_xrcd = others::open_xrcd;
        poll_cq = cq::poll_cq;
        post_recv = ferroverbs_validate_entry_post_recv;
        post_send = ferroverbs_validate_entry_post_send;
        post_srq_ops = others::post_srq_ops;
        post_srq_recv = ferroverbs_validate_entry_post_srq_recv;
        qp_attach_comp_cntr = others::qp_attach_comp_cntr;
        query_comp_cntr_caps = others::query_comp_cntr_caps;
        query_device_ex = others::query_device_ex;
        query_ece = others::query_ece;
        query_port = others::query_port;
        query_port_speed = others::query_port_speed;
        query_qp = others::query_qp;
        query_rt_values = others::query_rt_values;
        query_srq = others::query_srq;
        read_comp_cntr = others::read_comp_cntr;
        read_counters = others::read_counters;
        read_err_comp_cntr = others::read_err_comp_cntr;
        reg_dm_mr = mr::reg_dm_mr;
        reg_dmabuf_mr = mr::reg_dmabuf_mr;
        reg_mr = mr::reg_mr;
        reg_mr_ex = mr::reg_mr_ex;
        req_notify_cq = cq::req_notify_cq;
        rereg_mr = mr::rereg_mr;
        resize_cq = cq::resize_cq;
        set_comp_cntr = others::set_comp_cntr;
        set_ece = others::set_ece;
        set_err_comp_cntr = others::set_err_comp_cntr;
        unimport_mr = mr::unimport_mr;
    }
}

fn objects(all: &mut life::LockedObjects) {
    all.add(&QPS);
    all.add(&CQS);
    all.add(&SRQS);
}

fn hold() -> Vec<Guard> {
    advice::forks();
    let [changing, channels] = channels::hold();
    vec![
        cm::hold(),
        changing,
        channels,
        CONTEXTS.hold(),
        PDS.hold(),
        SRQS.hold(),
        CQS.hold(),
        QPS.hold(),
        AHS.hold(),
        regions::hold(),
        state::hold_destroyed(),
        overlap::hold(),
        report::hold(),
    ]
}

/// Runs when the process exits by itself.
extern "C" fn at_exit() {
    if settings::settings().leaks {
        objects::left_at_exit();
    }
    report::finish();
}

/// Runs in the child of a fork.
fn in_child() {
    waits::forked();
    layer_tap::forked();
}
