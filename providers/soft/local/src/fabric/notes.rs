//! Published texts ("notes") of processes, in files beside their sockets.
//!
//! Other processes read a note without meeting its author, which may be stopped or busy.

use super::directory::unusable;
use super::error::FabricError;
use super::slots::{Lease, MemberFile};
use soft_sys::dir::Stamp;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

/// The largest length of a note, in bytes.
pub(super) const MAX_NOTE_LEN: usize = 4096;

impl Lease {
    /// Publishes `text` instead of the previous note. Does nothing in a forked child.
    pub(super) fn publish_note(&self, text: &[u8]) -> Result<(), FabricError> {
        if !self.is_ours() {
            return Ok(());
        }
        let [name, new] =
            [MemberFile::Note, MemberFile::NewNote].map(|kind| kind.path_for(self.slot()));
        let directory = self.directory();
        let write = || {
            // The rename replaces the note in one step and changes the directory's time.
            let _ = directory.dir().unlink(&new);
            let file = File::from(directory.dir().open_file(&new, directory.file_mode())?);
            directory.share(file.as_fd())?;
            (&file).write_all(text)?;
            directory.dir().rename(&new, &name)
        };
        write().map_err(|why| unusable(&directory.path().join(&name), why, "cannot be written"))
    }

    /// The note of the owner of `slot`. The caller must check that the owner lives.
    pub(super) fn note_of(&self, slot: u16) -> Option<Vec<u8>> {
        self.directory().dir().read_file(&MemberFile::Note.path_for(slot), MAX_NOTE_LEN).ok()
    }

    /// When a process last joined, left or published a note. `None`: the change is so recent that
    /// another change may have the same time.
    pub(super) fn last_change(&self) -> Option<Stamp> {
        let stamp = self.directory().dir().stat(Path::new(".")).ok()?.changed;
        stamp.is_past().then_some(stamp)
    }
}
