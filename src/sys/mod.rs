//! Access to the system: libc calls, netlink and kernel files as Rust values and `Result`s.
//! `front`, `verbs` and `kabi` are built on it.

pub(crate) mod chardev;
pub(crate) mod env;
pub(crate) mod fd;
pub(crate) mod interfaces;
pub(crate) mod log;
pub(crate) mod netlink;
pub(crate) mod rdma_netlink;
pub(crate) mod release;
pub(crate) mod rtnetlink;
pub(crate) mod smaps;
pub(crate) mod sysfs;
