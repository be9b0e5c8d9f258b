//! CM-01 to CM-08: checks of connections by IP addresses, by the calls of librdmacm. All calls
//! belong to the control path, so one lock suffices. No call of librdmacm and no message is made
//! under the lock.
//!
//! Map of this file: the calls below the layer; `CONNECTIONS` and its lock; `attach`; the checks of
//! events, acknowledgements, devices and private data; the layer's versions of the calls; tests.
//! Threads: application threads. `hold` takes the lock for fork(2).

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::BTreeMap;

use abi::{
    IBV_QPT_RC, RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_UNREACHABLE, RDMA_PS_TCP, ferroverbs_cm_calls, ibv_pd, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, rdma_addrinfo, rdma_cm_event, rdma_cm_event_type, rdma_cm_id,
    rdma_conn_param, rdma_event_channel, rdma_port_space,
};
use cface::lock::Guard;
use cface::shared::StaticMutex;
use layer_tap::names;

use crate::checks::Id as Check;
use crate::checks::connections::{self, PrivateDataLimit, REJECTION, REPLY, REQUEST};
use crate::checks::finding::Stack;
use crate::patience::persists;
use crate::report::{report, wanted};
use crate::stack;
use crate::state::{QPS, context};

/// The calls beneath this layer; NULL before `attach`.
static NEXT: AtomicPtr<ferroverbs_cm_calls> = AtomicPtr::new(core::ptr::null_mut());

/// The entry `$name` of the calls beneath this layer.
macro_rules! next {
    ($name:ident) => {
        layer_tap::beneath!(NEXT.load(Ordering::Acquire), $name)
    };
}

/// The record of an id.
struct CmId {
    channel: usize,
    /// The backlog of a listening id.
    listening: Option<u64>,
    /// Whether the id came with a connection request.
    asked: bool,
    /// Whether its request was rejected, or its connection failed.
    failed: bool,
    made: Stack,
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

/// Inserts the layer's functions into the chain of calls.
///
/// # Safety
/// As for `ferroverbs_cm_layer.attach`.
pub(crate) unsafe fn attach(next: *const ferroverbs_cm_calls, mine: *mut ferroverbs_cm_calls) {
    NEXT.store(next.cast_mut(), Ordering::Release);
    // SAFETY: `mine` is the chain's table for this layer, writable during `attach`.
    let mine = unsafe { &mut *mine };
    mine.destroy_event_channel = Some(destroy_event_channel);
    mine.get_cm_event = Some(get_cm_event);
    mine.ack_cm_event = Some(ack_cm_event);
    mine.create_id = Some(create_id);
    mine.destroy_id = Some(destroy_id);
    mine.migrate_id = Some(migrate_id);
    mine.create_ep = Some(create_ep);
    mine.destroy_ep = Some(destroy_ep);
    mine.create_qp = Some(create_qp);
    mine.create_qp_ex = Some(create_qp_ex);
    mine.connect = Some(connect);
    mine.listen = Some(listen);
    mine.get_request = Some(get_request);
    mine.accept = Some(accept);
    mine.reject = Some(reject);
    mine.reject_ece = Some(reject_ece);
}

impl Connections {
    fn add(&mut self, id: usize, channel: usize, asked: bool, made: Stack) {
        self.ids.insert(id, CmId { channel, listening: None, asked, failed: false, made });
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
    let made = stack::here();
    CONNECTIONS.lock().add(id, channel, asked, made);
}

fn name(id: usize) -> String {
    format!("id {id:#x}")
}

/// The port to which an id is bound, as in `rdma_get_src_port(3)`.
///
/// # Safety
/// `id` is live.
unsafe fn port(id: *const rdma_cm_id) -> u16 {
    // SAFETY: a socket address begins with its family, and both families have the port next.
    unsafe {
        let bytes: *const [u8; 4] = (&raw const (*id).route.addr.src_storage).cast();
        let [_, _, high, low] = bytes.read();
        u16::from_be_bytes([high, low])
    }
}

/// CM-01: reports a call that waits until all events of the id are acknowledged.
fn check_acknowledged(call: &str, id: usize) {
    if !wanted(Check::Cm01) {
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
        if id.asked && id.failed {
            left.push(name(*at));
            asked = asked.or(Some(("its request was got", id.made)));
            continue;
        }
        let mut what = name(*at);
        if id.listening.is_some() {
            // SAFETY: a recorded id is not destroyed.
            let port = unsafe { port(core::ptr::with_exposed_provenance(*at)) };
            what = format!("{what} (listening on port {port})");
        }
        users.push(what);
        made = made.or(Some(("that id was made", id.made)));
    }
    let found = connections::channel_in_use(&users, made, &left, asked);
    report("rdma_destroy_event_channel", || format!("channel {channel:#x}"), found, None);
}

unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    check_unused(channel as usize);
    // The memory of these ids may be used otherwise from now on.
    let mut known = CONNECTIONS.lock();
    let gone: Vec<usize> = known
        .ids
        .iter()
        .filter(|(_, id)| id.channel == channel as usize)
        .map(|(at, _)| *at)
        .collect();
    for at in gone {
        known.remove(at);
    }
    drop(known);
    // SAFETY: the caller's argument, passed on.
    unsafe { next!(destroy_event_channel)(channel) }
}

/// The number of events that wait in a channel, as the kernel counts; `None` if unknown.
fn waiting(channel: *const rdma_event_channel) -> Option<u64> {
    // SAFETY: the caller's channel is live.
    let fd = unsafe { channel.as_ref()? }.fd;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let count = text.lines().find_map(|line| line.strip_prefix("eventfd-count:"))?;
    u64::from_str_radix(count.trim(), 16).ok()
}

/// Waits for an event. The thread may be cancelled here, so the function holds nothing to drop.
unsafe extern "C-unwind" fn get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let count = before_event(channel);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { next!(get_cm_event)(channel, event) };
    if result == 0 {
        // SAFETY: the call has just returned the event.
        unsafe { got(channel as usize, *event, count) };
    }
    result
}

