//! The packet files of a process. Blocks are gathered and written whole. A full file is followed
//! by the next; a full disk ends the capture.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use cface::cancel::Uncancelled;
use cface::lock::Guard;
use cface::shared::StaticMutex;
use layer_records::pcapng::{self, Link, Packet};
use layer_tap::file;

use crate::rest::UnwrittenBlocks;
use crate::settings::settings;

/// Gathered bytes that cause a write.
const MAX_WAITING_BYTES: usize = 64 << 10;
/// Longest time of a block in memory in nanoseconds, while packets arrive or a CQ is polled.
const MAX_WAIT: u64 = 50_000_000;
/// The program name in a file's head.
pub(crate) const PROGRAM: &str = concat!("ferroverbs capture ", env!("CARGO_PKG_VERSION"));

/// The comment in a file's head.
const COMMENT: &str = "Interfaces say of themselves what their packets are: synthesised from verbs calls, or of the wire. \
     Ethernet addresses are made up in any case.";

/// An interface of the files.
struct Interface {
    link: Link,
    name: String,
    description: &'static str,
}

struct PacketFiles {
    interfaces: Vec<Interface>,
    /// The current file.
    file: Option<File>,
    /// Number of files begun.
    begun: u64,
    /// Complete blocks that are not in the file yet; `None` before the first block.
    unwritten: Option<UnwrittenBlocks>,
    /// A buffer for building a block.
    block: Vec<u8>,
    /// Bytes in the current file.
    written: u64,
    /// The largest size of a file (RLIMIT_FSIZE). A write beyond the limit would kill the process.
    limit: u64,
    /// Whether the capture has ended.
    is_closed: bool,
    /// The difference of CLOCK_REALTIME to CLOCK_MONOTONIC, in nanoseconds.
    epoch: u64,
}

/// Lock order: a leaf; only system calls run under the lock.
static FILES: StaticMutex<PacketFiles> = StaticMutex::new(PacketFiles {
    interfaces: Vec::new(),
    file: None,
    begun: 0,
    unwritten: None,
    block: Vec::new(),
    written: 0,
    limit: u64::MAX,
    is_closed: false,
    epoch: 0,
});
/// Whether blocks wait. Written under the lock.
static WAITS: AtomicBool = AtomicBool::new(false);
/// Whether the process is at its end.
static EXITING: AtomicBool = AtomicBool::new(false);
/// The time of the first waiting block, by CLOCK_MONOTONIC.
static SINCE: AtomicU64 = AtomicU64::new(0);

/// The index of an interface, for [`write()`], the same in all files of the process.
pub(crate) fn interface(link: Link, name: &str, description: &'static str) -> u32 {
    let mut state = FILES.lock();
    let is_it = |known: &Interface| {
        known.link == link && known.name == name && known.description == description
    };
    if let Some(index) = state.interfaces.iter().position(is_it) {
        return index as u32;
    }
    if state.file.is_some() {
        state.add(|block| {
            pcapng::interface(block, link, settings().snap as u32, name, description);
        });
    }
    state.interfaces.push(Interface { link, name: name.to_owned(), description });
    state.interfaces.len() as u32 - 1
}

/// Writes a packet, whose time is of CLOCK_MONOTONIC. `at_once` writes all waiting blocks.
pub(crate) fn write(packet: &Packet<'_>, at_once: bool) {
    let mut state = FILES.lock();
    let state = &mut *state;
    if state.is_closed || (state.file.is_none() && !state.begin()) {
        return;
    }
    let time = packet.time.wrapping_add(state.epoch);
    state.add(|block| pcapng::packet(block, &Packet { time, ..*packet }));
    if !WAITS.load(Ordering::Relaxed) {
        WAITS.store(true, Ordering::Relaxed);
        SINCE.store(packet.time, Ordering::Relaxed);
    }
    let waited = packet.time.saturating_sub(SINCE.load(Ordering::Relaxed));
    let waiting = state.waiting().len();
    if at_once
        || waited >= MAX_WAIT
        || waiting >= MAX_WAITING_BYTES
        || EXITING.load(Ordering::Relaxed)
    {
        state.flush();
    }
    if state.written + state.waiting().len() as u64 >= settings().size {
        state.close();
    }
}

/// Writes the waiting blocks if the first of them is old.
#[inline]
pub(crate) fn idle() {
    if WAITS.load(Ordering::Relaxed)
        && layer_tap::now().saturating_sub(SINCE.load(Ordering::Relaxed)) >= MAX_WAIT
    {
        flush();
    }
}

/// Writes the waiting blocks.
#[cold]
pub(crate) fn flush() {
    if WAITS.load(Ordering::Relaxed) {
        FILES.lock().flush();
    }
}

/// Writes the waiting blocks at exit.
pub(crate) extern "C" fn at_exit() {
    // Later packets of other threads or exit handlers are written at once.
    EXITING.store(true, Ordering::Relaxed);
    flush();
    if let Some(rest) = &FILES.lock().unwritten {
        rest.remove();
    }
}

/// For a fork: writes the waiting blocks, which the child would write again, and holds the lock.
pub(crate) fn hold() -> Guard {
    flush();
    FILES.hold()
}

