//! Commands that run over Ferroverbs: which library, which way of putting it under a program, which
//! fabric directory, which user, which data path.

use crate::paths;
use crate::process::{Job, User};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How the library gets under a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadMethod {
    /// By `LD_LIBRARY_PATH`.
    LibraryPath,
    /// By `LD_PRELOAD` of the one file.
    Preload,
}

/// Which way data takes between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// Whatever the adapter chooses: cross-memory attach where the kernel allows it.
    Default,
    /// Cross-memory attach switched off by its setting.
    Off,
    /// Cross-memory attach refused by a seccomp filter, as in many containers.
    Refused,
}

impl DataPath {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Default, Self::Off, Self::Refused];

    /// For lines in tables and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Off => "CMA off",
            Self::Refused => "CMA refused",
        }
    }
}

/// Everything that makes a command run over Ferroverbs.
#[derive(Clone, Debug)]
pub struct LaunchSettings {
    /// Folder of `libibverbs.so.1`.
    lib: PathBuf,
    callers_path: OsString,
    way: LoadMethod,
    fabric: Option<PathBuf>,
    user: Option<User>,
    path: DataPath,
    without_cma: Option<PathBuf>,
    wired: bool,
    reported: Option<PathBuf>,
    traced: Option<PathBuf>,
    counted: Option<PathBuf>,
    captured: Option<PathBuf>,
    tree: bool,
}

impl LaunchSettings {
    /// The staged tree at `prefix`, the adapter's own choices for everything else.
    pub fn new(prefix: &Path, target: &Path) -> Self {
        Self {
            lib: prefix.join("lib"),
            callers_path: paths::callers_library_path(target),
            way: LoadMethod::LibraryPath,
            fabric: None,
            user: None,
            path: DataPath::Default,
            without_cma: None,
            wired: false,
            reported: None,
            traced: None,
            counted: None,
            captured: None,
            tree: false,
        }
    }

    /// The command `ferroverbs` shows device files. Without the option a command gets no namespace
    /// of its own, which some machines refuse.
    pub fn tree(mut self) -> Self {
        self.tree = true;
        self
    }

    /// Enables the wire to other hosts. Without this call no packet leaves the host and no port is
    /// opened, so parallel tests do not meet.
    pub fn wired(mut self) -> Self {
        self.wired = true;
        self
    }

    /// Chooses how the library gets under programs.
    pub fn way(mut self, way: LoadMethod) -> Self {
        self.way = way;
        self
    }

    /// Sets the fabric directory.
    pub fn fabric(mut self, dir: &Path) -> Self {
        self.fabric = Some(dir.to_path_buf());
        self
    }

    /// Runs as another user if one is given.
    pub fn user(mut self, user: Option<User>) -> Self {
        self.user = user;
        self
    }

    /// Chooses the data path; `without_cma` is the launcher that refuses cross-memory attach.
    pub fn path(mut self, path: DataPath, without_cma: &Path) -> Self {
        self.path = path;
        self.without_cma = Some(without_cma.to_path_buf());
        self
    }

    /// Runs programs under the layer `validate`, which writes JSON to `file`.
    pub fn validated(mut self, file: Option<&Path>) -> Self {
        self.reported = file.map(Path::to_path_buf);
        self
    }

    /// Runs programs under the layers `trace`, which writes into `folder`, and `validate`.
    pub fn traced(mut self, folder: Option<&Path>) -> Self {
        self.traced = folder.map(Path::to_path_buf);
        self
    }

    /// Runs programs under the layer `stats`, which writes into `folder`.
    pub fn with_stats(mut self, folder: Option<&Path>) -> Self {
        self.counted = folder.map(Path::to_path_buf);
        self
    }

    /// Under the layer that writes packets, in `folder`.
    pub fn with_capture(mut self, folder: Option<&Path>) -> Self {
        self.captured = folder.map(Path::to_path_buf);
        self
    }

    /// As `job`, a program of ours: none confuses an lkey and an rkey, which differ.
    pub fn own_job(&self, program: impl AsRef<std::ffi::OsStr>) -> Job {
        self.job(program).env("FERROVERBS_SOFT_KEYS", "distinct")
    }

    /// A command over all this.
    pub fn job(&self, program: impl AsRef<std::ffi::OsStr>) -> Job {
        let mut job = Job::new(program).user(self.user);
        if !self.wired {
            job = job.env("FERROVERBS_SOFT_WIRE", "off");
        }
        if !self.tree {
            job = job.env("FERROVERBS_TREE", "off");
        }
        if let Some(dir) = &self.fabric {
            job = job.env("FERROVERBS_FABRIC_DIR", dir);
        }
        if let Some(file) = &self.reported {
            // Much that is known must not hide what is not, and the text is not the program's own.
            let mut settings = OsString::from("max=1000:repeat=1:log=/dev/null:json=");
            settings.push(file);
            job = job.env("FERROVERBS_LAYERS", "validate").env("FERROVERBS_VALIDATE", settings);
            // For pyverbs_suite.py.
            job = job.env("TOLD", file);
        }
        if let Some(folder) = &self.traced {
            let mut settings = OsString::from("keep=1:dumps=0:dir=");
            settings.push(folder);
            job = job.env("FERROVERBS_LAYERS", "trace,validate").env("FERROVERBS_TRACE", settings);
            // Programs misuse verbs on purpose here, so reports are discarded.
            job = job.env("FERROVERBS_VALIDATE", "log=/dev/null");
        }
        if let Some(folder) = &self.counted {
            let mut settings = OsString::from("dir=");
            settings.push(folder);
            job = job.env("FERROVERBS_LAYERS", "stats").env("FERROVERBS_STATS", settings);
        }
        if let Some(folder) = &self.captured {
            let mut settings = OsString::from("dir=");
            settings.push(folder);
            job = job.env("FERROVERBS_LAYERS", "capture").env("FERROVERBS_CAPTURE", settings);
        }
        job = match self.way {
            LoadMethod::LibraryPath => {
                job.env("LD_LIBRARY_PATH", paths::prepend(&self.lib, &self.callers_path))
            }
            LoadMethod::Preload => job
                .env("LD_LIBRARY_PATH", &self.callers_path)
                .env("LD_PRELOAD", self.lib.join("libibverbs.so.1")),
        };
        match (self.path, &self.without_cma) {
            (DataPath::Off, _) => job.env("FERROVERBS_SOFT_CMA", "off"),
            (DataPath::Refused, Some(launcher)) => job.under(launcher),
            _ => job,
        }
    }
}
