//! Objects of the adapter behind the objects of an emulated device: the entry points of `ops`,
//! called with C structures of this file, and owners that destroy each object once.
//!
//! An owner keeps what its object needs: a QP its domain and queues, a domain its context. All
//! owners of a context are used under the lock of the emulated context.
//!
//! Map of this file: `Device`; the owners, by `owner!`; their methods in the same order;
//! `SendRequest`; `Buffers`; bytes of received messages.

use super::super::{ah, context, cq, mr, pd, post, qp, query, srq};
use crate::engine::queues::channel::Channel;
use crate::ops::state::Context;
use abi::*;
use soft_semantics::emulated::EmulatedDevice;
use soft_sys::Errno;
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The object that an entry point returned.
fn non_null<T>(object: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(object).ok_or_else(Errno::last)
}

fn check_errno(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw(result)) }
}

/// A context of the adapter, and the channel that all CQs of the context report to.
#[derive(Debug)]
pub(super) struct Device {
    context: NonNull<ibv_context>,
    channel: Box<ibv_comp_channel>,
    emulated: EmulatedDevice,
}

// SAFETY: the pointers are bound to no thread.
unsafe impl Send for Device {}
// SAFETY: the entry points of the adapter may be called by any thread.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the adapter for a context of `device`, which the adapter announced.
    ///
    /// # Errors
    /// Of ibv_open_device(3) and ibv_create_comp_channel(3).
    ///
    /// # Safety
    /// `device` is a live device of libibverbs.
    pub(super) unsafe fn open(
        device: *mut ibv_device,
        emulated: EmulatedDevice,
    ) -> Result<Arc<Self>, Errno> {
        // SAFETY: per the caller.
        let opened = unsafe { context::open(device, None)? };
        // SAFETY: a context that was just made, of which the address of a member is taken.
        let context = unsafe { &raw mut (*opened).context };
        // SAFETY: an open context.
        let fd = unsafe { context::create_comp_channel(context) };
        if fd < 0 {
            // SAFETY: nobody else has the context.
            unsafe { context::free_context(context) };
            return Err(Errno::from_raw(-fd));
        }
        let channel = Box::new(ibv_comp_channel { context, fd, refcnt: 0 });
        Ok(Arc::new(Self { context: non_null(context)?, channel, emulated }))
    }

    /// The device of the vendor.
    pub(super) const fn emulated(&self) -> EmulatedDevice {
        self.emulated
    }

    /// The state of the context.
    pub(super) fn state(&self) -> &Context {
        // SAFETY: open until `self` is dropped.
        unsafe { Context::of(self.context.as_ptr()) }
    }

    /// The descriptor that is readable when a CQ has an event.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open until `self` is dropped.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd) }
    }

    /// Reads an entry of the adapter's GID table, as ibv_query_gid_ex(3) does.
    ///
    /// # Errors
    /// `EINVAL` beyond the table; `ENODATA` an empty entry.
    pub(super) fn query_gid(&self, port: u32, index: u32) -> Result<ibv_gid_entry, Errno> {
        let mut entry: ibv_gid_entry = Zeroed::zeroed();
        let context = self.context.as_ptr();
        // SAFETY: an open context, and a local entry.
        check_errno(unsafe { query::query_gid(context, port, index, &raw mut entry) })?;
        Ok(entry)
    }

    /// The CQ of the next event, as [`Cq::key`]; None: no event is waiting.
    pub(super) fn take_event(&self) -> Option<usize> {
        let channel: Arc<Channel> = self.state().channel(self.channel.fd)?;
        // A full socket may have left events behind.
        channel.retry();
        let mut key = [0; 8];
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the socket of the channel, and room for a record.
        let got = unsafe { libc::recv(self.channel.fd, key.as_mut_ptr().cast(), key.len(), flags) };
        (got == 8).then(|| u64::from_ne_bytes(key) as usize)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all objects of the context are gone, because each keeps `self`.
        unsafe {
            context::destroy_comp_channel(self.context.as_ptr(), self.channel.fd);
            context::free_context(self.context.as_ptr());
        }
    }
}

/// Declares an owner of a C object, with the entry point that destroys the object.
macro_rules! owner {
    ($(#[$doc:meta])* $name:ident: $object:ty, $keeps:ty, $destroy:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name {
            object: NonNull<$object>,
            /// What the object needs.
            #[allow(dead_code, reason = "held until the object is destroyed")]
            keeps: $keeps,
        }

        // SAFETY: the pointer is bound to no thread.
        unsafe impl Send for $name {}
        // SAFETY: the entry points of the adapter may be called by any thread.
        unsafe impl Sync for $name {}

        impl $name {
            pub(super) const fn as_ptr(&self) -> *mut $object {
                self.object.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the object lives, nobody uses it any more, and what it needs is kept.
                // The call succeeds: each object that needed this object is gone.
                let _ = unsafe { $destroy(self.object.as_ptr()) };
            }
        }
    };
}

