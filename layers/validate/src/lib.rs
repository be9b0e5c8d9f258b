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
mod watcher;
mod wr;

use core::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use abi::{
    ferroverbs_cm_calls, ferroverbs_cm_layer, ferroverbs_layer, ferroverbs_refusal, ibv_context,
    verbs_context_ops,
};
use cface::lock::Guard;
use layer_tap::life;
use provider::Provider;

use checks::refused_call::RefusedCall;
use state::{AHS, CONTEXTS, CQS, Ctx, PDS, QPS, SRQS};
use watcher::Validate;

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
    CONTEXTS.insert(at, Arc::new(Ctx { address: at, provider, device, ports, max_message }));
    // SAFETY: the arguments are the front-end's, as the interface describes them.
    unsafe { layer_tap::attach::<Validate>(context, next, mine) };
    0
}

unsafe extern "C" fn attach_cm(
    next: *const ferroverbs_cm_calls,
    mine: *mut ferroverbs_cm_calls,
) -> c_int {
    begin();
    // SAFETY: the arguments are librdmacm's, as the interface describes them.
    unsafe { layer_tap::attach_cm::<Validate>(next, mine) };
    0
}

fn begin() {
    if life::begin(life::ProcessHooks { at_exit, objects, hold, in_child }) {
        let _ = settings::settings();
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
    let mut all = vec![
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
    ];
    all.extend(layer_tap::hold());
    all
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
