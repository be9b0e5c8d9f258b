//! Enters new namespaces, without root if the kernel allows user namespaces (user_namespaces(7)).

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, configure_capability_in_ambient_set,
    set_capabilities, unshare_unsafe,
};
use std::fs;
use std::path::Path;

/// Capabilities of commands in the hosts: for interfaces (ip, tc), packets (tcpdump) and other
/// hosts (`cluster-shell`).
const CAPABILITIES: [CapabilitySet; 5] = [
    CapabilitySet::NET_ADMIN,
    CapabilitySet::NET_RAW,
    CapabilitySet::NET_BIND_SERVICE,
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::SYS_CHROOT,
];

/// Moves this process into namespaces in which it may make hosts. The next child becomes process 1
/// of a PID namespace.
pub(super) fn enter_namespaces(limits: &NamespaceLimits) -> crate::Result<()> {
    let refused = |error| limits.refused(error);
    let namespaces = UnshareFlags::NEWPID | UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    let (user, group) = (geteuid(), getegid());
    // SAFETY: the flags change neither descriptors nor memory, and this process has one thread.
    let with_rights = user.is_root() && unsafe { unshare_unsafe(namespaces) }.is_ok();
    if !with_rights {
        // SAFETY: as above; the added flag does not change descriptors or memory either.
        unsafe { unshare_unsafe(namespaces | UnshareFlags::NEWUSER) }.map_err(refused)?;
        // The user and the group keep their numbers. The kernel accepts a map of groups only after
        // setgroups is denied.
        let map = |file: &str, text: String| {
            let file = Path::new("/proc/self").join(file);
            fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
        };
        map("setgroups", "deny".into())?;
        map("uid_map", format!("{0} {0} 1", user.as_raw()))?;
        map("gid_map", format!("{0} {0} 1", group.as_raw()))?;
    }
    // Later mounts must not reach other namespaces.
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).map_err(refused)?;
    if user.is_root() { Ok(()) } else { keep_capabilities().map_err(refused) }
}

/// Makes the capabilities ambient, so that programs of ordinary users keep them over exec
/// (capabilities(7)).
///
/// The process gives all other capabilities up: a process with fewer capabilities than another
/// process cannot enter the namespaces of that process.
fn keep_capabilities() -> rustix::io::Result<()> {
    let kept = CAPABILITIES.into_iter().fold(CapabilitySet::empty(), CapabilitySet::union);
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    CAPABILITIES
        .into_iter()
        .try_for_each(|capability| configure_capability_in_ambient_set(capability, true))
}

/// The kernel's limits of namespaces for each user (namespaces(7)), and the number that the cluster
/// needs.
///
/// The limits of the first user namespace count also in a new user namespace. The new one shows
/// other values, so the limits are read before.
#[derive(Clone, Debug)]
pub(super) struct NamespaceLimits(Vec<Limit>);

#[derive(Clone, Debug)]
struct Limit {
    setting: String,
    value: u64,
    needed: u64,
}

impl NamespaceLimits {
    /// The limits of this namespace, for a cluster of `hosts` hosts.
    pub(super) fn read(hosts: u8) -> Self {
        Self::read_by(hosts, setting)
    }

    fn read_by(hosts: u8, read: impl Fn(&str) -> Option<String>) -> Self {
        let each = u64::from(hosts);
        // The switch has a network namespace and a mount namespace, too.
        let kinds = [
            ("user", 1),
            ("pid", 1),
            ("net", each + 1),
            ("mnt", each + 1),
            ("uts", each),
            ("ipc", each),
        ];
        let limits = kinds.into_iter().filter_map(|(kind, needed)| {
            let setting = format!("user.max_{kind}_namespaces");
            let value = read(&setting)?.parse().ok()?;
            Some(Limit { setting, value, needed })
        });
        Self(limits.collect())
    }

    /// The message for namespaces that the kernel refused, with a remedy.
    pub(super) fn refused(&self, error: rustix::io::Errno) -> String {
        let why = self.why(error, setting);
        format!(
            "virtual hosts need user and network namespaces, which are refused here ({error}){why}"
        )
    }

