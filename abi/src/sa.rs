//! Path records: `<infiniband/sa.h>` and the kernel form of `<rdma/ib_user_sa.h>`, converted by
//! `ibv_copy_path_rec_from_kern` and its siblings.
#![allow(
    missing_docs,
    reason = "Constants and fields carry their C names; the manual page named on each type describes them."
)]

use core::ffi::{c_int, c_uint};

use crate::{Zeroed, be16, be32, be64, ibv_gid};

/// A path record unpacked.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_sa_path_rec {
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: be16,
    pub slid: be16,
    pub raw_traffic: c_int,
    pub flow_label: be32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: be16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
layout!(ibv_sa_path_rec: 64 {
    dgid @ 0, sgid @ 16, dlid @ 32, slid @ 34, raw_traffic @ 36, flow_label @ 40, hop_limit @ 44,
    traffic_class @ 45, reversible @ 48, numb_path @ 52, pkey @ 54, sl @ 56, mtu_selector @ 57,
    mtu @ 58, rate_selector @ 59, rate @ 60, packet_life_time_selector @ 61, packet_life_time @ 62,
    preference @ 63,
});

/// A multicast member record unpacked.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_sa_mcmember_rec {
    pub mgid: ibv_gid,
    pub port_gid: ibv_gid,
    pub qkey: u32,
    pub mlid: u16,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub traffic_class: u8,
    pub pkey: u16,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub sl: u8,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub scope: u8,
    pub join_state: u8,
    pub proxy_join: c_int,
}
layout!(ibv_sa_mcmember_rec: 64 {
    mgid @ 0, port_gid @ 16, qkey @ 32, mlid @ 36, mtu_selector @ 38, mtu @ 39, traffic_class @ 40,
    pkey @ 42, rate_selector @ 44, rate @ 45, packet_life_time_selector @ 46, packet_life_time @ 47,
    sl @ 48, flow_label @ 52, hop_limit @ 56, scope @ 57, join_state @ 58, proxy_join @ 60,
});

/// A service record unpacked.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_sa_service_rec {
    pub id: u64,
    pub gid: ibv_gid,
    pub pkey: u16,
    pub lease: u32,
    pub key: [u8; 16],
    pub name: [u8; 64],
    pub data8: [u8; 16],
    pub data16: [u16; 8],
    pub data32: [u32; 4],
    pub data64: [u64; 2],
}
layout!(ibv_sa_service_rec: 176 {
    id @ 0, gid @ 8, pkey @ 24, lease @ 28, key @ 32, name @ 48, data8 @ 112, data16 @ 128,
    data32 @ 144, data64 @ 160,
});

/// A path record on the wire; big endian.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_path_record {
    pub service_id: be64,
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: be16,
    pub slid: be16,
    pub flowlabel_hoplimit: be32,
    pub tclass: u8,
    pub reversible_numpath: u8,
    pub pkey: be16,
    pub qosclass_sl: be16,
    pub mtu: u8,
    pub rate: u8,
    pub packetlifetime: u8,
    pub preference: u8,
    pub reserved: [u8; 6],
}
layout!(ibv_path_record: 64 {
    service_id @ 0, dgid @ 8, sgid @ 24, dlid @ 40, slid @ 42, flowlabel_hoplimit @ 44, tclass @ 48,
    reversible_numpath @ 49, pkey @ 50, qosclass_sl @ 52, mtu @ 54, rate @ 55, packetlifetime @ 56,
    preference @ 57, reserved @ 58,
});

/// A wire path record with its flags.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_path_data {
    pub flags: u32,
    pub reserved: u32,
    pub path: ibv_path_record,
}
layout!(ibv_path_data: 72 { flags @ 0, reserved @ 4, path @ 8 });

// Bits of `ibv_path_data.flags`.
pub const IB_PATH_GMP: c_uint = 1;
pub const IB_PATH_PRIMARY: c_uint = 2;
pub const IB_PATH_ALTERNATE: c_uint = 4;
pub const IB_PATH_OUTBOUND: c_uint = 8;
pub const IB_PATH_INBOUND: c_uint = 16;
pub const IB_PATH_INBOUND_REVERSE: c_uint = 32;
pub const IB_PATH_BIDIRECTIONAL: c_uint = 40;

/// A path record as the kernel passes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_user_path_rec {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: be16,
    pub slid: be16,
    pub raw_traffic: u32,
    pub flow_label: be32,
    pub reversible: u32,
    pub mtu: u32,
    pub pkey: be16,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub numb_path: u8,
    pub sl: u8,
    pub mtu_selector: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
layout!(ib_user_path_rec: 64 {
    dgid @ 0, sgid @ 16, dlid @ 32, slid @ 34, raw_traffic @ 36, flow_label @ 40, reversible @ 44,
    mtu @ 48, pkey @ 52, hop_limit @ 54, traffic_class @ 55, numb_path @ 56, sl @ 57,
    mtu_selector @ 58, rate_selector @ 59, rate @ 60, packet_life_time_selector @ 61,
    packet_life_time @ 62, preference @ 63,
});

impl ibv_sa_path_rec {
    /// Takes each member from the kernel's form. The padding keeps its bytes, as upstream's library
    /// keeps them: an assignment of the whole structure may copy or clear padding.
    pub fn assign(&mut self, from: &ib_user_path_rec) {
        self.dgid = ibv_gid { raw: from.dgid };
        self.sgid = ibv_gid { raw: from.sgid };
        self.dlid = from.dlid;
        self.slid = from.slid;
        self.raw_traffic = from.raw_traffic.cast_signed();
        self.flow_label = from.flow_label;
        self.hop_limit = from.hop_limit;
        self.traffic_class = from.traffic_class;
        self.reversible = from.reversible.cast_signed();
        self.numb_path = from.numb_path;
        self.pkey = from.pkey;
        self.sl = from.sl;
        self.mtu_selector = from.mtu_selector;
        self.mtu = from.mtu as u8;
        self.rate_selector = from.rate_selector;
        self.rate = from.rate;
        self.packet_life_time_selector = from.packet_life_time_selector;
        self.packet_life_time = from.packet_life_time;
        self.preference = from.preference;
    }
}

impl From<&ib_user_path_rec> for ibv_sa_path_rec {
    fn from(from: &ib_user_path_rec) -> Self {
        let mut record = Self::zeroed();
        record.assign(from);
        record
    }
}
