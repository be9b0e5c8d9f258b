//! The character device of the kernel's connection manager: its name, version and opening.
//! `kernel::open` makes an event channel from it.

use crate::sys::netlink::Netlink;
use crate::sys::objects;
use cface::Errno;
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

// `<rdma/rdma_netlink.h>`, `<linux/netlink.h>`
const NETLINK_RDMA: u32 = 20;
/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET_CHARDEV)`.
const GET_CHARDEV: u16 = 5 << 10 | 15;
const REQUEST: u16 = 1;
const CHARDEV_TYPE: u16 = 69;
const CHARDEV_NAME: u16 = 70;
const CHARDEV_ABI: u16 = 71;
const CHARDEV: u16 = 72;
/// Bytes of a message header and of an attribute header.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;

/// The description from netlink. The kernel loads the module of the device if necessary.
fn by_netlink() -> Option<Node> {
    let answer = Netlink::open(NETLINK_RDMA)?.query(&request(), 8192, true)?;
    read_answer(&answer)
}

fn request() -> Vec<u8> {
    let name = b"rdma_cm\0";
    let attribute = ATTRIBUTE + name.len();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&((HEADER + attribute) as u32).to_ne_bytes());
    bytes.extend_from_slice(&GET_CHARDEV.to_ne_bytes());
    bytes.extend_from_slice(&REQUEST.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&(attribute as u16).to_ne_bytes());
    bytes.extend_from_slice(&CHARDEV_TYPE.to_ne_bytes());
    bytes.extend_from_slice(name);
    bytes
}

/// The device of an answer; `None` for an error or an incomplete answer.
fn read_answer(bytes: &[u8]) -> Option<Node> {
    let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    if u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?) != GET_CHARDEV {
        return None;
    }
    let mut rest = bytes.get(HEADER..len)?;
    let (mut name, mut version, mut number) = (None, None, None);
    while let Some(len) = rest.first_chunk() {
        let len = usize::from(u16::from_ne_bytes(*len));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(ATTRIBUTE..len)?;
        let word = || value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        match kind {
            CHARDEV_NAME => {
                let text = CStr::from_bytes_until_nul(value).ok()?.to_str().ok()?;
                name = Some(text.to_owned());
            }
            // The upper half is reserved.
            CHARDEV_ABI => version = Some(word()? as u32),
            CHARDEV => number = Some(word()?),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    // The kernel's encoding of a device number.
    let number = number?;
    let major = u32::try_from((number & 0xf_ff00) >> 8).ok()?;
    let minor = u32::try_from((number & 0xff) | ((number >> 12) & 0xf_ff00)).ok()?;
    // A plain name, without a path to another folder.
    let name = name.filter(|name| !name.is_empty() && !name.contains('/'))?;
    Some(Node { name, number: libc::makedev(major, minor), version: version? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![];
        for (kind, value) in attributes {
            body.extend_from_slice(&((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
            body.extend_from_slice(&kind.to_ne_bytes());
            body.extend_from_slice(value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&GET_CHARDEV.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend_from_slice(&body);
        bytes
    }

    #[test]
    fn an_answer_needs_all_its_attributes_and_a_name_that_is_one() {
        let (abi, number) = (4_u64.to_ne_bytes(), (10_u64 << 8 | 0x3a).to_ne_bytes());
        let whole: [(u16, &[u8]); 3] =
            [(CHARDEV_NAME, b"rdma_cm\0"), (CHARDEV_ABI, &abi), (CHARDEV, &number)];
        let node = read_answer(&told(&whole)).expect("complete");
        assert_eq!((node.name.as_str(), node.version), ("rdma_cm", 4));
        assert_eq!(node.number, libc::makedev(10, 0x3a));
        for lacks in 0..3 {
            let mut part = whole.to_vec();
            part.remove(lacks);
            assert_eq!(read_answer(&told(&part)), None);
        }
        let bytes = told(&whole);
        for len in 0..bytes.len() {
            assert_eq!(read_answer(&bytes[..len]), None, "{len} bytes");
        }
        let elsewhere: [(u16, &[u8]); 3] =
            [(CHARDEV_NAME, b"../mem\0"), (CHARDEV_ABI, &abi), (CHARDEV, &number)];
        assert_eq!(read_answer(&told(&elsewhere)), None);
        // An attribute of length zero must not stop the parser.
        let mut bytes = bytes;
        bytes[HEADER..HEADER + 2].fill(0);
        assert_eq!(read_answer(&bytes), None);
    }
}
