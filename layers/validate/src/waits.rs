//! CQ-05 and CQ-10: checks of threads that wait in `ibv_get_cq_event(3)`. CQ-05 reports a wait
//! without an armed CQ, CQ-10 a wait for solicited completions that do not come.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use abi::ibv_context;

use crate::channels::{self, Channel};
use crate::checks::Id;
use crate::checks::events;
use crate::report::{is_enabled, report};
use crate::state::{CQS, Cq};

/// Whether the process is the child of a fork. There the plugin's knowledge of inherited queues is
/// the parent's.
static FORKED: AtomicBool = AtomicBool::new(false);

pub(crate) fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Prepares the destruction of a CQ. The lock keeps other threads from asking the plugin about the
/// CQ, now and later.
pub(crate) fn prepare_destruction(at: usize) {
    channels::unchanged(|| CQS.remove(at));
}

/// The entry `ferroverbs_layer.awaits`, called before a thread waits.
pub(crate) extern "C" fn awaits(_context: *mut ibv_context, fd: c_int) -> c_int {
    match channels::channel_with_cqs(fd) {
        Some(channel) if channel.is_unarmed() => report_unarmed(channel),
        Some(channel) if is_enabled(Id::Cq10) => report_solicited_only(channel),
        _ => 0,
    }
}

/// The CQs of a channel.
fn cqs_of(channel: &Channel) -> Vec<Arc<Cq>> {
    let of = |cq: &Arc<Cq>| cq.channel.as_ref().is_some_and(|of| core::ptr::eq(&**of, channel));
    let mut all = CQS.all();
    all.retain(of);
    all
}

/// CQ-05: reports a wait while no CQ is armed.
#[cold]
fn report_unarmed(channel: &Channel) -> c_int {
    if !is_enabled(Id::Cq05) || !channel.blocks() {
        return 0;
    }
    match channel.persists(|| channel.is_unarmed()) {
        Ok(true) => {}
        Ok(false) => return 0,
        Err(error) => return error,
    }
    let cqs = cqs_of(channel);
    let names: Vec<_> = cqs.iter().map(|cq| cq.name()).collect();
    let found = events::unarmed(&names, cqs.first().map(|cq| cq.created_by));
    report("ibv_get_cq_event", || channel.name(), [found], None);
    0
}

/// CQ-10: reports a wait for solicited completions while only unsolicited ones come.
#[cold]
fn report_solicited_only(channel: &Channel) -> c_int {
    let cqs = cqs_of(channel);
    // A CQ that is armed for all completions may bring an event.
    let only = || {
        let armed = |cq: &&Arc<Cq>| cq.arms.load(Ordering::Relaxed) != 0;
        cqs.iter().filter(armed).all(|cq| cq.solicited.load(Ordering::Relaxed))
    };
    let stuck = || {
        let armed = cqs.iter().filter(|cq| cq.arms.load(Ordering::Relaxed) != 0);
        armed.into_iter().find_map(|cq| Some((cq, without_event(cq)?)))
    };
    if !only() || stuck().is_none() || !channel.blocks() {
        return 0;
    }
    match channel.persists(only) {
        Ok(true) => {}
        Ok(false) => return 0,
        Err(error) => return error,
    }
    let found = stuck().map(|(cq, what)| events::solicited_only(cq.address, &what, cq.created_by));
    report("ibv_get_cq_event", || channel.name(), found, None);
    0
}

/// The completions or requests of a CQ that bring no solicited event.
fn without_event(cq: &Cq) -> Option<String> {
    let waiting = channels::unchanged(|| {
        let is_there = CQS.get(cq.address).is_some_and(|known| core::ptr::eq(known, cq))
            && !FORKED.load(Ordering::Relaxed);
        // The CQ is removed from the table (`prepare_destruction`) before its destruction.
        if is_there { cq.ctx.provider.waiting(cq.address).unwrap_or(0) } else { 0 }
    });
    let (mut sends, mut receives) = (0, 0);
    for qp in cq.qps.lock().iter() {
        let is = |queue: &Option<Arc<Cq>>| {
            queue.as_ref().is_some_and(|queue| queue.address == cq.address)
        };
        if is(&qp.send_cq) {
            sends += qp.send.lock().due;
        }
        if is(&qp.recv_cq) {
            receives += usize::from(qp.srq.is_some()) + qp.recv.lock().flights.len();
        }
    }
    events::without_event(u32::try_from(waiting).unwrap_or(0), sends, receives)
}
