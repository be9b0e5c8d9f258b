//! GID and pkey tables of a port: from the plugin for a device without a kernel device, else from
//! the kernel: by ioctl, or from sysfs, `ports/<port>/gids`, `gid_attrs`, `pkeys`.

use std::ffi::CString;
use std::path::PathBuf;

use abi::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_SYSFS_IB_ROCE_V1,
    IBV_GID_TYPE_SYSFS_ROCE_V2, IBV_LINK_LAYER_ETHERNET, VERBS_QUERY_GID_ATTR_GID,
    VERBS_QUERY_GID_ATTR_NDEV_IFINDEX, VERBS_QUERY_GID_ATTR_TYPE, Zeroed, be16, ibv_gid,
    ibv_gid_entry, ibv_gid_type_sysfs, ibv_port_attr,
};

use super::command;
use super::context::{Context, op};
use super::device::Device;
use super::ext;
use crate::sys::sysfs;
use cface::{Errno, chars};

/// All members of an entry.
pub(crate) const WHOLE_ENTRY: u32 =
    VERBS_QUERY_GID_ATTR_GID | VERBS_QUERY_GID_ATTR_TYPE | VERBS_QUERY_GID_ATTR_NDEV_IFINDEX;

/// One entry of a GID table, with the members of `wanted`.
///
/// # Errors
/// `ENODATA` an empty slot; `EINVAL` beyond the table; `EOPNOTSUPP` unknown flags.
pub(crate) fn entry(
    context: Context,
    port: u32,
    index: u32,
    flags: u32,
    wanted: u32,
) -> Result<ibv_gid_entry, Errno> {
    let mut entry = ibv_gid_entry { gid_index: index, port_num: port, ..ibv_gid_entry::zeroed() };
    if let Some(ext) = context.private().ext {
        if flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let query = ext.query_gid.ok_or(Errno::EOPNOTSUPP)?;
        // SAFETY: the plugin's own function with its open context and an entry of ours.
        let error = unsafe { query(context.as_ptr(), port, index, &raw mut entry) };
        return if error == 0 { Ok(entry) } else { Err(Errno::from_raw(error)) };
    }
    if let Some(entry) = command::gid::entry(context, port, index, flags)? {
        return Ok(entry);
    }
    if flags != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let folder = port_folder(context, port)?;
    if wanted & VERBS_QUERY_GID_ATTR_GID != 0 {
        let text =
            sysfs::read_text(&folder.join(format!("gids/{index}"))).map_err(|_| Errno::EINVAL)?;
        entry.gid = parse_gid(&text).ok_or(Errno::EINVAL)?;
    }
    if wanted & VERBS_QUERY_GID_ATTR_TYPE != 0 {
        entry.gid_type = match sysfs_type(&folder, index)? {
            IBV_GID_TYPE_SYSFS_ROCE_V2 => IBV_GID_TYPE_ROCE_V2,
            _ if link_layer(context, port)? == IBV_LINK_LAYER_ETHERNET => IBV_GID_TYPE_ROCE_V1,
            _ => IBV_GID_TYPE_IB,
        };
    }
    if wanted & VERBS_QUERY_GID_ATTR_NDEV_IFINDEX != 0 {
        let file = folder.join(format!("gid_attrs/ndevs/{index}"));
        // A missing file is no error, but a missing interface is.
        if let Ok(name) = sysfs::read_text(&file) {
            entry.ndev_ifindex = interface_index(&name)?;
        }
    }
    if wanted & VERBS_QUERY_GID_ATTR_GID != 0 && entry.gid.bytes() == [0; 16] {
        return Err(Errno::ENODATA);
    }
    Ok(entry)
}

/// A GID alone, or zeros for an empty slot: the result of `ibv_query_gid`.
///
/// # Errors
/// As [`entry`], but for `ENODATA`.
pub(crate) fn gid_or_zeros(context: Context, port: u32, index: u32) -> Result<ibv_gid, Errno> {
    match entry(context, port, index, 0, VERBS_QUERY_GID_ATTR_GID) {
        Ok(entry) => Ok(entry.gid),
        Err(Errno::ENODATA) => Ok(ibv_gid::zeroed()),
        Err(error) => Err(error),
    }
}

/// The type of an entry as sysfs names it: InfiniBand and RoCE v1 are one.
pub(crate) fn type_as_sysfs(
    context: Context,
    port: u32,
    index: u32,
) -> Result<ibv_gid_type_sysfs, Errno> {
    match entry(context, port, index, 0, VERBS_QUERY_GID_ATTR_TYPE) {
        Ok(entry) if ![IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1].contains(&entry.gid_type) => {
            Ok(IBV_GID_TYPE_SYSFS_ROCE_V2)
        }
        Ok(_) | Err(Errno::ENODATA) => Ok(IBV_GID_TYPE_SYSFS_IB_ROCE_V1),
        Err(error) => Err(error),
    }
}

