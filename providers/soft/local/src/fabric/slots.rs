//! Slots: which process has which number, by record locks that the kernel drops at a process's
//! death.
//!
//! The file `slots` has one byte per slot, and a process owns slot `i` while it holds the lock on
//! byte `i`. Byte 0 is the lock of the directory itself, which a process holds briefly while it
//! joins or leaves. The first 8 bytes also hold a number: the order in which slots are given out,
//! and the next position in that order. Other hosts see slots in QP numbers and cannot guess the
//! order. A slot is not reused at once. The number 0 means a new file.
//!
//! Record locks have two traps (`fcntl(2)`). A process loses them when it closes *any* descriptor
//! of the file, and they do not exclude a process from itself. Hence the registry below: one
//! descriptor per file and process, shared by all fabrics in the process, and a list of the slots
//! that the process holds. A forked child inherits descriptor and list but no locks, so the list
//! records its process.
//!
//! # Threads and locks
//!
//! Any thread may call these functions. Lock order, outer first: `REGISTRY` > the lock of the
//! directory (byte 0) > `HELD_SLOTS`. Marks use bytes behind `MARKS_OFFSET`, under `REGISTRY` and
//! the lock on that byte.
//!
//! Map of this file: `Lease`, the slot of a process; files of members; `SlotFile` and the locks on
//! its bytes; `REGISTRY` and `HELD_SLOTS`; the lock of the directory; the order of slots; removal
//! of files of dead processes; tests.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use libc::pid_t;

use super::{
    config::DIR_VARIABLE,
    directory::{Directory, unusable},
    error::FabricError,
    lock,
};
use crate::names::SLOTS as SLOTS_FILE;
use soft_sys::{
    Errno, dir,
    lock::{holder, is_held_at, share_at, try_lock, unlock, unlock_at},
    process,
};

/// The range of slots, and the first slot to give out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// The number of slots including the unused slot 0; at least 2.
    pub(super) count: u16,
    /// The slot that is given out first, followed by the slots behind it; `None`: a random order.
    pub(super) first: Option<u16>,
}

/// A slot that this process holds, with its files in the directory.
#[derive(Debug)]
pub(super) struct Lease {
    directory: Directory,
    file: FileHandle,
    slot: u16,
    /// The process that holds the slot; not this process after a fork.
    pid: pid_t,
    released: Mutex<bool>,
}

impl Lease {
    /// Removes the files of dead processes, takes a slot, and runs `publish`, in which the owner
    /// creates its socket. No other process can join or leave until `publish` returns.
    pub(super) fn acquire<T>(
        open: impl Fn() -> Result<Directory, FabricError>,
        slots: Slots,
        patience: Duration,
        publish: impl FnOnce(&Directory, u16) -> Result<T, FabricError>,
    ) -> Result<(Self, T), FabricError> {
        let started = Instant::now();
        let mut registry = lock(&REGISTRY);
        loop {
            let directory = open()?;
            let file = match registry.open(&directory) {
                Ok(file) => file,
                // The last process has left and removed the directory.
                Err(Errno::ENOENT) if started.elapsed() < patience => continue,
                Err(errno) => {
                    return Err(unusable(&slots_path(&directory), errno, "cannot be opened"));
                }
            };
            let locked = match lock_directory(&directory, file, started, patience) {
                Ok(locked) => locked,
                Err(error) => {
                    registry.close_unused();
                    return Err(error);
                }
            };
            if directory.dir().stat(Path::new(SLOTS_FILE)).ok().map(|stat| stat.id)
                != Some(locked.id)
            {
                // The last process removed the file between our open and our lock.
                drop(locked);
                registry.close_unused();
                continue;
            }
            directory.dir().keep_from_cleaners();
            sweep(&directory, &locked);
            let slot = claim(&directory, &locked, slots);
            let published = slot.and_then(|slot| {
                let published = publish(&directory, slot);
                published.map(|published| (slot, published)).inspect_err(|_| locked.give_back(slot))
            });
            match published {
                Ok((slot, published)) => {
                    remove_dead(&directory, &mut registry);
                    let file = FileHandle(Some(Arc::clone(&locked)));
                    let pid = process::id();
                    let released = Mutex::new(false);
                    return Ok((Self { directory, file, slot, pid, released }, published));
                }
                Err(error) => {
                    remove_if_last(&directory, &locked);
                    drop(locked);
                    registry.close_unused();
                    return Err(error);
                }
            }
        }
    }

