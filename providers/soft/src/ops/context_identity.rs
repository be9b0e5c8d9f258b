//! The `cmd_fd` of a context: a sealed memory file that identifies the context.
//! ibv_import_device(3) reads it; imports of PDs, MRs and device memory compare it.
//!
//! The receiver of the descriptor opens the same device in the same fabric. It may import the
//! objects of the identified context, and of contexts imported by it.

use soft_local::fabric::{Fabric, Peer};
use soft_local::names::{self, CONTEXT_MAGIC};
use soft_sys::Errno;
use soft_sys::memfd::{Memfd, Seals};
use soft_sys::process;
use std::ffi::c_int;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

/// Length in bytes: five words.
const LEN: usize = 40;
/// The seals: the file never changes.
const SEALS: Seals = Seals::SHRINK.union(Seals::GROW).union(Seals::SEAL).union(Seals::WRITE);

/// The identity of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContextIdentity {
    /// The number in the name of the device.
    pub(super) device: u64,
    /// The fabric directory: device and inode.
    pub(super) fabric: (u64, u64),
    /// Distinguishes the context from all others; never 0. An imported context has the value of its
    /// original.
    pub(super) origin: u64,
}

impl ContextIdentity {
    /// The identity of a new context.
    pub(super) fn new(device: usize, fabric: &Fabric) -> Result<Self, Errno> {
        let origin = process::random()? | 1;
        Ok(Self { device: device as u64, fabric: place_of(fabric)?, origin })
    }

    /// Whether the context belongs to this fabric.
    pub(super) fn is_of(&self, fabric: &Fabric) -> bool {
        place_of(fabric) == Ok(self.fabric)
    }

    /// A descriptor to pass on.
    pub(super) fn write(&self) -> Result<OwnedFd, Errno> {
        let memfd = Memfd::create(names::CONTEXT, LEN)?;
        let file = File::from(memfd.as_fd().try_clone_to_owned()?);
        let words = [CONTEXT_MAGIC, self.device, self.fabric.0, self.fabric.1, self.origin];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write_all_at(&bytes, 0)?;
        memfd.seal(SEALS)?;
        Ok(file.into())
    }

    /// Reads the identity from a descriptor owned by the application; None if the descriptor
    /// identifies no context.
    pub(super) fn read(fd: c_int) -> Option<Self> {
        // SAFETY: the descriptor is borrowed and not closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let own = file.as_fd().try_clone_to_owned().ok()?;
        Memfd::verify(own, LEN, SEALS).ok()?;
        let mut bytes = [0u8; LEN];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let mut words = [0u64; LEN / 8];
        for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(from.try_into().ok()?);
        }
        let [magic, device, dev, inode, origin] = words;
        (magic == CONTEXT_MAGIC && origin != 0).then_some(Self {
            device,
            fabric: (dev, inode),
            origin,
        })
    }

    /// A descriptor owned by the caller.
    pub(super) fn write_raw(&self) -> Result<c_int, Errno> {
        Ok(self.write()?.into_raw_fd())
    }
}

/// The living process named by a handle.
///
/// # Errors
/// `ENOENT` no living process has the slot.
pub(super) fn exporter(fabric: &Fabric, slot: u16) -> Result<Arc<Peer>, Errno> {
    let peer = fabric.peer(slot).map_err(|_| Errno::ENOENT)?;
    // The record lock shows a death before the fabric reports it.
    if fabric.is_occupied(slot) && !peer.is_dead() { Ok(peer) } else { Err(Errno::ENOENT) }
}

fn place_of(fabric: &Fabric) -> Result<(u64, u64), Errno> {
    let meta = std::fs::metadata(fabric.directory())?;
    Ok((meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_written_identity_is_read_back_and_other_files_are_refused() {
        let identity = ContextIdentity { device: 3, fabric: (7, 8), origin: 9 };
        let fd = identity.write().expect("a memory file");
        assert_eq!(ContextIdentity::read(fd.as_raw_fd()), Some(identity));
        assert_eq!(ContextIdentity::read(fd.as_raw_fd()), Some(identity), "it is not used up");
        assert!(File::from(fd).write_all_at(&[0], 0).is_err(), "the file is sealed");
        let null = File::open("/dev/null").expect("there");
        assert_eq!(ContextIdentity::read(null.as_raw_fd()), None);
        let plain = Memfd::create(c"plain", LEN).expect("a memory file");
        assert_eq!(ContextIdentity::read(plain.as_fd().as_raw_fd()), None, "not sealed");
        plain.seal(SEALS).expect("sealed");
        assert_eq!(ContextIdentity::read(plain.as_fd().as_raw_fd()), None, "zeros");
    }
}
