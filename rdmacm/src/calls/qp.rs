//! Queue pairs and shared receive queues of ids: `rdma_create_qp(3)`, `rdma_init_qp_attr(3)`,
//! `rdma_create_srq(3)`.
//! Entry points that create and destroy queues; `kernel::qp` changes the states of queue pairs.
//!
//! Map of this file: the CQs of an id (`queue`); QPs (`create`, `prepare`, `destroy`); the entry
//! points of QPs, and of SRQs; `OwnQueuePair`, the QP of an rsocket. A call runs
//! on a thread of the program, and locks the state of its id.

use crate::core::c_objects::id_of;
use crate::core::device::xrc_domain;
use crate::core::id::{Backend, Id};
use crate::kernel;
use crate::kernel::qp::{attributes, change_state, modify};
use crate::sys::objects::{CompletionQueue, Domain, Memory, QueuePair};
use crate::sys::verbs;
use abi::*;
use cface::{Errno, MinusOne, verb};
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Creates a completion queue with its channel.
///
/// # Safety
/// `context` is open.
unsafe fn queue(
    context: *mut ibv_context,
    entries: u32,
    id: *mut rdma_cm_id,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    // SAFETY: the context is open; the channel is destroyed if the queue cannot be created.
    unsafe {
        let channel = verbs::ibv_create_comp_channel(context);
        if channel.is_null() {
            return Err(Errno::last());
        }
        let entries = c_int::try_from(entries.max(1)).unwrap_or(c_int::MAX);
        let cq = verbs::ibv_create_cq(context, entries, id.cast(), channel, 0);
        if cq.is_null() {
            let why = Errno::last();
            verbs::ibv_destroy_comp_channel(channel);
            return Err(why);
        }
        Ok((channel, cq))
    }
}

/// Creates a receive completion queue for an id that has none.
///
/// # Errors
/// The errno of the device.
///
/// # Safety
/// `id` is live and has a device.
pub(crate) unsafe fn ensure_receive_cq(id: &Arc<Id>, entries: u32) -> Result<(), Errno> {
    let at = id.as_c();
    // SAFETY: by the contract above; the members belong to the id, and no concurrent call of the
    // program uses them.
    unsafe {
        if (*at).recv_cq.is_null() {
            ((*at).recv_cq_channel, (*at).recv_cq) = queue((*at).verbs, entries, at)?;
            id.lock().owned_cqs.recv_cq = true;
        }
    }
    Ok(())
}

/// Creates the queue pair of an id from `init`, which names the domain.
///
/// # Safety
/// `id` is live; `init` is readable and writable, with live objects.
pub(crate) unsafe fn create(id: &Arc<Id>, init: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    let at = id.as_c();
    // SAFETY: by the contract above; the members belong to the id, and no concurrent call of the
    // program uses them.
    unsafe {
        if (*at).verbs.is_null() || !(*at).qp.is_null() {
            return Err(Errno::EINVAL);
        }
        let context = (*at).verbs;
        if init.pd.is_null() || init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
            init.pd = (*at).pd;
            init.comp_mask |= IBV_QP_INIT_ATTR_PD;
        } else if (*init.pd).context != context {
            return Err(Errno::EINVAL);
        }
        if init.srq.is_null() {
            init.srq = (*at).srq;
        }
        let kept = ((*at).send_cq, (*at).recv_cq);
        if init.send_cq.is_null() {
            if (*at).send_cq.is_null() {
                ((*at).send_cq_channel, (*at).send_cq) = queue(context, init.cap.max_send_wr, at)?;
                id.lock().owned_cqs.send_cq = true;
            }
            init.send_cq = (*at).send_cq;
        }
        if init.recv_cq.is_null() {
            ensure_receive_cq(id, init.cap.max_recv_wr)?;
            init.recv_cq = (*at).recv_cq;
        }
        if id.qp_type() == IBV_QPT_XRC_RECV && init.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
            let device = id.c().context().ok_or(Errno::EINVAL)?;
            init.xrcd = xrc_domain(device)?.as_c();
            init.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        }
        let plain = init.comp_mask == IBV_QP_INIT_ATTR_PD;
        let qp = if plain {
            let mut old = ibv_qp_init_attr {
                qp_context: init.qp_context,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                cap: init.cap,
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
            };
            let qp = verbs::ibv_create_qp(init.pd, &raw mut old);
            init.cap = old.cap;
            qp
        } else {
            verbs::create_qp_ex(context, init)
        };
        if qp.is_null() {
            let why = Errno::last();
            destroy_queues(id);
            return Err(why);
        }
        ((*at).qp, (*at).pd) = (qp, init.pd);
        if kept.0.is_null() {
            ((*at).send_cq, (*at).send_cq_channel) = (init.send_cq, (*init.send_cq).channel);
        }
        if kept.1.is_null() && !init.recv_cq.is_null() {
            ((*at).recv_cq, (*at).recv_cq_channel) = (init.recv_cq, (*init.recv_cq).channel);
        }
        if let Err(why) = prepare(id) {
            destroy(id);
            return Err(why);
        }
    }
    Ok(())
}

