//! Completion counters (rdma-core 65): plain forwards to the provider. The verbs check their
//! arguments, and that the provider has the operation.

use core::ffi::c_int;

use abi::{ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context};

use super::{context_of, op, open_context, verb};
use crate::front::refusal::Refusal;

verb! {
    /// `_ibv_query_comp_cntr_caps`, behind the inline `ibv_query_comp_cntr_caps`.
    ///
    /// # Safety
    /// `context` is NULL or open; `caps` is writable for `size` bytes.
    pub(crate) fn query_caps as _ibv_query_comp_cntr_caps(
        context: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
        size: usize,
    ) -> c_int {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        if caps.is_null() {
            return Err(Refusal::of_null(c"caps"));
        }
        // SAFETY: not NULL (checked above), and the caller lets us write `size` bytes.
        unsafe { caps.cast::<u8>().write_bytes(0, size) };
        let query = op!(context, query_comp_cntr_caps)?;
        // SAFETY: `query` is from the table of this context; `caps` was written for `size` bytes
        // above.
        Ok(unsafe { query(context.as_ptr(), caps, size) })
    }

    /// `ibv_create_comp_cntr(3)`.
    ///
    /// # Safety
    /// `context` is NULL or open; `attr` is readable.
    pub(crate) fn create as ibv_create_comp_cntr(
        context: *mut ibv_context,
        attr: *mut ibv_comp_cntr_init_attr,
    ) -> *mut ibv_comp_cntr {
        // SAFETY: `context` is NULL, which is refused, or open during this call.
        let context = unsafe { open_context(context)? };
        let create = op!(context, create_comp_cntr)?;
        // SAFETY: `create` is from the table of this context, which is open; `attr` is the
        // caller's, and readable.
        Ok(unsafe { create(context.as_ptr(), attr) })
    }

    /// `ibv_destroy_comp_cntr(3)`.
    ///
    /// # Safety
    /// `counter` is NULL or live, and used no more after success.
    pub(crate) fn destroy as ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
        // SAFETY: `counter` is NULL, which is refused, or live, and a live counter has an open
        // context.
        let destroy = op!(unsafe { context_of(counter)? }, destroy_comp_cntr)?;
        // SAFETY: `destroy` is from the table of the counter's own context; the caller uses it no
        // more after success.
        Ok(unsafe { destroy(counter) })
    }
}

macro_rules! with_value {
    ($($(#[$meta:meta])* $name:ident as $call:ident = $op:ident($ty:ty);)*) => {
        verb! {
            $(
                $(#[$meta])*
                ///
                /// # Safety
                /// `counter` is NULL or live; a result is writable.
                pub(crate) fn $name as $call(counter: *mut ibv_comp_cntr, value: $ty) -> c_int {
                    // SAFETY: `counter` is NULL, which is refused, or live, and a live counter has
                    // an open context.
                    let operation = op!(unsafe { context_of(counter)? }, $op)?;
                    // SAFETY: it is the counter's own provider's; `value` is a number, or the
                    // caller's to be written.
                    Ok(unsafe { operation(counter, value) })
                }
            )*
        }
    };
}

with_value! {
    /// `ibv_set_comp_cntr(3)`.
    set as ibv_set_comp_cntr = set_comp_cntr(u64);
    /// `ibv_set_err_comp_cntr(3)`.
    set_err as ibv_set_err_comp_cntr = set_err_comp_cntr(u64);
    /// `ibv_inc_comp_cntr(3)`.
    inc as ibv_inc_comp_cntr = inc_comp_cntr(u64);
    /// `ibv_inc_err_comp_cntr(3)`.
    inc_err as ibv_inc_err_comp_cntr = inc_err_comp_cntr(u64);
    /// `ibv_read_comp_cntr(3)`.
    read as ibv_read_comp_cntr = read_comp_cntr(*mut u64);
    /// `ibv_read_err_comp_cntr(3)`.
    read_err as ibv_read_err_comp_cntr = read_err_comp_cntr(*mut u64);
}

#[cfg(test)]
mod tests {
    use abi::{Zeroed, verbs_context_ops};

    use super::*;
    use crate::front::generation::NEWEST;
    use crate::front::testing::TestContext;
    use cface::Errno;

    /// The result identifies which of the six value operations was called.
    macro_rules! operation {
        ($name:ident, $ty:ty, $result:literal) => {
            unsafe extern "C" fn $name(_: *mut ibv_comp_cntr, _: $ty) -> c_int {
                $result
            }
        };
    }
    operation!(set_op, u64, 1);
    operation!(set_err_op, u64, 2);
    operation!(inc_op, u64, 3);
    operation!(inc_err_op, u64, 4);
    operation!(read_op, *mut u64, 5);
    operation!(read_err_op, *mut u64, 6);

    unsafe extern "C" fn query_op(
        _: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
        size: usize,
    ) -> c_int {
        // SAFETY: writable, and zeroed before.
        unsafe {
            assert_eq!((*caps).max_value, 0);
            (*caps).max_value = size as u64;
        }
        0
    }

    #[test]
    fn each_counter_operation_reaches_its_own_function() {
        let test = TestContext::new(NEWEST);
        let context = test.context().as_ptr();
        let ops = verbs_context_ops {
            set_comp_cntr: Some(set_op),
            set_err_comp_cntr: Some(set_err_op),
            inc_comp_cntr: Some(inc_op),
            inc_err_comp_cntr: Some(inc_err_op),
            read_comp_cntr: Some(read_op),
            read_err_comp_cntr: Some(read_err_op),
            query_comp_cntr_caps: Some(query_op),
            ..verbs_context_ops::zeroed()
        };
        let mut counter = ibv_comp_cntr { context, ..ibv_comp_cntr::zeroed() };
        let counter = &raw mut counter;
        let mut caps = ibv_comp_cntr_caps { max_value: 9, ..ibv_comp_cntr_caps::zeroed() };
        let (mut value, size) = (0, size_of::<ibv_comp_cntr_caps>());
        let null = core::ptr::null_mut();
        // SAFETY: a canonical table, and objects of ours.
        unsafe {
            test.context().install(&raw const ops, NEWEST);
            assert_eq!([set(counter, 0), set_err(counter, 0)], [1, 2]);
            assert_eq!([inc(counter, 0), inc_err(counter, 0)], [3, 4]);
            assert_eq!([read(counter, &raw mut value), read_err(counter, &raw mut value)], [5, 6]);
            assert_eq!(set(null, 0), libc::EINVAL);
            assert_eq!(query_caps(context, &raw mut caps, size), 0);
            assert_eq!(caps.max_value, size as u64);
            assert_eq!(query_caps(context, null.cast(), size), libc::EINVAL);
            // No provider has these here.
            assert!(create(context, null.cast()).is_null());
            assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
            assert_eq!(destroy(counter), libc::EOPNOTSUPP);
        }
    }
}
