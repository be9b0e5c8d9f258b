//! The extension of the provider ABI: a plugin announces devices without a kernel device, and
//! answers the front-end's queries of sysfs and the kernel for these devices.
//!
//! Such a plugin exports one *data* symbol, [`PLUGIN_EXT_SYMBOL`], of type
//! [`ferroverbs_plugin_ext`], and registers its `verbs_device_ops` as usual. Otherwise the plugin
//! is an ordinary provider of its private ABI generation.
//!
//! For each announced device the front-end builds a [`verbs_sysfs_dev`](crate::verbs_sysfs_dev)
//! with the announced names, GUID, node type and port count, passes it to `alloc_device`, and
//! completes the `verbs_device` with `sysfs` left NULL, so `alloc_context` is later called with
//! `cmd_fd == -1`. A plugin may replace the value by its own descriptor, which other processes can
//! import. The plugin sets `ibv_context.async_fd` itself: a readable descriptor that delivers
//! 16-byte records ([`ib_uverbs_async_event_desc`](crate::ib_uverbs_async_event_desc)).
//!
//! A plugin may also announce a device that the unmodified provider of a vendor serves, and play
//! the kernel for the provider: see [`ferroverbs_emulation`].

use core::ffi::{c_char, c_int};

use crate::{
    Zeroed, be64, ferroverbs_emulation, ibv_ah, ibv_context, ibv_cq, ibv_device, ibv_gid_entry,
    ibv_qp, verbs_device_ops,
};

/// Name of the data symbol; the number changes only with an incompatible layout, growth is told by
/// [`ferroverbs_plugin_ext::size`].
pub const PLUGIN_EXT_SYMBOL: &core::ffi::CStr = c"ferroverbs_plugin_ext_v1";

/// The multicast group that represents queue pair 1, for connection management (IBTA 1.7 3.5.10,
/// 13.4.5), on a shared device without a kernel device. `ibv_attach_mcast(3)` attaches UD queue
/// pairs with Q_Key `0x80010000` to the group. Each member receives the datagrams that other hosts
/// send to QP 1 of this host, with the addresses in the 40 bytes in front. A datagram to QP 1 of a
/// local address reaches all members. A datagram to another host has QP 1 as its source. The
/// address has interface scope, so datagrams to the group do not leave the host.
pub const GSI_GROUP: [u8; 16] = [0xff, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'F', b'V', 0, 1];

/// One announced device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ferroverbs_device_info {
    /// The result of `ibv_get_device_name(3)`, NUL terminated.
    pub name: [c_char; 64],
    /// The content of `ibv_device.dev_name` (`uverbsN` for a kernel device), NUL terminated.
    pub dev_name: [c_char; 64],
    /// The result of `ibv_get_device_guid(3)`; big endian.
    pub node_guid: be64,
    /// [`ibv_node_type`](crate::ibv_node_type).
    pub node_type: c_int,
    /// Physical ports, numbered from 1.
    pub num_ports: u32,
}
layout!(ferroverbs_device_info: 144 { name @ 0, dev_name @ 64, node_guid @ 128, node_type @ 136, num_ports @ 140 });

/// A RoCE packet that a plugin reports (`tell_packets`). Its pointers are valid during the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ferroverbs_packet {
    /// Bytes of this struct the plugin was built with.
    pub size: usize,
    /// From the base header (BTH) on, padding included, without the ICRC.
    pub bytes: *const u8,
    /// Number of those bytes.
    pub length: u32,
    /// The ICRC, as it stands on the wire.
    pub icrc: [u8; 4],
    /// The sender's address; IPv4 addresses are mapped.
    pub source: [u8; 16],
    /// The receiver's address.
    pub destination: [u8; 16],
    /// UDP source port; 0 where it is not known, and neither is the ICRC: another process took it
    /// from the socket.
    pub source_port: u16,
    /// Of the IPv4 header.
    pub identification: u16,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// 1: sent; 0: received.
    pub is_sent: u8,
    /// 0.
    pub reserved: u8,
}
layout!(ferroverbs_packet: 64 {
    size @ 0, bytes @ 8, length @ 16, icrc @ 20, source @ 24, destination @ 40, source_port @ 56,
    identification @ 58, traffic_class @ 60, hop_limit @ 61, is_sent @ 62, reserved @ 63,
});

/// The receiver of packet reports. Any thread of the plugin calls the function, under locks of the
/// plugin; the function calls no verbs.
pub type ferroverbs_packet_sink = unsafe extern "C" fn(packet: *const ferroverbs_packet);

