//! What a process says to whoever comes, in a file beside its socket: that can be read without meeting it, though it is stopped, or has a thousand others to answer.

use super::directory::unusable;
use super::error::FabricError;
use super::slots::{Kind, Lease};
use soft_sys::dir::Stamp;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

/// Bytes of a note at most.
pub(super) const MOST: usize = 4096;

impl Lease {
    /// Says `text`, instead of what was said before. In a forked child nothing happens.
    pub(super) fn note(&self, text: &[u8]) -> Result<(), FabricError> {
        if !self.is_ours() {
            return Ok(());
        }
        let [name, new] = [Kind::Note, Kind::NewNote].map(|kind| kind.of(self.slot()));
        let directory = self.directory();
        let write = || {
            // Whoever reads finds one or the other, and that something in the directory has changed.
            let _ = directory.dir().unlink(&new);
            let file = File::from(directory.dir().open_file(&new, directory.file_mode())?);
            directory.share(file.as_fd())?;
            (&file).write_all(text)?;
            directory.dir().rename(&new, &name)
        };
        write().map_err(|why| unusable(&directory.path().join(&name), why, "cannot be written"))
    }

    /// What the process with a slot says; that it is still there is for who asks to find out.
    pub(super) fn noted(&self, slot: u16) -> Option<Vec<u8>> {
        self.directory().dir().read_file(&Kind::Note.of(slot), MOST).ok()
    }

    /// When processes joined or left last, or said something new; `None`: so short a time ago that more may have happened at that time.
    pub(super) fn last_change(&self) -> Option<Stamp> {
        let stamp = self.directory().dir().stat(Path::new(".")).ok()?.changed;
        stamp.is_past().then_some(stamp)
    }
}
