//! WR-14, MR-09, MR-10: memory that requests in flight write. WR-14 reports a send of bytes that
//! an earlier READ brings; MR-09 reports two requests that write the same bytes. WR-14 needs only
//! the READs and atomics of a queue. MR-09 and MR-10 (`asan`) need all receives of the process,
//! and are off by default.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, VecDeque};

use abi::{
    IBV_QPT_RC, IBV_QPT_XRC_SEND, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ, SendFlags, ibv_sge,
};
use cface::shared::Shared;

use crate::asan;
use crate::checks::Id;
use crate::report::{Message, emit, wanted};
use crate::stack::{self, Site};
use crate::state::{Cache, Ctx, InFlight, KEYS, Qp, Queue};
use crate::wr::{self, SendRequest};

/// A request that writes memory until it completes. Elements beyond the first few are not
/// recorded.
#[derive(Clone, Debug)]
pub(crate) struct MemoryWriter {
    wr_id: u64,
    /// QP number; `None` for an SRQ.
    qp: Option<u32>,
    is_receive: bool,
    site: Site,
    spans: [Range<u64>; KEYS],
}

/// The sinks of one queue, the oldest first.
pub(crate) type MemoryWriters = VecDeque<MemoryWriter>;

/// The sinks of the process, by the address of the queue. Lock order: a leaf.
static WRITTEN: Shared<BTreeMap<usize, MemoryWriters>> = Shared::new(BTreeMap::new());

/// For a fork: no thread changes the sinks until the result is dropped.
pub(crate) fn hold() -> cface::lock::Guard {
    WRITTEN.hold()
}

/// Whether the sinks of the process are recorded.
static KEPT: AtomicBool = AtomicBool::new(false);

/// Decides at the opening of a device whether sinks are recorded.
pub(crate) fn begin() {
    KEPT.store(wanted(Id::Mr09) || asan::is_on(), Ordering::Relaxed);
}

#[inline]
fn is_kept() -> bool {
    KEPT.load(Ordering::Relaxed)
}

impl MemoryWriter {
    fn new(
        ctx: &Ctx,
        cache: &mut Cache,
        (qp, is_receive): (Option<u32>, bool),
        wr_id: u64,
        site: Site,
        sges: &[ibv_sge],
    ) -> Self {
        let mut spans = [const { 0..0 }; KEYS];
        for (span, sge) in spans.iter_mut().zip(sges) {
            *span = memory(ctx, cache, sge);
        }
        Self { wr_id, qp, is_receive, site, spans }
    }

    /// Bytes of the sink that are also in `other`.
    fn common(&self, other: &Range<u64>) -> Option<Range<u64>> {
        let both = |span: &Range<u64>| span.start.max(other.start)..span.end.min(other.end);
        self.spans.iter().map(both).find(|common| !common.is_empty())
    }
}

/// The addresses of an element in this process; empty if unknown, as for device memory.
fn memory(ctx: &Ctx, cache: &mut Cache, sge: &ibv_sge) -> Range<u64> {
    let shift = cache.find(ctx.at, sge.lkey).and_then(|mr| mr.shift);
    shift.map_or(0..0, |shift| {
        let start = sge.addr.wrapping_add(shift);
        start..start.saturating_add(sge.length.into())
    })
}

/// Whether an operation writes memory of its poster.
fn brings(opcode: u32) -> bool {
    matches!(
        opcode,
        IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD | wr::RECEIVE
    )
}

/// WR-14 and MR-09: checks a send that is about to be posted.
#[inline]
pub(crate) fn sends(
    qp: &Qp,
    call: &'static str,
    queue: &mut Queue,
    send: &SendRequest<'_>,
    inline: bool,
    site: Site,
) {
    if brings(send.opcode) || !queue.sinks.is_empty() {
        look(qp, call, queue, send, inline, site);
    }
}

