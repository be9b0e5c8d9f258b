//! A QP of an emulated device: UD of EFA over a UD QP of the adapter, SRD ([`super::srd`]), or a QP
//! of mlx5 ([`super::direct`]).
#![forbid(unsafe_code)]

use super::direct::Direct;
use super::numbers::{adapter_number, vendor_number};
use super::objects::{Ah, Cq, Device, Pd, Qp, Srq, immediate_of, read_received};
use super::remote::{Local, ah_attr_of};
use super::requests::{
    HEADER, MAX_INLINE, MAX_SEGMENTS, Outstanding, PostedReceive, Purpose, Request, Segments,
    refused, source_gid, status_of,
};
use super::srd::Srd;
use abi::*;
use emulated_commands::carrier::Change;
use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::{
    Capabilities, Completion, Operation, Queue, Remote, Service, Source, Status,
};
use soft_semantics::emulated::EmulatedDevice;
use soft_sys::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// The sender of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) gid: [u8; 16],
    pub(super) number: u16,
}

/// Takes the completions of a QP.
pub(super) struct Done<'a> {
    /// The handle and the number of the QP.
    pub(super) handle: u32,
    pub(super) number: u32,
    pub(super) completions: &'a mut VecDeque<(u32, Completion)>,
    /// The program's address handles by GID.
    pub(super) ah_of: &'a dyn Fn(&[u8; 16]) -> Option<u32>,
}

impl Done<'_> {
    /// A request or receive ended.
    pub(super) fn push(&mut self, completion: Completion) {
        let qp = self.number;
        self.completions.push_back((self.handle, Completion { qp, ..completion }));
    }

    /// A request ended.
    pub(super) fn complete_send(&mut self, request: &Request, status: Status) {
        let (id, operation) = (Some(request.id), request.operation);
        self.push(Completion { id, status, operation, ..Completion::default() });
    }

    /// A receive ended without a message.
    pub(super) fn failed_receive(&mut self, id: u64, status: Status) {
        self.push(Completion { queue: Queue::Receive, id: Some(id), status, ..Default::default() });
    }

    /// A receive ended as the adapter says in `wc`.
    pub(super) fn received(&mut self, id: u64, wc: &ibv_wc, len: u32, sender: Option<Sender>) {
        if wc.status != IBV_WC_SUCCESS {
            return self.failed_receive(id, status_of(wc.status));
        }
        let is_write = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
        let operation =
            if is_write { Operation::Write(Remote::default()) } else { Operation::Send };
        let source = sender.map(|Sender { gid, number }| Source {
            qp: number.into(),
            ah: (self.ah_of)(&gid),
            gid,
        });
        self.push(Completion {
            queue: Queue::Receive,
            id: Some(id),
            operation,
            len,
            immediate: immediate_of(wc),
            source,
            ..Completion::default()
        });
    }
}

/// A QP of the emulated device.
#[derive(Debug)]
pub(super) struct EmulatedQp {
    pub(super) number: u32,
    transport: Transport,
    // Dropped after the QPs that use the queue.
    cq: Arc<Cq>,
}

#[derive(Debug)]
enum Transport {
    Ud(Ud),
    Srd(Box<Srd>),
    Direct(Direct),
}

#[derive(Debug)]
struct Ud {
    qp: Qp,
    outstanding: Outstanding<Request>,
}

impl EmulatedQp {
    /// A QP in RESET.
    ///
    /// # Errors
    /// `ENOMEM` no number is free, or the adapter's limits; `EOPNOTSUPP` another service.
    pub(super) fn new(
        device: &Arc<Device>,
        pd: &Arc<Pd>,
        service: Service,
        sizes: &Capabilities,
        srq: Option<&Arc<Srq>>,
    ) -> Result<Self, Errno> {
        let shared = srq.map_or(0, |srq| srq.max_wr());
        let entries = sizes.max_send_wr + sizes.max_recv_wr + shared + Srd::extra_completions();
        let cq = Cq::new(device, entries)?;
        if device.emulated() == EmulatedDevice::Mlx5 {
            let direct = Direct::new(pd, &cq, service, sizes, srq)?;
            return Ok(Self { number: direct.number(), transport: Transport::Direct(direct), cq });
        }
        let (transport, number) = match service {
            Service::Ud => {
                let cap = ibv_qp_cap {
                    max_send_wr: sizes.max_send_wr,
                    max_recv_wr: sizes.max_recv_wr,
                    max_send_sge: MAX_SEGMENTS as u32,
                    max_recv_sge: MAX_SEGMENTS as u32,
                    max_inline_data: MAX_INLINE,
                };
                let qp = Qp::new(IBV_QPT_UD, pd, &cq, None, cap, true)?;
                let outstanding = Outstanding::new(sizes.max_send_wr, sizes.max_recv_wr);
                let number = qp.number();
                (Transport::Ud(Ud { qp, outstanding }), number)
            }
            Service::Srd => {
                let srd = Srd::new(pd, &cq, sizes)?;
                let number = srd.number();
                (Transport::Srd(Box::new(srd)), number)
            }
            Service::Rc | Service::Uc => return Err(Errno::EOPNOTSUPP),
        };
        let number = vendor_number(number).ok_or(Errno::ENOMEM)?.into();
        Ok(Self { number, transport, cq })
    }

    /// Whether events with this key are of the QP's queue.
    pub(super) fn has_queue(&self, key: usize) -> bool {
        self.cq.key() == key
    }

    /// Acknowledges an event of the QP's queue, and arms the queue.
    pub(super) fn acknowledge(&self) {
        self.cq.acknowledge();
    }

