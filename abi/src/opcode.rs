//! Opcodes of the base transport header: three bits of transport, five of operation
//! (IBTA 1.7 9.2.1). `<infiniband/opcode.h>` has them in an enumeration without a tag.
#![allow(missing_docs, reason = "The names say what the specification's table says.")]

use core::ffi::c_uint;

// Transports.
pub const IBV_OPCODE_RC: c_uint = 0x00;
pub const IBV_OPCODE_UC: c_uint = 0x20;
pub const IBV_OPCODE_RD: c_uint = 0x40;
pub const IBV_OPCODE_UD: c_uint = 0x60;

// Operations.
pub const IBV_OPCODE_SEND_FIRST: c_uint = 0x00;
pub const IBV_OPCODE_SEND_MIDDLE: c_uint = 0x01;
pub const IBV_OPCODE_SEND_LAST: c_uint = 0x02;
pub const IBV_OPCODE_SEND_LAST_WITH_IMMEDIATE: c_uint = 0x03;
pub const IBV_OPCODE_SEND_ONLY: c_uint = 0x04;
pub const IBV_OPCODE_SEND_ONLY_WITH_IMMEDIATE: c_uint = 0x05;
pub const IBV_OPCODE_RDMA_WRITE_FIRST: c_uint = 0x06;
pub const IBV_OPCODE_RDMA_WRITE_MIDDLE: c_uint = 0x07;
pub const IBV_OPCODE_RDMA_WRITE_LAST: c_uint = 0x08;
pub const IBV_OPCODE_RDMA_WRITE_LAST_WITH_IMMEDIATE: c_uint = 0x09;
pub const IBV_OPCODE_RDMA_WRITE_ONLY: c_uint = 0x0a;
pub const IBV_OPCODE_RDMA_WRITE_ONLY_WITH_IMMEDIATE: c_uint = 0x0b;
pub const IBV_OPCODE_RDMA_READ_REQUEST: c_uint = 0x0c;
pub const IBV_OPCODE_RDMA_READ_RESPONSE_FIRST: c_uint = 0x0d;
pub const IBV_OPCODE_RDMA_READ_RESPONSE_MIDDLE: c_uint = 0x0e;
pub const IBV_OPCODE_RDMA_READ_RESPONSE_LAST: c_uint = 0x0f;
pub const IBV_OPCODE_RDMA_READ_RESPONSE_ONLY: c_uint = 0x10;
pub const IBV_OPCODE_ACKNOWLEDGE: c_uint = 0x11;
pub const IBV_OPCODE_ATOMIC_ACKNOWLEDGE: c_uint = 0x12;
pub const IBV_OPCODE_COMPARE_SWAP: c_uint = 0x13;
pub const IBV_OPCODE_FETCH_ADD: c_uint = 0x14;

// RC.
pub const IBV_OPCODE_RC_SEND_FIRST: c_uint = 0x00;
pub const IBV_OPCODE_RC_SEND_MIDDLE: c_uint = 0x01;
pub const IBV_OPCODE_RC_SEND_LAST: c_uint = 0x02;
pub const IBV_OPCODE_RC_SEND_LAST_WITH_IMMEDIATE: c_uint = 0x03;
pub const IBV_OPCODE_RC_SEND_ONLY: c_uint = 0x04;
pub const IBV_OPCODE_RC_SEND_ONLY_WITH_IMMEDIATE: c_uint = 0x05;
pub const IBV_OPCODE_RC_RDMA_WRITE_FIRST: c_uint = 0x06;
pub const IBV_OPCODE_RC_RDMA_WRITE_MIDDLE: c_uint = 0x07;
pub const IBV_OPCODE_RC_RDMA_WRITE_LAST: c_uint = 0x08;
pub const IBV_OPCODE_RC_RDMA_WRITE_LAST_WITH_IMMEDIATE: c_uint = 0x09;
pub const IBV_OPCODE_RC_RDMA_WRITE_ONLY: c_uint = 0x0a;
pub const IBV_OPCODE_RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE: c_uint = 0x0b;
pub const IBV_OPCODE_RC_RDMA_READ_REQUEST: c_uint = 0x0c;
pub const IBV_OPCODE_RC_RDMA_READ_RESPONSE_FIRST: c_uint = 0x0d;
pub const IBV_OPCODE_RC_RDMA_READ_RESPONSE_MIDDLE: c_uint = 0x0e;
pub const IBV_OPCODE_RC_RDMA_READ_RESPONSE_LAST: c_uint = 0x0f;
pub const IBV_OPCODE_RC_RDMA_READ_RESPONSE_ONLY: c_uint = 0x10;
pub const IBV_OPCODE_RC_ACKNOWLEDGE: c_uint = 0x11;
pub const IBV_OPCODE_RC_ATOMIC_ACKNOWLEDGE: c_uint = 0x12;
pub const IBV_OPCODE_RC_COMPARE_SWAP: c_uint = 0x13;
pub const IBV_OPCODE_RC_FETCH_ADD: c_uint = 0x14;

