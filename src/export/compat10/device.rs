//! Devices and contexts of libibverbs 1.0: `ibv_get_device_list(3)`, `ibv_open_device(3)`, and the
//! queries that need nothing but a context.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicUsize, Ordering, fence};

use abi::{
    Zeroed, be16, compat_ibv_port_attr, ibv_context_1_0, ibv_context_ops_1_0, ibv_device,
    ibv_device_1_0, ibv_device_attr, ibv_gid,
};

use super::{NewShadow, cq, forward, non_null, qp, real, srq};
use crate::front::context::Shadow;
use crate::verbs::{device, gid, port};
use cface::{Errno, MinusOne, mem, verb};

/// The real array, stored in front of the first device of a shadow array.
type RealArray = *mut *mut ibv_device;

/// A shadow device and how many arrays and contexts refer to it.
#[repr(C)]
#[derive(Debug)]
struct ShadowDevice {
    device: ibv_device_1_0,
    references: AtomicUsize,
}

verb! {
    /// `ibv_get_device_list@IBVERBS_1.0`. The real array is kept in front of the returned one.
    ///
    /// # Safety
    /// `num_devices` is NULL or writable.
    pub(crate) fn get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device_1_0 {
        let mut count = 0;
        // SAFETY: a variable of ours.
        let list = non_null(unsafe { device::get_device_list(&raw mut count) });
        let shadows = match list {
            // SAFETY: an array with as many devices and a NULL behind them.
            Ok(list) => unsafe { shadow_list(list) },
            Err(error) => Err(error),
        };
        if !num_devices.is_null() {
            // SAFETY: not NULL (checked above), so the caller's to be written.
            unsafe { *num_devices = if shadows.is_ok() { count } else { 0 } };
        }
        shadows
    }

    /// `ibv_free_device_list@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `list` is NULL or came from `get_device_list`, and is used no more.
    pub(crate) fn free_device_list(list: *mut *mut ibv_device_1_0) {
        if !list.is_null() {
            // SAFETY: not NULL, so an array of `get_device_list`, which the caller gives back here
            // and uses no more.
            unsafe { free_shadow_list(list) };
        }
        Ok(())
    }

    /// `ibv_open_device@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `device` is NULL or live.
    pub(crate) fn open_device(device: *mut ibv_device_1_0) -> *mut ibv_context_1_0 {
        let shadow = NewShadow::<Shadow>::new()?;
        // SAFETY: `real` gives NULL, which is refused, or the device behind the caller's live
        // shadow.
        let real_context = non_null(unsafe { device::open_device(real(device)) })?;
        let ops = ibv_context_ops_1_0 {
            poll_cq: Some(cq::poll_cq),
            req_notify_cq: Some(cq::req_notify_cq),
            post_srq_recv: Some(srq::post_srq_recv),
            post_send: Some(qp::post_send),
            post_recv: Some(qp::post_recv),
            ..ibv_context_ops_1_0::zeroed()
        };
        // SAFETY: just opened; NULL would have been refused, so the device is a live shadow.
        let (cmd_fd, async_fd, num_comp_vectors) = unsafe {
            add_reference(device);
            ((*real_context).cmd_fd, (*real_context).async_fd, (*real_context).num_comp_vectors)
        };
        let shadow = shadow.finish(Shadow::new(ibv_context_1_0 {
            device,
            ops,
            cmd_fd,
            async_fd,
            num_comp_vectors,
            real_context,
        }));
        Ok(shadow.cast())
    }

    /// `ibv_close_device@IBVERBS_1.0`.
    ///
    /// # Safety
    /// `context` is NULL or open, and not used after the call.
    pub(crate) fn close_device(context: *mut ibv_context_1_0) -> c_int {
        // SAFETY: `real` gives NULL, which is refused, or the context behind the shadow, which
        // nobody uses any more.
        let result = unsafe { device::close_device(real(context)) };
        if result == 0 {
            // SAFETY: NULL would have been refused; the reference that open_device took.
            unsafe { drop_reference((*context).device) };
            // SAFETY: the shadow that open_device allocated; the real context is gone.
            unsafe { mem::free(context.cast()) };
        }
        Ok(result)
    }
}

