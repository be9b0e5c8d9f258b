//! Writes `include/`; with `--check` only lists outdated headers. `cargo xtask headers` runs it.
//! All work is in the library of this crate.

#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(other) => {
            eprintln!("headers: no such option: {other} (there is --check)");
            return ExitCode::from(2);
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match run(&root, check) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("headers: {message}");
            ExitCode::from(2)
        }
    }
}

/// Writes or checks all headers. Returns whether all are up to date.
fn run(root: &Path, check: bool) -> ferroverbs_headers::Result<bool> {
    let mut current = true;
    for header in ferroverbs_headers::generate(root)? {
        let path = root.join("include").join(&header.path);
        let shown = Path::new("include").join(&header.path);
        if fs::read_to_string(&path).is_ok_and(|old| old == header.text) {
            continue;
        }
        if check {
            println!("{} is stale: run `cargo xtask headers`", shown.display());
            current = false;
            continue;
        }
        let fail = |error: std::io::Error| format!("{}: {error}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(fail)?;
        }
        fs::write(&path, header.text).map_err(fail)?;
        println!("{}", shown.display());
    }
    Ok(current)
}
