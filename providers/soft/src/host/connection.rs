//! The connection of one QP to a peer on another host: its RoCE transport, its route, and what the
//! wire remembers for it.
//! Stands between the queues of the QP (`engine::host_qp`) and the sockets (`sockets`).
//!
//! `pump` sends, `packets` receives, `datagram` is for UD, `srq` for XRC. A QP calls them under the
//! lock of its requester, and what arrives also under the lock of its responder. The connection
//! calls back through the traits `RequestQueue` and `RequestServer`.
#![forbid(unsafe_code)]

pub(crate) mod datagram;
pub(crate) mod packets;
pub(crate) mod pump;
pub(crate) mod srq;

use self::srq::SrqRequests;
use super::port_rotation::SourcePortRotation;
use super::shortcut::PeerShortcut;
use super::sockets::{Sockets, V4, V6};
use super::unavailable::errno_of;
use super::window_share::{WindowShare, socket_capacity};
use crate::net::{interface_of, is_multicast, may_send_to};
use crate::packet_sink;
use abi::*;
use ferroverbs_net::{Path, Target};
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{self as roce, Access, Config, Peer, Pmtu, Sending, Service, Tuning};
use ferroverbs_roce::wire::{Addresses, Nonce, Psn, Qpn, RnrTimer};
use soft_memory::careful::MappedRange;
use soft_semantics::request::Route;
use soft_semantics::state::QpType;
use soft_sys::Errno;
use soft_sys::process::random;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// The route of a QP's packets, or of one datagram, to a peer.
#[derive(Debug)]
pub(crate) struct PeerRoute {
    pub(super) addresses: Addresses,
    pub(super) path: Path,
    pub(super) shortcut: PeerShortcut,
}

/// State of a QP with a peer on another host, in addition to its queues.
#[derive(Debug)]
pub(crate) struct HostConnection {
    transport: roce::Qp,
    /// Values of the transport's counters that the process counters include already.
    reported_counters: roce::Counters,
    /// The route to the peer. `None` for UD, where each request has its own route.
    route: Option<Arc<PeerRoute>>,
    /// UD: the route of the last datagram.
    last_route: Option<(Route, Arc<PeerRoute>)>,
    port_rotation: SourcePortRotation,
    /// Number of source port changes after a local ACK timeout.
    reroutes: u32,
    /// Packets ahead of a gap, by the position that the transport assigned.
    early_packets: HashMap<u16, Box<[u8]>>,
    /// XRC: the owner of each region that the peer reads, by READ number. Holds as many entries as
    /// READs can be in flight.
    read_owners: VecDeque<(u64, ReadOwner)>,
    /// The share of the send window of the destination host. `None` for UD and UC.
    window_share: Option<WindowShare>,
    /// XRC: requests for shared receive queues of different processes, after the first.
    srq_requests: Option<Box<SrqRequests>>,
    /// A bind or invalidate request that waits for a busy memory window.
    waiting_local_work: Option<u64>,
    /// Time of the next timeout, as in `QpTimers`.
    timeout_at: Option<Time>,
    /// Mirrors whether the QP is in the list of deferred acknowledgements.
    ack_is_deferred: bool,
    /// A request of the peer has arrived.
    has_received: bool,
    /// Results of checks whether memory is mapped, valid while the requester's lock is held.
    checked_range: MappedRange,
}

/// XRC: the owner of the region that a peer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOwner {
    /// This protection domain of this process.
    Domain(u32),
    /// The protection domain of this shared receive queue of another process.
    SharedQueue(u32),
}

/// Number of remembered READs of a peer. `max_dest_rd_atomic` has 8 bits.
const MAX_REMEMBERED_READS: usize = 256;
/// Maximum of bytes in flight: eight datagrams.
const MAX_WINDOW_BYTES: u32 = 512 << 10;

impl PeerRoute {
    /// The address family of the route, as a bit.
    pub(crate) const fn family(&self) -> u8 {
        match self.addresses {
            Addresses::V4 { .. } => V4,
            Addresses::V6 { .. } => V6,
        }
    }

    /// The largest packet that the route carries in bytes with all headers. `None` without a route
    /// at present.
    pub(crate) fn mtu(&self) -> Option<u32> {
        ferroverbs_net::route_mtu(self.peer_address(), self.path.target().interface).ok()
    }

