//! The tasks of the service thread for XRC: makes stand-ins, serves requests of other hosts that
//! waited for one, and reports events. `xrc` queues the tasks.
#![forbid(unsafe_code)]

use crate::engine::adapter::Adapter;
use crate::engine::host_qp::answer_srq_request;
use crate::engine::queues::qp::creating::QpParameters;
use crate::engine::queues::qp::{Qp, Role, StandIn};
use crate::engine::queues::served_by::ServedBy;
use crate::engine::xrc::opened::has_living_opener;
use crate::engine::xrc::stand_ins::{MAX_STAND_INS, OTHER_HOST};
use crate::engine::xrc::{DomainId, Xrc, XrcTask};
use crate::host::xrc_messages::SrqRequest;
use soft_local::shm::layout::{Life, qpn, split_qpn};
use soft_local::shm::slot::{Op, halves};
use soft_semantics::inbound::{Nak, Verdict};
use soft_semantics::state::QpType;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Xrc {
    /// Serves a queued request by a stand-in, which is made if needed.
    fn serve_queued(&self, adapter: &Arc<Adapter>, question: &SrqRequest, frame: &[u8]) {
        let number = self.make_stand_in(adapter, question.receiver_qpn, OTHER_HOST);
        let there = number.and_then(|number| adapter.registry.qp(split_qpn(number).1));
        let there = match &there {
            Some(guest) if guest.serves_incarnation(question.generation) => Ok(&**guest),
            // The request belongs to an earlier connection.
            Some(_) => return,
            None if self.stand_ins.lock().len() >= MAX_STAND_INS => Err(Verdict::NotReady),
            None => Err(Verdict::Refuse(Nak::InvalidRd)),
        };
        answer_srq_request(adapter, there, question, frame, ServedBy::Library);
    }

    /// Executes the tasks of the service thread.
    pub(crate) fn run_tasks(&self, adapter: &Arc<Adapter>) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            match task {
                XrcTask::MakeStandIn { slot, receiver_qpn: of, sender_qpn: by } => {
                    if let Some(number) = self.make_stand_in(adapter, of, by) {
                        let word = halves(number, by);
                        adapter.datagrams.send_message(adapter, slot, Op::XrcAnswer, of, word);
                    }
                }
                XrcTask::ReportEvent { slot, sender_qpn: by, receiver_qpn: of, event } => {
                    let word = halves(of, event);
                    adapter.datagrams.send_message(adapter, slot, Op::XrcBroke, by, word);
                }
                XrcTask::ServeRequest { question, frame } => {
                    self.serve_queued(adapter, &question, &frame)
                }
                XrcTask::EventReported { sender_qpn: by, receiver_qpn: of, event } => {
                    if split_qpn(of).0 == adapter.fabric.slot() {
                        self.fail_refused(adapter, by, of, event);
                    } else if by == of {
                        self.handle_event(adapter, of, event);
                    }
                }
            }
        }
        self.end_orphans();
        let mut stand_ins = self.stand_ins.lock();
        stand_ins.retain(|qp| {
            if let Some(stand) = qp.as_stand_in()
                && stand.home.peer().is_dead()
            {
                stand.outlives_home.store(
                    stand.has_connection() && has_living_opener(adapter, &stand.home),
                    Ordering::Release,
                );
            }
            let needed = qp.is_stand_in_needed() || qp.is_refusal_awaited();
            if !needed {
                self.remove_remote(qp);
                qp.retire();
            }
            needed
        });
    }

    /// Removes `qp` from the stand-ins for other hosts.
    fn remove_remote(&self, qp: &Arc<Qp>) {
        let mut guests = self.remote_stand_ins.lock();
        guests.retain(|_, guest| !Arc::ptr_eq(guest, qp));
        self.has_remote_stand_ins.store(!guests.is_empty(), Ordering::Relaxed);
    }

    /// Makes a stand-in for QP `of` and sender `by`, or finds the present one. Returns its number.
    fn make_stand_in(&self, adapter: &Arc<Adapter>, of: u32, by: u32) -> Option<u32> {
        let mut stand_ins = self.stand_ins.lock();
        let known = stand_ins.iter().find(|qp| {
            qp.qpn() == of
                && qp.is_stand_in_needed()
                && qp.as_stand_in().is_some_and(|stand| stand.sender_qpn == by)
        });
        if let Some(qp) = known {
            return Some(qpn(adapter.fabric.slot(), qp.index()));
        }
        if stand_ins.len() >= MAX_STAND_INS {
            return None;
        }
        let home = adapter.link(of).map(|(link, _)| link);
        let home = home.filter(|link| link.connection(by).is_some());
        // If the home process died, this process may have the QP open.
        let home = home.or_else(|| self.home_of(adapter, of))?;
        let is_far = by == OTHER_HOST;
        let sender = if is_far { None } else { Some(adapter.link(by)?.1) };
        let generation = home.connection(by)?;
        let held = home.peer().is_dead();
        let kind = Life::unpack(home.entry().packed_life.load(Ordering::Acquire)).qp_type;
        let sends = sender.as_ref().map_or(!held, |sender| sender.may_send(of));
        if kind != QpType::XrcRecv as u8 || home.peer().is_self || !sends {
            return None;
        }
        let domain = DomainId::load(&home.entry().domain);
        let srq = adapter.registry.srq_of(domain)?;
        let min_rnr_timer = home.entry().min_rnr_timer.load(Ordering::Relaxed);
        let stand = StandIn {
            home,
            domain,
            sender_qpn: by,
            generation,
            outlives_home: AtomicBool::new(held),
        };
        let wanted = QpParameters::receiver(Role::StandIn(stand), srq.report.clone());
        let qp = Qp::new(adapter, wanted).ok()?;
        qp.responder().lock().min_rnr_timer = min_rnr_timer;
        qp.connect_receiver(sender, by);
        if is_far {
            self.remote_stand_ins.lock().insert(of, Arc::clone(&qp));
            self.has_remote_stand_ins.store(true, Ordering::Relaxed);
        }
        let number = qpn(adapter.fabric.slot(), qp.index());
        stand_ins.push(qp);
        Some(number)
    }
}
