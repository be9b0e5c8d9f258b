//! One line that explains why a plugin is not there.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

/// Nothing could be loaded for a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The driver's name.
    pub driver: String,
    /// Files that were tried, in order.
    pub tried: Vec<PathBuf>,
    /// The loader's words about the first file that exists, when one does.
    pub error: Option<(PathBuf, String)>,
}

impl Failure {
    /// Whether a file was there and could not be loaded, as opposed to there being none.
    pub fn is_broken(&self) -> bool {
        self.error.is_some()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some((file, error)) => {
                write!(f, "plugin {} could not be loaded: {error}; ", file.display())?;
            }
            None => write!(f, "no plugin found for driver '{}'; tried ", self.driver)?,
        }
        if self.error.is_none() {
            for (index, file) in self.tried.iter().enumerate() {
                let separator = if index == 0 { "" } else { ", " };
                write!(f, "{separator}{}", file.display())?;
            }
            f.write_str("; ")?;
        }
        write!(f, "devices of driver '{}' will be missing", self.driver)?;
        if self.error.is_none() {
            f.write_str(" (install it, or name its directory in FERROVERBS_PROVIDER_DIR)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_plugin_is_explained_in_one_line() {
        let failure = Failure {
            driver: "soft".into(),
            tried: vec!["/a/libsoft-rdmav65.so".into(), "/b/libsoft-rdmav34.so".into()],
            error: None,
        };
        assert_eq!(
            failure.to_string(),
            "no plugin found for driver 'soft'; tried /a/libsoft-rdmav65.so, /b/libsoft-rdmav34.so; \
             devices of driver 'soft' will be missing (install it, or name its directory in \
             FERROVERBS_PROVIDER_DIR)"
        );
    }

    #[test]
    fn a_broken_plugin_is_explained_with_the_loaders_words() {
        let failure = Failure {
            driver: "soft".into(),
            tried: vec!["/a/libsoft-rdmav65.so".into()],
            error: Some(("/a/libsoft-rdmav65.so".into(), "undefined symbol: x".into())),
        };
        let line = failure.to_string();
        assert_eq!(
            line,
            "plugin /a/libsoft-rdmav65.so could not be loaded: undefined symbol: x; devices of driver \
             'soft' will be missing"
        );
        assert!(failure.is_broken());
    }
}
