//! Listing, opening and closing devices: `ibv_get_device_list(3)`, `ibv_open_device(3)`,
//! `ibv_import_device(3)`.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use abi::{VSYSFS_READ_NODE_GUID, ferroverbs_emulation, ibv_context, ibv_device, verbs_device};

use super::{op, open_context, verb};
use crate::front::command::opening;
use crate::front::context::{Context, FrontEnd};
use crate::front::device::Device;
use crate::front::generation::NEWEST;
use crate::front::refusal::Refusal;
use crate::front::{ext, layers, list, registry};
use crate::sys::{chardev, fd, sysfs};
use cface::{Errno, MinusOne, chars, mem};
use probe::probe;

verb! {
    /// `ibv_get_device_list(3)`: a NULL-terminated array, to be freed with `ibv_free_device_list`.
    ///
    /// # Errors
    /// `ENOSYS` no RDMA in the kernel and no announced device; `ENOMEM`.
    ///
    /// # Safety
    /// `num_devices` is NULL or writable.
    pub(crate) fn get_device_list as ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
        if !num_devices.is_null() {
            // SAFETY: not NULL (checked above), so the caller's to be written.
            unsafe { *num_devices = 0 };
        }
        let devices = list::devices().map_err(of_listing)?;
        let bytes = (devices.len() + 1) * size_of::<*mut ibv_device>();
        let Ok(array) = mem::calloc_bytes(bytes) else {
            for device in devices {
                // SAFETY: the reference from the listing.
                unsafe { device.drop_reference() };
            }
            return Err(Refusal::out_of_memory(c"the list of devices"));
        };
        let array: NonNull<*mut ibv_device> = array.cast();
        for (index, device) in devices.iter().enumerate() {
            // SAFETY: room for one more entry than devices.
            unsafe { array.add(index).write(device.as_ptr().cast()) };
        }
        if !num_devices.is_null() {
            // SAFETY: not NULL (checked above), so the caller's to be written.
            unsafe { *num_devices = c_int::try_from(devices.len()).unwrap_or(c_int::MAX) };
        }
        Ok(array.as_ptr())
    }

    /// `ibv_free_device_list(3)`.
    ///
    /// # Safety
    /// `list` came from `ibv_get_device_list` and is used no more.
    pub(crate) fn free_device_list as ibv_free_device_list(list: *mut *mut ibv_device) {
        if list.is_null() {
            return Ok(());
        }
        let mut next = list;
        loop {
            // SAFETY: the array ends with NULL, after which we stop.
            let device = unsafe { *next };
            if device.is_null() {
                break;
            }
            // SAFETY: each element holds a reference, given back here.
            unsafe { device_of(device)?.drop_reference() };
            next = next.wrapping_add(1);
        }
        // SAFETY: the list came from calloc in get_device_list; the caller gives it back.
        unsafe { mem::free(list.cast()) };
        Ok(())
    }

    /// `ibv_get_device_name(3)`: the live buffer inside the device.
    ///
    /// # Safety
    /// `device` is NULL or live.
    pub(crate) fn get_device_name as ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
        if device.is_null() {
            return Err(Refusal::of_null(c"device"));
        }
        // SAFETY: not NULL (checked above), so live; the name is a part of it, of which only the
        // address is taken.
        Ok(unsafe { (&raw const (*device).name).cast() })
    }

    /// `ibv_get_device_guid(3)`: big endian, 0 when unknown.
    ///
    /// # Safety
    /// `device` is NULL or live.
    pub(crate) fn get_device_guid as ibv_get_device_guid(device: *mut ibv_device) -> u64 {
        // SAFETY: `device` is NULL, which is refused, or live during this call: the caller holds a
        // reference.
        let device = unsafe { device_of(device)? };
        if let Some(info) = ext::info(device) {
            return Ok(info.node_guid);
        }
        // SAFETY: owned by the live device; written only before it was listed.
        let dev = unsafe { device.sysfs().as_ref() }.ok_or(Refusal::unexplained(Errno::ENODATA))?;
        if dev.flags & VSYSFS_READ_NODE_GUID != 0 {
            return Ok(dev.node_guid.to_be());
        }
        let path = String::from_utf8_lossy(&chars::bytes(&dev.ibdev_path)).into_owned();
        let text = sysfs::read_text(&std::path::Path::new(&path).join("node_guid"))
            .map_err(Refusal::unexplained)?;
        parse_guid(&text).map(u64::to_be).ok_or_else(|| {
            let remedy = c"update the driver of the device, whose node_guid in sysfs is malformed";
            Refusal::new(Errno::EINVAL, c"device", c"has no GUID of 16 hexadecimal digits", remedy)
        })
    }

    /// `ibv_get_device_index(3)`: the kernel's number, -1 when it has none.
    ///
    /// # Safety
    /// `device` is NULL or live.
    pub(crate) fn get_device_index as ibv_get_device_index(device: *mut ibv_device) -> MinusOne {
        // SAFETY: `device` is NULL, which is refused, or live during this call: the caller holds a
        // reference.
        let device = unsafe { device_of(device)? };
        // SAFETY: owned by the live device; constant.
        Ok(MinusOne(unsafe { device.sysfs().as_ref() }.map_or(-1, |dev| dev.ibdev_idx)))
    }

    /// `ibv_open_device(3)`.
    ///
    /// # Safety
    /// `device` is NULL or live.
    pub(crate) fn open_device as ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
        // SAFETY: `open` refuses NULL, and the caller's device is live; no provider needs private
        // data.
        let context = unsafe { open(device.cast(), core::ptr::null_mut())? }.as_ptr();
        // SAFETY: the device was opened, so it is live. Only the address of a member is taken.
        let name = unsafe { &raw const (*device).name };
        probe!(libibverbs, open_device, name, context);
        Ok(context)
    }

    /// `verbs_open_device`: `ibv_open_device(3)` with an argument for the plugin, whose own
    /// functions use it, such as `mlx5dv_open_device(3)`.
    ///
    /// # Safety
    /// `device` is a live device; `private_data` is the provider's expected argument.
    pub(crate) fn open_device_with as verbs_open_device(device: *mut ibv_device, private_data: *mut c_void) -> *mut ibv_context {
        // SAFETY: the caller's device is live, and `private_data` is what the device's own provider
        // expects.
        Ok(unsafe { open(device.cast(), private_data)? }.as_ptr())
    }

    /// `ibv_close_device(3)`: always 0.
    ///
    /// # Safety
    /// `context` is NULL or open, and not used after the call.
    pub(crate) fn close_device as ibv_close_device(context: *mut ibv_context) -> c_int {
        // SAFETY: `context` is NULL, which is refused, or open, and given up by the caller.
        let context = unsafe { open_context(context)? };
        probe!(libibverbs, close_device, context.as_ptr());
        close(context);
        Ok(0)
    }

    /// `ibv_import_device(3)`: a context on a descriptor that another process shared.
    ///
    /// # Errors
    /// `EINVAL` no character device, and no announced device knows it; `ENODEV` of no listed
    /// device; `EOPNOTSUPP` its provider can't.
    ///
    /// # Safety
    /// `cmd_fd` belongs to the caller, who gives up ownership.
    pub(crate) fn import_device as ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
        let cdev = chardev::number(cmd_fd);
        // Without an open descriptor, no query is possible.
        if cdev.is_none() && !fd::is_open(cmd_fd) {
            let remedy = c"pass the cmd_fd of an open context, as another process shared it";
            return Err(Refusal::new(Errno::EINVAL, c"cmd_fd", c"is no open descriptor", remedy)
                .with_value(u64::from(cmd_fd.cast_unsigned())));
        }
        let unlisted = {
            let error = if cdev.is_some() { Errno::ENODEV } else { Errno::EINVAL };
            let remedy = c"import the cmd_fd of a context whose device is listed in this process";
            Refusal::new(error, c"cmd_fd", c"belongs to no listed device", remedy)
                .with_value(u64::from(cmd_fd.cast_unsigned()))
        };
        let devices = list::devices().map_err(|_| unlisted)?;
        let found = devices.iter().copied().find(|device| match cdev {
            Some(cdev) => {
                // SAFETY: owned by a device we hold a reference to; constant.
                unsafe { device.sysfs().as_ref() }.is_some_and(|dev| dev.sysfs_cdev == cdev)
            }
            None => is_announced(*device, cmd_fd),
        });
        let result = match found {
            Some(device) => import(device, cmd_fd).map_err(Refusal::of_opening),
            None => Err(unlisted),
        };
        for device in devices {
            // SAFETY: the reference from the listing; an imported context has its own.
            unsafe { device.drop_reference() };
        }
        Ok(result?.as_ptr())
    }
}

