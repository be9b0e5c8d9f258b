//! The prototypes of `abi/src/functions.rs`, as C sees them, are those of the headers: a function that is declared twice with
//! different types does not compile.

use crate::check::run;
use crate::{newest, root, scratch};
use ferroverbs_headers::Sources;
use ferroverbs_headers::c::function;
use ferroverbs_headers::rust::Kind;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Macros of these names hide the functions.
const HIDDEN: &[&str] = &["ibv_query_port", "ibv_reg_mr", "ibv_reg_mr_iova", "ibv_get_device_list"];

/// Declares all functions that the headers have once more, and returns how many these are.
fn compare(name: &str, include: Option<&Path>) -> usize {
    let folder = scratch().join("prototypes");
    fs::create_dir_all(&folder).expect("cargo's folder is writable");
    let flags: Vec<_> = include
        .iter()
        .flat_map(|path| ["-isystem".to_owned(), path.display().to_string()])
        .collect();
    let source = folder.join(format!("{name}.c"));
    let begin = "#include <infiniband/verbs.h>\n";
    fs::write(&source, begin).expect("cargo's folder is writable");
    let there = run(Command::new("gcc").args(["-E", "-P"]).args(&flags).arg(&source));
    let sources = Sources::read(&root()).expect("the headers can be made");
    let mut text = String::from(begin);
    for name in HIDDEN {
        text.push_str(&format!("#undef {name}\n"));
    }
    text.push_str("#define __attribute_const __attribute__((const))\n");
    let mut count = 0;
    for entry in
        sources.abi.entries.iter().filter(|e| e.kind == Kind::Function && e.module == "functions")
    {
        let mentioned = there.contains(&format!("{}(", entry.name))
            || there.contains(&format!("{} (", entry.name));
        if mentioned {
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
    let count = compare("installed", None);
    assert!(count >= 65, "{count}");
    println!("{count} prototypes");
}

#[test]
fn prototypes_are_those_of_the_newest_headers() {
    let Some(include) = newest() else { return };
    assert_eq!(compare("newest", Some(&include)), 87);
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