/// In the child of a fork, after the locks are released: the file belongs to the parent.
pub(crate) fn forked() {
    let mut state = FILES.lock();
    WAITS.store(false, Ordering::Relaxed);
    // Closes the child's descriptor of the parent's file.
    state.file = None;
    // Unmaps the child's view of the parent's waiting blocks.
    state.unwritten = None;
    (state.begun, state.is_closed) = (0, false);
}

impl PacketFiles {
    /// Begins a file. A failure returns false, and is reported once.
    #[cold]
    fn begin(&mut self) -> bool {
        let _uncancelled = Uncancelled::begin();
        match self.open() {
            Ok(file) => {
                self.file = Some(file);
                self.written = 0;
                let comment = self.comment();
                self.add(|block| pcapng::section(block, PROGRAM, &comment));
                let snap = settings().snap as u32;
                for one in core::mem::take(&mut self.interfaces) {
                    self.add(|block| {
                        pcapng::interface(block, one.link, snap, &one.name, one.description);
                    });
                    self.interfaces.push(one);
                }
                true
            }
            Err(why) => {
                self.end(&why);
                false
            }
        }
    }

    fn comment(&self) -> String {
        let exe = std::env::current_exe().unwrap_or_default();
        let name = exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
        format!("Process {} ({name}), file {}. {COMMENT}", std::process::id(), self.begun)
    }

    fn open(&mut self) -> Result<File, String> {
        let settings = settings();
        if self.begun == 0 {
            if settings.dir.is_none() {
                // Creates the folder, and removes the oldest files.
                file::user_folder("capture", ".pcapng")?;
            }
            let real = file::clock(libc::CLOCK_REALTIME);
            self.epoch = real.wrapping_sub(file::clock(libc::CLOCK_MONOTONIC));
            self.unwritten = Some(UnwrittenBlocks::create(settings.dir.as_deref())?);
        }
        if let Some(old) = self.begun.checked_sub(settings.files) {
            // The file may have been removed already.
            let _ = fs::remove_file(self.path(old));
        }
        self.limit = file::size_limit();
        let path = self.path(self.begun);
        if let Some(rest) = &mut self.unwritten {
            rest.begin(self.begun);
        }
        self.begun += 1;
        let made = File::options().write(true).create_new(true).mode(0o600).open(&path);
        made.map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The name of file number `index` of this process.
    fn path(&self, index: u64) -> PathBuf {
        let mut path =
            self.unwritten.as_ref().map(UnwrittenBlocks::stem).unwrap_or_default().into_os_string();
        path.push(format!("-{index:04}.pcapng"));
        path.into()
    }

    fn flush(&mut self) {
        // All cancellation points of the writer are in `flush` and `begin`.
        let _uncancelled = Uncancelled::begin();
        WAITS.store(false, Ordering::Relaxed);
        let Some(file) = &self.file else { return };
        let descriptor = file.as_raw_fd();
        if self.written + self.waiting().len() as u64 > self.limit {
            self.end("the limit of files' sizes (ulimit -f) is reached");
            return;
        }
        let mut rest = self.waiting();
        while !rest.is_empty() {
            // SAFETY: `rest` is readable, and the descriptor is open.
            let got = unsafe { libc::write(descriptor, rest.as_ptr().cast(), rest.len()) };
            let error = std::io::Error::last_os_error();
            if got < 0 && error.kind() == std::io::ErrorKind::Interrupted {
                continue;
            }
            if got <= 0 {
                // An incomplete block would be an error to readers.
                // SAFETY: the descriptor is open.
                unsafe { libc::ftruncate(descriptor, self.written.cast_signed()) };
                let path = self.path(self.begun.saturating_sub(1));
                self.end(&format!("{}: {error}", path.display()));
                return;
            }
            rest = rest.get(got.cast_unsigned()..).unwrap_or_default();
        }
        self.written += self.waiting().len() as u64;
        if let Some(rest) = &mut self.unwritten {
            rest.written();
        }
    }

    /// Ends a full file.
    #[cold]
    fn close(&mut self) {
        self.flush();
        let _uncancelled = Uncancelled::begin();
        self.file = None;
    }

    fn waiting(&self) -> &[u8] {
        self.unwritten.as_ref().map_or(&[], UnwrittenBlocks::bytes)
    }

    /// Adds a block to the waiting ones. They have room for the gathered blocks and the longest
    /// block.
    fn add(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        let mut block = core::mem::take(&mut self.block);
        block.clear();
        fill(&mut block);
        if !self.unwritten.as_mut().is_some_and(|rest| rest.push(&block)) {
            self.flush();
            let _ = self.unwritten.as_mut().is_some_and(|rest| rest.push(&block));
        }
        self.block = block;
    }

    /// Ends the capture for the reason `why`.
    #[cold]
    fn end(&mut self, why: &str) {
        (self.is_closed, self.file) = (true, None);
        if let Some(rest) = self.unwritten.take() {
            rest.remove();
        }
        cface::say!("ferroverbs capture: no more packets are captured: {why}");
    }
}
