//! The fabric directory: finds or creates the directory, and checks its permissions. Joining a
//! fabric begins here; the slots and notes are files in the open directory.

use std::{
    ffi::OsStr,
    fs,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use super::{
    config::{DEFAULT_STEM, DIR_VARIABLE, FabricConfig, GROUP_VARIABLE},
    error::FabricError,
};
use crate::names::{HOST_STEM, NAMESPACE_STEM};
use soft_sys::{
    Errno,
    dir::{self, Dir, Links, Stat},
    host, process,
};

/// The open directory of one host or one network namespace.
#[derive(Debug)]
pub(super) struct Directory {
    base: PathBuf,
    base_is_ours: bool,
    name: PathBuf,
    path: PathBuf,
    dir: Dir,
    group: Option<u32>,
}

impl Directory {
    /// Opens the configured directory and creates missing parts: `dir` itself (not its parents) and
    /// the sub-directory of this host or network namespace.
    pub(super) fn open(config: &FabricConfig) -> Result<Self, FabricError> {
        let name = PathBuf::from(if config.spans_namespaces {
            // Several hosts may share a file system, but they share no memory: name the host.
            format!("{HOST_STEM}{}", host::boot())
        } else {
            format!("{NAMESPACE_STEM}{}", host::network_namespace())
        });
        let path = config.dir.join(&name);
        if let Some(group) = config.group.filter(|group| !process::may_give_to(*group)) {
            let cause = format!("user {} is no member of group {group}", process::user());
            let remedy = format!("become one, or unset {GROUP_VARIABLE}");
            return Err(FabricError::at_path(&config.dir, Errno::EPERM, cause, &remedy));
        }
        // The last process to leave may remove the directory at any moment, so retry.
        for _ in 0..RETRIES {
            let opened = open_base(config).and_then(|base| open_inner(&base, &name, &path, config));
            match opened {
                Ok(dir) => {
                    return Ok(Self {
                        base: config.dir.clone(),
                        base_is_ours: config.dir_is_ours,
                        name,
                        path,
                        dir,
                        group: config.group,
                    });
                }
                Err(error) if error.errno() == Errno::ENOENT => {}
                Err(error) => return Err(error),
            }
        }
        // The file system may also refuse new directories, as /proc does.
        let cause = "cannot be created, or keeps being removed";
        let remedy = format!("set {DIR_VARIABLE} to a directory that this user may write to");
        Err(FabricError::at_path(&path, Errno::ENOENT, cause, &remedy))
    }

    /// The path of this directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The open directory.
    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Permissions of files in the directory.
    pub(super) fn file_mode(&self) -> libc::mode_t {
        if self.group.is_some() { 0o660 } else { 0o600 }
    }

    /// The group whose members meet here.
    pub(super) fn group(&self) -> Option<u32> {
        self.group
    }

    /// Sets owner group and permissions of a new file, regardless of the umask.
    pub(super) fn share(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        share(file, self.file_mode(), self.group)
    }

    /// Directories of other hosts and network namespaces in the same base directory. If the base is
    /// the default one, the default directories of other users follow.
    pub(super) fn other_directories(&self) -> Vec<PathBuf> {
        let mut all = siblings(&self.base, self.name.as_os_str(), NAMESPACE_STEM);
        all.extend(siblings(&self.base, self.name.as_os_str(), HOST_STEM));
        if self.base_is_ours
            && let (Some(around), Some(own)) = (self.base.parent(), self.base.file_name())
        {
            let is_users = |path: &PathBuf| {
                let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
                let id = name.strip_prefix(DEFAULT_STEM).unwrap_or_default();
                id.strip_prefix('g').unwrap_or(id).parse::<u32>().is_ok()
            };
            all.extend(siblings(around, own, DEFAULT_STEM).into_iter().filter(is_users));
        }
        // Sort unstably: the stable sort takes 4 KiB of stack.
        all.sort_unstable();
        all
    }

    /// Directories of other network namespaces that pass the same checks as this directory.
    pub(super) fn of_other_namespaces(&self) -> Vec<Self> {
        let Ok(base) = Dir::open(&self.base, Links::Follow) else { return vec![] };
        let names = siblings(&self.base, self.name.as_os_str(), NAMESPACE_STEM).into_iter();
        let opened = names.filter_map(|path| {
            let name = PathBuf::from(path.file_name()?);
            let dir = base.open_dir(&name).ok()?;
            let stat = dir::stat_fd(dir.as_fd()).ok()?;
            check(&path, stat, self.group, DirectoryRole::Inner).ok()?;
            let (base, base_is_ours, group) = (self.base.clone(), self.base_is_ours, self.group);
            Some(Self { base, base_is_ours, name, path, dir, group })
        });
        opened.collect()
    }

    /// Removes the directory if it is empty, and the base directory if the library created it.
    pub(super) fn remove(&self) {
        // Ignore errors: if another process joined or left meanwhile, that process cleans up.
        if let Ok(base) = Dir::open(&self.base, Links::Follow) {
            let id = |stat: Result<Stat, _>| stat.ok().map(|stat| stat.id);
            let same = id(base.stat(&self.name)) == id(dir::stat_fd(self.as_fd()));
            if same && base.remove_dir(&self.name).is_ok() && self.base_is_ours {
                let _ = dir::remove_dir(&self.base);
            }
        }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Paths in `dir` whose names begin with `stem`, except `own`.
fn siblings(dir: &Path, own: &OsStr, stem: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let others = entries
        .map(|entry| entry.file_name())
        .filter(|name| name != own && name.to_str().is_some_and(|name| name.starts_with(stem)));
    others.map(|name| dir.join(name)).collect()
}

fn open_base(config: &FabricConfig) -> Result<Dir, FabricError> {
    let path = &config.dir;
    let links = if config.dir_is_ours { Links::Refuse } else { Links::Follow };
    let made = match dir::make_dir(path, dir_mode(config.group)) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(Errno::ENOENT) => {
            return Err(FabricError::at_path(
                path,
                Errno::ENOTDIR,
                "cannot be created, as the directory around it does not exist",
                &format!("create that, or set {DIR_VARIABLE}"),
            ));
        }
        Err(errno) => return Err(unusable(path, errno, "cannot be created")),
    };
    let dir = Dir::open(path, links).map_err(|errno| not_opened(path, errno))?;
    let ready = prepare(path, &dir, made, config.group)
        .and_then(|stat| check(path, stat, config.group, DirectoryRole::Base));
    if made && ready.is_err() {
        // Without the right permissions the directory would lock out other members.
        let _ = dir::remove_dir(path);
    }
    ready.map(|()| dir)
}

fn open_inner(
    base: &Dir,
    name: &Path,
    path: &Path,
    config: &FabricConfig,
) -> Result<Dir, FabricError> {
    let made = match base.make_dir(name, dir_mode(config.group)) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(errno) => return Err(unusable(path, errno, "cannot be created")),
    };
    let dir = base.open_dir(name).map_err(|errno| not_opened(path, errno))?;
    let ready = prepare(path, &dir, made, config.group)
        .and_then(|stat| check(path, stat, config.group, DirectoryRole::Inner));
    if made && ready.is_err() {
        let _ = base.remove_dir(name);
    }
    ready.map(|()| dir)
}

/// Sets the permissions of a directory if this process has just created it.
fn prepare(path: &Path, dir: &Dir, made: bool, group: Option<u32>) -> Result<Stat, FabricError> {
    if made {
        share(dir.as_fd(), dir_mode(group), group)
            .map_err(|errno| unusable(path, errno, "cannot be given the right permissions"))?;
    }
    dir::stat_fd(dir.as_fd()).map_err(|errno| unusable(path, errno, "cannot be examined"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectoryRole {
    /// The directory that the user named. Any group member may own it, and others may read it.
    Base,
    /// The fabric's sub-directory, which only the fabric's users may enter.
    Inner,
}

/// Refuses a directory in which an outsider could create files.
fn check(
    path: &Path,
    stat: Stat,
    group: Option<u32>,
    role: DirectoryRole,
) -> Result<(), FabricError> {
    let elsewhere = format!("set {DIR_VARIABLE} to a directory of your own");
    let refuse =
        |cause: String, remedy: &str| Err(FabricError::at_path(path, Errno::EPERM, cause, remedy));
    let permissions = stat.mode & 0o7777;
    match group {
        None if stat.uid != process::user() => refuse(
            format!("belongs to user {}, and this is user {}", stat.uid, process::user()),
            &format!("{elsewhere}, or {GROUP_VARIABLE} to share it with a group"),
        ),
        None if permissions & 0o022 != 0 => refuse(
            format!("others may write to it (mode {permissions:04o})"),
            &format!("chmod 0700 it, or set {GROUP_VARIABLE} to share it with a group"),
        ),
        Some(_) if permissions & 0o002 != 0 => {
            refuse(format!("everybody may write to it (mode {permissions:04o})"), "chmod 0770 it")
        }
        Some(group)
            if stat.gid != group
                && (role == DirectoryRole::Inner || stat.uid != process::user()) =>
        {
            refuse(format!("belongs to group {}, not {group}", stat.gid), "chgrp it, or remove it")
        }
        _ => Ok(()),
    }
}

fn share(fd: BorrowedFd<'_>, mode: libc::mode_t, group: Option<u32>) -> Result<(), Errno> {
    if let Some(group) = group {
        dir::set_group(fd, group)?;
    }
    dir::set_mode(fd, mode)
}

fn dir_mode(group: Option<u32>) -> libc::mode_t {
    if group.is_some() { 0o770 } else { 0o700 }
}

fn not_opened(path: &Path, errno: Errno) -> FabricError {
    match errno {
        Errno::ENOTDIR | Errno::ELOOP => FabricError::at_path(
            path,
            Errno::ENOTDIR,
            "is not a directory",
            &format!("remove it, or set {DIR_VARIABLE}"),
        ),
        other => unusable(path, other, "cannot be opened"),
    }
}

/// The error of a failed call on `path`. The remedy depends on `errno`.
pub(super) fn unusable(path: &Path, errno: Errno, what: &str) -> FabricError {
    let remedy = match errno {
        Errno::EACCES | Errno::EPERM | Errno::EROFS => {
            format!("set {DIR_VARIABLE} to a directory that this user may write to")
        }
        Errno::ENOSPC => "make room there".into(),
        Errno::EMFILE => "raise the limit on open files (ulimit -n)".into(),
        _ => format!("set {DIR_VARIABLE} to another directory"),
    };
    FabricError::at_path(path, errno, format!("{what}: {errno}"), &remedy)
}

/// How many times the directory may vanish while a process joins.
const RETRIES: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_vanishes_while_it_is_opened_is_made_again() {
        let name = format!("ferroverbs-vanishing-{}", process::id());
        let mut config = FabricConfig::new(std::env::temp_dir().join(name));
        config.dir_is_ours = true;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        Directory::open(&config).expect("made again").remove();
                    }
                });
            }
        });
        assert!(!config.dir.exists());
    }
}
