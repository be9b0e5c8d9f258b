//! Changes of the state of a QP, and what peers read of state and incarnation. `failing` and
//! `departing` change the state after errors and at the end, `ops/qp` by ibv_modify_qp(3).
//!
//! The state changes under `QpLife::incarnation`, and is published to peers before the unlock.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::life::to_shared;
use crate::engine::queues::qp::{Incarnation, Qp};
use crate::engine::xrc::stand_ins::OTHER_HOST;
use crate::probes;
use soft_local::shm::layout::Life;
use soft_semantics::state::{QpState, QpType};
use std::sync::atomic::Ordering;

impl Qp {
    /// Changes the state and publishes it to the peers.
    pub(crate) fn set_state(&self, state: QpState) {
        self.change_state(|_, _| Some(state));
    }

    /// Begins a connection: a new incarnation in RTR, with `dest_qpn` (0 for UD) as remote QP.
    pub(crate) fn set_connected(&self, dest_qpn: u32) {
        self.change_state(|_, incarnation| {
            incarnation.generation = incarnation.generation.wrapping_add(1);
            incarnation.dest_qpn = dest_qpn;
            Some(QpState::Rtr)
        });
    }

    /// Changes the state by `rule`, which gets the present state. Returns whether the state
    /// changed.
    pub(in crate::engine) fn change_state(
        &self,
        rule: impl FnOnce(QpState, &mut Incarnation) -> Option<QpState>,
    ) -> bool {
        self.change_state_after(rule, || ())
    }

    /// As [`Self::change_state`]. If the state changes, `first` is called after the local store and
    /// before the life is published to peers.
    pub(in crate::engine) fn change_state_after(
        &self,
        rule: impl FnOnce(QpState, &mut Incarnation) -> Option<QpState>,
        first: impl FnOnce(),
    ) -> bool {
        let mut incarnation = self.life.incarnation.lock();
        let before = self.is_receiving();
        let Some(state) = rule(self.state(), &mut incarnation) else { return false };
        self.life.state.store(state as u8, Ordering::Release);
        first();
        self.publish_life(&incarnation, to_shared(state, self.adapter().port.is_down()));
        let dest_qpn = incarnation.dest_qpn;
        drop(incarnation);
        probes::qp_state(self.qpn(), state as u8, dest_qpn);
        if before && !self.is_receiving() && self.qp_type().is_connected() {
            // Requests of the remote QP are not acknowledged from now on; its timeout must begin.
            self.adapter().wake_owner_of(dest_qpn);
            if self.qp_type() == QpType::XrcRecv
                && dest_qpn == OTHER_HOST
                && self.as_stand_in().is_none()
            {
                // Stand-ins for this QP are unknown here. They return the receives that they took.
                self.adapter().fabric.for_each_peer(|peer| peer.kick());
            }
        }
        true
    }

    /// Publishes to peers that the port went down or up.
    pub(crate) fn publish_port_state(&self) {
        let incarnation = self.life.incarnation.lock();
        if !self.is_receiving() {
            return;
        }
        let down = self.adapter().port.is_down();
        self.publish_life(&incarnation, to_shared(self.state(), down));
        let dest_qpn = incarnation.dest_qpn;
        drop(incarnation);
        if down && self.qp_type().is_connected() {
            // As for a QP that stops receiving.
            self.adapter().wake_owner_of(dest_qpn);
        }
    }

    pub(in crate::engine) fn publish_life(&self, incarnation: &Incarnation, state: u8) {
        let life = Life {
            state,
            qp_type: self.qp_type() as u8,
            generation: incarnation.generation,
            dest_qpn: incarnation.dest_qpn,
        };
        // Release pairs with the Acquire loads in `Link`: a peer that reads the life also reads
        // ring base and rights of this incarnation.
        self.entry().packed_life.store(life.pack(), Ordering::Release);
    }
}
