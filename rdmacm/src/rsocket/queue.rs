//! A completion queue with its channel, and posting to the queue pairs that use it.
//! Both kinds of endpoints send, receive and wait through here.

use crate::calls::qp;
use crate::core::id::Id;
use crate::sys::{descriptors, verbs};
use abi::*;
use cface::Errno;
use ferroverbs_cm::stream::Settings;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

/// The number of completions that one poll takes.
const BATCH: usize = 32;

/// A completion queue and its channel.
#[derive(Debug)]
pub(super) struct Queue {
    context: *mut ibv_context,
    pub(super) cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    /// True: the next completion raises an event, or an event waits on the channel.
    armed: bool,
}

impl Queue {
    /// A queue with room for `entries` completions.
    ///
    /// # Errors
    /// The errno of the device or system.
    ///
    /// # Safety
    /// `context` is never closed.
    pub(super) unsafe fn new(context: *mut ibv_context, entries: u32) -> Result<Self, Errno> {
        let mut queue = Self { context, cq: null_mut(), channel: null_mut(), armed: false };
        // SAFETY: the context is open; `drop` destroys new objects, also after an error.
        unsafe {
            queue.channel = verbs::ibv_create_comp_channel(context);
            if queue.channel.is_null() {
                return Err(Errno::last());
            }
            descriptors::set_nonblocking(queue.fd())?;
            let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
            queue.cq = verbs::ibv_create_cq(context, entries, null_mut(), queue.channel, 0);
        }
        if queue.cq.is_null() { Err(Errno::last()) } else { Ok(queue) }
    }

    /// Creates the queue pair of an id; returns it with its inline limit in bytes.
    ///
    /// # Errors
    /// The errno of the device.
    ///
    /// # Safety
    /// The id is live and on the device of this queue; `pd` is live.
    pub(super) unsafe fn pair(
        &self,
        id: &Arc<Id>,
        pd: *mut ibv_pd,
        kind: ibv_qp_type,
        sizes: &Settings,
    ) -> Result<(*mut ibv_qp, u32), Errno> {
        let init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: sizes.send_queue.into(),
                max_recv_wr: sizes.receive_queue.into(),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: sizes.inline,
            },
            qp_type: kind,
            sq_sig_all: 1,
        };
        let mut init = qp::extended(&init, pd);
        // SAFETY: by the contract above; the queue is live.
        unsafe {
            qp::create(id, &mut init)?;
            Ok(((*id.as_c()).qp, init.cap.max_inline_data))
        }
    }

    /// The descriptor that is readable after a completion.
    pub(super) fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as this value.
        unsafe { (*self.channel).fd }
    }

    /// Calls `f` with each of the next completions. Returns `false` without any.
    pub(super) fn poll(&self, mut f: impl FnMut(&ibv_wc)) -> bool {
        let mut completions = [const { std::mem::MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        // SAFETY: context and queue are live; the array has `BATCH` entries.
        let count = unsafe {
            let Some(poll) = (*self.context).ops.poll_cq else { return false };
            poll(self.cq, BATCH as c_int, completions.as_mut_ptr().cast())
        };
        let count = usize::try_from(count).unwrap_or(0);
        for wc in completions.iter().take(count) {
            // SAFETY: the device filled in the first `count` entries.
            f(unsafe { wc.assume_init_ref() });
        }
        count > 0
    }

    /// Arms the queue, so that the next completion makes the descriptor readable.
    pub(super) fn arm(&mut self) {
        if self.armed {
            return;
        }
        // SAFETY: context and queue are live.
        unsafe {
            if let Some(notify) = (*self.context).ops.req_notify_cq {
                notify(self.cq, 0);
            }
        }
        self.armed = true;
    }

    /// Takes all events off the descriptor.
    pub(super) fn drain_events(&mut self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: channel and queue are live, and the channel is non-blocking.
        unsafe {
            while verbs::ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) == 0 {
                verbs::ibv_ack_cq_events(cq, 1);
                self.armed = false;
            }
        }
    }

    /// Posts a receive of a queue pair of this context, with optional memory.
    ///
    /// # Errors
    /// The errno of the device.
    ///
    /// # Safety
    /// `qp` is live. The memory of `sge` is registered, and unused until the receive completes.
    pub(super) unsafe fn receive(
        &self,
        qp: *mut ibv_qp,
        name: u64,
        mut sge: Option<ibv_sge>,
    ) -> Result<(), Errno> {
        let sg_list = sge.as_mut().map_or(null_mut(), std::ptr::from_mut);
        let num_sge = c_int::from(!sg_list.is_null());
        let mut request = ibv_recv_wr { wr_id: name, next: null_mut(), sg_list, num_sge };
        let mut bad = null_mut();
        // SAFETY: context and queue pair are live; the request lives during the call; `sge` is
        // valid by contract.
        let error = unsafe {
            let post = (*self.context).ops.post_recv.ok_or(Errno::EOPNOTSUPP)?;
            post(qp, &raw mut request, &raw mut bad)
        };
        if error == 0 { Ok(()) } else { Err(Errno::from_raw(error)) }
    }

    /// Posts a send request of a queue pair of this context, with optional memory.
    ///
    /// # Errors
    /// The errno of the device.
    ///
    /// # Safety
    /// `qp` is live. The memory of `sge` and `request` lives until the request completes; inline
    /// data live during the call.
    pub(super) unsafe fn send(
        &self,
        qp: *mut ibv_qp,
        mut request: ibv_send_wr,
        mut sge: Option<ibv_sge>,
    ) -> Result<(), Errno> {
        request.sg_list = sge.as_mut().map_or(null_mut(), std::ptr::from_mut);
        request.num_sge = c_int::from(sge.is_some());
        let mut bad = null_mut();
        // SAFETY: context and queue pair are live; the request lives during the call; its memory is
        // valid by contract.
        let error = unsafe {
            let post = (*self.context).ops.post_send.ok_or(Errno::EOPNOTSUPP)?;
            post(qp, &raw mut request, &raw mut bad)
        };
        if error == 0 { Ok(()) } else { Err(Errno::from_raw(error)) }
    }
}

/// A send request without memory.
pub(super) const fn request(
    name: u64,
    opcode: ibv_wr_opcode,
    flags: u32,
    wr: ibv_send_wr_wr,
) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: name,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        opcode,
        send_flags: flags,
        imm: ibv_send_wr_imm { imm_data: 0 },
        wr,
        qp_type: ibv_send_wr_qp_type { xrc: ibv_send_wr_xrc { remote_srqn: 0 } },
        tail: ibv_send_wr_tail { tso: ibv_send_wr_tso { hdr: null_mut(), hdr_sz: 0, mss: 0 } },
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: this value owns both, and no queue pair uses them any more.
        unsafe {
            if !self.cq.is_null() {
                verbs::ibv_destroy_cq(self.cq);
            }
            if !self.channel.is_null() {
                verbs::ibv_destroy_comp_channel(self.channel);
            }
        }
    }
}

/// The largest number of requests in a queue of the device.
///
/// # Safety
/// `context` is open.
pub(super) unsafe fn most_requests(context: *mut ibv_context, otherwise: u16) -> u16 {
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: the context is open; `attr` is writable.
    let asked = unsafe { verbs::ibv_query_device(context, &raw mut attr) };
    if asked == 0 { u16::try_from(attr.max_qp_wr).unwrap_or(otherwise) } else { otherwise }
}
