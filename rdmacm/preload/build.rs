//! Links against a stand-in for librdmacm.so.1 with the names of `src/rdma.rs`.
//! At run time the library of this project or of upstream takes the stand-in's place.

use cface::stand_in;

const NAMES: &str = "src/rdma.rs";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={NAMES}");
    let text = std::fs::read_to_string(NAMES).expect("part of the package");
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("pub(crate) fn "));
    let names: Vec<_> = names.filter_map(|line| line.split('(').next()).collect();
    assert!(names.len() > 10, "{NAMES} has no names");
    let map = format!("RDMACM_1.0 {{ global: {}; }};\n", names.join("; "));
    let compiler = cc::Build::new().get_compiler().to_command();
    stand_in::link(compiler, "librdmacm.so.1", names, &map);
    // The installed layout: lib/rsocket/librspreload.so beside lib/librdmacm.so.1.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN/..");
}
