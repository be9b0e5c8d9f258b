//! Queue pairs of libibverbs 1.0: `ibv_create_qp(3)`, `ibv_modify_qp(3)`, `ibv_post_send(3)`. The
//! functions work on the real objects behind the shadows; `post.rs` posts the requests.
//!
//! Map of this file: the verbs of a queue pair, the conversion of its attributes, the posting of
//! requests, and tests.

use core::ffi::c_int;
use core::mem::offset_of;

use abi::{
    IBV_QPT_UD, Zeroed, ibv_gid, ibv_pd_1_0, ibv_qp, ibv_qp_1_0, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_init_attr_1_0, ibv_recv_wr_1_0, ibv_send_wr_1_0,
};

use super::{NewShadow, cq, end, forward, non_null, post, real, srq};
use crate::verbs::qp;
use cface::{Errno, verb};

/// Bytes of `ibv_qp_attr` in 1.0; later fields follow.
const QP_ATTR_LEN: usize = offset_of!(ibv_qp_attr, rate_limit);

verb! {
    /// `ibv_create_qp@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `pd` is NULL or live; `attr` is readable and writable, and names live objects.
    pub(crate) fn create_qp(pd: *mut ibv_pd_1_0, attr: *mut ibv_qp_init_attr_1_0) -> *mut ibv_qp_1_0 {
        if pd.is_null() || attr.is_null() {
            return Err(Errno::EINVAL);
        }
        let shadow = NewShadow::<ibv_qp_1_0>::new()?;
        // SAFETY: readable by the contract above, and names live objects.
        let (wanted, mut todays) = unsafe {
            let wanted = *attr;
            let todays = ibv_qp_init_attr {
                qp_context: shadow.as_ptr().cast(),
                send_cq: real(wanted.send_cq),
                recv_cq: real(wanted.recv_cq),
                srq: real(wanted.srq),
                cap: wanted.cap,
                qp_type: wanted.qp_type,
                sq_sig_all: wanted.sq_sig_all,
            };
            (wanted, todays)
        };
        // SAFETY: `real` gives the live PD behind the caller's; `todays` is ours and names real
        // objects.
        let real_qp = non_null(unsafe { qp::create_qp(real(pd), &raw mut todays) })?;
        // SAFETY: writable by the contract above, for the provider's actual values. The PD is live,
        // the QP new.
        let (context, handle, qp_num, state) = unsafe {
            (*attr).cap = todays.cap;
            // The provider may not have stored the context.
            (*real_qp).qp_context = shadow.as_ptr().cast();
            ((*pd).context, (*real_qp).handle, (*real_qp).qp_num, (*real_qp).state)
        };
        Ok(shadow.finish(ibv_qp_1_0 {
            context,
            qp_context: wanted.qp_context,
            pd,
            send_cq: wanted.send_cq,
            recv_cq: wanted.recv_cq,
            srq: wanted.srq,
            handle,
            qp_num,
            state,
            qp_type: wanted.qp_type,
            real_qp,
            ..ibv_qp_1_0::zeroed()
        }))
    }

    /// `ibv_query_qp@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `qp` is NULL or live; both structures are writable.
    pub(crate) fn query_qp(
        qp: *mut ibv_qp_1_0,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr_1_0,
    ) -> c_int {
        if qp.is_null() || attr.is_null() || init_attr.is_null() {
            return Err(Errno::EINVAL);
        }
        let mut init = ibv_qp_init_attr::zeroed();
        // SAFETY: as long as 1.0 knows them, by the contract above.
        let mut todays = unsafe { attr_of_1_0(attr) };
        // SAFETY: a live QP, with structures of ours.
        let result =
            unsafe { qp::query_qp((*qp).real_qp, &raw mut todays, attr_mask, &raw mut init) };
        if result != 0 {
            return Ok(result);
        }
        // SAFETY: writable by the contract above, as long as 1.0 knows them; the queues of a live
        // QP are live, and of 1.0 as the QP is.
        unsafe {
            (*qp).state = (*(*qp).real_qp).state;
            attr.cast::<u8>().copy_from_nonoverlapping((&raw const todays).cast(), QP_ATTR_LEN);
            (*init_attr).qp_context = (*qp).qp_context;
            (*init_attr).send_cq = cq::shadow_of(init.send_cq);
            (*init_attr).recv_cq = cq::shadow_of(init.recv_cq);
            (*init_attr).srq = srq::shadow_of(init.srq);
            (*init_attr).cap = init.cap;
            (*init_attr).qp_type = init.qp_type;
            (*init_attr).sq_sig_all = init.sq_sig_all;
        }
        Ok(0)
    }

    /// `ibv_modify_qp@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `qp` is NULL or live; `attr` is readable.
    pub(crate) fn modify_qp(qp: *mut ibv_qp_1_0, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
        if qp.is_null() || attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as long as 1.0 knows it, by the contract above.
        let mut todays = unsafe { attr_of_1_0(attr) };
        // SAFETY: a live QP, with attributes of ours.
        let result = unsafe { qp::modify_qp((*qp).real_qp, &raw mut todays, attr_mask) };
        // SAFETY: the shadow is live (not NULL), and the real QP lives as long as its shadow.
        unsafe { (*qp).state = (*(*qp).real_qp).state };
        Ok(result)
    }

    /// `ibv_destroy_qp@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `qp` is NULL or live, and used no more after success.
    pub(crate) fn destroy_qp(qp: *mut ibv_qp_1_0) -> c_int {
        // SAFETY: `real` gives NULL, which is refused, or the QP behind the live shadow; the caller
        // gives it up.
        Ok(end(qp, unsafe { qp::destroy_qp(real(qp)) }))
    }
}

