//! Layers named by the environment (docs/reference/layers.md): their files and their exported
//! tables. Both libraries with a chain of layers use this module.

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use crate::Plugin;
use crate::places::{SearchPaths, SearchSettings};

/// Names or paths of layers, a comma between; the first is nearest to the program.
pub const SETTING: &str = "FERROVERBS_LAYERS";
/// The largest number of layers; a sanity limit.
pub const MOST: usize = 16;

/// The words of the setting, each once.
#[must_use]
pub fn split_names(text: &str) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Opens a layer by its name, among our own files, or by its path. `library` is the file of the
/// calling library.
///
/// # Errors
/// A text for the user.
pub fn open(name: &str, library: Option<&Path>) -> Result<Plugin, String> {
    Plugin::open_path(&find(name, library)?)
}

/// The file of a layer that the setting names. `library` is the file of the calling library.
///
/// # Errors
/// The name has no slash, and no folder of plugins has a layer of the name.
pub fn find(name: &str, library: Option<&Path>) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let plugins = cface::env::trusted("FERROVERBS_PROVIDER_DIR");
    let plugins = plugins.and_then(|value| value.into_string().ok());
    // Ours are beside the plugins.
    let places = SearchPaths::new(library, &SearchSettings { config: None, plugins });
    let folders: Vec<PathBuf> = places.plugins.into_iter().map(|place| place.path).collect();
    let file = format!("libferroverbs-layer-{name}.so");
    let found = folders.iter().map(|folder| folder.join(&file)).find(|path| path.exists());
    found.ok_or_else(|| {
        let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        format!(
            "there is no {file} in {}; other layers are named by their path",
            folders.join(", ")
        )
    })
}

/// A layer's data symbol, which begins with its own size. `None`: no such symbol.
///
/// # Errors
/// The table is smaller than the caller's type.
pub fn table<T>(plugin: &Plugin, symbol: &CStr) -> Option<Result<&'static T, String>> {
    let found = sized::<T>(plugin, symbol, size_of::<T>())?;
    // SAFETY: as large as `T` (checked), constant, never unloaded.
    Some(found.map(|(table, _)| unsafe { &*table }))
}

/// As `table`, for a table that has grown since its first version of `least` bytes. Missing fields
/// of an older layer come from `absent`.
///
/// # Errors
/// The table is smaller than the first version.
pub fn grown<T: Copy>(
    plugin: &Plugin,
    symbol: &CStr,
    least: usize,
    absent: T,
) -> Option<Result<T, String>> {
    let found = sized::<T>(plugin, symbol, least)?;
    Some(found.map(|(table, size)| {
        let mut known = absent;
        let length = size.min(size_of::<T>());
        // SAFETY: as many bytes of a `T` as the layer has, which are constant data, over one of
        // ours.
        unsafe { (&raw mut known).cast::<u8>().copy_from_nonoverlapping(table.cast(), length) };
        known
    }))
}

/// A data symbol that begins with its own size, and that size.
fn sized<T>(
    plugin: &Plugin,
    symbol: &CStr,
    least: usize,
) -> Option<Result<(*const T, usize), String>> {
    let table = plugin.data::<T>(symbol)?;
    // SAFETY: constant data of an object that is never closed; each version begins with `size`.
    let size = unsafe { table.cast::<usize>().read() };
    if size < least {
        let file = plugin.file().display();
        return Some(Err(format!("{} in {file} has {size} bytes", symbol.to_string_lossy())));
    }
    Some(Ok((table, size)))
}
