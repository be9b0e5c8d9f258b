//! The choice of the plugins that are opened, and of the moment.
//!
//! rdma-core opens every configured plugin as soon as one device is unmatched. We open fewer:
//! - Plugins that may announce devices without a kernel device, at the first listing: plugins of
//!   our own tree, plugins named in `RDMAV_DRIVERS` or `IBV_DRIVERS`, and plugins whose
//!   configuration file says so. Plugins that announce no device beside kernel devices, at the
//!   first listing without a kernel device.
//! - Plugins that an announced device names: the unmodified provider of an emulated device.
//! - Plugins for kernel devices only while such a device is unmatched: first the plugin of the
//!   kernel's driver id, then all plugins.
//!
//! A plugin that cannot be opened causes a message if the user named it, or if a device stays
//! without a driver.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use abi::{PLUGIN_EXT_SYMBOL, ferroverbs_plugin_ext};
use cface::dl;
use provider_loader::config::{self, Directive, OnlyWithout};
use provider_loader::places::{Origin, SearchDir, SearchPaths, SearchSettings};
use provider_loader::{LoadFailure, Loader};

use super::enumerate::SysfsDev;
use super::{ext, registry};
use crate::sys::env;
use crate::sys::log::notice;

/// Names the kernel drivers' plugins: `RDMA_DRIVER_*` to `lib<name>-rdmav<N>.so`.
const BY_DRIVER_ID: [(u32, &str); 18] = [
    (abi::RDMA_DRIVER_MLX5, "mlx5"),
    (abi::RDMA_DRIVER_MLX4, "mlx4"),
    (abi::RDMA_DRIVER_CXGB4, "cxgb4"),
    (abi::RDMA_DRIVER_MTHCA, "mthca"),
    (abi::RDMA_DRIVER_BNXT_RE, "bnxt_re"),
    (abi::RDMA_DRIVER_OCRDMA, "ocrdma"),
    (abi::RDMA_DRIVER_IRDMA, "irdma"),
    (abi::RDMA_DRIVER_VMW_PVRDMA, "vmw_pvrdma"),
    (abi::RDMA_DRIVER_QEDR, "qedr"),
    (abi::RDMA_DRIVER_HNS, "hns"),
    (abi::RDMA_DRIVER_RXE, "rxe"),
    (abi::RDMA_DRIVER_HFI1, "hfi1verbs"),
    (abi::RDMA_DRIVER_QIB, "ipathverbs"),
    (abi::RDMA_DRIVER_EFA, "efa"),
    (abi::RDMA_DRIVER_SIW, "siw"),
    (abi::RDMA_DRIVER_ERDMA, "erdma"),
    (abi::RDMA_DRIVER_MANA, "mana"),
    (abi::RDMA_DRIVER_IONIC, "ionic"),
];

/// The largest number of failures to report; more than any distribution has plugins.
const EXPLAINED: usize = 24;

/// Whether a configuration file belongs to a plugin of a kernel driver (`mlx5.driver`). Such a
/// plugin announces no device, and the file is not needed while the kernel's driver id names the
/// plugin.
fn is_named_after_kernel_driver(file: &OsStr) -> bool {
    let stem = file.to_str().and_then(|name| name.strip_suffix(".driver"));
    stem.is_some_and(|stem| BY_DRIVER_ID.iter().any(|(_, name)| *name == stem))
}

/// The configuration and the opened plugins; one per process, under the device list's lock.
#[derive(Debug, Default)]
pub(crate) struct Plugins {
    setup: Option<Setup>,
    /// Names that were tried, successfully or not.
    tried: BTreeSet<String>,
    failures: Vec<LoadFailure>,
    /// Failures of plugins that no device has needed so far.
    unmissed: Vec<LoadFailure>,
    extensions: Vec<&'static ferroverbs_plugin_ext>,
    /// Plugins that announce no device while the kernel has devices.
    postponed: Vec<String>,
    kernel_plugins_loaded: bool,
}

/// Configuration as found at the first listing.
#[derive(Debug)]
struct Setup {
    loader: Loader,
    /// From the environment; before all others.
    requested: Vec<String>,
    /// Directory and its content, as far as read; `None`: unreadable.
    config: Vec<(SearchDir, Option<config::ConfigFolder>)>,
}

