//! The agent of a device: a datagram QP that carries MADs, and the thread that serves the QP.
//! The agent stands between the state machine (`ferroverbs-cm`) and the device.
//!
//! A real adapter has one QP 1 for its host. Here each process has a QP of its own, and all of
//! these QPs are members of one multicast group of the host, which stands for QP 1 ([`GSI_GROUP`]).
//! Every process receives each MAD for QP 1, from this host or another host, and keeps the MADs
//! that belong to the process ([`crate::host`]).
//!
//! Map of this file: `Agent` and `AgentState`; creation of the QP; receives and completions;
//! `pump`, which sends and dispatches; received datagrams; actions of `host`, and waiting requests;
//! `run`, the thread; the end. Threads: application threads by `lock` and `pump`; the agent's
//! thread by `run`. Locks: `state`, then the lock of an id.

use crate::core::device::{Device, PORT};
use crate::core::id::{Id, Stage};
use crate::core::local_host::LocalHost;
use crate::core::requests;
use crate::host::peer::Peer;
use crate::host::{HostAction, HostProcesses, OutgoingRequest, PROCESS_BITS};
use crate::sys::objects::{
    AddressHandle, CompletionQueue, Memory, Payload, QueuePair, SendRequest, Target,
};
use crate::sys::ports::Name;
use crate::sys::{address, descriptors, process, random};
use abi::*;
use cface::Errno;
use cface::sync::{Mutex, MutexGuard};
use ferroverbs_cm::wire::{Gid, Guid, MAD_LEN, ServiceId, datagram_gids};
use ferroverbs_cm::{Config, Connection, Event, Listener, Manager, Names, Time};
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of QP 1, to which all managers send (IBTA 1.7 3.5.10).
const GSI: u32 = 1;
/// The Q_Key of QP 1 (IBTA 1.7 3.5.3).
const QKEY: u32 = 0x8001_0000;
/// Bytes of the GRH in front of a received datagram.
const GRH: usize = 40;
const RECEIVES: usize = 512;
const SENDS: usize = 64;
/// Bytes of one buffer.
const SLOT: usize = 320;
const _: () = assert!(GRH + MAD_LEN <= SLOT);
/// The delay before the agent sends a MAD again that found no free buffer.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// The time that the exit of a process may wait for the agent's lock.
const EXIT_LIMIT: Duration = Duration::from_millis(200);
/// The largest number of cached address handles.
const MOST_HANDLES: usize = 256;

/// The agent of a device.
#[derive(Debug)]
pub(crate) struct Agent {
    device: &'static Device,
    /// The queue pair, with a memory of slots. The owner of a slot's number uses the slot, under
    /// the lock of `state` or on the agent's thread alone.
    qp: QueuePair,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    /// The eventfd that wakes the agent's thread.
    wake_fd: OwnedFd,
    /// The descriptor that is readable when a watched local process has ended.
    ended_fd: i32,
    started: Instant,
    /// Boxed, because the thread that starts the agent has a small stack.
    state: Mutex<Box<AgentState>>,
}

/// The state that the agent's thread and the callers share.
#[derive(Debug)]
pub(crate) struct AgentState {
    pub(crate) manager: Manager<Peer>,
    pub(crate) connections: HashMap<Connection, Arc<Id>>,
    /// The listeners of each service; the ids of one service have different addresses.
    pub(crate) listeners: HashMap<Listener, Vec<Arc<Id>>>,
    address_handles: HashMap<Peer, Arc<AddressHandle>>,
    local_gids: Vec<(u32, Gid)>,
    free: Vec<usize>,
    waiting: VecDeque<(Peer, [u8; MAD_LEN])>,
    /// The time at which the thread wakes by itself; None: the thread waits for an arrival.
    sleeps_until: Option<Time>,
    /// The processes of this host, and what follows for this process.
    pub(crate) host: HostProcesses<Arc<Id>, Name>,
    system: LocalHost,
}

impl AgentState {
    /// A state without connections. The arguments come from the caller, because the large frame of
    /// this function leaves little of a small stack to calls of the system.
    #[inline(never)]
    fn new(config: Config, local_gids: Vec<(u32, Gid)>, system: LocalHost) -> Box<Self> {
        Box::new(Self {
            manager: Manager::new(config),
            connections: HashMap::new(),
            listeners: HashMap::new(),
            address_handles: HashMap::new(),
            local_gids,
            free: (0..SENDS).collect(),
            waiting: VecDeque::new(),
            sleeps_until: None,
            host: HostProcesses::new(system.own_number()),
            system,
        })
    }

