//! The memory allocator of the shared libraries: malloc(3), and a reserve for its failures.
//!
//! A Rust collection without memory ends the process, and a library must not end its program.
//! Stable Rust has no hook that could unwind instead, and checked allocations would not cover the
//! standard library. Hence a small allocation that malloc(3) refuses comes from a static reserve,
//! and the call continues. Afterwards [`admit`], with which each creating verb begins, fails with
//! `ENOMEM` until malloc(3) has memory again. The rest of the reserve is for calls that must not
//! fail: destruction, progress, events.
//!
//! Allocations above [`LARGEST`] are never served from the reserve: applications choose such sizes
//! (`ibv_create_cq(3)`), and `try_reserve` reports their failure.

use crate::Errno;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The allocator of each library. The attribute applies to every artifact that links this crate.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Bytes that are given out at least, and the largest alignment.
const GRANULE: usize = 256;
/// Granules in one word of the map.
const PER_WORD: usize = 64;
/// Bytes of the largest allocation from the reserve: several whole words of the map.
pub const LARGEST: usize = 4 * PER_WORD * GRANULE;
/// Words of the map: 2 MiB. Unused pages take no memory.
const WORDS: usize = 128;
/// Number of free granules below which [`admit`] fails, regardless of malloc(3).
const LAST: usize = WORDS * PER_WORD / 4;
/// Bytes that malloc(3) must have again before verbs create anything.
const PROBE: usize = 256 * 1024;

/// malloc(3), backed by the reserve.
#[derive(Debug)]
struct Allocator;

#[repr(C, align(4096))]
struct Pool(UnsafeCell<[u8; WORDS * PER_WORD * GRANULE]>);

// SAFETY: a granule's bytes belong to the thread that set its bit in `MAP`; this module forms no
// reference to them.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool(UnsafeCell::new([0; WORDS * PER_WORD * GRANULE]));
/// A bit for each granule in use. Changed by single atomic operations: a fork or a signal leaves
/// nothing half done.
static MAP: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// malloc(3) failed, and has not been seen to work since.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Whether a lasting object may be created.
///
/// # Errors
/// `ENOMEM`: malloc(3) still fails, or the reserve is nearly used up.
pub fn admit() -> Result<(), Errno> {
    if IS_SHORT.load(Ordering::Relaxed) { probe() } else { Ok(()) }
}

#[cold]
fn probe() -> Result<(), Errno> {
    if WORDS * PER_WORD - IN_USE.load(Ordering::Relaxed) < LAST {
        return Err(Errno::ENOMEM);
    }
    look_for_memory()?;
    // While blocks of the reserve are in use, the next call looks again.
    if IN_USE.load(Ordering::Relaxed) == 0 {
        IS_SHORT.store(false, Ordering::Relaxed);
    }
    Ok(())
}

/// Whether malloc(3) has some memory, for operations that cannot use the reserve: the C library
/// gives a new thread its variables, and ends the process on failure.
///
/// # Errors
/// `ENOMEM`: malloc(3) has no memory.
pub fn look_for_memory() -> Result<(), Errno> {
    // SAFETY: `malloc` has no requirements, and `free` takes what it returned.
    let has_memory = unsafe {
        let memory = libc::malloc(PROBE);
        libc::free(memory);
        !memory.is_null()
    };
    if has_memory { Ok(()) } else { Err(Errno::ENOMEM) }
}

