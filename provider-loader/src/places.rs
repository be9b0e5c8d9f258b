//! The directories of configuration files and plugins, in the order of the search.
//!
//! The library finds its own tree relative to its file, so a tree works at any location: for
//! `<prefix>/lib/libibverbs.so.1` the plugins are in `<prefix>/lib/libibverbs` and the
//! configuration in `<prefix>/etc/libibverbs.d`. The distribution's directories come after.
//!
//! The system has two directories of configuration: files in `/etc` belong to the administrator and
//! outlive their package, so our packages use `/usr/share`. A file there is ignored if `/etc` has a
//! file of the same name.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The owner of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Part of our tree, or named by the user: its drivers are meant for us.
    Ferroverbs,
    /// The distribution's: its drivers serve kernel devices unless marked otherwise.
    System,
}

/// A directory to look into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchDir {
    /// The directory.
    pub path: PathBuf,
    /// The owner of the directory.
    pub origin: Origin,
}

/// Settings of the environment, read by the caller, who knows whether they are trusted.
#[derive(Clone, Debug, Default)]
pub struct SearchSettings {
    /// `FERROVERBS_CONFIG_DIR`: directories, separated by `:`, instead of all others.
    pub config: Option<String>,
    /// `FERROVERBS_PROVIDER_DIR`: directories, separated by `:`, before all others.
    pub plugins: Option<String>,
}

/// Where the administrator's files are, and those of rdma-core's packages.
pub const SYSTEM_CONFIG: &str = "/etc/libibverbs.d";

/// Where files are that come and go with a package.
pub const PACKAGED_CONFIG: &str = "/usr/share/ferroverbs/libibverbs.d";

impl SearchDir {
    /// Whether a file of the same name in `/etc` replaces a file of this directory.
    pub fn is_replaced(&self, file: &OsStr) -> bool {
        self.is_replaced_by(file, Path::new(PACKAGED_CONFIG), Path::new(SYSTEM_CONFIG))
    }

    fn is_replaced_by(&self, file: &OsStr, packaged: &Path, system: &Path) -> bool {
        self.path == packaged && system.join(file).exists()
    }

    /// Whether the directory may be missing.
    pub fn is_optional(&self) -> bool {
        self.path == Path::new(PACKAGED_CONFIG)
    }
}

/// All directories, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchPaths {
    /// Configuration directories.
    pub config: Vec<SearchDir>,
    /// Plugin directories.
    pub plugins: Vec<SearchDir>,
}

impl SearchPaths {
    /// The places for a library at `library` (as the loader names it).
    pub fn new(library: Option<&Path>, wishes: &SearchSettings) -> Self {
        Self::with_system(library, wishes, Path::new(SYSTEM_CONFIG), &system_plugin_folders())
    }

    fn with_system(
        library: Option<&Path>,
        wishes: &SearchSettings,
        system_config: &Path,
        system_plugins: &[PathBuf],
    ) -> Self {
        let mut config = Vec::new();
        let mut plugins = Vec::new();
        add_list(&mut plugins, wishes.plugins.as_deref());
        add_list(&mut config, wishes.config.as_deref());
        let only_wished = !config.is_empty();

        for folder in library_folders(library) {
            let own = folder.join("libibverbs");
            let is_system = system_plugins.contains(&own);
            add(&mut plugins, own, if is_system { Origin::System } else { Origin::Ferroverbs });
            if let Some(prefix) = folder.parent().filter(|_| !only_wished) {
                let own = prefix.join("etc/libibverbs.d");
                let is_system = own == system_config;
                add(&mut config, own, if is_system { Origin::System } else { Origin::Ferroverbs });
            }
        }
        if !only_wished {
            add(&mut config, system_config.to_owned(), Origin::System);
            add(&mut config, PathBuf::from(PACKAGED_CONFIG), Origin::System);
        }
        for folder in system_plugins {
            add(&mut plugins, folder.clone(), Origin::System);
        }
        Self { config, plugins }
    }
}

