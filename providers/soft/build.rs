//! Links the plugin as every provider is linked: against libibverbs.so.1, by versioned names of the private
//! ABI. The library itself is built beside us, so what the linker gets is a stand-in with just these names.

use cface::generations;
use std::path::Path;
use std::{env, fs};

/// What `src/ops/frontend.rs` imports, apart from the registration, whose name has the generation's number.
const NAMES: [&str; 3] = ["_verbs_init_and_alloc_context", "verbs_uninit_context", "verbs_set_ops"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let at = |name: &str| Path::new(&out).join(name);
    // The plugin is of the newest generation of the private ABI.
    let pabi = generations::NEWEST.pabi;
    let register = format!("verbs_register_driver_{pabi}");
    let names: Vec<&str> = NAMES.into_iter().chain([register.as_str()]).collect();
    let body: String = names.iter().map(|name| format!("void {name}(void) {{}}\n")).collect();
    fs::write(at("libibverbs.c"), body).expect("OUT_DIR is writable");
    let list = names.join("; ");
    fs::write(
        at("libibverbs.map"),
        format!("IBVERBS_PRIVATE_{pabi} {{ global: {list}; local: *; }};\n"),
    )
    .expect("OUT_DIR is writable");
    let library = at("libibverbs.so.1");
    let status = cc::Build::new()
        .get_compiler()
        .to_command()
        .args(["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1"])
        .arg(format!("-Wl,--version-script={}", at("libibverbs.map").display()))
        .arg(at("libibverbs.c"))
        .arg("-o")
        .arg(&library)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "the C compiler could not make {}", library.display());
    println!("cargo:rustc-cdylib-link-arg={}", library.display());
}
