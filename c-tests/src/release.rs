//! The releases of rdma-core that the tests compare Ferroverbs with: those of Debian 12, Debian 13
//! and the next Debian. apt fetches their packages into cargo's target directory, where they are
//! unpacked and not installed. The system's apt configuration is only read.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// `0`: fetch nothing, and use only earlier downloads.
pub const FETCH: &str = "FERROVERBS_FETCH";

/// A release, and where to get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Of rdma-core.
    pub number: u32,
    /// Debian's.
    pub suite: &'static str,
}

/// Debian 12, Debian 13, and what comes next.
pub const RELEASES: [Release; 3] = [
    Release { number: 44, suite: "bookworm" },
    Release { number: 56, suite: "trixie" },
    Release { number: 65, suite: "forky" },
];

/// The library, its plugins, the packages above it, and a C library for them. `a|b`: name with
/// 64-bit `time_t`, and the older name.
const PACKAGES: [&str; 8] = [
    "libibverbs1",
    "ibverbs-providers",
    "librdmacm1t64|librdmacm1",
    "python3-pyverbs",
    "libnl-3-200",
    "libnl-route-3-200",
    "libc6",
    "libgcc-s1",
];

/// The unpacked packages of a release.
#[derive(Clone, Debug)]
pub struct Unpacked {
    /// The top of the tree.
    pub root: PathBuf,
    /// Its folder of libraries.
    pub libraries: PathBuf,
}

impl Unpacked {
    /// The release's own dynamic loader.
    pub fn loader(&self) -> PathBuf {
        let name = if cfg!(target_arch = "aarch64") {
            "ld-linux-aarch64.so.1"
        } else {
            "ld-linux-x86-64.so.2"
        };
        self.libraries.join(name)
    }

    /// The plugins, sorted.
    pub fn plugins(&self) -> Vec<PathBuf> {
        let entries =
            fs::read_dir(self.libraries.join("libibverbs")).into_iter().flatten().flatten();
        let mut plugins: Vec<_> = entries.map(|entry| entry.path()).collect();
        plugins.sort();
        plugins
    }
}

impl Release {
    /// The release's packages below `target/tmp/debian`, fetched at the first time.
    ///
    /// # Errors
    /// Why they can't be had here.
    pub fn unpacked(&self, target: &Path) -> Result<Unpacked, String> {
        let folder = target.join("tmp/debian").join(self.suite);
        let root = folder.join("root");
        let libraries = root.join("usr/lib").join(multiarch()?);
        let unpacked = Unpacked { root, libraries };
        let whole = |unpacked: &Unpacked| !unpacked.plugins().is_empty();
        if whole(&unpacked) {
            return Ok(unpacked);
        }
        if std::env::var_os(FETCH).is_some_and(|value| value == "0") {
            return Err(format!("{FETCH} is 0, so Debian's packages are not fetched"));
        }
        let text = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(text)?;
        // Two at the same time: the second finds everything done.
        let lock = File::create(folder.join("lock")).map_err(text)?;
        lock.lock().map_err(text)?;
        if !whole(&unpacked) {
            fetch(self.suite, &folder, &unpacked.root)?;
        }
        if whole(&unpacked) { Ok(unpacked) } else { Err("the packages hold no plugins".into()) }
    }

    /// Whether this is the installed release.
    ///
    /// # Errors
    /// No library is installed.
    pub fn is_installed(&self) -> Result<bool, String> {
        let link = Path::new("/usr/lib").join(multiarch()?).join("libibverbs.so.1");
        let real = link.canonicalize().map_err(|error| format!("{}: {error}", link.display()))?;
        let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(name.contains(&format!(".{}.", self.number)))
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

/// Downloads the packages with apt's own means, with all its state in `folder`, and unpacks them.
fn fetch(suite: &str, folder: &Path, root: &Path) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let state = folder.join("apt");
    let debs = state.join("debs");
    let _ = fs::remove_dir_all(&debs);
    for name in ["lists/partial", "archives/partial", "debs"] {
        fs::create_dir_all(state.join(name)).map_err(text)?;
    }
    let sources = state.join("sources.list");
    fs::write(&sources, format!("deb {} {suite} main\n", mirror()?)).map_err(text)?;
    let options = [
        format!("Dir::Etc::sourcelist={}", sources.display()),
        "Dir::Etc::sourceparts=-".into(),
        format!("Dir::State={}", state.display()),
        "Dir::State::status=/dev/null".into(),
        format!("Dir::Cache={}", state.display()),
        "Acquire::Languages=none".into(),
        "Acquire::Retries=1".into(),
        "Acquire::http::Timeout=20".into(),
        // Without this option apt reports success when a mirror is unreachable.
        "APT::Update::Error-Mode=any".into(),
        // Root's apt would download as a user who may not be able to write here.
        "APT::Sandbox::User=root".into(),
    ];
    let apt = |program: &str, arguments: &[String]| {
        let mut command = Command::new(program);
        for option in &options {
            command.args(["-o", option]);
        }
        run(command.arg("-q").args(arguments).current_dir(&debs), Stdio::null())
    };
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    apt("apt-get", &words("-y update"))?;
    let mut download = words("-y download");
    for package in PACKAGES {
        let known = |name: &&str| apt("apt-cache", &words(&format!("show {name}"))).is_ok();
        let name = package.split('|').find(known).ok_or(format!("{suite} has no {package}"))?;
        download.push(name.to_owned());
    }
    apt("apt-get", &download)?;
    // The tree is complete or absent, whatever happens meanwhile.
    let new = folder.join("root.new");
    let _ = fs::remove_dir_all(&new);
    // Debian 12 splits packages between /lib and /usr/lib, which are one folder when installed.
    fs::create_dir_all(new.join("usr/lib")).map_err(text)?;
    std::os::unix::fs::symlink("usr/lib", new.join("lib")).map_err(text)?;
    for entry in fs::read_dir(&debs).map_err(text)?.flatten() {
        unpack(&entry.path(), &new)?;
    }
    fs::rename(&new, root).map_err(text)
}

/// `dpkg-deb -x`, but a link to a folder stays one.
fn unpack(package: &Path, root: &Path) -> Result<(), String> {
    let text = |error: std::io::Error| format!("{}: {error}", package.display());
    let mut deb = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(text)?;
    let mut tar = Command::new("tar");
    tar.args(["-x", "--keep-directory-symlink", "-f", "-", "-C"]).arg(root);
    let unpacked = match deb.stdout.take() {
        Some(archive) => run(&mut tar, archive.into()),
        None => Err("dpkg-deb: no output".into()),
    };
    let status = deb.wait().map_err(text)?;
    unpacked?;
    if status.success() { Ok(()) } else { Err(format!("dpkg-deb: {status}")) }
}

/// The Debian mirror of this machine, which also has other releases.
pub(crate) fn mirror() -> Result<String, String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)"])
        .output()
        .map_err(|error| format!("apt-get: {error}"))?;
    let listed = String::from_utf8_lossy(&output.stdout);
    let found = listed.lines().find(|uri| uri.trim_end_matches('/').ends_with("/debian"));
    found.map(str::to_owned).ok_or_else(|| "apt names no mirror of Debian".into())
}

/// Runs a command, which must succeed; the error is its last message.
pub(crate) fn run(command: &mut Command, input: Stdio) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(input).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let complaints = String::from_utf8_lossy(&output.stderr);
    let line = complaints.lines().find(|l| l.starts_with("E:")).or(complaints.lines().last());
    Err(format!("{program}: {}", line.unwrap_or("failed without a word")))
}
