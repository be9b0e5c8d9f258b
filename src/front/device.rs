//! A device as a counted reference.
//!
//! The provider allocates the device; the front-end completes it and counts its users: the device
//! list, each element of an array from `ibv_get_device_list(3)`, each open context.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, Ordering};

use abi::{verbs_device, verbs_device_ops, verbs_sysfs_dev};

use super::ext;
use cface::{Errno, mem};

/// A live device. Copies are the same reference; [`Device::add_reference`] and
/// [`Device::drop_reference`] count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device(NonNull<verbs_device>);

// SAFETY: the fields we read after creation are constant, and the count is atomic.
unsafe impl Send for Device {}

impl Device {
    /// `EINVAL` for NULL.
    ///
    /// # Safety
    /// `device` is NULL or stays referenced while the value is used.
    pub(crate) unsafe fn new(device: *mut verbs_device) -> Result<Self, Errno> {
        NonNull::new(device).map(Self).ok_or(Errno::EINVAL)
    }

    /// The pointer that applications and providers know.
    pub(crate) const fn as_ptr(self) -> *mut verbs_device {
        self.0.as_ptr()
    }

    /// The table that the device's driver registered.
    pub(crate) fn ops(self) -> *const verbs_device_ops {
        // SAFETY: whoever called `new` keeps the device referenced; this field is constant after
        // creation.
        unsafe { (*self.as_ptr()).ops }
    }

    /// The kernel device; NULL: none exists.
    pub(crate) fn sysfs(self) -> *mut verbs_sysfs_dev {
        // SAFETY: whoever called `new` keeps the device referenced; this field is constant after
        // creation.
        unsafe { (*self.as_ptr()).sysfs }
    }

    fn count(&self) -> &AtomicI32 {
        // SAFETY: the caller of `new` keeps the device; the field is only accessed as an atomic,
        // here and in C providers.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.as_ptr()).refcount) }
    }

    /// Takes a reference.
    pub(crate) fn add_reference(self) {
        // Relaxed: the caller has a reference already, nothing is published by taking another.
        self.count().fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a reference back; the last one frees the device.
    ///
    /// # Safety
    /// The caller owns a reference and does not use the value again.
    pub(crate) unsafe fn drop_reference(self) {
        // Release pairs with the acquire below: uses by others happen before the device is freed.
        if self.count().fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        core::sync::atomic::fence(Ordering::Acquire);
        // The provider expects its kernel device to be gone first.
        // SAFETY: the structure came from calloc, and the last reference to its device is gone.
        unsafe { mem::free(self.sysfs().cast()) };
        ext::remove_device(self);
        // SAFETY: ops are constant data of a plugin that is never unloaded.
        if let Some(uninit) = unsafe { (*self.ops()).uninit_device } {
            // SAFETY: no reference is left.
            unsafe { uninit(self.as_ptr()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    static ENDED: AtomicI32 = AtomicI32::new(0);

    unsafe extern "C" fn uninit(device: *mut verbs_device) {
        ENDED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the test made the device by calloc.
        unsafe { mem::free(device.cast()) };
    }

    static OPS: verbs_device_ops = verbs_device_ops {
        name: c"test".as_ptr(),
        match_min_abi_version: 0,
        match_max_abi_version: 0,
        match_table: core::ptr::null(),
        static_providers: core::ptr::null_mut(),
        match_device: None,
        alloc_context: None,
        import_context: None,
        alloc_device: None,
        uninit_device: Some(uninit),
    };

    #[test]
    fn a_device_ends_with_its_last_reference() {
        let raw = testing::device(&OPS);
        // SAFETY: live, with one reference that belongs to the test.
        let device = unsafe { Device::new(raw.as_ptr()) }.expect("not NULL");
        device.add_reference();
        device.add_reference();
        // SAFETY: three references were taken, three are given back; nothing is used afterwards.
        unsafe {
            device.drop_reference();
            device.drop_reference();
            assert_eq!(ENDED.load(Ordering::Relaxed), 0);
            device.drop_reference();
        }
        assert_eq!(ENDED.load(Ordering::Relaxed), 1);
    }
}
