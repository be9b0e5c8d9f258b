//! Tests of the fabric as a whole, by subject.
//!
//! Most tests hold all fabrics in one process, which the registry of slots permits. Where a process
//! must die, stop or fork, [`child`] runs the test program once more.

mod child;
mod death;
mod garbage;
mod meeting;
mod notes;
mod places;

use std::{
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::*;

/// Length of both segments in these tests, in bytes.
const LEN: usize = 1 << 16;

/// The longest time that an expected event may take on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A temporary directory of one test, removed on drop.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fv-fabric-{}-{}", process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Settings of a fabric in the directory.
    fn config(&self) -> FabricConfig {
        FabricConfig {
            dir_is_ours: true,
            slots: 64,
            first_slot: Some(1),
            ..FabricConfig::new(self.0.join("fabric"))
        }
    }

    /// Joins with a handler that records all events.
    fn join(&self) -> (Arc<Fabric>, Arc<Recorder>) {
        join(self.config())
    }

    /// Whether the fabric has removed all its files.
    fn is_clean(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn join(config: FabricConfig) -> (Arc<Fabric>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let fabric = Fabric::join(config, LEN, LEN, Arc::clone(&recorder) as Arc<dyn Handler>);
    (fabric.unwrap(), recorder)
}

/// A handler that records all events.
#[derive(Default)]
struct Recorder {
    log: Mutex<Log>,
    changed: Condvar,
}

#[derive(Default)]
struct Log {
    wakes: usize,
    joined: Vec<Arc<Peer>>,
    dead: Vec<Arc<Peer>>,
    refused: Vec<Refusal>,
}

impl Recorder {
    fn note(&self, write: impl FnOnce(&mut Log)) {
        write(&mut lock(&self.log));
        self.changed.notify_all();
    }

    /// Waits until the log satisfies `is_so`.
    fn wait(&self, what: &str, is_so: impl Fn(&Log) -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let mut log = lock(&self.log);
        while !is_so(&log) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "never: {what}");
            log = self.changed.wait_timeout(log, left).unwrap().0;
        }
    }

    fn with<T>(&self, look: impl FnOnce(&Log) -> T) -> T {
        look(&lock(&self.log))
    }
}

impl Handler for Recorder {
    fn on_wake(&self) -> Option<Duration> {
        self.note(|log| log.wakes += 1);
        None
    }

    fn on_peer_joined(&self, peer: &Arc<Peer>) {
        self.note(|log| log.joined.push(Arc::clone(peer)));
    }

    fn on_peer_death(&self, peer: &Arc<Peer>) {
        assert!(peer.is_dead());
        self.note(|log| log.dead.push(Arc::clone(peer)));
    }

    fn on_refused(&self, why: Refusal, _: libc::pid_t) {
        self.note(|log| log.refused.push(why));
    }
}

/// Polls until a condition holds that no event reports.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Stores a byte in a segment.
fn put(mapping: &Mapping, offset: usize, byte: u8) {
    assert!(offset < mapping.len());
    // SAFETY: in range (checked above); the mapping lives for this call, and the test processes
    // access single bytes only.
    unsafe { std::sync::atomic::AtomicU8::from_ptr(mapping.base().add(offset)) }
        .store(byte, std::sync::atomic::Ordering::Release);
}

/// Loads a byte from a segment.
fn get(mapping: &Mapping, offset: usize) -> u8 {
    assert!(offset < mapping.len());
    // SAFETY: in range (checked above); the mapping lives for this call, and the test processes
    // access single bytes only; a load needs no write permission.
    unsafe { std::sync::atomic::AtomicU8::from_ptr(mapping.base().add(offset)) }
        .load(std::sync::atomic::Ordering::Acquire)
}

/// The sorted file names in the directory of a fabric.
fn names(fabric: &Fabric) -> Vec<String> {
    let entries = std::fs::read_dir(fabric.directory()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A pseudo-random sequence, determined by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
