//! Reading the variable of a layer (`layer_records::settings`).
#![forbid(unsafe_code)]

/// The settings in environment variable `variable`, by `parse`.
///
/// Each word that `parse` does not understand is ignored, with a line on standard error that names `layer`.
pub fn read<T>(variable: &str, layer: &str, parse: fn(&str) -> (T, Vec<String>)) -> T {
    let (settings, wrong) = parse(&std::env::var(variable).unwrap_or_default());
    for why in wrong {
        cface::say!("ferroverbs {layer}: {variable}: {why}; ignored");
    }
    settings
}
