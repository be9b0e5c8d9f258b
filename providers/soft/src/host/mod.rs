//! The wire `host`: RoCE v2 by UDP, for QPs with a peer on another host.
//! Stands between the queues of a QP and the network.
//!
//! `ferroverbs_roce` is the transport, without memory, queues or sockets. `ferroverbs_net` has the
//! sockets. This folder joins both. It knows no queue: `engine::host_qp` calls the folder, and
//! implements the traits by which the folder calls back.
//!
//! | file | content |
//! |---|---|
//! | `wire` | the wire of a process: opens and closes the sockets, and drives all QPs |
//! | `process` | the trait `Process`: what the wire asks of the process |
//! | `dispatch`, `packets` | receives datagrams, checks ICRCs, and finds the process of a packet |
//! | `connection` | the transport and the route of one QP, made at RTR |
//! | `connection/pump` | from a send queue (trait `RequestQueue`) to packets and back |
//! | `connection/packets` | from packets to receives and memory (trait `RequestServer`) |
//! | `connection/datagram`, `connection/srq` | UD; XRC requests of another process |
//! | `deferred_acks`, `window_waiters`, `timers` | QPs that need service without a packet |
//! | `wakeups` | which sockets wake the service thread |
//! | `connect` | the MTU of the port, and which routes use the wire |
//! | `lazy_sockets`, `unavailable` | the sockets, opened at first use, or the reason why not |
//! | `sockets`, `outbox` | the sockets, and packets that wait to be sent |
//! | `window_share` | bytes in flight to one host, which has one socket for all its QPs |
//! | `shortcut` | a connected socket for packets that are sent alone |
//! | `port_rotation` | source ports of messages to connection managers |
//! | `forward_queue` | packets for a process of this host without room |
//! | `steering`, `steering_plan`, `socket_positions` | the kernel program that selects a process |
//! | `port_claim` | which fabric has the port |
//! | `counters` | counters that `ferroverbs counters` reads |
//! | `xrc_messages` | XRC: requests for a shared receive queue of another process, as bytes |
//!
//! The poll of a completion queue of such a QP drives the wire. While no thread polls, the service
//! thread drives the wire.
//!
//! Locks, outer first: `inbox` > a QP's `responder` > its `requester` > `outbox`, the timers. The
//! lock of a shortcut is taken under `outbox`.

mod connect;
pub(crate) mod connection;
pub(crate) mod counters;
mod deferred_acks;
pub(crate) mod dispatch;
pub(crate) mod forward_queue;
mod lazy_sockets;
mod outbox;
mod packets;
mod port_claim;
mod port_rotation;
pub(crate) mod process;
mod shortcut;
mod socket_positions;
pub(crate) mod sockets;
mod steering;
mod steering_plan;
mod timers;
pub(crate) mod unavailable;
mod wakeups;
mod window_share;
mod window_waiters;
mod wire;
pub(crate) mod xrc_messages;

pub(crate) use connect::{active_mtu, is_wire_forced};
pub(crate) use connection::{HostConnection, PeerRoute};
pub(crate) use port_claim::PortHolder;
pub(crate) use wire::HostWire;
