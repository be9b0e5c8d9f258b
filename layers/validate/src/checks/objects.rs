//! OB-01, OB-02, OB-03, OB-06, QP-13, QP-14, QP-16: objects and their dependencies.

use abi::{IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPT_UD};

use super::finding::{Finding, Origin, Stack, list};
use super::{Id, transitions};

/// OB-01: an argument that is destroyed, or that belongs to another context. `of` is the context of
/// the live object, `destroyed` the place of its destruction.
pub(crate) fn argument(
    kind: &str,
    at: usize,
    ctx: usize,
    of: Option<usize>,
    destroyed: impl FnOnce() -> Option<Stack>,
) -> Option<Finding> {
    let (text, origin) = match of {
        _ if at == 0 => return None,
        Some(other) if other == ctx => return None,
        Some(other) => (
            format!("{kind} {at:#x} is of context {other:#x}, the call is for context {ctx:#x}"),
            None,
        ),
        None => {
            let stack = destroyed()?;
            (format!("{kind} {at:#x} was destroyed"), Some(("it was destroyed", stack)))
        }
    };
    let remedy = "pass a live object of the same open device";
    Some(Finding::new(Id::Ob01, text, remedy).from(origin))
}

/// OB-02: a PD that objects still use. `users` are their names.
pub(crate) fn used_pd(users: &[String], origin: Option<Origin>) -> Option<Finding> {
    (!users.is_empty()).then(|| {
        let text = format!("it is still used by {}", list(users));
        Finding::new(Id::Ob02, text, "destroy these first").from(origin)
    })
}

/// OB-02: objects that are left when their device is closed.
pub(crate) fn left(names: &[String], origin: Option<Origin>) -> Option<Finding> {
    (!names.is_empty()).then(|| {
        Finding::new(
            Id::Ob02,
            format!("these are left: {}", list(names)),
            "destroy them before ibv_close_device, which does not: their memory and numbers may stay taken",
        )
        .from(origin)
    })
}

/// QP-13: an object that QPs still use.
pub(crate) fn used_by_qps(qps: &[String], first: Stack) -> Option<Finding> {
    (!qps.is_empty()).then(|| {
        let text = format!("it is still used by {}", list(qps));
        Finding::new(Id::Qp13, text, "destroy the QPs first")
            .from(Some(("that QP was created", first)))
    })
}

/// OB-03: a destroyed QP that is attached to multicast groups.
pub(crate) fn attached(groups: u32, qp: Stack) -> Option<Finding> {
    (groups > 0).then(|| {
        let text = format!("it is attached to {groups} multicast groups");
        Finding::new(Id::Ob03, text, "ibv_detach_mcast first")
            .from(Some(("the QP was created", qp)))
    })
}

/// OB-03: a QP of a type without multicast.
pub(crate) fn no_multicast(kind: u32, qp: Stack) -> Option<Finding> {
    (kind != IBV_QPT_UD).then(|| {
        let name = transitions::kind_name(kind);
        let text = format!("it is {name}: only UD takes part in multicast");
        Finding::new(Id::Ob03, text, "use a QP of type IBV_QPT_UD")
            .from(Some(("the QP was created", qp)))
    })
}

/// OB-06: receives of a QP with a shared receive queue.
pub(crate) fn unused_receives(has_srq: bool, max_wr: u32, max_sge: u32) -> Option<Finding> {
    (has_srq && (max_wr != 0 || max_sge != 0)).then(|| {
        Finding::new(
            Id::Ob06,
            format!("it has an SRQ, and max_recv_wr {max_wr} and max_recv_sge {max_sge} besides"),
            "set both to 0: they mean nothing then, and some providers refuse them",
        )
    })
}

/// QP-16: a CQ at `cq` with `room` entries for queues of `most` entries.
pub(crate) fn small_cq(cq: usize, room: u32, most: u64, created: Stack) -> Option<Finding> {
    (most > u64::from(room)).then(|| {
        Finding::new(
            Id::Qp16,
            format!("cq {cq:#x} has {room} entries, its queues {most}"),
            "make the CQ as large as all queues that complete there, or be sure to poll in time",
        )
        .from(Some(("the CQ was created", created)))
    })
}

