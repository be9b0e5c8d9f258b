//! Regions of a peer that we have mapped, too: one-sided operations on them are plain loads and stores.
//!
//! A region that was used often enough is looked up in its owner's list of mappings; shared memory that cannot shrink is mapped
//! here. The mapping stays until the connection ends or other regions take its place; that its region still exists is checked
//! for each use, as without it. Where the mapping leads is what the owner had there when we looked, and stays so.

use super::link::Link;
use super::regions::{Found, INDEX_SHIFT, ON_DEMAND, is_window};
use arrayvec::ArrayVec;
use soft_local::fabric::Peer;
use soft_memory::foreign::Foreign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Operations on a region after which it is worth looking for it; each vain look doubles them.
const TRIAL: u32 = 16;
/// Regions that a QP keeps in mind.
const KEPT: usize = 4;

#[derive(Debug)]
struct Known {
    /// Whose it is, and which registration (`MrEntry::born`).
    peer: Arc<Peer>,
    born: u64,
    used: u32,
    /// Looked for; and found, if it could be.
    tried: bool,
    map: Option<Foreign>,
}

/// The regions of its peers that a QP uses.
#[derive(Debug)]
pub(crate) struct Maps {
    known: ArrayVec<Known, KEPT>,
    /// Whose place is taken next.
    next: usize,
    trial: u32,
}

impl Default for Maps {
    fn default() -> Self {
        Self { known: ArrayVec::new(), next: 0, trial: TRIAL }
    }
}

impl Maps {
    /// Where `len` bytes of region `rkey`, at `found`, are here; counts the use.
    #[inline]
    pub(crate) fn find(
        &mut self,
        pid: libc::pid_t,
        link: &Link,
        rkey: u32,
        found: Found,
        len: usize,
    ) -> Option<*mut u8> {
        if is_window(rkey) || found.access & ON_DEMAND != 0 {
            return None;
        }
        let born = link.view.mr((rkey >> INDEX_SHIFT) as usize).born.load(Ordering::Relaxed);
        let same = |known: &&mut Known| known.born == born && Arc::ptr_eq(&known.peer, &link.peer);
        let Some(known) = self.known.iter_mut().find(same) else {
            self.meet(&link.peer, born);
            return None;
        };
        if known.tried {
            return known.map.as_ref()?.at(found.va, len);
        }
        known.used += 1;
        if known.used >= self.trial {
            known.tried = true;
            known.map = Foreign::map(pid, found.va).filter(|_| !link.peer.is_dead());
            if known.map.is_none() {
                self.trial = self.trial.saturating_mul(2);
            }
        }
        None
    }

    #[cold]
    fn meet(&mut self, peer: &Arc<Peer>, born: u64) {
        let known = Known { peer: Arc::clone(peer), born, used: 0, tried: false, map: None };
        if let Err(full) = self.known.try_push(known)
            && let Some(place) = self.known.get_mut(self.next)
        {
            *place = full.element();
            self.next = (self.next + 1) % KEPT;
        }
    }
}

/// The last of `len` bytes to be stored as one: who waits for the last byte finds all others there.
pub(crate) fn last_stored(to: *mut u8, len: usize) -> usize {
    match len {
        0 => 0,
        2 | 4 | 8 if (to as usize).is_multiple_of(len) => len,
        _ => 1,
    }
}

/// Stores the last `len` bytes of a write after all before them.
///
/// # Safety
/// `to` is writable for `len` bytes, of which [`last_stored`] said that they are aligned; so is `from` readable.
pub(crate) unsafe fn store_last(to: *mut u8, from: *const u8, len: usize) {
    fence(Ordering::Release);
    // SAFETY: by contract; the value may come from an odd address.
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