/// The state of a connection's remote end (`other_end`), as the remote process publishes it now.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ferroverbs_other_end {
    /// Size of the caller's structure in bytes; no more bytes are written.
    pub size: usize,
    /// The location of the remote end: [`OTHER_END_WIRE`] or another `OTHER_END_*`.
    pub place: u32,
    /// The remote process in the local pid namespace; 0: not known.
    pub pid: c_int,
    /// [`ibv_qp_state`](crate::ibv_qp_state) of the remote QP, as last published; -1: no such QP,
    /// or not known.
    pub qp_state: c_int,
    /// The QP to which the remote QP is connected; 0: none.
    pub dest_qp_num: u32,
    /// Its `qp_access_flags`.
    pub access: u32,
    /// The state of the key: [`OTHER_KEY_GOOD`] or another `OTHER_KEY_*`.
    pub key: u32,
    /// `IBV_ACCESS_*` flags of the key's region or window, if any.
    pub key_access: u32,
    /// 0.
    pub reserved: u32,
    /// The first address of the key's range.
    pub key_addr: u64,
    /// Bytes.
    pub key_length: u64,
    /// `rq_psn` of the remote QP; only valid if `path_mtu` is not 0.
    pub rq_psn: u32,
    /// `path_mtu` of the QP there, an [`ibv_mtu`](crate::ibv_mtu); 0: not known.
    pub path_mtu: u8,
    /// `max_dest_rd_atomic` of the remote QP; only valid if `path_mtu` is not 0.
    pub max_dest_rd_atomic: u8,
    /// 0.
    pub reserved2: u16,
}
layout!(ferroverbs_other_end: 64 {
    size @ 0, place @ 8, pid @ 12, qp_state @ 16, dest_qp_num @ 20, access @ 24, key @ 28, key_access @ 32, reserved @ 36,
    key_addr @ 40, key_length @ 48, rq_psn @ 56, path_mtu @ 60, max_dest_rd_atomic @ 61, reserved2 @ 62,
});

/// Of `place`: nothing is known.
pub const OTHER_END_UNKNOWN: u32 = 0;
/// Of `place`: a QP of this process.
pub const OTHER_END_HERE: u32 = 1;
/// Of `place`: another process of this host.
pub const OTHER_END_PROCESS: u32 = 2;
/// Of `place`: another process of this host that this process has not met or may not read.
pub const OTHER_END_CLOSED: u32 = 3;
/// Of `place`: a process that has ended. The last published values remain.
pub const OTHER_END_GONE: u32 = 4;
/// Of `place`: no process of this host owns the QP number.
pub const OTHER_END_NOBODY: u32 = 5;
/// Of `place`: it is reached by the wire between hosts, which tells nothing.
pub const OTHER_END_WIRE: u32 = 6;

/// Of `key`: not asked, or nothing is known.
pub const OTHER_KEY_UNKNOWN: u32 = 0;
/// Of `key`: the rkey of a region or window that the QP there may use.
pub const OTHER_KEY_GOOD: u32 = 1;
/// Of `key`: no region or window has it now.
pub const OTHER_KEY_NONE: u32 = 2;
/// Of `key`: an lkey.
pub const OTHER_KEY_LOCAL: u32 = 3;
/// Of `key`: of a region or window in another protection domain than the QP's.
pub const OTHER_KEY_DOMAIN: u32 = 4;
/// Of `key`: of a window that is bound to another QP.
pub const OTHER_KEY_QP: u32 = 5;

