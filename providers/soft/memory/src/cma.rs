//! Cross-memory attach: copies between this process and another process of the same user
//! (`process_vm_readv(2)`, Linux 3.2).
//!
//! The kernel permits attach by the rules of `ptrace(2)`. A copy reaches the address space that was
//! verified ([`AddressSpace`]), or fails: it never reaches a later process with the same pid.
//!
//! Map of this file: [`IoVec`], a remote range; `RangeList`, a witness and ranges for one call;
//! [`AddressSpace`] with its copies, which go through `/proc/<pid>/mem` if short and through one
//! system call with the witness otherwise.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use arrayvec::ArrayVec;
use libc::{c_void, pid_t};

use crate::Range;
use soft_sys::errno::{Errno, check_len};

/// A range of addresses in this or another process, laid out as `struct iovec`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct IoVec(libc::iovec);

// SAFETY: a pair of numbers; only functions of this module turn them into an access, and their
// contracts cover it.
unsafe impl Send for IoVec {}
// SAFETY: a shared IoVec only exposes its two numbers, which is no access to the memory that they
// name.
unsafe impl Sync for IoVec {}

impl IoVec {
    /// `len` bytes from `address` on, in the process with which the range is used.
    #[inline]
    pub const fn new(address: u64, len: usize) -> Self {
        Self(libc::iovec { iov_base: address as usize as *mut c_void, iov_len: len })
    }

    /// First address.
    #[inline]
    pub fn address(&self) -> u64 {
        self.0.iov_base as usize as u64
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Whether the range has no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.iov_len == 0
    }
}

impl fmt::Debug for IoVec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x}", self.address(), self.len())
    }
}

/// The largest number of ranges that one call copies. The caller repeats the call for further
/// ranges.
pub const MOST_RANGES: usize = 64;

/// The longest copy for which `/proc/<pid>/mem` is faster than a system call that names the
/// process: the file copies page by page.
const SHORT: usize = 8 << 10;

/// Bytes of a witness that a call copies.
const WITNESS: usize = size_of::<u64>();

/// The number of ranges that fit on the stack.
const RANGES_ON_STACK: usize = 4;

/// The range of a witness, followed by the ranges of a list. Callers may have a small stack, so
/// longer lists are on the heap. If the heap is exhausted, the call covers only the first ranges.
struct RangeList<T> {
    on_stack: ArrayVec<T, { RANGES_ON_STACK + 1 }>,
    on_heap: Vec<T>,
}

impl<T: Copy> RangeList<T> {
    fn new(witness: T, rest: &[T]) -> Self {
        let (mut few, mut many) = (ArrayVec::new(), Vec::new());
        let count = rest.len().min(MOST_RANGES);
        if count > RANGES_ON_STACK && many.try_reserve_exact(count + 1).is_ok() {
            many.push(witness);
            many.extend_from_slice(rest.get(..count).unwrap_or_default());
        } else {
            few.push(witness);
            few.extend(rest.iter().copied().take(RANGES_ON_STACK));
        }
        Self { on_stack: few, on_heap: many }
    }

    fn as_slice(&self) -> &[T] {
        if self.on_heap.is_empty() { &self.on_stack } else { &self.on_heap }
    }
}

/// The address space of another process.
///
/// The kernel reuses a pid after its process has died. A copy therefore goes through a descriptor
/// of the address space (`/proc/<pid>/mem`, `proc(5)`: empty after the process's death), or names
/// the process's [witness](crate::witness) first.
#[derive(Debug)]
pub struct AddressSpace {
    pid: pid_t,
    /// Address and content of the witness.
    witness: u64,
    secret: u64,
    memory: Option<File>,
}