/// All non-empty entries of all ports.
///
/// # Errors
/// `EINVAL` more than `max`.
pub(crate) fn table(context: Context, max: usize, flags: u32) -> Result<Vec<ibv_gid_entry>, Errno> {
    if context.private().ext.is_none()
        && let Some(entries) = command::gid::table(context, max, flags)?
    {
        return Ok(entries);
    }
    let mut entries = Vec::new();
    for port in 1..=ports(context)? {
        for index in 0..port_attr(context, port)?.gid_tbl_len.max(0).cast_unsigned() {
            match entry(context, port, index, flags, WHOLE_ENTRY) {
                Ok(_) if entries.len() == max => return Err(Errno::EINVAL),
                Ok(entry) => entries.push(entry),
                Err(Errno::ENODATA) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(entries)
}

/// One pkey, big endian.
pub(crate) fn pkey(context: Context, port: u8, index: i32) -> Result<be16, Errno> {
    if let Some(ext) = context.private().ext {
        let query = ext.query_pkey.ok_or(Errno::EOPNOTSUPP)?;
        let mut pkey = 0;
        // SAFETY: the plugin's own function with its open context and a variable of ours.
        let error = unsafe { query(context.as_ptr(), port, index, &raw mut pkey) };
        return if error == 0 { Ok(pkey) } else { Err(Errno::from_raw(error)) };
    }
    let folder = port_folder(context, u32::from(port))?;
    let text = sysfs::read_text(&folder.join(format!("pkeys/{index}")))?;
    let digits = text.trim().trim_start_matches("0x");
    u16::from_str_radix(digits, 16).map(u16::to_be).map_err(|_| Errno::EINVAL)
}

fn ports(context: Context) -> Result<u32, Errno> {
    // SAFETY: the device of an open context is live.
    let device = unsafe { Device::new(context.device())? };
    if let Some(info) = ext::info(device) {
        return Ok(info.num_ports);
    }
    let query = op!(context, query_device_ex)?;
    let mut attr = abi::ibv_device_attr_ex::zeroed();
    let size = size_of::<abi::ibv_device_attr>();
    // SAFETY: the provider of this open context writes no more than the given size, and `attr` is
    // larger.
    let error = unsafe { query(context.as_ptr(), core::ptr::null(), &raw mut attr, size) };
    if error == 0 {
        Ok(u32::from(attr.orig_attr.phys_port_cnt))
    } else {
        Err(Errno::from_raw(error))
    }
}

fn port_attr(context: Context, port: u32) -> Result<ibv_port_attr, Errno> {
    let port = u8::try_from(port).map_err(|_| Errno::EINVAL)?;
    let query = op!(context, query_port)?;
    let mut attr = ibv_port_attr::zeroed();
    // SAFETY: the provider of this open context may write all of the newest structure, which `attr`
    // is.
    let error = unsafe { query(context.as_ptr(), port, &raw mut attr) };
    if error == 0 { Ok(attr) } else { Err(Errno::from_raw(error)) }
}

fn link_layer(context: Context, port: u32) -> Result<u32, Errno> {
    Ok(u32::from(port_attr(context, port)?.link_layer))
}

fn port_folder(context: Context, port: u32) -> Result<PathBuf, Errno> {
    // SAFETY: the device of an open context is live.
    let device = unsafe { Device::new(context.device())? };
    // SAFETY: owned by the live device; constant.
    let dev = unsafe { device.sysfs().as_ref() }.ok_or(Errno::EINVAL)?;
    let path = String::from_utf8_lossy(&chars::bytes(&dev.ibdev_path)).into_owned();
    Ok(PathBuf::from(path).join(format!("ports/{port}")))
}

/// A kernel without types has no folder for them. For an empty slot the kernel returns `EINVAL`.
fn sysfs_type(folder: &std::path::Path, index: u32) -> Result<ibv_gid_type_sysfs, Errno> {
    match sysfs::read_text(&folder.join(format!("gid_attrs/types/{index}"))) {
        Ok(text) if text == "RoCE v2" => Ok(IBV_GID_TYPE_SYSFS_ROCE_V2),
        Ok(text) if text == "IB/RoCE v1" => Ok(IBV_GID_TYPE_SYSFS_IB_ROCE_V1),
        Err(Errno::EINVAL) => Ok(IBV_GID_TYPE_SYSFS_IB_ROCE_V1),
        Err(_) if !folder.join("gid_attrs").exists() => Ok(IBV_GID_TYPE_SYSFS_IB_ROCE_V1),
        _ => Err(Errno::EINVAL),
    }
}

/// The number of a network interface; `ENODEV`: this network namespace has no such interface.
fn interface_index(name: &str) -> Result<u32, Errno> {
    let name = CString::new(name).map_err(|_| Errno::ENODEV)?;
    // SAFETY: a C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(Errno::last()),
        index => Ok(index),
    }
}

/// Eight groups of hexadecimal digits.
pub(crate) fn parse_gid(text: &str) -> Option<ibv_gid> {
    let mut raw = [0; 16];
    let mut groups = text.trim().split(':');
    for pair in raw.chunks_exact_mut(2) {
        let group = u16::from_str_radix(groups.next()?, 16).ok()?;
        pair.copy_from_slice(&group.to_be_bytes());
    }
    groups.next().is_none().then_some(ibv_gid { raw })
}

#[cfg(test)]
mod tests {
    use super::super::generation::NEWEST;
    use super::super::testing::TestContext;
    use super::*;

    #[test]
    fn a_gid_is_eight_groups_in_network_order() {
        let gid = parse_gid("fe80:0000:0000:0000:0202:c9ff:fe00:00a1\n").expect("a GID");
        assert_eq!(gid.bytes(), [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 2, 0xc9, 0xff, 0xfe, 0, 0, 0xa1]);
        for bad in ["", "fe80::1", "fe80:0:0:0:0:0:0", "fe80:0:0:0:0:0:0:0:0", "g:0:0:0:0:0:0:0"] {
            assert!(parse_gid(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_type_is_read_from_its_file_or_is_the_oldest() {
        let folder = std::env::temp_dir().join(format!("fv-gid-{}", std::process::id()));
        assert_eq!(sysfs_type(&folder, 0), Ok(IBV_GID_TYPE_SYSFS_IB_ROCE_V1));
        std::fs::create_dir_all(folder.join("gid_attrs/types")).expect("a directory");
        for (index, text) in ["IB/RoCE v1\n", "RoCE v2\n", "other\n"].iter().enumerate() {
            std::fs::write(folder.join(format!("gid_attrs/types/{index}")), text).expect("a file");
        }
        assert_eq!(sysfs_type(&folder, 0), Ok(IBV_GID_TYPE_SYSFS_IB_ROCE_V1));
        assert_eq!(sysfs_type(&folder, 1), Ok(IBV_GID_TYPE_SYSFS_ROCE_V2));
        assert_eq!(sysfs_type(&folder, 2), Err(Errno::EINVAL));
        assert_eq!(sysfs_type(&folder, 3), Err(Errno::EINVAL));
        std::fs::remove_dir_all(folder).expect("cleaning up");
    }

    #[test]
    fn without_the_ioctl_gids_are_read_from_sysfs() {
        let root = std::env::temp_dir().join(format!("fv-gid-entry-{}", std::process::id()));
        let port = root.join("ports/1");
        for (file, content) in [
            ("gids/0", "fe80:0000:0000:0000:0202:c9ff:fe00:00a1\n"),
            ("gid_attrs/types/0", "RoCE v2\n"),
            ("gid_attrs/ndevs/0", "lo\n"),
            ("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("gid_attrs/types/1", "RoCE v2\n"),
            ("gids/2", "fe80:0000:0000:0000:0202:c9ff:fe00:00a2\n"),
            ("gid_attrs/types/2", "RoCE v2\n"),
            ("gid_attrs/ndevs/2", "not here\n"),
        ] {
            let file = port.join(file);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            std::fs::write(file, content).expect("a file");
        }
        let test = TestContext::new(NEWEST);
        let context = test.context();
        let mut sysfs = abi::verbs_sysfs_dev::zeroed();
        chars::store_path(&mut sysfs.ibdev_path, &root).expect("fits");
        // The file has no RDMA ioctls: ENOTTY.
        let stand_in = std::fs::File::open("/dev/null").expect("there on every system");
        // SAFETY: a context and a device of this test alone.
        unsafe {
            (*context.as_ptr()).cmd_fd = std::os::fd::AsRawFd::as_raw_fd(&stand_in);
            (*context.device()).sysfs = &raw mut sysfs;
        }
        let found = entry(context, 1, 0, 0, WHOLE_ENTRY).expect("a GID");
        assert!(context.private().is_ioctl_unsupported(0));
        assert_eq!((found.gid.bytes()[15], found.gid_type), (0xa1, IBV_GID_TYPE_ROCE_V2));
        assert_eq!((found.gid_index, found.port_num), (0, 1));
        assert_ne!(found.ndev_ifindex, 0, "every network namespace has a loopback interface");
        let error = |index, flags| entry(context, 1, index, flags, WHOLE_ENTRY).err();
        assert_eq!(error(1, 0), Some(Errno::ENODATA));
        assert_eq!(error(2, 0), Some(Errno::ENODEV));
        assert_eq!(error(3, 0), Some(Errno::EINVAL));
        assert_eq!(error(0, 1), Some(Errno::EOPNOTSUPP));
        assert_eq!(type_as_sysfs(context, 1, 0), Ok(IBV_GID_TYPE_SYSFS_ROCE_V2));
        std::fs::remove_dir_all(root).expect("cleaning up");
    }
}
