//! Single packages and sources of Debian, fetched like the releases of rdma-core ([`release`](crate::release)) and unpacked below
//! `target/tmp/debian`, never installed.

use crate::release::{FETCH, mirror, run};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Unpacks packages of a release below `target/tmp/debian`, unless they are there, and returns the root of the tree.
///
/// # Errors
/// Why they can't be had here.
pub fn unpacked(target: &Path, suite: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let folder = &target.join("tmp/debian/single");
    let root = folder.join(format!("{suite}-{}", packages.join("-")));
    if root.is_dir() {
        return Ok(root);
    }
    let apt = Apt::new(folder, suite)?;
    if root.is_dir() {
        return Ok(root);
    }
    let debs = apt.folder("debs")?;
    let wanted: Vec<_> = packages.iter().map(|package| format!("{package}/{suite}")).collect();
    apt.get(&debs, "download", &wanted)?;
    // The tree appears when it is complete.
    let growing = apt.folder("tree")?;
    for deb in fs::read_dir(&debs).map_err(|error| error.to_string())?.flatten() {
        run(Command::new("dpkg-deb").arg("-x").arg(deb.path()).arg(&growing), Stdio::null())?;
    }
    fs::rename(&growing, &root).map(|()| root).map_err(|error| error.to_string())
}

/// Unpacks the source of a package as the running system's release has it, and returns its folder.
///
/// # Errors
/// Why it can't be had here.
pub fn source(target: &Path, package: &str) -> Result<PathBuf, String> {
    let folder = &target.join("tmp/debian/single");
    let root = folder.join(format!("source-{package}"));
    if root.is_dir() {
        return Ok(root);
    }
    let apt = Apt::new(folder, &running()?)?;
    if root.is_dir() {
        return Ok(root);
    }
    let tars = apt.folder("tars")?;
    apt.get(&tars, "source", &["--download-only".to_owned(), package.to_owned()])?;
    let growing = apt.folder("tree")?;
    let mut any = false;
    for tar in fs::read_dir(&tars).map_err(|error| error.to_string())?.flatten() {
        let name = tar.file_name().to_string_lossy().into_owned();
        if name.contains(".orig") && !name.ends_with(".asc") {
            let strip = "--strip-components=1";
            run(
                Command::new("tar").arg("-xf").arg(tar.path()).arg(strip).arg("-C").arg(&growing),
                Stdio::null(),
            )?;
            any = true;
        }
    }
    if !any {
        return Err(format!("the source package of {package} has no archive of upstream's"));
    }
    fs::rename(&growing, &root).map(|()| root).map_err(|error| error.to_string())
}

/// The running system's release.
fn running() -> Result<String, String> {
    let text = fs::read_to_string("/etc/os-release").map_err(|error| error.to_string())?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(|name| name.trim_matches('"').to_owned()).ok_or_else(|| "no Debian release".into())
}

/// apt-get with lists of its own.
struct Apt {
    state: PathBuf,
    options: Vec<String>,
    /// One at a time, whichever process asks.
    _lock: File,
}

impl Apt {
    fn new(folder: &Path, suite: &str) -> Result<Self, String> {
        if std::env::var_os(FETCH).is_some_and(|value| value == "0") {
            return Err(format!("{FETCH} is 0, so Debian's packages are not fetched"));
        }
        let locked = || {
            fs::create_dir_all(folder)?;
            let file = File::create(folder.join("apt.lock"))?;
            file.lock().map(|()| file)
        };
        let lock = locked().map_err(|error| format!("{}: {error}", folder.display()))?;
        let state = folder.join(format!("apt-{suite}"));
        let _ = fs::remove_dir_all(&state);
        let apt = Self {
            _lock: lock,
            options: vec![
                format!("Dir::Etc::sourcelist={}", state.join("sources.list").display()),
                "Dir::Etc::sourceparts=-".into(),
                format!("Dir::State={}", state.display()),
                "Dir::State::status=/dev/null".into(),
                format!("Dir::Cache={}", state.display()),
                "Acquire::Languages=none".into(),
                "Acquire::Retries=1".into(),
                "Acquire::http::Timeout=20".into(),
                "APT::Update::Error-Mode=any".into(),
                "APT::Sandbox::User=root".into(),
            ],
            state,
        };
        apt.folder("lists/partial")?;
        apt.folder("archives/partial")?;
        let mirror = mirror()?;
        let lines = format!("deb {mirror} {suite} main\ndeb-src {mirror} {suite} main\n");
        fs::write(apt.state.join("sources.list"), lines).map_err(|error| error.to_string())?;
        apt.get(&apt.state, "update", &[])?;
        Ok(apt)
    }

    fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.state.join(name);
        fs::create_dir_all(&path).map(|()| path).map_err(|error| error.to_string())
    }

    fn get(&self, folder: &Path, verb: &str, arguments: &[String]) -> Result<(), String> {
        let mut command = Command::new("apt-get");
        for option in &self.options {
            command.args(["-o", option]);
        }
        run(command.args(["-q", "-y", verb]).args(arguments).current_dir(folder), Stdio::null())
    }
}

impl Drop for Apt {
    fn drop(&mut self) {
        // Package lists are large, and out of date next time.
        let _ = fs::remove_dir_all(&self.state);
    }
}
