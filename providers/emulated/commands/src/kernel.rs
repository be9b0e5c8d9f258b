//! The objects of one context, and the commands on them. Requests and responses are the structures
//! of `<rdma/ib_user_verbs.h>`; errors are those of the kernel.
//!
//! Map of this file: `Answer` and `WriteRequest`; the objects of a context; `Kernel`, with a
//! function for each command, in the order PD, MR, AH, CQ, QP; helpers. `data` has doorbells and
//! completions, `srq` the commands on SRQs, `sizes` the least sizes of commands.
//! No lock: the caller serialises all calls.

mod data;
mod sizes;
mod srq;

use core::mem::offset_of;

use abi::*;

use crate::carrier::{Address, Carrier, Change, Region};
use crate::fields::{Fields, Structure};
use crate::refusal::Refusal;
use crate::table::Table;
use crate::vendor::{
    Capabilities, MethodAnswer, NewCq, NewQp, QueueMemory, Receive, Vendor, WorkRequest,
};
use sizes::sizes;

/// The response of a command, core and vendor's part. A provider's shorter attribute takes the
/// beginning of each; a longer one is filled with zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// For `UVERBS_ATTR_CORE_OUT`.
    pub core: Vec<u8>,
    /// For `UVERBS_ATTR_UHW_OUT`.
    pub vendor: Vec<u8>,
}

/// A write command with the bytes that it sends.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// `IB_USER_VERBS_CMD_*` or `IB_USER_VERBS_EX_CMD_*`.
    pub number: u32,
    /// An extended command.
    pub is_extended: bool,
    /// The core request.
    pub core: &'a [u8],
    /// Bytes of room for the core response.
    pub room: usize,
    /// The provider's request.
    pub vendor: &'a [u8],
}

#[derive(Debug, Default)]
struct Pd {
    users: usize,
}

#[derive(Debug)]
struct Cq<Q> {
    user_handle: u64,
    channel: Option<i32>,
    users: usize,
    is_overrun: bool,
    queue: Q,
}

#[derive(Debug)]
struct Qp<Q> {
    pd: u32,
    send_cq: u32,
    recv_cq: u32,
    srq: Option<u32>,
    user_handle: u64,
    number: u32,
    capabilities: Capabilities,
    signals_all: bool,
    last: Change,
    queues: Q,
}

#[derive(Debug)]
struct Srq<Q> {
    pd: u32,
    users: usize,
    user_handle: u64,
    max_wr: u32,
    max_sge: u32,
    queue: Q,
}

/// The kernel's state of one context of a vendor's device.
#[derive(Debug)]
pub struct Kernel<V: Vendor> {
    vendor: V,
    pds: Table<Pd>,
    mrs: Table<u32>,
    ahs: Table<u32>,
    cqs: Table<Cq<V::Cq>>,
    qps: Table<Qp<V::Qp>>,
    srqs: Table<Srq<V::Srq>>,
    request: WorkRequest,
    receive: Receive,
}

impl<V: Vendor> Kernel<V> {
    /// A context without objects.
    #[must_use]
    pub fn new(vendor: V) -> Self {
        let limits = vendor.limits();
        let most = |limit: u32| limit as usize;
        Self {
            vendor,
            pds: Table::new(most(limits.max_pd)),
            mrs: Table::new(most(limits.max_mr)),
            ahs: Table::new(most(limits.max_ah)),
            cqs: Table::new(most(limits.max_cq)),
            qps: Table::new(most(limits.max_qp)),
            srqs: Table::new(most(limits.max_srq)),
            request: WorkRequest::default(),
            receive: Receive::default(),
        }
    }

