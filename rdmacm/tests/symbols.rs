//! The symbols of the built `librdmacm.so`: every name of upstream's library (rdma-core 65) with
//! its version, and no other.
//! The installed library of the system, if any, is compared as well.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

type Names = BTreeSet<(String, String)>;

/// The shared library that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a running test");
    let deps = test.parent().expect("a directory");
    let beside = |folder: Option<&Path>| folder.map(|folder| folder.join("librdmacm.so"));
    [beside(deps.parent()), beside(Some(deps))]
        .into_iter()
        .flatten()
        .find(|file| file.exists())
        .expect("cargo builds the library for its integration tests")
}

/// The names that a library exports with default versions of `RDMACM_`; `None` without readelf.
fn exported(file: &Path) -> Option<Names> {
    let done = Command::new("readelf").args(["--wide", "--dyn-syms"]).arg(file).output().ok()?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let names = text.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, "FUNC", _, _, section, name] = fields.get(..8)? else { return None };
        let (name, version) = name.split_once("@@")?;
        (*section != "UND" && version.starts_with("RDMACM_"))
            .then(|| (name.to_owned(), version.to_owned()))
    });
    Some(names.collect())
}

fn listed() -> Names {
    let lines = include_str!("../../c-tests/data/symbols-rdmacm/rdma-core-v65.tsv").lines().skip(1);
    let pair = |line: &str| {
        let mut columns = line.split('\t').map(str::to_owned);
        columns.next().zip(columns.next()).expect("two columns and more")
    };
    lines.map(pair).collect()
}

#[test]
fn every_versioned_name_is_there_and_no_other() {
    let Some(ours) = exported(&library()) else { return eprintln!("skipped: there is no readelf") };
    let listed = listed();
    assert!(listed.len() > 70, "only {} names in the list", listed.len());
    let missing: Vec<_> = listed.difference(&ours).collect();
    let extra: Vec<_> = ours.difference(&listed).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing {missing:?}, too many {extra:?}");
}

#[test]
fn every_name_of_the_installed_library_is_there() {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    let installed = folders.iter().map(|folder| Path::new(folder).join("librdmacm.so.1"));
    let Some(installed) = installed.into_iter().find(|file| file.exists()) else {
        return eprintln!("skipped: there is no librdmacm.so.1 here");
    };
    let (Some(theirs), Some(ours)) = (exported(&installed), exported(&library())) else {
        return eprintln!("skipped: there is no readelf");
    };
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(!theirs.is_empty() && missing.is_empty(), "missing: {missing:?}");
}
