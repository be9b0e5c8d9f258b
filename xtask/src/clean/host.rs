//! The settings that a clean room takes over from its machine: Debian's mirrors, crates.io, and the
//! Rust toolchain.

use crate::packages::find_program;
use crate::paths::Paths;
use crate::process::Job;
use crate::scratch::Scratch;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// Where a machine gets Debian from when it is no Debian itself.
const MIRROR: &str = "http://deb.debian.org/debian";

/// The machine's trusted certificates, as a file in the room. The room's own packages do not touch
/// the file.
pub(super) const CERTIFICATES: &str = "/usr/local/share/certificates-of-the-machine.crt";

/// Where Debian's archives are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Archives {
    /// The archive of the release.
    pub(super) mirror: String,
    /// Lines of `sources.list` for the release, its updates and its security fixes, as far as this
    /// machine uses them.
    pub(super) sources: String,
}

impl Archives {
    /// The archives of this machine's apt, for another release.
    pub(super) fn of(release: &str) -> crate::Result<Self> {
        let format = "$(ORIGIN) $(REPO_URI) $(CODENAME) $(COMPONENT) $(CREATED_BY)";
        let targets = || {
            let job = Job::new("apt-get").args(["indextargets", "--format", format]);
            job.run(&Scratch::new()?, LIMIT).map(|done| done.stdout)
        };
        let mut text = if find_program("apt-get").is_some() { targets()? } else { String::new() };
        if find_program("apt-get").is_some() && !text.contains("Debian ") {
            // A container image has no package lists, so apt does not know its archives.
            Job::new("apt-get").args(["-q", "update"]).run(&Scratch::new()?, LIMIT)?;
            text = targets()?;
        }
        Ok(Self::read(&text, release))
    }

    fn read(targets: &str, release: &str) -> Self {
        let (mut mirror, mut sources) = (None, String::new());
        let entries = targets.lines().filter_map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["Debian", uri, codename, "main", "Packages"] => Some((uri, codename)),
                _ => None,
            }
        });
        let base = |codename: &str| codename.split('-').next().unwrap_or(codename).to_owned();
        // Of a machine that uses several releases, the first.
        let entries: Vec<_> = entries.collect();
        let own = entries.first().map(|(_, codename)| base(codename));
        for (uri, codename) in entries {
            if Some(base(codename)) != own {
                continue;
            }
            let suite = codename.replacen(own.as_deref().unwrap_or_default(), release, 1);
            if suite == release {
                mirror = Some(uri.to_owned());
            }
            let line = format!("deb {uri} {suite} main\n");
            if !sources.contains(&line) {
                sources.push_str(&line);
            }
        }
        match mirror {
            Some(mirror) => Self { mirror, sources },
            None => Self {
                mirror: MIRROR.into(),
                sources: format!(
                    "deb {MIRROR} {release} main\ndeb {MIRROR} {release}-updates main\n\
                     deb {MIRROR}-security {release}-security main\n"
                ),
            },
        }
    }
}

/// A Rust toolchain.
#[derive(Debug)]
pub(super) struct Toolchain {
    /// Its folder here.
    pub(super) here: PathBuf,
    /// The toolchain's folder in the room, as rustup would name it.
    pub(super) inside: PathBuf,
}

impl Toolchain {
    /// The toolchain that started this program.
    pub(super) fn find(paths: &Paths) -> crate::Result<Self> {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let job = Job::new(rustc).args(["--print", "sysroot"]).dir(&paths.root);
        let done = job.run(&Scratch::new()?, LIMIT)?;
        if !done.ok() {
            return Err(done.report("rustc"));
        }
        let here = PathBuf::from(done.stdout.trim());
        let here = here.canonicalize().map_err(|e| format!("{}: {e}", here.display()))?;
        if here == Path::new("/usr") || !here.join("bin/cargo").is_file() {
            return Err(format!(
                "the Rust toolchain of {} is not one of rustup's, which stand in a folder of their own",
                here.display()
            ));
        }
        let name = here.file_name().unwrap_or_default();
        let inside = Path::new("/root/.rustup/toolchains").join(name);
        Ok(Self { here, inside })
    }
}

/// Copies this machine's network settings into the room's folder `root`: names, certificates, and
/// the settings of apt and cargo, without passwords and tokens.
pub(super) fn network(root: &Path, paths: &Paths) -> crate::Result<()> {
    for file in ["etc/resolv.conf", "etc/hosts", "etc/hostname"] {
        // A missing file was not needed.
        if let Ok(content) = fs::read(Path::new("/").join(file)) {
            let _ = fs::remove_file(root.join(file));
            write(root, file, &content)?;
        }
    }
    if let Some(bundle) = certificates() {
        write(root, CERTIFICATES, &bundle)?;
        // Where settings of apt or cargo may look for the bundle. The package ca-certificates
        // writes the file anew.
        write(root, "etc/ssl/certs/ca-certificates.crt", &bundle)?;
    }
    let own = Path::new("/usr/local/share/ca-certificates");
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        if let Ok(content) = fs::read(entry.path()) {
            let name = entry.file_name();
            write(root, Path::new("usr/local/share/ca-certificates").join(name), &content)?;
        }
    }
    if find_program("apt-config").is_some() {
        let done = Job::new("apt-config").arg("dump").run(&Scratch::new()?, LIMIT)?;
        write(root, "etc/apt/apt.conf.d/90machine", acquire(&done.stdout).as_bytes())?;
    }
    let settings = |folder: &Path| {
        ["config.toml", "config"].iter().find_map(|name| fs::read(folder.join(name)).ok())
    };
    let home = cargo_home();
    if let Some(content) = home.as_deref().and_then(settings) {
        write(root, "root/.cargo/config.toml", &content)?;
    }
    // What the folders above the repository say is cargo's as well.
    let above = paths.root.ancestors().skip(1).map(|dir| dir.join(".cargo"));
    let mut above = above.filter(|dir| Some(dir) != home.as_ref());
    if let Some(content) = above.find_map(|dir| settings(&dir)) {
        write(root, ".cargo/config.toml", &content)?;
    }
    Ok(())
}

