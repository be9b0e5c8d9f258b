//! Tests of processes that meet, share memory and wake each other. The peers are child processes,
//! or several fabrics inside the test process.
//!
//! Map of this file: shared memory and wake-ups between two processes, several connection attempts
//! at once, calls of the handler, leaving, late answers, and connections without waiting.

use std::sync::Weak;

use super::{child::Child, *};

#[test]
fn occupied_lists_exactly_the_slots_of_living_processes() {
    let place = TestDirectory::new();
    let config = FabricConfig { slots: 1000, first_slot: Some(990), ..place.config() };
    let (fabric, _) = join(config.clone());
    assert_eq!(fabric.occupied(), [990]);
    let mut children: Vec<_> = (0..20).map(|_| Child::joined(&config)).collect();
    let expected = |children: &[(Child, u16)]| {
        let mut slots: Vec<_> = children.iter().map(|(_, slot)| *slot).chain([990]).collect();
        slots.sort_unstable();
        slots
    };
    let found = || {
        let mut found = fabric.occupied();
        found.sort_unstable();
        found
    };
    assert_eq!(found(), expected(&children), "the last slots, and the first ones");
    // Kill every second child.
    let mut at = 0;
    children.retain(|_| {
        at += 1;
        at % 2 == 0
    });
    wait_until("the dead are gone", || found() == expected(&children));
}

#[test]
fn two_fabrics_share_memory_and_wake_each_other() {
    let place = TestDirectory::new();
    let (one, one_log) = place.join();
    let (two, two_log) = place.join();
    assert_eq!((one.slot(), two.slot()), (1, 2));
    assert_eq!(names(&one), ["1.sock", "2.sock", "slots"]);

    let peer = one.peer(2).unwrap();
    assert!(!peer.is_self && !peer.is_dead() && peer.can_attach());
    assert!(!peer.tables().is_writable() && peer.rings().is_writable());
    one_log.wait("joined", |log| log.joined.len() == 1);
    two_log.wait("joined", |log| log.joined.len() == 1);
    let back = two.peer(1).unwrap();
    assert!(Arc::ptr_eq(&back, &two_log.with(|log| Arc::clone(&log.joined[0]))));
    assert!(peer.attaches_to_us() && back.attaches_to_us());

    put(two.tables(), 4000, 17);
    put(peer.rings(), LEN - 1, 18);
    assert_eq!((get(peer.tables(), 4000), get(two.rings(), LEN - 1)), (17, 18));
    let wakes = two_log.with(|log| log.wakes);
    peer.kick();
    two_log.wait("kick", |log| log.wakes > wakes);
    assert_eq!((one.refused(), two.refused()), (0, 0));

    two.leave();
    one_log.wait("death", |log| log.dead.len() == 1);
    assert!(one_log.with(|log| Arc::ptr_eq(&log.dead[0], &peer)));
    assert_eq!(one.peer(2).unwrap_err(), PeerError::Dead);
    assert_eq!(two.peer(1).unwrap_err(), PeerError::Left);
    one.leave();
    assert!(place.is_clean());
}

#[test]
fn our_own_slot_is_a_peer_with_our_own_memory() {
    let place = TestDirectory::new();
    let (fabric, log) = place.join();
    let own = fabric.peer(fabric.slot()).unwrap();
    assert!(own.is_self && own.pid == process::id());
    assert_eq!(own.rings().base(), fabric.rings().base());
    own.kick();
    log.wait("kick", |log| log.wakes > 0);
    assert_eq!(log.with(|log| log.joined.len()), 0);
    fabric.for_each_peer(|_| panic!("we have met nobody"));
    assert_eq!(fabric.known_peer(2).map(|peer| peer.slot), None);
    assert_eq!(fabric.peer(0).unwrap_err(), PeerError::Nobody);
    assert_eq!(fabric.peer(2).unwrap_err(), PeerError::Nobody);
    assert_eq!(fabric.peer(u16::MAX).unwrap_err(), PeerError::Nobody);
}

#[test]
fn two_processes_share_memory_and_wake_each_other() {
    let place = TestDirectory::new();
    let (fabric, log) = place.join();
    let (mut child, slot) = Child::joined(&place.config());
    let answer = child.request(&format!("peer {}", fabric.slot()));
    let attach = log_attach(&answer);
    child.request("publish 5 55");
    child.request(&format!("put {} 9 99", fabric.slot()));
    log.wait("kick", |log| log.joined.len() == 1 && get(fabric.rings(), 9) == 99);
    let peer = fabric.known_peer(slot).unwrap();
    assert_eq!(peer.pid, child.pid());
    assert_eq!(get(peer.tables(), 5), 55);
    put(peer.rings(), 3, 33);
    assert_eq!(child.request("get 3"), "33");
    wait_until("told about attach", || peer.attaches_to_us() == attach);
    child.request("leave");
    log.wait("death", |log| log.dead.len() == 1);
    fabric.leave();
    assert!(place.is_clean());
}

