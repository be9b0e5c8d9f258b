//! Capabilities and limits of the device: ibv_query_device_ex(3), ibv_query_port(3), GIDs and
//! P_Keys. The reported limits are the enforced limits; the other files of `ops` use the constants.

use super::dm::MAX_DM;
use super::state::Context;
use super::status;
use crate::config;
use crate::engine::datagram::multicast::MAX_MEMBERS;
use crate::engine::queues::srq::tagging::{MAX_RNDV_HEADERS, MAX_TAG_OPS};
use crate::engine::queues::wq::receives::{MAX_TABLE, MAX_TABLES};
use crate::engine::ring::requester::MAX_MESSAGE;
use crate::guid::AdapterGuid;
use crate::net::GID_TABLE;
use abi::*;
use soft_local::shm::layout::{GROUPS, MRS, MWS, PDS, QPS, SRQS};
use soft_semantics::frames::segmenter::MAX_TSO;
use soft_semantics::frames::toeplitz::FIELDS;
use soft_semantics::tags::{MAX_TAG_SGE, MAX_TAGS};
use soft_sys::Errno;
use std::ffi::{c_char, c_int};

/// Work requests of a send or receive queue.
pub(super) const MAX_QP_WR: u32 = 32 * 1024;
/// Elements of a scatter/gather list.
pub(super) const MAX_SGE: u32 = soft_memory::MAX_SGE as u32;
/// Bytes of inline data.
pub(super) const MAX_INLINE: u32 = 1024;
/// Receives of a shared receive queue.
pub(super) const MAX_SRQ_WR: u32 = 32 * 1024;
/// Completions of a CQ.
pub(super) const MAX_CQE: usize = 4 * 1024 * 1024;
/// CQs of a process.
pub(super) const MAX_CQ: usize = 65536;
/// Address handles of a process: several times the number of peers in a large job.
pub(super) const MAX_AH: usize = 1 << 20;
/// The clock of the device counts nanoseconds: a million kHz.
const CLOCK_KHZ: u64 = 1_000_000;
/// Outstanding READs and atomics of a QP.
pub(super) const MAX_RD_ATOMIC: u8 = 128;
/// 4 lanes of 25 Gbit/s, in the encoding of ibv_query_port(3): a plausible number, not a
/// measurement.
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
/// The same speed in units of 100 Mbit/s.
const SPEED: u64 = 4 * 250;
/// The only partition key: full member of the default partition.
const PKEY: u16 = 0xffff;
/// The vendor id shown to users; not a registered IEEE number.
pub(super) const VENDOR_ID: u32 = 0xf0_0f00;

/// On-demand paging is supported everywhere, because pages are looked up at each use.
const ODP: ibv_odp_caps = ibv_odp_caps {
    general_caps: (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT) as u64,
    per_transport_caps: ibv_odp_per_transport_caps {
        rc_odp_caps: IBV_ODP_SUPPORT_SEND
            | IBV_ODP_SUPPORT_RECV
            | IBV_ODP_SUPPORT_SRQ_RECV
            | IBV_ODP_SUPPORT_WRITE
            | IBV_ODP_SUPPORT_READ
            | IBV_ODP_SUPPORT_ATOMIC
            | IBV_ODP_SUPPORT_FLUSH
            | IBV_ODP_SUPPORT_ATOMIC_WRITE,
        uc_odp_caps: IBV_ODP_SUPPORT_SEND
            | IBV_ODP_SUPPORT_RECV
            | IBV_ODP_SUPPORT_SRQ_RECV
            | IBV_ODP_SUPPORT_WRITE,
        ud_odp_caps: IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV,
    },
};

