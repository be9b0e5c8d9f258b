//! CM-01 to CM-08: connections by IP addresses (rdma_cm(7)).

use abi::{RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP};

use super::Id;
use super::finding::{Finding, Findings, Origin, Stack, list};

/// Bytes of private data in a message, for connections and for datagram services. librdmacm's own
/// header uses 36 bytes of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrivateDataLimit {
    message: &'static str,
    connections: u8,
    datagrams: u8,
}

pub(crate) const REQUEST: PrivateDataLimit =
    PrivateDataLimit { message: "a request", connections: 56, datagrams: 180 };
pub(crate) const REPLY: PrivateDataLimit =
    PrivateDataLimit { message: "a reply", connections: 196, datagrams: 136 };
pub(crate) const REJECTION: PrivateDataLimit =
    PrivateDataLimit { message: "a rejection", connections: 148, datagrams: 136 };

/// CM-01: a call that waits until the events with these names are acknowledged.
pub(crate) fn unacknowledged(events: &[String]) -> Finding {
    Finding::new(
        Id::Cm01,
        format!("it waits for the acknowledgement of {}", list(events)),
        "call rdma_ack_cm_event for each event that rdma_get_cm_event gave, before the id goes. A CONNECT_REQUEST counts for the id that listens",
    )
}

/// CM-02, CM-05: ids that still use a destroyed channel. `users` are live ids, `left` those whose
/// request was rejected or failed.
pub(crate) fn channel_in_use(
    users: &[String],
    made: Option<Origin>,
    left: &[String],
    asked: Option<Origin>,
) -> Findings {
    let mut found = Findings::new();
    if !users.is_empty() {
        let text = format!("these still use it: {}", list(users));
        let remedy = "rdma_destroy_id, or rdma_migrate_id to another channel, before";
        found.push(Finding::new(Id::Cm02, text, remedy).from(made));
    }
    if !left.is_empty() {
        let text =
            format!("requests were rejected or failed, and their ids are left: {}", list(left));
        let remedy = "event->id of RDMA_CM_EVENT_CONNECT_REQUEST is yours: rdma_destroy_id after rdma_reject, and when it fails";
        found.push(Finding::new(Id::Cm05, text, remedy).from(asked));
    }
    found
}

/// CM-03: a connection without a queue pair.
pub(crate) fn no_queue_pair() -> Finding {
    Finding::new(
        Id::Cm03,
        "the id has no queue pair, and conn_param names none",
        "rdma_create_qp before, or set conn_param.qp_num to that of a queue pair of your own",
    )
}

/// CM-03: a number of READs above the device's limit. 255 stands for the limit.
pub(crate) fn resources(member: &str, value: u8, most: i32, all: &str) -> Option<Finding> {
    (value != u8::MAX && i32::from(value) > most).then(|| {
        Finding::new(
            Id::Cm03,
            format!("{member} {value} > {most}, the limit of the device"),
            format!("ask for at most {most}, or for {all}"),
        )
    })
}

/// CM-04: private data that do not fit into a message. `space` is the port space of the id.
pub(crate) fn private_data(space: u32, length: u8, limit: &PrivateDataLimit) -> Option<Finding> {
    let most = match space {
        RDMA_PS_TCP => limit.connections,
        RDMA_PS_UDP | RDMA_PS_IPOIB => limit.datagrams,
        _ => return None,
    };
    (length > most).then(|| {
        Finding::new(
            Id::Cm04,
            format!("private_data_len {length} > {most}, what {} has room for", limit.message),
            format!("send at most {most} bytes with it, and the rest by the connection"),
        )
    })
}

/// CM-06: a QP for an id that has no device.
pub(crate) fn no_device() -> Finding {
    Finding::new(
        Id::Cm06,
        "the id has no device yet",
        "wait for RDMA_CM_EVENT_ADDR_RESOLVED after rdma_resolve_addr, or rdma_bind_addr to an address of a device",
    )
}

/// CM-07: a connection whose QP has no receive posted.
pub(crate) fn no_receive(qp: &str, created: Stack) -> Finding {
    Finding::new(
        Id::Cm07,
        format!("{qp} has no receive posted"),
        "post receives between rdma_create_qp and this call: the peer may send at once",
    )
    .from(Some(("that QP was created", created)))
}

