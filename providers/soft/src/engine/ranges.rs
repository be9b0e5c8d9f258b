//! Lists of ranges of application memory, and copying to and from them.
//!
//! The application may touch that memory at any time, so it is only ever copied through raw pointers.

use super::imported::Imported;
use arrayvec::ArrayVec;
use soft_memory::careful;
use soft_memory::pages::is_mapped;
use std::sync::Arc;

/// Ranges that one work request may name (`max_sge` of the device).
pub(crate) use super::receive::MAX_SGE;

/// Registered memory of this process. Whoever makes one has checked the key that covers it and holds off
/// deregistration (see `Adapter::quiesce`) while using it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) base: *mut u8,
    pub(crate) len: usize,
}

/// The resolved scatter/gather list of one work request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    items: ArrayVec<Range, MAX_SGE>,
    total: usize,
    /// Those of imported regions, if any are.
    abroad: Option<Box<Abroad>>,
    /// Copied to by somebody whom the application does not know of (`soft_memory::careful`).
    careful: bool,
}

/// Which ranges are memory of another process (by place in the list), and how it is reached. Their addresses are that
/// process's.
#[derive(Clone, Debug, Default)]
struct Abroad(Vec<(usize, Arc<Imported>)>);

impl Abroad {
    fn at(&self, place: usize) -> Option<&Arc<Imported>> {
        self.0.iter().find(|(at, _)| *at == place).map(|(_, imported)| imported)
    }
}

impl Ranges {
    pub(crate) const fn new() -> Self {
        Self { items: ArrayVec::new_const(), total: 0, abroad: None, careful: false }
    }

    /// The memory may be gone, if who copies is `careful`.
    #[inline]
    pub(crate) fn take_care(&mut self, careful: bool) {
        self.careful = careful;
    }

    /// Appends a range; `false` when the list is full.
    pub(crate) fn push(&mut self, range: Range) -> bool {
        self.total += range.len;
        range.len == 0 || self.items.try_push(range).is_ok()
    }

    /// Appends a range of an imported region; `false` when the list is full.
    #[cold]
    pub(crate) fn push_imported(&mut self, range: Range, imported: Arc<Imported>) -> bool {
        if range.len > 0 {
            let place = self.items.len();
            self.abroad.get_or_insert_default().0.push((place, imported));
        }
        self.push(range)
    }

    /// Appends all ranges of another list; `false` when this one is full.
    pub(crate) fn extend(&mut self, other: &Self) -> bool {
        self.careful |= other.careful;
        other.items.iter().enumerate().all(|(place, range)| match other.abroad(place) {
            Some(imported) => self.push_imported(*range, Arc::clone(imported)),
            None => self.push(*range),
        })
    }

    /// The same bytes as memory of this process, copied into `buffer`. `None`: memory of an imported region is gone.
    #[cold]
    pub(crate) fn brought_home(&self, buffer: &mut Vec<u8>) -> Option<Self> {
        buffer.resize(self.total, 0);
        // SAFETY: the buffer has so many bytes.
        if !unsafe { self.gather(0, buffer.as_mut_ptr(), self.total) } {
            return None;
        }
        Some(Self::of(buffer))
    }

    /// Memory of our own.
    pub(super) fn of(buffer: &mut [u8]) -> Self {
        let mut own = Self::new();
        own.push(Range { base: buffer.as_mut_ptr(), len: buffer.len() });
        own
    }

    /// Whether some of it is not memory of this process: then only [`Ranges::scatter`] and [`Ranges::gather`] get at it.
    #[inline]
    pub(crate) const fn is_abroad(&self) -> bool {
        self.abroad.is_some()
    }

    /// Whether some of it was unmapped; of memory of this process.
    #[cold]
    pub(crate) fn is_gone(&self) -> bool {
        !self.is_abroad() && self.items.iter().any(|r| !is_mapped(r.base as u64, r.len))
    }

    /// Bytes in all ranges.
    pub(crate) const fn total(&self) -> usize {
        self.total
    }

    /// The non-empty ranges.
    pub(crate) fn items(&self) -> &[Range] {
        &self.items
    }

