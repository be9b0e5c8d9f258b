//! CQ-01, CQ-04 to CQ-10, OB-04: events of completion queues and of objects.

use super::Id;
use super::finding::{Finding, Origin, Stack, list};

fn created(stack: Stack) -> Option<Origin> {
    Some(("the CQ was created", stack))
}

/// CQ-01: a CQ that lost completions.
pub(crate) fn overrun(entries: u32, cq: Stack) -> Finding {
    Finding::new(
        Id::Cq01,
        format!("IBV_EVENT_CQ_ERR: more completed than its {entries} entries hold"),
        "poll more often, or make the CQ as large as all queues that complete there",
    )
    .from(created(cq))
}

/// CQ-04: a wait for an event of a CQ that was not polled after it was armed.
pub(crate) fn not_polled(cq: Stack) -> Finding {
    Finding::new(
        Id::Cq04,
        "it was not polled between ibv_req_notify_cq and this wait: a completion that came before it was armed brings no event",
        "poll once more after ibv_req_notify_cq, and sleep only if there was nothing",
    )
    .from(created(cq))
}

/// Events that a destroyed object waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unacknowledged {
    /// CQ-06: completion events.
    Completion,
    /// CQ-08: asynchronous events.
    Asynchronous,
}

impl Unacknowledged {
    /// The check of the events.
    pub(crate) const fn id(self) -> Id {
        match self {
            Self::Completion => Id::Cq06,
            Self::Asynchronous => Id::Cq08,
        }
    }
}

/// The number of events that were read and not acknowledged; `None` if all are acknowledged.
pub(crate) fn unacknowledged(got: u32, acked: u32) -> Option<u32> {
    let open = got.wrapping_sub(acked);
    (open.cast_signed() > 0).then_some(open)
}

/// CQ-06, CQ-08: an object whose destruction waits for acknowledgements.
pub(crate) fn waits(events: Unacknowledged, got: u32, acked: u32) -> Finding {
    let open = got.wrapping_sub(acked);
    let (event, remedy) = match events {
        Unacknowledged::Completion => {
            ("completion events", "ibv_ack_cq_events as many as ibv_get_cq_event gave")
        }
        Unacknowledged::Asynchronous => (
            "asynchronous events",
            "ibv_ack_async_event for each event that ibv_get_async_event gave",
        ),
    };
    let text = format!(
        "it waits, maybe for ever, for {open} {event} that nobody acknowledged ({got} got, {acked} acknowledged)"
    );
    Finding::new(events.id(), text, remedy)
}

/// CQ-07: more acknowledged events than the program has read.
pub(crate) fn acknowledged_too_often(got: u32, acked: u32) -> Option<Finding> {
    (acked.wrapping_sub(got).cast_signed() > 0).then(|| {
        Finding::new(
            Id::Cq07,
            format!("{acked} events of it were acknowledged, {got} were got"),
            "acknowledge each event once, on the CQ that ibv_get_cq_event gave",
        )
    })
}

/// CQ-05: a wait while no CQ of the channel is armed. `cqs` are their names.
pub(crate) fn unarmed(cqs: &[String], first: Option<Stack>) -> Finding {
    Finding::new(
        Id::Cq05,
        format!("it waits, maybe for ever: nothing is armed there ({})", list(cqs)),
        "ibv_req_notify_cq before each wait, which is for one event, and ibv_poll_cq once more after it",
    )
    .from(first.and_then(created))
}

/// The completions or requests of a CQ that bring no solicited event; `None` if one may come.
/// `waiting` completions are in the CQ; `sends` and `receives` in flight complete there.
pub(crate) fn without_event(waiting: u32, sends: u32, receives: usize) -> Option<String> {
    if waiting > 0 {
        return Some(format!("{waiting} completions wait in it that were not"));
    }
    (sends > 0 && receives == 0).then(|| {
        format!("{sends} sends complete in it and no receives, but a send that succeeds is never solicited")
    })
}

