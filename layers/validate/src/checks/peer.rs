//! The peer of a QP in words, from the device's answer (`ferroverbs_plugin_ext.other_end`). `soft`
//! reads tables that all processes of the host share. Peers of adapters, and peers on other hosts,
//! are unknown.
//!
//! Map of this file: `Peer` with the questions to the answer; `place_and_state`,
//! `silent_peer_remedy` and `refusal`, the texts for findings; tests. No lock, any thread.

use core::net::Ipv6Addr;

use abi::{
    AccessFlags, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, OTHER_END_CLOSED,
    OTHER_END_GONE, OTHER_END_HERE, OTHER_END_NOBODY, OTHER_END_PROCESS, OTHER_END_WIRE,
    OTHER_KEY_DOMAIN, OTHER_KEY_GOOD, OTHER_KEY_LOCAL, OTHER_KEY_NONE, OTHER_KEY_QP,
    ferroverbs_other_end,
};

use super::ends::PeerAttributes;
use super::transitions;

/// Access bits with a name.
const NAMED: u32 = 0x3ff;

/// The memory that a one-sided request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteMemory {
    pub(crate) addr: u64,
    pub(crate) bytes: u32,
    pub(crate) rkey: u32,
}

/// The answer of the device about the peer of a QP.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) answer: ferroverbs_other_end,
    /// `dest_qp_num` of the QP.
    pub(crate) number: u32,
    /// The number of the QP itself.
    pub(crate) local_number: u32,
    /// The peer's process, for messages.
    pub(crate) process: String,
    /// The destination GID of the QP.
    pub(crate) address: Ipv6Addr,
    /// Receives posted at the peer's QP; `None` if unknown.
    pub(crate) receives: Option<usize>,
}

/// The name of a process for messages. `name` is the text of /proc/PID/comm.
pub(crate) fn process_name(place: u32, pid: i32, name: &str) -> String {
    match (place, pid, name.trim()) {
        (OTHER_END_HERE, ..) => "this process".into(),
        (_, 0, _) => "a process of another pid namespace".into(),
        (_, pid, "") => format!("process {pid}"),
        (_, pid, name) => format!("process {pid} ({name})"),
    }
}

impl Peer {
    fn has_qp(&self) -> bool {
        self.answer.qp_state >= 0
    }

    fn state(&self) -> u32 {
        self.answer.qp_state.cast_unsigned()
    }

    fn is_on_this_host(&self) -> bool {
        matches!(self.answer.place, OTHER_END_HERE | OTHER_END_PROCESS)
    }

    /// `qp_access_flags` of the peer's QP.
    pub(crate) fn access(&self) -> Option<u32> {
        self.has_qp().then_some(self.answer.access)
    }

    /// The attributes of the peer's QP that the ends must agree on. Before RTR, the peer does not
    /// know this QP.
    pub(crate) fn attributes(&self) -> PeerAttributes {
        let answer = &self.answer;
        if !self.has_qp() || self.state() < IBV_QPS_RTR || answer.path_mtu == 0 {
            return PeerAttributes::default();
        }
        PeerAttributes {
            path_mtu: Some(answer.path_mtu.into()),
            rq_psn: Some(answer.rq_psn),
            max_dest_rd_atomic: Some(answer.max_dest_rd_atomic),
        }
    }

    /// Whether the key in the request is an lkey of the peer.
    pub(crate) fn is_lkey(&self) -> bool {
        self.answer.key == OTHER_KEY_LOCAL
    }

