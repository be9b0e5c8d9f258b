//! The UDP sockets of a process on port 4791.
//! The lowest floor of the wire between hosts: below are `ferroverbs_net` and the kernel.

use super::counters::WireCounters;
use super::outbox::SharedOutbox;
use super::port_claim::{PortClaim, available};
use super::socket_positions::SocketPositions;
use super::unavailable::{WireUnavailable, errno_of};
use cface::sync::Mutex;
use ferroverbs_net::{Bind, Receiver};
use ferroverbs_roce::Time;
use soft_local::fabric::Fabric;
use soft_sys::clock;
use soft_sys::unshared::Unshared;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Address families as bits.
pub(crate) const V4: u8 = 1;
pub(crate) const V6: u8 = 1 << 1;
pub(super) const BOTH_FAMILIES: u8 = V4 | V6;

/// The sockets of a process.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// The receiving sockets. The thread that holds the lock drives the wire.
    pub(crate) inbox: Mutex<Inbox>,
    outbox: SharedOutbox,
    /// Time of opening by the device's clock, which is cheap to read and has whole nanoseconds.
    opened_at_ns: u64,
    /// Bytes of the receive buffers, as the kernel counts; 0 if another user holds the port.
    receive_buffer: usize,
    pub(crate) counters: WireCounters,
    /// Positions of the receiving sockets among the sockets of the port.
    pub(super) positions: SocketPositions,
    /// Time of the next check whether another user has released the port, in nanoseconds;
    /// `u64::MAX` if this process holds the port.
    next_port_check_ns: AtomicU64,
}

/// The receiving sockets.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Descriptors below that a child of fork(2) closes.
    unshared: Vec<Unshared>,
    /// The claim on the port; `None` where abstract names are not available.
    claim: Option<PortClaim>,
    v4: Option<Receiver>,
    v6: Option<Receiver>,
    is_closed: bool,
}