// SAFETY: blocks come from `System`, or are granules of `POOL` whose clear bits this call set: no
// two blocks overlap. Size and alignment fit (`claim`). Nothing here unwinds.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { claim(layout) } else { block }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        let block = claim(layout);
        if !block.is_null() {
            // SAFETY: a block of this size with one owner.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match offset(block) {
            // SAFETY: the caller's contract; a block of `System`.
            None => unsafe { System.dealloc(block, layout) },
            Some(at) => give_back(at, layout),
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if offset(block).is_none() {
            // SAFETY: the caller's contract; a block of `System`.
            let moved = unsafe { System.realloc(block, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: as above; a failed realloc leaves the block unchanged.
        unsafe { self.moved(block, layout, size) }
    }
}

impl Allocator {
    /// Moves the contents to a new block, and frees `block`; NULL: failed, and `block` is
    /// unchanged.
    ///
    /// # Safety
    /// As `GlobalAlloc::realloc`.
    #[cold]
    unsafe fn moved(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(size, layout.align()) else {
            return std::ptr::null_mut();
        };
        // SAFETY: `size` is not zero, by the caller's promise.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: two blocks of at least that many bytes, one of them new; the old block is not
            // used afterwards.
            unsafe {
                moved.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

/// The offset of a block in the reserve; `None`: a block of malloc(3).
#[inline]
fn offset(block: *mut u8) -> Option<usize> {
    let at = block.addr().wrapping_sub(POOL.0.get().addr());
    (at < size_of::<Pool>()).then_some(at)
}

const fn granules(bytes: usize) -> usize {
    if bytes == 0 { 1 } else { bytes.div_ceil(GRANULE) }
}

/// The bits of `count` granules, at most a word's.
const fn run(count: usize) -> u64 {
    if count >= PER_WORD { u64::MAX } else { (1 << count) - 1 }
}

/// A block of the reserve; NULL: none is free.
#[cold]
fn claim(layout: Layout) -> *mut u8 {
    IS_SHORT.store(true, Ordering::Relaxed);
    if layout.size() > LARGEST || layout.align() > GRANULE {
        return std::ptr::null_mut();
    }
    let count = granules(layout.size());
    let found = if count <= PER_WORD { claim_in_word(count) } else { claim_words(count) };
    let Some(granule) = found else { return std::ptr::null_mut() };
    IN_USE.fetch_add(count, Ordering::Relaxed);
    // SAFETY: in the pool.
    unsafe { POOL.0.get().cast::<u8>().add(granule * GRANULE) }
}

/// Claims `count` granules within one word; returns the first.
fn claim_in_word(count: usize) -> Option<usize> {
    for (at, word) in MAP.iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while let Some(shift) = (0..=PER_WORD - count).find(|shift| bits & run(count) << shift == 0)
        {
            let taken = bits | run(count) << shift;
            // AcqRel: pairs with the release of a granule, so the previous owner's accesses precede
            // the next owner's.
            match word.compare_exchange(bits, taken, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(at * PER_WORD + shift),
                Err(now) => bits = now,
            }
        }
    }
    None
}

/// The first of `count` granules of several words, the last of which may be used in part.
fn claim_words(count: usize) -> Option<usize> {
    let wanted = count.div_ceil(PER_WORD);
    for (at, words) in MAP.windows(wanted).enumerate() {
        let bits = |n: usize| run((count - n * PER_WORD).min(PER_WORD));
        let take = |n: usize| {
            let taken = |now: u64| (now == 0).then(|| bits(n));
            words[n].fetch_update(Ordering::AcqRel, Ordering::Relaxed, taken).is_ok()
        };
        let got = (0..wanted).take_while(|n| take(*n)).count();
        if got == wanted {
            return Some(at * PER_WORD);
        }
        for (n, word) in words.iter().enumerate().take(got) {
            word.fetch_and(!bits(n), Ordering::AcqRel);
        }
    }
    None
}

/// Gives the granules of the block at byte `at` back.
#[cold]
fn give_back(at: usize, layout: Layout) {
    let (first, count) = (at / GRANULE, granules(layout.size()));
    let mut done = 0;
    while done < count {
        let (word, bit) = ((first + done) / PER_WORD, (first + done) % PER_WORD);
        let here = (count - done).min(PER_WORD - bit);
        MAP[word].fetch_and(!(run(here) << bit), Ordering::AcqRel);
        done += here;
    }
    IN_USE.fetch_sub(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Serialises the tests of the reserve.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a layout")
    }

    #[test]
    fn blocks_of_the_reserve_do_not_overlap_and_all_come_back() {
        let _alone = ALONE.lock();
        let before = IN_USE.load(Ordering::Relaxed);
        let mut blocks = BTreeMap::new();
        let mut random = 1_u64;
        for n in 0..4000_u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(n | 1);
            let size = (random >> 33) as usize % [300, 5000, LARGEST][n as usize % 3] + 1;
            let block = claim(layout(size, 1 << (n % 9)));
            if block.is_null() || n % 3 == 0 {
                if !block.is_null() {
                    blocks.insert(block.addr(), size);
                }
                if let Some((at, size)) = blocks.pop_first() {
                    give_back(at - POOL.0.get().addr(), layout(size, 1));
                }
                continue;
            }
            assert!(block.addr().is_multiple_of(GRANULE));
            blocks.insert(block.addr(), size);
            let ends: Vec<_> = blocks.iter().map(|(at, size)| (*at, at + size)).collect();
            assert!(ends.windows(2).all(|two| two[0].1 <= two[1].0), "they overlap");
        }
        for (at, size) in blocks {
            give_back(at - POOL.0.get().addr(), layout(size, 1));
        }
        assert_eq!(IN_USE.load(Ordering::Relaxed), before);
    }

    #[test]
    fn a_block_of_the_reserve_grows_and_is_freed_as_any_other() {
        let _alone = ALONE.lock();
        let before = IN_USE.load(Ordering::Relaxed);
        let small = layout(100, 8);
        let block = claim(small);
        assert!(offset(block).is_some());
        // SAFETY: a block of 100 bytes, used by this test alone, with its layout.
        unsafe {
            block.write_bytes(7, 100);
            let larger = ALLOCATOR.realloc(block, small, 1000);
            assert!(offset(larger).is_none(), "malloc(3) has memory");
            assert!((0..100).all(|at| larger.add(at).read() == 7));
            ALLOCATOR.dealloc(larger, layout(1000, 8));
        }
        assert_eq!(IN_USE.load(Ordering::Relaxed), before);
    }

    #[test]
    fn the_reserve_serves_only_small_blocks_of_ordinary_alignment() {
        let _alone = ALONE.lock();
        assert!(claim(layout(LARGEST + 1, 8)).is_null());
        assert!(claim(layout(64, 4096)).is_null());
    }

    #[test]
    fn creating_verbs_fail_until_the_reserve_has_memory_again() {
        let _alone = ALONE.lock();
        let all: Vec<_> = std::iter::from_fn(|| {
            let block = claim(layout(LARGEST, 8));
            (!block.is_null()).then_some(block)
        })
        .collect();
        assert_eq!(admit(), Err(Errno::ENOMEM), "the reserve is used up");
        for block in all {
            give_back(offset(block).expect("of the reserve"), layout(LARGEST, 8));
        }
        assert_eq!(admit(), Ok(()));
        assert!(!IS_SHORT.load(Ordering::Relaxed));
    }
}
