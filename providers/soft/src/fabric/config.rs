//! Where and how processes meet: the settings, and the environment variables that set them.

use std::{
    env,
    ffi::OsString,
    path::{self, Path, PathBuf},
    time::Duration,
};

use super::error::FabricError;
use crate::config::{self, DIR_VARIABLE, GROUP_VARIABLE};
use soft_sys::{Errno, dir, process};

/// Settings of a [`Fabric`](super::Fabric). All processes that are to meet need the same `dir`,
/// `slots` and `group`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// The directory; processes meet in a sub-directory of it.
    pub dir: PathBuf,
    /// Whether processes of all network namespaces meet there. Otherwise those of one do.
    pub spans_namespaces: bool,
    /// Whether `dir` is of our own making, so that the last process to leave removes it, and so
    /// that it must not be a symbolic link.
    pub dir_is_ours: bool,
    /// How many slots there are, the unused slot 0 included; at least 2. QP numbers carry the slot.
    pub slots: u16,
    /// The slot with which a new fabric begins; `None`: any.
    pub first_slot: Option<u16>,
    /// `Some`: processes of all users of this group meet. `None`: those of this user only.
    pub group: Option<u32>,
    /// Whether cross-memory attach may be used at all.
    pub cma: bool,
    /// How long to wait for a process that holds the directory while it joins or leaves. That
    /// takes milliseconds, but a thousand may start at once.
    pub join_timeout: Duration,
    /// How long [`peer`](super::Fabric::peer) waits for the other process to answer.
    pub connect_timeout: Duration,
}

impl FabricConfig {
    /// Processes of this user meet in `dir`, with everything else as by default.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            spans_namespaces: false,
            dir_is_ours: false,
            slots: DEFAULT_SLOTS,
            first_slot: None,
            group: None,
            cma: true,
            join_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(2),
        }
    }

    /// What the environment says:
    ///
    /// - `FERROVERBS_FABRIC_DIR`: the directory. Otherwise `$XDG_RUNTIME_DIR/ferroverbs` if that
    ///   runtime directory is this user's, otherwise `/tmp/ferroverbs-<uid>`.
    /// - `FERROVERBS_FABRIC_GROUP`: a group's name or number: its members meet (by default in
    ///   `/tmp/ferroverbs-g<gid>`).
    /// - `FERROVERBS_SOFT_CMA=off`: no cross-memory attach.
    ///
    /// A set-user-id program ignores all of them.
    ///
    /// # Errors
    /// `EINVAL` there is no such group.
    pub fn from_env() -> Result<Self, FabricError> {
        if process::is_privileged() {
            return Self::from_lookup(|_| None);
        }
        Self::from_lookup(|name| env::var_os(name))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, FabricError> {
        let lookup = |name| lookup(name).filter(|value| !value.is_empty());
        let group = lookup(GROUP_VARIABLE).map(|value| parse_group(&value)).transpose()?;
        let (dir, dir_is_ours) = match lookup(DIR_VARIABLE) {
            // Absolute, as the program may go elsewhere.
            Some(dir) => (path::absolute(&dir).unwrap_or(dir.into()), false),
            None => (default_dir(group, lookup("XDG_RUNTIME_DIR").map(PathBuf::from)), true),
        };
        let cma = config::CMA.understand(lookup(config::CMA.name)).unwrap_or(true);
        // Who names a directory for several containers wants them to meet, and they have namespaces of their own. A default is one
        // for all hosts that are made of namespaces.
        let spans_namespaces = !dir_is_ours;
        Ok(Self { spans_namespaces, dir_is_ours, group, cma, ..Self::new(dir) })
    }
}

fn parse_group(value: &std::ffi::OsStr) -> Result<u32, FabricError> {
    let name = value.to_str().unwrap_or_default();
    let number = name.parse().ok().or_else(|| process::group_named(name));
    number.ok_or_else(|| {
        FabricError::setting(
            Errno::EINVAL,
            format!("{GROUP_VARIABLE}={}: no such group", value.display()),
            "name a group of this host, or unset it",
        )
    })
}

fn default_dir(group: Option<u32>, runtime_dir: Option<PathBuf>) -> PathBuf {
    if let Some(group) = group {
        return format!("/tmp/{DEFAULT_STEM}g{group}").into();
    }
    // After su(1) it may well be someone else's.
    let ours = |dir: &Path| dir::stat(dir).is_ok_and(|s| s.is_dir() && s.uid == process::user());
    match runtime_dir.filter(|dir| dir.is_absolute() && ours(dir)) {
        Some(dir) => dir.join("ferroverbs"),
        None => format!("/tmp/{DEFAULT_STEM}{}", process::user()).into(),
    }
}

/// What names of directories in /tmp begin with in which processes meet by default.
pub(super) const DEFAULT_STEM: &str = "ferroverbs-";

/// 10 bits of a 24-bit QP number.
const DEFAULT_SLOTS: u16 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> Result<FabricConfig, FabricError> {
        FabricConfig::from_lookup(|name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn without_settings_a_user_has_a_directory_of_their_own() {
        let config = config(&[]).unwrap();
        assert_eq!(config.dir, PathBuf::from(format!("/tmp/ferroverbs-{}", process::user())));
        assert!(
            config.dir_is_ours && !config.spans_namespaces && config.cma && config.group.is_none()
        );
    }

    #[test]
    fn the_runtime_directory_is_used_only_if_it_is_there() {
        let dir = env::temp_dir().join(format!("fv-run-{}", process::id()));
        let vars = [("XDG_RUNTIME_DIR", dir.to_str().unwrap())];
        assert!(config(&vars).unwrap().dir.starts_with("/tmp"));
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(config(&vars).unwrap().dir, dir.join("ferroverbs"));
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_named_directory_is_taken_as_it_is_and_never_removed() {
        let named = config(&[("FERROVERBS_FABRIC_DIR", "/run/x")]).unwrap();
        assert_eq!((named.dir, named.dir_is_ours), ("/run/x".into(), false));
        assert!(named.spans_namespaces, "for containers");
        let relative = config(&[("FERROVERBS_FABRIC_DIR", "x")]).unwrap();
        assert_eq!(relative.dir, env::current_dir().unwrap().join("x"));
    }

    #[test]
    fn a_group_has_a_directory_of_its_own_and_must_exist() {
        let members = config(&[("FERROVERBS_FABRIC_GROUP", "root")]).unwrap();
        assert_eq!((members.dir, members.group), ("/tmp/ferroverbs-g0".into(), Some(0)));
        let line = config(&[("FERROVERBS_FABRIC_GROUP", "nosuch")]).unwrap_err().to_string();
        assert_eq!(
            line,
            "FERROVERBS_FABRIC_GROUP=nosuch: no such group; name a group of this host, or unset it"
        );
    }

    #[test]
    fn attach_can_be_turned_off() {
        for (value, cma) in [("off", false), ("0", false), ("OFF", false), ("on", true), ("", true)]
        {
            assert_eq!(config(&[("FERROVERBS_SOFT_CMA", value)]).unwrap().cma, cma);
        }
    }
}