fn before_event(channel: *const rdma_event_channel) -> u64 {
    let wants = wanted(Check::Cm08) && CONNECTIONS.lock().listeners > 0;
    if wants { waiting(channel).unwrap_or(0) } else { 0 }
}

/// # Safety
/// `at` is an event that a call has just returned.
unsafe fn got(channel: usize, at: *const rdma_cm_event, waiting: u64) {
    // SAFETY: per the caller.
    let event = unsafe { &*at };
    let (id, listener) = (event.id as usize, event.listen_id as usize);
    let counts_for = if listener == 0 { id } else { listener };
    let mut backlog = None;
    let made = (event.event == RDMA_CM_EVENT_CONNECT_REQUEST).then(stack::here);
    {
        let mut known = CONNECTIONS.lock();
        known.events.insert(at as usize, (counts_for, event.event));
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
    let found = backlog.and_then(|backlog| connections::backlog(waiting, backlog));
    report("rdma_get_cm_event", || name(listener), found, None);
}

unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // The entry is removed before the call, because its memory may belong to another event at
    // once.
    CONNECTIONS.lock().events.remove(&(event as usize));
    // SAFETY: the caller's argument, passed on.
    unsafe { next!(ack_cm_event)(event) }
}

unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    of: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { next!(create_id)(channel, id, of, ps) };
    if result == 0 {
        // SAFETY: a successful call has stored the id.
        add(unsafe { *id } as usize, channel as usize, false);
    }
    result
}

unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    check_acknowledged("rdma_destroy_id", id as usize);
    let known = CONNECTIONS.lock().remove(id as usize);
    // SAFETY: the caller's argument, passed on.
    let result = unsafe { next!(destroy_id)(id) };
    if let (true, Some(known)) = (result != 0, known) {
        CONNECTIONS.lock().put_back(id as usize, known);
    }
    result
}

unsafe extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    check_acknowledged("rdma_migrate_id", id as usize);
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { next!(migrate_id)(id, channel) };
    if result == 0
        && let Some(id) = CONNECTIONS.lock().ids.get_mut(&(id as usize))
    {
        id.channel = channel as usize;
    }
    result
}

unsafe extern "C" fn create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { next!(create_ep)(id, res, pd, attr) };
    if result == 0 {
        // SAFETY: a successful call has stored the id.
        add(unsafe { *id } as usize, 0, false);
    }
    result
}

unsafe extern "C" fn destroy_ep(id: *mut rdma_cm_id) {
    check_acknowledged("rdma_destroy_ep", id as usize);
    CONNECTIONS.lock().remove(id as usize);
    // SAFETY: the caller's argument, passed on.
    unsafe { next!(destroy_ep)(id) }
}

