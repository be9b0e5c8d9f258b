//! The drivers that plugins registered, in order of registration.
//!
//! Registration happens in ELF constructors: inside our `dlopen`, but also before `main` when a
//! program is linked with a provider's library. So it only appends; what needs files or environment
//! is done when a driver is first asked for a device.

use std::path::PathBuf;

use super::generation::{self, Generation};
use abi::verbs_device_ops;
use cface::dl;
use cface::lock::Guard;
use cface::shared::StaticMutex;

/// A registered driver: its table and its registration number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driver {
    /// Constant data of a plugin that is never unloaded.
    pub(crate) ops: &'static verbs_device_ops,
    /// Private ABI number.
    pub(crate) pabi: u32,
}

impl Driver {
    /// The layouts of this driver; `None`: the number never existed.
    pub(crate) fn generation(&self) -> Option<&'static Generation> {
        generation::of_pabi(self.pabi)
    }
}

/// Innermost lock: no function is called under it.
static DRIVERS: StaticMutex<Vec<Driver>> = StaticMutex::new(Vec::new());

/// Waits for the drivers' lock, to fork.
pub(crate) fn hold() -> Guard {
    DRIVERS.hold()
}

/// Appends a driver.
pub(crate) fn register(driver: Driver) {
    DRIVERS.lock().push(driver);
}

/// All drivers registered so far.
pub(crate) fn drivers() -> Vec<Driver> {
    DRIVERS.lock().clone()
}

/// The driver that registered this table.
pub(crate) fn find_driver(ops: *const verbs_device_ops) -> Option<Driver> {
    drivers().into_iter().find(|driver| core::ptr::eq(driver.ops, ops))
}

/// The files of the plugins that registered under `pabi`.
pub(crate) fn files(pabi: u32) -> Vec<PathBuf> {
    drivers()
        .iter()
        .filter(|driver| driver.pabi == pabi)
        .filter_map(|driver| dl::file_of(core::ptr::from_ref(driver.ops).cast()))
        .collect()
}