fn log_attach(answer: &str) -> bool {
    let (pid, attach) = answer.strip_prefix("pid ").unwrap().split_once(" attach ").unwrap();
    assert_eq!(pid.parse(), Ok(process::id()));
    attach.parse().unwrap()
}

#[test]
fn attach_needs_the_consent_of_both() {
    let place = TestDirectory::new();
    let (one, _) = place.join();
    let (two, _) = join(FabricConfig { cma: false, ..place.config() });
    let (three, _) = place.join();
    assert!(!one.peer(two.slot()).unwrap().can_attach());
    assert!(!two.peer(one.slot()).unwrap().can_attach());
    assert!(!two.peer(three.slot()).unwrap().can_attach());
    assert!(one.peer(three.slot()).unwrap().can_attach());
    assert!(!two.peer(two.slot()).unwrap().can_attach());
}

#[test]
fn many_processes_all_meet_all() {
    const COUNT: usize = 8;
    let place = TestDirectory::new();
    let mut children: Vec<_> = (0..COUNT).map(|_| Child::joined(&place.config())).collect();
    let slots: Vec<u16> = children.iter().map(|(_, slot)| *slot).collect();
    for (child, own) in &mut children {
        for slot in &slots {
            child.send_command(&format!("peer {slot}"));
            child.send_command(&format!("put {slot} {own} {own}"));
        }
    }
    for (child, _) in &mut children {
        for _ in &slots {
            let met = child.answer();
            assert!(met.starts_with("pid "), "{met}");
            assert_eq!(child.answer(), "done");
        }
    }
    for (child, _) in &mut children {
        child.request(&format!("joins {}", COUNT - 1));
        assert_eq!(child.request("log"), format!("{} 0 0", COUNT - 1));
        for slot in &slots {
            assert_eq!(child.request(&format!("get {slot}")), slot.to_string());
        }
    }
    for (child, _) in &mut children {
        child.request("leave");
    }
    assert!(place.is_clean());
}

#[test]
fn threads_that_want_the_same_peer_at_once_make_one_connection() {
    let place = TestDirectory::new();
    let (one, one_log) = place.join();
    let (two, two_log) = place.join();
    let found: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| one.peer(two.slot()).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(found.iter().all(|peer| Arc::ptr_eq(peer, &found[0])));
    one_log.wait("joined", |log| log.joined.len() == 1);
    two_log.wait("joined", |log| log.joined.len() == 1);
    // Every connection has a number, so the last number counts the connections.
    assert_eq!(two.core.last_id.load(Relaxed), 1);
}

/// A handler that looks for another slot in every call, under a lock shared with the application.
struct Seeker {
    fabric: Mutex<Weak<Fabric>>,
    other: Mutex<Option<u16>>,
    application: Mutex<()>,
    found: Mutex<Vec<Result<u16, PeerError>>>,
}

impl Handler for Seeker {
    fn on_wake(&self) -> Option<Duration> {
        let other = (*lock(&self.other))?;
        let _application = lock(&self.application);
        let fabric = lock(&self.fabric).upgrade()?;
        let found = fabric.peer(other).map(|peer| peer.slot);
        lock(&self.found).push(found);
        None
    }
    fn on_peer_joined(&self, _: &Arc<Peer>) {}
    fn on_peer_death(&self, _: &Arc<Peer>) {}
}

type Pair = [(Arc<Fabric>, Arc<Seeker>); 2];

fn seekers() -> (TestDirectory, Pair) {
    let place = TestDirectory::new();
    let both = [1, 2].map(|_| {
        let seeker = Arc::new(Seeker {
            fabric: Mutex::default(),
            other: Mutex::default(),
            application: Mutex::default(),
            found: Mutex::default(),
        });
        let handler = Arc::clone(&seeker) as Arc<dyn Handler>;
        // The timeout is so long that only a completed handshake can answer.
        let config = FabricConfig { connect_timeout: TEST_TIMEOUT * 2, ..place.config() };
        let fabric = Fabric::join(config, LEN, LEN, handler).unwrap();
        *lock(&seeker.fabric) = Arc::downgrade(&fabric);
        (fabric, seeker)
    });
    *lock(&both[0].1.other) = Some(both[1].0.slot());
    *lock(&both[1].1.other) = Some(both[0].0.slot());
    (place, both)
}

