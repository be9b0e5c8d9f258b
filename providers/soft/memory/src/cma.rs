//! Cross-memory attach: copies between this process and another one of the same user
//! (`process_vm_readv(2)`, Linux 3.2). The kernel allows it by the rules of `ptrace(2)`.
//!
//! A copy reaches the address space that was met, or none ([`AddressSpace`]): never another process that has its number now.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use arrayvec::ArrayVec;
use libc::{c_void, pid_t};

use crate::Range;
use soft_sys::errno::{Errno, check_len};

/// A range of addresses in this process or in another, laid out as `struct iovec`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct IoVec(libc::iovec);

// SAFETY: a pair of numbers; only the functions of this module turn them into an access, and they
// say what the caller answers for.
unsafe impl Send for IoVec {}
// SAFETY: through a shared IoVec its two numbers can only be read, which is no access to the memory that they name.
unsafe impl Sync for IoVec {}

impl IoVec {
    /// `len` bytes from `address` on, of whichever process the range is used with.
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

/// The most ranges of a side that one call moves. The caller needs another call for the ranges behind.
pub const MOST_RANGES: usize = 64;

/// The longest copy for which the file of an address space is faster than a call that names the process: it copies page by page.
const SHORT: usize = 8 << 10;

/// Bytes of a witness that are copied.
const WITNESS: usize = size_of::<u64>();

/// Ranges of a list of which more than these are not kept on the stack.
const FEW: usize = 4;

/// A witness's range and those of a list behind it. Calls come where the stack is small, so many ranges are kept elsewhere; where there is no memory for them the call is
/// for few.
struct Listed<T> {
    few: ArrayVec<T, { FEW + 1 }>,
    many: Vec<T>,
}

impl<T: Copy> Listed<T> {
    fn new(witness: T, rest: &[T]) -> Self {
        let (mut few, mut many) = (ArrayVec::new(), Vec::new());
        let count = rest.len().min(MOST_RANGES);
        if count > FEW && many.try_reserve_exact(count + 1).is_ok() {
            many.push(witness);
            many.extend_from_slice(rest.get(..count).unwrap_or_default());
        } else {
            few.push(witness);
            few.extend(rest.iter().copied().take(FEW));
        }
        Self { few, many }
    }

    fn as_slice(&self) -> &[T] {
        if self.many.is_empty() { &self.few } else { &self.many }
    }
}

/// The address space of another process.
///
/// A process number is reused after its process has died. So a copy goes through a descriptor of the address space itself (`/proc/<pid>/mem`,
/// `proc(5)`: it reads as empty once the process is gone), or names the [witness](crate::witness) of the process first.
#[derive(Debug)]
pub struct AddressSpace {
    pid: pid_t,
    /// Address and content of the witness.
    witness: u64,
    secret: u64,
    memory: Option<File>,
}

impl AddressSpace {
    /// The address space of process `pid`, whose witness at `witness` holds `secret`; with `may_open`, a descriptor of it is opened, too.
    ///
    /// # Errors
    /// `ESRCH` that is not there: it is another process; `EPERM` not ours to attach.
    pub fn of(pid: pid_t, witness: u64, secret: u64, may_open: bool) -> Result<Self, Errno> {
        let mut space = Self { pid, witness, secret, memory: None };
        space.prove_number()?;
        if may_open {
            let path = format!("/proc/{pid}/mem");
            space.memory = OpenOptions::new().read(true).write(true).open(path).ok();
        }
        // The number may have become another process's since.
        if space.memory.is_some() && space.read_witness_of_file() != Some(secret) {
            space.memory = None;
        }
        Ok(space)
    }

    /// Whether the number is still that of this address space. What was found by the number before this call was found of the right process.
    ///
    /// # Errors
    /// `ESRCH` it is another process's, or nobody's; `EPERM` not ours to attach any more.
    pub fn prove_number(&self) -> Result<(), Errno> {
        self.call(Way::Read, &[], &[]).map(|_| ())
    }

    /// Copies from `remote` ranges of that process into `local` ranges of ours; both sides are runs of bytes, and their ranges need not
    /// match. Returns how many bytes arrived, which may be fewer than asked for: at a range that is bad there, and behind [`MOST_RANGES`]. What
    /// the local ranges hold after an error is unknown.
    ///
    /// # Errors
    /// `ESRCH` the address space is gone; `EPERM` not ours to attach; `EFAULT` an address is not mapped there, or not here.
    pub fn read(&self, local: &[Range], remote: &[IoVec]) -> Result<usize, Errno> {
        // SAFETY: ranges of this process may be written (contract of Range); those of the other are only read.
        unsafe { self.copy(Way::Read, local, remote) }
    }

    /// Copies from `local` ranges of ours into `remote` ranges of that process; otherwise as [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Safety
    /// The process expects its `remote` ranges to be written.
    pub unsafe fn write(&self, local: &[Range], remote: &[IoVec]) -> Result<usize, Errno> {
        // SAFETY: the caller answers for the remote ranges.
        unsafe { self.copy(Way::Write, local, remote) }
    }

    /// As [`read`](Self::read), from the second of the two ranges that the kernel finds at `remote` when it begins: its owner may change it until
    /// then. The first is to be the process's witness.
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
        // SAFETY: as the caller says; local ranges may be written (contract of Range).
        unsafe { self.call_where(Way::Read, local, remote.cast(), 2) }
    }

    /// As [`write`](Self::write), to the second of the two ranges that the kernel finds at `remote` when it begins, as in
    /// [`read_where`](Self::read_where).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Safety
    /// The process expects to be written whatever ranges the kernel finds at `remote`, an address of this process at which two ranges stay mapped.
    pub unsafe fn write_where(
        &self,
        local: &[Range],
        remote: *const [IoVec; 2],
    ) -> Result<usize, Errno> {
        // SAFETY: as the caller says.
        unsafe { self.call_where(Way::Write, local, remote.cast(), 2) }
    }

