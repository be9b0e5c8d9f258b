//! The watcher of the tap. The modules of the objects implement its calls.

use layer_tap::Watcher;

/// The layer, to which the tap gives each call.
pub(crate) struct Validate;

impl Watcher for Validate {
    const RECORDS: bool = false;
}