#[test]
fn service_threads_that_look_for_each_other_in_handlers_meet() {
    for _ in 0..50 {
        let (_place, both) = seekers();
        both.iter().for_each(|(fabric, _)| fabric.wake_self());
        for (fabric, seeker) in &both {
            let other = lock(&seeker.other).unwrap();
            wait_until("an answer", || !lock(&seeker.found).is_empty());
            assert!(lock(&seeker.found).iter().all(|found| *found == Ok(other)));
            assert_eq!(fabric.refused(), 0);
        }
    }
}

#[test]
fn applications_that_connect_under_a_lock_that_handlers_want_meet() {
    for _ in 0..20 {
        let (_place, both) = seekers();
        let start = std::sync::Barrier::new(2);
        thread::scope(|scope| {
            for (fabric, seeker) in &both {
                scope.spawn(|| {
                    let other = lock(&seeker.other).unwrap();
                    let held = lock(&seeker.application);
                    fabric.wake_self();
                    // Both service threads are, or will be, blocked on the lock.
                    start.wait();
                    assert_eq!(fabric.peer(other).map(|peer| peer.slot), Ok(other));
                    start.wait();
                    drop(held);
                });
            }
        });
    }
}

/// A handler that blocks while another thread holds the lock.
struct Busy {
    begun: child::Flag,
    application: Mutex<()>,
}

impl Handler for Busy {
    fn on_wake(&self) -> Option<Duration> {
        self.begun.store(true, Relaxed);
        drop(lock(&self.application));
        None
    }
    fn on_peer_joined(&self, _: &Arc<Peer>) {}
    fn on_peer_death(&self, _: &Arc<Peer>) {}
}

#[test]
fn a_connected_process_is_a_peer_after_accept_pending_peers() {
    let place = TestDirectory::new();
    let busy = Arc::new(Busy { begun: child::Flag::new(false), application: Mutex::default() });
    let held = lock(&busy.application);
    let handler = Arc::clone(&busy) as Arc<dyn Handler>;
    let fabric = Fabric::join(place.config(), LEN, LEN, handler).unwrap();
    fabric.wake_self();
    wait_until("nobody answers by himself", || busy.begun.load(Relaxed));
    let (other, _) = place.join();
    thread::scope(|scope| {
        let found = scope.spawn(|| other.peer(fabric.slot()));
        wait_until("an answer", || {
            fabric.accept_pending_peers();
            found.is_finished()
        });
        assert!(found.join().unwrap().is_ok());
        fabric.accept_pending_peers();
        assert!(fabric.known_peer(other.slot()).is_some());
        drop(held);
    });
}

/// A handler that asks to be called again at once, a few times.
struct Ticker(AtomicU64);

impl Handler for Ticker {
    fn on_wake(&self) -> Option<Duration> {
        (self.0.fetch_add(1, Relaxed) < 5).then_some(Duration::from_micros(100))
    }
    fn on_peer_joined(&self, _: &Arc<Peer>) {}
    fn on_peer_death(&self, _: &Arc<Peer>) {}
}

#[test]
fn a_handler_is_called_again_when_it_asks_to_be_and_not_otherwise() {
    let place = TestDirectory::new();
    let ticker = Arc::new(Ticker(AtomicU64::new(0)));
    let handler = Arc::clone(&ticker) as Arc<dyn Handler>;
    let fabric = Fabric::join(place.config(), LEN, LEN, handler).unwrap();
    assert_eq!(ticker.0.load(Relaxed), 0);
    fabric.wake_self();
    wait_until("six calls", || ticker.0.load(Relaxed) == 6);
    // Wait for much longer than the handler asked for: a seventh call would come in that time.
    thread::sleep(Duration::from_millis(20));
    assert_eq!(ticker.0.load(Relaxed), 6);
}

#[test]
fn the_service_thread_of_an_idle_process_sleeps() {
    let place = TestDirectory::new();
    let (fabric, _log) = place.join();
    let (mut child, slot) = Child::joined(&place.config());
    fabric.peer(slot).unwrap();
    assert_eq!(child.request("peer 1").split(' ').next(), Some("pid"));
    // Wait until the handshake's effects are over.
    let before = child.settled();
    // A test cannot wait for the absence of a wake-up, so it allows a fixed time for one.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(child.request("switches"), before);
    assert!(before.starts_with("S "), "{before}");
}

#[test]
fn leaving_in_a_handler_is_possible() {
    struct Leaver(Mutex<Weak<Fabric>>, child::Flag);
    impl Handler for Leaver {
        fn on_wake(&self) -> Option<Duration> {
            lock(&self.0).upgrade()?.leave();
            self.1.store(true, Relaxed);
            None
        }
        fn on_peer_joined(&self, _: &Arc<Peer>) {}
        fn on_peer_death(&self, _: &Arc<Peer>) {}
    }
    let place = TestDirectory::new();
    let leaver = Arc::new(Leaver(Mutex::default(), child::Flag::new(false)));
    let handler = Arc::clone(&leaver) as Arc<dyn Handler>;
    let fabric = Fabric::join(place.config(), LEN, LEN, handler).unwrap();
    *lock(&leaver.0) = Arc::downgrade(&fabric);
    fabric.wake_self();
    wait_until("it has left", || leaver.1.load(Relaxed));
    assert!(place.is_clean());
    wait_until("the thread has ended", || Arc::strong_count(&leaver) == 1);
}