    /// # Safety
    /// Whatever `way` writes expects to be written.
    unsafe fn copy(&self, way: Way, local: &[Range], remote: &[IoVec]) -> Result<usize, Errno> {
        if let (Some(memory), [here], [there]) = (&self.memory, local, remote) {
            let len = here.len().min(there.len());
            if (1..=SHORT).contains(&len) {
                return through_file(memory, way, *here, *there, len);
            }
        }
        self.call(way, local, remote)
    }

    /// One call that names the process, with its witness in front.
    fn call(&self, way: Way, local: &[Range], remote: &[IoVec]) -> Result<usize, Errno> {
        let there = Listed::new(IoVec::new(self.witness, WITNESS), remote);
        let there = there.as_slice();
        let wanted = there.iter().skip(1).any(|range| !range.is_empty());
        // SAFETY: `there` has so many ranges, which live until the call is over; the callers answer for what they lead to.
        let moved = unsafe { self.call_where(way, local, there.as_ptr(), there.len())? };
        if moved == 0 && wanted && local.iter().any(|range| !range.is_empty()) {
            return Err(Errno::EFAULT);
        }
        Ok(moved)
    }

    /// # Safety
    /// At `remote` are `count` ranges that stay mapped; whatever `way` writes expects to be written.
    unsafe fn call_where(
        &self,
        way: Way,
        local: &[Range],
        remote: *const IoVec,
        count: usize,
    ) -> Result<usize, Errno> {
        // A writer stores the value that the witness holds already.
        let mut word = if way == Way::Write { self.secret } else { !self.secret };
        let word_at = &raw mut word;
        // SAFETY: exactly the word, which outlives the call.
        let here = Listed::new(unsafe { Range::new(word_at.cast(), WITNESS) }, local);
        let here = here.as_slice();
        let move_bytes = match way {
            Way::Read => libc::process_vm_readv,
            Way::Write => libc::process_vm_writev,
        };
        let (own, own_count) = (here.as_ptr().cast(), here.len() as libc::c_ulong);
        // SAFETY: IoVec and Range are laid out as `iovec`, and there are as many as the counts say; the kernel checks every address, the local
        // ones are as the contract of Range has it, and the caller answers for the remote ones.
        let moved = check_len(unsafe {
            move_bytes(self.pid, own, own_count, remote.cast(), count as libc::c_ulong, 0)
        });
        let moved = match moved {
            // The kernel got no further than the witness.
            Err(Errno::EFAULT) => return Err(Errno::ESRCH),
            moved => moved?,
        };
        // SAFETY: the kernel is done with the word.
        let word = unsafe { word_at.read_volatile() };
        if moved < WITNESS || word != self.secret {
            return Err(Errno::ESRCH);
        }
        Ok(moved - WITNESS)
    }

    fn read_witness_of_file(&self) -> Option<u64> {
        let mut word = 0_u64;
        // SAFETY: exactly the word, which is ours alone.
        let here = unsafe { Range::new((&raw mut word).cast(), WITNESS) };
        let there = IoVec::new(self.witness, WITNESS);
        let moved = through_file(self.memory.as_ref()?, Way::Read, here, there, WITNESS);
        (moved == Ok(WITNESS)).then_some(word)
    }
}

/// Moves `len` bytes between a range of ours and one of the address space that `memory` is.
fn through_file(
    memory: &File,
    way: Way,
    here: Range,
    there: IoVec,
    len: usize,
) -> Result<usize, Errno> {
    let (fd, at) = (memory.as_raw_fd(), there.address() as libc::off_t);
    let own = here.address() as usize as *mut c_void;
    // SAFETY: the kernel checks both addresses; the local one is as the contract of Range has it, and the callers answer for the remote one.
    let moved = check_len(unsafe {
        match way {
            Way::Read => libc::pread(fd, own, len, at),
            Way::Write => libc::pwrite(fd, own, len, at),
        }
    });
    match moved {
        Ok(0) => Err(Errno::ESRCH),
        Err(Errno::EIO | Errno::EINVAL) => Err(Errno::EFAULT),
        moved => moved,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::witness::Witness;
    use soft_sys::process;

    /// This process, with and without a descriptor.
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
            // SAFETY: nothing of the program is at that address.
            let written = unsafe { space.write(&[local], &[IoVec::new(8, 8)]) };
            assert_eq!(written, Err(Errno::EFAULT));
        }
        let (pid, address) = (process::id(), witness.address());
        let of = |witness, secret| AddressSpace::of(pid, witness, secret, true).map(|_| ());
        assert_eq!(of(address, 7), Ok(()));
        assert_eq!((of(address, 8), of(8, 7)), (Err(Errno::ESRCH), Err(Errno::ESRCH)));
    }

    /// A child has the same memory at the same addresses: the most likely one to be mistaken for its parent.
    #[test]
    fn another_process_with_the_same_memory_is_neither_read_nor_written() {
        let witness = Witness::new(7).expect("a page");
        let mut word = 0x1111_1111_1111_1111_u64;
        let there = [IoVec::new(&raw mut word as u64, 8)];
        // SAFETY: the child does nothing but wait for its end.
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
        // SAFETY: it is refused; otherwise the child's copy would be written.
        assert_eq!(unsafe { space.write(&local, &there) }, Err(Errno::ESRCH));
        assert_eq!(space.read(&local, &there), Err(Errno::ESRCH));
        assert_eq!(space.prove_number(), Err(Errno::ESRCH));
        let both = [IoVec::new(witness.address(), 8), there[0]];
        // SAFETY: two ranges that live.
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
