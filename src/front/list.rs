//! The device list: devices of the kernel and devices announced by plugins, bound to drivers.
//!
//! The list is persistent: an existing device keeps its pointer between calls, and the list owns
//! one reference to each device. The order is as in rdma-core: kernel order on the first call,
//! later devices before older ones, and devices of a second round of plugins before those of the
//! first round. Announced devices come last.
//!
//! Map of this file: `ListState` and its lock; `refresh` finds the kernel's devices,
//! `refresh_announced` those of plugins; `explain_taken` and `explain_nothing` print why a device
//! is missing; `bind_all` and `create_announced`; tests. Threads: any thread that lists devices.
//! Lock: `STATE` is held for a whole refresh, and `hold` takes it for fork(2).

use core::ffi::c_char;

use abi::{
    VSYSFS_READ_MODALIAS, VSYSFS_READ_NODE_GUID, ferroverbs_device_info, ferroverbs_plugin_ext,
    ferroverbs_vendor_device, verbs_sysfs_dev,
};

use super::at_fork::Listing;
use super::device::Device;
use super::enumerate::{self, KernelDevices, SysfsDev};
use super::matching::{self, Names};
use super::plugins::Plugins;
use super::{ext, init, registry};
use crate::sys::log::notice;
use crate::sys::{env, sysfs};
use cface::lock::Guard;
use cface::shared::StaticMutex;
use cface::{Errno, chars};

#[derive(Debug, Default)]
struct ListState {
    initialised: bool,
    plugins: Option<Plugins>,
    kernel: Vec<Device>,
    announced: Vec<Device>,
    explained: bool,
    explained_taken: bool,
    /// Names of emulated devices that no provider serves, which a message told.
    explained_unserved: Vec<[c_char; 64]>,
}

/// Outermost lock: held for a whole listing, with plugins' constructors and `alloc_device` inside.
static STATE: StaticMutex<ListState> = StaticMutex::new(ListState {
    initialised: false,
    plugins: None,
    kernel: Vec::new(),
    announced: Vec::new(),
    explained: false,
    explained_taken: false,
    explained_unserved: Vec::new(),
});

/// Waits for the list's lock, to fork.
pub(crate) fn hold() -> Guard {
    STATE.hold()
}

/// Updates the list and returns its devices, each with an additional reference.
///
/// # Errors
/// `ENOSYS` when the kernel has no RDMA support and no plugin announces a device, or when the
/// kernel speaks another version of the uverbs ABI.
pub(crate) fn devices() -> Result<Vec<Device>, Errno> {
    let mut state = STATE.lock();
    let _listing = Listing::new();
    if !state.initialised {
        init::process();
        state.initialised = true;
    }
    state.refresh()?;
    let devices: Vec<Device> = state.kernel.iter().chain(&state.announced).copied().collect();
    for device in &devices {
        device.add_reference();
    }
    Ok(devices)
}

impl ListState {
    fn refresh(&mut self) -> Result<(), Errno> {
        let found = enumerate::kernel_devices();
        let kernel_error = found.as_ref().err().copied();
        let KernelDevices { devices: mut fresh, by_netlink } = found.unwrap_or_default();
        if !fresh.is_empty() && !by_netlink {
            enumerate::check_abi()?;
        }
        let names: Vec<_> = fresh.iter().map(|device| device.get().ibdev_name).collect();
        let kernel_devices = names.len();

        // Kernel devices that are gone lose the list's reference; those still known are not fresh.
        self.kernel.retain(|device| {
            let known = kernel_of(*device);
            match fresh
                .iter()
                .position(|entry| known.is_some_and(|known| enumerate::is_same(known, entry.get())))
            {
                Some(index) => {
                    drop(fresh.remove(index));
                    true
                }
                None => {
                    // SAFETY: the list's own reference.
                    unsafe { device.drop_reference() };
                    false
                }
            }
        });

        let plugins = self.plugins.get_or_insert_default();
        let extensions = plugins.announcing(kernel_devices);
        let mut unmatched = bind_all(fresh, &mut self.kernel);
        if !unmatched.is_empty() && plugins.open_named(&unmatched) {
            unmatched = bind_all(unmatched, &mut self.kernel);
        }
        if !unmatched.is_empty() && plugins.open_all() {
            unmatched = bind_all(unmatched, &mut self.kernel);
        }
        if !unmatched.is_empty() {
            plugins.explain_missing(&unmatched);
        }
        if std::env::var_os("IBV_SHOW_WARNINGS").is_some() {
            for device in &unmatched {
                let name = chars::bytes(&device.get().ibdev_name);
                notice!(
                    "Warning: no userspace device-specific driver found for {}",
                    String::from_utf8_lossy(&name)
                );
            }
        }

        self.refresh_announced(&extensions, &names);

        if self.kernel.is_empty() && self.announced.is_empty() {
            self.explain_nothing();
            return kernel_error.map_or(Ok(()), Err);
        }
        Ok(())
    }

