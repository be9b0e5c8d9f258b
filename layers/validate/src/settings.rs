//! The settings of the layer `validate` in this process, from `FERROVERBS_VALIDATE`
//! (`layer_records::settings`).

use std::fs::File;
use std::sync::OnceLock;

pub(crate) use layer_records::settings::validate::Settings;
use layer_records::settings::validate::VARIABLE;

/// The settings, read once.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let settings = layer_tap::settings::read(VARIABLE, "validate", Settings::parse);
        for path in [&settings.json, &settings.log].into_iter().flatten() {
            if let Err(error) = File::options().create(true).append(true).open(path) {
                cface::say!(
                    "ferroverbs validate: {VARIABLE}: cannot write {}: {error}",
                    path.display()
                );
            }
        }
        settings
    })
}