    /// Whether the last query of the GID table had this address.
    fn is_local(&self, gid: Gid) -> bool {
        self.local_gids.iter().any(|(_, own)| *own == gid)
    }

    /// Keeps the requests of a listener that is about to go.
    pub(crate) fn keep_unanswered(&mut self, listener: Listener, service: ServiceId) {
        let Self { host, system, manager, .. } = self;
        host.keep_unanswered(system, manager, (listener, service));
    }
}

/// The objects of an agent's device.
struct Queues {
    qp: QueuePair,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
}

impl Queues {
    /// Creates the objects.
    ///
    /// # Errors
    /// The errno of the device.
    #[inline(never)]
    fn new(device: &Device) -> Result<Box<Self>, Errno> {
        let send_cq = CompletionQueue::polled(device.context, SENDS as u32)?;
        let recv_cq = CompletionQueue::new(device.context, RECEIVES as u32)?;
        let bytes = SLOT * (RECEIVES + SENDS);
        let memory = Memory::new(device.pd, bytes, IBV_ACCESS_LOCAL_WRITE)?;
        let qp = QueuePair::datagrams(
            (device.context, device.pd),
            (&send_cq, &recv_cq),
            (SENDS as u32, RECEIVES as u32),
            vec![memory],
        )?;
        Ok(Box::new(Self { qp, send_cq, recv_cq }))
    }
}

impl Agent {
    /// Creates the QP and starts the thread. Each step has a frame of its own, because the
    /// creation of a QP needs most of a small stack.
    ///
    /// # Errors
    /// The errno of the device or system.
    #[inline(never)]
    pub(crate) fn begin(device: &'static Device) -> Result<Box<Self>, Errno> {
        let queues = Queues::new(device)?;
        let agent = Self::new(device, queues)?;
        agent.connect()?;
        start(device)?;
        Ok(agent)
    }