    fn refresh_announced(
        &mut self,
        extensions: &[&'static ferroverbs_plugin_ext],
        kernel: &[[c_char; 64]],
    ) {
        let mut wanted: Vec<(ferroverbs_device_info, &'static ferroverbs_plugin_ext)> = extensions
            .iter()
            .flat_map(|&ext| {
                ext::announced(ext, kernel.len()).into_iter().map(move |info| (info, ext))
            })
            .collect();
        // Programs choose devices by name, so a name belongs to one device: the kernel's.
        let is_taken = |info: &ferroverbs_device_info| {
            let name = chars::bytes(&info.name);
            kernel.iter().any(|other| chars::bytes(other) == name)
        };
        if let Some((info, _)) = wanted.iter().find(|(info, _)| is_taken(info)) {
            self.explain_taken(&chars::bytes(&info.name));
        }
        wanted.retain(|(info, _)| !is_taken(info));
        self.announced.retain(|device| {
            let Some(known) = ext::info(*device) else { return false };
            match wanted.iter().position(|(info, _)| info.name == known.name) {
                Some(index) => {
                    wanted.remove(index);
                    true
                }
                None => {
                    // SAFETY: the list's own reference.
                    unsafe { device.drop_reference() };
                    false
                }
            }
        });
        for (info, ext) in wanted {
            let device = match ext::describe(ext, &info) {
                Some(vendor) => self.create_emulated(&info, &vendor, ext),
                None => create_announced(info, ext),
            };
            self.announced.extend(device);
        }
    }

    /// Makes a device for the unmodified provider of a vendor; a line on stderr, once for each
    /// name, and `None` when no provider serves the device.
    fn create_emulated(
        &mut self,
        info: &ferroverbs_device_info,
        vendor: &ferroverbs_vendor_device,
        ext: &'static ferroverbs_plugin_ext,
    ) -> Option<Device> {
        let provider = String::from_utf8_lossy(&chars::bytes(&vendor.provider)).into_owned();
        if let Some(plugins) = &mut self.plugins {
            plugins.open_provider(&provider);
        }
        let mut sysfs_dev = announced_entry(info)?;
        let dev = sysfs_dev.get_mut();
        dev.driver_id = vendor.driver_id;
        dev.abi_ver = vendor.abi_version;
        dev.modalias = vendor.modalias;
        dev.flags |= VSYSFS_READ_MODALIAS;
        if vendor.ibdev_path[0] != 0 {
            dev.ibdev_path = vendor.ibdev_path;
        }
        match matching::choose(sysfs_dev, &registry::drivers()) {
            Ok((device, sysfs_dev)) => {
                ext::record_device(device, *info, ext, sysfs_dev);
                Some(device)
            }
            Err(_) => {
                if !self.explained_unserved.contains(&info.name) {
                    self.explained_unserved.push(info.name);
                    notice!(
                        "Warning: the emulated device '{}' is left out: no loaded provider serves \
                         it; it needs lib{provider}-rdmav<N>.so",
                        String::from_utf8_lossy(&chars::bytes(&info.name))
                    );
                }
                None
            }
        }
    }

    /// Says once that an announced device has the name of a device of the kernel.
    fn explain_taken(&mut self, name: &[u8]) {
        if !core::mem::replace(&mut self.explained_taken, true) {
            notice!(
                "Warning: the kernel has a device {0}, so the software device {0} is left out; \
                 FERROVERBS_SOFT_NAME gives software devices other names",
                String::from_utf8_lossy(name)
            );
        }
    }

    /// An empty list is success to the caller; a person at a terminal gets the reason, once.
    fn explain_nothing(&mut self) {
        // SAFETY: isatty only looks at the descriptor.
        let terminal = unsafe { libc::isatty(libc::STDERR_FILENO) } == 1;
        let wanted = terminal || env::is_on("FERROVERBS_VERBOSE");
        if core::mem::replace(&mut self.explained, true)
            || !wanted
            || env::is_on("FERROVERBS_QUIET")
        {
            return;
        }
        if let Some(plugins) = &self.plugins {
            notice!("{}", plugins.why_nothing());
        }
    }
}

/// Offers devices to all registered drivers; accepted devices go to the front of `list`, in order.
fn bind_all(devices: Vec<SysfsDev>, list: &mut Vec<Device>) -> Vec<SysfsDev> {
    let drivers = registry::drivers();
    let mut unmatched = Vec::new();
    let mut bound = Vec::new();
    for device in devices {
        match matching::bind(device, &drivers) {
            Ok(device) => bound.push(device),
            Err(device) => unmatched.push(device),
        }
    }
    list.splice(0..0, bound);
    unmatched
}

fn kernel_of(device: Device) -> Option<&'static verbs_sysfs_dev> {
    // SAFETY: owned by the device, which the list keeps alive while this is used; never written
    // after creation, except caches that are not read here.
    unsafe { device.sysfs().as_ref() }
}

/// The entry of an announced device, as `alloc_device` gets it.
fn announced_entry(info: &ferroverbs_device_info) -> Option<SysfsDev> {
    let mut sysfs_dev = SysfsDev::new().ok()?;
    let dev = sysfs_dev.get_mut();
    dev.sysfs_name = info.dev_name;
    dev.ibdev_name = info.name;
    let name = String::from_utf8_lossy(&chars::bytes(&info.name)).into_owned();
    chars::store_path(&mut dev.ibdev_path, &sysfs::class("infiniband").join(name))?;
    dev.node_guid = u64::from_be(info.node_guid);
    dev.flags = VSYSFS_READ_NODE_GUID;
    dev.node_type = info.node_type;
    dev.num_ports = info.num_ports;
    Some(sysfs_dev)
}

/// Makes the device that a plugin announced; a line on stderr and `None` when the plugin can't.
fn create_announced(
    info: ferroverbs_device_info,
    ext: &'static ferroverbs_plugin_ext,
) -> Option<Device> {
    let driver = registry::find_driver(ext.device_ops)?;
    let mut sysfs_dev = announced_entry(&info)?;
    sysfs_dev.get_mut().abi_ver = driver.ops.match_min_abi_version;
    let names = Names::of(sysfs_dev.get());

    // SAFETY: the plugin's own constructor; the entry lives as long as the device (see
    // ext::remember).
    let raw = driver.ops.alloc_device.map(|alloc| unsafe { alloc(sysfs_dev.as_ptr()) });
    let Some(raw) = raw.filter(|raw| !raw.is_null()) else {
        notice!(
            "Warning: the plugin that announced device '{}' could not create it",
            String::from_utf8_lossy(&names.name)
        );
        return None;
    };
    // SAFETY: the plugin's new device, not published yet.
    match unsafe { matching::complete(raw, driver.ops, &names) } {
        Some(device) => {
            ext::record_device(device, info, ext, sysfs_dev);
            Some(device)
        }
        None => {
            if let Some(uninit) = driver.ops.uninit_device {
                // SAFETY: the plugin's own device, given back.
                unsafe { uninit(raw) };
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::c_int;
    use core::sync::atomic::{AtomicI32, Ordering};

    use abi::{IBV_NODE_CA, Zeroed, verbs_device, verbs_device_ops};

    use super::super::registry::Driver;
    use super::*;
    use cface::mem;

    static ANNOUNCED: AtomicI32 = AtomicI32::new(0);
    static ENDED: AtomicI32 = AtomicI32::new(0);

    unsafe extern "C" fn alloc_device(dev: *mut verbs_sysfs_dev) -> *mut verbs_device {
        // SAFETY: the entry of the device under construction.
        let dev = unsafe { &*dev };
        assert_eq!((dev.num_ports, dev.node_guid), (2, 0x0102_0304_0506_0708));
        mem::calloc::<verbs_device>().expect("memory").as_ptr()
    }

    unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
        ENDED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the test made the device by calloc.
        unsafe { mem::free(device.cast()) };
    }

    fn named(name: &str) -> [c_char; 64] {
        let mut chars = [0; 64];
        chars::store(&mut chars, name.as_bytes()).expect("fits");
        chars
    }

    /// As many devices as [`ANNOUNCED`] says, but none beside one device of the kernel.
    unsafe extern "C" fn announce(
        kernel_devices: c_int,
        out: *mut ferroverbs_device_info,
        max: c_int,
    ) -> c_int {
        let count = if kernel_devices == 1 { 0 } else { ANNOUNCED.load(Ordering::Relaxed) };
        assert!(count <= max);
        for n in 0..count {
            let mut info = ferroverbs_device_info::zeroed();
            chars::store(&mut info.name, format!("test{n}").as_bytes()).expect("fits");
            chars::store(&mut info.dev_name, format!("testdev{n}").as_bytes()).expect("fits");
            info.node_guid = 0x0102_0304_0506_0708_u64.to_be();
            info.node_type = IBV_NODE_CA;
            info.num_ports = 2;
            // SAFETY: an entry within the room for `max` entries.
            unsafe { out.add(usize::try_from(n).unwrap_or(0)).write(info) };
        }
        count
    }

    static OPS: verbs_device_ops = verbs_device_ops {
        name: c"test".as_ptr(),
        match_min_abi_version: 1,
        match_max_abi_version: 1,
        match_table: core::ptr::null(),
        static_providers: core::ptr::null_mut(),
        match_device: None,
        alloc_context: None,
        import_context: None,
        alloc_device: Some(alloc_device),
        uninit_device: Some(uninit_device),
    };
    static EXT: ferroverbs_plugin_ext = ferroverbs_plugin_ext {
        size: size_of::<ferroverbs_plugin_ext>(),
        device_ops: &raw const OPS,
        announce: Some(announce),
        query_gid: None,
        query_pkey: None,
        create_comp_channel: None,
        destroy_comp_channel: None,
        is_cmd_fd: None,
        await_comp_event: None,
        tell_packets: None,
        is_wired: None,
        waiting: None,
        other_end: None,
        emulation: core::ptr::null(),
        process_number: None,
        is_process: None,
        watch_process: None,
    };

    #[test]
    fn an_announced_device_stays_the_same_until_it_is_announced_no_more() {
        registry::register(Driver { ops: &OPS, pabi: 65 });
        let mut state = ListState::default();
        ANNOUNCED.store(2, Ordering::Relaxed);
        state.refresh_announced(&[&EXT], &[]);
        let [first, second] = state.announced[..] else { panic!("{:?}", state.announced) };
        // SAFETY: referenced by the list.
        let device = unsafe { &*first.as_ptr() };
        assert_eq!(chars::bytes(&device.device.name), b"test0");
        assert_eq!(chars::bytes(&device.device.dev_name), b"testdev0");
        let folder = sysfs::class("infiniband").join("test0");
        assert_eq!(chars::bytes(&device.device.ibdev_path), folder.as_os_str().as_encoded_bytes());
        assert!(device.sysfs.is_null());
        assert!(ext::of_device(first).is_some_and(|found| core::ptr::eq(found, &raw const EXT)));

        first.add_reference();
        state.refresh_announced(&[&EXT], &[]);
        assert_eq!(state.announced, [first, second]);

        // A kernel device appears: the list lets go, an application's reference does not.
        state.refresh_announced(&[&EXT], &[named("mlx5_0")]);
        assert!(state.announced.is_empty());
        assert_eq!(ENDED.load(Ordering::Relaxed), 1);
        assert!(ext::info(first).is_some() && ext::info(second).is_none());
        // SAFETY: the reference taken above, given back once.
        unsafe { first.drop_reference() };
        assert_eq!(ENDED.load(Ordering::Relaxed), 2);
        assert!(ext::info(first).is_none());

        // A name of the kernel's devices is not given twice.
        state.refresh_announced(&[&EXT], &[named("test0"), named("test")]);
        let [left] = state.announced[..] else { panic!("{:?}", state.announced) };
        // SAFETY: referenced by the list.
        assert_eq!(chars::bytes(&unsafe { &*left.as_ptr() }.device.name), b"test1");
        assert!(state.explained_taken);
    }

    #[test]
    fn a_function_beyond_what_the_plugin_knows_is_absent() {
        unsafe extern "C" fn query_gid(
            _: *mut abi::ibv_context,
            _: u32,
            _: u32,
            _: *mut abi::ibv_gid_entry,
        ) -> c_int {
            0
        }
        let size = core::mem::offset_of!(ferroverbs_plugin_ext, query_gid);
        let old = ferroverbs_plugin_ext { size, query_gid: Some(query_gid), ..EXT };
        // SAFETY: a complete table, of which less is claimed.
        let adopted = unsafe { ext::adopt(&raw const old) };
        assert!(adopted.announce.is_some() && adopted.query_gid.is_none());
        let bare = ferroverbs_plugin_ext { size: 8, ..EXT };
        // SAFETY: a complete table of ours, of which only the first field is claimed.
        let adopted = unsafe { ext::adopt(&raw const bare) };
        assert!(ext::announced(adopted, 0).is_empty());
    }
}
