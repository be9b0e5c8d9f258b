//! For build scripts: gives the linker the version map of a library (`ld(1)`, "VERSION").
//!
//! rustc gives the linker a list of what a library exports, too: a version script without a name.
//! lld reads both. GNU ld and gold refuse a script without a name beside one with names. rustc has
//! no option that leaves its script out. So the compiler driver that links (`cc`) finds the linkers
//! through a folder of ours (`-B`, gcc(1)) with a script for each of the two. The script leaves out
//! version scripts without a name and becomes the linker. The map hides what it does not name, and
//! all exported functions are in the map, so rustc's script adds nothing.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The names under which compiler drivers look for GNU ld and gold.
const LINKERS: [&str; 3] = ["ld", "ld.bfd", "ld.gold"];

/// Gives the linker the map of the library `soname`, and the name.
///
/// # Panics
/// When the folder cannot be written: a build script has no better way to say so.
pub fn link(soname: &str, map: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let file = out.join(soname).with_extension("map");
    fs::write(&file, map).expect("OUT_DIR is writable");
    let folder = out.join("linkers");
    fs::create_dir_all(&folder).expect("OUT_DIR is writable");
    let driver = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    for name in LINKERS {
        write_script(&folder.join(name), &place_of(&driver, name));
    }
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    println!("cargo:rustc-cdylib-link-arg=-B{}", folder.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", file.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
}

/// Where the compiler driver has the linker; the name alone if the linker is in PATH, or nowhere.
fn place_of(driver: &OsString, name: &str) -> String {
    let result = Command::new(driver).arg(format!("-print-prog-name={name}")).output();
    let printed = result.ok().filter(|result| result.status.success()).map(|result| result.stdout);
    let place =
        String::from_utf8(printed.unwrap_or_default()).unwrap_or_default().trim().to_owned();
    if place.is_empty() { name.to_owned() } else { place }
}

fn write_script(path: &Path, linker: &str) {
    fs::write(path, script(linker)).expect("OUT_DIR is writable");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our own file");
}

/// The script for a linker. Each argument moves from the front of the list to its end.
fn script(linker: &str) -> String {
    let quoted = linker.replace('\'', r"'\''");
    format!(
        r#"#!/bin/sh
# Leaves out version scripts without a name.
has_no_name() {{
    read -r first rest < "$1" && [ "$first" = '{{' ]
}}
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1 left=$((left - 1))
    shift
    case $argument in
    --version-script)
        file=$1 left=$((left - 1))
        shift
        has_no_name "$file" || set -- "$@" "$argument" "$file"
        ;;
    --version-script=*)
        has_no_name "${{argument#*=}}" || set -- "$@" "$argument"
        ;;
    *)
        set -- "$@" "$argument"
        ;;
    esac
done
exec '{quoted}' "$@"
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_without_a_name_are_left_out_and_all_else_is_passed_on() {
        let folder = env::temp_dir().join(format!("ferroverbs-test-{}-ld", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (linker, named) = (folder.join("ld"), folder.join("named.map"));
        write_script(&linker, "printf");
        fs::write(&named, "A_1 {\n  global: a;\n};\n").expect("a file");
        let nameless = folder.join("list");
        fs::write(&nameless, "{\n  local:\n    *;\n};\n").expect("a file");
        let printed = Command::new(&linker)
            .args(["<%s>", "a b", "--version-script"])
            .arg(&nameless)
            .arg(format!("--version-script={}", nameless.display()))
            .arg(format!("--version-script={}", named.display()))
            .args(["$HOME'\"", "--version-script"])
            .arg(&named)
            .arg("")
            .output();
        fs::remove_dir_all(&folder).expect("our own folder");
        let named = named.display();
        let wanted =
            format!("<a b><--version-script={named}><$HOME'\"><--version-script><{named}><>");
        assert_eq!(String::from_utf8_lossy(&printed.expect("a shell").stdout), wanted);
    }
}