fn look(
    qp: &Qp,
    call: &'static str,
    queue: &mut Queue,
    send: &SendRequest<'_>,
    inline: bool,
    site: Site,
) {
    if !matches!(qp.kind, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
        return;
    }
    let sges = send.sges.unwrap_or(&[]);
    // A fenced request waits for earlier READs and atomics, and so do later requests. Inline data
    // are read at posting.
    if send.flags & SendFlags::FENCE.bits() != 0 && !inline {
        queue.sinks.clear();
    }
    if brings(send.opcode) {
        let whose = (Some(qp.number), false);
        let sink = MemoryWriter::new(&qp.ctx, &mut queue.cache, whose, send.wr_id, site, sges);
        if is_kept() {
            let object = || format!("{} wr_id {:#x}", qp.name(), send.wr_id);
            write(address(queue), sink.clone(), call, &object, Some(qp));
        }
        if queue.sinks.len() >= queue.most {
            queue.sinks.pop_front();
        }
        queue.sinks.push_back(sink);
    } else if wr::reads_memory(send.opcode) && wanted(Id::Wr14) {
        for sge in sges {
            // Inline data need no region.
            let span = if inline {
                sge.addr..sge.addr.saturating_add(sge.length.into())
            } else {
                memory(&qp.ctx, &mut queue.cache, sge)
            };
            let early = queue.sinks.iter().find_map(|sink| Some((sink, sink.common(&span)?)));
            if let Some((sink, common)) = early {
                return unfenced(qp, call, send, inline, sink, &common);
            }
        }
    }
}

#[cold]
fn unfenced(
    qp: &Qp,
    call: &'static str,
    send: &SendRequest<'_>,
    inline: bool,
    sink: &MemoryWriter,
    common: &Range<u64>,
) {
    let remedy = if inline {
        "poll the completion of the earlier one first: inline data are read when they are posted"
    } else {
        "set IBV_SEND_FENCE, or poll the completion of the earlier one first"
    };
    let message = Message {
        id: Id::Wr14,
        call,
        object: format!("{} wr_id {:#x}", qp.name(), send.wr_id),
        text: format!(
            "it sends [{:#x}, {:#x}), which an earlier READ or atomic, wr_id {:#x}, may not have brought yet",
            common.start, common.end, sink.wr_id
        ),
        remedy: remedy.into(),
        also: stack::of(sink.site).map(|stack| ("which was posted", stack)),
    };
    emit(&message, Some(qp));
}

/// MR-09: records a receive that is about to be posted to a QP.
#[inline]
pub(crate) fn receives(
    qp: &Qp,
    call: &'static str,
    queue: &mut Queue,
    wr_id: u64,
    sges: &[ibv_sge],
    site: Site,
) {
    if is_kept() {
        let whose = (Some(qp.number), true);
        let sink = MemoryWriter::new(&qp.ctx, &mut queue.cache, whose, wr_id, site, sges);
        let object = || format!("{} wr_id {wr_id:#x}", qp.name());
        write(address(queue), sink, call, &object, Some(qp));
    }
}

/// MR-09: records a receive that is about to be posted to a shared receive queue.
pub(crate) fn shared_receives(
    ctx: &Ctx,
    cache: &mut Cache,
    call: &'static str,
    srq: usize,
    wr_id: u64,
    sges: &[ibv_sge],
) {
    if is_kept() {
        let object = || format!("srq {srq:#x} wr_id {wr_id:#x}");
        write(
            srq,
            MemoryWriter::new(ctx, cache, (None, true), wr_id, 0, sges),
            call,
            &object,
            None,
        );
    }
}