forward! {
    /// `ibv_attach_mcast@IBVERBS_1.0`.
    fn attach_mcast(qp: *mut ibv_qp_1_0, gid: *const ibv_gid, lid: u16) -> c_int => qp::attach_mcast;

    /// `ibv_detach_mcast@IBVERBS_1.0`.
    fn detach_mcast(qp: *mut ibv_qp_1_0, gid: *const ibv_gid, lid: u16) -> c_int => qp::detach_mcast;
}

/// A whole structure of today from one of 1.0.
///
/// # Safety
/// `attr` is readable for [`QP_ATTR_LEN`] bytes.
unsafe fn attr_of_1_0(attr: *const ibv_qp_attr) -> ibv_qp_attr {
    let mut todays = ibv_qp_attr::zeroed();
    // SAFETY: readable by the contract above; ours has more.
    unsafe {
        (&raw mut todays).cast::<u8>().copy_from_nonoverlapping(attr.cast(), QP_ATTR_LEN);
    }
    todays
}

/// The shadow of a QP; NULL of NULL.
///
/// # Safety
/// `qp` is NULL or a live QP that [`create_qp`] made.
pub(super) unsafe fn shadow_of(qp: *mut ibv_qp) -> *mut ibv_qp_1_0 {
    if qp.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: not NULL (checked above), so a live QP of 1.0: `create_qp` stored the shadow in its
    // `qp_context`.
    unsafe { (*qp).qp_context.cast() }
}

/// `ibv_context.ops.post_send` of 1.0, behind the inline `ibv_post_send(3)`.
///
/// # Safety
/// `qp` is live; the requests are readable; `bad_wr` is NULL or writable.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp_1_0,
    wr: *mut ibv_send_wr_1_0,
    bad_wr: *mut *mut ibv_send_wr_1_0,
) -> c_int {
    // SAFETY: the caller's shadow is live, hence also the QP behind the shadow and the QP's
    // context.
    let (real_qp, operation) = unsafe {
        let real_qp = (*qp).real_qp;
        (real_qp, (*(*real_qp).context).ops.post_send)
    };
    let Some(operation) = operation else { return Errno::EOPNOTSUPP.raw() };
    // SAFETY: the QP behind the caller's live shadow; a QP's type is constant.
    let datagrams = unsafe { (*real_qp).qp_type } == IBV_QPT_UD;
    // SAFETY: the requests are readable by the contract above; the operation is the provider's.
    unsafe { post::list(wr, bad_wr, datagrams, |wr, bad_wr| operation(real_qp, wr, bad_wr)) }
}