/// The extension table. A NULL function means that the front-end gives its answer for a device that
/// has nothing of the kind.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ferroverbs_plugin_ext {
    /// Bytes of this struct the plugin was built with; fields beyond are absent.
    pub size: usize,
    /// The pointer that the plugin registered; identifies the driver and the driver's generation.
    pub device_ops: *const verbs_device_ops,
    /// Fills at most `max` entries of `out` and returns how many there are, or `-errno` after
    /// having printed its own line of diagnosis. `kernel_devices` is the number of RDMA devices the
    /// kernel has.
    pub announce: Option<
        unsafe extern "C" fn(
            kernel_devices: c_int,
            out: *mut ferroverbs_device_info,
            max: c_int,
        ) -> c_int,
    >,
    /// One slot of the GID table of `port` (from 1). 0 or an errno: `ENODATA` for an empty slot,
    /// `EINVAL` beyond the table.
    pub query_gid: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port: u32,
            index: u32,
            entry: *mut ibv_gid_entry,
        ) -> c_int,
    >,
    /// One slot of the pkey table, big endian. 0 or an errno.
    pub query_pkey: Option<
        unsafe extern "C" fn(
            context: *mut ibv_context,
            port: u8,
            index: c_int,
            pkey: *mut u16,
        ) -> c_int,
    >,
    /// A readable descriptor that delivers 8-byte records, each the address of the `ibv_cq` with an
    /// event; or `-errno`.
    pub create_comp_channel: Option<unsafe extern "C" fn(context: *mut ibv_context) -> c_int>,
    /// Closes a descriptor of `create_comp_channel`. 0 or an errno.
    pub destroy_comp_channel:
        Option<unsafe extern "C" fn(context: *mut ibv_context, fd: c_int) -> c_int>,
    /// Whether `fd`, which the caller owns and which is no kernel device, is the `cmd_fd` of a
    /// context of this device and valid for `import_context`: 1 or 0.
    pub is_cmd_fd: Option<unsafe extern "C" fn(device: *mut ibv_device, fd: c_int) -> c_int>,
    /// Called by `ibv_get_cq_event(3)` before it reads such a descriptor. If the read would block,
    /// sleeps until a record arrives. 0 or an errno, for example `EINTR`. A cancellation point.
    pub await_comp_event:
        Option<unsafe extern "C-unwind" fn(context: *mut ibv_context, fd: c_int) -> c_int>,
    /// For layers, not for the front-end: reports each packet between hosts that this process sends
    /// or receives to `sink`, from now on. 0, or `EBUSY`: another sink is set, which cannot be
    /// replaced.
    pub tell_packets: Option<unsafe extern "C" fn(sink: ferroverbs_packet_sink) -> c_int>,
    /// For layers: whether messages of this queue pair, to `ah` for datagrams, go to another host:
    /// 1 or 0. Valid from RTR on.
    pub is_wired: Option<unsafe extern "C" fn(qp: *mut ibv_qp, ah: *mut ibv_ah) -> c_int>,
    /// For layers: how many completions `ibv_poll_cq(3)` would find now.
    pub waiting: Option<unsafe extern "C" fn(cq: *mut ibv_cq) -> c_int>,
    /// For layers: the state of the remote end of this connected queue pair, and of `rkey` there
    /// (0: no key). Never waits for the remote process. 0 or an errno: `EINVAL` for a queue pair
    /// without a remote end.
    pub other_end: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, rkey: u32, end: *mut ferroverbs_other_end) -> c_int,
    >,
    /// NULL, or the functions for announced devices that a vendor's provider serves.
    pub emulation: *const ferroverbs_emulation,
    /// For connection management: the number of this process among the processes of this host that
    /// share the device, from 1 to 4095. No two live processes have one number, and the number of
    /// an ended process is not given out at once. Or `-errno`.
    pub process_number: Option<unsafe extern "C" fn(context: *mut ibv_context) -> c_int>,
    /// For connection management: whether a live process has `number`: 1 or 0. Never waits for that
    /// process.
    pub is_process: Option<unsafe extern "C" fn(context: *mut ibv_context, number: c_int) -> c_int>,
    /// For connection management: a new descriptor that poll(2) reports as readable from the end of
    /// the process with `number` on. The caller closes it. `-ESRCH`: no process has the number;
    /// `-EOPNOTSUPP`: the process is in another pid namespace; else `-errno` of the system.
    pub watch_process:
        Option<unsafe extern "C" fn(context: *mut ibv_context, number: c_int) -> c_int>,
}
layout!(ferroverbs_plugin_ext: 136 {
    size @ 0, device_ops @ 8, announce @ 16, query_gid @ 24, query_pkey @ 32,
    create_comp_channel @ 40, destroy_comp_channel @ 48,
    is_cmd_fd @ 56, await_comp_event @ 64, tell_packets @ 72, is_wired @ 80, waiting @ 88, other_end @ 96,
    emulation @ 104, process_number @ 112, is_process @ 120, watch_process @ 128,
});

impl ferroverbs_plugin_ext {
    /// A complete copy of a plugin's table; fields beyond the plugin's size are absent. `emulation`
    /// still points to the plugin's own table.
    ///
    /// # Safety
    /// `table` points to constant data of a plugin that is never unloaded, with the length of its
    /// `size`.
    #[must_use]
    pub unsafe fn adopt(table: *const Self) -> Self {
        // SAFETY: per the caller; the first field is the size.
        unsafe { adopt_known(table) }
    }
}

/// A complete copy of a table of a plugin, whose fields beyond the plugin's size are zero.
///
/// # Safety
/// `table` points to constant data of a plugin that is never unloaded. Its first field, a `usize`,
/// is its length in bytes. The plugin's structure is a prefix of ours, or ours of the plugin's.
pub(crate) unsafe fn adopt_known<T: Zeroed>(table: *const T) -> T {
    let mut copy = T::zeroed();
    // SAFETY: every plugin knows the first field.
    let known = unsafe { table.cast::<usize>().read() }.min(size_of::<T>());
    // SAFETY: both structures have at least that many bytes. Whole fields are copied, because the
    // plugin's structure is a prefix of ours.
    unsafe {
        core::ptr::copy_nonoverlapping(table.cast::<u8>(), (&raw mut copy).cast::<u8>(), known);
    }
    copy
}

// SAFETY: the table is constant data of a plugin that is never unloaded, pointing only at such
// data.
unsafe impl Sync for ferroverbs_plugin_ext {}
// SAFETY: as above.
unsafe impl Send for ferroverbs_plugin_ext {}
