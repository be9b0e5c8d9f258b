//! Ids: `rdma_create_id(3)`, `rdma_destroy_id(3)`, `rdma_migrate_id(3)`.

use crate::address;
use crate::agent::{Agent, State as Carried};
use crate::calls::info::Found;
use crate::calls::options;
use crate::channel::{Channel, Event};
use crate::device::{Device, PORT, Place};
use crate::kernel::{self, Kernel};
use crate::ports::{Claim, Name, Port};
use abi::*;
use cface::Errno;
use cface::sync::{Condvar, Mutex, MutexGuard};
use ferroverbs_cm::wire::{PortSpace, Psn, ServiceId, Transport};
use ferroverbs_cm::{Connection, Listener};
use std::cell::UnsafeCell;
use std::net::{IpAddr, SocketAddr};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An id. The C object comes first.
#[repr(C)]
pub(crate) struct Id {
    verbs: UnsafeCell<rdma_cm_id>,
    state: Mutex<State>,
    acknowledged: Condvar,
    /// What the kernel has of it, where there are devices of the kernel.
    pub(crate) kernel: Option<Kernel>,
}

// SAFETY: the C object is shared with the program under the rules of rdma_cm(7); everything else is Sync by itself.
unsafe impl Sync for Id {}
// SAFETY: its pointers are addresses of objects of the process, and those of no thread.
unsafe impl Send for Id {}

impl Drop for Id {
    fn drop(&mut self) {
        kernel::forget(self);
        let record = self.verbs.get_mut().route.path_rec;
        // SAFETY: NULL or from calloc, and the id's alone.
        unsafe { cface::mem::free(record.cast()) };
    }
}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Id").field("at", &self.as_c()).finish_non_exhaustive()
    }
}

/// Whose the device of an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Not the kernel's.
    Soft,
    /// The kernel's.
    Kernel,
    /// There are both, and its address did not say yet. A listener to all addresses stays so.
    Open,
}

/// How far an id is. One on a device of the kernel is `Idle` to us: the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Idle,
    Bound,
    /// The destination's next hop is asked for.
    Resolving,
    Resolved,
    Routed,
    Listening,
    /// A request of ours is under way, or was granted.
    Connecting,
    /// A request of a peer waits for an answer.
    Asked,
    /// We granted it, and the peer has not said that it is ready.
    Granted,
    Connected,
    /// It ended, or came to nothing.
    Over,
}

/// What the two queue pairs of a connection need to know of each other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub(crate) transport: Transport,
    pub(crate) peer_qpn: u32,
    /// The first PSN of what we receive, which we tell the peer, and of what we send, which the peer tells us.
    pub(crate) receive_psn: Psn,
    pub(crate) send_psn: Psn,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) ack_timeout: u8,
    /// In the encoding of `enum ibv_mtu`.
    pub(crate) mtu: u8,
    pub(crate) traffic_class: u8,
}

/// What is not the program's.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) channel: Arc<Channel>,
    /// Every call waits for its event.
    pub(crate) synchronous: bool,
    pub(crate) side: Side,
    pub(crate) stage: Stage,
    pub(crate) place: Option<Place>,
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) port: Option<Port>,
    pub(crate) listening: Option<Listening>,
    pub(crate) connection: Option<Connection>,
    pub(crate) link: Link,
    pub(crate) qkey: u32,
    pub(crate) type_of_service: u8,
    pub(crate) shares_address: bool,
    /// An IPv6 wildcard is not IPv4's.
    pub(crate) only_own_family: bool,
    pub(crate) ack_timeout: Option<u8>,
    pub(crate) ece: ibv_ece,
    pub(crate) peer_ece: ibv_ece,
    /// Of rdma_create_ep(3): what the queue pairs of requests are made by, and in which domain.
    pub(crate) template: Option<(Option<SendPd>, ibv_qp_init_attr)>,
    /// Of rdma_create_ep(3): private data in front of what rdma_connect(3) brings.
    pub(crate) greeting: Vec<u8>,
    /// Of rdma_resolve_addrinfo(3).
    pub(crate) found: Option<Found>,
    /// The queue pair has its own, made by us.
    pub(crate) made: Made,
    pub(crate) groups: Vec<Group>,
    /// Events that the program got, and those of them that it acknowledged.
    pub(crate) reported: u64,
    pub(crate) acknowledged: u64,
    /// Those that it did not acknowledge yet, the kernel's among them: their addresses, and what they are.
    pub(crate) with_program: Vec<(usize, rdma_cm_event_type)>,
    /// The process of the peer was killed: it has not said that there is nothing more to come.
    pub(crate) peer_was_killed: bool,
}

