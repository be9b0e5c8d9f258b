//! Tests of processes that break the protocol: they harm only their own connection. A well-behaved
//! child process checks after each violation that other connections still work.

use std::os::fd::OwnedFd;

use super::{
    super::core::Link,
    child::Child,
    hello::{HandshakeMessage, Introduction},
    *,
};
use soft_sys::poll;

/// A fabric, a well-behaved peer in another process, and a directory for misbehaving processes.
struct GarbageTest {
    place: TestDirectory,
    fabric: Arc<Fabric>,
    log: Arc<Recorder>,
    good: Child,
}

impl GarbageTest {
    fn new() -> Self {
        let place = TestDirectory::new();
        let (fabric, log) = place.join();
        let (mut good, _) = Child::joined(&place.config());
        assert!(good.request("peer 1").starts_with("pid"));
        log.wait("joined", |log| log.joined.len() == 1);
        Self { place, fabric, log, good }
    }

    fn connect(&self) -> Socket {
        let directory = self.fabric.core.lease.directory();
        let name = MemberFile::Socket.path_for(1);
        let path = directory.path().join(&name);
        loop {
            match Socket::connect(directory.dir(), &path, &name) {
                Err(Errno::EAGAIN) => thread::sleep(Duration::from_millis(1)),
                done => return done.unwrap(),
            }
        }
    }

    /// Holds a slot without a fabric.
    fn lease(&self) -> Lease {
        let config = self.place.config();
        let slots = Slots { count: 64, first: None };
        Lease::acquire(|| Directory::open(&config), slots, TEST_TIMEOUT, |_, _| Ok(())).unwrap().0
    }

    fn still_works(&mut self) {
        let peer = self.fabric.known_peer(2).unwrap();
        assert!(!peer.is_dead());
        put(self.fabric.rings(), 7, 0);
        self.good.request("put 1 7 70");
        self.log.wait("kick", |_| get(self.fabric.rings(), 7) == 70);
        let (late, _) = self.place.join();
        assert!(late.peer(1).is_ok());
    }
}

fn answer(socket: &Socket) -> Option<HandshakeMessage> {
    let mut buffer = [0; 128];
    loop {
        poll::wait_any(&[socket.as_fd()], Some(TEST_TIMEOUT)).unwrap();
        match socket.receive(&mut buffer) {
            Ok(got) if got.len == 0 => return None,
            Ok(got) => return Some(HandshakeMessage::parse(&buffer[..got.len]).unwrap()),
            Err(Errno::EAGAIN) => {}
            Err(_) => return None,
        }
    }
}

fn refusal(socket: &Socket) -> Refusal {
    match answer(socket) {
        Some(HandshakeMessage::Refused(why)) => why,
        other => panic!("{other:?} instead of a refusal"),
    }
}

struct Files {
    tables: Memfd,
    rings: Memfd,
    wake: EventFd,
}

fn files() -> Files {
    Files {
        tables: segment(c"fv-test", LEN, TABLES_SEALS).unwrap().0,
        rings: segment(c"fv-test", LEN, RINGS_SEALS).unwrap().0,
        wake: EventFd::new().unwrap(),
    }
}

fn honest(slot: u16) -> Introduction {
    let len = LEN as u64;
    Introduction {
        slot,
        nonce: 77,
        nonce_address: 0,
        tables_len: len,
        rings_len: len,
        cma: true,
        attached: false,
    }
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let mut scene = GarbageTest::new();
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..200_u64 {
        let socket = scene.connect();
        let bytes: Vec<u8> = (0..1 + random.below(200)).map(|_| random.below(256) as u8).collect();
        socket.send(&bytes, &[]).unwrap();
        assert_eq!(refusal(&socket), Refusal::Garbage, "round {round}");
    }
    assert_eq!(scene.fabric.refused(), 200);
    scene.log.wait("told", |log| !log.refused.is_empty());
    scene.still_works();
}

