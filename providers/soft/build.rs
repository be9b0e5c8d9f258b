//! Links the plugin against libibverbs.so.1, by versioned names of the private ABI, as every
//! provider is linked. Cargo builds the library at the same time, so the linker gets a stand-in
//! library with these names only.

use cface::{generations, stand_in};

/// The imports of `src/ops/frontend.rs`, except the registration function, whose name has the
/// number of the generation.
const NAMES: [&str; 3] = ["_verbs_init_and_alloc_context", "verbs_uninit_context", "verbs_set_ops"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The plugin is of the newest generation of the private ABI.
    let pabi = generations::NEWEST.pabi;
    let register = format!("verbs_register_driver_{pabi}");
    let names: Vec<&str> = NAMES.into_iter().chain([register.as_str()]).collect();
    let map = format!("IBVERBS_PRIVATE_{pabi} {{ global: {}; local: *; }};\n", names.join("; "));
    let compiler = cc::Build::new().get_compiler().to_command();
    stand_in::link(compiler, "libibverbs.so.1", names, &map);
}
