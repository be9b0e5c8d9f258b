//! Waiting receives of a QP or of a shared receive queue. Also finds the XRC shared receive queue
//! of a completion, which does not name the queue.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cface::lock::Guard;
use cface::shared::StaticMutex;
use layer_records::pcapng::Link;
use layer_tap::life::{HasLocks, Lock};
use layer_tap::spin::Spin;

use crate::memory::Source;
use crate::qp::EVENTS;
use crate::writer;

/// Most receives and requests that are kept for a queue of unknown length.
pub(crate) const MAX_REQUESTS: usize = 1 << 14;
/// Unused sources that are kept for later receives.
const SPARE: usize = 64;

/// Waiting receives of a queue.
#[derive(Default)]
pub(crate) struct PostedReceives {
    waiting: VecDeque<(u64, Source)>,
    spare: Vec<Source>,
}

impl PostedReceives {
    /// Adds a receive that is about to be posted. `source` becomes an empty source.
    pub(crate) fn push(&mut self, wr_id: u64, source: &mut Source, most: usize) {
        if self.waiting.len() >= most {
            self.waiting.pop_front();
        }
        let mut fresh = self.spare.pop().unwrap_or_default();
        fresh.clear();
        self.waiting.push_back((wr_id, std::mem::replace(source, fresh)));
    }

    /// Removes a refused receive.
    pub(crate) fn refuse(&mut self, wr_id: u64) {
        if let Some(at) = self.waiting.iter().rposition(|(id, _)| *id == wr_id) {
            self.waiting.remove(at);
        }
    }

    pub(crate) fn take(&mut self, wr_id: u64) -> Option<Source> {
        let at = self.waiting.iter().position(|(id, _)| *id == wr_id)?;
        self.waiting.remove(at).map(|(_, source)| source)
    }

    pub(crate) fn give_back(&mut self, source: Source) {
        if self.spare.len() < SPARE {
            self.spare.push(source);
        }
    }
}

/// A shared receive queue.
pub(crate) struct Srq {
    receives: Spin<PostedReceives>,
    /// Time of creation.
    pub(crate) created_ns: u64,
    /// The properties of an XRC queue.
    pub(crate) xrc: Option<XrcQueue>,
}

/// The properties of an XRC shared receive queue.
#[derive(Clone, Debug)]
pub(crate) struct XrcQueue {
    /// The number by which requests name the queue.
    pub(crate) number: u32,
    pub(crate) context: usize,
    /// Address of the CQ for its completions.
    pub(crate) cq: usize,
    /// Name of the device.
    pub(crate) device: String,
}

/// XRC shared receive queues by CQ. Lock order: a leaf.
static XRC: StaticMutex<Option<HashMap<usize, Vec<Arc<Srq>>>>> = StaticMutex::new(None);

/// The lock that a forking thread must hold.
pub(crate) fn hold() -> Guard {
    XRC.hold()
}

impl HasLocks for Srq {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock)) {
        if turn == 2 {
            act(&self.receives);
        }
    }
}

impl Srq {
    /// Makes the record of a new queue.
    pub(crate) fn create(born: u64, xrc: Option<XrcQueue>) -> Arc<Self> {
        let cq = xrc.as_ref().map(|xrc| xrc.cq);
        let srq = Arc::new(Self {
            receives: Spin::new(PostedReceives::default()),
            created_ns: born,
            xrc,
        });
        if let Some(cq) = cq {
            XRC.lock().get_or_insert_default().entry(cq).or_default().push(srq.clone());
        }
        srq
    }

    /// Forgets a destroyed queue.
    pub(crate) fn remove(&self) {
        let Some(xrc) = &self.xrc else { return };
        if let Some(all) = &mut *XRC.lock()
            && let Some(of_cq) = all.get_mut(&xrc.cq)
        {
            of_cq.retain(|other| !std::ptr::eq(&raw const **other, self));
            if of_cq.is_empty() {
                all.remove(&xrc.cq);
            }
        }
    }

    pub(crate) fn push(&self, wr_id: u64, source: &mut Source) {
        self.receives.lock().push(wr_id, source, MAX_REQUESTS);
    }

    pub(crate) fn refuse(&self, wr_id: u64) {
        self.receives.lock().refuse(wr_id);
    }

    pub(crate) fn take(&self, wr_id: u64) -> Option<Source> {
        self.receives.lock().take(wr_id)
    }

    fn contains(&self, wr_id: u64) -> bool {
        self.receives.lock().waiting.iter().any(|(id, _)| *id == wr_id)
    }
}

impl XrcQueue {
    /// The interface for events without packets.
    pub(crate) fn events(&self) -> u32 {
        writer::interface(Link::UpperPdu, &self.device, EVENTS)
    }
}

/// The XRC queue to which a completion of `cq` belongs. The flag is true if exactly one queue of
/// this CQ waits for a receive with this `wr_id`. Otherwise the result is any queue of the CQ.
/// `None` if no queue uses the CQ.
pub(crate) fn of_completion(cq: usize, wr_id: u64) -> Option<(Arc<Srq>, bool)> {
    // A forking thread takes this lock after the queues' locks. Therefore the lock is released
    // before their receives are read.
    let all = XRC.lock().as_ref()?.get(&cq)?.clone();
    let mut those = all.iter().filter(|srq| srq.contains(wr_id));
    match (those.next(), those.next()) {
        (Some(one), None) => Some((one.clone(), true)),
        _ => Some((all.into_iter().next()?, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_are_taken_by_their_wr_id_and_no_more_are_kept_than_fit() {
        let mut receives = PostedReceives::default();
        for wr_id in 0..5 {
            receives.push(wr_id, &mut Source::default(), 4);
        }
        assert!(receives.take(0).is_none(), "the queue has four");
        assert!(receives.take(3).is_some() && receives.take(3).is_none());
        receives.refuse(4);
        assert!(receives.take(4).is_none() && receives.take(1).is_some());
    }

    #[test]
    fn a_completion_is_of_the_only_queue_that_waits_for_it() {
        let make = |number, cq| {
            let xrc = XrcQueue { number, context: 1, cq, device: String::new() };
            Srq::create(0, Some(xrc))
        };
        let number = |cq, wr_id| {
            let one = of_completion(cq, wr_id).filter(|(_, is_sure)| *is_sure);
            one.and_then(|(srq, _)| srq.xrc.as_ref().map(|xrc| xrc.number))
        };
        let (first, second, other) = (make(7, 100), make(8, 100), make(9, 200));
        first.push(1, &mut Source::default());
        second.push(2, &mut Source::default());
        other.push(1, &mut Source::default());
        assert_eq!((number(100, 1), number(100, 2), number(200, 1)), (Some(7), Some(8), Some(9)));
        assert_eq!((number(100, 3), number(300, 1)), (None, None), "nobody waits for it");
        assert!(of_completion(100, 3).is_some() && of_completion(300, 1).is_none());
        second.push(1, &mut Source::default());
        assert_eq!(number(100, 1), None, "two wait for it");
        assert!(second.take(1).is_some());
        assert_eq!(number(100, 1), Some(7));
        first.remove();
        assert_eq!((number(100, 1), number(100, 2)), (None, Some(8)));
    }
}
