//! The ring of records of the layer `trace`, in a mapped file (`layer_records::trace`). Records
//! survive any end of the process, and another process can read them meanwhile.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use cface::shared::StaticMutex;
use layer_records::file::HEAD;
use layer_records::trace::{ARGS, AT_TAKEN, CHUNK, MAGIC, RECORD, Trace, WORDS};
use layer_records::{names, text};
use layer_tap::{Call, Times, file};

use crate::settings::settings;

/// Lines of text that are written for an error.
const LINES: usize = 1000;

/// The mapping. NULL before the first record, or if no file can be made.
static RING: AtomicPtr<u64> = AtomicPtr::new(core::ptr::null_mut());
/// Records in the ring, a power of two. Stored before `RING`.
static CAPACITY: AtomicU64 = AtomicU64::new(0);
/// The number of forks, plus 1. A thread's place in the parent's ring is invalid in the child.
static GENERATION: AtomicU32 = AtomicU32::new(1);
/// Whether the file stays at exit, because an error occurred.
static KEEP: AtomicBool = AtomicBool::new(false);
/// The file of this process. Lock order: a leaf; only system calls run under the lock.
static FILE: StaticMutex<TraceFile> = StaticMutex::new(TraceFile { tried: false, path: None });

struct TraceFile {
    tried: bool,
    path: Option<PathBuf>,
}

/// A thread's part of the ring. A record needs only this thread-local memory and the ring.
pub(crate) struct ThreadRing {
    /// The value of `GENERATION` for which the other fields are valid; 0 for none.
    generation: Cell<u32>,
    thread: Cell<u32>,
    ring: Cell<*mut u64>,
    /// Records of the ring, less one.
    mask: Cell<u64>,
    /// The next record of this thread, and the end of its chunk.
    next: Cell<u64>,
    end: Cell<u64>,
    /// Empty polls since the last completion.
    empty: Cell<u64>,
    /// The time of the last record.
    time: Cell<u64>,
}

impl ThreadRing {
    /// Returns the number of empty polls since the last call.
    #[inline]
    pub(crate) fn take_empty_polls(&self) -> u64 {
        self.empty.replace(0)
    }
}

thread_local! {
    static THREAD_RING: ThreadRing = const { ThreadRing {
        generation: Cell::new(0),
        thread: Cell::new(0),
        ring: Cell::new(core::ptr::null_mut()),
        mask: Cell::new(0),
        next: Cell::new(0),
        end: Cell::new(0),
        empty: Cell::new(0),
        time: Cell::new(0),
    } };
}

/// Counts an empty poll.
#[inline]
pub(crate) fn polled_empty() {
    // A thread may poll during its exit, after its thread-local memory is gone.
    let _ = THREAD_RING.try_with(|local| local.empty.set(local.empty.get().wrapping_add(1)));
}

/// The fields of a record before its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordHead {
    pub(crate) call: Call,
    pub(crate) times: Times,
    pub(crate) error: i32,
    pub(crate) result: u64,
}

/// Writes a record over the oldest record of the ring.
#[inline(always)]
pub(crate) fn write(head: &RecordHead, args: impl FnOnce(&ThreadRing) -> [u64; ARGS]) {
    let _ = THREAD_RING.try_with(|local| {
        if !is_ready(local) && !prepare(local) {
            return;
        }
        let (base, mask, next) = (local.ring.get(), local.mask.get(), local.next.get());
        let duration = head.times.end.saturating_sub(head.times.start);
        let duration = u32::try_from(duration).unwrap_or(u32::MAX);
        let (call, error) = (head.call as u64, u64::from(head.error.cast_unsigned()));
        // A posted receive has no time of its own, and takes the time of the record before.
        let start = if head.times.start == 0 { local.time.get() } else { head.times.start };
        local.time.set(start.max(head.times.end));
        let begin = [
            start,
            u64::from(duration) | u64::from(local.thread.get()) << 32,
            call | error << 32,
            head.result,
        ];
        let args = args(local);
        let place = (next & mask) as usize;
        // SAFETY: `place` is within the ring, whose records follow the head.
        unsafe {
            let at = base.add(HEAD / 8 + place * WORDS);
            // Stamp 0 marks an incomplete record. A reader meanwhile, or after the process died
            // here, skips the record.
            AtomicU64::from_ptr(at).store(0, Ordering::Relaxed);
            core::sync::atomic::fence(Ordering::Release);
            // The layout is that of `Record::pack`. Two loops of known length avoid a temporary
            // array: one loop over both took half as long again.
            for (index, word) in begin.iter().enumerate() {
                AtomicU64::from_ptr(at.add(1 + index)).store(*word, Ordering::Relaxed);
            }
            for (index, word) in args.iter().enumerate() {
                let at = at.add(1 + begin.len() + index);
                AtomicU64::from_ptr(at).store(*word, Ordering::Relaxed);
            }
            AtomicU64::from_ptr(at).store(next + 1, Ordering::Release);
        }
        local.next.set(next + 1);
        let place = ((next + 1) & mask) as usize;
        // SAFETY: `place` is within the ring, whose records follow the head.
        fetch(unsafe { base.add(HEAD / 8 + place * WORDS) });
    });
}

