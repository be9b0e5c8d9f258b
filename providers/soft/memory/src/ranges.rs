//! Scatter/gather lists of application memory, and copies to and from them.
//!
//! The application may touch the memory at any time, so it is only copied through raw pointers. Map
//! of this file: [`Remote`], memory of another process in a list; [`Ranges`] with `scatter` into
//! the list and `gather` out of it; helpers for the order of stores.

use crate::guard::{self, UnmappedSide};
use crate::pages::is_mapped;
use crate::{Range, careful};
use arrayvec::ArrayVec;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// The largest number of ranges of a work request (`max_sge` of the device).
pub const MAX_SGE: usize = 32;

/// Memory of another process in a list of this process.
pub trait Remote: Debug + Send + Sync {
    /// Copies the bytes at address `va` of that process to `to`. Returns false if the memory is
    /// gone.
    fn read(&self, va: u64, to: Range<'_>) -> bool;

    /// Copies `from` to address `va` of that process. Returns false if the memory is gone.
    fn write(&self, va: u64, from: Range<'_>) -> bool;
}

/// The resolved scatter/gather list of one work request.
#[derive(Clone, Debug, Default)]
pub struct Ranges<'a> {
    items: ArrayVec<Range<'a>, MAX_SGE>,
    total: usize,
    /// The ranges of imported regions, if any.
    abroad: Option<Box<ImportedRanges>>,
    /// Whether a thread of the library copies, which must ask the kernel first
    /// (`soft_memory::careful`).
    careful: bool,
}

/// Which ranges are memory of another process, by index in the list, and how to reach it. Their
/// addresses belong to that process.
#[derive(Clone, Debug, Default)]
struct ImportedRanges(Vec<(usize, Arc<dyn Remote>)>);

impl ImportedRanges {
    fn get(&self, place: usize) -> Option<&Arc<dyn Remote>> {
        self.0.iter().find(|(at, _)| *at == place).map(|(_, imported)| imported)
    }
}

impl<'a> Ranges<'a> {
    /// An empty list.
    pub const fn new() -> Self {
        Self { items: ArrayVec::new_const(), total: 0, abroad: None, careful: false }
    }

    /// Sets whether the copying thread must ask the kernel first.
    #[inline]
    pub fn take_care(&mut self, careful: bool) {
        self.careful = careful;
    }

    /// Appends a range; `false`: the list is full.
    pub fn push(&mut self, range: Range<'a>) -> bool {
        self.total += range.len();
        range.is_empty() || self.items.try_push(range).is_ok()
    }

    /// Appends `len` bytes at address `va` of another process; `false`: the list is full.
    #[cold]
    pub fn push_imported(&mut self, va: u64, len: usize, imported: Arc<dyn Remote>) -> bool {
        // SAFETY: never accessed as local memory: the list records its owner.
        let range = unsafe { Range::at(va, len) };
        if len > 0 {
            let place = self.items.len();
            self.abroad.get_or_insert_default().0.push((place, imported));
        }
        self.push(range)
    }

    /// Appends all ranges of another list; `false`: this list is full.
    pub fn extend(&mut self, other: &Ranges<'a>) -> bool {
        self.careful |= other.careful;
        other.items.iter().enumerate().all(|(place, range)| match other.abroad(place) {
            Some(imported) => {
                self.push_imported(range.address(), range.len(), Arc::clone(imported))
            }
            None => self.push(*range),
        })
    }

    /// Copies the whole list into `buffer`. Returns false if memory of an imported region is gone.
    #[cold]
    pub fn gather_all(&self, buffer: &mut Vec<u8>) -> bool {
        buffer.resize(self.total, 0);
        self.gather_bytes(0, buffer)
    }

    /// A list of one range.
    #[inline]
    pub fn of(range: Range<'a>) -> Self {
        let mut own = Self::new();
        own.push(range);
        own
    }

    /// Whether a range is memory of another process. Then only [`Ranges::scatter`] and
    /// [`Ranges::gather`] can access the list.
    #[inline]
    pub const fn is_abroad(&self) -> bool {
        self.abroad.is_some()
    }

