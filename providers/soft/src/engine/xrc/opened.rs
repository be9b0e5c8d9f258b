//! XRC receive QPs opened by several processes (ibv_open_qp(3)). `ops/qp` opens and closes handles;
//! the service thread ends orphans.
//!
//! The QP stays in the process of its creator. Each opener writes its identity into the creator's
//! memory. The QP is destroyed after its creator destroyed it and no living opener is recorded. If
//! the process of the creator dies first, the QP lives on in its stand-ins, in processes that
//! opened it.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::queues::qp::{Opened, Openings, Qp};
use crate::engine::ring::Link;
use crate::engine::xrc::{DomainId, Xrc, XrcTask};
use soft_local::shm::layout::{CLOSING, Life, ORPHANED, split_qpn};
use soft_local::shm::tenure;
use soft_local::shm::view::View;
use soft_semantics::state::QpType;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Openings {
    /// Whether the creator destroyed its handle.
    pub(crate) fn is_orphan(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }
}

/// Process slot and identity of each process that opened QP `index` of `view`'s owner.
fn openers(view: &View, index: usize) -> impl Iterator<Item = (u16, u32)> {
    let noted = view.openers(index).into_iter().flatten();
    let noted = noted.map(|noted| tenure::opener(noted.word()));
    noted.zip(0..).filter(|(identity, _)| *identity != 0).map(|(identity, slot)| (slot, identity))
}

/// Records that process `slot` opened a QP. Returns None if the table of openers cannot be mapped.
fn note_opener(view: &View, index: usize, slot: u16, identity: u32) -> Option<()> {
    tenure::note_opener(view.openers(index)?.get(usize::from(slot))?.word(), identity);
    Some(())
}

/// Removes the record of an opener, unless the process slot has a new owner.
fn withdraw_opener(view: &View, index: usize, slot: u16, identity: u32) {
    if let Some(noted) = view.openers(index).and_then(|all| all.get(usize::from(slot))) {
        tenure::withdraw_opener(noted.word(), identity);
    }
}

/// Clears the records for a new QP at `index`; they belong to dead openers of an earlier QP.
pub(in crate::engine) fn forget_openers(view: &View, index: usize) {
    for noted in view.openers(index).into_iter().flatten() {
        noted.store(0, Ordering::Relaxed);
    }
}

/// Whether an opener lives, and its slot was not taken by another process.
fn is_opener_alive(adapter: &Adapter, (slot, identity): (u16, u32)) -> bool {
    if !adapter.fabric.is_occupied(slot) {
        return false;
    }
    // A process that does not answer counts as living.
    adapter.fabric.peer(slot).map_or(true, |peer| peer.identity() == identity)
}

impl Xrc {
    /// Opens QP `number` of `domain`. Returns None if the QP does not exist. The caller makes a
    /// handle and calls `opened`.
    pub(crate) fn open_qp(
        &self,
        adapter: &Adapter,
        number: u32,
        domain: DomainId,
    ) -> Option<Opened> {
        let (slot, index) = split_qpn(number);
        let home = if slot == 0 { None } else { adapter.link(number) };
        // After the death of the creator, openers still know the QP.
        let usable = |link: &Link| {
            let life = Life::unpack(link.entry().packed_life.load(Ordering::Acquire));
            life.state != Life::NONE
                && life.qp_type == QpType::XrcRecv as u8
                && link.entry().stands_for.load(Ordering::Relaxed) == number
                && DomainId::load(&link.entry().domain) == domain
        };
        let home = home.map(|(link, _)| link).filter(|link| usable(link));
        let home = home.or_else(|| self.home_of(adapter, number).filter(|link| usable(link)))?;
        let own = adapter.fabric.slot();
        if home.peer().is_self {
            // The destruction reads the count under the same lock.
            let _orphans = self.open_qps.orphans.lock();
            let local = adapter.registry.qp(index).filter(|qp| qp.qpn() == number)?;
            if local.entry().closing.load(Ordering::SeqCst) == CLOSING {
                return None;
            }
            local.openings()?.local_handles.fetch_add(1, Ordering::AcqRel);
            return Some(Opened { home, local: Some(local), domain });
        }
        let identity = adapter.fabric.identity();
        note_opener(&home.view, index, own, identity)?;
        if tenure::closing(&home.entry().closing) == CLOSING || !usable(&home) {
            let others = self.handles_of(number).len();
            if others == 0 {
                withdraw_opener(&home.view, index, own, identity);
            }
            return None;
        }
        Some(Opened { home, local: None, domain })
    }