    /// Executes a write command.
    ///
    /// # Errors
    /// [`Refusal::TooShort`] for structures that do not fit; [`Refusal::Invalid`] for unknown
    /// numbers, values and handles; [`Refusal::Unsupported`] for commands that the device does not
    /// have; otherwise as the command says.
    pub fn write(
        &mut self,
        sent: &WriteRequest<'_>,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<Answer, Refusal> {
        let (needs, gives) = sizes(sent.number, sent.is_extended)?;
        if sent.core.len() < needs || sent.room < gives {
            return Err(Refusal::TooShort);
        }
        let core = Fields::new(sent.core);
        match (sent.number, sent.is_extended) {
            (IB_USER_VERBS_CMD_GET_CONTEXT, false) => self.get_context(sent.vendor, carrier),
            (IB_USER_VERBS_CMD_QUERY_DEVICE, false) => {
                Ok(Answer { core: self.device(carrier).into_bytes(), vendor: Vec::new() })
            }
            (IB_USER_VERBS_EX_CMD_QUERY_DEVICE, true) => self.query_device_ex(core, carrier),
            (IB_USER_VERBS_CMD_QUERY_PORT, false) => self.query_port(core, carrier),
            (IB_USER_VERBS_CMD_ALLOC_PD, false) => self.alloc_pd(carrier),
            (IB_USER_VERBS_CMD_DEALLOC_PD, false) => self.dealloc_pd(core, carrier),
            (IB_USER_VERBS_CMD_REG_MR, false) => self.reg_mr(core, carrier),
            (IB_USER_VERBS_CMD_DEREG_MR, false) => self.dereg_mr(core, carrier),
            (IB_USER_VERBS_CMD_CREATE_AH, false) => self.create_ah(core, carrier),
            (IB_USER_VERBS_CMD_DESTROY_AH, false) => self.destroy_ah(core, carrier),
            (IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, false) => {
                let fd = carrier.open_channel()?;
                let size = size_of::<ib_uverbs_create_comp_channel_resp>();
                let response = Structure::new(size).u32(0, fd.cast_unsigned());
                Ok(Answer { core: response.into_bytes(), vendor: Vec::new() })
            }
            (IB_USER_VERBS_CMD_CREATE_CQ, false) => {
                let new = NewCq {
                    user_handle: core.u64(offset_of!(ib_uverbs_create_cq, user_handle)),
                    entries: core.u32(offset_of!(ib_uverbs_create_cq, cqe)),
                    channel: channel(core.u32(offset_of!(ib_uverbs_create_cq, comp_channel))),
                    number: self.cqs.next()?,
                };
                is_only_vector(core.u32(offset_of!(ib_uverbs_create_cq, comp_vector)))?;
                self.create_cq(new, sent, memory, carrier)
            }
            (IB_USER_VERBS_EX_CMD_CREATE_CQ, true) => {
                if core.u32(offset_of!(ib_uverbs_ex_create_cq, comp_mask)) != 0 {
                    return Err(Refusal::Invalid);
                }
                let new = NewCq {
                    user_handle: core.u64(offset_of!(ib_uverbs_ex_create_cq, user_handle)),
                    entries: core.u32(offset_of!(ib_uverbs_ex_create_cq, cqe)),
                    channel: channel(core.u32(offset_of!(ib_uverbs_ex_create_cq, comp_channel))),
                    number: self.cqs.next()?,
                };
                is_only_vector(core.u32(offset_of!(ib_uverbs_ex_create_cq, comp_vector)))?;
                self.create_cq(new, sent, memory, carrier)
            }
            (IB_USER_VERBS_CMD_DESTROY_CQ, false) => self.destroy_cq(core, memory, carrier),
            (IB_USER_VERBS_CMD_CREATE_SRQ, false) => self.create_srq(sent, memory, carrier),
            (IB_USER_VERBS_CMD_QUERY_SRQ, false) => self.query_srq(core),
            (IB_USER_VERBS_CMD_DESTROY_SRQ, false) => self.destroy_srq(core, memory, carrier),
            (IB_USER_VERBS_CMD_CREATE_QP, false) => self.create_qp(sent, 8, memory, carrier),
            (IB_USER_VERBS_EX_CMD_CREATE_QP, true) => {
                if core.u32(offset_of!(ib_uverbs_ex_create_qp, comp_mask)) != 0 {
                    return Err(Refusal::Invalid);
                }
                if core.u32(offset_of!(ib_uverbs_ex_create_qp, create_flags)) != 0 {
                    return Err(Refusal::Unsupported);
                }
                self.create_qp(sent, 0, memory, carrier)
            }
            (IB_USER_VERBS_CMD_MODIFY_QP, false) => self.modify_qp(core, memory, carrier),
            (IB_USER_VERBS_EX_CMD_MODIFY_QP, true) => {
                let mut answer = self.modify_qp(core, memory, carrier)?;
                let size = size_of::<ib_uverbs_ex_modify_qp_resp>();
                let at = offset_of!(ib_uverbs_ex_modify_qp_resp, response_length);
                answer.core = Structure::new(size).u32(at, size as u32).into_bytes();
                Ok(answer)
            }
            (IB_USER_VERBS_CMD_QUERY_QP, false) => self.query_qp(core, carrier),
            (IB_USER_VERBS_CMD_DESTROY_QP, false) => self.destroy_qp(core, memory, carrier),
            _ => Err(Refusal::Unsupported),
        }
    }