/// `ibv_context.ops.post_recv` of 1.0, behind the inline `ibv_post_recv(3)`.
///
/// # Safety
/// `qp` is live; the requests are readable; `bad_wr` is NULL or writable.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp_1_0,
    wr: *mut ibv_recv_wr_1_0,
    bad_wr: *mut *mut ibv_recv_wr_1_0,
) -> c_int {
    // SAFETY: the caller's shadow is live, hence also the QP behind the shadow and the QP's
    // context.
    let (real_qp, operation) = unsafe {
        let real_qp = (*qp).real_qp;
        (real_qp, (*(*real_qp).context).ops.post_recv)
    };
    let Some(operation) = operation else { return Errno::EOPNOTSUPP.raw() };
    // SAFETY: the requests are readable by the contract above; the operation is the provider's.
    unsafe { post::list(wr, bad_wr, false, |wr, bad_wr| operation(real_qp, wr, bad_wr)) }
}

#[cfg(test)]
mod tests {
    use core::ffi::c_void;

    use abi::{IBV_QPT_RC, ibv_ah_attr, ibv_send_wr_atomic, ibv_send_wr_ud_1_0};

    use super::super::{ah, device, fake, pd};
    use super::*;

    /// A context with the objects that a QP needs.
    struct QpTest {
        context: *mut abi::ibv_context_1_0,
        pd: *mut ibv_pd_1_0,
        cq: *mut abi::ibv_cq_1_0,
        srq: *mut abi::ibv_srq_1_0,
    }

    impl QpTest {
        fn new() -> Self {
            let context = fake::open();
            let mut attr = abi::ibv_srq_init_attr::zeroed();
            let null = core::ptr::null_mut();
            // SAFETY: objects of ours.
            unsafe {
                let pd = pd::alloc(context);
                let cq = cq::create_cq(context, 10, null, null.cast(), 0);
                let srq = srq::create_srq(pd, &raw mut attr);
                fake::queried();
                Self { context, pd, cq, srq }
            }
        }

        fn create(&self, qp_type: u32, srq: *mut abi::ibv_srq_1_0) -> *mut ibv_qp_1_0 {
            let mut attr = self.attr(qp_type, srq);
            // SAFETY: objects of ours.
            let qp = unsafe { create_qp(self.pd, &raw mut attr) };
            fake::queried();
            qp
        }

        fn attr(&self, qp_type: u32, srq: *mut abi::ibv_srq_1_0) -> ibv_qp_init_attr_1_0 {
            ibv_qp_init_attr_1_0 {
                qp_context: mine(),
                send_cq: self.cq,
                recv_cq: self.cq,
                srq,
                qp_type,
                sq_sig_all: 1,
                ..ibv_qp_init_attr_1_0::zeroed()
            }
        }

        fn end(self) {
            // SAFETY: objects of ours, without a QP.
            unsafe {
                assert_eq!(srq::destroy_srq(self.srq), 0);
                assert_eq!(cq::destroy_cq(self.cq), 0);
                assert_eq!(pd::dealloc(self.pd), 0);
                assert_eq!(device::close_device(self.context), 0);
            }
        }
    }

    fn mine() -> *mut c_void {
        core::ptr::without_provenance_mut(0x99)
    }