/// ibv_query_device_ex(3).
///
/// # Safety
/// `context` is open; `input` is NULL or readable; `attr` is writable for `attr_size` bytes.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    status(|| {
        // SAFETY: `input` is NULL or readable for the whole call.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(Errno::EINVAL);
        }
        if attr_size < size_of::<ibv_device_attr>() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's context is open for the whole call.
        let identity = unsafe { Context::of(context) }.adapter.identity.guid();
        let orig_attr = device_attr(identity, device_number(context));
        let full = ibv_device_attr_ex {
            device_cap_flags_ex: u64::from(orig_attr.device_cap_flags)
                | IBV_DEVICE_FLUSH_GLOBAL
                | IBV_DEVICE_ATOMIC_WRITE
                | IBV_DEVICE_RAW_SCATTER_FCS,
            orig_attr,
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: CLOCK_KHZ,
            cq_mod_caps: ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX },
            tso_caps: ibv_tso_caps {
                max_tso: MAX_TSO,
                supported_qpts: 1 << IBV_QPT_RAW_PACKET | 1 << IBV_QPT_UD,
            },
            rss_caps: ibv_rss_caps {
                supported_qpts: 1 << IBV_QPT_RAW_PACKET,
                max_rwq_indirection_tables: MAX_TABLES,
                max_rwq_indirection_table_size: MAX_TABLE,
                rx_hash_fields_mask: u64::from(FIELDS),
                rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
            },
            max_wq_type_rq: QPS as u32,
            raw_packet_caps: IBV_RAW_PACKET_CAP_CVLAN_STRIPPING
                | IBV_RAW_PACKET_CAP_SCATTER_FCS
                | IBV_RAW_PACKET_CAP_IP_CSUM,
            phys_port_cnt_ex: 1,
            tm_caps: ibv_tm_caps {
                max_rndv_hdr_size: MAX_RNDV_HEADERS as u32,
                max_num_tags: MAX_TAGS as u32,
                flags: IBV_TM_CAP_RC,
                max_ops: MAX_TAG_OPS,
                max_sge: MAX_TAG_SGE as u32,
            },
            odp_caps: ODP,
            xrc_odp_caps: IBV_ODP_SUPPORT_SEND
                | IBV_ODP_SUPPORT_RECV
                | IBV_ODP_SUPPORT_SRQ_RECV
                | IBV_ODP_SUPPORT_WRITE
                | IBV_ODP_SUPPORT_READ
                | IBV_ODP_SUPPORT_ATOMIC,
            max_dm_size: MAX_DM,
            ..Zeroed::zeroed()
        };
        let len = attr_size.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: `len` bytes of a plain struct fit into the caller's buffer; the rest of the
        // buffer is zeroed.
        unsafe {
            attr.cast::<u8>().write_bytes(0, attr_size);
            attr.cast::<u8>().copy_from_nonoverlapping((&raw const full).cast(), len);
        }
        Ok(())
    })
}

/// The number of a device, from 0.
fn device_number(context: *mut ibv_context) -> usize {
    // SAFETY: an open context has its device.
    unsafe { number_of((*context).device) }
}

/// The number in the name of a device, from 0.
///
/// # Safety
/// `device` is a device of this provider.
pub(super) unsafe fn number_of(device: *mut ibv_device) -> usize {
    // SAFETY: `device` is a live device of this provider; libibverbs wrote its name with a NUL
    // inside the array, and does not change it any more.
    let name = unsafe { std::ffi::CStr::from_ptr((*device).name.as_ptr()) };
    config::device_names().number(&name.to_string_lossy()).unwrap_or(0)
}

fn device_attr(identity: AdapterGuid, number: usize) -> ibv_device_attr {
    let mut attr = ibv_device_attr {
        node_guid: u64::from_ne_bytes(identity.guid(number)),
        // The same for all devices of the adapter.
        sys_image_guid: u64::from_ne_bytes(identity.guid(0)),
        max_mr_size: u64::MAX,
        page_size_cap: cface::mem::page_size() as u64,
        vendor_id: VENDOR_ID,
        vendor_part_id: 1,
        hw_ver: 1,
        max_qp: QPS as c_int,
        max_qp_wr: MAX_QP_WR as c_int,
        device_cap_flags: IBV_DEVICE_CURR_QP_STATE_MOD
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SRQ_RESIZE
            | IBV_DEVICE_XRC
            | IBV_DEVICE_RAW_IP_CSUM
            | IBV_DEVICE_MANAGED_FLOW_STEERING
            | IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | IBV_DEVICE_MEM_MGT_EXTENSIONS,
        max_sge: MAX_SGE as c_int,
        max_sge_rd: MAX_SGE as c_int,
        max_cq: MAX_CQ as c_int,
        max_cqe: MAX_CQE as c_int,
        max_mr: (MRS - MWS - 1) as c_int,
        max_mw: MWS as c_int,
        max_pd: PDS as c_int,
        max_qp_rd_atom: c_int::from(MAX_RD_ATOMIC),
        max_res_rd_atom: c_int::from(MAX_RD_ATOMIC) * QPS as c_int,
        max_qp_init_rd_atom: c_int::from(MAX_RD_ATOMIC),
        atomic_cap: IBV_ATOMIC_HCA,
        max_mcast_grp: GROUPS as c_int,
        max_mcast_qp_attach: MAX_MEMBERS as c_int,
        max_total_mcast_qp_attach: (GROUPS * MAX_MEMBERS) as c_int,
        max_raw_ethy_qp: QPS as c_int,
        max_ah: MAX_AH as c_int,
        max_srq: SRQS as c_int,
        max_srq_wr: MAX_SRQ_WR as c_int,
        max_srq_sge: MAX_SGE as c_int,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        ..Zeroed::zeroed()
    };
    let version = concat!("ferroverbs ", env!("CARGO_PKG_VERSION"));
    for (to, from) in attr.fw_ver.iter_mut().zip(version.bytes()) {
        *to = from as c_char;
    }
    attr
}

