//! The settings of this process, by `FERROVERBS_TRACE` (`layer_records::settings`).

use std::sync::OnceLock;

use layer_records::settings::trace::{Settings, VARIABLE};

/// The settings, read once. A set-user-ID program has no layers.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| layer_tap::settings::read(VARIABLE, "trace", Settings::parse))
}
