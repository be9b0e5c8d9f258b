//! From a driver's name to an opened plugin.
//!
//! A plugin is `lib<name>-rdmav<generation>.so`. In our own directories the newest generation is tried
//! first. A distribution ships one generation, its own, so in its directories the generation that most
//! files have goes first. The first file that opens wins: loading two generations of one provider would
//! register it twice.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::dl::Plugin;
use crate::elf;
use crate::failure::Failure;
use crate::places::{Origin, Place};

/// The numbers a plugin can be built for, newest first.
pub const GENERATIONS: [u32; 5] = [65, 64, 59, 57, 34];

/// Opens plugins from a list of directories.
#[derive(Clone, Debug)]
pub struct Loader {
    /// Directory and suffixes, in the order in which they are tried.
    folders: Vec<(PathBuf, Vec<u32>)>,
}

impl Loader {
    /// For plugin directories in the order of `places`.
    pub fn new(places: &[Place]) -> Self {
        let folders = places
            .iter()
            .map(|place| {
                let order = match place.origin {
                    Origin::Own => GENERATIONS.to_vec(),
                    Origin::System => by_frequency(&place.path),
                };
                (place.path.clone(), order)
            })
            .collect();
        Self { folders }
    }

    /// Opens the plugin of driver `name`. A name that starts with `/` is the beginning of a path.
    ///
    /// # Errors
    /// [`Failure`] when no file opens.
    pub fn load(&self, name: &str) -> Result<Plugin, Failure> {
        let mut failure = Failure {
            driver: name.to_owned(),
            folders: self.folders.iter().map(|(folder, _)| folder.clone()).collect(),
            generations: GENERATIONS.to_vec(),
            error: None,
        };
        for file in self.candidates(name) {
            let exists = file.exists();
            let bare = file.components().count() == 1;
            if exists || bare {
                let checked = if exists { elf::check(&file) } else { Ok(()) };
                match checked.and_then(|()| Plugin::open(file.as_os_str())) {
                    Ok(plugin) => return Ok(plugin),
                    Err(error) if exists && failure.error.is_none() => {
                        failure.error = Some((file, error));
                    }
                    Err(_) => {}
                }
            }
        }
        Err(failure)
    }

    /// Files to try, in order; the last ones are bare names for the dynamic loader's own search.
    fn candidates(&self, name: &str) -> Vec<PathBuf> {
        let named =
            |stem: &str, generation: &u32| OsString::from(format!("{stem}-rdmav{generation}.so"));
        if name.starts_with('/') {
            return GENERATIONS.iter().map(|generation| named(name, generation).into()).collect();
        }
        let stem = format!("lib{name}");
        let mut files: Vec<PathBuf> = self
            .folders
            .iter()
            .flat_map(|(folder, order)| {
                order.iter().map(|generation| folder.join(named(&stem, generation)))
            })
            .collect();
        let system_order = self.folders.last().map_or(GENERATIONS.as_slice(), |(_, order)| order);
        files.extend(system_order.iter().map(|generation| PathBuf::from(named(&stem, generation))));
        files
    }
}

/// Generations ordered by how many plugins of each a directory has, newest first among equals.
fn by_frequency(folder: &Path) -> Vec<u32> {
    let names: Vec<OsString> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    let count = |generation: u32| {
        let suffix = format!("-rdmav{generation}.so");
        names.iter().filter(|name| name.to_string_lossy().ends_with(&suffix)).count()
    };
    let mut order = GENERATIONS.to_vec();
    order.sort_by_key(|&generation| std::cmp::Reverse(count(generation)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(tag: &str, files: &[&str]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("fv-loader-{tag}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a directory");
        for file in files {
            std::fs::write(folder.join(file), b"not a library").expect("a file");
        }
        folder
    }

    #[test]
    fn the_distributions_own_generation_goes_first_in_its_directory() {
        let path = folder("order", &["liba-rdmav34.so", "libb-rdmav34.so", "libc-rdmav65.so"]);
        assert_eq!(by_frequency(&path), [34, 65, 64, 59, 57]);
        assert_eq!(by_frequency(Path::new("/nonexistent")), GENERATIONS);
        std::fs::remove_dir_all(path).expect("cleaning up");
    }

    #[test]
    fn our_directory_is_tried_newest_first_and_bare_names_last() {
        let path = folder("candidates", &["libx-rdmav34.so"]);
        let loader = Loader::new(&[
            Place { path: PathBuf::from("/own"), origin: Origin::Own },
            Place { path: path.clone(), origin: Origin::System },
        ]);
        let files = loader.candidates("soft");
        assert_eq!(files[0], Path::new("/own/libsoft-rdmav65.so"));
        assert_eq!(files[5], path.join("libsoft-rdmav34.so"));
        assert_eq!(files[10], Path::new("libsoft-rdmav34.so"));
        assert_eq!(files.len(), 15);
        assert_eq!(loader.candidates("/opt/libx")[0], Path::new("/opt/libx-rdmav65.so"));
        std::fs::remove_dir_all(path).expect("cleaning up");
    }

    #[test]
    fn a_file_that_is_no_library_is_named_in_the_failure() {
        let path = folder("broken", &["libnothing-rdmav65.so"]);
        let loader = Loader::new(&[Place { path: path.clone(), origin: Origin::Own }]);
        let failure = loader.load("nothing").expect_err("not a library");
        let (file, error) = failure.error.clone().expect("the file exists");
        assert_eq!(file, path.join("libnothing-rdmav65.so"));
        assert!(error.contains("too short"), "{error}");
        assert!(!loader.load("missing").expect_err("no such file").is_broken());
        std::fs::remove_dir_all(path).expect("cleaning up");
    }
}
