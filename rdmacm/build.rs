//! Writes the version map from the rows of the export table, sets the library's name, and links
//! against a stand-in for libibverbs.so.1 with the names of `src/sys/verbs.rs`.
//! At run time the library of this project or of upstream takes the stand-in's place.

use cface::version_map::RDMACM;
use cface::{stand_in, version_script};
use std::collections::BTreeMap;
use std::fs;

const TABLE: &str = "src/export.rs";
const VERBS: &str = "src/sys/verbs.rs";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={TABLE}");
    println!("cargo:rerun-if-changed={VERBS}");
    let table = fs::read_to_string(TABLE).expect("the export table is part of the package");
    version_script::link("librdmacm.so.1", &RDMACM.map(&table, &[]));
    // Threads of the library run until the process ends, so dlclose(3) must not unload their code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    // `// IBVERBS_1.x` precedes the names of a version node.
    let verbs = fs::read_to_string(VERBS).expect("part of the package");
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut node = None;
    for line in verbs.lines().map(str::trim) {
        if let Some(next) = line.strip_prefix("// IBVERBS_1.") {
            node = Some(next);
        } else if let (Some(node), Some(rest)) = (node, line.strip_prefix("pub(crate) fn ")) {
            let name = rest.split('(').next().unwrap_or_default();
            nodes.entry(node).or_default().push(name);
        } else if line == "}" {
            node = None;
        }
    }
    let names = || nodes.values().flatten();
    assert!(names().count() > 10, "{VERBS} has no names");
    let map: String = nodes
        .iter()
        .map(|(node, names)| format!("IBVERBS_1.{node} {{ global: {}; }};\n", names.join("; ")))
        .collect();
    let compiler = cc::Build::new().get_compiler().to_command();
    stand_in::link(compiler, "libibverbs.so.1", names().copied(), &map);
}
