//! The releases of rdma-core that we are compared with: the system's, and those of other Debian suites,
//! whose packages apt fetches into cargo's folder for tests and which are unpacked there, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set to fetch the packages of the other suites (some 15 MB each).
pub(crate) const FETCH: &str = "FERROVERBS_FETCH";

/// A release, and where to get it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    pub(crate) number: u32,
    /// `None` for the one that the system has.
    pub(crate) suite: Option<&'static str>,
}

/// Debian 12, Debian 13, and what comes next.
pub(crate) const RELEASES: [Release; 3] = [
    Release { number: 44, suite: None },
    Release { number: 56, suite: Some("trixie") },
    Release { number: 65, suite: Some("sid") },
];

/// What the library needs, with a C library as new as its own.
const PACKAGES: [&str; 5] =
    ["libibverbs1", "libnl-3-200", "libnl-route-3-200", "libc6", "libgcc-s1"];

impl Release {
    /// The folder with the unpacked libraries; `None` for the system's.
    ///
    /// # Errors
    /// Why it can't be had here.
    pub(crate) fn libraries(&self, folder: &Path) -> Result<Option<PathBuf>, String> {
        let Some(suite) = self.suite else { return Ok(None) };
        let root = folder.join(suite);
        let libraries = root.join("usr/lib").join(multiarch()?);
        if !libraries.join("libibverbs.so.1").exists() {
            if std::env::var_os(FETCH).is_none() {
                return Err(format!("{FETCH} is not set, so Debian's packages are not fetched"));
            }
            fetch(suite, &folder.join(format!("{suite}-apt")), &root)?;
        }
        Ok(Some(libraries))
    }
}

/// Debian's name of this architecture's library folder.
fn multiarch() -> Result<&'static str, String> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("x86_64-linux-gnu"),
        "aarch64" => Ok("aarch64-linux-gnu"),
        other => Err(format!("no name for the libraries of {other}")),
    }
}

/// The program loader of an unpacked release.
pub(crate) fn loader(libraries: &Path) -> PathBuf {
    let name = if cfg!(target_arch = "aarch64") {
        "ld-linux-aarch64.so.1"
    } else {
        "ld-linux-x86-64.so.2"
    };
    libraries.join(name)
}

/// Downloads the packages with apt's own means, in a state folder of its own, and unpacks them.
fn fetch(suite: &str, state: &Path, root: &Path) -> Result<(), String> {
    let folder = |name: &str| {
        let path = state.join(name);
        fs::create_dir_all(&path).map(|()| path).map_err(|error| error.to_string())
    };
    folder("lists/partial")?;
    folder("archives/partial")?;
    let debs = folder("debs")?;
    let sources = state.join("sources.list");
    let line = format!("deb {} {suite} main\n", mirror()?);
    fs::write(&sources, line).map_err(|error| error.to_string())?;
    let options = [
        format!("Dir::Etc::sourcelist={}", sources.display()),
        "Dir::Etc::sourceparts=-".into(),
        format!("Dir::State={}", state.display()),
        "Dir::State::status=/var/lib/dpkg/status".into(),
        format!("Dir::Cache={}", state.display()),
        "Acquire::Languages=none".into(),
    ];
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        for option in &options {
            command.args(["-o", option]);
        }
        run(command.args(["-q", "-y"]).args(arguments).current_dir(&debs))
    };
    apt(&["update"])?;
    let wanted: Vec<_> = PACKAGES.iter().map(|package| format!("{package}/{suite}")).collect();
    let mut arguments = vec!["download"];
    arguments.extend(wanted.iter().map(String::as_str));
    apt(&arguments)?;
    for entry in fs::read_dir(&debs).map_err(|error| error.to_string())?.flatten() {
        run(Command::new("dpkg-deb").arg("-x").arg(entry.path()).arg(root))?;
    }
    Ok(())
}

/// Where this machine gets its Debian packages from: other releases are there too.
fn mirror() -> Result<String, String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)"])
        .output()
        .map_err(|error| format!("apt-get: {error}"))?;
    let listed = String::from_utf8_lossy(&output.stdout);
    let found = listed.lines().find(|uri| uri.trim_end_matches('/').ends_with("/debian"));
    found.map(str::to_owned).ok_or_else(|| "apt names no mirror of Debian".into())
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}
