//! The wire as one process has it.

use super::forward_queue::Waiting;
use super::port_claim::Holder;
use super::sockets::Ports;
use super::steering_plan::Steering;
use super::timers::Timers;
use super::window_share::Hosts;
use cface::sync::Mutex;
use ferroverbs_roce::engine::Arrival;
use soft_sys::Errno;
use soft_sys::poll::Epoll;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};

/// Families of addresses, as bits.
pub(super) const V4: u8 = 1;
pub(super) const V6: u8 = 1 << 1;
pub(super) const BOTH: u8 = V4 | V6;

/// The wire, as one process has it; opened by the first QP that needs it.
#[derive(Debug, Default)]
pub(crate) struct Network {
    /// In a box, since they are made on the stack of whoever opens them.
    pub(super) ports: OnceLock<Box<Ports>>,
    /// Why they were not opened when it was tried last. Held by who tries.
    pub(super) refused: Mutex<Option<NoWire>>,
    /// What is under way to each host.
    pub(super) hosts: Hosts,
    /// Indices of QPs that wait for room there, first come first served; and whether there are any, written under that lock.
    pub(super) crowded: Mutex<VecDeque<usize>>,
    pub(super) is_crowded: AtomicBool,
    pub(super) timers: Mutex<Timers>,
    /// When the first timer is, in nanoseconds; `u64::MAX`: there is none.
    pub(super) next: AtomicU64,
    /// When packets came last, in nanoseconds.
    pub(super) came: AtomicU64,
    /// The IPv4 identification that the next datagram of the sender has which came last, if that is another than 0; its address and port, and the number.
    pub(super) numbered: AtomicU64,
    /// QPs that owe an acknowledgement. Last of all locks.
    pub(super) owing: Mutex<Vec<usize>>,
    /// There are some. Written under that lock.
    pub(super) owes: AtomicBool,
    /// The application's polling drove the wire since the service thread looked last. It may poll only what has to do with no other host, and the socket
    /// may hold packets for other processes all the same.
    pub(super) driven: AtomicBool,
    /// What has the service thread woken when a packet comes; the sockets that polling looks at are in it only while nobody's polling drives the wire.
    pub(super) bell: OnceLock<Epoll>,
    /// Families whose socket is in `bell`.
    pub(super) listens: AtomicU8,
    /// XRC receive QPs with the other end on another host: their shared receive queues' completion queues may be any.
    pub(super) receivers: AtomicUsize,
    /// Families of addresses that some QP was connected by: `V4`, `V6`. Who polls looks at no other socket: what comes there is for other processes, and
    /// the service thread passes it on.
    pub(super) families: AtomicU8,
    /// What is done about packets that come to the wrong process.
    pub(super) steering: Steering,
    /// Packets for other processes that had no room for them.
    pub(super) waiting: Mutex<Waiting>,
    /// There are some. Written under that lock.
    pub(super) passes_later: AtomicBool,
}

/// Why the wire cannot be had.
#[derive(Debug)]
pub(crate) struct NoWire {
    pub(crate) errno: Errno,
    /// Who of another fabric has the port, if that is why.
    pub(crate) holder: Option<Holder>,
}

impl NoWire {
    /// Whether it may be had when it is tried again.
    pub(super) fn is_for_now(&self) -> bool {
        is_for_now(self.errno)
    }
}

/// Whether what refused the wire is something that is lacking, and comes back: descriptors or memory.
pub(crate) fn is_for_now(why: Errno) -> bool {
    [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS].contains(&why.raw())
}

impl From<Errno> for NoWire {
    fn from(errno: Errno) -> Self {
        Self { errno, holder: None }
    }
}

/// A packet that came, whoever brought it, with what its IP header said.
#[derive(Debug)]
pub(super) struct Came<'a> {
    pub(super) arrival: Arrival<'a>,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
}