#[test]
fn a_hello_with_false_statements_is_refused_with_the_reason() {
    let mut scene = GarbageTest::new();
    let lease = scene.lease();
    let slot = lease.slot();
    let good = files();
    let fds = [good.tables.as_fd(), good.rings.as_fd(), good.wake.as_fd()];
    let try_hello = |hello: Introduction, fds: &[_]| {
        let socket = scene.connect();
        socket.send(&HandshakeMessage::Hello(hello).emit(), fds).unwrap();
        refusal(&socket)
    };
    let hello = honest(slot);
    assert_eq!(try_hello(hello, &[]), Refusal::Garbage);
    assert_eq!(try_hello(hello, &fds[..2]), Refusal::Garbage);
    assert_eq!(try_hello(hello, &[fds[0], fds[1], fds[2], fds[2]]), Refusal::Garbage);
    let long = Introduction { tables_len: 2 * LEN as u64, ..hello };
    assert_eq!(try_hello(long, &fds), Refusal::Segment);
    let empty = Introduction { rings_len: 0, ..hello };
    assert_eq!(try_hello(empty, &fds), Refusal::Segment);
    let huge = Introduction { rings_len: u64::MAX, ..hello };
    assert_eq!(try_hello(huge, &fds), Refusal::Segment);
    // The wrong order: the tables lack a seal.
    assert_eq!(try_hello(hello, &[fds[1], fds[0], fds[2]]), Refusal::Segment);
    assert_eq!(try_hello(hello, &[fds[0], fds[1], fds[1]]), Refusal::Segment);
    let unsealed = Memfd::create(c"fv-test", LEN).unwrap();
    assert_eq!(try_hello(hello, &[fds[0], unsealed.as_fd(), fds[2]]), Refusal::Segment);
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
    assert_eq!(try_hello(hello, &[fds[0], null.as_fd(), fds[2]]), Refusal::Segment);
    assert_eq!(try_hello(hello, &[fds[0], fds[1], null.as_fd()]), Refusal::Segment);
    // Slots that the sender does not own: the fabric's, the good peer's, a free slot, and invalid
    // slots.
    for slot in [1, 2, 40, 0, 64, u16::MAX] {
        assert_eq!(try_hello(honest(slot), &fds), Refusal::Slot, "slot {slot}");
    }
    drop(lease);
    scene.still_works();
}

#[test]
fn a_segment_that_is_shorter_than_announced_is_refused() {
    let mut scene = GarbageTest::new();
    let lease = scene.lease();
    let good = files();
    let (short, _) = segment(c"fv-test", LEN / 2, RINGS_SEALS).unwrap();
    let socket = scene.connect();
    let fds = [good.tables.as_fd(), short.as_fd(), good.wake.as_fd()];
    socket.send(&HandshakeMessage::Hello(honest(lease.slot())).emit(), &fds).unwrap();
    assert_eq!(refusal(&socket), Refusal::Segment);
    drop(lease);
    scene.still_works();
}

#[test]
fn processes_with_segments_of_other_sizes_do_not_meet() {
    let place = TestDirectory::new();
    let (one, _) = place.join();
    let two = Fabric::join(place.config(), LEN, 2 * LEN, Arc::new(Recorder::default())).unwrap();
    assert_eq!(one.peer(two.slot()).unwrap_err(), PeerError::Refused(Refusal::Segment));
    assert_eq!(two.peer(one.slot()).unwrap_err(), PeerError::Refused(Refusal::Segment));
}

/// A connected socket whose last close takes an hour, and its peer.
fn lingering() -> (OwnedFd, OwnedFd) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut stream, &[0; 1 << 16]).is_ok() {}
    let hour = libc::linger { l_onoff: 1, l_linger: 3600 };
    let len = size_of::<libc::linger>() as libc::socklen_t;
    let (fd, hour) = (std::os::fd::AsRawFd::as_raw_fd(&stream), (&raw const hour).cast());
    // SAFETY: `hour` has so many bytes.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, hour, len) };
    assert_eq!(set, 0);
    (stream.into(), other.into())
}