    /// The slot.
    pub(super) fn slot(&self) -> u16 {
        self.slot
    }

    /// Whether this process holds the slot, and not its parent.
    pub(super) fn is_ours(&self) -> bool {
        self.pid == process::id()
    }

    /// The directory.
    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The owner of `slot` now; 0 if the owner is not visible in our pid namespace.
    pub(super) fn owner(&self, slot: u16) -> Option<pid_t> {
        self.file.get().owner(slot)
    }

    /// As [`Self::owner`], with the error of a lock that cannot be examined.
    ///
    /// # Errors
    /// Of fcntl(2), for example `ENOLCK`.
    pub(super) fn examine_owner(&self, slot: u16) -> Result<Option<pid_t>, Errno> {
        self.file.get().examine(slot)
    }

    /// The owned slots below `end`, including this process's slot.
    pub(super) fn owned(&self, end: u16) -> Vec<u16> {
        self.file.get().owned(end)
    }

    /// Whether process `pid`, which had `slot`, no longer has it. A lock that cannot be examined is
    /// no death.
    pub(super) fn is_gone(&self, slot: u16, pid: pid_t) -> bool {
        self.file.get().examine(slot).is_ok_and(|owner| owner != Some(pid))
    }

    /// Marks a number as used by this process, if `rule` agrees. `rule` learns whether another
    /// process has marked the number. One process at a time looks and marks.
    ///
    /// # Errors
    /// The error of `rule`; `EBUSY`: another process keeps the lock of the marks.
    pub(super) fn take_mark(
        &self,
        mark: u64,
        rule: impl FnOnce(bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let registry = lock(&REGISTRY);
        let fd = self.file.get().fd.as_fd();
        let started = Instant::now();
        while !try_lock(fd, MARKS_OFFSET)? {
            if started.elapsed() > LEAVE_PATIENCE {
                return Err(Errno::EBUSY);
            }
            thread::sleep(Duration::from_millis(1));
        }
        let taken = is_held_at(fd, mark).and_then(rule).and_then(|()| share_at(fd, mark));
        let _ = unlock(fd, MARKS_OFFSET);
        drop(registry);
        if taken? { Ok(()) } else { Err(Errno::EBUSY) }
    }

    /// Gives a mark back. The kernel gives back the marks of a process that dies.
    pub(super) fn drop_mark(&self, mark: u64) {
        let _ = unlock_at(self.file.get().fd.as_fd(), mark, 1);
    }

    /// Gives the slot back and removes its files. The last process also removes the directory.
    pub(super) fn release(&self) {
        // In a forked child, the socket and the lock belong to the parent.
        if !self.is_ours() || std::mem::replace(&mut *lock(&self.released), true) {
            return;
        }
        let _registry = lock(&REGISTRY);
        for kind in MemberFile::ALL {
            let _ = self.directory.dir().unlink(&kind.path_for(self.slot));
        }
        match lock_directory(
            &self.directory,
            Arc::clone(self.file.get()),
            Instant::now(),
            LEAVE_PATIENCE,
        ) {
            Ok(locked) => {
                locked.give_back(self.slot);
                remove_if_last(&self.directory, &locked);
            }
            // The process that locks the directory is stuck: leave the cleaning to that process.
            Err(_) => self.file.get().give_back(self.slot),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.release();
    }
}

/// A file that a process keeps in the directory while it owns its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberFile {
    /// The socket on which the process accepts peers.
    Socket,
    /// The published note.
    Note,
    /// The next note, before it replaces the published note.
    NewNote,
}

impl MemberFile {
    const ALL: [Self; 3] = [Self::Socket, Self::Note, Self::NewNote];

