//! GIDs, address vectors and the global routing header: `ibv_query_gid_ex(3)`, `ibv_create_ah(3)`.
//! Part of the application interface `<infiniband/verbs.h>`.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::c_uint;

use crate::{be16, be32, be64, ibv_context, ibv_pd};

/// The two halves of a GID; big endian.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_gid_global {
    pub subnet_prefix: be64,
    pub interface_id: be64,
}
layout!(ibv_gid_global: 16 { subnet_prefix @ 0, interface_id @ 8 });

/// A GID: 16 bytes in network order (`ibv_query_gid(3)`).
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_gid {
    pub raw: [u8; 16],
    pub global: ibv_gid_global,
}
layout!(ibv_gid: 16 { raw @ 0, global @ 0 });

impl ibv_gid {
    /// The bytes in network order.
    pub const fn bytes(&self) -> [u8; 16] {
        // SAFETY: both views are 16 plain bytes without padding, so `raw` is always initialised.
        unsafe { self.raw }
    }
}

impl core::fmt::Debug for ibv_gid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ibv_gid({})", core::net::Ipv6Addr::from(self.bytes()))
    }
}

/// Type of a GID table entry (`ibv_query_gid_ex(3)`).
pub type ibv_gid_type = c_uint;
pub const IBV_GID_TYPE_IB: ibv_gid_type = 0;
pub const IBV_GID_TYPE_ROCE_V1: ibv_gid_type = 1;
pub const IBV_GID_TYPE_ROCE_V2: ibv_gid_type = 2;

/// GID type as sysfs names it (driver side); IB and RoCE v1 look the same there.
pub type ibv_gid_type_sysfs = c_uint;
pub const IBV_GID_TYPE_SYSFS_IB_ROCE_V1: ibv_gid_type_sysfs = 0;
pub const IBV_GID_TYPE_SYSFS_ROCE_V2: ibv_gid_type_sysfs = 1;

/// One entry of a GID table (`ibv_query_gid_ex(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    /// A value of [`ibv_gid_type`].
    pub gid_type: u32,
    /// Network interface index; 0: none.
    pub ndev_ifindex: u32,
}
layout!(ibv_gid_entry: 32 {
    gid @ 0, gid_index @ 16, port_num @ 20, gid_type @ 24, ndev_ifindex @ 28,
});

/// Global part of an address vector (`ibv_create_ah(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
layout!(ibv_global_route: 24 {
    dgid @ 0, flow_label @ 16, sgid_index @ 20, hop_limit @ 21, traffic_class @ 22,
});

/// Global routing header as received (IBTA 1.7 8.3); big endian fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_grh {
    pub version_tclass_flow: be32,
    pub paylen: be16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}
layout!(ibv_grh: 40 {
    version_tclass_flow @ 0, paylen @ 4, next_hdr @ 6, hop_limit @ 7, sgid @ 8, dgid @ 24,
});

/// Static rate codes (`ibv_create_ah(3)`).
pub type ibv_rate = c_uint;
pub const IBV_RATE_MAX: ibv_rate = 0;
pub const IBV_RATE_2_5_GBPS: ibv_rate = 2;
pub const IBV_RATE_5_GBPS: ibv_rate = 5;
pub const IBV_RATE_10_GBPS: ibv_rate = 3;
pub const IBV_RATE_20_GBPS: ibv_rate = 6;
pub const IBV_RATE_30_GBPS: ibv_rate = 4;
pub const IBV_RATE_40_GBPS: ibv_rate = 7;
pub const IBV_RATE_60_GBPS: ibv_rate = 8;
pub const IBV_RATE_80_GBPS: ibv_rate = 9;
pub const IBV_RATE_120_GBPS: ibv_rate = 10;
pub const IBV_RATE_14_GBPS: ibv_rate = 11;
pub const IBV_RATE_56_GBPS: ibv_rate = 12;
pub const IBV_RATE_112_GBPS: ibv_rate = 13;
pub const IBV_RATE_168_GBPS: ibv_rate = 14;
pub const IBV_RATE_25_GBPS: ibv_rate = 15;
pub const IBV_RATE_100_GBPS: ibv_rate = 16;
pub const IBV_RATE_200_GBPS: ibv_rate = 17;
pub const IBV_RATE_300_GBPS: ibv_rate = 18;
pub const IBV_RATE_28_GBPS: ibv_rate = 19;
pub const IBV_RATE_50_GBPS: ibv_rate = 20;
pub const IBV_RATE_400_GBPS: ibv_rate = 21;
pub const IBV_RATE_600_GBPS: ibv_rate = 22;
pub const IBV_RATE_800_GBPS: ibv_rate = 23;
pub const IBV_RATE_1200_GBPS: ibv_rate = 24;

/// Address vector (`ibv_create_ah(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
layout!(ibv_ah_attr: 32 {
    grh @ 0, dlid @ 24, sl @ 26, src_path_bits @ 27, static_rate @ 28, is_global @ 29,
    port_num @ 30,
});

/// An address handle (`ibv_create_ah(3)`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}
layout!(ibv_ah: 24 { context @ 0, pd @ 8, handle @ 16 });
