//! The wire of one process to other hosts: opens and closes the sockets, and drives all QPs.
//! Stands between polls or the service thread above, and sockets and transports below.
//!
//! Entry points: `drive` (a poll, or the service thread), `serve_unpolled` (the service thread),
//! `send_deferred_acks` (an idle poll), `open_route` and `ensure_open` (ibv_modify_qp and address
//! handles), `leave_port` (exit of the process). Locks: `inbox` is taken first and is only tried
//! by polls; a QP's locks are taken under it. Flags such as `WindowWaiters::has_any` mirror lists,
//! so that an idle poll takes no lock.
//!
//! Map of this file: opening and closing; driving; acknowledgements, send window and timeouts;
//! parts for the files that work on them. Each has an `impl` block.
#![forbid(unsafe_code)]

use super::connection::{HostConnection, PeerRoute};
use super::counters::WireCounters;
use super::deferred_acks::DeferredAcks;
use super::dispatch::Dispatcher;
use super::forward_queue::ForwardQueue;
use super::lazy_sockets::LazySockets;
use super::packets::ExpectedIpId;
use super::port_claim::{OpeningLock, PortHolder};
use super::process::{Process, Round};
use super::sockets::{BOTH_FAMILIES, PORT_CHECK_INTERVAL, Sockets, V4, V6};
use super::steering::{self, PROBE_WAIT, PacketSteering};
use super::timers::Timeouts;
use super::unavailable::WireUnavailable;
use super::wakeups::Wakeups;
use super::window_share::{DestinationHosts, WindowShare};
use super::window_waiters::WindowWaiters;
use crate::config::{self, Wiring};
use crate::engine::queues::served_by::ServedBy;
use ferroverbs_roce::Time;
use soft_local::fabric::Fabric;
use soft_semantics::request::Route;
use soft_sys::Errno;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The wire of one process. The first QP that needs the wire opens the sockets.
#[derive(Debug, Default)]
pub(crate) struct HostWire {
    sockets: LazySockets,
    wakeups: Wakeups,
    steering: PacketSteering,
    expected_ip_id: ExpectedIpId,
    /// Bytes in flight to each destination host.
    hosts: DestinationHosts,
    window_waiters: WindowWaiters,
    timeouts: Timeouts,
    deferred_acks: DeferredAcks,
    /// Frames for processes of this host without room.
    forward_queue: ForwardQueue,
    /// Number of XRC receive QPs with a peer on another host. Their requests can name any shared
    /// receive queue, so the poll of any CQ drives the wire.
    xrc_receivers: AtomicUsize,
}

/// Interval at which the service thread checks whether the application still polls.
const POLL_CHECK_INTERVAL: Duration = Duration::from_millis(4);
/// Interval at which the service thread retries frames, and QPs that wait for send window.
const FORWARD_RETRY: Duration = Duration::from_micros(200);
/// Shortest sleep of the service thread before a timeout.
const MIN_TIMEOUT: Duration = Duration::from_micros(50);
/// How long an exiting process waits for the thread that holds the inbox.
const INBOX_WAIT: Duration = Duration::from_millis(50);
/// How long the service thread polls after a packet before it sleeps: the duration of a wake-up.
const SPIN_AFTER_PACKET: Duration = Duration::from_micros(50);
/// The service thread polls on only if two packets arrive within this time. Requests of a peer that
/// waits for a wake-up follow each other at this distance.
const CLOSE_TOGETHER: Duration = Duration::from_micros(100);
/// How long the service thread polls at most, because its other duties wait meanwhile.
const MAX_SPIN: Duration = Duration::from_millis(1);

/// Opening and closing.
impl HostWire {
    /// The sockets, if open.
    #[inline]
    pub(crate) fn sockets(&self) -> Option<&Sockets> {
        self.sockets.get()
    }

    /// The route to the host of `route`, for packets of QP `qpn`. Opens the sockets if needed.
    ///
    /// # Errors
    /// `EINVAL`: the two addresses differ in family. `EADDRINUSE`: another program has port 4791.
    /// Errors of the socket calls.
    pub(crate) fn open_route<P: Process>(
        &self,
        process: &P,
        route: &Route,
        qpn: u32,
    ) -> Result<PeerRoute, Errno> {
        PeerRoute::new(self.open_if_enabled(process)?, route, qpn)
    }

    /// Opens the sockets if needed.
    ///
    /// # Errors
    /// As `open_route`.
    pub(crate) fn ensure_open<P: Process>(&self, process: &P) -> Result<(), Errno> {
        self.open_if_enabled(process).map(drop)
    }

