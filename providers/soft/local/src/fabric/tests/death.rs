//! Tests of processes that die, stop or fork. The other processes are children of the test process,
//! which kills, stops or forks them.

use super::{
    child::{Child, join_command},
    *,
};
use std::os::fd::AsRawFd;

#[test]
fn a_killed_process_is_a_death_and_the_next_to_join_cleans_up_after_it() {
    let place = TestDirectory::new();
    let (fabric, log) = place.join();
    let (child, slot) = Child::joined(&place.config());
    let peer = fabric.peer(slot).unwrap();
    child.signal(libc::SIGKILL);
    log.wait("death", |log| log.dead.len() == 1);
    assert!(peer.is_dead());
    assert!(log.with(|log| Arc::ptr_eq(&log.dead[0], &peer)));
    assert_eq!(fabric.peer(slot).unwrap_err(), PeerError::Dead);
    assert!(fabric.known_peer(slot).is_none());
    assert_eq!(names(&fabric), ["1.sock", "2.sock", "slots"]);
    let (next, _) = place.join();
    assert_eq!(next.slot(), 3, "a slot is not reused at once");
    assert_eq!(names(&fabric), ["1.sock", "3.sock", "slots"]);
    // The dead peer's segments stay mapped while `peer` exists.
    assert_eq!(get(peer.tables(), 0), 0);
    next.leave();
    fabric.leave();
    assert!(place.is_clean());
}

#[test]
fn a_reused_slot_is_another_peer() {
    let place = TestDirectory::new();
    let config = FabricConfig { slots: 3, ..place.config() };
    let (fabric, log) = join(config.clone());
    let (child, slot) = Child::joined(&config);
    let first = fabric.peer(slot).unwrap();
    drop(child);
    let (second, same) = Child::joined(&config);
    assert_eq!(same, slot);
    wait_until("the second is met", || {
        fabric.peer(slot).is_ok_and(|peer| !Arc::ptr_eq(&peer, &first))
    });
    log.wait("death", |log| log.dead.len() == 1 && log.joined.len() == 2);
    let peer = fabric.known_peer(slot).unwrap();
    assert!(first.is_dead() && !peer.is_dead());
    assert_eq!(peer.pid, second.pid());
}

#[test]
fn fifty_kills_at_random_moments_are_fifty_deaths_at_most_and_leave_nothing() {
    let seed = 0x5eed_0000 + u64::from(std::process::id());
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let place = TestDirectory::new();
    let (fabric, log) = place.join();
    let (mut witness, _) = Child::joined(&place.config());
    let config = place.config();
    let mut met = 0;
    for round in 0..50 {
        let mut child = Child::start();
        if round % 2 == 0 {
            // The child dies at a random point between joining and leaving.
            let command = join_command(&config).replacen("join", "churn", 1);
            child.send_command(&format!("{command} {} 1000000", fabric.slot()));
        } else {
            let slot = child.request(&join_command(&config));
            child.send_command(&format!("spin {}", fabric.slot()));
            child.answer();
            if random.below(2) == 0 {
                met += usize::from(fabric.peer(slot.parse().unwrap()).is_ok());
                witness.request(&format!("peer {slot}"));
            }
        }
        thread::sleep(Duration::from_micros(random.below(30_000)));
        drop(child);
    }
    // Every peer that joined has died, exactly once.
    log.wait("all deaths", |log| log.dead.len() == log.joined.len());
    log.with(|log| {
        // A child killed before the meeting counts on neither side.
        assert!(met > 0 && log.joined.len() >= met, "only {} of {met} met", log.joined.len());
        for peer in &log.joined {
            assert_eq!(log.dead.iter().filter(|dead| Arc::ptr_eq(dead, peer)).count(), 1);
        }
    });
    fabric.for_each_peer(|peer| panic!("{peer:?} is dead"));
    // A dying child may lose its slot's lock before its last message arrives; no other refusal is
    // correct.
    assert!(log.with(|log| log.refused.iter().all(|&why| why == Refusal::Slot)));
    // The survivors still meet, and no file of a dead process is left.
    assert!(witness.request(&format!("peer {}", fabric.slot())).starts_with("pid"));
    let (next, _) = place.join();
    assert_eq!(names(&next).len(), 4, "{:?}", names(&next));
    next.leave();
    witness.request("leave");
    fabric.leave();
    assert!(place.is_clean());
}

#[test]
fn joining_and_leaving_all_at_once_never_fails_and_leaves_nothing() {
    let place = TestDirectory::new();
    let command = join_command(&place.config()).replacen("join", "churn", 1);
    let mut children: Vec<_> = (0..4).map(|_| Child::start()).collect();
    for child in &mut children {
        child.send_command(&format!("{command} 0 200"));
    }
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200 {
                    place.join().0.leave();
                }
            });
        }
    });
    for child in &mut children {
        assert_eq!(child.answer(), "done");
    }
    assert!(place.is_clean());
}

