//! Extended reliable connections: which process receives for an XRC receive QP
//! (IBTA 1.7 A14; ibv_open_xrcd(3)). Polls look here for arrivals; the service thread makes and
//! ends stand-ins by `run_tasks`.
//!
//! A request of an XRC send QP names a shared receive queue in the domain of the remote XRC receive
//! QP. Keys are checked against the protection domain of that queue, and completions go to its CQ;
//! the receive QP has neither.
//!
//! Map of the file:
//!
//! - Threads: polls by `serve_hot_rings` and `make_hot`, senders by `ask_for_stand_in` and
//!   `stand_in`, the reader of datagram rings by `receive_message`, the service thread by
//!   `run_tasks` and `sweep`, applications by `open_domain` and `close_domain`.
//! - Locks: `hot` (tried by polls) > responder. `stand_ins` (service thread only) > everything.
//!   `tasks`, `stand_in_replies`, `remote_stand_ins` are leaves. `domains` > the fabric's registry.
//! - Mirrors: `has_remote_stand_ins` mirrors `remote_stand_ins`; `receiving` counts the hot and
//!   cold receivers.
//! - Messages of other processes (`receive_message`) are unchecked: any member can write them. Each
//!   is confirmed by the tables of its subject before it has an effect.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::queues::qp::{Qp, Role, StandIn};
use crate::engine::queues::served_by::ServedBy;
use crate::engine::ring::Link;
use crate::engine::ring::holder::PeerState;
use crate::engine::xrc::{DomainId, OpenDomain, QpEvent, Xrc, XrcTask};
use crate::host::xrc_messages::SrqRequest;
use soft_local::shm::layout::{Life, QPS, split_qpn};
use soft_local::shm::slot::{Head, Op, high, low};
use soft_local::shm::trust::Unchecked;
use soft_semantics::state::QpType;
use soft_sys::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl StandIn {
    /// Whether the home QP still serves its sender, in the incarnation of this stand-in.
    pub(crate) fn may_serve(&self) -> bool {
        match self.home.peer_state(self.sender_qpn) {
            PeerState::Serving(generation) => generation == self.generation,
            PeerState::Silent => false,
            // A sender on another host depends on the home process.
            PeerState::Dead => {
                self.sender_qpn != OTHER_HOST && self.outlives_home.load(Ordering::Acquire)
            }
        }
    }

    /// Whether the home QP serves its sender, or will again after its port comes up.
    pub(crate) fn is_valid(&self) -> bool {
        self.may_serve() || !self.home.peer().is_dead() && self.has_connection()
    }

    pub(in crate::engine) fn has_connection(&self) -> bool {
        self.home.connection(self.sender_qpn) == Some(self.generation)
    }

    /// Whether the stand-in must stay in ERR after a refusal: the owner of the home QP reads its
    /// state here, and has not heard of the refusal.
    pub(in crate::engine) fn awaits_refusal(&self) -> bool {
        !self.home.peer().is_dead() && self.has_connection()
    }
}

/// Limit of tasks from other processes; further tasks are lost, as in a full ring.
const MAX_TASKS: usize = 1 << 12;
/// Limit of stand-ins, to leave QP numbers for the application.
pub(in crate::engine) const MAX_STAND_INS: usize = QPS / 2;
/// Limit of requests that wait for a stand-in; each holds a packet.
const MAX_QUEUED_REQUESTS: usize = 64;
/// The QP number that stands for senders on another host (`Qp::set_connected`).
pub(in crate::engine) const OTHER_HOST: u32 = 0;

impl Xrc {
    /// Whether polls must look here, and at the wire between hosts if an XRC QP receives by it.
    #[inline]
    pub(crate) fn is_receiving(&self) -> bool {
        self.receiving.load(Ordering::Relaxed) > 0
    }

    /// Whether polls must look for requests of other hosts that other processes forward.
    #[inline]
    pub(crate) fn has_remote_stand_ins(&self) -> bool {
        self.has_remote_stand_ins.load(Ordering::Relaxed)
    }

    /// The stand-in for QP `of` of another process that serves requests of other hosts.
    pub(crate) fn remote_stand_in(&self, of: u32) -> Option<Arc<Qp>> {
        self.remote_stand_ins.lock().get(&of).map(Arc::clone)
    }

    /// Queues a request until a stand-in exists. Returns false if too many requests wait.
    pub(crate) fn queue_request(
        &self,
        adapter: &Adapter,
        question: SrqRequest,
        frame: &[u8],
    ) -> bool {
        let mut tasks = self.tasks.lock();
        let waiting =
            tasks.iter().filter(|task| matches!(task, XrcTask::ServeRequest { .. })).count();
        if waiting >= MAX_QUEUED_REQUESTS || tasks.len() >= MAX_TASKS {
            return false;
        }
        tasks.push(XrcTask::ServeRequest { question, frame: frame.into() });
        drop(tasks);
        adapter.fabric.wake_self();
        true
    }