    /// Whether a part of the list was unmapped; local memory only.
    #[cold]
    pub fn is_gone(&self) -> bool {
        !self.is_abroad() && self.items.iter().any(|r| !is_mapped(r.address(), r.len()))
    }

    /// Whether the whole list is readable now; local memory only.
    pub fn is_readable(&self) -> bool {
        // SAFETY: part of a Range.
        self.items.iter().all(|r| unsafe { guard::is_readable(r.base(), r.len()) })
    }

    /// Number of bytes in all ranges.
    pub const fn total(&self) -> usize {
        self.total
    }

    /// The non-empty ranges.
    pub fn items(&self) -> &[Range<'a>] {
        &self.items
    }

    /// The part `offset..offset + len`, limited to the list, as ranges.
    pub fn part(&self, offset: usize, len: usize) -> Self {
        let mut part = Self { careful: self.careful, ..Self::new() };
        self.walk(offset, len, |place, base, n, _| {
            // The part has at most as many ranges as the list.
            match self.abroad(place) {
                Some(imported) => part.push_imported(base as u64, n, Arc::clone(imported)),
                // SAFETY: part of a range of the list.
                None => part.push(unsafe { Range::new(base, n) }),
            };
        });
        part
    }

    /// Copies `from` to `offset` of the list. Returns false if `from`, or memory of an imported
    /// region, is gone. Unmapped memory of the list loses the bytes.
    #[inline]
    #[must_use]
    pub fn scatter(&self, offset: usize, from: Range<'_>) -> bool {
        // SAFETY: that many bytes are readable (contract of Range).
        unsafe { self.scatter_at(offset, from.base(), from.len()) }
    }

    /// As [`Ranges::scatter`], from a slice.
    #[inline]
    #[must_use]
    pub fn scatter_bytes(&self, offset: usize, from: &[u8]) -> bool {
        // SAFETY: a slice is readable.
        unsafe { self.scatter_at(offset, from.as_ptr(), from.len()) }
    }

    /// As [`Ranges::scatter_bytes`], for the data of a packet. Prefetches as many bytes behind it,
    /// where the next packet's data will go. The processor's own prefetch stops at a page's end,
    /// and a packet fills about a page, so each packet would begin with cache misses.
    #[inline]
    #[must_use]
    pub fn scatter_packet(&self, offset: usize, from: &[u8]) -> bool {
        let placed = self.scatter_bytes(offset, from);
        if from.len() >= LARGE && !self.is_abroad() {
            self.walk(offset + from.len(), from.len(), |_, base, n, _| {
                for line in (0..n).step_by(LINE) {
                    fetch_to_write(base.wrapping_add(line));
                }
            });
        }
        placed
    }

    /// Fills `to` from `offset` of the list. Returns false if a part of the source is gone. If `to`
    /// is unmapped, the bytes are lost.
    #[inline]
    #[must_use]
    pub fn gather(&self, offset: usize, to: Range<'_>) -> bool {
        // SAFETY: that many bytes are writable (contract of Range).
        unsafe { self.gather_at(offset, to.base(), to.len()) }
    }

    /// As [`Ranges::gather`], into a slice.
    #[inline]
    #[must_use]
    pub fn gather_bytes(&self, offset: usize, to: &mut [u8]) -> bool {
        // SAFETY: an exclusively borrowed slice is writable.
        unsafe { self.gather_at(offset, to.as_mut_ptr(), to.len()) }
    }

    /// Copies the whole list to `to`, which another process may poll: the last byte is stored last.
    /// Returns false as [`Ranges::gather`].
    #[must_use]
    pub fn gather_in_order(&self, to: Range<'_>) -> bool {
        let len = self.total.min(to.len());
        let last = last_stored(to.base(), len);
        let mut end = [0u8; 8];
        if !self.gather(0, to.first(len - last)) || !self.gather_bytes(len - last, &mut end[..last])
        {
            return false;
        }
        // SAFETY: the last bytes of `to`, aligned as `last_stored` says.
        unsafe { store_last(to.base().add(len - last), end.as_ptr(), last) };
        true
    }

