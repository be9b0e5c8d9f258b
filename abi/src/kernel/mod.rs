//! The structures of the kernel interface: `<rdma/ib_user_verbs.h>`,
//! `<rdma/ib_user_ioctl_verbs.h>`, `<rdma/ib_user_ioctl_cmds.h>`, `<rdma/rdma_user_ioctl_cmds.h>`,
//! `<rdma/rdma_user_cm.h>`, and the command structs that providers wrap around them.
//!
//! Where C ends a structure with an array of 64-bit words for the driver, without elements, the
//! Rust form has only its alignment.

mod commands;
mod cq;
mod device;
mod flow;
mod ids;
mod ioctl;
mod mr;
mod qp;
mod queues;
mod rdmacm;
mod values;

pub use commands::*;
pub use cq::*;
pub use device::*;
pub use flow::*;
pub use ids::*;
pub use ioctl::*;
pub use mr::*;
pub use qp::*;
pub use queues::*;
pub use rdmacm::*;
pub use values::*;
