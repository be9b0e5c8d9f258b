//! A path of the library's folder that the dynamic loader can read (ld.so(8)).
//!
//! The loader splits `LD_PRELOAD` at blanks and colons and `LD_LIBRARY_PATH` at colons and
//! semicolons. It has no quotes, and it replaces the word after a `$`. If the folder has such a
//! character, the loader would silently load the system's library. A symbolic link in a folder of
//! the user avoids the character.
//!
//! The link stays when the command ends, because processes of the command may start more programs.
//! The next command removes each link that no process has in its environment.

use crate::processes;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use rustix::process::{Uid, geteuid};
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes that a path in `LD_PRELOAD` must not have.
pub(crate) const PRELOAD_SEPARATORS: &[u8] = b" \t\n:$";
/// Bytes that a path in `LD_LIBRARY_PATH` must not have.
pub(crate) const LIBRARY_PATH_SEPARATORS: &[u8] = b":;$";

/// A path without `forbidden` bytes that leads to `folder`: the folder, or a symbolic link to the
/// folder.
pub(crate) fn loadable_path(folder: &Path, forbidden: &[u8]) -> crate::Result<PathBuf> {
    let user = geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR");
    candidates(runtime.clone(), user).for_each(|own| remove_unused(&own, user, UNUSED));
    if is_free_of(folder, forbidden) {
        return Ok(folder.to_owned());
    }
    let mut why = String::new();
    for own in candidates(runtime, user).filter(|own| is_free_of(own, forbidden)) {
        // The second attempt is for a command that removed the empty folder meanwhile.
        match make_link(folder, &own, user).or_else(|_| make_link(folder, &own, user)) {
            Ok(link) => return Ok(link),
            Err(error) => why = format!("{}: {error}", own.display()),
        }
    }
    Err(format!(
        "the dynamic loader splits the path of the library at its blanks, colons or dollar signs, and a link to it cannot be made \
         ({why}): move the tree out of {}",
        folder.display()
    ))
}

fn is_free_of(path: &Path, forbidden: &[u8]) -> bool {
    !path.as_os_str().as_bytes().iter().any(|b| forbidden.contains(b))
}

/// Folders for links, in the order of preference.
fn candidates(runtime: Option<OsString>, user: Uid) -> impl Iterator<Item = PathBuf> {
    let runtime = runtime.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let runtime = runtime.map(|dir| dir.join("ferroverbs-lib"));
    runtime.into_iter().chain([PathBuf::from(format!("/tmp/ferroverbs-lib-{}", user.as_raw()))])
}

/// Makes the link in `own`, unless the link exists. Returns the path of the link.
fn make_link(folder: &Path, own: &Path, user: Uid) -> std::io::Result<PathBuf> {
    match fs::DirBuilder::new().mode(0o755).create(own) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    // Refuse a folder that other users can write to: they could replace the library.
    if !is_own(own, user) {
        return Err(std::io::Error::other("not a folder that only you can write to"));
    }
    let mut hasher = DefaultHasher::new();
    folder.hash(&mut hasher);
    let link = own.join(format!("{:016x}{}", hasher.finish(), namespace_suffix()));
    if fs::read_link(&link).is_ok_and(|target| target == folder) {
        // The command that uses the link again has no environment with the link yet.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        utimensat(CWD, &link, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        return Ok(link);
    }
    // A rename is atomic, so a command that starts meanwhile finds the old link or the new link.
    let new = own.join(format!(".{}", std::process::id()));
    let _ = fs::remove_file(&new);
    symlink(folder, &new)?;
    fs::rename(&new, &link)?;
    Ok(link)
}

/// Whether only `user` can write to `folder`.
fn is_own(folder: &Path, user: Uid) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| {
        found.is_dir() && found.uid() == user.as_raw() && found.mode() & 0o022 == 0
    })
}

/// The end of the name of each link that a process of this pid namespace made. Processes of other
/// pid namespaces are invisible here, so their links are left alone.
fn namespace_suffix() -> String {
    let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino());
    format!("-{namespace:x}")
}