/// The directory in the library's name, and the directory of its real path.
fn library_folders(library: Option<&Path>) -> Vec<PathBuf> {
    let Some(library) = library else { return Vec::new() };
    let absolute = std::path::absolute(library).ok();
    let real = library.canonicalize().ok();
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in [absolute, real].iter().flatten().filter_map(|path| path.parent()) {
        if !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_owned());
        }
    }
    folders
}

fn add_list(places: &mut Vec<SearchDir>, list: Option<&str>) {
    for folder in list.unwrap_or_default().split(':').filter(|folder| !folder.is_empty()) {
        add(places, PathBuf::from(folder), Origin::Ferroverbs);
    }
}

fn add(places: &mut Vec<SearchDir>, path: PathBuf, origin: Origin) {
    if !places.iter().any(|place| place.path == path) {
        places.push(SearchDir { path, origin });
    }
}

/// Where distributions install plugins: Debian's multiarch directory, `lib64`, `lib`.
fn system_plugin_folders() -> Vec<PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu/libibverbs", std::env::consts::ARCH);
    [multiarch.as_str(), "/usr/lib64/libibverbs", "/usr/lib/libibverbs"]
        .into_iter()
        .map(PathBuf::from)
        .filter(|folder| folder.is_dir())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETC: &str = "/etc/libibverbs.d";

    fn places(library: &str, wishes: &SearchSettings) -> SearchPaths {
        let system = [PathBuf::from("/usr/lib/x86_64-linux-gnu/libibverbs")];
        SearchPaths::with_system(Some(Path::new(library)), wishes, Path::new(ETC), &system)
    }

    fn paths(places: &[SearchDir]) -> Vec<(&str, Origin)> {
        places.iter().map(|place| (place.path.to_str().unwrap_or_default(), place.origin)).collect()
    }

    #[test]
    fn the_projects_directory_comes_before_the_distributions() {
        let places = places("/opt/fv/lib/libibverbs.so.1", &SearchSettings::default());
        assert_eq!(
            paths(&places.plugins),
            [
                ("/opt/fv/lib/libibverbs", Origin::Ferroverbs),
                ("/usr/lib/x86_64-linux-gnu/libibverbs", Origin::System)
            ]
        );
        assert_eq!(
            paths(&places.config),
            [
                ("/opt/fv/etc/libibverbs.d", Origin::Ferroverbs),
                (ETC, Origin::System),
                (PACKAGED_CONFIG, Origin::System)
            ]
        );
    }

    #[test]
    fn a_file_in_etc_replaces_the_one_of_a_package() {
        let folder = std::env::temp_dir().join(format!("ferroverbs-places-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("soft.driver"), "").unwrap();
        let place = |path: &str| SearchDir { path: PathBuf::from(path), origin: Origin::System };
        let replaced = |path: &str, file: &str| {
            place(path).is_replaced_by(OsStr::new(file), Path::new("/usr/share/x"), &folder)
        };
        assert!(replaced("/usr/share/x", "soft.driver"));
        assert!(!replaced("/usr/share/x", "other.driver"));
        assert!(!replaced("/opt/fv/etc/libibverbs.d", "soft.driver"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn installed_in_the_distributions_place_its_directory_stays_the_distributions() {
        let places =
            places("/usr/lib/x86_64-linux-gnu/libibverbs.so.1.99", &SearchSettings::default());
        assert_eq!(
            paths(&places.plugins),
            [("/usr/lib/x86_64-linux-gnu/libibverbs", Origin::System)]
        );
    }

    #[test]
    fn environment_settings_replace_the_configuration_and_precede_the_plugins() {
        let wishes = SearchSettings { config: Some("/a:/b".into()), plugins: Some("/p".into()) };
        let places = places("/opt/fv/lib/libibverbs.so.1", &wishes);
        assert_eq!(paths(&places.config), [("/a", Origin::Ferroverbs), ("/b", Origin::Ferroverbs)]);
        assert_eq!(paths(&places.plugins)[0], ("/p", Origin::Ferroverbs));
        assert_eq!(places.plugins.len(), 3);
    }
}
