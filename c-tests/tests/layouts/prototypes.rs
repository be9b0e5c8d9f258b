//! The prototypes of `abi/src/*functions.rs` for programs equal those of the headers: a second
//! declaration with other types does not compile.

use crate::check::run;
use crate::{newest, root, scratch};
use ferroverbs_headers::Sources;
use ferroverbs_headers::c::function;
use ferroverbs_headers::rust::Kind;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Macros of these names hide the functions.
const HIDDEN: &[&str] = &["ibv_query_port", "ibv_reg_mr", "ibv_reg_mr_iova", "ibv_get_device_list"];

/// Modules of the crate, and the includes that declare their functions.
const VERBS: (&[&str], &str) = (&["functions"], "#include <infiniband/verbs.h>\n");
const RDMACM: (&[&str], &str) = (
    &["rdmacm_functions", "rsocket_functions"],
    "#include <rdma/rdma_verbs.h>\n#include <rdma/rsocket.h>\n",
);

/// Declares all functions of the headers a second time; returns their number.
fn compare(name: &str, (modules, begin): (&[&str], &str), include: Option<&Path>) -> usize {
    let folder = scratch().join("prototypes");
    fs::create_dir_all(&folder).expect("cargo's folder is writable");
    let flags: Vec<_> = include
        .iter()
        .flat_map(|path| ["-isystem".to_owned(), path.display().to_string()])
        .collect();
    let source = folder.join(format!("{name}.c"));
    fs::write(&source, begin).expect("cargo's folder is writable");
    let there = run(Command::new("gcc").args(["-E", "-P"]).args(&flags).arg(&source));
    let sources = Sources::read(&root()).expect("the headers can be made");
    let mut text = String::from(begin);
    for name in HIDDEN {
        text.push_str(&format!("#undef {name}\n"));
    }
    text.push_str("#define __attribute_const __attribute__((const))\n");
    let mut count = 0;
    let word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let there: BTreeSet<&str> = there.split(word).collect();
    for entry in sources.abi.entries.iter().filter(|e| e.kind == Kind::Function) {
        if modules.contains(&entry.module.as_str()) && there.contains(entry.name.as_str()) {
            text.push_str(&sources.definitions[&function(&entry.name)].text);
            count += 1;
        }
    }
    fs::write(&source, text).expect("cargo's folder is writable");
    run(Command::new("gcc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
        .args(&flags)
        .arg(&source));
    count
}

#[test]
fn prototypes_are_those_of_the_installed_headers() {
    let count = compare("installed", VERBS, None);
    assert!(count >= 65, "{count}");
    println!("{count} prototypes");
}

#[test]
fn prototypes_are_those_of_the_newest_headers() {
    let Some(include) = newest() else { return };
    assert_eq!(compare("newest", VERBS, Some(&include)), 87);
}

#[test]
fn prototypes_of_the_connection_manager_are_those_of_the_installed_headers() {
    // All functions except those of `RDMACM_1.4` and `1.5`.
    assert_eq!(compare("rdmacm-installed", RDMACM, None), 68);
}

#[test]
fn prototypes_of_the_connection_manager_are_those_of_the_newest_headers() {
    let Some(include) = newest() else { return };
    assert_eq!(compare("rdmacm-newest", RDMACM, Some(&include)), 74);
}

#[test]
fn a_prototype_that_differs_is_noticed() {
    let source = scratch().join("differs.c");
    let text = "#include <infiniband/verbs.h>\nint ibv_dealloc_pd(struct ibv_context *pd);\n";
    fs::write(&source, text).expect("cargo's folder is writable");
    let compiled =
        Command::new("gcc").arg("-fsyntax-only").arg(&source).output().expect("gcc runs");
    assert!(!compiled.status.success());
}