/// The device that a program passes; `EINVAL` for NULL.
///
/// # Safety
/// `device` is NULL or stays referenced while the value is used.
unsafe fn device_of(device: *mut ibv_device) -> Result<Device, Refusal> {
    // SAFETY: `Device::new` asks the same of the device.
    unsafe { Device::new(device.cast()) }.map_err(|_| Refusal::of_null(c"device"))
}

fn of_listing(error: Errno) -> Refusal {
    match error {
        Errno::ENOMEM => Refusal::out_of_memory(c"the list of devices"),
        other => Refusal::unexplained(other),
    }
}

fn of_character_device(error: Errno) -> Refusal {
    let remedy = c"let the user read and write the file /dev/infiniband/uverbsN of the device; `ferroverbs doctor` names it";
    Refusal::new(error, c"device", c"has a character device that cannot be opened", remedy)
}

/// Opens a device, passing `private_data` to its provider.
///
/// # Errors
/// Of opening the kernel device, or of the provider.
///
/// # Safety
/// `device` is NULL or live; `private_data` is the provider's expected argument.
unsafe fn open(device: *mut verbs_device, private_data: *mut c_void) -> Result<Context, Refusal> {
    if device.is_null() {
        let remedy = c"check what ibv_get_device_list returned: an empty list begins with NULL";
        return Err(Refusal::new(Errno::EINVAL, c"device", c"is NULL", remedy));
    }
    // SAFETY: `device` is not NULL (checked above), so live during this call: the caller holds a
    // reference.
    let device = unsafe { Device::new(device) }.map_err(Refusal::of_opening)?;
    // SAFETY: constant data of a plugin that is never unloaded.
    let alloc =
        unsafe { (*device.ops()).alloc_context }.ok_or(Refusal::of_opening(Errno::EOPNOTSUPP))?;
    // SAFETY: owned by the live device; constant.
    let cmd_fd = match unsafe { device.sysfs().as_ref() } {
        Some(dev) => {
            let name = String::from_utf8_lossy(&chars::bytes(&dev.sysfs_name)).into_owned();
            chardev::open(&name, dev.sysfs_cdev).map_err(of_character_device)?
        }
        None => match ext::of_device(device).and_then(|ext| ext::emulation_of(device, ext)) {
            Some(emulation) => open_emulated(device, emulation).map_err(Refusal::of_opening)?,
            None => -1,
        },
    };
    // SAFETY: the operation belongs to this live device's driver, and it owns the descriptor from
    // here on.
    let verbs = unsafe { alloc(device.as_ptr().cast(), cmd_fd, private_data) };
    finish(device, verbs).map_err(Refusal::of_opening)
}

