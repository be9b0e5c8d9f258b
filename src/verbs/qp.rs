//! Queue pairs: `ibv_create_qp(3)`, `ibv_modify_qp(3)`, `ibv_query_qp(3)`, `ibv_attach_mcast(3)`,
//! `ibv_set_ece(3)`.

use core::ffi::c_int;

use abi::{
    IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES, IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY,
    IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS, IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG, QpAttrMask,
    VERBS_QP_EX, ibv_comp_cntr, ibv_ece, ibv_gid, ibv_pd, ibv_qp, ibv_qp_attach_comp_cntr_attr,
    ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_wr_opcode,
};

use super::{context_of, op, verb};
use crate::front::refusal::Refusal;
use cface::{Errno, Ret};
use probe::probe;

verb! {
    /// `ibv_create_qp(3)`.
    ///
    /// # Safety
    /// `pd` is NULL or live; `attr` is readable and names live objects.
    pub(crate) fn create_qp as ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
        // SAFETY: `pd` is NULL, which is refused, or live, and a live PD has an open context.
        let create = op!(unsafe { context_of(pd)? }, create_qp)?;
        // SAFETY: `create` is from the table of the PD's own context; what `attr` refers to is the
        // caller's, and live.
        let qp = unsafe { create(pd, attr) };
        // SAFETY: the provider returned NULL, or a new QP that nobody else has yet.
        if let Some(new) = unsafe { qp.as_ref() } {
            probe!(libibverbs, create_qp, qp, new.qp_num, new.qp_type);
        }
        Ok(qp)
    }

    /// `ibv_query_qp(3)`.
    ///
    /// # Safety
    /// `qp` is NULL or live; both structures are writable.
    pub(crate) fn query_qp as ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> c_int {
        // SAFETY: `qp` is NULL, which is refused, or live, and a live QP has an open context.
        let query = op!(unsafe { context_of(qp)? }, query_qp)?;
        // SAFETY: `query` is from the table of the QP's own context and writes only the caller's
        // two structures.
        let result = unsafe { query(qp, attr, attr_mask, init_attr) };
        if result == 0 {
            // SAFETY: the QP is live (NULL was refused above), and the provider has just filled the
            // caller's `attr`.
            unsafe { remember_state(qp, attr, attr_mask) };
        }
        Ok(result)
    }

    /// `ibv_modify_qp(3)`.
    ///
    /// # Safety
    /// `qp` is NULL or live; `attr` is readable.
    pub(crate) fn modify_qp as ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
        // SAFETY: `qp` is NULL, which is refused, or live, and a live QP has an open context.
        let modify = op!(unsafe { context_of(qp)? }, modify_qp)?;
        // SAFETY: `modify` is from the table of the QP's own context; it reads the caller's `attr`
        // as the mask says.
        let result = unsafe { modify(qp, attr, attr_mask) };
        probe!(libibverbs, modify_qp, qp, attr, attr_mask, result);
        if result == 0 {
            // SAFETY: the QP is live (NULL was refused above), and `attr` is readable where the
            // mask names a member.
            unsafe { remember_state(qp, attr, attr_mask) };
        }
        Ok(result)
    }

    /// `ibv_destroy_qp(3)`.
    ///
    /// # Safety
    /// `qp` is NULL or live, and used no more after success.
    pub(crate) fn destroy_qp as ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
        // SAFETY: `qp` is NULL, which is refused, or live, and a live QP has an open context.
        let destroy = op!(unsafe { context_of(qp)? }, destroy_qp)?;
        // SAFETY: `destroy` is from the table of the QP's own context; the caller uses `qp` no more
        // after success.
        Ok(unsafe { destroy(qp) })
    }

    /// `ibv_query_qp_data_in_order(3)`: whether data is placed in order, as a truth value or as
    /// capability bits.
    ///
    /// # Safety
    /// `qp` is NULL or live.
    pub(crate) fn query_qp_data_in_order as ibv_query_qp_data_in_order(qp: *mut ibv_qp, opcode: ibv_wr_opcode, flags: u32) -> c_int {
        const CAPS: u32 = IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS;
        const DEVICE_ONLY: u32 = IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY;
        // Whether a device's promise holds for the CPU too depends on the architecture.
        let promised = cfg!(target_arch = "x86_64") || flags & DEVICE_ONLY != 0;
        if flags & !(CAPS | DEVICE_ONLY) != 0 || !promised {
            return Ok(0);
        }
        // SAFETY: `qp` is NULL, which is refused, or live, and a live QP has an open context.
        let query = op!(unsafe { context_of(qp)? }, query_qp_data_in_order)?;
        // SAFETY: `query` is from the table of the QP's own context and gets numbers beside the
        // live QP.
        let mut caps = unsafe { query(qp, opcode, flags) }.cast_unsigned();
        if caps & IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG != 0 {
            caps |= IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES;
        }
        if flags & CAPS != 0 {
            return Ok(caps.cast_signed());
        }
        Ok(c_int::from(caps & IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG != 0))
    }

    /// `ibv_attach_mcast(3)`.
    ///
    /// # Safety
    /// `qp` is NULL or live; `gid` is readable.
    pub(crate) fn attach_mcast as ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
        // SAFETY: `qp` is NULL, which is refused, or live, and a live QP has an open context.
        let attach = op!(unsafe { context_of(qp)? }, attach_mcast)?;
        // SAFETY: `attach` is from the table of the QP's own context; it reads the GID, which is
        // the caller's.
        Ok(unsafe { attach(qp, gid, lid) })
    }

    /// `ibv_detach_mcast(3)`.
    ///
    /// # Safety
    /// `qp` is NULL or live; `gid` is readable.
    pub(crate) fn detach_mcast as ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
        // SAFETY: `qp` is NULL, which is refused, or live, and a live QP has an open context.
        let detach = op!(unsafe { context_of(qp)? }, detach_mcast)?;
        // SAFETY: `detach` is from the table of the QP's own context; it reads the GID, which is
        // the caller's.
        Ok(unsafe { detach(qp, gid, lid) })
    }

    /// `ibv_set_ece(3)`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without a vendor.
    ///
    /// # Safety
    /// `qp` is NULL or live; `ece` is readable.
    pub(crate) fn set_ece as ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        // SAFETY: `qp` is NULL, which is refused, or live; the context stays open during the call.
        let context = unsafe { context_of(qp)? };
        // SAFETY: `ece` is NULL, which is refused, or the caller's and readable; only one member is
        // copied.
        let vendor_id = unsafe { ece.as_ref() }.ok_or(Refusal::of_null(c"ece"))?.vendor_id;
        if vendor_id == 0 {
            let remedy = c"pass the options that ibv_query_ece of the peer's queue pair returned";
            let problem = c"is 0: the options name no vendor";
            return Err(Refusal::new(Errno::EOPNOTSUPP, c"ece->vendor_id", problem, remedy));
        }
        let set = op!(context, set_ece)?;
        // SAFETY: `set` is from the table of the QP's own context; `ece` is not NULL (checked
        // above), so readable.
        Ok(unsafe { set(qp, ece) })
    }

    /// `ibv_query_ece(3)`.
    ///
    /// # Safety
    /// `qp` is NULL or live; `ece` is writable.
    pub(crate) fn query_ece as ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        // SAFETY: `qp` is NULL, which is refused, or live, and a live QP has an open context.
        let query = op!(unsafe { context_of(qp)? }, query_ece)?;
        // SAFETY: `query` is from the table of the QP's own context and writes `ece`, as the caller
        // allows.
        Ok(unsafe { query(qp, ece) })
    }

    /// `ibv_qp_attach_comp_cntr(3)`.
    ///
    /// # Safety
    /// `qp` is NULL or live; `counter` is live; `attr` is readable.
    pub(crate) fn attach_comp_cntr as ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp,
        counter: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int {
        // SAFETY: `qp` is NULL, which is refused, or live, and a live QP has an open context.
        let attach = op!(unsafe { context_of(qp)? }, qp_attach_comp_cntr)?;
        // SAFETY: `attach` is from the table of the QP's own context; the caller's counter is live,
        // `attr` readable.
        Ok(unsafe { attach(qp, counter, attr) })
    }
}

