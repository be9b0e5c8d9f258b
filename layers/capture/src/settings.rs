//! The settings of the layer `capture` in this process, from `FERROVERBS_CAPTURE`
//! (`layer_records::settings`).

use std::sync::OnceLock;

pub(crate) use layer_records::settings::capture::Class;
use layer_records::settings::capture::{Settings, VARIABLE};

/// The settings, read once.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| layer_tap::settings::read(VARIABLE, "capture", Settings::parse))
}