    const fn ending(self) -> &'static str {
        match self {
            Self::Socket => "sock",
            Self::Note => "gids",
            Self::NewNote => "new",
        }
    }

    /// The file's name for the owner of `slot`.
    pub(super) fn path_for(self, slot: u16) -> PathBuf {
        format!("{slot}.{}", self.ending()).into()
    }

    /// The slot to which a file name belongs.
    fn owner_of(name: &str) -> Option<u16> {
        let (slot, ending) = name.split_once('.')?;
        Self::ALL.iter().any(|kind| kind.ending() == ending).then(|| slot.parse().ok())?
    }
}

/// An open `slots` file.
#[derive(Debug)]
struct SlotFile {
    fd: OwnedFd,
    id: FileId,
}

/// Device and inode.
type FileId = (u64, u64);

/// The slots that this process holds, for each file: a record lock does not exclude a process from
/// itself. One list serves all files, because a forking thread must hold the list's lock.
static HELD_SLOTS: Mutex<HeldSlots> = Mutex::new(HeldSlots { pid: 0, slots: Vec::new() });

#[derive(Debug)]
struct HeldSlots {
    /// The process whose list it is: a forked child inherits the list, but no locks.
    pid: pid_t,
    slots: Vec<(FileId, u16)>,
}

impl HeldSlots {
    fn are_none_of(&self, file: FileId) -> bool {
        !self.slots.iter().any(|(of, _)| *of == file)
    }
}

fn held_slots() -> MutexGuard<'static, HeldSlots> {
    let mut held = lock(&HELD_SLOTS);
    if held.pid != process::id() {
        *held = HeldSlots { pid: process::id(), slots: Vec::new() };
    }
    held
}

impl SlotFile {
    fn owner(&self, slot: u16) -> Option<pid_t> {
        // Treat a lock that cannot be examined as no proof of life.
        self.examine(slot).unwrap_or(None)
    }

    fn examine(&self, slot: u16) -> Result<Option<pid_t>, Errno> {
        if held_slots().slots.contains(&(self.id, slot)) {
            return Ok(Some(process::id()));
        }
        holder(self.fd.as_fd(), slot.into(), 1)
    }

    fn owned(&self, end: u16) -> Vec<u16> {
        let held = held_slots().slots.clone();
        let own = held.iter().filter(|(of, slot)| *of == self.id && *slot < end);
        let mut owned: Vec<u16> = own.map(|(_, slot)| *slot).collect();
        // Bisect the range: one call for each slot would be a thousand calls.
        let mut ranges = vec![(1, end)];
        while let Some((first, end)) = ranges.pop() {
            if first >= end {
                continue;
            }
            // F_GETLK reports any one of several locks, so only the existence of a lock is known. A
            // lock that cannot be examined is no proof of life.
            match holder(self.fd.as_fd(), first.into(), (end - first).into()) {
                Ok(Some(_)) if end - first == 1 => owned.push(first),
                Ok(Some(_)) => {
                    let middle = first.midpoint(end);
                    ranges.extend([(first, middle), (middle, end)]);
                }
                _ => {}
            }
        }
        owned
    }

    fn try_lock(&self, slot: u16) -> Result<bool, Errno> {
        let mut held = held_slots();
        let own = (self.id, slot);
        let free = !held.slots.contains(&own) && try_lock(self.fd.as_fd(), slot.into())?;
        if free {
            held.slots.push(own);
        }
        Ok(free)
    }

    fn give_back(&self, slot: u16) {
        let mut held = held_slots();
        held.slots.retain(|other| *other != (self.id, slot));
        let _ = unlock(self.fd.as_fd(), slot.into());
        if held.are_none_of(self.id) {
            // Drop the marks too.
            let _ = unlock_at(self.fd.as_fd(), MARKS_OFFSET.into(), 0);
        }
    }

