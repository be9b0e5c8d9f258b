//! WR-14, MR-09, MR-10: memory that requests in flight write. WR-14 reports a send of bytes that an
//! earlier READ brings; MR-09 reports two requests that write the same bytes. WR-14 needs only the
//! READs and atomics of a queue. MR-09 and MR-10 (`asan`) need all receives of the process, and are
//! off by default.

use core::ffi::c_char;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, VecDeque};

use abi::{IBV_QPT_RC, IBV_QPT_XRC_SEND, SendFlags, ibv_sge};
use cface::shared::StaticMutex;

use crate::asan;
use crate::checks::Id;
use crate::checks::buffers::{self, common};
use crate::checks::finding::Finding;
use crate::checks::request::{SendRequest, fetches, reads_memory};
use crate::regions::Cache;
use crate::report::{is_enabled, report};
use crate::stack::{self, Site};

/// Elements of a request that are recorded.
pub(crate) const KEYS: usize = 3;

/// A request that writes memory until it completes. Elements beyond the first few are not recorded.
#[derive(Clone, Debug)]
struct MemoryWriter {
    wr_id: u64,
    /// QP number; `None` for an SRQ.
    qp: Option<u32>,
    is_receive: bool,
    site: Site,
    spans: [Range<u64>; KEYS],
}

/// The writers of one queue, the oldest first.
type MemoryWriters = VecDeque<MemoryWriter>;

/// The READs and atomics of a send queue, for WR-14.
#[derive(Debug, Default)]
pub(crate) struct Fetches(MemoryWriters);

/// The writers of the process, by the address of the queue. Lock order: a leaf.
static WRITTEN: StaticMutex<BTreeMap<usize, MemoryWriters>> = StaticMutex::new(BTreeMap::new());

/// For a fork: no thread changes the writers until the result is dropped.
pub(crate) fn hold() -> cface::lock::Guard {
    WRITTEN.hold()
}

/// Whether the writers of the process are recorded.
static KEPT: AtomicBool = AtomicBool::new(false);

/// Prepares the checks when a device is opened. `writes_itself` is true for a plugin without a
/// kernel driver.
pub(crate) fn begin(writes_itself: bool) {
    if asan::begin(writes_itself, reported) {
        unregistered(&(0..u64::MAX));
    }
    KEPT.store(is_enabled(Id::Mr09) || asan::is_on(), Ordering::Relaxed);
}

#[inline]
pub(crate) fn is_kept() -> bool {
    KEPT.load(Ordering::Relaxed)
}

impl MemoryWriter {
    fn new(
        ctx: usize,
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

    /// Bytes of the writer that are also in `other`.
    fn common(&self, other: &Range<u64>) -> Option<Range<u64>> {
        self.spans.iter().find_map(|span| common(span, other))
    }
}

/// The addresses of an element in this process; empty if unknown, as for device memory.
fn memory(ctx: usize, cache: &mut Cache, sge: &ibv_sge) -> Range<u64> {
    let shift = cache.find(ctx, sge.lkey).and_then(|mr| mr.shift);
    shift.map_or(0..0, |shift| {
        let start = sge.addr.wrapping_add(shift);
        start..start.saturating_add(sge.length.into())
    })
}

/// The queue to which a request is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedTo {
    /// Address of the context.
    pub(crate) ctx: usize,
    /// Address of the queue, or of the SRQ.
    pub(crate) queue: usize,
    /// QP number; `None` for an SRQ.
    pub(crate) qp: Option<u32>,
    /// `ibv_qp_type`; 0 for an SRQ.
    pub(crate) queue_kind: u32,
}

impl Fetches {
    /// Whether a request must be checked by [`sends`](Self::sends).
    #[inline]
    pub(crate) fn concerns(&self, request: &SendRequest<'_>) -> bool {
        fetches(request.opcode) || !self.0.is_empty()
    }

    /// WR-14 and MR-09: checks a send that is about to be posted to a queue of `most` entries.
    pub(crate) fn sends(
        &mut self,
        to: PostedTo,
        cache: &mut Cache,
        most: usize,
        request: &SendRequest<'_>,
        site: Site,
    ) -> Option<Finding> {
        if !matches!(to.queue_kind, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
            return None;
        }
        let sges = request.sges.unwrap_or(&[]);
        let is_inline = request.is_inline();
        // A fenced request waits for earlier READs and atomics, and so do later requests. Inline
        // data are read at posting.
        if request.flags & SendFlags::FENCE.bits() != 0 && !is_inline {
            self.0.clear();
        }
        if fetches(request.opcode) {
            let writer =
                MemoryWriter::new(to.ctx, cache, (to.qp, false), request.wr_id, site, sges);
            let found = if is_kept() { write(to.queue, writer.clone()) } else { None };
            if self.0.len() >= most {
                self.0.pop_front();
            }
            self.0.push_back(writer);
            return found;
        }
        if !reads_memory(request.opcode) || !is_enabled(Id::Wr14) {
            return None;
        }
        for sge in sges {
            // Inline data need no region.
            let span = match is_inline {
                true => sge.addr..sge.addr.saturating_add(sge.length.into()),
                false => memory(to.ctx, cache, sge),
            };
            let early = self.0.iter().find_map(|writer| Some((writer, writer.common(&span)?)));
            if let Some((writer, bytes)) = early {
                let posted = stack::stack_at(writer.site);
                return Some(buffers::unfenced(&bytes, writer.wr_id, is_inline, posted));
            }
        }
        None
    }