/// MR-09: records a sink, and reports an overlap.
#[cold]
fn write(
    owner: usize,
    sink: MemoryWriter,
    call: &'static str,
    object: &dyn Fn() -> String,
    qp: Option<&Qp>,
) {
    let found = {
        let mut all = WRITTEN.lock();
        let mut others = all.values().flatten();
        let common = |other: &MemoryWriter| {
            let common = sink.spans.iter().find_map(|span| other.common(span))?;
            Some((other.wr_id, other.site, common))
        };
        let found = wanted(Id::Mr09).then(|| others.find_map(common)).flatten();
        sink.spans.iter().for_each(asan::poison);
        all.entry(owner).or_default().push_back(sink);
        found
    };
    let Some((wr_id, site, common)) = found else { return };
    let message = Message {
        id: Id::Mr09,
        call,
        object: object(),
        text: format!(
            "it writes [{:#x}, {:#x}), as does a request before it, wr_id {wr_id:#x}, which has not completed",
            common.start, common.end
        ),
        remedy: "give each request in flight a buffer of its own, unless nobody wants the bytes"
            .into(),
        also: stack::of(site).map(|stack| ("which was posted", stack)),
    };
    emit(&message, qp);
}

/// Removes a request that is no longer in flight.
#[inline]
pub(crate) fn over(queue: &mut Queue, flight: &InFlight) {
    if !brings(flight.opcode.into()) {
        return;
    }
    remove(&mut queue.sinks, flight.wr_id);
    if is_kept() {
        shared_over(address(queue), flight.wr_id);
    }
}

/// As [`over`], for a shared receive queue.
pub(crate) fn shared_over(owner: usize, wr_id: u64) {
    if is_kept() {
        let mut all = WRITTEN.lock();
        let gone = all.get_mut(&owner).and_then(|sinks| remove(sinks, wr_id));
        give_back(&all, gone);
    }
}

fn remove(sinks: &mut MemoryWriters, wr_id: u64) -> Option<MemoryWriter> {
    let place = sinks.iter().position(|sink| sink.wr_id == wr_id)?;
    sinks.remove(place)
}

/// MR-10: unpoisons buffers that are no longer in flight, except bytes that other requests write.
fn give_back(all: &BTreeMap<usize, MemoryWriters>, gone: impl IntoIterator<Item = MemoryWriter>) {
    if !asan::is_on() {
        return;
    }
    for span in gone.into_iter().flat_map(|sink| sink.spans) {
        asan::unpoison(&span);
        all.values()
            .flatten()
            .filter_map(|other| other.common(&span))
            .for_each(|s| asan::poison(&s));
    }
}

/// MR-10: forgets sinks in memory that is no longer registered.
pub(crate) fn unregistered(memory: &Range<u64>) {
    if !wanted(Id::Mr10) {
        return;
    }
    for sink in WRITTEN.lock().values_mut().flatten() {
        for span in &mut sink.spans {
            if span.start >= memory.start && span.end <= memory.end {
                asan::unpoison(span);
                *span = 0..0;
            }
        }
    }
}

/// A request in flight, for MR-10.
pub(crate) struct BufferOwner {
    /// The name of the queue.
    pub(crate) queue: String,
    pub(crate) wr_id: u64,
    pub(crate) what: &'static str,
    pub(crate) posted: Option<stack::Stack>,
}

/// The request whose buffer has the byte at this address.
pub(crate) fn in_flight_at(at: u64) -> Option<BufferOwner> {
    let all = WRITTEN.lock();
    let (owner, sink) = all.iter().find_map(|(owner, sinks)| {
        let sink = sinks.iter().find(|sink| sink.spans.iter().any(|span| span.contains(&at)))?;
        Some((owner, sink))
    })?;
    Some(BufferOwner {
        queue: sink.qp.map_or_else(|| format!("srq {owner:#x}"), |qp| format!("qp {qp:#x}")),
        wr_id: sink.wr_id,
        what: if sink.is_receive { "a receive" } else { "a READ or an atomic" },
        posted: stack::of(sink.site),
    })
}

/// Removes all requests of a queue.
pub(crate) fn clear(queue: &mut Queue) {
    queue.sinks.clear();
    shared_clear(address(queue));
}

/// As [`clear`], for a shared receive queue.
pub(crate) fn shared_clear(owner: usize) {
    if is_kept() {
        let mut all = WRITTEN.lock();
        let gone = all.remove(&owner);
        give_back(&all, gone.into_iter().flatten());
    }
}

fn address(queue: &Queue) -> usize {
    core::ptr::from_ref(queue) as usize
}
