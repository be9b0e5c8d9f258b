//! Multicast groups and their member QPs in this process (ibv_attach_mcast(3), IBTA 1.7 10.5).
//! `ops/mcast` changes them; senders read the published groups of all processes and send one copy
//! to each process with members.

use crate::engine::adapter::{Group, Groups};
use crate::engine::queues::qp::Qp;
use cface::sync::Mutex;
use soft_local::shm::layout::{GROUPS, GroupEntry};
use soft_local::shm::view::View;
use soft_sys::Errno;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Maximal number of member QPs of a group in a process.
pub(crate) const MAX_MEMBERS: usize = 256;

/// A GID as two words, the form of the published table.
pub(crate) fn gid_words(gid: &[u8; 16]) -> [u64; 2] {
    let whole = u128::from_ne_bytes(*gid);
    [whole as u64, (whole >> 64) as u64]
}

/// Whether the owner of `view` has members of the group.
pub(crate) fn has_members(view: &View, gid: &[u8; 16]) -> bool {
    let used = (view.tables_head().groups.load(Ordering::Acquire) as usize).min(GROUPS);
    let wanted = gid_words(gid);
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

    /// Attaches a QP. A second attach has no effect, as in the kernel.
    ///
    /// # Errors
    /// `ENOMEM` the table of groups, or the group, is full.
    pub(crate) fn attach(&self, qp: &Qp, gid: &[u8; 16]) -> Result<(), Errno> {
        let gid = gid_words(gid);
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
        if group.members.len() >= MAX_MEMBERS {
            return Err(Errno::ENOMEM);
        }
        group.gid = gid;
        group.members.push(me);
        let entry = self.entry(at);
        entry.gid[0].store(gid[0], Ordering::Relaxed);
        entry.gid[1].store(gid[1], Ordering::Relaxed);
        // Release pairs with the Acquire in `has_members`: the GID is visible with the members.
        entry.members.store(group.members.len() as u64, Ordering::Release);
        self.view.tables_head().groups.store(count, Ordering::Release);
        Ok(())
    }

    /// Detaches a QP.
    ///
    /// # Errors
    /// `EINVAL` the QP is not attached to the group.
    pub(crate) fn detach(&self, qp: &Qp, gid: &[u8; 16]) -> Result<(), Errno> {
        let gid = gid_words(gid);
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
        let gid = gid_words(gid);
        self.entries.lock().iter().any(|g| g.gid == gid && !g.members.is_empty())
    }

    /// The GIDs of all groups with members.
    pub(crate) fn with_members(&self) -> Vec<[u8; 16]> {
        let whole =
            |[low, high]: [u64; 2]| (u128::from(low) | u128::from(high) << 64).to_ne_bytes();
        let entries = self.entries.lock();
        entries.iter().filter(|g| !g.members.is_empty()).map(|g| whole(g.gid)).collect()
    }

    /// Whether a QP is attached to any group.
    pub(crate) fn is_attached(&self, qp: &Qp) -> bool {
        let me = qp.me();
        self.entries.lock().iter().any(|g| g.members.iter().any(|member| member.ptr_eq(&me)))
    }

    /// Calls `f` for each member of a group.
    pub(crate) fn for_members(&self, gid: [u64; 2], mut f: impl FnMut(&Qp)) {
        let entries = self.entries.lock();
        let Some(group) = entries.iter().find(|g| !g.members.is_empty() && g.gid == gid) else {
            return;
        };
        let members: Vec<Arc<Qp>> = group.members.iter().filter_map(Weak::upgrade).collect();
        // Unlocked first: a member that fails is flushed, under further locks.
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
        let [a, b] = gid_words(&gid);
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