#[test]
fn the_last_to_leave_cleans_up_after_the_dead() {
    let place = TestDirectory::new();
    let (fabric, _) = place.join();
    let (child, _) = Child::joined(&place.config());
    drop(child);
    fabric.leave();
    assert!(place.is_clean());
}

#[test]
fn a_death_is_seen_even_if_a_forked_process_keeps_the_connections() {
    let place = TestDirectory::new();
    let (fabric, log) = place.join();
    let (mut child, slot) = Child::joined(&place.config());
    child.request("peer 1");
    let peer = fabric.peer(slot).unwrap();
    let fork: libc::pid_t = child.request("fork").parse().unwrap();
    drop(child);
    log.wait("death", |log| log.dead.len() == 1);
    assert!(peer.is_dead());
    // The copy still listens on the socket, but the copy does not own the slot.
    assert_eq!(fabric.peer(slot).unwrap_err(), PeerError::Dead);
    // SAFETY: plain integers; the process was started by this test and cannot have ended.
    assert_eq!(unsafe { libc::kill(fork, libc::SIGKILL) }, 0);
}

#[test]
fn the_end_of_a_process_that_this_process_has_not_met_can_be_watched() {
    let place = TestDirectory::new();
    let (fabric, _) = place.join();
    assert_eq!(fabric.watch_process(900).map(drop), Err(Errno::ESRCH));
    let (mut child, slot) = Child::joined(&place.config());
    let fork: libc::pid_t = child.request("fork").parse().unwrap();
    let watched = fabric.watch_process(slot).unwrap();
    let has_ended = |wait| {
        let mut fd = libc::pollfd { fd: watched.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `fd` is one entry.
        unsafe { libc::poll(&raw mut fd, 1, wait) == 1 }
    };
    assert!(!has_ended(0));
    assert!(fabric.known_peer(slot).is_none());
    child.signal(libc::SIGKILL);
    assert!(has_ended(10_000), "a forked child does not keep its parent's number");
    assert_eq!(fabric.watch_process(slot).map(drop), Err(Errno::ESRCH));
    // SAFETY: plain integers; the process was started by this test and cannot have ended.
    assert_eq!(unsafe { libc::kill(fork, libc::SIGKILL) }, 0);
}

#[test]
fn leaving_is_seen_even_if_a_forked_process_keeps_the_connections() {
    let place = TestDirectory::new();
    let (fabric, log) = place.join();
    let (mut child, slot) = Child::joined(&place.config());
    fabric.peer(slot).unwrap();
    let fork: libc::pid_t = child.request("fork").parse().unwrap();
    child.request("leave");
    log.wait("death", |log| log.dead.len() == 1);
    // SAFETY: plain integers; the process was forked for this test and only pauses, so its pid is
    // still its own.
    assert_eq!(unsafe { libc::kill(fork, libc::SIGKILL) }, 0);
}

#[test]
fn a_forked_process_joins_on_its_own_and_does_its_parent_no_harm() {
    let place = TestDirectory::new();
    let (fabric, log) = place.join();
    let (mut child, slot) = Child::joined(&place.config());
    fabric.peer(slot).unwrap();
    let command = join_command(&place.config()).replacen("join", "fork-and-join", 1);
    let pid = child.pid();
    assert_eq!(child.request(&command), format!("true true {} pid {pid} attach true", slot + 1));
    assert_eq!(child.answer(), "over");
    // The parent still has its slot, its socket and its connections.
    assert_eq!(names(&fabric), ["1.sock", "2.sock", "slots"]);
    assert!(child.request("peer 1").starts_with("pid"));
    child.request("deaths 1");
    assert_eq!(
        child.request("log"),
        "2 1 0",
        "it met the first fabric and its own copy, which left"
    );
    assert_eq!(log.with(|log| log.dead.len()), 0);
    let (third, _) = place.join();
    assert_eq!(third.peer(slot).unwrap().pid, pid);
    child.request("leave");
    log.wait("death", |log| log.dead.len() == 1);
}

#[test]
fn connecting_to_a_stopped_process_times_out() {
    let place = TestDirectory::new();
    let patience = Duration::from_millis(100);
    let (fabric, log) = join(FabricConfig { connect_timeout: patience, ..place.config() });
    let (child, slot) = Child::joined(&place.config());
    child.stop();
    assert_eq!(fabric.peer(slot).unwrap_err(), PeerError::TimedOut);
    child.signal(libc::SIGCONT);
    wait_until("it answers", || fabric.peer(slot).is_ok());
    // The abandoned attempts left no peers in the child that then died.
    log.wait("joined", |log| log.joined.len() == 1);
    let mut child = child;
    child.request("joins 1");
    assert_eq!(child.request("log"), "1 0 0");
}
