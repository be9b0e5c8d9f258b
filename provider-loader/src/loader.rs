//! From a driver's name to an opened plugin.
//!
//! A plugin is `lib<name>-rdmav<generation>.so`. In our own directories the newest generation is
//! tried first. A distribution ships one generation, so in its directories the generation of most
//! files goes first. The first file that opens wins: loading two generations of one provider would
//! register it twice.
#![forbid(unsafe_code)]

use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::dl::Plugin;
use crate::elf;
use crate::failure::{LoadFailure, SearchResult};
use crate::places::{Origin, SearchDir};

/// The numbers a plugin can be built for, newest first.
fn generations() -> Vec<u32> {
    cface::generations::numbers().rev().collect()
}

/// Opens plugins from a list of directories.
#[derive(Clone, Debug)]
pub struct Loader {
    /// In the order of the search.
    folders: Vec<Folder>,
}

/// A directory of plugins.
#[derive(Clone, Debug)]
struct Folder {
    path: PathBuf,
    origin: Origin,
    /// Computed at the first search of the folder, because a distribution's directory must be read.
    order: OnceCell<Vec<u32>>,
}

impl Folder {
    /// Generations in the order of the search.
    fn order(&self) -> &[u32] {
        match self.origin {
            Origin::Ferroverbs => self.order.get_or_init(generations),
            Origin::System => self.order.get_or_init(|| by_frequency(&self.path)),
        }
    }
}

impl Loader {
    /// For plugin directories in the order of `places`.
    pub fn new(places: &[SearchDir]) -> Self {
        let folder = |place: &SearchDir| Folder {
            path: place.path.clone(),
            origin: place.origin,
            order: OnceCell::new(),
        };
        Self { folders: places.iter().map(folder).collect() }
    }

    /// Opens the plugin of driver `name`. A name that starts with `/` is the beginning of a path.
    ///
    /// # Errors
    /// [`LoadFailure`] when no file opens.
    pub fn load(&self, name: &str) -> Result<Plugin, LoadFailure> {
        let mut failure = LoadFailure {
            driver: name.to_owned(),
            folders: self.folders.iter().map(|folder| folder.path.clone()).collect(),
            generations: generations(),
            search: SearchResult::Nothing,
        };
        for file in self.candidates(name) {
            // A bare name is for the dynamic loader's own search, which skips the current
            // directory; so does this check.
            let bare = file.components().count() == 1;
            let exists = !bare && file.exists();
            if exists || bare {
                let checked = if exists { elf::check(&file) } else { Ok(()) };
                match checked.and_then(|()| Plugin::open(file.as_os_str())) {
                    Ok(plugin) => return Ok(plugin),
                    Err(error) if exists && !failure.is_broken() => {
                        failure.search = SearchResult::Broken(file, error);
                    }
                    Err(_) => {}
                }
            }
        }
        if !failure.is_broken()
            && let Some(file) = self.foreign(name)
        {
            failure.search = SearchResult::Foreign(file);
        }
        Err(failure)
    }

    /// A file that would be the plugin of driver `name`, of any generation.
    fn foreign(&self, name: &str) -> Option<PathBuf> {
        let whole = Path::new(name);
        let (stem, folders) = match (name.starts_with('/'), whole.parent(), whole.file_name()) {
            (true, Some(folder), Some(stem)) => (stem.to_str()?.to_owned(), vec![folder]),
            _ => {
                let folders = self.folders.iter().map(|folder| folder.path.as_path()).collect();
                (format!("lib{name}"), folders)
            }
        };
        let entries = folders.into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
        entries.flatten().flatten().map(|entry| entry.path()).find(|path| {
            let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
            let number = file.strip_prefix(&stem).and_then(|rest| rest.strip_prefix("-rdmav"));
            let number = number.and_then(|rest| rest.strip_suffix(".so"));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
    }

    /// Files to try, in order; the last ones are bare names for the dynamic loader's own search. A
    /// directory is not read before its turn.
    fn candidates<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
        // A path is used unchanged, without the directories.
        let (stem, folders) = match name.starts_with('/') {
            true => (name.to_owned(), [].as_slice()),
            false => (format!("lib{name}"), self.folders.as_slice()),
        };
        let prefixes = folders.iter().map(Some).chain([None]);
        prefixes.flat_map(move |folder| {
            let order = folder.or(folders.last()).map_or_else(generations, |f| f.order().to_vec());
            let path = folder.map_or(Path::new(""), |folder| &folder.path);
            let stem = stem.clone();
            order.into_iter().map(move |number| path.join(format!("{stem}-rdmav{number}.so")))
        })
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
        names.iter().filter(|name| name.as_bytes().ends_with(suffix.as_bytes())).count()
    };
    let mut order = generations();
    order.sort_by_cached_key(|&generation| std::cmp::Reverse(count(generation)));
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
        assert_eq!(by_frequency(Path::new("/nonexistent")), generations());
        std::fs::remove_dir_all(path).expect("cleaning up");
    }

