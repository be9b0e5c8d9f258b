//! The character device of the kernel's connection manager: its name, version and opening.
//! `kernel::open` makes an event channel from it.

use crate::sys::objects;
use cface::Errno;
use netlink::rdma::Rdma;
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The device, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    name: String,
    /// The device number; 0 if unknown.
    number: libc::dev_t,
    /// The version of the commands.
    pub(super) version: u32,
}

/// The supported versions. Version 3 returns no queue pair attributes before a connection exists.
const VERSIONS: std::ops::RangeInclusive<u32> = 3..=4;

/// The description of the device, read once.
///
/// # Errors
/// `EPERM` an unsupported version, as in upstream's library.
pub(super) fn node() -> Result<&'static Node, Errno> {
    static NODE: OnceLock<Node> = OnceLock::new();
    let node = NODE.get_or_init(|| by_netlink().unwrap_or_else(by_sysfs));
    if VERSIONS.contains(&node.version) { Ok(node) } else { Err(Errno::EPERM) }
}

impl Node {
    /// The path of the device node.
    pub(super) fn path(&self) -> PathBuf {
        Path::new("/dev/infiniband").join(&self.name)
    }

    /// Opens the device: each open file is an event channel.
    ///
    /// # Errors
    /// The errno of the system; `ENODEV` the path is another file.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        match self.open_at(&self.path()) {
            // With other udev names, a link by device number exists. Kernels that report the number
            // create the node before.
            Err(why) if self.number != 0 => {
                let number = (libc::major(self.number), libc::minor(self.number));
                let link = format!("/dev/char/{}:{}", number.0, number.1);
                self.open_at(Path::new(&link)).map_err(|_| why)
            }
            done => done,
        }
    }

    fn open_at(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let file = File::options().read(true).write(true).open(path)?;
        let data = file.metadata()?;
        let expected = self.number == 0 || data.rdev() == self.number;
        if !data.file_type().is_char_device() || !expected {
            return Err(Errno::ENODEV);
        }
        Ok(file.into())
    }
}

/// The description from sysfs. Without a version file the newest version is assumed; the kernel
/// refuses unknown commands.
fn by_sysfs() -> Node {
    let files = [c"class/misc/rdma_cm/abi_version", c"class/infiniband_ucma/abi_version"];
    let version = files.iter().find_map(|file| read_sysfs(file)).map_or(4, |text| {
        let digits: String = text.trim().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    });
    Node { name: "rdma_cm".into(), number: 0, version }
}

fn read_sysfs(file: &CStr) -> Option<String> {
    let mut text = [0_u8; 8];
    let len = objects::read_sysfs(file, &mut text)?;
    Some(String::from_utf8_lossy(text.get(..len)?).trim_end_matches('\0').to_owned())
}

/// The description from netlink. The kernel loads the module of the device if necessary.
fn by_netlink() -> Option<Node> {
    let device = Rdma::open().and_then(|rdma| rdma.cm_device()).ok()?;
    Some(Node { name: device.name, number: device.dev, version: device.abi_version })
}
