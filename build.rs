//! Writes the linker's version map from the rows of the export table, names the library, and
//! compiles the C functions that have a variable argument list.

use std::path::Path;

use cface::version_map::IBVERBS;
use cface::version_script;

const TABLE: &str = "src/export/table.rs";
const VARIADIC: &str = "src/export/variadic.c";
/// What `src/export/data.rs` exports.
const VARIABLES: [&str; 1] = ["verbs_allow_disassociate_destroy"];

fn main() {
    println!("cargo:rerun-if-changed={TABLE}");
    println!("cargo:rerun-if-changed=build.rs");

    println!("cargo:rerun-if-changed={VARIADIC}");
    cc::Build::new().file(VARIADIC).warnings(true).extra_warnings(true).compile("fv_variadic");

    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let table = std::fs::read_to_string(TABLE).expect("the export table is part of the package");
    std::fs::write(Path::new(&out).join("generations.rs"), IBVERBS.macros())
        .expect("OUT_DIR is writable");
    version_script::link("libibverbs.so.1", &IBVERBS.map(&table, &VARIABLES));
}