/// QP-14: a QP that is destroyed while requests are in flight.
pub(crate) fn destroyed_in_flight(
    state: u32,
    sends: usize,
    receives: usize,
    created: Stack,
) -> Option<Finding> {
    let is_idle = matches!(state, IBV_QPS_RESET | IBV_QPS_ERR) || sends + receives == 0;
    (!is_idle).then(|| {
        Finding::new(
            Id::Qp14,
            format!("{sends} sends and {receives} receives were in flight"),
            "ibv_modify_qp to ERR, and poll the flushed ones, before their buffers are used again",
        )
        .from(Some(("the QP was created", created)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{IBV_QPS_RTS, IBV_QPT_RC};

    fn arg(at: usize, of: Option<usize>, stack: Option<Stack>) -> Option<String> {
        argument("cq", at, 1, of, || stack).map(|found| found.text)
    }

    #[test]
    fn an_object_of_the_same_context_is_good() {
        assert_eq!(arg(0xc, Some(1), None), None);
        assert_eq!(arg(0, None, Some([1; 8])), None, "no object is named");
        assert_eq!(arg(0xc, None, None), None, "an object of unknown origin");
    }

    #[test]
    fn an_object_of_another_context_is_named_with_both() {
        let text = arg(0xc, Some(2), None).expect("a finding");
        assert_eq!(text, "cq 0xc is of context 0x2, the call is for context 0x1");
    }

    #[test]
    fn a_destroyed_object_is_named_with_the_place() {
        let found = argument("cq", 0xc, 1, None, || Some([5; 8])).expect("a finding");
        assert_eq!(found.text, "cq 0xc was destroyed");
        assert_eq!(found.origin, Some(("it was destroyed", [5; 8])));
    }

    #[test]
    fn users_of_an_object_are_listed() {
        assert_eq!(used_pd(&[], None), None);
        let found = used_pd(&["mr 0xa (lkey 0x1)".into(), "qp 0x5".into()], None);
        assert_eq!(
            found.map(|one| one.text).as_deref(),
            Some("it is still used by mr 0xa (lkey 0x1), qp 0x5")
        );
        assert_eq!(used_by_qps(&["qp 0x5".into()], [1; 8]).map(|one| one.id), Some(Id::Qp13));
        assert_eq!(used_by_qps(&[], [1; 8]), None);
    }

    #[test]
    fn objects_that_are_left_are_listed() {
        assert_eq!(left(&[], None), None);
        let found = left(&["pd 0x1".into()], None).expect("a finding");
        assert_eq!(found.text, "these are left: pd 0x1");
    }

    #[test]
    fn only_datagrams_take_part_in_multicast() {
        assert_eq!(no_multicast(IBV_QPT_UD, [1; 8]), None);
        let found = no_multicast(IBV_QPT_RC, [1; 8]).expect("a finding");
        assert_eq!(found.text, "it is RC: only UD takes part in multicast");
        assert_eq!(attached(0, [1; 8]), None);
        assert!(attached(2, [1; 8]).is_some_and(|one| one.text.contains("2 multicast groups")));
    }

    #[test]
    fn a_qp_with_an_srq_needs_no_receives_of_its_own() {
        assert!(unused_receives(true, 1, 0).is_some() && unused_receives(true, 0, 1).is_some());
        assert_eq!(unused_receives(true, 0, 0), None);
        assert_eq!(unused_receives(false, 8, 1), None);
    }

    #[test]
    fn a_cq_has_room_for_all_its_queues() {
        assert_eq!(small_cq(0xc, 16, 16, [1; 8]), None);
        let found = small_cq(0xc, 16, 17, [1; 8]).expect("a finding");
        assert_eq!(found.text, "cq 0xc has 16 entries, its queues 17");
    }

    #[test]
    fn a_qp_goes_idle_before_it_is_destroyed() {
        assert_eq!(destroyed_in_flight(IBV_QPS_RTS, 0, 0, [1; 8]), None);
        assert_eq!(destroyed_in_flight(IBV_QPS_ERR, 2, 3, [1; 8]), None);
        let found = destroyed_in_flight(IBV_QPS_RTS, 2, 3, [1; 8]).expect("a finding");
        assert_eq!(found.text, "2 sends and 3 receives were in flight");
    }
}