/// Brings a new queue pair to INIT, where receives can be posted; a datagram queue pair to RTS.
fn prepare(id: &Arc<Id>) -> Result<(), Errno> {
    if id.backend() == Backend::Kernel {
        return prepare_by_kernel(id);
    }
    if id.is_datagram() {
        for to in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            let (mut attr, mask) = attributes(id, to)?;
            modify(id, &mut attr, mask)?;
        }
        return Ok(());
    }
    let (mut attr, mask) = attributes(id, IBV_QPS_INIT)?;
    // Remote access is set when the peer is known.
    attr.qp_access_flags = 0;
    modify(id, &mut attr, mask)
}

/// As `prepare`, with the kernel's attributes; ECE options are set before and after.
fn prepare_by_kernel(id: &Arc<Id>) -> Result<(), Errno> {
    kernel::connect::set_peer_ece(id)?;
    let (mut attr, mask) = kernel::connect::first_attributes(id)?;
    modify(id, &mut attr, mask)?;
    if id.is_datagram() {
        change_state(id, IBV_QPS_RTR)?;
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = 0;
        modify(id, &mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN)?;
    }
    kernel::connect::read_ece(id)
}

/// Destroys the completion queues that the library created. With XRC, queue pair and shared receive
/// queue share them, so the last of the two destroys them.
///
/// # Safety
/// The queue pair or the shared receive queue of the id is destroyed, and the remaining object does
/// not use the queues.
pub(crate) unsafe fn destroy_queues(id: &Arc<Id>) {
    let at = id.as_c();
    // SAFETY: the program changes the members only by calls that it does not make concurrently.
    if unsafe { !(*at).qp.is_null() || id.qp_type() == IBV_QPT_XRC_RECV && !(*at).srq.is_null() } {
        return;
    }
    let owned = std::mem::take(&mut id.lock().owned_cqs);
    // SAFETY: made by `queue`, and no object uses the queues any more.
    unsafe {
        if owned.send_cq {
            verbs::ibv_destroy_cq((*at).send_cq);
            verbs::ibv_destroy_comp_channel((*at).send_cq_channel);
        }
        if owned.recv_cq {
            verbs::ibv_destroy_cq((*at).recv_cq);
            verbs::ibv_destroy_comp_channel((*at).recv_cq_channel);
        }
        ((*at).send_cq, (*at).send_cq_channel) = (null_mut(), null_mut());
        ((*at).recv_cq, (*at).recv_cq_channel) = (null_mut(), null_mut());
    }
}

/// Destroys the queue pair of an id, and the completion queues that the library created for it.
///
/// # Safety
/// No thread uses these objects any more.
pub(crate) unsafe fn destroy(id: &Arc<Id>) {
    // SAFETY: by the contract above.
    unsafe {
        let at = id.as_c();
        if !(*at).qp.is_null() {
            super::multicast::detach_all(id);
            verbs::ibv_destroy_qp((*at).qp);
            (*at).qp = null_mut();
        }
        destroy_queues(id);
    }
}

