//! The layer `trace`, the *flight recorder*: a watcher that records each call, request and
//! completion in a file that survives the process (docs/guide/trace.md).
//!
//! Records are binary and of one size. `ferroverbs trace` turns them into text, JSON or a
//! timeline. The process itself writes text only after a completion with an error.

mod recorder;
mod settings;

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::{
    IBV_QPT_UD, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ferroverbs_cm_calls, ferroverbs_cm_layer,
    ferroverbs_layer, ibv_context, verbs_context_ops,
};
use cface::lock::Guard;
use layer_records::trace::ARGS;
use layer_tap::{Call, Completion, Post, PostTimes, Qp, Queue, Times, Watcher, life};
use recorder::RecordHead;

/// The symbol by which the front-end finds the layer.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is part of the interface")]
pub static ferroverbs_layer_v1: ferroverbs_layer = ferroverbs_layer {
    size: size_of::<ferroverbs_layer>(),
    generation: cface::generations::NEWEST.pabi,
    reserved: 0,
    name: c"trace".as_ptr(),
    attach: Some(attach),
    awaits: None,
    refused: None,
};

unsafe extern "C" fn attach(
    context: *mut ibv_context,
    next: *const verbs_context_ops,
    mine: *mut verbs_context_ops,
) -> c_int {
    begin();
    // SAFETY: the arguments are the front-end's, as the interface describes them.
    unsafe { layer_tap::attach::<Trace>(context, next, mine) };
    0
}

/// The symbol by which librdmacm finds the layer.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is part of the interface")]
pub static ferroverbs_cm_layer_v1: ferroverbs_cm_layer = ferroverbs_cm_layer {
    size: size_of::<ferroverbs_cm_layer>(),
    calls: size_of::<ferroverbs_cm_calls>(),
    name: c"trace".as_ptr(),
    attach: Some(attach_cm),
};

unsafe extern "C" fn attach_cm(
    next: *const ferroverbs_cm_calls,
    mine: *mut ferroverbs_cm_calls,
) -> c_int {
    begin();
    // SAFETY: the arguments are librdmacm's, as the interface describes them.
    unsafe { layer_tap::attach_cm::<Trace>(next, mine) };
    0
}

fn begin() {
    if life::begin(life::ProcessHooks {
        at_exit: recorder::at_exit,
        objects: layer_tap::objects,
        hold,
        in_child,
    }) {
        POSTS_ARE_TIMED.store(settings::settings().posts, Ordering::Relaxed);
    }
}

/// The number of completions with an error whose history was written.
static DUMPS: AtomicU32 = AtomicU32::new(0);

/// Whether the duration of posts is recorded.
static POSTS_ARE_TIMED: AtomicBool = AtomicBool::new(false);

struct Trace;

layer_tap::pass_calls_on!(Trace);
impl layer_tap::ConnectionCalls for Trace {}

impl Watcher for Trace {
    #[inline(always)]
    fn post_times() -> PostTimes {
        match POSTS_ARE_TIMED.load(Ordering::Relaxed) {
            true => PostTimes::Around,
            false => PostTimes::Late,
        }
    }

    fn called(call: Call, times: Times, result: u64, error: i32, args: &[u64]) {
        let mut all = [0; ARGS];
        for (place, arg) in all.iter_mut().zip(args) {
            *place = *arg;
        }
        recorder::write(&RecordHead { call, times, error, result }, |_| all);
    }

    #[inline]
    fn posted(queue: Queue<'_>, post: &Post, times: Times, error: i32) {
        let (number, peer) = match queue {
            Queue::Send(qp) | Queue::Receive(qp) => {
                (u64::from(qp.number), qp.peer.load(Ordering::Relaxed))
            }
            Queue::Shared(at) => (at as u64, 0),
        };
        let (addr, length, lkey) = post.first;
        // The opcode and two flags of a send request, stored above the QP's number.
        let kind = match queue {
            Queue::Send(qp) => {
                let datagram = qp.kind == IBV_QPT_UD;
                post.opcode | u32::from(post.signaled(qp)) << 16 | u32::from(datagram) << 17
            }
            _ => 0,
        };
        let peer = match queue {
            Queue::Send(_) if post.remote_qp != 0 => post.remote_qp,
            Queue::Send(_) => peer,
            _ => 0,
        };
        let result = i64::from(error).cast_unsigned();
        recorder::write(&RecordHead { call: post.call, times, error, result }, |_| {
            [
                number | u64::from(kind) << 32,
                post.wr_id,
                two(post.flags, post.count),
                post.bytes,
                addr,
                two(length, lkey),
                // No request has both operands of an `|` below; the reader selects by `kind`.
                post.remote | post.ah as u64,
                two(post.rkey | post.qkey, post.imm),
                post.message | post.atomic.0,
                two(peer, post.remote_srq),
                post.atomic.1,
            ]
        });
    }

    #[inline]
    fn completed(cq: usize, qp: Option<&Qp>, done: &Completion, at: u64) {
        // An extended CQ without `IBV_WC_EX_WITH_QP_NUM` tells no QP number.
        let number = if done.qp == 0 { qp.map_or(0, |qp| qp.number) } else { done.qp };
        let times = Times { start: at, end: at };
        let head = RecordHead { call: Call::completion, times, error: 0, result: 0 };
        recorder::write(&head, |local| {
            [
                two(number, done.status),
                done.wr_id,
                two(done.opcode, done.flags),
                two(done.bytes, done.vendor),
                two(done.imm, done.src_qp),
                cq as u64,
                local.take_empty_polls(),
                done.message,
                0,
                0,
                0,
            ]
        });
        if done.status != IBV_WC_SUCCESS && done.status != IBV_WC_WR_FLUSH_ERR {
            failed(number, done);
        }
    }

    #[inline]
    fn polled_empty(_cq: usize) {
        recorder::polled_empty();
    }
}

const fn two(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Handles a completion with an error: the history of the first ones is written.
#[cold]
fn failed(number: u32, done: &Completion) {
    if DUMPS.fetch_add(1, Ordering::Relaxed) < settings::settings().dumps {
        recorder::dump(number, done.wr_id, done.status);
    } else {
        recorder::keep_file();
    }
}

fn hold() -> Vec<Guard> {
    let mut all = layer_tap::hold();
    all.push(recorder::hold());
    all
}

/// In the child of a fork, which writes into a file of its own.
fn in_child() {
    layer_tap::forked();
    DUMPS.store(0, Ordering::Relaxed);
    recorder::forked();
}
