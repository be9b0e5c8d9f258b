//! Blocks that wait to be written together: in a file that the process has mapped, so that they are there when it is killed (`layer_records::rest`).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs;
use std::path::{Path, PathBuf};

use layer_records::file::HEAD;
use layer_records::rest::{AT_FILE, AT_WAITING, MAGIC, ROOM, pack};
use layer_tap::file;

/// The file, and what is in it.
pub(crate) struct Rest {
    path: PathBuf,
    base: NonNull<u64>,
    /// Where in the packet file it belongs.
    offset: u64,
    length: usize,
}

// SAFETY: the mapping is only used through this value, and by any thread alike.
unsafe impl Send for Rest {}

impl Rest {
    /// A new one, in `dir` or in the user's own folder.
    pub(crate) fn make(dir: Option<&Path>) -> Result<Self, String> {
        let (path, base) = file::make(&file::Wanted {
            layer: "capture",
            dir,
            magic: MAGIC,
            capacity: 1,
            record: ROOM,
        })?;
        let base = NonNull::new(base).ok_or("there is no memory for it")?;
        Ok(Self { path, base, offset: 0, length: 0 })
    }

    /// How the names of the process's files begin.
    pub(crate) fn stem(&self) -> PathBuf {
        self.path.with_extension("")
    }

    /// What waits.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has a head and room for so many bytes, which nobody writes while `self` is borrowed.
        unsafe {
            core::slice::from_raw_parts(self.base.as_ptr().cast::<u8>().add(HEAD), self.length)
        }
    }

    /// Adds a block; `false`: there is no room for it.
    pub(crate) fn push(&mut self, block: &[u8]) -> bool {
        if block.len() > ROOM - self.length {
            return false;
        }
        // SAFETY: there is room for it behind what waits, in memory of ours.
        unsafe {
            let place = self.base.as_ptr().cast::<u8>().add(HEAD + self.length);
            place.copy_from_nonoverlapping(block.as_ptr(), block.len());
        }
        self.length += block.len();
        self.tell();
        true
    }

    /// From now on it belongs to packet file number `index`, which is empty.
    pub(crate) fn begin(&mut self, index: u64) {
        (self.offset, self.length) = (0, 0);
        self.tell();
        self.word(AT_FILE).store(index, Ordering::Release);
    }

    /// All of it is in the packet file.
    pub(crate) fn written(&mut self) {
        self.offset += self.length as u64;
        self.length = 0;
        self.tell();
    }

    /// Nobody needs it any more. What comes later is written at once.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// For others, and for whoever looks when this process was killed: after the bytes themselves.
    fn tell(&self) {
        self.word(AT_WAITING).store(pack(self.offset, self.length), Ordering::Release);
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: a word of the mapping's head, which is only used as an atomic.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at)) }
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, as long as it was made.
        unsafe { libc::munmap(self.base.as_ptr().cast(), HEAD + ROOM) };
    }
}
