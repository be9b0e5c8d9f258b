//! Shared receive queues of libibverbs 1.0: `ibv_create_srq(3)`, `ibv_post_srq_recv(3)`. The
//! functions work on the real objects behind the shadows.

use core::ffi::c_int;

use abi::{
    Zeroed, ibv_pd_1_0, ibv_recv_wr_1_0, ibv_srq, ibv_srq_1_0, ibv_srq_attr, ibv_srq_init_attr,
};

use super::{NewShadow, end, forward, non_null, post, real};
use crate::verbs::srq;
use cface::{Errno, verb};

verb! {
    /// `ibv_create_srq@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `pd` is NULL or live; `attr` is readable and writable.
    pub(crate) fn create_srq(pd: *mut ibv_pd_1_0, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq_1_0 {
        if pd.is_null() || attr.is_null() {
            return Err(Errno::EINVAL);
        }
        let shadow = NewShadow::<ibv_srq_1_0>::new()?;
        // SAFETY: not NULL (checked above), so the caller's and readable; it is copied.
        let mut todays = unsafe { *attr };
        let srq_context = todays.srq_context;
        todays.srq_context = shadow.as_ptr().cast();
        // SAFETY: `real` gives the live PD behind the caller's (not NULL), and the attributes are a
        // copy of ours.
        let real_srq = non_null(unsafe { srq::create_srq(real(pd), &raw mut todays) })?;
        // SAFETY: writable by the contract above, for the provider's actual values. The PD is live,
        // the SRQ new.
        let (context, handle) = unsafe {
            (*attr).attr = todays.attr;
            ((*pd).context, (*real_srq).handle)
        };
        Ok(shadow.finish(ibv_srq_1_0 {
            context,
            srq_context,
            pd,
            handle,
            real_srq,
            ..ibv_srq_1_0::zeroed()
        }))
    }

    /// `ibv_destroy_srq@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `srq` is NULL or live, and used no more after success.
    pub(crate) fn destroy_srq(srq: *mut ibv_srq_1_0) -> c_int {
        // SAFETY: `real` gives NULL, which is refused, or the SRQ behind the live shadow; the
        // caller gives it up.
        Ok(end(srq, unsafe { srq::destroy_srq(real(srq)) }))
    }
}

forward! {
    /// `ibv_modify_srq@IBVERBS_1.0`.
    fn modify_srq(srq: *mut ibv_srq_1_0, attr: *mut ibv_srq_attr, mask: c_int) -> c_int
        => srq::modify_srq;

    /// `ibv_query_srq@IBVERBS_1.0`.
    fn query_srq(srq: *mut ibv_srq_1_0, attr: *mut ibv_srq_attr) -> c_int => srq::query_srq;
}

/// The shadow of an SRQ; NULL of NULL.
///
/// # Safety
/// `srq` is NULL or a live SRQ that [`create_srq`] made.
pub(super) unsafe fn shadow_of(srq: *mut ibv_srq) -> *mut ibv_srq_1_0 {
    if srq.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: not NULL (checked above), so a live SRQ of 1.0: `create_srq` stored the shadow in its
    // `srq_context`.
    unsafe { (*srq).srq_context.cast() }
}

/// `ibv_context.ops.post_srq_recv` of 1.0, behind the inline `ibv_post_srq_recv(3)`.
///
/// # Safety
/// `srq` is live; the requests are readable; `bad_wr` is NULL or writable.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq_1_0,
    wr: *mut ibv_recv_wr_1_0,
    bad_wr: *mut *mut ibv_recv_wr_1_0,
) -> c_int {
    // SAFETY: the caller's shadow is live, hence also the SRQ behind the shadow and the SRQ's
    // context.
    let (real_srq, operation) = unsafe {
        let real_srq = (*srq).real_srq;
        (real_srq, (*(*real_srq).context).ops.post_srq_recv)
    };
    let Some(operation) = operation else { return Errno::EOPNOTSUPP.raw() };
    // SAFETY: the requests are readable by the contract above; the operation is the provider's.
    unsafe { post::list(wr, bad_wr, false, |wr, bad_wr| operation(real_srq, wr, bad_wr)) }
}

#[cfg(test)]
mod tests {
    use core::ffi::c_void;

    use super::super::{device, fake, pd};
    use super::*;

    #[test]
    fn a_shared_receive_queue_of_1_0_takes_requests_of_1_0() {
        let context = fake::open();
        let mine: *mut c_void = core::ptr::without_provenance_mut(0x55);
        let mut attr = ibv_srq_init_attr::zeroed();
        attr.srq_context = mine;
        attr.attr.max_wr = 4;
        let mut requests: [ibv_recv_wr_1_0; 3] = core::array::from_fn(|index| ibv_recv_wr_1_0 {
            wr_id: index as u64,
            num_sge: 5,
            ..ibv_recv_wr_1_0::zeroed()
        });
        let [first, second, third] = &mut requests;
        second.next = third;
        first.next = second;
        let first: *mut _ = first;
        let mut bad = core::ptr::null_mut();
        // SAFETY: objects of ours.
        unsafe {
            let pd = pd::alloc(context);
            let srq = create_srq(pd, &raw mut attr);
            assert_eq!((attr.srq_context, attr.attr.max_wr), (mine, 5));
            assert_eq!(((*srq).context, (*srq).pd, (*srq).srq_context), (context, pd, mine));
            assert_eq!((*srq).handle, fake::HANDLE);
            assert_eq!((*(*srq).real_srq).srq_context, srq.cast());
            let post = (*context).ops.post_srq_recv.expect("filled");
            assert_eq!(post(srq, first, &raw mut bad), 0);
            assert!(bad.is_null());
            assert_eq!(
                fake::queried(),
                ["create_srq 4", "srq recv 0 sge 5", "srq recv 1 sge 5", "srq recv 2 sge 5"]
            );
            fake::fail(Errno::ENOMEM);
            assert_eq!(post(srq, first, &raw mut bad), libc::ENOMEM);
            assert_eq!((*bad).wr_id, 1);

            assert_eq!(modify_srq(srq, &raw mut attr.attr, 2), 0);
            assert_eq!(query_srq(srq, &raw mut attr.attr), 0);
            assert_eq!(attr.attr.max_wr, 99);
            fake::fail(Errno::EBUSY);
            assert_eq!(destroy_srq(srq), libc::EBUSY);
            assert_eq!(destroy_srq(srq), 0);
            fake::fail(Errno::ENOMEM);
            assert!(create_srq(pd, &raw mut attr).is_null());
            assert_eq!(attr.attr.max_wr, 99);
            assert_eq!(pd::dealloc(pd), 0);
            assert_eq!(device::close_device(context), 0);
            assert_eq!(query_srq(core::ptr::null_mut(), &raw mut attr.attr), libc::EINVAL);
            assert_eq!(destroy_srq(core::ptr::null_mut()), libc::EINVAL);
        }
    }
}
