//! Asynchronous events: `ibv_get_async_event(3)`, `ibv_ack_async_event(3)`. The kernel's record
//! names an object by the pointer that its creation passed; the record becomes an event here.

use abi::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
    IBV_EVENT_WQ_FATAL, ibv_async_event, ibv_async_event_element, ibv_context, ibv_event_type,
};

use super::{op, open_context, verb};
use crate::front::refusal::Refusal;
use crate::sys::fd;
use cface::lock::acknowledge;
use cface::{MinusOne, Ret};
use probe::probe;

/// The kind of object that an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Cq,
    Qp,
    Srq,
    Wq,
    /// A port, or the device; also what a newer kernel may add.
    Port,
}

impl Subject {
    /// The object named by an event of this type.
    pub(crate) fn of(event_type: ibv_event_type) -> Self {
        match event_type {
            IBV_EVENT_CQ_ERR => Self::Cq,
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => Self::Qp,
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => Self::Srq,
            IBV_EVENT_WQ_FATAL => Self::Wq,
            _ => Self::Port,
        }
    }
}

/// `ibv_get_async_event(3)`: 0, or -1 with errno (`EAGAIN` on a non-blocking descriptor).
///
/// No `verb!`: a thread that sleeps here may be cancelled, and unwinds as it would from read(2).
/// Nothing here panics, or has a destructor.
///
/// # Safety
/// `context` is NULL or open; `event` is writable.
pub(crate) unsafe extern "C-unwind" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> MinusOne {
    // SAFETY: `next_event` has the same contract, and refuses NULL.
    unsafe { next_event(context, event) }
        .unwrap_or_else(|refusal| MinusOne::fail(refusal.report(c"ibv_get_async_event")))
}

/// # Safety
/// As `get_async_event`.
unsafe fn next_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> Result<MinusOne, Refusal> {
    // SAFETY: `context` is NULL, which is refused, or open during this call.
    let context = unsafe { open_context(context)? };
    if event.is_null() {
        return Err(Refusal::of_null(c"event"));
    }
    // SAFETY: the context is open (see above), and the descriptor does not change while it is.
    let async_fd = unsafe { (*context.as_ptr()).async_fd };
    // SAFETY: `event` is not NULL (checked above), so the caller's to be written.
    unsafe { *event = decode(fd::read_record::<16>(async_fd).map_err(Refusal::unexplained)?) };
    let notify = op!(context, async_event)?;
    // SAFETY: the provider of this open context reads the event stored above, and may change it.
    unsafe { notify(context.as_ptr(), event) };
    // SAFETY: `event` is the caller's, and was written above.
    let kind = unsafe { (*event).event_type };
    probe!(libibverbs, async_event, context.as_ptr(), kind);
    Ok(MinusOne(0))
}

verb! {
    /// `ibv_ack_async_event(3)`: lets the object of the event be destroyed.
    ///
    /// # Safety
    /// `event` is NULL or an event from `ibv_get_async_event`, acknowledged once.
    pub(crate) fn ack_async_event as ibv_ack_async_event(event: *mut ibv_async_event) {
        // SAFETY: `event` is NULL, which is refused, or what `get_async_event` filled.
        let event = unsafe { event.as_ref() }.ok_or(Refusal::of_null(c"event"))?;
        // SAFETY: the type tells the valid view; the object lives until its event is acknowledged.
        unsafe {
            match Subject::of(event.event_type) {
                Subject::Cq => {
                    let cq = event.element.cq;
                    let count = &raw mut (*cq).async_events_completed;
                    acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, count, 1);
                }
                Subject::Qp => {
                    let qp = event.element.qp;
                    let count = &raw mut (*qp).events_completed;
                    acknowledge(&raw mut (*qp).mutex, &raw mut (*qp).cond, count, 1);
                }
                Subject::Srq => {
                    let srq = event.element.srq;
                    let count = &raw mut (*srq).events_completed;
                    acknowledge(&raw mut (*srq).mutex, &raw mut (*srq).cond, count, 1);
                }
                Subject::Wq => {
                    let wq = event.element.wq;
                    let count = &raw mut (*wq).events_completed;
                    acknowledge(&raw mut (*wq).mutex, &raw mut (*wq).cond, count, 1);
                }
                Subject::Port => {}
            }
        }
        Ok(())
    }
}

/// `{u64 element, u32 type, u32 reserved}` as the kernel writes it.
pub(crate) fn decode(record: [u8; 16]) -> ibv_async_event {
    let [e0, e1, e2, e3, e4, e5, e6, e7, t0, t1, t2, t3, _, _, _, _] = record;
    let element = u64::from_ne_bytes([e0, e1, e2, e3, e4, e5, e6, e7]);
    let event_type = u32::from_ne_bytes([t0, t1, t2, t3]);
    let address = element as usize;
    let mut event = ibv_async_event {
        element: ibv_async_event_element { cq: core::ptr::null_mut() },
        event_type,
    };
    match Subject::of(event_type) {
        Subject::Cq => event.element.cq = core::ptr::with_exposed_provenance_mut(address),
        Subject::Qp => event.element.qp = core::ptr::with_exposed_provenance_mut(address),
        Subject::Srq => event.element.srq = core::ptr::with_exposed_provenance_mut(address),
        Subject::Wq => event.element.wq = core::ptr::with_exposed_provenance_mut(address),
        Subject::Port => event.element.port_num = (element as u32).cast_signed(),
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(element: u64, event_type: u32) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&element.to_ne_bytes());
        bytes[8..12].copy_from_slice(&event_type.to_ne_bytes());
        bytes
    }

    #[test]
    fn the_type_of_an_event_decides_which_object_it_names() {
        let event = decode(record(0xffff_ffff_0000_0002, abi::IBV_EVENT_PORT_ACTIVE));
        // SAFETY: a port event.
        assert_eq!(unsafe { event.element.port_num }, 2);
        let event = decode(record(0x7f00_1234_5678, IBV_EVENT_QP_FATAL));
        // SAFETY: a QP event.
        assert_eq!(unsafe { event.element.qp }.addr(), 0x7f00_1234_5678);
        assert_eq!(Subject::of(IBV_EVENT_QP_LAST_WQE_REACHED), Subject::Qp);
        assert_eq!(Subject::of(IBV_EVENT_SRQ_LIMIT_REACHED), Subject::Srq);
        assert_eq!(Subject::of(1000), Subject::Port);
    }
}