/// ibv_query_rt_values_ex(3): the clock of completion time stamps, in ticks, as `tv_nsec`; EINVAL
/// for unknown values.
///
/// # Safety
/// `values` is writable.
pub(super) unsafe extern "C" fn query_rt_values(
    _context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    status(|| {
        // SAFETY: `values` is NULL (refused) or readable and writable, and no other thread uses it
        // during the call.
        let values = unsafe { values.as_mut() }.ok_or(Errno::EINVAL)?;
        if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(Errno::EINVAL);
        }
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let tv_nsec = soft_sys::clock::device_ns() as libc::c_long;
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec };
        }
        Ok(())
    })
}

/// ibv_query_port(3): EINVAL for any port except 1.
///
/// # Safety
/// `context` is open; `attr` is writable.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    status(|| {
        if port != 1 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's context is open for the whole call.
        let context = unsafe { Context::of(context) };
        let down = context.adapter.port.is_down();
        let full = ibv_port_attr {
            state: if down { IBV_PORT_DOWN } else { IBV_PORT_ACTIVE },
            max_mtu: IBV_MTU_4096,
            active_mtu: crate::host::active_mtu(&context.gids()),
            gid_tbl_len: GID_TABLE as c_int,
            port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
            max_msg_sz: MAX_MESSAGE,
            pkey_tbl_len: 1,
            max_vl_num: 1,
            active_width: WIDTH_4X,
            active_speed: SPEED_EDR,
            // Physical state LinkUp or Disabled (IBTA 1.7 14.2.5.6).
            phys_state: if down { 3 } else { 5 },
            link_layer: IBV_LINK_LAYER_ETHERNET as u8,
            ..Zeroed::zeroed()
        };
        // SAFETY: `attr` belongs to the caller and is writable for a whole `ibv_port_attr` during
        // the call.
        unsafe { attr.write(full) };
        Ok(())
    })
}

/// ibv_query_port_speed(3), in units of 100 Mbit/s: EINVAL for any port except 1.
///
/// # Safety
/// `speed` is writable.
pub(super) unsafe extern "C" fn query_port_speed(
    _context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    status(|| {
        if port != 1 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `speed` belongs to the caller and is writable during the call.
        unsafe { speed.write(SPEED) };
        Ok(())
    })
}

/// An entry of the GID table: ENODATA if empty, EINVAL beyond the end.
///
/// # Safety
/// `context` is open; `entry` is writable.
pub(super) unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
) -> c_int {
    if port != 1 || index as usize >= GID_TABLE {
        return libc::EINVAL;
    }
    // SAFETY: the caller's context is open for the whole call.
    let gids = unsafe { Context::of(context) }.gids();
    let Some(gid) = gids.get(index as usize) else { return libc::ENODATA };
    let filled = ibv_gid_entry {
        gid: ibv_gid { raw: gid.raw },
        gid_index: index,
        port_num: port,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: gid.ifindex,
    };
    // SAFETY: `entry` belongs to the caller and is writable for a whole entry during the call.
    unsafe { entry.write(filled) };
    0
}

/// The only entry of the P_Key table.
///
/// # Safety
/// `pkey` is writable.
pub(super) unsafe extern "C" fn query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port != 1 || index != 0 {
        return libc::EINVAL;
    }
    // SAFETY: `pkey` belongs to the caller and is writable during the call.
    unsafe { pkey.write(PKEY.to_be()) };
    0
}
