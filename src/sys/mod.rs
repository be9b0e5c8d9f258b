//! libc calls turned into values and `Result`s.

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
