//! CM-01 to CM-08: checks of connections by IP addresses, by the calls of librdmacm. All calls
//! belong to the control path, so one lock suffices. It is not held during a call of librdmacm or
//! a message.
//! works or while something is told.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::BTreeMap;

use abi::{
    IBV_QPT_RC, RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_UNREACHABLE, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, ferroverbs_cm_calls,
    ibv_pd, ibv_qp_init_attr, ibv_qp_init_attr_ex, rdma_addrinfo, rdma_cm_event,
    rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space,
};
use cface::lock::Guard;
use cface::shared::Shared;
use layer_tap::names;

use crate::checks::Id as Check;
use crate::objects::{context, list};
use crate::report::{Message, emit, wanted};
use crate::stack::{self, Stack};
use crate::state::QPS;

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

static CONNECTIONS: Shared<Connections> =
    Shared::new(Connections { ids: BTreeMap::new(), events: BTreeMap::new(), listeners: 0 });

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
    let Some(events) = crate::cq::persists(left) else { return };
    let text = format!("it waits for the acknowledgement of {}", list(&events));
    let remedy = "call rdma_ack_cm_event for each event that rdma_get_cm_event gave, before the id goes. A CONNECT_REQUEST counts for the id that listens";
    emit(
        &Message {
            id: Check::Cm01,
            call,
            object: name(id),
            text,
            remedy: remedy.into(),
            also: None,
        },
        None,
    );
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
    let call = "rdma_destroy_event_channel";
    let object = format!("channel {channel:#x}");
    if !users.is_empty() {
        let text = format!("these still use it: {}", list(&users));
        let remedy = "rdma_destroy_id, or rdma_migrate_id to another channel, before";
        emit(
            &Message {
                id: Check::Cm02,
                call,
                object: object.clone(),
                text,
                remedy: remedy.into(),
                also: made,
            },
            None,
        );
    }
    if !left.is_empty() {
        let text =
            format!("requests were rejected or failed, and their ids are left: {}", list(&left));
        let remedy = "event->id of RDMA_CM_EVENT_CONNECT_REQUEST is yours: rdma_destroy_id after rdma_reject, and when it fails";
        emit(
            &Message { id: Check::Cm05, call, object, text, remedy: remedy.into(), also: asked },
            None,
        );
    }
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
    if let Some(backlog) = backlog.filter(|backlog| waiting >= *backlog) {
        let text = format!(
            "{waiting} events waited, and the backlog is {backlog}: a request that came meanwhile was refused, or has to come again"
        );
        let remedy = "read the channel more often, or rdma_listen with a larger backlog";
        let (call, object) = ("rdma_get_cm_event", name(listener));
        emit(
            &Message { id: Check::Cm08, call, object, text, remedy: remedy.into(), also: None },
            None,
        );
    }
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
    if known.verbs.is_null() {
        let text = "the id has no device yet".to_owned();
        let remedy = "wait for RDMA_CM_EVENT_ADDR_RESOLVED after rdma_resolve_addr, or rdma_bind_addr to an address of a device";
        let object = name(id as usize);
        emit(
            &Message { id: Check::Cm06, call, object, text, remedy: remedy.into(), also: None },
            None,
        );
    }
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

/// Bytes of private data in a message, for connections and for datagram services. librdmacm's own
/// header uses 36 bytes of a request.
struct PrivateDataLimit {
    message: &'static str,
    connections: u8,
    datagrams: u8,
}
const ASK: PrivateDataLimit =
    PrivateDataLimit { message: "a request", connections: 56, datagrams: 180 };
const GRANT: PrivateDataLimit =
    PrivateDataLimit { message: "a reply", connections: 196, datagrams: 136 };
const REJECT: PrivateDataLimit =
    PrivateDataLimit { message: "a rejection", connections: 148, datagrams: 136 };

/// CM-04: reports private data that do not fit into the message.
fn check_room(call: &str, id: *const rdma_cm_id, length: u8, room: &PrivateDataLimit) {
    // SAFETY: the caller's id is NULL or live.
    let Some(known) = (unsafe { id.as_ref() }) else { return };
    let most = match known.ps {
        RDMA_PS_TCP => room.connections,
        RDMA_PS_UDP | RDMA_PS_IPOIB => room.datagrams,
        _ => return,
    };
    if length > most {
        let text =
            format!("private_data_len {length} > {most}, what {} has room for", room.message);
        let remedy = format!("send at most {most} bytes with it, and the rest by the connection");
        let object = name(id as usize);
        emit(&Message { id: Check::Cm04, call, object, text, remedy, also: None }, None);
    }
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
    let object = || name(at as usize);
    let wrong = |text: String, remedy: &str| {
        let (id, remedy) = (Check::Cm03, remedy.to_owned());
        emit(&Message { id, call, object: object(), text, remedy, also: None }, None);
    };
    if id.qp.is_null() && param.is_none_or(|param| param.qp_num == 0) {
        wrong(
            "the id has no queue pair, and conn_param names none".into(),
            "rdma_create_qp before, or set conn_param.qp_num to that of a queue pair of your own",
        );
    }
    if let (Some(param), Some(device)) = (param, context(id.verbs).and_then(|ctx| ctx.device)) {
        // 255 means the device's limit (RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH).
        for (member, value, most, all) in [
            (
                "responder_resources",
                param.responder_resources,
                device.max_qp_rd_atom,
                "RDMA_MAX_RESP_RES",
            ),
            (
                "initiator_depth",
                param.initiator_depth,
                device.max_qp_init_rd_atom,
                "RDMA_MAX_INIT_DEPTH",
            ),
        ] {
            if value != u8::MAX && c_int::from(value) > most {
                wrong(
                    format!("{member} {value} > {most}, what the device can"),
                    &format!("ask for less, or for {all}"),
                );
            }
        }
    }
    if wanted(Check::Cm07)
        && let Some(qp) = QPS.get(id.qp as usize)
        && qp.kind == IBV_QPT_RC
        && qp.srq.is_none()
        && qp.recv.lock().flights.is_empty()
    {
        let text = format!("{} has no receive posted", qp.name());
        let remedy =
            "post receives between rdma_create_qp and this call: the peer may send at once";
        let also = Some(("that QP was created", qp.made));
        emit(
            &Message { id: Check::Cm07, call, object: object(), text, remedy: remedy.into(), also },
            None,
        );
    }
}

unsafe extern "C" fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        check_connection("rdma_connect", id, param, &ASK);
        next!(connect)(id, param)
    }
}

unsafe extern "C" fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        check_connection("rdma_accept", id, param, &GRANT);
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
            // 1024 is the kernel's limit and librdmacm's.
            let most = u64::try_from(backlog).unwrap_or(0);
            id.listening = Some(if most == 0 { 1024 } else { most.min(1024) });
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
    check_room("rdma_reject", id, length, &REJECT);
    // SAFETY: the caller's arguments, passed on.
    rejected(unsafe { next!(reject)(id, data, length) }, id as usize)
}

unsafe extern "C" fn reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    check_room("rdma_reject_ece", id, length, &REJECT);
    // SAFETY: the caller's arguments, passed on.
    rejected(unsafe { next!(reject_ece)(id, data, length) }, id as usize)
}
