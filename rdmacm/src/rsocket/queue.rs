//! A completion queue, its channel, and what is posted to queue pairs that use it.

use crate::calls::qp;
use crate::id::Id;
use crate::verbs;
use abi::*;
use cface::Errno;
use ferroverbs_cm::stream::Settings;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

/// Completions that are taken at once.
const BATCH: usize = 32;

/// A completion queue and its channel.
#[derive(Debug)]
pub(super) struct Queue {
    context: *mut ibv_context,
    pub(super) cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    /// The next completion sends an event, or sent one that nobody took yet.
    armed: bool,
}

impl Queue {
    /// One with room for so many completions.
    ///
    /// # Errors
    /// The device's, or the system's.
    ///
    /// # Safety
    /// `context` is never closed.
    pub(super) unsafe fn new(context: *mut ibv_context, entries: u32) -> Result<Self, Errno> {
        let mut queue = Self { context, cq: null_mut(), channel: null_mut(), armed: false };
        // SAFETY: the context is open; what is made is destroyed by `drop`, also after an error.
        unsafe {
            queue.channel = verbs::ibv_create_comp_channel(context);
            if queue.channel.is_null() {
                return Err(Errno::last());
            }
            let fd = queue.fd();
            let flags = libc::fcntl(fd, libc::F_GETFL);
            if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
                return Err(Errno::last());
            }
            let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
            queue.cq = verbs::ibv_create_cq(context, entries, null_mut(), queue.channel, 0);
        }
        if queue.cq.is_null() { Err(Errno::last()) } else { Ok(queue) }
    }

    /// The queue pair of an id, and how many bytes go inside its requests.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Safety
    /// The id is live and knows its device, that of this queue; so is `pd`.
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

    /// The descriptor that becomes readable when a completion comes.
    pub(super) fn fd(&self) -> c_int {
        // SAFETY: live as long as this value.
        unsafe { (*self.channel).fd }
    }

    /// Calls `f` with some of what completed. `false`: nothing did.
    pub(super) fn poll(&self, mut f: impl FnMut(&ibv_wc)) -> bool {
        let mut completions = [const { std::mem::MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        // SAFETY: context and queue are live; there is room for as many as are said.
        let count = unsafe {
            let Some(poll) = (*self.context).ops.poll_cq else { return false };
            poll(self.cq, BATCH as c_int, completions.as_mut_ptr().cast())
        };
        let count = usize::try_from(count).unwrap_or(0);
        for wc in completions.iter().take(count) {
            // SAFETY: the device filled in the first `count`.
            f(unsafe { wc.assume_init_ref() });
        }
        count > 0
    }

    /// Has the next completion make the descriptor readable.
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

    /// Takes the events off the descriptor.
    pub(super) fn hush(&mut self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: channel and queue are live, and the channel does not block.
        unsafe {
            while verbs::ibv_get_cq_event(self.channel, &raw mut cq, &raw mut context) == 0 {
                verbs::ibv_ack_cq_events(cq, 1);
                self.armed = false;
            }
        }
    }

    /// Posts a receive of a queue pair of this context, into `place` if there is one.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Safety
    /// `qp` is live. What `place` names is registered, and nobody uses it until the receive completes.
    pub(super) unsafe fn receive(
        &self,
        qp: *mut ibv_qp,
        name: u64,
        mut place: Option<ibv_sge>,
    ) -> Result<(), Errno> {
        let sg_list = place.as_mut().map_or(null_mut(), std::ptr::from_mut);
        let num_sge = c_int::from(!sg_list.is_null());
        let mut request = ibv_recv_wr { wr_id: name, next: null_mut(), sg_list, num_sge };
        let mut bad = null_mut();
        // SAFETY: context and queue pair are live; the request stays during the call; the caller answers for the place.
        let error = unsafe {
            let post = (*self.context).ops.post_recv.ok_or(Errno::EOPNOTSUPP)?;
            post(qp, &raw mut request, &raw mut bad)
        };
        if error == 0 { Ok(()) } else { Err(Errno::from_raw(error)) }
    }

    /// Posts a request of a queue pair of this context, with what `place` names if there is one.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Safety
    /// `qp` is live. What `place` and `request` name stays until the request completes; during the call where it is inline.
    pub(super) unsafe fn send(
        &self,
        qp: *mut ibv_qp,
        mut request: ibv_send_wr,
        mut place: Option<ibv_sge>,
    ) -> Result<(), Errno> {
        request.sg_list = place.as_mut().map_or(null_mut(), std::ptr::from_mut);
        request.num_sge = c_int::from(place.is_some());
        let mut bad = null_mut();
        // SAFETY: context and queue pair are live; the request stays during the call; the caller answers for what it names.
        let error = unsafe {
            let post = (*self.context).ops.post_send.ok_or(Errno::EOPNOTSUPP)?;
            post(qp, &raw mut request, &raw mut bad)
        };
        if error == 0 { Ok(()) } else { Err(Errno::from_raw(error)) }
    }
}

/// A request without a place.
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
        // SAFETY: both are ours, and no queue pair uses them any more.
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

/// How many requests a queue of the device has at most.
///
/// # Safety
/// `context` is open.
pub(super) unsafe fn most_requests(context: *mut ibv_context, otherwise: u16) -> u16 {
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: the context is open; `attr` is writable.
    let asked = unsafe { verbs::ibv_query_device(context, &raw mut attr) };
    if asked == 0 { u16::try_from(attr.max_qp_wr).unwrap_or(otherwise) } else { otherwise }
}