    /// Whether no process holds a slot any more. Waits for a process that was killed a moment ago,
    /// whose locks the kernel is about to drop, so that the last process cleans up.
    fn is_last(&self) -> bool {
        if !held_slots().are_none_of(self.id) {
            return false;
        }
        let deadline = Instant::now() + DEATH_GRACE;
        loop {
            match holder(self.fd.as_fd(), 1, 0) {
                Ok(None) => return true,
                Ok(Some(pid)) if process::is_exiting(pid) && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(1));
                }
                _ => return false,
            }
        }
    }
}

/// All `slots` files that this process has open. This lock is the fabric's outermost lock. It
/// represents the directory's lock within the process. A thread that forks must
/// [hold](hold_registry) it, or the child may be unable to join.
static REGISTRY: Mutex<Registry> = Mutex::new(Registry(Vec::new()));

/// The locks of the registry and of the held slots during a fork; see [`hold_registry`].
#[derive(Debug)]
#[expect(dead_code, reason = "held, not read")]
pub struct RegistryHold(MutexGuard<'static, HeldSlots>, MutexGuard<'static, Registry>);

/// Waits until no other thread joins, leaves or examines slots, and blocks such threads until the
/// result is dropped. Call before fork(2), and drop the result in both processes.
pub fn hold_registry() -> RegistryHold {
    let registry = lock(&REGISTRY);
    RegistryHold(lock(&HELD_SLOTS), registry)
}

#[derive(Debug)]
struct Registry(Vec<Arc<SlotFile>>);

impl Registry {
    /// Opens the `slots` file of a directory, or returns the open one.
    fn open(&mut self, directory: &Directory) -> Result<Arc<SlotFile>, Errno> {
        // Compare device and inode *before* opening: closing a second descriptor would drop our
        // locks.
        if let Ok(stat) = directory.dir().stat(Path::new(SLOTS_FILE))
            && let Some(open) = self.0.iter().find(|open| open.id == stat.id)
        {
            return Ok(Arc::clone(open));
        }
        let fd = directory.dir().open_file(Path::new(SLOTS_FILE), directory.file_mode())?;
        let stat = dir::stat_fd(fd.as_fd())?;
        if stat.uid == process::user() {
            directory.share(fd.as_fd())?;
        }
        let file = Arc::new(SlotFile { fd, id: stat.id });
        self.0.push(Arc::clone(&file));
        Ok(file)
    }

    /// Closes the files that no fabric in this process uses.
    fn close_unused(&mut self) {
        self.0.retain(|file| Arc::strong_count(file) > 1);
    }
}

/// A reference to a [`SlotFile`]. The last reference closes the file under the registry's lock,
/// because another thread may be about to open the file again.
#[derive(Debug)]
struct FileHandle(Option<Arc<SlotFile>>);

impl FileHandle {
    fn get(&self) -> &Arc<SlotFile> {
        match &self.0 {
            Some(file) => file,
            None => unreachable!("only drop takes the file"),
        }
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        let mut registry = lock(&REGISTRY);
        self.0 = None;
        registry.close_unused();
    }
}

/// The lock of the directory, released on drop. Held only under the registry's lock.
struct Locked(Arc<SlotFile>);

impl std::ops::Deref for Locked {
    type Target = Arc<SlotFile>;
    fn deref(&self) -> &Arc<SlotFile> {
        &self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = unlock(self.0.fd.as_fd(), 0);
    }
}

