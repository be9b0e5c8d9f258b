//! Attacks through the attacker's own segments. They write its tables, its jobs and the words of
//! its rings that peers read. `Attacker::run_action` calls these functions with a victim.

use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::{Attacker, Victim};
use abi::{IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE};
use soft_local::shm::layout::*;
use soft_local::shm::protocol;

impl Attacker {
    /// Publishes invalid or plausible values.
    pub(super) fn change_own_tables(&mut self, victim: &Victim) {
        let view = self.view.clone();
        let head = view.tables_head();
        let extreme = self.random.extreme();
        match self.random.below(12) {
            0 => head.attention.store(self.random.below(5) as u32, Release),
            1 => head.needs_fence.store(self.random.below(2) as u32, Release),
            2 => drop(head.polls.0.fetch_add(extreme as u32, Release)),
            3 => head.datagrams_wait.store(self.random.below(2) as u32, Release),
            4..7 => self.change_qp(victim),
            7..9 => self.publish_region(victim),
            9 => {
                // No other process uses this group, because a sender to a group waits for all
                // members.
                head.groups.store(extreme as u32, Release);
                let group = self.view.group(self.random.below(8));
                group.gid[0].store(self.random.next() | 0xff, Relaxed);
                group.gid[1].store(self.random.next(), Relaxed);
                group.members.store(extreme, Release);
            }
            10 => {
                let at = self.random.below(8);
                let srq = view.srq(at);
                let theirs = &victim.view.qp(self.some_index(victim)).domain;
                for (to, from) in srq.domain.iter().zip(theirs.iter()) {
                    to.store(from.load(Relaxed), Relaxed);
                }
                srq.packed_life.store(extreme, Release);
                let pd = view.pd(at);
                pd.number.store(self.random.extreme(), Release);
                pd.origin.store(self.random.extreme(), Release);
                // Not a domain of the victim: a domain imported by another process cannot be
                // deallocated.
                self.view.borrowed(at).store(extreme | 1 << 63, Release);
            }
            _ => {
                if let Some(sleepers) = self.view.sleepers(1 + self.random.below(8) as u16) {
                    sleepers.store(extreme as u32, Release);
                }
                self.announce(victim);
            }
        }
    }

    /// Changes words of a QP that is connected to a QP of the victim.
    fn change_qp(&mut self, victim: &Victim) {
        let target = self.random.of(&victim.connected_to_us);
        let index = target
            .map_or(self.random.below(64), |target| split_qpn(target.published_life.dest_qpn).1);
        let view = self.view.clone();
        let entry = view.qp(index);
        let extreme = self.random.extreme();
        let to = target.map_or(extreme as u32, |target| victim.qpn(target.index));
        match self.random.below(12) {
            0 => {
                let state = self.random.below(14) as u8;
                let kind = self.random.below(12) as u8;
                let generation = self.random.next() as u16;
                let life = Life { state, qp_type: kind, generation, dest_qpn: to };
                entry.packed_life.store(life.pack(), Release);
            }
            1 => entry.rights.store(extreme, Release),
            2 => entry.rnr_retry.store(extreme as u8, Release),
            3 => entry.min_rnr_timer.store(extreme as u8, Release),
            4 => {
                let theirs = &victim.view.qp(self.some_index(victim)).domain;
                for (to, from) in entry.domain.iter().zip(theirs.iter()) {
                    to.store(from.load(Relaxed), Relaxed);
                }
            }
            5 => entry.rq_psn.store(extreme as u32, Release),
            6 => entry.closing.store(self.random.below(4) as u8, Release),
            7 => entry.stands_for.store(to, Release),
            8 => entry.recv_channel.store(extreme as u16, Release),
            9 => entry.send_channel.store(extreme as u16, Release),
            10 => entry.chunk_worth.store(extreme as u32, Release),
            _ => entry.awaits_acks.store(extreme as u8, Release),
        }
    }

    /// Publishes regions with keys used by the victim's programs, and with impossible ranges.
    fn publish_region(&mut self, victim: &Victim) {
        let index = 1 + self.random.below(16);
        let entry = self.view.mr(index);
        let all = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        let flags = if self.random.one_in(2) { u64::from(all) } else { self.random.extreme() };
        let rkey = (index as u64) << 14;
        let start = self.random.extreme();
        entry.iova.store(if self.random.one_in(2) { 0 } else { start }, Relaxed);
        entry
            .len
            .store(if self.random.one_in(2) { 1 << 30 } else { self.random.extreme() }, Relaxed);
        let own = self.view.chunk(0).map_or(0, |chunk| chunk.address());
        let theirs = self.random.of(&victim.regions).map_or(0, |region| region.va);
        entry.va.store([own, theirs, start][self.random.below(3)], Relaxed);
        entry.pd.store(if self.random.one_in(2) { 0 } else { self.random.extreme() }, Relaxed);
        entry.qpn.store(self.random.extreme() as u32, Relaxed);
        entry.registration.store(self.random.extreme(), Relaxed);
        entry.origin.store(self.random.extreme(), Relaxed);
        protocol::validate(&entry.key, rkey | flags << 32);
    }

