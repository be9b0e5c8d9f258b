//! Datagram rings: one ring for each ordered pair of processes carries UD datagrams (`ud`), frames
//! (`frames`) and XRC messages. Senders put into an `Outlet`; polls and the service thread serve
//! the `Inlets`.
//!
//! A datagram in the ring is complete for its sender. The process of the receiver delivers it.
//!
//! Map of the file:
//!
//! - Threads: posts and the wire between hosts enter by `outlet`, `put_datagram` and `publish`.
//!   Polls enter by `drive`, the service thread by `serve_woken`, `add_peer` and
//!   `remove_peer`. The first sender or receiver of multicast enters by `meet_all_processes`.
//! - Locks: `inlets` > `known_processes`, responder and below; `outlets` > the state of an outlet.
//!   `introductions.in_progress` is held while connecting, for seconds.
//! - Mirrors: `has_waiting` is set under `inlets`. The ring words `acked` and `nak` mirror
//!   `Inlet::next` and the identity of the prepared sender.
//! - Fields: `datagram/mod.rs`.

use crate::engine::adapter::Adapter;
use crate::engine::datagram::{
    Datagrams, Inlet, OutgoingDatagram, Outlet, OutletState, PutResult, ROUND_BUDGET, Receivers,
};
use crate::engine::queues::served_by::ServedBy;
use crate::engine::ring::link;
use crate::engine::ring::link::publication_fence;
use crate::host::unavailable::is_temporary;
use cface::sync::Mutex;
use soft_local::fabric::{Peer, PeerError};
use soft_local::shm::layout::{ATTENTION_REQUESTS, RING_SLOTS};
use soft_local::shm::protocol;
use soft_local::shm::slot::*;
use soft_local::shm::view::{PeerView, View};
use soft_memory::Range;
use soft_sys::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time for all processes just met to prepare their rings: longer than a service thread waits on a
/// loaded machine.
const MEET_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the service thread looks whether stopped processes were continued.
const CONTINUED_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Datagrams {
    /// The outlet to process `slot`. Connects to the process if needed.
    ///
    /// # Errors
    /// No process has the slot, or the process does not answer.
    pub(crate) fn outlet(&self, adapter: &Adapter, slot: u16) -> Result<Arc<Outlet>, PeerError> {
        if let Some(outlet) = self.outlets.read().get(&slot)
            && !outlet.peer().is_dead()
        {
            return Ok(Arc::clone(outlet));
        }
        let peer = adapter.fabric.peer(slot)?;
        let view = PeerView::of(peer);
        let own_slot = adapter.fabric.slot();
        let room = view.peer_ring(own_slot).filter(|_| view.maps_chunks());
        let ring = room.ok_or(PeerError::System(Errno::ENOMEM))?;
        let state = OutletState {
            position: None,
            lent: VecDeque::new(),
            unpublished: false,
            last_target: None,
        };
        let outlet = Arc::new(Outlet { view, ring, own_slot, state: Mutex::new(state) });
        let mut to = self.outlets.write();
        match to.get(&slot) {
            // Another thread was faster. Two outlets would write to the same slots of the ring.
            Some(there) if !there.peer().is_dead() => return Ok(Arc::clone(there)),
            Some(there) => there.reclaim(adapter),
            None => {}
        }
        to.insert(slot, Arc::clone(&outlet));
        Ok(outlet)
    }

    /// As `outlet`, without waiting for the peer. Returns None while the processes are not
    /// connected; another thread connects them.
    ///
    /// # Errors
    /// As `outlet`.
    pub(crate) fn outlet_soon(
        &self,
        adapter: &Adapter,
        slot: u16,
    ) -> Result<Option<Arc<Outlet>>, PeerError> {
        match adapter.fabric.peer_nonblocking(slot)? {
            Some(_) => self.outlet(adapter, slot).map(Some),
            None => Ok(None),
        }
    }

    /// Sends a message of the library to process `slot`, and wakes the process. The message is lost
    /// if no process has the slot, or if the ring is full.
    pub(crate) fn send_message(
        &self,
        adapter: &Adapter,
        slot: u16,
        what: Op,
        about: u32,
        word: u64,
    ) {
        let Ok(outlet) = self.outlet(adapter, slot) else { return };
        let mut body = [0; BODY_WORDS];
        body[0] = word;
        let datagram = OutgoingDatagram {
            op: what,
            flags: 0,
            imm: 0,
            src_qpn: about,
            target_index: None,
            body,
            inline: Some(8),
        };
        if outlet.put_datagram(adapter, &datagram, |_| ()) == PutResult::Done {
            outlet.publish();
            outlet.peer().kick();
        }
    }

    /// Prepares the ring of a process that can send from now on.
    pub(crate) fn add_peer(&self, peer: &Arc<Peer>, own: &View) {
        // The rings segment of this process is mapped whole.
        let Some(ring) = own.peer_ring(peer.slot) else { return };
        let mut from = self.inlets.lock();
        if from.by_slot.get(&peer.slot).is_some_and(|old| Arc::ptr_eq(old.peer(), peer)) {
            return;
        }
        let next = from.by_slot.get(&peer.slot).map_or(0, |old| old.next).max(RING_SLOTS);
        // The position skips a lap, beyond all slots of an earlier owner of the process slot.
        let next = next.wrapping_add(RING_SLOTS);
        let view = PeerView::of(Arc::clone(peer));
        self.note_process(view.clone());
        // An earlier owner of the slot may have been hot, and its senders set no arrival flag.
        from.hot.retain_hot(|slot| *slot != peer.slot);
        ring.hot().store(0, Ordering::Relaxed);
        ring.acked().store(next, Ordering::Relaxed);
        // Release, after the store of `acked`. Pairs with the Acquire in `OutletState::room`: a
        // sender that reads its identity also reads the position to begin at.
        ring.nak().store(peer.identity(), Ordering::Release);
        from.by_slot.insert(peer.slot, Inlet { view, ring, next, frame: vec![], careful: false });
    }

    /// Adds a known process. Its own service thread and the local service thread may not have
    /// noticed the process yet.
    fn note_process(&self, process: PeerView) {
        let mut everyone = self.known_processes.write();
        // The slot may have a new owner, which the service thread has recorded.
        if process.peer().is_dead() {
            return;
        }
        everyone.retain(|met| met.peer().slot != process.peer().slot);
        everyone.push(process);
    }

    /// Removes a dead process. Datagrams sent before its death are still served.
    pub(crate) fn remove_peer(&self, adapter: &Adapter, peer: &Arc<Peer>) {
        let slot = peer.slot;
        self.known_processes.write().retain(|met| met.peer().slot != slot || !met.peer().is_dead());
        let mut to = self.outlets.write();
        // The slot may belong to a new process, whose outlet stays.
        if let Some(outlet) = to.get(&slot).filter(|outlet| Arc::ptr_eq(outlet.peer(), peer)) {
            outlet.reclaim(adapter);
            to.remove(&slot);
        }
        drop(to);
        let mut from = self.inlets.lock();
        while from.drain(self, adapter, slot, ServedBy::Library) == ROUND_BUDGET {}
        from.hot.retain_hot(|s| *s != slot);
        if let Some(inlet) = from.by_slot.get(&slot) {
            inlet.ring.hot().store(0, Ordering::Relaxed);
        }
    }

    /// Connects to all processes of the fabric, once. Every receiver and sender of multicast calls
    /// the function, so of two callers each knows the other.
    /// A stopped process is met once it is continued ([`Self::meet_late`]), without a wait here.
    ///
    /// # Errors
    /// A temporary lack of resources in this process. The next call tries all processes again,
    /// because a process left out would get no multicast.
    pub(crate) fn meet_all_processes(&self, adapter: &Adapter) -> Result<(), Errno> {
        // Pairs with the Release below: the met processes are visible with the flag.
        if self.introductions.are_complete.load(Ordering::Acquire) {
            return Ok(());
        }
        let _alone = self.introductions.in_progress.lock();
        if self.introductions.are_complete.load(Ordering::Relaxed) {
            return Ok(());
        }
        let own = adapter.fabric.slot();
        let identity = adapter.fabric.identity();
        let deadline = Instant::now() + MEET_TIMEOUT;
        // A process that joins later and is one of these processes meets us by itself.
        for slot in adapter.fabric.occupied() {
            if adapter.fabric.known_peer(slot).is_none() && adapter.fabric.is_stopped(slot) {
                self.introductions.stopped.lock().push(slot);
                continue;
            }
            let peer = match adapter.fabric.peer(slot) {
                Ok(peer) => peer,
                Err(PeerError::System(why)) if is_temporary(why) => return Err(why),
                Err(_) => continue,
            };
            let view = PeerView::of(peer);
            self.note_process(view.clone());
            let ready = || view.ready_for(own).load(Ordering::Acquire).equals(identity);
            while !ready() && !view.peer().is_dead() && Instant::now() < deadline {
                view.peer().kick();
                // Its service thread adds us first of all when it is continued.
                if adapter.fabric.is_stopped(slot) {
                    break;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        self.introductions.are_complete.store(true, Ordering::Release);
        if !self.introductions.stopped.lock().is_empty() {
            adapter.fabric.wake_self();
        }
        Ok(())
    }

    /// Meets processes that were stopped when [`Self::meet_all_processes`] ran, once they are
    /// continued. The service thread calls this; the result is the time until the next call, if one
    /// is needed.
    pub(crate) fn meet_late(&self, adapter: &Adapter) -> Option<Duration> {
        let mut late = self.introductions.stopped.lock();
        // Another thread meets a process, and the service thread then hears of it by
        // `on_peer_joined`.
        late.retain(|slot| {
            adapter.fabric.known_peer(*slot).is_none()
                && adapter.fabric.is_occupied(*slot)
                && (adapter.fabric.is_stopped(*slot)
                    || !matches!(adapter.fabric.peer_nonblocking(*slot), Ok(Some(_))))
        });
        (!late.is_empty()).then_some(CONTINUED_CHECK_INTERVAL)
    }

    /// Outlets to the living processes whose tables satisfy `wants`.
    pub(crate) fn receivers(
        &self,
        adapter: &Adapter,
        mut wants: impl FnMut(&View) -> bool,
    ) -> Receivers<'_> {
        let mut receivers = self.no_receivers();
        for met in self.known_processes.read().iter() {
            if !met.peer().is_dead() && wants(met) {
                receivers.push(met.peer().slot);
            }
        }
        receivers.find(|slot| self.outlet(adapter, slot).ok());
        receivers
    }

    /// Calls `look` with the tables of each living process.
    pub(in crate::engine) fn for_each_process(&self, mut look: impl FnMut(&View)) {
        for met in self.known_processes.read().iter().filter(|met| !met.peer().is_dead()) {
            look(met);
        }
    }

    /// Whether a datagram has waited for a receive since the last call; a thread must look again.
    pub(crate) fn take_has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::Relaxed) && self.has_waiting.swap(false, Ordering::Relaxed)
    }

    /// Waits until no datagram is being delivered.
    pub(crate) fn wait_for_deliveries(&self) {
        drop(self.inlets.lock());
    }

    /// The ring for datagrams to process `slot`.
    #[cfg(test)]
    pub(crate) fn ring_to(&self, adapter: &Adapter, slot: u16) -> soft_local::shm::ring::Ring {
        self.outlet(adapter, slot).expect("it is there").ring
    }
}

