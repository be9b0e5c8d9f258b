//! Entry points of fuzz targets (`fuzz/`): all accept any bytes and must not panic. Each covers one
//! parser of data from the kernel or from files.

pub mod commands;

use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use crate::sys::{release, smaps, sysfs};
use netlink::{rdma, route};

/// A datagram of the RDMA or the routing subsystem.
pub fn netlink(data: &[u8]) {
    let all = netlink::messages(data);
    // Parse also the bytes that a framing length hides.
    for body in all.iter().map(|message| message.body.as_slice()).chain([data]) {
        if let Some(device) = rdma::parse_device(body) {
            assert!(device.name.len() <= body.len() * 3);
        }
        if let Some(device) = rdma::parse_char_device(body) {
            assert!(!device.name.is_empty());
        }
        let _ = route::parse_route(body);
        let _ = route::parse_link(body);
        let _ = route::parse_reachability(body);
        let _ = route::parse_neighbour(body, [192, 0, 2, 9].into(), 3);
        let _ = route::parse_neighbour(body, [0xfe80, 0, 0, 0, 0, 0, 0, 1].into(), 3);
    }
}

/// A sysfs file, read by each reader.
pub fn sysfs(data: &[u8]) {
    let Some((path, _file)) = as_file(data) else { return };
    if let Ok(text) = sysfs::read_text(&path) {
        let _ = crate::front::gid::parse_gid(&text);
    }
    sysfs::read_number(&path);
    sysfs::read_dev(&path);
    for len in [0, 1, 8, 64] {
        let mut buffer = vec![0xee; len];
        if let Ok(read) = sysfs::read_into(&path, &mut buffer) {
            assert!(read <= len);
        }
    }
}

/// `/proc/self/smaps`.
pub fn smaps(data: &[u8]) {
    for address in [0, 0x1000, usize::MAX] {
        smaps::find_page_size(data, address);
    }
}

/// The real name of a plugin's file, which contains the release.
pub fn plugin_name(data: &[u8]) {
    release::of_name(&String::from_utf8_lossy(data));
}

/// The kernel's record of an asynchronous event.
pub fn event(data: &[u8]) {
    if let Some(record) = data.first_chunk() {
        crate::verbs::event::decode(*record);
    }
}

/// The bytes as a file without a place in any directory.
fn as_file(data: &[u8]) -> Option<(PathBuf, std::fs::File)> {
    // SAFETY: a constant string; the result is checked before it is used.
    let fd = unsafe { libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: just created, without another owner.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(data).ok()?;
    Some((PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())), file))
}
