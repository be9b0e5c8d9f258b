//! CM-01 to CM-08: checks of connections by IP addresses, by the calls of librdmacm. All calls
//! belong to the control path, so one lock suffices. No call of librdmacm and no message is made
//! under the lock.
//!
//! Map of this file: `CONNECTIONS` and its lock; the checks of events, acknowledgements, devices
//! and private data; the calls of the tap.
//! Threads: application threads. `hold` takes the lock for fork(2).

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;

use abi::{
    IBV_QPT_RC, RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_UNREACHABLE, RDMA_PS_TCP, ibv_pd, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    rdma_addrinfo, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space,
};
use cface::lock::Guard;
use cface::shared::StaticMutex;
use layer_tap::argument::CmEventParts;
use layer_tap::{Arg, ConnectionCalls, Next, Returned, names};

use crate::watcher::Validate;

use crate::checks::Id as Check;
use crate::checks::connections::{self, PrivateDataLimit, REJECTION, REPLY, REQUEST};
use crate::checks::finding::Stack;
use crate::patience::persists;
use crate::report::{is_enabled, report};
use crate::stack;
use crate::state::{QPS, context};

/// A listening id.
#[derive(Clone, Copy)]
struct Listening {
    backlog: u64,
    port: u16,
}

/// The record of an id.
struct CmId {
    channel: usize,
    listening: Option<Listening>,
    /// Whether the id came with a connection request.
    from_request: bool,
    /// Whether its request was rejected, or its connection failed.
    failed: bool,
    created_by: Stack,
}

struct Connections {
    ids: BTreeMap<usize, CmId>,
    /// Unacknowledged events by address: the id for which each counts, and its type.
    events: BTreeMap<usize, (usize, rdma_cm_event_type)>,
    /// Number of listening ids.
    listeners: usize,
}

static CONNECTIONS: StaticMutex<Connections> =
    StaticMutex::new(Connections { ids: BTreeMap::new(), events: BTreeMap::new(), listeners: 0 });

/// For a fork: no thread changes the records until the result is dropped.
pub(crate) fn hold() -> Guard {
    CONNECTIONS.hold()
}

impl Connections {
    fn add(&mut self, id: usize, channel: usize, asked: bool, made: Stack) {
        self.ids.insert(
            id,
            CmId { channel, listening: None, from_request: asked, failed: false, created_by: made },
        );
    }

    fn remove(&mut self, id: usize) -> Option<CmId> {
        let id = self.ids.remove(&id)?;
        self.listeners -= usize::from(id.listening.is_some());
        Some(id)
    }

    fn put_back(&mut self, at: usize, id: CmId) {
        self.listeners += usize::from(id.listening.is_some());
        self.ids.insert(at, id);
    }
}

/// Records an id that a call has just returned.
fn add(id: usize, channel: usize, asked: bool) {
    let made = stack::current_stack();
    CONNECTIONS.lock().add(id, channel, asked, made);
}

fn name(id: usize) -> String {
    format!("id {id:#x}")
}

/// CM-01: reports a call that waits until all events of the id are acknowledged.
fn check_acknowledged(call: &str, id: usize) {
    if !is_enabled(Check::Cm01) {
        return;
    }
    let left = || {
        let name = |event: u32| names::cm_event(event).unwrap_or("INTERNAL");
        let known = CONNECTIONS.lock();
        let of_id = known.events.values().filter(|(of, _)| *of == id);
        let events: Vec<_> =
            of_id.map(|(_, event)| format!("RDMA_CM_EVENT_{}", name(*event))).collect();
        (!events.is_empty()).then_some(events)
    };
    let found = persists(left).map(|events| connections::unacknowledged(&events));
    report(call, || name(id), found, None);
}

/// CM-02 and CM-05: reports ids that still use a channel.
fn check_unused(channel: usize) {
    let (mut users, mut left) = (Vec::new(), Vec::new());
    let (mut made, mut asked) = (None, None);
    for (at, id) in CONNECTIONS.lock().ids.iter().filter(|(_, id)| id.channel == channel) {
        if id.from_request && id.failed {
            left.push(name(*at));
            asked = asked.or(Some(("its request was got", id.created_by)));
            continue;
        }
        let mut what = name(*at);
        if let Some(Listening { port, .. }) = id.listening {
            what = format!("{what} (listening on port {port})");
        }
        users.push(what);
        made = made.or(Some(("that id was made", id.created_by)));
    }
    let found = connections::channel_in_use(&users, made, &left, asked);
    report("rdma_destroy_event_channel", || format!("channel {channel:#x}"), found, None);
}

/// The number of events that wait in a channel, as the kernel counts; `None` if unknown.
fn waiting(channel: Arg<'_, rdma_event_channel>) -> Option<u64> {
    let fd = channel.descriptor()?;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let count = text.lines().find_map(|line| line.strip_prefix("eventfd-count:"))?;
    u64::from_str_radix(count.trim(), 16).ok()
}

fn before_event(channel: Arg<'_, rdma_event_channel>) -> u64 {
    let wants = is_enabled(Check::Cm08) && CONNECTIONS.lock().listeners > 0;
    if wants { waiting(channel).unwrap_or(0) } else { 0 }
}

