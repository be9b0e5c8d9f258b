//! Namespaces of our own, without root where the kernel lets users have them (user_namespaces(7)).

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, configure_capability_in_ambient_set,
    set_capabilities, unshare_unsafe,
};
use std::fs;
use std::path::Path;

/// What commands in the hosts may do there, whoever runs them: look after interfaces (ip, tc), see packets (tcpdump), go to other hosts
/// (`cluster-shell`).
const RIGHTS: [CapabilitySet; 5] = [
    CapabilitySet::NET_ADMIN,
    CapabilitySet::NET_RAW,
    CapabilitySet::NET_BIND_SERVICE,
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::SYS_CHROOT,
];

/// Goes into namespaces in which we may make hosts. The next child is process 1 of a process namespace.
pub(super) fn set_apart(limits: &Limits) -> crate::Result<()> {
    let refused = |error| limits.refused(error);
    let namespaces = UnshareFlags::NEWPID | UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    let (user, group) = (geteuid(), getegid());
    // SAFETY: none of the flags has an effect on descriptors or memory of this process, and it has one thread.
    let with_rights = user.is_root() && unsafe { unshare_unsafe(namespaces) }.is_ok();
    if !with_rights {
        // SAFETY: one more of the flags that have no effect on descriptors or memory, in a process of one thread.
        unsafe { unshare_unsafe(namespaces | UnshareFlags::NEWUSER) }.map_err(refused)?;
        // Who we are stays. A group may be mapped only once nobody can drop groups.
        let map = |file: &str, text: String| {
            let file = Path::new("/proc/self").join(file);
            fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
        };
        map("setgroups", "deny".into())?;
        map("uid_map", format!("{0} {0} 1", user.as_raw()))?;
        map("gid_map", format!("{0} {0} 1", group.as_raw()))?;
    }
    // What is mounted from here on is nobody else's.
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).map_err(refused)?;
    if user.is_root() { Ok(()) } else { keep_rights().map_err(refused) }
}

/// Has programs that we become or start keep what we may do, which they lose otherwise unless root runs them (capabilities(7)). The rest is given up:
/// a process that may do less than another cannot get at its namespaces.
fn keep_rights() -> rustix::io::Result<()> {
    let kept = RIGHTS.into_iter().fold(CapabilitySet::empty(), CapabilitySet::union);
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    RIGHTS.into_iter().try_for_each(|right| configure_capability_in_ambient_set(right, true))
}

/// What the kernel counts of namespaces for each user (namespaces(7)), and how many the cluster needs of it. A namespace of users that we make has no
/// limits of its own, and those of the one that we came from count on; so they are read before.
#[derive(Clone, Debug)]
pub(super) struct Limits(Vec<Limit>);

#[derive(Clone, Debug)]
struct Limit {
    setting: String,
    value: u64,
    needed: u64,
}

impl Limits {
    /// Those of here, for so many hosts.
    pub(super) fn read(hosts: u8) -> Self {
        Self::read_by(hosts, setting)
    }

    fn read_by(hosts: u8, read: impl Fn(&str) -> Option<String>) -> Self {
        let each = u64::from(hosts);
        // The switch has a network and mounts, too.
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

    /// Why there are no namespaces, and what mends it.
    pub(super) fn refused(&self, error: rustix::io::Errno) -> String {
        let why = self.why(error, setting);
        format!(
            "hosts in a box need user and network namespaces, which are refused here ({error}){why}"
        )
    }

    fn why(&self, error: rustix::io::Errno, read: impl Fn(&str) -> Option<String>) -> String {
        // By namespaces(7); older kernels say the second one of users' namespaces.
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

    /// There are as many namespaces as there may be.
    fn exhausted(&self) -> String {
        let short: Vec<_> = self.0.iter().filter(|limit| limit.value < limit.needed).collect();
        if short.is_empty() {
            let all = self.0.iter().map(|limit| format!("{} = {}", limit.setting, limit.value));
            let all = all.collect::<Vec<_>>().join(", ");
            return format!(
                "; a limit of namespaces is reached, of those of this user ({all}) or of the container around it; as root: sysctl -w raises one"
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

/// Namespaces of a kind that are enough for anybody.
const ENOUGH: u32 = 10_000;

/// What a setting of sysctl(8) is; nothing, where the kernel does not have it.
fn setting(name: &str) -> Option<String> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn limits(hosts: u8, found: &[(&str, &str)]) -> Limits {
        Limits::read_by(hosts, |name| value(found, name))
    }

    fn value(found: &[(&str, &str)], name: &str) -> Option<String> {
        found.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn a_limit_that_is_too_low_is_named_with_what_mends_it() {
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
        // Others of this user, or a container, use it up.
        assert!(
            why(20).contains("user.max_net_namespaces = 200") && why(20).contains("is reached")
        );
    }

    #[test]
    fn a_container_is_to_blame_only_where_no_setting_is() {
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