    /// Executes a method of the vendor's own.
    ///
    /// # Errors
    /// [`Refusal::NoMethod`] for all methods that have a write command, and unknown ones.
    pub fn method(&self, object: u16, method: u16) -> Result<MethodAnswer, Refusal> {
        self.vendor.method(object, method)
    }

    fn get_context(&self, vendor: &[u8], carrier: &mut dyn Carrier) -> Result<Answer, Refusal> {
        let vendor = self.vendor.open(vendor)?;
        let events = carrier.open_events()?;
        let core = Structure::new(size_of::<ib_uverbs_get_context_resp>())
            .u32(offset_of!(ib_uverbs_get_context_resp, async_fd), events.cast_unsigned())
            .u32(offset_of!(ib_uverbs_get_context_resp, num_comp_vectors), 1);
        Ok(Answer { core: core.into_bytes(), vendor })
    }

    fn device(&self, carrier: &dyn Carrier) -> Structure {
        type Response = ib_uverbs_query_device_resp;
        let limits = self.vendor.limits();
        let ports = (1..=u8::MAX).take_while(|&port| carrier.port(port).is_some()).count();
        Structure::new(size_of::<Response>())
            .with(offset_of!(Response, fw_ver), &limits.firmware)
            .u64(offset_of!(Response, node_guid), carrier.node_guid())
            .u64(offset_of!(Response, sys_image_guid), carrier.node_guid())
            .u64(offset_of!(Response, max_mr_size), limits.max_mr_size)
            .u64(offset_of!(Response, page_size_cap), 0xffff_f000)
            .u32(offset_of!(Response, vendor_id), limits.vendor_id)
            .u32(offset_of!(Response, vendor_part_id), limits.part_id)
            .u32(offset_of!(Response, max_qp), limits.max_qp)
            .u32(offset_of!(Response, max_qp_wr), limits.max_qp_wr)
            .u32(offset_of!(Response, max_sge), limits.max_sge)
            .u32(offset_of!(Response, max_sge_rd), limits.max_sge_rd)
            .u32(offset_of!(Response, max_cq), limits.max_cq)
            .u32(offset_of!(Response, max_cqe), limits.max_cqe)
            .u32(offset_of!(Response, max_mr), limits.max_mr)
            .u32(offset_of!(Response, max_pd), limits.max_pd)
            .u32(offset_of!(Response, max_ah), limits.max_ah)
            .u32(offset_of!(Response, max_srq), limits.max_srq)
            .u32(
                offset_of!(Response, max_srq_wr),
                // libmlx5 makes queues of a power of two entries, one of which stays free.
                if limits.max_srq > 0 { limits.max_qp_wr - 1 } else { 0 },
            )
            .u32(
                offset_of!(Response, max_srq_sge),
                if limits.max_srq > 0 { limits.max_sge } else { 0 },
            )
            .u32(offset_of!(Response, max_qp_rd_atom), limits.max_reads)
            .u32(offset_of!(Response, max_qp_init_rd_atom), limits.max_reads)
            .u32(offset_of!(Response, atomic_cap), limits.atomic_cap)
            .u16(offset_of!(Response, max_pkeys), 1)
            .u8(offset_of!(Response, phys_port_cnt), ports as u8)
    }

    fn query_device_ex(&self, core: Fields<'_>, carrier: &dyn Carrier) -> Result<Answer, Refusal> {
        type Response = ib_uverbs_ex_query_device_resp;
        if core.u32(offset_of!(ib_uverbs_ex_query_device, comp_mask)) != 0
            || core.u32(offset_of!(ib_uverbs_ex_query_device, reserved)) != 0
        {
            return Err(Refusal::Invalid);
        }
        let size = size_of::<Response>();
        let response = Structure::new(size)
            .with(0, &self.device(carrier).into_bytes())
            .u32(offset_of!(Response, response_length), size as u32);
        Ok(Answer { core: response.into_bytes(), vendor: self.vendor.device() })
    }

