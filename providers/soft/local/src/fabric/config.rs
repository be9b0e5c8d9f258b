//! Settings of a fabric: the directory, the slots, and the time limits.
//!
//! The creator of the settings reads the environment; the fabric itself never does.

use std::{path::PathBuf, time::Duration};

/// Settings of a [`Fabric`](super::Fabric). Processes meet only with equal `dir`, `slots` and
/// `group`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// The base directory; processes meet in a sub-directory of it.
    pub dir: PathBuf,
    /// Whether processes of all network namespaces meet. Otherwise only those of one namespace
    /// meet.
    pub spans_namespaces: bool,
    /// Whether the library chose `dir`. Then the last process to leave removes the directory, and
    /// the directory must not be a symbolic link.
    pub dir_is_ours: bool,
    /// The number of slots including the unused slot 0; at least 2. QP numbers carry the slot.
    pub slots: u16,
    /// The first slot that a new fabric gives out; `None`: a random slot.
    pub first_slot: Option<u16>,
    /// `Some`: processes of all users of this group meet. `None`: only processes of this user meet.
    pub group: Option<u32>,
    /// Whether cross-memory attach may be used.
    pub cma: bool,
    /// How long to wait for a process that locks the directory while it joins or leaves. Joining
    /// takes milliseconds, but a thousand processes may start at once.
    pub join_timeout: Duration,
    /// How long [`peer`](super::Fabric::peer) waits for the other process to answer.
    pub connect_timeout: Duration,
}

impl FabricConfig {
    /// Processes of this user meet in `dir`; all other settings have their defaults.
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

/// Prefix of the default directories in /tmp.
pub const DEFAULT_STEM: &str = "ferroverbs-";

/// The environment variable that names the directory, for remedies. If the named directory cannot
/// be used, no device opens.
pub const DIR_VARIABLE: &str = "FERROVERBS_FABRIC_DIR";
/// The environment variable that names the group, for remedies. If the named group cannot be used,
/// no device opens.
pub const GROUP_VARIABLE: &str = "FERROVERBS_FABRIC_GROUP";

/// 10 bits of a 24-bit QP number.
const DEFAULT_SLOTS: u16 = 1024;
