//! The transport of one QP whose other end is on another host.

use super::port_rotation::Turns;
use super::shortcut::Short;
use super::sockets::Ports;
use super::window_share::{Share, room};
use super::xrc_pending::Elsewhere;
use crate::engine::request::Route;
use crate::engine::state::Kind;
use crate::net::{interface_of, is_multicast, may_send_to};
use crate::packet_sink;
use abi::*;
use ferroverbs_net::{Path, Target};
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{self as roce, Access, Config, Peer, Pmtu, Sending, Service, Tuning};
use ferroverbs_roce::wire::{Addresses, Nonce, Psn, Qpn, RnrTimer};
use soft_memory::careful::Seen;
use soft_sys::Errno;
use soft_sys::process::random;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Where the packets of a QP, or one datagram, go.
#[derive(Debug)]
pub(crate) struct Far {
    pub(super) addresses: Addresses,
    pub(super) path: Path,
    pub(super) short: Short,
}

/// What a QP has besides its queues when its other end is on another host.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) transport: roce::Qp,
    /// What of its counters is in those of the process.
    pub(super) counted: roce::Counters,
    /// The other end; none of UD, where each request says where it goes.
    pub(super) far: Option<Arc<Far>>,
    /// UD: where the last datagram went.
    pub(super) last: Option<(Route, Arc<Far>)>,
    pub(super) turns: Turns,
    /// How often the other end did not answer, and another way was taken.
    ways: u32,
    /// Packets that came too early, by the place that the transport gave them.
    pub(super) kept: HashMap<u16, Box<[u8]>>,
    /// XRC: whose it is what the peer reads, by the name of the READ; as many as it can have under way, and more.
    pub(super) read_in: VecDeque<(u64, Whose)>,
    /// What else is under way to its host; `None`: there is no one host, or nothing is acknowledged.
    pub(super) share: Option<Share>,
    /// XRC: what is asked of other processes, once something was.
    pub(super) elsewhere: Option<Box<Elsewhere>>,
    /// Work on our own windows whose turn it is, and that has to wait.
    pub(super) local: Option<u64>,
    /// When the wire looks at the QP next though nothing comes.
    pub(super) alarm: Option<Time>,
    /// The wire has the QP in its list of those that owe an acknowledgement.
    pub(super) owing: bool,
    /// A request of the other end arrived.
    pub(super) established: bool,
    /// What is there of memory that the peer reads, as far as was asked since the requester's lock was taken.
    pub(super) seen: Seen,
}

/// XRC: whose it is what a peer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// This protection domain of our process.
    Domain(u32),
    /// That of this shared receive queue, which is another process's.
    Queue(u32),
}

/// READs of a peer that are remembered: `max_dest_rd_atomic` is a byte.
const READS: usize = 256;
/// Most bytes under way: eight datagrams.
const WINDOW_MAX: u32 = 512 << 10;

impl Far {
    /// The way to the host that `route` names, on packets of QP `qpn`.
    ///
    /// # Errors
    /// `EINVAL` both addresses are not of one family, or one is none of a host; `EHOSTUNREACH` nobody may send there; the socket's.
    pub(super) fn new(ports: &Ports, route: &Route, qpn: u32) -> Result<Self, Errno> {
        if !may_send_to(&route.dgid) {
            return Err(Errno::from_raw(libc::EHOSTUNREACH));
        }
        let [from, to] = [route.sgid, route.dgid].map(|gid| IpAddr::V6(Ipv6Addr::from(gid)));
        let addresses = Addresses::new(from, to).ok_or(Errno::EINVAL)?;
        let is_local =
            |ip: IpAddr| matches!(ip.to_canonical(), IpAddr::V6(v6) if v6.is_unicast_link_local());
        let needs_interface = is_local(from) || is_local(to) || is_multicast(&route.dgid);
        let target = Target {
            from,
            to,
            interface: if needs_interface { interface_of(&route.sgid) } else { 0 },
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
        };
        let lane = ports.lane(to, qpn).map_err(|why| errno_of(&why))?;
        let path = Path::new(&target, lane).map_err(|_| Errno::EINVAL)?;
        Ok(Self { addresses, path, short: Short::default() })
    }

    /// The host that it leads to.
    pub(super) const fn to(&self) -> IpAddr {
        match self.addresses {
            Addresses::V4 { dst, .. } => IpAddr::V4(dst),
            Addresses::V6 { dst, .. } => IpAddr::V6(dst),
        }
    }
}

impl Connection {
    /// Packets of QP `qpn` come from another port from now on: what came from this one was not answered. By ports routers choose among cables of which one may
    /// be broken, and the kernel at the other end among processes of which one may be stopped.
    pub(super) fn reroute(&mut self, ports: &Ports, qpn: u32) {
        let Some(far) = &self.far else { return };
        self.ways = self.ways.wrapping_add(1);
        // Where there is no other socket it stays as it is.
        if let Ok(lane) = ports.lane(far.to(), qpn.wrapping_add(self.ways))
            && let Ok(path) = Path::new(far.path.target(), lane)
        {
            self.far =
                Some(Arc::new(Far { addresses: far.addresses, path, short: Short::default() }));
        }
    }

