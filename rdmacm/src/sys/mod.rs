//! The system below this library: system calls, the kernel's tables, libibverbs and C structures.
//! The lowest floor: nothing here knows ids, connections or other processes.

pub(crate) mod address;
pub(crate) mod announced;
pub(crate) mod descriptors;
pub(crate) mod neighbour_table;
pub(crate) mod netlink;
pub(crate) mod per_process;
pub(crate) mod port_range;
pub(crate) mod random;
pub(crate) mod thread;
pub(crate) mod udp;
pub(crate) mod user;
pub(crate) mod verbs;