    /// # Safety
    /// `src..src + len` is readable.
    #[inline]
    unsafe fn scatter_at(&self, offset: usize, src: *const u8, len: usize) -> bool {
        if self.careful || self.abroad.is_some() {
            // SAFETY: the caller's contract says that `src..src + len` is readable, as
            // `scatter_specially` requires.
            return unsafe { self.scatter_specially(offset, src, len) };
        }
        let mut good = true;
        self.walk(offset, len, |_, base, n, done| {
            // SAFETY: base..n is part of a Range, and src satisfies the caller's contract.
            good &= unsafe { guard::copy(src.add(done), base, n) } != Err(UnmappedSide::Source);
        });
        good
    }

    /// # Safety
    /// `dst..dst + len` is writable.
    #[inline]
    unsafe fn gather_at(&self, offset: usize, dst: *mut u8, len: usize) -> bool {
        if self.abroad.is_some() {
            // SAFETY: the caller's contract says that `dst..dst + len` is writable, as
            // `gather_abroad` requires.
            return unsafe { self.gather_abroad(offset, dst, len) };
        }
        let mut good = true;
        self.walk(offset, len, |_, base, n, done| {
            // SAFETY: base..n is part of a Range, and dst satisfies the caller's contract.
            good &= unsafe { guard::copy(base, dst.add(done), n) } != Err(UnmappedSide::Source);
        });
        good
    }

    /// The imported region of the range at `place`, if any.
    fn abroad(&self, place: usize) -> Option<&Arc<dyn Remote>> {
        self.abroad.as_ref().and_then(|abroad| abroad.get(place))
    }

    /// `scatter_at` for a list with imported regions, or for a careful thread.
    ///
    /// # Safety
    /// `src..src + len` is readable.
    #[cold]
    unsafe fn scatter_specially(&self, offset: usize, src: *const u8, len: usize) -> bool {
        let mut good = true;
        self.walk(offset, len, |place, base, n, done| {
            let src = src.wrapping_add(done);
            match self.abroad(place) {
                Some(imported) => {
                    // SAFETY: `src` is readable by the caller's contract, and only read.
                    let from = unsafe { Range::new(src.cast_mut(), n) };
                    good = good && imported.write(base as u64, from);
                }
                // SAFETY: `src` has `n` readable bytes left of the caller's `len` (`walk`); `base`
                // is part of a Range that is writable or unmapped by now, and `put` asks the kernel
                // first.
                None if self.careful => good &= unsafe { careful::copy_out(base, src, n) },
                // SAFETY: `src` has `n` readable bytes left of the caller's `len` (`walk`); `base`
                // is part of a writable Range of this process.
                None => good &= unsafe { guard::copy(src, base, n) } != Err(UnmappedSide::Source),
            }
        });
        good
    }

    /// `gather_at` for a list with imported regions.
    ///
    /// # Safety
    /// `dst..dst + len` is writable.
    #[cold]
    unsafe fn gather_abroad(&self, offset: usize, dst: *mut u8, len: usize) -> bool {
        let mut good = true;
        self.walk(offset, len, |place, base, n, done| {
            let dst = dst.wrapping_add(done);
            match self.abroad(place) {
                Some(imported) => {
                    // SAFETY: `dst` is writable by the caller's contract.
                    good = good && imported.read(base as u64, unsafe { Range::new(dst, n) });
                }
                // SAFETY: `dst` has room for `n` of the caller's `len` bytes (`walk`); `base` is
                // part of a readable Range of this process.
                None => good &= unsafe { guard::copy(base, dst, n) } != Err(UnmappedSide::Source),
            }
        });
        good
    }

