//! SRD over reliable connections: a QP of the program makes a connection to each QP that it sends
//! to, at the first request, and takes connections of QPs that send to it.
//!
//! A connection has one direction. Its requests go through an RC QP of the sender to an RC QP of
//! the receiver, whose receives are in one shared receive queue. A request that fails ends its
//! connection, and the adapter executes none of the later requests. Those requests go on over a new
//! connection, because an error of SRD concerns one request.
//!
//! Map of this file: `Srd` with its states; requests; handshakes; completions; errors. All
//! functions run under the lock of the emulated context.
#![forbid(unsafe_code)]

use super::handshake::{self, Body, Message};
use super::numbers::{adapter_number, vendor_number};
use super::objects::{Ah, Buffers, Cq, Pd, Qp, SendRequest, Srq};
use super::qp::{Done, Sender, change_of};
use super::remote::{Local, address_of, exists};
use super::requests::{
    HEADER, MAX_INLINE, MAX_SEGMENTS, Outstanding, PostedReceive, Purpose, Request, Segments,
    is_full_queue, refused, source_gid, status_of,
};
use abi::*;
use emulated_commands::carrier::Change;
use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::{Capabilities, Status};
use soft_semantics::modify::{self, Limits, Step};
use soft_semantics::state::{QpState, QpType};
use soft_sys::Errno;
use soft_sys::unguessable::Unguessable;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages of handshakes that a QP receives and sends at a time. More are lost, and repeated.
const HANDSHAKES: usize = 64;
const BUFFER: usize = HEADER + handshake::LEN;
/// The pause after the first request for a connection, which doubles up to [`MOST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MOST_PAUSE: Duration = Duration::from_millis(640);
/// Requests for a connection: about six seconds.
const TRIES: u32 = 14;
/// READs in flight on a connection.
const READS: u8 = 16;
/// `rnr_retry` without end.
const RETRY_FOREVER: u8 = 7;

/// A remote QP: its GID and its vendor's number.
pub(super) type Peer = ([u8; 16], u16);

/// Names a connection: the remote QP, and the Q_Key of the requests. A wrong Q_Key therefore fails
/// the requests that have it, and no others.
type Route = (Peer, u32);

/// A request in flight, and its connection.
#[derive(Debug)]
pub(super) struct InFlight {
    request: Request,
    route: Route,
}

/// The state of an SRD QP.
#[derive(Debug)]
pub(super) struct Srd {
    state: QpState,
    qkey: u32,
    rnr_retry: u8,
    capabilities: Capabilities,
    outgoing: BTreeMap<Route, Outgoing>,
    incoming: BTreeMap<Peer, Incoming>,
    /// The peers of incoming connections by the numbers of their RC QPs here.
    peers: BTreeMap<u32, Peer>,
    /// The receives of the program; None before the first one, and after an error.
    receives: Option<Arc<Srq>>,
    /// Receives datagrams of handshakes; its number is that of the SRD QP.
    control: Qp,
    buffers: Buffers<BUFFER>,
    cq: Arc<Cq>,
    outstanding: Outstanding<InFlight>,
    pending: Pending,
    tokens: Unguessable,
}

/// A connection to a QP.
#[derive(Debug)]
struct Outgoing {
    token: u64,
    qp: Qp,
    ah: Arc<Ah>,
    phase: Phase,
    /// Requests that are not posted yet.
    waiting: VecDeque<Request>,
    /// Requests of the beginning of `waiting` that the RC QP gave back.
    requeued: usize,
    /// Requests that the RC QP has.
    in_flight: usize,
}

/// The number of requests of the program without a completion: posted, or waiting for a connection.
#[derive(Debug, Default)]
struct Pending(usize);

impl Pending {
    /// Completes a request.
    fn end(&mut self, request: &Request, status: Status, done: &mut Done<'_>) {
        self.0 = self.0.saturating_sub(1);
        done.complete_send(request, status);
    }
}

