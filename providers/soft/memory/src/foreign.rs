//! Maps memory of another process that both can share (`proc(5)`, `shmat(2)`, `memfd_create(2)`).
//!
//! Only memory that cannot shrink qualifies: System V segments, and memory files sealed against
//! shrinking. A store to a page that its file has lost would raise a signal here, whereas a copy by
//! the kernel only fails.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use libc::{c_int, c_void, pid_t};

use cface::cancel::Uncancelled;
use soft_sys::memfd::{Memfd, Seals};

/// One line of `/proc/<pid>/maps`.
#[derive(Debug, PartialEq, Eq)]
struct MapsLine {
    start: u64,
    end: u64,
    /// Permissions such as `rw-s`.
    rights: [u8; 4],
    offset: u64,
    major: u32,
    minor: u32,
    inode: u64,
    path: String,
}

/// Whether a line of `/proc/<pid>/maps` describes a mapping.
pub fn tells_mapping(line: &str) -> bool {
    MapsLine::parse(line).is_some_and(|area| area.start <= area.end)
}

impl MapsLine {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ').map(str::trim);
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?.as_bytes().try_into().ok()?;
        let offset = fields.next()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let inode = fields.next()?.parse().ok()?;
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            rights,
            offset: u64::from_str_radix(offset, 16).ok()?,
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
            inode,
            path: fields.next().unwrap_or_default().to_owned(),
        })
    }

    /// The mapping around `addr` of process `pid`, which may be `self`.
    fn containing(pid: &str, addr: u64) -> Option<Self> {
        let maps = File::open(format!("/proc/{pid}/maps")).ok()?;
        let lines = BufReader::new(maps).lines().map_while(Result::ok);
        lines
            .filter_map(|line| Self::parse(&line))
            .find(|area| area.start <= addr && addr < area.end)
    }

    const fn same_file(&self, other: &Self) -> bool {
        self.inode == other.inode && self.major == other.major && self.minor == other.minor
    }

    fn is_file(&self, file: &fs::Metadata) -> bool {
        file.ino() == self.inode
            && libc::major(file.dev()) == self.major
            && libc::minor(file.dev()) == self.minor
    }

    const fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// A mapping of another process that is mapped here too, until dropped. Other processes write it at
/// any time.
#[derive(Debug)]
pub struct Foreign {
    /// The start of the other process's mapping, and its address here.
    start: u64,
    local_address: *mut u8,
    len: usize,
    /// What to release: the address of a System V segment; `None`: the mapping itself.
    segment: Option<*mut c_void>,
}

