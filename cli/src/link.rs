//! A name of the library's folder that the dynamic loader understands (ld.so(8)): it splits `LD_PRELOAD` at blanks and colons and
//! `LD_LIBRARY_PATH` at colons and semicolons, knows no way to quote them, and replaces what follows a `$`. A program under such a folder would
//! run over the system's library without a word. So a link in a folder of the user's own leads there.
//!
//! The link stays: nobody is left who could remove it when the command ends, and its processes may start others at any time.

use rustix::process::{Uid, geteuid};
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// What a path in `LD_PRELOAD` must not hold.
pub(crate) const PRELOAD: &[u8] = b" \t\n:$";
/// What a path in `LD_LIBRARY_PATH` must not hold.
pub(crate) const LIBRARY_PATH: &[u8] = b":;$";

/// `folder` itself, or a link to it, without any of the `forbidden` bytes.
pub(crate) fn readable(folder: &Path, forbidden: &[u8]) -> crate::Result<PathBuf> {
    if is_free_of(folder, forbidden) {
        return Ok(folder.to_owned());
    }
    let user = geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR");
    let mut why = String::new();
    for own in candidates(runtime, user).filter(|own| is_free_of(own, forbidden)) {
        match link(folder, &own, user) {
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

/// Folders for links, the best first.
fn candidates(runtime: Option<OsString>, user: Uid) -> impl Iterator<Item = PathBuf> {
    let runtime = runtime.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let runtime = runtime.map(|dir| dir.join("ferroverbs-lib"));
    runtime.into_iter().chain([PathBuf::from(format!("/tmp/ferroverbs-lib-{}", user.as_raw()))])
}

/// The link in `own`, which is made unless it is there.
fn link(folder: &Path, own: &Path, user: Uid) -> std::io::Result<PathBuf> {
    match fs::DirBuilder::new().mode(0o755).create(own) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    // What is there may be anybody's: who can write to it could put another library under the command.
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
    // Whoever starts at the same time sees the old one or the new one.
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

    /// A folder of the test's own, gone when dropped.
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
    fn a_plain_path_is_taken_as_it_is() {
        let plain = Path::new("/opt/ferroverbs/lib");
        assert_eq!(readable(plain, PRELOAD).unwrap(), plain);
        let blank = Path::new("/opt/my tree/lib");
        assert_eq!(readable(blank, LIBRARY_PATH).unwrap(), blank);
    }

    #[test]
    fn a_path_that_the_loader_would_split_gets_a_link_which_is_used_again() {
        let top = Folder::new("link");
        let target = top.0.join("a b:c");
        fs::create_dir(&target).unwrap();
        let own = top.0.join("own");
        let made = link(&target, &own, geteuid()).unwrap();
        assert!(is_free_of(&made, PRELOAD) && is_free_of(&made, LIBRARY_PATH), "{made:?}");
        assert_eq!(made.canonicalize().unwrap(), target.canonicalize().unwrap());
        assert_eq!(link(&target, &own, geteuid()).unwrap(), made);
        // One that leads elsewhere is replaced.
        fs::remove_file(&made).unwrap();
        symlink("/nowhere", &made).unwrap();
        assert_eq!(link(&target, &own, geteuid()).unwrap(), made);
        assert_eq!(fs::read_link(&made).unwrap(), target);
        assert_eq!(fs::read_dir(&own).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_used() {
        let top = Folder::new("open");
        let own = top.0.join("own");
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(link(Path::new("/a b"), &own, geteuid()).is_err());
        fs::remove_dir(&own).unwrap();
        symlink(&top.0, &own).unwrap();
        assert!(link(Path::new("/a b"), &own, geteuid()).is_err());
        let stranger = Uid::from_raw(geteuid().as_raw() + 1);
        assert!(link(Path::new("/a b"), &top.0, stranger).is_err());
    }

    #[test]
    fn the_users_runtime_folder_comes_before_the_temporary_one() {
        let of = |runtime: Option<&str>| {
            candidates(runtime.map(OsString::from), Uid::from_raw(7)).collect::<Vec<_>>()
        };
        assert_eq!(of(None), [Path::new("/tmp/ferroverbs-lib-7")]);
        assert_eq!(of(Some("")), [Path::new("/tmp/ferroverbs-lib-7")]);
        assert_eq!(of(Some("/run/user/7"))[0], Path::new("/run/user/7/ferroverbs-lib"));
    }
}
