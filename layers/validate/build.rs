//! Compiles `entry.c`, which gives the layer the address and stack frame of its caller.

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
