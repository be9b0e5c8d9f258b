//! The witness of an address space: a page that no other process has at the same address.
//!
//! A process number names another process once its owner has died, and the kernel has no call that copies to or from the memory of a process
//! that a descriptor names. So each process maps one page at a random address far from where the kernel maps anything by itself, and no child
//! inherits that page. Whoever copies names the page first in the same call ([`crate::cma`]). The kernel looks up the address space once in a call,
//! works through its ranges in their order and stops at the first one that is not mapped (`process_vm_writev(2)`). So a call that meets another
//! process moves nothing.

use std::ptr;

use libc::{c_int, c_void, pid_t};
use soft_sys::errno::Errno;
use soft_sys::process;

/// A mapped page whose first 8 bytes are a secret; unmapped when dropped. Peers read and write the secret at any time.
#[derive(Debug)]
pub struct Witness {
    page: *mut c_void,
    secret: u64,
    /// The process that mapped it. A forked child has other things at this address, or nothing.
    pid: pid_t,
}

// SAFETY: an address of a mapping that belongs to the process and not to a thread.
unsafe impl Send for Witness {}
// SAFETY: through a shared `Witness` only numbers are read, which never change.
unsafe impl Sync for Witness {}

impl Witness {
    /// Maps the page and fills it with `secret`.
    ///
    /// # Errors
    /// The kernel's, where it maps no page at any of the addresses that were tried, or lets children inherit it.
    pub fn new(secret: u64) -> Result<Self, Errno> {
        let mut failed = Errno::ENOMEM;
        for bits in ADDRESS_BITS {
            for _ in 0..ATTEMPTS {
                match map_at(random_address(bits)?) {
                    Ok(page) => {
                        // From here on, dropping it unmaps the page.
                        let witness = Self { page, secret, pid: process::id() };
                        // SAFETY: the page is ours, writable, aligned, and nobody knows it yet.
                        unsafe { page.cast::<u64>().write_volatile(secret) };
                        witness.advise(libc::MADV_DONTFORK)?;
                        // A dump is fine with it; it tells nothing.
                        let _ = witness.advise(libc::MADV_DONTDUMP);
                        return Ok(witness);
                    }
                    Err(errno) => failed = errno,
                }
            }
        }
        Err(failed)
    }

    /// Where the secret is.
    pub fn address(&self) -> u64 {
        self.page as usize as u64
    }

    /// What is there.
    pub const fn secret(&self) -> u64 {
        self.secret
    }

    fn advise(&self, advice: c_int) -> Result<(), Errno> {
        // SAFETY: exactly the page that was mapped; neither advice changes its content for this process.
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
            // SAFETY: exactly what was mapped; no reference to it was ever made.
            unsafe { libc::munmap(self.page, PAGE) };
        }
    }
}

/// Maps a page at `address`, if nothing is there.
fn map_at(address: u64) -> Result<*mut c_void, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let wanted = ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    // SAFETY: the flags keep whatever is mapped there already.
    let page =
        unsafe { libc::mmap(wanted, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    if page == wanted {
        return Ok(page);
    }
    // A kernel before 4.17 takes the address for a hint.
    // SAFETY: exactly what was just mapped, which nobody uses.
    unsafe { libc::munmap(page, PAGE) };
    Err(Errno::from_raw(libc::EEXIST))
}

/// An address that nobody can guess, of an address space of `2^bits` bytes: between 14/16 and 15.375/16 of it. The kernel maps programs below that,
/// libraries and stacks above it, and the shadow memory of sanitizers is elsewhere too.
fn random_address(bits: u32) -> Result<u64, Errno> {
    let unit = 1_u64 << (bits - 7);
    let (first, len) = (112 * unit, 11 * unit);
    Ok(first + process::random()? % (len / ALIGNMENT) * ALIGNMENT)
}

/// Sizes of address spaces, the largest first: of x86-64 (and the lower half of most others), then what an emulator or a checker
/// leaves of it, or a smaller kernel has.
const ADDRESS_BITS: [u32; 4] = [47, 44, 39, 38];
/// Addresses that are tried in an address space of each size.
const ATTEMPTS: usize = 4;
/// The largest page of any supported kernel.
const ALIGNMENT: u64 = 64 << 10;
/// Bytes that are asked for: a page, or a part of it.
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
        // SAFETY: what was just mapped.
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