/// The extended attributes that correspond to plain attributes.
pub(crate) fn extended(init: &ibv_qp_init_attr, pd: *mut ibv_pd) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: if pd.is_null() { 0 } else { IBV_QP_INIT_ATTR_PD },
        pd,
        ..Zeroed::zeroed()
    }
}

verb! {
    /// `rdma_create_qp(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `pd` is NULL or live; `init` is NULL, or readable and writable, with
    /// live objects.
    pub(crate) fn create_c(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        init: *mut ibv_qp_init_attr,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            let (id, init) = (id_of(id)?, init.as_mut().ok_or(Errno::EINVAL)?);
            let mut full = extended(init, pd);
            create(&id, &mut full)?;
            init.cap = full.cap;
            init.send_cq = full.send_cq;
            init.recv_cq = full.recv_cq;
        }
        Ok(MinusOne(0))
    }

    /// `rdma_create_qp_ex(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live; `init` is NULL, or readable and writable, with live objects.
    pub(crate) fn create_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe { create(&id_of(id)?, init.as_mut().ok_or(Errno::EINVAL)?)? };
        Ok(MinusOne(0))
    }

    /// `rdma_destroy_qp(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live, and its queue pair is not used afterwards.
    pub(crate) fn destroy_c(id: *mut rdma_cm_id) {
        // SAFETY: by the contract above.
        unsafe { destroy(&id_of(id)?) };
        Ok(())
    }

    /// `rdma_init_qp_attr(3)`: the attributes for the state `attr->qp_state`.
    ///
    /// # Safety
    /// `id` is NULL or live; `attr` and `mask` are NULL, or readable and writable.
    pub(crate) fn init_attr(
        id: *mut rdma_cm_id,
        attr: *mut ibv_qp_attr,
        mask: *mut c_int,
    ) -> MinusOne {
        if attr.is_null() || mask.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: by the contract above; neither is NULL.
        unsafe {
            let id = id_of(id)?;
            let (found, bits) = attributes(&id, (*attr).qp_state)?;
            *attr = ibv_qp_attr { rate_limit: (*attr).rate_limit, ..found };
            *mask = bits.cast_signed();
        }
        Ok(MinusOne(0))
    }
}

verb! {
    /// `rdma_create_srq(3)`. An earlier queue of the id then belongs to the program, as with
    /// upstream's.
    ///
    /// # Safety
    /// `id` is NULL or live; `pd` is NULL or live; `init` is NULL, or readable and writable.
    pub(crate) fn create_srq(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        init: *mut ibv_srq_init_attr,
    ) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            let object = id_of(id)?;
            let at = object.as_c();
            if init.is_null() || (*at).verbs.is_null() {
                return Err(Errno::EINVAL);
            }
            let pd = if pd.is_null() { (*at).pd } else { pd };
            if object.qp_type() == IBV_QPT_XRC_RECV {
                let mut full = ibv_srq_init_attr_ex {
                    srq_context: (*init).srq_context,
                    attr: (*init).attr,
                    comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
                    srq_type: IBV_SRQT_XRC,
                    pd,
                    ..Zeroed::zeroed()
                };
                create_full_srq(&object, &mut full)?;
                (*init).attr = full.attr;
                return Ok(MinusOne(0));
            }
            let srq = verbs::ibv_create_srq(pd, init);
            if srq.is_null() {
                return Err(Errno::last());
            }
            ((*at).srq, (*at).pd) = (srq, pd);
        }
        Ok(MinusOne(0))
    }

    /// `rdma_create_srq_ex(3)`: an XRC queue without a domain and completion queue gets the XRC
    /// domain of ids and the id's receive completion queue.
    ///
    /// # Safety
    /// `id` is NULL or live; `init` is NULL, or readable and writable, with live objects.
    pub(crate) fn create_srq_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> MinusOne {
        // SAFETY: by the contract above.
        unsafe {
            create_full_srq(&id_of(id)?, init.as_mut().ok_or(Errno::EINVAL)?)?;
        }
        Ok(MinusOne(0))
    }

    /// `rdma_destroy_srq(3)`.
    ///
    /// # Safety
    /// `id` is NULL or live, and its shared receive queue is not used afterwards.
    pub(crate) fn destroy_srq(id: *mut rdma_cm_id) {
        // SAFETY: by the contract above.
        unsafe {
            let object = id_of(id)?;
            let at = object.as_c();
            if !(*at).srq.is_null() {
                verbs::ibv_destroy_srq((*at).srq);
                (*at).srq = null_mut();
                destroy_queues(&object);
            }
        }
        Ok(())
    }
}

