//! The peer of a QP in words, as the device knows the peer (`ferroverbs_plugin_ext.other_end`).
//! `soft` reads tables that all processes of the host share. Peers of adapters, and peers on other
//! hosts, are unknown.

use core::net::Ipv6Addr;

use abi::{
    AccessFlags, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, OTHER_END_CLOSED, OTHER_END_GONE,
    OTHER_END_HERE, OTHER_END_NOBODY, OTHER_END_PROCESS, OTHER_END_WIRE, OTHER_KEY_DOMAIN,
    OTHER_KEY_GOOD, OTHER_KEY_LOCAL, OTHER_KEY_NONE, OTHER_KEY_QP, Zeroed, ferroverbs_other_end,
};

use crate::checks::ends::PeerAttributes;
use crate::state::{InFlight, Qp};
use crate::transitions;

/// Access bits with a name.
const NAMED: u32 = 0x3ff;

/// The answer of the device about the peer of a QP.
pub(crate) struct OtherEnd<'a> {
    qp: &'a Qp,
    number: u32,
    told: ferroverbs_other_end,
}

/// Asks the device of `qp`, which stays live during the call. `rkey` is the key in a request, or
/// 0.
pub(crate) fn of(qp: &Qp, rkey: u32) -> Option<OtherEnd<'_>> {
    let ask = qp.ctx.other_end?;
    let mut told = ferroverbs_other_end::zeroed();
    told.size = size_of::<ferroverbs_other_end>();
    let number = qp.attr.lock().dest_qp_num;
    let at = core::ptr::with_exposed_provenance_mut(qp.at);
    // SAFETY: the function belongs to the plugin that created the QP. The QP is live: the polling
    // thread holds the list of its CQ, and a destroyed QP is removed from the list first.
    let result = unsafe { ask(at, rkey, &raw mut told) };
    (result == 0).then_some(OtherEnd { qp, number, told })
}

