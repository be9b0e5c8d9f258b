//! The blocks that wait for being written together, in a mapped file (`layer_records::rest`). They
//! survive a kill of the process.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs;
use std::path::{Path, PathBuf};

use layer_records::file::HEAD;
use layer_records::rest::{AT_FILE, AT_WAITING, MAGIC, ROOM, pack};
use layer_tap::file;

/// The mapped file and its content.
pub(crate) struct UnwrittenBlocks {
    path: PathBuf,
    base: NonNull<u64>,
    /// Offset in the packet file at which the waiting bytes belong.
    offset: u64,
    length: usize,
}

// SAFETY: only this value uses the mapping, which any thread may access.
unsafe impl Send for UnwrittenBlocks {}

impl UnwrittenBlocks {
    /// Makes a new file, in `dir` or in the user's own folder.
    pub(crate) fn create(dir: Option<&Path>) -> Result<Self, String> {
        let (path, base) = file::make(&file::FileRequest {
            layer: "capture",
            dir,
            magic: MAGIC,
            capacity: 1,
            record: ROOM,
        })?;
        let base = NonNull::new(base).ok_or("there is no memory for it")?;
        Ok(Self { path, base, offset: 0, length: 0 })
    }

    /// The common beginning of the file names of this process.
    pub(crate) fn stem(&self) -> PathBuf {
        self.path.with_extension("")
    }

    /// The waiting bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has a head and room for `length` bytes. No thread writes them while
        // `self` is borrowed.
        unsafe {
            core::slice::from_raw_parts(self.base.as_ptr().cast::<u8>().add(HEAD), self.length)
        }
    }

    /// Appends a block. False if the block has no room.
    pub(crate) fn push(&mut self, block: &[u8]) -> bool {
        if block.len() > ROOM - self.length {
            return false;
        }
        // SAFETY: the block has room after the waiting bytes, in this value's mapping.
        unsafe {
            let place = self.base.as_ptr().cast::<u8>().add(HEAD + self.length);
            place.copy_from_nonoverlapping(block.as_ptr(), block.len());
        }
        self.length += block.len();
        self.publish();
        true
    }

    /// Assigns the file to packet file number `index`, which is empty.
    pub(crate) fn begin(&mut self, index: u64) {
        (self.offset, self.length) = (0, 0);
        self.publish();
        self.word(AT_FILE).store(index, Ordering::Release);
    }

    /// Notes that all waiting bytes are in the packet file.
    pub(crate) fn written(&mut self) {
        self.offset += self.length as u64;
        self.length = 0;
        self.publish();
    }

    /// Removes the file at exit. Later blocks are written at once.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Publishes the length after the bytes, for a reader after a kill.
    fn publish(&self) {
        self.word(AT_WAITING).store(pack(self.offset, self.length), Ordering::Release);
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: a word of the mapping's head, used as an atomic only.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at)) }
    }
}

impl Drop for UnwrittenBlocks {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, from its creation on.
        unsafe { libc::munmap(self.base.as_ptr().cast(), HEAD + ROOM) };
    }
}