owner! {
    /// A protection domain.
    Pd: ibv_pd, Arc<Device>, pd::dealloc_pd
}

owner! {
    /// A memory region.
    Mr: verbs_mr, Arc<Pd>, dereg_mr
}

owner! {
    /// An address handle.
    Ah: ibv_ah, Arc<Pd>, ah::destroy_ah
}

owner! {
    /// A completion queue.
    Cq: ibv_cq, Arc<Device>, cq::destroy_cq
}

owner! {
    /// A shared receive queue.
    Srq: ibv_srq, Arc<Pd>, srq::destroy_srq
}

owner! {
    /// A queue pair.
    Qp: ibv_qp, QpNeeds, qp::destroy_qp
}

/// What a QP uses.
#[derive(Debug)]
#[allow(dead_code, reason = "held until the QP is dropped")]
pub(super) struct QpNeeds {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
}

/// # Safety
/// `mr` is a live region that is not used any more.
unsafe fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    // SAFETY: per the caller.
    unsafe { mr::dereg_mr(mr) }
}

impl Pd {
    pub(super) fn new(device: &Arc<Device>) -> Result<Arc<Self>, Errno> {
        // SAFETY: an open context.
        let object = non_null(unsafe { pd::alloc_pd(device.context.as_ptr()) })?;
        Ok(Arc::new(Self { object, keeps: Arc::clone(device) }))
    }
}

impl Mr {
    /// Registers memory of the program.
    pub(super) fn new(
        pd: &Arc<Pd>,
        start: u64,
        length: u64,
        iova: u64,
        access: u32,
    ) -> Result<Self, Errno> {
        let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(start as usize);
        let access = access.cast_signed();
        // SAFETY: a live domain. The adapter looks at each access whether the memory is mapped.
        let object = unsafe { mr::reg_mr(pd.as_ptr(), start, length, iova, access) };
        Ok(Self { object: non_null(object)?.cast(), keeps: Arc::clone(pd) })
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: live; constant since creation.
        unsafe { (*self.as_ptr()).ibv_mr.lkey }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.as_ptr()).ibv_mr.rkey }
    }
}

impl Ah {
    pub(super) fn new(pd: &Arc<Pd>, mut address: ibv_ah_attr) -> Result<Arc<Self>, Errno> {
        // SAFETY: a live domain and a local structure.
        let object = non_null(unsafe { ah::create_ah(pd.as_ptr(), &raw mut address) })?;
        Ok(Arc::new(Self { object, keeps: Arc::clone(pd) }))
    }

    /// Whether the address leads to another host.
    pub(super) fn is_elsewhere(&self) -> bool {
        // SAFETY: live.
        unsafe { ah::Ah::of(self.as_ptr()) }.elsewhere
    }
}

impl Cq {
    /// A CQ with events to the channel of the context; armed.
    pub(super) fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, Errno> {
        let channel = (&raw const *device.channel).cast_mut();
        let entries = c_int::try_from(entries).map_err(|_| Errno::EINVAL)?;
        // SAFETY: an open context and a channel of it, which is only read.
        let object = unsafe { cq::create_cq(device.context.as_ptr(), entries, channel, 0) };
        let object = non_null(object)?;
        // SAFETY: nobody else knows the CQ. Mutex and condition stay in place.
        unsafe {
            let cq = object.as_ptr();
            (*cq).context = device.context.as_ptr();
            (*cq).channel = channel;
            libc::pthread_mutex_init(&raw mut (*cq).mutex, std::ptr::null());
            libc::pthread_cond_init(&raw mut (*cq).cond, std::ptr::null());
        }
        let cq = Arc::new(Self { object, keeps: Arc::clone(device) });
        cq.arm();
        Ok(cq)
    }

    /// What events name.
    pub(super) fn key(&self) -> usize {
        self.as_ptr().addr()
    }

    /// Asks for an event at the next completion.
    pub(super) fn arm(&self) {
        // SAFETY: live.
        unsafe { cq::req_notify_cq(self.as_ptr(), 0) };
    }

    /// Acknowledges an event of the CQ that was taken, and arms the CQ.
    pub(super) fn acknowledge(&self) {
        // SAFETY: live, and only used under the lock of the emulated context.
        unsafe {
            cq::cq_event(self.as_ptr());
            (*self.as_ptr()).comp_events_completed += 1;
        }
        self.arm();
    }

    /// Takes completions; the number of those in `found`.
    pub(super) fn poll<const N: usize>(&self, found: &mut [ibv_wc; N]) -> usize {
        // SAFETY: live, and room for `N` completions.
        let got = unsafe { cq::poll_cq(self.as_ptr(), N as c_int, found.as_mut_ptr()) };
        usize::try_from(got).unwrap_or(0)
    }
}

