//! The system below this library: system calls, the kernel's tables, libibverbs and C structures.
//! The lowest floor: nothing here knows ids or connections.

pub(crate) mod address;
pub(crate) mod descriptors;
pub(crate) mod neighbour_table;
pub(crate) mod objects;
pub(crate) mod port_range;
pub(crate) mod ports;
pub(crate) mod probe_sockets;
pub(crate) mod process;
pub(crate) mod processes;
pub(crate) mod random;
pub(crate) mod verbs;
