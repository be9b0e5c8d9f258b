//! The file that a provider maps (`cmd_fd`), with an area for each queue, and buffers of the
//! provider's own.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::{Location, Outside, QueueMemory};

use crate::words::Words;

/// Bytes of the file at most.
const MOST: u64 = 1 << 32;

/// The memory that an emulated device shares with the provider.
///
/// The file cannot shrink, so no access ends the process. Each area is mapped while it is in use.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    /// The first offset of areas; what lies before is the provider's to map, and stays a hole.
    first: u64,
    len: u64,
    areas: BTreeMap<u64, Words>,
    /// Buffers of the provider, by address.
    buffers: BTreeMap<u64, Words>,
}

impl SharedMemory {
    /// An empty file, with areas from the offset `first` on, which is rounded up to whole pages.
    ///
    /// # Errors
    /// Of `memfd_create(2)`, and of sealing the file against shrinking.
    pub fn new(first: u64) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a NUL-terminated constant.
        let fd = unsafe { libc::memfd_create(c"ferroverbs-emulated".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which nobody else owns.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: only the descriptor's file is concerned.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let first = first.next_multiple_of(page());
        // A hole may be mapped and stored to.
        // SAFETY: only the descriptor's file is concerned.
        if unsafe { libc::ftruncate(fd, first as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file, first, len: first, areas: BTreeMap::new(), buffers: BTreeMap::new() })
    }

    /// Another descriptor of the file, for a context's `cmd_fd`; the front-end or the plugin closes
    /// it.
    ///
    /// # Errors
    /// Of `fcntl(2)`.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// Admits a buffer of the provider: a queue or a record in the process's own memory.
    ///
    /// # Errors
    /// [`Refusal::Fault`] if a page of the buffer is not mapped; [`Refusal::Invalid`] for no bytes,
    /// and for a buffer that begins like another.
    ///
    /// # Safety
    /// The provider keeps the buffer mapped and writable until [`SharedMemory::dismiss`].
    pub unsafe fn admit(&mut self, address: u64, len: usize) -> Result<(), Refusal> {
        let end = usize::try_from(address).ok().and_then(|start| start.checked_add(len));
        let end = end.filter(|_| len > 0).ok_or(Refusal::Invalid)?;
        if self.buffers.contains_key(&address) {
            return Err(Refusal::Invalid);
        }
        let page = page() as usize;
        let start = address as usize;
        let (begin, pages) = (start / page * page, end.div_ceil(page) - start / page);
        let mut present = vec![0_u8; pages];
        let at = core::ptr::without_provenance_mut::<libc::c_void>(begin);
        // SAFETY: the call only looks, at any address, and has room for each page.
        if unsafe { libc::mincore(at, pages * page, present.as_mut_ptr()) } != 0 {
            return Err(Refusal::Fault);
        }
        let start = core::ptr::with_exposed_provenance_mut(start);
        // SAFETY: mapped (checked), and stays so by the contract above.
        self.buffers.insert(address, unsafe { Words::new(start, len) });
        Ok(())
    }

    /// The provider takes a buffer back.
    pub fn dismiss(&mut self, address: u64) {
        self.buffers.remove(&address);
    }

    /// The bytes around a location, and the place in them.
    fn find(&self, at: Location) -> Result<(Words, usize), Outside> {
        let (map, key) = match at {
            Location::File(offset) => (&self.areas, offset),
            Location::Process(address) => (&self.buffers, address),
        };
        let (start, words) = map.range(..=key).next_back().ok_or(Outside)?;
        Ok((*words, usize::try_from(key - start).map_err(|_| Outside)?))
    }

    /// The first gap of `len` bytes between the areas.
    fn gap(&self, len: u64) -> Option<u64> {
        let mut offset = self.first;
        for (start, area) in &self.areas {
            if start.checked_sub(offset)? >= len {
                break;
            }
            offset = start + area.len() as u64;
        }
        offset.checked_add(len).filter(|end| *end <= MOST).map(|_| offset)
    }

    /// Frees the memory of a range, which then reads as zeros.
    fn punch(&self, offset: u64, len: u64) -> bool {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, len) = (offset as libc::off_t, len as libc::off_t);
        // SAFETY: only the descriptor's file is concerned.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) == 0 }
    }
}

