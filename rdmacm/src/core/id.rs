//! Ids: `rdma_create_id(3)`, `rdma_destroy_id(3)`, `rdma_migrate_id(3)`.
//! Entry points in `calls` look ids up here; `arrivals` and `kernel` push events to ids.
//!
//! Map of this file: `Id`, `Backend`, `Stage` and `RdmaIdState` with its fields; parts of the
//! state; creation; lookups; publishing the state in the C structure; events; destruction and
//! waiting for acknowledgements; tests. Threads: application threads and the agent's thread. Locks:
//! docs/design/locking.md.

use crate::core::agent::{Agent, AgentState};
use crate::core::c_objects::{CId, QpTemplate, ResolvedInfo, address_of};
use crate::core::channel::{Channel, Event};
use crate::core::device::{Device, LocalAddress, PORT};
use crate::core::event_names;
use crate::sys::address;
use crate::sys::ports::{Name, Port, PortClaim};
use abi::*;
use cface::Errno;
use cface::sync::{Condvar, Mutex, MutexGuard};
use ferroverbs_cm::wire::{PortSpace, Psn, ServiceId, Transport};
use ferroverbs_cm::{Connection, Listener};
use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An id of rdma_cm(7). The C object is the first field.
#[repr(C)]
pub(crate) struct Id {
    c: CId,
    state: Mutex<RdmaIdState>,
    acknowledged: Condvar,
    /// The kernel's id, if the process has kernel devices.
    extension: Option<Box<dyn Extension>>,
}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Id").field("at", &self.as_c()).finish_non_exhaustive()
    }
}

/// A part of an id that a higher floor owns: the id of the kernel, for a kernel device.
pub(crate) trait Extension: std::fmt::Debug + Send + Sync {
    /// The value as its own type.
    fn as_any(&self) -> &dyn Any;
}

/// The owner of an id's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// A device without a kernel driver.
    Soft,
    /// A device of the kernel.
    Kernel,
    /// Undecided: both kinds of devices exist, and the id has no address yet. A listener to all
    /// addresses stays undecided.
    Undecided,
}

/// The progress of an id, with the data of each stage. An id on a kernel device stays `Idle`: the
/// kernel holds its progress.
#[derive(Debug)]
pub(crate) enum Stage {
    Idle,
    Bound,
    /// The library looks for the next hop to the destination.
    Resolving,
    Resolved,
    Routed,
    /// The registrations of the listener; None while rdma_listen(3) makes them.
    Listening(Option<Listening>),
    /// The id has sent a request, or prepares the queue pair after a reply. None: the request waits
    /// for a listener.
    Connecting(Option<Connection>),
    /// The request of a peer waits for the program's answer.
    RequestReceived(Connection),
    /// The program accepted the request; the peer has not sent RTU yet.
    ReplySent(Connection),
    Connected(Connection),
    /// The connection ended or failed. None: the manager has no connection of the id.
    Ended(Option<Connection>),
}

impl Stage {
    /// The connection of the stage.
    pub(crate) const fn connection(&self) -> Option<Connection> {
        match self {
            Self::Connecting(connection) | Self::Ended(connection) => *connection,
            Self::RequestReceived(connection)
            | Self::ReplySent(connection)
            | Self::Connected(connection) => Some(*connection),
            Self::Idle
            | Self::Bound
            | Self::Resolving
            | Self::Resolved
            | Self::Routed
            | Self::Listening(_) => None,
        }
    }
}

/// Values that the two queue pairs of a connection exchange.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpParameters {
    pub(crate) transport: Transport,
    pub(crate) peer_qpn: u32,
    /// The first PSN that this end receives; the peer learns the PSN from this end. `send_psn` is
    /// the first PSN that this end sends, and comes from the peer.
    pub(crate) receive_psn: Psn,
    pub(crate) send_psn: Psn,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) ack_timeout: u8,
    /// The path MTU, in the encoding of `enum ibv_mtu`.
    pub(crate) mtu: u8,
    pub(crate) traffic_class: u8,
}

