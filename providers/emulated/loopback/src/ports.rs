//! The port of the device: one GID and one P_Key.

use core::ffi::c_int;

use abi::{ibv_context, ibv_gid_entry};

/// The node's GUID, big endian.
pub(crate) const NODE_GUID: u64 = u64::from_ne_bytes([2, 0, 0, 0xff, 0xfe, 0, 0, 1]);

/// The GID at index 0.
pub(crate) const GID: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1];

/// # Safety
/// `entry` may be written.
pub(crate) unsafe extern "C" fn query_gid(
    _: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
) -> c_int {
    if (port, index) != (1, 0) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's entry. Its GID is 16 bytes.
    unsafe { (&raw mut (*entry).gid).cast::<[u8; 16]>().write(GID) };
    0
}

/// # Safety
/// `pkey` may be written.
pub(crate) unsafe extern "C" fn query_pkey(
    _: *mut ibv_context,
    _: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if index != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's word.
    unsafe { pkey.write(u16::MAX) };
    0
}