    fn why(&self, error: rustix::io::Errno, read: impl Fn(&str) -> Option<String>) -> String {
        // Older kernels return EUSERS for user namespaces (namespaces(7)).
        if matches!(error, rustix::io::Errno::NOSPC | rustix::io::Errno::USERS) {
            return self.exhausted();
        }
        let off = |name: &str, value: &str, better: &str| {
            let is_off = read(name).is_some_and(|found| found == value);
            is_off.then(|| format!("; {name} is {value}; as root: sysctl -w {name}={better}"))
        };
        off("kernel.unprivileged_userns_clone", "0", "1")
            .or_else(|| off("kernel.apparmor_restrict_unprivileged_userns", "1", "0"))
            .unwrap_or_else(|| {
                "; a container allows it with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`, or with --privileged".into()
            })
    }

    /// The message for a limit that is reached.
    fn exhausted(&self) -> String {
        let short: Vec<_> = self.0.iter().filter(|limit| limit.value < limit.needed).collect();
        if short.is_empty() {
            let all = self.0.iter().map(|limit| format!("{} = {}", limit.setting, limit.value));
            let all = all.collect::<Vec<_>>().join(", ");
            return format!(
                "; a limit of namespaces is reached, of this user ({all}) or of the container; as root, raise the limit with sysctl -w"
            );
        }
        let found = short.iter().map(|limit| {
            format!("{} is {}, and {} are needed", limit.setting, limit.value, limit.needed)
        });
        let better = short.iter().map(|limit| format!("{}={ENOUGH}", limit.setting));
        let (found, better): (Vec<_>, Vec<_>) = (found.collect(), better.collect());
        format!("; {}; as root: sysctl -w {}", found.join("; "), better.join(" "))
    }
}

/// A limit that suffices for the largest cluster.
const ENOUGH: u32 = 10_000;

/// The value of a setting of sysctl(8); `None` if the kernel has no such setting.
fn setting(name: &str) -> Option<String> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn limits(hosts: u8, found: &[(&str, &str)]) -> NamespaceLimits {
        NamespaceLimits::read_by(hosts, |name| value(found, name))
    }

    fn value(found: &[(&str, &str)], name: &str) -> Option<String> {
        found.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn a_limit_that_is_too_low_is_named_with_a_remedy() {
        for kind in ["user", "pid", "net", "mnt", "uts", "ipc"] {
            let name = format!("user.max_{kind}_namespaces");
            let why = limits(2, &[(&name, "0")]).why(Errno::NOSPC, |_| None);
            let needed = match kind {
                "user" | "pid" => 1,
                "net" | "mnt" => 3,
                _ => 2,
            };
            assert_eq!(
                why,
                format!("; {name} is 0, and {needed} are needed; as root: sysctl -w {name}=10000")
            );
        }
    }

    #[test]
    fn many_hosts_need_more_than_a_few() {
        let found = [
            ("user.max_net_namespaces", "200"),
            ("user.max_mnt_namespaces", "100"),
            ("user.max_user_namespaces", "1"),
        ];
        let why = |hosts| limits(hosts, &found).why(Errno::NOSPC, |_| None);
        assert!(why(250).contains("user.max_net_namespaces is 200, and 251 are needed"));
        assert!(
            why(250)
                .ends_with("sysctl -w user.max_net_namespaces=10000 user.max_mnt_namespaces=10000")
        );
        assert!(!why(150).contains("max_net"));
        // Other processes of the user, or a container, may have reached the limit.
        assert!(
            why(20).contains("user.max_net_namespaces = 200") && why(20).contains("is reached")
        );
    }

    #[test]
    fn a_container_is_named_only_if_no_setting_refuses() {
        let clone = "kernel.unprivileged_userns_clone";
        let profile = "kernel.apparmor_restrict_unprivileged_userns";
        let why =
            |found: &[(&str, &str)]| limits(2, &[]).why(Errno::PERM, |name| value(found, name));
        assert_eq!(why(&[(clone, "0")]), format!("; {clone} is 0; as root: sysctl -w {clone}=1"));
        assert_eq!(
            why(&[(profile, "1")]),
            format!("; {profile} is 1; as root: sysctl -w {profile}=0")
        );
        assert!(why(&[(clone, "1"), (profile, "0")]).contains("--security-opt"));
        assert!(!limits(2, &[]).why(Errno::NOSPC, |_| None).contains("--security-opt"));
    }
}
