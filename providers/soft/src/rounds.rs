//! The rounds of the service thread: what a process does without a call of the application. The
//! fabric calls [`Rounds`]; nothing else calls this file, except threads that an alarm woke
//! (`Adapter::answer_peers`).
//!
//! Threads: the service thread by `on_wake`, `on_peer_joined` and `on_peer_death`. A thread woken
//! by an alarm by `answer_peers`. No lock is held while a QP is served.
#![forbid(unsafe_code)]

use crate::attention::Sweep;
use crate::engine::adapter::Adapter;
use crate::engine::keys::access::AtomicLock;
use crate::engine::queues::cq::Cq;
use crate::engine::queues::cq::hot::serve_cold;
use crate::engine::queues::served_by::ServedBy;
use crate::engine::ring::helping_state::Helping;
use crate::engine::ring::holder::PeerState;
use soft_local::fabric::{Handler, Peer};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Time between the death of a peer and the flush of the receives of its connections. An
/// application that still takes its last completions gets them without flush errors.
const FLUSH_DELAY: Duration = Duration::from_millis(500);

/// Interval of looks at a stalled connection or a lent chunk while no thread polls.
const RECHECK: Duration = Duration::from_millis(10);

/// The handler given to the fabric, which exists before the adapter.
#[derive(Debug, Default)]
pub(crate) struct Rounds(OnceLock<Weak<Adapter>>);

impl Rounds {
    /// Begins to serve `adapter`.
    pub(crate) fn begin(&self, adapter: &Arc<Adapter>) {
        let _ = self.0.set(Arc::downgrade(adapter));
    }
}

impl Adapter {
    /// Serves the QPs whose arrival flags are set, and the datagram rings: all work for a thread
    /// woken while attention is up.
    pub(crate) fn answer_peers(&self) {
        self.view.take_qp_arrivals(|index| {
            if let Some(qp) = self.registry.qp(index) {
                serve_cold(self, &qp, ServedBy::Library);
            }
        });
        // XRC receive QPs have no CQ, and messages of the library arrive in datagram rings.
        let left = self.xrc.sweep(ServedBy::Library);
        self.datagrams.serve_woken(self);
        if left {
            self.fabric.wake_self();
        }
    }

    /// Sweeps CQs for arrivals without an arrival flag: all CQs, or the next few.
    fn sweep(&self, which: Sweep) {
        match which {
            Sweep::All => self.registry.each_cq(|cq| cq.sweep(ServedBy::Library)),
            Sweep::NextFew => {
                self.registry.next_cqs().iter().for_each(|cq| cq.sweep(ServedBy::Library))
            }
        }
    }

