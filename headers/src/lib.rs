//! The C headers of `include/`, written from the `abi` crate and from `templates/`.
//!
//! 1. [`rust`] reads the crate's items and rewrites what cbindgen would not see as C means it: integer aliases with their constants
//!    become enums, documentation loses its Rust markup.
//! 2. [`c`] lets cbindgen write them, takes its text apart into definitions by name, and puts in place what only C can say
//!    ([`names`] has the lists).
//! 3. [`template`] puts the definitions where a template asks for them. Everything else in a header (macros, inline functions,
//!    the order) is the template's own text.
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

/// What went wrong, ready to be shown to a person.
pub type Result<T> = std::result::Result<T, String>;

/// A header: where it belongs, below `include/`, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Relative to `include/`.
    pub path: PathBuf,
    /// What should be there.
    pub text: String,
}

/// All headers, from the repository at `root`.
///
/// # Errors
/// The file and what is wrong in it.
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

/// What headers are made of.
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
    /// The file and what is wrong in it.
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