    fn open_if_enabled<P: Process>(&self, process: &P) -> Result<&Sockets, Errno> {
        if config::wire() == Wiring::Off {
            return Err(Errno::from_raw(libc::EHOSTUNREACH));
        }
        self.open_sockets(process)
    }

    /// As `open_route`, regardless of the setting: tests of this crate run with the wire disabled.
    #[cfg(test)]
    pub(crate) fn open_route_unchecked<P: Process>(
        &self,
        process: &P,
        route: &Route,
        qpn: u32,
    ) -> Result<PeerRoute, Errno> {
        PeerRoute::new(self.open_sockets(process)?, route, qpn)
    }

    /// Removes all deferred acknowledgements, as a stalled thread does before the send. Returns
    /// their count.
    #[cfg(test)]
    pub(crate) fn drain_deferred_acks(&self) -> usize {
        self.deferred_acks.drain()
    }

    fn open_sockets<P: Process>(&self, process: &P) -> Result<&Sockets, Errno> {
        // The service thread watches the sockets from then on, unless the application polls.
        self.sockets.get_or_open(|| self.create_sockets(process), || process.fabric().wake_self())
    }

    /// Opens the sockets. A failed attempt leaves nothing behind.
    #[inline(never)]
    fn create_sockets<P: Process>(&self, process: &P) -> Result<Box<Sockets>, WireUnavailable> {
        let counters = WireCounters::of(process.view());
        let opening = OpeningLock::begin()?;
        let claim = opening.claim(process.fabric())?;
        let sockets = Sockets::open(claim, process.fabric(), counters)?;
        self.steering.start(&sockets);
        drop(opening);
        let epoll = Wakeups::open(process.fabric())?;
        counters.publish_names();
        self.wakeups.begin(epoll);
        Ok(sockets)
    }

    /// The process of another fabric that holds the port and prevents the opening of the sockets.
    pub(crate) fn port_holder(&self) -> Option<PortHolder> {
        self.sockets.port_holder()
    }

    /// Closes the sockets of an exiting process, and forwards the packets in them to their
    /// processes. The kernel selects no closed socket. Packets for this process are served once
    /// more, so the last acknowledgement of a connection is sent.
    pub(crate) fn leave_port<P: Process>(&self, process: &P) {
        let Some(sockets) = self.sockets() else { return };
        // A child of fork(2) shares the parent's sockets.
        if process.fabric().is_foreign() {
            return;
        }
        // A signal handler that ends the process may run in the thread that holds the lock.
        let Some(mut inbox) = sockets.inbox.try_lock_for(INBOX_WAIT) else { return };
        sockets.stop_port_checks();
        sockets.positions.remove_name();
        for mut receiver in inbox.close() {
            let dispatcher = self.dispatcher(process, sockets, sockets.now(), ServedBy::Library);
            dispatcher.receive_datagrams(&mut receiver);
        }
        drop(inbox);
        steering::probe_other_sockets();
        sockets.flush();
    }

    /// Opens the port after the processes of its former user have ended.
    #[cold]
    fn take_over_port<P: Process>(&self, process: &P, sockets: &Sockets) {
        if self.open_missing_of(sockets) & V4 != 0 {
            process.join_all_groups();
        }
    }

    /// Opens the sockets that could not be opened before.
    pub(crate) fn open_missing_sockets(&self) {
        if let Some(sockets) = self.sockets() {
            self.open_missing_of(sockets);
        }
    }

    /// Opens the sockets that could not be opened before, and watches them. Returns their families.
    fn open_missing_of(&self, sockets: &Sockets) -> u8 {
        let mut inbox = sockets.inbox.lock();
        let opened = inbox.open_missing();
        if opened & V4 != 0 {
            sockets.stop_port_checks();
        }
        if opened != 0 {
            self.steering.schedule_update();
        }
        self.wakeups.watch_new(&inbox, opened);
        opened
    }

    /// Joins or leaves the multicast group `group` on `interfaces`.
    pub(crate) fn set_membership(
        &self,
        group: &[u8; 16],
        interfaces: impl IntoIterator<Item = u32>,
        join: bool,
    ) {
        let Some(sockets) = self.sockets() else { return };
        let address = IpAddr::V6(Ipv6Addr::from(*group)).to_canonical();
        let inbox = sockets.inbox.lock();
        let family = if address.is_ipv4() { V4 } else { V6 };
        let Some(receiver) = inbox.receiver_of(family) else { return };
        for interface in interfaces {
            // An error means that the interface has joined already or is gone.
            let _ = receiver.join(address, interface, join);
        }
    }
}

