//! Extended reliable connections: who receives for whom (IBTA vol 1, annex A14; ibv_open_xrcd(3)).
//!
//! A request of an XRC send QP names a shared receive queue of the domain that the remote XRC receive QP belongs to. Keys
//! are checked against that queue's protection domain, and completions go to its completion queue; the receive QP
//! has neither.
#![forbid(unsafe_code)]

use super::objects::adapter::Adapter;
use super::objects::connection::Link;
use super::objects::holder::PeerState;
use super::objects::qp::{Qp, Role, StandIn};
use super::objects::served_by::ServedBy;
use super::objects::xrc::{DomainId, OpenDomain, QpEvent, Xrc, XrcTask};
use super::opened::is_held;
use super::qp::Wanted;
use super::state::Kind;
use crate::remote::{Question, serve_guest};
use soft_local::shm::layout::{Life, QPS, qpn, split_qpn};
use soft_local::shm::slot::{Head, Op, halves, high, low};
use soft_local::shm::trust::Claim;
use soft_semantics::inbound::{Nak, Verdict};
use soft_sys::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl StandIn {
    /// Whether the QP serves its sender, as it did when we began to stand for it.
    pub(crate) fn serves(&self) -> bool {
        match self.home.peer_state(self.sender_qpn) {
            PeerState::Serving(generation) => generation == self.generation,
            PeerState::Silent => false,
            // What another host sends goes with the process that had it.
            PeerState::Dead => self.sender_qpn != FAR && self.outlives_home.load(Ordering::Acquire),
        }
    }

    /// Whether it will serve its sender again though it may not now: its port is down.
    pub(crate) fn stays(&self) -> bool {
        self.serves() || !self.home.peer.is_dead() && self.is_connected()
    }

    fn is_connected(&self) -> bool {
        self.home.connection(self.sender_qpn) == Some(self.generation)
    }

    /// Whether the QP goes on though a request for it was refused: its owner, who looks here for the error, has not heard of it.
    pub(super) fn awaits_refusal(&self) -> bool {
        !self.home.peer.is_dead() && self.is_connected()
    }
}

/// What others asked us to do and was not done yet: more than that is lost, as where a ring is full.
const HEARD_MOST: usize = 1 << 12;
/// QPs that stand for others' at most, so that enough of the table is left for the application.
const STAND_INS_MOST: usize = QPS / 2;
/// Questions that wait for a stand-in at most: each is as long as a packet.
const QUESTIONS_MOST: usize = 64;
/// As who sends to a QP whose other end is on another host is known in the fabric (`Qp::set_connected`).
pub(super) const FAR: u32 = 0;

impl Xrc {
    /// Whether whoever polls looks here, and at the wire where one of ours receives by it.
    #[inline]
    pub(crate) fn is_receiving(&self) -> bool {
        self.receiving.load(Ordering::Relaxed) > 0
    }

    /// Whether whoever polls looks for what other processes ask, too: requests of other hosts for queues of ours.
    #[inline]
    pub(crate) fn has_guests(&self) -> bool {
        self.has_remote_stand_ins.load(Ordering::Relaxed)
    }

    /// Who stands for QP `of` of another process, for requests of other hosts.
    pub(crate) fn guest(&self, of: u32) -> Option<Arc<Qp>> {
        self.remote_stand_ins.lock().get(&of).map(Arc::clone)
    }

    /// Has a question served once there is somebody to serve it; `false`: it comes with too many others.
    pub(crate) fn welcome(&self, adapter: &Adapter, question: Question, frame: &[u8]) -> bool {
        let mut tasks = self.tasks.lock();
        let waiting = tasks.iter().filter(|task| matches!(task, XrcTask::Serve { .. })).count();
        if waiting >= QUESTIONS_MOST || tasks.len() >= HEARD_MOST {
            return false;
        }
        tasks.push(XrcTask::Serve { question, frame: frame.into() });
        drop(tasks);
        adapter.fabric.wake_self();
        true
    }

