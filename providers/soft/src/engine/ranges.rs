//! Lists of ranges of application memory, and copying to and from them.
//!
//! The application may touch that memory at any time, so it is only ever copied through raw pointers.

use arrayvec::ArrayVec;

/// Ranges that one work request may name (`max_sge` of the device).
pub(crate) const MAX_SGE: usize = 32;

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
}

impl Ranges {
    pub(crate) const fn new() -> Self {
        Self { items: ArrayVec::new_const(), total: 0 }
    }

    /// Appends a range; `false` when the list is full.
    pub(crate) fn push(&mut self, range: Range) -> bool {
        self.total += range.len;
        range.len == 0 || self.items.try_push(range).is_ok()
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
        let mut part = Self::new();
        self.walk(offset, len, |base, n, _| {
            // As many ranges as there were at most: never full.
            part.push(Range { base, len: n });
        });
        part
    }

    /// Copies `len` bytes at `src` to `offset` of the list.
    ///
    /// # Safety
    /// `src..src + len` is readable.
    pub(crate) unsafe fn scatter(&self, offset: usize, src: *const u8, len: usize) {
        self.walk(offset, len, |base, n, done| {
            // SAFETY: base..n is a registered range of the application (contract of Range), src as the caller
            // promised; memmove, since an application may send to itself.
            unsafe { std::ptr::copy(src.add(done), base, n) };
        });
    }

    /// Copies `len` bytes at `offset` of the list to `dst`.
    ///
    /// # Safety
    /// `dst..dst + len` is writable.
    pub(crate) unsafe fn gather(&self, offset: usize, dst: *mut u8, len: usize) {
        self.walk(offset, len, |base, n, done| {
            // SAFETY: as in `scatter`, the other way round.
            unsafe { std::ptr::copy(base, dst.add(done), n) };
        });
    }

    /// Calls `f` with address, length and distance from `offset` of each contiguous run.
    #[inline]
    fn walk(&self, offset: usize, len: usize, mut f: impl FnMut(*mut u8, usize, usize)) {
        let (mut skip, mut done) = (offset, 0);
        for item in &self.items {
            if done == len {
                return;
            }
            if skip >= item.len {
                skip -= item.len;
                continue;
            }
            let n = (item.len - skip).min(len - done);
            // SAFETY: skip < item.len: within the range.
            f(unsafe { item.base.add(skip) }, n, done);
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
                unsafe { ranges.scatter(offset, src.as_ptr(), len) };
                let mut back = vec![0; len];
                // SAFETY: back has len bytes.
                unsafe { ranges.gather(offset, back.as_mut_ptr(), len) };
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
