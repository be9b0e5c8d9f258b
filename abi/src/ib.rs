//! Addresses of InfiniBand as sockets' addresses: `<infiniband/ib.h>`, which is librdmacm's.
//! Applications give librdmacm such addresses with the family `AF_IB`.
#![allow(
    missing_docs,
    reason = "Fields carry their C names; rdma_cm(7) says what such an address is."
)]

use crate::{be16, be32, be64};

/// The views of an [`ib_addr`].
#[repr(C)]
#[derive(Clone, Copy)]
pub union ib_addr_u {
    pub uib_addr8: [u8; 16],
    pub uib_addr16: [be16; 8],
    pub uib_addr32: [be32; 4],
    pub uib_addr64: [be64; 2],
}
opaque_debug!(ib_addr_u);
layout!(ib_addr_u: 16 { uib_addr8 @ 0, uib_addr16 @ 0, uib_addr32 @ 0, uib_addr64 @ 0 });

/// A GID, in network byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ib_addr {
    pub ib_u: ib_addr_u,
}
layout!(ib_addr: 16 { ib_u @ 0 });

/// An address of the family `AF_IB`: a GID and a service.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sockaddr_ib {
    pub sib_family: u16,
    pub sib_pkey: be16,
    pub sib_flowinfo: be32,
    pub sib_addr: ib_addr,
    pub sib_sid: be64,
    pub sib_sid_mask: be64,
    pub sib_scope_id: u64,
}
layout!(sockaddr_ib: 48 {
    sib_family @ 0, sib_pkey @ 2, sib_flowinfo @ 4, sib_addr @ 8, sib_sid @ 24, sib_sid_mask @ 32,
    sib_scope_id @ 40,
});