    fn query_port(&self, core: Fields<'_>, carrier: &dyn Carrier) -> Result<Answer, Refusal> {
        type Response = ib_uverbs_query_port_resp;
        let port = core.u8(offset_of!(ib_uverbs_query_port, port_num));
        let port = carrier.port(port).ok_or(Refusal::Invalid)?;
        let response = Structure::new(size_of::<Response>())
            .u32(offset_of!(Response, max_msg_sz), self.vendor.limits().max_message)
            .u32(offset_of!(Response, gid_tbl_len), port.gids)
            .u16(offset_of!(Response, pkey_tbl_len), port.pkeys)
            .u8(offset_of!(Response, state), port.state)
            .u8(offset_of!(Response, max_mtu), port.mtu)
            .u8(offset_of!(Response, active_mtu), port.mtu)
            .u8(offset_of!(Response, max_vl_num), 1)
            .u8(offset_of!(Response, active_width), 1)
            .u8(offset_of!(Response, active_speed), 32)
            .u8(offset_of!(Response, phys_state), 5)
            .u8(offset_of!(Response, link_layer), self.vendor.limits().link_layer);
        Ok(Answer { core: response.into_bytes(), vendor: Vec::new() })
    }

    fn alloc_pd(&mut self, carrier: &mut dyn Carrier) -> Result<Answer, Refusal> {
        carrier.alloc_pd(self.pds.next()?)?;
        let pd = self.pds.add(Pd::default())?;
        let core = Structure::new(size_of::<ib_uverbs_alloc_pd_resp>()).u32(0, pd);
        Ok(Answer { core: core.into_bytes(), vendor: self.vendor.pd(pd) })
    }

    fn dealloc_pd(
        &mut self,
        core: Fields<'_>,
        carrier: &mut dyn Carrier,
    ) -> Result<Answer, Refusal> {
        let pd = core.u32(offset_of!(ib_uverbs_dealloc_pd, pd_handle));
        if self.pds.get(pd).is_ok_and(|pd| pd.users > 0) {
            return Err(Refusal::InUse);
        }
        self.pds.remove(pd)?;
        carrier.dealloc_pd(pd);
        Ok(Answer::default())
    }

    fn reg_mr(&mut self, core: Fields<'_>, carrier: &mut dyn Carrier) -> Result<Answer, Refusal> {
        type Response = ib_uverbs_reg_mr_resp;
        let region = Region {
            pd: core.u32(offset_of!(ib_uverbs_reg_mr, pd_handle)),
            start: core.u64(offset_of!(ib_uverbs_reg_mr, start)),
            length: core.u64(offset_of!(ib_uverbs_reg_mr, length)),
            iova: core.u64(offset_of!(ib_uverbs_reg_mr, hca_va)),
            access: core.u32(offset_of!(ib_uverbs_reg_mr, access_flags)),
        };
        // The kernel asks for equal places within a page.
        if (region.start ^ region.iova) & 0xfff != 0 {
            return Err(Refusal::Invalid);
        }
        self.pds.get(region.pd)?;
        let keys = carrier.register(self.mrs.next()?, &region)?;
        let mr = self.mrs.add(region.pd)?;
        self.pds.get_mut(region.pd)?.users += 1;
        let response = Structure::new(size_of::<Response>())
            .u32(offset_of!(Response, mr_handle), mr)
            .u32(offset_of!(Response, lkey), keys.lkey)
            .u32(offset_of!(Response, rkey), keys.rkey);
        Ok(Answer { core: response.into_bytes(), vendor: Vec::new() })
    }

    fn dereg_mr(&mut self, core: Fields<'_>, carrier: &mut dyn Carrier) -> Result<Answer, Refusal> {
        let mr = core.u32(offset_of!(ib_uverbs_dereg_mr, mr_handle));
        let pd = self.mrs.remove(mr)?;
        self.release_pd(pd);
        carrier.deregister(mr);
        Ok(Answer::default())
    }