    /// The place and state of the peer, as the end of a message; `None` if unknown. With `counts`
    /// the number of posted receives is included.
    pub(crate) fn place_and_state(&self, counts: bool) -> Option<String> {
        let Self { answer, number, process, .. } = self;
        let mut text = match answer.place {
            OTHER_END_HERE | OTHER_END_PROCESS if self.has_qp() => format!(
                "the other end is qp {number:#x} of {process}, in {}",
                transitions::name(self.state())
            ),
            OTHER_END_HERE | OTHER_END_PROCESS => {
                format!("{process} has no qp {number:#x} (any more)")
            }
            OTHER_END_CLOSED => format!(
                "a process of this host has numbers as {number:#x}, but this one has not met it: what it publishes is not told"
            ),
            OTHER_END_GONE => {
                format!("the process of qp {number:#x}, {}, has ended", answer.pid)
            }
            OTHER_END_NOBODY => {
                format!("no process of this host has queue pairs of numbers as {number:#x}")
            }
            OTHER_END_WIRE => {
                let address = self.address.to_ipv4_mapped();
                let address = address.map_or(self.address.to_string(), |v4| v4.to_string());
                format!(
                    "qp {number:#x} is reached by the wire, at {address}: how it is there is not told"
                )
            }
            _ => return None,
        };
        // Before RTR a QP has no peer. A failed QP keeps its peer.
        if self.has_qp()
            && !matches!(self.state(), IBV_QPS_RESET | IBV_QPS_INIT)
            && answer.dest_qp_num != self.local_number
        {
            text += &match answer.dest_qp_num {
                0 => ", connected to another host".to_owned(),
                other => format!(", connected to qp {other:#x} and not to this one"),
            };
        }
        if counts
            && answer.place == OTHER_END_HERE
            && let Some(count) = self.receives
        {
            text += &format!(", with {count} receives posted");
        }
        Some(text)
    }

    /// The remedy for a peer that does not answer; `None` if unknown.
    pub(crate) fn silent_peer_remedy(&self) -> Option<String> {
        let remedy = match self.answer.place {
            OTHER_END_GONE => "find out why that process ended: its exit status, dmesg".to_owned(),
            OTHER_END_NOBODY => {
                "set dest_qp_num to qp->qp_num of the peer, in the byte order of the host; is that process still there?".to_owned()
            }
            _ if !self.is_on_this_host() => return None,
            _ if !self.has_qp() => {
                "compare dest_qp_num with qp->qp_num of the peer; it must not destroy its QP before the last answer".to_owned()
            }
            _ if self.state() == IBV_QPS_ERR => {
                "look at the completions of the peer: its QP failed, or was taken to ERR".to_owned()
            }
            _ if self.state() < IBV_QPS_RTR => {
                "take the peer's QP to RTR before anything is sent to it".to_owned()
            }
            _ if self.answer.dest_qp_num != self.local_number => {
                format!("set dest_qp_num of the peer to {:#x}, the number of this QP", self.local_number)
            }
            _ => return None,
        };
        Some(remedy)
    }