impl Srq {
    pub(super) fn new(pd: &Arc<Pd>, max_wr: u32, max_sge: u32) -> Result<Arc<Self>, Errno> {
        let mut init: ibv_srq_init_attr_ex = Zeroed::zeroed();
        init.attr.max_wr = max_wr;
        init.attr.max_sge = max_sge;
        init.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
        init.srq_type = IBV_SRQT_BASIC;
        init.pd = pd.as_ptr();
        let context = pd.keeps.context.as_ptr();
        // SAFETY: an open context, and a local structure that names a live domain.
        let object = non_null(unsafe { srq::create_srq_ex(context, &raw mut init) })?;
        Ok(Arc::new(Self { object, keeps: Arc::clone(pd) }))
    }

    /// Receives of the queue at most.
    pub(super) fn max_wr(&self) -> u32 {
        let mut attr: ibv_srq_attr = Zeroed::zeroed();
        // SAFETY: a live queue and a local structure.
        unsafe { srq::query_srq(self.as_ptr(), &raw mut attr) };
        attr.max_wr
    }

    /// Posts a receive.
    pub(super) fn post(&self, id: u64, list: &mut [ibv_sge]) -> Result<(), Errno> {
        let mut request = receive_of(id, list);
        let mut bad = null_mut();
        // SAFETY: a live queue, and a local request with its list.
        check_errno(unsafe { srq::post_srq_recv(self.as_ptr(), &raw mut request, &raw mut bad) })
    }
}

fn receive_of(id: u64, list: &mut [ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id: id,
        next: null_mut(),
        sg_list: list.as_mut_ptr(),
        num_sge: list.len() as c_int,
    }
}