impl AddressSpace {
    /// The address space of process `pid`, whose witness at `witness` holds `secret`. With
    /// `may_open`, a descriptor of the address space is opened too.
    ///
    /// # Errors
    /// `ESRCH`: the witness is missing, so the pid belongs to another process. `EPERM`: attach is
    /// not permitted.
    pub fn of(pid: pid_t, witness: u64, secret: u64, may_open: bool) -> Result<Self, Errno> {
        let mut space = Self { pid, witness, secret, memory: None };
        space.prove_number()?;
        if may_open {
            let path = format!("/proc/{pid}/mem");
            space.memory = OpenOptions::new().read(true).write(true).open(path).ok();
        }
        // The pid may belong to another process by now.
        if space.memory.is_some() && space.read_witness_of_file() != Some(secret) {
            space.memory = None;
        }
        Ok(space)
    }

    /// Verifies that the pid still belongs to this address space. Results obtained by the pid
    /// before this call then concern the right process.
    ///
    /// # Errors
    /// `ESRCH`: the pid is free or belongs to another process. `EPERM`: attach is no longer
    /// permitted.
    pub fn prove_number(&self) -> Result<(), Errno> {
        self.call(Direction::Read, &[], &[]).map(|_| ())
    }

    /// Copies from the `remote` ranges of the process into the `local` ranges of this process. Both
    /// sides are sequences of bytes, whose ranges may differ. Returns the number of copied bytes,
    /// which may be smaller than requested: the copy ends at a bad remote range, or behind
    /// [`MOST_RANGES`]. After an error the content of the local ranges is undefined.
    ///
    /// # Errors
    /// `ESRCH`: the address space is gone. `EPERM`: attach is not permitted. `EFAULT`: an address
    /// is unmapped on either side.
    pub fn read(&self, local: &[Range], remote: &[IoVec]) -> Result<usize, Errno> {
        // SAFETY: local ranges may be written (contract of Range); remote ranges are only read.
        unsafe { self.copy(Direction::Read, local, remote) }
    }

    /// Copies from the `local` ranges of this process into the `remote` ranges of the process;
    /// otherwise as [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Safety
    /// The process expects its `remote` ranges to be written.
    pub unsafe fn write(&self, local: &[Range], remote: &[IoVec]) -> Result<usize, Errno> {
        // SAFETY: the caller's contract covers the remote ranges.
        unsafe { self.copy(Direction::Write, local, remote) }
    }

    /// As [`read`](Self::read), from the second of the two ranges that the kernel reads at `remote`
    /// when the call begins. Their owner may change them until then. The first range must be the
    /// process's witness.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Safety
    /// `remote` is an address of this process at which two ranges stay mapped.
    pub unsafe fn read_where(
        &self,
        local: &[Range],
        remote: *const [IoVec; 2],
    ) -> Result<usize, Errno> {
        // SAFETY: the caller's contract; local ranges may be written (contract of Range).
        unsafe { self.call_where(Direction::Read, local, remote.cast(), 2) }
    }

    /// As [`write`](Self::write), to the second of the two ranges that the kernel reads at
    /// `remote`, as in [`read_where`](Self::read_where).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Safety
    /// The process expects writes to any range that the kernel finds at `remote`, an address of
    /// this process at which two ranges stay mapped.
    pub unsafe fn write_where(
        &self,
        local: &[Range],
        remote: *const [IoVec; 2],
    ) -> Result<usize, Errno> {
        // SAFETY: the caller's contract.
        unsafe { self.call_where(Direction::Write, local, remote.cast(), 2) }
    }

    /// # Safety
    /// The memory that `way` writes may be written.
    unsafe fn copy(
        &self,
        way: Direction,
        local: &[Range],
        remote: &[IoVec],
    ) -> Result<usize, Errno> {
        if let (Some(memory), [here], [there]) = (&self.memory, local, remote) {
            let len = here.len().min(there.len());
            if (1..=SHORT).contains(&len) {
                return through_file(memory, way, *here, *there, len);
            }
        }
        self.call(way, local, remote)
    }

    /// One system call that names the process, with its witness as the first range.
    fn call(&self, way: Direction, local: &[Range], remote: &[IoVec]) -> Result<usize, Errno> {
        let there = RangeList::new(IoVec::new(self.witness, WITNESS), remote);
        let there = there.as_slice();
        let wanted = there.iter().skip(1).any(|range| !range.is_empty());
        // SAFETY: `there` has that many ranges, which live until the call returns; the caller's
        // contract covers the memory.
        let moved = unsafe { self.call_where(way, local, there.as_ptr(), there.len())? };
        if moved == 0 && wanted && local.iter().any(|range| !range.is_empty()) {
            return Err(Errno::EFAULT);
        }
        Ok(moved)
    }

