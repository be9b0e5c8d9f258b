//! The processor that binaries are built for: that of this machine, or aarch64 by cross tools.

use crate::packages::{self, find_program};
use crate::process::Job;
use crate::progress::Progress;
use crate::scratch::Scratch;
use ferroverbs_c_tests::release::FETCH;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit of rustc and rustup; rustup may download a standard library.
const LIMIT: Duration = Duration::from_secs(240);

/// Rust's name of the target.
pub const AARCH64_TARGET: &str = "aarch64-unknown-linux-gnu";
/// The C compiler of Debian's cross packages.
pub const AARCH64_COMPILER: &str = "aarch64-linux-gnu-gcc";
/// The emulator of Debian's package `qemu-user`.
pub const AARCH64_EMULATOR: &str = "qemu-aarch64";
/// Where Debian's cross packages have the loader and the C library of aarch64.
pub const AARCH64_LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// A processor, and the tools for its binaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// That of this machine.
    Native,
    /// aarch64, on a machine with another processor.
    Aarch64,
}

impl Architecture {
    /// The architecture of this name, such as `aarch64`.
    ///
    /// # Errors
    /// No tools build for it.
    pub fn parse(name: &str) -> Result<Self, String> {
        match name {
            std::env::consts::ARCH => Ok(Self::Native),
            "aarch64" => Ok(Self::Aarch64),
            _ => Err(format!("must be {} or aarch64", std::env::consts::ARCH)),
        }
    }

    /// The name in Rust, RPM and wheels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => std::env::consts::ARCH,
            Self::Aarch64 => "aarch64",
        }
    }

    /// `stem`, with another name for a foreign architecture: files of both stand side by side.
    pub fn named(self, stem: &str) -> String {
        match self {
            Self::Native => stem.to_owned(),
            Self::Aarch64 => format!("{stem}-aarch64"),
        }
    }

    /// The C compiler.
    pub const fn compiler(self) -> &'static str {
        match self {
            Self::Native => "cc",
            Self::Aarch64 => AARCH64_COMPILER,
        }
    }

    /// A program of binutils, such as `strip`.
    pub fn tool(self, name: &str) -> String {
        match self {
            Self::Native => name.to_owned(),
            Self::Aarch64 => format!("aarch64-linux-gnu-{name}"),
        }
    }

    /// The folder of release builds below the target folder.
    pub fn release(self, target: &Path) -> PathBuf {
        match self {
            Self::Native => target.join("release"),
            Self::Aarch64 => target.join(AARCH64_TARGET).join("release"),
        }
    }

    /// `job`, a command of cargo, for this architecture.
    pub fn cargo(self, job: Job) -> Job {
        match self {
            Self::Native => job,
            Self::Aarch64 => job
                .args(["--target", AARCH64_TARGET])
                .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", AARCH64_COMPILER),
        }
    }

    /// Runs a program of this architecture, by the emulator if need be.
    pub fn job(self, program: impl AsRef<OsStr>) -> Job {
        match self {
            Self::Native => Job::new(program),
            Self::Aarch64 => {
                Job::new(AARCH64_EMULATOR).args(["-L", AARCH64_LIBRARIES]).arg(program)
            }
        }
    }

    /// Installs the tools that build for this architecture.
    ///
    /// # Errors
    /// The missing tool, and the command that installs it.
    pub fn ensure_tools(self, progress: &Progress) -> crate::Result<()> {
        match self {
            Self::Native => Ok(()),
            Self::Aarch64 => {
                packages::ensure(&[packages::AARCH64], progress)?;
                ensure_aarch64(&Scratch::new()?)
            }
        }
    }
}

/// Looks for the C compiler and the standard library for aarch64, which rustup fetches.
///
/// # Errors
/// What is missing.
pub fn ensure_aarch64(scratch: &Scratch) -> crate::Result<()> {
    if find_program(AARCH64_COMPILER).is_none() {
        return Err(format!("{AARCH64_COMPILER} is missing (package gcc-aarch64-linux-gnu)"));
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = Job::new(rustc).args(["--print", "sysroot"]).run(scratch, LIMIT)?;
    let library = Path::new(sysroot.stdout.trim()).join("lib/rustlib").join(AARCH64_TARGET);
    if library.join("lib").is_dir() {
        return Ok(());
    }
    if std::env::var_os(FETCH).is_some_and(|value| value == "0") {
        return Err(format!("{FETCH} is 0, so the target {AARCH64_TARGET} is not fetched"));
    }
    if find_program("rustup").is_none() {
        return Err(format!(
            "the toolchain has no target {AARCH64_TARGET}, and there is no rustup"
        ));
    }
    let added = Job::new("rustup").args(["target", "add", AARCH64_TARGET]).run(scratch, LIMIT)?;
    added.ok().then_some(()).ok_or_else(|| added.report("rustup target add"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_foreign_architecture_have_names_of_their_own() {
        let foreign = Architecture::Aarch64;
        assert_eq!(foreign.named("stage"), "stage-aarch64");
        assert_eq!(foreign.tool("strip"), "aarch64-linux-gnu-strip");
        assert_ne!(foreign.release(Path::new("/t")), Architecture::Native.release(Path::new("/t")));
        assert_eq!(Architecture::parse(std::env::consts::ARCH), Ok(Architecture::Native));
        assert!(Architecture::parse("sparc").is_err());
    }
}
