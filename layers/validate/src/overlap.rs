//! Memory that requests in flight still write: WR-14, a send of what an earlier READ of its queue brings, and MR-09, two requests that write the same bytes.
//! For WR-14 a queue remembers its READs and atomics only; MR-09 remembers all receives of the process besides, so that it is off unless somebody asks.

use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

use abi::{
    IBV_QPT_RC, IBV_QPT_XRC_SEND, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ, SendFlags, ibv_sge,
};
use cface::shared::Shared;

use crate::checks::Id;
use crate::report::{Message, tell, wanted};
use crate::stack::{self, Site};
use crate::state::{Cache, Ctx, Flight, KEYS, Qp, Queue};
use crate::wr::{self, Send};

/// A request that writes memory until it completes. Elements behind the first few are not remembered.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    wr_id: u64,
    site: Site,
    spans: [Range<u64>; KEYS],
}

/// Those of one queue, the oldest first.
pub(crate) type Sinks = VecDeque<Sink>;

/// What is written in the process, by the address of the queue. Order: a leaf.
static WRITTEN: Shared<BTreeMap<usize, Sinks>> = Shared::new(BTreeMap::new());

/// To fork: nobody changes them until the result is dropped.
pub(crate) fn hold() -> cface::lock::Guard {
    WRITTEN.hold()
}

impl Sink {
    fn new(ctx: &Ctx, cache: &mut Cache, wr_id: u64, site: Site, sges: &[ibv_sge]) -> Self {
        let mut spans = [const { 0..0 }; KEYS];
        for (span, sge) in spans.iter_mut().zip(sges) {
            *span = memory(ctx, cache, sge);
        }
        Self { wr_id, site, spans }
    }

    /// Bytes of it that are also in `other`.
    fn common(&self, other: &Range<u64>) -> Option<Range<u64>> {
        let both = |span: &Range<u64>| span.start.max(other.start)..span.end.min(other.end);
        self.spans.iter().map(both).find(|common| !common.is_empty())
    }
}

/// Where an element lies in the process's memory; nothing where that is not known (device memory, regions that others made).
fn memory(ctx: &Ctx, cache: &mut Cache, sge: &ibv_sge) -> Range<u64> {
    let shift = cache.find(ctx.at, sge.lkey).and_then(|mr| mr.shift);
    shift.map_or(0..0, |shift| {
        let start = sge.addr.wrapping_add(shift);
        start..start.saturating_add(sge.length.into())
    })
}

/// Whether it writes memory of its poster.
fn brings(opcode: u32) -> bool {
    matches!(
        opcode,
        IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD | wr::RECEIVE
    )
}

/// A send is about to be posted.
#[inline]
pub(crate) fn sends(
    qp: &Qp,
    call: &'static str,
    queue: &mut Queue,
    send: &Send<'_>,
    inline: bool,
    site: Site,
) {
    if brings(send.opcode) || !queue.sinks.is_empty() {
        look(qp, call, queue, send, inline, site);
    }
}

fn look(qp: &Qp, call: &'static str, queue: &mut Queue, send: &Send<'_>, inline: bool, site: Site) {
    if !matches!(qp.kind, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
        return;
    }
    let sges = send.sges.unwrap_or(&[]);
    // It waits for READs and atomics before it, and so does what follows it. Inline data were read when they were posted.
    if send.flags & SendFlags::FENCE.bits() != 0 && !inline {
        queue.sinks.clear();
    }
    if brings(send.opcode) {
        let sink = Sink::new(&qp.ctx, &mut queue.cache, send.wr_id, site, sges);
        if wanted(Id::Mr09) {
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
    send: &Send<'_>,
    inline: bool,
    sink: &Sink,
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
    tell(&message, Some(qp));
}

/// A receive is about to be posted to a queue pair's queue.
#[inline]
pub(crate) fn receives(
    qp: &Qp,
    call: &'static str,
    queue: &mut Queue,
    wr_id: u64,
    sges: &[ibv_sge],
    site: Site,
) {
    if wanted(Id::Mr09) {
        let sink = Sink::new(&qp.ctx, &mut queue.cache, wr_id, site, sges);
        let object = || format!("{} wr_id {wr_id:#x}", qp.name());
        write(address(queue), sink, call, &object, Some(qp));
    }
}

/// A receive is about to be posted to a shared queue, by its address.
pub(crate) fn shared_receives(
    ctx: &Ctx,
    cache: &mut Cache,
    call: &'static str,
    srq: usize,
    wr_id: u64,
    sges: &[ibv_sge],
) {
    if wanted(Id::Mr09) {
        let object = || format!("srq {srq:#x} wr_id {wr_id:#x}");
        write(srq, Sink::new(ctx, cache, wr_id, 0, sges), call, &object, None);
    }
}

/// MR-09.
#[cold]
fn write(
    owner: usize,
    sink: Sink,
    call: &'static str,
    object: &dyn Fn() -> String,
    qp: Option<&Qp>,
) {
    let found = {
        let mut all = WRITTEN.lock();
        let mut others = all.values().flatten();
        let found = others.find_map(|other| {
            let common = sink.spans.iter().find_map(|span| other.common(span))?;
            Some((other.wr_id, other.site, common))
        });
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
    tell(&message, qp);
}

/// A request is not in flight any more.
#[inline]
pub(crate) fn over(queue: &mut Queue, flight: &Flight) {
    if !brings(flight.opcode.into()) {
        return;
    }
    remove(&mut queue.sinks, flight.wr_id);
    if wanted(Id::Mr09) {
        shared_over(address(queue), flight.wr_id);
    }
}

/// As `over`, of a shared queue.
pub(crate) fn shared_over(owner: usize, wr_id: u64) {
    if wanted(Id::Mr09)
        && let Some(sinks) = WRITTEN.lock().get_mut(&owner)
    {
        remove(sinks, wr_id);
    }
}

fn remove(sinks: &mut Sinks, wr_id: u64) {
    if let Some(place) = sinks.iter().position(|sink| sink.wr_id == wr_id) {
        sinks.remove(place);
    }
}

/// Nothing of a queue is in flight any more.
pub(crate) fn clear(queue: &mut Queue) {
    queue.sinks.clear();
    shared_clear(address(queue));
}

/// As `clear`, of a shared queue.
pub(crate) fn shared_clear(owner: usize) {
    if wanted(Id::Mr09) {
        WRITTEN.lock().remove(&owner);
    }
}

fn address(queue: &Queue) -> usize {
    core::ptr::from_ref(queue) as usize
}