    #[test]
    fn a_queue_pair_of_1_0_stands_for_a_real_one() {
        let bench = QpTest::new();
        let mut attr = bench.attr(IBV_QPT_RC, bench.srq);
        // SAFETY: objects of ours.
        unsafe {
            fake::fail(Errno::ENOMEM);
            assert!(create_qp(bench.pd, &raw mut attr).is_null());
            assert_eq!((Errno::last(), attr.cap.max_send_wr), (Errno::ENOMEM, 0));
            let qp = create_qp(bench.pd, &raw mut attr);
            assert_eq!(fake::queried()[1..], ["create_qp type 2 signal all 1"]);
            assert_eq!((attr.qp_context, attr.cap.max_send_wr), (mine(), 1));
            let shadow = *qp;
            assert_eq!((shadow.context, shadow.pd), (bench.context, bench.pd));
            assert_eq!((shadow.send_cq, shadow.recv_cq), (bench.cq, bench.cq));
            assert_eq!((shadow.srq, shadow.qp_context), (bench.srq, mine()));
            assert_eq!((shadow.handle, shadow.qp_num), (fake::HANDLE, 0x33));
            let real_qp = *shadow.real_qp;
            assert_eq!(real_qp.qp_context, qp.cast());
            assert_eq!(real_qp.send_cq, (*bench.cq).real_cq);
            assert_eq!(real_qp.srq, (*bench.srq).real_srq);

            let gid = ibv_gid::zeroed();
            assert_eq!(attach_mcast(qp, &raw const gid, 1), 0);
            fake::fail(Errno::EINVAL);
            assert_eq!(detach_mcast(qp, &raw const gid, 2), libc::EINVAL);
            assert_eq!(fake::queried(), ["attach_mcast 1", "detach_mcast 2"]);
            fake::fail(Errno::EBUSY);
            assert_eq!(destroy_qp(qp), libc::EBUSY);
            assert_eq!(destroy_qp(qp), 0);
            assert_eq!(destroy_qp(core::ptr::null_mut()), libc::EINVAL);
        }
        bench.end();
    }

    #[test]
    fn a_query_names_the_queues_of_1_0_whether_there_is_a_shared_one_or_not() {
        let bench = QpTest::new();
        for srq in [bench.srq, core::ptr::null_mut()] {
            let qp = bench.create(IBV_QPT_RC, srq);
            // 1.0 knows less of the structure than there is room for here.
            let mut attr = ibv_qp_attr { rate_limit: 0x5a5a, ..ibv_qp_attr::zeroed() };
            let mut init = ibv_qp_init_attr_1_0::zeroed();
            // SAFETY: objects of ours.
            unsafe {
                fake::fail(Errno::EINVAL);
                assert_eq!(query_qp(qp, &raw mut attr, 1, &raw mut init), libc::EINVAL);
                assert!(init.send_cq.is_null());
                assert_eq!(query_qp(qp, &raw mut attr, 1, &raw mut init), 0);
                assert_eq!((init.send_cq, init.recv_cq, init.srq), (bench.cq, bench.cq, srq));
                assert_eq!((init.qp_context, init.sq_sig_all), (mine(), 1));
                assert_eq!((attr.qp_state, attr.rate_limit), (2, 0x5a5a));
                assert_eq!((*qp).state, 2);

                attr.qp_state = 3;
                assert_eq!(modify_qp(qp, &raw mut attr, 1), 0);
                assert_eq!(fake::queried(), ["modify_qp 1 state 3 rate 0"]);
                assert_eq!((*qp).state, 3);
                attr.qp_state = 6;
                fake::fail(Errno::EINVAL);
                assert_eq!(modify_qp(qp, &raw mut attr, 1), libc::EINVAL);
                assert_eq!((*qp).state, 3);
                assert_eq!(destroy_qp(qp), 0);
            }
        }
        bench.end();
    }

    #[test]
    fn sends_of_1_0_arrive_whole_and_in_order_and_the_bad_one_is_found_again() {
        let bench = QpTest::new();
        let qp = bench.create(IBV_QPT_RC, core::ptr::null_mut());
        let mut third = ibv_send_wr_1_0 {
            wr_id: 3,
            opcode: abi::IBV_WR_SEND_WITH_IMM,
            imm_data: 8,
            ..ibv_send_wr_1_0::zeroed()
        };
        let mut second = ibv_send_wr_1_0 {
            next: &raw mut third,
            wr_id: 2,
            opcode: abi::IBV_WR_ATOMIC_CMP_AND_SWP,
            ..ibv_send_wr_1_0::zeroed()
        };
        second.wr.atomic = ibv_send_wr_atomic { remote_addr: 4, compare_add: 5, swap: 6, rkey: 7 };
        let mut first = ibv_send_wr_1_0 {
            next: &raw mut second,
            wr_id: 1,
            opcode: abi::IBV_WR_RDMA_WRITE,
            send_flags: 2,
            num_sge: 1,
            ..ibv_send_wr_1_0::zeroed()
        };
        first.wr.rdma.rkey = 9;
        let mut bad = core::ptr::null_mut();
        // SAFETY: objects of ours.
        unsafe {
            let post = (*bench.context).ops.post_send.expect("filled");
            assert_eq!(post(qp, &raw mut first, &raw mut bad), 0);
            assert_eq!(
                fake::queried(),
                [
                    "send 1 op 0 flags 2 sge 1 9 imm 0",
                    "send 2 op 5 flags 0 sge 0 4 5 6 7",
                    "send 3 op 3 flags 0 sge 0 0 imm 8",
                ]
            );
            fake::fail(Errno::ENOMEM);
            assert_eq!(post(qp, &raw mut first, &raw mut bad), libc::ENOMEM);
            assert_eq!(bad, &raw mut second);
            assert_eq!(post(qp, core::ptr::null_mut(), &raw mut bad), 0);
            assert_eq!(destroy_qp(qp), 0);
        }
        bench.end();
    }

