//! Completion queues: `ibv_create_cq(3)`, `ibv_create_cq_ex(3)`, `ibv_resize_cq(3)`,
//! `ibv_get_cq_event(3)`.

use core::ffi::{c_int, c_void};

use abi::{
    IBV_CREATE_CQ_SUP_WC_FLAGS, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex,
};

use super::{context_of, op, open_context, verb};
use crate::front;
use crate::front::refusal::Refusal;
use crate::sys::fd;
use cface::lock;
use cface::{Errno, MinusOne, Ret};

verb! {
    /// `ibv_create_cq(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open; `channel` is NULL or live.
    pub(crate) fn create_cq as ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let create = op!(context, create_cq)?;
        // SAFETY: `create` is from the table of this context, which is open; the caller's `channel`
        // is NULL or live.
        let cq = unsafe { create(context.as_ptr(), cqe, channel, comp_vector) };
        if !cq.is_null() {
            // SAFETY: fresh and only ours; the channel is live.
            unsafe { front::cq::init(cq, context.as_ptr(), channel, cq_context) };
        }
        Ok(cq)
    }

    /// `verbs_context.create_cq_ex`, behind `ibv_create_cq_ex(3)`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` completion fields unknown to this release.
    ///
    /// # Safety
    /// `context` is NULL or open; `attr` is readable and names live objects.
    pub(crate) fn create_cq_ex as ibv_create_cq_ex(
        context: *mut ibv_context,
        attr: *mut ibv_cq_init_attr_ex,
    ) -> *mut ibv_cq_ex {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        if attr.is_null() {
            return Err(Refusal::of_null(c"cq_attr"));
        }
        // SAFETY: not NULL (checked above), so readable; these members are in every release's
        // structure.
        let (wc_flags, channel, cq_context) =
            unsafe { ((*attr).wc_flags, (*attr).channel, (*attr).cq_context) };
        if wc_flags & !u64::from(IBV_CREATE_CQ_SUP_WC_FLAGS) != 0 {
            let remedy = c"ask for fields of enum ibv_create_cq_wc_flags of this release only";
            return Err(Refusal::new(Errno::EOPNOTSUPP, c"cq_attr->wc_flags", c"has unknown bits", remedy)
                .with_value(wc_flags));
        }
        let create = op!(context, create_cq_ex)?;
        // SAFETY: `create` is from the table of this context; `attr` was readable above, and names
        // live objects.
        let cq = unsafe { create(context.as_ptr(), attr) };
        if !cq.is_null() {
            // SAFETY: fresh and only ours; every ibv_cq_ex starts like an ibv_cq.
            unsafe { front::cq::init(cq.cast(), context.as_ptr(), channel, cq_context) };
        }
        Ok(cq)
    }

    /// `ibv_resize_cq(3)`.
    ///
    /// # Safety
    /// `cq` is NULL or live.
    pub(crate) fn resize_cq as ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
        // SAFETY: `cq` is NULL, which is refused, or live, and a live CQ has an open context.
        let resize = op!(unsafe { context_of(cq)? }, resize_cq)?;
        // SAFETY: `resize` is from the table of the CQ's own context, and the CQ is live.
        Ok(unsafe { resize(cq, cqe) })
    }

    /// `ibv_destroy_cq(3)`.
    ///
    /// # Safety
    /// `cq` is NULL or live, and used no more after success.
    pub(crate) fn destroy_cq as ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
        // SAFETY: `cq` is NULL, which is refused, or live, and a live CQ has an open context.
        let destroy = op!(unsafe { context_of(cq)? }, destroy_cq)?;
        // SAFETY: read before the CQ is gone.
        let channel = unsafe { (*cq).channel };
        // SAFETY: `destroy` is from the table of the CQ's own context; the caller uses `cq` no more
        // after success.
        let result = unsafe { destroy(cq) };
        if result == 0 && !channel.is_null() {
            // SAFETY: a channel outlives its CQs.
            unsafe { front::cq::count(channel, -1) };
        }
        Ok(result)
    }

    /// `ibv_ack_cq_events(3)`.
    ///
    /// # Safety
    /// `cq` is NULL or live.
    pub(crate) fn ack_cq_events as ibv_ack_cq_events(cq: *mut ibv_cq, events: u32) {
        if events != 0 && !cq.is_null() {
            // SAFETY: lock, condition and counter of one live CQ.
            unsafe {
                lock::acknowledge(
                    &raw mut (*cq).mutex,
                    &raw mut (*cq).cond,
                    &raw mut (*cq).comp_events_completed,
                    events,
                );
            }
        }
        Ok(())
    }
}

/// `ibv_get_cq_event(3)`: 0, or -1 with errno (`EAGAIN` on a non-blocking channel, `EINTR`).
///
/// No `verb!`: a thread that sleeps here may be cancelled, and unwinds as it would from read(2).
/// Nothing here panics.
///
/// # Safety
/// `channel` is NULL or live; both results are writable.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> MinusOne {
    // SAFETY: `next_event` has the same contract, and refuses NULL.
    unsafe { next_event(channel, cq, cq_context) }
        .unwrap_or_else(|refusal| MinusOne::fail(refusal.report(c"ibv_get_cq_event")))
}

