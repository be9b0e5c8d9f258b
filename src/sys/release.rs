//! The rdma-core release of provider libraries, read from their real file names. A provider with a
//! shared library of its own is installed as `libmlx5.so.1.24.44.0`, where the third number is the
//! release, and the name of the plugin is a link to it.

use std::path::{Path, PathBuf};

/// The release of the package that the plugins in `files` belong to: from a plugin's own real name,
/// or from that of a sibling plugin of the same generation in the same directory.
pub(crate) fn of_plugins(files: &[PathBuf], pabi: u32) -> Option<u32> {
    files.iter().find_map(|file| of_file(file)).or_else(|| {
        let suffix = format!("-rdmav{pabi}.so");
        files.iter().filter_map(|file| file.parent()).find_map(|folder| {
            std::fs::read_dir(folder)
                .ok()?
                .flatten()
                .filter(|entry| entry.file_name().to_string_lossy().ends_with(&suffix))
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()))
                .find_map(|entry| of_file(&entry.path()))
        })
    })
}

/// From the name of the file, or of its link target. Every program with a device of the kernel pays
/// for this: one system call for each file.
fn of_file(path: &Path) -> Option<u32> {
    let mut path = path.to_owned();
    for _ in 0..LONGEST_CHAIN {
        if let Some(release) = of_name(path.file_name()?.to_str()?) {
            return Some(release);
        }
        let target = path.read_link().ok()?;
        path = path.parent()?.join(target);
    }
    None
}

/// Links behind links that are followed.
const LONGEST_CHAIN: usize = 8;

/// `libX.so.<abi>.<minor>.<release>.<point>`.
pub(crate) fn of_name(name: &str) -> Option<u32> {
    let (_, version) = name.split_once(".so.")?;
    let mut numbers = version.split('.');
    let release = numbers.nth(2)?.parse().ok()?;
    numbers.next()?.parse::<u32>().ok()?;
    Some(release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_number_of_the_real_name_is_the_release() {
        assert_eq!(of_name("libmlx5.so.1.24.44.0"), Some(44));
        assert_eq!(of_name("libefa.so.1.3.61.1"), Some(61));
        assert_eq!(of_name("librxe-rdmav34.so"), None);
        assert_eq!(of_name("libfoo.so.1"), None);
        assert_eq!(of_name("libfoo.so.1.2.3"), None);
    }

    #[test]
    fn a_plugin_without_a_number_is_told_by_its_sibling() {
        let folder = std::env::temp_dir().join(format!("fv-release-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary directory");
        let plain = folder.join("librxe-rdmav34.so");
        std::fs::write(&plain, b"").expect("a file");
        std::fs::write(folder.join("libmlx5.so.1.24.50.0"), b"").expect("a file");
        let link = folder.join("libmlx5-rdmav34.so");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink("libmlx5.so.1.24.50.0", &link).expect("a link");
        assert_eq!(of_plugins(std::slice::from_ref(&plain), 34), Some(50));
        assert_eq!(of_plugins(&[plain], 59), None);
        std::fs::remove_dir_all(&folder).expect("cleaning up");
    }
}