/// The private state of an id, behind the id's lock.
#[derive(Debug)]
pub(crate) struct RdmaIdState {
    pub(crate) channel: Arc<Channel>,
    /// True: each call waits for the matching event.
    pub(crate) synchronous: bool,
    pub(crate) backend: Backend,
    pub(crate) stage: Stage,
    pub(crate) local: Option<LocalAddress>,
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) port: Option<Port>,
    pub(crate) parameters: QpParameters,
    pub(crate) qkey: u32,
    pub(crate) type_of_service: u8,
    pub(crate) shares_address: bool,
    /// True: an IPv6 wildcard does not include IPv4 addresses (RDMA_OPTION_ID_AFONLY).
    pub(crate) only_own_family: bool,
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) ece: ibv_ece,
    pub(crate) peer_ece: ibv_ece,
    /// From rdma_create_ep(3): the attributes and the domain for the queue pairs of incoming
    /// requests.
    pub(crate) template: Option<QpTemplate>,
    /// From rdma_create_ep(3): private data in front of the private data of rdma_connect(3).
    pub(crate) private_prefix: Vec<u8>,
    /// The result of rdma_resolve_addrinfo(3).
    pub(crate) resolved_info: Option<ResolvedInfo>,
    /// The completion queues that the library created for the queue pair.
    pub(crate) owned_cqs: OwnedCqs,
    pub(crate) groups: Vec<Group>,
    /// The number of events that the program took, and the number that the program acknowledged.
    pub(crate) delivered_count: u64,
    pub(crate) acknowledged_count: u64,
    /// Addresses and types of the events that wait for an acknowledgement, with events of the
    /// kernel.
    pub(crate) unacknowledged: Vec<(usize, rdma_cm_event_type)>,
    /// True: the peer process was killed, so the end of its data is unknown.
    pub(crate) peer_was_killed: bool,
}

impl RdmaIdState {
    /// The connection of the id.
    ///
    /// # Errors
    /// `EINVAL` the id has none.
    pub(crate) fn connection(&self) -> Result<Connection, Errno> {
        self.stage.connection().ok_or(Errno::EINVAL)
    }

    /// Marks the connection of the id as established.
    pub(crate) fn set_connected(&mut self) {
        if let Some(connection) = self.stage.connection() {
            self.stage = Stage::Connected(connection);
        }
    }

    /// Marks the connection of the id as ended.
    pub(crate) fn set_ended(&mut self) {
        self.stage = Stage::Ended(self.stage.connection());
    }

    /// The address and port that the id is bound to.
    pub(crate) fn claim(&self) -> Option<PortClaim> {
        let source = self.source?;
        Some(PortClaim::of(source, self.only_own_family, self.shares_address))
    }

    /// Whether the id accepts requests to an address.
    pub(crate) fn accepts(&self, to: IpAddr) -> bool {
        self.claim().is_some_and(|claim| claim.accepts(to))
    }
}

/// The completion queues that the library destroys with the queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnedCqs {
    pub(crate) send_cq: bool,
    pub(crate) recv_cq: bool,
}

/// A multicast group that the id has joined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) address: SocketAddr,
    pub(crate) gid: [u8; 16],
    pub(crate) attached: bool,
}

/// The registrations of a listener.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) service: ServiceId,
    pub(crate) listeners: Vec<(&'static Device, Listener)>,
    pub(crate) _names: Vec<Name>,
}

/// An id that the program does not have yet. Dropping the value destroys the id.
#[derive(Debug)]
pub(crate) struct UndeliveredId(Option<Arc<Id>>);

impl UndeliveredId {
    pub(crate) const fn new(id: Arc<Id>) -> Self {
        Self(Some(id))
    }

    /// Passes the id to the program.
    pub(crate) fn release(mut self) -> Option<Arc<Id>> {
        let id = self.0.take()?;
        std::mem::forget(Arc::clone(&id));
        Some(id)
    }
}

impl Drop for UndeliveredId {
    fn drop(&mut self) {
        if let Some(id) = self.0.take() {
            id.shut_down();
        }
    }
}