    /// The part `offset..offset + len` (cut at the end of the list), as ranges.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Self {
        let mut part = Self { careful: self.careful, ..Self::new() };
        self.walk(offset, len, |place, base, n, _| {
            let range = Range { base, len: n };
            // As many ranges as there were at most: never full.
            match self.abroad(place) {
                Some(imported) => part.push_imported(range, Arc::clone(imported)),
                None => part.push(range),
            };
        });
        part
    }

    /// Copies `len` bytes at `src` to `offset` of the list. `false`: memory of an imported region is gone. (What was unmapped here swallows them.)
    ///
    /// # Safety
    /// `src..src + len` is readable.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn scatter(&self, offset: usize, src: *const u8, len: usize) -> bool {
        if self.careful || self.abroad.is_some() {
            // SAFETY: by contract.
            return unsafe { self.scatter_specially(offset, src, len) };
        }
        self.walk(offset, len, |_, base, n, done| {
            // SAFETY: base..n is a registered range of the application (contract of Range), src as the caller
            // promised; memmove, since an application may send to itself.
            unsafe { std::ptr::copy(src.add(done), base, n) };
        });
        true
    }

    /// Copies `len` bytes at `offset` of the list to `dst`. `false`: memory of an imported region is gone.
    ///
    /// # Safety
    /// `dst..dst + len` is writable.
    #[inline]
    #[must_use]
    pub(crate) unsafe fn gather(&self, offset: usize, dst: *mut u8, len: usize) -> bool {
        if self.abroad.is_some() {
            // SAFETY: by contract.
            return unsafe { self.gather_abroad(offset, dst, len) };
        }
        self.walk(offset, len, |_, base, n, done| {
            // SAFETY: as in `scatter`, the other way round.
            unsafe { std::ptr::copy(base, dst.add(done), n) };
        });
        true
    }

    /// The imported region that the range at `place` is in, if it is in one.
    fn abroad(&self, place: usize) -> Option<&Arc<Imported>> {
        self.abroad.as_ref().and_then(|abroad| abroad.at(place))
    }

    /// [`Ranges::scatter`] of a list that imported regions are in, or by somebody careful.
    #[cold]
    unsafe fn scatter_specially(&self, offset: usize, src: *const u8, len: usize) -> bool {
        let mut good = true;
        self.walk(offset, len, |place, base, n, done| {
            let src = src.wrapping_add(done);
            match self.abroad(place) {
                Some(imported) => {
                    // SAFETY: readable by contract; the range was checked when it was resolved.
                    good = good && unsafe { imported.write(base as u64, src, n) };
                }
                // SAFETY: as in `scatter`, but that the range may be gone.
                None if self.careful => unsafe { careful::put(base, src, n) },
                // SAFETY: as in `scatter`.
                None => unsafe { std::ptr::copy(src, base, n) },
            }
        });
        good
    }

    /// [`Ranges::gather`] of a list that imported regions are in.
    #[cold]
    unsafe fn gather_abroad(&self, offset: usize, dst: *mut u8, len: usize) -> bool {
        let mut good = true;
        self.walk(offset, len, |place, base, n, done| {
            let dst = dst.wrapping_add(done);
            match self.abroad(place) {
                Some(imported) => {
                    // SAFETY: writable by contract; the range was checked when it was resolved.
                    good = good && unsafe { imported.read(base as u64, dst, n) };
                }
                // SAFETY: as in `gather`.
                None => unsafe { std::ptr::copy(base, dst, n) },
            }
        });
        good
    }

    /// Calls `f` with place in the list, address, length and distance from `offset` of each contiguous run.
    #[inline]
    fn walk(&self, offset: usize, len: usize, mut f: impl FnMut(usize, *mut u8, usize, usize)) {
        let (mut skip, mut done) = (offset, 0);
        for (place, item) in self.items.iter().enumerate() {
            if done == len {
                return;
            }
            if skip >= item.len {
                skip -= item.len;
                continue;
            }
            let n = (item.len - skip).min(len - done);
            // Within the range, whoever's it is.
            f(place, item.base.wrapping_add(skip), n, done);
            done += n;
            skip = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(buffers: &mut [Vec<u8>]) -> Ranges {
        let mut ranges = Ranges::new();
        for b in buffers {
            assert!(ranges.push(Range { base: b.as_mut_ptr(), len: b.len() }));
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
                // SAFETY: src has 64 bytes.
                assert!(unsafe { ranges.scatter(offset, src.as_ptr(), len) });
                let mut back = vec![0; len];
                // SAFETY: back has len bytes.
                assert!(unsafe { ranges.gather(offset, back.as_mut_ptr(), len) });
                assert_eq!(back, src[..len]);
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
}
