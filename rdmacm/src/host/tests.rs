//! The whole floor on virtual time: one process of a host, with a manager, and a host of a test.

use super::neighbours::{CHECK_INTERVAL, EXEC_CHECK_INTERVAL};
use super::probes::{PROBE_INTERVAL, REFUSALS};
use super::unclaimed::BETWEEN_LISTENERS;
use super::*;
use cface::Errno;
use ferroverbs_cm::wire::{
    CommId, DisconnectRequest, Guid, IpHeader, Mad, Message, Qpn, Ready, Reason, Reply, Request,
};
use ferroverbs_cm::{Config, Event, Kind, Names};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// The host of a test: its processes, listeners and announcements, and the answers of the system.
#[derive(Debug, Default)]
pub(super) struct TestHost {
    pub(super) processes: BTreeSet<u32>,
    pub(super) role_is_taken: bool,
    listeners: Vec<ServiceId>,
    unanswered: Vec<ServiceId>,
    /// The ends of these processes are not reported.
    unreported: BTreeSet<u32>,
    watched: BTreeSet<u32>,
    /// Whether other hosts refuse probes; None: no probe can be sent.
    refuses_probes: Option<bool>,
    probes: u32,
}

impl TestHost {
    /// A host with these processes.
    fn with(processes: impl IntoIterator<Item = u32>) -> Self {
        Self { processes: processes.into_iter().collect(), ..Self::default() }
    }
}

impl HostNames for TestHost {
    fn is_responder(&mut self) -> bool {
        !self.role_is_taken
    }

    fn is_listened_to(&self, service: ServiceId, _: IpAddr) -> Result<bool, Errno> {
        Ok(self.listeners.contains(&service))
    }

    fn unanswered_services(&self) -> Result<Vec<ServiceId>, Errno> {
        Ok(self.unanswered.clone())
    }
}

impl HostSystem for TestHost {
    type Announcement = ();

    fn is_process(&self, number: u32) -> bool {
        self.processes.contains(&number)
    }

    fn watch(&mut self, number: u32) -> Watch {
        match () {
            () if !self.processes.contains(&number) => Watch::Ended,
            () if self.unreported.contains(&number) => Watch::Unreported,
            () => {
                assert!(self.watched.insert(number), "process {number} is watched once");
                Watch::Reported
            }
        }
    }

    fn ended(&mut self) -> Vec<u32> {
        let ended: Vec<u32> = self.watched.difference(&self.processes).copied().collect();
        self.watched.retain(|number| self.processes.contains(number));
        ended
    }

    fn announce(&mut self, service: ServiceId) -> Option<()> {
        self.unanswered.push(service);
        Some(())
    }

    fn probe(&mut self, _: Peer) -> Option<bool> {
        self.probes += 1;
        self.refuses_probes
    }

    fn end_probes(&mut self, _: Peer) {}
}

/// The number of the process under test.
const THIS: u32 = 2;
const SERVICE: ServiceId = ServiceId(0x0106_1bb3);
/// A peer on another host, and a peer process on this host.
const REMOTE: Peer = Peer { remote: [1; 16], local: [2; 16] };
const LOCAL: Peer = Peer { remote: [2; 16], local: [2; 16] };

type TestProcesses = HostProcesses<u8, ()>;

fn manager() -> Manager<Peer> {
    let mut config = Config::new(Guid(0x0200_0000_0000_0007));
    config.names = Names { prefix: THIS, bits: PROCESS_BITS };
    Manager::new(config)
}

/// A source of numbers that differ.
fn random() -> impl FnMut() -> u64 {
    let mut last = 0;
    move || {
        last += 1;
        last
    }
}

fn mad(message: Message) -> [u8; MAD_LEN] {
    Mad { transaction: 1, message }.emit()
}

fn request_mad(local_id: u32) -> [u8; MAD_LEN] {
    let header = IpHeader::V4 {
        source: Ipv4Addr::new(10, 0, 0, 1),
        port: 7,
        destination: Ipv4Addr::new(10, 0, 0, 2),
    };
    let request = Request {
        local_id: CommId(local_id),
        service: SERVICE,
        guid: Guid(9),
        qpn: Qpn::new(local_id),
        private: header.emit(&[]).expect("short"),
        ..Request::default()
    };
    mad(Message::Request(Box::new(request)))
}

