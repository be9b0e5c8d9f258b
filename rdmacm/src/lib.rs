//! `librdmacm.so.1`: connections between queue pairs by IP addresses (rdma_cm(7)), with no kernel behind it.
//!
//! | | |
//! |---|---|
//! | `calls` | what programs call |
//! | `id`, `channel` | ids, and the events that they bring |
//! | `arrivals` | what the connection manager tells, as events |
//! | `agent`, `sorting` | its messages, by a datagram QP of each process, and whom they are for |
//! | `ports`, `neighbours` | who has which port, among the processes of a host; and which of those that we are connected with have ended |
//! | `owner`, `range` | whose names of ports are, and which ports the host gives to whom |
//! | `next_hop`, `resolver` | whether the host can reach a destination, and who waits for that |
//! | `device`, `address` | devices and their addresses |
//! | `anew` | what the child of a fork begins anew |
//! | `rsocket` | sockets over queue pairs |
//! | `kernel` | ids on devices of the kernel, by its own connection manager |
//! | `layers` | shared objects between a program and the library |
//! | `verbs` | what is used of libibverbs.so.1 |
//!
//! What the messages mean is in `ferroverbs-cm`. Locks, outer first: an agent's, an id's, a channel's queue.

mod address;
mod agent;
mod anew;
mod arrivals;
mod calls;
mod channel;
mod device;
mod export;
mod id;
mod kernel;
mod layers;
mod neighbours;
mod next_hop;
mod owner;
mod ports;
mod processes;
mod random;
mod range;
mod resolver;
mod rsocket;
mod silence;
mod sorting;
mod stray;
mod unserved;
mod verbs;
mod wills;