/// The command descriptor of a new context, from the plugin that plays the kernel.
fn open_emulated(device: Device, emulation: &ferroverbs_emulation) -> Result<c_int, Errno> {
    let open = emulation.open_device.ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: the plugin's own function with a live device that it announced.
    let cmd_fd = unsafe { open(device.as_ptr().cast()) };
    if cmd_fd < 0 { Err(Errno::from_raw(-cmd_fd)) } else { Ok(cmd_fd) }
}

/// Whether `cmd_fd` is of a context of this device, which no kernel shows.
fn is_announced(device: Device, cmd_fd: c_int) -> bool {
    let Some(is_cmd_fd) = ext::of_device(device).and_then(|ext| ext.is_cmd_fd) else {
        return false;
    };
    // SAFETY: the plugin's own device, which we hold a reference to.
    unsafe { is_cmd_fd(device.as_ptr().cast(), cmd_fd) == 1 }
}

fn import(device: Device, cmd_fd: c_int) -> Result<Context, Errno> {
    // SAFETY: constant data of a plugin that is never unloaded.
    let import = unsafe { (*device.ops()).import_context }.ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: the operation belongs to this listed device's driver, and it owns the descriptor from
    // here on.
    let verbs = unsafe { import(device.as_ptr().cast(), cmd_fd) };
    let context = finish(device, verbs)?;
    // Relaxed: written before anybody else knows the context.
    context.private().imported.store(true, Ordering::Relaxed);
    Ok(context)
}

