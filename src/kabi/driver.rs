//! Registration of provider plugins: a plugin calls it from its constructor. `front::registry`
//! keeps the registered drivers.

use abi::verbs_device_ops;

use crate::front::registry::{self, Driver};
use cface::{Errno, verb};

verb! {
    /// `verbs_register_driver_<PABI>`: called from the plugin's ELF constructor, possibly before
    /// `main`.
    ///
    /// # Safety
    /// `ops` is constant data of a plugin that is never unloaded, of that private ABI.
    pub(crate) fn register<const PABI: u32>(ops: *const verbs_device_ops) {
        // SAFETY: constant and never unloaded, per the contract above.
        let ops = unsafe { ops.as_ref::<'static>() }.ok_or(Errno::EINVAL)?;
        registry::register(Driver { ops, pabi: PABI });
        Ok(())
    }
}

/// `ibv_register_driver`: the registration of libibverbs 1.1; accepted and ignored, as those
/// plugins know nothing we could call.
pub(crate) extern "C" fn register_ancient() {}
