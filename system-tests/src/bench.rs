//! The environment of checks: the staged tree, a folder for temporary files, an ordinary user, and
//! programs that are compiled once.

use crate::harness::{Check, Load};
use ferroverbs_c_tests::Program;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use xtask::launch::{DataPath, LaunchSettings};
use xtask::pair::{Pair, PairResult};
use xtask::paths::Paths;
use xtask::process::{self, Job, User};
use xtask::progress::Progress;
use xtask::scratch::{self, Scratch};
use xtask::stage;

/// The environment of one check. The first check that needs a shared part makes the part.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    pub(crate) paths: Arc<Paths>,
    pub(crate) progress: Arc<Progress>,
    /// The check's own folder.
    pub(crate) scratch: Arc<Scratch>,
    /// The ordinary user that programs run as.
    pub(crate) user: Option<User>,
    shared: Arc<SharedFiles>,
    /// Whether no other check runs; then every new file on the machine belongs to this check.
    alone: bool,
    layers: Layers,
}

/// Output folders of layers, for programs that run under them.
#[derive(Clone, Debug, Default)]
struct Layers {
    validate: Option<PathBuf>,
    trace: Option<PathBuf>,
    stats: Option<PathBuf>,
    capture: Option<PathBuf>,
}

/// A file that the first check makes, while further checks that need the file wait.
type SharedFile = Arc<Mutex<Option<PathBuf>>>;

#[derive(Debug)]
struct SharedFiles {
    /// The folder of shared files.
    scratch: Scratch,
    installed: OnceLock<PathBuf>,
    launcher: OnceLock<PathBuf>,
    /// Held while one of the two above is made.
    making: Mutex<()>,
    /// Programs and libraries of c-tests, by name.
    compiled: Mutex<BTreeMap<String, SharedFile>>,
}

impl Bench {
    /// Nothing is built yet.
    ///
    /// # Errors
    /// The repository or a folder for temporary files is missing.
    pub(crate) fn new() -> crate::Result<Self> {
        Ok(Self {
            paths: Arc::new(Paths::find()?),
            progress: Arc::new(Progress::new()),
            scratch: Arc::new(Scratch::new()?),
            user: process::is_root().then_some(NOBODY),
            shared: Arc::new(SharedFiles {
                scratch: Scratch::new()?,
                installed: OnceLock::new(),
                launcher: OnceLock::new(),
                making: Mutex::new(()),
                compiled: Mutex::default(),
            }),
            alone: false,
            layers: Layers::default(),
        })
    }

    /// The environment of one check, with a folder for temporary files. The harness prints the
    /// progress.
    ///
    /// # Panics
    /// The system's temporary folder is not writable.
    pub(crate) fn for_check(&self, check: &Check) -> Self {
        let scratch = Scratch::new().unwrap_or_else(|why| panic!("{}: {why}", check.name));
        let verbose = std::env::var_os("FERROVERBS_TEST_STEPS").is_some();
        let progress = if verbose { Progress::new() } else { Progress::silent() };
        Self {
            progress: Arc::new(progress),
            scratch: Arc::new(scratch),
            alone: check.load == Load::Alone,
            ..self.clone()
        }
    }

    /// Programs run under the layer `validate`, which writes to `file`.
    pub(crate) fn validated(&self, file: &Path) -> Self {
        let mut bench = self.clone();
        bench.layers.validate = Some(file.to_path_buf());
        bench
    }

    /// Programs run under the layer `trace`, which records in `folder`.
    pub(crate) fn traced(&self, folder: &Path) -> Self {
        let mut bench = self.clone();
        bench.layers.trace = Some(folder.to_path_buf());
        bench
    }

    /// Programs run under the layer `stats`, which counts in `folder`.
    pub(crate) fn with_stats(&self, folder: &Path) -> Self {
        let mut bench = self.clone();
        bench.layers.stats = Some(folder.to_path_buf());
        bench
    }

    /// Programs run under the layer `capture`, which writes in `folder`.
    pub(crate) fn with_capture(&self, folder: &Path) -> Self {
        let mut bench = self.clone();
        bench.layers.capture = Some(folder.to_path_buf());
        bench
    }

    /// Shows what is being done; `FERROVERBS_TEST_STEPS=1` asks for it.
    pub(crate) fn step(&self, text: &str) {
        self.progress.step(text);
    }

    /// Removes the line of the last step from a terminal.
    pub(crate) fn clear(&self) {
        self.progress.clear();
    }

    /// A copy of the staged tree where any user can read it.
    pub(crate) fn prefix(&self) -> crate::Result<&Path> {
        self.once(&self.shared.installed, || {
            stage::ensure(&self.paths, &self.progress)?;
            let prefix = self.shared.scratch.path().join("stage");
            scratch::copy_tree(&self.paths.stage(), &prefix)?;
            Ok(prefix)
        })
    }

    /// The launcher that refuses cross-memory attach.
    pub(crate) fn launcher(&self) -> crate::Result<&Path> {
        self.once(&self.shared.launcher, || {
            ferroverbs_c_tests::compile_without_cma(self.shared.scratch.path())
                .map_err(|e| e.to_string())
        })
    }