impl State {
    /// To what the id is bound.
    pub(crate) fn claim(&self) -> Option<Claim> {
        let source = self.source?;
        Some(Claim::of(source, self.only_own_family, self.shares_address))
    }

    /// Whether it would take requests to an address.
    pub(crate) fn takes(&self, to: IpAddr) -> bool {
        self.claim().is_some_and(|claim| claim.takes(to))
    }
}

/// A domain of the program's, as a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendPd(pub(crate) *mut ibv_pd);
// SAFETY: domains may be used by any thread.
unsafe impl Send for SendPd {}
// SAFETY: `init` of `template` names objects of the process that may be used by any thread.
unsafe impl Send for State {}

/// Which completion queues are ours to destroy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Made {
    pub(crate) send_cq: bool,
    pub(crate) recv_cq: bool,
}

/// A multicast group that was joined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) address: SocketAddr,
    pub(crate) gid: [u8; 16],
    pub(crate) attached: bool,
}

/// What a listener has.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) service: ServiceId,
    pub(crate) at: Vec<(&'static Device, Listener)>,
    pub(crate) _names: Vec<Name>,
}

/// An id that nobody has yet. Dropped, it is destroyed.
#[derive(Debug)]
pub(crate) struct Held(Option<Arc<Id>>);

impl Held {
    pub(crate) const fn new(id: Arc<Id>) -> Self {
        Self(Some(id))
    }

    /// The program has it from now on.
    pub(crate) fn give(mut self) -> Option<Arc<Id>> {
        let id = self.0.take()?;
        std::mem::forget(Arc::clone(&id));
        Some(id)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(id) = self.0.take() {
            id.end();
        }
    }
}

