//! For build scripts: a shared library that is not there yet when we are linked against it. The linker gets a stand-in with its soname, its versions
//! and the names that are used, and nothing else; at run time the loader finds the library itself, ours or upstream's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Makes the stand-in `soname` in the script's `OUT_DIR`, with functions `names`, by the C compiler `compiler`; `map` is the linker's version script.
/// Says to cargo that this package's cdylib is linked against it.
///
/// # Panics
/// When the folder cannot be written, or the compiler fails: a build script has no better way to say so.
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