/// Whether the thread has a place for its next record.
#[inline(always)]
fn is_ready(local: &ThreadRing) -> bool {
    let (end, capacity) = (local.end.get(), local.mask.get() + 1);
    // The ring may have wrapped around a thread that writes rarely.
    let is_new = || {
        // SAFETY: a word of the mapping's head, used as an atomic only. A thread of this
        // generation has a ring.
        let taken = unsafe { AtomicU64::from_ptr(local.ring.get().add(AT_TAKEN)) };
        let last = taken.load(Ordering::Relaxed) * CHUNK;
        last.saturating_sub(end) < capacity - CHUNK
    };
    local.generation.get() == GENERATION.load(Ordering::Relaxed)
        && local.next.get() != end
        && is_new()
}

/// Gives the thread its next chunk of the ring. Returns false if no file can be made.
#[cold]
#[inline(never)]
fn prepare(local: &ThreadRing) -> bool {
    let mut base = RING.load(Ordering::Acquire);
    if base.is_null() {
        base = make_file();
        if base.is_null() {
            return false;
        }
    }
    // SAFETY: a word of the mapping's head, used as an atomic only.
    let taken = unsafe { AtomicU64::from_ptr(base.add(AT_TAKEN)) };
    let next = taken.fetch_add(1, Ordering::Relaxed) * CHUNK;
    local.ring.set(base);
    local.mask.set(CAPACITY.load(Ordering::Relaxed) - 1);
    local.next.set(next);
    local.end.set(next + CHUNK);
    local.thread.set(layer_tap::thread());
    if local.time.get() == 0 {
        local.time.set(layer_tap::now());
    }
    local.generation.set(GENERATION.load(Ordering::Relaxed));
    true
}

/// Prefetches the thread's next record. The ring is larger than the caches, and the prefetch has
/// time until the next record.
#[inline]
fn fetch(record: *const u64) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..RECORD / 64 {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch is valid for any address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(record.wrapping_add(line * 8).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = record;
}

/// Makes the file. A failure returns NULL, and is reported once.
#[cold]
#[inline(never)]
fn make_file() -> *mut u64 {
    let mut state = FILE.lock();
    if state.tried {
        return RING.load(Ordering::Acquire);
    }
    state.tried = true;
    match open() {
        Ok((path, base)) => {
            state.path = Some(path);
            RING.store(base, Ordering::Release);
            base
        }
        Err(why) => {
            cface::say!("ferroverbs trace: nothing is recorded: {why}");
            core::ptr::null_mut()
        }
    }
}

fn open() -> Result<(PathBuf, *mut u64), String> {
    let capacity = settings().records;
    let dir = settings().dir.as_deref();
    let wanted = file::FileRequest { layer: "trace", dir, magic: MAGIC, capacity, record: RECORD };
    let made = file::make(&wanted)?;
    CAPACITY.store(capacity, Ordering::Relaxed);
    Ok(made)
}

/// Keeps the file when the process ends.
pub(crate) fn keep_file() {
    KEEP.store(true, Ordering::Relaxed);
}

/// Writes the content of the ring as text, beside the file, and prints the name of the text.
#[cold]
pub(crate) fn dump(qp: u32, wr_id: u64, status: u32) {
    keep_file();
    let base = RING.load(Ordering::Acquire);
    let Some(path) = FILE.lock().path.clone() else { return };
    if base.is_null() {
        return;
    }
    let words = HEAD / 8 + CAPACITY.load(Ordering::Relaxed) as usize * WORDS;
    let mut bytes = Vec::with_capacity(words * 8);
    for index in 0..words {
        // SAFETY: the index is within the mapping, whose words are used as atomics only.
        let word = unsafe { AtomicU64::from_ptr(base.add(index)) }.load(Ordering::Relaxed);
        bytes.extend(word.to_ne_bytes());
    }
    let Ok(trace) = Trace::read(&bytes) else { return };
    let mut lines = vec![text::title(&trace)];
    let skipped = trace.records.len().saturating_sub(LINES);
    if skipped > 0 {
        lines.push(format!(
            "({skipped} of them before these: ferroverbs trace show {})",
            path.display()
        ));
    }
    lines.extend(trace.records.iter().skip(skipped).map(|record| text::line(&trace, record)));
    lines.push(String::new());
    let file = path.with_extension("txt");
    let written = File::options().create(true).write(true).truncate(true).mode(0o600).open(&file);
    let written = written
        .and_then(|mut file| std::io::Write::write_all(&mut file, lines.join("\n").as_bytes()));
    let status = names::status(status).unwrap_or("an unknown status");
    match written {
        Ok(()) => cface::say!(
            "ferroverbs trace: qp {qp:#x} wr_id {wr_id:#x}: {status}; what came before it is in {}",
            file.display()
        ),
        Err(e) => cface::say!("ferroverbs trace: cannot write {}: {e}", file.display()),
    }
}

/// Removes the file at exit if no error occurred.
pub(crate) extern "C" fn at_exit() {
    if settings().keeps_file || KEEP.load(Ordering::Relaxed) {
        return;
    }
    if let Some(path) = FILE.lock().path.take() {
        let _ = fs::remove_file(path);
    }
}

/// For a fork: no thread makes the file until the result is dropped.
pub(crate) fn hold() -> cface::lock::Guard {
    FILE.hold()
}

/// In the child of a fork, after the locks are released: the ring belongs to the parent.
pub(crate) fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    KEEP.store(false, Ordering::Relaxed);
    let mut state = FILE.lock();
    // The parent's mapping stays, because unmapping would gain nothing.
    RING.store(core::ptr::null_mut(), Ordering::Release);
    *state = TraceFile { tried: false, path: None };
}
