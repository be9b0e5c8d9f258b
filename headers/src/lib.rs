//! Generates the C headers of `include/` from the `abi` crate and from `templates/`. [`generate`]
//! returns all headers for a repository: `for header in generate(root)? { … }`.
//!
//! 1. [`rust`] reads the crate's items and rewrites Rust forms for cbindgen: integer aliases with
//!    constants become enums, and documentation loses Rust markup.
//! 2. [`c`] runs cbindgen, splits the output into definitions by name, and inserts forms that only
//!    C has ([`names`] has the lists).
//! 3. [`template`] inserts the definitions at a template's directives. Macros, inline functions and
//!    the order come from the template.
//!
//! docs/design/headers.md explains the directives of a template.

#![forbid(unsafe_code)]

pub mod c;
pub mod names;
pub mod rust;
pub mod template;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// An error text for the user.
pub type Result<T> = std::result::Result<T, String>;

/// A header: its path below `include/`, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Relative to `include/`.
    pub path: PathBuf,
    /// The generated text.
    pub text: String,
}

/// All headers, from the repository at `root`.
///
/// # Errors
/// The file and its error.
pub fn generate(root: &Path) -> Result<Vec<Header>> {
    let sources = Sources::read(root)?;
    let mut headers = Vec::new();
    for (path, text) in &sources.templates {
        let text = template::expand(text, &sources.abi, &sources.definitions)
            .map_err(|error| format!("headers/templates/{}: {error}", path.display()))?;
        headers.push(Header { path: path.clone(), text });
    }
    Ok(headers)
}

/// The sources of all headers.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Path below `include/`, and text.
    pub templates: Vec<(PathBuf, String)>,
    /// The crate.
    pub abi: rust::Abi,
    /// The crate in C, by name.
    pub definitions: BTreeMap<String, c::Definition>,
}

impl Sources {
    /// Reads templates and crate, and runs cbindgen.
    ///
    /// # Errors
    /// The file and its error.
    pub fn read(root: &Path) -> Result<Self> {
        let folder = root.join("headers/templates");
        let mut files = Vec::new();
        collect(&folder, &mut files)?;
        let mut templates = Vec::new();
        for file in files {
            let text = fs::read_to_string(&file)
                .map_err(|error| format!("{}: {error}", file.display()))?;
            let path = file.strip_prefix(&folder).unwrap_or(&file).to_path_buf();
            templates.push((path, text));
        }
        let texts = || templates.iter().map(|(_, text)| text.as_str());
        let macros: BTreeSet<String> =
            texts().flat_map(template::macros).map(str::to_owned).collect();
        let listed: BTreeSet<String> = texts().flat_map(template::listed_constants).collect();
        let abi = rust::read(&root.join("abi/src"), &macros, &listed)?;
        let definitions = c::definitions(&abi, &root.join("cbindgen.toml"))?;
        Ok(Self { templates, abi, definitions })
    }
}

/// The headers below a folder, in order.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut entries = fs::read_dir(folder)
        .map_err(fail)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(fail)?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "h") {
            files.push(path);
        }
    }
    Ok(())
}