/// Interval at which a process without the port checks whether the port is free.
pub(super) const PORT_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Sockets {
    /// Opens port 4791 on all addresses of the host for the processes of `fabric`. The caller holds
    /// the opening lock.
    ///
    /// The kernel does not let users share a port. If another user of the fabric holds the port,
    /// this process has no receiving socket and gets its packets forwarded.
    ///
    /// # Errors
    /// `EADDRINUSE`: neither family is available. Temporary errors of the system, such as `EMFILE`.
    #[inline(never)]
    pub(super) fn open(
        claim: Option<PortClaim>,
        fabric: &Fabric,
        counters: WireCounters,
    ) -> Result<Box<Self>, WireUnavailable> {
        let inbox = Inbox::open(claim)?;
        let sizes = inbox.receivers().map(|socket| socket.buffer().unwrap_or(0));
        let buffer = sizes.min().unwrap_or(0);
        let next_port_check_ns = AtomicU64::new(if inbox.v4.is_some() { u64::MAX } else { 0 });
        let fabric_id = inbox.claim.as_ref().map(|claim| claim.fabric.clone());
        let positions = SocketPositions::new(fabric_id, fabric.slot());
        Ok(Box::new(Self {
            inbox: Mutex::new(inbox),
            outbox: SharedOutbox::new(counters),
            opened_at_ns: clock::device_ns(),
            receive_buffer: buffer,
            counters,
            positions,
            next_port_check_ns,
        }))
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_ns(clock::device_ns().saturating_sub(self.opened_at_ns))
    }

    /// Bytes of the receive buffers; 0 if another user holds the port.
    pub(crate) fn buffer(&self) -> usize {
        self.receive_buffer
    }

    /// Whether another user holds the port and forwards the packets of this process.
    pub(super) fn lacks_port(&self) -> bool {
        self.next_port_check_ns.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether the next check for a free port is due. Sets the time of the check after the next.
    pub(super) fn is_port_check_due(&self) -> bool {
        let (now, at) = (self.now().ns(), self.next_port_check_ns.load(Ordering::Relaxed));
        let is_due = at <= now;
        if is_due {
            self.next_port_check_ns
                .store(now + PORT_CHECK_INTERVAL.as_nanos() as u64, Ordering::Relaxed);
        }
        is_due
    }

    /// Ends the checks for a free port: this process holds the port, or leaves.
    pub(super) fn stop_port_checks(&self) {
        self.next_port_check_ns.store(u64::MAX, Ordering::Relaxed);
    }

    pub(crate) const fn outbox(&self) -> &SharedOutbox {
        &self.outbox
    }

    /// Sends the packets in the outbox.
    pub(crate) fn flush(&self) {
        self.outbox.flush();
    }
}

impl Inbox {
    /// Opens the receiving sockets.
    ///
    /// # Errors
    /// A process of another fabric or user has the port; errors of the socket calls.
    #[inline(never)]
    fn open(claim: Option<PortClaim>) -> Result<Self, WireUnavailable> {
        let v4 = match receiver(Ipv4Addr::UNSPECIFIED.into()) {
            Ok(v4) => Some(v4),
            Err(why)
                if why.kind() == io::ErrorKind::AddrInUse
                    && claim.as_ref().is_some_and(|claim| claim.has_other_processes) =>
            {
                None
            }
            Err(why) => return Err(errno_of(&why).into()),
        };
        // A host without IPv6 uses IPv4 alone.
        let v6 = available(receiver(Ipv6Addr::UNSPECIFIED.into()))?;
        let sockets = [&v4, &v6].into_iter().flatten().map(Receiver::as_fd);
        let unshared =
            sockets.chain(claim.as_ref().map(PortClaim::as_fd)).map(Unshared::new).collect();
        Ok(Self { unshared, claim, v4, v6, is_closed: false })
    }

    /// The open sockets with their families.
    pub(super) fn by_family(&self) -> impl Iterator<Item = (u8, &Receiver)> {
        let sockets = [(V4, &self.v4), (V6, &self.v6)];
        sockets.into_iter().filter_map(|(family, socket)| Some((family, socket.as_ref()?)))
    }

    /// The open sockets of the families `families`, to receive from.
    #[inline]
    pub(super) fn receivers_of(&mut self, families: u8) -> impl Iterator<Item = &mut Receiver> {
        let sockets = [(V4, &mut self.v4), (V6, &mut self.v6)];
        let wanted = sockets.into_iter().filter(move |(family, _)| families & family != 0);
        wanted.filter_map(|(_, socket)| socket.as_mut())
    }

    /// The open socket of one family.
    pub(crate) fn receiver_of(&self, family: u8) -> Option<&Receiver> {
        if family == V4 { self.v4.as_ref() } else { self.v6.as_ref() }
    }

    fn receivers(&self) -> impl Iterator<Item = &Receiver> {
        [&self.v4, &self.v6].into_iter().flatten()
    }

    /// Opens the sockets that could not be opened before. Returns the families of the new sockets.
    pub(super) fn open_missing(&mut self) -> u8 {
        let mut opened = 0;
        let families = [
            (V4, &mut self.v4, Ipv4Addr::UNSPECIFIED.into()),
            (V6, &mut self.v6, Ipv6Addr::UNSPECIFIED.into()),
        ];
        for (family, socket, any) in families {
            if socket.is_none() && !self.is_closed {
                *socket = receiver(any).ok();
                opened |= if socket.is_some() { family } else { 0 };
                self.unshared.extend(socket.iter().map(|socket| Unshared::new(socket.as_fd())));
            }
        }
        opened
    }

    /// Closes the inbox for good. Returns the sockets, which may still hold packets.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Receiver> {
        self.is_closed = true;
        self.unshared.clear();
        self.claim = None;
        [self.v4.take(), self.v6.take()].into_iter().flatten()
    }
}

/// The socket of all addresses of a family.
fn receiver(address: IpAddr) -> io::Result<Receiver> {
    Receiver::bind(Bind { share: true, ..Bind::new(address) })
}