#[test]
fn a_passed_socket_that_lingers_on_close_does_not_block_the_acceptor() {
    let mut scene = GarbageTest::new();
    let lease = scene.lease();
    let mut others = vec![];
    let mut send = |socket: &Socket, bytes: &[u8], count: usize| {
        let (poison, other) = lingering();
        // The send fails after the fabric closed the connection.
        let _ = socket.send(bytes, &vec![poison.as_fd(); count]);
        // The last close happens here if the fabric closed its copy first.
        thread::spawn(move || drop(poison));
        others.push(other);
    };
    // Four bad messages: garbage, a Confirm before the Hello, wrong descriptors, too many
    // descriptors.
    let hello = HandshakeMessage::Hello(honest(lease.slot())).emit();
    let confirm = HandshakeMessage::Confirm { attached: false }.emit();
    for (bytes, count) in [(&b"hello"[..], 1), (&confirm, 1), (&hello, 3), (&hello, 4)] {
        let socket = scene.connect();
        send(&socket, bytes, count);
        assert!(matches!(refusal(&socket), Refusal::Garbage | Refusal::Segment));
        // A bad message behind a refused message.
        let socket = scene.connect();
        socket.send(b"hello", &[]).unwrap();
        send(&socket, bytes, count);
        scene.still_works();
    }
}

#[test]
fn a_lingering_socket_from_a_peer_does_not_block_the_service_thread() {
    let mut scene = GarbageTest::new();
    let lease = scene.lease();
    let good = files();
    let (socket, peer) = half_a_peer(&scene, &lease, &good);
    let (poison, _other) = lingering();
    socket.send(b"and another thing", &[poison.as_fd()]).unwrap();
    thread::spawn(move || drop(poison));
    scene.log.wait("refused", |log| log.refused.len() == 1);
    assert_eq!(answer(&socket), None);
    scene.still_works();
    drop(lease);
    scene.log.wait("death", |log| log.dead.iter().any(|dead| Arc::ptr_eq(dead, &peer)));
    scene.still_works();
}

#[test]
fn silent_connections_keep_no_other_process_out() {
    let mut scene = GarbageTest::new();
    // More connections than may be in a handshake at once.
    let silent: Vec<_> = (0..300).map(|_| scene.connect()).collect();
    scene.still_works();
    // The oldest connections were closed to make room.
    assert_eq!(refusal(&silent[0]), Refusal::Resources);
    drop(silent);
    scene.still_works();
}

#[test]
fn silent_connections_are_closed_after_the_timeout() {
    let scene = GarbageTest::new();
    let silent = scene.connect();
    assert_eq!(refusal(&silent), Refusal::Garbage);
    assert_eq!(answer(&silent), None);
    assert!(scene.fabric.core.acceptor_deadline().is_none(), "nothing keeps the thread awake");
}

#[test]
fn a_handshake_broken_off_makes_no_peer() {
    let mut scene = GarbageTest::new();
    let lease = scene.lease();
    let good = files();
    let hello = HandshakeMessage::Hello(honest(lease.slot())).emit();
    let fds = [good.tables.as_fd(), good.rings.as_fd(), good.wake.as_fd()];
    for last_word in [None, Some(hello), Some(HandshakeMessage::Refused(Refusal::Version).emit())] {
        let socket = scene.connect();
        socket.send(&hello, &fds).unwrap();
        assert!(
            matches!(answer(&socket), Some(HandshakeMessage::Welcome(welcome)) if welcome.slot == 1)
        );
        if let Some(bytes) = last_word {
            socket.send(&bytes, &[]).unwrap();
            assert_eq!(refusal(&socket), Refusal::Garbage);
        }
    }
    assert_eq!(scene.log.with(|log| log.joined.len()), 1);
    drop(lease);
    scene.still_works();
}

/// A peer of the fabric that holds a slot and its end of the connection, but runs no fabric.
fn half_a_peer(scene: &GarbageTest, lease: &Lease, good: &Files) -> (Socket, Arc<Peer>) {
    let fds = [good.tables.as_fd(), good.rings.as_fd(), good.wake.as_fd()];
    let socket = scene.connect();
    socket.send(&HandshakeMessage::Hello(honest(lease.slot())).emit(), &fds).unwrap();
    assert!(matches!(answer(&socket), Some(HandshakeMessage::Welcome(_))));
    socket.send(&HandshakeMessage::Confirm { attached: true }.emit(), &[]).unwrap();
    scene.log.wait("joined", |log| log.joined.len() == 2);
    let peer = scene.fabric.known_peer(lease.slot()).unwrap();
    (socket, peer)
}

