//! The settings of the layer `trace` in this process, from `FERROVERBS_TRACE`
//! (`layer_records::settings`).

use std::sync::OnceLock;

use layer_records::settings::trace::{Settings, VARIABLE};

/// The settings, read once.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| layer_tap::settings::read(VARIABLE, "trace", Settings::parse))
}