/// CM-08: more waiting events than the backlog of a listening id.
pub(crate) fn backlog(waiting: u64, backlog: u64) -> Option<Finding> {
    (waiting >= backlog).then(|| {
        Finding::new(
            Id::Cm08,
            format!(
                "{waiting} events waited, and the backlog is {backlog}: a request that came meanwhile was refused, or has to come again"
            ),
            "read the channel more often, or rdma_listen with a larger backlog",
        )
    })
}

/// The number of requests that a listening id holds. 1024 is the kernel's limit and librdmacm's.
pub(crate) fn backlog_of(asked: i32) -> u64 {
    match u64::try_from(asked).unwrap_or(0) {
        0 => 1024,
        asked => asked.min(1024),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::testing::ids;
    use super::*;

    #[test]
    fn private_data_have_a_limit_for_each_message_and_service() {
        for (space, limit, most) in [
            (RDMA_PS_TCP, &REQUEST, 56),
            (RDMA_PS_UDP, &REQUEST, 180),
            (RDMA_PS_TCP, &REPLY, 196),
            (RDMA_PS_IPOIB, &REPLY, 136),
            (RDMA_PS_TCP, &REJECTION, 148),
            (RDMA_PS_UDP, &REJECTION, 136),
        ] {
            assert_eq!(private_data(space, most, limit), None, "{limit:?}");
            assert!(private_data(space, most + 1, limit).is_some(), "{limit:?}");
        }
    }

    #[test]
    fn private_data_are_told_with_the_message() {
        let found = private_data(RDMA_PS_TCP, 57, &REQUEST).expect("a finding");
        assert_eq!(found.text, "private_data_len 57 > 56, what a request has room for");
    }

    #[test]
    fn private_data_of_an_unknown_service_are_not_judged() {
        assert_eq!(private_data(0, u8::MAX, &REQUEST), None);
    }

    #[test]
    fn reads_have_the_limit_of_the_device() {
        assert_eq!(resources("initiator_depth", 16, 16, "RDMA_MAX_INIT_DEPTH"), None);
        assert_eq!(resources("initiator_depth", 255, 16, "RDMA_MAX_INIT_DEPTH"), None);
        let found = resources("initiator_depth", 17, 16, "RDMA_MAX_INIT_DEPTH");
        assert_eq!(
            found.expect("a finding").text,
            "initiator_depth 17 > 16, the limit of the device"
        );
    }

    #[test]
    fn a_channel_is_destroyed_after_its_ids() {
        assert_eq!(channel_in_use(&[], None, &[], None), []);
        let both = channel_in_use(&["id 0x1".into()], None, &["id 0x2".into()], None);
        assert_eq!(ids(&both), [Id::Cm02, Id::Cm05]);
        assert_eq!(both[0].text, "these still use it: id 0x1");
    }

    #[test]
    fn a_backlog_has_a_limit_and_a_default() {
        assert_eq!(
            (backlog_of(0), backlog_of(-1), backlog_of(5), backlog_of(9999)),
            (1024, 1024, 5, 1024)
        );
    }

    #[test]
    fn as_many_waiting_events_as_the_backlog_are_found() {
        assert_eq!(backlog(4, 5), None);
        assert!(backlog(5, 5).is_some_and(|one| one.text.starts_with("5 events waited")));
    }

    #[test]
    fn events_of_an_id_are_listed() {
        let found = unacknowledged(&["RDMA_CM_EVENT_ESTABLISHED".into()]);
        assert_eq!(found.text, "it waits for the acknowledgement of RDMA_CM_EVENT_ESTABLISHED");
    }

    #[test]
    fn a_connection_needs_a_device_a_queue_pair_and_a_receive() {
        assert_eq!(no_device().id, Id::Cm06);
        assert_eq!(no_queue_pair().id, Id::Cm03);
        assert_eq!(no_receive("qp 0x5", [1; 8]).text, "qp 0x5 has no receive posted");
    }
}
