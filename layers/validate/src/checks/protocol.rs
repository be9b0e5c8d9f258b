//! CQ-11, CQ-12, WR-15: the order of calls, and the threads that make them.

use super::Id;
use super::finding::Finding;

/// The state of an extended CQ's iterator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Iteration {
    /// No thread polls.
    Closed = 0,
    /// The iterator stands at a completion.
    Open = 1,
    /// The last `ibv_start_poll` failed.
    Empty = 2,
    /// `ibv_next_poll` found no further completion, and `ibv_end_poll` must follow.
    Ended = 3,
}

impl Iteration {
    /// The state with this number; `Closed` for an unknown number.
    pub(crate) const fn of(number: u8) -> Self {
        match number {
            1 => Self::Open,
            2 => Self::Empty,
            3 => Self::Ended,
            _ => Self::Closed,
        }
    }
}

const AFTER_START: &str = "call it only after ibv_start_poll returned 0";

fn iterator(text: &str, remedy: &str) -> Option<Finding> {
    Some(Finding::new(Id::Cq11, text, remedy))
}

/// CQ-11: `ibv_start_poll` of the thread `me` while the thread `owner` polls; 0 for none.
pub(crate) fn start_poll(owner: u32, me: u32) -> Option<Finding> {
    match owner == me {
        true => iterator("polling has started already", "call ibv_end_poll first"),
        // Another thread may poll a CQ for several threads: the provider makes that thread wait.
        false => None,
    }
}

/// CQ-11: `ibv_next_poll`.
pub(crate) fn next_poll(state: Iteration) -> Option<Finding> {
    match state {
        Iteration::Open => None,
        Iteration::Ended => {
            iterator("the call before it returned ENOENT", "call ibv_end_poll then")
        }
        Iteration::Closed | Iteration::Empty => iterator("polling has not started", AFTER_START),
    }
}

/// CQ-11: `ibv_end_poll`.
pub(crate) fn end_poll(state: Iteration) -> Option<Finding> {
    match state {
        Iteration::Open | Iteration::Ended => None,
        Iteration::Empty => iterator("ibv_start_poll failed before it", AFTER_START),
        Iteration::Closed => iterator("polling has not started", AFTER_START),
    }
}

/// CQ-11: a member that is read while no completion is polled.
pub(crate) fn read_outside(state: Iteration) -> Option<Finding> {
    match state {
        Iteration::Open => None,
        _ => iterator(
            "no completion is polled",
            "read a completion after ibv_start_poll or ibv_next_poll returned 0, and before ibv_end_poll",
        ),
    }
}

/// CQ-12: the thread `me` enters an object for one thread at a time, in which `other` is.
pub(crate) fn second_thread(other: u32, me: u32) -> Finding {
    Finding::new(
        Id::Cq12,
        format!("made for one thread at a time, but thread {other} is in it and thread {me} comes"),
        "leave IBV_CREATE_CQ_ATTR_SINGLE_THREADED or the thread domain away, or lock",
    )
}

/// WR-15: `ibv_wr_start` of the thread `me` while the thread `owner` builds; 0 for none.
pub(crate) fn started_twice(owner: u32, me: u32) -> Option<Finding> {
    (owner == me).then(|| {
        let remedy = "call ibv_wr_complete or ibv_wr_abort first";
        Finding::new(Id::Wr15, "it was called already", remedy)
    })
}

/// WR-15: a call that builds a request, by the thread `me`, while the thread `owner` builds.
pub(crate) fn not_started(owner: u32, me: u32) -> Option<Finding> {
    match owner {
        owner if owner == me && me != 0 => None,
        0 => Some(Finding::new(
            Id::Wr15,
            "there was no ibv_wr_start before it",
            "call ibv_wr_start first, and ibv_wr_complete last",
        )),
        owner => Some(Finding::new(
            Id::Wr15,
            format!("thread {owner} has called ibv_wr_start, and this is thread {me}"),
            "from ibv_wr_start to ibv_wr_complete it is one thread's",
        )),
    }
}

/// WR-15: data that are set before an operation.
pub(crate) fn no_request() -> Finding {
    Finding::new(
        Id::Wr15,
        "there is no request to set it for",
        "call the operation, ibv_wr_send for example, before what it is given",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_of_an_iterator_have_numbers() {
        for state in [Iteration::Closed, Iteration::Open, Iteration::Empty, Iteration::Ended] {
            assert_eq!(Iteration::of(state as u8), state);
        }
        assert_eq!(Iteration::of(9), Iteration::Closed);
    }

    #[test]
    fn polling_is_started_once() {
        assert!(start_poll(7, 7).is_some());
        assert_eq!(start_poll(8, 7), None, "the provider makes the thread wait");
        assert_eq!(start_poll(0, 7), None);
    }

    #[test]
    fn the_next_completion_follows_an_open_one() {
        assert_eq!(next_poll(Iteration::Open), None);
        for state in [Iteration::Closed, Iteration::Empty] {
            let text = next_poll(state).expect("a finding").text;
            assert_eq!(text, "polling has not started");
        }
        let text = next_poll(Iteration::Ended).expect("a finding").text;
        assert_eq!(text, "the call before it returned ENOENT");
    }

    #[test]
    fn polling_ends_once() {
        assert_eq!(end_poll(Iteration::Open), None);
        assert_eq!(end_poll(Iteration::Ended), None);
        let text = end_poll(Iteration::Empty).expect("a finding").text;
        assert_eq!(text, "ibv_start_poll failed before it");
        assert!(end_poll(Iteration::Closed).is_some());
    }

    #[test]
    fn members_are_read_of_an_open_completion() {
        assert_eq!(read_outside(Iteration::Open), None);
        for state in [Iteration::Closed, Iteration::Empty, Iteration::Ended] {
            assert_eq!(read_outside(state).map(|one| one.id), Some(Id::Cq11));
        }
    }

    #[test]
    fn a_second_thread_is_named_with_the_first() {
        let text = second_thread(1, 2).text;
        assert!(text.ends_with("thread 1 is in it and thread 2 comes"), "{text}");
    }

    #[test]
    fn requests_are_built_by_the_thread_that_started() {
        assert_eq!(not_started(7, 7), None);
        assert!(not_started(0, 7).is_some_and(|one| one.text.contains("no ibv_wr_start")));
        let text = not_started(8, 7).expect("a finding").text;
        assert_eq!(text, "thread 8 has called ibv_wr_start, and this is thread 7");
    }

    #[test]
    fn requests_are_started_once() {
        assert!(started_twice(7, 7).is_some());
        assert_eq!(started_twice(8, 7), None);
        assert_eq!(no_request().id, Id::Wr15);
    }
}
