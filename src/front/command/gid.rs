//! GID tables: `ibv_query_gid_ex(3)`, `ibv_query_gid_table(3)`; methods `QUERY_GID_ENTRY` and
//! `QUERY_GID_TABLE` of `UVERBS_OBJECT_DEVICE` (`<rdma/ib_user_ioctl_cmds.h>`). Older kernels show
//! GIDs in sysfs only.

use abi::{
    UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX,
    UVERBS_ATTR_QUERY_GID_ENTRY_PORT, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
    UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, UVERBS_ATTR_QUERY_GID_TABLE_FLAGS,
    UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES,
    UVERBS_METHOD_QUERY_GID_ENTRY, UVERBS_METHOD_QUERY_GID_TABLE, UVERBS_OBJECT_DEVICE, Zeroed,
    ib_uverbs_gid_entry, ibv_gid, ibv_gid_entry,
};

use super::IoctlOutcome;
use super::buffer::Command;
use super::bytes::{OutputBytes, PlainData, plain_data};
use crate::front::context::Context;
use crate::front::op::Op;
use cface::Errno;

plain_data! { ib_uverbs_gid_entry }

/// An entry of the GID table; `None`: the kernel lacks the method, and the caller reads sysfs.
///
/// # Errors
/// The kernel's errno; `ENODATA`: an empty slot.
pub(crate) fn entry(
    context: Context,
    port: u32,
    index: u32,
    flags: u32,
) -> Result<Option<ibv_gid_entry>, Errno> {
    let mut found = ib_uverbs_gid_entry::zeroed();
    let mut command = Command::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY);
    command.u64_in(UVERBS_ATTR_QUERY_GID_ENTRY_PORT, port.into());
    command.u64_in(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, index.into());
    command.u32_in(UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, flags);
    command.output(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, OutputBytes::of(&mut found));
    // Both queries remember a refusal in the slot of an operation that is no ioctl itself.
    match command.run_or_fall_back(context, Op::async_event)? {
        IoctlOutcome::Done => Ok(Some(public(&found))),
        IoctlOutcome::Write | IoctlOutcome::WriteEx => Ok(None),
    }
}

/// All non-empty entries of all ports; `None`: the kernel lacks the method.
///
/// # Errors
/// `EINVAL`: more entries than `max`, or than one ioctl can return (2047). Otherwise the kernel's
/// errno.
pub(crate) fn table(
    context: Context,
    max: usize,
    flags: u32,
) -> Result<Option<Vec<ibv_gid_entry>>, Errno> {
    let mut found = vec![ib_uverbs_gid_entry::zeroed(); max.min(MOST)];
    let mut count = 0_u64;
    let mut command = Command::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE);
    command.u64_in(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, size_of::<ib_uverbs_gid_entry>() as u64);
    command.u32_in(UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, flags);
    command.output(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, OutputBytes::slice(&mut found));
    command.output(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, OutputBytes::of(&mut count));
    match command.run_or_fall_back(context, Op::async_event)? {
        IoctlOutcome::Done => {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            Ok(Some(found.iter().take(count).map(public).collect()))
        }
        IoctlOutcome::Write | IoctlOutcome::WriteEx => Ok(None),
    }
}

/// One entry more than an attribute can hold, which the kernel refuses as too long.
const MOST: usize = u16::MAX as usize / size_of::<ib_uverbs_gid_entry>() + 1;

fn public(found: &ib_uverbs_gid_entry) -> ibv_gid_entry {
    let [prefix, interface] = found.gid.map(u64::to_ne_bytes);
    let mut raw = [0; 16];
    raw[..8].copy_from_slice(&prefix);
    raw[8..].copy_from_slice(&interface);
    ibv_gid_entry {
        gid: ibv_gid { raw },
        gid_index: found.gid_index,
        port_num: found.port_num,
        gid_type: found.gid_type,
        ndev_ifindex: found.netdev_ifindex,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_keeps_its_bytes_in_network_order() {
        let mut found = ib_uverbs_gid_entry::zeroed();
        found.gid =
            [u64::from_ne_bytes([0xfe, 0x80, 0, 0, 0, 0, 0, 0]), u64::from_ne_bytes([1; 8])];
        found.netdev_ifindex = 7;
        let entry = public(&found);
        assert_eq!(entry.gid.bytes()[..2], [0xfe, 0x80]);
        assert_eq!((entry.gid.bytes()[15], entry.ndev_ifindex), (1, 7));
    }
}