impl Outlet {
    /// The process that reads the ring.
    pub(in crate::engine) const fn peer(&self) -> &Arc<Peer> {
        self.view.peer()
    }

    /// The process slot of the receiver.
    pub(crate) fn peer_slot(&self) -> u16 {
        self.peer().slot
    }

    /// Wakes the receiving process.
    pub(crate) fn wake_receiver(&self) {
        self.peer().kick();
    }

    /// Takes back the lent chunks of a dead receiver.
    fn reclaim(&self, adapter: &Adapter) {
        for (_, chunk) in self.state.lock().lent.drain(..) {
            adapter.chunks.give(chunk);
        }
    }

    /// Whether a datagram can be put now. Also true for a dead receiver, for which waiting is
    /// useless.
    pub(in crate::engine) fn has_room(&self, adapter: &Adapter) -> bool {
        self.state.lock().room(self, adapter).is_some() || self.peer().is_dead()
    }

    /// Puts a datagram. If the body does not hold the bytes, `fill` writes them to a chunk of
    /// `CHUNK_BYTES`.
    pub(crate) fn put_datagram(
        &self,
        adapter: &Adapter,
        datagram: &OutgoingDatagram,
        fill: impl FnOnce(Range),
    ) -> PutResult {
        let mut state = self.state.lock();
        // After `reclaim` no thread would take back a chunk lent to the dead process.
        if self.peer().is_dead() {
            return PutResult::Done;
        }
        let Some(seq) = state.room(self, adapter) else { return PutResult::Full };
        let mut body = datagram.body;
        let (carrier, count) = match datagram.inline {
            Some(count) => (PayloadLocation::Inline, count),
            None => {
                let Some(chunk) = adapter.chunks.take() else { return PutResult::Full };
                let Some(there) = adapter.view.chunk(chunk) else { return PutResult::Done };
                state.lent.push_back((seq, chunk));
                fill(there);
                body[2] = halves(chunk, 0);
                (PayloadLocation::Chunk, 0)
            }
        };
        let head = Head {
            seq,
            op: datagram.op,
            flags: FIRST | LAST | datagram.flags,
            carrier,
            count,
            imm: datagram.imm,
            src_qpn: datagram.src_qpn,
            ack: 0,
        };
        self.ring.publish_piece(&head, &body);
        if let Some((next, _)) = &mut state.position {
            *next = next.wrapping_add(1);
        }
        state.unpublished = true;
        state.last_target = datagram.target_index;
        PutResult::Done
    }