    #[test]
    fn the_projects_directory_is_tried_newest_first_and_bare_names_last() {
        let path = folder("candidates", &["libx-rdmav34.so"]);
        let loader = Loader::new(&[
            SearchDir { path: PathBuf::from("/own"), origin: Origin::Ferroverbs },
            SearchDir { path: path.clone(), origin: Origin::System },
        ]);
        let files: Vec<_> = loader.candidates("soft").collect();
        assert_eq!(files[0], Path::new("/own/libsoft-rdmav65.so"));
        assert_eq!(files[5], path.join("libsoft-rdmav34.so"));
        assert_eq!(files[10], Path::new("libsoft-rdmav34.so"));
        assert_eq!(files.len(), 15);
        let paths: Vec<_> = loader.candidates("/opt/libx").collect();
        assert_eq!((paths.len(), paths[0].as_path()), (5, Path::new("/opt/libx-rdmav65.so")));
        std::fs::remove_dir_all(path).expect("cleaning up");
    }

    #[test]
    fn a_distributions_directory_is_not_read_before_something_is_looked_for_in_it() {
        let path = folder("lazy", &["libx-rdmav34.so"]);
        let loader = Loader::new(&[
            SearchDir { path: PathBuf::from("/own"), origin: Origin::Ferroverbs },
            SearchDir { path: path.clone(), origin: Origin::System },
        ]);
        let mut files = loader.candidates("soft");
        assert!(files.by_ref().take(5).all(|file| file.starts_with("/own")));
        // Written meanwhile, and counted all the same.
        for file in ["liby-rdmav59.so", "libz-rdmav59.so"] {
            std::fs::write(path.join(file), b"").expect("a file");
        }
        assert_eq!(files.next(), Some(path.join("libsoft-rdmav59.so")));
        std::fs::remove_dir_all(path).expect("cleaning up");
    }

    #[test]
    fn a_plugin_of_an_unknown_generation_is_named_in_the_failure() {
        let path =
            folder("foreign", &["libnew-rdmav99.so", "libnewer-rdmav99.so", "libnew-rdmavx.so"]);
        let loader = Loader::new(&[SearchDir { path: path.clone(), origin: Origin::System }]);
        let named = |name: &str| loader.load(name).expect_err("nothing to open").search;
        assert_eq!(named("new"), SearchResult::Foreign(path.join("libnew-rdmav99.so")));
        assert_eq!(named(path.join("libnew").to_str().expect("a name")), named("new"));
        assert_eq!(named("ne"), SearchResult::Nothing);
        std::fs::remove_dir_all(path).expect("cleaning up");
    }

    #[test]
    fn a_file_that_is_no_library_is_named_in_the_failure() {
        let path = folder("broken", &["libnothing-rdmav65.so"]);
        let loader = Loader::new(&[SearchDir { path: path.clone(), origin: Origin::Ferroverbs }]);
        let failure = loader.load("nothing").expect_err("not a library");
        let SearchResult::Broken(file, error) = failure.search else { panic!("{failure:?}") };
        assert_eq!(file, path.join("libnothing-rdmav65.so"));
        assert!(error.contains("too short"), "{error}");
        assert!(!loader.load("missing").expect_err("no such file").is_broken());
        std::fs::remove_dir_all(path).expect("cleaning up");
    }

    #[test]
    fn a_file_in_the_current_directory_is_no_plugin() {
        const NAME: &str = "loader::tests::a_file_in_the_current_directory_is_no_plugin";
        if std::env::var_os("FV_LOADER_TEST_CHILD").is_some() {
            let failure = Loader::new(&[]).load("junk").expect_err("no such plugin");
            assert!(matches!(failure.search, SearchResult::Nothing), "{failure:?}");
            return;
        }
        // The current directory belongs to the whole process, so a child process loads the plugin.
        let files: Vec<_> = generations().iter().map(|n| format!("libjunk-rdmav{n}.so")).collect();
        let path = folder("current", &files.iter().map(String::as_str).collect::<Vec<_>>());
        let test = std::env::current_exe().expect("this program");
        let child = std::process::Command::new(test)
            .args(["--exact", NAME])
            .env("FV_LOADER_TEST_CHILD", "1")
            .current_dir(&path)
            .output()
            .expect("another process");
        std::fs::remove_dir_all(path).expect("cleaning up");
        let printed = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && printed.contains("1 passed"), "{printed}");
    }
}