impl Id {
    /// A new id on a device without a kernel driver.
    pub(crate) fn new(
        channel: Arc<Channel>,
        synchronous: bool,
        context: *mut std::ffi::c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Arc<Self> {
        Self::with_backend((Backend::Soft, None), channel, synchronous, context, ps, qp_type)
    }

    /// A new id, with the part that the floor of its backend owns.
    pub(crate) fn with_backend(
        (backend, extension): (Backend, Option<Box<dyn Extension>>),
        channel: Arc<Channel>,
        synchronous: bool,
        context: *mut std::ffi::c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Arc<Self> {
        let c = CId::new(channel.as_c(), context, ps, qp_type);
        let state = RdmaIdState {
            channel,
            synchronous,
            backend,
            stage: Stage::Idle,
            local: None,
            source: None,
            destination: None,
            port: None,
            parameters: QpParameters::default(),
            qkey: RDMA_UDP_QKEY,
            type_of_service: 0,
            shares_address: false,
            only_own_family: false,
            ack_timeout: None,
            ece: ibv_ece::zeroed(),
            peer_ece: ibv_ece::zeroed(),
            template: None,
            private_prefix: vec![],
            resolved_info: None,
            owned_cqs: OwnedCqs::default(),
            groups: vec![],
            delivered_count: 0,
            acknowledged_count: 0,
            unacknowledged: vec![],
            peer_was_killed: false,
        };
        Arc::new(Self { c, state: Mutex::new(state), acknowledged: Condvar::new(), extension })
    }

    /// The owner of the id's device.
    pub(crate) fn backend(&self) -> Backend {
        self.lock().backend
    }

    /// The part of the id that a higher floor owns.
    pub(crate) fn extension(&self) -> Option<&dyn Any> {
        self.extension.as_ref().map(|extension| extension.as_any())
    }

    /// Fixes the owner of the id's device once the address has decided.
    pub(crate) fn set_backend(&self, backend: Backend) {
        let mut state = self.lock();
        if backend == Backend::Kernel {
            (state.port, state.source, state.stage) = (None, None, Stage::Idle);
        }
        state.backend = backend;
    }

    /// Moves the id's events to `channel`.
    pub(crate) fn take_channel(&self, channel: Arc<Channel>, synchronous: bool) {
        let mut state = self.lock();
        state.synchronous = synchronous;
        self.c.set_channel(&channel);
        state.channel = channel;
    }

    /// The address that C code has.
    pub(crate) const fn as_c(&self) -> *mut rdma_cm_id {
        self.c.as_c()
    }

    /// The C object.
    pub(crate) const fn c(&self) -> &CId {
        &self.c
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, RdmaIdState> {
        self.state.lock()
    }

    /// The port space of the id.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` the id's port space is unknown.
    pub(crate) fn space(&self) -> Result<PortSpace, Errno> {
        match self.c.port_space() {
            RDMA_PS_TCP => Ok(PortSpace::Tcp),
            RDMA_PS_UDP => Ok(PortSpace::Udp),
            RDMA_PS_IPOIB => Ok(PortSpace::IpOverIb),
            RDMA_PS_IB => Ok(PortSpace::Ib),
            _ => Err(Errno::EPROTONOSUPPORT),
        }
    }

    /// The type of the id's queue pair.
    pub(crate) fn qp_type(&self) -> ibv_qp_type {
        self.c.qp_type()
    }

    /// Whether the id uses datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    /// Whether the id listens to `service` at an address. The caller holds the agent's lock;
    /// nothing takes an agent's lock under an id's lock.
    pub(crate) fn listens_to(&self, service: ServiceId, to: IpAddr) -> bool {
        let state = self.lock();
        let Stage::Listening(Some(listening)) = &state.stage else { return false };
        listening.service == service && state.accepts(to)
    }

    /// Copies device, port and addresses to the C object.
    pub(crate) fn publish(&self, state: &RdmaIdState) {
        if let Some(local) = state.local {
            self.c.set_device(local.device.context, local.device.pd, PORT, false);
            self.c.set_own_gid(local.gid);
            self.c.set_pkey(0xffff);
        }
        if let Some(source) = state.source {
            self.c.set_source(&source.into());
        }
        if let Some(destination) = state.destination {
            self.c.set_destination(&destination.into());
        }
    }

    /// The GID of the peer, to which the id's messages go.
    pub(crate) fn peer_gid(state: &RdmaIdState) -> Option<[u8; 16]> {
        let (local, destination) = (state.local?, state.destination?);
        Some(if address::is_any(destination.ip()) {
            local.gid
        } else {
            address::gid(destination.ip())
        })
    }

    /// The address vector to the peer.
    pub(crate) fn peer_address_vector(state: &RdmaIdState) -> Option<ibv_ah_attr> {
        let gid = Self::peer_gid(state)?;
        Some(Self::address_vector_to(state.local?, gid, state.type_of_service))
    }

    /// The address vector to `gid`.
    pub(crate) fn address_vector_to(
        local: LocalAddress,
        gid: [u8; 16],
        traffic_class: u8,
    ) -> ibv_ah_attr {
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: gid },
                flow_label: 0,
                sgid_index: u8::try_from(local.index).unwrap_or(0),
                hop_limit: 64,
                traffic_class,
            },
            is_global: 1,
            port_num: PORT,
            ..Zeroed::zeroed()
        }
    }

