//! Shared mappings of files (`mmap(2)`): whole, or lazily in windows. The segments of a fabric and
//! buffers of the provider are such mappings.

use std::{
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
};

use cface::mem::page_size;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::errno::{Errno, from_rustix};
use super::memfd::Memfd;

/// The permissions of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read. A store through the mapping raises `SIGSEGV`.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// A shared mapping of [`len`](Self::len) bytes of a file, unmapped on drop.
///
/// Another process may write these bytes at any time: copy them out through raw pointers or
/// atomics, and never form a `&[u8]` to them.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: the type only hands out addresses; a user's contract covers the access. The mapping
// belongs to the process and not to a thread, so any thread may unmap it.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` only exposes address, length and access, which never change until the drop.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd` at an address that the kernel chooses.
    pub fn new(fd: BorrowedFd<'_>, len: usize, access: Access) -> Result<Self, Errno> {
        Self::part(fd, 0, len, access)
    }

    /// Maps `len` bytes of `fd` from `offset` on, a multiple of the page size, at an address that
    /// the kernel chooses.
    pub fn part(
        fd: BorrowedFd<'_>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<Self, Errno> {
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let (anywhere, offset) = (ptr::null_mut(), offset as u64);
        // SAFETY: a NULL address without MAP_FIXED never replaces a mapping.
        let base =
            from_rustix(unsafe { mmap(anywhere, len, protection, MapFlags::SHARED, fd, offset) })?;
        let base = NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Self { base, len, access })
    }

    /// The first byte; page-aligned, and valid while the mapping lives. A store faults if the
    /// mapping [is not writable](Self::is_writable).
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes; never 0.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: the kernel makes no empty mappings.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether this process may store through the mapping.
    pub fn is_writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    /// Frees the pages of `len` bytes from `at` on, for all processes that map the file; they read
    /// as zeros afterwards. Does nothing if the bytes are not whole pages of the mapping, or if the
    /// system does not support it.
    ///
    /// The check of the length is necessary: `madvise(2)` rounds the length up, and would free the
    /// bytes behind the range too. With pages of 64 KiB, the rings of four QPs share a page.
    pub fn discard(&self, at: usize, len: usize) {
        let end = at.checked_add(len);
        let page = page_size();
        let is_whole = at.is_multiple_of(page) && len.is_multiple_of(page);
        if !self.is_writable() || !is_whole || end.is_none_or(|end| end > self.len) {
            return;
        }
        // SAFETY: the range is in our own mapping (checked above). Its bytes change as if another
        // process wrote them, which may happen at any time.
        let _ = unsafe { madvise(self.base.as_ptr().add(at).cast(), len, Advice::LinuxRemove) };
    }

    /// Excludes the bytes from core dumps, because another process owns the memory.
    pub fn exclude_from_dumps(&self) {
        // SAFETY: the range is exactly our own mapping, and the advice changes no byte of it.
        // A kernel that refuses the advice only makes dumps larger.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontDump) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `part` mapped; addresses from `base` are no longer used,
        // as its documentation requires.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A shared mapping of another process's memory file. The front is mapped at once and the rest in
/// windows, each at its first use, so that a long file takes little address space.
///
/// A mapped part keeps its address until the drop, which unmaps all parts. The file stays open for
/// the unmapped parts.
#[derive(Debug)]
pub struct LazyMapping {
    file: Memfd,
    front: Mapping,
    /// First bytes of the windows behind the front; NULL: not mapped.
    windows: Box<[AtomicPtr<u8>]>,
}

/// Bytes of a window of a [`LazyMapping`].
pub const WINDOW: usize = 2 << 20;

impl LazyMapping {
    /// Maps the first `front` bytes of `file`, or all of a shorter file. Whole windows follow; a
    /// remainder behind them cannot be mapped.
    pub fn new(file: Memfd, front: usize) -> Result<Self, Errno> {
        let front = file.len().min(front);
        let windows = (file.len() - front) / WINDOW;
        let front = Self::map(&file, 0, front)?;
        Ok(Self { file, front, windows: (0..windows).map(|_| AtomicPtr::default()).collect() })
    }

    /// The part that was mapped at once.
    pub fn front(&self) -> &Mapping {
        &self.front
    }

    /// The first byte of window `index` behind the front, which is mapped now if necessary; valid
    /// while this mapping lives. `None`: no such window, or the address space is exhausted.
    #[inline]
    pub fn window(&self, index: usize) -> Option<*mut u8> {
        let place = self.windows.get(index)?;
        // Relaxed: only the address is used. The memory behind it does not depend on stores of the
        // thread that mapped it.
        let base = place.load(Ordering::Relaxed);
        if base.is_null() { self.map_window(place, index) } else { Some(base) }
    }

    #[cold]
    fn map_window(&self, place: &AtomicPtr<u8>, index: usize) -> Option<*mut u8> {
        let window = Self::map(&self.file, self.front.len() + index * WINDOW, WINDOW).ok()?;
        let base = window.base();
        match place.compare_exchange(ptr::null_mut(), base, Ordering::Relaxed, Ordering::Relaxed) {
            // The drop unmaps the window.
            Ok(_) => std::mem::forget(window),
            // Another thread mapped the window first; ours is unmapped.
            Err(theirs) => return Some(theirs),
        }
        Some(base)
    }

    fn map(file: &Memfd, offset: usize, len: usize) -> Result<Mapping, Errno> {
        let mapping = Mapping::part(file.as_fd(), offset, len, Access::ReadWrite)?;
        mapping.exclude_from_dumps();
        Ok(mapping)
    }
}

impl Drop for LazyMapping {
    fn drop(&mut self) {
        for window in &mut self.windows {
            if let Some(base) = NonNull::new(*window.get_mut()) {
                // The window that `map_window` forgot.
                drop(Mapping { base, len: WINDOW, access: Access::ReadWrite });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_a_file_show_the_same_bytes() {
        let file = Memfd::create(c"fv-test", 8192).unwrap();
        let one = Mapping::new(file.as_fd(), file.len(), Access::ReadWrite).unwrap();
        let two = Mapping::new(file.as_fd(), file.len(), Access::ReadOnly).unwrap();
        assert!(one.is_writable() && !two.is_writable());
        // SAFETY: offset 5000 is inside both 8192-byte mappings, which only this test uses.
        unsafe { one.base().add(5000).write_volatile(0x5a) };
        // SAFETY: offset 5000 is inside the 8192 bytes of `two`, which is mapped until the end of
        // the test and not written any more.
        assert_eq!(unsafe { two.base().add(5000).read_volatile() }, 0x5a);
    }

    #[test]
    fn discarded_pages_are_gone_for_all_and_read_as_zeros() {
        let size = page_size();
        let file = Memfd::create(c"fv-test", 4 * size).unwrap();
        let one = Mapping::new(file.as_fd(), file.len(), Access::ReadWrite).unwrap();
        let two = Mapping::new(file.as_fd(), file.len(), Access::ReadOnly).unwrap();
        let blocks = || std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap());
        let pages = || {
            std::os::unix::fs::MetadataExt::blocks(&blocks().metadata().unwrap()) * 512
                / size as u64
        };
        for page in 0..4 {
            // SAFETY: in the mapping, which only this test uses.
            unsafe { one.base().add(page * size).write_volatile(7) };
        }
        assert_eq!(pages(), 4);
        one.discard(size, 2 * size);
        assert_eq!(pages(), 2);
        // SAFETY: in the mapping, which is not written any more.
        let seen = [0, 1, 2, 3].map(|page| unsafe { two.base().add(page * size).read_volatile() });
        assert_eq!(seen, [7, 0, 0, 7]);
        one.discard(3 * size, 512);
        one.discard(3 * size - 512, size);
        one.discard(2 * size, 3 * size);
        two.discard(0, size);
        assert!(
            pages() >= 2,
            "neither parts of pages, nor bytes beyond the end, nor through a read-only mapping"
        );
        // SAFETY: in the mapping, which is not written any more.
        assert_eq!(unsafe { two.base().add(3 * size).read_volatile() }, 7);
    }

    /// A file with a front of `FRONT` bytes and three windows, mapped whole and lazily.
    fn whole_and_lazy() -> (Mapping, LazyMapping) {
        let file = Memfd::create(c"fv-test", FRONT + 3 * WINDOW).unwrap();
        let whole = Mapping::new(file.as_fd(), file.len(), Access::ReadWrite).unwrap();
        (whole, LazyMapping::new(file, FRONT).unwrap())
    }

    /// Whole pages of each supported size.
    const FRONT: usize = 3 << 16;

    #[test]
    fn windows_show_the_bytes_of_the_file_stay_where_they_are_and_end_with_it() {
        let (whole, lazy) = whole_and_lazy();
        assert_eq!(lazy.front().len(), FRONT);
        for index in [2, 0, 1] {
            for at in [0, WINDOW - 1] {
                let value = (index * 2 + at % 2 + 1) as u8;
                // SAFETY: inside the file, which only this test has mapped.
                unsafe { whole.base().add(FRONT + index * WINDOW + at).write_volatile(value) };
                let window = lazy.window(index).unwrap();
                // SAFETY: the last byte of a window at most.
                assert_eq!(unsafe { window.add(at).read_volatile() }, value, "{index}, {at}");
            }
            assert_eq!(lazy.window(index), lazy.window(index));
        }
        assert_eq!(lazy.window(3), None);
        assert_eq!(lazy.window(usize::MAX), None);
    }

    #[test]
    fn threads_that_map_a_window_at_once_agree_on_its_address() {
        for _ in 0..100 {
            let (_, lazy) = whole_and_lazy();
            let start = std::sync::Barrier::new(4);
            let find = || {
                start.wait();
                lazy.window(1).unwrap() as usize
            };
            let found: Vec<usize> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(find)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(found.iter().all(|base| *base == found[0]), "{found:x?}");
        }
    }

    #[test]
    fn nothing_is_mapped_before_it_is_needed_nor_left_behind() {
        let inode = |file: &Memfd| {
            let stat = std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap());
            std::os::unix::fs::MetadataExt::ino(&stat.metadata().unwrap())
        };
        let file = Memfd::create(c"fv-test-windows", FRONT + 3 * WINDOW).unwrap();
        let inode = inode(&file);
        // The number of mapped bytes of the file, as the kernel reports.
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let ours = maps.lines().filter(|line| {
                line.contains("fv-test-windows")
                    && line.split_whitespace().nth(4) == Some(&inode.to_string())
            });
            ours.map(|line| {
                let (from, to) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
                let number = |text| usize::from_str_radix(text, 16).unwrap();
                number(to) - number(from)
            })
            .sum::<usize>()
        };
        let lazy = LazyMapping::new(file, FRONT).unwrap();
        assert_eq!(mapped(), FRONT);
        lazy.window(2).unwrap();
        assert_eq!(mapped(), FRONT + WINDOW);
        drop(lazy);
        assert_eq!(mapped(), 0);
    }

    #[test]
    fn a_file_shorter_than_the_front_is_all_front() {
        let lazy = LazyMapping::new(Memfd::create(c"fv-test", 4096).unwrap(), FRONT).unwrap();
        assert_eq!((lazy.front().len(), lazy.window(0)), (4096, None));
    }

    #[test]
    fn an_empty_mapping_is_refused() {
        let file = Memfd::create(c"fv-test", 4096).unwrap();
        assert_eq!(Mapping::new(file.as_fd(), 0, Access::ReadOnly).map(|_| ()), Err(Errno::EINVAL));
    }
}