impl Id {
    /// A new one, on a device that is not the kernel's.
    pub(crate) fn new(
        channel: Arc<Channel>,
        synchronous: bool,
        context: *mut std::ffi::c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Arc<Self> {
        Self::on(Side::Soft, channel, synchronous, context, ps, qp_type)
    }

    /// A new one. The kernel does not have it yet.
    pub(crate) fn on(
        side: Side,
        channel: Arc<Channel>,
        synchronous: bool,
        context: *mut std::ffi::c_void,
        ps: rdma_port_space,
        qp_type: ibv_qp_type,
    ) -> Arc<Self> {
        let verbs = rdma_cm_id {
            channel: channel.as_c(),
            context,
            ps,
            qp_type,
            verbs: null_mut(),
            qp: null_mut(),
            // SAFETY: zeros are valid for all that it consists of: numbers, bytes and NULL.
            route: unsafe { std::mem::zeroed() },
            port_num: 0,
            event: null_mut(),
            send_cq_channel: null_mut(),
            send_cq: null_mut(),
            recv_cq_channel: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            pd: null_mut(),
        };
        let state = State {
            channel,
            synchronous,
            side,
            stage: Stage::Idle,
            place: None,
            source: None,
            destination: None,
            port: None,
            listening: None,
            connection: None,
            link: Link::default(),
            qkey: RDMA_UDP_QKEY,
            type_of_service: 0,
            shares_address: false,
            only_own_family: false,
            ack_timeout: None,
            ece: ibv_ece::zeroed(),
            peer_ece: ibv_ece::zeroed(),
            template: None,
            greeting: vec![],
            found: None,
            made: Made::default(),
            groups: vec![],
            reported: 0,
            acknowledged: 0,
            with_program: vec![],
            peer_was_killed: false,
        };
        Arc::new(Self {
            verbs: UnsafeCell::new(verbs),
            state: Mutex::new(state),
            acknowledged: Condvar::new(),
            kernel: (side != Side::Soft).then(Kernel::new),
        })
    }

    /// Whose its device is.
    pub(crate) fn side(&self) -> Side {
        self.lock().side
    }

    /// Its address has said whose: the other side's part of it goes.
    pub(crate) fn settle(&self, side: Side) {
        if side == Side::Soft {
            // Nothing was asked of it, so there is nothing to wait for.
            let _told = kernel::id::destroy(self);
        }
        let mut state = self.lock();
        if side == Side::Kernel {
            (state.port, state.source, state.stage) = (None, None, Stage::Idle);
        }
        state.side = side;
    }

    /// Its events come to `channel` from now on.
    pub(crate) fn take_channel(&self, channel: Arc<Channel>, synchronous: bool) {
        let mut state = self.lock();
        state.synchronous = synchronous;
        // SAFETY: the program does not look at the member during this call.
        unsafe { (*self.as_c()).channel = channel.as_c() };
        state.channel = channel;
    }

    /// The id of a C pointer.
    ///
    /// # Errors
    /// `EINVAL` NULL.
    ///
    /// # Safety
    /// `id` is NULL or a live one of this library.
    pub(crate) unsafe fn of(id: *mut rdma_cm_id) -> Result<Arc<Self>, Errno> {
        if id.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the pointer is of an Arc, whose count is the program's until it destroys the id.
        unsafe {
            let at = id.cast::<Self>().cast_const();
            Arc::increment_strong_count(at);
            Ok(Arc::from_raw(at))
        }
    }

    /// The address that C code knows.
    pub(crate) const fn as_c(&self) -> *mut rdma_cm_id {
        self.verbs.get()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The space of its ports.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` it has none that is known.
    pub(crate) fn space(&self) -> Result<PortSpace, Errno> {
        // SAFETY: written when the id was made, and never again.
        match unsafe { (*self.as_c()).ps } {
            RDMA_PS_TCP => Ok(PortSpace::Tcp),
            RDMA_PS_UDP => Ok(PortSpace::Udp),
            RDMA_PS_IPOIB => Ok(PortSpace::IpOverIb),
            RDMA_PS_IB => Ok(PortSpace::Ib),
            _ => Err(Errno::EPROTONOSUPPORT),
        }
    }

    /// The type of its queue pair.
    pub(crate) fn qp_type(&self) -> ibv_qp_type {
        // SAFETY: written when the id was made, or by rdma_create_ep(3) before anybody has it.
        unsafe { (*self.as_c()).qp_type }
    }

    /// Whether it is for datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    /// Whether requests for `service` at an address are its. Asked under the agent's lock: nothing of an agent is done under the id's.
    pub(crate) fn listens_to(&self, service: ServiceId, to: IpAddr) -> bool {
        let state = self.lock();
        let is_its = |listening: &Listening| listening.service == service;
        state.takes(to) && state.listening.as_ref().is_some_and(is_its)
    }

    /// Shows the program where the id is: device, port, addresses.
    pub(crate) fn show(&self, state: &State) {
        // SAFETY: the program reads these only after the call or the event that brings them.
        unsafe {
            let id = self.as_c();
            if let Some(place) = state.place {
                (*id).verbs = place.device.context;
                (*id).port_num = PORT;
                if (*id).pd.is_null() {
                    (*id).pd = place.device.pd;
                }
                (*id).route.addr.addr.sgid.raw = place.gid;
                (*id).route.addr.addr.pkey = 0xffff;
            }
            if let Some(source) = state.source {
                address::write(&raw mut (*id).route.addr.src_storage, source);
            }
            if let Some(destination) = state.destination {
                address::write(&raw mut (*id).route.addr.dst_storage, destination);
            }
        }
    }

    /// Where its messages go: to this address of the peer.
    pub(crate) fn peer_gid(state: &State) -> Option<[u8; 16]> {
        let (place, destination) = (state.place?, state.destination?);
        Some(if address::is_any(destination.ip()) {
            place.gid
        } else {
            address::gid(destination.ip())
        })
    }

    /// The address vector that leads to the peer.
    pub(crate) fn way(state: &State) -> Option<ibv_ah_attr> {
        let gid = Self::peer_gid(state)?;
        Some(Self::way_to(state.place?, gid, state.type_of_service))
    }

    /// The address vector that leads to `gid`.
    pub(crate) fn way_to(place: Place, gid: [u8; 16], traffic_class: u8) -> ibv_ah_attr {
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: gid },
                flow_label: 0,
                sgid_index: u8::try_from(place.index).unwrap_or(0),
                hop_limit: 64,
                traffic_class,
            },
            is_global: 1,
            port_num: PORT,
            ..Zeroed::zeroed()
        }
    }

    /// Runs `f` with the agent of the id's device, and what it carries.
    ///
    /// # Errors
    /// `EINVAL` the id has no device yet; the agent's.
    pub(crate) fn carried<T>(
        place: Option<Place>,
        f: impl FnOnce(&Agent, &mut Carried) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let agent = place.ok_or(Errno::EINVAL)?.device.agent()?;
        let mut carried = agent.lock();
        let done = f(agent, &mut carried);
        agent.pump(&mut carried);
        done
    }

    /// An event of this id, behind those that it has.
    pub(crate) fn push(&self, event: Box<Event>) {
        // Under the lock: it may be on its way to another channel.
        self.lock().channel.push(event);
    }

    /// Nothing of it is known to any peer or agent afterwards; events that nobody got are taken back.
    pub(crate) fn end(self: &Arc<Self>) {
        let (listening, connection, place, waits) = {
            let mut state = self.lock();
            state.port = None;
            let waits = state.stage == Stage::Connecting && state.connection.is_none();
            if state.stage == Stage::Resolving || waits {
                // The thread that looks for its next hop, or for a listener, has nothing to tell any more.
                state.stage = Stage::Over;
            }
            (state.listening.take(), state.connection.take(), state.place, waits)
        };
        if waits {
            let _there = Self::carried(place, |_, carried| {
                carried.unserved.forget(self);
                Ok(())
            });
        }
        if let Some(listening) = listening {
            self.unlisten(&listening);
        }
        if let Some(connection) = connection {
            // Whether there is an agent: the connection is of one.
            let _there = Self::carried(place, |agent, carried| {
                carried.manager.destroy(agent.now(), connection);
                carried.connections.remove(&connection);
                Ok(())
            });
        }
        self.take_back_events();
    }

    /// No agent has `listening` any more, and nobody hears of its requests.
    pub(crate) fn unlisten(self: &Arc<Self>, listening: &Listening) {
        for (device, listener) in &listening.at {
            if let Ok(agent) = device.agent() {
                let mut carried = agent.lock();
                carried.keep_owed(*listener, listening.service);
                let Some(all) = carried.listeners.get_mut(listener) else { continue };
                all.retain(|id| !Arc::ptr_eq(id, self));
                if all.is_empty() {
                    carried.listeners.remove(listener);
                    carried.manager.unlisten(*listener);
                }
            }
        }
        self.take_back_events();
    }

    fn take_back_events(self: &Arc<Self>) {
        let channel = Arc::clone(&self.lock().channel);
        // Among them new ids, which end in turn.
        drop(channel.take_back(|event| Arc::ptr_eq(&event.counts_for, self)));
    }

    /// Waits until the program has acknowledged all events that it got, and as many as the kernel told; `call` is the one of the program that waits.
    pub(crate) fn wait_for_acknowledgements(&self, call: &str, told: u64) {
        self.wait_until(call, |_| true, |state| state.acknowledged >= state.reported + told);
    }

    /// Waits until acknowledgements, of events of the kinds for which `of` holds, have made `well` hold. When that takes long, a line says what is waited for,
    /// once: a program that has forgotten an acknowledgement waits for ever.
    pub(crate) fn wait_until(
        &self,
        call: &str,
        of: impl Fn(rdma_cm_event_type) -> bool,
        well: impl Fn(&State) -> bool,
    ) {
        let end = Instant::now() + PATIENCE;
        let mut state = self.lock();
        while !well(&state) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.acknowledged.wait_for(&mut state, left);
        }
        if well(&state) {
            return;
        }
        let kinds: Vec<_> = state.with_program.iter().map(|(_, kind)| *kind).collect();
        let kinds: Vec<_> = kinds.into_iter().filter(|kind| of(*kind)).collect();
        // Not under the lock: whoever reads stderr may be slow.
        drop(state);
        self.say_what_is_awaited(call, &kinds);
        let mut state = self.lock();
        while !well(&state) {
            self.acknowledged.wait(&mut state);
        }
    }

    fn say_what_is_awaited(&self, call: &str, kinds: &[rdma_cm_event_type]) {
        if std::env::var_os("FERROVERBS_QUIET").is_some_and(|value| value != "0") {
            return;
        }
        cface::say!("ferroverbs: librdmacm: {}", awaited(call, self.as_c().addr(), kinds));
    }

    /// The program gets an event, which is at `at`.
    pub(crate) fn hand_out(&self, at: *const rdma_cm_event, kind: rdma_cm_event_type) {
        self.lock().with_program.push((at.addr(), kind));
    }

    /// The program has acknowledged the one at `at`; 0: one that it never got.
    pub(crate) fn acknowledge(&self, at: usize) {
        let mut state = self.lock();
        state.acknowledged += 1;
        state.with_program.retain(|(given, _)| *given != at);
        drop(state);
        self.acknowledged.notify_all();
    }
}

/// How long a call waits for acknowledgements before it says so; as long as the layer validate (CM-01), which looks before the call.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a call waits for: acknowledgements of events of an id.
fn awaited(call: &str, id: usize, kinds: &[rdma_cm_event_type]) -> String {
    let mut names: Vec<(&str, u32)> = vec![];
    for kind in kinds {
        let name = options::name(*kind).to_str().unwrap_or("UNKNOWN EVENT");
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
        "{call} waits: the program did not acknowledge {count} {events} of id {id:#x} ({}) by rdma_ack_cm_event; the wait goes on until it does",
        names.join(", ")
    )
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
        let said = awaited("rdma_destroy_id", 0x1230, &kinds);
        for part in [
            "rdma_destroy_id waits",
            "3 events of id 0x1230",
            "(2 x RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_ESTABLISHED)",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
}