impl Qp {
    /// A QP of `kind` (`IBV_QPT_*`). With `has_low_number` its number maps to one of the device.
    pub(super) fn new(
        kind: u32,
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        srq: Option<&Arc<Srq>>,
        cap: ibv_qp_cap,
        has_low_number: bool,
    ) -> Result<Self, Errno> {
        let init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: srq.map_or(null_mut(), |srq| srq.as_ptr()),
            cap,
            qp_type: kind,
            sq_sig_all: 0,
        };
        // SAFETY: live objects, which the owner keeps.
        let object = unsafe { qp::create_for_emulation(pd.as_ptr(), &init, has_low_number)? };
        let keeps = QpNeeds { pd: Arc::clone(pd), cq: Arc::clone(cq), srq: srq.cloned() };
        Ok(Self { object: non_null(object)?, keeps })
    }

    /// The number in the adapter.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: live; constant since creation.
        unsafe { (*self.as_ptr()).qp_num }
    }

    pub(super) fn modify(&self, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        let attr = (&raw const *attr).cast_mut();
        // SAFETY: a live QP; the structure is only read.
        check_errno(unsafe { qp::modify_qp(self.as_ptr(), attr, mask.cast_signed()) })
    }

    /// The state, `IBV_QPS_*`.
    pub(super) fn state(&self) -> u32 {
        let mut attr: ibv_qp_attr = Zeroed::zeroed();
        let mut init: ibv_qp_init_attr = Zeroed::zeroed();
        let mask = IBV_QP_STATE.cast_signed();
        // SAFETY: a live QP and local structures.
        unsafe { qp::query_qp(self.as_ptr(), &raw mut attr, mask, &raw mut init) };
        attr.qp_state
    }

    /// Posts a request.
    pub(super) fn post_send(&self, request: &mut SendRequest<'_>) -> Result<(), Errno> {
        let mut bad = null_mut();
        // SAFETY: a live QP, and a request whose list `SendRequest` borrows.
        check_errno(unsafe { post::post_send(self.as_ptr(), &raw mut request.wr, &raw mut bad) })
    }

    /// Posts a receive.
    pub(super) fn post_recv(&self, id: u64, list: &mut [ibv_sge]) -> Result<(), Errno> {
        let mut request = receive_of(id, list);
        let mut bad = null_mut();
        // SAFETY: a live QP, and a local request with its list.
        check_errno(unsafe { post::post_recv(self.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// The protection domain.
    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.keeps.pd
    }
}

/// A request of a send queue, with its list of segments.
pub(super) struct SendRequest<'a> {
    wr: ibv_send_wr,
    _list: &'a mut [ibv_sge],
}

impl<'a> SendRequest<'a> {
    /// A request of `opcode` (`IBV_WR_*`) over the segments of `list`: signalled, unless
    /// [`Self::flags`] says otherwise.
    pub(super) fn new(id: u64, opcode: u32, list: &'a mut [ibv_sge]) -> Self {
        let mut wr: ibv_send_wr = Zeroed::zeroed();
        wr.wr_id = id;
        wr.opcode = opcode;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.sg_list = list.as_mut_ptr();
        wr.num_sge = list.len() as c_int;
        Self { wr, _list: list }
    }

    /// Replaces the flags, `IBV_SEND_*`.
    pub(super) fn flags(&mut self, flags: u32) -> &mut Self {
        self.wr.send_flags = flags;
        self
    }

    /// The remote word of an atomic, with the addend or the expected value, and the new value.
    pub(super) fn atomic(&mut self, remote: (u64, u32), compare_add: u64, swap: u64) -> &mut Self {
        let (remote_addr, rkey) = remote;
        let atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
        self.wr.wr = ibv_send_wr_wr { atomic };
        self
    }

    /// Copies the segments when the request is posted; their keys do not count.
    pub(super) fn inline(&mut self) -> &mut Self {
        self.wr.send_flags |= IBV_SEND_INLINE;
        self
    }

    /// Immediate data in host order.
    pub(super) fn immediate(&mut self, immediate: u32) -> &mut Self {
        self.wr.imm = ibv_send_wr_imm { imm_data: immediate.to_be() };
        self
    }

    /// The remote range of an RDMA request.
    pub(super) fn remote(&mut self, remote_addr: u64, rkey: u32) -> &mut Self {
        self.wr.wr = ibv_send_wr_wr { rdma: ibv_send_wr_rdma { remote_addr, rkey } };
        self
    }

    /// The destination of a datagram.
    pub(super) fn set_destination(
        &mut self,
        ah: &Ah,
        remote_qpn: u32,
        remote_qkey: u32,
    ) -> &mut Self {
        let ah = ah.as_ptr();
        self.wr.wr = ibv_send_wr_wr { ud: ibv_send_wr_ud { ah, remote_qpn, remote_qkey } };
        self
    }
}

/// Closes a descriptor that no owner closes.
pub(super) fn close(fd: RawFd) {
    // SAFETY: the caller owns the descriptor and gives it up.
    unsafe { libc::close(fd) };
}

/// Registered memory for the messages that a QP receives.
#[derive(Debug)]
pub(super) struct Buffers<const LEN: usize> {
    // Dropped before the memory.
    mr: Mr,
    memory: Box<[std::cell::UnsafeCell<[u8; LEN]>]>,
}

// SAFETY: `read` copies a buffer that no request names; others are not accessed.
unsafe impl<const LEN: usize> Sync for Buffers<LEN> {}

impl<const LEN: usize> Buffers<LEN> {
    pub(super) fn new(pd: &Arc<Pd>, count: usize) -> Result<Self, Errno> {
        let memory: Box<[_]> = (0..count).map(|_| std::cell::UnsafeCell::new([0; LEN])).collect();
        let (start, length) = (memory.as_ptr().expose_provenance() as u64, count * LEN);
        let mr = Mr::new(pd, start, length as u64, start, IBV_ACCESS_LOCAL_WRITE)?;
        Ok(Self { mr, memory })
    }

    pub(super) fn count(&self) -> usize {
        self.memory.len()
    }

    /// The segment of a buffer, for a receive.
    pub(super) fn segment(&self, index: usize) -> Option<ibv_sge> {
        let addr = self.memory.get(index)?.get().expose_provenance() as u64;
        Some(ibv_sge { addr, length: LEN as u32, lkey: self.mr.lkey() })
    }

    /// The bytes of a buffer, whose receive has completed.
    pub(super) fn read(&self, index: usize) -> Option<[u8; LEN]> {
        let buffer = self.memory.get(index)?;
        // SAFETY: the adapter writes into buffers of posted receives only.
        Some(unsafe { buffer.get().read() })
    }
}

/// The first bytes of a receive whose message has arrived: as many as `bytes` has. False: the
/// program unmapped the memory, or the receive is shorter.
pub(super) fn read_received(list: &[ibv_sge], bytes: &mut [u8]) -> bool {
    let mut room = bytes;
    for sge in list {
        let len = room.len().min(sge.length as usize);
        let (now, rest) = room.split_at_mut(len);
        let from = std::ptr::with_exposed_provenance(sge.addr as usize);
        // SAFETY: memory of the program, which may be unmapped, and local bytes.
        if unsafe { soft_memory::guard::copy(from, now.as_mut_ptr(), len) }.is_err() {
            return false;
        }
        room = rest;
    }
    room.is_empty()
}

/// The immediate data of a received message, in host order.
pub(super) fn immediate_of(wc: &ibv_wc) -> Option<u32> {
    // SAFETY: both views of the union are integers.
    (wc.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(unsafe { wc.imm.imm_data }))
}