    /// Sends delayed events. Returns the time until the next one.
    fn send_delayed_events(&self) -> Option<Duration> {
        if !self.service.has_moderated() {
            return None;
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        self.registry.each_cq(|cq| next = next.into_iter().chain(cq.send_delayed_event(now)).min());
        next.map(|at| at.saturating_duration_since(now))
    }

    /// Drives the watched QPs. Returns the time until the next look.
    fn watch_round(&self) -> Option<Duration> {
        let watched = self.service.take_watched();
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for weak in watched {
            let Some(qp) = weak.upgrade() else { continue };
            qp.serve_once(ServedBy::Library);
            qp.send_due_ack();
            qp.advance_send();
            // Cleared only now: otherwise a QP that still waits would wake the service thread at
            // once. A thread that watched the QP before this point changed its state under a lock
            // read below.
            qp.list_marks().end_watch();
            let (waits, held_up) = {
                let responder = qp.responder().lock();
                (responder.deadline(), responder.recheck() && qp.is_receiving())
            };
            let (stalled, due) = {
                let requester = qp.requester().lock();
                (requester.recheck() || held_up, requester.fault_delay_end())
            };
            if waits.is_none() && !stalled {
                continue;
            }
            let waits = [waits, due].into_iter().flatten().min();
            let at = waits.map_or(now + RECHECK, |at| at.min(now + RECHECK));
            next = Some(next.map_or(at, |n| n.min(at)));
            self.service.watch_again(&qp);
        }
        next.map(|at| at.saturating_duration_since(now).max(Duration::from_micros(50)))
    }

    fn flush_cut_connections(&self) -> Option<Duration> {
        if self.port.is_down() {
            // No peer is heard while the port is down. The service thread looks here when it comes
            // up.
            return None;
        }
        let now = Instant::now();
        let (due, next) = self.service.take_due_flushes(now);
        for qp in due {
            // Unless the QP was taken down or connected again meanwhile.
            let still = qp.responder().lock().link.as_ref().is_some_and(|l| l.was_cut(qp.qpn()));
            if still {
                qp.enter_error();
            }
        }
        next.map(|at| at.saturating_duration_since(now))
    }

    /// Takes back the chunks of destroyed QPs that no peer can use any more.
    fn release_pending(&self) -> Option<Duration> {
        let is_left = self.service.release_pending(|b| {
            let gone = !matches!(b.link.peer_state(b.own_qpn), PeerState::Serving(_));
            let acked = b.link.ring.claimed_progress().unchecked();
            while let Some(lent) = b.lent.front()
                && (gone || acked.wrapping_sub(lent.seq) as i32 > 0)
            {
                self.chunks.give(lent.chunk);
                b.lent.pop_front();
            }
        });
        is_left.then_some(RECHECK * 10)
    }

    fn fail_qps_of_overrun_cqs(&self) {
        for cq in self.service.take_overrun_cqs() {
            for qp in self.registry.all_qps() {
                let uses = |own: &Cq| own.key() == cq;
                if qp.pair().is_some_and(|pair| uses(&pair.send_cq) || uses(&pair.recv_cq)) {
                    qp.event(abi::IBV_EVENT_QP_FATAL);
                    qp.enter_error();
                }
            }
            for srq in self.registry.all_srqs() {
                if srq.cq.as_ref().is_some_and(|own| own.key() == cq) {
                    srq.event(abi::IBV_EVENT_SRQ_ERR);
                }
            }
            for wq in self.registry.all_wqs().iter().filter(|wq| wq.cq.key() == cq) {
                wq.fail();
            }
        }
    }

    fn retry_events(&self) -> Option<Duration> {
        let mut left = false;
        self.service.each_channel(|channel| left |= channel.retry());
        // Each event read by the application makes room and sends a queued one.
        left.then_some(RECHECK * 10)
    }
}

impl Handler for Rounds {
    fn on_wake(&self) -> Option<Duration> {
        let adapter = self.0.get()?.upgrade()?;
        #[cfg(test)]
        adapter.service.count_round();
        adapter.attention.catch_up(|which| adapter.sweep(which));
        adapter.answer_peers();
        adapter.xrc.run_tasks(&adapter);
        adapter.fail_qps_of_overrun_cqs();
        Helping::start_helper_if_called(&adapter);
        adapter.look_at_interfaces();
        let waits = [
            adapter.follow_orders(),
            adapter.send_delayed_events(),
            adapter.watch_round(),
            adapter.flush_cut_connections(),
            adapter.release_pending(),
            adapter.retry_events(),
            adapter.attention.sweep_and_sleep_time(|which| adapter.sweep(which)),
            adapter.datagrams.take_has_waiting().then_some(RECHECK),
            adapter.datagrams.meet_late(&adapter),
            adapter.serve_wire(),
        ];
        waits.into_iter().flatten().min()
    }

    fn on_peer_joined(&self, peer: &Arc<Peer>) {
        if let Some(adapter) = self.0.get().and_then(Weak::upgrade) {
            adapter.datagrams.add_peer(peer, &adapter.view);
        }
    }

    fn on_peer_death(&self, peer: &Arc<Peer>) {
        let Some(adapter) = self.0.get().and_then(Weak::upgrade) else { return };
        AtomicLock::recover(&adapter.view.rings_head().atomic_lock, peer.slot);
        adapter.datagrams.remove_peer(&adapter, peer);
        adapter.xrc.forget_opener(&adapter, peer.slot, peer.identity());
        adapter.xrc.run_tasks(&adapter);
        let at = Instant::now() + FLUSH_DELAY;
        for qp in adapter.registry.all_qps() {
            let concerned = {
                let responder = qp.responder().lock();
                responder.link.as_ref().is_some_and(|l| Arc::ptr_eq(l.peer(), peer))
            };
            if concerned || adapter.xrc.sends_to(&qp, peer.slot) {
                // Messages published before the death still count.
                qp.serve_once(ServedBy::Library);
                qp.send_due_ack();
                qp.advance_send();
                adapter.service.flush_at(at, &qp);
            }
        }
    }
}
