//! Which files a C program consists of: its own source, the headers that the source includes by
//! `#include "..."`, and the sources of those headers.
//!
//! A header has the source of the same name beside it. A header in a folder below the program's own
//! folder stands for all sources of its folder.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The source `main` with all its headers and sources, as canonical paths.
///
/// # Errors
/// A file that cannot be read.
pub fn files(main: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let main = main.canonicalize()?;
    let folder = main.parent().unwrap_or(Path::new("/"));
    let mut found = BTreeSet::from([main.clone()]);
    let mut wanted = vec![main.clone()];
    while let Some(file) = wanted.pop() {
        for header in included(&file)? {
            let mut new = vec![header.with_extension("c")];
            let of = header.parent().unwrap_or(folder);
            if of != folder && of.starts_with(folder) {
                new.extend(sources_in(of)?);
            }
            new.push(header);
            for file in new.into_iter().filter(|file| file.exists()) {
                if found.insert(file.clone()) {
                    wanted.push(file);
                }
            }
        }
    }
    Ok(found)
}

/// The sources among [`files`], for the compiler.
///
/// # Errors
/// A file that cannot be read.
pub fn sources(main: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(files(main)?.into_iter().filter(|file| is_source(file)).collect())
}

/// The headers that a file includes from its own folder or from the rig's, in the compiler's order.
fn included(file: &Path) -> io::Result<Vec<PathBuf>> {
    let text = fs::read_to_string(file)?;
    let name = |line: &str| line.strip_prefix("#include \"")?.strip_suffix('"').map(str::to_owned);
    let folders = [file.parent().unwrap_or(Path::new("/")).to_owned(), super::rig_folder()];
    let path = |name: String| folders.iter().find_map(|f| f.join(&name).canonicalize().ok());
    Ok(text.lines().filter_map(|line| path(name(line.trim())?)).collect())
}

/// The `.c` files of a folder, without subfolders.
fn sources_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        all.push(entry?.path());
    }
    all.retain(|file| is_source(file));
    Ok(all)
}

fn is_source(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "c")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(main: &str) -> Vec<String> {
        let programs = crate::rig_folder().parent().unwrap().canonicalize().unwrap();
        let files = files(&programs.join(main)).unwrap();
        let name = |file: &PathBuf| file.strip_prefix(&programs).ok()?.to_str().map(str::to_owned);
        files.iter().filter_map(name).collect()
    }

    #[test]
    fn a_header_brings_the_source_beside_it_and_what_that_includes() {
        let rig = ["ends.c", "ends.h", "frames.c", "frames.h", "packets.c", "packets.h"];
        let more = ["partner.c", "partner.h", "rig.c", "rig.h"];
        let mut all: Vec<_> = rig.iter().chain(&more).map(|name| format!("rig/{name}")).collect();
        all.push("wires/raw_packet.c".to_owned());
        assert_eq!(names("wires/raw_packet.c"), all);
    }

    #[test]
    fn a_header_of_a_subfolder_brings_the_sources_of_that_folder() {
        let random_all = names("stress/random_all.c");
        for part in [
            "traffic/work.c",
            "random_all/acts.c",
            "random_all/tag_matching.c",
            "random_all/random_all.h",
        ] {
            assert!(random_all.contains(&format!("stress/{part}")), "{part}: {random_all:?}");
        }
        assert!(!names("stress/threads_post.c").contains(&"stress/random_all/acts.c".to_owned()));
    }
}