/// CQ-10: a wait for solicited completions while only unsolicited ones come to the CQ at `cq`.
pub(crate) fn solicited_only(cq: usize, what: &str, stack: Stack) -> Finding {
    Finding::new(
        Id::Cq10,
        format!("it waits, maybe for ever: cq {cq:#x} is armed for solicited completions only, and {what}"),
        "IBV_SEND_SOLICITED in what the peer sends last, or ibv_req_notify_cq with solicited_only 0",
    )
    .from(created(stack))
}

/// CQ-09: an asynchronous event that the program did not read.
pub(crate) fn unread() -> Finding {
    Finding::new(
        Id::Cq09,
        "an asynchronous event waits that nobody read",
        "ibv_get_async_event in a thread of its own, or by poll(2) of async_fd: errors of QPs, CQs and ports come there",
    )
}

/// OB-04: an SRQ whose limit was reached and never set again.
pub(crate) fn limit_not_set_again(srq: Stack) -> Finding {
    Finding::new(
        Id::Ob04,
        "IBV_EVENT_SRQ_LIMIT_REACHED came, and the limit was not set again after it",
        "ibv_modify_srq with IBV_SRQ_LIMIT after each event: it comes once",
    )
    .from(Some(("the SRQ was created", srq)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_are_not_acknowledged_are_counted() {
        assert_eq!(unacknowledged(3, 1), Some(2));
        assert_eq!(unacknowledged(3, 3), None);
        assert_eq!(unacknowledged(3, 4), None, "too many acknowledgements are another check's");
    }

    #[test]
    fn counts_of_events_may_wrap_around() {
        assert_eq!(unacknowledged(1, u32::MAX), Some(2));
        assert_eq!(acknowledged_too_often(1, u32::MAX), None);
        assert!(acknowledged_too_often(u32::MAX, 1).is_some());
    }

    #[test]
    fn a_wait_is_told_with_both_counts() {
        let found = waits(Unacknowledged::Completion, 3, 1);
        assert_eq!(found.id, Id::Cq06);
        assert!(found.text.contains("for 2 completion events"), "{}", found.text);
        assert!(found.text.ends_with("(3 got, 1 acknowledged)"), "{}", found.text);
        assert_eq!(waits(Unacknowledged::Asynchronous, 1, 0).id, Id::Cq08);
    }

    #[test]
    fn too_many_acknowledgements_are_told_with_both_counts() {
        let found = acknowledged_too_often(1, 2).expect("a finding");
        assert_eq!(found.text, "2 events of it were acknowledged, 1 were got");
        assert_eq!(acknowledged_too_often(2, 2), None);
    }

    #[test]
    fn a_channel_without_an_armed_cq_is_told_with_its_cqs() {
        let found = unarmed(&["cq 0xc".into()], Some([1; 8]));
        assert!(found.text.ends_with("nothing is armed there (cq 0xc)"), "{}", found.text);
        assert_eq!(found.origin, Some(("the CQ was created", [1; 8])));
        assert_eq!(unarmed(&[], None).origin, None);
    }

    #[test]
    fn waiting_completions_bring_no_event() {
        assert!(without_event(2, 0, 5).is_some_and(|text| text.starts_with("2 completions wait")));
    }

    #[test]
    fn a_send_is_never_solicited_and_a_receive_may_be() {
        assert!(without_event(0, 3, 0).is_some_and(|text| text.starts_with("3 sends")));
        assert_eq!(without_event(0, 3, 1), None);
        assert_eq!(without_event(0, 0, 0), None);
    }

    #[test]
    fn each_event_check_names_its_cq_or_its_queue() {
        assert!(solicited_only(0xc, "why", [1; 8]).text.contains("cq 0xc is armed for solicited"));
        assert!(overrun(16, [1; 8]).text.contains("its 16 entries"));
        assert_eq!(not_polled([1; 8]).id, Id::Cq04);
        assert_eq!(limit_not_set_again([2; 8]).origin, Some(("the SRQ was created", [2; 8])));
        assert_eq!(unread().id, Id::Cq09);
    }
}