    /// Registers the handle made after `open_qp`.
    pub(crate) fn opened(&self, handle: &Arc<Qp>) {
        self.open_qps.handles.lock().push(Arc::downgrade(handle));
    }

    fn handles_of(&self, number: u32) -> Vec<Arc<Qp>> {
        let handles = self.open_qps.handles.lock();
        handles.iter().filter_map(Weak::upgrade).filter(|qp| qp.qpn() == number).collect()
    }

    /// A link to QP `number`, if this process opened it.
    pub(in crate::engine) fn home_of(&self, adapter: &Adapter, number: u32) -> Option<Box<Link>> {
        let handle = self.handles_of(number).into_iter().next()?;
        let peer = Arc::clone(handle.opened()?.home.peer());
        adapter.link_to(&peer, number).map(|(home, _)| home)
    }

    /// Ends a handle.
    pub(crate) fn close_qp(&self, adapter: &Adapter, handle: &Qp) {
        let Some(opened) = handle.opened() else { return };
        let mut handles = self.open_qps.handles.lock();
        handles.retain(|other| !std::ptr::eq(other.as_ptr(), handle));
        let last = !handles.iter().any(|h| h.upgrade().is_some_and(|qp| qp.qpn() == handle.qpn()));
        if let Some(openings) = opened.local.as_ref().and_then(|local| local.openings()) {
            openings.local_handles.fetch_sub(1, Ordering::AcqRel);
        } else if last {
            let (_, index) = split_qpn(handle.qpn());
            let (slot, identity) = (adapter.fabric.slot(), adapter.fabric.identity());
            withdraw_opener(&opened.home.view, index, slot, identity);
        }
        drop(handles);
        self.end_orphans();
        // The service thread ends the stand-ins of the QP.
        adapter.fabric.wake_self();
        opened.home.peer().kick();
        if opened.home.peer().is_dead() {
            // Processes with stand-ins for the QP must look, too.
            adapter.fabric.for_each_peer(|peer| peer.kick());
        }
    }

    /// Handles the destruction of `qp` by its creator. Returns true if openers exist; the QP then
    /// lives until they close it.
    pub(crate) fn orphan_qp(&self, qp: &Arc<Qp>) -> bool {
        let Some(openings) = qp.openings() else { return false };
        let mut orphans = self.open_qps.orphans.lock();
        tenure::begin_to_destroy(&qp.entry().closing, CLOSING);
        if !is_open(qp) {
            return false;
        }
        openings.orphaned.store(true, Ordering::Release);
        qp.entry().closing.store(ORPHANED, Ordering::SeqCst);
        orphans.push(Arc::clone(qp));
        true
    }

    /// Destroys orphaned QPs without openers.
    pub(in crate::engine) fn end_orphans(&self) {
        let mut ended = vec![];
        self.open_qps.orphans.lock().retain(|qp| {
            if is_open(qp) {
                return true;
            }
            // The same two steps as in `orphan_qp`.
            tenure::begin_to_destroy(&qp.entry().closing, CLOSING);
            let open = is_open(qp);
            if open {
                qp.entry().closing.store(ORPHANED, Ordering::SeqCst);
            } else {
                ended.push(Arc::clone(qp));
            }
            open
        });
        for qp in ended {
            qp.retire();
        }
    }