/// Records an event that a call has just returned.
fn record_event(channel: usize, event: &CmEventParts, waiting: u64) {
    let CmEventParts { id, listener, .. } = *event;
    let counts_for = if listener == 0 { id } else { listener };
    let mut backlog = None;
    let made = (event.event == RDMA_CM_EVENT_CONNECT_REQUEST).then(stack::current_stack);
    {
        let mut known = CONNECTIONS.lock();
        known.events.insert(event.at, (counts_for, event.event));
        match event.event {
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                known.add(id, channel, true, made.unwrap_or_default());
                backlog = known.ids.get(&listener).and_then(|id| id.listening);
            }
            RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_REJECTED => {
                if let Some(id) = known.ids.get_mut(&id) {
                    id.failed = true;
                }
            }
            _ => {}
        }
    }
    let found = backlog.and_then(|of: Listening| connections::backlog(waiting, of.backlog));
    report("rdma_get_cm_event", || name(listener), found, None);
}

/// CM-06: reports a QP for an id that has no device.
fn check_device(call: &str, id: Arg<'_, rdma_cm_id>) {
    let Some(known) = id.parts() else { return };
    let found = (known.context == 0).then(connections::no_device);
    report(call, || name(id.at()), found, None);
}

/// CM-04: reports private data that do not fit into the message.
fn check_room(call: &str, id: Arg<'_, rdma_cm_id>, length: u8, room: &PrivateDataLimit) {
    let Some(known) = id.parts() else { return };
    let found = connections::private_data(known.port_space, length, room);
    report(call, || name(id.at()), found, None);
}

/// CM-03, CM-04 and CM-07: checks the parameters of `rdma_connect` and `rdma_accept`.
fn check_connection(
    call: &str,
    at: Arg<'_, rdma_cm_id>,
    param: Arg<'_, rdma_conn_param>,
    room: &PrivateDataLimit,
) {
    let (Some(id), param) = (at.parts(), param.read()) else { return };
    if let Some(param) = param.as_ref().filter(|param| !param.private_data.is_null()) {
        check_room(call, at, param.private_data_len, room);
    }
    if id.port_space != RDMA_PS_TCP {
        return;
    }
    let mut found = Vec::new();
    if id.qp == 0 && param.as_ref().is_none_or(|param| param.qp_num == 0) {
        found.push(connections::no_queue_pair());
    }
    if let (Some(param), Some(device)) = (&param, context(id.context).and_then(|ctx| ctx.device)) {
        let (granted, wanted) = (param.responder_resources, param.initiator_depth);
        let (most_granted, most_wanted) = (device.max_qp_rd_atom, device.max_qp_init_rd_atom);
        let all = "RDMA_MAX_RESP_RES";
        found.extend(connections::resources("responder_resources", granted, most_granted, all));
        let all = "RDMA_MAX_INIT_DEPTH";
        found.extend(connections::resources("initiator_depth", wanted, most_wanted, all));
    }
    if is_enabled(Check::Cm07)
        && let Some(qp) = QPS.get(id.qp)
        && qp.qp_type == IBV_QPT_RC
        && qp.srq.is_none()
        && qp.recv.lock().flights.is_empty()
    {
        found.push(connections::no_receive(&qp.name(), qp.created_by));
    }
    report(call, || name(at.at()), found, None);
}

fn rejected(result: Returned<c_int>, id: usize) -> Returned<c_int> {
    if result.get() == 0
        && let Some(id) = CONNECTIONS.lock().ids.get_mut(&id)
    {
        id.failed = true;
    }
    result
}

impl ConnectionCalls for Validate {
    fn destroy_event_channel<F: FnOnce()>(
        channel: Arg<'_, rdma_event_channel>,
        next: Next<F>,
    ) -> Returned<()> {
        check_unused(channel.at());
        // The memory of these ids may be used otherwise from now on.
        let mut known = CONNECTIONS.lock();
        let gone: Vec<usize> = known
            .ids
            .iter()
            .filter(|(_, id)| id.channel == channel.at())
            .map(|(at, _)| *at)
            .collect();
        for at in gone {
            known.remove(at);
        }
        drop(known);
        next.call()
    }

    // Waits for an event. The thread may be cancelled here, so the function holds nothing to drop.
    fn get_cm_event<F: FnOnce() -> c_int>(
        channel: Arg<'_, rdma_event_channel>,
        event: Arg<'_, *mut rdma_cm_event>,
        next: Next<F>,
    ) -> Returned<c_int> {
        let count = before_event(channel);
        let result = next.call();
        if result.get() == 0
            && let Some(event) = event.event()
        {
            record_event(channel.at(), &event, count);
        }
        result
    }

    fn ack_cm_event<F: FnOnce() -> c_int>(
        event: Arg<'_, rdma_cm_event>,
        next: Next<F>,
    ) -> Returned<c_int> {
        // The entry is removed before the call, because its memory may belong to another event at
        // once.
        CONNECTIONS.lock().events.remove(&event.at());
        next.call()
    }

