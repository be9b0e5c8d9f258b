//! Addresses of the members of a fabric that spans network namespaces, as containers do.
//! Decides whether a route leads to a process of this fabric or to another host.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::adapter::published_addresses::PublishedAddresses;
use crate::net::{GID_TABLE, Gids};
use soft_local::fabric::Fabric;
use soft_sys::notice;

impl Adapter {
    /// Publishes the addresses of this network namespace to the members in different namespaces.
    pub(crate) fn publish_addresses(&self) {
        if !self.fabric.config().spans_namespaces {
            return;
        }
        // The reported table shows the interfaces as they are, if they are watched.
        let reported = self.interfaces.reported.lock().clone();
        let gids = reported.unwrap_or_else(|| Gids::of_this_host(self.identity.guid(), 0));
        if let Err(why) = self.fabric.publish_note(&text(&gids)) {
            notice!("{why}; those who meet there reach this process's addresses by RoCE v2");
        }
    }

    /// Whether a route to `gid` leads to a process of this fabric. `own` are the addresses of this
    /// host.
    pub(crate) fn is_here(&self, own: &Gids, gid: &[u8; 16]) -> bool {
        own.contains(gid) || self.fabric.config().spans_namespaces && self.is_member_address(gid)
    }

    /// Whether a member has published the address. Needs no connection and no reply: the member may
    /// be stopped.
    #[cold]
    fn is_member_address(&self, gid: &[u8; 16]) -> bool {
        let mut published = self.interfaces.published.lock();
        published.refresh(&self.fabric);
        // The death of a member changes no file in the directory.
        published.slots_with(gid).any(|slot| self.fabric.is_occupied(slot))
    }
}

impl PublishedAddresses {
    fn refresh(&mut self, fabric: &Fabric) {
        // Before the read: a change during the read has a later time.
        let now = fabric.last_change();
        if now.is_some() && self.as_of == now {
            return;
        }
        let others = fabric.occupied().into_iter().filter(|slot| *slot != fabric.slot());
        self.by_slot = others.filter_map(|slot| Some((slot, fabric.note_of(slot)?))).collect();
        self.as_of = now;
    }

    fn slots_with(&self, gid: &[u8; 16]) -> impl Iterator<Item = u16> {
        self.by_slot.iter().filter(|(_, note)| note_has_address(note, gid)).map(|(slot, _)| *slot)
    }
}

const BYTES: usize = size_of::<[u8; 16]>();

/// The addresses of this host as published bytes. Zeros stand for an unused entry.
fn text(gids: &Gids) -> Vec<u8> {
    gids.entries().take(GID_TABLE).flatten().copied().collect()
}

/// Whether a member has the address, or a device with the address.
fn note_has_address(note: &[u8], gid: &[u8; 16]) -> bool {
    let (entries, _) = note.as_chunks::<BYTES>();
    *gid != [0; BYTES]
        && entries.split_first().is_some_and(|(first, others)| {
            Gids::is_of_one_adapter(gid, first) || others.contains(gid)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guid::AdapterGuid;
    use soft_local::fabric::FabricConfig;
    use std::sync::Barrier;

    #[test]
    fn a_published_address_is_found() {
        let identity = AdapterGuid::of(&FabricConfig::new("/run/one"));
        let gids = Gids::of_this_host(identity, 0);
        let note = text(&gids);
        for gid in gids.entries() {
            assert!(note_has_address(&note, gid));
        }
        let second = Gids::of_this_host(identity, 5);
        assert!(note_has_address(&note, &second.get(0).expect("always there").raw));
        let other = Gids::of_this_host(AdapterGuid::of(&FabricConfig::new("/run/two")), 0);
        assert!(!note_has_address(&note, &other.get(0).expect("always there").raw));
        assert!(!note_has_address(&note, &[0; 16]) && !note_has_address(&[0; 64], &[0; 16]));
        for len in 0..16 {
            assert!(!note_has_address(&note[..len], gids.entries().next().expect("always there")));
        }
    }

    /// Each of two members joins while the second looks for the first. No connection is made, and a
    /// member that has left is not found.
    #[test]
    fn two_members_that_join_together_find_each_other() {
        for round in 0..20 {
            let name = format!("ferroverbs-test-{}-lookers-{round}", std::process::id());
            let mut config = FabricConfig::new(std::env::temp_dir().join(name));
            (config.dir_is_ours, config.spans_namespaces) = (true, true);
            let both = [(); 2].map(|()| Adapter::join(config.clone()).expect("a fabric"));
            let at_once = Barrier::new(2);
            std::thread::scope(|scope| {
                for (one, other) in [(&both[0], &both[1]), (&both[1], &both[0])] {
                    scope.spawn(|| {
                        let gid =
                            Gids::of_this_host(other.identity.guid(), 0).get(0).expect("there").raw;
                        at_once.wait();
                        assert!(one.is_member_address(&gid), "round {round}");
                    });
                }
            });
            let [one, other] = &both;
            one.fabric.for_each_peer(|_| panic!("nobody was met"));
            let gid = Gids::of_this_host(other.identity.guid(), 0).get(0).expect("there").raw;
            other.fabric.leave();
            assert!(!one.is_member_address(&gid), "round {round}");
            one.fabric.leave();
        }
    }
}