/// `ibv_qp_to_qp_ex(3)`: the same QP with the work request builder, or NULL when it was created
/// without.
///
/// No `verb!`: no allocation, which may fail when memory is short. Nothing here panics.
///
/// # Safety
/// `qp` is NULL or live.
pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: `qp` is NULL, which is refused, or live; the context stays open during the call.
    let context = match unsafe { context_of(qp) } {
        Ok(context) => context,
        Err(refusal) => return Ret::fail(refusal.report(c"ibv_qp_to_qp_ex")),
    };
    let offset = context.private().generation.qp_mask_offset;
    // SAFETY: providers embed every QP in a verbs_qp of their generation, which contains the mask.
    let mask = unsafe { qp.byte_add(offset).cast::<u32>().read() };
    if mask & VERBS_QP_EX != 0 { qp.cast() } else { core::ptr::null_mut() }
}

/// `ibv_qp.state` follows what was just asked for or found.
///
/// # Safety
/// `qp` is live and `attr` readable when the mask names the state.
unsafe fn remember_state(qp: *mut ibv_qp, attr: *const ibv_qp_attr, attr_mask: c_int) {
    if QpAttrMask::from_bits_retain(attr_mask.cast_unsigned()).contains(QpAttrMask::STATE) {
        // SAFETY: the mask names the state, for which the caller gives a live QP and a readable
        // `attr`.
        unsafe { (*qp).state = (*attr).qp_state };
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use abi::{IBV_QPS_RTR, Zeroed, verbs_context_ops};

    use super::*;
    use crate::front::generation::{GENERATIONS, NEWEST};
    use crate::front::testing::TestContext;

    thread_local! {
        static RESULT: Cell<c_int> = const { Cell::new(0) };
    }

    unsafe extern "C" fn change(_: *mut ibv_qp, _: *mut ibv_qp_attr, _: c_int) -> c_int {
        RESULT.get()
    }
    unsafe extern "C" fn in_order(_: *mut ibv_qp, _: ibv_wr_opcode, _: u32) -> c_int {
        RESULT.get()
    }
    unsafe extern "C" fn ece(_: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
        // SAFETY: readable and writable.
        unsafe { (*ece).options += 1 };
        RESULT.get()
    }
    unsafe extern "C" fn mcast(_: *mut ibv_qp, _: *const ibv_gid, lid: u16) -> c_int {
        lid.into()
    }

    fn bench() -> (TestContext, ibv_qp) {
        RESULT.set(0);
        let test = TestContext::new(NEWEST);
        let ops = verbs_context_ops {
            modify_qp: Some(change),
            query_qp_data_in_order: Some(in_order),
            set_ece: Some(ece),
            query_ece: Some(ece),
            attach_mcast: Some(mcast),
            detach_mcast: Some(mcast),
            ..verbs_context_ops::zeroed()
        };
        // SAFETY: a canonical table.
        unsafe { test.context().install(&raw const ops, NEWEST) };
        let qp = ibv_qp { context: test.context().as_ptr(), ..ibv_qp::zeroed() };
        (test, qp)
    }

    #[test]
    fn the_state_of_a_qp_follows_a_change_that_succeeded_and_named_it() {
        let (_test, mut qp) = bench();
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, ..ibv_qp_attr::zeroed() };
        let state = QpAttrMask::STATE.bits().cast_signed();
        for (result, mask, expected) in
            [(libc::EINVAL, state, 0), (0, state << 1, 0), (0, state, IBV_QPS_RTR)]
        {
            RESULT.set(result);
            // SAFETY: objects of ours.
            assert_eq!(unsafe { modify_qp(&raw mut qp, &raw mut attr, mask) }, result);
            assert_eq!(qp.state, expected);
        }
        // SAFETY: NULL is allowed.
        let null = unsafe { modify_qp(core::ptr::null_mut(), &raw mut attr, state) };
        assert_eq!(null, libc::EINVAL);
    }

    #[test]
    fn the_builder_is_found_where_each_generation_marks_it() {
        for generation in &GENERATIONS {
            let test = TestContext::new(generation);
            // As large as a verbs_qp of the newest generation, in words.
            let mut memory = [0_u64; size_of::<abi::verbs_qp>() / 8];
            let qp: *mut ibv_qp = memory.as_mut_ptr().cast();
            // SAFETY: within the memory, which only this test uses.
            unsafe {
                (*qp).context = test.context().as_ptr();
                assert!(qp_to_qp_ex(qp).is_null());
                qp.byte_add(generation.qp_mask_offset).cast::<u32>().write(VERBS_QP_EX);
                assert_eq!(qp_to_qp_ex(qp), qp.cast(), "{:?}", generation.variant);
            }
        }
    }

    #[test]
    fn data_in_order_is_reported_as_capabilities_or_as_a_truth_value() {
        let (_test, mut qp) = bench();
        // SAFETY: objects of ours.
        let mut ask = |flags| unsafe { query_qp_data_in_order(&raw mut qp, 0, flags) };
        const CAPS: u32 = IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS;
        const DEVICE: u32 = IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY;
        RESULT.set(IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG.cast_signed());
        // The whole message implies its aligned parts.
        assert_eq!((ask(CAPS | DEVICE), ask(DEVICE)), (3, 1));
        RESULT.set(IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES.cast_signed());
        assert_eq!((ask(CAPS | DEVICE), ask(DEVICE)), (2, 0));
        assert_eq!(ask(DEVICE | 4), 0);
        // The CPU sees the device's order only on hosts with ordered memory.
        assert_eq!(ask(CAPS), if cfg!(target_arch = "x86_64") { 2 } else { 0 });
    }

    #[test]
    fn connection_options_need_a_vendor() {
        let (_test, mut qp) = bench();
        let mut options = ibv_ece::zeroed();
        // SAFETY: objects of ours.
        unsafe {
            assert_eq!(set_ece(&raw mut qp, &raw mut options), libc::EOPNOTSUPP);
            assert_eq!((Errno::last(), options.options), (Errno::EOPNOTSUPP, 0));
            options.vendor_id = 1;
            assert_eq!(set_ece(&raw mut qp, &raw mut options), 0);
            assert_eq!(query_ece(&raw mut qp, &raw mut options), 0);
            assert_eq!(options.options, 2);
        }
    }

    #[test]
    fn multicast_and_counters_are_the_providers() {
        let (_test, mut qp) = bench();
        let gid = ibv_gid::zeroed();
        let null = core::ptr::null_mut();
        // SAFETY: objects of ours; the last operation has no provider.
        unsafe {
            assert_eq!(attach_mcast(&raw mut qp, &raw const gid, 5), 5);
            assert_eq!(detach_mcast(&raw mut qp, &raw const gid, 6), 6);
            assert_eq!(attach_comp_cntr(&raw mut qp, null, null.cast()), libc::EOPNOTSUPP);
        }
    }
}
