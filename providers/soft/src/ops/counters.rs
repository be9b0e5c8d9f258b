//! Counters of steering rules (ibv_create_counters(3)). The C entry points of
//! `engine/frames/counters`.

use super::{object, status};
use crate::engine::frames::counters::Counters;
use abi::*;
use soft_sys::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Counters {
    /// # Safety
    /// `counters` is a live object of this provider.
    unsafe fn of<'a>(counters: *mut ibv_counters) -> &'a Self {
        // SAFETY: create_counters made the object, and the C object is the first member.
        unsafe { &*counters.cast::<Self>() }
    }

    /// A further owner of the counters behind a C handle.
    ///
    /// # Safety
    /// `counters` is a live object of this provider.
    pub(super) unsafe fn share(counters: *mut ibv_counters) -> Arc<Self> {
        let this = counters.cast::<Self>().cast_const();
        // SAFETY: the handle is an Arc that create_counters turned into a pointer, and
        // destroy_counters has not taken back.
        unsafe {
            Arc::increment_strong_count(this);
            Arc::from_raw(this)
        }
    }
}

/// ibv_create_counters(3): EOPNOTSUPP for a `comp_mask`.
///
/// # Safety
/// `context` is open; `init` is readable.
pub(super) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    init: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    object(|| {
        // SAFETY: `init` is NULL (refused) or readable for the whole call.
        let init = unsafe { init.as_ref() }.ok_or(Errno::EINVAL)?;
        if init.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(Arc::into_raw(Counters::new(context)).cast_mut().cast())
    })
}

/// ibv_destroy_counters(3): EBUSY while a rule counts here.
///
/// # Safety
/// `counters` is a live object of this provider and, on success, is not used any more.
pub(super) unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    status(|| {
        // SAFETY: `counters` is a live object of this provider, and the reference ends with the
        // line, before the handle is returned.
        if unsafe { Counters::of(counters) }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: made by create_counters and returned once.
        drop(unsafe { Arc::from_raw(counters.cast::<Counters>().cast_const()) });
        Ok(())
    })
}

/// ibv_attach_counters_point_flow(3): ENOTSUP for a flow (counters are bound when the flow is
/// created, as with mlx5) or an unknown description; EOPNOTSUPP for a `comp_mask`; EINVAL for an
/// index out of range; EBUSY for an index in use.
///
/// # Safety
/// `counters` is a live object of this provider; `attr` is readable.
pub(super) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    status(|| {
        // SAFETY: `counters` is a live object of this provider; `attr` is NULL (refused) or
        // readable for the whole call.
        let (counters, attr) =
            unsafe { (Counters::of(counters), attr.as_ref().ok_or(Errno::EINVAL)?) };
        if !flow.is_null() || attr.comp_mask != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        counters.attach(attr.index, attr.counter_desc)
    })
}

/// ibv_read_counters(3): EINVAL for fewer values than attached; EOPNOTSUPP for unknown flags.
///
/// # Safety
/// `counters` is a live object of this provider; `values` has `count` elements.
pub(super) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    status(|| {
        if flags & !IBV_READ_COUNTERS_ATTR_PREFER_CACHED != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if count == 0 || values.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `values` is not NULL (checked above), and the caller states that it has `count`
        // elements, used by no other thread during the call; `counters` is a live object of this
        // provider.
        let (counters, values) = unsafe {
            (Counters::of(counters), std::slice::from_raw_parts_mut(values, count as usize))
        };
        counters.read(values)
    })
}
