//! The variables that configure the layers: `FERROVERBS_VALIDATE`, `FERROVERBS_TRACE`,
//! `FERROVERBS_CAPTURE` and `FERROVERBS_STATS`.
//!
//! A value is a list of words with a colon between them, as in the options of the sanitizers. A
//! word is a name, or a name and a value with an equals sign between them. A layer reads its
//! variable when the layer starts. The command `ferroverbs` checks a value before it starts a
//! program.

pub mod capture;
pub mod stats;
pub mod trace;
pub mod validate;

/// Gives the name and the value of each word to `set`. A word without an equals sign has the value
/// 1.
///
/// Returns a line for each word that `set` refuses.
pub fn words(text: &str, mut set: impl FnMut(&str, &str) -> Result<(), String>) -> Vec<String> {
    let words = text.split(':').map(str::trim).filter(|word| !word.is_empty());
    let wrong = words.filter_map(|word| {
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        set(name, value).err().map(|why| format!("{word:?}: {why}"))
    });
    wrong.collect()
}

/// The lines for the words in `text` that the layer `layer` does not understand. Empty for a layer
/// of other origin.
#[must_use]
pub fn refused_words(layer: &str, text: &str) -> Vec<String> {
    match layer {
        "validate" => validate::Settings::parse(text).1,
        "trace" => trace::Settings::parse(text).1,
        "capture" => capture::Settings::parse(text).1,
        "stats" => stats::Settings::parse(text).1,
        _ => Vec::new(),
    }
}