impl Setup {
    fn read() -> Self {
        let text = |name| env::trusted(name).and_then(|value| value.into_string().ok());
        let wishes = SearchSettings {
            config: text("FERROVERBS_CONFIG_DIR"),
            plugins: text("FERROVERBS_PROVIDER_DIR"),
        };
        let library = dl::file_of(Self::read as *const core::ffi::c_void);
        let places = SearchPaths::new(library.as_deref(), &wishes);
        let requested = text("RDMAV_DRIVERS").or_else(|| text("IBV_DRIVERS")).unwrap_or_default();
        let config = places
            .config
            .into_iter()
            .map(|place| {
                // Read as little as possible: every program pays for it.
                let wanted = |file: &OsStr| {
                    let named =
                        place.origin == Origin::System && is_named_after_kernel_driver(file);
                    !named && !place.is_replaced(file)
                };
                let contents = config::read(&place.path, wanted).ok();
                (place, contents)
            })
            .collect();
        Self {
            loader: Loader::new(&places.plugins),
            requested: config::split_list(&requested),
            config,
        }
    }

    fn directives(&self) -> impl Iterator<Item = (Origin, &Directive)> {
        self.config.iter().flat_map(|(place, contents)| {
            let directives = contents.iter().flat_map(|contents| &contents.directives);
            directives.map(|found| (place.origin, found))
        })
    }
}