/// Creates the shared receive queue of an id.
///
/// # Safety
/// `id` is live; the objects of `init` are live.
unsafe fn create_full_srq(id: &Arc<Id>, init: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    let at = id.as_c();
    // SAFETY: by the contract above; the members belong to the id, and no concurrent call of the
    // program uses them.
    unsafe {
        if (*at).verbs.is_null() {
            return Err(Errno::EINVAL);
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
            init.pd = (*at).pd;
            init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && init.srq_type == IBV_SRQT_XRC {
            if init.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || init.xrcd.is_null() {
                let device = id.c().context().ok_or(Errno::EINVAL)?;
                init.xrcd = xrc_domain(device)?.as_c();
            }
            if init.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || init.cq.is_null() {
                ensure_receive_cq(id, init.attr.max_wr)?;
                init.cq = (*at).recv_cq;
            }
            init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        }
        let srq = verbs::create_srq_ex((*at).verbs, init);
        if srq.is_null() {
            return Err(Errno::last());
        }
        ((*at).srq, (*at).pd) = (srq, init.pd);
    }
    Ok(())
}

/// The queue pair of an id that only this library uses (an rsocket's), with its completion queue
/// and the memory of its requests.
#[derive(Debug)]
pub(crate) struct OwnQueuePair {
    id: Arc<Id>,
    pair: QueuePair,
    queue: CompletionQueue,
}

impl OwnQueuePair {
    /// Creates the queue pair of an id with a device; returns it with its inline limit in bytes.
    ///
    /// # Errors
    /// `EINVAL` the id has no device; else the errno of the device.
    pub(crate) fn new(
        id: &Arc<Id>,
        queue: CompletionQueue,
        memory: Vec<Memory>,
        (kind, cap): (ibv_qp_type, ibv_qp_cap),
    ) -> Result<(Self, u32), Errno> {
        let context = id.c().context().ok_or(Errno::EINVAL)?;
        let init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: queue.as_c(),
            recv_cq: queue.as_c(),
            srq: null_mut(),
            cap,
            qp_type: kind,
            sq_sig_all: 1,
        };
        let mut init = extended(&init, id.c().domain().map_or(null_mut(), Domain::as_c));
        // SAFETY: the id and the queue are live. Only this value uses the id's queue pair, and
        // `drop` destroys the queue pair before the rest.
        let pair = unsafe {
            create(id, &mut init)?;
            let qp = NonNull::new(id.c().qp()).ok_or(Errno::EINVAL)?;
            QueuePair::of_id(qp, context, memory)
        };
        Ok((Self { id: Arc::clone(id), pair, queue }, init.cap.max_inline_data))
    }

    pub(crate) const fn id(&self) -> &Arc<Id> {
        &self.id
    }

    pub(crate) const fn pair(&self) -> &QueuePair {
        &self.pair
    }

    pub(crate) const fn queue(&self) -> &CompletionQueue {
        &self.queue
    }
}

impl Drop for OwnQueuePair {
    fn drop(&mut self) {
        // SAFETY: this value owns the queue pair, which no thread uses any more.
        unsafe { destroy(&self.id) };
    }
}