    /// Called by polls: serves the hot rings.
    pub(crate) fn serve_hot_rings(&self, who: ServedBy) {
        if let Some(hot) = self.hot.try_lock() {
            hot.serve_hot_rings(who);
        }
    }

    /// Counts a QP that receives from other hosts; `more` is false when it stops.
    pub(crate) fn count_remote(&self, more: bool) {
        if more {
            self.receiving.fetch_add(1, Ordering::Relaxed);
        } else {
            self.receiving.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Called by the service thread, and before a thread sleeps: also sends due acknowledgements.
    pub(crate) fn sweep(&self, who: ServedBy) -> bool {
        if !self.is_receiving() {
            return false;
        }
        let hot = self.hot.lock();
        hot.serve_hot_rings(who);
        hot.finish(who)
    }

    /// Handles the arrival flag of an XRC receive QP.
    pub(crate) fn make_hot(&self, adapter: &Adapter, qp: &Arc<Qp>, who: ServedBy) {
        if let Some(mut hot) = self.hot.try_lock() {
            hot.make_hot(adapter, qp, who);
        }
    }

    /// Lists a QP that can receive from now on.
    pub(crate) fn add_receiver(&self, adapter: &Adapter, qp: &Arc<Qp>) {
        if !qp.is_listed_receiver() {
            self.receiving.fetch_add(1, Ordering::Relaxed);
        }
        self.hot.lock().add(adapter, qp);
    }

    /// Forgets a QP that is reset or destroyed.
    pub(crate) fn remove(&self, qp: &Qp) {
        if qp.is_listed_receiver() {
            self.receiving.fetch_sub(1, Ordering::Relaxed);
        }
        self.hot.lock().remove(qp);
    }

    /// Called when a CQ is armed for the first time.
    pub(in crate::engine) fn await_events(&self) {
        self.senders.await_events();
    }

    /// Records that `qp` sends to process `slot`.
    pub(crate) fn add_sender(&self, qp: &Qp, slot: u16) {
        self.senders.add(slot, qp);
    }

    /// Whether `qp` may wait for process `slot`. A QP that only sends has no responder that would
    /// notice.
    pub(crate) fn sends_to(&self, qp: &Qp, slot: u16) -> bool {
        qp.qp_type() == QpType::XrcSend && self.senders.sends_to(slot, qp)
    }

    /// Asks process `slot` for a stand-in for QP `of`, to which the local QP `by` sends. `stand_in`
    /// returns the reply.
    pub(in crate::engine) fn ask_for_stand_in(
        &self,
        adapter: &Adapter,
        slot: u16,
        of: u32,
        by: u32,
    ) {
        self.stand_in_replies.lock().entry((slot, by)).or_default();
        adapter.datagrams.send_message(adapter, slot, Op::XrcAsk, by, u64::from(of));
    }

    /// Forgets the requests made for the local QP `by`.
    pub(in crate::engine) fn forget_questions(&self, by: u32) {
        self.stand_in_replies.lock().retain(|(_, asker), _| *asker != by);
    }

    /// A link to the stand-in for QP `of` in process `slot` that receives from the local QP `by`,
    /// if it exists.
    pub(in crate::engine) fn stand_in(
        &self,
        adapter: &Adapter,
        slot: u16,
        of: u32,
        by: u32,
    ) -> Option<Box<Link>> {
        let number = {
            let mut answers = self.stand_in_replies.lock();
            let number = (*answers.get(&(slot, by))?)?;
            answers.remove(&(slot, by));
            number
        };
        let (link, _) = adapter.link(number)?;
        let right = link.entry().stands_for.load(Ordering::Relaxed) == of
            && matches!(link.peer_state(by), PeerState::Serving(_));
        right.then_some(link)
    }

    /// Reports that the local stand-in `by` for QP `of` refused a request.
    pub(in crate::engine) fn refused(&self, adapter: &Adapter, by: u32, of: u32, event: u32) {
        self.put_task(
            adapter,
            XrcTask::ReportEvent { slot: split_qpn(of).0, sender_qpn: by, receiver_qpn: of, event },
        );
    }

    pub(in crate::engine) fn put_task(&self, adapter: &Adapter, task: XrcTask) {
        self.tasks.lock().push(task);
        adapter.fabric.wake_self();
    }

    /// Reads an XRC message in the ring of process `slot`. Returns false if the message is invalid,
    /// or if too many tasks wait. Any member can write the ring, so the content is checked against
    /// tables before it has an effect.
    pub(in crate::engine) fn receive_message(
        &self,
        adapter: &Adapter,
        slot: u16,
        head: &Head,
        word: Unchecked<u64>,
    ) -> bool {
        // QP numbers and an event, checked below or before the task is executed.
        let word = word.unchecked();
        let (by, of) = (head.src_qpn, low(word));
        let task = match head.op {
            Op::XrcAsk if split_qpn(by).0 == slot => {
                XrcTask::MakeStandIn { slot, receiver_qpn: of, sender_qpn: by }
            }
            Op::XrcAnswer if split_qpn(of).0 == slot => {
                if let Some(answer) = self.stand_in_replies.lock().get_mut(&(slot, high(word))) {
                    *answer = Some(of);
                    adapter.fabric.wake_self();
                    return true;
                }
                return false;
            }
            Op::XrcBroke if split_qpn(by).0 == slot => match QpEvent::of_raw(high(word)) {
                Some(event) => XrcTask::EventReported { sender_qpn: by, receiver_qpn: of, event },
                None => return false,
            },
            _ => return false,
        };
        let mut tasks = self.tasks.lock();
        if tasks.len() >= MAX_TASKS {
            return false;
        }
        tasks.push(task);
        drop(tasks);
        adapter.fabric.wake_self();
        true
    }

    /// Handles a reported `event` of QP `of` of another process. The event is passed to local
    /// handles if the life of the QP agrees.
    pub(in crate::engine) fn handle_event(&self, adapter: &Adapter, of: u32, event: QpEvent) {
        let Some(home) = self.home_of(adapter, of) else { return };
        let life = Life::unpack(home.entry().packed_life.load(Ordering::Acquire));
        if event.breaks() != life.is_connected_to(life.dest_qpn) {
            self.report(of, event.0);
        }
    }

    /// Fails the local QP `of` after stand-in `by` refused a request. Required: `by` stands for
    /// `of`, and the tables of its owner show ERR.
    pub(in crate::engine) fn fail_refused(
        &self,
        adapter: &Adapter,
        by: u32,
        of: u32,
        event: QpEvent,
    ) {
        let (_, index) = split_qpn(of);
        let is_it = |qp: &Arc<Qp>| qp.qpn() == of && matches!(qp.role(), Role::Receiver(_));
        let Some(qp) = adapter.registry.qp(index).filter(is_it) else { return };
        if !event.breaks() {
            return;
        }
        let Some((stand_in, _)) = adapter.link(by) else { return };
        let entry = stand_in.entry();
        let life = Life::unpack(entry.packed_life.load(Ordering::Acquire));
        let served = Life::unpack(qp.entry().packed_life.load(Ordering::Acquire)).dest_qpn;
        let stood = life.state == Life::ERR
            && life.qp_type == QpType::XrcRecv as u8
            && life.dest_qpn == served
            && entry.stands_for.load(Ordering::Relaxed) == of;
        if stood && qp.fail() {
            qp.event(event.0);
            qp.flush_all();
        }
    }

    /// Opens the domain of the file `fd`, or a new private domain.
    ///
    /// # Errors
    /// `EAGAIN` the domain is not open and `create` is false; `EINVAL` the domain is open and
    /// `exclusive` is true; `EBADF` the descriptor is not open.
    pub(crate) fn open_domain(
        &self,
        adapter: &Adapter,
        file: Option<OwnedFd>,
        create: bool,
        exclusive: bool,
    ) -> Result<DomainId, Errno> {
        let Some(file) = file else {
            let number = self.private_domains.fetch_add(1, Ordering::Relaxed);
            let slot = u64::from(adapter.fabric.slot());
            // No file has this device number, because device numbers have 32 bits.
            let id = DomainId { device: 1 << 63 | slot, inode: number };
            self.domains.lock().insert(id, OpenDomain { count: 1, file: None });
            return Ok(id);
        };
        let (device, inode) = soft_sys::dir::stat_fd(file.as_fd())?.id;
        let id = DomainId { device, inode };
        let mut domains = self.domains.lock();
        let known = domains.get_mut(&id);
        let exists = |elsewhere: bool| match (known.is_some() || elsewhere, create, exclusive) {
            (false, false, _) => Err(Errno::EAGAIN),
            (true, _, true) => Err(Errno::EINVAL),
            _ => Ok(()),
        };
        adapter.fabric.take_mark(id.mark_offset(), exists)?;
        match known {
            Some(known) => known.count += 1,
            None => {
                domains.insert(id, OpenDomain { count: 1, file: Some(file) });
            }
        }
        Ok(id)
    }

    /// Undoes one `open_domain`.
    pub(crate) fn close_domain(&self, adapter: &Adapter, id: DomainId) {
        let mut domains = self.domains.lock();
        let Some(open) = domains.get_mut(&id) else { return };
        open.count -= 1;
        if open.count == 0 {
            if open.file.is_some() {
                adapter.fabric.drop_mark(id.mark_offset());
            }
            domains.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_neighbouring_files_differ_and_do_not_overlap_the_slots() {
        let mut seen = std::collections::HashSet::new();
        for device in 0..20 {
            for inode in 0..500 {
                let mark = DomainId { device, inode }.mark_offset();
                assert!(mark > u64::from(u32::MAX) && i64::try_from(mark).is_ok());
                assert!(seen.insert(mark));
            }
        }
    }
}
