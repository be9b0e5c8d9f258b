//! Files whose bytes are memory that any process can map: tmpfs and hugetlbfs files (including
//! those of `memfd_create(2)`), and DMA-BUFs (`<linux/dma-buf.h>`).

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use cface::mem::page_size;
use libc::c_int;

use rustix::fs::{fstat, fstatfs};

use super::errno::{Errno, check, from_rustix};
use super::map::{Access, Mapping};

/// A memory file, held through a duplicate of the application's descriptor.
#[derive(Debug)]
pub struct MemoryFile {
    fd: OwnedFd,
    len: u64,
    /// Mappings begin and end at multiples of this number of bytes.
    granule: u64,
    is_dma_buf: bool,
}

impl MemoryFile {
    /// The file behind the descriptor `fd` of the application, which stays the application's.
    ///
    /// # Errors
    /// `EBADF`: the descriptor is not open. `EOPNOTSUPP`: the file is of another kind.
    /// Otherwise the errno of the system call.
    pub fn of(fd: c_int) -> Result<Self, Errno> {
        // SAFETY: fcntl with an integer argument; the kernel checks the descriptor.
        let copy = check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
        // SAFETY: the kernel just made the descriptor, which has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(copy) };
        let system = from_rustix(fstatfs(&fd))?;
        let page = page_size() as u64;
        let (granule, is_dma_buf) = match system.f_type {
            TMPFS => (page, false),
            HUGETLBFS => (page.max(u64::try_from(system.f_bsize).unwrap_or(page)), false),
            DMA_BUF => (page, true),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let stat = from_rustix(fstat(&fd))?;
        // A directory or FIFO on tmpfs is not memory.
        if !is_dma_buf && stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Errno::EOPNOTSUPP);
        }
        let len = u64::try_from(stat.st_size).map_err(|_| Errno::EINVAL)?;
        Ok(Self { fd, len, granule, is_dma_buf })
    }

    /// Whether the file is a DMA-BUF.
    pub fn is_dma_buf(&self) -> bool {
        self.is_dma_buf
    }

    /// Maps `len` bytes from `offset` on, and returns the mapping with the address of the first of
    /// them. The mapping also holds the bytes up to whole granules.
    ///
    /// # Errors
    /// `EINVAL`: no bytes, or a byte beyond the end of the file. `EOPNOTSUPP`: the DMA-BUF cannot
    /// be mapped. Otherwise the errno of `mmap(2)`.
    pub fn map(&self, offset: u64, len: u64, access: Access) -> Result<(Mapping, *mut u8), Errno> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len).ok_or(Errno::EINVAL)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let start = offset - offset % self.granule;
        let whole = (end - start).checked_next_multiple_of(self.granule).ok_or(Errno::EINVAL)?;
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| Errno::ENOMEM);
        let made = Mapping::part(self.fd.as_fd(), size(start)?, size(whole)?, access);
        let map = made.map_err(|errno| match errno {
            Errno::ENOMEM | Errno::EACCES | Errno::EPERM => errno,
            // The exporter of the buffer has no mmap, or none of this range.
            _ if self.is_dma_buf => Errno::EOPNOTSUPP,
            _ => errno,
        })?;
        let first = map.base().wrapping_add(size(offset - start)?);
        Ok((map, first))
    }
}

/// `TMPFS_MAGIC`, `HUGETLBFS_MAGIC` and `DMA_BUF_MAGIC` of `<linux/magic.h>`.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
const HUGETLBFS: rustix::fs::FsWord = 0x9584_58f6;
const DMA_BUF: rustix::fs::FsWord = 0x444d_4142;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::Memfd;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn kind(fd: c_int) -> Result<u64, Errno> {
        MemoryFile::of(fd).map(|file| file.len)
    }

    #[test]
    fn memory_files_are_accepted_and_other_files_are_not() {
        let memory = Memfd::create(c"fv-test", 8192).unwrap();
        assert_eq!(kind(memory.as_fd().as_raw_fd()), Ok(8192));
        for other in ["/dev/null", "/proc/self/status", "/"] {
            assert_eq!(
                kind(File::open(other).unwrap().as_raw_fd()),
                Err(Errno::EOPNOTSUPP),
                "{other}"
            );
        }
        assert_eq!(kind(-1), Err(Errno::EBADF));
        // The kernel gives out no descriptor of this number.
        assert_eq!(kind(c_int::MAX), Err(Errno::EBADF));
    }

    #[test]
    fn a_range_is_mapped_where_the_file_has_it() {
        let page = page_size() as u64;
        let memory = Memfd::create(c"fv-test", 3 * page_size()).unwrap();
        let all = Mapping::new(memory.as_fd(), memory.len(), Access::ReadWrite).unwrap();
        // SAFETY: in the mapping, which only this test uses.
        unsafe { all.base().add(page_size() + 100).write_volatile(0x5a) };
        let file = MemoryFile::of(memory.as_fd().as_raw_fd()).unwrap();
        let (map, first) = file.map(page + 100, page, Access::ReadOnly).unwrap();
        assert_eq!((map.len(), first as usize - map.base() as usize), (2 * page_size(), 100));
        // SAFETY: in the mapping, which lives.
        assert_eq!(unsafe { first.read_volatile() }, 0x5a);
        let errno = |offset, len| file.map(offset, len, Access::ReadOnly).map(|_| ()).err();
        assert_eq!(errno(3 * page, 1), Some(Errno::EINVAL));
        assert_eq!(errno(page, 2 * page + 1), Some(Errno::EINVAL));
        assert_eq!(errno(u64::MAX, 2), Some(Errno::EINVAL));
        assert_eq!(errno(0, 0), Some(Errno::EINVAL));
        assert_eq!(errno(page, 2 * page), None);
    }
}
