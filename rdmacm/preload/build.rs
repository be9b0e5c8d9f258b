//! Links against a stand-in for librdmacm.so.1 that has just the names of `src/rdma.rs`: the library itself is built beside us, or is upstream's.

use std::path::Path;
use std::{env, fs};

const NAMES: &str = "src/rdma.rs";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={NAMES}");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let at = |name: &str| Path::new(&out).join(name);
    let text = fs::read_to_string(NAMES).expect("part of the package");
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("pub(crate) fn "));
    let names: Vec<_> = names.filter_map(|line| line.split('(').next()).collect();
    assert!(names.len() > 10, "{NAMES} has no names");
    let code: String = names.iter().map(|name| format!("void {name}(void) {{}}\n")).collect();
    fs::write(at("librdmacm.c"), code).expect("OUT_DIR is writable");
    let map = format!("RDMACM_1.0 {{ global: {}; }};\n", names.join("; "));
    fs::write(at("librdmacm.map"), map).expect("OUT_DIR is writable");
    let library = at("librdmacm.so.1");
    let status = cc::Build::new()
        .get_compiler()
        .to_command()
        .args(["-shared", "-fPIC", "-Wl,-soname,librdmacm.so.1"])
        .arg(format!("-Wl,--version-script={}", at("librdmacm.map").display()))
        .arg(at("librdmacm.c"))
        .arg("-o")
        .arg(&library)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "the C compiler could not make {}", library.display());
    println!("cargo:rustc-cdylib-link-arg={}", library.display());
    // Beside this file's folder, as it is laid out: lib/rsocket/librspreload.so, lib/librdmacm.so.1.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN/..");
}