impl Plugins {
    /// Opens plugins that may announce devices beside `kernel_devices` kernel devices, each once.
    /// Returns all extensions found so far.
    pub(crate) fn announcing(
        &mut self,
        kernel_devices: usize,
    ) -> Vec<&'static ferroverbs_plugin_ext> {
        if kernel_devices == 0 && !self.postponed.is_empty() {
            for name in core::mem::take(&mut self.postponed) {
                self.open(&name);
            }
            self.explain_failures();
        }
        if self.setup.is_none() {
            let setup = self.setup.insert(Setup::read());
            let idle = |directive: &Directive| {
                let reported = |only: &OnlyWithout| {
                    only.unless.as_ref().is_some_and(|name| std::env::var_os(name).is_some())
                };
                kernel_devices > 0 && directive.only_without.as_ref().is_some_and(|o| !reported(o))
            };
            let (idle, queried): (Vec<_>, Vec<_>) = setup
                .directives()
                .filter(|(origin, directive)| *origin == Origin::Ferroverbs || directive.announces)
                .map(|(_, directive)| directive)
                .partition(|directive| idle(directive));
            self.postponed = idle.into_iter().map(|directive| directive.name.clone()).collect();
            let queried = queried.into_iter().map(|directive| &directive.name);
            let names: Vec<String> = setup.requested.iter().chain(queried).cloned().collect();
            for (place, contents) in &setup.config {
                if place.origin == Origin::Ferroverbs {
                    contents
                        .iter()
                        .flat_map(|contents| &contents.ignored)
                        .for_each(explain_ignored);
                }
            }
            for name in names {
                self.open(&name);
            }
            self.explain_failures();
        }
        self.extensions.clone()
    }

    /// Opens the plugin that the kernel's driver ids name; true: a new plugin was opened.
    pub(crate) fn open_named(&mut self, unmatched: &[SysfsDev]) -> bool {
        let before = registry::drivers().len();
        for device in unmatched {
            if let Some(name) = driver_of(device) {
                self.open(name);
            }
        }
        registry::drivers().len() > before
    }

    /// Opens the plugin that an announced device names, and reports a failure.
    pub(crate) fn open_provider(&mut self, name: &str) {
        self.open(name);
        self.explain_failures();
    }

    /// Opens every configured plugin, once per process; true the first time.
    pub(crate) fn open_all(&mut self) -> bool {
        if core::mem::replace(&mut self.kernel_plugins_loaded, true) {
            return false;
        }
        let Some(setup) = &mut self.setup else { return false };
        for (place, contents) in &mut setup.config {
            if place.origin != Origin::System {
                continue;
            }
            *contents = config::read(&place.path, |file| !place.is_replaced(file)).ok();
            match contents {
                Some(contents) => contents.ignored.iter().for_each(explain_ignored),
                None if place.is_optional() => {}
                None => {
                    let path = place.path.display();
                    notice!("Warning: couldn't open config directory '{path}'.");
                }
            }
        }
        let names: Vec<String> =
            setup.directives().map(|(_, directive)| directive.name.clone()).collect();
        for name in names {
            self.open(&name);
        }
        true
    }

    /// Reports the plugins that these devices lack. If the kernel names the plugins, other
    /// configured plugins that are not installed cause no message.
    pub(crate) fn explain_missing(&mut self, unmatched: &[SysfsDev]) {
        let named: Option<Vec<_>> = unmatched.iter().map(driver_of).collect();
        self.failures.append(&mut self.unmissed);
        if let Some(named) = named {
            let all = core::mem::take(&mut self.failures);
            (self.failures, self.unmissed) =
                all.into_iter().partition(|failure| is_missed(failure, &named));
        }
        self.explain_failures();
    }

    /// Reports the plugins that could not be opened, because a device stays without a driver.
    pub(crate) fn explain_failures(&mut self) {
        for failure in self.failures.iter().take(EXPLAINED) {
            notice!("Warning: {failure}");
        }
        if let Some(more @ 1..) = self.failures.len().checked_sub(EXPLAINED) {
            notice!("Warning: {more} more configured plugins could not be loaded either");
        }
        self.failures.clear();
    }

    /// The likely reason why no device exists, for a message.
    pub(crate) fn why_nothing(&self) -> String {
        let kernel = crate::sys::sysfs::class("infiniband_verbs");
        let kernel = if kernel.is_dir() {
            "the kernel has none".to_owned()
        } else {
            format!("the kernel has no RDMA support loaded ({} is missing)", kernel.display())
        };
        if !self.extensions.is_empty() {
            return format!(
                "no RDMA device: {kernel}, and the software devices that are enabled announce none"
            );
        }
        let own = self.setup.iter().flat_map(|setup| &setup.config);
        let own = own.map(|(place, _)| place).find(|place| place.origin == Origin::Ferroverbs);
        match own {
            Some(place) => format!(
                "no RDMA device: {kernel}, and no file in {} enables a software device",
                place.path.display()
            ),
            None => format!("no RDMA device: {kernel}, and no software device is enabled"),
        }
    }

    fn open(&mut self, name: &str) {
        let Some(setup) = &self.setup else { return };
        if !self.tried.insert(name.to_owned()) {
            return;
        }
        match setup.loader.load(name) {
            Ok(plugin) => {
                let Some(address) = plugin.data::<ferroverbs_plugin_ext>(PLUGIN_EXT_SYMBOL) else {
                    return;
                };
                // SAFETY: the symbol's documented type; constant data of a plugin that is never
                // closed.
                let ext = unsafe { ext::adopt(address) };
                if registry::find_driver(ext.device_ops).is_none() {
                    notice!(
                        "Warning: {}: its {} names a driver that it did not register; ignored",
                        plugin.file().display(),
                        PLUGIN_EXT_SYMBOL.to_string_lossy()
                    );
                } else if !self.extensions.iter().any(|known| known.device_ops == ext.device_ops) {
                    self.extensions.push(ext);
                }
            }
            Err(failure) => self.failures.push(failure),
        }
    }
}

/// The plugin that the kernel's driver id names.
fn driver_of(device: &SysfsDev) -> Option<&'static str> {
    let id = device.get().driver_id;
    BY_DRIVER_ID.iter().find(|(known, _)| id != 0 && *known == id).map(|(_, name)| *name)
}

/// Whether a failed plugin is one of `named`, or exists and is broken.
fn is_missed(failure: &LoadFailure, named: &[&str]) -> bool {
    failure.is_broken() || named.contains(&failure.driver.as_str())
}

fn explain_ignored(ignored: &config::Ignored) {
    notice!("Warning: {ignored}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use provider_loader::SearchResult;

    #[test]
    fn a_device_misses_its_own_plugin_and_not_all_that_are_configured() {
        let failure = |driver: &str, found| LoadFailure {
            driver: driver.to_owned(),
            folders: Vec::new(),
            generations: Vec::new(),
            search: found,
        };
        assert!(is_missed(&failure("rxe", SearchResult::Nothing), &["rxe"]));
        assert!(!is_missed(&failure("mana", SearchResult::Nothing), &["rxe"]));
        let broken = SearchResult::Broken("/x/libmana-rdmav34.so".into(), "no library".into());
        assert!(is_missed(&failure("mana", broken), &["rxe"]));
    }
}