    /// The transport of QP `qpn` with the attributes `attr` and packets of `mtu` (`ibv_mtu`), ready to receive; `far` is its other end, if
    /// it has one. `buffer` is how many bytes our own receiving socket holds, which the other end's is taken to hold, too.
    pub(super) fn new(
        kind: Kind,
        qpn: u32,
        shares_receives: bool,
        attr: &ibv_qp_attr,
        mtu: u32,
        far: Option<Far>,
        buffer: usize,
    ) -> Self {
        let service = match kind {
            Kind::Uc => Service::Uc,
            Kind::Ud | Kind::Raw => Service::Ud,
            Kind::XrcSend => Service::XrcInitiator,
            Kind::XrcRecv => Service::XrcTarget,
            Kind::Rc => Service::Rc,
        };
        let mut config = Config::new(service, Qpn::new(qpn), pmtu(mtu));
        config.peer = far
            .as_ref()
            .map(|far| Peer { addresses: far.addresses, qpn: Qpn::new(attr.dest_qp_num) });
        config.qkey = attr.qkey;
        config.expected_psn = Psn::new(attr.rq_psn);
        // What the QP and its keys allow `engine::inbound` knows.
        config.access = Access { write: true, read: true, atomic: true, flush: true };
        config.responder_resources = attr.max_dest_rd_atomic;
        config.rnr_timer = RnrTimer::new(attr.min_rnr_timer);
        config.shared_receive_queue = shares_receives;
        if config.service.is_reliable() {
            // Without random numbers it speaks as any adapter.
            config.nonce = random().ok().and_then(Nonce::new);
        }
        config.tuning.window = window(buffer, config.pmtu, &config.tuning);
        // Who is told of packets is to find in them what the specification has.
        config.tuning.along = packet_sink::wanted().is_none();
        Self {
            transport: roce::Qp::new(config),
            counted: roce::Counters::default(),
            far: far.map(Arc::new),
            last: None,
            turns: Turns::default(),
            ways: 0,
            kept: HashMap::new(),
            read_in: VecDeque::new(),
            share: None,
            elsewhere: None,
            local: None,
            alarm: None,
            owing: false,
            established: false,
            seen: Seen::default(),
        }
    }

    /// To RTS: requests may go.
    pub(crate) fn ready_to_send(&mut self, attr: &ibv_qp_attr) {
        self.transport.ready_to_send(Sending {
            first_psn: Psn::new(attr.sq_psn),
            timeout: attr.timeout,
            retry_count: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            initiator_depth: attr.max_rd_atomic,
        });
    }

    /// XRC: whose it is what READ `read` is of.
    pub(super) fn note_read(&mut self, read: u64, whose: Whose) {
        if self.read_in.len() == READS {
            self.read_in.pop_front();
        }
        self.read_in.push_back((read, whose));
    }

    /// Whose it is what a READ is of, if the QP's own protection domain does not say it.
    pub(super) fn origin_of_read(&self, read: u64) -> Option<Whose> {
        self.read_in.iter().rev().find(|(of, _)| *of == read).map(|(_, whose)| *whose)
    }

    /// The Q_Key of the QP changed.
    pub(crate) fn set_qkey(&mut self, qkey: u32) {
        self.transport.set_qkey(qkey);
    }

    /// Bytes of its longest packets' payload.
    pub(crate) fn mtu(&self) -> usize {
        self.transport.config().pmtu.bytes() as usize
    }

    /// Whether the QP is in error as far as its transport knows.
    pub(super) fn is_over(&self) -> bool {
        self.transport.is_in_error()
    }
}

/// `ibv_mtu` as the transport has it; what is none is the smallest, which any way carries.
pub(super) const fn pmtu(mtu: u32) -> Pmtu {
    match mtu {
        IBV_MTU_512 => Pmtu::B512,
        IBV_MTU_1024 => Pmtu::B1024,
        IBV_MTU_2048 => Pmtu::B2048,
        IBV_MTU_4096 => Pmtu::B4096,
        _ => Pmtu::B256,
    }
}

/// Bytes that may be under way. More than usual where the socket at the other end has room for it, which is not known but as our own: both ends are at
/// work all the time then, as one datagram is made, one waits and one is taken. No more packets than an end keeps behind a gap, and no more than that socket holds.
fn window(buffer: usize, pmtu: Pmtu, tuning: &Tuning) -> u32 {
    let quarter = u32::try_from(buffer / 4).unwrap_or(u32::MAX);
    let kept = u32::from(tuning.hold) * pmtu.bytes();
    let more = WINDOW_MAX.min(quarter).min(kept);
    let most = u32::try_from(room(buffer, pmtu.bytes())).unwrap_or(u32::MAX);
    tuning.window.max(more).min(most)
}

/// What the system said.
pub(super) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_as_large_as_sockets_have_room_and_a_gap_does_not_cost_what_is_behind() {
        let of = |buffer, pmtu| window(buffer, pmtu, &Tuning::default());
        let usual = Tuning::default().window;
        // What a user may have by default, and what one with privileges has.
        let (small, large) = (425_984, 16 << 20);
        assert_eq!(of(small, Pmtu::B4096), usual);
        assert_eq!(of(small, Pmtu::B256), 212_992, "what it holds of short ones");
        assert_eq!(of(0, Pmtu::B4096), usual, "the port is another user's");
        assert_eq!(of(large, Pmtu::B4096), WINDOW_MAX);
        assert_eq!(of(1_600_000, Pmtu::B4096), 400_000);
        assert_eq!(of(large, Pmtu::B1024), 256 * 1024);
        assert_eq!(of(large, Pmtu::B256), usual);
    }
}