/// Cargo's folder of this user.
pub(super) fn cargo_home() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home)
}

/// Variables of this machine that the room keeps.
pub(super) fn variables() -> Vec<(OsString, OsString)> {
    let mut kept: Vec<_> =
        std::env::vars_os().filter(|(name, _)| kept(&name.to_string_lossy())).collect();
    if certificates().is_some() {
        let names = ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO"];
        kept.extend(names.map(|name| (name.into(), CERTIFICATES.into())));
    }
    kept
}

fn kept(name: &str) -> bool {
    const NAMES: [&str; 6] =
        ["TERM", "NO_COLOR", "CI", "RUSTFLAGS", "RUST_BACKTRACE", "CARGO_INCREMENTAL"];
    const BEGINNINGS: [&str; 6] = [
        "FERROVERBS_",
        "CARGO_BUILD_",
        "CARGO_PROFILE_",
        "CARGO_NET_",
        "CARGO_HTTP_",
        "CARGO_REGISTRIES_",
    ];
    let upper = name.to_uppercase();
    let proxy = upper.ends_with("_PROXY");
    let secret =
        ["TOKEN", "PASSWORD", "CREDENTIAL", "SECRET"].iter().any(|word| upper.contains(word));
    !secret
        && upper != "CARGO_HTTP_CAINFO"
        && (proxy || NAMES.contains(&name) || BEGINNINGS.iter().any(|b| name.starts_with(b)))
}

/// All certificates that this machine trusts.
fn certificates() -> Option<Vec<u8>> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];
    named.into_iter().chain(usual.map(PathBuf::from)).find_map(|file| fs::read(file).ok())
}

/// Of `apt-config dump`, how packages are fetched.
fn acquire(dump: &str) -> String {
    let mut text = String::new();
    for line in dump.lines().filter(|line| line.starts_with("Acquire::")) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Writes a file of the room; `name` may be absolute, as it is inside.
pub(super) fn write(root: &Path, name: impl AsRef<Path>, content: &[u8]) -> crate::Result<()> {
    let name = name.as_ref();
    let path = root.join(name.strip_prefix("/").unwrap_or(name));
    let folder = path.parent().unwrap_or(root);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&path, content))
        .map_err(|e| format!("cannot write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_release_is_where_this_one_is() {
        let targets = "Debian http://m/debian/ bookworm main Packages\n\
                       Debian http://m/debian/ bookworm main Translations\n\
                       Debian http://m/debian/ bookworm-updates main Packages\n\
                       Other http://o/apt stable main Packages\n\
                       Debian http://m/debian/ sid main Packages\n\
                       Debian http://s/ bookworm-security main Packages\n";
        let archives = Archives::read(targets, "trixie");
        assert_eq!(archives.mirror, "http://m/debian/");
        let lines = "deb http://m/debian/ trixie main\ndeb http://m/debian/ trixie-updates main\n\
                     deb http://s/ trixie-security main\n";
        assert_eq!(archives.sources, lines);
    }

    #[test]
    fn a_machine_without_debian_s_archives_takes_the_common_mirror() {
        let archives = Archives::read("Ubuntu http://u/ubuntu noble main Packages\n", "bookworm");
        assert_eq!(archives.mirror, MIRROR);
        assert!(archives.sources.contains("bookworm-security"), "{}", archives.sources);
    }

    #[test]
    fn how_to_reach_the_network_goes_in_and_secrets_do_not() {
        for name in ["https_proxy", "NO_PROXY", "FERROVERBS_FETCH", "CARGO_NET_RETRY", "TERM"] {
            assert!(kept(name), "{name}");
        }
        let out = [
            "PATH",
            "HOME",
            "CARGO_HOME",
            "CARGO_REGISTRIES_X_TOKEN",
            "LD_LIBRARY_PATH",
            "RUSTUP_HOME",
        ];
        for name in out {
            assert!(!kept(name), "{name}");
        }
        let dump = "APT \"\";\nAcquire::http::Proxy \"http://p\";\nDPkg::Post-Invoke:: \"rm\";\n";
        assert_eq!(acquire(dump), "Acquire::http::Proxy \"http://p\";\n");
    }
}
