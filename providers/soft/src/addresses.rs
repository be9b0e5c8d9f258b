//! Addresses of everybody in a fabric. Where a directory is shared by several network namespaces, as by containers, each
//! has addresses of its own, and a route to any of them leads to the fabric.
#![forbid(unsafe_code)]

use crate::engine::objects::adapter::Adapter;
use crate::net::{GID_TABLE, Gids};
use soft_local::fabric::Peer;
use soft_local::shm::layout::{ADDRESSES, TablesHead};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

const _: () = assert!(ADDRESSES == GID_TABLE);

impl Adapter {
    /// Lets peers know the addresses of this host, as it is now.
    pub(crate) fn publish_addresses(&self) {
        publish(self.view.tables_head(), &Gids::of_this_host(self.identity, 0));
    }

    /// Whether a route to `gid` leads to a process of this fabric; `own` are the addresses of this host.
    pub(crate) fn is_here(&self, own: &Gids, gid: &[u8; 16]) -> bool {
        own.contains(gid) || self.fabric.config().spans_namespaces && self.is_anybodys(gid)
    }

    /// Whether another process has the address; those that we have not met yet are met.
    #[cold]
    fn is_anybodys(&self, gid: &[u8; 16]) -> bool {
        let fabric = &self.fabric;
        let is_its = |peer: &Peer| Self::look_at(peer, |view| has(view.tables_head(), gid));
        let (mut found, mut seen) = (false, BTreeSet::from([fabric.slot()]));
        fabric.for_each_peer(|peer| {
            seen.insert(peer.slot);
            found |= is_its(peer);
        });
        // Not those that are unknown by then: who looks for us meanwhile has become known without being looked at.
        let is_its_slots = |slot| fabric.peer(slot).is_ok_and(|peer| is_its(&peer));
        found || fabric.occupied().into_iter().filter(|slot| !seen.contains(slot)).any(is_its_slots)
    }
}

fn publish(head: &TablesHead, gids: &Gids) {
    let mut entries = gids.entries();
    for to in head.addresses.iter() {
        let halves = entries.next().map_or([0; 2], halves);
        // Readers see old and new halves for a moment, which are an address of nobody.
        for (to, half) in to.iter().zip(halves) {
            to.store(half, Ordering::Release);
        }
    }
}

/// Whether a process has an address, or a device with it.
fn has(head: &TablesHead, gid: &[u8; 16]) -> bool {
    let wanted = halves(gid);
    let read = |entry: &[AtomicU64; 2]| entry.each_ref().map(|half| half.load(Ordering::Acquire));
    let [first, others @ ..] = &*head.addresses;
    wanted != [0; 2]
        && (Gids::is_of_one_adapter(gid, &whole(read(first)))
            || others.iter().any(|entry| read(entry) == wanted))
}

fn halves(gid: &[u8; 16]) -> [u64; 2] {
    let whole = u128::from_ne_bytes(*gid);
    [whole as u64, (whole >> 64) as u64]
}

fn whole([low, high]: [u64; 2]) -> [u8; 16] {
    (u128::from(low) | u128::from(high) << 64).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guid::Identity;
    use soft_local::fabric::FabricConfig;
    use soft_local::shm::view::mock;
    use std::sync::Barrier;

    #[test]
    fn what_one_process_publishes_another_finds() {
        let view = mock::view();
        let identity = Identity::of(&FabricConfig::new("/run/one"));
        let gids = Gids::of_this_host(identity, 0);
        assert!(!has(view.tables_head(), &gids.get(0).expect("always there").raw));
        publish(view.tables_head(), &gids);
        for gid in gids.entries() {
            assert!(has(view.tables_head(), gid));
        }
        let second = Gids::of_this_host(identity, 5);
        assert!(has(view.tables_head(), &second.get(0).expect("always there").raw));
        let other = Gids::of_this_host(Identity::of(&FabricConfig::new("/run/two")), 0);
        assert!(!has(view.tables_head(), &other.get(0).expect("always there").raw));
        assert!(!has(view.tables_head(), &[0; 16]));
        assert_eq!(whole(halves(&[7; 16])), [7; 16]);
    }

    /// Each meets the other while it looks through the slots, and may have passed the other's by then, or not.
    #[test]
    fn two_that_look_for_each_other_at_once_both_find() {
        for round in 0..20 {
            let name = format!("ferroverbs-test-{}-lookers-{round}", std::process::id());
            let mut config = FabricConfig::new(std::env::temp_dir().join(name));
            config.dir_is_ours = true;
            let both = [(); 2].map(|()| Adapter::join(config.clone()).expect("a fabric"));
            let at_once = Barrier::new(2);
            std::thread::scope(|scope| {
                for (one, other) in [(&both[0], &both[1]), (&both[1], &both[0])] {
                    scope.spawn(|| {
                        let gid = Gids::of_this_host(other.identity, 0).get(0).expect("there").raw;
                        at_once.wait();
                        assert!(one.is_anybodys(&gid), "round {round}");
                    });
                }
            });
            both.iter().for_each(|one| one.fabric.leave());
        }
    }
}