    /// # Safety
    /// At `remote` are `count` ranges that stay mapped. The memory that `way` writes may be
    /// written.
    unsafe fn call_where(
        &self,
        way: Direction,
        local: &[Range],
        remote: *const IoVec,
        count: usize,
    ) -> Result<usize, Errno> {
        // A write stores the value that the witness already holds.
        let mut word = if way == Direction::Write { self.secret } else { !self.secret };
        let word_at = &raw mut word;
        // SAFETY: exactly the word, which outlives the call.
        let here = RangeList::new(unsafe { Range::new(word_at.cast(), WITNESS) }, local);
        let here = here.as_slice();
        let move_bytes = match way {
            Direction::Read => libc::process_vm_readv,
            Direction::Write => libc::process_vm_writev,
        };
        let (own, own_count) = (here.as_ptr().cast(), here.len() as libc::c_ulong);
        // SAFETY: IoVec and Range are laid out as `iovec`, and the counts match; the kernel checks
        // every address; local ranges satisfy the contract of Range, and the caller's contract
        // covers remote ones.
        let moved = check_len(unsafe {
            move_bytes(self.pid, own, own_count, remote.cast(), count as libc::c_ulong, 0)
        });
        let moved = match moved {
            // The kernel failed at the witness.
            Err(Errno::EFAULT) => return Err(Errno::ESRCH),
            moved => moved?,
        };
        // SAFETY: the kernel has finished with the word.
        let word = unsafe { word_at.read_volatile() };
        if moved < WITNESS || word != self.secret {
            return Err(Errno::ESRCH);
        }
        Ok(moved - WITNESS)
    }

    fn read_witness_of_file(&self) -> Option<u64> {
        let mut word = 0_u64;
        // SAFETY: exactly the word, a local variable.
        let here = unsafe { Range::new((&raw mut word).cast(), WITNESS) };
        let there = IoVec::new(self.witness, WITNESS);
        let moved = through_file(self.memory.as_ref()?, Direction::Read, here, there, WITNESS);
        (moved == Ok(WITNESS)).then_some(word)
    }
}