forward! {
    /// `ibv_get_device_name@IBVERBS_1.0`.
    fn get_device_name(device: *mut ibv_device_1_0) -> *const c_char => device::get_device_name;

    /// `ibv_get_device_guid@IBVERBS_1.0`.
    fn get_device_guid(device: *mut ibv_device_1_0) -> u64 => device::get_device_guid;

    /// `ibv_query_device@IBVERBS_1.0`.
    fn query_device(context: *mut ibv_context_1_0, attr: *mut ibv_device_attr) -> c_int
        => port::query_device;

    /// `ibv_query_port@IBVERBS_1.0`.
    fn query_port(context: *mut ibv_context_1_0, port_num: u8, attr: *mut compat_ibv_port_attr)
        -> c_int => port::query_port;

    /// `ibv_query_gid@IBVERBS_1.0`.
    fn query_gid(context: *mut ibv_context_1_0, port_num: u8, index: c_int, gid: *mut ibv_gid)
        -> MinusOne => gid::query_gid;

    /// `ibv_query_pkey@IBVERBS_1.0`.
    fn query_pkey(context: *mut ibv_context_1_0, port_num: u8, index: c_int, pkey: *mut be16)
        -> MinusOne => gid::query_pkey;
}

/// Wraps an array of devices, and takes it over.
///
/// # Safety
/// `list` is a NULL-terminated array from [`device::get_device_list`].
pub(super) unsafe fn shadow_list(list: RealArray) -> Result<*mut *mut ibv_device_1_0, Errno> {
    let mut count = 0;
    // SAFETY: the array ends with NULL, which is not passed.
    while unsafe { !(*list.add(count)).is_null() } {
        count += 1;
    }
    let Ok(array) = mem::calloc_bytes((count + 2) * size_of::<*mut ibv_device_1_0>()) else {
        // SAFETY: ours to free; not published yet.
        unsafe { device::free_device_list(list) };
        return Err(Errno::ENOMEM);
    };
    // SAFETY: room for two more than there are devices.
    let shadows: *mut *mut ibv_device_1_0 = unsafe {
        array.cast::<RealArray>().write(list);
        array.cast().add(1).as_ptr()
    };
    for index in 0..count {
        let Ok(fresh) = NewShadow::<ShadowDevice>::new() else {
            // SAFETY: a complete prefix: the zeroed rest of the array ends it with NULL.
            unsafe { free_shadow_list(shadows) };
            return Err(Errno::ENOMEM);
        };
        // SAFETY: within both arrays.
        unsafe {
            let device = ibv_device_1_0 { real_device: *list.add(index), ..Zeroed::zeroed() };
            let shadow = fresh.finish(ShadowDevice { device, references: AtomicUsize::new(1) });
            shadows.add(index).write(shadow.cast());
        }
    }
    Ok(shadows)
}

/// # Safety
/// `list` came from [`shadow_list`], and is used no more.
unsafe fn free_shadow_list(list: *mut *mut ibv_device_1_0) {
    let mut next = list;
    // SAFETY: the array ends with NULL, which is not passed; each element has one reference.
    unsafe {
        while !(*next).is_null() {
            drop_reference(*next);
            next = next.add(1);
        }
        let start: *mut RealArray = list.sub(1).cast();
        device::free_device_list(*start);
        mem::free(start.cast());
    }
}

/// Takes a reference to a shadow device.
///
/// # Safety
/// `device` is a live shadow.
unsafe fn add_reference(device: *mut ibv_device_1_0) {
    // SAFETY: every shadow device starts a Counted. Relaxed: the caller has a reference already.
    unsafe { (*device.cast::<ShadowDevice>()).references.fetch_add(1, Ordering::Relaxed) };
}