fn lock_directory(
    directory: &Directory,
    file: Arc<SlotFile>,
    started: Instant,
    patience: Duration,
) -> Result<Locked, FabricError> {
    let path = slots_path(directory);
    let mut pause = Duration::from_micros(50);
    // Poll instead of F_SETLKW, which would wait for ever for a process that was stopped.
    while !try_lock(file.fd.as_fd(), 0)
        .map_err(|errno| unusable(&path, errno, "cannot be locked"))?
    {
        if started.elapsed() > patience {
            // For a process in another pid namespace the kernel reports no pid.
            let who = match holder(file.fd.as_fd(), 0, 1).ok().flatten() {
                Some(pid) if pid > 0 => format!("process {pid}"),
                _ => "a process of another pid namespace".into(),
            };
            return Err(FabricError::at_path(
                &path,
                Errno::EBUSY,
                format!("{who} keeps it locked, so that nobody can join"),
                &format!(
                    "continue or end that process, or set {DIR_VARIABLE} to another directory"
                ),
            ));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    Ok(Locked(file))
}

/// Takes the first free slot of `1..slots` behind the slot that was taken last, in the fabric's
/// order.
fn claim(directory: &Directory, file: &SlotFile, slots: Slots) -> Result<u16, FabricError> {
    let Slots { count: slots, first } = slots;
    let path = slots_path(directory);
    let failed = |errno| unusable(&path, errno, "cannot be locked");
    let word = dir::read_word(file.fd.as_fd()).map_err(failed)?;
    let turn = SlotOrder::decode(word).unwrap_or_else(|| SlotOrder::new(first));
    let count = slots.saturating_sub(1);
    for taken in 0..count {
        let at = ((u32::from(turn.next) + u32::from(taken)) % u32::from(count)) as u16;
        let slot = turn.slot(at, count);
        if file.try_lock(slot).map_err(failed)? {
            let turn = SlotOrder { next: (at + 1) % count, ..turn };
            // If the write fails, a slot may be reused sooner; nothing else depends on it.
            let _ = dir::write_word(file.fd.as_fd(), turn.word());
            return Ok(slot);
        }
    }
    Err(FabricError::at_path(
        directory.path(),
        Errno::ENOSPC,
        format!("all {} slots are taken by running processes", slots.saturating_sub(1)),
        "end some of them",
    ))
}

/// The order in which slots are given out, and the next position. Every word decodes to some order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotOrder {
    /// The seed of the order, 48 bits; 0: ascending order.
    secret: u64,
    /// The next position, modulo the number of positions.
    next: u16,
}

impl SlotOrder {
    /// The order of a new fabric. Different fabrics have different orders, so that a slot number of
    /// one fabric is most likely unused in another.
    fn new(first: Option<u16>) -> Self {
        match first {
            Some(first) => Self { secret: 0, next: first.saturating_sub(1) },
            None => Self { secret: process::random().unwrap_or(0) >> 16, next: 0 },
        }
    }

    /// Decodes the word of the file; `None`: a new file.
    fn decode(word: u64) -> Option<Self> {
        let next = (word as u16).checked_sub(1)?;
        Some(Self { secret: word >> 16, next })
    }

    const fn word(self) -> u64 {
        (self.secret << 16) | (self.next as u64 + 1)
    }

    /// The slot at `position` of this order, of the slots from 1 to `count`. `position` is below
    /// `count`.
    fn slot(self, position: u16, count: u16) -> u16 {
        if self.secret == 0 {
            return position + 1;
        }
        // A permutation of the numbers below a power of two, applied until the number is in range.
        // Each position has its own number, because each number has one predecessor.
        let bits = u16::BITS - count.leading_zeros();
        let mut number = u64::from(position);
        loop {
            number = self.permuted(number, bits);
            if number < u64::from(count) {
                return number as u16 + 1;
            }
        }
    }

    /// Another number of `bits` bits, different for each number.
    const fn permuted(self, mut number: u64, bits: u32) -> u64 {
        let (mut key, mut round) = (self.secret, 0);
        while round < 4 {
            // Modulo a power of two, an odd factor and a shift by at least one bit can be undone.
            number = number.wrapping_mul(key | 1).wrapping_add(key >> 24) & ((1 << bits) - 1);
            number ^= number >> bits.div_ceil(2);
            key = (key ^ key >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            round += 1;
        }
        number
    }
}

/// Removes the files of processes that are dead.
fn sweep(directory: &Directory, file: &SlotFile) {
    let path = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
    let entries = fs::read_dir(path).or_else(|_| fs::read_dir(directory.path()));
    for entry in entries.into_iter().flatten().flatten() {
        let name = PathBuf::from(entry.file_name());
        let slot = name.to_str().and_then(MemberFile::owner_of);
        if slot.is_some_and(|slot| file.owner(slot).is_none()) {
            let _ = directory.dir().unlink(&name);
        }
    }
}

/// Removes the file and the directory, unless a process still owns a slot.
fn remove_if_last(directory: &Directory, file: &Locked) {
    let name = Path::new(SLOTS_FILE);
    let current = directory.dir().stat(name).is_ok_and(|stat| stat.id == file.id);
    if current && file.is_last() {
        sweep(directory, file);
        // A process that waits for our lock finds that the file is gone, and starts again.
        let _ = directory.dir().unlink(name);
        directory.remove();
    }
}

/// Removes the directories of other network namespaces without living members. After a namespace's
/// end, no process of that namespace can do so.
fn remove_dead(directory: &Directory, registry: &mut Registry) {
    for other in directory.of_other_namespaces() {
        if other.dir().stat(Path::new(SLOTS_FILE)).is_err() {
            // Remove the directory only if it is empty. A process that is about to create the file
            // creates the directory again.
            other.remove();
            continue;
        }
        let Ok(file) = registry.open(&other) else { continue };
        if file.is_last() && try_lock(file.fd.as_fd(), 0) == Ok(true) {
            remove_if_last(&other, &Locked(file));
        }
    }
    registry.close_unused();
}

fn slots_path(directory: &Directory) -> PathBuf {
    directory.path().join(SLOTS_FILE)
}

/// The byte that locks all marks. The marks are the bytes behind it.
const MARKS_OFFSET: u32 = u32::MAX;

/// How long the kernel may take to end a killed process.
const DEATH_GRACE: Duration = Duration::from_millis(500);

/// How long a leaving process waits for the directory's lock in order to clean up.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// All slots of `1..slots`, in this order.
    fn order(turn: SlotOrder, slots: u16) -> Vec<u16> {
        (0..slots - 1).map(|position| turn.slot(position, slots - 1)).collect()
    }

    #[test]
    fn each_fabric_has_its_own_order_that_contains_every_slot() {
        let turns: Vec<SlotOrder> = (0..20).map(|_| SlotOrder::new(None)).collect();
        let mut steps = std::collections::BTreeSet::new();
        for turn in &turns {
            assert_eq!(SlotOrder::decode(turn.word()), Some(*turn));
            let mut order = order(*turn, 100);
            steps.extend(order.windows(2).take(9).map(|pair| pair[1].wrapping_sub(pair[0])));
            order.sort_unstable();
            assert!(order.into_iter().eq(1..100));
        }
        // Count steps other than 1 between successive slots, of 180 pairs.
        assert!(steps.len() > 80, "{} steps", steps.len());
        let plain = SlotOrder::new(Some(7));
        assert_eq!(SlotOrder::decode(plain.word()), Some(plain));
        assert!(order(plain, 10).into_iter().eq(1..10) && plain.next == 6);
    }

    #[test]
    fn every_word_of_the_slots_file_decodes_to_an_order_or_a_new_file() {
        for word in [0, 1, 0xffff, 0x1_0000, u64::MAX, u64::MAX << 16] {
            let turn = SlotOrder::decode(word).unwrap_or_else(|| SlotOrder::new(None));
            assert_eq!(order(turn, 2), [1]);
            for slots in [3, 4, 5, 8, 9, 1000, 1024, 1025] {
                let mut order = order(turn, slots);
                order.sort_unstable();
                assert!(order.into_iter().eq(1..slots), "{word:x}: {slots}");
            }
        }
    }

    #[test]
    fn the_fork_hold_covers_all_locks_that_a_child_needs_to_join() {
        let held = hold_registry();
        assert!(REGISTRY.try_lock().is_err() && HELD_SLOTS.try_lock().is_err());
        drop(held);
        // Both locks are free again when no other thread in this process holds them.
        drop((lock(&REGISTRY), lock(&HELD_SLOTS)));
    }
}