    fn create_ah(
        &mut self,
        core: Fields<'_>,
        carrier: &mut dyn Carrier,
    ) -> Result<Answer, Refusal> {
        const ATTR: usize = offset_of!(ib_uverbs_create_ah, attr);
        const GRH: usize = ATTR + offset_of!(ib_uverbs_ah_attr, grh);
        let pd = core.u32(offset_of!(ib_uverbs_create_ah, pd_handle));
        let address = Address {
            dgid: core.bytes(GRH + offset_of!(ib_uverbs_global_route, dgid)),
            sgid_index: core.u8(GRH + offset_of!(ib_uverbs_global_route, sgid_index)),
            port: core.u8(ATTR + offset_of!(ib_uverbs_ah_attr, port_num)),
            is_global: core.u8(ATTR + offset_of!(ib_uverbs_ah_attr, is_global)) != 0,
            traffic_class: core.u8(GRH + offset_of!(ib_uverbs_global_route, traffic_class)),
            hop_limit: core.u8(GRH + offset_of!(ib_uverbs_global_route, hop_limit)),
            flow_label: core.u32(GRH + offset_of!(ib_uverbs_global_route, flow_label)),
        };
        self.pds.get(pd)?;
        carrier.port(address.port).ok_or(Refusal::Invalid)?;
        carrier.create_ah(self.ahs.next()?, pd, &address)?;
        let ah = self.ahs.add(pd)?;
        self.pds.get_mut(pd)?.users += 1;
        let response = Structure::new(size_of::<ib_uverbs_create_ah_resp>()).u32(0, ah);
        Ok(Answer { core: response.into_bytes(), vendor: self.vendor.ah(ah) })
    }

    fn destroy_ah(
        &mut self,
        core: Fields<'_>,
        carrier: &mut dyn Carrier,
    ) -> Result<Answer, Refusal> {
        let ah = core.u32(offset_of!(ib_uverbs_destroy_ah, ah_handle));
        let pd = self.ahs.remove(ah)?;
        self.release_pd(pd);
        carrier.destroy_ah(ah);
        Ok(Answer::default())
    }

    fn create_cq(
        &mut self,
        new: NewCq,
        sent: &WriteRequest<'_>,
        memory: &mut dyn QueueMemory,
        carrier: &dyn Carrier,
    ) -> Result<Answer, Refusal> {
        type Response = ib_uverbs_ex_create_cq_resp;
        if new.channel.is_some_and(|channel| !carrier.has_channel(channel)) {
            return Err(Refusal::Invalid);
        }
        let made = self.vendor.create_cq(&new, sent.vendor, memory)?;
        let cq = Cq {
            user_handle: new.user_handle,
            channel: new.channel,
            users: 0,
            is_overrun: false,
            queue: made.object,
        };
        let handle = self.cqs.add(cq)?;
        let plain = size_of::<ib_uverbs_create_cq_resp>();
        let size = if sent.is_extended { size_of::<Response>() } else { plain };
        let response = Structure::new(size)
            .u32(offset_of!(ib_uverbs_create_cq_resp, cq_handle), handle)
            .u32(offset_of!(ib_uverbs_create_cq_resp, cqe), new.entries)
            .u32(offset_of!(Response, response_length), size as u32);
        Ok(Answer { core: response.into_bytes(), vendor: made.response })
    }

    fn destroy_cq(
        &mut self,
        core: Fields<'_>,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<Answer, Refusal> {
        type Response = ib_uverbs_destroy_cq_resp;
        let handle = core.u32(offset_of!(ib_uverbs_destroy_cq, cq_handle));
        if self.cqs.get(handle).is_ok_and(|cq| cq.users > 0) {
            return Err(Refusal::InUse);
        }
        let cq = self.cqs.remove(handle)?;
        let forget = |channel| carrier.forget_notifications(channel, cq.user_handle);
        let read = cq.channel.map_or(0, forget);
        let reported = carrier.forget_reports(cq.user_handle);
        self.vendor.destroy_cq(cq.queue, memory);
        let response = Structure::new(size_of::<Response>())
            .u32(offset_of!(Response, comp_events_reported), read)
            .u32(offset_of!(Response, async_events_reported), reported);
        Ok(Answer { core: response.into_bytes(), vendor: Vec::new() })
    }