    /// The route to the host of `route` for packets of QP `qpn`.
    ///
    /// # Errors
    /// `EINVAL`: the two addresses differ in family, or one is no host address. `EHOSTUNREACH`: the
    /// limits exclude the host. Errors of the socket calls.
    pub(super) fn new(sockets: &Sockets, route: &Route, qpn: u32) -> Result<Self, Errno> {
        if !may_send_to(&route.dgid) {
            return Err(Errno::from_raw(libc::EHOSTUNREACH));
        }
        let [from, to] = [route.sgid, route.dgid].map(|gid| IpAddr::V6(Ipv6Addr::from(gid)));
        let addresses = Addresses::new(from, to).ok_or(Errno::EINVAL)?;
        let is_local =
            |ip: IpAddr| matches!(ip.to_canonical(), IpAddr::V6(v6) if v6.is_unicast_link_local());
        let needs_interface = is_local(from) || is_local(to) || is_multicast(&route.dgid);
        let target = Target {
            source: from,
            destination: to,
            interface: if needs_interface { interface_of(&route.sgid) } else { 0 },
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
        };
        let lane = sockets.outbox().sending_lane(to, qpn).map_err(|why| errno_of(&why))?;
        let path = Path::new(&target, lane).map_err(|_| Errno::EINVAL)?;
        Ok(Self { addresses, path, shortcut: PeerShortcut::default() })
    }

    /// The address of the peer's host.
    pub(crate) const fn peer_address(&self) -> IpAddr {
        match self.addresses {
            Addresses::V4 { dst, .. } => IpAddr::V4(dst),
            Addresses::V6 { dst, .. } => IpAddr::V6(dst),
        }
    }
}

impl HostConnection {
    /// Changes the source port of the QP's packets after a local ACK timeout. Routers choose among
    /// cables by ports, and the peer's kernel chooses among processes by ports. Another port avoids
    /// a broken cable or a stopped process.
    fn reroute(&mut self, sockets: &Sockets, qpn: u32) {
        let Some(route) = &self.route else { return };
        self.reroutes = self.reroutes.wrapping_add(1);
        // Without another socket the route stays.
        if let Ok(lane) =
            sockets.outbox().sending_lane(route.peer_address(), qpn.wrapping_add(self.reroutes))
            && let Ok(path) = Path::new(route.path.target(), lane)
        {
            self.route = Some(Arc::new(PeerRoute {
                addresses: route.addresses,
                path,
                shortcut: PeerShortcut::default(),
            }));
        }
    }

    /// A transport for QP `qpn` with the attributes `attr`, ready to receive. `mtu` is an
    /// `ibv_mtu`. `peer_route` is the route to the peer, if the QP has exactly one. `buffer` is the
    /// size of this process's receive buffer in bytes; the peer's buffer is assumed to be equal.
    pub(crate) fn new(
        kind: QpType,
        qpn: u32,
        shares_receives: bool,
        attr: &ibv_qp_attr,
        mtu: u32,
        route: Option<PeerRoute>,
        buffer: usize,
    ) -> Self {
        let service = match kind {
            QpType::Uc => Service::Uc,
            QpType::Ud | QpType::Raw => Service::Ud,
            QpType::XrcSend => Service::XrcInitiator,
            QpType::XrcRecv => Service::XrcTarget,
            QpType::Rc => Service::Rc,
        };
        let mut config = Config::new(service, Qpn::new(qpn), pmtu(mtu));
        config.peer = route
            .as_ref()
            .map(|route| Peer { addresses: route.addresses, qpn: Qpn::new(attr.dest_qp_num) });
        config.qkey = attr.qkey;
        config.expected_psn = Psn::new(attr.rq_psn);
        // `engine::inbound` checks the rights of the QP and its keys.
        config.access = Access { write: true, read: true, atomic: true, flush: true };
        config.responder_resources = attr.max_dest_rd_atomic;
        config.rnr_timer = RnrTimer::new(attr.min_rnr_timer);
        config.shared_receive_queue = shares_receives;
        if config.service.is_reliable() {
            // Without random numbers the transport uses no extension.
            config.nonce = random().ok().and_then(Nonce::new);
        }
        config.tuning.window = send_window(buffer, config.pmtu, &config.tuning);
        // A packet sink expects packets in the format of the specification.
        config.tuning.piggybacks_acks = packet_sink::installed().is_none();
        Self {
            transport: roce::Qp::new(config),
            reported_counters: roce::Counters::default(),
            route: route.map(Arc::new),
            last_route: None,
            port_rotation: SourcePortRotation::default(),
            reroutes: 0,
            early_packets: HashMap::new(),
            read_owners: VecDeque::new(),
            window_share: None,
            srq_requests: None,
            waiting_local_work: None,
            timeout_at: None,
            ack_is_deferred: false,
            has_received: false,
            checked_range: MappedRange::default(),
        }
    }

