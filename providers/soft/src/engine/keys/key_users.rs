//! Waits until no thread moves bytes by a revoked key. Deregistration and unbinding come here
//! before the memory is given up.
//!
//! The wait has no limit: a process stopped within an operation continues the operation later, so
//! only the end of the operation or of the process ends the wait. A long wait sleeps between looks,
//! and reports the process once.

use crate::engine::adapter::Adapter;
use crate::engine::keys::in_flight::is_in_flight;
use crate::engine::keys::windows::BindResult;
use crate::engine::queues::qp::Qp;
use soft_local::fabric::Peer;
use soft_local::shm::view::look_at;
use soft_semantics::state::QpType;
use soft_semantics::windows::Bind;
use soft_sys::notice;
use std::fmt::Display;
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

/// Looks without sleep; most operations end before.
const LOOKS: u32 = 100;
/// First and longest sleep between two looks.
const FIRST_SLEEP: Duration = Duration::from_micros(50);
const MAX_SLEEP: Duration = Duration::from_millis(20);
/// Time after which the wait is reported.
const REPORT_AFTER: Duration = Duration::from_secs(2);

/// A wait for an event without notification.
#[derive(Debug, Default)]
struct Backoff {
    looks: u32,
    sleep_time: Duration,
    /// Start of the sleeps; None after the report.
    sleep_start: Option<Instant>,
}

impl Backoff {
    /// Waits before the next look, longer each time. Returns true once, when the wait has become
    /// long.
    fn pause(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        if self.looks < LOOKS {
            yield_now();
            return false;
        }
        if self.looks == LOOKS {
            (self.sleep_time, self.sleep_start) = (FIRST_SLEEP, Some(Instant::now()));
        }
        sleep(self.sleep_time);
        self.sleep_time = (self.sleep_time * 2).min(MAX_SLEEP);
        let long = self.sleep_start.is_some_and(|since| since.elapsed() >= REPORT_AFTER);
        if long {
            self.sleep_start = None;
        }
        long
    }
}

impl Adapter {
    /// Waits until no thread moves bytes by the revoked local key `rkey`. `what` names the object
    /// in a report.
    pub(crate) fn await_in_flight(&self, rkey: u32, what: &dyn Display) {
        let own = self.fabric.slot();
        let mut wait = Backoff::default();
        while is_in_flight(&self.view, own, rkey) {
            if wait.pause() {
                notice!(
                    "{what}: waits for another thread of this process, which is in the middle of an operation by rkey 0x{rkey:x}"
                );
            }
        }
        self.fabric.for_each_peer(|peer| {
            let mut wait = Backoff::default();
            while peer_uses_key(peer, own, rkey) {
                if wait.pause() {
                    notice!(
                        "{what}: waits for process {}, which is in the middle of an operation by rkey 0x{rkey:x}; is it stopped?",
                        peer.pid
                    );
                }
            }
        });
    }

    /// Whether a one-sided operation by the local key `rkey` is in progress.
    pub(crate) fn is_key_in_use(&self, rkey: u32) -> bool {
        let own = self.fabric.slot();
        let mut moved = is_in_flight(&self.view, own, rkey);
        self.fabric.for_each_peer(|peer| moved |= peer_uses_key(peer, own, rkey));
        moved
    }

    /// Waits until no thread moves bytes of a region with revoked keys: peers with announced
    /// operations, and local QPs of its protection domain. `what` names the object in a report.
    pub(crate) fn quiesce(&self, pd: u32, rkey: u32, what: &str) {
        self.await_in_flight(rkey, &what);
        if self.registry.work_queues().has_any() {
            self.datagrams.wait_for_deliveries();
        }
        let concerned =
            |qp: &Qp| qp.pd() == pd || qp.receive_pd() == pd || qp.qp_type() == QpType::XrcRecv;
        for qp in self.registry.busy_qps(concerned) {
            drop(qp.responder().lock());
            drop(qp.requester().lock());
        }
    }

    /// Waits until no message is being delivered to a retired shared receive queue of an XRC
    /// domain.
    pub(crate) fn quiesce_xrc(&self) {
        for qp in self.registry.all_qps() {
            if qp.qp_type() == QpType::XrcRecv {
                drop(qp.responder().lock());
            }
        }
    }

    /// Binds a memory window. Returns `Later` while operations by its old key are in flight.
    pub(crate) fn bind(&self, qp: &Qp, bind: &Bind) -> BindResult {
        retry_briefly(|| {
            self.windows.bind(qp.qpn(), qp.pd(), bind, |rkey| self.is_key_in_use(rkey))
        })
    }

    /// Revokes the key of a window bound to `qp`. Returns `Later` while operations by it are in
    /// flight.
    pub(crate) fn invalidate(&self, qp: &Qp, rkey: u32) -> BindResult {
        retry_briefly(|| {
            self.windows.invalidate(qp.qpn(), qp.pd(), rkey, |rkey| self.is_key_in_use(rkey))
        })
    }

    /// Frees window `index`.
    pub(crate) fn free_window(&self, index: usize) {
        let rkey = self.windows.revoke(index);
        self.await_in_flight(rkey, &"ibv_dealloc_mw");
        self.windows.release(index);
    }

    /// Unbinds the windows of a QP that ends.
    pub(crate) fn unbind_all(&self, qpn: u32) {
        for index in self.windows.bound_to(qpn) {
            let rkey = self.windows.revoke(index);
            self.await_in_flight(rkey, &format_args!("QP 0x{qpn:x} ends"));
            self.windows.unbind(index);
        }
    }
}

/// Tries for about the time of one transfer; the caller continues with other work afterwards.
fn retry_briefly(mut attempt: impl FnMut() -> BindResult) -> BindResult {
    for _ in 0..1000 {
        match attempt() {
            BindResult::Later => yield_now(),
            done => return done,
        }
    }
    BindResult::Later
}

/// Whether a living peer has a one-sided operation by the key `rkey` of process `target` in
/// progress.
fn peer_uses_key(peer: &Peer, target: u16, rkey: u32) -> bool {
    !peer.is_dead() && look_at(peer, |view| is_in_flight(view, target, rkey))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_sleeps_longer_each_time_and_is_reported_once() {
        let mut wait = Backoff::default();
        while wait.looks < LOOKS {
            assert!(!wait.pause(), "nothing is said of short ones");
        }
        assert!(wait.sleep_time > FIRST_SLEEP);
        wait.sleep_time = MAX_SLEEP;
        wait.sleep_start = wait.sleep_start.and_then(|since| since.checked_sub(REPORT_AFTER));
        assert!(wait.pause());
        assert!(!wait.pause() && wait.sleep_time == MAX_SLEEP);
    }
}