#[test]
fn joining_meeting_and_leaving_leaks_no_descriptor() {
    let (mut child, place) = (Child::start(), TestDirectory::new());
    let (fabric, _log) = place.join();
    let count = |child: &mut Child| {
        child.request("forget");
        std::fs::read_dir(format!("/proc/{}/fd", child.pid())).unwrap().count()
    };
    let command = child::join_command(&place.config()).replacen("join", "churn", 1);
    child.request(&format!("{command} {} 1", fabric.slot()));
    let before = count(&mut child);
    assert_eq!(child.request(&format!("{command} {} 20", fabric.slot())), "done");
    // Threads of the child close passed descriptors, and some may have been open at the first
    // count.
    wait_until("its descriptors are closed", || count(&mut child) <= before);
}

#[test]
fn a_process_that_answers_late_is_met_with_patience() {
    let place = TestDirectory::new();
    let mut config = place.config();
    config.connect_timeout = Duration::from_millis(100);
    let (fabric, _) = join(config.clone());
    let (child, slot) = Child::joined(&config);
    child.stop();
    assert_eq!(fabric.peer(slot).unwrap_err(), PeerError::TimedOut);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Keep the attempts alive, so that a new attempt has another address.
            let attempts = std::cell::RefCell::new(Vec::new());
            wait_until("it is called again", || {
                let attempt = lock(&fabric.core.attempts).get(&slot).map(Arc::clone);
                let mut attempts = attempts.borrow_mut();
                attempts.extend(attempt);
                attempts.dedup_by(|one, other| Arc::ptr_eq(one, other));
                attempts.len() >= 3
            });
            child.signal(libc::SIGCONT);
        });
        assert!(fabric.peer_with_patience(slot, TEST_TIMEOUT).is_ok());
    });
}

#[test]
fn peer_nonblocking_meets_a_peer_without_waiting() {
    let place = TestDirectory::new();
    let (fabric, _) = join(FabricConfig { connect_timeout: TEST_TIMEOUT, ..place.config() });
    let (child, slot) = Child::joined(&place.config());
    child.stop();
    // The stopped child does not answer, and the calls do not wait.
    for _ in 0..3 {
        assert!(fabric.peer_nonblocking(slot).unwrap().is_none());
    }
    child.signal(libc::SIGCONT);
    wait_until("they meet", || fabric.peer_nonblocking(slot).unwrap().is_some());
    assert_eq!(fabric.peer_nonblocking(slot + 1).unwrap_err(), PeerError::Nobody);
    let (stopped, slot) = Child::joined(&place.config());
    stopped.stop();
    assert!(fabric.peer_nonblocking(slot).unwrap().is_none());
    // The call to `leave` does not wait for the attempt either.
    fabric.leave();
    assert_eq!(fabric.peer_nonblocking(slot).unwrap_err(), PeerError::Left);
}

#[test]
fn two_fabrics_begin_with_different_slots_and_each_has_all() {
    let first = || {
        let place = TestDirectory::new();
        let config = FabricConfig { first_slot: None, ..place.config() };
        join(config).0.slot()
    };
    let one = first();
    assert!((0..100).any(|_| first() != one));
    // Knowing the first slot does not reveal the next ones.
    let place = TestDirectory::new();
    let config = FabricConfig { first_slot: None, ..place.config() };
    let some: Vec<_> = (0..6).map(|_| join(config.clone()).0).collect();
    let slots: Vec<u16> = some.iter().map(|fabric| fabric.slot()).collect();
    assert!(slots.windows(2).any(|pair| pair[1] != pair[0] + 1), "{slots:?}");
    let place = TestDirectory::new();
    let config = FabricConfig { first_slot: None, slots: 4, ..place.config() };
    let all: Vec<_> = (0..3).map(|_| join(config.clone()).0).collect();
    let mut slots: Vec<u16> = all.iter().map(|fabric| fabric.slot()).collect();
    slots.sort_unstable();
    assert_eq!(slots, [1, 2, 3]);
    let place = TestDirectory::new();
    let config = FabricConfig { first_slot: Some(3), slots: 5, ..place.config() };
    let all: Vec<_> = (0..4).map(|_| join(config.clone()).0).collect();
    let slots: Vec<u16> = all.iter().map(|fabric| fabric.slot()).collect();
    assert_eq!(slots, [3, 4, 1, 2]);
}