impl AsRawFd for SharedMemory {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        for area in self.areas.values() {
            unmap(*area);
        }
    }
}

impl QueueMemory for SharedMemory {
    fn allocate(&mut self, len: u64) -> Result<u64, Refusal> {
        let len = len.checked_next_multiple_of(page()).filter(|len| *len > 0);
        let len = len.ok_or(Refusal::Invalid)?;
        let offset = self.gap(len).ok_or(Refusal::NoMemory)?;
        let end = offset + len;
        if end > self.len {
            // SAFETY: only the descriptor's file is concerned.
            if unsafe { libc::ftruncate(self.file.as_raw_fd(), end as libc::off_t) } != 0 {
                return Err(Refusal::NoMemory);
            }
            self.len = end;
        }
        // A provider may have stored into an area after its release.
        if !self.punch(offset, len) {
            return Err(Refusal::NoMemory);
        }
        let size = usize::try_from(len).map_err(|_| Refusal::NoMemory)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (none, fd) = (core::ptr::null_mut(), self.file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(none, size, rights, libc::MAP_SHARED, fd, offset as libc::off_t) };
        if start == libc::MAP_FAILED {
            return Err(Refusal::NoMemory);
        }
        // SAFETY: mapped until `release` or the end of `self`, and within the file, which does not
        // shrink.
        self.areas.insert(offset, unsafe { Words::new(start.cast(), size) });
        Ok(offset)
    }

    fn release(&mut self, offset: u64, _: u64) {
        if let Some(area) = self.areas.remove(&offset) {
            let len = area.len() as u64;
            unmap(area);
            // Without success the memory stays until the file ends.
            let _ = self.punch(offset, len);
        }
    }

    fn read(&self, at: Location, bytes: &mut [u8]) -> Result<(), Outside> {
        let (words, offset) = self.find(at)?;
        words.read(offset, bytes).then_some(()).ok_or(Outside)
    }

    fn load(&self, at: Location) -> Result<u32, Outside> {
        let (words, offset) = self.find(at)?;
        words.load(offset).ok_or(Outside)
    }

    fn write(&mut self, at: Location, bytes: &[u8]) -> Result<(), Outside> {
        let (words, offset) = self.find(at)?;
        words.write(offset, bytes).then_some(()).ok_or(Outside)
    }

    fn publish(&mut self, at: Location, bytes: [u8; 8]) -> Result<(), Outside> {
        let (words, offset) = self.find(at)?;
        words.publish(offset, bytes).then_some(()).ok_or(Outside)
    }

    fn admit(&mut self, address: u64, len: usize) -> Result<(), Refusal> {
        // SAFETY: a command named the buffer. The caller of `call::answer` promises for its
        // provider that such memory stays until the command that ends the object.
        unsafe { Self::admit(self, address, len) }
    }

    fn dismiss(&mut self, address: u64) {
        Self::dismiss(self, address);
    }
}

fn unmap(area: Words) {
    // SAFETY: our own mapping, which nothing uses any more.
    unsafe { libc::munmap(area.start().cast(), area.len()) };
}

