//! XRC receive QPs that more than their creator have open (ibv_open_qp(3)).
//!
//! The QP stays in the process that created it. Whoever opens it writes its identity into the creator's memory, and the QP is
//! destroyed when its creator has destroyed it and nobody who is written there lives. When the creator's process dies first, the QP goes on without it:
//! as the stand-ins, where somebody has it open.
#![forbid(unsafe_code)]

use super::objects::adapter::Adapter;
use super::objects::connection::Link;
use super::objects::qp::{Opened, Openings, Qp};
use super::objects::xrc::{DomainId, Xrc, XrcTask};
use super::state::Kind;
use soft_local::shm::layout::{CLOSING, Life, ORPHANED, split_qpn};
use soft_local::shm::tenure;
use soft_local::shm::view::View;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Openings {
    /// Whether the creator's handle is gone.
    pub(crate) fn is_orphan(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }
}

/// The processes that have QP `index` of the owner of `view` open: slot and identity.
fn openers(view: &View, index: usize) -> impl Iterator<Item = (u16, u32)> {
    let noted = view.openers(index).into_iter().flatten();
    let noted = noted.map(|noted| tenure::opener(noted.word()));
    noted.zip(0..).filter(|(identity, _)| *identity != 0).map(|(identity, slot)| (slot, identity))
}

/// Notes that process `slot` has a QP open; `None`: there is no room to map where that is noted.
fn note(view: &View, index: usize, slot: u16, identity: u32) -> Option<()> {
    tenure::note_opener(view.openers(index)?.get(usize::from(slot))?.word(), identity);
    Some(())
}

/// Withdraws it, unless it is another process by now.
fn withdraw(view: &View, index: usize, slot: u16, identity: u32) {
    if let Some(noted) = view.openers(index).and_then(|all| all.get(usize::from(slot))) {
        tenure::withdraw_opener(noted.word(), identity);
    }
}

/// A new QP takes place `index`: what is noted there is of openers that died with an earlier one.
pub(super) fn forget_all(view: &View, index: usize) {
    for noted in view.openers(index).into_iter().flatten() {
        noted.store(0, Ordering::Relaxed);
    }
}

/// Whether an opener lives, and is not another process in the slot of one that does not.
fn lives(adapter: &Adapter, (slot, identity): (u16, u32)) -> bool {
    if !adapter.fabric.is_occupied(slot) {
        return false;
    }
    // One that does not answer is there, whoever it is.
    adapter.fabric.peer(slot).map_or(true, |peer| peer.identity() == identity)
}

impl Xrc {
    /// Opens QP `number` of `domain`; `None`: there is no such QP. The caller makes a handle of it and tells `opened`.
    pub(crate) fn open_qp(
        &self,
        adapter: &Adapter,
        number: u32,
        domain: DomainId,
    ) -> Option<Opened> {
        let (slot, index) = split_qpn(number);
        let home = if slot == 0 { None } else { adapter.link(number) };
        // A creator that died is known to those who have the QP open.
        let usable = |link: &Link| {
            let life = Life::unpack(link.entry().life.load(Ordering::Acquire));
            life.state != Life::NONE
                && life.kind == Kind::XrcRecv as u8
                && link.entry().stands_for.load(Ordering::Relaxed) == number
                && DomainId::load(&link.entry().domain) == domain
        };
        let home = home.map(|(link, _)| link).filter(|link| usable(link));
        let home = home.or_else(|| self.home_of(adapter, number).filter(|link| usable(link)))?;
        let own = adapter.fabric.slot();
        if home.peer.is_self {
            // Destruction looks at the count under the same lock.
            let _orphans = self.open_qps.orphans.lock();
            let local = adapter.qp(index).filter(|qp| qp.qpn == number)?;
            if local.entry().closing.load(Ordering::SeqCst) == CLOSING {
                return None;
            }
            local.openings()?.local_handles.fetch_add(1, Ordering::AcqRel);
            return Some(Opened { home, local: Some(local), domain });
        }
        let identity = adapter.fabric.identity();
        note(&home.view, index, own, identity)?;
        if tenure::closing(&home.entry().closing) == CLOSING || !usable(&home) {
            let others = self.handles_of(number).len();
            if others == 0 {
                withdraw(&home.view, index, own, identity);
            }
            return None;
        }
        Some(Opened { home, local: None, domain })
    }

    /// A handle was made of what `open_qp` returned.
    pub(crate) fn opened(&self, handle: &Arc<Qp>) {
        self.open_qps.handles.lock().push(Arc::downgrade(handle));
    }

    fn handles_of(&self, number: u32) -> Vec<Arc<Qp>> {
        let handles = self.open_qps.handles.lock();
        handles.iter().filter_map(Weak::upgrade).filter(|qp| qp.qpn == number).collect()
    }

