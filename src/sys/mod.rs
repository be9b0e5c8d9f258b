//! Access to the system: libc calls and kernel files as Rust values and `Result`s.
//! `front`, `verbs` and `kabi` are built on it.

pub(crate) mod chardev;
pub(crate) mod env;
pub(crate) mod fd;
pub(crate) mod interfaces;
pub(crate) mod log;
pub(crate) mod release;
pub(crate) mod smaps;
pub(crate) mod sysfs;