/// Bytes of a page.
fn page() -> u64 {
    // SAFETY: the call only asks.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The provider's mapping of an area.
    struct Provider(Words);

    impl Provider {
        fn map(memory: &SharedMemory, offset: u64, len: usize) -> Self {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let (fd, none) = (memory.as_raw_fd(), core::ptr::null_mut());
            let offset = libc::off_t::try_from(offset).expect("small");
            // SAFETY: a new mapping at an address of the kernel's choice.
            let start = unsafe { libc::mmap(none, len, rights, libc::MAP_SHARED, fd, offset) };
            assert_ne!(start, libc::MAP_FAILED);
            // SAFETY: mapped until the value ends; the file does not shrink.
            Self(unsafe { Words::new(start.cast(), len) })
        }
    }

    impl Drop for Provider {
        fn drop(&mut self) {
            unmap(self.0);
        }
    }

    #[test]
    fn the_provider_sees_an_area_through_its_own_mapping() {
        let mut memory = SharedMemory::new(0).expect("a file");
        let first = memory.allocate(100).expect("an area");
        let second = memory.allocate(page()).expect("an area");
        assert_eq!((first, second), (0, page()));
        let provider = Provider::map(&memory, second, page() as usize);
        assert!(provider.0.write(4, &7_u32.to_ne_bytes()));
        assert_eq!(memory.load(Location::File(second + 4)), Ok(7));
        memory.write(Location::File(second + 24), b"abc").expect("inside");
        memory.publish(Location::File(second + 16), *b"01234567").expect("inside");
        let mut seen = [0; 11];
        assert!(provider.0.read(16, &mut seen));
        assert_eq!(&seen, b"01234567abc");
        let mut read = [0; 3];
        assert_eq!(memory.read(Location::File(second + 24), &mut read), Ok(()));
        assert_eq!(&read, b"abc");
    }

    #[test]
    fn accesses_beyond_an_area_and_unaligned_words_are_refused() {
        let mut memory = SharedMemory::new(1 << 24).expect("a file");
        let at = memory.allocate(page()).expect("an area");
        assert_eq!(at, 1 << 24);
        let end = Location::File(at + page());
        assert_eq!(memory.load(end), Err(Outside));
        assert_eq!(memory.load(Location::File(at + page() - 3)), Err(Outside));
        assert_eq!(memory.load(Location::File(at + 2)), Err(Outside));
        assert_eq!(memory.publish(Location::File(at + 4), [0; 8]), Err(Outside));
        assert_eq!(memory.write(Location::File(at + page() - 1), &[1, 2]), Err(Outside));
        assert_eq!(memory.read(Location::File(0), &mut [0]), Err(Outside));
        assert_eq!(memory.read(Location::Process(at), &mut [0]), Err(Outside));
        assert_eq!(memory.read(Location::File(u64::MAX), &mut [0]), Err(Outside));
    }

    #[test]
    fn a_released_area_is_used_again_and_is_zero_in_spite_of_late_stores() {
        let mut memory = SharedMemory::new(0).expect("a file");
        let [first, second] = [(); 2].map(|()| memory.allocate(page()).expect("an area"));
        let provider = Provider::map(&memory, first, page() as usize);
        memory.release(first, page());
        assert!(provider.0.write(0, &[9]));
        assert_eq!(memory.allocate(page()), Ok(first));
        assert_eq!(memory.load(Location::File(first)), Ok(0));
        assert_eq!(memory.allocate(2 * page()), Ok(second + page()));
        assert_eq!(memory.allocate(MOST), Err(Refusal::NoMemory));
        assert_eq!(memory.allocate(0), Err(Refusal::Invalid));
        assert_eq!(memory.allocate(u64::MAX), Err(Refusal::Invalid));
    }

    #[test]
    fn nobody_shrinks_the_file() {
        let mut memory = SharedMemory::new(0).expect("a file");
        memory.allocate(page()).expect("an area");
        let fd = memory.descriptor().expect("a descriptor");
        // SAFETY: only the descriptor's file is concerned.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) }, -1);
        assert_eq!(memory.load(Location::File(0)), Ok(0));
    }

    #[test]
    fn a_buffer_of_the_process_is_admitted_only_where_memory_is() {
        let mut memory = SharedMemory::new(0).expect("a file");
        let buffer = Box::new([5_u32, 6, 7, 8]);
        let address = buffer.as_ptr().expose_provenance() as u64;
        // SAFETY: mapped as long as `buffer` lives; the page at 0 is not touched.
        unsafe {
            assert_eq!(memory.admit(address, 8), Ok(()));
            assert_eq!(memory.admit(address, 8), Err(Refusal::Invalid), "once");
            assert_eq!(memory.admit(0, 8), Err(Refusal::Fault));
            assert_eq!(memory.admit(u64::MAX, 8), Err(Refusal::Invalid));
        }
        assert_eq!(memory.load(Location::Process(address + 4)), Ok(6));
        assert_eq!(memory.load(Location::Process(address + 8)), Err(Outside));
        memory.dismiss(address);
        assert_eq!(memory.load(Location::Process(address)), Err(Outside));
    }
}
