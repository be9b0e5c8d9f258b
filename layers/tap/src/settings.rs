//! Reads the environment variable of a layer. `layer_records::settings` parses its words.
#![forbid(unsafe_code)]

/// The settings in the environment variable `variable`, parsed by `parse`. A privileged program
/// ignores the variable ([`cface::env::trusted`]).
///
/// A word that `parse` does not understand is ignored, with a line on standard error that names
/// `layer`.
pub fn read<T>(variable: &str, layer: &str, parse: fn(&str) -> (T, Vec<String>)) -> T {
    let text = cface::env::trusted(variable).and_then(|text| text.into_string().ok());
    let (settings, wrong) = parse(&text.unwrap_or_default());
    for why in wrong {
        cface::say!("ferroverbs {layer}: {variable}: {why}; ignored");
    }
    settings
}