    /// To RTS: the transport may send requests.
    pub(crate) fn ready_to_send(&mut self, attr: &ibv_qp_attr) {
        self.transport.ready_to_send(Sending {
            first_psn: Psn::new(attr.sq_psn),
            timeout: attr.timeout,
            retry_count: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            initiator_depth: attr.max_rd_atomic,
        });
    }

    /// XRC: remembers the owner of the region of READ `read`.
    fn record_read_owner(&mut self, read: u64, owner: ReadOwner) {
        if self.read_owners.len() == MAX_REMEMBERED_READS {
            self.read_owners.pop_front();
        }
        self.read_owners.push_back((read, owner));
    }

    /// The owner of the region of READ `read`. `None` if the QP's own protection domain is the
    /// owner.
    fn read_owner(&self, read: u64) -> Option<ReadOwner> {
        self.read_owners.iter().rev().find(|(of, _)| *of == read).map(|(_, owner)| *owner)
    }

    /// Sets the Q_Key of the QP.
    pub(crate) fn set_qkey(&mut self, qkey: u32) {
        self.transport.set_qkey(qkey);
    }

    /// Maximum payload of a packet in bytes.
    pub(crate) fn mtu(&self) -> usize {
        self.transport.config().pmtu.bytes() as usize
    }

    /// Takes the transport to error.
    pub(crate) fn fail(&mut self) {
        self.transport.fail();
    }

    /// Joins the connections that share the send window to their host.
    pub(crate) fn share_window(&mut self, share: WindowShare) {
        self.window_share = Some(share);
    }

    /// The scheduled timeout, and the timeout that the transport asks for.
    pub(super) fn timeouts(&mut self) -> (&mut Option<Time>, Option<Time>) {
        (&mut self.timeout_at, self.transport.poll_timeout())
    }

    /// Notes that the acknowledgement is deferred. Returns false if it was before.
    pub(super) const fn start_ack_deferral(&mut self) -> bool {
        !std::mem::replace(&mut self.ack_is_deferred, true)
    }

    /// The counters of the transport, and their values at the last report.
    pub(super) fn counters(&mut self) -> (&roce::Counters, &mut roce::Counters) {
        (self.transport.counters(), &mut self.reported_counters)
    }

    /// The source port of the packets.
    #[cfg(test)]
    pub(crate) fn source_port(&self) -> Option<u16> {
        Some(self.route.as_ref()?.path.source_port())
    }

    /// Whether the transport is in error.
    pub(crate) fn is_in_error(&self) -> bool {
        self.transport.is_in_error()
    }
}

/// `ibv_mtu` as a value of the transport. An unknown value becomes 256, which each route carries.
pub(crate) const fn pmtu(mtu: u32) -> Pmtu {
    match mtu {
        IBV_MTU_512 => Pmtu::B512,
        IBV_MTU_1024 => Pmtu::B1024,
        IBV_MTU_2048 => Pmtu::B2048,
        IBV_MTU_4096 => Pmtu::B4096,
        _ => Pmtu::B256,
    }
}

/// Bytes that may be in flight. A window above the default keeps both ends busy: one datagram is
/// made, one waits, one is received. The limits are the packets that the peer keeps behind a gap,
/// and the capacity of a receive buffer of `buffer` bytes.
fn send_window(buffer: usize, pmtu: Pmtu, tuning: &Tuning) -> u32 {
    let quarter = u32::try_from(buffer / 4).unwrap_or(u32::MAX);
    let early_packets = u32::from(tuning.max_held_packets) * pmtu.bytes();
    let more = MAX_WINDOW_BYTES.min(quarter).min(early_packets);
    let most = u32::try_from(socket_capacity(buffer, pmtu.bytes())).unwrap_or(u32::MAX);
    tuning.window.max(more).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_window_fits_the_receive_buffer_and_the_packets_kept_behind_a_gap() {
        let of = |buffer, pmtu| send_window(buffer, pmtu, &Tuning::default());
        let usual = Tuning::default().window;
        // The buffer of an unprivileged user by default, and of a privileged user.
        let (small, large) = (425_984, 16 << 20);
        assert_eq!(of(small, Pmtu::B4096), usual);
        assert_eq!(of(small, Pmtu::B256), 212_992, "what it holds of shortcut ones");
        assert_eq!(of(0, Pmtu::B4096), usual, "the port is another user's");
        assert_eq!(of(large, Pmtu::B4096), MAX_WINDOW_BYTES);
        assert_eq!(of(1_600_000, Pmtu::B4096), 400_000);
        assert_eq!(of(large, Pmtu::B1024), 256 * 1024);
        assert_eq!(of(large, Pmtu::B256), usual);
    }
}
