//! Receives that wait, in a queue pair's own queue or in a shared one; and by which shared one of XRC a message came, whose completion does not say so.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cface::lock::Guard;
use cface::shared::Shared;
use layer_records::pcapng::Link;
use layer_tap::life::{Inside, Lock};
use layer_tap::spin::Spin;

use crate::memory::Source;
use crate::qp::EVENTS;
use crate::writer;

/// Receives and requests that are kept of a queue whose length is not known.
pub(crate) const LONG: usize = 1 << 14;
/// Sources that are kept to be used again.
const SPARE: usize = 64;

/// Receives of a queue.
#[derive(Default)]
pub(crate) struct Receives {
    waiting: VecDeque<(u64, Source)>,
    spare: Vec<Source>,
}

impl Receives {
    /// A receive is about to be posted. `source` gets what another one had.
    pub(crate) fn push(&mut self, wr_id: u64, source: &mut Source, most: usize) {
        if self.waiting.len() >= most {
            self.waiting.pop_front();
        }
        let mut fresh = self.spare.pop().unwrap_or_default();
        fresh.clear();
        self.waiting.push_back((wr_id, std::mem::replace(source, fresh)));
    }

    /// It was refused.
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
    receives: Spin<Receives>,
    /// Since when it is one.
    pub(crate) born: u64,
    /// Of one of XRC.
    pub(crate) xrc: Option<Xrc>,
}

/// What those of XRC have.
#[derive(Clone, Debug)]
pub(crate) struct Xrc {
    /// What requests name it by.
    pub(crate) number: u32,
    pub(crate) context: usize,
    /// Where its completions come.
    pub(crate) cq: usize,
    /// Its device.
    pub(crate) device: String,
}

/// Those of XRC, by their completion queues. Order: a leaf.
static XRC: Shared<Option<HashMap<usize, Vec<Arc<Srq>>>>> = Shared::new(None);

/// For a thread that forks.
pub(crate) fn hold() -> Guard {
    XRC.hold()
}

impl Inside for Srq {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock)) {
        if turn == 2 {
            act(&self.receives);
        }
    }
}

impl Srq {
    /// One that was just made.
    pub(crate) fn make(born: u64, xrc: Option<Xrc>) -> Arc<Self> {
        let cq = xrc.as_ref().map(|xrc| xrc.cq);
        let srq = Arc::new(Self { receives: Spin::new(Receives::default()), born, xrc });
        if let Some(cq) = cq {
            XRC.lock().get_or_insert_default().entry(cq).or_default().push(srq.clone());
        }
        srq
    }

    /// It was destroyed.
    pub(crate) fn forget(&self) {
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
        self.receives.lock().push(wr_id, source, LONG);
    }

    pub(crate) fn refuse(&self, wr_id: u64) {
        self.receives.lock().refuse(wr_id);
    }

    pub(crate) fn take(&self, wr_id: u64) -> Option<Source> {
        self.receives.lock().take(wr_id)
    }

    fn has(&self, wr_id: u64) -> bool {
        self.receives.lock().waiting.iter().any(|(id, _)| *id == wr_id)
    }
}

impl Xrc {
    /// Where what has no packet is written as text.
    pub(crate) fn events(&self) -> u32 {
        writer::interface(Link::UpperPdu, &self.device, EVENTS)
    }
}

/// The queue of XRC that a completion of `cq` is of, and `true`: the only one there that waits for a receive of this `wr_id`. Where several do, or none,
/// one of those whose completions come there, and `false`; `None` where nobody's do.
pub(crate) fn of_completion(cq: usize, wr_id: u64) -> Option<(Arc<Srq>, bool)> {
    // Their receives are looked at without this lock, which is taken under theirs when the process forks.
    let all = XRC.lock().as_ref()?.get(&cq)?.clone();
    let mut those = all.iter().filter(|srq| srq.has(wr_id));
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
        let mut receives = Receives::default();
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
            let xrc = Xrc { number, context: 1, cq, device: String::new() };
            Srq::make(0, Some(xrc))
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
        first.forget();
        assert_eq!((number(100, 1), number(100, 2)), (None, Some(8)));
    }
}