    /// An agent whose thread and QP have not started.
    ///
    /// # Errors
    /// The errno of the system.
    #[allow(clippy::boxed_local, reason = "the caller's frame stays small")]
    #[inline(never)]
    fn new(device: &'static Device, queues: Box<Queues>) -> Result<Box<Self>, Errno> {
        let system = LocalHost::of(device.context)?;
        let mut config = Config::new(secret_guid(random::number()));
        config.names = Names { prefix: system.own_number(), bits: PROCESS_BITS };
        let wake_fd = descriptors::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)?;
        let state = AgentState::new(config, device.gids(), system);
        let Queues { qp, send_cq, recv_cq } = *queues;
        Ok(Box::new(Self {
            device,
            qp,
            send_cq,
            recv_cq,
            wake_fd,
            ended_fd: state.system.fd(),
            started: Instant::now(),
            state: Mutex::new(state),
        }))
    }

    /// Brings the QP to RTS and joins the group of QP 1.
    #[inline(never)]
    fn connect(&self) -> Result<(), Errno> {
        let mut attr =
            ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: PORT, qkey: QKEY, ..Zeroed::zeroed() };
        let steps = [
            (IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            (IBV_QPS_RTR, IBV_QP_STATE),
            (IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN),
        ];
        for (state, mask) in steps {
            attr.qp_state = state;
            self.qp.modify(attr, mask)?;
            if state == IBV_QPS_INIT {
                for slot in 0..RECEIVES {
                    self.post_receive(slot)?;
                }
            }
        }
        self.qp.attach(ibv_gid { raw: GSI_GROUP })
    }

    fn post_receive(&self, number: usize) -> Result<(), Errno> {
        self.qp.receive(number as u64, Payload::Memory(0, slot(number), SLOT as u32))
    }

    /// The time since the agent was created, which is the manager's clock.
    pub(crate) fn now(&self) -> Time {
        self.started.elapsed()
    }

    /// The locked state: the manager and the tables of ids.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Box<AgentState>> {
        self.state.lock()
    }

    /// Sends pending MADs and dispatches pending events. Wakes the thread if its next deadline is
    /// now earlier.
    pub(crate) fn pump(&self, state: &mut AgentState) {
        self.transmit_and_dispatch(state);
        let due = self.next_deadline(state);
        if due.is_none_or(|due| state.sleeps_until.is_some_and(|until| until <= due)) {
            return;
        }
        state.sleeps_until = due;
        descriptors::add_count(self.wake_fd.as_raw_fd(), 1);
    }

    /// The next deadline of the thread, without an arrival before.
    fn next_deadline(&self, state: &AgentState) -> Option<Time> {
        let again = (!state.waiting.is_empty()).then(|| self.now().saturating_add(RETRY_AFTER));
        [state.manager.poll_timeout(), state.host.next(), again].into_iter().flatten().min()
    }

    /// Sends MADs and dispatches events until none is left: an event may lead to further MADs.
    fn transmit_and_dispatch(&self, state: &mut AgentState) {
        self.send_all(state);
        while let Some(event) = state.manager.poll_event() {
            if let Event::Reply { connection, .. } | Event::Established { connection } = &event {
                self.watch_peer_process(state, *connection);
            }
            crate::core::arrivals::dispatch(self.device, state, event);
            self.send_all(state);
        }
    }

    fn send_all(&self, state: &mut AgentState) {
        self.take_messages(state);
        let mut waiting = mem::take(&mut state.waiting);
        let sent = waiting.iter().take_while(|(peer, mad)| self.send(state, *peer, mad)).count();
        waiting.drain(..sent);
        state.waiting = waiting;
    }

    /// Takes the messages of the manager. Not inlined, so that their copies are not on the stack
    /// while the device sends.
    #[inline(never)]
    fn take_messages(&self, state: &mut AgentState) {
        while let Some(message) = state.manager.poll_transmit() {
            let (peer, mad) = &message;
            // The host of a link-local address is unknown, so its silence says nothing.
            let is_link_local = address::is_link_local(Ipv6Addr::from(peer.remote).into());
            if !is_link_local && !state.is_local(peer.remote) {
                state.host.sent(self.now(), *peer, mad);
            }
            state.waiting.push_back(message);
        }
    }

    /// Watches the local process at the other end of a connection for its end.
    fn watch_peer_process(&self, state: &mut AgentState, connection: Connection) {
        let now = self.now();
        if !state.manager.peer(connection).is_ok_and(|peer| state.is_local(peer.remote)) {
            return;
        }
        let AgentState { host, system, manager, .. } = state;
        for lost in host.connected(now, system, manager, connection) {
            manager.peer_process_died(now, lost);
        }
    }

    /// Sends a MAD. Returns `false` if no buffer is free. A MAD that cannot be sent is dropped; the
    /// manager sends it again after its timeout.
    fn send(&self, state: &mut AgentState, peer: Peer, mad: &[u8; MAD_LEN]) -> bool {
        if state.free.is_empty() {
            let done = self.send_cq.completions();
            state.free.extend(done.iter().map(|wc| wc.wr_id as usize));
        }
        let Some(ah) = self.address_handle(state, peer) else { return true };
        let Some(number) = state.free.pop() else { return false };
        let at = slot(RECEIVES + number);
        let request = SendRequest {
            name: number as u64,
            opcode: IBV_WR_SEND,
            flags: IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
            immediate: 0,
            target: Target::Datagram(&ah, GSI, QKEY),
        };
        let written = self.qp.memory(0).and_then(|memory| memory.write(at, mad));
        let payload = Payload::Memory(0, at, MAD_LEN as u32);
        if written.and_then(|()| self.qp.send(&request, payload)).is_err() {
            state.free.push(number);
        }
        true
    }

    /// The address handle for a peer.
    fn address_handle(&self, state: &mut AgentState, peer: Peer) -> Option<Arc<AddressHandle>> {
        if let Some(known) = state.address_handles.get(&peer) {
            return Some(Arc::clone(known));
        }
        if !state.is_local(peer.local) {
            state.local_gids = self.device.gids();
        }
        let index = state.local_gids.iter().find(|(_, gid)| *gid == peer.local)?.0;
        if state.address_handles.len() >= MOST_HANDLES {
            state.address_handles.clear();
        }
        let attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: peer.remote },
                flow_label: 0,
                sgid_index: u8::try_from(index).ok()?,
                hop_limit: 64,
                traffic_class: 0,
            },
            is_global: 1,
            port_num: PORT,
            ..Zeroed::zeroed()
        };
        let ah = Arc::new(self.device.pd.address_handle(attr).ok()?);
        state.address_handles.insert(peer, Arc::clone(&ah));
        Some(ah)
    }

    /// Processes one received datagram.
    fn receive_datagram(&self, state: &mut AgentState, datagram: &[u8]) {
        let Some((header, mad)) = datagram.split_first_chunk::<GRH>() else { return };
        let Some(mad) = mad.first_chunk::<MAD_LEN>() else { return };
        let Some((remote, local)) = datagram_gids(header) else { return };
        if !state.is_local(local) {
            state.local_gids = self.device.gids();
            if !state.is_local(local) {
                return;
            }
        }
        let from = Peer { remote, local };
        let (now, is_local) = (self.now(), state.is_local(remote));
        let AgentState { host, system, listeners, manager, .. } = state;
        let is_ours = host.receive(now, system, (from, is_local), mad, |service, to| {
            // A server may stop listening after its client has connected, so the manager is asked
            // too.
            let mut all = listeners.values().flatten();
            all.any(|id| id.listens_to(service, to)) || manager.knows(&from, mad)
        });
        if is_ours {
            manager.receive(now, &mut random::number, &from, mad);
        }
    }

    /// Carries out what follows from the time, and from the other processes of the host.
    fn carry_out(&self, state: &mut AgentState, action: HostAction<Arc<Id>>) {
        let now = self.now();
        let manager = &mut state.manager;
        match action {
            HostAction::Answer(from, mad) => {
                manager.receive(now, &mut random::number, &from, &*mad);
            }
            HostAction::EndConnection(connection) => manager.peer_process_died(now, connection),
            HostAction::Disconnect(of) => {
                let names = (of.name, of.remote_name);
                manager.disconnect_for(now, &mut random::number, of.peer, names, of.remote_qpn);
            }
            HostAction::Absent(peer) => {
                // This host may have got the address since then; such an address is reached by
                // shared memory.
                state.local_gids = self.device.gids();
                if !state.is_local(peer.remote) {
                    state.manager.absent(&peer);
                }
            }
            HostAction::Send(one) => {
                if let Err(why) = self.send_request(state, &one.id, one.peer, one.request) {
                    requests::fail(&one.id, why);
                }
            }
            HostAction::Refuse(one) => requests::refuse(&one.id),
        }
    }

    /// Sends the request of `id` to `peer`. Does nothing for an id that was destroyed while its
    /// request waited.
    ///
    /// # Errors
    /// `ENOMEM` the manager has no room for another connection.
    pub(crate) fn send_request(
        &self,
        state: &mut AgentState,
        id: &Arc<Id>,
        peer: Peer,
        request: OutgoingRequest,
    ) -> Result<(), Errno> {
        // The id's lock is held until the connection is stored: a thread that destroys the id finds
        // either no connection or this connection.
        let mut id_state = id.lock();
        if !matches!(id_state.stage, Stage::Connecting(_)) {
            return Ok(());
        }
        let (now, manager) = (self.now(), &mut state.manager);
        let asked = match request {
            OutgoingRequest::Connection(request) => {
                manager.connect(now, &mut random::number, peer, *request)
            }
            OutgoingRequest::Datagrams(request) => {
                let (response, retries) = (requests::RESPONSE, requests::RETRIES);
                manager.send_sidr_request(
                    now,
                    &mut random::number,
                    peer,
                    *request,
                    response,
                    retries,
                )
            }
        };
        let connection = asked.map_err(requests::errno)?;
        id_state.stage = Stage::Connecting(Some(connection));
        state.connections.insert(connection, Arc::clone(id));
        Ok(())
    }

    /// Disconnects all connections at the exit of the process. Peers receive the same message as
    /// from the kernel, and do not wait for answers.
    pub(crate) fn disconnect_all(&self) {
        // A thread that holds the lock longer than the limit will not release it any more.
        let Some(mut state) = self.state.try_lock_for(EXIT_LIMIT) else { return };
        let now = self.now();
        let connections: Vec<_> =
            state.connections.drain().map(|(connection, _)| connection).collect();
        for connection in connections {
            state.manager.destroy(now, connection);
        }
        self.transmit_and_dispatch(&mut state);
    }

    fn run(&self) {
        loop {
            self.take_arrivals();
            let wait = self.handle_deadlines();
            self.recv_cq.arm();
            // A datagram that arrived before the queue was armed raises no event.
            if !self.take_arrivals() {
                self.sleep(wait);
            }
        }
    }

    /// Processes received datagrams. Returns `false` if none had arrived.
    fn take_arrivals(&self) -> bool {
        let mut any = false;
        loop {
            let completed = self.recv_cq.completions();
            if completed.is_empty() {
                return any;
            }
            any = true;
            let mut state = self.lock();
            for wc in completed {
                let (number, len) = (wc.wr_id as usize, (wc.byte_len as usize).min(SLOT));
                if wc.status == IBV_WC_SUCCESS && number < RECEIVES {
                    let mut datagram = [0; SLOT];
                    let bytes = datagram.get_mut(..len).unwrap_or_default();
                    // The slot of a completed receive belongs to the agent until the slot is posted
                    // again.
                    let read =
                        self.qp.memory(0).and_then(|memory| memory.read(slot(number), bytes));
                    if read.is_ok() {
                        self.receive_datagram(&mut state, bytes);
                    }
                }
                // The post fails only on a broken device; no caller exists to report the error to.
                let _broken = self.post_receive(number);
            }
            self.transmit_and_dispatch(&mut state);
        }
    }

    /// Performs the work that is due, and returns the time until the next deadline.
    fn handle_deadlines(&self) -> Option<Duration> {
        let mut state = self.lock();
        let now = self.now();
        let AgentState { host, system, manager, .. } = &mut **state;
        let actions = host.due(now, system, manager);
        for action in actions {
            self.carry_out(&mut state, action);
        }
        state.manager.handle_timeout(now);
        // After the timeouts, which may have ended the last request of an announced service.
        let AgentState { host, manager, .. } = &mut **state;
        host.drop_answered(manager);
        self.transmit_and_dispatch(&mut state);
        state.sleeps_until = self.next_deadline(&state);
        state.sleeps_until.map(|at| at.saturating_sub(self.now()))
    }

    fn sleep(&self, wait: Option<Duration>) {
        // A millisecond more: a thread that wakes too early would poll again and again.
        let limit = wait.map(|wait| wait.saturating_add(Duration::from_millis(1)));
        let events = self.recv_cq.fd();
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let wake_fd = self.wake_fd.as_raw_fd();
        let mut all = [poll(events), poll(wake_fd), poll(self.ended_fd)];
        // After an error, such as EINTR, no entry is ready, and the thread looks around.
        let _count = descriptors::poll(&mut all, limit);
        // `handle_deadlines` looks for ended processes each time, so the third descriptor needs no
        // action.
        let [event, wake, _] = all.map(|one| one.revents != 0);
        if event {
            self.recv_cq.take_event();
        }
        if wake {
            descriptors::take_count(wake_fd);
        }
    }
}