    /// Changes the QP.
    ///
    /// # Errors
    /// Of ibv_modify_qp(3).
    pub(super) fn modify(&mut self, change: &Change, done: &mut Done<'_>) -> Result<(), Refusal> {
        match &mut self.transport {
            Transport::Srd(srd) => srd.modify(change, done),
            Transport::Direct(direct) => direct.modify(change),
            Transport::Ud(ud) => {
                let attr = change_of(change);
                let changed = ud.qp.modify(&attr, change.mask);
                changed.map_err(|errno| Refusal::Other(errno.raw()))?;
                if change.mask & IBV_QP_STATE != 0 && attr.qp_state == IBV_QPS_RESET {
                    ud.outstanding.take_all();
                }
                Ok(())
            }
        }
    }

    /// The state, if the QP changes it by itself.
    pub(super) fn state(&self) -> Option<u8> {
        match &self.transport {
            Transport::Direct(direct) => Some(direct.state()),
            Transport::Ud(_) | Transport::Srd(_) => None,
        }
    }

    /// The QP, if it takes requests as they are.
    pub(super) const fn direct(&mut self) -> Option<&mut Direct> {
        match &mut self.transport {
            Transport::Direct(direct) => Some(direct),
            Transport::Ud(_) | Transport::Srd(_) => None,
        }
    }

    /// Begins a request of EFA to QP `number` at an address.
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
        match &mut self.transport {
            Transport::Srd(srd) => srd.send(request, to, number, qkey, local, done),
            Transport::Direct(_) => Err(Status::Unsupported),
            Transport::Ud(ud) => {
                let id = ud.outstanding.send_id()?;
                let to = (&**to.1, adapter_number(number), qkey);
                request.post(&ud.qp, id, Some(to)).map_err(refused)?;
                ud.outstanding.add_send(id, request);
                Ok(())
            }
        }
    }

    /// Posts a receive of EFA.
    ///
    /// # Errors
    /// The result of a receive that the adapter refuses.
    pub(super) fn receive(&mut self, id: u64, mut segments: Segments) -> Result<(), Status> {
        match &mut self.transport {
            Transport::Srd(srd) => srd.receive(id, segments),
            Transport::Direct(_) => Err(Status::Unsupported),
            Transport::Ud(ud) => {
                let wr_id = ud.outstanding.receive_id()?;
                ud.qp.post_recv(wr_id, &mut segments).map_err(refused)?;
                ud.outstanding.add_receive(wr_id, PostedReceive { id, segments });
                Ok(())
            }
        }
    }

    /// Handles the completions of the adapter. Returns whether there were any.
    pub(super) fn poll(&mut self, local: &Local, done: &mut Done<'_>) -> bool {
        let mut found: [ibv_wc; 16] = [Zeroed::zeroed(); 16];
        let count = self.cq.poll(&mut found);
        for wc in found.iter().take(count) {
            match &mut self.transport {
                Transport::Srd(srd) => srd.complete(wc, local, done),
                Transport::Ud(ud) => ud.complete(wc, done),
                Transport::Direct(direct) => direct.complete(wc, done),
            }
        }
        count > 0
    }

    /// Repeats what was not answered. Returns the time of the next look.
    pub(super) fn repeat(&mut self, local: &Local, done: &mut Done<'_>) -> Option<Instant> {
        match &mut self.transport {
            Transport::Srd(srd) => srd.repeat_handshakes(local, done),
            Transport::Ud(_) | Transport::Direct(_) => None,
        }
    }
}

impl Ud {
    fn complete(&mut self, wc: &ibv_wc, done: &mut Done<'_>) {
        match Purpose::of(wc.wr_id) {
            Purpose::Send => {
                if let Some(request) = self.outstanding.take_send(wc.wr_id) {
                    done.complete_send(&request, status_of(wc.status));
                }
            }
            Purpose::Receive => {
                let Some(receive) = self.outstanding.take_receive(wc.wr_id) else { return };
                done.received(receive.id, wc, wc.byte_len, sender_of(wc, &receive.segments));
            }
            Purpose::HandshakeReceive(_) | Purpose::HandshakeSend => {}
        }
    }
}

/// The sender of a datagram, if it is a QP of an emulated device.
fn sender_of(wc: &ibv_wc, segments: &[ibv_sge]) -> Option<Sender> {
    let number = vendor_number(wc.src_qp)?;
    let mut header = [0; HEADER];
    let has_header = wc.status == IBV_WC_SUCCESS
        && wc.wc_flags & IBV_WC_GRH != 0
        && read_received(segments, &mut header);
    let gid = if has_header { source_gid(&header) } else { None };
    Some(Sender { gid: gid?, number })
}

/// The attributes of a change.
pub(super) fn change_of(change: &Change) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: change.state.into(),
        cur_qp_state: change.current_state.into(),
        path_mtu: change.path_mtu.into(),
        qkey: change.qkey,
        rq_psn: change.rq_psn,
        sq_psn: change.sq_psn,
        dest_qp_num: change.remote_qp,
        qp_access_flags: change.access,
        ah_attr: ah_attr_of(&change.remote),
        pkey_index: change.pkey_index,
        max_rd_atomic: change.max_rd_atomic,
        max_dest_rd_atomic: change.max_dest_rd_atomic,
        min_rnr_timer: change.min_rnr_timer,
        port_num: change.port,
        timeout: change.timeout,
        retry_cnt: change.retry_count,
        rnr_retry: change.rnr_retry,
        ..Zeroed::zeroed()
    }
}