/// Gives a reference to a shadow device back.
///
/// # Safety
/// `device` is a live shadow of which the caller owns a reference.
unsafe fn drop_reference(device: *mut ibv_device_1_0) {
    // SAFETY: every shadow device starts a Counted. Release pairs with the acquire below.
    let before =
        unsafe { (*device.cast::<ShadowDevice>()).references.fetch_sub(1, Ordering::Release) };
    if before == 1 {
        fence(Ordering::Acquire);
        // SAFETY: allocated by calloc, and the last reference is gone.
        unsafe { mem::free(device.cast()) };
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;

    use abi::verbs_device;

    use super::super::fake;
    use super::*;

    fn name_of(device: *mut ibv_device_1_0) -> &'static str {
        // SAFETY: a live device, whose name outlives this test.
        unsafe { CStr::from_ptr(get_device_name(device)) }.to_str().expect("ASCII")
    }

    #[test]
    fn a_list_of_1_0_wraps_the_real_one_and_frees_it() {
        let real_list = fake::real_list(&["first", "second"]);
        // SAFETY: a list of ours.
        unsafe {
            let list = shadow_list(real_list).expect("memory");
            assert_eq!(*list.sub(1).cast::<RealArray>(), real_list);
            assert_eq!((name_of(*list), name_of(*list.add(1))), ("first", "second"));
            assert!((*list.add(2)).is_null());
            assert_eq!(get_device_guid(*list), 0);
            free_device_list(list);
            assert_eq!(fake::queried(), ["device gone", "device gone"]);
            let empty = shadow_list(fake::real_list(&[])).expect("memory");
            assert!((*empty).is_null());
            free_device_list(empty);
            free_device_list(core::ptr::null_mut());
        }
    }

    #[test]
    fn an_open_device_outlives_its_list() {
        // SAFETY: objects of ours.
        unsafe {
            let list = shadow_list(fake::real_list(&["fake0"])).expect("memory");
            fake::fail(Errno::ENODEV);
            assert!(open_device(*list).is_null());
            assert_eq!(Errno::last(), Errno::ENODEV);
            let (first, second) = (open_device(*list), open_device(*list));
            let device = *list;
            free_device_list(list);
            assert_eq!(close_device(second), 0);
            assert!(fake::queried().is_empty());
            assert_eq!(((*first).device, name_of(device)), (device, "fake0"));
            let real_context = (*first).real_context;
            assert_eq!((*real_context).device, (*device).real_device);
            assert_eq!(((*first).cmd_fd, (*first).async_fd), (-1, -1));
            assert_eq!((*first).num_comp_vectors, 3);
            let count = (*(*device).real_device.cast::<verbs_device>()).refcount;
            assert_eq!(count, 1);
            assert_eq!(close_device(first), 0);
        }
        assert_eq!(fake::queried(), ["device gone"]);
    }

    #[test]
    fn queries_reach_the_real_context() {
        let context = fake::open();
        let mut attr = ibv_device_attr::zeroed();
        // The attributes of a port in 1.0, and a fence.
        let mut port = [compat_ibv_port_attr::zeroed(); 2];
        // SAFETY: objects of ours.
        unsafe {
            assert_eq!(query_device(context, &raw mut attr), 0);
            assert_eq!(attr.max_qp, 4711);
            assert_eq!(query_port(context, 7, &raw mut port[0]), 0);
            assert_eq!((port[0].lid, port[1].state), (7, 0));
            fake::fail(Errno::EINVAL);
            assert_eq!(query_port(context, 8, &raw mut port[0]), libc::EINVAL);
            assert_eq!(port[0].lid, 7);
            let mut gid = ibv_gid::zeroed();
            assert_eq!(query_gid(context, 1, 0, &raw mut gid), MinusOne(-1));
            let mut pkey = 0;
            assert_eq!(query_pkey(context, 1, 0, &raw mut pkey), MinusOne(-1));
            assert_eq!(close_device(context), 0);
        }
    }

    #[test]
    fn null_is_refused() {
        // SAFETY: NULL is allowed.
        unsafe {
            assert!(open_device(core::ptr::null_mut()).is_null());
            assert_eq!(Errno::last(), Errno::EINVAL);
            assert_eq!(close_device(core::ptr::null_mut()), libc::EINVAL);
            assert!(get_device_name(core::ptr::null_mut()).is_null());
        }
    }
}