    /// `skip`: bytes before the member `user_handle`, behind which both requests are equal.
    fn create_qp(
        &mut self,
        sent: &WriteRequest<'_>,
        skip: usize,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<Answer, Refusal> {
        type Request = ib_uverbs_ex_create_qp;
        type Response = ib_uverbs_create_qp_resp;
        let core = Fields::new(sent.core.get(skip..).unwrap_or_default());
        let pd = core.u32(offset_of!(Request, pd_handle));
        let send_cq = core.u32(offset_of!(Request, send_cq_handle));
        let recv_cq = core.u32(offset_of!(Request, recv_cq_handle));
        let new = NewQp {
            user_handle: core.u64(offset_of!(Request, user_handle)),
            qp_type: core.u8(offset_of!(Request, qp_type)),
            capabilities: Capabilities {
                max_send_wr: core.u32(offset_of!(Request, max_send_wr)),
                max_recv_wr: core.u32(offset_of!(Request, max_recv_wr)),
                max_send_sge: core.u32(offset_of!(Request, max_send_sge)),
                max_recv_sge: core.u32(offset_of!(Request, max_recv_sge)),
                max_inline_data: core.u32(offset_of!(Request, max_inline_data)),
            },
            srq: (core.u8(offset_of!(Request, is_srq)) != 0)
                .then(|| core.u32(offset_of!(Request, srq_handle))),
            signals_all: core.u8(offset_of!(Request, sq_sig_all)) != 0,
        };
        self.pds.get(pd)?;
        self.cqs.get(send_cq)?;
        self.cqs.get(recv_cq)?;
        if let Some(srq) = new.srq {
            self.srqs.get(srq)?;
        }
        let plan = self.vendor.plan_qp(&new, sent.vendor)?;
        let capabilities = plan.reported;
        let handle = self.qps.next()?;
        let number = carrier.create_qp(handle, pd, plan.service, &plan.queues, new.srq)?;
        let made = match self.vendor.create_qp(&new, number, sent.vendor, memory) {
            Ok(made) => made,
            Err(refusal) => {
                carrier.destroy_qp(handle);
                return Err(refusal);
            }
        };
        let handle = self.qps.add(Qp {
            pd,
            send_cq,
            recv_cq,
            srq: new.srq,
            user_handle: new.user_handle,
            number,
            capabilities,
            signals_all: new.signals_all,
            last: Change::default(),
            queues: made.object,
        })?;
        self.pds.get_mut(pd)?.users += 1;
        self.cqs.get_mut(send_cq)?.users += 1;
        self.cqs.get_mut(recv_cq)?.users += 1;
        if let Some(srq) = new.srq {
            self.srqs.get_mut(srq)?.users += 1;
        }
        let size = if sent.is_extended {
            size_of::<ib_uverbs_ex_create_qp_resp>()
        } else {
            size_of::<Response>()
        };
        let response = Structure::new(size)
            .u32(offset_of!(Response, qp_handle), handle)
            .u32(offset_of!(Response, qpn), number)
            .u32(offset_of!(Response, max_send_wr), capabilities.max_send_wr)
            .u32(offset_of!(Response, max_recv_wr), capabilities.max_recv_wr)
            .u32(offset_of!(Response, max_send_sge), capabilities.max_send_sge)
            .u32(offset_of!(Response, max_recv_sge), capabilities.max_recv_sge)
            .u32(offset_of!(Response, max_inline_data), capabilities.max_inline_data)
            .u32(offset_of!(ib_uverbs_ex_create_qp_resp, response_length), size as u32);
        Ok(Answer { core: response.into_bytes(), vendor: made.response })
    }

    fn modify_qp(
        &mut self,
        core: Fields<'_>,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<Answer, Refusal> {
        type Request = ib_uverbs_modify_qp;
        let handle = core.u32(offset_of!(Request, qp_handle));
        let mask = core.u32(offset_of!(Request, attr_mask));
        let change = Change {
            mask,
            state: core.u8(offset_of!(Request, qp_state)),
            qkey: core.u32(offset_of!(Request, qkey)),
            sq_psn: core.u32(offset_of!(Request, sq_psn)),
            access: core.u32(offset_of!(Request, qp_access_flags)),
            pkey_index: core.u16(offset_of!(Request, pkey_index)),
            port: core.u8(offset_of!(Request, port_num)),
            rnr_retry: core.u8(offset_of!(Request, rnr_retry)),
            remote: destination(core, offset_of!(Request, dest)),
            remote_qp: core.u32(offset_of!(Request, dest_qp_num)),
            rq_psn: core.u32(offset_of!(Request, rq_psn)),
            path_mtu: core.u8(offset_of!(Request, path_mtu)),
            max_rd_atomic: core.u8(offset_of!(Request, max_rd_atomic)),
            max_dest_rd_atomic: core.u8(offset_of!(Request, max_dest_rd_atomic)),
            min_rnr_timer: core.u8(offset_of!(Request, min_rnr_timer)),
            timeout: core.u8(offset_of!(Request, timeout)),
            retry_count: core.u8(offset_of!(Request, retry_cnt)),
            current_state: core.u8(offset_of!(Request, cur_qp_state)),
        };
        let qp = self.qps.get_mut(handle)?;
        carrier.modify_qp(handle, &change)?;
        if mask & IBV_QP_STATE != 0 && u32::from(change.state) == IBV_QPS_RESET {
            self.vendor.reset_qp(&mut qp.queues, memory);
            qp.last = Change::default();
        } else {
            qp.last.adopt(&change);
        }
        if mask & IBV_QP_STATE != 0 && u32::from(change.state) == IBV_QPS_ERR {
            self.ring(handle, memory, carrier)?;
        }
        Ok(Answer { core: Vec::new(), vendor: self.vendor.modified() })
    }

    fn query_qp(&self, core: Fields<'_>, carrier: &dyn Carrier) -> Result<Answer, Refusal> {
        type Response = ib_uverbs_query_qp_resp;
        const DEST: usize = offset_of!(Response, dest);
        let handle = core.u32(offset_of!(ib_uverbs_query_qp, qp_handle));
        let qp = self.qps.get(handle)?;
        let state = carrier.state(handle).unwrap_or(qp.last.state);
        let (last, sizes) = (&qp.last, &qp.capabilities);
        let response = Structure::new(size_of::<Response>())
            .u32(offset_of!(Response, max_send_wr), sizes.max_send_wr)
            .u32(offset_of!(Response, max_recv_wr), sizes.max_recv_wr)
            .u32(offset_of!(Response, max_send_sge), sizes.max_send_sge)
            .u32(offset_of!(Response, max_recv_sge), sizes.max_recv_sge)
            .u32(offset_of!(Response, max_inline_data), sizes.max_inline_data)
            .u32(offset_of!(Response, qkey), last.qkey)
            .u32(offset_of!(Response, sq_psn), last.sq_psn)
            .u32(offset_of!(Response, qp_access_flags), last.access)
            .u16(offset_of!(Response, pkey_index), last.pkey_index)
            .u32(offset_of!(Response, rq_psn), last.rq_psn)
            .u32(offset_of!(Response, dest_qp_num), last.remote_qp)
            .u8(offset_of!(Response, path_mtu), last.path_mtu)
            .u8(offset_of!(Response, max_rd_atomic), last.max_rd_atomic)
            .u8(offset_of!(Response, max_dest_rd_atomic), last.max_dest_rd_atomic)
            .u8(offset_of!(Response, min_rnr_timer), last.min_rnr_timer)
            .u8(offset_of!(Response, timeout), last.timeout)
            .u8(offset_of!(Response, retry_cnt), last.retry_count)
            .with(DEST + offset_of!(ib_uverbs_qp_dest, dgid), &last.remote.dgid)
            .u8(DEST + offset_of!(ib_uverbs_qp_dest, is_global), last.remote.is_global.into())
            .u8(DEST + offset_of!(ib_uverbs_qp_dest, port_num), last.remote.port)
            .u8(DEST + offset_of!(ib_uverbs_qp_dest, sgid_index), last.remote.sgid_index)
            .u8(DEST + offset_of!(ib_uverbs_qp_dest, hop_limit), last.remote.hop_limit)
            .u8(DEST + offset_of!(ib_uverbs_qp_dest, traffic_class), last.remote.traffic_class)
            .u32(DEST + offset_of!(ib_uverbs_qp_dest, flow_label), last.remote.flow_label)
            .u8(offset_of!(Response, qp_state), state)
            .u8(offset_of!(Response, cur_qp_state), state)
            .u8(offset_of!(Response, port_num), last.port)
            .u8(offset_of!(Response, rnr_retry), last.rnr_retry)
            .u8(offset_of!(Response, sq_sig_all), u8::from(qp.signals_all));
        Ok(Answer { core: response.into_bytes(), vendor: Vec::new() })
    }

    fn destroy_qp(
        &mut self,
        core: Fields<'_>,
        memory: &mut dyn QueueMemory,
        carrier: &mut dyn Carrier,
    ) -> Result<Answer, Refusal> {
        let handle = core.u32(offset_of!(ib_uverbs_destroy_qp, qp_handle));
        let qp = self.qps.remove(handle)?;
        carrier.destroy_qp(handle);
        self.vendor.destroy_qp(qp.queues, memory);
        self.release_pd(qp.pd);
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Ok(cq) = self.cqs.get_mut(cq) {
                cq.users = cq.users.saturating_sub(1);
            }
        }
        if let Some(srq) = qp.srq.and_then(|srq| self.srqs.get_mut(srq).ok()) {
            srq.users = srq.users.saturating_sub(1);
        }
        let reported = carrier.forget_reports(qp.user_handle);
        let core = Structure::new(size_of::<ib_uverbs_destroy_qp_resp>()).u32(0, reported);
        Ok(Answer { core: core.into_bytes(), vendor: Vec::new() })
    }