/// # Safety
/// As `get_cq_event`.
unsafe fn next_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> Result<MinusOne, Refusal> {
    for (argument, is_null) in [
        (c"channel", channel.is_null()),
        (c"cq", cq.is_null()),
        (c"cq_context", cq_context.is_null()),
    ] {
        if is_null {
            return Err(Refusal::of_null(argument));
        }
    }
    // SAFETY: not NULL (checked above), hence a live channel with an open context.
    let (context, fd) = unsafe { (context_of(channel)?, (*channel).fd) };
    if let Some(sleep) = context.private().awaits() {
        // SAFETY: the plugin's own function, or that of the context's layers, with the open context
        // and a descriptor of its channels.
        let error = unsafe { sleep(context.as_ptr(), fd) };
        if error != 0 {
            return Err(Refusal::unexplained(Errno::from_raw(error)));
        }
    }
    let record = fd::read_record::<8>(fd).map_err(Refusal::unexplained)?;
    let found: *mut ibv_cq =
        core::ptr::with_exposed_provenance_mut(u64::from_ne_bytes(record) as usize);
    // SAFETY: the record is the address of a CQ that can't be destroyed before its event is
    // acknowledged.
    let notify = op!(unsafe { context_of(found)? }, cq_event)?;
    // SAFETY: writable by the contract above; the CQ is live (see there).
    unsafe {
        *cq = found;
        *cq_context = (*found).cq_context;
        notify(found);
    }
    Ok(MinusOne(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::generation::NEWEST;
    use crate::front::testing::TestContext;
    use abi::Zeroed;

    fn pipe() -> [c_int; 2] {
        let mut ends = [0; 2];
        // SAFETY: pipe2 fills two descriptors.
        let result = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
        assert_eq!(result, 0);
        ends
    }

    fn write(fd: c_int, bytes: &[u8]) {
        // SAFETY: reads as many bytes as there are.
        let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        assert_eq!(usize::try_from(written), Ok(bytes.len()));
    }

    #[test]
    fn an_event_on_the_channel_names_its_cq_and_counts_when_acknowledged() {
        let test = TestContext::new(NEWEST);
        let context = test.context().as_ptr();
        let [read_end, write_end] = pipe();
        let mut channel = ibv_comp_channel { context, fd: read_end, refcnt: 0 };
        let mut cq = ibv_cq::zeroed();
        let mine: *mut c_void = core::ptr::without_provenance_mut(0x1234);
        // SAFETY: objects of ours; the context is live.
        unsafe { front::cq::init(&raw mut cq, context, &raw mut channel, mine) };
        assert_eq!(channel.refcnt, 1);

        let (mut found, mut found_context) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: objects of ours.
        let none =
            unsafe { get_cq_event(&raw mut channel, &raw mut found, &raw mut found_context) };
        assert_eq!((none, Errno::last()), (MinusOne(-1), Errno::EAGAIN));

        write(write_end, &((&raw mut cq).expose_provenance() as u64).to_ne_bytes());
        // SAFETY: objects of ours.
        let one = unsafe { get_cq_event(&raw mut channel, &raw mut found, &raw mut found_context) };
        assert_eq!((one, found, found_context), (MinusOne(0), &raw mut cq, mine));
        // SAFETY: objects of ours.
        unsafe { ack_cq_events(&raw mut cq, 3) };
        assert_eq!(cq.comp_events_completed, 3);
        fd::close(read_end);
        fd::close(write_end);
    }

    #[test]
    fn an_asynchronous_event_is_read_and_acknowledged_at_its_object() {
        let test = TestContext::new(NEWEST);
        let context = test.context().as_ptr();
        let [read_end, write_end] = pipe();
        let mut cq = ibv_cq::zeroed();
        // SAFETY: objects of ours; the context is live.
        unsafe {
            (*context).async_fd = read_end;
            front::cq::init(&raw mut cq, context, core::ptr::null_mut(), core::ptr::null_mut());
        }
        let mut record = [0; 16];
        record[..8].copy_from_slice(&((&raw mut cq).expose_provenance() as u64).to_ne_bytes());
        record[8..12].copy_from_slice(&abi::IBV_EVENT_CQ_ERR.to_ne_bytes());
        write(write_end, &record);
        let mut event = abi::ibv_async_event::zeroed();
        // SAFETY: objects of ours.
        let result = unsafe { super::super::event::get_async_event(context, &raw mut event) };
        assert_eq!((result, event.event_type), (MinusOne(0), abi::IBV_EVENT_CQ_ERR));
        // SAFETY: the event just read, whose object lives.
        unsafe { super::super::event::ack_async_event(&raw mut event) };
        assert_eq!((cq.async_events_completed, cq.comp_events_completed), (1, 0));
        fd::close(read_end);
        fd::close(write_end);
    }

    #[test]
    fn unknown_completion_fields_are_refused() {
        let test = TestContext::new(NEWEST);
        let mut attr = ibv_cq_init_attr_ex { wc_flags: 1 << 40, ..ibv_cq_init_attr_ex::zeroed() };
        // SAFETY: objects of ours.
        let cq = unsafe { create_cq_ex(test.context().as_ptr(), &raw mut attr) };
        assert!(cq.is_null());
        assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
    }
}