    /// Serves a question by a stand-in that is made for it, unless it is there by now.
    fn receive_guest(&self, adapter: &Arc<Adapter>, question: &Question, frame: &[u8]) {
        let number = self.stand(adapter, question.of, FAR);
        let there = number.and_then(|number| adapter.qp(split_qpn(number).1));
        let there = match &there {
            Some(guest) if guest.is_guest(question.generation) => Ok(&**guest),
            // Of a connection that is no more.
            Some(_) => return,
            None if self.stand_ins.lock().len() >= STAND_INS_MOST => Err(Verdict::NotReady),
            None => Err(Verdict::Refuse(Nak::InvalidRd)),
        };
        serve_guest(adapter, there, question, frame, ServedBy::Library);
    }

    /// By whoever polls: serves what arrived.
    pub(crate) fn look(&self, who: ServedBy) {
        if let Some(hot) = self.hot.try_lock() {
            hot.look(who);
        }
    }

    /// A QP receives by the wire between hosts, or (`more` is false) does not any more.
    pub(crate) fn count_remote(&self, more: bool) {
        if more {
            self.receiving.fetch_add(1, Ordering::Relaxed);
        } else {
            self.receiving.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// By the service thread, or before sleeping: also sends the acknowledgements that are due.
    pub(crate) fn sweep(&self, who: ServedBy) -> bool {
        if !self.is_receiving() {
            return false;
        }
        let hot = self.hot.lock();
        hot.look(who);
        hot.finish(who)
    }

    /// The bell of an XRC receive QP rang.
    pub(crate) fn heat(&self, adapter: &Adapter, qp: &Arc<Qp>, who: ServedBy) {
        if let Some(mut hot) = self.hot.try_lock() {
            hot.heat(adapter, qp, who);
        }
    }

    /// A QP can receive from now on.
    pub(crate) fn add_receiver(&self, adapter: &Adapter, qp: &Arc<Qp>) {
        if !qp.is_listed_receiver() {
            self.receiving.fetch_add(1, Ordering::Relaxed);
        }
        self.hot.lock().add(adapter, qp);
    }

    /// A QP is reset or destroyed: forget it.
    pub(crate) fn remove(&self, qp: &Qp) {
        if qp.is_listed_receiver() {
            self.receiving.fetch_sub(1, Ordering::Relaxed);
        }
        self.hot.lock().remove(qp);
    }

    /// A completion queue is armed for the first time.
    pub(super) fn await_events(&self) {
        self.senders.await_events();
    }

    /// A QP that sends is connected to one of process `slot`.
    pub(crate) fn add_sender(&self, qp: &Qp, slot: u16) {
        self.senders.add(slot, qp);
    }

    /// Whether `qp` may wait for process `slot` to answer: one that only sends has no receiver that would know.
    pub(crate) fn sends_to(&self, qp: &Qp, slot: u16) -> bool {
        qp.kind == Kind::XrcSend && self.senders.sends_to(slot, qp)
    }

    /// Asks process `slot` to stand for QP `of`, to which our QP `by` sends. `stand_in` tells the answer.
    pub(super) fn ask(&self, adapter: &Adapter, slot: u16, of: u32, by: u32) {
        self.stand_in_replies.lock().entry((slot, by)).or_default();
        adapter.datagrams.tell(adapter, slot, Op::XrcAsk, by, u64::from(of));
    }

    /// Our QP `by` waits for no answers.
    pub(super) fn forget_questions(&self, by: u32) {
        self.stand_in_replies.lock().retain(|(_, asker), _| *asker != by);
    }

    /// Who stands for QP `of` in process `slot`, to receive from our QP `by`.
    pub(super) fn stand_in(
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

    /// A QP of ours, `by`, that stands for `of` refused a request.
    pub(super) fn refused(&self, adapter: &Adapter, by: u32, of: u32, event: u32) {
        self.put_task(adapter, XrcTask::ReportEvent { slot: split_qpn(of).0, by, of, event });
    }

    pub(super) fn put_task(&self, adapter: &Adapter, task: XrcTask) {
        self.tasks.lock().push(task);
        adapter.fabric.wake_self();
    }

    /// Somebody has something to say in the ring of process `slot`; `false`: it makes no sense, or comes with too much else. Anybody may
    /// have written there, so that what is said is checked against tables before it counts.
    pub(super) fn hear(&self, adapter: &Adapter, slot: u16, head: &Head, word: Claim<u64>) -> bool {
        // Numbers of QPs, and of an event: each is looked at below, or before its task is done.
        let word = word.as_said();
        let (by, of) = (head.src_qpn, low(word));
        let task = match head.op {
            Op::XrcAsk if split_qpn(by).0 == slot => XrcTask::MakeStandIn { slot, of, by },
            Op::XrcAnswer if split_qpn(of).0 == slot => {
                if let Some(answer) = self.stand_in_replies.lock().get_mut(&(slot, high(word))) {
                    *answer = Some(of);
                    adapter.fabric.wake_self();
                    return true;
                }
                return false;
            }
            Op::XrcBroke if split_qpn(by).0 == slot => match QpEvent::from_raw(high(word)) {
                Some(event) => XrcTask::EventReported { by, of, event },
                None => return false,
            },
            _ => return false,
        };
        let mut tasks = self.tasks.lock();
        if tasks.len() >= HEARD_MOST {
            return false;
        }
        tasks.push(task);
        drop(tasks);
        adapter.fabric.wake_self();
        true
    }

    /// QP `of` of another process is said to have had an `event`, of which those are told who have it open here.
    fn heard(&self, adapter: &Adapter, of: u32, event: QpEvent) {
        let Some(home) = self.home_of(adapter, of) else { return };
        let life = Life::unpack(home.entry().life.load(Ordering::Acquire));
        if event.breaks() != life.is_connected_to(life.dest_qpn) {
            self.report(of, event.0);
        }
    }

    /// Our QP `of` shall fail, since QP `by` refused a request in its place: if `by` stands for it, and its owner's tables say that it
    /// is in error.
    fn fail_as(&self, adapter: &Adapter, by: u32, of: u32, event: QpEvent) {
        let (_, index) = split_qpn(of);
        let is_it = |qp: &Arc<Qp>| qp.qpn == of && matches!(qp.role, Role::Receiver(_));
        let Some(qp) = adapter.qp(index).filter(is_it) else { return };
        if !event.breaks() {
            return;
        }
        let Some((stand_in, _)) = adapter.link(by) else { return };
        let entry = stand_in.entry();
        let life = Life::unpack(entry.life.load(Ordering::Acquire));
        let served = Life::unpack(qp.entry().life.load(Ordering::Acquire)).dest_qpn;
        let stood = life.state == Life::ERR
            && life.kind == Kind::XrcRecv as u8
            && life.dest_qpn == served
            && entry.stands_for.load(Ordering::Relaxed) == of;
        if stood && qp.fail() {
            qp.event(event.0);
            qp.flush_all();
        }
    }

    /// The service thread's part.
    pub(crate) fn work(&self, adapter: &Arc<Adapter>) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            match task {
                XrcTask::MakeStandIn { slot, of, by } => {
                    if let Some(number) = self.stand(adapter, of, by) {
                        let word = halves(number, by);
                        adapter.datagrams.tell(adapter, slot, Op::XrcAnswer, of, word);
                    }
                }
                XrcTask::ReportEvent { slot, by, of, event } => {
                    let word = halves(of, event);
                    adapter.datagrams.tell(adapter, slot, Op::XrcBroke, by, word);
                }
                XrcTask::Serve { question, frame } => {
                    self.receive_guest(adapter, &question, &frame)
                }
                XrcTask::EventReported { by, of, event } => {
                    if split_qpn(of).0 == adapter.fabric.slot() {
                        self.fail_as(adapter, by, of, event);
                    } else if by == of {
                        self.heard(adapter, of, event);
                    }
                }
            }
        }
        self.end_orphans();
        let mut stand_ins = self.stand_ins.lock();
        stand_ins.retain(|qp| {
            if let Some(stand) = qp.stand()
                && stand.home.peer.is_dead()
            {
                stand.outlives_home.store(
                    stand.is_connected() && is_held(adapter, &stand.home),
                    Ordering::Release,
                );
            }
            let needed = qp.is_stand_in_needed() || qp.is_refusal_awaited();
            if !needed {
                self.dismiss(qp);
                qp.retire();
            }
            needed
        });
    }

    /// Nobody is to be served by `qp` any more.
    fn dismiss(&self, qp: &Arc<Qp>) {
        let mut guests = self.remote_stand_ins.lock();
        guests.retain(|_, guest| !Arc::ptr_eq(guest, qp));
        self.has_remote_stand_ins.store(!guests.is_empty(), Ordering::Relaxed);
    }

    /// Begins to stand for QP `of` where `by` sends, or goes on with it; returns our number for that.
    fn stand(&self, adapter: &Arc<Adapter>, of: u32, by: u32) -> Option<u32> {
        let mut stand_ins = self.stand_ins.lock();
        let known = stand_ins.iter().find(|qp| {
            qp.qpn == of
                && qp.is_stand_in_needed()
                && qp.stand().is_some_and(|stand| stand.sender_qpn == by)
        });
        if let Some(qp) = known {
            return Some(qpn(adapter.fabric.slot(), qp.index));
        }
        if stand_ins.len() >= STAND_INS_MOST {
            return None;
        }
        let home = adapter.link(of).map(|(link, _)| link);
        let home = home.filter(|link| link.connection(by).is_some());
        // A home that died is known where the QP is open.
        let home = home.or_else(|| self.home_of(adapter, of))?;
        let is_far = by == FAR;
        let sender = if is_far { None } else { Some(adapter.link(by)?.1) };
        let generation = home.connection(by)?;
        let held = home.peer.is_dead();
        let kind = Life::unpack(home.entry().life.load(Ordering::Acquire)).kind;
        let sends = sender.as_ref().map_or(!held, |sender| sender.may_send(of));
        if kind != Kind::XrcRecv as u8 || home.peer.is_self || !sends {
            return None;
        }
        let domain = DomainId::load(&home.entry().domain);
        let srq = adapter.srq_of(domain)?;
        let min_rnr_timer = home.entry().min_rnr_timer.load(Ordering::Relaxed);
        let stand = StandIn {
            home,
            domain,
            sender_qpn: by,
            generation,
            outlives_home: AtomicBool::new(held),
        };
        let wanted = Wanted::receiver(Role::StandIn(stand), srq.report.clone());
        let qp = Qp::new(adapter, wanted).ok()?;
        qp.responder.lock().min_rnr_timer = min_rnr_timer;
        qp.connect_receiver(sender, by);
        if is_far {
            self.remote_stand_ins.lock().insert(of, Arc::clone(&qp));
            self.has_remote_stand_ins.store(true, Ordering::Relaxed);
        }
        let number = qpn(adapter.fabric.slot(), qp.index);
        stand_ins.push(qp);
        Some(number)
    }

    /// Opens a domain: that of the file `fd`, or a new one of this process alone.
    ///
    /// # Errors
    /// `EAGAIN` nobody has it open and `create` does not ask for it; `EINVAL` somebody has and `exclusive` asks for a new
    /// one; `EBADF` no open file.
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
            // No file has this device number: they have 32 bits.
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
        adapter.fabric.take_mark(id.mark(), exists)?;
        match known {
            Some(known) => known.count += 1,
            None => {
                domains.insert(id, OpenDomain { count: 1, file: Some(file) });
            }
        }
        Ok(id)
    }

    /// Undoes `open_domain` once.
    pub(crate) fn close_domain(&self, adapter: &Adapter, id: DomainId) {
        let mut domains = self.domains.lock();
        let Some(open) = domains.get_mut(&id) else { return };
        open.count -= 1;
        if open.count == 0 {
            if open.file.is_some() {
                adapter.fabric.drop_mark(id.mark());
            }
            domains.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_neighbouring_files_differ_and_leave_the_slots_alone() {
        let mut seen = std::collections::HashSet::new();
        for device in 0..20 {
            for inode in 0..500 {
                let mark = DomainId { device, inode }.mark();
                assert!(mark > u64::from(u32::MAX) && i64::try_from(mark).is_ok());
                assert!(seen.insert(mark));
            }
        }
    }
}
