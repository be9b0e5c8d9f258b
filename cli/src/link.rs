//! A path of the library's folder that the dynamic loader can read (ld.so(8)).
//!
//! The loader splits `LD_PRELOAD` at blanks and colons and `LD_LIBRARY_PATH` at colons and
//! semicolons. It has no quotes, and it replaces the word after a `$`. If the folder has such a
//! character, the loader would silently load the system's library. A symbolic link in a folder of
//! the user avoids the character.
//!
//! The link stays when the command ends, because processes of the command may start more programs.

use rustix::process::{Uid, geteuid};
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// Bytes that a path in `LD_PRELOAD` must not have.
pub(crate) const PRELOAD_SEPARATORS: &[u8] = b" \t\n:$";
/// Bytes that a path in `LD_LIBRARY_PATH` must not have.
pub(crate) const LIBRARY_PATH_SEPARATORS: &[u8] = b":;$";

/// A path without `forbidden` bytes that leads to `folder`: the folder, or a symbolic link to the
/// folder.
pub(crate) fn loadable_path(folder: &Path, forbidden: &[u8]) -> crate::Result<PathBuf> {
    if is_free_of(folder, forbidden) {
        return Ok(folder.to_owned());
    }
    let user = geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR");
    let mut why = String::new();
    for own in candidates(runtime, user).filter(|own| is_free_of(own, forbidden)) {
        match make_link(folder, &own, user) {
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
    let found = fs::symlink_metadata(own)?;
    if !found.is_dir() || found.uid() != user.as_raw() || found.mode() & 0o022 != 0 {
        return Err(std::io::Error::other("not a folder that only you can write to"));
    }
    let mut hasher = DefaultHasher::new();
    folder.hash(&mut hasher);
    let link = own.join(format!("{:016x}", hasher.finish()));
    if fs::read_link(&link).is_ok_and(|target| target == folder) {
        return Ok(link);
    }
    // A rename is atomic, so a command that starts meanwhile finds the old link or the new link.
    let new = own.join(format!(".{}", std::process::id()));
    let _ = fs::remove_file(&new);
    symlink(folder, &new)?;
    fs::rename(&new, &link)?;
    Ok(link)
}

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
