//! Tests of RDMA programs over Ferroverbs, without hardware and without root.
//!
//! A [`Fabric`] belongs to one test: only processes of the fabric reach each other, so tests run
//! side by side. The crate starts programs by the command `ferroverbs`, which must be installed
//! (docs/guide/install.md).
//!
//! ```no_run
//! use ferroverbs_testing::Fabric;
//!
//! # fn main() -> std::io::Result<()> {
//! let fabric = Fabric::builder().faults("qp-error nth=7").build()?;
//! let _server = fabric.spawn(&mut fabric.command("./server"))?;
//! let client = fabric.command("./client").arg("127.0.0.1").status()?;
//! assert!(!client.success(), "the seventh request fails");
//! # Ok(())
//! # }
//! ```
//!
//! A test that calls verbs itself cannot change the library path of its own process. Such a test
//! runs under the command, by a line in `.cargo/config.toml`:
//!
//! ```toml
//! [target.'cfg(target_os = "linux")']
//! runner = ["ferroverbs", "run", "--"]
//! ```

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fabric with a folder of its own. The folder is removed when the value is dropped.
#[derive(Debug)]
pub struct Fabric {
    settings: Builder,
    folder: PathBuf,
}

/// The settings of a [`Fabric`].
#[derive(Clone, Debug)]
pub struct Builder {
    ferroverbs: PathBuf,
    options: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
}

impl Default for Builder {
    fn default() -> Self {
        Self { ferroverbs: "ferroverbs".into(), options: Vec::new(), variables: Vec::new() }
    }
}

impl Builder {
    /// The path of the command `ferroverbs`. Default: the command in `PATH`.
    #[must_use]
    pub fn ferroverbs(mut self, command: impl Into<PathBuf>) -> Self {
        self.ferroverbs = command.into();
        self
    }

    /// Requests that fail on purpose, in the words of `ferroverbs run -f`: ferroverbs-soft(7),
    /// "FAULTS".
    #[must_use]
    pub fn faults(self, faults: &str) -> Self {
        self.option("-f").option(faults)
    }

    /// The number of software devices.
    #[must_use]
    pub fn devices(self, count: u32) -> Self {
        self.option("-s").option(count.to_string())
    }

    /// Packets between hosts that are lost or late, such as `loss=1% seed=7`.
    #[must_use]
    pub fn impairment(self, impairment: &str) -> Self {
        self.variable("FERROVERBS_SOFT_IMPAIRMENT", impairment)
    }

    /// Layers between programs and adapter, outermost first, such as `validate`.
    #[must_use]
    pub fn layers<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        self.variable("FERROVERBS_LAYERS", names.join(","))
    }

    /// A variable for each program, such as a setting in docs/reference/settings.md.
    #[must_use]
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// A further word among the options of `ferroverbs run`.
    #[must_use]
    pub fn option(mut self, word: impl Into<OsString>) -> Self {
        self.options.push(word.into());
        self
    }

    /// Makes the fabric.
    ///
    /// # Errors
    /// No folder can be made in the folder for temporary files.
    pub fn build(self) -> io::Result<Fabric> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("ferroverbs-test-{}-{number}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            // The adapter refuses a folder that other users can write to.
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => return Ok(Fabric { settings: self, folder }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Fabric {
    /// The settings of a new fabric.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A fabric with the default settings.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new() -> io::Result<Self> {
        Builder::default().build()
    }

    /// `program` in this fabric. Add arguments to the result as to any command.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.under(&["run"], program.as_ref())
    }

    /// `program` in each of `hosts` virtual hosts of one network, which the kernel must allow
    /// (`ferroverbs doctor` tells).
    #[must_use]
    pub fn cluster(&self, hosts: u32, program: impl AsRef<OsStr>) -> Command {
        self.under(&["cluster", &hosts.to_string()], program.as_ref())
    }

    fn under(&self, words: &[&str], program: &OsStr) -> Command {
        let mut command = Command::new(&self.settings.ferroverbs);
        command.args(words).args(&self.settings.options).arg("--").arg(program);
        command.env("FERROVERBS_FABRIC_DIR", &self.folder);
        command.envs(self.settings.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts a command of this fabric. Dropping the result kills the process.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Process> {
        command.spawn().map(Process)
    }

    /// The folder in which processes of this fabric meet.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // A process of the fabric that still runs may hold files in the folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A running process, which is killed when the value is dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// The process, to wait for or to read from.
    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_command_has_the_options_and_the_folder_of_its_fabric() {
        let fabric = Fabric::builder()
            .faults("drop rate=1/9")
            .devices(2)
            .layers(["validate", "stats"])
            .impairment("loss=1%")
            .build()
            .unwrap();
        let mut command = fabric.command("./server");
        command.arg("-p");
        let wanted = ["run", "-f", "drop rate=1/9", "-s", "2", "--", "./server", "-p"];
        assert_eq!(words(&command), wanted);
        let hosts = fabric.cluster(3, "./server");
        assert_eq!(words(&hosts)[..2], ["cluster", "3"]);
        let value = |name: &str| {
            let found = command.get_envs().find(|(variable, _)| *variable == name);
            found.and_then(|(_, value)| value).map(OsStr::to_os_string)
        };
        assert_eq!(value("FERROVERBS_LAYERS"), Some("validate,stats".into()));
        assert_eq!(value("FERROVERBS_SOFT_IMPAIRMENT"), Some("loss=1%".into()));
        assert_eq!(value("FERROVERBS_FABRIC_DIR"), Some(fabric.folder().into()));
    }

    #[test]
    fn each_fabric_has_a_folder_until_it_is_dropped() {
        let (one, two) = (Fabric::new().unwrap(), Fabric::new().unwrap());
        assert_ne!(one.folder(), two.folder());
        let folder = one.folder().to_owned();
        assert!(folder.is_dir());
        drop(one);
        assert!(!folder.exists() && two.folder().is_dir());
    }

    #[test]
    fn a_process_ends_with_its_value() {
        let fabric = Fabric::new().unwrap();
        let mut process = fabric.spawn(Command::new("sleep").arg("600")).unwrap();
        let pid = process.child().id();
        drop(process);
        assert!(!Path::new("/proc").join(pid.to_string()).exists());
    }
}