/// Driving: by polls and by the service thread.
impl HostWire {
    /// Receives packets, and runs the timers that have expired.
    pub(crate) fn drive<P: Process>(&self, process: &P, served_by: ServedBy) {
        // Before the check of the sockets: a process without sockets also has queued frames.
        process.send_queued_frames();
        let Some(sockets) = self.sockets() else { return };
        if served_by == ServedBy::Application {
            self.wakeups.note_poll();
        }
        // The application had time to post a request since the acknowledgement was deferred.
        self.send_deferred_acks(process);
        // The thread that holds the inbox does the same work.
        let Some(mut inbox) = sockets.inbox.try_lock() else { return sockets.flush() };
        let now = sockets.now();
        let dispatcher = self.dispatcher(process, sockets, now, served_by);
        dispatcher.receive_families(&mut inbox, self.wakeups.used());
        if self.window_waiters.has_any() {
            self.resume_window_waiters(process, sockets, now);
        }
        if self.steering.is_due() {
            self.steering.update(sockets, &inbox);
        }
        if self.timeouts.is_due(now) {
            self.run_timeouts(process, sockets, now);
        }
        sockets.flush();
    }

    /// Whether the poll of any CQ drives the wire.
    #[inline]
    pub(crate) fn any_poll_drives(&self) -> bool {
        self.xrc_receivers.load(Ordering::Relaxed) > 0
    }

    /// Sends the packets in the outbox.
    #[inline]
    pub(crate) fn flush(&self) {
        if let Some(sockets) = self.sockets() {
            sockets.flush();
        }
    }

    /// Work of the service thread: receives packets if the application does not poll. Returns when
    /// the thread must call again.
    pub(crate) fn serve_unpolled<P: Process>(&self, process: &P) -> Option<Duration> {
        let Some(sockets) = self.sockets() else {
            process.send_queued_frames();
            return self.forward_queue.has_any().then_some(FORWARD_RETRY);
        };
        if sockets.lacks_port() && sockets.is_port_check_due() {
            self.take_over_port(process, sockets);
        }
        let is_polled = self.wakeups.take_polled() && process.is_attention_down();
        self.wakeups.watch(!is_polled, || sockets.inbox.lock());
        self.receive_unused_families(process, sockets);
        if is_polled {
            self.send_deferred_acks(process);
            sockets.flush();
            return Some(POLL_CHECK_INTERVAL);
        }
        self.receive_until_quiet(process, sockets);
        let earliest = self.timeouts.earliest();
        let timeout = earliest.map(|at| at.since(sockets.now()).max(MIN_TIMEOUT));
        let has_retries = self.forward_queue.has_any() || self.window_waiters.has_any();
        let retry = has_retries.then_some(FORWARD_RETRY);
        let probes = self.steering.is_due().then_some(PROBE_WAIT);
        let port_check = sockets.lacks_port().then_some(PORT_CHECK_INTERVAL);
        [timeout, retry, probes, port_check].into_iter().flatten().min()
    }

    /// Receives packets in the service thread. While packets arrive close together, the thread
    /// polls instead of sleeping, because a peer that reads or writes memory would wait for a
    /// wake-up each time.
    fn receive_until_quiet<P: Process>(&self, process: &P, sockets: &Sockets) {
        let begun = sockets.now();
        let before = self.wakeups.last_arrival();
        self.drive(process, ServedBy::Library);
        let mut last_arrival = self.wakeups.last_arrival();
        if last_arrival == before || last_arrival.since(before) > CLOSE_TOGETHER {
            return;
        }
        let mut now = sockets.now();
        while now.since(last_arrival) < SPIN_AFTER_PACKET
            && now.since(begun) < MAX_SPIN
            && !process.is_attention_down()
        {
            std::hint::spin_loop();
            self.drive(process, ServedBy::Library);
            last_arrival = self.wakeups.last_arrival();
            now = sockets.now();
        }
    }

    /// Receives and forwards packets of address families without a connected QP. `drive` does not
    /// read these sockets.
    fn receive_unused_families<P: Process>(&self, process: &P, sockets: &Sockets) {
        let unused = BOTH_FAMILIES & !self.wakeups.used();
        if unused == 0 {
            return;
        }
        // An unread socket would wake the service thread again.
        if let Some(mut inbox) = sockets.inbox.try_lock() {
            let dispatcher = self.dispatcher(process, sockets, sockets.now(), ServedBy::Library);
            dispatcher.receive_families(&mut inbox, unused);
            if self.steering.is_due() {
                self.steering.update(sockets, &inbox);
            }
        }
    }