/// A connection of the process under test with process `number` of this host.
fn connection_with(manager: &mut Manager<Peer>, number: u32) -> Connection {
    let random = &mut random();
    let request = Request { service: SERVICE, ..Request::default() };
    let connection = manager.connect(Time::ZERO, random, LOCAL, request).expect("there is room");
    let (_, sent) = manager.poll_transmit().expect("a request");
    let Ok(Mad { transaction, message: Message::Request(request) }) = Mad::parse(&sent) else {
        panic!("the manager sends a request");
    };
    let reply = Reply {
        // Different for each connection, as the request's name is.
        local_id: CommId(number << (32 - PROCESS_BITS) | request.local_id.0 & 0xf_ffff),
        remote_id: request.local_id,
        qpn: Qpn::new(request.local_id.0),
        ..Reply::default()
    };
    let reply = Mad { transaction, message: Message::Reply(Box::new(reply)) }.emit();
    manager.receive(Time::ZERO, random, &LOCAL, &reply);
    assert!(matches!(manager.poll_event(), Some(Event::Reply { .. })));
    connection
}

fn never_ours(_: ServiceId, _: IpAddr) -> bool {
    false
}

#[test]
fn the_end_of_a_local_process_ends_the_connections_with_it_and_no_others() {
    let (mut host, mut manager) = (TestHost::with([THIS, 5, 6]), manager());
    let mut processes = TestProcesses::new(THIS);
    let with_five = [(); 40].map(|()| connection_with(&mut manager, 5));
    let with_six = connection_with(&mut manager, 6);
    for connection in with_five.into_iter().chain([with_six]) {
        assert_eq!(processes.connected(Time::ZERO, &mut host, &manager, connection), []);
    }
    assert!(processes.due(Time::ZERO, &mut host, &manager).is_empty());
    host.processes.remove(&5);
    let ended = processes.due(Time::ZERO, &mut host, &manager);
    let ended: Vec<Connection> = ended
        .into_iter()
        .map(|action| match action {
            HostAction::EndConnection(connection) => connection,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ended, with_five);
    assert!(processes.due(Time::MAX, &mut host, &manager).is_empty(), "each end is told once");
}

#[test]
fn a_connection_with_a_process_that_has_ended_meanwhile_ends_at_once() {
    let (mut host, mut manager) = (TestHost::with([THIS]), manager());
    let mut processes = TestProcesses::new(THIS);
    let connection = connection_with(&mut manager, 5);
    assert_eq!(processes.connected(Time::ZERO, &mut host, &manager, connection), [connection]);
    // A connection of this process with itself is not watched.
    let own = connection_with(&mut manager, THIS);
    assert_eq!(processes.connected(Time::ZERO, &mut host, &manager, own), []);
}

#[test]
fn an_end_that_nothing_reports_is_found_by_questions() {
    let (mut host, mut manager) = (TestHost::with([THIS, 5]), manager());
    host.unreported.insert(5);
    let mut processes = TestProcesses::new(THIS);
    let connection = connection_with(&mut manager, 5);
    assert_eq!(processes.connected(Time::ZERO, &mut host, &manager, connection), []);
    assert_eq!(processes.next(), Some(CHECK_INTERVAL), "the thread wakes for the question");
    assert!(processes.due(CHECK_INTERVAL, &mut host, &manager).is_empty());
    host.processes.remove(&5);
    assert!(processes.due(CHECK_INTERVAL, &mut host, &manager).is_empty(), "not asked yet");
    assert_eq!(processes.next(), Some(2 * CHECK_INTERVAL));
    let ended = processes.due(2 * CHECK_INTERVAL, &mut host, &manager);
    assert!(matches!(ended[..], [HostAction::EndConnection(ended)] if ended == connection));
    assert_eq!(processes.next(), None);
}

#[test]
fn the_end_of_a_process_that_replaced_its_program_is_found_by_a_question() {
    let (mut host, mut manager) = (TestHost::with([THIS, 5]), manager());
    let mut processes = TestProcesses::new(THIS);
    let connection = connection_with(&mut manager, 5);
    assert_eq!(processes.connected(Time::ZERO, &mut host, &manager, connection), []);
    assert_eq!(processes.next(), Some(EXEC_CHECK_INTERVAL));
    // The process lives on, so the system reports no end. The number has no process any more.
    host.watched.clear();
    host.processes.remove(&5);
    assert!(processes.due(EXEC_CHECK_INTERVAL / 2, &mut host, &manager).is_empty());
    let ended = processes.due(EXEC_CHECK_INTERVAL, &mut host, &manager);
    assert!(matches!(ended[..], [HostAction::EndConnection(ended)] if ended == connection));
    assert_eq!(processes.next(), None);
}

#[test]
fn the_responder_disconnects_what_an_ended_process_had_with_other_hosts() {
    for role_is_taken in [false, true] {
        let (mut host, manager) = (TestHost::with([THIS, 5]), manager());
        host.role_is_taken = role_is_taken;
        let mut processes = TestProcesses::new(THIS);
        let name = CommId(5 << (32 - PROCESS_BITS) | 1);
        let reply = Reply { local_id: CommId(9), remote_id: name, ..Reply::default() };
        let reply = mad(Message::Reply(Box::new(Reply { qpn: Qpn::new(0x123), ..reply })));
        let is_ours = processes.receive(Time::ZERO, &mut host, (REMOTE, false), &reply, never_ours);
        assert!(!is_ours, "the reply is for process 5");
        host.processes.remove(&5);
        let actions = processes.due(Time::ZERO, &mut host, &manager);
        match (&actions[..], role_is_taken) {
            ([HostAction::Disconnect(of)], false) => {
                assert_eq!((of.name, of.peer, of.remote_qpn), (name, REMOTE, Qpn::new(0x123)));
            }
            ([], true) => assert!(processes.next().is_some(), "the role may become free"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_responder_alone_accepts_what_is_for_an_ended_process() {
    let name = CommId(5 << (32 - PROCESS_BITS) | 1);
    let request = DisconnectRequest { local_id: CommId(9), remote_id: name, ..Default::default() };
    let request = mad(Message::DisconnectRequest(request));
    for (is_process, role_is_taken, is_ours) in
        [(true, false, false), (false, true, false), (false, false, true)]
    {
        let mut host = TestHost::with([THIS]);
        host.role_is_taken = role_is_taken;
        if is_process {
            host.processes.insert(5);
        }
        let mut processes = TestProcesses::new(THIS);
        let from = (REMOTE, false);
        let taken = processes.receive(Time::ZERO, &mut host, from, &request, never_ours);
        assert_eq!(taken, is_ours, "{is_process} {role_is_taken}");
    }
}

#[test]
fn a_request_without_an_owner_is_rejected_once_although_it_is_repeated() {
    let (mut host, mut manager) = (TestHost::with([THIS]), manager());
    let mut processes = TestProcesses::new(THIS);
    for at in [0, 50, 100] {
        let (now, from) = (Time::from_millis(at), (REMOTE, false));
        assert!(!processes.receive(now, &mut host, from, &request_mad(3), never_ours));
    }
    assert_eq!(processes.next(), Some(BETWEEN_LISTENERS));
    let actions = processes.due(BETWEEN_LISTENERS, &mut host, &manager);
    let [HostAction::Answer(from, request)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(*from, REMOTE);
    manager.receive(BETWEEN_LISTENERS, &mut random(), from, &request[..]);
    let (to, answer) = manager.poll_transmit().expect("a rejection");
    let Ok(Mad { message: Message::Reject(reject), .. }) = Mad::parse(&answer) else { panic!() };
    assert_eq!((to, reject.reason), (REMOTE, Reason::INVALID_SERVICE));
    assert_eq!((processes.next(), manager.poll_transmit()), (None, None));
}

#[test]
fn a_request_with_an_owner_is_for_the_owner_alone() {
    let (mut host, manager) = (TestHost::with([THIS, 5]), manager());
    host.listeners.push(SERVICE);
    let mut processes = TestProcesses::new(THIS);
    let from = (REMOTE, false);
    assert!(!processes.receive(Time::ZERO, &mut host, from, &request_mad(3), never_ours));
    assert!(processes.receive(Time::ZERO, &mut host, from, &request_mad(3), |service, to| {
        service == SERVICE && to == IpAddr::from([10, 0, 0, 2])
    }));
    assert!(processes.due(Time::MAX, &mut host, &manager).is_empty());
}

#[test]
fn an_own_request_waits_for_a_listener_and_is_then_sent_or_refused() {
    for comes in [true, false] {
        let (mut host, manager) = (TestHost::with([THIS]), manager());
        let mut processes = TestProcesses::new(THIS);
        for id in [1, 2] {
            let request = Request { service: SERVICE, ..Request::default() };
            let request = OutgoingRequest::Connection(Box::new(request));
            let to = IpAddr::from([10, 0, 0, 2]);
            processes.wait_for_listener(Time::ZERO, id, LOCAL, to, request);
        }
        processes.remove_where(|id| *id == 2);
        assert!(processes.due(Time::ZERO, &mut host, &manager).is_empty());
        if comes {
            host.listeners.push(SERVICE);
        }
        let actions = processes.due(BETWEEN_LISTENERS, &mut host, &manager);
        match (&actions[..], comes) {
            ([HostAction::Send(one)], true) | ([HostAction::Refuse(one)], false) => {
                assert_eq!((one.id, one.peer), (1, LOCAL));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn requests_of_a_closed_listener_are_announced_until_they_are_answered() {
    let (mut host, mut manager) = (TestHost::with([THIS]), manager());
    let mut processes = TestProcesses::new(THIS);
    let random = &mut random();
    let listener = manager.listen(Kind::Connections, SERVICE, 5).expect("there is room");
    processes.keep_unanswered(&mut host, &manager, (listener, SERVICE));
    assert_eq!(host.unanswered, [], "no request waits");
    manager.receive(Time::ZERO, random, &REMOTE, &request_mad(3));
    let Some(Event::Request { connection, .. }) = manager.poll_event() else { panic!() };
    manager.remove_from_backlog(connection);
    processes.keep_unanswered(&mut host, &manager, (listener, SERVICE));
    assert_eq!(host.unanswered, [SERVICE]);
    manager.unlisten(listener);
    assert!(processes.due(Time::ZERO, &mut host, &manager).is_empty());
    assert!(!processes.unanswered.is_empty());
    // The program rejects, and the manager repeats the rejection for a while.
    manager.destroy(Time::ZERO, connection);
    while let Some(next) = manager.poll_timeout() {
        manager.handle_timeout(next);
    }
    processes.drop_answered(&manager);
    assert!(processes.unanswered.is_empty(), "the announcement ends with the answer");
}

#[test]
fn a_host_that_refuses_probes_in_a_row_is_absent_while_a_request_waits_for_it() {
    let mut manager = manager();
    let request = Request { service: SERVICE, ..Request::default() };
    manager.connect(Time::ZERO, &mut random(), REMOTE, request).expect("there is room");
    let (peer, sent) = manager.poll_transmit().expect("a request");
    for (refuses, steps) in [(Some(true), REFUSALS), (Some(false), 0), (None, 0)] {
        let mut host = TestHost::with([THIS]);
        host.refuses_probes = refuses;
        let mut processes = TestProcesses::new(THIS);
        processes.sent(Time::ZERO, peer, &mad(Message::Ready(Ready::default())));
        assert_eq!(processes.next(), None, "only requests wait for an answer");
        processes.sent(Time::ZERO, peer, &sent);
        assert_eq!(processes.next(), Some(PROBE_INTERVAL));
        let absent = (1..=2 * REFUSALS).find(|step| {
            let actions = processes.due(PROBE_INTERVAL * *step, &mut host, &manager);
            matches!(actions[..], [HostAction::Absent(absent)] if absent == REMOTE)
        });
        assert_eq!(absent.unwrap_or(0), steps, "{refuses:?}");
    }
    // An answer of the host ends the probes.
    let (mut host, mut processes) = (TestHost::with([THIS]), TestProcesses::new(THIS));
    processes.sent(Time::ZERO, peer, &sent);
    let ready = mad(Message::Ready(Ready::default()));
    processes.receive(Time::ZERO, &mut host, (REMOTE, false), &ready, never_ours);
    assert_eq!((processes.next(), host.probes), (None, 0));
}