    fn once<'a>(
        &self,
        cell: &'a OnceLock<PathBuf>,
        make: impl FnOnce() -> crate::Result<PathBuf>,
    ) -> crate::Result<&'a Path> {
        let _making = self.shared.making.lock().unwrap_or_else(PoisonError::into_inner);
        if cell.get().is_none() {
            let made = make()?;
            return Ok(cell.get_or_init(|| made));
        }
        cell.get().map(PathBuf::as_path).ok_or_else(|| "it was not made".to_owned())
    }

    /// A compiled program of [`ferroverbs_c_tests::PROGRAMS`].
    pub(crate) fn program(&self, program: &Program) -> crate::Result<PathBuf> {
        self.compiled(&format!("{}/{}", program.folder, program.name), |folder| {
            ferroverbs_c_tests::compile(program, folder).map_err(|e| e.to_string())
        })
    }

    /// The file that `compile` makes in the given folder, once in a run for each `name`.
    pub(crate) fn compiled(
        &self,
        name: &str,
        compile: impl FnOnce(&Path) -> crate::Result<PathBuf>,
    ) -> crate::Result<PathBuf> {
        let entry = {
            let mut all = self.shared.compiled.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(name.to_owned()).or_default().clone()
        };
        let mut entry = entry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*entry {
            return Ok(file.clone());
        }
        let folder = self.shared.scratch.folder("compiled", 0o755)?;
        Ok(entry.insert(compile(&folder)?).clone())
    }

    /// A folder of the ordinary user's own.
    pub(crate) fn private_folder(&self, stem: &str) -> crate::Result<PathBuf> {
        let dir = self.scratch.folder(stem, 0o700)?;
        if let Some(user) = self.user {
            std::os::unix::fs::chown(&dir, Some(user.uid), Some(user.gid))
                .map_err(|e| format!("cannot give {} away: {e}", dir.display()))?;
        }
        Ok(dir)
    }

    /// Commands over the staged tree, as an ordinary user, in a fabric directory of their own.
    pub(crate) fn over(&self, path: DataPath) -> crate::Result<Fabric> {
        let dir = self.private_folder("fabric")?;
        let work = self.private_folder("work")?;
        // A file that cannot be removed shows in the tests that need the file.
        let _ = clear_domains();
        let over = LaunchSettings::new(self.prefix()?, &self.paths.target)
            .fabric(&dir)
            .user(self.user)
            .path(path, self.launcher()?)
            .validated(self.layers.validate.as_deref())
            .traced(self.layers.trace.as_deref())
            .with_stats(self.layers.stats.as_deref())
            .with_capture(self.layers.capture.as_deref());
        Ok(Fabric { over, dir, work, shared_memory: self.shared_memory() })
    }

    /// Runs both sides of `job` and checks that no files are left.
    pub(crate) fn pair(
        &self,
        fabric: &Fabric,
        job: Job,
        limit: Duration,
    ) -> Result<PairResult, String> {
        let ended = Pair::of(job.dir(&fabric.work), limit)?.run(&self.scratch)?;
        self.nothing_left(fabric).map_err(|e| format!("{e}\n{}", ended.report()))?;
        Ok(ended)
    }

    /// Checks that the fabric directory and shared memory are unchanged.
    pub(crate) fn nothing_left(&self, fabric: &Fabric) -> Result<(), String> {
        let mut left = files_left(&fabric.dir);
        left.extend(self.shared_memory().into_iter().filter(|f| !fabric.shared_memory.contains(f)));
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join(", "))) }
    }

    /// Files in /dev/shm of this check: files of the test's user if no further check runs, and
    /// files with the project's name.
    fn shared_memory(&self) -> Vec<String> {
        use std::os::unix::fs::MetadataExt;
        let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        entries
            .filter(|e| match self.user.filter(|_| self.alone) {
                Some(user) => e.metadata().is_ok_and(|m| m.uid() == user.uid),
                None => e.file_name().to_string_lossy().contains("ferroverbs"),
            })
            .map(|e| e.path().display().to_string())
            .collect()
    }
}

/// Removes the XRC domain files of perftest and ibv_xsrq_pingpong. These programs create the file
/// under a fixed name, readable only by its owner, and leave the file. A file of another user would
/// prevent the test.
pub(crate) fn clear_domains() -> Result<(), String> {
    for name in ["xrc_domain", "xrc_domain_server", "xrc_domain_client"] {
        let path = format!("/tmp/{name}");
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("cannot remove {path}, which the programs need: {e}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Where a test's processes meet.
pub(crate) struct Fabric {
    pub(crate) over: LaunchSettings,
    pub(crate) dir: PathBuf,
    /// The working directory of programs, where they may make files.
    pub(crate) work: PathBuf,
    shared_memory: Vec<String>,
}

/// Entries of a fabric directory; empty when no process uses it.
pub(crate) fn files_left(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| e.path().display().to_string()).collect()
}

/// Debian's `nobody` and `nogroup` (/usr/share/base-passwd/passwd.master).
pub(crate) const NOBODY: User = User { uid: 65534, gid: 65534 };
