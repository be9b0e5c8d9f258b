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
pub(super) fn set_apart() -> crate::Result<()> {
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

/// Why there are no namespaces, and what mends it.
fn refused(error: rustix::io::Errno) -> String {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let off = |file: &str, value: &str, better: &str| {
        let path = format!("/proc/sys/{}", file.replace('.', "/"));
        (read(&path) == value).then(|| format!("; as root: sysctl -w {file}={better}"))
    };
    let why = off("kernel.unprivileged_userns_clone", "0", "1")
        .or_else(|| off("user.max_user_namespaces", "0", "10000"))
        .or_else(|| off("kernel.apparmor_restrict_unprivileged_userns", "1", "0"))
        .unwrap_or_else(|| {
            "; a container allows it with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`, or with --privileged".into()
        });
    format!(
        "hosts in a box need user and network namespaces, which are refused here ({error}){why}"
    )
}
