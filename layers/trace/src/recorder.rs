//! The ring of records: a file that the process has mapped. What was written is in it however the process ends, and another process can read it
//! meanwhile (`layer_records::trace`).

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use cface::shared::Shared;
use layer_records::file::HEAD;
use layer_records::trace::{AT_TAKEN, CHUNK, MAGIC, RECORD, Record, Trace, WORDS};
use layer_records::{names, text};
use layer_tap::file;

use crate::settings::settings;

/// Lines of text that are written for an error.
const LINES: usize = 1000;

/// The mapping; NULL before the first record, and for good when there can be none.
static RING: AtomicPtr<u64> = AtomicPtr::new(core::ptr::null_mut());
/// Records in it, a power of two. Written before `RING`.
static CAPACITY: AtomicU64 = AtomicU64::new(0);
/// Counts forks: what a thread has of the parent's ring is nothing here.
static GENERATION: AtomicU32 = AtomicU32::new(1);
/// Something went wrong in this process: its file stays.
static KEEP: AtomicBool = AtomicBool::new(false);
/// Making a file was tried, with or without success. Order: a leaf, nothing is called under it but the system.
static FILE: Shared<State> = Shared::new(State { tried: false, path: None });

struct State {
    tried: bool,
    path: Option<PathBuf>,
}

/// What a thread may write next.
#[derive(Clone, Copy)]
struct Part {
    generation: u32,
    next: u64,
    end: u64,
}

thread_local! {
    static PART: Cell<Part> = const { Cell::new(Part { generation: 0, next: 0, end: 0 }) };
}

/// Writes a record. It takes the place of one that is as old as the ring is long.
#[inline]
pub(crate) fn write(record: &Record) {
    let mut base = RING.load(Ordering::Acquire);
    if base.is_null() {
        base = make();
        if base.is_null() {
            return;
        }
    }
    let capacity = CAPACITY.load(Ordering::Relaxed);
    // SAFETY: a word of the mapping's head, which is only used as an atomic.
    let taken = unsafe { AtomicU64::from_ptr(base.add(AT_TAKEN)) };
    let generation = GENERATION.load(Ordering::Relaxed);
    let mut part = PART.try_with(Cell::get).unwrap_or(Part { generation: 0, next: 0, end: 0 });
    // A thread that writes seldom finds that others have come round to its part.
    let is_old =
        || (taken.load(Ordering::Relaxed) * CHUNK).saturating_sub(part.end) >= capacity - CHUNK;
    if part.next == part.end || part.generation != generation || is_old() {
        let next = taken.fetch_add(1, Ordering::Relaxed) * CHUNK;
        part = Part { generation, next, end: next + CHUNK };
    }
    let place = (part.next & (capacity - 1)) as usize;
    // SAFETY: `place` is within the ring, which lies behind the head and has so many records.
    unsafe {
        let at = base.add(HEAD / 8 + place * WORDS);
        // Whoever reads meanwhile, or after we died here, sees that it is not whole.
        AtomicU64::from_ptr(at).store(0, Ordering::Relaxed);
        core::sync::atomic::fence(Ordering::Release);
        for (index, word) in record.pack().into_iter().enumerate() {
            AtomicU64::from_ptr(at.add(1 + index)).store(word, Ordering::Relaxed);
        }
        AtomicU64::from_ptr(at).store(part.next + 1, Ordering::Release);
    }
    part.next += 1;
    let place = (part.next & (capacity - 1)) as usize;
    // SAFETY: `place` is within the ring, as above.
    fetch(unsafe { base.add(HEAD / 8 + place * WORDS) });
    let _ = PART.try_with(|cell| cell.set(part));
}

/// Has the processor fetch the record that comes next, if it is this thread's: the ring is longer than its caches, and there is time until then.
#[inline]
fn fetch(record: *const u64) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..RECORD / 64 {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a hint, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(record.wrapping_add(line * 8).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = record;
}

/// Makes the file. NULL if there can be none, which is told once.
#[cold]
#[inline(never)]
fn make() -> *mut u64 {
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
            eprintln!("ferroverbs trace: nothing is recorded: {why}");
            core::ptr::null_mut()
        }
    }
}

fn open() -> Result<(PathBuf, *mut u64), String> {
    let capacity = settings().records;
    let dir = settings().dir.as_deref();
    let wanted = file::Wanted { layer: "trace", dir, magic: MAGIC, capacity, record: RECORD };
    let made = file::make(&wanted)?;
    CAPACITY.store(capacity, Ordering::Relaxed);
    Ok(made)
}

/// The file stays when the process ends.
pub(crate) fn keep() {
    KEEP.store(true, Ordering::Relaxed);
}

/// Writes what is in the ring as text, beside the file, and says where.
#[cold]
pub(crate) fn dump(qp: u32, wr_id: u64, status: u32) {
    keep();
    let base = RING.load(Ordering::Acquire);
    let Some(path) = FILE.lock().path.clone() else { return };
    if base.is_null() {
        return;
    }
    let words = HEAD / 8 + CAPACITY.load(Ordering::Relaxed) as usize * WORDS;
    let mut bytes = Vec::with_capacity(words * 8);
    for index in 0..words {
        // SAFETY: within the mapping, whose words are only used as atomics once others know it.
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
        Ok(()) => eprintln!(
            "ferroverbs trace: qp {qp:#x} wr_id {wr_id:#x}: {status}; what came before it is in {}",
            file.display()
        ),
        Err(e) => eprintln!("ferroverbs trace: cannot write {}: {e}", file.display()),
    }
}

/// When all went well nobody needs the file.
pub(crate) extern "C" fn at_exit() {
    if settings().keep || KEEP.load(Ordering::Relaxed) {
        return;
    }
    if let Some(path) = FILE.lock().path.take() {
        let _ = fs::remove_file(path);
    }
}

/// To fork: nobody makes the file until the result is dropped.
pub(crate) fn hold() -> cface::lock::Guard {
    FILE.hold()
}

/// In the child of a fork, when its locks are given back: the ring is the parent's.
pub(crate) fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    KEEP.store(false, Ordering::Relaxed);
    let mut state = FILE.lock();
    // What of the parent's is mapped here stays so: another thread of the parent cannot be in it, but unmapping gains nothing.
    RING.store(core::ptr::null_mut(), Ordering::Release);
    *state = State { tried: false, path: None };
}
