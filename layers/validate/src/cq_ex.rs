//! CQ-11 and CQ-02: checks of extended CQs. CQ-11 checks the order of the iterator's calls, CQ-02
//! the members that a program reads of a failed completion.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use layer_tap::{
    CompletionReader, IteratorCalls, IteratorPointers, Next, NextCompletion, Returned, thread,
};

use crate::advice;
use crate::checks::completion::{self, Completion, is_without_rest};
use crate::checks::finding::Finding;
use crate::checks::protocol::{self, Iteration};
use crate::completions::completed;
use crate::report::report;
use crate::state::{CQS, Cq};
use crate::threads::enter;
use crate::watcher::Validate;

fn misuse(cq: &Cq, call: &str, found: Option<Finding>) {
    report(call, || cq.name(), found, None);
}

impl IteratorCalls for Validate {
    type Cq = Cq;

    #[inline]
    fn iterator(cq: usize) -> Option<(&'static Cq, &'static IteratorPointers)> {
        let known = CQS.get(cq)?;
        Some((known, known.extended.as_ref()?.pointers()))
    }

    fn start_poll<F: FnOnce() -> c_int>(
        known: &'static Cq,
        next: NextCompletion<'_, F>,
    ) -> Returned<c_int> {
        const CALL: &str = "ibv_start_poll";
        let Some(extended) = &known.extended else { return next.call().0 };
        let me = thread();
        let user = known.single.then(|| enter(&known.user, CALL, || known.name()));
        misuse(known, CALL, protocol::start_poll(extended.owner(), me));
        let (result, completion) = next.call();
        advice::polled(known);
        match completion {
            None if extended.owner() == 0 => {
                extended.set_state(Iteration::Empty);
            }
            None => {}
            Some(completion) => {
                extended.set_owner(me);
                extended.set_state(Iteration::Open);
                if let Some(user) = user {
                    // `end_poll` ends the stay.
                    core::mem::forget(user);
                }
                handle_completion(known, &completion);
            }
        }
        result
    }

    fn next_poll<F: FnOnce() -> c_int>(
        known: &'static Cq,
        next: NextCompletion<'_, F>,
    ) -> Returned<c_int> {
        let Some(extended) = &known.extended else { return next.call().0 };
        misuse(known, "ibv_next_poll", protocol::next_poll(extended.state()));
        let (result, completion) = next.call();
        match completion {
            Some(completion) => handle_completion(known, &completion),
            None => {
                extended.set_state(Iteration::Ended);
            }
        }
        result
    }

    fn end_poll<F: FnOnce()>(known: &'static Cq, next: Next<F>) -> Returned<()> {
        if let Some(extended) = &known.extended {
            let before = extended.set_state(Iteration::Closed);
            misuse(known, "ibv_end_poll", protocol::end_poll(before));
            extended.set_owner(0);
        }
        if known.single {
            known.user.store(0, Ordering::Release);
        }
        next.call()
    }

    fn reads(known: &'static Cq, call: &'static str, status: u32, wr_id: u64) {
        let Some(extended) = &known.extended else { return };
        match protocol::read_outside(extended.state()) {
            None if is_without_rest(status) => {
                misuse(known, call, Some(completion::undefined(status, wr_id)));
            }
            found => misuse(known, call, found),
        }
    }
}

/// Handles the completion at which the iterator stands.
fn handle_completion(known: &Cq, completion: &CompletionReader<'_>) {
    let qps = known.qps.lock();
    let number = match (completion.qp(), qps.as_slice()) {
        (Some(number), _) => number,
        (None, [only]) => only.number,
        (None, all) => {
            // The QP of the completion is unknown, so the requests in flight of all QPs become
            // unknown.
            all.iter().for_each(|qp| qp.failed.store(true, Ordering::Relaxed));
            return;
        }
    };
    let read = completion.read();
    let done = Completion {
        wr_id: read.wr_id,
        status: read.status,
        opcode: read.opcode,
        vendor: read.vendor,
    };
    completed(&qps, known, number, &done, "ibv_start_poll or ibv_next_poll");
}
