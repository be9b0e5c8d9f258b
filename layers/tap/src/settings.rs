//! What the variable of a layer says: words with a colon between, some with a value behind an equals sign.
#![forbid(unsafe_code)]

/// Gives each word's name and value to `set`; a word alone has the value 1. Returns a line for each word that `set` does not understand.
pub fn words(text: &str, mut set: impl FnMut(&str, &str) -> Result<(), String>) -> Vec<String> {
    let words = text.split(':').map(str::trim).filter(|word| !word.is_empty());
    let wrong = words.filter_map(|word| {
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        set(name, value).err().map(|why| format!("{word:?}: {why}"))
    });
    wrong.collect()
}

/// As [`words`], of environment variable `variable`; what is not understood is told on standard error, as of layer `layer`.
pub fn read(variable: &str, layer: &str, set: impl FnMut(&str, &str) -> Result<(), String>) {
    for why in words(&std::env::var(variable).unwrap_or_default(), set) {
        cface::say!("ferroverbs {layer}: {variable}: {why}; ignored");
    }
}