    /// Calls `f` for each contiguous run: index in the list, address, length, and distance from
    /// `offset`.
    #[inline]
    fn walk(&self, offset: usize, len: usize, mut f: impl FnMut(usize, *mut u8, usize, usize)) {
        let (mut skip, mut done) = (offset, 0);
        for (place, item) in self.items.iter().enumerate() {
            if done == len {
                return;
            }
            if skip >= item.len() {
                skip -= item.len();
                continue;
            }
            let n = (item.len() - skip).min(len - done);
            // The address stays within the range, in either process.
            f(place, item.base().wrapping_add(skip), n, done);
            done += n;
            skip = 0;
        }
    }
}

/// Length of a packet from which on another packet of its message is likely to follow.
const LARGE: usize = 1024;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches the line of `address` for writing, if the target supports it; unmapped addresses are
/// ignored.
#[inline]
fn fetch_to_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint: it neither reads nor faults, and processors without it ignore it (Intel SDM
    // vol 2B, PREFETCHW).
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// The number of last bytes of `len` to store at once. A thread that waits for the last byte then
/// finds all others.
fn last_stored(to: *mut u8, len: usize) -> usize {
    match len {
        0 => 0,
        2 | 4 | 8 if (to as usize).is_multiple_of(len) => len,
        _ => 1,
    }
}

/// Stores the last `len` bytes of a write after all preceding bytes.
///
/// # Safety
/// `to` is writable for `len` bytes and aligned as [`last_stored`] determined; `from` is readable
/// for `len` bytes.
unsafe fn store_last(to: *mut u8, from: *const u8, len: usize) {
    fence(Ordering::Release);
    // SAFETY: `to` is writable for `len` bytes and aligned for an atomic of that size (contract,
    // `last_stored`; other lengths are 0 and 1); `from` is readable at any alignment.
    unsafe {
        match len {
            0 => {}
            2 => AtomicU16::from_ptr(to.cast())
                .store(from.cast::<u16>().read_unaligned(), Ordering::Release),
            4 => AtomicU32::from_ptr(to.cast())
                .store(from.cast::<u32>().read_unaligned(), Ordering::Release),
            8 => AtomicU64::from_ptr(to.cast())
                .store(from.cast::<u64>().read_unaligned(), Ordering::Release),
            _ => AtomicU8::from_ptr(to).store(from.read(), Ordering::Release),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(buffers: &mut [Vec<u8>]) -> Ranges<'_> {
        let mut ranges = Ranges::new();
        for b in buffers {
            assert!(ranges.push(Range::of(b)));
        }
        ranges
    }

    #[test]
    fn bytes_land_where_a_flat_copy_would_put_them() {
        let src: Vec<u8> = (0..64).collect();
        for offset in 0..40 {
            for len in 0..=(40 - offset) {
                let mut buffers = [vec![0; 7], vec![0; 0], vec![0; 20], vec![0; 13]];
                let ranges = over(&mut buffers);
                assert_eq!(ranges.total(), 40);
                assert!(ranges.scatter_bytes(offset, &src[..len]));
                let mut back = vec![0; len];
                assert!(ranges.gather_bytes(offset, &mut back));
                assert_eq!(back, src[..len]);
                drop(ranges);
                let mut flat = vec![0; 40];
                flat[offset..offset + len].copy_from_slice(&src[..len]);
                assert_eq!(buffers.concat(), flat);
            }
        }
    }

    #[test]
    fn a_part_is_cut_at_the_end() {
        let mut buffers = [vec![0; 4], vec![0; 4]];
        let ranges = over(&mut buffers);
        assert_eq!(ranges.part(3, 2).items().len(), 2);
        assert_eq!(ranges.part(6, 100).total(), 2);
        assert_eq!(ranges.part(8, 1).total(), 0);
    }

    #[test]
    fn the_end_of_a_write_is_one_store_where_it_can_be() {
        let mut words = [0u64; 4];
        let base = words.as_mut_ptr().cast::<u8>();
        let source: Vec<u8> = (1..=32).collect();
        for len in 0..=16usize {
            for at in 0..8usize {
                // SAFETY: 8 + 16 bytes are inside the four words and the source.
                unsafe {
                    let to = base.add(at);
                    let last = last_stored(to, len);
                    assert!(last <= len && (len == 0 || last > 0));
                    std::ptr::copy(source.as_ptr(), to, len - last);
                    store_last(to.add(len - last), source.as_ptr().add(len - last), last);
                    let got: Vec<u8> = (0..len).map(|i| to.add(i).read()).collect();
                    assert_eq!(got, source[..len]);
                }
            }
        }
        assert_eq!(last_stored(base, 8), 8);
        assert_eq!(last_stored(base.wrapping_add(4), 8), 1);
    }
}