/// Completes the context that a provider returned.
fn finish(device: Device, verbs: *mut abi::verbs_context) -> Result<Context, Errno> {
    if verbs.is_null() {
        return Err(Errno::last());
    }
    let generation = registry::find_driver(device.ops())
        .and_then(|driver| driver.generation())
        .unwrap_or(NEWEST);
    // SAFETY: the provider's fresh context, made by init_and_alloc with the same generation.
    let context = unsafe { Context::from_verbs(verbs, generation)? };
    let raw = context.as_ptr();
    // SAFETY: open, and only ours so far.
    let (cmd_fd, async_fd) = unsafe { ((*raw).cmd_fd, (*raw).async_fd) };
    let (driver_id, emulation) = (context.private().driver_id, context.private().emulation);
    if (!device.sysfs().is_null() || emulation.is_some()) && async_fd == -1 {
        match opening::alloc_async_fd(cmd_fd, driver_id, emulation) {
            // SAFETY: the context is open and not published yet; the descriptor is new and now its
            // own.
            Ok(async_fd) => unsafe { (*raw).async_fd = async_fd },
            Err(error) => {
                close(context);
                return Err(error);
            }
        }
    }
    layers::attach(context);
    context.install_front_end(&FrontEnd {
        query_port: super::port::query_port_sized as *const c_void,
        create_cq_ex: super::cq::create_cq_ex as *const c_void,
        compat_query_port: super::port::query_port as *const c_void,
        compat_query_device: super::port::query_device as *const c_void,
    });
    Ok(context)
}

fn close(context: Context) {
    if let Ok(free) = op!(context, free_context) {
        // SAFETY: the caller has finished with the context, and its provider ends it and frees the
        // structure.
        unsafe { free(context.as_ptr()) };
    }
}

/// Four groups of hexadecimal digits.
fn parse_guid(text: &str) -> Option<u64> {
    let mut guid = 0;
    let mut groups = text.trim().split(':');
    for _ in 0..4 {
        guid = guid << 16 | u64::from(u16::from_str_radix(groups.next()?, 16).ok()?);
    }
    groups.next().is_none().then_some(guid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_four_groups() {
        assert_eq!(parse_guid("5254:00ff:fe12:3456\n"), Some(0x5254_00ff_fe12_3456));
        assert_eq!(parse_guid("5254:00ff:fe12"), None);
        assert_eq!(parse_guid("5254:00ff:fe12:3456:1"), None);
    }

    #[test]
    fn null_arguments_are_refused_without_a_crash() {
        // SAFETY: NULL is allowed by each contract.
        unsafe {
            free_device_list(core::ptr::null_mut());
            assert!(get_device_name(core::ptr::null_mut()).is_null());
            assert_eq!(get_device_guid(core::ptr::null_mut()), 0);
            assert!(open_device(core::ptr::null_mut()).is_null());
        }
        assert_eq!(Errno::last(), Errno::EINVAL);
    }
}
