//! `librdmacm.so.1`: connections between queue pairs by IP addresses (rdma_cm(7)).
//! The library stands between the program and libibverbs, and needs no connection manager in the
//! kernel.
//!
//! | | |
//! |---|---|
//! | `calls` | entry points of the program |
//! | `id`, `channel` | ids, and the event channels on which their events arrive |
//! | `arrivals` | events of the connection manager, converted to events of ids |
//! | `agent`, `sorting` | the datagram QP that carries MADs, and the rule which process a MAD is
//! for |
//! | `ports`, `neighbours` | ports that local processes hold, and the end of connected local
//! processes |
//! | `owner`, `range` | the user of a port name, and the range of automatic ports |
//! | `next_hop`, `resolver` | neighbour discovery of a destination, and the thread that waits for
//! the result |
//! | `device`, `address` | devices and their addresses |
//! | `anew` | values that the child of a fork creates again |
//! | `rsocket` | sockets over queue pairs |
//! | `kernel` | ids on kernel devices, by the kernel's connection manager |
//! | `layers` | shared objects between the program and the library |
//! | `verbs` | the functions of libibverbs.so.1 that this library calls |
//!
//! The crate `ferroverbs-cm` interprets the messages. Lock order, outer first: agent, id, queue of
//! a channel.

mod address;
mod agent;
mod anew;
mod announced;
mod arrivals;
mod calls;
mod channel;
mod device;
mod export;
mod host_probes;
mod id;
mod kernel;
mod layers;
mod neighbour_connections;
mod neighbours;
mod next_hop;
mod owner;
mod ports;
mod processes;
mod random;
mod range;
mod resolver;
mod rsocket;
mod sorting;
mod stray;
mod unserved;
mod verbs;
