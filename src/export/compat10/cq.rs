//! Completion queues of libibverbs 1.0: `ibv_create_cq(3)`, `ibv_poll_cq(3)`,
//! `ibv_get_cq_event(3)`.

use core::ffi::{c_int, c_void};

use abi::{Zeroed, ibv_comp_channel, ibv_context_1_0, ibv_cq, ibv_cq_1_0, ibv_wc};

use super::{NewShadow, end, forward, non_null, real};
use crate::verbs::cq;
use cface::{Errno, MinusOne, Ret, verb};

verb! {
    /// `ibv_create_cq@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `context` is NULL or open; `channel` is NULL or live.
    pub(crate) fn create_cq(
        context: *mut ibv_context_1_0,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq_1_0 {
        let shadow = NewShadow::<ibv_cq_1_0>::new()?;
        let back = shadow.as_ptr().cast();
        // SAFETY: the context behind the shadow is open, `channel` is NULL or live, and `back`
        // lives as long as the CQ.
        let real_cq = non_null(unsafe { cq::create_cq(real(context), cqe, back, channel, comp_vector) })?;
        // SAFETY: fresh.
        let (handle, cqe) = unsafe { ((*real_cq).handle, (*real_cq).cqe) };
        Ok(shadow.finish(ibv_cq_1_0 {
            context,
            cq_context,
            handle,
            cqe,
            real_cq,
            ..ibv_cq_1_0::zeroed()
        }))
    }

    /// `ibv_resize_cq@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `cq` is NULL or live.
    pub(crate) fn resize_cq(cq: *mut ibv_cq_1_0, cqe: c_int) -> c_int {
        // SAFETY: `real` gives NULL, which is refused, or the CQ behind the caller's live shadow.
        let result = unsafe { cq::resize_cq(real(cq), cqe) };
        if result == 0 {
            // SAFETY: NULL would have been refused, so live.
            unsafe { (*cq).cqe = (*(*cq).real_cq).cqe };
        }
        Ok(result)
    }

    /// `ibv_destroy_cq@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `cq` is NULL or live, and used no more after success.
    pub(crate) fn destroy_cq(cq: *mut ibv_cq_1_0) -> c_int {
        // SAFETY: `real` gives NULL, which is refused, or the CQ behind the live shadow; the caller
        // gives it up.
        Ok(end(cq, unsafe { cq::destroy_cq(real(cq)) }))
    }
}

/// `ibv_get_cq_event@IBVERBS_1.0`. A cancellation point as the current version, hence no `verb!`
/// and no panic.
///
/// # Safety
/// `channel` is NULL or live, with CQs of 1.0 only; both results are writable.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq_1_0,
    cq_context: *mut *mut c_void,
) -> MinusOne {
    if cq.is_null() || cq_context.is_null() {
        return MinusOne::fail(Errno::EINVAL);
    }
    let (mut found, mut back) = (core::ptr::null_mut(), core::ptr::null_mut());
    // SAFETY: the caller's channel is NULL, which is refused, or live, and the results are
    // variables of ours.
    let result = unsafe { cq::get_cq_event(channel, &raw mut found, &raw mut back) };
    if result == MinusOne(0) {
        let shadow: *mut ibv_cq_1_0 = back.cast();
        // SAFETY: `create_cq` stored the shadow in the CQ, which lives until its event is
        // acknowledged; the results are writable by the contract above.
        unsafe {
            *cq = shadow;
            *cq_context = (*shadow).cq_context;
        }
    }
    result
}

forward! {
    /// `ibv_ack_cq_events@IBVERBS_1.0`.
    fn ack_cq_events(cq: *mut ibv_cq_1_0, events: u32) => cq::ack_cq_events;
}

/// The shadow of a CQ; NULL of NULL.
///
/// # Safety
/// `cq` is NULL or a live CQ that [`create_cq`] made.
pub(super) unsafe fn shadow_of(cq: *mut ibv_cq) -> *mut ibv_cq_1_0 {
    if cq.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: not NULL (checked above), so a live CQ of 1.0: `create_cq` stored the shadow in its
    // `cq_context`.
    unsafe { (*cq).cq_context.cast() }
}

/// `ibv_context.ops.poll_cq` of 1.0, behind the inline `ibv_poll_cq(3)`.
///
/// # Safety
/// `cq` is live; `wc` is writable for `num_entries` completions.
pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq_1_0,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // SAFETY: the shadow is live, hence also CQ and context; the context's own `poll` is called,
    // with the caller's `wc`.
    unsafe {
        let real_cq = (*cq).real_cq;
        match (*(*real_cq).context).ops.poll_cq {
            Some(poll) => poll(real_cq, num_entries, wc),
            None => -1,
        }
    }
}

