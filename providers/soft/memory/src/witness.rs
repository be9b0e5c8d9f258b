//! The witness of an address space: a page that no other process has at the same address.
//!
//! After its owner's death a pid may name another process, and the kernel has no call that copies
//! memory of a process named by a descriptor. Each process therefore maps one page at a random
//! address, far from the kernel's own choices, and children do not inherit the page. A copying
//! process names that page first in the same call ([`crate::cma`]). The kernel looks up the address
//! space once per call, processes the ranges in order, and stops at the first unmapped range
//! (`process_vm_writev(2)`). Hence a call that meets another process copies nothing.

use std::ptr;

use libc::{c_int, c_void, pid_t};
use soft_sys::errno::Errno;
use soft_sys::process;

/// A mapped page whose first 8 bytes are a secret; unmapped on drop. Peers read and write the
/// secret at any time.
#[derive(Debug)]
pub struct Witness {
    page: *mut c_void,
    secret: u64,
    /// The process that mapped the page. A forked child has no page, or another mapping, at this
    /// address.
    pid: pid_t,
}

// SAFETY: an address of a mapping that belongs to the process and not to a thread.
unsafe impl Send for Witness {}
// SAFETY: a shared `Witness` only exposes numbers, which never change.
unsafe impl Sync for Witness {}

impl Witness {
    /// Maps the page and fills it with `secret`.
    ///
    /// # Errors
    /// The kernel's errno if it maps no page at any tried address, or lets children inherit the
    /// page.
    pub fn new(secret: u64) -> Result<Self, Errno> {
        let mut failed = Errno::ENOMEM;
        for bits in ADDRESS_BITS {
            for _ in 0..ATTEMPTS {
                match map_at(random_address(bits)?) {
                    Ok(page) => {
                        // From here on, dropping `witness` unmaps the page.
                        let witness = Self { page, secret, pid: process::id() };
                        // SAFETY: the page is ours, writable, aligned, and not published yet.
                        unsafe { page.cast::<u64>().write_volatile(secret) };
                        witness.advise(libc::MADV_DONTFORK)?;
                        // A core dump may contain the page, but needs not.
                        let _ = witness.advise(libc::MADV_DONTDUMP);
                        return Ok(witness);
                    }
                    Err(errno) => failed = errno,
                }
            }
        }
        Err(failed)
    }

    /// The address of the secret.
    pub fn address(&self) -> u64 {
        self.page as usize as u64
    }

    /// The value of the secret.
    pub const fn secret(&self) -> u64 {
        self.secret
    }

    fn advise(&self, advice: c_int) -> Result<(), Errno> {
        // SAFETY: exactly the mapped page; neither advice changes its content for this process.
        if unsafe { libc::madvise(self.page, PAGE, advice) } == 0 {
            Ok(())
        } else {
            Err(Errno::last())
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if self.pid == process::id() {
            // SAFETY: exactly the mapped page; no reference to it was ever made.
            unsafe { libc::munmap(self.page, PAGE) };
        }
    }
}

/// Maps a page at `address`, if the address is free.
fn map_at(address: u64) -> Result<*mut c_void, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let wanted = ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    // SAFETY: the flags keep any existing mapping.
    let page =
        unsafe { libc::mmap(wanted, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    if page == wanted {
        return Ok(page);
    }
    // A kernel before 4.17 treats the address as a hint.
    // SAFETY: exactly the new mapping, which is not used.
    unsafe { libc::munmap(page, PAGE) };
    Err(Errno::from_raw(libc::EEXIST))
}

/// A random address of an address space of `2^bits` bytes: between 14/16 and 15.375/16 of it. The
/// kernel maps programs below that range, and libraries and stacks above it. Sanitizers place their
/// shadow memory elsewhere.
fn random_address(bits: u32) -> Result<u64, Errno> {
    let unit = 1_u64 << (bits - 7);
    let (first, len) = (112 * unit, 11 * unit);
    Ok(first + process::random()? % (len / ALIGNMENT) * ALIGNMENT)
}

/// Sizes of address spaces, largest first: x86-64 and the lower half of most others, then smaller
/// ones of emulators, checkers and kernels.
const ADDRESS_BITS: [u32; 4] = [47, 44, 39, 38];
/// Number of addresses to try in an address space of each size.
const ATTEMPTS: usize = 4;
/// The largest page of any supported kernel.
const ALIGNMENT: u64 = 64 << 10;
/// Bytes to map: a page, or a part of one.
const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_is_where_nothing_else_is() {
        let [one, two] = [1, 2].map(|secret| Witness::new(secret).expect("an address"));
        assert_ne!(one.address(), two.address());
        assert_eq!(map_at(one.address()), Err(Errno::from_raw(libc::EEXIST)));
        let address = one.address();
        drop(one);
        let again = map_at(address).expect("it is gone");
        // SAFETY: the new mapping.
        unsafe { libc::munmap(again, PAGE) };
    }

    #[test]
    fn addresses_are_inside_the_address_space() {
        for bits in ADDRESS_BITS {
            for _ in 0..1000 {
                let address = random_address(bits).expect("random numbers");
                assert!(address.is_multiple_of(ALIGNMENT));
                assert!((7 << (bits - 3)..1 << bits).contains(&address), "{address:#x}");
            }
        }
    }
}
