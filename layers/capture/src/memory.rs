//! The bytes of requests, copied without the risk of a crash. A region's memory may be unmapped,
//! or may not belong to this process at all.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::Arc;

use abi::{ibv_mr, ibv_sge};
use cface::lock::Guard;
use layer_tap::Elements;
use layer_tap::table::Table;

/// A part of a request's bytes: address, length, lkey.
pub(crate) type Part = (u64, usize, u32);

/// Most parts that one call copies (UIO_MAXIOV is 1024).
const PIECES: usize = 64;
/// Most bytes of an inline request that are kept.
const INLINE: usize = 64 << 10;

struct Region {
    context: usize,
    lkey: u32,
    /// The first address in the region, as requests name addresses.
    start: u64,
    length: u64,
    /// The same address in this process; 0 if the memory is not mapped here.
    address: u64,
}

/// Regions by address.
static REGIONS: Table<Region> = Table::new();
/// The same regions by context and lkey.
static KEYS: Table<Region> = Table::new();

fn key(context: usize, lkey: u32) -> usize {
    // Tables ignore the low four bits. Two regions may have the same key; their members tell them
    // apart.
    (context.rotate_left(32) ^ lkey as usize) << 4 | 1
}

/// Records a region that was created or changed. `start` is the first address that requests name,
/// by default the region's address. `is_memory` tells whether the region is mapped in this
/// process.
///
/// # Safety
/// `mr` is live.
pub(crate) unsafe fn registered(mr: *const ibv_mr, start: Option<u64>, is_memory: bool) {
    // SAFETY: per the caller.
    let (context, lkey, address, length) =
        unsafe { ((*mr).context as usize, (*mr).lkey, (*mr).addr as u64, (*mr).length as u64) };
    let start = start.unwrap_or(address);
    let address = if is_memory { address } else { 0 };
    let region = Arc::new(Region { context, lkey, start, length, address });
    remove_mr(mr as usize);
    REGIONS.insert(mr as usize, region.clone());
    KEYS.insert(key(context, lkey), region);
}

/// Forgets a deregistered region.
pub(crate) fn remove_region(mr: usize, lkey: u32) {
    // The address may already belong to another region.
    if REGIONS.get(mr).is_some_and(|region| region.lkey == lkey) {
        remove_mr(mr);
    }
}

fn remove_mr(mr: usize) {
    let Some(region) = REGIONS.share(mr) else { return };
    REGIONS.remove(mr);
    let key = key(region.context, region.lkey);
    if KEYS.share(key).is_some_and(|other| Arc::ptr_eq(&other, &region)) {
        KEYS.remove(key);
    }
}

/// The locks that a forking thread must hold.
pub(crate) fn hold() -> [Guard; 2] {
    [REGIONS.hold(), KEYS.hold()]
}

/// The address of a part in this process, if the part lies in a mapped region.
fn mapped_address(context: usize, (address, length, lkey): Part) -> Option<u64> {
    let region = KEYS.get(key(context, lkey))?;
    let offset = address.checked_sub(region.start)?;
    let is_inside = offset.checked_add(length as u64)? <= region.length;
    let is_it = region.context == context && region.lkey == lkey && region.address != 0;
    (is_it && is_inside).then(|| region.address.wrapping_add(offset))
}

/// The meaning of a request's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressKind {
    /// The addresses lie in regions, which the keys name.
    Regions,
    /// The addresses of an inline request: any memory of this process.
    Ranges,
    /// The addresses of an inline request that the provider copies in this call, so the memory is
    /// mapped.
    Copied,
}

/// The bytes of a request.
#[derive(Debug, Default)]
pub(crate) struct Source {
    parts: Vec<Part>,
    /// The bytes of an inline request of a builder.
    copied: Vec<u8>,
    /// The header of a TSO request.
    header: Vec<u8>,
}