#[derive(Debug)]
enum Phase {
    /// Asked for the connection `tries` times, and asks again at `at`.
    Connecting { tries: u32, retry_at: Instant },
    /// Requests are posted.
    Open,
    /// A request failed. The rest fail with the status, or go on over a new connection.
    Broken(Option<Status>),
}

/// A connection of a QP that sends here.
#[derive(Debug)]
struct Incoming {
    token: u64,
    qp: Qp,
    ah: Arc<Ah>,
}

impl Srd {
    pub(super) fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, sizes: &Capabilities) -> Result<Self, Errno> {
        let cap = ibv_qp_cap {
            max_send_wr: HANDSHAKES as u32,
            max_recv_wr: HANDSHAKES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: handshake::LEN as u32,
        };
        let control = Qp::new(IBV_QPT_UD, pd, cq, None, cap, true)?;
        let mut attr: ibv_qp_attr = Zeroed::zeroed();
        attr.port_num = 1;
        attr.qkey = handshake::QKEY;
        attr.qp_state = IBV_QPS_INIT;
        control.modify(&attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)?;
        attr.qp_state = IBV_QPS_RTR;
        control.modify(&attr, IBV_QP_STATE)?;
        attr.qp_state = IBV_QPS_RTS;
        control.modify(&attr, IBV_QP_STATE | IBV_QP_SQ_PSN)?;
        let srd = Self {
            state: QpState::Reset,
            qkey: 0,
            rnr_retry: RETRY_FOREVER,
            capabilities: *sizes,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            peers: BTreeMap::new(),
            receives: None,
            control,
            buffers: Buffers::new(pd, HANDSHAKES)?,
            cq: Arc::clone(cq),
            outstanding: Outstanding::new(sizes.max_send_wr, sizes.max_recv_wr),
            pending: Pending::default(),
            tokens: Unguessable::new(),
        };
        for buffer in 0..srd.buffers.count() {
            srd.post_buffer(buffer)?;
        }
        Ok(srd)
    }

    /// Completions that the QP needs room for, besides those of requests and receives.
    pub(super) const fn extra_completions() -> u32 {
        2 * HANDSHAKES as u32
    }

    /// The number in the adapter that stands for the QP.
    pub(super) fn number(&self) -> u32 {
        self.control.number()
    }

    fn post_buffer(&self, buffer: usize) -> Result<(), Errno> {
        let segment = self.buffers.segment(buffer).ok_or(Errno::EINVAL)?;
        self.control.post_recv(Purpose::handshake_receive(buffer), &mut [segment])
    }

    /// Changes the QP. The rules are those of a UD QP, with retries of receivers that are not
    /// ready.
    ///
    /// # Errors
    /// Of ibv_modify_qp(3).
    pub(super) fn modify(&mut self, change: &Change, done: &mut Done<'_>) -> Result<(), Refusal> {
        let attr = change_of(change);
        let mask = change.mask & !IBV_QP_RNR_RETRY;
        let limits = Limits { max_rd_atomic: 0, max_mtu: IBV_MTU_4096 };
        let changes = modify::modify(QpType::Ud, self.state, &attr, mask, &limits)
            .map_err(|_| Refusal::Invalid)?;
        if change.mask & IBV_QP_RNR_RETRY != 0 {
            if change.rnr_retry > RETRY_FOREVER {
                return Err(Refusal::Invalid);
            }
            self.rnr_retry = change.rnr_retry;
        }
        if mask & IBV_QP_QKEY != 0 {
            self.qkey = change.qkey;
        }
        match changes.step {
            Step::Reset => {
                self.drop_connections();
                self.outstanding.take_all();
                self.pending = Pending::default();
                self.rnr_retry = RETRY_FOREVER;
            }
            Step::Fail { .. } => self.flush(done),
            _ => {}
        }
        if mask & IBV_QP_STATE != 0 {
            self.state = QpState::from_raw(attr.qp_state).ok_or(Refusal::Invalid)?;
        }
        Ok(())
    }

    /// Ends all connections, and with them the requests and receives that the adapter has.
    fn drop_connections(&mut self) {
        self.outgoing.clear();
        for (peer, from) in &self.incoming {
            let message = Message { token: from.token, body: Body::Closed };
            send_handshake(&self.control, &from.ah, peer.1, message);
        }
        self.incoming.clear();
        self.peers.clear();
        self.receives = None;
    }

    /// Completes all requests and receives as flushed.
    fn flush(&mut self, done: &mut Done<'_>) {
        let waiting: Vec<Request> =
            self.outgoing.values_mut().flat_map(|to| to.waiting.drain(..)).collect();
        self.drop_connections();
        let (sends, receives) = self.outstanding.take_all();
        for request in sends.into_iter().map(|send| send.request).chain(waiting) {
            self.pending.end(&request, Status::Flushed, done);
        }
        for receive in receives {
            done.failed_receive(receive.id, Status::Flushed);
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The result of a receive that the adapter refuses.
    pub(super) fn receive(&mut self, id: u64, mut segments: Segments) -> Result<(), Status> {
        let wr_id = self.outstanding.receive_id()?;
        let queue = self.receive_queue().map_err(refused)?;
        queue.post(wr_id, &mut segments).map_err(refused)?;
        self.outstanding.add_receive(wr_id, PostedReceive { id, segments });
        Ok(())
    }

    fn receive_queue(&mut self) -> Result<Arc<Srq>, Errno> {
        if let Some(queue) = &self.receives {
            return Ok(Arc::clone(queue));
        }
        let size = self.capabilities.max_recv_wr.max(1);
        let queue = Srq::new(self.control.pd(), size, MAX_SEGMENTS as u32)?;
        self.receives = Some(Arc::clone(&queue));
        Ok(queue)
    }

    /// Begins a request to `number` at the address `ah`.
    ///
    /// # Errors
    /// The result, if it is known at once.
    pub(super) fn send(
        &mut self,
        request: Request,
        to: ([u8; 16], &Arc<Ah>),
        number: u16,
        qkey: u32,
        local: &Local,
        done: &mut Done<'_>,
    ) -> Result<(), Status> {
        let (gid, ah) = to;
        let route = ((gid, number), qkey);
        if self.pending.0 >= self.capabilities.max_send_wr as usize {
            return Err(Status::Malformed);
        }
        match self.outgoing.get_mut(&route) {
            Some(known) => known.waiting.push_back(request),
            None => {
                if !exists(local, ah, number) {
                    return Err(Status::NoRemoteQp);
                }
                let mut outgoing = self.connection(ah).map_err(|_| Status::Unreachable)?;
                outgoing.waiting.push_back(request);
                self.outgoing.insert(route, outgoing);
            }
        }
        self.pending.0 += 1;
        self.post_waiting(route, done);
        Ok(())
    }

    /// A connection that is not asked for yet.
    fn connection(&mut self, ah: &Arc<Ah>) -> Result<Outgoing, Errno> {
        let cap = ibv_qp_cap {
            max_send_wr: self.capabilities.max_send_wr.max(1),
            max_recv_wr: 0,
            max_send_sge: MAX_SEGMENTS as u32,
            max_recv_sge: 0,
            max_inline_data: MAX_INLINE,
        };
        let qp = Qp::new(IBV_QPT_RC, self.control.pd(), &self.cq, None, cap, false)?;
        initialise(&qp, 0)?;
        let phase = Phase::Connecting { tries: 0, retry_at: Instant::now() };
        let token = (0..4).fold(0, |token, _| token << 16 | u64::from(self.tokens.next_number()));
        Ok(Outgoing {
            token,
            qp,
            ah: Arc::clone(ah),
            phase,
            waiting: VecDeque::new(),
            requeued: 0,
            in_flight: 0,
        })
    }

    /// Posts what waits for an open connection. A full queue of the adapter leaves requests waiting
    /// for the next completion. A request that the adapter refuses for another reason fails.
    fn post_waiting(&mut self, route: Route, done: &mut Done<'_>) {
        let Some(to) = self.outgoing.get_mut(&route) else { return };
        while matches!(to.phase, Phase::Open)
            && let Some(request) = to.waiting.pop_front()
        {
            let posted = self.outstanding.send_id().map_err(|_| Errno::ENOMEM);
            match posted.and_then(|id| request.post(&to.qp, id, None).map(|()| id)) {
                Ok(id) => {
                    to.in_flight += 1;
                    self.outstanding.add_send(id, InFlight { request, route });
                }
                Err(errno) if is_full_queue(errno) && to.in_flight > 0 => {
                    to.waiting.push_front(request);
                    return;
                }
                Err(errno) => self.pending.end(&request, refused(errno), done),
            }
        }
    }

    /// Asks again for connections whose answer is missing. Returns the time of the next look.
    pub(super) fn repeat_handshakes(
        &mut self,
        local: &Local,
        done: &mut Done<'_>,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut failed = vec![];
        let mut next: Option<Instant> = None;
        for (route, to) in &mut self.outgoing {
            let (peer, qkey) = *route;
            let Phase::Connecting { tries, retry_at: at } = &mut to.phase else { continue };
            if *at <= now {
                if *tries == TRIES {
                    failed.push((*route, Status::Unresponsive));
                    continue;
                }
                if *tries > 0 && !exists(local, &to.ah, peer.1) {
                    failed.push((*route, Status::NoRemoteQp));
                    continue;
                }
                let body = Body::Request { qpn: to.qp.number(), qkey };
                let message = Message { token: to.token, body };
                send_handshake(&self.control, &to.ah, peer.1, message);
                *at = now + (FIRST_PAUSE * (1 << *tries)).min(MOST_PAUSE);
                *tries += 1;
            }
            next = Some(next.map_or(*at, |next| next.min(*at)));
        }
        for (route, status) in failed {
            self.give_up(route, status, done);
        }
        next
    }

    /// Fails all that waits for a connection which cannot be made.
    fn give_up(&mut self, route: Route, status: Status, done: &mut Done<'_>) {
        let Some(to) = self.outgoing.remove(&route) else { return };
        for request in &to.waiting {
            self.pending.end(request, status, done);
        }
    }

    /// The connection to `peer` with a token.
    fn route_of(&self, peer: Peer, token: u64) -> Option<Route> {
        let mut routes = self.outgoing.range((peer, 0)..=(peer, u32::MAX));
        routes.find(|(_, to)| to.token == token).map(|(route, _)| *route)
    }

    /// Handles a completion of the adapter.
    pub(super) fn complete(&mut self, wc: &ibv_wc, local: &Local, done: &mut Done<'_>) {
        match Purpose::of(wc.wr_id) {
            Purpose::Send => self.handle_sent(wc, done),
            Purpose::Receive => self.received(wc, done),
            Purpose::HandshakeReceive(buffer) if wc.status == IBV_WC_SUCCESS => {
                self.handle_datagram(buffer, wc, local, done);
                // Without success the QP is being destroyed.
                let _ = self.post_buffer(buffer);
            }
            Purpose::HandshakeReceive(_) | Purpose::HandshakeSend => {}
        }
    }

    fn handle_sent(&mut self, wc: &ibv_wc, done: &mut Done<'_>) {
        let Some(InFlight { request, route }) = self.outstanding.take_send(wc.wr_id) else {
            return;
        };
        let status = status_of(wc.status);
        let Some(to) = self.outgoing.get_mut(&route) else {
            self.pending.end(&request, status, done);
            return;
        };
        to.in_flight = to.in_flight.saturating_sub(1);
        match (status, &to.phase) {
            (Status::Success, _) => self.pending.end(&request, status, done),
            (Status::Flushed, Phase::Broken(Some(fate))) => {
                self.pending.end(&request, *fate, done);
            }
            // Not executed, as all requests behind one that failed.
            (Status::Flushed, _) => {
                to.waiting.insert(to.requeued.min(to.waiting.len()), request);
                to.requeued += 1;
            }
            (error, _) => {
                let fate = (error == Status::Unresponsive).then_some(error);
                to.phase = Phase::Broken(fate);
                self.pending.end(&request, error, done);
            }
        }
        self.post_waiting(route, done);
        self.renew(route, done);
    }

    /// Replaces a connection that failed, when its last request has come back.
    fn renew(&mut self, route: Route, done: &mut Done<'_>) {
        let is_over = |to: &Outgoing| matches!(to.phase, Phase::Broken(_)) && to.in_flight == 0;
        if !self.outgoing.get(&route).is_some_and(is_over) {
            return;
        }
        let Some(Outgoing { ah, waiting, .. }) = self.outgoing.remove(&route) else { return };
        if waiting.is_empty() {
            return;
        }
        match self.connection(&ah) {
            Ok(outgoing) => {
                self.outgoing.insert(route, Outgoing { waiting, ..outgoing });
            }
            Err(_) => {
                for request in &waiting {
                    self.pending.end(request, Status::Unreachable, done);
                }
            }
        }
    }

    fn received(&mut self, wc: &ibv_wc, done: &mut Done<'_>) {
        let Some(receive) = self.outstanding.take_receive(wc.wr_id) else { return };
        let sender = self.peers.get(&wc.qp_num).map(|&(gid, number)| Sender { gid, number });
        done.received(receive.id, wc, wc.byte_len, sender);
    }

    /// A datagram of a handshake has arrived. What is no message is dropped.
    fn handle_datagram(&mut self, buffer: usize, wc: &ibv_wc, local: &Local, done: &mut Done<'_>) {
        let Some(bytes) = self.buffers.read(buffer) else { return };
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER>() else { return };
        let len = (wc.byte_len as usize).saturating_sub(HEADER);
        let message = payload.get(..len).and_then(Message::decode);
        let (Some(message), Some(number)) = (message, vendor_number(wc.src_qp)) else {
            return local.count_bad_handshake();
        };
        let gid = if wc.wc_flags & IBV_WC_GRH != 0 { source_gid(header) } else { None };
        let Some(gid) = gid else { return local.count_bad_handshake() };
        let (peer, token) = ((gid, number), message.token);
        match message.body {
            Body::Request { qpn, qkey } => self.requested(peer, token, qpn, qkey, local),
            Body::Accept { qpn } => self.accepted(peer, token, qpn, local, done),
            Body::WrongKey => self.declined(peer, token, Status::NoRemoteQp, done),
            Body::NoResources => self.declined(peer, token, Status::Unreachable, done),
            Body::Closed => self.closed(peer, token),
        }
    }

    /// A QP asks for a connection, perhaps again.
    fn requested(&mut self, peer: Peer, token: u64, qpn: u32, qkey: u32, local: &Local) {
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            // Asked again until the QP is ready.
            return;
        }
        if let Some(known) = self.incoming.get(&peer).filter(|known| known.token == token) {
            let body = Body::Accept { qpn: known.qp.number() };
            send_handshake(&self.control, &known.ah, peer.1, Message { token, body });
            return;
        }
        let Ok(ah) = Ah::new(self.control.pd(), address_of(peer.0, local)) else { return };
        let body = if qkey != self.qkey {
            Body::WrongKey
        } else {
            // The old connection of that QP failed, or the QP is new.
            if let Some(old) = self.incoming.remove(&peer) {
                self.peers.remove(&old.qp.number());
                // A sender with an earlier Q_Key must ask again, and then learns that the key is
                // wrong.
                let closed = Message { token: old.token, body: Body::Closed };
                send_handshake(&self.control, &old.ah, peer.1, closed);
            }
            match self.responder(peer, token, qpn, local) {
                Ok(qp) => {
                    let body = Body::Accept { qpn: qp.number() };
                    self.peers.insert(qp.number(), peer);
                    self.incoming.insert(peer, Incoming { token, qp, ah: Arc::clone(&ah) });
                    body
                }
                Err(_) => Body::NoResources,
            }
        };
        send_handshake(&self.control, &ah, peer.1, Message { token, body });
    }

    /// An RC QP that receives from `qpn` of `peer`.
    fn responder(&mut self, peer: Peer, token: u64, qpn: u32, local: &Local) -> Result<Qp, Errno> {
        let receives = self.receive_queue()?;
        let cap = ibv_qp_cap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        };
        let qp = Qp::new(IBV_QPT_RC, self.control.pd(), &self.cq, Some(&receives), cap, false)?;
        initialise(&qp, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)?;
        connect(&qp, peer, token, qpn, local)?;
        Ok(qp)
    }

    /// The remote QP made its end of a connection.
    fn accepted(&mut self, peer: Peer, token: u64, qpn: u32, local: &Local, done: &mut Done<'_>) {
        let Some(route) = self.route_of(peer, token) else { return };
        let Some(to) = self.outgoing.get_mut(&route) else { return };
        if !matches!(to.phase, Phase::Connecting { .. }) {
            return;
        }
        let opened = connect(&to.qp, peer, token, qpn, local).and_then(|()| {
            let attr = ibv_qp_attr {
                qp_state: IBV_QPS_RTS,
                sq_psn: psn(token),
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: self.rnr_retry,
                max_rd_atomic: READS,
                ..Zeroed::zeroed()
            };
            let mask = IBV_QP_STATE
                | IBV_QP_SQ_PSN
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC;
            to.qp.modify(&attr, mask)
        });
        if opened.is_err() {
            self.give_up(route, Status::Unreachable, done);
            return;
        }
        to.phase = Phase::Open;
        self.post_waiting(route, done);
    }

    /// The remote QP ended a connection. The next request asks for another one. Requests in flight
    /// fail by themselves.
    fn closed(&mut self, peer: Peer, token: u64) {
        let is_idle = |to: &Outgoing| to.in_flight == 0 && matches!(to.phase, Phase::Open);
        let Some(route) = self.route_of(peer, token) else { return };
        if self.outgoing.get(&route).is_some_and(is_idle) {
            self.outgoing.remove(&route);
        }
    }

    /// The remote process makes no connection.
    fn declined(&mut self, peer: Peer, token: u64, status: Status, done: &mut Done<'_>) {
        let asks = |to: &Outgoing| matches!(to.phase, Phase::Connecting { .. });
        let Some(route) = self.route_of(peer, token) else { return };
        if self.outgoing.get(&route).is_some_and(asks) {
            self.give_up(route, status, done);
        }
    }
}