    fn create_id<F: FnOnce() -> c_int>(
        channel: Arg<'_, rdma_event_channel>,
        id: Arg<'_, *mut rdma_cm_id>,
        _context: Arg<'_, c_void>,
        _ps: rdma_port_space,
        next: Next<F>,
    ) -> Returned<c_int> {
        let result = next.call();
        if result.get() == 0 {
            add(id.stored(), channel.at(), false);
        }
        result
    }

    fn destroy_id<F: FnOnce() -> c_int>(id: Arg<'_, rdma_cm_id>, next: Next<F>) -> Returned<c_int> {
        check_acknowledged("rdma_destroy_id", id.at());
        let known = CONNECTIONS.lock().remove(id.at());
        let result = next.call();
        if let (true, Some(known)) = (result.get() != 0, known) {
            CONNECTIONS.lock().put_back(id.at(), known);
        }
        result
    }

    fn migrate_id<F: FnOnce() -> c_int>(
        id: Arg<'_, rdma_cm_id>,
        channel: Arg<'_, rdma_event_channel>,
        next: Next<F>,
    ) -> Returned<c_int> {
        check_acknowledged("rdma_migrate_id", id.at());
        let result = next.call();
        if result.get() == 0
            && let Some(id) = CONNECTIONS.lock().ids.get_mut(&id.at())
        {
            id.channel = channel.at();
        }
        result
    }

    fn create_ep<F: FnOnce() -> c_int>(
        id: Arg<'_, *mut rdma_cm_id>,
        _res: Arg<'_, rdma_addrinfo>,
        _pd: Arg<'_, ibv_pd>,
        _attr: Arg<'_, ibv_qp_init_attr>,
        next: Next<F>,
    ) -> Returned<c_int> {
        let result = next.call();
        if result.get() == 0 {
            add(id.stored(), 0, false);
        }
        result
    }

    fn destroy_ep<F: FnOnce()>(id: Arg<'_, rdma_cm_id>, next: Next<F>) -> Returned<()> {
        check_acknowledged("rdma_destroy_ep", id.at());
        CONNECTIONS.lock().remove(id.at());
        next.call()
    }

    fn get_request<F: FnOnce() -> c_int>(
        _listener: Arg<'_, rdma_cm_id>,
        id: Arg<'_, *mut rdma_cm_id>,
        next: Next<F>,
    ) -> Returned<c_int> {
        let result = next.call();
        if result.get() == 0 {
            add(id.stored(), 0, true);
        }
        result
    }

    fn create_qp<F: FnOnce() -> c_int>(
        id: Arg<'_, rdma_cm_id>,
        _pd: Arg<'_, ibv_pd>,
        _attr: Arg<'_, ibv_qp_init_attr>,
        next: Next<F>,
    ) -> Returned<c_int> {
        check_device("rdma_create_qp", id);
        next.call()
    }

    fn create_qp_ex<F: FnOnce() -> c_int>(
        id: Arg<'_, rdma_cm_id>,
        _attr: Arg<'_, ibv_qp_init_attr_ex>,
        next: Next<F>,
    ) -> Returned<c_int> {
        check_device("rdma_create_qp_ex", id);
        next.call()
    }

    fn connect<F: FnOnce() -> c_int>(
        id: Arg<'_, rdma_cm_id>,
        param: Arg<'_, rdma_conn_param>,
        next: Next<F>,
    ) -> Returned<c_int> {
        check_connection("rdma_connect", id, param, &REQUEST);
        next.call()
    }

    fn accept<F: FnOnce() -> c_int>(
        id: Arg<'_, rdma_cm_id>,
        param: Arg<'_, rdma_conn_param>,
        next: Next<F>,
    ) -> Returned<c_int> {
        check_connection("rdma_accept", id, param, &REPLY);
        next.call()
    }

    fn listen<F: FnOnce() -> c_int>(
        id: Arg<'_, rdma_cm_id>,
        backlog: c_int,
        next: Next<F>,
    ) -> Returned<c_int> {
        let result = next.call();
        if result.get() == 0 {
            let mut known = CONNECTIONS.lock();
            let known = &mut *known;
            if let Some(record) = known.ids.get_mut(&id.at()) {
                known.listeners += usize::from(record.listening.is_none());
                record.listening = Some(Listening {
                    backlog: connections::backlog_of(backlog),
                    port: id.parts().map_or(0, |id| id.port),
                });
            }
        }
        result
    }

    fn reject<F: FnOnce() -> c_int>(
        id: Arg<'_, rdma_cm_id>,
        _data: Arg<'_, c_void>,
        length: u8,
        next: Next<F>,
    ) -> Returned<c_int> {
        check_room("rdma_reject", id, length, &REJECTION);
        rejected(next.call(), id.at())
    }

    fn reject_ece<F: FnOnce() -> c_int>(
        id: Arg<'_, rdma_cm_id>,
        _data: Arg<'_, c_void>,
        length: u8,
        next: Next<F>,
    ) -> Returned<c_int> {
        check_room("rdma_reject_ece", id, length, &REJECTION);
        rejected(next.call(), id.at())
    }
}