/// `ibv_context.ops.req_notify_cq` of 1.0, behind the inline `ibv_req_notify_cq(3)`.
///
/// # Safety
/// `cq` is live.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq_1_0, solicited_only: c_int) -> c_int {
    // SAFETY: the shadow is live, hence also CQ and context; `notify` is the provider's own
    // operation.
    unsafe {
        let real_cq = (*cq).real_cq;
        match (*(*real_cq).context).ops.req_notify_cq {
            Some(notify) => notify(real_cq, solicited_only),
            None => Errno::EOPNOTSUPP.raw(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{device, fake};
    use super::*;
    use crate::sys::fd;
    use crate::verbs::channel;

    #[test]
    fn a_completion_queue_of_1_0_is_polled_through_its_context() {
        let context = fake::open();
        let mine: *mut c_void = core::ptr::without_provenance_mut(0x1234);
        let mut wc = ibv_wc::zeroed();
        // SAFETY: objects of ours.
        unsafe {
            let cq = create_cq(context, 10, mine, core::ptr::null_mut(), 2);
            assert_eq!(((*cq).context, (*cq).cq_context), (context, mine));
            assert_eq!(((*cq).handle, (*cq).cqe), (fake::HANDLE, 11));
            assert_eq!((*(*cq).real_cq).cq_context, cq.cast());
            let (poll, notify) = ((*context).ops.poll_cq, (*context).ops.req_notify_cq);
            assert_eq!(poll.map(|poll| poll(cq, 5, &raw mut wc)), Some(1));
            assert_eq!(wc.wr_id, 0x77);
            assert_eq!(notify.map(|notify| notify(cq, 1)), Some(0));
            assert_eq!(resize_cq(cq, 20), 0);
            assert_eq!((*cq).cqe, 21);
            fake::fail(Errno::EINVAL);
            assert_eq!(resize_cq(cq, 30), libc::EINVAL);
            assert_eq!((*cq).cqe, 21);
            assert_eq!(fake::queried(), ["create_cq 10 2", "poll_cq 0x101 5", "req_notify_cq 1"]);
            fake::fail(Errno::EBUSY);
            assert_eq!(destroy_cq(cq), libc::EBUSY);
            assert_eq!(destroy_cq(cq), 0);
            fake::fail(Errno::ENOMEM);
            assert!(create_cq(context, 10, mine, core::ptr::null_mut(), 2).is_null());
            assert_eq!(Errno::last(), Errno::ENOMEM);
            assert_eq!(device::close_device(context), 0);
            assert_eq!(resize_cq(core::ptr::null_mut(), 1), libc::EINVAL);
            assert_eq!(destroy_cq(core::ptr::null_mut()), libc::EINVAL);
        }
    }

    #[test]
    fn a_completion_event_names_the_queue_of_1_0() {
        let context = fake::open();
        let mine: *mut c_void = core::ptr::without_provenance_mut(0x1234);
        let [read_end, write_end] = fake::pipe();
        let (mut found, mut found_context) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: objects of ours.
        unsafe {
            let mut channel =
                ibv_comp_channel { context: (*context).real_context, fd: read_end, refcnt: 0 };
            let cq = create_cq(context, 10, mine, &raw mut channel, 0);
            assert_eq!(channel.refcnt, 1);
            let none = get_cq_event(&raw mut channel, &raw mut found, &raw mut found_context);
            assert_eq!((none, Errno::last()), (MinusOne(-1), Errno::EAGAIN));
            assert!(found.is_null());

            fake::write(write_end, &((*cq).real_cq.expose_provenance() as u64).to_ne_bytes());
            let one = get_cq_event(&raw mut channel, &raw mut found, &raw mut found_context);
            assert_eq!((one, found, found_context), (MinusOne(0), cq, mine));
            ack_cq_events(cq, 1);
            assert_eq!((*(*cq).real_cq).comp_events_completed, 1);
            assert_eq!(destroy_cq(cq), 0);
            assert_eq!(channel.refcnt, 0);
            assert_eq!(device::close_device(context), 0);
        }
        fd::close(read_end);
        fd::close(write_end);
    }

    #[test]
    fn a_completion_channel_can_be_asked_for_on_a_context_of_1_0() {
        let context = fake::open();
        // SAFETY: an open context, which the function takes for a current one; no kernel device
        // exists.
        unsafe {
            assert!(channel::create(context.cast()).is_null());
            assert_eq!(Errno::last().raw(), libc::EBADF);
            assert_eq!(device::close_device(context), 0);
        }
    }
}
