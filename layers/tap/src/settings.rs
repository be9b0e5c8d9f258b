//! Reading the variable of a layer (`layer_records::settings`).
#![forbid(unsafe_code)]

/// The settings in environment variable `variable`, which a privileged program ignores ([`cface::env::trusted`]), by `parse`.
///
/// Each word that `parse` does not understand is ignored, with a line on standard error that names `layer`.
pub fn read<T>(variable: &str, layer: &str, parse: fn(&str) -> (T, Vec<String>)) -> T {
    let text = cface::env::trusted(variable).and_then(|text| text.into_string().ok());
    let (settings, wrong) = parse(&text.unwrap_or_default());
    for why in wrong {
        cface::say!("ferroverbs {layer}: {variable}: {why}; ignored");
    }
    settings
}