    /// The reason why the peer refused the memory of a request that needs `right`, and the remedy;
    /// `None` if unknown.
    pub(crate) fn refusal(
        &self,
        memory: &RemoteMemory,
        right: (AccessFlags, &str),
    ) -> Option<(String, &'static str)> {
        let RemoteMemory { rkey, addr, bytes } = *memory;
        let Self { answer, process, .. } = self;
        let found = match answer.key {
            OTHER_KEY_NONE => (
                format!("{process} has no region or window with rkey {rkey:#x} (any more)"),
                "compare with the peer's mr->rkey; it must not deregister the region before the last access",
            ),
            OTHER_KEY_DOMAIN => (
                format!(
                    "rkey {rkey:#x} is of a region of {process} in another protection domain than that of its QP"
                ),
                "the peer must register the region in the PD that its QP was created in",
            ),
            OTHER_KEY_QP => (
                format!("rkey {rkey:#x} is of a window of {process} that is bound to another QP"),
                "the peer must bind the window by the QP that is to use it",
            ),
            OTHER_KEY_GOOD if answer.key_access & right.0.bits() == 0 => (
                format!(
                    "rkey {rkey:#x} is of a region of {process} with access {:#x}, without {}",
                    answer.key_access & NAMED,
                    right.1
                ),
                "the peer must register the region with that right",
            ),
            OTHER_KEY_GOOD => {
                let end = answer.key_addr.saturating_add(answer.key_length);
                let last = addr.saturating_add(bytes.into());
                if addr >= answer.key_addr && last <= end {
                    return None;
                }
                (
                    format!(
                        "[{addr:#x}, {last:#x}) is not within [{:#x}, {end:#x}), which rkey {rkey:#x} covers at {process}",
                        answer.key_addr
                    ),
                    "compare remote_addr and the length with what the peer registered",
                )
            }
            _ => return None,
        };
        Some(found)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use abi::{IBV_QPS_RTS, Zeroed};

    /// A peer in another process, in this state, which names the QP 0x5 as its peer.
    pub(crate) fn peer(state: u32) -> Peer {
        let answer = ferroverbs_other_end {
            place: OTHER_END_PROCESS,
            pid: 42,
            qp_state: state.cast_signed(),
            dest_qp_num: 5,
            ..ferroverbs_other_end::zeroed()
        };
        Peer {
            answer,
            number: 7,
            local_number: 5,
            process: process_name(OTHER_END_PROCESS, 42, "server\n"),
            address: Ipv6Addr::LOCALHOST,
            receives: None,
        }
    }

    fn at(place: u32) -> Peer {
        let mut peer = peer(0);
        (peer.answer.place, peer.answer.qp_state) = (place, -1);
        peer
    }

    #[test]
    fn a_process_has_its_number_and_its_name() {
        assert_eq!(process_name(OTHER_END_PROCESS, 42, "server\n"), "process 42 (server)");
        assert_eq!(process_name(OTHER_END_PROCESS, 42, ""), "process 42");
        assert_eq!(process_name(OTHER_END_PROCESS, 0, ""), "a process of another pid namespace");
        assert_eq!(process_name(OTHER_END_HERE, 42, "x"), "this process");
    }

    #[test]
    fn a_connected_peer_is_named_with_its_state() {
        let text = peer(IBV_QPS_RTS).place_and_state(false);
        assert_eq!(text.as_deref(), Some("the other end is qp 0x7 of process 42 (server), in RTS"));
    }

    #[test]
    fn a_peer_that_names_another_qp_is_found_with_that_qp() {
        let mut other = peer(IBV_QPS_RTS);
        other.answer.dest_qp_num = 9;
        assert!(
            other
                .place_and_state(false)
                .is_some_and(|text| text.ends_with("connected to qp 0x9 and not to this one"))
        );
        assert!(other.silent_peer_remedy().is_some_and(|remedy| remedy.contains("to 0x5")));
        other.answer.dest_qp_num = 0;
        assert!(
            other
                .place_and_state(false)
                .is_some_and(|text| text.ends_with("connected to another host"))
        );
    }

    #[test]
    fn a_peer_before_rtr_has_no_peer_of_its_own() {
        let mut early = peer(IBV_QPS_INIT);
        early.answer.dest_qp_num = 9;
        assert!(early.place_and_state(false).is_some_and(|text| text.ends_with("in INIT")));
        assert!(early.silent_peer_remedy().is_some_and(|remedy| remedy.contains("to RTR")));
        assert_eq!(early.attributes(), PeerAttributes::default());
    }

    #[test]
    fn a_failed_peer_has_the_reason_among_its_completions() {
        let remedy = peer(IBV_QPS_ERR).silent_peer_remedy();
        assert!(remedy.is_some_and(|remedy| remedy.contains("completions of the peer")));
    }

    #[test]
    fn a_good_peer_has_no_remedy() {
        assert_eq!(peer(IBV_QPS_RTS).silent_peer_remedy(), None);
    }

    #[test]
    fn a_process_without_the_qp_is_named() {
        let none = at(OTHER_END_PROCESS);
        assert_eq!(
            none.place_and_state(false).as_deref(),
            Some("process 42 (server) has no qp 0x7 (any more)")
        );
        assert!(none.silent_peer_remedy().is_some() && none.access().is_none());
    }

    #[test]
    fn an_ended_process_is_named_by_its_number() {
        let gone = at(OTHER_END_GONE);
        assert_eq!(
            gone.place_and_state(false).as_deref(),
            Some("the process of qp 0x7, 42, has ended")
        );
        assert!(gone.silent_peer_remedy().is_some_and(|remedy| remedy.contains("exit status")));
    }

    #[test]
    fn a_number_of_no_process_is_named() {
        let nobody = at(OTHER_END_NOBODY);
        assert!(
            nobody
                .place_and_state(false)
                .is_some_and(|text| text.starts_with("no process of this host"))
        );
        assert!(nobody.silent_peer_remedy().is_some_and(|remedy| remedy.contains("dest_qp_num")));
    }

    #[test]
    fn a_peer_on_the_wire_is_named_by_its_address() {
        let mut wire = at(OTHER_END_WIRE);
        wire.address = "::ffff:10.0.0.2".parse().expect("an address");
        assert!(
            wire.place_and_state(false)
                .is_some_and(|text| text.contains("by the wire, at 10.0.0.2:"))
        );
        assert_eq!(wire.silent_peer_remedy(), None);
    }

    #[test]
    fn an_unknown_peer_has_no_place() {
        assert_eq!(at(abi::OTHER_END_UNKNOWN).place_and_state(true), None);
        assert!(at(OTHER_END_CLOSED).place_and_state(true).is_some());
    }

    #[test]
    fn receives_are_counted_only_in_this_process() {
        let mut here = peer(IBV_QPS_RTS);
        here.receives = Some(3);
        assert!(here.place_and_state(true).is_some_and(|text| text.ends_with("in RTS")));
        here.answer.place = OTHER_END_HERE;
        assert!(
            here.place_and_state(true)
                .is_some_and(|text| text.ends_with(", with 3 receives posted"))
        );
        assert!(here.place_and_state(false).is_some_and(|text| text.ends_with("in RTS")));
    }

    #[test]
    fn the_attributes_of_a_connected_peer_are_known() {
        let mut known = peer(IBV_QPS_RTS);
        (known.answer.path_mtu, known.answer.rq_psn) = (3, 77);
        let attributes = known.attributes();
        assert_eq!((attributes.path_mtu, attributes.rq_psn), (Some(3), Some(77)));
    }

    const RIGHT: (AccessFlags, &str) = (AccessFlags::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE");
    const MEMORY: RemoteMemory = RemoteMemory { addr: 0x1000, bytes: 64, rkey: 0x33 };

    fn refused(key: u32, access: u32) -> Option<String> {
        let mut peer = peer(IBV_QPS_RTS);
        (peer.answer.key, peer.answer.key_access) = (key, access);
        (peer.answer.key_addr, peer.answer.key_length) = (0x1000, 32);
        peer.refusal(&MEMORY, RIGHT).map(|(text, _)| text)
    }

    #[test]
    fn a_key_that_the_peer_lacks_is_named() {
        let text = refused(OTHER_KEY_NONE, 0).expect("a reason");
        assert!(text.contains("has no region or window with rkey 0x33"), "{text}");
    }

    #[test]
    fn a_key_of_another_domain_or_qp_is_named() {
        assert!(
            refused(OTHER_KEY_DOMAIN, 0)
                .is_some_and(|text| text.contains("another protection domain"))
        );
        assert!(refused(OTHER_KEY_QP, 0).is_some_and(|text| text.contains("bound to another QP")));
    }

    #[test]
    fn a_right_that_the_region_lacks_is_named() {
        let text = refused(OTHER_KEY_GOOD, 4).expect("a reason");
        assert!(text.ends_with("with access 0x4, without IBV_ACCESS_REMOTE_WRITE"), "{text}");
    }

    #[test]
    fn a_range_that_leaves_the_region_is_named() {
        let text = refused(OTHER_KEY_GOOD, 2).expect("a reason");
        assert!(text.starts_with("[0x1000, 0x1040) is not within [0x1000, 0x1020)"), "{text}");
    }

    #[test]
    fn a_good_key_explains_nothing() {
        let mut good = peer(IBV_QPS_RTS);
        (good.answer.key, good.answer.key_access) = (OTHER_KEY_GOOD, 2);
        (good.answer.key_addr, good.answer.key_length) = (0x1000, 64);
        assert_eq!(good.refusal(&MEMORY, RIGHT), None);
        assert!(!good.is_lkey());
    }
}