/// The PSN of a connection's first request.
const fn psn(token: u64) -> u32 {
    token as u32 & 0xff_ffff
}

/// Takes an RC QP to INIT with these rights of remote requests.
fn initialise(qp: &Qp, rights: u32) -> Result<(), Errno> {
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_INIT,
        port_num: 1,
        qp_access_flags: rights,
        ..Zeroed::zeroed()
    };
    qp.modify(&attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
}

/// Takes an RC QP to RTR, connected to `qpn` of `peer`.
fn connect(qp: &Qp, peer: Peer, token: u64, qpn: u32, local: &Local) -> Result<(), Errno> {
    let attr = ibv_qp_attr {
        qp_state: IBV_QPS_RTR,
        ah_attr: address_of(peer.0, local),
        path_mtu: local.mtu,
        dest_qp_num: qpn,
        rq_psn: psn(token),
        max_dest_rd_atomic: READS,
        min_rnr_timer: 12,
        ..Zeroed::zeroed()
    };
    let mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    qp.modify(&attr, mask)
}

/// Sends a message of a handshake. A message that is not sent counts as lost.
fn send_handshake(control: &Qp, ah: &Ah, number: u16, message: Message) {
    let bytes = message.encode();
    let addr = bytes.as_ptr().expose_provenance() as u64;
    let mut list = [ibv_sge { addr, length: bytes.len() as u32, lkey: 0 }];
    let mut request = SendRequest::new(Purpose::HANDSHAKE_SEND, IBV_WR_SEND, &mut list);
    request.inline().set_destination(ah, adapter_number(number), handshake::QKEY);
    let _ = control.post_send(&mut request);
}

impl Drop for Srd {
    fn drop(&mut self) {
        self.drop_connections();
    }
}
