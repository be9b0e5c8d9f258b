//! For build scripts: a stub of a shared library that does not exist yet at link time. The linker
//! gets a stub with the soname, the versions and the used names. At run time the loader finds the
//! real library, ours or upstream's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Builds the stub `soname` in the script's `OUT_DIR`, with functions `names`, by the C compiler
/// `compiler`; `map` is the linker's version script. Tells cargo to link the package's cdylib
/// against the stub.
///
/// # Panics
/// When the folder cannot be written, or the compiler fails: a build script fails by a panic.
pub fn link<'a>(
    mut compiler: Command,
    soname: &str,
    names: impl IntoIterator<Item = &'a str>,
    map: &str,
) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let write = |ending: &str, text: &str| {
        let path = out.join(soname).with_extension(ending);
        fs::write(&path, text).expect("OUT_DIR is writable");
        path
    };
    let code: String = names.into_iter().map(|name| format!("void {name}(void) {{}}\n")).collect();
    assert!(!code.is_empty(), "no names of {soname} are used");
    let (code, map) = (write("c", &code), write("map", map));
    let library: &Path = &out.join(soname);
    let status = compiler
        .args(["-shared", "-fPIC"])
        .arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script={}", map.display()))
        .arg(code)
        .arg("-o")
        .arg(library)
        .status()
        .expect("a C compiler");
    assert!(status.success(), "the C compiler could not make {}", library.display());
    println!("cargo:rustc-cdylib-link-arg={}", library.display());
}