impl Source {
    /// A request without bytes.
    pub(crate) const NONE: Self =
        Self { parts: Vec::new(), copied: Vec::new(), header: Vec::new() };

    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.copied.clear();
        self.header.clear();
    }

    /// The bytes before the request's elements.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }

    /// Stores the elements as the program gave them.
    pub(crate) fn set(&mut self, list: Elements<'_>) {
        self.parts.clear();
        self.copied.clear();
        match list {
            Elements::Header(header) => {
                self.header.resize(header.length.min(INLINE), 0);
                if copy(&mut [(header.addr as u64, self.header.len())], &mut self.header).is_none()
                {
                    self.header.clear();
                }
            }
            Elements::Sges(all) => {
                let part = |sge: &ibv_sge| (sge.addr, sge.length as usize, sge.lkey);
                self.parts.extend(all.iter().map(part));
            }
            Elements::Inline(all) => {
                for buffer in all {
                    let have = self.copied.len();
                    let length = buffer.length.min(INLINE - have);
                    self.copied.resize(have + length, 0);
                    if copy(&mut [(buffer.addr as u64, length)], &mut self.copied[have..]).is_none()
                    {
                        self.copied.truncate(have);
                        return;
                    }
                }
            }
        }
    }

    /// Appends `length` bytes from `offset` to `to`. `None` if the bytes cannot be read; `to` is
    /// then unchanged.
    pub(crate) fn read(
        &self,
        context: usize,
        kind: AddressKind,
        mut offset: usize,
        length: usize,
        to: &mut Vec<u8>,
    ) -> Option<()> {
        if let Some(bytes) = self.copied.get(offset..offset + length)
            && !self.copied.is_empty()
        {
            to.extend(bytes);
            return Some(());
        }
        let before = to.len();
        to.resize(before + length, 0);
        let mut rest = length;
        let mut pieces = [(0, 0); PIECES];
        let mut count = 0;
        for &(address, bytes, lkey) in &self.parts {
            if offset >= bytes {
                offset -= bytes;
                continue;
            }
            let take = rest.min(bytes - offset);
            let part = (address.wrapping_add(offset as u64), take, lkey);
            offset = 0;
            let at = if kind == AddressKind::Regions {
                mapped_address(context, part)
            } else {
                Some(part.0)
            };
            match (at, pieces.get_mut(count)) {
                (Some(at), Some(piece)) => *piece = (at, take),
                _ => break,
            }
            (rest, count) = (rest - take, count + 1);
            if rest == 0 {
                break;
            }
        }
        let read = match &mut pieces[..count] {
            pieces if rest == 0 && kind == AddressKind::Copied => {
                copy_plainly(pieces, &mut to[before..]);
                Some(())
            }
            pieces if rest == 0 => copy(pieces, &mut to[before..]),
            _ => None,
        };
        if read.is_none() {
            to.truncate(before);
        }
        read
    }
}

/// The process number; 0 while unknown. The number costs a system call.
static PID: AtomicI32 = AtomicI32::new(0);

fn own_pid() -> libc::pid_t {
    let known = PID.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: the call has no requirements.
    let pid = unsafe { libc::getpid() };
    PID.store(pid, Ordering::Relaxed);
    pid
}

/// In the child of a fork, which has another number.
pub(crate) fn forked() {
    PID.store(0, Ordering::Relaxed);
}

/// Whether the kernel refused `process_vm_readv`.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Copies ranges of an inline request. Unmapped ranges would crash the provider as well.
fn copy_plainly(pieces: &[(u64, usize)], to: &mut [u8]) {
    let mut place = to.as_mut_ptr();
    for &(at, length) in pieces {
        // SAFETY: `to` is as long as all pieces. The provider reads the same ranges in this call
        // (`AddressKind::Copied`). Other threads may write these ranges, hence no slice.
        unsafe {
            place.copy_from_nonoverlapping(at as *const u8, length);
            place = place.add(length);
        }
    }
}