/// Removes each link in `own` that is as old as `unused` and that no process of the user has in its
/// environment. Removes `own` with the last link.
fn remove_unused(own: &Path, user: Uid, unused: Duration) {
    if !is_own(own, user) {
        return;
    }
    let suffix = namespace_suffix();
    let is_old = |link: &PathBuf| {
        let modified = fs::symlink_metadata(link).and_then(|found| found.modified());
        modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= unused))
    };
    let entries = fs::read_dir(own).into_iter().flatten().flatten();
    let made_here = entries.filter(|e| e.file_name().as_bytes().ends_with(suffix.as_bytes()));
    let mut links: Vec<_> = made_here.map(|entry| entry.path()).filter(is_old).collect();
    if links.is_empty() {
        return;
    }
    // Without /proc it is unknown which links are in use.
    let Ok(numbers) = processes::numbers() else { return };
    for environment in numbers.into_iter().map(processes::environment) {
        links.retain(|link| {
            let link = link.as_os_str().as_bytes();
            !environment.windows(link.len()).any(|part| part == link)
        });
    }
    for link in links {
        let _ = fs::remove_file(link);
    }
    let _ = fs::remove_dir(own);
}

/// Longer than a command takes from its link to its program.
const UNUSED: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A temporary folder, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(stem: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("ferroverbs-cli-{}-{stem}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir(&dir).unwrap();
            Self(dir)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_path_without_separators_needs_no_link() {
        let plain = Path::new("/opt/ferroverbs/lib");
        assert_eq!(loadable_path(plain, PRELOAD_SEPARATORS).unwrap(), plain);
        let blank = Path::new("/opt/my tree/lib");
        assert_eq!(loadable_path(blank, LIBRARY_PATH_SEPARATORS).unwrap(), blank);
    }

    #[test]
    fn a_path_that_the_loader_would_split_gets_one_link() {
        let top = Folder::new("link");
        let target = top.0.join("a b:c");
        fs::create_dir(&target).unwrap();
        let own = top.0.join("own");
        let made = make_link(&target, &own, geteuid()).unwrap();
        assert!(
            is_free_of(&made, PRELOAD_SEPARATORS) && is_free_of(&made, LIBRARY_PATH_SEPARATORS),
            "{made:?}"
        );
        assert_eq!(made.canonicalize().unwrap(), target.canonicalize().unwrap());
        assert_eq!(make_link(&target, &own, geteuid()).unwrap(), made);
        // A link to another folder is replaced.
        fs::remove_file(&made).unwrap();
        symlink("/nowhere", &made).unwrap();
        assert_eq!(make_link(&target, &own, geteuid()).unwrap(), made);
        assert_eq!(fs::read_link(&made).unwrap(), target);
        assert_eq!(fs::read_dir(&own).unwrap().count(), 1);
    }

    #[test]
    fn a_link_goes_when_no_process_uses_it_and_the_folder_with_the_last_link() {
        let top = Folder::new("unused");
        let own = top.0.join("own");
        let [used, unused] = ["a b", "c d"].map(|name| {
            let target = top.0.join(name);
            fs::create_dir(&target).unwrap();
            make_link(&target, &own, geteuid()).unwrap()
        });
        let mut program = std::process::Command::new("cat");
        let program = program.stdin(std::process::Stdio::piped()).env("LD_LIBRARY_PATH", &used);
        let mut program = program.spawn().unwrap();
        remove_unused(&own, geteuid(), UNUSED);
        assert!(used.is_symlink() && unused.is_symlink(), "new links stay");
        remove_unused(&own, geteuid(), Duration::ZERO);
        assert!(used.is_symlink() && !unused.is_symlink());
        drop(program.stdin.take());
        program.wait().unwrap();
        remove_unused(&own, geteuid(), Duration::ZERO);
        assert!(!own.exists());
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_used() {
        let top = Folder::new("open");
        let own = top.0.join("own");
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make_link(Path::new("/a b"), &own, geteuid()).is_err());
        fs::remove_dir(&own).unwrap();
        symlink(&top.0, &own).unwrap();
        assert!(make_link(Path::new("/a b"), &own, geteuid()).is_err());
        let stranger = Uid::from_raw(geteuid().as_raw() + 1);
        assert!(make_link(Path::new("/a b"), &top.0, stranger).is_err());
    }

    #[test]
    fn the_runtime_folder_comes_before_the_temporary_folder() {
        let of = |runtime: Option<&str>| {
            candidates(runtime.map(OsString::from), Uid::from_raw(7)).collect::<Vec<_>>()
        };
        assert_eq!(of(None), [Path::new("/tmp/ferroverbs-lib-7")]);
        assert_eq!(of(Some("")), [Path::new("/tmp/ferroverbs-lib-7")]);
        assert_eq!(of(Some("/run/user/7"))[0], Path::new("/run/user/7/ferroverbs-lib"));
    }
}
