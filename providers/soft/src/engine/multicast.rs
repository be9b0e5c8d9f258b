//! Multicast groups: which QPs of this process are attached to which (ibv_attach_mcast(3), IBTA vol 1, 10.5).
//!
//! Each process publishes its groups; a sender looks at everyone's and sends one copy to each process with members.

use super::objects::adapter::{Group, Groups};
use super::objects::qp::Qp;
use cface::sync::Mutex;
use soft_local::shm::layout::{GROUPS, GroupEntry};
use soft_local::shm::view::View;
use soft_sys::Errno;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// QPs of one process that can be attached to one group.
pub(crate) const MOST_MEMBERS: usize = 256;

/// A GID as the two words that are compared.
pub(crate) fn words(gid: &[u8; 16]) -> [u64; 2] {
    let whole = u128::from_ne_bytes(*gid);
    [whole as u64, (whole >> 64) as u64]
}

/// Whether the owner of `view` has QPs in the group.
pub(crate) fn has_members(view: &View, gid: &[u8; 16]) -> bool {
    let used = (view.tables_head().groups.load(Ordering::Acquire) as usize).min(GROUPS);
    let wanted = words(gid);
    (0..used).map(|index| view.group(index)).any(|entry| {
        entry.members.load(Ordering::Acquire) > 0
            && entry.gid[0].load(Ordering::Relaxed) == wanted[0]
            && entry.gid[1].load(Ordering::Relaxed) == wanted[1]
    })
}

impl Groups {
    pub(crate) fn new(view: View) -> Self {
        Self { view, entries: Mutex::default() }
    }

    fn entry(&self, index: usize) -> &GroupEntry {
        self.view.group(index)
    }

    /// Attaches a QP; nothing happens if it is attached already, as with the kernel's.
    ///
    /// # Errors
    /// `ENOMEM` as many groups, or QPs in the group, as there can be.
    pub(crate) fn attach(&self, qp: &Qp, gid: &[u8; 16]) -> Result<(), Errno> {
        let gid = words(gid);
        let mut entries = self.entries.lock();
        let at = match entries.iter().position(|g| !g.members.is_empty() && g.gid == gid) {
            Some(at) => at,
            None => match entries.iter().position(|g| g.members.is_empty()) {
                Some(at) => at,
                None if entries.len() < GROUPS => {
                    entries.push(Group::default());
                    entries.len() - 1
                }
                None => return Err(Errno::ENOMEM),
            },
        };
        let count = entries.len() as u32;
        let Some(group) = entries.get_mut(at) else { return Err(Errno::ENOMEM) };
        let me = qp.me();
        if group.members.iter().any(|member| member.ptr_eq(&me)) {
            return Ok(());
        }
        if group.members.len() >= MOST_MEMBERS {
            return Err(Errno::ENOMEM);
        }
        group.gid = gid;
        group.members.push(me);
        let entry = self.entry(at);
        entry.gid[0].store(gid[0], Ordering::Relaxed);
        entry.gid[1].store(gid[1], Ordering::Relaxed);
        // Pairs with the Acquire in `has_members`.
        entry.members.store(group.members.len() as u64, Ordering::Release);
        self.view.tables_head().groups.store(count, Ordering::Release);
        Ok(())
    }

    /// Detaches a QP.
    ///
    /// # Errors
    /// `EINVAL` it is not attached to the group.
    pub(crate) fn detach(&self, qp: &Qp, gid: &[u8; 16]) -> Result<(), Errno> {
        let gid = words(gid);
        let me = qp.me();
        let mut entries = self.entries.lock();
        for (at, group) in entries.iter_mut().enumerate().filter(|(_, g)| g.gid == gid) {
            if let Some(place) = group.members.iter().position(|member| member.ptr_eq(&me)) {
                group.members.swap_remove(place);
                self.entry(at).members.store(group.members.len() as u64, Ordering::Release);
                return Ok(());
            }
        }
        Err(Errno::EINVAL)
    }

    /// Whether the group has members.
    pub(crate) fn has_any(&self, gid: &[u8; 16]) -> bool {
        let gid = words(gid);
        self.entries.lock().iter().any(|g| g.gid == gid && !g.members.is_empty())
    }

    /// All groups with members.
    pub(crate) fn all(&self) -> Vec<[u8; 16]> {
        let whole =
            |[low, high]: [u64; 2]| (u128::from(low) | u128::from(high) << 64).to_ne_bytes();
        let entries = self.entries.lock();
        entries.iter().filter(|g| !g.members.is_empty()).map(|g| whole(g.gid)).collect()
    }

    /// Whether a QP is attached to any group.
    pub(crate) fn has(&self, qp: &Qp) -> bool {
        let me = qp.me();
        self.entries.lock().iter().any(|g| g.members.iter().any(|member| member.ptr_eq(&me)))
    }

    /// Calls `f` with each member of a group.
    pub(crate) fn for_members(&self, gid: [u64; 2], mut f: impl FnMut(&Qp)) {
        let entries = self.entries.lock();
        let Some(group) = entries.iter().find(|g| !g.members.is_empty() && g.gid == gid) else {
            return;
        };
        let members: Vec<Arc<Qp>> = group.members.iter().filter_map(Weak::upgrade).collect();
        // A member that fails is flushed, which takes other locks.
        drop(entries);
        members.iter().for_each(|qp| f(qp));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_local::shm::view::mock;

    #[test]
    fn a_group_is_seen_while_it_has_members_and_no_other_is() {
        let view = mock::view();
        let (gid, other) = ([0xff; 16], [0xfe; 16]);
        assert!(!has_members(&view, &gid));
        let entry = view.group(1);
        let [a, b] = words(&gid);
        entry.gid[0].store(a, Ordering::Relaxed);
        entry.gid[1].store(b, Ordering::Relaxed);
        entry.members.store(1, Ordering::Relaxed);
        assert!(!has_members(&view, &gid), "behind the end");
        view.tables_head().groups.store(u32::MAX, Ordering::Relaxed);
        assert!(has_members(&view, &gid) && !has_members(&view, &other));
        entry.members.store(0, Ordering::Relaxed);
        assert!(!has_members(&view, &gid));
    }
}