    /// Removes a request that is no longer in flight.
    #[inline]
    pub(crate) fn remove(&mut self, wr_id: u64) {
        if !self.0.is_empty() {
            remove(&mut self.0, wr_id);
        }
    }

    /// Removes all requests.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// MR-09: records a receive that is about to be posted.
pub(crate) fn receives(
    to: PostedTo,
    cache: &mut Cache,
    wr_id: u64,
    sges: &[ibv_sge],
    site: Site,
) -> Option<Finding> {
    write(to.queue, MemoryWriter::new(to.ctx, cache, (to.qp, true), wr_id, site, sges))
}

/// MR-09: records a writer, and finds an overlap.
#[cold]
fn write(queue: usize, writer: MemoryWriter) -> Option<Finding> {
    let found = {
        let mut all = WRITTEN.lock();
        let mut others = all.values().flatten();
        let overlap = |other: &MemoryWriter| {
            let bytes = writer.spans.iter().find_map(|span| other.common(span))?;
            Some((other.wr_id, other.site, bytes))
        };
        let found = is_enabled(Id::Mr09).then(|| others.find_map(overlap)).flatten();
        writer.spans.iter().for_each(asan::poison);
        all.entry(queue).or_default().push_back(writer);
        found
    };
    let (wr_id, site, bytes) = found?;
    Some(buffers::written_twice(&bytes, wr_id, stack::stack_at(site)))
}

/// Removes a request of a queue that is no longer in flight.
#[inline]
pub(crate) fn remove_request(queue: usize, wr_id: u64) {
    if is_kept() {
        let mut all = WRITTEN.lock();
        let gone = all.get_mut(&queue).and_then(|writers| remove(writers, wr_id));
        give_back(&all, gone);
    }
}

fn remove(writers: &mut MemoryWriters, wr_id: u64) -> Option<MemoryWriter> {
    let place = writers.iter().position(|writer| writer.wr_id == wr_id)?;
    writers.remove(place)
}

/// MR-10: unpoisons buffers that are no longer in flight, except bytes that other requests write.
fn give_back(all: &BTreeMap<usize, MemoryWriters>, gone: impl IntoIterator<Item = MemoryWriter>) {
    if !asan::is_on() {
        return;
    }
    for span in gone.into_iter().flat_map(|writer| writer.spans) {
        asan::unpoison(&span);
        let others = all.values().flatten();
        others.filter_map(|other| other.common(&span)).for_each(|s| asan::poison(&s));
    }
}

/// MR-10: forgets writers of memory that is no longer registered.
pub(crate) fn unregistered(memory: &Range<u64>) {
    if !is_enabled(Id::Mr10) {
        return;
    }
    for writer in WRITTEN.lock().values_mut().flatten() {
        for span in &mut writer.spans {
            if span.start >= memory.start && span.end <= memory.end {
                asan::unpoison(span);
                *span = 0..0;
            }
        }
    }
}

/// MR-10: the sanitizer's callback after a report.
extern "C" fn reported(_report: *const c_char) {
    let Some(at) = asan::report_address() else { return };
    let (object, found) = {
        let all = WRITTEN.lock();
        let Some((queue, writer)) = all.iter().find_map(|(queue, writers)| {
            let is_in = |writer: &&MemoryWriter| writer.spans.iter().any(|span| span.contains(&at));
            Some((queue, writers.iter().find(is_in)?))
        }) else {
            return;
        };
        let name = writer.qp.map_or_else(|| format!("srq {queue:#x}"), |qp| format!("qp {qp:#x}"));
        let what = if writer.is_receive { "a receive" } else { "a READ or an atomic" };
        let found = buffers::touched(at, what, stack::stack_at(writer.site));
        (format!("{name} wr_id {:#x}", writer.wr_id), found)
    };
    report("a read or a write of the program", || object.clone(), [found], None);
}

/// Removes all requests of a queue.
pub(crate) fn clear_queue(queue: usize) {
    if is_kept() {
        let mut all = WRITTEN.lock();
        let gone = all.remove(&queue);
        give_back(&all, gone.into_iter().flatten());
    }
}
