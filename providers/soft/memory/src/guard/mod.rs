//! Copies of application memory that survive a page fault.
//!
//! An adapter pins registered pages. `soft` does not, and a program can unmap registered pages, so
//! each copy may fault. A check by a system call before each copy (`msync(2)`, 400 ns) costs more
//! than a short message, and leaves a race. Therefore all copies run in a few assembly routines,
//! and a handler of SIGSEGV and SIGBUS ends the routine that faulted. A copy without a fault has no
//! extra cost.
//!
//! The handler passes every other fault to the handler that the program had before [`arm`]
//! (`sigaction(2)`), or takes the default action. A handler that a program installs later runs
//! first. The kernel ends a thread that faults while SIGSEGV is blocked (`sigaction(2)`).

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod handler;
mod routines;

use crate::pages::is_mapped;

/// Installs the handler, once for each process.
pub fn arm() {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    handler::arm();
}

/// The side of a copy that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmappedSide {
    /// The memory that the copy reads.
    Source,
    /// The memory that the copy writes.
    Target,
}

/// Copies `len` bytes. The ranges may overlap, because an application may send to itself.
///
/// # Errors
/// The side that is unmapped or protected. The routine may have copied some of the bytes.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, or application memory that is unmapped.
/// Rust references to the bytes do not exist during the call.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), UnmappedSide> {
    // SAFETY: the caller keeps the contract.
    match unsafe { routines::copy(to, from, len) } {
        0 => Ok(()),
        fault => Err(whose(fault, from, len)),
    }
}

/// Whether `len` bytes are readable now. The function reads one byte of each page.
///
/// # Safety
/// As for `from` of [`copy`].
#[must_use]
pub unsafe fn is_readable(from: *const u8, len: usize) -> bool {
    // The smallest page size of all supported machines.
    const PAGE: usize = 4096;
    let first_of_next = |at: usize| PAGE - at % PAGE;
    let mut offset = 0;
    while offset < len {
        let at = from.wrapping_add(offset);
        let mut byte = 0u8;
        // SAFETY: `at` is within the caller's range, and `byte` is a local variable.
        if unsafe { copy(at, &raw mut byte, 1) }.is_err() {
            return false;
        }
        offset += first_of_next(at as usize);
    }
    true
}

/// Whether a word is writable now. The function replaces the word by itself, atomically. The
/// address is a multiple of 8.
///
/// # Safety
/// As for [`store`].
#[must_use]
pub unsafe fn is_writable(word: *mut u64) -> bool {
    let mut seen = 0;
    loop {
        // SAFETY: the caller keeps the contract.
        match unsafe { compare_exchange(word, seen, seen) } {
            None => return false,
            Some(now) if now == seen => return true,
            Some(now) => seen = now,
        }
    }
}

/// Stores a word by one instruction. The address is a multiple of 8. Returns false if the address
/// is unmapped.
///
/// # Safety
/// `to` is writable for 8 bytes, or application memory that is unmapped.
pub unsafe fn store(to: *mut u64, value: u64) -> bool {
    // SAFETY: the caller keeps the contract.
    unsafe { routines::store(to, value) == 0 }
}

/// Replaces the word `old` by `new` atomically. The address is a multiple of 8. Returns the
/// previous word, or `None` if the address is unmapped.
///
/// # Safety
/// As for [`store`].
pub unsafe fn compare_exchange(at: *mut u64, old: u64, new: u64) -> Option<u64> {
    let mut seen = 0;
    // SAFETY: the caller keeps the contract; `seen` is a local variable.
    (unsafe { routines::compare_exchange(at, old, new, &raw mut seen) } == 0).then_some(seen)
}

#[cold]
fn whose(fault: usize, from: *const u8, len: usize) -> UnmappedSide {
    let offset = fault.wrapping_sub(from as usize);
    // The kernel reports no address for a fault at a non-canonical address.
    let is_source = if fault == UNKNOWN { !is_mapped(from as u64, len) } else { offset < len };
    if is_source { UnmappedSide::Source } else { UnmappedSide::Target }
}

/// Result of a routine that faulted at an address that the kernel does not report.
const UNKNOWN: usize = usize::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::remote_pages;
    use cface::mem::page_size;

    const PAGE: usize = 4096;

    /// Lengths at the limits between the branches of the routines.
    const LENS: [usize; 27] = [
        0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 1535, 1536,
        1537, 4095, 4096, 4097,
    ];

    #[test]
    fn bytes_arrive_as_a_plain_copy_brings_them_however_the_ranges_overlap() {
        let source: Vec<u8> = (0..3 * PAGE).map(|i| (i * 7 % 251) as u8).collect();
        for len in LENS {
            for (from, to) in
                [(0, 5000), (5000, 3), (64, 64), (64, 65), (65, 64), (0, 63), (100, 0)]
            {
                let (mut got, mut wanted) = (source.clone(), source.clone());
                let base = got.as_mut_ptr();
                // SAFETY: both parts are within the three pages of `got`.
                let copied = unsafe { copy(base.add(from), base.add(to), len) };
                wanted.copy_within(from..from + len, to);
                assert!(copied == Ok(()) && got == wanted, "{len} bytes from {from} to {to}");
            }
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn a_copy_ends_where_one_side_is_gone_and_says_which() {
        arm();
        let (at, page) = (remote_pages(3), page_size());
        // SAFETY: the test owns the three pages.
        assert_eq!(unsafe { libc::munmap(at.add(page).cast(), page) }, 0);
        let mut bytes = [7u8; 2 * PAGE];
        let own = bytes.as_mut_ptr();
        for len in LENS.into_iter().filter(|len| *len > 0) {
            // The whole hole, its last byte, and its first byte at the end of the copy.
            for hole in [page, 2 * page - 1, page + 1 - len.min(page)] {
                let hole = at.wrapping_add(hole);
                // SAFETY: a range that is partly unmapped, and a local buffer.
                unsafe {
                    assert_eq!(copy(own, hole, len), Err(UnmappedSide::Target), "{len}");
                    assert_eq!(copy(hole, own, len), Err(UnmappedSide::Source), "{len}");
                    assert!(!is_readable(hole, len) && is_readable(own, len), "{len}");
                }
            }
        }
        let (there, hole) = (at.cast::<u64>(), at.wrapping_add(page).cast::<u64>());
        // SAFETY: words of the first page and of the unmapped page.
        unsafe {
            assert!(!store(hole, 1) && store(there, 5));
            assert_eq!(compare_exchange(hole, 0, 1), None);
            assert_eq!(compare_exchange(there, 5, 6), Some(5));
            assert_eq!(compare_exchange(there, 5, 7), Some(6));
            assert_eq!(there.read(), 6);
            // A non-canonical address.
            let nowhere = (1usize << 63) as *const u8;
            assert_eq!(copy(nowhere, own, 8), Err(UnmappedSide::Source));
        }
    }
}