    /// Runs `f` with the agent of the id's device and the agent's locked state. The start of an
    /// agent needs most of a small stack, so `f` has a frame of its own.
    ///
    /// # Errors
    /// `EINVAL` the id has no device yet; else the errno of the agent.
    #[inline(never)]
    pub(crate) fn with_agent<T>(
        local: Option<LocalAddress>,
        f: impl FnOnce(&Agent, &mut AgentState) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let agent = local.ok_or(Errno::EINVAL)?.device.agent()?;
        with_state(agent, f)
    }

    /// Appends an event of this id to the queue of its channel.
    pub(crate) fn push(&self, event: Box<Event>) {
        // The id's lock is held: another thread may be moving the id to another channel.
        self.lock().channel.push(event);
    }

    /// Removes the id from agents and peers, and discards events that the program has not taken.
    pub(crate) fn shut_down(self: &Arc<Self>) {
        let (stage, local) = {
            let mut state = self.lock();
            state.port = None;
            // The thread that waits for the next hop or for a listener finds the stage changed and
            // sends no event.
            (std::mem::replace(&mut state.stage, Stage::Ended(None)), state.local)
        };
        if let Stage::Connecting(None) = stage {
            let _there = Self::with_agent(local, |_, agent_state| {
                agent_state.host.remove_where(|id| Arc::ptr_eq(id, self));
                Ok(())
            });
        }
        if let Some(connection) = stage.connection() {
            // The result is ignored: a connection exists only where an agent exists.
            let _there = Self::with_agent(local, |agent, agent_state| {
                agent_state.manager.destroy(agent.now(), connection);
                agent_state.connections.remove(&connection);
                Ok(())
            });
        }
        if let Stage::Listening(Some(listening)) = stage {
            self.unlisten(&listening);
        }
        self.discard_events();
    }

    /// Unregisters `listening` from all agents, and discards its pending requests.
    pub(crate) fn unlisten(self: &Arc<Self>, listening: &Listening) {
        for (device, listener) in &listening.listeners {
            if let Ok(agent) = device.agent() {
                let mut agent_state = agent.lock();
                agent_state.keep_unanswered(*listener, listening.service);
                let Some(all) = agent_state.listeners.get_mut(listener) else { continue };
                all.retain(|id| !Arc::ptr_eq(id, self));
                if all.is_empty() {
                    agent_state.listeners.remove(listener);
                    agent_state.manager.unlisten(*listener);
                }
            }
        }
        self.discard_events();
    }

    fn discard_events(self: &Arc<Self>) {
        let channel = Arc::clone(&self.lock().channel);
        // The discarded events include new ids, which end in turn.
        drop(channel.remove_events(|event| Arc::ptr_eq(&event.awaits_ack, self)));
    }

    /// Waits until the program has acknowledged all events that it took, and `kernel_count` events
    /// of the kernel. `call` names the program's call in a warning.
    pub(crate) fn wait_for_acknowledgements(&self, call: &str, kernel_count: u64) {
        self.wait_until(
            call,
            |_| true,
            |state| state.acknowledged_count >= state.delivered_count + kernel_count,
        );
    }

