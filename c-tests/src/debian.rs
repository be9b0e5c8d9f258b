//! Single packages and sources of Debian. apt fetches them like the releases of rdma-core
//! ([`release`](crate::release)); they are unpacked below `target/tmp/debian`, never installed.

use crate::release::{FETCH, RELEASES, mirror, run};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The packages of headers that ours are compared with.
pub const HEADERS: &[&str] = &["libibverbs-dev", "librdmacm-dev", "linux-libc-dev"];

/// Unpacks packages of a release below `target/tmp/debian`, unless already present, and returns the
/// root of the tree.
///
/// # Errors
/// The reason why the packages are not available.
pub fn unpacked(target: &Path, suite: &str, packages: &[&str]) -> Result<PathBuf, String> {
    unpacked_by(target, suite, None, packages)
}

/// As [`unpacked`], for packages of another architecture, in Debian's name of it.
///
/// # Errors
/// As [`unpacked`].
pub fn foreign(
    target: &Path,
    suite: &str,
    architecture: &str,
    packages: &[&str],
) -> Result<PathBuf, String> {
    unpacked_by(target, suite, Some(architecture), packages)
}

fn unpacked_by(
    target: &Path,
    suite: &str,
    architecture: Option<&str>,
    packages: &[&str],
) -> Result<PathBuf, String> {
    let folder = &target.join("tmp/debian/single");
    let names: Vec<_> = architecture.iter().chain(packages).copied().collect();
    let root = folder.join(format!("{suite}-{}", names.join("-")));
    if root.is_dir() {
        return Ok(root);
    }
    let mut apt = Apt::offline(folder, suite)?;
    if root.is_dir() {
        return Ok(root);
    }
    if let Some(name) = architecture {
        let options = ["Architecture", "Architectures"].map(|key| format!("APT::{key}={name}"));
        apt.options.extend(options);
    }
    apt.update()?;
    let wanted: Vec<_> = packages.iter().map(|package| format!("{package}/{suite}")).collect();
    unpack(&apt, &wanted, &root)?;
    Ok(root)
}

/// Unpacks a release's kernel below `target/tmp/debian`, unless already present, and returns the
/// root of the tree.
///
/// # Errors
/// The reason why the kernel is not available.
pub fn kernel(target: &Path, suite: &str) -> Result<PathBuf, String> {
    let folder = &target.join("tmp/debian/single");
    let root = folder.join(format!("{suite}-kernel"));
    if root.is_dir() {
        return Ok(root);
    }
    let apt = Apt::new(folder, suite)?;
    if !root.is_dir() {
        unpack(&apt, &[apt.kernel()?], &root)?;
    }
    Ok(root)
}

fn unpack(apt: &Apt, packages: &[String], root: &Path) -> Result<(), String> {
    let debs = apt.folder("debs")?;
    apt.get(&debs, "download", packages)?;
    // The tree appears under its name when it is complete.
    let growing = apt.folder("tree")?;
    for deb in fs::read_dir(&debs).map_err(|error| error.to_string())?.flatten() {
        run(Command::new("dpkg-deb").arg("-x").arg(deb.path()).arg(&growing), Stdio::null())?;
    }
    fs::rename(&growing, root).map_err(|error| error.to_string())
}

/// A file in an unpacked source that holds the name of its archive.
pub const ORIGIN: &str = ".debian-archive";

/// Unpacks upstream's archive of a source package and returns its folder. The source is that of the
/// running system's release, or of a newer release if the mirror lacks it.
///
/// # Errors
/// The reason why the source is not available.
pub fn source(target: &Path, package: &str) -> Result<PathBuf, String> {
    let folder = &target.join("tmp/debian/single");
    let root = folder.join(format!("source-{package}"));
    if root.is_dir() {
        return Ok(root);
    }
    let mut suites = vec![running()?];
    for release in RELEASES {
        if !suites.iter().any(|suite| suite == release.suite) {
            suites.push(release.suite.to_owned());
        }
    }
    let mut reasons = Vec::new();
    for suite in suites {
        match source_of(folder, &suite, package, &root) {
            Ok(()) => return Ok(root),
            Err(reason) => reasons.push(format!("{suite}: {reason}")),
        }
    }
    Err(reasons.join("; "))
}

fn source_of(folder: &Path, suite: &str, package: &str, root: &Path) -> Result<(), String> {
    let apt = Apt::new(folder, suite)?;
    if root.is_dir() {
        return Ok(());
    }
    let text = |error: std::io::Error| error.to_string();
    let tars = apt.folder("tars")?;
    let words = ["--download-only", "--tar-only", package].map(str::to_owned);
    // Some mirrors have archives without their descriptions; apt has checked the downloaded
    // archive.
    let requested = apt.get(&tars, "source", &words);
    let archive =
        fs::read_dir(&tars).map_err(text)?.flatten().map(|entry| entry.path()).find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.contains(".orig.tar.") && !name.ends_with(".asc")
        });
    let Some(archive) = archive else {
        return requested.and(Err("the source package has no archive of upstream's".into()));
    };
    let growing = apt.folder("tree")?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(&archive).arg("--strip-components=1").arg("-C").arg(&growing);
    run(&mut tar, Stdio::null())?;
    let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    fs::write(growing.join(ORIGIN), name).map_err(text)?;
    fs::rename(&growing, root).map_err(text)
}

/// The running system's release.
///
/// # Errors
/// `/etc/os-release` names no release.
pub fn running() -> Result<String, String> {
    let text = fs::read_to_string("/etc/os-release").map_err(|error| error.to_string())?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(|name| name.trim_matches('"').to_owned()).ok_or_else(|| "no Debian release".into())
}

/// apt-get with separate package lists.
struct Apt {
    state: PathBuf,
    options: Vec<String>,
    /// Serialises processes that use the lists.
    _lock: File,
}

impl Apt {
    /// With current package lists.
    fn new(folder: &Path, suite: &str) -> Result<Self, String> {
        let apt = Self::offline(folder, suite)?;
        apt.update()?;
        Ok(apt)
    }

    /// Without package lists.
    fn offline(folder: &Path, suite: &str) -> Result<Self, String> {
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
        Ok(apt)
    }

    fn update(&self) -> Result<(), String> {
        self.get(&self.state, "update", &[])
    }

    fn folder(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.state.join(name);
        fs::create_dir_all(&path).map(|()| path).map_err(|error| error.to_string())
    }

    fn get(&self, folder: &Path, verb: &str, arguments: &[String]) -> Result<(), String> {
        let mut command = self.command("apt-get");
        run(command.args(["-q", "-y", verb]).args(arguments).current_dir(folder), Stdio::null())
    }

    /// The package that `linux-image-amd64` depends on.
    fn kernel(&self) -> Result<String, String> {
        let mut command = self.command("apt-cache");
        command.args(["depends", "linux-image-amd64"]).env("LC_ALL", "C");
        let output = command.output().map_err(|error| error.to_string())?;
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut depends = listed.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let found = depends.find(|name| name.starts_with("linux-image-"));
        found.map(str::to_owned).ok_or_else(|| "the release has no linux-image-amd64".into())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }
}

impl Drop for Apt {
    fn drop(&mut self) {
        // Package lists are large, and out of date next time.
        let _ = fs::remove_dir_all(&self.state);
    }
}