// SAFETY: addresses of a mapping that belongs to the process and not to a thread; a user's contract
// covers the access.
unsafe impl Send for Foreign {}
// SAFETY: a shared `Foreign` only exposes addresses and lengths, which never change; the memory is
// only copied through raw pointers.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Maps the memory of process `pid` at `addr`, if it is writable shared memory that cannot
    /// shrink. The caller must verify afterwards that the pid still belongs to the intended
    /// process.
    pub fn map(pid: pid_t, addr: u64) -> Option<Self> {
        // The application may be in the middle of an operation, so defer cancellation.
        let _whole = Uncancelled::begin();
        let area = MapsLine::containing(&pid.to_string(), addr)?;
        if &area.rights != b"rw-s" {
            return None;
        }
        if area.path.starts_with("/SYSV") {
            Self::attach(&area)
        } else if area.path.starts_with("/memfd:") {
            Self::open(pid, &area)
        } else {
            None
        }
    }

    /// Attaches a System V segment, whose inode is its id.
    fn attach(area: &MapsLine) -> Option<Self> {
        let id = c_int::try_from(area.inode).ok()?;
        // SAFETY: at an address that the kernel chooses, which replaces no mapping.
        let segment = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        if segment as isize == -1 {
            return None;
        }
        // From here on, dropping `foreign` detaches the segment.
        let mut foreign = Self {
            start: area.start,
            local_address: segment.cast(),
            len: 0,
            segment: Some(segment),
        };
        // In another IPC namespace the id would name another segment.
        let mapped = MapsLine::containing("self", segment as u64)?;
        let inside = (area.offset as usize).checked_add(area.len())? <= mapped.len();
        if !mapped.same_file(area) || !inside {
            return None;
        }
        // SAFETY: inside the segment (checked).
        foreign.local_address = unsafe { segment.cast::<u8>().add(area.offset as usize) };
        foreign.len = area.len();
        Some(foreign)
    }

    /// Opens a memory file of which the process still has a descriptor.
    fn open(pid: pid_t, area: &MapsLine) -> Option<Self> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let path = entries
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            // Check the name first: stat(2) of other kinds of files may block.
            .filter(|path| {
                fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:"))
            })
            .find(|path| fs::metadata(path).is_ok_and(|file| area.is_file(&file)))?;
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        let meta = file.metadata().ok()?;
        if !area.is_file(&meta) {
            return None;
        }
        let memfd = Memfd::verify(OwnedFd::from(file), meta.len() as usize, Seals::SHRINK).ok()?;
        if area.offset.checked_add(area.len() as u64)? > memfd.len() as u64 {
            return None;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let offset = libc::off_t::try_from(area.offset).ok()?;
        // SAFETY: at an address that the kernel chooses, which replaces no mapping.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                area.len(),
                protection,
                libc::MAP_SHARED,
                std::os::fd::AsFd::as_fd(&memfd).as_raw_fd(),
                offset,
            )
        };
        (at != libc::MAP_FAILED).then(|| Self {
            start: area.start,
            local_address: at.cast(),
            len: area.len(),
            segment: None,
        })
    }

    /// The local address of `len` bytes at `addr` of the other process.
    #[inline]
    pub fn local_range(&self, addr: u64, len: usize) -> Option<*mut u8> {
        let offset = usize::try_from(addr.checked_sub(self.start)?).ok()?;
        // SAFETY: inside the mapping.
        (offset.checked_add(len)? <= self.len).then(|| unsafe { self.local_address.add(offset) })
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: exactly the attached or mapped memory; its addresses are no longer used (see
        // `at`).
        unsafe {
            match self.segment {
                Some(segment) => libc::shmdt(segment),
                None => libc::munmap(self.local_address.cast(), self.len),
            };
        }
    }
}

/// Also for unit tests of dependent crates.
#[cfg(test)]
mod tests {
    use super::*;
    use soft_sys::map::{Access, Mapping};
    use soft_sys::process;
    use std::os::fd::AsFd;

    #[test]
    fn a_line_of_maps_is_taken_apart() {
        let line = "7f00-8f00 rw-s 00001000 00:01 1234                    /memfd:a b (deleted)";
        let area = MapsLine::parse(line).expect("well-formed");
        assert_eq!((area.start, area.end, area.offset), (0x7f00, 0x8f00, 0x1000));
        assert_eq!((area.major, area.minor, area.inode), (0, 1, 1234));
        assert_eq!(area.path, "/memfd:a b (deleted)");
        assert_eq!(
            MapsLine::parse("7f00-8f00 rw-p 0 00:00 0").map(|a| a.path),
            Some(String::new())
        );
        for bad in ["", "7f00", "7f00-8f00 rw", "x-y rw-s 0 00:01 1", "1-2 rw-s 0 0001 1"] {
            assert_eq!(MapsLine::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_sealed_memory_file_is_shared_and_others_are_not() {
        let sealed = Memfd::create(c"fv-test", 8192).expect("a memory file");
        sealed.seal(Seals::SHRINK).expect("sealed");
        let one = Mapping::new(sealed.as_fd(), 8192, Access::ReadWrite).expect("mapped");
        let foreign = Foreign::map(process::id(), one.base() as u64 + 5000).expect("sharable");
        let there = foreign.local_range(one.base() as u64 + 5000, 8).expect("inside");
        assert_ne!(there, one.base().wrapping_add(5000));
        // SAFETY: inside both mappings, which only this test uses.
        unsafe {
            there.write(7);
            assert_eq!(one.base().add(5000).read_volatile(), 7);
        }
        assert!(foreign.local_range(one.base() as u64 + 8185, 8).is_none());
        assert!(foreign.local_range(one.base() as u64 - 1, 1).is_none());
        let open = Memfd::create(c"fv-test", 4096).expect("a memory file");
        let two = Mapping::new(open.as_fd(), 4096, Access::ReadWrite).expect("mapped");
        assert!(Foreign::map(process::id(), two.base() as u64).is_none(), "it may shrink");
        let private = vec![0u8; 1 << 20];
        assert!(Foreign::map(process::id(), private.as_ptr() as u64).is_none());
        assert!(Foreign::map(process::id(), 8).is_none());
    }
}
