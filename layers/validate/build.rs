//! Compiles the few lines of C that tell the caller's address and stack.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/entry.c");
    cc::Build::new()
        .file("src/entry.c")
        .warnings(true)
        .extra_warnings(true)
        .flag("-fno-omit-frame-pointer")
        .compile("fv_validate_entry");
}