#[test]
fn a_peer_that_sends_unexpected_bytes_lives_until_it_releases_its_slot() {
    let mut scene = GarbageTest::new();
    let lease = scene.lease();
    let good = files();
    let (socket, peer) = half_a_peer(&scene, &lease, &good);
    assert!(!peer.can_attach(), "there is no nonce at address 0");
    assert!(peer.attaches_to_us());
    socket.send(b"and another thing", &[]).unwrap();
    scene.log.wait("refused", |log| log.refused.len() == 1);
    assert_eq!(scene.fabric.refused(), 1);
    assert_eq!(answer(&socket), None, "nobody listens any more");
    // The peer may be in the middle of an operation; its slot lock decides about its death.
    wait_until("the doubt is resolved", || scene.log.with(|log| log.wakes > 2));
    assert!(!peer.is_dead() && scene.log.with(|log| log.dead.is_empty()));
    put(peer.rings(), 1, 1);
    peer.kick();
    assert!(good.wake.drain());
    scene.still_works();
    drop(lease);
    scene.log.wait("death", |log| log.dead.iter().any(|dead| Arc::ptr_eq(dead, &peer)));
    assert!(peer.is_dead());
    scene.still_works();
}

#[test]
fn a_peer_whose_connection_ends_lives_until_it_releases_its_slot() {
    let mut scene = GarbageTest::new();
    let lease = scene.lease();
    let good = files();
    let (socket, peer) = half_a_peer(&scene, &lease, &good);
    drop(socket);
    wait_until("the end is seen", || {
        scene.fabric.wake_self();
        scene.fabric.core.epoll.ready().is_empty() && scene.log.with(|log| log.wakes > 9)
    });
    assert!(!peer.is_dead() && scene.log.with(|log| log.dead.is_empty()));
    scene.still_works();
    drop(lease);
    scene.log.wait("death", |log| log.dead.iter().any(|dead| Arc::ptr_eq(dead, &peer)));
    assert!(peer.is_dead());
}

#[test]
fn a_peer_that_cannot_be_watched_lives_until_it_releases_its_slot() {
    let scene = GarbageTest::new();
    let lease = scene.lease();
    let good = files();
    let (_socket, peer) = half_a_peer(&scene, &lease, &good);
    let core = &scene.fabric.core;
    let log = Arc::new(Recorder::default());
    let mut service = Service::new(Arc::clone(core), Arc::clone(&log) as Arc<dyn Handler>);
    // epoll(7) refuses plain files.
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let socket = Socket::from(OwnedFd::from(file));
    service.adopt(Link { id: core.next_id(), socket, peer: Arc::clone(&peer) });
    assert!(!peer.is_dead() && log.with(|log| log.dead.is_empty()));
    drop(lease);
    service.recheck_unconfirmed();
    assert!(peer.is_dead() && log.with(|log| log.dead.len() == 1));
}

#[test]
fn a_process_without_descriptors_is_met_once_it_has_some() {
    let place = TestDirectory::new();
    let patience = Duration::from_millis(300);
    let (fabric, _) = join(FabricConfig { connect_timeout: patience, ..place.config() });
    let (mut child, slot) = Child::joined(&place.config());
    for spare in [0, 1, 2, 3] {
        // Wait until the child has closed the descriptors of the last attempt.
        child.request("files 100");
        child.settled();
        child.request(&format!("files {spare}"));
        let error = fabric.peer(slot).expect_err(&format!("{spare} descriptors"));
        let expected = [PeerError::TimedOut, PeerError::Refused(Refusal::Resources)];
        assert!(expected.contains(&error), "{error:?} with {spare} descriptors");
    }
    child.request("files 100");
    wait_until("it answers", || fabric.peer(slot).is_ok());
    child.settled();
}