    #[inline]
    const fn dispatcher<'a, P: Process>(
        &'a self,
        process: &'a P,
        sockets: &'a Sockets,
        now: Time,
        served_by: ServedBy,
    ) -> Dispatcher<'a, P> {
        Dispatcher { wire: self, process, round: Round { sockets, now, served_by } }
    }
}

/// Acknowledgements, send window and timeouts of QPs.
impl HostWire {
    /// Defers the acknowledgement of QP `index`: the application may post a request soon, which
    /// carries the acknowledgement.
    pub(crate) fn defer_ack(&self, index: usize, connection: &mut HostConnection) {
        if connection.start_ack_deferral() {
            self.deferred_acks.push(index);
        }
    }

    /// Sends the deferred acknowledgements that no request has carried.
    #[inline]
    pub(crate) fn send_deferred_acks<P: Process>(&self, process: &P) {
        if self.deferred_acks.has_any() {
            self.send_all_deferred_acks(process);
        }
    }

    fn send_all_deferred_acks<P: Process>(&self, process: &P) {
        let Some(sockets) = self.sockets() else { return };
        let now = sockets.now();
        while let Some(index) = self.deferred_acks.pop() {
            process.send_deferred_ack(sockets, now, index);
        }
        sockets.flush();
    }

    /// Queues QP `index` until its destination host has room for more bytes in flight.
    pub(crate) fn wait_for_send_window(&self, index: usize) {
        self.window_waiters.push(index);
    }

    /// Resumes QPs that wait for send window. Called after packets arrive, because an
    /// acknowledgement may have freed room.
    #[cold]
    fn resume_window_waiters<P: Process>(&self, process: &P, sockets: &Sockets, now: Time) {
        self.window_waiters.resume(|index| process.resume_sending(sockets, now, index));
    }

    /// Schedules the next timeout that the transport of QP `index` asks for.
    pub(crate) fn schedule_timeout(
        &self,
        fabric: &Fabric,
        index: usize,
        connection: &mut HostConnection,
    ) {
        let (present, wanted) = connection.timeouts();
        let is_earliest = self.timeouts.schedule(index, present, wanted);
        if is_earliest && self.wakeups.wake_for_used() {
            fabric.wake_self();
        }
    }

    /// Runs the timeouts that have expired.
    #[cold]
    fn run_timeouts<P: Process>(&self, process: &P, sockets: &Sockets, now: Time) {
        while let Some(index) = self.timeouts.pop_due(now) {
            process.run_timeout(sockets, now, index);
        }
    }

    /// Removes the timeout of QP `index` and reports its counters: its transport ends.
    pub(crate) fn forget_connection(&self, index: usize, connection: &mut HostConnection) {
        if let Some(sockets) = self.sockets() {
            sockets.counters.add_connection(connection);
        }
        let (present, _) = connection.timeouts();
        self.timeouts.cancel(index, *present);
    }

    /// The share of a new connection in the send window to host `to`. Its packets have `packet`
    /// bytes of payload.
    pub(crate) fn join_host(&self, to: IpAddr, packet: u32) -> WindowShare {
        self.hosts.join(to, self.receive_buffer(), packet)
    }

    /// Bytes of the receive buffers; 0 if another user holds the port.
    pub(crate) fn receive_buffer(&self) -> usize {
        self.sockets().map_or(0, Sockets::buffer)
    }
}

/// Parts, for the files that work on them.
impl HostWire {
    pub(super) const fn wakeups(&self) -> &Wakeups {
        &self.wakeups
    }

    pub(crate) const fn steering(&self) -> &PacketSteering {
        &self.steering
    }

    pub(super) const fn expected_ip_id(&self) -> &ExpectedIpId {
        &self.expected_ip_id
    }

    pub(crate) const fn forward_queue(&self) -> &ForwardQueue {
        &self.forward_queue
    }

    /// Adds address families of connected QPs.
    pub(crate) fn add_families(&self, fabric: &Fabric, families: u8) {
        if self.wakeups.add_used(families) {
            // The service thread watches the new families, unless the application polls.
            fabric.wake_self();
        }
    }

    /// Counts an XRC receive QP with a peer on another host, or the end of its connection.
    pub(crate) fn count_xrc_receiver(&self, more: bool) {
        if more {
            self.xrc_receivers.fetch_add(1, Ordering::Relaxed);
        } else {
            self.xrc_receivers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