    /// The way to QP `number`, if we have it open.
    pub(super) fn home_of(&self, adapter: &Adapter, number: u32) -> Option<Box<Link>> {
        let handle = self.handles_of(number).into_iter().next()?;
        let peer = Arc::clone(&handle.opened()?.home.peer);
        adapter.link_to(&peer, number).map(|(home, _)| home)
    }

    /// A handle is destroyed.
    pub(crate) fn close_qp(&self, adapter: &Adapter, handle: &Qp) {
        let Some(opened) = handle.opened() else { return };
        let mut handles = self.open_qps.handles.lock();
        handles.retain(|other| !std::ptr::eq(other.as_ptr(), handle));
        let last = !handles.iter().any(|h| h.upgrade().is_some_and(|qp| qp.qpn == handle.qpn));
        if let Some(openings) = opened.local.as_ref().and_then(|local| local.openings()) {
            openings.local_handles.fetch_sub(1, Ordering::AcqRel);
        } else if last {
            let (_, index) = split_qpn(handle.qpn);
            let (slot, identity) = (adapter.fabric.slot(), adapter.fabric.identity());
            withdraw(&opened.home.view, index, slot, identity);
        }
        drop(handles);
        self.end_orphans();
        // Its stand-ins are ended by the service thread.
        adapter.fabric.wake_self();
        opened.home.peer.kick();
        if opened.home.peer.is_dead() {
            // Whoever stands for the QP may be the last to know it.
            adapter.fabric.for_each_peer(|peer| peer.kick());
        }
    }

    /// The creator of `qp` destroys it. `true`: others have it open, and it goes on until they do not.
    pub(crate) fn abandon(&self, qp: &Arc<Qp>) -> bool {
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

    /// Destroys QPs that nobody has open any more.
    pub(super) fn end_orphans(&self) {
        let mut ended = vec![];
        self.open_qps.orphans.lock().retain(|qp| {
            if is_open(qp) {
                return true;
            }
            // As in `abandon`.
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

    /// The process `identity` in `slot` died: it has nothing open any more.
    pub(crate) fn forget_opener(&self, adapter: &Adapter, slot: u16, identity: u32) {
        for qp in adapter.all_qps() {
            if qp.openings().is_some() {
                withdraw(&adapter.view, qp.index, slot, identity);
            }
        }
    }

    /// Tells everybody who has our QP open of an event.
    pub(super) fn announce(&self, adapter: &Adapter, qp: &Qp, event: u32) {
        self.report(qp.qpn, event);
        for (slot, _) in openers(&adapter.view, qp.index) {
            self.put_task(adapter, XrcTask::ReportEvent { slot, by: qp.qpn, of: qp.qpn, event });
        }
    }

    /// Reports an event of QP `number` to those of this process who opened it.
    pub(super) fn report(&self, number: u32, event: u32) {
        for handle in self.handles_of(number) {
            handle.report_own(event);
        }
    }
}

/// Whether somebody other than its creator has a QP of ours open.
fn is_open(qp: &Qp) -> bool {
    qp.openings().is_some_and(|openings| openings.local_handles.load(Ordering::Acquire) > 0)
        || openers(&qp.adapter.view, qp.index).next().is_some()
}

/// Whether a QP of ours is open: one that its creator destroyed ends with its last other handle, or the death of who had
/// that, and takes nothing in afterwards though the service thread may not have destroyed it yet.
pub(super) fn is_kept(qp: &Qp, openings: &Openings) -> bool {
    !openings.is_orphan()
        || openings.local_handles.load(Ordering::Acquire) > 0
        || openers(&qp.adapter.view, qp.index).any(|opener| lives(&qp.adapter, opener))
}

/// Whether a living process has the QP open that `home` leads to, whose creator or its process is gone.
pub(super) fn is_held(adapter: &Adapter, home: &Link) -> bool {
    let (_, index) = split_qpn(home.qpn);
    // While we cannot look, somebody may.
    home.view.openers(index).is_none()
        || openers(&home.view, index).any(|opener| lives(adapter, opener))
}

/// Whether the creator of a QP, which may live, has destroyed it.
pub(super) fn is_orphaned(home: &Link) -> bool {
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
        note(&home.view, 5, opener.0, opener.1).expect("it is our own");
        assert_eq!(openers(&home.view, 5).collect::<Vec<_>>(), [opener]);
        assert!(lives(&home, opener) && lives(&other, opener));
        // Who had the slot before it.
        assert!(!lives(&home, (opener.0, opener.1 ^ 2)), "another identity");
        assert!(!lives(&home, (opener.0 + 100, opener.1)), "nobody");
        withdraw(&home.view, 5, opener.0, opener.1 ^ 2);
        assert_eq!(openers(&home.view, 5).count(), 1, "the death of an earlier one is not its");
        withdraw(&home.view, 5, opener.0, opener.1);
        assert_eq!(openers(&home.view, 5).count(), 0);
    }
}
