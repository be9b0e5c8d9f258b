//! The setting `verbs_allow_disassociate_destroy`: whether destruction of an object succeeds when
//! its device is gone. Plugins read the variable too.

use core::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    // `export/data.rs` defines the variable, with a version for each generation of plugins.
    #[link_name = "fv.allow_disassociate_destroy"]
    static ALLOW: AtomicBool;
}

fn flag() -> &'static AtomicBool {
    // SAFETY: one byte of this library, always 0 or 1; plugins only read the byte.
    unsafe { &ALLOW }
}

/// Sets the flag, once per process.
pub(super) fn allow(on: bool) {
    // Relaxed: a single byte that plugins read without any ordering.
    flag().store(on, Ordering::Relaxed);
}

/// The present value.
pub(crate) fn is_allowed() -> bool {
    // Relaxed: no other data depends on the flag.
    flag().load(Ordering::Relaxed)
}
