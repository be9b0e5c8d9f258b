//! Writes the files of a tree into a folder. A file is replaced by a rename, so a reader never
//! finds half a file.

use super::facts::DeviceFacts;
use super::files::{self, Content, Files, NumaNode};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A folder that stands for `/sys`, and the files in the folder.
#[derive(Debug)]
pub(super) struct Folder {
    root: OwnedFd,
    files: Files,
}

/// The name of a file until it is complete.
const UNFINISHED: &str = ".new";

impl Folder {
    /// A folder that has no file of the tree yet.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let root = openat(CWD, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, files: Files::new() })
    }

    /// Writes files that no update changes or removes.
    pub(super) fn add(&self, files: &Files) -> std::io::Result<()> {
        files.iter().try_for_each(|(path, content)| self.write(path, content))
    }

    /// Writes what differs from the files that were written before, and removes files that are not
    /// among `wanted`.
    pub(super) fn update(&mut self, wanted: Files) -> std::io::Result<()> {
        for (path, content) in &wanted {
            if self.files.get(path) != Some(content) {
                self.write(path, content)?;
            }
        }
        for path in self.files.keys().filter(|path| !wanted.contains_key(*path)) {
            match unlinkat(&self.root, path.as_str(), AtFlags::empty()) {
                Err(error) if error != Errno::NOENT => return Err(error.into()),
                _ => {}
            }
        }
        self.files = wanted;
        Ok(())
    }

    /// The descriptor of the folder.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    fn write(&self, path: &str, content: &Content) -> std::io::Result<()> {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        self.make_folders(parent)?;
        let new = if parent.is_empty() {
            UNFINISHED.to_owned()
        } else {
            format!("{parent}/{UNFINISHED}")
        };
        match unlinkat(&self.root, new.as_str(), AtFlags::empty()) {
            Err(error) if error != Errno::NOENT => return Err(error.into()),
            _ => {}
        }
        match content {
            Content::Link(target) => symlinkat(target.as_str(), &self.root, new.as_str())?,
            Content::Text(text) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let file = openat(&self.root, new.as_str(), flags, Mode::from_raw_mode(0o644))?;
                File::from(file).write_all(text.as_bytes())?;
            }
        }
        Ok(renameat(&self.root, new.as_str(), &self.root, path)?)
    }

    fn make_folders(&self, path: &str) -> std::io::Result<()> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for part in ends.filter_map(|end| path.get(..end)).filter(|part| !part.is_empty()) {
            match mkdirat(&self.root, part, Mode::from_raw_mode(0o755)) {
                Err(error) if error != Errno::EXIST => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Writes the files below `folder` as `sys` and `dev`.
pub(super) fn write_image(folder: &Path, devices: &[DeviceFacts]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut wanted = Files::new();
    let all = files::of_devices(devices, &NumaNode::first()).into_iter().chain(versions());
    for (path, content) in all {
        wanted.insert(format!("sys/{path}"), content);
    }
    for device in devices {
        let node = format!("dev/infiniband/{}", device.dev_name);
        wanted.insert(node, Content::Link("../null".to_owned()));
    }
    Folder::open(folder)?.update(wanted)
}

/// The files of classes that programs look for, and that have no software device: versions of the
/// kernel's interfaces (ib_uverbs, ib_umad).
pub(super) fn versions() -> Files {
    let of = |(class, version)| {
        let path = format!("class/{class}/abi_version");
        (path, Content::Text(format!("{version}\n")))
    };
    [("infiniband_verbs", 6), ("infiniband_mad", 5)].map(of).into()
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::example;
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// An empty folder, removed on drop.
    struct Empty(PathBuf);

    impl Empty {
        fn new(stem: &str) -> Self {
            let name = format!("ferroverbs-tree-{stem}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Empty {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_image_has_links_that_lead_to_the_device() {
        let folder = Empty::new("image");
        write_image(&folder.0, &[example()]).unwrap();
        let device = folder.0.join("sys/class/infiniband/mlx5_0");
        let port = device.join("ports/1");
        assert_eq!(fs::read_to_string(port.join("state")).unwrap(), "4: ACTIVE\n");
        let bus = device.join("device").canonicalize().unwrap();
        assert!(bus.ends_with("sys/devices/pci0fe0:00/0fe0:00:00.0"), "{}", bus.display());
        // Programs take the parent of the parent for the PCI device.
        let parent = device.canonicalize().unwrap().join("../..").canonicalize().unwrap();
        assert_eq!(parent, bus);
        let class = device.join("subsystem").canonicalize().unwrap();
        assert!(class.ends_with("sys/class/infiniband"));
        let node = fs::read_link(folder.0.join("dev/infiniband/mlx5_0")).unwrap();
        assert_eq!(node, Path::new("../null"));
        let verbs = fs::read_dir(folder.0.join("sys/class/infiniband_verbs")).unwrap();
        assert_eq!(verbs.count(), 1, "no device for another copy of libibverbs");
    }

    #[test]
    fn an_update_changes_what_differs_and_removes_what_is_gone() {
        let folder = Empty::new("update");
        let text = |text: &str| Content::Text(text.to_owned());
        let mut files = Folder::open(&folder.0).unwrap();
        files.add(&Files::from([("d/e".into(), text("0"))])).unwrap();
        files.update(Files::from([("a/b".into(), text("1")), ("a/c".into(), text("2"))])).unwrap();
        files.update(Files::from([("a/b".into(), text("3"))])).unwrap();
        assert_eq!(fs::read_to_string(folder.0.join("a/b")).unwrap(), "3");
        let names: Vec<_> = fs::read_dir(folder.0.join("a")).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert!(folder.0.join("d/e").exists(), "no update removes the file");
    }
}