    fn release_pd(&mut self, pd: u32) {
        if let Ok(pd) = self.pds.get_mut(pd) {
            pd.users = pd.users.saturating_sub(1);
        }
    }
}

impl Change {
    /// Takes over the members that the mask of `change` names.
    fn adopt(&mut self, change: &Self) {
        let named = |bit: u32| change.mask & bit != 0;
        if named(IBV_QP_STATE) {
            self.state = change.state;
        }
        if named(IBV_QP_QKEY) {
            self.qkey = change.qkey;
        }
        if named(IBV_QP_SQ_PSN) {
            self.sq_psn = change.sq_psn;
        }
        if named(IBV_QP_ACCESS_FLAGS) {
            self.access = change.access;
        }
        if named(IBV_QP_PKEY_INDEX) {
            self.pkey_index = change.pkey_index;
        }
        if named(IBV_QP_PORT) {
            self.port = change.port;
        }
        if named(IBV_QP_RNR_RETRY) {
            self.rnr_retry = change.rnr_retry;
        }
        if named(IBV_QP_AV) {
            self.remote = change.remote;
        }
        if named(IBV_QP_DEST_QPN) {
            self.remote_qp = change.remote_qp;
        }
        if named(IBV_QP_RQ_PSN) {
            self.rq_psn = change.rq_psn;
        }
        if named(IBV_QP_PATH_MTU) {
            self.path_mtu = change.path_mtu;
        }
        if named(IBV_QP_MAX_QP_RD_ATOMIC) {
            self.max_rd_atomic = change.max_rd_atomic;
        }
        if named(IBV_QP_MAX_DEST_RD_ATOMIC) {
            self.max_dest_rd_atomic = change.max_dest_rd_atomic;
        }
        if named(IBV_QP_MIN_RNR_TIMER) {
            self.min_rnr_timer = change.min_rnr_timer;
        }
        if named(IBV_QP_TIMEOUT) {
            self.timeout = change.timeout;
        }
        if named(IBV_QP_RETRY_CNT) {
            self.retry_count = change.retry_count;
        }
    }
}

/// The remote end of a connection, at `at` of a request.
fn destination(core: Fields<'_>, at: usize) -> Address {
    Address {
        dgid: core.bytes(at + offset_of!(ib_uverbs_qp_dest, dgid)),
        sgid_index: core.u8(at + offset_of!(ib_uverbs_qp_dest, sgid_index)),
        port: core.u8(at + offset_of!(ib_uverbs_qp_dest, port_num)),
        is_global: core.u8(at + offset_of!(ib_uverbs_qp_dest, is_global)) != 0,
        traffic_class: core.u8(at + offset_of!(ib_uverbs_qp_dest, traffic_class)),
        hop_limit: core.u8(at + offset_of!(ib_uverbs_qp_dest, hop_limit)),
        flow_label: core.u32(at + offset_of!(ib_uverbs_qp_dest, flow_label)),
    }
}

/// Whether a CQ names the only completion vector.
fn is_only_vector(vector: u32) -> Result<(), Refusal> {
    if vector == 0 { Ok(()) } else { Err(Refusal::Invalid) }
}

/// A channel's descriptor in a request; -1 is none.
fn channel(fd: u32) -> Option<i32> {
    (fd != u32::MAX).then(|| fd.cast_signed())
}