    #[test]
    fn a_datagram_of_1_0_goes_to_the_real_address_handle() {
        let bench = QpTest::new();
        let qp = bench.create(IBV_QPT_UD, core::ptr::null_mut());
        let mut attr = ibv_ah_attr::zeroed();
        // SAFETY: objects of ours.
        unsafe {
            let ah = ah::create_ah(bench.pd, &raw mut attr);
            fake::queried();
            let mut nowhere = ibv_send_wr_1_0 { wr_id: 2, ..ibv_send_wr_1_0::zeroed() };
            nowhere.wr.ud =
                ibv_send_wr_ud_1_0 { ah: core::ptr::null_mut(), remote_qpn: 0, remote_qkey: 0 };
            let mut send = ibv_send_wr_1_0 {
                next: &raw mut nowhere,
                wr_id: 1,
                opcode: abi::IBV_WR_SEND,
                ..ibv_send_wr_1_0::zeroed()
            };
            send.wr.ud = ibv_send_wr_ud_1_0 { ah, remote_qpn: 3, remote_qkey: 4 };
            let mut bad = core::ptr::null_mut();
            let post = (*bench.context).ops.post_send.expect("filled");
            assert_eq!(post(qp, &raw mut send, &raw mut bad), 0);
            assert_eq!(
                fake::queried(),
                [
                    "send 1 op 2 flags 0 sge 0 ah 0x101 qpn 3 qkey 4",
                    "send 2 op 0 flags 0 sge 0 ah 0x0 qpn 0 qkey 0",
                ]
            );
            assert_eq!(ah::destroy_ah(ah), 0);
            assert_eq!(destroy_qp(qp), 0);
        }
        bench.end();
    }

    #[test]
    fn receives_of_1_0_are_posted_however_many_they_are() {
        let bench = QpTest::new();
        let qp = bench.create(IBV_QPT_RC, core::ptr::null_mut());
        for count in [1, 16, 17, 100_u64] {
            let mut requests: Vec<ibv_recv_wr_1_0> = (0..count)
                .map(|wr_id| ibv_recv_wr_1_0 { wr_id, ..ibv_recv_wr_1_0::zeroed() })
                .collect();
            let mut next = core::ptr::null_mut();
            for request in requests.iter_mut().rev() {
                request.next = next;
                next = request;
            }
            let mut bad = core::ptr::null_mut();
            // SAFETY: objects of ours.
            unsafe {
                let post = (*bench.context).ops.post_recv.expect("filled");
                assert_eq!(post(qp, next, &raw mut bad), 0);
                let expected: Vec<String> =
                    (0..count).map(|id| format!("recv {id} sge 0")).collect();
                assert_eq!(fake::queried(), expected);
                if count > 1 {
                    fake::fail(Errno::ENOMEM);
                    assert_eq!(post(qp, next, &raw mut bad), libc::ENOMEM);
                    assert_eq!((*bad).wr_id, 1);
                    fake::queried();
                }
            }
        }
        // SAFETY: objects of ours.
        unsafe { assert_eq!(destroy_qp(qp), 0) };
        bench.end();
    }
}