unsafe extern "C" fn get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { next!(get_request)(listener, id) };
    if result == 0 {
        // SAFETY: a successful call has stored the id.
        add(unsafe { *id } as usize, 0, true);
    }
    result
}

/// CM-06: reports a QP for an id that has no device.
fn check_device(call: &str, id: *const rdma_cm_id) {
    // SAFETY: the caller's id is NULL or live.
    let Some(known) = (unsafe { id.as_ref() }) else { return };
    let found = known.verbs.is_null().then(connections::no_device);
    report(call, || name(id as usize), found, None);
}

unsafe extern "C" fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    check_device("rdma_create_qp", id);
    // SAFETY: the caller's arguments, passed on.
    unsafe { next!(create_qp)(id, pd, attr) }
}

unsafe extern "C" fn create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    check_device("rdma_create_qp_ex", id);
    // SAFETY: the caller's arguments, passed on.
    unsafe { next!(create_qp_ex)(id, attr) }
}

/// CM-04: reports private data that do not fit into the message.
fn check_room(call: &str, id: *const rdma_cm_id, length: u8, room: &PrivateDataLimit) {
    // SAFETY: the caller's id is NULL or live.
    let Some(known) = (unsafe { id.as_ref() }) else { return };
    let found = connections::private_data(known.ps, length, room);
    report(call, || name(id as usize), found, None);
}

/// CM-03, CM-04 and CM-07: checks the parameters of `rdma_connect` and `rdma_accept`.
///
/// # Safety
/// `id` is NULL or live, `param` NULL or readable.
unsafe fn check_connection(
    call: &str,
    at: *const rdma_cm_id,
    param: *const rdma_conn_param,
    room: &PrivateDataLimit,
) {
    // SAFETY: per the caller.
    let (Some(id), param) = (unsafe { at.as_ref() }, unsafe { param.as_ref() }) else { return };
    if let Some(param) = param.filter(|param| !param.private_data.is_null()) {
        check_room(call, at, param.private_data_len, room);
    }
    if id.ps != RDMA_PS_TCP {
        return;
    }
    let mut found = Vec::new();
    if id.qp.is_null() && param.is_none_or(|param| param.qp_num == 0) {
        found.push(connections::no_queue_pair());
    }
    if let (Some(param), Some(device)) =
        (param, context(id.verbs as usize).and_then(|ctx| ctx.device))
    {
        let (granted, wanted) = (param.responder_resources, param.initiator_depth);
        let (most_granted, most_wanted) = (device.max_qp_rd_atom, device.max_qp_init_rd_atom);
        let all = "RDMA_MAX_RESP_RES";
        found.extend(connections::resources("responder_resources", granted, most_granted, all));
        let all = "RDMA_MAX_INIT_DEPTH";
        found.extend(connections::resources("initiator_depth", wanted, most_wanted, all));
    }
    if wanted(Check::Cm07)
        && let Some(qp) = QPS.get(id.qp as usize)
        && qp.kind == IBV_QPT_RC
        && qp.srq.is_none()
        && qp.recv.lock().flights.is_empty()
    {
        found.push(connections::no_receive(&qp.name(), qp.made));
    }
    report(call, || name(at as usize), found, None);
}

unsafe extern "C" fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        check_connection("rdma_connect", id, param, &REQUEST);
        next!(connect)(id, param)
    }
}

unsafe extern "C" fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        check_connection("rdma_accept", id, param, &REPLY);
        next!(accept)(id, param)
    }
}

unsafe extern "C" fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { next!(listen)(id, backlog) };
    if result == 0 {
        let mut known = CONNECTIONS.lock();
        let known = &mut *known;
        if let Some(id) = known.ids.get_mut(&(id as usize)) {
            known.listeners += usize::from(id.listening.is_none());
            id.listening = Some(connections::backlog_of(backlog));
        }
    }
    result
}

fn rejected(result: c_int, id: usize) -> c_int {
    if result == 0
        && let Some(id) = CONNECTIONS.lock().ids.get_mut(&id)
    {
        id.failed = true;
    }
    result
}

unsafe extern "C" fn reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    check_room("rdma_reject", id, length, &REJECTION);
    // SAFETY: the caller's arguments, passed on.
    rejected(unsafe { next!(reject)(id, data, length) }, id as usize)
}

unsafe extern "C" fn reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    check_room("rdma_reject_ece", id, length, &REJECTION);
    // SAFETY: the caller's arguments, passed on.
    rejected(unsafe { next!(reject_ece)(id, data, length) }, id as usize)
}
