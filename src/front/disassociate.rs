//! Whether destroying an object whose device is gone counts as success: `verbs_allow_disassociate_destroy`, which
//! plugins read as well.

use core::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    // `export/data.rs` makes it, as it has a version for each generation of plugins.
    #[link_name = "fv.allow_disassociate_destroy"]
    static ALLOW: AtomicBool;
}

fn flag() -> &'static AtomicBool {
    // SAFETY: one byte of this library, 0 or 1 for ever; plugins only read it.
    unsafe { &ALLOW }
}

/// Sets it, once per process.
pub(super) fn allow(on: bool) {
    // Relaxed: a single byte that plugins read without any ordering.
    flag().store(on, Ordering::Relaxed);
}

/// What it says now.
pub(crate) fn is_allowed() -> bool {
    // Relaxed: nothing else depends on it.
    flag().load(Ordering::Relaxed)
}
