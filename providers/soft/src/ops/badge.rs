//! What the `cmd_fd` of a context is here: a sealed memory file that says whose context it is. Whoever gets it (ibv_import_device(3))
//! opens the same device in the same fabric, and may import the objects of that context, and of others that were imported by it.

use soft_local::fabric::{Fabric, Peer};
use soft_sys::Errno;
use soft_sys::memfd::{Memfd, Seals};
use soft_sys::process;
use std::ffi::c_int;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

/// Begins every such file; another number with another layout.
const MAGIC: u64 = u64::from_be_bytes(*b"fv-ctx-1");
/// Bytes: five numbers.
const LEN: usize = 40;
/// The file is what it was made as, for ever.
const SEALS: Seals = Seals::SHRINK.union(Seals::GROW).union(Seals::SEAL).union(WRITE);
const WRITE: Seals = Seals::from_bits_retain(libc::F_SEAL_WRITE);

/// A context, as importers know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Badge {
    /// The number in the device's name.
    pub(super) device: u64,
    /// Where its processes meet: device and inode of the directory.
    pub(super) fabric: (u64, u64),
    /// Tells the context from all others, never 0; an imported one has that of its original.
    pub(super) origin: u64,
}

impl Badge {
    /// Of a new context.
    pub(super) fn new(device: usize, fabric: &Fabric) -> Result<Self, Errno> {
        let origin = process::random()? | 1;
        Ok(Self { device: device as u64, fabric: place_of(fabric)?, origin })
    }

    /// Whether its context is one of this fabric.
    pub(super) fn is_of(&self, fabric: &Fabric) -> bool {
        place_of(fabric) == Ok(self.fabric)
    }

    /// A descriptor to be passed on.
    pub(super) fn write(&self) -> Result<OwnedFd, Errno> {
        let memfd = Memfd::create(c"ferroverbs-context", LEN)?;
        let file = File::from(memfd.as_fd().try_clone_to_owned()?);
        let words = [MAGIC, self.device, self.fabric.0, self.fabric.1, self.origin];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write_all_at(&bytes, 0)?;
        memfd.seal(SEALS)?;
        Ok(file.into())
    }

    /// What a descriptor says that belongs to somebody else, if it is one of a context.
    pub(super) fn read(fd: c_int) -> Option<Self> {
        // SAFETY: only borrowed: it is not closed here.
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
        (magic == MAGIC && origin != 0).then_some(Self { device, fabric: (dev, inode), origin })
    }

    /// A descriptor whose owner is the caller.
    pub(super) fn write_raw(&self) -> Result<c_int, Errno> {
        Ok(self.write()?.into_raw_fd())
    }
}

/// The living process that a handle names.
///
/// # Errors
/// `ENOENT` it is gone, or never was.
pub(super) fn exporter(fabric: &Fabric, slot: u16) -> Result<Arc<Peer>, Errno> {
    let peer = fabric.peer(slot).map_err(|_| Errno::ENOENT)?;
    // The word of a death may come a moment later than the kernel knows.
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
    fn what_is_written_is_read_and_other_files_are_no_contexts() {
        let badge = Badge { device: 3, fabric: (7, 8), origin: 9 };
        let fd = badge.write().expect("a memory file");
        assert_eq!(Badge::read(fd.as_raw_fd()), Some(badge));
        assert_eq!(Badge::read(fd.as_raw_fd()), Some(badge), "it is not used up");
        assert!(File::from(fd).write_all_at(&[0], 0).is_err(), "nobody can change it");
        let null = File::open("/dev/null").expect("there");
        assert_eq!(Badge::read(null.as_raw_fd()), None);
        let plain = Memfd::create(c"plain", LEN).expect("a memory file");
        assert_eq!(Badge::read(plain.as_fd().as_raw_fd()), None, "not sealed");
        plain.seal(SEALS).expect("sealed");
        assert_eq!(Badge::read(plain.as_fd().as_raw_fd()), None, "zeros");
    }
}
