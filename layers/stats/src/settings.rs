//! The settings of the layer `stats` in this process, from `FERROVERBS_STATS`
//! (`layer_records::settings`).

use std::sync::OnceLock;

use layer_records::settings::stats::{Settings, VARIABLE};

/// The settings, read once.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| layer_tap::settings::read(VARIABLE, "stats", Settings::parse))
}
