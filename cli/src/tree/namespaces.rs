//! Moves the command into a mount namespace of its own. Without root, the mount namespace needs a
//! user namespace (user_namespaces(7)), which all commands of a user share.
//!
//! Processes of one user namespace may read each other's memory (cross-memory attach), and
//! processes of different user namespaces may not. So a command joins the user namespace of an
//! earlier command that still runs.

use super::keeper;
use crate::{nodes, processes};
use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Moves this process into a mount namespace of its own.
///
/// # Errors
/// The reason, and what root can do.
pub(super) fn enter() -> crate::Result<()> {
    // Root needs no user namespace, and a process of a cluster has one already.
    if nodes::enter_own_mount_namespace().is_ok() {
        return Ok(());
    }
    if std::env::var_os("FERROVERBS_FABRIC_GROUP").is_some_and(|group| !group.is_empty()) {
        return Err(format!(
            "in a user namespace the group of FERROVERBS_FABRIC_GROUP has no number; {}",
            remedy()
        ));
    }
    let entered = match join_user_namespace() {
        true => nodes::enter_own_mount_namespace(),
        false => nodes::enter_user_namespace(),
    };
    entered.map_err(|e| refused(&e))
}

/// What root can do for all commands.
pub(crate) fn remedy() -> String {
    let own = std::env::current_exe()
        .map_or_else(|_| "ferroverbs".into(), |own| own.display().to_string());
    format!("root makes the tree for all users, once: sudo {own} tree --system")
}

/// Tries whether this user may enter a mount namespace, in a process that ends at once.
///
/// # Errors
/// The reason, and what root can do.
pub(crate) fn is_allowed() -> crate::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: this process has one thread, so the child inherits no lock of another thread.
    unsafe { command.pre_exec(nodes::enter_mount_namespace) };
    command.status().map(|_| ()).map_err(|e| refused(&e))
}

fn refused(error: &std::io::Error) -> String {
    let setting = |name: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let is_off = |name: &str, value: &str| setting(name).is_some_and(|found| found == value);
    let why = if is_off("kernel.apparmor_restrict_unprivileged_userns", "1") {
        "kernel.apparmor_restrict_unprivileged_userns is 1"
    } else if is_off("kernel.unprivileged_userns_clone", "0") {
        "kernel.unprivileged_userns_clone is 0"
    } else if is_off("user.max_user_namespaces", "0") {
        "user.max_user_namespaces is 0"
    } else {
        "by the kernel or by the container"
    };
    format!("a mount namespace is refused ({error}; {why}); {}", remedy())
}

/// Joins the user namespace of a command of this user that has one. False if there is no such
/// command.
fn join_user_namespace() -> bool {
    let of = |process| processes::namespace(process, "user");
    let own = of(std::process::id());
    keeper::processes_of(geteuid().as_raw()).into_iter().any(|process| {
        // Root's commands have no user namespace, and this process is in its own namespace already.
        // In a namespace that another program made, the user may be root or have no number.
        if of(process).is_none_or(|found| Some(found) == own)
            || !processes::has_own_numbers(process)
        {
            return false;
        }
        File::open(processes::namespace_file(process, "user")).is_ok_and(|namespace| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User)).is_ok()
        })
    })
}