/// An agent is dropped only if its start failed; other agents live as long as their process.
impl Drop for Agent {
    fn drop(&mut self) {
        // The call fails if the QP has not joined the group yet.
        let _never_attached = self.qp.detach(ibv_gid { raw: GSI_GROUP });
    }
}

/// The offset of a slot in the agent's memory.
const fn slot(number: usize) -> u32 {
    (number * SLOT) as u32
}

/// The GUID by which peers distinguish the connections of this process: a random, locally
/// administered EUI-64 that is no group address. The device's own GUID would not do, because any
/// local user can compute it. A forger of requests in the name of this process must guess this
/// number.
const fn secret_guid(random: u64) -> Guid {
    const LOCAL: u64 = 2 << 56;
    const GROUP: u64 = 1 << 56;
    Guid(random & !GROUP | LOCAL)
}

/// Starts the thread of a device whose agent is under construction.
#[inline(never)]
fn start(device: &'static Device) -> Result<(), Errno> {
    process::spawn("fv-rdmacm", || {
        // `agent` waits until the agent is complete.
        if let Ok(agent) = device.agent() {
            agent.run();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_guid_that_nobody_can_compute() {
        let drawn: std::collections::BTreeSet<u64> =
            (0..64).map(|_| secret_guid(random::number()).0).collect();
        assert_eq!(drawn.len(), 64, "each is another one");
        assert!(drawn.iter().all(|guid| guid >> 56 & 3 == 2), "local, and no group");
    }
}