/// Copies ranges of this process, which may be unmapped, one after the other. `None` if a range
/// cannot be read.
fn copy(pieces: &mut [(u64, usize)], to: &mut [u8]) -> Option<()> {
    if to.is_empty() {
        return Some(());
    }
    if REFUSED.load(Ordering::Relaxed) {
        return None;
    }
    let mut from = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; PIECES];
    for (place, (at, length)) in from.iter_mut().zip(&*pieces) {
        *place = libc::iovec { iov_base: *at as *mut _, iov_len: *length };
    }
    let into = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let count = pieces.len().min(PIECES) as libc::c_ulong;
    // SAFETY: the kernel writes `to`, and checks the other addresses itself. A direct system call
    // is no cancellation point, unlike the C library's function may be.
    let got = unsafe {
        let (pid, one, none) = (own_pid(), 1 as libc::c_ulong, 0 as libc::c_ulong);
        libc::syscall(
            libc::SYS_process_vm_readv,
            pid,
            &raw const into,
            one,
            from.as_ptr(),
            count,
            none,
        )
    };
    if got == to.len() as i64 {
        return Some(());
    }
    // SAFETY: the location is the calling thread's own.
    let error = unsafe { *libc::__errno_location() };
    if got < 0
        && matches!(error, libc::EPERM | libc::ENOSYS)
        && !REFUSED.swap(true, Ordering::Relaxed)
        && std::env::var_os("FERROVERBS_QUIET").is_none_or(|value| value != "1")
    {
        cface::say!(
            "ferroverbs capture: packets come without payload: process_vm_readv is refused here"
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_several_parts_are_copied_from_any_offset() {
        let (a, b) = (*b"abcdef", *b"ghi");
        let sge = |bytes: &[u8]| ibv_sge {
            addr: bytes.as_ptr() as u64,
            length: bytes.len() as u32,
            lkey: 0,
        };
        let mut source = Source::default();
        source.set(Elements::Sges(&[sge(&a), sge(&b)]));
        let mut out = b"x".to_vec();
        assert_eq!(source.read(0, AddressKind::Ranges, 4, 4, &mut out), Some(()));
        assert_eq!(out, b"xefgh");
        assert_eq!(source.read(0, AddressKind::Copied, 5, 2, &mut out), Some(()));
        assert_eq!(out.split_off(5), b"fg");
        assert_eq!(source.read(0, AddressKind::Copied, 4, 6, &mut out), None, "there are five");
        assert_eq!(source.read(0, AddressKind::Ranges, 4, 6, &mut out), None, "there are five");
        assert_eq!(
            source.read(0, AddressKind::Regions, 0, 1, &mut out),
            None,
            "no region has that key"
        );
        assert_eq!(out, b"xefgh");
    }

    #[test]
    fn what_is_not_there_is_not_read() {
        let mut source = Source::default();
        source.set(Elements::Sges(&[ibv_sge { addr: 16, length: 8, lkey: 0 }]));
        let mut out = Vec::new();
        assert_eq!(source.read(0, AddressKind::Ranges, 0, 8, &mut out), None);
        assert!(out.is_empty());
    }

    #[test]
    fn regions_are_found_by_their_key_and_base() {
        let bytes = *b"0123456789";
        let mut mr = <ibv_mr as abi::Zeroed>::zeroed();
        (mr.addr, mr.length, mr.lkey) = (bytes.as_ptr().cast_mut().cast(), 10, 0x77);
        let mut source = Source::default();
        source.set(Elements::Sges(&[ibv_sge { addr: 4, length: 3, lkey: 0x77 }]));
        let read = |source: &Source| {
            let mut out = Vec::new();
            source.read(0, AddressKind::Regions, 0, 3, &mut out).map(|()| out)
        };
        assert_eq!(read(&source), None);
        // SAFETY: `mr` lives until the end of the test.
        unsafe { registered(&raw const mr, Some(0), true) };
        assert_eq!(read(&source).as_deref(), Some(&b"456"[..]));
        // SAFETY: `mr` lives until the end of the test.
        unsafe { registered(&raw const mr, Some(0), false) };
        assert_eq!(read(&source), None, "a device's own memory");
        // SAFETY: `mr` lives until the end of the test.
        unsafe { registered(&raw const mr, None, true) };
        assert_eq!(read(&source), None, "another base");
        remove_region(&raw const mr as usize, 0x77);
    }
}
