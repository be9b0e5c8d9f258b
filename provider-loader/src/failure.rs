//! The explanation, in one line, why a plugin could not be loaded. `loader.rs` builds it from the
//! results of all candidates, and its text is a message to the user.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

/// No plugin could be loaded for a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadFailure {
    /// The driver's name.
    pub driver: String,
    /// The searched directories, in order; the dynamic loader's own path came last.
    pub folders: Vec<PathBuf>,
    /// Generations of the private ABI that were looked for, in order.
    pub generations: Vec<u32>,
    /// The result of the search.
    pub search: SearchResult,
}

/// The result of a search for a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchResult {
    /// No file of the driver.
    Nothing,
    /// A plugin of the driver, but of an unknown generation.
    Foreign(PathBuf),
    /// The first existing file, and the dynamic loader's error text.
    Broken(PathBuf, String),
}

impl LoadFailure {
    /// Whether a file exists but could not be loaded.
    pub fn is_broken(&self) -> bool {
        matches!(self.search, SearchResult::Broken(..))
    }
}

impl fmt::Display for LoadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = &self.driver;
        match &self.search {
            SearchResult::Broken(file, error) => {
                let file = file.display().to_string();
                // The dynamic loader mostly begins with the name itself.
                let error = error
                    .strip_prefix(&file)
                    .map_or(error.as_str(), |rest| rest.trim_start_matches(':').trim_start());
                write!(f, "plugin {file} could not be loaded: {error}")?;
            }
            _ if driver.starts_with('/') => {
                write!(f, "no plugin {driver}-rdmav{}.so found", Braces(&self.generations))?;
            }
            _ => {
                write!(f, "no plugin lib{driver}-rdmav{}.so found in ", Braces(&self.generations))?;
                for folder in &self.folders {
                    write!(f, "{}, ", folder.display())?;
                }
                f.write_str("or the loader's path")?;
            }
        }
        write!(f, "; devices of driver '{driver}' will be missing")?;
        match &self.search {
            SearchResult::Broken(..) => Ok(()),
            SearchResult::Foreign(file) => {
                let file = file.display();
                write!(
                    f,
                    " ({file} is there, of an rdma-core whose plugins this library does not know)"
                )
            }
            SearchResult::Nothing => {
                f.write_str(" (install it, or name its directory in FERROVERBS_PROVIDER_DIR)")
            }
        }
    }
}

/// `{65,34}` as a shell would take it.
struct Braces<'a>(&'a [u32]);

impl fmt::Display for Braces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "{{{}}}", numbers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(found: SearchResult) -> LoadFailure {
        LoadFailure {
            driver: "soft".into(),
            folders: vec!["/a".into(), "/b".into()],
            generations: vec![65, 34],
            search: found,
        }
    }

    #[test]
    fn a_missing_plugin_is_explained_in_one_line() {
        assert_eq!(
            failure(SearchResult::Nothing).to_string(),
            "no plugin libsoft-rdmav{65,34}.so found in /a, /b, or the loader's path; devices of driver \
             'soft' will be missing (install it, or name its directory in FERROVERBS_PROVIDER_DIR)"
        );
    }

    #[test]
    fn a_plugin_of_another_release_is_named() {
        let failure = failure(SearchResult::Foreign("/b/libsoft-rdmav99.so".into()));
        assert!(failure.to_string().ends_with(
            "will be missing (/b/libsoft-rdmav99.so is there, of an rdma-core whose plugins this library does not know)"
        ));
    }

    #[test]
    fn a_broken_plugin_is_explained_with_the_loaders_words() {
        let file = "/a/libsoft-rdmav65.so";
        let words = "/a/libsoft-rdmav65.so: undefined symbol: x";
        let broken = failure(SearchResult::Broken(file.into(), words.into()));
        assert_eq!(
            broken.to_string(),
            "plugin /a/libsoft-rdmav65.so could not be loaded: undefined symbol: x; devices of driver \
             'soft' will be missing"
        );
        assert!(broken.is_broken());
        assert!(!failure(SearchResult::Nothing).is_broken());
    }
}