impl OtherEnd<'_> {
    fn has_qp(&self) -> bool {
        self.told.qp_state >= 0
    }

    fn state(&self) -> u32 {
        self.told.qp_state.cast_unsigned()
    }

    /// `qp_access_flags` of the peer's QP.
    pub(crate) fn access(&self) -> Option<u32> {
        self.has_qp().then_some(self.told.access)
    }

    /// The attributes of the peer's QP that the ends must agree on.
    pub(crate) fn end(&self) -> PeerAttributes {
        let told = &self.told;
        // Before RTR, the peer does not know this QP.
        match self.has_qp() && self.state() >= IBV_QPS_RTR && told.path_mtu != 0 {
            true => PeerAttributes {
                path_mtu: Some(told.path_mtu.into()),
                rq_psn: Some(told.rq_psn),
                max_dest_rd_atomic: Some(told.max_dest_rd_atomic),
            },
            false => PeerAttributes::default(),
        }
    }

    /// Whether the key is an lkey of the peer.
    pub(crate) fn is_lkey(&self) -> bool {
        self.told.key == OTHER_KEY_LOCAL
    }

    /// The peer's process.
    pub(crate) fn process(&self) -> String {
        if self.told.place == OTHER_END_HERE {
            return "this process".into();
        }
        let pid = self.told.pid;
        if pid == 0 {
            return "a process of another pid namespace".into();
        }
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        match name.trim() {
            "" => format!("process {pid}"),
            name => format!("process {pid} ({name})"),
        }
    }

    /// The place and state of the peer, as the end of a message; `None` if unknown. With `counts`
    /// the number of posted receives is included.
    pub(crate) fn place(&self, counts: bool) -> Option<String> {
        let Self { qp, number, told } = self;
        let mut text = match told.place {
            OTHER_END_HERE | OTHER_END_PROCESS if self.has_qp() => format!(
                "the other end is qp {number:#x} of {}, in {}",
                self.process(),
                transitions::name(self.state())
            ),
            OTHER_END_HERE | OTHER_END_PROCESS => {
                format!("{} has no qp {number:#x} (any more)", self.process())
            }
            OTHER_END_CLOSED => format!(
                "a process of this host has numbers as {number:#x}, but this one has not met it: what it publishes is not told"
            ),
            OTHER_END_GONE => format!("the process of qp {number:#x}, {}, has ended", told.pid),
            OTHER_END_NOBODY => {
                format!("no process of this host has queue pairs of numbers as {number:#x}")
            }
            OTHER_END_WIRE => {
                let address = Ipv6Addr::from(qp.attr.lock().ah_attr.grh.dgid.bytes());
                let address =
                    address.to_ipv4_mapped().map_or(address.to_string(), |v4| v4.to_string());
                format!(
                    "qp {number:#x} is reached by the wire, at {address}: how it is there is not told"
                )
            }
            _ => return None,
        };
        // Before RTR a QP has no peer. A failed QP keeps its peer.
        if self.has_qp()
            && !matches!(self.state(), abi::IBV_QPS_RESET | IBV_QPS_INIT)
            && told.dest_qp_num != qp.number
        {
            text += &match told.dest_qp_num {
                0 => ", connected to another host".to_owned(),
                other => format!(", connected to qp {other:#x} and not to this one"),
            };
        }
        if counts
            && told.place == OTHER_END_HERE
            && let Some(count) = self.receives()
        {
            text += &format!(", with {count} receives posted");
        }
        Some(text)
    }

    /// The number of receives posted at the peer's QP, if the QP is in this process.
    fn receives(&self) -> Option<usize> {
        let peer = crate::explain::peer(self.qp)?;
        // A failed QP loses its receives, so their number is unknown.
        let counts = peer.srq.is_none() && peer.state() != IBV_QPS_ERR;
        counts.then(|| peer.recv.lock().flights.len())
    }

    /// The remedy for a peer that does not answer; `None` if unknown.
    pub(crate) fn silence(&self) -> Option<String> {
        let remedy = match self.told.place {
            OTHER_END_GONE => "find out why that process ended: its exit status, dmesg".to_owned(),
            OTHER_END_NOBODY => {
                "set dest_qp_num to qp->qp_num of the peer, in the byte order of the host; is that process still there?".to_owned()
            }
            OTHER_END_HERE | OTHER_END_PROCESS if !self.has_qp() => {
                "compare dest_qp_num with qp->qp_num of the peer; it must not destroy its QP before the last answer".to_owned()
            }
            OTHER_END_HERE | OTHER_END_PROCESS if self.state() == IBV_QPS_ERR => {
                "look at the completions of the peer: its QP failed, or was taken to ERR".to_owned()
            }
            OTHER_END_HERE | OTHER_END_PROCESS if self.state() < IBV_QPS_RTR => {
                "take the peer's QP to RTR before anything is sent to it".to_owned()
            }
            OTHER_END_HERE | OTHER_END_PROCESS if self.told.dest_qp_num != self.qp.number => {
                format!("set dest_qp_num of the peer to {:#x}, the number of this QP", self.qp.number)
            }
            _ => return None,
        };
        Some(remedy)
    }

    /// The reason why the peer refused the memory of a request, and the remedy; `None` if unknown.
    pub(crate) fn refusal(
        &self,
        flight: &InFlight,
        right: (AccessFlags, &str),
    ) -> Option<(String, &'static str)> {
        let InFlight { rkey, remote, bytes, .. } = *flight;
        let told = &self.told;
        let process = self.process();
        let answer = match told.key {
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
            OTHER_KEY_GOOD if told.key_access & right.0.bits() == 0 => (
                format!(
                    "rkey {rkey:#x} is of a region of {process} with access {:#x}, without {}",
                    told.key_access & NAMED,
                    right.1
                ),
                "the peer must register the region with that right",
            ),
            OTHER_KEY_GOOD => {
                let end = told.key_addr.saturating_add(told.key_length);
                let last = remote.saturating_add(bytes.into());
                if remote >= told.key_addr && last <= end {
                    return None;
                }
                (
                    format!(
                        "[{remote:#x}, {last:#x}) is not within [{:#x}, {end:#x}), which rkey {rkey:#x} covers at {process}",
                        told.key_addr
                    ),
                    "compare remote_addr and the length with what the peer registered",
                )
            }
            _ => return None,
        };
        Some(answer)
    }
}
