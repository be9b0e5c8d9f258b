//! Closing of descriptors whose close may block, in threads of their own.
//!
//! The last close of a descriptor can block for as long as its creator likes: a socket with
//! `SO_LINGER` (`socket(7)`), or a file of a file system that a process serves. Two kinds of
//! descriptors are affected: descriptors that peers passed to this process, and sockets, because
//! the kernel closes the descriptors in their receive queues. A closing thread closes both kinds.
//! No other thread waits for a closing thread, except for a limited time when the process leaves
//! the fabric ([`wait_for_closers`]).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::{process, thread::spawn_quiet};
use cface::thread::Thread;

/// The descriptors of a received message. Dropping the list [closes](close_aside) the descriptors.
#[derive(Debug, Default)]
pub struct Passed(Vec<OwnedFd>);

impl Passed {
    /// The descriptors, if the message has `N`.
    ///
    /// # Errors
    /// The list, if the message has more or fewer descriptors.
    pub fn into_array<const N: usize>(mut self) -> Result<[OwnedFd; N], Self> {
        match std::mem::take(&mut self.0).try_into() {
            Ok(taken) => Ok(taken),
            Err(others) => Err(Self(others)),
        }
    }

    /// The descriptor with this index.
    pub fn get(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.0.get(index).map(AsFd::as_fd)
    }

    /// The number of descriptors.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<OwnedFd>> for Passed {
    fn from(fds: Vec<OwnedFd>) -> Self {
        Self(fds)
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        close_aside(std::mem::take(&mut self.0));
    }
}

/// Starts a closing thread for `fds`. Without a thread (EAGAIN), the calling thread closes the
/// descriptors.
pub fn close_aside(fds: Vec<OwnedFd>) {
    if fds.is_empty() {
        return;
    }
    count(1);
    // A failed start drops the closure, which closes the descriptors.
    let closer = spawn_quiet("fv-close", STACK_BYTES, move || {
        drop(fds);
        count(-1);
    });
    match closer {
        Ok(thread) => remember(thread),
        Err(_) => count(-1),
    }
}

/// Waits until the closing threads of this process have ended, for `limit` in all. A program that
/// ends right after it closed its device then has no thread left whose memory a leak checker
/// reports.
pub fn wait_for_closers(limit: Duration) {
    wait_for(&CLOSERS, limit);
}

fn wait_for(list: &Mutex<Closers>, limit: Duration) {
    let Some(mut closers) = of_this_process(list) else { return };
    let threads = std::mem::take(&mut closers.threads);
    drop(closers);
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(20);
    for thread in threads {
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        if thread.is_finished() {
            thread.join();
        }
    }
}

/// The closing threads that nobody has joined.
#[derive(Debug)]
struct Closers {
    /// The process that has the threads. A forked child has none of them.
    process: u64,
    threads: Vec<Thread>,
}

static CLOSERS: Mutex<Closers> = Mutex::new(Closers { process: 0, threads: Vec::new() });

/// The threads of this process. None while another thread has the lock, which may be a thread of
/// the parent at the time of fork(2).
fn of_this_process(list: &Mutex<Closers>) -> Option<MutexGuard<'_, Closers>> {
    let mut closers = match list.try_lock() {
        Ok(closers) => closers,
        Err(TryLockError::Poisoned(closers)) => closers.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    if closers.process != own_tag() {
        closers.process = own_tag();
        // A child must neither join nor detach a thread of its parent.
        std::mem::forget(std::mem::take(&mut closers.threads));
    }
    Some(closers)
}

/// Keeps a closing thread for [`wait_for_closers`], and joins those that have ended.
fn remember(thread: Thread) {
    // Without the list the thread is detached.
    let Some(mut closers) = of_this_process(&CLOSERS) else { return };
    for ended in closers.threads.extract_if(.., |thread| thread.is_finished()) {
        ended.join();
    }
    if closers.threads.try_reserve(1).is_ok() {
        closers.threads.push(thread);
    }
}

/// Whether this process has so many closing threads that the acceptor must pause.
pub fn is_behind() -> bool {
    let word = CLOSING.load(Ordering::Relaxed);
    word >> 32 == own_tag() && word as u32 >= MOST
}

/// The process number (upper half), and the number of its closing threads. A forked child has none.
static CLOSING: AtomicU64 = AtomicU64::new(0);

fn count(by: i32) {
    let tag = own_tag();
    let change = |word: u64| {
        let threads = if word >> 32 == tag { word as u32 } else { 0 };
        Some(tag << 32 | u64::from(threads.saturating_add_signed(by)))
    };
    let _ = CLOSING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
}

fn own_tag() -> u64 {
    u64::from(process::id().cast_unsigned())
}

/// The number of closing threads from which on the acceptor pauses.
const MOST: u32 = 16;

/// A closing thread calls close(2) only.
const STACK_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::EventFd;
    use std::os::fd::AsRawFd;

    fn event() -> OwnedFd {
        EventFd::new().unwrap().as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn untaken_descriptors_are_closed() {
        let (reader, writer) = std::io::pipe().unwrap();
        let passed = Passed::from(vec![event(), OwnedFd::from(writer)]);
        let passed = passed.into_array::<3>().unwrap_err();
        assert!(passed.len() == 2 && passed.get(1).is_some() && passed.get(2).is_none());
        drop(passed);
        // The pipe hangs up when the last writer is closed.
        let mut fd = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `fd` is one entry.
        assert_eq!(unsafe { libc::poll(&raw mut fd, 1, 10_000) }, 1);
        assert!(Passed::from(vec![event()]).into_array::<1>().is_ok());
    }

    #[test]
    fn the_wait_ends_with_the_closing_threads_or_after_its_limit() {
        let closers = |threads| Mutex::new(Closers { process: own_tag(), threads });
        let (ended, is_ended) = std::sync::mpsc::channel();
        let short = spawn_quiet("fv-test", STACK_BYTES, move || {
            std::thread::sleep(Duration::from_millis(20));
            let _ = ended.send(());
        });
        wait_for(&closers(vec![short.unwrap()]), Duration::from_secs(3600));
        assert!(is_ended.try_recv().is_ok(), "the wait ended before the thread");
        // A thread that goes on until the test ends it.
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let long = spawn_quiet("fv-test", STACK_BYTES, move || {
            let _ = ends.recv();
        });
        wait_for(&closers(vec![long.unwrap()]), Duration::from_millis(20));
        drop(end);
    }

    #[test]
    fn too_many_closing_threads_pause_the_acceptor() {
        count(MOST as i32);
        assert!(is_behind());
        count(-(MOST as i32));
        let end = Instant::now() + Duration::from_secs(60);
        while is_behind() {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
    }
}