// UC.
pub const IBV_OPCODE_UC_SEND_FIRST: c_uint = 0x20;
pub const IBV_OPCODE_UC_SEND_MIDDLE: c_uint = 0x21;
pub const IBV_OPCODE_UC_SEND_LAST: c_uint = 0x22;
pub const IBV_OPCODE_UC_SEND_LAST_WITH_IMMEDIATE: c_uint = 0x23;
pub const IBV_OPCODE_UC_SEND_ONLY: c_uint = 0x24;
pub const IBV_OPCODE_UC_SEND_ONLY_WITH_IMMEDIATE: c_uint = 0x25;
pub const IBV_OPCODE_UC_RDMA_WRITE_FIRST: c_uint = 0x26;
pub const IBV_OPCODE_UC_RDMA_WRITE_MIDDLE: c_uint = 0x27;
pub const IBV_OPCODE_UC_RDMA_WRITE_LAST: c_uint = 0x28;
pub const IBV_OPCODE_UC_RDMA_WRITE_LAST_WITH_IMMEDIATE: c_uint = 0x29;
pub const IBV_OPCODE_UC_RDMA_WRITE_ONLY: c_uint = 0x2a;
pub const IBV_OPCODE_UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE: c_uint = 0x2b;

// RD.
pub const IBV_OPCODE_RD_SEND_FIRST: c_uint = 0x40;
pub const IBV_OPCODE_RD_SEND_MIDDLE: c_uint = 0x41;
pub const IBV_OPCODE_RD_SEND_LAST: c_uint = 0x42;
pub const IBV_OPCODE_RD_SEND_LAST_WITH_IMMEDIATE: c_uint = 0x43;
pub const IBV_OPCODE_RD_SEND_ONLY: c_uint = 0x44;
pub const IBV_OPCODE_RD_SEND_ONLY_WITH_IMMEDIATE: c_uint = 0x45;
pub const IBV_OPCODE_RD_RDMA_WRITE_FIRST: c_uint = 0x46;
pub const IBV_OPCODE_RD_RDMA_WRITE_MIDDLE: c_uint = 0x47;
pub const IBV_OPCODE_RD_RDMA_WRITE_LAST: c_uint = 0x48;
pub const IBV_OPCODE_RD_RDMA_WRITE_LAST_WITH_IMMEDIATE: c_uint = 0x49;
pub const IBV_OPCODE_RD_RDMA_WRITE_ONLY: c_uint = 0x4a;
pub const IBV_OPCODE_RD_RDMA_WRITE_ONLY_WITH_IMMEDIATE: c_uint = 0x4b;
pub const IBV_OPCODE_RD_RDMA_READ_REQUEST: c_uint = 0x4c;
pub const IBV_OPCODE_RD_RDMA_READ_RESPONSE_FIRST: c_uint = 0x4d;
pub const IBV_OPCODE_RD_RDMA_READ_RESPONSE_MIDDLE: c_uint = 0x4e;
pub const IBV_OPCODE_RD_RDMA_READ_RESPONSE_LAST: c_uint = 0x4f;
pub const IBV_OPCODE_RD_RDMA_READ_RESPONSE_ONLY: c_uint = 0x50;
pub const IBV_OPCODE_RD_ACKNOWLEDGE: c_uint = 0x51;
pub const IBV_OPCODE_RD_ATOMIC_ACKNOWLEDGE: c_uint = 0x52;
pub const IBV_OPCODE_RD_COMPARE_SWAP: c_uint = 0x53;
pub const IBV_OPCODE_RD_FETCH_ADD: c_uint = 0x54;

// UD.
pub const IBV_OPCODE_UD_SEND_ONLY: c_uint = 0x64;
pub const IBV_OPCODE_UD_SEND_ONLY_WITH_IMMEDIATE: c_uint = 0x65;