    /// Announces an operation on a region, and withdraws it at once, because deregistration waits
    /// for it.
    fn announce(&mut self, victim: &Victim) {
        let cell = &self.view.operation_in_flight(self.random.below(OPERATIONS_IN_FLIGHT)).target;
        let Some(region) = self.random.of(&victim.regions) else { return };
        cell.store(
            (u64::from(victim.view.peer().slot) + 1) << 32 | u64::from(region.rkey),
            Release,
        );
        cell.store(0, Release);
    }

    /// Changes words of the own rings segment that peers read: responses in chunks, the datagram
    /// ring.
    pub(super) fn change_own_rings(&mut self, victim: &Victim) {
        let extreme = self.random.extreme();
        let ring = self.view.peer_ring(victim.view.peer().slot).expect("mapped");
        match self.random.below(8) {
            0 => ring.acked().store(extreme as u32, Release),
            1 => {
                let more = self.random.below(300) as u32;
                ring.acked().word().fetch_add(more, Release);
            }
            2 => self.welcome(victim),
            3 => ring.nak().store(extreme as u32, Release),
            4 => ring.hot().store(self.random.below(3) as u32, Release),
            5 => self.view.rings_head().atomic_lock.store(extreme as u32, Release),
            6 => {
                let opener = &victim.view.openers(self.some_index(victim)).expect("mapped")
                    [usize::from(self.slot())];
                opener.store(extreme as u32, Release);
            }
            _ => {
                let Some(chunk) = self.view.chunk(self.random.below(32) as u32) else { return };
                let at = self.random.below(CHUNK_BYTES / 8);
                assert!(chunk.part(8 * at, 8).store(extreme), "mapped");
            }
        }
    }

    /// Calls the victim's helper with an own job that may be plausible.
    pub(super) fn call_for_help(&mut self, victim: &Victim) {
        self.forge_job(victim);
        let wanted = &victim.view.rings_head().help_wanted.0;
        let who = match self.random.below(10) {
            0 => self.random.extreme() as u32,
            _ => u32::from(self.slot()) + 1,
        };
        // A helper that rests or leaves is not called, because it would not return.
        if wanted.load(Relaxed) < 0xffff_fff0 && who < 0xffff_fff0 {
            wanted.store(who, Release);
            soft_sys::futex::wake(wanted);
        }
    }

    /// Describes a long operation on the victim's memory.
    pub(super) fn forge_job(&mut self, victim: &Victim) {
        let view = self.view.clone();
        let job = view.job();
        let region = self.random.of(&victim.regions);
        let target = self.random.of(&victim.connected_to_us);
        let qpn = target.map_or(self.random.next() as u32, |target| victim.qpn(target.index));
        job.target.store(u32::from(victim.view.peer().slot), Relaxed);
        job.qpn.store(qpn, Relaxed);
        job.rkey.store(region.map_or(0, |region| region.rkey), Relaxed);
        job.piece.store(self.random.extreme(), Relaxed);
        let len = region.map_or(0, |region| region.len);
        job.len.store(if self.random.one_in(2) { len } else { self.random.extreme() }, Relaxed);
        let start = region.map_or(0, |region| region.iova);
        job.addr.store(if self.random.one_in(2) { start } else { self.random.extreme() }, Relaxed);
        let own = self.view.chunk(0).map_or(0, |chunk| chunk.address());
        let witness = self.fabric.witness_address();
        for part in &job.parts[..8] {
            let at = if self.random.one_in(8) { self.random.extreme() } else { witness };
            part.witness.store(at, Relaxed);
            part.witness_len
                .store(if self.random.one_in(8) { self.random.extreme() } else { 8 }, Relaxed);
            part.addr
                .store(if self.random.one_in(2) { own } else { self.random.extreme() }, Relaxed);
            part.len
                .store(if self.random.one_in(2) { len } else { self.random.extreme() }, Relaxed);
        }
        job.is_read.store(self.random.below(3) as u32, Relaxed);
        // The claim on a job of the victim, sometimes on the current one.
        let theirs = protocol::job(&victim.view.job().state).number;
        let hand = u64::from(theirs) << 32 | u64::from(victim.view.peer().slot) << 20;
        let hand = if self.random.one_in(2) { hand } else { self.random.extreme() };
        view.tables_head().hand.0.store(hand | self.random.below(1 << 17) as u64, Release);
        let (number, count) = (self.random.next() as u32, self.random.extreme() as u16);
        protocol::open_job(&job.state, protocol::JobProgress { number, count, front: 0 });
    }
}
