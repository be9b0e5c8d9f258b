//! The file of a process: blocks are gathered and written whole, another file begins when one is full, and a disk that is full ends it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use cface::cancel::Uncancelled;
use cface::lock::Guard;
use cface::shared::Shared;
use layer_records::pcapng::{self, Link, Packet};
use layer_tap::file;

use crate::rest::Rest;
use crate::settings::settings;

/// Bytes that are gathered before they are written.
const GATHERED: usize = 64 << 10;
/// Nanoseconds that they wait at most, as long as anything is captured or a queue is polled in vain.
const WAIT: u64 = 50_000_000;
/// Who wrote it.
pub(crate) const PROGRAM: &str = concat!("ferroverbs capture ", env!("CARGO_PKG_VERSION"));

/// What a file's head says.
const COMMENT: &str = "Interfaces say of themselves what their packets are: synthesised from verbs calls, or of the wire. \
     Ethernet addresses are made up in any case.";

/// Where packets belong.
struct Interface {
    link: Link,
    name: String,
    description: &'static str,
}

struct State {
    interfaces: Vec<Interface>,
    /// The file that is written.
    file: Option<File>,
    /// Files that were begun.
    begun: u64,
    /// Whole blocks that are not in the file yet; none before the first.
    rest: Option<Rest>,
    /// Room for putting a block together.
    block: Vec<u8>,
    /// Bytes in the file.
    written: u64,
    /// Bytes that a file of this process may have: beyond them the kernel would kill it (RLIMIT_FSIZE).
    limit: u64,
    /// Nothing is captured any more.
    over: bool,
    /// What has to be added to CLOCK_MONOTONIC for CLOCK_REALTIME.
    epoch: u64,
}

/// Order: a leaf, nothing is called under it but the system.
static STATE: Shared<State> = Shared::new(State {
    interfaces: Vec::new(),
    file: None,
    begun: 0,
    rest: None,
    block: Vec::new(),
    written: 0,
    limit: u64::MAX,
    over: false,
    epoch: 0,
});
/// Something waits. Written under the lock.
static WAITS: AtomicBool = AtomicBool::new(false);
/// The process ends.
static OVER: AtomicBool = AtomicBool::new(false);
/// When it began to; CLOCK_MONOTONIC.
static SINCE: AtomicU64 = AtomicU64::new(0);

/// The number of an interface, for [`write()`]; it has it in all files of the process.
pub(crate) fn interface(link: Link, name: &str, description: &'static str) -> u32 {
    let mut state = STATE.lock();
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

/// Writes a packet; its time is one of CLOCK_MONOTONIC. `at_once`: nothing waits behind it.
pub(crate) fn write(packet: &Packet<'_>, at_once: bool) {
    let mut state = STATE.lock();
    let state = &mut *state;
    if state.over || (state.file.is_none() && !state.begin()) {
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
    if at_once || waited >= WAIT || waiting >= GATHERED || OVER.load(Ordering::Relaxed) {
        state.flush();
    }
    if state.written + state.waiting().len() as u64 >= settings().size {
        state.close();
    }
}

/// Writes what waits, if it does so for long.
#[inline]
pub(crate) fn idle() {
    if WAITS.load(Ordering::Relaxed)
        && layer_tap::now().saturating_sub(SINCE.load(Ordering::Relaxed)) >= WAIT
    {
        flush();
    }
}

/// Writes what waits.
#[cold]
pub(crate) fn flush() {
    if WAITS.load(Ordering::Relaxed) {
        STATE.lock().flush();
    }
}

/// The process ends.
pub(crate) extern "C" fn at_exit() {
    // What other threads, or functions that are called later, capture from now on does not wait.
    OVER.store(true, Ordering::Relaxed);
    flush();
    if let Some(rest) = &STATE.lock().rest {
        rest.remove();
    }
}

/// To fork: nobody writes until the result is dropped, and nothing waits that the child would write, too.
pub(crate) fn hold() -> Guard {
    flush();
    STATE.hold()
}

/// In the child of a fork, when its locks are given back: the file is the parent's.
pub(crate) fn forked() {
    let mut state = STATE.lock();
    WAITS.store(false, Ordering::Relaxed);
    // Closes the child's descriptor of it.
    state.file = None;
    // Its mapping is the parent's, too, which goes on with it.
    state.rest = None;
    (state.begun, state.over) = (0, false);
}

impl State {
    /// Begins a file; `false`: there can be none, which is told once.
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
                // Without the oldest files.
                file::own("capture", ".pcapng")?;
            }
            let real = file::clock(libc::CLOCK_REALTIME);
            self.epoch = real.wrapping_sub(file::clock(libc::CLOCK_MONOTONIC));
            self.rest = Some(Rest::make(settings.dir.as_deref())?);
        }
        if let Some(old) = self.begun.checked_sub(settings.files) {
            // Whoever took it away did so for us.
            let _ = fs::remove_file(self.path(old));
        }
        self.limit = file::longest();
        let path = self.path(self.begun);
        if let Some(rest) = &mut self.rest {
            rest.begin(self.begun);
        }
        self.begun += 1;
        let made = File::options().write(true).create_new(true).mode(0o600).open(&path);
        made.map_err(|e| format!("{}: {e}", path.display()))
    }

    /// File number `index` of this process.
    fn path(&self, index: u64) -> PathBuf {
        let mut path = self.rest.as_ref().map(Rest::stem).unwrap_or_default().into_os_string();
        path.push(format!("-{index:04}.pcapng"));
        path.into()
    }

    fn flush(&mut self) {
        // All that a thread can be cancelled in is called here, or where a file begins.
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
            // SAFETY: bytes of ours, a descriptor of ours.
            let got = unsafe { libc::write(descriptor, rest.as_ptr().cast(), rest.len()) };
            let error = std::io::Error::last_os_error();
            if got < 0 && error.kind() == std::io::ErrorKind::Interrupted {
                continue;
            }
            if got <= 0 {
                // What is there of a block that is cut would make readers complain.
                // SAFETY: a descriptor of ours.
                unsafe { libc::ftruncate(descriptor, self.written.cast_signed()) };
                let path = self.path(self.begun.saturating_sub(1));
                self.end(&format!("{}: {error}", path.display()));
                return;
            }
            rest = rest.get(got.cast_unsigned()..).unwrap_or_default();
        }
        self.written += self.waiting().len() as u64;
        if let Some(rest) = &mut self.rest {
            rest.written();
        }
    }

    /// The file is full.
    #[cold]
    fn close(&mut self) {
        self.flush();
        let _uncancelled = Uncancelled::begin();
        self.file = None;
    }

    fn waiting(&self) -> &[u8] {
        self.rest.as_ref().map_or(&[], Rest::bytes)
    }

    /// Adds a block to what waits; there is room for all that is gathered and the longest one behind it.
    fn add(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        let mut block = core::mem::take(&mut self.block);
        block.clear();
        fill(&mut block);
        if !self.rest.as_mut().is_some_and(|rest| rest.push(&block)) {
            self.flush();
            let _ = self.rest.as_mut().is_some_and(|rest| rest.push(&block));
        }
        self.block = block;
    }

    /// Nothing is captured any more.
    #[cold]
    fn end(&mut self, why: &str) {
        (self.over, self.file) = (true, None);
        if let Some(rest) = self.rest.take() {
            rest.remove();
        }
        cface::say!("ferroverbs capture: no more packets are captured: {why}");
    }
}
