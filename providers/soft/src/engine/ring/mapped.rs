//! Regions of a peer that are mapped into this process: one-sided operations become loads and
//! stores. `onesided` and `runs` ask `find` for each operation.
//!
//! A region that was used often enough is looked up in its owner's list of mappings. Shared memory
//! that cannot shrink is mapped here. The mapping stays until the connection ends or another region
//! replaces it. Each use checks the key of the region, as without a mapping. The mapping shows the
//! memory that the owner had at the time of mapping.

use crate::engine::keys::regions::{INDEX_SHIFT, KeyTarget, ON_DEMAND, is_window};
use crate::engine::ring::Link;
use crate::engine::ring::maps::{KnownRegion, MAX_KNOWN, RegionMaps};
use soft_local::fabric::Peer;
use soft_memory::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl RegionMaps {
    /// The local address of `len` bytes of region `rkey`, at `found`, if mapped. Counts the use.
    #[inline]
    pub(crate) fn find(
        &mut self,
        link: &Link,
        rkey: u32,
        found: KeyTarget,
        len: usize,
    ) -> Option<Range<'static>> {
        if is_window(rkey) || found.access & ON_DEMAND != 0 {
            return None;
        }
        let born =
            link.view.mr((rkey >> INDEX_SHIFT) as usize).registration.load(Ordering::Relaxed);
        let same = |known: &&mut KnownRegion| {
            known.registration == born && Arc::ptr_eq(&known.peer, link.peer())
        };
        let Some(known) = self.regions.iter_mut().find(same) else {
            self.remember_region(link.peer(), born);
            return None;
        };
        if known.tried {
            let here = known.map.as_ref()?.local_range(found.va, len)?;
            // SAFETY: inside a mapping that stays while it is in `known`, and the caller has
            // exclusive access to `self`; the owner registered the bytes.
            return Some(unsafe { Range::new(here, len) });
        }
        known.used += 1;
        if known.used >= self.map_after {
            known.tried = true;
            known.map = link.peer().map(found.va);
            if known.map.is_none() {
                self.map_after = self.map_after.saturating_mul(2);
            }
        }
        None
    }

    #[cold]
    fn remember_region(&mut self, peer: &Arc<Peer>, born: u64) {
        let known = KnownRegion {
            peer: Arc::clone(peer),
            registration: born,
            used: 0,
            tried: false,
            map: None,
        };
        if let Err(full) = self.regions.try_push(known)
            && let Some(place) = self.regions.get_mut(self.next)
        {
            *place = full.element();
            self.next = (self.next + 1) % MAX_KNOWN;
        }
    }
}
