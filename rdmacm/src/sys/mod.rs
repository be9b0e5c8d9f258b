//! The system below this library: system calls, the kernel's tables, libibverbs and C structures.
//! The lowest floor: nothing here knows ids, connections or other processes.

pub(crate) mod address;
pub(crate) mod descriptors;
pub(crate) mod neighbour_table;
pub(crate) mod netlink;
pub(crate) mod objects;
pub(crate) mod port_range;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod verbs;
