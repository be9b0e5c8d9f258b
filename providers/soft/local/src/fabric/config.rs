//! Where and how processes meet: the settings. Who makes them reads the environment.

use std::{path::PathBuf, time::Duration};

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
}

/// What names of directories in /tmp begin with in which processes meet by default.
pub const DEFAULT_STEM: &str = "ferroverbs-";

/// The variable that names the directory, for remedies. Who sets it wants it: where it cannot be used, no device is opened.
pub const DIR_VARIABLE: &str = "FERROVERBS_FABRIC_DIR";
/// The variable that names the group whose members meet, for remedies; as the directory.
pub const GROUP_VARIABLE: &str = "FERROVERBS_FABRIC_GROUP";

/// 10 bits of a 24-bit QP number.
const DEFAULT_SLOTS: u16 = 1024;
