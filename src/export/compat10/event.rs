//! Asynchronous events of libibverbs 1.0: `ibv_get_async_event(3)`. They have the current layout,
//! but name shadows.

use abi::{ibv_async_event, ibv_context_1_0};

use super::{cq, qp, real, srq};
use crate::verbs::event::{self, Subject};
use cface::{Errno, MinusOne, verb};

/// `ibv_get_async_event@IBVERBS_1.0`. A cancellation point, as the current version.
///
/// # Safety
/// `context` is NULL or open, with objects of 1.0 only; `event` is writable.
pub(crate) unsafe extern "C-unwind" fn get_async_event(
    context: *mut ibv_context_1_0,
    event: *mut ibv_async_event,
) -> MinusOne {
    // SAFETY: `real` gives NULL, which is refused, or the open context behind the shadow; `event`
    // is the caller's.
    let result = unsafe { event::get_async_event(real(context), event) };
    if result == MinusOne(0) {
        // SAFETY: just filled, so not NULL. The type selects the valid view; the object belongs to
        // 1.0 and lives until its event is acknowledged.
        unsafe {
            let element = &mut (*event).element;
            match Subject::of((*event).event_type) {
                Subject::Cq => element.cq = cq::shadow_of(element.cq).cast(),
                Subject::Qp => element.qp = qp::shadow_of(element.qp).cast(),
                Subject::Srq => element.srq = srq::shadow_of(element.srq).cast(),
                // libibverbs 1.0 has no WQs.
                Subject::Wq | Subject::Port => {}
            }
        }
    }
    result
}

verb! {
    /// `ibv_ack_async_event@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `event` is NULL or an event from `get_async_event`, acknowledged once.
    pub(crate) fn ack_async_event(event: *mut ibv_async_event) {
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: readable by the contract above. The type tells the valid view, which names a live
        // shadow.
        unsafe {
            let mut todays = *event;
            let element = &mut todays.element;
            match Subject::of(todays.event_type) {
                Subject::Cq => element.cq = real(element.cq.cast::<abi::ibv_cq_1_0>()),
                Subject::Qp => element.qp = real(element.qp.cast::<abi::ibv_qp_1_0>()),
                Subject::Srq => element.srq = real(element.srq.cast::<abi::ibv_srq_1_0>()),
                Subject::Wq | Subject::Port => {}
            }
            event::ack_async_event(&raw mut todays);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::c_void;

    use abi::{
        IBV_EVENT_CQ_ERR, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_SRQ_LIMIT_REACHED,
        Zeroed, ibv_qp_init_attr_1_0, ibv_srq_init_attr,
    };

    use super::super::{device, fake, pd};
    use super::*;
    use crate::sys::fd;

    #[test]
    fn events_name_objects_of_1_0_and_are_acknowledged_at_the_real_ones() {
        let context = fake::open();
        let [read_end, write_end] = fake::pipe();
        let null = core::ptr::null_mut();
        let mut event = ibv_async_event::zeroed();
        // SAFETY: objects of ours.
        unsafe {
            (*(*context).real_context).async_fd = read_end;
            assert_eq!(get_async_event(context, &raw mut event), MinusOne(-1));
            assert_eq!(Errno::last(), Errno::EAGAIN);

            let pd = pd::alloc(context);
            let cq = cq::create_cq(context, 1, null, null.cast(), 0);
            let srq = srq::create_srq(pd, &mut ibv_srq_init_attr::zeroed());
            let qp = qp::create_qp(pd, &mut ibv_qp_init_attr_1_0::zeroed());
            cface::lock::init(&raw mut (*(*qp).real_qp).mutex, &raw mut (*(*qp).real_qp).cond);
            let objects: [(*mut c_void, *mut c_void, u32); 3] = [
                ((*cq).real_cq.cast(), cq.cast(), IBV_EVENT_CQ_ERR),
                ((*qp).real_qp.cast(), qp.cast(), IBV_EVENT_QP_FATAL),
                ((*srq).real_srq.cast(), srq.cast(), IBV_EVENT_SRQ_LIMIT_REACHED),
            ];
            for (real, shadow, event_type) in objects {
                let mut record = [0; 16];
                record[..8].copy_from_slice(&(real.expose_provenance() as u64).to_ne_bytes());
                record[8..12].copy_from_slice(&event_type.to_ne_bytes());
                fake::write(write_end, &record);
                assert_eq!(get_async_event(context, &raw mut event), MinusOne(0));
                assert_eq!(event.event_type, event_type);
                assert_eq!(event.element.cq.cast(), shadow);
                ack_async_event(&raw mut event);
                assert_eq!(event.element.cq.cast(), shadow);
            }
            assert_eq!((*(*cq).real_cq).async_events_completed, 1);
            assert_eq!((*(*qp).real_qp).events_completed, 1);
            assert_eq!((*(*srq).real_srq).events_completed, 1);

            let mut record = [0; 16];
            record[0] = 2;
            record[8..12].copy_from_slice(&IBV_EVENT_PORT_ERR.to_ne_bytes());
            fake::write(write_end, &record);
            assert_eq!(get_async_event(context, &raw mut event), MinusOne(0));
            assert_eq!(event.element.port_num, 2);
            ack_async_event(&raw mut event);

            assert_eq!(qp::destroy_qp(qp), 0);
            assert_eq!(srq::destroy_srq(srq), 0);
            assert_eq!(cq::destroy_cq(cq), 0);
            assert_eq!(pd::dealloc(pd), 0);
            (*(*context).real_context).async_fd = -1;
            assert_eq!(device::close_device(context), 0);
        }
        fd::close(read_end);
        fd::close(write_end);
    }

    #[test]
    fn null_is_refused() {
        // SAFETY: NULL is allowed.
        unsafe {
            ack_async_event(core::ptr::null_mut());
            let mut event = ibv_async_event::zeroed();
            assert_eq!(get_async_event(core::ptr::null_mut(), &raw mut event), MinusOne(-1));
        }
        assert_eq!(Errno::last(), Errno::EINVAL);
    }
}