    /// Removes the records of the dead process `identity` in `slot`.
    pub(crate) fn forget_opener(&self, adapter: &Adapter, slot: u16, identity: u32) {
        for qp in adapter.registry.all_qps() {
            if qp.openings().is_some() {
                withdraw_opener(&adapter.view, qp.index(), slot, identity);
            }
        }
    }

    /// Reports an event to all processes that opened a QP of this process.
    pub(in crate::engine) fn report_to_openers(&self, adapter: &Adapter, qp: &Qp, event: u32) {
        self.report(qp.qpn(), event);
        for (slot, _) in openers(&adapter.view, qp.index()) {
            self.put_task(
                adapter,
                XrcTask::ReportEvent { slot, sender_qpn: qp.qpn(), receiver_qpn: qp.qpn(), event },
            );
        }
    }

    /// Reports an event of QP `number` to its handles in this process.
    pub(in crate::engine) fn report(&self, number: u32, event: u32) {
        for handle in self.handles_of(number) {
            handle.report_own(event);
        }
    }
}

/// Whether a QP of this process has an opener besides its creator.
fn is_open(qp: &Qp) -> bool {
    qp.openings().is_some_and(|openings| openings.local_handles.load(Ordering::Acquire) > 0)
        || openers(&qp.adapter().view, qp.index()).next().is_some()
}

/// Whether a QP of this process has a user. An orphan loses its last user when the last handle
/// closes, or when the process of that handle dies. It accepts no message afterwards, even before
/// the service thread destroys it.
pub(in crate::engine) fn has_user(qp: &Qp, openings: &Openings) -> bool {
    !openings.is_orphan()
        || openings.local_handles.load(Ordering::Acquire) > 0
        || openers(&qp.adapter().view, qp.index())
            .any(|opener| is_opener_alive(qp.adapter(), opener))
}

/// Whether a living process opened the QP of `home`, whose creator or process is gone.
pub(in crate::engine) fn has_living_opener(adapter: &Adapter, home: &Link) -> bool {
    let (_, index) = split_qpn(home.qpn);
    // If the table cannot be mapped, an opener may exist.
    home.view.openers(index).is_none()
        || openers(&home.view, index).any(|opener| is_opener_alive(adapter, opener))
}

/// Whether the creator of a QP destroyed it.
pub(in crate::engine) fn is_orphaned(home: &Link) -> bool {
    home.entry().closing.load(Ordering::Acquire) == ORPHANED
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_local::fabric::FabricConfig;
    use std::sync::Arc;

    #[test]
    fn a_later_owner_of_an_openers_slot_is_no_opener() {
        let name = format!("ferroverbs-openers-{}", std::process::id());
        let mut config = FabricConfig::new(std::env::temp_dir().join(name));
        config.dir_is_ours = true;
        let join = || Adapter::join(config.clone()).expect("a fabric in the temporary directory");
        let (home, other): (Arc<Adapter>, Arc<Adapter>) = (join(), join());
        let opener = (other.fabric.slot(), other.fabric.identity());
        note_opener(&home.view, 5, opener.0, opener.1).expect("it is our own");
        assert_eq!(openers(&home.view, 5).collect::<Vec<_>>(), [opener]);
        assert!(is_opener_alive(&home, opener) && is_opener_alive(&other, opener));
        // The previous owner of the slot.
        assert!(!is_opener_alive(&home, (opener.0, opener.1 ^ 2)), "another identity");
        assert!(!is_opener_alive(&home, (opener.0 + 100, opener.1)), "nobody");
        withdraw_opener(&home.view, 5, opener.0, opener.1 ^ 2);
        assert_eq!(openers(&home.view, 5).count(), 1, "the death of an earlier one is not its");
        withdraw_opener(&home.view, 5, opener.0, opener.1);
        assert_eq!(openers(&home.view, 5).count(), 0);
    }
}