/// Copies `len` bytes between a local range and a range of the address space of `memory`.
fn through_file(
    memory: &File,
    way: Direction,
    here: Range,
    there: IoVec,
    len: usize,
) -> Result<usize, Errno> {
    let (fd, at) = (memory.as_raw_fd(), there.address() as libc::off_t);
    let own = here.address() as usize as *mut c_void;
    // SAFETY: the kernel checks both addresses; the local range satisfies the contract of Range,
    // and the callers' contract covers the remote one.
    let moved = check_len(unsafe {
        match way {
            Direction::Read => libc::pread(fd, own, len, at),
            Direction::Write => libc::pwrite(fd, own, len, at),
        }
    });
    match moved {
        Ok(0) => Err(Errno::ESRCH),
        Err(Errno::EIO | Errno::EINVAL) => Err(Errno::EFAULT),
        moved => moved,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::witness::Witness;
    use soft_sys::process;

    /// This process's address space, without and with a descriptor.
    fn spaces(witness: &Witness) -> [AddressSpace; 2] {
        [false, true].map(|open| {
            let (address, secret) = (witness.address(), witness.secret());
            let space = AddressSpace::of(process::id(), address, secret, open).expect("ourselves");
            assert_eq!(space.memory.is_some(), open);
            space
        })
    }

    #[test]
    fn bytes_move_both_ways_across_unequal_ranges() {
        let witness = Witness::new(7).expect("a page");
        for space in spaces(&witness) {
            let from = *b"cross-memory";
            let mut to = [0_u8; 12];
            let there = |offset, len| IoVec::new(from.as_ptr() as u64 + offset, len);
            let dst = to.as_mut_ptr();
            // SAFETY: the two parts of `to`.
            let local = unsafe { [Range::new(dst, 5), Range::new(dst.add(5), 7)] };
            assert_eq!(space.read(&local, &[there(0, 12)]), Ok(12));
            assert_eq!(to, from);
            // SAFETY: only read.
            let tail = unsafe { Range::at(from.as_ptr() as u64 + 7, 5) };
            // SAFETY: the process is this one and the range is the first five bytes of `to`.
            let len = unsafe { space.write(&[tail], &[IoVec::new(dst as u64, 5)]) };
            assert_eq!(len, Ok(5));
            assert_eq!(&to, b"emory-memory");
        }
    }

    #[test]
    fn ranges_beyond_the_most_are_left_for_another_call() {
        let witness = Witness::new(7).expect("a page");
        let [space, _] = spaces(&witness);
        let from = [3_u8; 2 * MOST_RANGES];
        let mut to = [0_u8; 2 * MOST_RANGES];
        let there: Vec<_> =
            from.iter().map(|byte| IoVec::new(&raw const *byte as u64, 1)).collect();
        // SAFETY: all of `to`.
        let local = unsafe { Range::new(to.as_mut_ptr(), to.len()) };
        assert_eq!(space.read(&[local], &there), Ok(MOST_RANGES));
        assert_eq!(to.iter().filter(|byte| **byte == 3).count(), MOST_RANGES);
    }

    #[test]
    fn a_bad_address_is_a_fault_and_a_bad_witness_another_process() {
        let witness = Witness::new(7).expect("a page");
        for space in spaces(&witness) {
            let mut word = [0_u8; 8];
            // SAFETY: all of `word`.
            let local = unsafe { Range::new(word.as_mut_ptr(), word.len()) };
            for bad in [8, u64::MAX - 7] {
                assert_eq!(space.read(&[local], &[IoVec::new(bad, 8)]), Err(Errno::EFAULT));
            }
            // SAFETY: the address is unmapped.
            let written = unsafe { space.write(&[local], &[IoVec::new(8, 8)]) };
            assert_eq!(written, Err(Errno::EFAULT));
        }
        let (pid, address) = (process::id(), witness.address());
        let of = |witness, secret| AddressSpace::of(pid, witness, secret, true).map(|_| ());
        assert_eq!(of(address, 7), Ok(()));
        assert_eq!((of(address, 8), of(8, 7)), (Err(Errno::ESRCH), Err(Errno::ESRCH)));
    }

    /// A child has the same memory at the same addresses, so a mistaken copy would succeed.
    #[test]
    fn another_process_with_the_same_memory_is_neither_read_nor_written() {
        let witness = Witness::new(7).expect("a page");
        let mut word = 0x1111_1111_1111_1111_u64;
        let there = [IoVec::new(&raw mut word as u64, 8)];
        // SAFETY: the child only waits for its end.
        let other = unsafe {
            match libc::fork() {
                0 => loop {
                    libc::pause();
                },
                pid => pid,
            }
        };
        let space =
            AddressSpace { pid: other, witness: witness.address(), secret: 7, memory: None };
        // SAFETY: all of `word`.
        let local = [unsafe { Range::new((&raw mut word).cast(), 8) }];
        // SAFETY: the call fails; otherwise it would write the child's copy.
        assert_eq!(unsafe { space.write(&local, &there) }, Err(Errno::ESRCH));
        assert_eq!(space.read(&local, &there), Err(Errno::ESRCH));
        assert_eq!(space.prove_number(), Err(Errno::ESRCH));
        let both = [IoVec::new(witness.address(), 8), there[0]];
        // SAFETY: two live ranges.
        let moved = unsafe {
            (space.read_where(&local, &raw const both), space.write_where(&local, &raw const both))
        };
        assert_eq!(moved, (Err(Errno::ESRCH), Err(Errno::ESRCH)));
        // SAFETY: our child.
        unsafe {
            libc::kill(other, libc::SIGKILL);
            libc::waitpid(other, std::ptr::null_mut(), 0);
        }
    }
}