    /// Announces the datagrams put so far.
    pub(crate) fn publish(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.unpublished, false) {
            return;
        }
        let reader = state.last_target;
        drop(state);
        protocol::notify_owner(
            self.ring.hot(),
            &self.view.tables_head().attention,
            ATTENTION_REQUESTS,
            || publication_fence(&self.view),
            || self.view.set_peer_arrival(self.own_slot),
            || {
                let channel = reader.map(|index| &self.view.qp(index).recv_channel);
                let channel = channel.map_or(0, |number| number.load(Ordering::Relaxed));
                link::wake(self.peer(), &self.view, channel);
            },
        );
    }
}

impl OutletState {
    /// The next sequence number, if a slot is free.
    fn room(&mut self, outlet: &Outlet, adapter: &Adapter) -> Option<u32> {
        let Some((next, acked)) = self.position else {
            let own = adapter.fabric.identity();
            if !outlet.ring.nak().load(Ordering::Acquire).equals(own) {
                return None;
            }
            let first = outlet.ring.acked().load(Ordering::Relaxed).unchecked();
            self.position = Some((first, first));
            return Some(first);
        };
        if next.wrapping_sub(acked) < RING_SLOTS / 2 {
            return Some(next);
        }
        // A distance above a lap is a number that no correct receiver stores.
        let sane = |acked| (next.wrapping_sub(acked) <= RING_SLOTS).then_some(acked);
        let acked = outlet.ring.claimed_progress().check(sane)?;
        self.position = Some((next, acked));
        while let Some(&(seq, chunk)) = self.lent.front()
            && acked.wrapping_sub(seq) as i32 > 0
        {
            self.lent.pop_front();
            adapter.chunks.give(chunk);
        }
        (next.wrapping_sub(acked) < RING_SLOTS).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_local::fabric::FabricConfig;

    /// Two members of a fabric.
    fn pair(what: &str) -> [Arc<Adapter>; 2] {
        let name = format!("ferroverbs-{what}-{}", std::process::id());
        let mut config = FabricConfig::new(std::env::temp_dir().join(name));
        config.dir_is_ours = true;
        [(); 2].map(|()| Adapter::join(config.clone()).expect("a fabric"))
    }

    #[test]
    fn a_thread_that_meets_all_processes_knows_them_before_the_service_thread_does() {
        let [a, b] = pair("everyone");
        // The service thread of `b` blocks here.
        let from = b.datagrams.inlets.lock();
        b.datagrams.meet_all_processes(&b).expect("nothing is lacking");
        let mut known = 0;
        b.datagrams.for_each_process(|_| known += 1);
        drop(from);
        assert_eq!(known, 2, "itself and {}", a.fabric.slot());
    }

    #[test]
    fn threads_that_write_to_a_process_for_the_first_time_at_once_share_one_outlet() {
        for _ in 0..8 {
            let [a, b] = pair("outlet");
            let (slot, start) = (b.fabric.slot(), std::sync::Barrier::new(4));
            let outlets: Vec<_> = std::thread::scope(|scope| {
                let find = || {
                    start.wait();
                    a.datagrams.outlet(&a, slot).expect("it is there")
                };
                let threads = [(); 4].map(|()| scope.spawn(find));
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            assert!(outlets.iter().all(|outlet| Arc::ptr_eq(outlet, &outlets[0])));
        }
    }
}
