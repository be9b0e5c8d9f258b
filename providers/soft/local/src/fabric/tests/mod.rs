//! Tests of the fabric as a whole, by what they are about. Most have all fabrics in one process,
//! which the registry of slots makes room for; where a process has to die, be stopped or fork,
//! [`child`] runs the test program once more.

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

/// Bytes of both segments in these tests.
const LEN: usize = 1 << 16;

/// How long something may take on a machine that is busy with other things before the test says
/// that it will never happen.
const NEVER: Duration = Duration::from_secs(60);

/// A directory for one test, removed with it.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fv-fabric-{}-{}", process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Settings for a fabric in it.
    fn config(&self) -> FabricConfig {
        FabricConfig {
            dir_is_ours: true,
            slots: 64,
            first_slot: Some(1),
            ..FabricConfig::new(self.0.join("fabric"))
        }
    }

    /// Joins with a handler that writes down what happens.
    fn join(&self) -> (Arc<Fabric>, Arc<Recorder>) {
        join(self.config())
    }

    /// Whether the fabric in it has left nothing behind.
    fn is_clean(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn join(config: FabricConfig) -> (Arc<Fabric>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let fabric = Fabric::join(config, LEN, LEN, Arc::clone(&recorder) as Arc<dyn Handler>);
    (fabric.unwrap(), recorder)
}

/// Writes down what happens.
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

    /// Waits until the log looks like this.
    fn wait(&self, what: &str, is_so: impl Fn(&Log) -> bool) {
        let deadline = Instant::now() + NEVER;
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

/// Waits until something is so that nobody tells of.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + NEVER;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Stores a byte in a segment.
fn put(mapping: &Mapping, offset: usize, byte: u8) {
    assert!(offset < mapping.len());
    // SAFETY: in range (checked above); the mapping lives for this call, and processes in these
    // tests look at single bytes only.
    unsafe { std::sync::atomic::AtomicU8::from_ptr(mapping.base().add(offset)) }
        .store(byte, std::sync::atomic::Ordering::Release);
}

/// Loads a byte from a segment.
fn get(mapping: &Mapping, offset: usize) -> u8 {
    assert!(offset < mapping.len());
    // SAFETY: in range (checked above); the mapping lives for this call, and processes in these tests look at single
    // bytes only; a load needs no permission to write.
    unsafe { std::sync::atomic::AtomicU8::from_ptr(mapping.base().add(offset)) }
        .load(std::sync::atomic::Ordering::Acquire)
}

/// The names in the directory of a fabric.
fn names(fabric: &Fabric) -> Vec<String> {
    let entries = std::fs::read_dir(fabric.directory()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Numbers without a pattern, the same ones for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