    /// Waits until acknowledgements have made `is_over` true. After [`WARN_AFTER`], one line on
    /// stderr names the missing acknowledgements, limited to event types for which `of` is true. A
    /// program that forgets an acknowledgement waits for ever.
    pub(crate) fn wait_until(
        &self,
        call: &str,
        is_counted: impl Fn(rdma_cm_event_type) -> bool,
        is_over: impl Fn(&RdmaIdState) -> bool,
    ) {
        let end = Instant::now() + WARN_AFTER;
        let mut state = self.lock();
        while !is_over(&state) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.acknowledged.wait_for(&mut state, left);
        }
        if is_over(&state) {
            return;
        }
        let kinds: Vec<_> = state.unacknowledged.iter().map(|(_, kind)| *kind).collect();
        let kinds: Vec<_> = kinds.into_iter().filter(|kind| is_counted(*kind)).collect();
        // The lock is released first: the reader of stderr may be slow.
        drop(state);
        self.warn_of_wait(call, &kinds);
        let mut state = self.lock();
        while !is_over(&state) {
            self.acknowledged.wait(&mut state);
        }
    }

    fn warn_of_wait(&self, call: &str, kinds: &[rdma_cm_event_type]) {
        if std::env::var_os("FERROVERBS_QUIET").is_some_and(|value| value != "0") {
            return;
        }
        cface::say!(
            "ferroverbs: librdmacm: {}",
            acknowledgement_warning(call, address_of(self), kinds)
        );
    }

    /// Records that the program took the event at address `at`.
    pub(crate) fn record_delivery(&self, at: &rdma_cm_event, kind: rdma_cm_event_type) {
        self.lock().unacknowledged.push((std::ptr::from_ref(at).addr(), kind));
    }

    /// Records the acknowledgement of the event at address `at`; 0: the program never took the
    /// event.
    pub(crate) fn acknowledge(&self, at: usize) {
        let mut state = self.lock();
        state.acknowledged_count += 1;
        state.unacknowledged.retain(|(given, _)| *given != at);
        drop(state);
        self.acknowledged.notify_all();
    }
}

/// The time after which a waiting call prints a warning. The check CM-01 of the layer `validate`
/// uses the same time before the call.
const WARN_AFTER: Duration = Duration::from_secs(2);

/// The warning of a call that waits for acknowledgements of events of an id.
fn acknowledgement_warning(call: &str, id: usize, kinds: &[rdma_cm_event_type]) -> String {
    let mut names: Vec<(&str, u32)> = vec![];
    for kind in kinds {
        let name = event_names::name(*kind).to_str().unwrap_or("UNKNOWN EVENT");
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => names.push((name, 1)),
        }
    }
    let names: Vec<_> = names
        .iter()
        .map(
            |(name, count)| {
                if *count == 1 { (*name).to_owned() } else { format!("{count} x {name}") }
            },
        )
        .collect();
    let count = kinds.len();
    let events = if count == 1 { "event" } else { "events" };
    format!(
        "{call} waits: the program must acknowledge {count} {events} of id {id:#x} ({}) by rdma_ack_cm_event",
        names.join(", ")
    )
}

/// Runs `f` with the agent and its locked state, then sends what `f` caused.
#[inline(never)]
fn with_state<T>(
    agent: &Agent,
    f: impl FnOnce(&Agent, &mut AgentState) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut agent_state = agent.lock();
    let done = f(agent, &mut agent_state);
    agent.pump(&mut agent_state);
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_awaited_is_said_by_call_id_and_kinds() {
        let kinds = [
            RDMA_CM_EVENT_CONNECT_REQUEST,
            RDMA_CM_EVENT_ESTABLISHED,
            RDMA_CM_EVENT_CONNECT_REQUEST,
        ];
        let said = acknowledgement_warning("rdma_destroy_id", 0x1230, &kinds);
        for part in [
            "rdma_destroy_id waits",
            "3 events of id 0x1230",
            "(2 x RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_ESTABLISHED)",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
}
