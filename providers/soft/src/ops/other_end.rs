//! Queries of layers about the remote end of a connection (`ferroverbs_plugin_ext`). The answer
//! comes from the tables of the remote process, readable by every process of the fabric. A remote
//! end on another host is not asked.

use super::status;
use crate::engine::adapter::Adapter;
use crate::engine::keys::regions;
use crate::engine::keys::regions::KeyMeaning;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::life::from_shared;
use abi::*;
use soft_local::fabric::Peer;
use soft_local::shm::layout::{Life, split_qpn};
use soft_local::shm::view::PeerView;
use soft_semantics::state::QpType;
use soft_sys::Errno;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// # Safety
/// `qp` is a live QP of this provider; the first member of `end` gives the number of writable
/// bytes.
pub(super) unsafe extern "C" fn other_end(
    qp: *mut ibv_qp,
    rkey: u32,
    end: *mut ferroverbs_other_end,
) -> c_int {
    status(|| {
        // SAFETY: the caller states that `qp` is a live QP of this provider.
        let known = find_other_end(unsafe { Qp::of(qp) }, rkey)?;
        // SAFETY: every caller sets the first member.
        let size = unsafe { (&raw const (*end).size).read() };
        let known = ferroverbs_other_end { size, ..known };
        let length = size.min(size_of::<ferroverbs_other_end>());
        // SAFETY: at most the bytes of the caller's buffer and of the local value.
        unsafe { end.cast::<u8>().copy_from_nonoverlapping((&raw const known).cast(), length) };
        Ok(())
    })
}

/// The process that owns a QP number, as far as known.
enum QpOwner {
    Process(u32, Arc<Peer>),
    Unknown(u32),
}

fn owner_of(adapter: &Adapter, slot: u16, linked: Option<Arc<Peer>>) -> QpOwner {
    let place = |peer: &Arc<Peer>| match () {
        () if peer.is_self => OTHER_END_HERE,
        () if peer.is_dead() || !adapter.fabric.is_occupied(slot) => OTHER_END_GONE,
        () => OTHER_END_PROCESS,
    };
    // The peer of the connection comes first, because a new process may own the slot now.
    match linked.or_else(|| adapter.fabric.known_peer(slot)) {
        Some(peer) => QpOwner::Process(place(&peer), peer),
        None if adapter.fabric.is_occupied(slot) => QpOwner::Unknown(OTHER_END_CLOSED),
        None => QpOwner::Unknown(OTHER_END_NOBODY),
    }
}

fn find_other_end(qp: &Qp, rkey: u32) -> Result<ferroverbs_other_end, Errno> {
    if !matches!(qp.qp_type(), QpType::Rc | QpType::Uc | QpType::XrcSend) {
        return Err(Errno::EINVAL);
    }
    let mut end = ferroverbs_other_end {
        size: 0,
        place: OTHER_END_UNKNOWN,
        pid: 0,
        qp_state: -1,
        dest_qp_num: 0,
        access: 0,
        key: OTHER_KEY_UNKNOWN,
        key_access: 0,
        reserved: 0,
        key_addr: 0,
        key_length: 0,
        rq_psn: 0,
        path_mtu: 0,
        max_dest_rd_atomic: 0,
        reserved2: 0,
    };
    let number = Life::unpack(qp.entry().packed_life.load(Ordering::Acquire)).dest_qpn;
    let (slot, index) = split_qpn(number);
    let linked = {
        let requester = qp.requester().lock();
        if requester.is_between_hosts() {
            end.place = OTHER_END_WIRE;
            return Ok(end);
        }
        // The link of an XRC QP may lead to the process of another QP.
        requester.linked_peer().filter(|peer| peer.slot == slot).cloned()
    };
    if number == 0 {
        return Ok(end);
    }
    let peer = match owner_of(qp.adapter(), slot, linked) {
        QpOwner::Process(place, peer) => {
            (end.place, end.pid) = (place, peer.pid);
            peer
        }
        QpOwner::Unknown(place) => {
            end.place = place;
            return Ok(end);
        }
    };
    if end.place == OTHER_END_GONE {
        return Ok(end);
    }
    let view = PeerView::of(peer);
    let entry = view.qp(index);
    let life = Life::unpack(entry.packed_life.load(Ordering::Acquire));
    let Some(state) = from_shared(life.state) else { return Ok(end) };
    let rights = entry.rights.load(Ordering::Relaxed);
    end.qp_state = state as c_int;
    (end.dest_qp_num, end.access) = (life.dest_qpn, rights as u32);
    end.rq_psn = entry.rq_psn.load(Ordering::Relaxed);
    end.path_mtu = entry.path_mtu.load(Ordering::Relaxed);
    end.max_dest_rd_atomic = entry.max_dest_rd_atomic.load(Ordering::Relaxed);
    if rkey != 0 {
        let (kind, named) = regions::key_meaning(&view, rkey, number, (rights >> 32) as u32);
        end.key = match kind {
            KeyMeaning::Good => OTHER_KEY_GOOD,
            KeyMeaning::Nothing => OTHER_KEY_NONE,
            KeyMeaning::Local => OTHER_KEY_LOCAL,
            KeyMeaning::Domain => OTHER_KEY_DOMAIN,
            KeyMeaning::Qp => OTHER_KEY_QP,
        };
        (end.key_access, end.key_addr, end.key_length) = (named.access, named.iova, named.len);
    }
    Ok(end)
}
