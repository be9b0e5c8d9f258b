//! Addresses of everybody in a fabric. Where a directory is shared by several network namespaces, as by containers, each
//! has addresses of its own, and a route to any of them leads to the fabric.
#![forbid(unsafe_code)]

use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::published_addresses::PublishedAddresses;
use crate::net::{GID_TABLE, Gids};
use soft_local::fabric::Fabric;
use soft_sys::notice;

impl Adapter {
    /// Lets others know the addresses of this host, as it is now, if it may be another one than theirs.
    pub(crate) fn publish_addresses(&self) {
        if self.fabric.config().spans_namespaces
            && let Err(why) = self.fabric.note(&text(&Gids::of_this_host(self.identity, 0)))
        {
            notice!("{why}; those who meet there reach this process's addresses by RoCE v2");
        }
    }

    /// Whether a route to `gid` leads to a process of this fabric; `own` are the addresses of this host.
    pub(crate) fn is_here(&self, own: &Gids, gid: &[u8; 16]) -> bool {
        own.contains(gid) || self.fabric.config().spans_namespaces && self.is_anybodys(gid)
    }

    /// Whether another process has the address. Nobody is met, and nobody has to answer: it may be stopped.
    #[cold]
    fn is_anybodys(&self, gid: &[u8; 16]) -> bool {
        let mut everybody = self.published_addresses.lock();
        everybody.look(&self.fabric);
        // A death changes nothing in the directory.
        everybody.who_have(gid).any(|slot| self.fabric.is_occupied(slot))
    }
}

impl PublishedAddresses {
    fn look(&mut self, fabric: &Fabric) {
        // Before it is read: what changes meanwhile has another time.
        let now = fabric.last_change();
        if now.is_some() && self.as_of == now {
            return;
        }
        let others = fabric.occupied().into_iter().filter(|slot| *slot != fabric.slot());
        self.by_slot = others.filter_map(|slot| Some((slot, fabric.noted(slot)?))).collect();
        self.as_of = now;
    }

    fn who_have(&self, gid: &[u8; 16]) -> impl Iterator<Item = u16> {
        self.by_slot.iter().filter(|(_, note)| has(note, gid)).map(|(slot, _)| *slot)
    }
}

const BYTES: usize = size_of::<[u8; 16]>();

/// The addresses of a host, as it tells them. Zeros are none.
fn text(gids: &Gids) -> Vec<u8> {
    gids.entries().take(GID_TABLE).flatten().copied().collect()
}

/// Whether a process has an address, or a device with it.
fn has(note: &[u8], gid: &[u8; 16]) -> bool {
    let (entries, _) = note.as_chunks::<BYTES>();
    *gid != [0; BYTES]
        && entries.split_first().is_some_and(|(first, others)| {
            Gids::is_of_one_adapter(gid, first) || others.contains(gid)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guid::Identity;
    use soft_local::fabric::FabricConfig;
    use std::sync::Barrier;

    #[test]
    fn what_one_process_says_another_finds() {
        let identity = Identity::of(&FabricConfig::new("/run/one"));
        let gids = Gids::of_this_host(identity, 0);
        let note = text(&gids);
        for gid in gids.entries() {
            assert!(has(&note, gid));
        }
        let second = Gids::of_this_host(identity, 5);
        assert!(has(&note, &second.get(0).expect("always there").raw));
        let other = Gids::of_this_host(Identity::of(&FabricConfig::new("/run/two")), 0);
        assert!(!has(&note, &other.get(0).expect("always there").raw));
        assert!(!has(&note, &[0; 16]) && !has(&[0; 64], &[0; 16]));
        for len in 0..16 {
            assert!(!has(&note[..len], gids.entries().next().expect("always there")));
        }
    }

    /// Each comes while the other looks, or just before; nobody meets anybody for it, and a process that has left is not found.
    #[test]
    fn two_that_look_for_each_other_find_each_other() {
        for round in 0..20 {
            let name = format!("ferroverbs-test-{}-lookers-{round}", std::process::id());
            let mut config = FabricConfig::new(std::env::temp_dir().join(name));
            (config.dir_is_ours, config.spans_namespaces) = (true, true);
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
            let [one, other] = &both;
            one.fabric.for_each_peer(|_| panic!("nobody was met"));
            let gid = Gids::of_this_host(other.identity, 0).get(0).expect("there").raw;
            other.fabric.leave();
            assert!(!one.is_anybodys(&gid), "round {round}");
            one.fabric.leave();
        }
    }
}
